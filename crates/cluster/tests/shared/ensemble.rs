//! Real ZooKeeper servers for tests: processes that this file starts and ends, with ports and directories of their own.
//!
//! Invariant: no server outlives the process of the test, however that ends. A shell waits for the end of its standard input, and
//! then kills the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

/// Set where the tests of ZooKeeper must run. There it is an error if ZooKeeper is not installed.
const REQUIRED: &str = "LEEWARD_TEST_ZOOKEEPER";
/// The directory of `libzookeeper-java` and its dependencies on Debian.
const JARS: &str = "/usr/share/java";
const CLASS_PATH: [&str; 7] = [
    "zookeeper.jar",
    "netty-all.jar",
    "zookeeper-jute.jar",
    "slf4j-log4j12.jar",
    "log4j-1.2.jar",
    "netty-codec.jar",
    "netty-resolver.jar",
];
/// Sessions end at a multiple of this.
const TICK: Duration = Duration::from_millis(200);
/// Longer than a server takes to start on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Whether servers can be started. Prints the reason if not.
pub(crate) fn is_there() -> bool {
    let java = Command::new("java").arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let missing = match java {
        Ok(status) if status.success() => {
            CLASS_PATH.iter().map(|jar| Path::new(JARS).join(jar)).find(|jar| !jar.exists())
        }
        _ => Some("java".into()),
    };
    if let Some(missing) = &missing {
        let why = format!(
            "{} is not there: apt install libzookeeper-java libslf4j-java liblog4j1.2-java libnetty-java default-jre-headless",
            missing.display()
        );
        assert!(env::var_os(REQUIRED).is_none(), "{REQUIRED} is set: {why}");
        eprintln!("skipped: {why}");
    }
    missing.is_none()
}

/// One server alone, or several that know each other.
pub(crate) struct Ensemble {
    servers: Vec<Server>,
    /// The directory vanishes with the ensemble.
    _directory: tempfile::TempDir,
}

struct Server {
    directory: PathBuf,
    /// The port without TLS. Four-letter commands go there.
    plain: SocketAddr,
    /// The port that clients use.
    client: SocketAddr,
    running: Option<Running>,
    /// Options for its virtual machine.
    java: String,
}

/// What differs from a usual ensemble.
#[derive(Clone, Copy, Default)]
pub(crate) struct Setup<'a> {
    /// With it clients use TLS, and must have a certificate: a file in PEM that has the servers' key and certificate; and one
    /// with the authorities that are trusted.
    pub(crate) key_store: Option<(&'a Path, &'a Path)>,
    /// Lines for the configuration, after the usual ones.
    pub(crate) config: &'a str,
    /// Options for the virtual machine.
    pub(crate) java: &'a str,
}

/// The shell that ends with its standard input, and the server that ends with the shell.
struct Running {
    shell: Child,
    server: u32,
}

impl Ensemble {
    /// One of `servers` servers, all of them ready.
    pub(crate) fn start(servers: usize) -> Ensemble {
        Ensemble::start_with(servers, Setup::default())
    }

    /// One of `servers` servers, all of them ready.
    pub(crate) fn start_with(servers: usize, setup: Setup<'_>) -> Ensemble {
        let deadline = Instant::now() + LONG;
        loop {
            let mut ensemble = Ensemble::configure(servers, setup);
            (0..servers).for_each(|server| ensemble.run(server));
            // A port may be taken by another between its choice and its use.
            if (0..servers).all(|server| ensemble.is_ready_by(server, deadline)) {
                return ensemble;
            }
            assert!(Instant::now() < deadline, "no server of ZooKeeper starts: {}", ensemble.log(0));
        }
    }

    fn configure(servers: usize, setup: Setup<'_>) -> Ensemble {
        let Setup { key_store, config: lines, java } = setup;
        let directory = tempfile::tempdir().expect("a directory");
        let ports = free_ports(4 * servers);
        let members: String = (0..servers)
            .filter(|_| servers > 1)
            .map(|server| format!("server.{}=127.0.0.1:{}:{}\n", server + 1, ports[4 * server], ports[4 * server + 1]))
            .collect();
        let servers = (0..servers).map(|server| {
            let home = directory.path().join(server.to_string());
            fs::create_dir_all(home.join("data")).expect("a directory");
            let [plain, secure] = [2, 3].map(|port| SocketAddr::from(([127, 0, 0, 1], ports[4 * server + port])));
            let tls = key_store.map(|(keys, trusted)| secure_port(secure, keys, trusted)).unwrap_or_default();
            let config = format!(
                "tickTime={}\ninitLimit=50\nsyncLimit=10\nminSessionTimeout=200\nmaxSessionTimeout=60000\nmaxClientCnxns=0\n\
                 dataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n\
                 4lw.commands.whitelist=*\n{members}{tls}{lines}",
                TICK.as_millis(),
                home.join("data").display(),
                plain.port(),
            );
            fs::write(home.join("config"), config).expect("a file");
            fs::write(home.join("data/myid"), (server + 1).to_string()).expect("a file");
            fs::write(home.join("log4j.properties"), LOG).expect("a file");
            let client = if key_store.is_some() { secure } else { plain };
            Server { directory: home, plain, client, running: None, java: java.to_owned() }
        });
        Ensemble { servers: servers.collect(), _directory: directory }
    }

    /// The address for clients, with `path` for the cluster.
    pub(crate) fn address(&self, path: &str) -> String {
        let hosts: Vec<String> = self.servers.iter().map(|server| server.client.to_string()).collect();
        format!("zk://{}{path}", hosts.join(","))
    }

    /// The address of a server without TLS.
    pub(crate) fn plain(&self, server: usize) -> SocketAddr {
        self.servers[server].plain
    }

    /// Starts a server that was killed, and waits until it serves.
    pub(crate) fn restart(&mut self, server: usize) {
        self.run(server);
        assert!(self.is_ready_by(server, Instant::now() + LONG), "it does not start again: {}", self.log(server));
    }

    fn run(&mut self, server: usize) {
        let server = &mut self.servers[server];
        let jars: Vec<String> = CLASS_PATH.iter().map(|jar| format!("{JARS}/{jar}")).collect();
        let mut shell = Command::new("sh")
            .args(["-c", "java \"$@\" >log 2>&1 </dev/null & echo $!; read _; kill -9 $! 2>/dev/null; wait", "sh"])
            .args([
                "-Xmx128m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Dlog4j.configuration=file:log4j.properties",
            ])
            .args(["-cp", &jars.join(":"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", "config"])
            .env("JDK_JAVA_OPTIONS", &server.java)
            .current_dir(&server.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        BufReader::new(shell.stdout.take().expect("it is piped")).read_line(&mut line).expect("the shell says");
        server.running = Some(Running { shell, server: line.trim().parse().expect("a process id") });
    }

    fn is_ready_by(&self, server: usize, deadline: Instant) -> bool {
        let process = self.servers[server].running.as_ref().map_or(0, |running| running.server);
        while Instant::now() < deadline && Path::new(&format!("/proc/{process}")).exists() {
            if self.says(server, "srvr").contains("Mode:") {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// The answer of a server to a four-letter command.
    pub(crate) fn says(&self, server: usize, word: &str) -> String {
        let mut answer = String::new();
        let asked = TcpStream::connect(self.servers[server].plain).and_then(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.write_all(word.as_bytes())?;
            stream.read_to_string(&mut answer)
        });
        if asked.is_ok() { answer } else { String::new() }
    }

    /// The server that leads the others. An election may be under way: the call waits for its end.
    pub(crate) fn leader(&self) -> usize {
        let leads = |server: &usize| self.says(*server, "srvr").contains("Mode: leader");
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(leader) = (0..self.servers.len()).find(leads) {
                return leader;
            }
            assert!(Instant::now() < deadline, "no server of ZooKeeper leads: {}", self.log(0));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends a server as `kill -9` does.
    pub(crate) fn kill(&mut self, server: usize) {
        self.servers[server].running = None;
    }

    /// Sends a signal to a server: `STOP`, or `CONT`.
    pub(crate) fn signal(&self, server: usize, signal: &str) {
        let process = self.servers[server].running.as_ref().expect("it runs").server;
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(process.to_string()).status();
        assert!(sent.expect("kill").success());
    }

    fn log(&self, server: usize) -> String {
        fs::read_to_string(self.servers[server].directory.join("log")).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // The input that the shell waited for is closed.
        drop(self.shell.wait());
    }
}

/// Lines of a server's configuration for a port with TLS.
fn secure_port(port: SocketAddr, keys: &Path, trusted: &Path) -> String {
    let (keys, trusted) = (keys.display(), trusted.display());
    format!(
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\nsecureClientPort={}\n\
         secureClientPortAddress=127.0.0.1\nssl.keyStore.location={keys}\nssl.keyStore.type=PEM\n\
         ssl.trustStore.location={trusted}\nssl.trustStore.type=PEM\nssl.clientAuth=need\n",
        port.port()
    )
}

/// Ports that are free at the moment.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    listeners.iter().map(|listener| listener.local_addr().expect("it is bound").port()).collect()
}

const LOG: &str = "log4j.rootLogger=WARN, OUT\nlog4j.appender.OUT=org.apache.log4j.ConsoleAppender\n\
                   log4j.appender.OUT.layout=org.apache.log4j.PatternLayout\n\
                   log4j.appender.OUT.layout.ConversionPattern=%d %p %c{1} %m%n\n";

//! The coordinator's processes: the embedded coordinator in its own process, or a real ZooKeeper. Faults treat both alike.
//!
//! | | embedded | ZooKeeper |
//! |---|---|---|
//! | processes | this program, as `host-coordinator` | `java`, one or an ensemble of three |
//! | ready | its port takes a connection | `srvr` answers with a mode |
//! | a node's `coordinator` | `host:port` | `zk://host:port,.../leeward` |

use crate::cluster::certificates::Certificates;
use crate::cluster::network::{HostNo, Network};
use crate::cluster::process::Process;
use crate::error::{ChaosError, fault};
use clap::ValueEnum;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Kinds of ports of the coordinator's hosts.
const CLIENTS: u16 = 3;
const FOLLOWERS: u16 = 4;
const ELECTION: u16 = 5;
/// ZooKeeper's port for its four-letter words, in a run with TLS.
const WORDS: u16 = 2;
/// How long a process may take to answer whether it is ready.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// ZooKeeper's unit of time, in milliseconds. Sessions are bounded to 2 to 20 of them.
const TICK_MS: u64 = 250;
/// How far a follower may be behind, in ticks. It is shorter than a session. So no isolated leader and no follower serves stale
/// data for so long that a node trusts it beyond its session.
const SYNC_TICKS: u64 = 3;
/// Where Debian installs jars.
const JARS: &str = "/usr/share/java";
/// The jars that ZooKeeper needs.
const CLASS_PATH: [&str; 16] = [
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "slf4j-log4j12",
    "log4j-1.2",
    "netty-common",
    "netty-buffer",
    "netty-codec",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-native-epoll",
    "netty-transport-native-unix-common",
    "commons-cli",
    "metrics-core",
    "snappy-java",
];

/// Which coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CoordinatorKind {
    /// The coordinator that is part of Leeward: one process.
    Embedded,
    /// ZooKeeper: an ensemble of three.
    Zookeeper,
}

impl CoordinatorKind {
    pub(crate) fn members(self) -> usize {
        match self {
            CoordinatorKind::Embedded => 1,
            CoordinatorKind::Zookeeper => 3,
        }
    }

    /// Session timeout that nodes ask for, in milliseconds.
    pub(crate) fn session_ms(self) -> u64 {
        match self {
            CoordinatorKind::Embedded => 1_000,
            CoordinatorKind::Zookeeper => 2_000,
        }
    }

    /// Why it cannot run on this machine, if it cannot.
    pub(crate) fn refusal(self) -> Option<String> {
        let is_there = Path::new(JARS).join("zookeeper.jar").exists() && crate::tool::is_installed("java");
        (self == CoordinatorKind::Zookeeper && !is_there).then(|| {
            "--coordinator zookeeper needs a Java and ZooKeeper: apt-get install default-jre-headless libzookeeper-java".into()
        })
    }
}

/// The coordinator's processes. Belongs to one thread.
#[derive(Debug)]
pub(crate) struct Coordinator {
    kind: CoordinatorKind,
    /// This program.
    own: PathBuf,
    /// What the embedded coordinator has for TLS: authorities, certificate and key.
    tls: Option<[PathBuf; 3]>,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    host: HostNo,
    folder: PathBuf,
    process: Process,
}

impl Coordinator {
    /// Prepares the processes, at the hosts from `first` on.
    ///
    /// # Errors
    /// A directory cannot be made.
    pub(crate) fn new(
        kind: CoordinatorKind,
        first: HostNo,
        directory: &Path,
        network: &Network,
        certificates: Option<&Certificates>,
    ) -> Result<Coordinator, ChaosError> {
        let mut members = Vec::new();
        for host in first..first + kind.members() {
            let name = format!("coordinator-{}", host - first + 1);
            let folder = directory.join(&name);
            fs::create_dir_all(&folder).map_err(fault("make", &folder))?;
            members.push(Member { host, folder, process: Process::new(name, &directory.join("logs")) });
        }
        let own = std::env::current_exe().map_err(fault("find", Path::new("this program")))?;
        let files = |certificates: &Certificates| {
            let (certificate, key) = certificates.of_coordinator();
            [certificates.authority(), certificate, key]
        };
        let coordinator = Coordinator { kind, own, tls: certificates.map(files), members };
        if kind == CoordinatorKind::Zookeeper {
            coordinator.configure_zookeeper(network, certificates)?;
        }
        Ok(coordinator)
    }

    pub(crate) fn members(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn hosts(&self) -> impl Iterator<Item = HostNo> {
        self.members.iter().map(|member| member.host)
    }

    /// Addresses of the processes, if they are Leeward's own.
    pub(crate) fn own(&self, network: &Network) -> Vec<SocketAddr> {
        let hosts = self.hosts().filter(|_| self.kind == CoordinatorKind::Embedded);
        hosts.map(|host| network.address(host, CLIENTS)).collect()
    }

    /// The setting `coordinator` of the nodes.
    pub(crate) fn setting(&self, network: &Network) -> String {
        let addresses: Vec<String> = self.hosts().map(|host| network.address(host, CLIENTS).to_string()).collect();
        match self.kind {
            CoordinatorKind::Embedded => addresses.join(","),
            CoordinatorKind::Zookeeper => format!("zk://{}/leeward", addresses.join(",")),
        }
    }

    /// Starts a process that does not run.
    ///
    /// # Errors
    /// The program cannot be run.
    pub(crate) fn start(&mut self, index: usize, network: &Network) -> Result<(), ChaosError> {
        let Member { host, folder, process } = &mut self.members[index];
        if process.runs() {
            return Ok(());
        }
        let command = match self.kind {
            CoordinatorKind::Embedded => {
                let mut command = network.command(*host, &self.own.to_string_lossy());
                command.arg("host-coordinator").arg("--directory").arg(&*folder);
                command.args(["--listen", &network.address(*host, CLIENTS).to_string()]);
                if let Some(files) = &self.tls {
                    command.arg("--tls").args(files);
                }
                command
            }
            CoordinatorKind::Zookeeper => {
                let mut command = network.command(*host, "java");
                let jars: Vec<String> = CLASS_PATH.map(|jar| format!("{JARS}/{jar}.jar")).to_vec();
                command.args(["-Xmx128m", "-Dzookeeper.admin.enableServer=false", "-cp"]);
                command.arg(format!("{}:{}", folder.display(), jars.join(":")));
                command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(folder.join("zoo.cfg"));
                command
            }
        };
        process.start(command)
    }

    pub(crate) fn process(&mut self, index: usize) -> &mut Process {
        &mut self.members[index].process
    }

    /// Whether every process serves.
    pub(crate) fn is_ready(&self, network: &Network) -> bool {
        self.hosts().all(|host| {
            let address = |kind| network.address(host, kind);
            match self.kind {
                CoordinatorKind::Embedded => TcpStream::connect_timeout(&address(CLIENTS), ANSWER_WITHIN).is_ok(),
                CoordinatorKind::Zookeeper => says_mode(address(self.words())).unwrap_or(false),
            }
        })
    }

    /// The kind of port of ZooKeeper without TLS.
    fn words(&self) -> u16 {
        if self.tls.is_some() { WORDS } else { CLIENTS }
    }

    fn configure_zookeeper(&self, network: &Network, certificates: Option<&Certificates>) -> Result<(), ChaosError> {
        let mut servers = String::new();
        for (id, member) in (1..).zip(&self.members) {
            let peer = |kind| network.address(member.host, kind);
            servers += &format!("server.{id}={}:{}\n", peer(FOLLOWERS), peer(ELECTION).port());
        }
        for (id, Member { host, folder, .. }) in (1..).zip(&self.members) {
            let address = network.address(*host, self.words());
            let tls = certificates.map(|of| of.of_zookeeper(*host, network.address(*host, CLIENTS))).transpose()?;
            let tls = tls.unwrap_or_default();
            let text = format!(
                "tickTime={TICK_MS}\ninitLimit=20\nsyncLimit={SYNC_TICKS}\ndataDir={}\nclientPort={}\n\
                 clientPortAddress={}\nadmin.enableServer=false\n4lw.commands.whitelist=*\n{servers}{tls}",
                folder.display(),
                address.port(),
                address.ip()
            );
            let log = "log4j.rootLogger=INFO, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n\
                       log4j.appender.out.layout=org.apache.log4j.PatternLayout\n\
                       log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n\n";
            for (name, text) in [("zoo.cfg", text), ("myid", id.to_string()), ("log4j.properties", log.to_owned())] {
                let path = folder.join(name);
                fs::write(&path, text).map_err(fault("write", &path))?;
            }
        }
        Ok(())
    }
}

/// Whether a ZooKeeper serves, alone or as leader or follower.
fn says_mode(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.write_all(b"srvr")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.contains("Mode: "))
}

//! A running `leeward dev` under test, and helpers to send it commands and to kill its processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time limit of every wait.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The binary under test.
pub(crate) fn leeward() -> Command {
    Command::new(env!("CARGO_BIN_EXE_leeward"))
}

/// Waits until `condition` holds.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Sends a signal by name.
pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status().expect("kill runs");
    assert!(status.success(), "process {pid} could not be signalled");
}

/// The process that a line of `leeward dev` names at its end.
pub(crate) fn pid_of(line: &str) -> u32 {
    let pid = line.rsplit("pid ").next().and_then(|pid| pid.trim_end_matches(')').trim().parse().ok());
    pid.expect("the pid is at the end")
}

pub(crate) fn terminate(pid: u32) {
    signal(pid, "TERM");
}

pub(crate) fn is_alive(pid: u32) -> bool {
    // A zombie is not.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

pub(crate) struct Dev {
    child: Child,
    lines: Receiver<String>,
    pub(crate) base: u16,
    pub(crate) pids: Vec<u32>,
    pub(crate) directory: Arc<TempDir>,
}

impl Dev {
    /// Starts `nodes` on free ports and waits until they serve.
    pub(crate) fn start(nodes: u32, args: &[&str]) -> Dev {
        Dev::start_in(Arc::new(tempfile::tempdir().expect("a directory")), nodes, args)
    }

    /// As [`Dev::start`], on the data of an earlier cluster.
    pub(crate) fn start_in(directory: Arc<TempDir>, nodes: u32, args: &[&str]) -> Dev {
        let data = directory.path().to_owned();
        Dev::start_by(leeward(), directory, &data, nodes, args)
    }

    /// Starts it by a command, which gets its arguments, on `data` in the directory.
    pub(crate) fn start_by(
        mut command: Command,
        directory: Arc<TempDir>,
        data: &Path,
        nodes: u32,
        args: &[&str],
    ) -> Dev {
        let base = free_base();
        let mut child = command
            .args(["dev", "--nodes", &nodes.to_string(), "--base-port", &base.to_string(), "--data"])
            .arg(data)
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                println!("dev: {line}");
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut dev = Dev { child, lines, base, pids: Vec::new(), directory };
        for node in 1..=nodes {
            let line = dev.wait_for_line(&format!("node {node}: redis"));
            dev.pids.push(pid_of(&line));
        }
        dev.wait_for_line("Ctrl-C stops");
        dev
    }

    /// Reads lines up to one that contains `part`.
    pub(crate) fn wait_for_line(&mut self, part: &str) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|error| panic!("no line with {part:?}: {error}"));
            if line.contains(part) {
                return line;
            }
        }
    }

    pub(crate) fn resp(&self, node: u32) -> u16 {
        self.base + node as u16 - 1
    }

    pub(crate) fn supervisor(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9` of a node.
    pub(crate) fn kill(&self, node: u32) {
        signal(self.pids[node as usize - 1], "KILL");
    }

    /// `kill -9` of a node that `--restart` starts again.
    pub(crate) fn kill_and_wait_for_the_next(&mut self, node: u32) {
        self.kill(node);
        let line = self.wait_for_line(&format!("node {node} started again"));
        self.pids[node as usize - 1] = pid_of(&line);
    }

    /// Stops the process of a node, which keeps its memory and its connections.
    pub(crate) fn pause(&self, node: u32) {
        signal(self.pids[node as usize - 1], "STOP");
    }

    /// Lets a node that was stopped run again.
    pub(crate) fn resume(&self, node: u32) {
        signal(self.pids[node as usize - 1], "CONT");
    }

    /// `kill -9` of the supervisor.
    pub(crate) fn die(mut self) {
        self.child.kill().expect("it is alive");
        self.child.wait().expect("it ends");
    }

    /// Ends it as Ctrl-C does, and checks that it ended well.
    pub(crate) fn stop(mut self) {
        signal(self.child.id(), "INT");
        assert!(self.child.wait().expect("it ends").success());
        wait_for("the nodes are gone", || self.pids.iter().all(|pid| !is_alive(*pid)));
    }

    /// Runs a client command against the first two nodes; answers what it printed.
    pub(crate) fn leeward(&self, args: &[&str]) -> String {
        let native = self.base + 100;
        let output = leeward()
            .args(args)
            .args(["--connect", &format!("127.0.0.1:{native},127.0.0.1:{}", native + 1)])
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// Runs a command that must end with exit code 1; returns its standard error.
    pub(crate) fn refused(&self, args: &[&str]) -> String {
        let connect = format!("127.0.0.1:{}", self.base + 100);
        let output = leeward().args(args).args(["--connect", &connect]).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.leeward(&["status", "--json"])).expect("it is JSON")
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // After a failed assertion; the nodes end with it.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Kinds of ports of a node.
const KINDS: u16 = 5;

/// A base port for one test, of which no port of the cluster's nodes is in use; tests run at the same time. A node has a
/// port in each of the hundreds from the base on ([`KINDS`]). Ten clusters share these hundreds, and the next ten have the
/// hundreds behind them. All are below those that `bench` searches.
pub(crate) fn free_base() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 2) as u16 * 4_000;
    let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let bases = std::iter::repeat_with(|| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % 70;
        first + number / 10 * (KINDS * 100) + number % 10 * 10
    });
    let mut bases = bases.take(70);
    let found = bases.find(|base| (0..KINDS).all(|kind| (0..10).all(|node| is_free(base + kind * 100 + node))));
    found.expect("some ports are free")
}

/// A Redis client of the plainest kind.
pub(crate) struct Resp {
    stream: BufReader<TcpStream>,
}

impl Resp {
    pub(crate) fn connect(port: u16) -> Resp {
        Resp::try_connect(port).expect("the node listens")
    }

    pub(crate) fn try_connect(port: u16) -> Option<Resp> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).expect("a time limit");
        Some(Resp { stream: BufReader::new(stream) })
    }

    /// Whether the node has ended the connection, which must be idle.
    pub(crate) fn is_ended(&mut self) -> bool {
        self.stream.get_mut().set_nonblocking(true).expect("it can be set");
        let read = self.stream.read(&mut [0; 1]);
        self.stream.get_mut().set_nonblocking(false).expect("it can be set");
        !read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Calls a command; returns the line of a simple reply with its mark, the bytes of a bulk string, or the elements
    /// of an array with spaces between. Retries while a region is recovering, as client libraries do.
    pub(crate) fn call(&mut self, args: &[&str]) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let reply = self.call_once(args);
            let again =
                reply.starts_with("-LOADING") || reply.starts_with("-NOREPLICAS") || reply.starts_with("-TRYAGAIN");
            if !again || Instant::now() > deadline {
                return reply;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn call_once(&mut self, args: &[&str]) -> String {
        let mut request = format!("*{}\r\n", args.len());
        for arg in args {
            request += &format!("${}\r\n{arg}\r\n", arg.len());
        }
        self.stream.get_mut().write_all(request.as_bytes()).expect("the node takes it");
        self.reply()
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a reply");
        let line = line.trim_end();
        if let Some(Ok(entries)) = line.strip_prefix('*').map(str::parse::<usize>) {
            let entries: Vec<String> = (0..entries).map(|_| self.reply()).collect();
            return entries.join(" ");
        }
        match line.strip_prefix('$').map(str::parse::<usize>) {
            Some(Ok(bytes)) => {
                let mut body = vec![0; bytes + 2];
                self.stream.read_exact(&mut body).expect("the rest of the reply");
                String::from_utf8_lossy(&body[..bytes]).into_owned()
            }
            _ => line.into(),
        }
    }
}

//! A cluster on this machine: the coordinator in this process, unless it is ZooKeeper, and one child process per node.
//! `leeward dev`, `leeward bench` and `cargo xtask measure` use it.
//!
//! ```text
//! DIR/coordinator/        the embedded coordinator's log
//! DIR/node-1/             volume of node 1, its node.toml and its log
//! DIR/certs/              certificates, with TLS
//! DIR/keys                the key that volumes are encrypted with, if they are
//! ```
//! Each child has the reading end of a pipe as its standard input and stops when that ends. So all children stop when this
//! process does, however it dies, and none is left over. They are in process groups of their own, so that Ctrl-C reaches the
//! supervisor alone.
//!
//! Belongs to one thread.

mod claim;
mod plan;
mod ports;
mod processes;

pub use plan::{Fabric, Plan, default_table};
pub use ports::{DEFAULT_BASE, PortInUse, Ports};
pub use processes::NodeProcesses;

use claim::claim;
use leeward_client::{Access, ClientError, ClientOptions, Op, OpError, OpResult, Session};
use leeward_cluster::embedded::{Host, HostError};
use leeward_cluster::zookeeper::{self, apply_once};
use leeward_cluster::{CoordinatorError, bootstrap_op};
use leeward_format::TableId;
use leeward_platform::Rng;
use leeward_platform::disk::private;
use leeward_security::certificates::CertificateError;
use leeward_security::tls::TlsError;
use leeward_server::NodeConfig;
use leeward_server::config::{ConfigError, CoordinatorAt};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[cfg(test)]
mod tests;

/// How long a cluster may take until every region is served.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long nodes may take to stop by themselves.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// Settings that differ from node to node, and that the supervisor chooses.
const CHOSEN_HERE: [&str; 9] = [
    "server_id",
    "data_dir",
    "resp_listen",
    "native_listen",
    "admin_listen",
    "fabric_listen",
    "tls_ca",
    "tls_certificate",
    "tls_key",
];
/// Time limit for making the regions of a new cluster at ZooKeeper.
const MADE_WITHIN: Duration = Duration::from_secs(20);

/// Why a cluster does not run.
#[derive(Debug, thiserror::Error)]
pub enum DevError {
    /// A setting that every node would refuse.
    #[error(transparent)]
    Setting(#[from] ConfigError),
    /// A setting that the supervisor chooses.
    #[error(
        "--set {0}: every node gets its own, from --data, --base-port and --tls; to choose it, run nodes with \
         `leeward serve`"
    )]
    Chosen(String),
    /// A port is in use.
    #[error(transparent)]
    Port(#[from] PortInUse),
    /// No ports were found for the nodes.
    #[error("no free ports were found for the nodes")]
    NoPorts,
    /// The directory is in use.
    #[error("data directory {} is in use by another process: stop that cluster, or use another --data", .0.display())]
    InUse(PathBuf),
    /// The coordinator does not start.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The coordinator refuses the table.
    #[error("coordinator: {0}")]
    Coordinator(#[from] CoordinatorError),
    /// The coordinator cannot write its log, for this reason.
    #[error("coordinator: its log cannot be written: {0}")]
    CoordinatorLog(String),
    /// Certificates cannot be made.
    #[error("certificates: {0}")]
    Certificates(#[from] CertificateError),
    /// Certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The directory cannot be created.
    #[error("cannot create the directory {}: {}", .0.display(), .1)]
    Directory(PathBuf, #[source] io::Error),
    /// A file cannot be used, or the program cannot be run.
    #[error("cannot use {}: {}", .0.display(), .1)]
    File(PathBuf, #[source] io::Error),
    /// The directory holds the data of this number of nodes, and the plan has another.
    #[error("{} holds the data of {} nodes: use --nodes {}, or another --data", .0.display(), .1, .1)]
    OtherNodes(PathBuf, u32),
    /// The first keys of regions do not ascend, or one is empty.
    #[error("--split-at: keys must ascend and must not be empty")]
    Splits,
    /// A node ended by itself; how, and the end of its log.
    #[error("{0}")]
    Died(String),
    /// The cluster does not become ready within this time.
    #[error("not every region is served after {0:?}; see the nodes' logs in the data directory")]
    NotReady(Duration),
    /// The caller ended the wait.
    #[error("interrupted before the cluster was ready")]
    Interrupted,
}

/// The process of a node, while it runs.
#[derive(Debug)]
struct Node {
    child: Option<Child>,
    started: Instant,
    /// Bytes of the log from before its start.
    earlier_log: u64,
}

/// A process that ended.
#[derive(Debug)]
pub struct Death {
    /// Number of the node, from 1.
    pub node: u32,
    /// Id of its process.
    pub pid: u32,
    /// "was killed by signal 9", "ended with exit code 2".
    pub how: String,
    /// How long it lived.
    pub lived: Duration,
    /// Bytes of the log that earlier processes wrote.
    earlier_log: u64,
}

/// The running cluster. Dropping it stops every node.
#[derive(Debug)]
pub struct Cluster {
    plan: Plan,
    /// The coordinator, unless it is ZooKeeper.
    host: Option<Host>,
    nodes: Vec<Node>,
    /// The regions existed before this start.
    pub existed: bool,
    /// The data's directory, if it is to be removed with the cluster.
    temporary: Option<TempDir>,
}

impl Cluster {
    /// Starts all processes; [`Cluster::wait_until_ready`] waits until the cluster serves.
    ///
    /// # Errors
    /// The plan is invalid, or something that it needs is in use or missing.
    pub fn start(plan: Plan) -> Result<Cluster, DevError> {
        if !plan.splits.is_sorted_by(|left, right| left < right)
            || plan.splits.first().is_some_and(|key| key.is_empty())
        {
            return Err(DevError::Splits);
        }
        let chosen = plan.settings.iter().find(|(name, _)| CHOSEN_HERE.contains(&&name[..]));
        if let Some((name, _)) = chosen {
            return Err(DevError::Chosen(name.clone()));
        }
        let config = NodeConfig::load(None, &plan.settings)?;
        let credentials = config.coordination.zookeeper_credentials()?;
        let ensemble = match config.coordination.coordinator {
            CoordinatorAt::ZooKeeper(ensemble) => Some(ensemble),
            CoordinatorAt::Embedded(_) if plan.hosts_coordinator() => None,
            CoordinatorAt::Embedded(_) => return Err(DevError::Chosen("coordinator".into())),
        };
        create_directory(&plan.directory)?;
        let found = node_directories(&plan.directory);
        if found != 0 && found != plan.nodes {
            return Err(DevError::OtherNodes(plan.directory, found));
        }
        plan.make_certificates()?;
        plan.make_key()?;
        let host = claim(&plan)?;
        let bootstrap = bootstrap_op(&plan.table, TableId(Rng::from_entropy().u64().max(1)), &plan.splits);
        let made = match (&host, ensemble) {
            (Some(host), _) => host.apply(bootstrap),
            (None, ensemble) => {
                let ensemble = ensemble.expect("a cluster that hosts no coordinator uses ZooKeeper");
                let tls = plan.coordinator_tls()?;
                let options = zookeeper::ClientOptions { credentials, tls, ..zookeeper::ClientOptions::new(ensemble) };
                apply_once(options, bootstrap, MADE_WITHIN)
            }
        };
        let existed = match (made, host.as_ref().and_then(Host::failure)) {
            (Ok(_), _) => false,
            (Err(CoordinatorError::Exists { .. }), _) => true,
            (Err(CoordinatorError::Disconnected), Some(failure)) => return Err(DevError::CoordinatorLog(failure)),
            (Err(error), _) => return Err(error.into()),
        };
        let mut cluster = Cluster { plan, host, nodes: Vec::new(), existed, temporary: None };
        for node in 1..=cluster.plan.nodes {
            create_directory(&cluster.plan.node_directory(node))?;
            let path = cluster.plan.config_path(node);
            write_if_different(&path, &cluster.plan.config(node)).map_err(|source| DevError::File(path, source))?;
            cluster.nodes.push(Node { child: None, started: Instant::now(), earlier_log: 0 });
            if node <= cluster.plan.nodes - cluster.plan.late {
                cluster.spawn(node)?;
            }
        }
        Ok(cluster)
    }

    /// The plan that the cluster was started with.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Native addresses of all nodes.
    pub fn addresses(&self) -> Vec<String> {
        (1..=self.plan.nodes).map(|node| self.plan.address(node, false)).collect()
    }

    /// As [`Cluster::addresses`], over rings.
    pub fn addresses_over_rings(&self) -> Vec<String> {
        (1..=self.plan.nodes).map(|node| self.plan.address(node, true)).collect()
    }

    /// Process id of a node, while it runs.
    pub fn pid(&self, node: u32) -> Option<u32> {
        self.nodes[node as usize - 1].child.as_ref().map(Child::id)
    }

    fn signal(&self, server: u32, signal: Signal) -> io::Result<()> {
        let pid = self.pid(server).and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let pid = pid.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "its process does not run"))?;
        Ok(kill_process(pid, signal)?)
    }

    /// Ties `directory` to the cluster: it is removed when the cluster is dropped.
    #[must_use]
    pub fn with_temporary(mut self, directory: TempDir) -> Cluster {
        self.temporary = Some(directory);
        self
    }

    /// Why the coordinator in this process does not serve now, if it does not. It goes on by itself: see [`Host::failure`].
    pub fn coordinator_failure(&self) -> Option<String> {
        self.host.as_ref().and_then(Host::failure)
    }

    /// Waits until every region answers and, where `whole`, has all of its members in sync.
    ///
    /// # Errors
    /// A node ends by itself, the cluster takes longer than 60 s, or `interrupted` returns true.
    pub fn wait_until_ready(&mut self, whole: bool, interrupted: impl Fn() -> bool) -> Result<(), DevError> {
        let deadline = Instant::now() + READY_WITHIN;
        while Instant::now() < deadline {
            if interrupted() {
                return Err(DevError::Interrupted);
            }
            if let Some(death) = self.reap().into_iter().next() {
                return Err(self.plan.explain(&death));
            }
            if self.is_ready(whole) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Err(DevError::NotReady(READY_WITHIN))
    }

    /// Whether the cluster is ready. After an error the caller asks again.
    fn is_ready(&self, whole: bool) -> bool {
        let options = ClientOptions { deadline: Duration::from_millis(500), ..ClientOptions::default() };
        let mut session = match Session::connect(&self.addresses(), options) {
            Ok(session) => session,
            // The cluster has users, and this process has no password: the nodes say whether they are ready.
            Err(ClientError::Op(OpError::Unauthenticated(_))) => return self.says_ready(),
            Err(_) => return false,
        };
        let Ok(map) = session.fetch_map() else { return false };
        let members = self.plan.table.replicas.min(self.plan.nodes) as usize;
        let here = |member| map.servers.iter().any(|server| server.member == member);
        if whole && map.regions.iter().any(|group| group.in_sync().filter(|member| here(*member)).count() < members) {
            return false;
        }
        let counts = map.regions.iter().map(|group| Op::Count { region: group.region }).collect();
        session.execute(counts).is_ok_and(|results| results.iter().all(|result| matches!(result, OpResult::Integer(_))))
    }

    /// Whether each node says that it is ready.
    fn says_ready(&self) -> bool {
        let Ok(access) = Access::of(&self.addresses()) else { return false };
        let is_ready = |node| {
            let admin = self.plan.ports.admin(node).to_string();
            access.get(&admin, "/readyz", Duration::from_millis(500)).is_ok_and(|(code, _)| code == 200)
        };
        (1..=self.plan.nodes).all(is_ready)
    }

    /// Starts the process of a node that does not run.
    ///
    /// # Errors
    /// Its log or the program cannot be opened.
    pub fn spawn(&mut self, node: u32) -> Result<(), DevError> {
        let path = self.plan.log_path(node);
        let log = private::options().create(true).append(true).open(&path);
        let fault = |source| DevError::File(path.clone(), source);
        let log = log.map_err(fault)?;
        let earlier_log = log.metadata().map_err(fault)?.len();
        let program = &self.plan.program;
        let child = Command::new(program)
            .args(["serve", "--stop-with-stdin", "--config"])
            .arg(self.plan.config_path(node))
            .stdin(Stdio::piped())
            .stdout(log.try_clone().map_err(fault)?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(|source| DevError::File(program.clone(), source))?;
        self.nodes[node as usize - 1] = Node { child: Some(child), started: Instant::now(), earlier_log };
        Ok(())
    }

    /// The processes that ended since the last call.
    pub fn reap(&mut self) -> Vec<Death> {
        let mut deaths = Vec::new();
        for (number, node) in (1..).zip(&mut self.nodes) {
            let Some(child) = &mut node.child else { continue };
            if let Ok(Some(status)) = child.try_wait() {
                deaths.push(Death {
                    node: number,
                    pid: child.id(),
                    how: describe(status),
                    lived: node.started.elapsed(),
                    earlier_log: node.earlier_log,
                });
                node.child = None;
            }
        }
        deaths
    }

    /// Asks every node to stop, and kills those that do not within 10 seconds.
    pub fn stop(&mut self) {
        for child in self.nodes.iter_mut().filter_map(|node| node.child.as_mut()) {
            drop(child.stdin.take());
        }
        let deadline = Instant::now() + STOP_WITHIN;
        while self.nodes.iter().any(|node| node.child.is_some()) {
            self.reap();
            if Instant::now() > deadline {
                for child in self.nodes.iter_mut().filter_map(|node| node.child.as_mut()) {
                    tracing::warn!(pid = child.id(), "the node does not stop; killing it");
                    // It may have ended just now.
                    drop(child.kill());
                    drop(child.wait());
                }
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
    }
}

impl NodeProcesses for Cluster {
    fn kill(&mut self, server: u32) -> io::Result<()> {
        let node = &mut self.nodes[server as usize - 1];
        let Some(child) = &mut node.child else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "its process has died by itself; see its log"));
        };
        child.kill()?;
        child.wait()?;
        node.child = None;
        Ok(())
    }

    fn restart(&mut self, server: u32) -> io::Result<()> {
        self.spawn(server).map_err(io::Error::other)
    }

    fn halt(&mut self, server: u32) -> io::Result<()> {
        self.signal(server, Signal::STOP)
    }

    fn resume(&mut self, server: u32) -> io::Result<()> {
        self.signal(server, Signal::CONT)
    }

    fn wipe(&mut self, server: u32) -> io::Result<()> {
        assert!(self.pid(server).is_none(), "a node that runs has its volume open");
        let kept = [self.plan.config_path(server), self.plan.log_path(server)];
        for entry in fs::read_dir(self.plan.node_directory(server))? {
            let path = entry?.path();
            match path.is_dir() {
                _ if kept.contains(&path) => {}
                true => fs::remove_dir_all(path)?,
                false => fs::remove_file(path)?,
            }
        }
        Ok(())
    }

    fn check(&mut self) -> io::Result<()> {
        match self.reap().into_iter().next() {
            Some(death) => Err(io::Error::other(self.plan.explain(&death))),
            None => Ok(()),
        }
    }
}

/// Writes a file, whole or not at all, if it does not have this text already: a cluster that is started again needs no
/// room for it.
fn write_if_different(path: &Path, text: &str) -> io::Result<()> {
    if fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    let new = path.with_extension("new");
    let written = private::options().create(true).write(true).truncate(true).open(&new).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    });
    // Without the part of it that had room.
    written.inspect_err(|_| drop(fs::remove_file(&new)))
}

fn create_directory(path: &Path) -> Result<(), DevError> {
    private::create_directory(path).map_err(|source| DevError::Directory(path.into(), source))
}

/// How many nodes have a directory.
fn node_directories(directory: &Path) -> u32 {
    (1..).take_while(|node| directory.join(format!("node-{node}")).is_dir()).count() as u32
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => "ended".into(),
    }
}

//! A cluster of real processes, each with its own address and disk, and the means to break it. The module [`crate::faults`]
//! decides what breaks and when.
//!
//! - [`network`]: namespaces; cut links, lost and late packets.
//! - [`delay`]: a proxy that delays a connection.
//! - [`disk`]: full and slow disks.
//! - [`process`]: killed and stopped processes.
//! - [`coordinator`]: embedded or ZooKeeper.
//! - [`certificates`]: an authority and certificates, for TLS.
//! - [`operator`]: requests of operators.
//! - `user`: whom clients connect as.
//!
//! Belongs to one thread.

pub(crate) mod certificates;
pub(crate) mod coordinator;
mod delay;
pub(crate) mod disk;
pub(crate) mod network;
mod operator;
pub(crate) mod process;
mod user;

use crate::error::{ChaosError, fault};
use crate::hostile::{Hostile, Targets};
use crate::place::RunResources;
use crate::report::Lateness;
use crate::workload;
use certificates::Certificates;
use coordinator::{Coordinator, CoordinatorKind};
use disk::Disk;
use leeward_client::{Access, ClientOptions, GroupConfig, Op, OpResult, RegionMap, Session, TableOptions};
use leeward_format::table::{NewTable, TableName};
use leeward_security::passwords::Credentials;
use leeward_security::tls::ClientTls;
use network::Network;
use process::Process;
use std::fs;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use user::User;

/// Kinds of ports of a server.
const RESP: u16 = 0;
const NATIVE: u16 = 1;
pub(crate) const FABRIC: u16 = 2;
const ADMIN: u16 = 3;
/// How long processes may take to start serving.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a server may take to answer a question.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// The client name of the run itself.
const NAME: &str = "leeward-chaos";
/// Pause between checks.
const LOOK: Duration = Duration::from_millis(100);
/// Copies of a region.
const REPLICAS: u32 = 3;
/// Servers that say that they share a host.
pub(crate) const ON_ONE_HOST: Range<usize> = 0..2;
/// Small, so that a run has compactions and shipments.
const L0_BYTES: u64 = 256 << 10;
/// Small, so that segments fill up within a fault, and a full disk is met.
pub(crate) const SEGMENT_BYTES: u64 = 128 << 10;

/// The cluster to run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The binary under test.
    pub(crate) leeward: PathBuf,
    pub(crate) servers: usize,
    pub(crate) coordinator: CoordinatorKind,
    /// Without namespaces and separate disks.
    pub(crate) alone: bool,
    /// Every connection is encrypted, and clients are a user.
    pub(crate) tls: bool,
    /// Options that all tables have.
    pub(crate) table: TableOptions,
    /// How much servers log.
    pub(crate) log: String,
    /// Further settings of the servers, lines of TOML.
    pub(crate) settings: String,
}

/// Options of all tables of a run.
pub(crate) fn table_options() -> TableOptions {
    TableOptions { replicas: REPLICAS, l0_bytes: L0_BYTES, ..TableOptions::default() }
}

/// A cluster of real processes. Dropping it kills all processes. Dropping the [`RunResources`] removes everything else.
#[derive(Debug)]
pub(crate) struct Cluster {
    plan: Plan,
    logs: PathBuf,
    servers: Vec<Server>,
    pub(crate) coordinator: Coordinator,
    pub(crate) network: Network,
    certificates: Option<Certificates>,
    user: Option<User>,
    access: Access,
    /// Servers that were drained and not taken back.
    drained: Vec<usize>,
    /// Hostile clients that are at work.
    pub(crate) hostile: Vec<Hostile>,
}

#[derive(Debug)]
struct Server {
    process: Process,
    config: PathBuf,
    disk: Disk,
}

impl Cluster {
    /// Starts everything and waits until all regions have all of their members.
    ///
    /// # Errors
    /// The machine refuses, or the cluster does not come up, or `is_wanted` answers that the run was interrupted.
    pub(crate) fn start(
        place: &Arc<RunResources>,
        plan: Plan,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Cluster, ChaosError> {
        for name in ["logs", "config"] {
            let folder = place.directory().join(name);
            fs::create_dir_all(&folder).map_err(fault("make", &folder))?;
        }
        let hosts = plan.servers + plan.coordinator.members();
        let network = Network::new(Arc::clone(place), hosts, plan.alone)?;
        let coordinators: Vec<_> = (plan.servers..hosts).collect();
        let make = || Certificates::make(place.directory().join("certs"), plan.servers, &coordinators, &network);
        let certificates = plan.tls.then(make).transpose()?;
        let coordinator =
            Coordinator::new(plan.coordinator, plan.servers, place.directory(), &network, certificates.as_ref())?;
        let mut servers = Vec::new();
        for server in 0..plan.servers {
            let disk = Disk::new(place, server, plan.alone)?;
            let config = place.directory().join("config").join(format!("server-{}.toml", server + 1));
            let process = Process::new(format!("server-{}", server + 1), &place.directory().join("logs"));
            servers.push(Server { process, config, disk });
        }
        let logs = place.directory().join("logs");
        let (access, user, drained, hostile) = (Access::default(), None, Vec::new(), Vec::new());
        let mut cluster =
            Cluster { plan, logs, servers, coordinator, network, certificates, user, access, drained, hostile };
        cluster.learn_access()?;
        for member in 0..cluster.coordinator.members() {
            cluster.coordinator.start(member, &cluster.network)?;
        }
        cluster.wait("the coordinator does not serve", is_wanted, |cluster| {
            cluster.coordinator.is_ready(&cluster.network)
        })?;
        for server in 0..cluster.servers.len() {
            cluster.write_config(server)?;
            cluster.start_server(server, None)?;
        }
        cluster.wait("the tables could not be made", is_wanted, Cluster::has_tables)?;
        let is_whole = |cluster: &Cluster| cluster.lacks().is_none();
        cluster.wait("not every region has all of its members", is_wanted, is_whole)?;
        if cluster.plan.tls {
            cluster.user = Some(User::make(place.directory(), &cluster.addresses())?);
            cluster.learn_access()?;
            cluster.wait("not every server knows the user", is_wanted, is_whole)?;
        }
        Ok(cluster)
    }

    fn learn_access(&mut self) -> Result<(), ChaosError> {
        let access = Access::of(&self.addresses());
        self.access = access.map_err(|error| ChaosError::Refused(error.to_string()))?;
        Ok(())
    }

    fn wait(
        &mut self,
        what: &str,
        is_wanted: &dyn Fn() -> bool,
        is_so: impl Fn(&Cluster) -> bool,
    ) -> Result<(), ChaosError> {
        let deadline = Instant::now() + READY_WITHIN;
        while !is_so(self) {
            if !is_wanted() {
                return Err(ChaosError::Interrupted);
            }
            if let Some(death) = self.deaths().into_iter().next() {
                return Err(ChaosError::NotReady(death));
            }
            if Instant::now() > deadline {
                return Err(ChaosError::NotReady(format!("{what} after {READY_WITHIN:?}")));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    pub(crate) fn servers(&self) -> usize {
        self.servers.len()
    }

    pub(crate) fn process(&mut self, server: usize) -> &mut Process {
        &mut self.servers[server].process
    }

    pub(crate) fn disk(&self, server: usize) -> &Disk {
        &self.servers[server].disk
    }

    /// Native addresses of all servers, as clients are told them.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.native("leeward")
    }

    fn native(&self, scheme: &str) -> Vec<String> {
        let (tls, mut query) = match &self.certificates {
            Some(certificates) => ("+tls", format!("?ca={}", certificates.authority().display())),
            None => ("", String::new()),
        };
        let mut at = String::new();
        if let Some(user) = &self.user {
            at = user.at();
            query += &format!("&{}", user.password_file());
        }
        self.hosts_and_ports().map(|address| format!("{scheme}{tls}://{at}{address}{query}")).collect()
    }

    /// Hosts and native ports of all servers.
    fn hosts_and_ports(&self) -> impl Iterator<Item = String> {
        (0..self.servers.len()).map(|server| self.network.address(server, NATIVE).to_string())
    }

    /// Where clients with rings reach them. Rings are in memory that only processes of one network namespace share.
    pub(crate) fn ring_addresses(&self) -> Option<Vec<String>> {
        self.plan.alone.then(|| self.native("leeward+ring"))
    }

    /// What Redis clients need for TLS, if there is any.
    pub(crate) fn tls(&self) -> Option<ClientTls> {
        self.certificates.as_ref().map(Certificates::client)
    }

    /// Whom Redis clients connect as, if there is a user.
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        self.user.as_ref().map(|user| user.credentials().clone())
    }

    /// Where Redis clients reach the servers.
    pub(crate) fn resp_addresses(&self) -> Vec<SocketAddr> {
        (0..self.servers.len()).map(|server| self.network.address(server, RESP)).collect()
    }

    /// The addresses that hostile clients connect to. ZooKeeper's ports are not among them: it is not under test.
    pub(crate) fn targets(&self) -> Targets {
        let ports = |kind| (0..self.servers.len()).map(move |server| self.network.address(server, kind));
        let all = [RESP, NATIVE, FABRIC, ADMIN].into_iter().flat_map(ports).chain(self.coordinator.own(&self.network));
        Targets { resp: self.resp_addresses(), all: all.collect(), tls: self.tls() }
    }

    /// Whether all tables exist or could be created now. Any server that knows the coordinator can create them.
    fn has_tables(&self) -> bool {
        let address = &self.hosts_and_ports().next().expect("there are servers");
        let Ok(node) = self.access.shake_hands(address, NAME, ANSWER_WITHIN) else { return false };
        workload::TABLES.iter().all(|table| {
            let (name, backups, reads) = (table.name().to_string(), table.backups, table.reads);
            let options = TableOptions { name, backups, reads, ..self.plan.table.clone() };
            if node.map.table(&options.name).is_some() {
                return true;
            }
            let table = Box::new(NewTable::new(options, table.splits()));
            matches!(
                self.access.ask_node(address, NAME, Op::CreateTable { table }, ANSWER_WITHIN * 4),
                Ok(OpResult::Done)
            )
        })
    }

    /// What the cluster lacks to be whole, if anything. It is whole when every server knows the same configuration, every region
    /// has all of its members in sync, and every region answers. A server that has just died may still count, until its session
    /// expires.
    pub(crate) fn lacks(&self) -> Option<String> {
        let mut maps = Vec::new();
        for (server, address) in (1..).zip(self.hosts_and_ports()) {
            match self.access.shake_hands(&address, NAME, ANSWER_WITHIN) {
                Ok(node) => maps.push(node.map),
                Err(error) => return Some(format!("server {server} does not answer: {error}")),
            }
        }
        let map = &maps[0];
        // Not the versions of the maps: servers may have heard of different changes that do not affect these parts.
        let content = |map: &RegionMap| (map.tables.clone(), map.regions.clone(), map.servers.clone());
        if maps.iter().any(|other| content(other) != content(map)) {
            return Some("servers know different configurations".into());
        }
        let names = workload::TABLES.iter().map(workload::Table::name);
        if let Some(name) = names.clone().find(|name| map.regions_of(name).is_empty()) {
            return Some(format!("table {name} has no regions"));
        }
        let members = self.plan.table.replicas as usize;
        let is_here = |member| map.servers.iter().any(|server| server.member == member);
        let count = |group: &GroupConfig| group.in_sync().filter(|member| is_here(*member)).count();
        if let Some(group) = map.regions.iter().find(|group| count(group) < members) {
            return Some(format!("region {} has {} of {members} members in sync", group.region, count(group)));
        }
        names.into_iter().find_map(|name| self.unanswered(&name, map.regions_of(&name)))
    }

    /// A region of a table that does not answer.
    fn unanswered(&self, table: &TableName, groups: &[GroupConfig]) -> Option<String> {
        let options = ClientOptions { name: NAME.into(), deadline: ANSWER_WITHIN, ..ClientOptions::default() };
        let counts = groups.iter().map(|group| Op::Count { region: group.region }).collect();
        let connected = Session::connect(&self.addresses(), options);
        let asked = connected.and_then(|mut session| session.execute_in(table, counts));
        let answers = match asked {
            Ok(answers) => answers,
            Err(error) => return Some(error.to_string()),
        };
        groups.iter().zip(answers).find_map(|(group, answer)| match answer {
            OpResult::Error(error) => Some(format!("region {}: {error}", group.region)),
            _ => None,
        })
    }

    /// How long the cluster must have been whole to count as settled. By then the session of a server that died unnoticed has
    /// expired.
    pub(crate) fn settled_after(&self) -> Duration {
        Duration::from_millis(self.plan.coordinator.session_ms()) + LOOK * 5
    }

    /// Writes the status of every server that answers into a file beside its log.
    pub(crate) fn note_status(&self, at_seconds: f64) {
        for server in 0..self.servers.len() {
            let address = self.network.address(server, ADMIN).to_string();
            let path = self.logs.join(format!("server-{}-status-{at_seconds:.0}.json", server + 1));
            if let Ok((_, status)) = self.access.get(&address, "/status", ANSWER_WITHIN) {
                // The file is for debugging only, so the run continues without it.
                drop(fs::write(path, status));
            }
        }
    }

    /// The most memory that the process of each server had resident, in bytes; 0 of one that does not run.
    pub(crate) fn most_resident(&self) -> Vec<u64> {
        self.servers.iter().map(|server| server.process.most_resident().unwrap_or(0)).collect()
    }

    /// How late each server that answers handled messages of leases.
    pub(crate) fn lease_lateness(&self) -> Vec<Lateness> {
        let ask = |server| {
            let address = self.network.address(server, ADMIN).to_string();
            let (_, metrics) = self.access.get(&address, "/metrics", ANSWER_WITHIN).ok()?;
            Lateness::of_metrics(server + 1, &String::from_utf8_lossy(&metrics))
        };
        (0..self.servers.len()).filter_map(ask).collect()
    }

    /// Starts a server that does not run; its boot clock is ahead of the machine's by `ahead` seconds, if any.
    ///
    /// # Errors
    /// The program cannot be run.
    pub(crate) fn start_server(&mut self, server: usize, ahead: Option<u64>) -> Result<(), ChaosError> {
        if self.servers[server].process.runs() {
            return Ok(());
        }
        let leeward = self.plan.leeward.to_string_lossy().into_owned();
        let mut command = match ahead {
            None => self.network.command(server, &leeward),
            Some(seconds) => {
                let mut command = self.network.command(server, "unshare");
                let offset = seconds.to_string();
                command.args(["--time", "--boottime", &offset, "--monotonic", &offset, &leeward]);
                command
            }
        };
        let Server { process, config, disk } = &mut self.servers[server];
        command.args(["--log", &self.plan.log, "serve", "--stop-with-stdin", "--config"]).arg(config);
        process.start(command)?;
        process.pid().map_or(Ok(()), |pid| disk.used_by(pid))
    }

    /// Processes that ended by themselves since this was last asked.
    pub(crate) fn deaths(&mut self) -> Vec<String> {
        let coordinator = (0..self.coordinator.members()).collect::<Vec<_>>();
        let deaths = coordinator.into_iter().filter_map(|member| self.coordinator.process(member).death());
        let mut deaths: Vec<String> = deaths.collect();
        deaths.extend(self.servers.iter_mut().filter_map(|server| server.process.death()));
        deaths
    }

    /// Has the servers compare their replicas, segments and ranges of keys. Answers the difference, or what could not be
    /// compared, if there is any.
    ///
    /// # Errors
    /// The command cannot be run.
    pub(crate) fn compare_replicas(&self) -> Result<Option<String>, ChaosError> {
        let mut command = Command::new(&self.plan.leeward);
        command.args(["verify", "--replicas", "--ranges", "--connect", &self.addresses().join(",")]);
        let output = command.output().map_err(fault("run", Path::new(&self.plan.leeward)))?;
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        Ok((!output.status.success()).then_some(said))
    }

    fn write_config(&self, server: usize) -> Result<(), ChaosError> {
        let address = |kind| self.network.address(server, kind);
        let Server { config, disk, .. } = &self.servers[server];
        let text = format!(
            "server_id = {}\ndata_dir = \"{}\"\nresp_listen = \"{}\"\nnative_listen = \"{}\"\nadmin_listen = \"{}\"\n\
             fabric_listen = \"{}\"\nfabric = \"tcp\"\ncoordinator = \"{}\"\nexpected_servers = {}\n\
             insecure_listen = true\nsession_timeout_ms = {}\nlocation = \"host=h{}\"\n",
            server + 1,
            disk.folder().display(),
            address(RESP),
            address(NATIVE),
            address(ADMIN),
            address(FABRIC),
            self.coordinator.setting(&self.network),
            self.servers.len(),
            self.plan.coordinator.session_ms(),
            if ON_ONE_HOST.contains(&server) { 0 } else { server },
        );
        let tls = self.certificates.as_ref().map(|certificates| certificates.settings(server));
        let text = text + &self.plan.settings + &tls.unwrap_or_default();
        fs::write(config, text).map_err(fault("write", config))
    }
}

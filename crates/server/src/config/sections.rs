//! The settings of a node, by what they are about. Every field can be given in the file by its name.

use super::error::{Check, ConfigError};
use super::values::{CoordinatorAt, FabricKind, RingsOn};
use leeward_cluster::zookeeper::Credentials;
use leeward_cluster::{Balance, ClusterOptions};
use leeward_engine::{Encryption, Secrets, VolumeOptions};
use leeward_format::MAX_SEGMENT_BYTES;
use leeward_format::cluster::Location;
use leeward_format::table::TableName;
use leeward_platform::Nanos;
use leeward_security::certificates::server_name;
use leeward_security::tls::{NodeTls, TlsFiles};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

/// Which node it is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Identity {
    /// Number of the server, unique in the cluster: 1 to 10,000.
    pub server_id: u32,
    /// Where its volume is. Default `leeward-data/node-<id>`.
    pub data_dir: Option<PathBuf>,
    /// Where it stands, from coarse to fine, as `zone=a,host=h7`.
    pub location: Location,
}

impl Default for Identity {
    fn default() -> Identity {
        Identity { server_id: 1, data_dir: None, location: Location::default() }
    }
}

/// Where it listens, and how nodes reach each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Network {
    /// Address for Redis clients. Default `127.0.0.1:<7378 + id>`; port 0 takes any free one.
    pub resp_listen: Option<String>,
    /// Address for native clients. Default `127.0.0.1:<7478 + id>`.
    pub native_listen: Option<String>,
    /// Address for operators. Default `127.0.0.1:<7578 + id>`.
    pub admin_listen: Option<String>,
    /// Address for the other nodes. Default `127.0.0.1:<7678 + id>`; with shared memory a socket's path, or `@name`.
    pub fabric_listen: Option<String>,
    /// Host name or IP address under which others reach this node, when that is not the one it listens on. Needed with
    /// `0.0.0.0` and `[::]`.
    pub advertise_host: Option<String>,
    /// How nodes reach each other: `tcp`, `shm`, `libfabric`, or `libfabric:` and a provider of it: `verbs`, `efa`, `tcp`,
    /// `shm`.
    pub fabric: FabricKind,
    /// Listen on addresses that are not loopback without TLS, and let clients of other machines in while there are no users.
    pub insecure_listen: bool,
}

impl Network {
    /// Listens on `address` for everything. Its port is 0, so that each listener gets a port of its own.
    pub fn on(address: SocketAddr) -> Network {
        let listen = || Some(address.to_string());
        let [resp_listen, native_listen, admin_listen, fabric_listen] = [listen(), listen(), listen(), listen()];
        Network { resp_listen, native_listen, admin_listen, fabric_listen, ..Network::default() }
    }

    /// The address that others use for a bound one: with [`Network::advertise_host`] if that is set.
    pub(crate) fn advertised(&self, bound: SocketAddr) -> String {
        match &self.advertise_host {
            Some(host) if host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) => format!("[{host}]:{}", bound.port()),
            Some(host) => format!("{host}:{}", bound.port()),
            None => bound.to_string(),
        }
    }

    pub(super) fn check_host(&self, check: &Check) -> Result<(), ConfigError> {
        let Some(host) = &self.advertise_host else { return Ok(()) };
        let is_ip = host.parse::<IpAddr>().is_ok_and(|ip| !ip.is_unspecified());
        let is_name = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
        if is_ip || is_name && host.parse::<IpAddr>().is_err() {
            return Ok(());
        }
        let allowed = "a host name or an IP address that others can connect to, without a port";
        Err(check.refused("advertise_host", format!("{host:?}"), allowed))
    }

    pub(super) fn check_address(
        &self,
        check: &Check,
        name: &'static str,
        address: &str,
        may_be_far: bool,
    ) -> Result<(), ConfigError> {
        let Ok(parsed) = address.parse::<SocketAddr>() else {
            return Err(check.refused(name, address, "an IP address and a port, such as 127.0.0.1:7379"));
        };
        let (origin, value) = (check.origin.to_owned(), address.to_owned());
        if !parsed.ip().is_loopback() && !may_be_far {
            return Err(ConfigError::NotLoopback { origin, name, value });
        }
        if parsed.ip().is_unspecified() && self.advertise_host.is_none() {
            return Err(ConfigError::NotAdvertised { origin, name, value });
        }
        Ok(())
    }
}

/// TLS. With it everything is encrypted that goes over TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Tls {
    /// Certificates of the authorities that sign the certificates of nodes, in PEM.
    pub tls_ca: Option<PathBuf>,
    /// The node's certificate, and those between it and the authority.
    pub tls_certificate: Option<PathBuf>,
    /// The key of that certificate.
    pub tls_key: Option<PathBuf>,
    /// Transfer data without TLS where a fabric or rings have none, although there is TLS: the network is closed to others.
    pub insecure_fabric: bool,
}

impl Tls {
    /// The node's certificates, read from their files; `None` without TLS.
    ///
    /// # Errors
    /// A file cannot be read, or has no certificate or key.
    pub(crate) fn load(&self, server: u32) -> Result<Option<Arc<NodeTls>>, ConfigError> {
        let (Some(ca), Some(certificate), Some(key)) = (&self.tls_ca, &self.tls_certificate, &self.tls_key) else {
            return Ok(None);
        };
        let files = TlsFiles { ca: ca.clone(), certificate: certificate.clone(), key: key.clone() };
        Ok(Some(Arc::new(NodeTls::load(files, &server_name(server))?)))
    }

    pub(super) fn check(&self, check: &Check) -> Result<(), ConfigError> {
        let all = [("tls_ca", &self.tls_ca), ("tls_certificate", &self.tls_certificate), ("tls_key", &self.tls_key)];
        let missing = all.iter().find(|(_, file)| file.is_none());
        match missing.filter(|_| all.iter().any(|(_, file)| file.is_some())) {
            Some((name, _)) => {
                let allowed = "a file, since there are others: tls_ca, tls_certificate and tls_key belong together";
                Err(check.refused(name, "not given", allowed))
            }
            None => Ok(()),
        }
    }
}

/// The request rings of native clients.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Rings {
    /// Their fabric: `shm`, `tcp` or `off`.
    pub rings: RingsOn,
    /// Most bytes of one client's request ring: 4 KiB to 64 MiB, a multiple of 64. All together have an eighth of
    /// [`Storage::memory_budget`].
    pub ring_bytes: u64,
    /// How long after the last request the event loop spins on its rings before it sleeps, in microseconds: 0 to
    /// 100,000. Default: 100 with four cores or more, else 0.
    pub ring_spin_us: Option<u64>,
}

impl Default for Rings {
    fn default() -> Rings {
        Rings { rings: RingsOn::Fabric(FabricKind::Shm), ring_bytes: 256 << 10, ring_spin_us: None }
    }
}

impl Rings {
    /// How long the event loop spins on its rings before it sleeps.
    pub(crate) fn spin(&self) -> Nanos {
        /// Anthus 3.4.4.
        const SPIN_US: u64 = 100;
        Nanos::from_micros(self.ring_spin_us.unwrap_or_else(|| if has_many_cores() { SPIN_US } else { 0 }))
    }

    pub(super) fn check(&self, check: &Check) -> Result<(), ConfigError> {
        match self.ring_bytes.is_multiple_of(64) {
            true => Ok(()),
            false => Err(check.refused("ring_bytes", self.ring_bytes, "a multiple of 64")),
        }
    }
}

/// Whether a thread may spin. With fewer cores it could keep the thread that it waits for from running.
pub(crate) fn has_many_cores() -> bool {
    const MANY_CORES: usize = 4;
    std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= MANY_CORES)
}

/// The node's session with the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Coordination {
    /// Where the coordinator is: the embedded one's address, or `zk://host[:port],.../path`.
    pub coordinator: CoordinatorAt,
    /// A file with `user:password` for ZooKeeper: only this user then has access to what Leeward writes there.
    pub zookeeper_auth_file: Option<PathBuf>,
    /// Silence after which the coordinator declares this node dead, in milliseconds: 200 to 60,000.
    pub session_timeout_ms: u64,
}

impl Default for Coordination {
    fn default() -> Coordination {
        let coordinator = CoordinatorAt::Embedded(SocketAddr::from(([127, 0, 0, 1], 7779)));
        Coordination { coordinator, zookeeper_auth_file: None, session_timeout_ms: 1000 }
    }
}

impl Coordination {
    /// The node's credentials for ZooKeeper, from their file.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn zookeeper_credentials(&self) -> Result<Option<Credentials>, ConfigError> {
        let Some(path) = &self.zookeeper_auth_file else { return Ok(None) };
        let unreadable = |source| ConfigError::Unreadable { path: path.clone(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let wrong = |reason| ConfigError::Credentials { path: path.clone(), reason };
        line.parse().map(Some).map_err(wrong)
    }

    pub(super) fn check(&self, check: &Check) -> Result<(), ConfigError> {
        let (Some(file), CoordinatorAt::Embedded(_)) = (&self.zookeeper_auth_file, &self.coordinator) else {
            return Ok(());
        };
        let allowed = "left out where the coordinator is not ZooKeeper: set coordinator to zk://host,.../path";
        Err(check.refused("zookeeper_auth_file", file.display(), allowed))
    }
}

/// The device and the memory, and the threads for them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Storage {
    /// Size that the volume may reach, in bytes: at least 64 MiB. Default: as far as the device allows.
    pub capacity_bytes: Option<u64>,
    /// Memory for what its regions hold, in bytes: L0s, buffers of compactions and scans, windows of logs; the cache gets the
    /// remainder. 16 MiB to 1 TiB; at least 64 KiB for each region.
    pub memory_budget: u64,
    /// Segment size of a new volume, in bytes: a power of two from 32 KiB to 2 MiB.
    pub segment_bytes: u64,
    /// Threads for compactions, flushes and reads from the device: 1 to 64.
    pub job_threads: u32,
    /// A file with the keys that the volume is encrypted with. Default: the volume is not encrypted.
    pub encryption_key_file: Option<PathBuf>,
    /// A program and its arguments, which prints those keys.
    pub encryption_key_command: Option<Vec<String>>,
}

impl Default for Storage {
    fn default() -> Storage {
        let (memory_budget, segment_bytes) = (128 << 20, MAX_SEGMENT_BYTES as u64);
        Storage {
            capacity_bytes: None,
            memory_budget,
            segment_bytes,
            job_threads: 2,
            encryption_key_file: None,
            encryption_key_command: None,
        }
    }
}

impl Storage {
    /// # Errors
    /// The keys of the volume cannot be read.
    pub(crate) fn volume_options(&self) -> io::Result<VolumeOptions> {
        let secrets = match (&self.encryption_key_file, &self.encryption_key_command) {
            (Some(file), _) => Some(Secrets::from_file(file)?),
            (None, Some(command)) => Some(Secrets::from_command(command)?),
            (None, None) => None,
        };
        Ok(VolumeOptions {
            segment_bytes: self.segment_bytes as usize,
            capacity_bytes: self.capacity_bytes,
            memory_budget: self.memory_budget,
            encryption: secrets.map(Encryption::new),
        })
    }

    pub(super) fn check(&self, check: &Check) -> Result<(), ConfigError> {
        if let (Some(file), Some(_)) = (&self.encryption_key_file, &self.encryption_key_command) {
            let allowed = "left out where encryption_key_command is given: keys come from one place";
            return Err(check.refused("encryption_key_file", file.display(), allowed));
        }
        if self.encryption_key_command.as_ref().is_some_and(Vec::is_empty) {
            return Err(check.refused("encryption_key_command", "[]", "a program, and its arguments"));
        }
        match self.segment_bytes.is_power_of_two() {
            true => Ok(()),
            false => Err(check.refused("segment_bytes", self.segment_bytes, "a power of two")),
        }
    }
}

/// Users, which the coordinator keeps; here is what a node does about them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Users {
    /// A file for the audit log, as lines of JSON.
    pub audit_log: Option<PathBuf>,
}

/// What becomes of secrets in the node's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Secrecy {
    /// Let the system write core files of a node that holds secrets, and debuggers of its user look into it.
    pub core_dumps: bool,
}

/// Limits of clients, and where Redis clients begin.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ClientLimits {
    /// Most client connections, of both protocols together: 1 to 100,000.
    pub max_connections: u32,
    /// How long a client may leave its replies unread before it is disconnected, in seconds: 1 to 86,400.
    pub client_stall_seconds: u64,
    /// Replies that one client may leave unread, in bytes: 1 MiB to 4 GiB. Beyond that, it is disconnected.
    pub client_output_bytes: u64,
    /// The table of database 0, which Redis clients begin with. It need not exist yet.
    pub redis_table: TableName,
}

impl Default for ClientLimits {
    fn default() -> ClientLimits {
        ClientLimits {
            max_connections: 10_000,
            client_stall_seconds: 60,
            client_output_bytes: 256 << 20,
            redis_table: TableName::default(),
        }
    }
}

/// The node's part in its replica groups.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Replication {
    /// How long written bytes may stay in the page cache before they are made durable, in milliseconds: 10 to 60,000.
    pub flush_interval_ms: u64,
    /// MiB a second that this node reads and sends to build learners of its regions: 0 to 1,000,000; 0: no limit.
    pub catch_up_mib_per_second: u32,
    /// How long the lease grant of a backup to its primary lasts, in milliseconds: 100 to 60,000.
    pub lease_ms: u64,
}

impl Default for Replication {
    fn default() -> Replication {
        Replication { flush_interval_ms: 1000, catch_up_mib_per_second: 128, lease_ms: 600 }
    }
}

/// How the node acts as the master of the cluster. All but `expected_servers` must be the same on all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Master {
    /// With this many live servers a master assigns regions at once; with fewer it waits a while: 1 to 1,000.
    pub expected_servers: u32,
    /// Whether a master balances the servers: it moves copies and primary roles.
    pub balance: bool,
    /// Operations a second at which a region may be split because it has most of its server's load: 0 to 1,000,000,000; 0:
    /// never for load.
    pub split_ops: u64,
    /// For this long after a split, the master splits neither half again, in seconds: 1 to 86,400.
    pub split_cooldown_seconds: u64,
    /// Most bytes of keys and values that a region may have to be merged into its neighbour: 0 to 67,108,864; 0: no merges.
    pub merge_bytes: u64,
}

impl Default for Master {
    fn default() -> Master {
        let (split_cooldown_seconds, merge_bytes) = (60, 4 << 20);
        Master { expected_servers: 3, balance: true, split_ops: 10_000, split_cooldown_seconds, merge_bytes }
    }
}

impl Master {
    pub(crate) fn cluster_options(&self) -> ClusterOptions {
        let (split_ops, split_cooldown) = (self.split_ops, Nanos::from_secs(self.split_cooldown_seconds));
        let (merge_bytes, quiet) = (self.merge_bytes, Nanos(split_cooldown.0 * 10));
        let balance =
            self.balance.then(|| Balance { split_ops, split_cooldown, merge_bytes, quiet, ..Balance::default() });
        ClusterOptions { expected_servers: self.expected_servers, balance, ..ClusterOptions::default() }
    }
}

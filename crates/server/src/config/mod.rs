//! What an operator may set for one node: a TOML file, and single settings on top of it.
//!
//! Options of the cluster (of its tables) are not here: they are kept by the coordinator. A name that is not known and
//! a value out of its range are refused, with the reason and the range, before anything is opened.
//!
//! ```
//! use leeward_server::NodeConfig;
//!
//! let config = NodeConfig::from_toml("server_id = 2\nmemory_budget = 134217728", "node.toml")?;
//! assert_eq!(config.resp_listen(), "127.0.0.1:7380");
//! let refused = NodeConfig::from_toml("memory_budget = 5", "node.toml").unwrap_err();
//! assert_eq!(refused.to_string(), "node.toml: memory_budget is 5: it must be from 16777216 to 1099511627776");
//! # Ok::<(), leeward_server::config::ConfigError>(())
//! ```

use crate::settings;
use leeward_cluster::zookeeper::{Credentials, Ensemble};
use leeward_fabric::Provider;
use leeward_format::MAX_SEGMENT_BYTES;
use leeward_platform::Nanos;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt::{self, Display};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// How nodes reach each other's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FabricKind {
    /// TCP, between any hosts.
    #[default]
    Tcp,
    /// Shared memory, between processes of one host.
    Shm,
    /// libfabric, by one of its providers: network cards, and what stands in for them.
    Libfabric(Provider),
}

impl Serialize for FabricKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FabricKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FabricKind, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl FromStr for FabricKind {
    type Err = String;
    fn from_str(text: &str) -> Result<FabricKind, String> {
        match (text, text.strip_prefix("libfabric:")) {
            ("tcp", _) => Ok(FabricKind::Tcp),
            ("shm", _) => Ok(FabricKind::Shm),
            ("libfabric", _) => Ok(FabricKind::Libfabric(Provider::Automatic)),
            (_, Some(provider)) => provider.parse().map(FabricKind::Libfabric).map_err(|error| format!("{error}")),
            _ => Err(format!(
                "{text:?} is no fabric: it must be tcp, shm, libfabric, or libfabric: with a provider (auto, verbs, efa, tcp, shm)"
            )),
        }
    }
}

impl Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FabricKind::Tcp => f.write_str("tcp"),
            FabricKind::Shm => f.write_str("shm"),
            FabricKind::Libfabric(provider) => write!(f, "libfabric:{provider}"),
        }
    }
}

/// Which fabric the rings of native clients are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingsOn {
    /// This one: shared memory for clients on this host, others for clients anywhere.
    Fabric(FabricKind),
    /// There are none.
    Off,
}

impl Serialize for RingsOn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RingsOn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RingsOn, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "off" => Ok(RingsOn::Off),
            fabric => fabric.parse().map(RingsOn::Fabric).map_err(|error| D::Error::custom(format!("{error}; or off"))),
        }
    }
}

impl Display for RingsOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingsOn::Fabric(fabric) => fabric.fmt(f),
            RingsOn::Off => f.write_str("off"),
        }
    }
}

/// The coordinator, which keeps the cluster's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoordinatorAt {
    /// The embedded coordinator, which listens here.
    Embedded(SocketAddr),
    /// A path of an ensemble of ZooKeeper.
    ZooKeeper(Ensemble),
}

impl Serialize for CoordinatorAt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CoordinatorAt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CoordinatorAt, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl FromStr for CoordinatorAt {
    type Err = String;
    fn from_str(text: &str) -> Result<CoordinatorAt, String> {
        if text.contains("://") {
            return text.parse().map(CoordinatorAt::ZooKeeper);
        }
        text.parse().map(CoordinatorAt::Embedded).map_err(|_| {
            format!(
                "{text:?} is not an IP address and a port, such as 127.0.0.1:7779, nor a path of ZooKeeper, such as \
                 zk://zk1,zk2,zk3/leeward"
            )
        })
    }
}

impl Display for CoordinatorAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoordinatorAt::Embedded(address) => address.fmt(f),
            CoordinatorAt::ZooKeeper(ensemble) => ensemble.fmt(f),
        }
    }
}

/// Settings of one node. Every field can be given in the file by its name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// Number of the server, unique in the cluster: 1 to 10,000.
    pub server_id: u32,
    /// Where its volume is. Default `leeward-data/node-<id>`.
    pub data_dir: Option<PathBuf>,
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
    /// The fabric of native clients' request rings: `shm`, `tcp` or `off`.
    pub rings: RingsOn,
    /// Most bytes of one client's request ring: 4 KiB to 64 MiB, a multiple of 64. All together have an eighth of
    /// [`NodeConfig::memory_budget`].
    pub ring_bytes: u64,
    /// How long after the last request the event loop spins on its rings before it sleeps, in microseconds: 0 to
    /// 100,000. Default: 100 with four cores or more, else 0.
    pub ring_spin_us: Option<u64>,
    /// Where the coordinator is: the embedded one's address, or `zk://host[:port],.../path`.
    pub coordinator: CoordinatorAt,
    /// A file with `user:password` for ZooKeeper: only this user then has access to what Leeward writes there.
    pub zookeeper_auth_file: Option<PathBuf>,
    /// Listen on addresses that are not loopback, although clients need no credentials.
    pub insecure_listen: bool,
    /// Size that the volume may reach, in bytes: at least 64 MiB. Default: as far as the device allows.
    pub capacity_bytes: Option<u64>,
    /// Memory for what its regions hold, in bytes: L0s, buffers of compactions and scans, windows of logs; the cache gets the
    /// remainder. 16 MiB to 1 TiB; at least 64 KiB for each region.
    pub memory_budget: u64,
    /// Segment size of a new volume, in bytes: a power of two from 32 KiB to 2 MiB.
    pub segment_bytes: u64,
    /// Threads for compactions, flushes and reads from the device: 1 to 64.
    pub job_threads: u32,
    /// Most client connections, of both protocols together: 1 to 100,000.
    pub max_connections: u32,
    /// How long a client may leave its replies unread before it is disconnected, in seconds: 1 to 86,400.
    pub client_stall_seconds: u64,
    /// Replies that one client may leave unread, in bytes: 1 MiB to 4 GiB. Beyond that, it is disconnected.
    pub client_output_bytes: u64,
    /// How long written bytes may stay in the page cache before they are made durable, in milliseconds: 10 to 60,000.
    pub flush_interval_ms: u64,
    /// MiB a second that this node reads and sends to build learners of its regions: 0 to 1,000,000; 0: no limit.
    pub catch_up_mib_per_second: u32,
    /// Silence after which the coordinator declares this node dead, in milliseconds: 200 to 60,000.
    pub session_timeout_ms: u64,
    /// How long the lease grant of a backup to its primary lasts, in milliseconds: 100 to 60,000.
    pub lease_ms: u64,
    /// With this many live servers a master assigns regions at once; with fewer it waits a while: 1 to 1,000.
    pub expected_servers: u32,
    /// Whether a master balances the servers: it moves copies and primary roles. The same on all nodes.
    pub balance: bool,
    /// Operations a second at which a region may be split because it has most of its server's load: 0 to 1,000,000,000; 0:
    /// never for load. The same on all nodes.
    pub split_ops: u64,
    /// For this long after a split, the master splits neither half again, in seconds: 1 to 86,400. The same on all nodes.
    pub split_cooldown_seconds: u64,
    /// Most bytes of keys and values that a region may have to be merged into its neighbour: 0 to 67,108,864; 0: no merges.
    pub merge_bytes: u64,
}

impl Default for NodeConfig {
    fn default() -> NodeConfig {
        NodeConfig {
            server_id: 1,
            data_dir: None,
            resp_listen: None,
            native_listen: None,
            admin_listen: None,
            fabric_listen: None,
            advertise_host: None,
            fabric: FabricKind::Tcp,
            rings: RingsOn::Fabric(FabricKind::Shm),
            ring_bytes: 256 << 10,
            ring_spin_us: None,
            coordinator: CoordinatorAt::Embedded(SocketAddr::from(([127, 0, 0, 1], 7779))),
            zookeeper_auth_file: None,
            insecure_listen: false,
            capacity_bytes: None,
            memory_budget: 128 << 20,
            segment_bytes: MAX_SEGMENT_BYTES as u64,
            job_threads: 2,
            max_connections: 10_000,
            client_stall_seconds: 60,
            client_output_bytes: 256 << 20,
            flush_interval_ms: 1000,
            catch_up_mib_per_second: 128,
            session_timeout_ms: 1000,
            lease_ms: 600,
            expected_servers: 3,
            balance: true,
            split_ops: 10_000,
            split_cooldown_seconds: 60,
            merge_bytes: 4 << 20,
        }
    }
}

/// A setting, or the file that it comes from, cannot be used. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// It is not TOML, or has names or types that are not known.
    #[error("{origin}: {reason}")]
    Malformed {
        /// The file, or the flag.
        origin: String,
        /// What is wrong, and where.
        reason: String,
    },
    /// The file with the credentials for ZooKeeper holds none.
    #[error("{}: it must be one line, user:password, for ZooKeeper: {reason}", path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A value is out of its range.
    #[error("{origin}: {name} is {value}: it must be {allowed}")]
    OutOfRange {
        /// The file, or the flag.
        origin: String,
        /// Name of the setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// An address that other machines can reach, without permission to listen there.
    #[error(
        "{origin}: {name} is {value}, which is not a loopback address: any client that reaches it could read and write \
         everything, since there are no users yet. Listen on 127.0.0.1, or set insecure_listen = true \
         (--insecure-listen) if the network is closed to others"
    )]
    NotLoopback {
        /// The file, or the flag.
        origin: String,
        /// Name of the setting.
        name: &'static str,
        /// The address.
        value: String,
    },
    /// An address that stands for all addresses of the machine, without one to advertise.
    #[error(
        "{origin}: {name} is {value}, which is every address of this machine, so the node cannot tell others where to \
         connect: set advertise_host to the host name or IP address under which they reach it"
    )]
    NotAdvertised {
        /// The file, or the flag.
        origin: String,
        /// Name of the setting.
        name: &'static str,
        /// The address.
        value: String,
    },
}

impl NodeConfig {
    /// Settings from the text of a file; `origin` is what errors call it.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn from_toml(text: &str, origin: &str) -> Result<NodeConfig, ConfigError> {
        let malformed = |error: toml::de::Error| malformed(origin, &error);
        let table = text.parse::<toml::Table>().map_err(malformed)?;
        // From the text, not from the table: it knows the line.
        let config: NodeConfig =
            if table.is_empty() { NodeConfig::default() } else { toml::from_str(text).map_err(malformed)? };
        config.check(origin)?;
        Ok(config)
    }

    /// Settings from `file`, if there is one, with `overrides` (`name`, `value`) on top.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(file: Option<&Path>, overrides: &[(String, String)]) -> Result<NodeConfig, ConfigError> {
        let (text, origin) = match file {
            None => (String::new(), "settings".to_owned()),
            Some(path) => {
                let unreadable = |source| ConfigError::Unreadable { path: path.into(), source };
                (std::fs::read_to_string(path).map_err(unreadable)?, path.display().to_string())
            }
        };
        if overrides.is_empty() {
            return NodeConfig::from_toml(&text, &origin);
        }
        let mut table = text.parse::<toml::Table>().map_err(|error| malformed(&origin, &error))?;
        for (name, value) in overrides {
            // `64` is a number and `"64"` a string; what is no TOML value, such as an address, is a string too.
            let parsed = format!("value = {value}").parse::<toml::Table>().ok();
            let parsed = parsed.and_then(|mut table| table.remove("value"));
            table.insert(name.clone(), parsed.unwrap_or_else(|| toml::Value::String(value.clone())));
        }
        let origin = match file {
            Some(_) => {
                let given: Vec<String> = overrides.iter().map(|(name, value)| format!("{name}={value}")).collect();
                format!("{origin} with {}", given.join(" "))
            }
            None => origin,
        };
        let config: NodeConfig = table.try_into().map_err(|error| malformed(&origin, &error))?;
        config.check(&origin)?;
        Ok(config)
    }

    /// The settings as the text of a file, with derived values filled in.
    pub fn to_toml(&self) -> String {
        let listens = [&self.resp_listen(), &self.native_listen(), &self.admin_listen(), &self.fabric_listen()];
        let [resp_listen, native_listen, admin_listen, fabric_listen] = listens.map(|address| Some(address.clone()));
        let data_dir = Some(self.data_dir());
        let ring_spin_us = Some(self.ring_spin().0 / 1000);
        let whole = NodeConfig {
            data_dir,
            resp_listen,
            native_listen,
            admin_listen,
            fabric_listen,
            ring_spin_us,
            ..self.clone()
        };
        toml::to_string(&whole).expect("settings are numbers and texts")
    }

    /// Checks every value against its range, for a configuration that was put together in code.
    ///
    /// # Errors
    /// The first value that is out of its range, or an address that needs `insecure_listen`.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check("configuration")
    }

    /// The settings that have a range.
    fn numbers(&self) -> Vec<(&'static str, u64)> {
        let mut numbers = vec![
            ("server_id", self.server_id.into()),
            ("memory_budget", self.memory_budget),
            ("segment_bytes", self.segment_bytes),
            ("ring_bytes", self.ring_bytes),
            ("job_threads", self.job_threads.into()),
            ("max_connections", self.max_connections.into()),
            ("client_stall_seconds", self.client_stall_seconds),
            ("client_output_bytes", self.client_output_bytes),
            ("flush_interval_ms", self.flush_interval_ms),
            ("catch_up_mib_per_second", self.catch_up_mib_per_second.into()),
            ("session_timeout_ms", self.session_timeout_ms),
            ("lease_ms", self.lease_ms),
            ("expected_servers", self.expected_servers.into()),
            ("split_ops", self.split_ops),
            ("split_cooldown_seconds", self.split_cooldown_seconds),
            ("merge_bytes", self.merge_bytes),
        ];
        numbers.extend(self.capacity_bytes.map(|capacity| ("capacity_bytes", capacity)));
        numbers.extend(self.ring_spin_us.map(|spin| ("ring_spin_us", spin)));
        numbers
    }

    fn check(&self, origin: &str) -> Result<(), ConfigError> {
        let check = Check { origin };
        for (name, value) in self.numbers() {
            check.number(name, value)?;
        }
        if !self.segment_bytes.is_power_of_two() {
            return Err(check.refused("segment_bytes", self.segment_bytes, "a power of two".into()));
        }
        if !self.ring_bytes.is_multiple_of(64) {
            return Err(check.refused("ring_bytes", self.ring_bytes, "a multiple of 64".into()));
        }
        if let (Some(file), CoordinatorAt::Embedded(_)) = (&self.zookeeper_auth_file, &self.coordinator) {
            let allowed =
                "left out where the coordinator is not ZooKeeper: set coordinator to zk://host,.../path".into();
            return Err(check.refused("zookeeper_auth_file", file.display(), allowed));
        }
        if let Some(host) = &self.advertise_host {
            let is_ip = host.parse::<IpAddr>().is_ok_and(|ip| !ip.is_unspecified());
            let is_name = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
            if !is_ip && (!is_name || host.parse::<IpAddr>().is_ok()) {
                let allowed = "a host name or an IP address that others can connect to, without a port".into();
                return Err(check.refused("advertise_host", format!("{host:?}"), allowed));
            }
        }
        for (name, address) in [
            ("resp_listen", self.resp_listen()),
            ("native_listen", self.native_listen()),
            ("admin_listen", self.admin_listen()),
        ] {
            self.check_address(&check, name, &address)?;
        }
        match self.fabric {
            FabricKind::Tcp | FabricKind::Libfabric(_) => {
                self.check_address(&check, "fabric_listen", &self.fabric_listen())
            }
            FabricKind::Shm => Ok(()),
        }
    }

    fn check_address(&self, check: &Check, name: &'static str, address: &str) -> Result<(), ConfigError> {
        let Ok(parsed) = address.parse::<SocketAddr>() else {
            return Err(check.refused(name, address, "an IP address and a port, such as 127.0.0.1:7379".into()));
        };
        let (origin, value) = (check.origin.to_owned(), address.to_owned());
        if !parsed.ip().is_loopback() && !self.insecure_listen {
            return Err(ConfigError::NotLoopback { origin, name, value });
        }
        if parsed.ip().is_unspecified() && self.advertise_host.is_none() {
            return Err(ConfigError::NotAdvertised { origin, name, value });
        }
        Ok(())
    }

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

    /// Where its volume is.
    pub fn data_dir(&self) -> PathBuf {
        self.data_dir.clone().unwrap_or_else(|| PathBuf::from(format!("leeward-data/node-{}", self.server_id)))
    }

    /// Address for Redis clients.
    pub fn resp_listen(&self) -> String {
        self.listen(&self.resp_listen, 7378)
    }

    /// Address for native clients.
    pub fn native_listen(&self) -> String {
        self.listen(&self.native_listen, 7478)
    }

    /// Address for operators.
    pub fn admin_listen(&self) -> String {
        self.listen(&self.admin_listen, 7578)
    }

    /// Address for the other nodes.
    pub fn fabric_listen(&self) -> String {
        match self.fabric {
            FabricKind::Tcp | FabricKind::Libfabric(_) => self.listen(&self.fabric_listen, 7678),
            FabricKind::Shm => self.fabric_listen.clone().unwrap_or_else(|| {
                // Two clusters of one host differ in their coordinator's port, or in their path at ZooKeeper.
                match &self.coordinator {
                    CoordinatorAt::Embedded(address) => format!("@leeward-{}-{}", address.port(), self.server_id),
                    CoordinatorAt::ZooKeeper(ensemble) => {
                        let mut hasher = DefaultHasher::new();
                        ensemble.to_string().hash(&mut hasher);
                        format!("@leeward-zk-{:016x}-{}", hasher.finish(), self.server_id)
                    }
                }
            }),
        }
    }

    /// How long the event loop spins on its rings before it sleeps.
    pub(crate) fn ring_spin(&self) -> Nanos {
        /// Anthus 3.4.4.
        const SPIN_US: u64 = 100;
        Nanos::from_micros(self.ring_spin_us.unwrap_or_else(|| if has_many_cores() { SPIN_US } else { 0 }))
    }

    /// The address that others use for one that was bound: with [`NodeConfig::advertise_host`] if that is set.
    pub(crate) fn advertised(&self, bound: SocketAddr) -> String {
        match &self.advertise_host {
            Some(host) if host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) => format!("[{host}]:{}", bound.port()),
            Some(host) => format!("{host}:{}", bound.port()),
            None => bound.to_string(),
        }
    }

    fn listen(&self, given: &Option<String>, base: u32) -> String {
        given.clone().unwrap_or_else(|| format!("127.0.0.1:{}", base + self.server_id))
    }
}

/// Whether a thread may spin. With fewer cores it could keep the thread that it waits for from running.
pub(crate) fn has_many_cores() -> bool {
    const MANY_CORES: usize = 4;
    std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= MANY_CORES)
}

fn malformed(origin: &str, error: &toml::de::Error) -> ConfigError {
    ConfigError::Malformed { origin: origin.into(), reason: error.to_string().trim_end().replace('\n', "\n  ") }
}

struct Check<'a> {
    origin: &'a str,
}

impl Check<'_> {
    fn number(&self, name: &'static str, value: u64) -> Result<(), ConfigError> {
        let setting = settings::find(name).expect("every setting is explained");
        let range = setting.allowed.range().expect("a number has a range");
        if range.contains(&value) {
            return Ok(());
        }
        Err(self.refused(name, value, format!("from {} to {}", range.start(), range.end())))
    }

    fn refused(&self, name: &'static str, value: impl Display, allowed: String) -> ConfigError {
        ConfigError::OutOfRange { origin: self.origin.into(), name, value: value.to_string(), allowed }
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;

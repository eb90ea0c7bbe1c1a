//! The settings of one node: a TOML file, and single settings on top of it.
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

mod error;
mod sections;
mod values;

pub use error::ConfigError;
pub(crate) use sections::has_many_cores;
pub use sections::{
    ClientLimits, Coordination, Identity, Master, Network, Replication, Rings, Secrecy, Storage, Tls, Users,
};
pub use values::{CoordinatorAt, FabricKind, RingsOn};

use crate::settings::{self, SETTINGS};
use error::Check;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// Settings of one node. In a file they are in one list, without the sections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeConfig {
    /// Which node it is.
    #[serde(flatten)]
    pub identity: Identity,
    /// Where it listens, and how nodes reach each other.
    #[serde(flatten)]
    pub network: Network,
    /// TLS.
    #[serde(flatten)]
    pub tls: Tls,
    /// Users.
    #[serde(flatten)]
    pub users: Users,
    /// Secrets in memory.
    #[serde(flatten)]
    pub secrecy: Secrecy,
    /// The request rings of native clients.
    #[serde(flatten)]
    pub rings: Rings,
    /// The node's session with the coordinator.
    #[serde(flatten)]
    pub coordination: Coordination,
    /// The device and the memory.
    #[serde(flatten)]
    pub storage: Storage,
    /// Limits of clients.
    #[serde(flatten)]
    pub clients: ClientLimits,
    /// The node's part in its replica groups.
    #[serde(flatten)]
    pub replication: Replication,
    /// How the node acts as the master.
    #[serde(flatten)]
    pub master: Master,
}

/// The name of a setting.
#[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
struct Name(String);

impl TryFrom<String> for Name {
    type Error = String;
    fn try_from(name: String) -> Result<Name, String> {
        if settings::find(&name).is_some() {
            return Ok(Name(name));
        }
        let names: Vec<String> = SETTINGS.iter().map(|setting| format!("`{}`", setting.name)).collect();
        Err(format!("unknown field `{name}`, expected one of {}", names.join(", ")))
    }
}

impl NodeConfig {
    /// Settings from the text of a file; `origin` is what errors call it.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn from_toml(text: &str, origin: &str) -> Result<NodeConfig, ConfigError> {
        // Read from the text, not from a table, so that errors name the line.
        NodeConfig::read(|| toml::Deserializer::parse(text), &Check { origin })
    }

    /// Settings from a list that can be read several times: each section looks for its own.
    fn read<'de, D: Deserializer<'de>>(
        list: impl Fn() -> Result<D, D::Error>,
        check: &Check,
    ) -> Result<NodeConfig, ConfigError> {
        let read = || {
            BTreeMap::<Name, IgnoredAny>::deserialize(list()?)?;
            Ok::<_, D::Error>(NodeConfig {
                identity: Identity::deserialize(list()?)?,
                network: Network::deserialize(list()?)?,
                tls: Tls::deserialize(list()?)?,
                users: Users::deserialize(list()?)?,
                secrecy: Secrecy::deserialize(list()?)?,
                rings: Rings::deserialize(list()?)?,
                coordination: Coordination::deserialize(list()?)?,
                storage: Storage::deserialize(list()?)?,
                clients: ClientLimits::deserialize(list()?)?,
                replication: Replication::deserialize(list()?)?,
                master: Master::deserialize(list()?)?,
            })
        };
        let config = read().map_err(|error| check.malformed(error))?;
        config.check(check)?;
        Ok(config)
    }

    /// Whether the node reads secrets from files: keys of TLS or of its volume, or the password at ZooKeeper.
    pub(crate) fn has_keys(&self) -> bool {
        let Storage { encryption_key_file, encryption_key_command, .. } = &self.storage;
        let of_volume = encryption_key_file.is_some() || encryption_key_command.is_some();
        self.tls.tls_key.is_some() || of_volume || self.coordination.zookeeper_auth_file.is_some()
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
        let mut table = text.parse::<toml::Table>().map_err(|error| Check { origin: &origin }.malformed(error))?;
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
        NodeConfig::read(|| Ok(table.clone()), &Check { origin: &origin })
    }

    /// The settings as the text of a file, with derived values filled in.
    pub fn to_toml(&self) -> String {
        let mut whole = self.clone();
        whole.identity.data_dir = Some(self.data_dir());
        whole.network.resp_listen = Some(self.resp_listen());
        whole.network.native_listen = Some(self.native_listen());
        whole.network.admin_listen = Some(self.admin_listen());
        whole.network.fabric_listen = Some(self.fabric_listen());
        whole.rings.ring_spin_us = Some(self.rings.spin().0 / 1000);
        toml::to_string(&whole).expect("settings are numbers and texts")
    }

    /// The settings that are to be the same on all nodes, as in a file. The volume has segments of `segment_bytes`, whatever
    /// is set for a new one.
    pub(crate) fn shared_settings(&self, segment_bytes: usize) -> BTreeMap<String, String> {
        let whole = toml::Table::try_from(self).expect("settings are numbers and texts");
        let of = |name: &&str| Some(((*name).to_owned(), whole.get(*name)?.to_string()));
        let mut shared: BTreeMap<String, String> = settings::SHARED.iter().filter_map(of).collect();
        shared.insert("segment_bytes".into(), segment_bytes.to_string());
        shared
    }

    /// Checks every value against its range, for a configuration that was put together in code.
    ///
    /// # Errors
    /// The first value that is out of its range, or an address that needs `insecure_listen`.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check(&Check { origin: "configuration" })
    }

    fn check(&self, check: &Check) -> Result<(), ConfigError> {
        let list = toml::Table::try_from(self).map_err(|error| check.malformed(error))?;
        for setting in SETTINGS {
            let value = list.get(setting.name).and_then(toml::Value::as_integer);
            let Some((range, value)) = setting.allowed.range().zip(value) else { continue };
            if !range.contains(&(value as u64)) {
                let allowed = format!("from {} to {}", range.start(), range.end());
                return Err(check.refused(setting.name, value, allowed));
            }
        }
        self.storage.check(check)?;
        self.rings.check(check)?;
        self.coordination.check(check)?;
        self.tls.check(check)?;
        self.check_encrypted(check)?;
        self.network.check_host(check)?;
        let is_shm = self.network.fabric == FabricKind::Shm;
        for (name, address) in [
            ("resp_listen", Some(self.resp_listen())),
            ("native_listen", Some(self.native_listen())),
            ("admin_listen", Some(self.admin_listen())),
            ("fabric_listen", (!is_shm).then(|| self.fabric_listen())),
        ] {
            let may_be_far = self.network.insecure_listen || self.tls.tls_ca.is_some();
            address.map_or(Ok(()), |address| self.network.check_address(check, name, &address, may_be_far))?;
        }
        Ok(())
    }

    /// With TLS, nothing goes over a network unencrypted, unless the operator says so.
    fn check_encrypted(&self, check: &Check) -> Result<(), ConfigError> {
        if self.tls.tls_ca.is_none() || self.tls.insecure_fabric {
            return Ok(());
        }
        if let FabricKind::Libfabric(_) = self.network.fabric {
            let allowed = "tcp or shm with TLS, since what libfabric transfers is not encrypted; or set insecure_fabric = true \
                           if the network is closed to others";
            return Err(check.refused("fabric", self.network.fabric, allowed));
        }
        if let RingsOn::Fabric(kind @ (FabricKind::Tcp | FabricKind::Libfabric(_))) = self.rings.rings {
            let allowed = "shm or off with TLS, since rings over a network are not encrypted; or set insecure_fabric = true if \
                           the network is closed to others";
            return Err(check.refused("rings", kind, allowed));
        }
        Ok(())
    }

    /// Where its volume is.
    pub fn data_dir(&self) -> PathBuf {
        let default = || PathBuf::from(format!("leeward-data/node-{}", self.identity.server_id));
        self.identity.data_dir.clone().unwrap_or_else(default)
    }

    /// Address for Redis clients.
    pub fn resp_listen(&self) -> String {
        self.listen(&self.network.resp_listen, 7378)
    }

    /// Address for native clients.
    pub fn native_listen(&self) -> String {
        self.listen(&self.network.native_listen, 7478)
    }

    /// Address for operators.
    pub fn admin_listen(&self) -> String {
        self.listen(&self.network.admin_listen, 7578)
    }

    /// Address for the other nodes.
    pub fn fabric_listen(&self) -> String {
        let given = &self.network.fabric_listen;
        match self.network.fabric {
            FabricKind::Tcp | FabricKind::Libfabric(_) => self.listen(given, 7678),
            FabricKind::Shm => given.clone().unwrap_or_else(|| self.socket()),
        }
    }

    /// A name that differs between two clusters of one host: by the coordinator's port, or the path at ZooKeeper.
    fn socket(&self) -> String {
        let server_id = self.identity.server_id;
        match &self.coordination.coordinator {
            CoordinatorAt::Embedded(address) => format!("@leeward-{}-{server_id}", address.port()),
            CoordinatorAt::ZooKeeper(ensemble) => {
                let mut hasher = DefaultHasher::new();
                ensemble.to_string().hash(&mut hasher);
                format!("@leeward-zk-{:016x}-{server_id}", hasher.finish())
            }
        }
    }

    fn listen(&self, given: &Option<String>, base: u32) -> String {
        given.clone().unwrap_or_else(|| format!("127.0.0.1:{}", base + self.identity.server_id))
    }
}

#[cfg(test)]
mod tests;

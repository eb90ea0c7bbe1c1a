//! Values of settings that are neither numbers nor plain texts, in the form that a file has.

use leeward_cluster::zookeeper::Ensemble;
use leeward_fabric::Provider;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt::{self, Display};
use std::net::SocketAddr;
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

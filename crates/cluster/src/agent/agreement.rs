//! The protocol version of the cluster. The first server writes its own version into the tree, and a server of another version
//! does not join. It would misread the other values, and no other server could read what it wrote.
//!
//! A server does not join either if its fabric cannot reach the servers that have the regions: it would be given copies, and
//! never be in sync. A server without copies does not count for this. When a cluster starts again, a server that does not belong
//! to it may be the first to register.

use super::{Agent, Purpose};
use crate::View;
use crate::view::create;
use leeward_format::cluster::{ClusterPath, GroupConfig, ServerInfo, TreeIdentity, encode_value};
use leeward_format::frame::PROTOCOL_VERSION;
use leeward_format::{ClusterId, ServerId};

/// Why a server cannot be part of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incompatible {
    /// The cluster speaks another version of the protocol: another version of Leeward made it.
    #[error(
        "the cluster speaks version {found} of the protocol, this program version {own}: run the version of Leeward that the other \
         nodes run"
    )]
    Protocol {
        /// The version of the cluster.
        found: u8,
        /// The version of this program.
        own: u8,
    },
    /// The fabric of a server of the cluster is shared memory and the fabric of this server is not, or the other way round.
    #[error(
        "the fabric of server {server}, at {address}, is {}: set `fabric` to what the other nodes have, and start this one again",
        if *.shares_memory { "shared memory, which this node's is not" } else { "reached by a network, and this node's is shared memory" }
    )]
    Fabric {
        /// That server.
        server: ServerId,
        /// The address of its fabric.
        address: String,
        /// Whether that fabric is shared memory.
        shares_memory: bool,
    },
}

impl Agent {
    /// Whether this server and the cluster are compatible. Writes the protocol version of this server if the tree has none, and
    /// then an identity of the cluster.
    pub(super) fn agree(&mut self) -> bool {
        let path = ClusterPath::Protocol;
        if self.view.lacks(&path) && self.is_free(&path) {
            self.submit(path.clone(), create(path, encode_value(&PROTOCOL_VERSION), false), Purpose::Plain);
        }
        let is_compatible = self.view.protocol().is_some() && self.incompatible().is_none();
        let path = ClusterPath::Cluster;
        if is_compatible && self.view.lacks(&path) && self.is_free(&path) {
            let identity = TreeIdentity { cluster: ClusterId(self.me.member.draw("cluster")), generation: 0 };
            self.submit(path.clone(), create(path, encode_value(&identity), false), Purpose::Plain);
        }
        is_compatible && self.view.identity().is_some()
    }

    /// Why this server cannot be part of the cluster.
    pub(super) fn incompatible(&self) -> Option<Incompatible> {
        if let Some(found) = self.view.protocol().filter(|found| *found != PROTOCOL_VERSION) {
            return Some(Incompatible::Protocol { found, own: PROTOCOL_VERSION });
        }
        if self.is_registered() {
            return None;
        }
        let unlike = |other: &&ServerInfo| {
            other.member.server != self.me.member.server && other.shares_memory() != self.me.shares_memory()
        };
        let other = self.view.servers().filter(unlike).find(|other| self.view.is_measure(other.member.server))?;
        let (server, address) = (other.member.server, other.fabric_address.clone());
        Some(Incompatible::Fabric { server, address, shares_memory: other.shares_memory() })
    }
}

impl View {
    /// Whether the server counts for the fabric: it has a copy of a region, or no server has one.
    fn is_measure(&self, server: ServerId) -> bool {
        let mut copies = self.regions().flat_map(GroupConfig::in_sync).peekable();
        copies.peek().is_none() || copies.any(|member| member.server == server)
    }
}

#[cfg(test)]
#[path = "agreement_tests.rs"]
mod tests;

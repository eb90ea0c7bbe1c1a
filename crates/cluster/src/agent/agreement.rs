//! Which version of the protocol the cluster speaks: the first server writes its own down, and a server of another version stays away.
//! What such a one understood of the other values would be wrong, and what it wrote nobody could read. A server stays away, too, whose
//! fabric cannot reach those that have the regions: it would be given copies, and never be in sync. Who has none is no measure: of
//! a cluster that starts again, one that does not belong to it may be the first.

use super::{Agent, Purpose};
use crate::View;
use crate::bootstrap::create;
use leeward_format::ServerId;
use leeward_format::cluster::{ClusterPath, GroupConfig, ServerInfo, encode_value};
use leeward_format::frame::PROTOCOL_VERSION;

/// Why a server can be no part of the cluster that there is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// The cluster speaks another version of the protocol: another version of Leeward made it.
    #[error(
        "the cluster speaks version {found} of the protocol, this program version {own}: run the version of Leeward that the other \
         nodes run"
    )]
    Protocol {
        /// The cluster's.
        found: u8,
        /// This program's.
        own: u8,
    },
    /// The fabric of a server of the cluster is shared memory, and that of this one is not; or the other way round.
    #[error(
        "the fabric of server {server}, at {address}, is {}: set `fabric` to what the other nodes have, and start this one again",
        if *.shares_memory { "shared memory, which this node's is not" } else { "reached by a network, and this node's is shared memory" }
    )]
    Fabric {
        /// That server.
        server: ServerId,
        /// The address of its fabric.
        address: String,
        /// Which is shared memory.
        shares_memory: bool,
    },
}

impl Agent {
    /// Whether this server and the cluster understand each other; writes down what this one speaks where nobody has.
    pub(super) fn agree(&mut self) -> bool {
        let path = ClusterPath::Protocol;
        if self.view.lacks(&path) && self.is_free(&path) {
            self.submit(path.clone(), create(path, encode_value(&PROTOCOL_VERSION), false), Purpose::Plain);
        }
        self.view.protocol().is_some() && self.misfit().is_none()
    }

    /// Why this server cannot be part of the cluster.
    pub(super) fn misfit(&self) -> Option<Misfit> {
        if let Some(found) = self.view.protocol().filter(|found| *found != PROTOCOL_VERSION) {
            return Some(Misfit::Protocol { found, own: PROTOCOL_VERSION });
        }
        if self.is_registered() {
            return None;
        }
        let unlike = |other: &&ServerInfo| {
            other.member.server != self.me.member.server && other.shares_memory() != self.me.shares_memory()
        };
        let other = self.view.servers().filter(unlike).find(|other| self.view.is_measure(other.member.server))?;
        let (server, address) = (other.member.server, other.fabric_address.clone());
        Some(Misfit::Fabric { server, address, shares_memory: other.shares_memory() })
    }
}

impl View {
    /// It has a region's copy, or nobody has one.
    fn is_measure(&self, server: ServerId) -> bool {
        let mut copies = self.regions().flat_map(GroupConfig::in_sync).peekable();
        copies.peek().is_none() || copies.any(|member| member.server == server)
    }
}

#[cfg(test)]
#[path = "agreement_tests.rs"]
mod tests;

//! Links to the other servers: one to each live one, kept up by the fabric.

use super::stale::ClockHeard;
use leeward_fabric::{Descriptor, PeerId};
use leeward_format::ServerId;

/// The fabric's name of a server.
pub fn peer(server: ServerId) -> PeerId {
    PeerId(server.0)
}

/// The server behind a fabric's peer.
pub fn server(peer: PeerId) -> ServerId {
    ServerId(peer.0)
}

pub(super) fn descriptor(bytes: &[u8]) -> Descriptor {
    Descriptor(bytes.to_vec())
}

/// What is known of a link.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) address: String,
    pub(super) up: bool,
    /// What it said of its clock since the link came up.
    pub(super) clock: ClockHeard,
}

//! Links to the other servers: one to each live one, kept up by the fabric. What is sent over one that is down is lost: but for
//! answers (`Context::answer`), which wait for it. Whoever asked has a link of its own, which may have come up before: after a restart
//! it does.

use super::stale::ClockHeard;
use super::{Context, forward};
use leeward_fabric::{Descriptor, PeerId};
use leeward_format::ServerId;
use leeward_format::control::Control;
use leeward_platform::Nanos;

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
    /// Answers for when it is up, and since when they wait.
    unsent: Vec<(Nanos, Control)>,
}

impl Context {
    /// Sends what somebody waits for: now, or when the link is up.
    pub(super) fn answer(&mut self, to: ServerId, answer: Control) {
        match self.links.entry(to).or_default() {
            link if !link.up => link.unsent.push((self.now, answer)),
            _ => self.send(to, &answer),
        }
    }

    /// The link is up.
    pub(super) fn send_unsent(&mut self, to: ServerId) {
        let unsent = self.links.get_mut(&to).map(|link| std::mem::take(&mut link.unsent));
        for (_, answer) in unsent.into_iter().flatten() {
            self.send(to, &answer);
        }
    }

    /// Drops what nobody waits for any more.
    pub(super) fn expire_unsent(&mut self) {
        let now = self.now;
        for link in self.links.values_mut() {
            link.unsent.retain(|(since, _)| now - *since < forward::PATIENCE);
        }
    }
}

//! A backup that gives up the index that it has built, and takes this member's: an operator has found it damaged.
//!
//! The backup is brought in sync anew, as when the table changes to another backup mode. So it leaves the group
//! meanwhile, if enough members are in sync without it.
//!
//! Invariants:
//! - One copy of a region at a time, and only while all others are in sync: a rebuild is not what removes the last copy
//!   but one.
//! - The request ends with the first session that takes the base anew, however that session ends. A backup without room
//!   for a second index comes back with the one that it has. The request is lost with this primary.

use super::Primary;
use crate::peer::{Peer, PeerState};
use leeward_format::ServerId;

impl Primary {
    /// Has the backup on `server` give up the index that it has built.
    ///
    /// # Errors
    /// Why that cannot be done now, and what to do.
    pub fn rebuild_index(&mut self, server: ServerId) -> Result<(), String> {
        self.end_rebuild();
        let region = self.config.region;
        if self.options.backups.ships_index() {
            return Err(format!("backups of region {region} do not build their own index: nothing is to be rebuilt"));
        }
        if !self.config.backups.iter().any(|backup| backup.server == server) {
            return Err(format!("server {server} is no backup of region {region}: ask again when it is in sync"));
        }
        let (in_sync, replicas) = (self.config.in_sync().count() as u32, self.options.replicas);
        if in_sync < replicas || !self.config.learners.is_empty() || !self.is_settled() || self.rebuilding.is_some() {
            return Err(format!(
                "another copy of region {region} is not in sync, or its group changes: ask again when `leeward status` \
                 shows {replicas} copies in sync"
            ));
        }
        self.rebuilding = Some(server);
        Ok(())
    }

    /// Whether a peer has yet to begin the session in which it takes this member's index.
    pub(super) fn must_rebuild(&self, peer: &Peer) -> bool {
        self.rebuilding == Some(peer.member.server) && peer.state() != PeerState::Away && !peer.is_anew()
    }

    /// Ends the request once its session has come to an end, or the peer is in sync. A backup that the coordinator has
    /// replaced by another server never begins that session: the group is whole without it.
    pub(super) fn end_rebuild(&mut self) {
        let Some(server) = self.rebuilding else { return };
        let is_over = match self.peers.get(&server) {
            Some(peer) => peer.is_anew() && matches!(peer.state(), PeerState::Away | PeerState::InSync),
            None => self.config.in_sync().count() as u32 >= self.options.replicas,
        };
        if is_over {
            self.rebuilding = None;
            if let Some(peer) = self.peers.get_mut(&server) {
                peer.forget_rebuild();
            }
        }
    }
}

#[cfg(test)]
#[path = "rebuild_tests.rs"]
mod tests;

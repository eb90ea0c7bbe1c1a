//! Bases that are pinned for peers that are brought in sync, and reads of their segments.

use super::job::Outcome;
use super::joining::Session;
use super::serving::Serving;
use bytes::Bytes;
use leeward_engine::{Error, PinnedBase};
use leeward_format::{LogKind, SegmentId, ServerId};
use leeward_platform::cpu::Activity;
use leeward_replication::peer::{Peer, PeerState};
use leeward_replication::ship::Parcel;
use std::sync::Arc;

impl Serving {
    /// Pins a base for every peer that waits for one. That is done only between compactions, so that a backup gets either the
    /// result of a compaction in its base, or all of the compaction's segments.
    pub(super) fn pin_bases(&mut self) {
        for server in self.primary.wants_base() {
            let mut pinned = self.pin();
            pinned.base.options = self.primary.options().clone();
            self.primary.base(server, pinned.base.clone(), self.region.last_lsn(), self.next_index);
            self.pins.insert(server, Arc::new(pinned));
        }
    }

    /// Pins all of the region, as it is now.
    pub(super) fn pin(&mut self) -> PinnedBase {
        self.region.seal_tails();
        for tail in LogKind::APPENDED.into_iter().flat_map(|log| self.region.tails(log)) {
            self.next_index[tail.log().index()] = tail.index() + 1;
        }
        self.region.base()
    }

    pub(super) fn unpin(&mut self, server: ServerId) {
        self.pins.remove(&server);
    }

    pub(super) fn load(&mut self, server: ServerId, session: u64, id: SegmentId) {
        let Some(pin) = self.pins.get(&server).cloned() else { return };
        let load = move || Outcome::Loaded { server, session, result: load(&pin, id) };
        self.spawn_in_background(Activity::Shipping.of_primary(), load);
    }

    /// The sessions that have begun and are not in sync yet.
    pub(super) fn joining(&self) -> Vec<Session> {
        let is_based = |peer: &Peer| peer.state() != PeerState::Opening && !peer.wants_base();
        let session =
            |peer: &Peer| Session { server: peer.member.server, lacked: self.lacked(peer), is_based: is_based(peer) };
        self.primary.joining().map(session).collect()
    }

    /// Most bytes that are still to be sent to a learner. Until the learner has said what it lacks, that is all of the region.
    fn lacked(&self, peer: &Peer) -> u64 {
        match peer.state() {
            _ if peer.counted => 0,
            PeerState::Opening | PeerState::Basing => self.region.space().bytes,
            _ => peer.progress().1 * self.region.volume().segment_bytes() as u64,
        }
    }

    /// Length of a segment of the base that is pinned for a server.
    pub(super) fn bytes_of(&self, server: ServerId, id: SegmentId) -> u64 {
        let segment = self.pins.get(&server).and_then(|pin| pin.segment(id).ok());
        segment.map_or(0, |segment| segment.bytes.into())
    }
}

fn load(pin: &PinnedBase, id: SegmentId) -> Result<Parcel, Error> {
    let segment = pin.segment(id)?;
    let bytes = Bytes::from(pin.read_segment(id)?);
    Ok(Parcel::pack((id, segment.kind, segment.primary), bytes, pin.base.options.wire))
}

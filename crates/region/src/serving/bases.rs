//! Bases that are pinned for peers that are brought in sync, and reads of their segments.

use super::Serving;
use crate::effects::{Effect, Session, Step};
use crate::job::{Outcome, UpkeepDone};
use bytes::Bytes;
use leeward_engine::{Error, PinnedBase};
use leeward_format::{LogKind, SegmentId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_replication::peer::{Peer, PeerState};
use leeward_replication::ship::Parcel;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The pinned bases of a region, and the reads of their segments.
#[derive(Default)]
pub(super) struct Bases {
    pins: BTreeMap<ServerId, Arc<PinnedBase>>,
    /// Servers for whose sessions the node was asked for a place, and has not answered.
    asked: BTreeSet<ServerId>,
    /// Sessions that have begun and are not in sync yet, as the node counts them.
    counted: Vec<Session>,
    /// Index that the next tail of each log will have, as far as tails were released or sealed.
    next_index: [u64; 2],
}

impl Bases {
    /// A tail of `log` was sealed or released.
    pub(super) fn tail_ended(&mut self, log: LogKind, index: u64) {
        self.next_index[log.index()] = index + 1;
    }

    pub(super) fn abandon(&mut self) {
        self.pins.clear();
    }
}

impl Serving {
    /// Pins a base for every peer that waits for one. That is done only between compactions, so that a backup gets either the
    /// result of a compaction in its base, or all of the compaction's segments.
    pub(super) fn pin_bases(&mut self) {
        for server in self.primary.wants_base() {
            let mut pinned = self.pin();
            pinned.base.options = self.primary.options().clone();
            self.primary.base(server, pinned.base.clone(), self.region.last_lsn(), self.bases.next_index);
            self.bases.pins.insert(server, Arc::new(pinned));
        }
    }

    /// Pins all of the region, as it is now.
    pub(crate) fn pin(&mut self) -> PinnedBase {
        self.region.seal_tails();
        for tail in LogKind::APPENDED.into_iter().flat_map(|log| self.region.tails(log)) {
            self.bases.tail_ended(tail.log(), tail.index());
        }
        self.region.base()
    }

    pub(crate) fn unpin(&mut self, server: ServerId) {
        self.bases.pins.remove(&server);
    }

    pub(crate) fn load(&mut self, server: ServerId, session: u64, id: SegmentId) {
        let Some(pin) = self.bases.pins.get(&server).cloned() else { return };
        let load = move || Outcome::Upkeep(UpkeepDone::Loaded { server, session, result: load(&pin, id) });
        self.spawn_in_background(Activity::Shipping.of_primary(), load);
    }

    /// The node counts these sessions from now on, and no others.
    pub(crate) fn count_sessions(&mut self, sessions: Vec<Session>, step: &mut Step<'_>) {
        if sessions != self.bases.counted {
            let before = std::mem::replace(&mut self.bases.counted, sessions.clone());
            step.ask(Effect::CountSessions { before, after: sessions });
        }
    }

    /// Servers with which sessions may begin, and for which the node was not asked for a place.
    pub(crate) fn due_sessions(&mut self, now: Nanos) -> Vec<(ServerId, bool)> {
        let due = self.primary.due_sessions(now).into_iter();
        due.filter(|(server, _)| !self.bases.asked.contains(server)).collect()
    }

    /// Asks for places for these sessions.
    pub(crate) fn ask_places(&mut self, servers: Vec<(ServerId, bool)>, step: &mut Step<'_>) {
        if !servers.is_empty() {
            self.bases.asked.extend(servers.iter().map(|(server, _)| *server));
            step.ask(Effect::AskPlaces { term: self.term(), servers });
        }
    }

    /// Sessions begin that the node has a place for.
    pub(crate) fn begin_sessions(&mut self, now: Nanos, places: Vec<(ServerId, Result<(), Nanos>)>) {
        for (server, place) in places {
            self.bases.asked.remove(&server);
            self.bases.counted.extend(place.is_ok().then(|| Session::begun(server)));
            self.primary.begin_session(now, server, place);
        }
    }

    /// The sessions that have begun and are not in sync yet.
    pub(crate) fn joining(&self) -> Vec<Session> {
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
    pub(crate) fn bytes_of(&self, server: ServerId, id: SegmentId) -> u64 {
        let segment = self.bases.pins.get(&server).and_then(|pin| pin.segment(id).ok());
        segment.map_or(0, |segment| segment.bytes.into())
    }
}

fn load(pin: &PinnedBase, id: SegmentId) -> Result<Parcel, Error> {
    let segment = pin.segment(id)?;
    let bytes = Bytes::from(pin.read_segment(id)?);
    Ok(Parcel::pack((id, segment.kind, segment.primary), bytes, pin.base.options.wire))
}

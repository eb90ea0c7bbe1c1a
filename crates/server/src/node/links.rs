//! The node's fabric, and its links to the other servers: one to each live server. The fabric keeps them up. A message that is
//! sent over a link that is down is lost, except answers (`Links::answer`), which wait for the link. The asking server has a
//! link of its own, which may have come up earlier: after a restart it does.
//!
//! Operations that are forwarded, and answers to such, are many and small. Those of one turn go to a server as one
//! message of several frames, since a message costs both sides more than a frame.
//!
//! Invariant: nothing of a batch outlives its link or its turn. Belongs to the node's thread.

use bytes::Bytes;
use leeward_fabric::{Descriptor, Fabric, PeerId};
use leeward_format::ServerId;
use leeward_format::control::{Control, MAX_CONTROL_BYTES};
use leeward_format::frame::{FrameKind, frame_bytes, write_frame};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The fabric's name of a server.
pub fn peer(server: ServerId) -> PeerId {
    PeerId(server.0)
}

/// The server behind a fabric's peer.
pub fn server(peer: PeerId) -> ServerId {
    ServerId(peer.0)
}

/// Names reads of other nodes' memory. No write has this name: no region has the highest number.
pub(crate) const MAP_OP: u64 = u64::MAX;

/// How long a node tries an operation before it answers that it failed. So long another node waits for an answer.
pub(crate) const TIMEOUT: Nanos = Nanos::from_secs(5);

/// The clock readings in the last two lease grants of a server, and when this node heard each, by its own clock.
#[derive(Debug, Default)]
struct ClockHeard([Option<(u64, Nanos)>; 2]);

impl ClockHeard {
    fn hear(&mut self, theirs: u64, now: Nanos) {
        self.0 = [Some((theirs, now)), self.0[0]];
    }

    /// The newest reading that was heard before `now`. One that is heard in the turn of a tick may be newer than the tick's
    /// clock.
    fn before(&self, now: Nanos) -> Option<u64> {
        self.0.iter().flatten().find(|(_, at)| *at < now).map(|(theirs, _)| *theirs)
    }
}

/// What is known of a link.
#[derive(Debug, Default)]
struct Link {
    address: String,
    up: bool,
    /// The clock readings that the server has sent since the link came up.
    clock: ClockHeard,
    /// Why the server has refused leases since the link came up.
    lease_refused: Option<String>,
    /// Segments that wait until the link has sent what was queued before.
    segments: VecDeque<SegmentWrite>,
    /// Frames of operations and answers that go out at the end of the turn.
    batch: Vec<u8>,
    /// Encoded answers that wait until the link is up, and since when.
    unsent: VecDeque<(Nanos, Vec<u8>)>,
    /// Bytes of `unsent`.
    unsent_bytes: usize,
    /// Answers that wait until the link has sent what was queued before, and since when. Their values are charged to the
    /// clients' memory.
    waiting: VecDeque<(Nanos, Control)>,
}

/// The links of a node.
pub(crate) struct Links {
    fabric: Arc<dyn Fabric>,
    links: BTreeMap<ServerId, Link>,
    /// While more bytes are queued on a link, segments wait.
    bulk_bytes: usize,
}

/// A segment for a ship slot.
#[derive(Debug)]
struct SegmentWrite {
    slot: Descriptor,
    bytes: Bytes,
    op: u64,
}

/// Most bytes of answers that wait for a link. Beyond that the oldest are dropped, and their callers wait until their time is
/// over. This is a part of what a link may have queued.
const UNSENT_BYTES: usize = 16 << 20;

/// While more bytes than this are queued on a link, no answer to an operation is added: lease and mirroring messages must find
/// room.
const MOST_QUEUED_BYTES: usize = 8 << 20;

/// Bytes from which on a batch is sent before the turn ends: a few hundred operations. A receiver looks at the time only
/// between batches.
const BATCH_BYTES: usize = 8 << 10;

/// Bytes of most messages to other nodes.
const MESSAGE_BYTES: usize = 512;

const _: () = assert!(MAX_CONTROL_BYTES <= leeward_fabric::MAX_MESSAGE_BYTES);

fn framed(to: ServerId, message: &Control) -> Option<Vec<u8>> {
    // Room for most messages: growing in steps costs more than all else here.
    let mut frame = Vec::with_capacity(MESSAGE_BYTES);
    write_frame(FrameKind::Control, message, &mut frame);
    if frame.len() > MAX_CONTROL_BYTES {
        // Only a base may be so long. Its receiver stays a learner, and the region has a replica less.
        let bytes = frame.len();
        tracing::error!(%to, bytes, "a region has too many segments to bring a replica in sync: use larger segments");
        return None;
    }
    Some(frame)
}

/// Frames in a message. What follows a damaged header counts as one.
pub(crate) fn frames_in(mut message: &[u8]) -> u32 {
    let mut frames = 0;
    while !message.is_empty() {
        let len = frame_bytes(FrameKind::Control, message, MAX_CONTROL_BYTES).ok().flatten();
        message = len.and_then(|len| message.get(len..)).unwrap_or_default();
        frames += 1;
    }
    frames
}

impl Link {
    /// The link came up, or went down: what was to go over it is lost.
    fn changed(&mut self, up: bool) {
        (self.up, self.clock, self.lease_refused) = (up, ClockHeard::default(), None);
        self.batch.clear();
        self.segments.clear();
    }

    fn send_batch(&mut self, to: ServerId, fabric: &dyn Fabric) {
        if !self.batch.is_empty() {
            fabric.send(peer(to), &self.batch);
            self.batch.clear();
            self.batch.shrink_to(2 * BATCH_BYTES);
        }
    }

    /// Drops the oldest answers while `is_spent` says so. It takes the time since when the oldest waits, and the bytes of all.
    fn drop_unsent(&mut self, is_spent: impl Fn(Nanos, usize) -> bool) {
        while self.unsent.front().is_some_and(|(since, _)| is_spent(*since, self.unsent_bytes)) {
            let (_, frame) = self.unsent.pop_front().expect("just seen");
            self.unsent_bytes -= frame.len();
        }
    }
}

impl Links {
    /// No link is known yet. While more than `bulk_bytes` are queued on one, no segment is added.
    pub(crate) fn new(fabric: Arc<dyn Fabric>, bulk_bytes: usize) -> Links {
        Links { fabric, bulk_bytes, links: BTreeMap::new() }
    }

    pub(crate) fn fabric(&self) -> &dyn Fabric {
        &*self.fabric
    }

    pub(crate) fn is_up(&self, server: ServerId) -> bool {
        self.links.get(&server).is_some_and(|link| link.up)
    }

    /// The servers whose links are up.
    pub(crate) fn up(&self) -> impl Iterator<Item = ServerId> {
        self.links.iter().filter(|(_, link)| link.up).map(|(server, _)| *server)
    }

    /// The link to a server came up, or went down.
    pub(crate) fn changed(&mut self, server: ServerId, up: bool) {
        self.links.entry(server).or_default().changed(up);
    }

    /// A server is at this address. The fabric links to it.
    pub(crate) fn connect(&mut self, server: ServerId, address: &str) {
        let link = self.links.entry(server).or_default();
        if link.address != address {
            address.clone_into(&mut link.address);
            self.fabric.connect(peer(server), address);
        }
    }

    /// Ends all links. Answers which were up.
    pub(crate) fn disconnect_all(&mut self) -> Vec<ServerId> {
        let links = std::mem::take(&mut self.links);
        links.keys().for_each(|server| self.fabric.disconnect(peer(*server)));
        links.into_iter().filter(|(_, link)| link.up).map(|(server, _)| server).collect()
    }

    /// `from` has told what its clock says.
    pub(crate) fn hear_clock(&mut self, now: Nanos, from: ServerId, theirs: u64) {
        self.links.entry(from).or_default().clock.hear(theirs, now);
    }

    /// What `server` said of its clock: a safe LSN that is published to it counts from then.
    pub(crate) fn clock_of(&self, now: Nanos, server: ServerId) -> Option<u64> {
        self.links.get(&server).and_then(|link| link.clock.before(now))
    }

    pub(crate) fn send(&self, to: ServerId, message: &Control) {
        if let Some(frame) = framed(to, message) {
            self.fabric.send(peer(to), &frame);
        }
    }

    /// Sends a message about leases, which does not wait for what was sent before.
    pub(crate) fn send_urgent(&self, to: ServerId, message: &Control) {
        if planted(Bug::LeaseBehindBulk) {
            return self.send(to, message);
        }
        if let Some(frame) = framed(to, message) {
            self.fabric.send_urgent(peer(to), &frame);
        }
    }

    /// `from` refuses leases. It does so at each request, and the log says it once.
    pub(crate) fn lease_refused(&mut self, from: ServerId, reason: String) {
        let link = self.links.entry(from).or_default();
        if link.lease_refused.as_ref() != Some(&reason) {
            tracing::error!(server = %from, reason, "a server grants no lease, so this node cannot serve regions with it");
            link.lease_refused = Some(reason);
        }
    }

    /// Sends an operation, or an answer, by the end of the turn.
    pub(crate) fn send_in_batch(&mut self, to: ServerId, message: &Control) {
        let link = self.links.entry(to).or_default();
        write_frame(FrameKind::Control, message, &mut link.batch);
        if link.batch.len() >= BATCH_BYTES {
            link.send_batch(to, &*self.fabric);
        }
    }

    /// The turn ends: sends all batches.
    pub(crate) fn send_batches(&mut self) {
        for (to, link) in &mut self.links {
            link.send_batch(*to, &*self.fabric);
        }
    }

    /// Sends an answer that another node waits for: by the end of the turn, or when the link is up and has room.
    pub(crate) fn answer(&mut self, now: Nanos, to: ServerId, answer: Control) {
        let link = self.links.entry(to).or_default();
        if link.up {
            // One look for all answers of a batch: it takes the link's lock.
            let has_no_room = || self.fabric.queued_bytes(peer(to)) > MOST_QUEUED_BYTES;
            if !link.waiting.is_empty() || link.batch.is_empty() && has_no_room() {
                return link.waiting.push_back((now, answer));
            }
            return self.send_in_batch(to, &answer);
        }
        let mut frame = Vec::new();
        write_frame(FrameKind::Control, &answer, &mut frame);
        link.unsent_bytes += frame.len();
        link.unsent.push_back((now, frame));
        link.drop_unsent(|_, bytes| bytes > UNSENT_BYTES);
    }

    /// The link to `to` is up: sends the answers that waited for it.
    pub(crate) fn send_unsent(&mut self, to: ServerId) {
        let Some(link) = self.links.get_mut(&to) else { return };
        link.unsent_bytes = 0;
        for (_, frame) in std::mem::take(&mut link.unsent) {
            self.fabric.send(peer(to), &frame);
        }
    }

    /// Sends answers that waited for room on their links, as far as there is room now.
    pub(crate) fn send_waiting(&mut self) {
        let waiting = self.links.iter().filter(|(_, link)| link.up && !link.waiting.is_empty());
        for to in waiting.map(|(server, _)| *server).collect::<Vec<ServerId>>() {
            while self.fabric.queued_bytes(peer(to)) <= MOST_QUEUED_BYTES
                && let Some((_, answer)) = self.links.get_mut(&to).and_then(|link| link.waiting.pop_front())
            {
                self.send(to, &answer);
            }
        }
    }

    /// Writes a segment to a ship slot, when the link has sent enough of what was queued before.
    pub(crate) fn write_segment(&mut self, to: ServerId, slot: Descriptor, bytes: Bytes, op: u64) {
        let link = self.links.entry(to).or_default();
        link.segments.push_back(SegmentWrite { slot, bytes, op });
        self.send_segments_to(to);
    }

    /// Writes segments that wait, as far as their links have room now.
    pub(crate) fn send_segments(&mut self) {
        let waiting = self.links.iter().filter(|(_, link)| !link.segments.is_empty());
        for to in waiting.map(|(server, _)| *server).collect::<Vec<ServerId>>() {
            self.send_segments_to(to);
        }
    }

    fn send_segments_to(&mut self, to: ServerId) {
        while self.has_room(to)
            && let Some(SegmentWrite { slot, bytes, op }) =
                self.links.get_mut(&to).and_then(|link| link.segments.pop_front())
        {
            self.fabric.write(peer(to), &slot, 0, &bytes, op);
        }
    }

    /// Servers to whose links no segment is to be added now.
    pub(crate) fn full(&self) -> BTreeSet<ServerId> {
        let is_full = |(to, link): &(&ServerId, &Link)| link.up && (!link.segments.is_empty() || !self.has_room(**to));
        self.links.iter().filter(is_full).map(|(to, _)| *to).collect()
    }

    fn has_room(&self, to: ServerId) -> bool {
        self.fabric.queued_bytes(peer(to)) <= self.bulk_bytes || planted(Bug::LeaseBehindBulk)
    }

    /// Drops answers that no node waits for any more.
    pub(crate) fn expire_unsent(&mut self, now: Nanos) {
        for link in self.links.values_mut() {
            while link.waiting.pop_front_if(|(since, _)| now - *since >= TIMEOUT).is_some() {}
            link.drop_unsent(|since, _| now - since >= TIMEOUT);
        }
    }
}

#[cfg(test)]
#[path = "links_tests.rs"]
mod tests;

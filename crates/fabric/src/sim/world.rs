//! The state of a simulated network, and its event loop.
//!
//! Everything is in ordered maps and numbered, so that nothing depends on addresses or hashes. An operation is cut into
//! pieces that each have an arrival event; its answer is an event of its own. Links exist as long as the network, so
//! that the remains of an earlier connection are dropped when a later one is up.

use super::SimOptions;
use super::mapped::Mapped;
use super::stores::{Store, Stores, step_time};
use crate::{
    LinkEvent, PeerId, Sink,
    memory::{Counters, Framed, Handle, HeapMemory, Registry},
    words::{self, WORD},
};
use leeward_platform::{Nanos, Rng};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// Bytes of an operation or a message beside its payload, as over TCP.
const OVERHEAD: usize = 36;

/// The node where something begins, and the node where it ends.
pub(super) type Pair = (PeerId, PeerId);

/// An event that a step delivers, its peer, and the sink that gets it.
pub(super) type Delivery = (Sink, PeerId, LinkEvent);

/// A running node.
pub(super) struct Node {
    /// Number of this incarnation.
    pub(super) incarnation: u64,
    pub(super) sink: Sink,
    pub(super) registry: Arc<Registry<HeapMemory>>,
    pub(super) counters: Arc<Counters>,
    pub(super) stores: Stores,
}

/// What is left of a node that was killed: memory that peers read until then.
pub(super) struct Remains {
    pub(super) memories: Vec<Arc<HeapMemory>>,
    pub(super) until: Nanos,
}

/// A post. One without a handle will be refused.
pub(super) enum Post {
    Message(Vec<u8>),
    Urgent(Vec<u8>),
    Write { to: Option<Handle>, offset: u64, bytes: Vec<u8>, op: u64 },
    Read { from: Option<Handle>, offset: u64, len: u32, op: u64 },
}

/// A link from one node to another.
#[derive(Default)]
pub(super) struct Link {
    /// Its owner wants it.
    pub(super) wanted: bool,
    /// It has sent more than reads.
    pub(super) has_sent: bool,
    pub(super) up: bool,
    /// Raised when it goes up or down, and when it is wanted anew: events meant for an earlier generation are ignored.
    pub(super) generation: u64,
    /// Its generation when it last went up.
    connection: u64,
    /// The incarnation of the target that it is, or was, connected to.
    pub(super) target_incarnation: u64,
    /// Posts that are not flushed.
    posted: Vec<Post>,
    /// Operations in flight, with arrival events; also remains of an earlier connection.
    pub(super) operations: BTreeMap<u64, Operation>,
    /// Memory of the target that was read over this connection.
    pub(super) mapped: Mapped,
    /// Messages in flight, oldest first.
    pub(super) messages: VecDeque<Vec<u8>>,
    /// When the last message arrives, unless it is held at a cut.
    last_message: Nanos,
    /// Urgent messages in flight, where they are apart from the others; oldest first.
    pub(super) urgent: VecDeque<Vec<u8>>,
    /// When the last of those arrives.
    last_urgent: Nanos,
    /// When the link has sent all that was posted.
    busy_until: Nanos,
    /// Set while a cut has not been noticed yet.
    pub(super) suspect: Option<u64>,
}

/// A write or read in flight.
pub(super) struct Operation {
    pub(super) op: u64,
    pub(super) handle: Option<Handle>,
    pub(super) kind: Kind,
    /// Pieces that have not arrived yet: offset in the memory and length.
    pub(super) pieces: Vec<Option<(u64, usize)>>,
    /// Its offset in the memory.
    offset: u64,
    pub(super) refused: bool,
    /// Its link went down: it may land, but its end is not reported.
    pub(super) orphan: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    Read,
}

/// A future event.
#[derive(Clone, Copy)]
pub(super) enum Event {
    /// An attempt to connect a link.
    Attempt(Pair, u64),
    /// A piece of an operation reaches the target.
    Piece(Pair, u64, usize),
    /// The answer to an operation reaches the node that posted it.
    Answer(Pair, u64),
    /// The next message of this connection reaches the target.
    Message(Pair, u64),
    /// The next urgent message does.
    Urgent(Pair, u64),
    /// A link notices that its peer has died.
    Lost(Pair, u64),
    /// A link notices that it is cut.
    Suspect(Pair, u64),
    /// Some stores of this incarnation of a node land.
    Stores(PeerId, u64),
}

/// The whole network.
pub(super) struct World {
    pub(super) options: SimOptions,
    pub(super) rng: Rng,
    pub(super) now: Nanos,
    pub(super) digest: u64,
    numbers: u64,
    events: BTreeMap<(Nanos, u64), Event>,
    pub(super) nodes: BTreeMap<PeerId, Node>,
    /// By incarnation.
    pub(super) remains: BTreeMap<u64, Remains>,
    pub(super) links: BTreeMap<Pair, Link>,
    pub(super) cuts: BTreeSet<Pair>,
    /// Events held at a cut, by the direction that is cut.
    pub(super) held: BTreeMap<Pair, Vec<Event>>,
    pub(super) slow: BTreeMap<Pair, Nanos>,
    /// Bytes of operations under way.
    bytes: BTreeMap<u64, Vec<u8>>,
}

impl World {
    pub(super) fn new(seed: u64, options: SimOptions) -> World {
        World {
            options,
            rng: Rng::new(seed),
            now: Nanos::ZERO,
            digest: seed,
            numbers: 0,
            events: BTreeMap::new(),
            nodes: BTreeMap::new(),
            remains: BTreeMap::new(),
            links: BTreeMap::new(),
            cuts: BTreeSet::new(),
            held: BTreeMap::new(),
            slow: BTreeMap::new(),
            bytes: BTreeMap::new(),
        }
    }

    /// An unused number.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Time of the next event.
    pub(super) fn next_event_time(&self) -> Option<Nanos> {
        self.events.first_key_value().map(|((time, _), _)| *time)
    }

    pub(super) fn schedule(&mut self, at: Nanos, event: Event) {
        let number = self.number();
        self.events.insert((at, number), event);
    }

    /// When something arrives that leaves now.
    fn arrival(&mut self, pair: Pair) -> Nanos {
        self.arrival_after(pair, self.now)
    }

    /// When something arrives that leaves at this time.
    fn arrival_after(&mut self, pair: Pair, leaves: Nanos) -> Nanos {
        let delay = self.rng.between(self.options.min_delay.0, self.options.max_delay.0);
        leaves + Nanos(delay) + self.slow.get(&pair).copied().unwrap_or_default()
    }

    /// How long a link takes to send so many bytes.
    fn sending_time(&self, bytes: usize) -> Nanos {
        let nanos = bytes as u128 * 1_000_000_000;
        Nanos(nanos.checked_div(u128::from(self.options.bytes_per_second)).unwrap_or_default() as u64)
    }

    /// When so many bytes have left that are posted now: after what was posted before.
    fn leaves(&mut self, pair: Pair, bytes: usize) -> Nanos {
        let (now, takes) = (self.now, self.sending_time(bytes));
        let link = self.link(pair);
        link.busy_until = link.busy_until.max(now) + takes;
        link.busy_until
    }

    /// Bytes that were posted on a link and have not left.
    pub(super) fn queued_bytes(&self, pair: Pair) -> usize {
        let waits = self.links.get(&pair).map_or(Nanos::ZERO, |link| link.busy_until - self.now);
        (u128::from(waits.0) * u128::from(self.options.bytes_per_second) / 1_000_000_000) as usize
    }

    /// Schedules `event` for the arrival of something that is sent now.
    pub(super) fn travel(&mut self, pair: Pair, event: Event) {
        let at = self.arrival(pair);
        self.schedule(at, event);
    }

    /// Starts to connect.
    pub(super) fn connect(&mut self, from: PeerId, to: PeerId) {
        let link = self.links.entry((from, to)).or_default();
        if !link.wanted {
            link.wanted = true;
            link.generation += 1;
            let generation = link.generation;
            self.travel((from, to), Event::Attempt((from, to), generation));
        }
    }

    /// Posts on a link that is up.
    pub(super) fn post(&mut self, from: PeerId, to: PeerId, post: Post) {
        if let Some(link) = self.links.get_mut(&(from, to)).filter(|link| link.up) {
            link.posted.push(post);
        }
    }

    /// Sends everything that `from` has posted, after its stores have landed.
    pub(super) fn flush(&mut self, from: PeerId) {
        if let Some(node) = self.nodes.get_mut(&from).filter(|node| !node.stores.is_empty()) {
            node.stores.holds_posts = true;
            return;
        }
        let all = (from, PeerId(0))..=(from, PeerId(u32::MAX));
        let posted: Vec<_> =
            self.links.range_mut(all).map(|(pair, link)| (*pair, std::mem::take(&mut link.posted))).collect();
        for (pair, posts) in posted {
            for post in posts {
                self.set_out(pair, post);
            }
        }
    }

    /// A node stores a word to its readable memory.
    pub(super) fn store(&mut self, peer: PeerId, incarnation: u64, store: Store) {
        let (now, gap) = (self.now, self.options.store_gap);
        let Some(node) = self.node_mut(peer, incarnation) else { return };
        node.stores.push(store);
        if !std::mem::replace(&mut node.stores.is_landing, true) {
            let delay = Nanos(self.rng.below(gap.0));
            self.schedule(now + delay, Event::Stores(peer, incarnation));
        }
    }

    fn land_stores(&mut self, peer: PeerId, incarnation: u64) {
        let (gap, most_delay) = (self.options.store_gap, self.options.max_delay);
        let World { nodes, rng, .. } = self;
        let node = nodes.get_mut(&peer).filter(|node| node.incarnation == incarnation);
        let Some(Node { stores, .. }) = node else { return };
        if self.now < stores.held_until {
            let at = stores.held_until;
            return self.schedule(at, Event::Stores(peer, incarnation));
        }
        stores.land_some(rng);
        stores.is_landing = !stores.is_empty();
        let delay = stores.is_landing.then(|| step_time(gap, most_delay, rng));
        let may_flush = !stores.is_landing && std::mem::take(&mut stores.holds_posts);
        match delay {
            Some(delay) => self.schedule(self.now + delay, Event::Stores(peer, incarnation)),
            None if may_flush => self.flush(peer),
            None => {}
        }
    }

    /// The node, if it is this incarnation.
    pub(super) fn node_mut(&mut self, peer: PeerId, incarnation: u64) -> Option<&mut Node> {
        self.nodes.get_mut(&peer).filter(|node| node.incarnation == incarnation)
    }

    fn set_out(&mut self, pair: Pair, post: Post) {
        self.link(pair).has_sent |= !matches!(post, Post::Read { .. });
        let (handle, offset, len, op, kind, bytes) = match post {
            Post::Message(message) => return self.set_out_message(pair, message),
            Post::Urgent(message) if self.options.bytes_per_second == 0 => return self.set_out_message(pair, message),
            Post::Urgent(message) => return self.set_out_urgent(pair, message),
            Post::Write { to, offset, bytes, op } => (to, offset, bytes.len(), op, Kind::Write, bytes),
            Post::Read { from, offset, len, op } => (from, offset, len as usize, op, Kind::Read, Vec::new()),
        };
        self.count_sent(pair.0, OVERHEAD + bytes.len());
        let handle = handle.filter(|handle| words::within(offset, len as u64, handle.len as usize));
        let bytes = if kind == Kind::Read && handle.is_some() { vec![0; len] } else { bytes };
        let pieces = if handle.is_some() { self.cut_into_pieces(offset, len) } else { vec![(0, 0)] };
        let number = self.number();
        let sent = OVERHEAD + if kind == Kind::Write { len } else { 0 };
        let leaves = self.leaves(pair, sent);
        for piece in 0..pieces.len() {
            let at = self.arrival_after(pair, leaves);
            self.schedule(at, Event::Piece(pair, number, piece));
        }
        let pieces = pieces.into_iter().map(Some).collect();
        let operation = Operation { op, handle, kind, pieces, offset, refused: false, orphan: false };
        self.link(pair).operations.insert(number, operation);
        self.bytes.insert(number, bytes);
    }

    fn set_out_message(&mut self, pair: Pair, message: Vec<u8>) {
        self.count_sent(pair.0, OVERHEAD + message.len());
        let leaves = self.leaves(pair, OVERHEAD + message.len());
        let at = self.arrival_after(pair, leaves);
        let link = self.link(pair);
        let at = at.max(link.last_message);
        link.last_message = at;
        link.messages.push_back(message);
        let connection = link.connection;
        self.schedule(at, Event::Message(pair, connection));
    }

    /// An urgent message shares the link with what is on its way, and does not wait for it.
    fn set_out_urgent(&mut self, pair: Pair, message: Vec<u8>) {
        self.count_sent(pair.0, OVERHEAD + message.len());
        let leaves = self.now + self.sending_time(OVERHEAD + message.len());
        let at = self.arrival_after(pair, leaves);
        let link = self.link(pair);
        let at = at.max(link.last_urgent);
        link.last_urgent = at;
        link.urgent.push_back(message);
        let connection = link.connection;
        self.schedule(at, Event::Urgent(pair, connection));
    }

    /// Cuts a range at up to three random words.
    fn cut_into_pieces(&mut self, offset: u64, len: usize) -> Vec<(u64, usize)> {
        let end = offset + len as u64;
        let first_word = offset / WORD as u64 + 1;
        let words = (end.div_ceil(WORD as u64)).saturating_sub(first_word);
        let mut cuts = vec![offset, end];
        if words > 0 && self.rng.one_in(2) {
            for _ in 0..self.rng.between(1, 3) {
                cuts.push((first_word + self.rng.below(words)) * WORD as u64);
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        if cuts.len() == 1 {
            return vec![(offset, 0)];
        }
        cuts.windows(2).map(|cut| (cut[0], (cut[1] - cut[0]) as usize)).collect()
    }

    /// Executes the next event. The outer `None` means that there is none.
    pub(super) fn step(&mut self) -> Option<Option<Delivery>> {
        let ((at, number), event) = self.events.pop_first()?;
        self.now = self.now.max(at);
        self.mix(at.0);
        self.mix(number);
        Some(match event {
            Event::Attempt(pair, generation) => self.attempt(pair, generation),
            Event::Piece(pair, number, piece) => {
                self.arrive(pair, pair, event, |world| world.piece(pair, number, piece))
            }
            Event::Message(pair, connection) => self.arrive(pair, pair, event, |world| world.message(pair, connection)),
            Event::Urgent(pair, connection) => self.arrive(pair, pair, event, |world| world.urgent(pair, connection)),
            Event::Answer(pair, number) => {
                self.arrive((pair.1, pair.0), pair, event, |world| world.answer(pair, number))
            }
            Event::Lost(pair, generation) => {
                let link = self.link(pair);
                if link.up && link.generation == generation { self.take_down(pair) } else { None }
            }
            Event::Suspect(pair, token) => {
                let link = self.link(pair);
                if link.up && link.suspect == Some(token) { self.take_down(pair) } else { None }
            }
            Event::Stores(peer, incarnation) => {
                self.land_stores(peer, incarnation);
                None
            }
        })
    }

    /// Runs `act`, unless `direction` is cut: then the event is held, or lost if the link is down.
    fn arrive(
        &mut self,
        direction: Pair,
        pair: Pair,
        event: Event,
        act: impl FnOnce(&mut World) -> Option<Delivery>,
    ) -> Option<Delivery> {
        if self.cuts.contains(&direction) {
            if self.link(pair).up {
                self.held.entry(direction).or_default().push(event);
            }
            return None;
        }
        act(self)
    }

    fn attempt(&mut self, pair: Pair, generation: u64) -> Option<Delivery> {
        let (from, to) = pair;
        let link = self.link(pair);
        if !link.wanted || link.up || link.generation != generation {
            return None;
        }
        let cut = self.cuts.contains(&pair) || self.cuts.contains(&(to, from));
        let Some(incarnation) = self.nodes.get(&to).map(|node| node.incarnation).filter(|_| !cut) else {
            let at = self.now + self.options.retry_pause;
            self.schedule(at, Event::Attempt(pair, generation));
            return None;
        };
        // Nothing of an earlier connection lands any more.
        let stale = std::mem::take(&mut self.link(pair).operations);
        for number in stale.keys() {
            self.bytes.remove(number);
        }
        let link = self.link(pair);
        (link.up, link.target_incarnation, link.suspect) = (true, incarnation, None);
        link.generation += 1;
        link.connection = link.generation;
        (link.last_message, link.last_urgent, link.busy_until) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
        link.messages.clear();
        link.urgent.clear();
        self.deliver(from, to, LinkEvent::Up)
    }

    /// The target of `pair`, if it is the incarnation that the link is connected to. A restarted target resets the
    /// connection.
    fn target(&mut self, pair: Pair) -> Option<&Node> {
        let (incarnation, generation) = (self.link(pair).target_incarnation, self.link(pair).generation);
        let found = self.nodes.get(&pair.1).map(|node| node.incarnation);
        if found.is_some_and(|found| found != incarnation) {
            self.travel((pair.1, pair.0), Event::Lost(pair, generation));
        }
        self.nodes.get(&pair.1).filter(|node| node.incarnation == incarnation)
    }

    /// The memory that an operation is about, if the target has it. A read also reaches what is left of a target that
    /// was killed. The outer `None`: the target is gone.
    pub(super) fn memory_of(&mut self, pair: Pair, number: u64) -> Option<Option<Arc<HeapMemory>>> {
        let now = self.now;
        let link = self.link(pair);
        let (incarnation, operation) = (link.target_incarnation, link.operations.get(&number));
        let is_read = operation.is_some_and(|operation| operation.kind == Kind::Read);
        let handle = operation.and_then(|operation| operation.handle);
        self.remains.retain(|_, remains| now < remains.until);
        if let Some(remains) = self.remains.get(&incarnation).filter(|_| is_read) {
            return Some(handle.and_then(|handle| remains.memories.iter().find(|one| one.handle() == handle).cloned()));
        }
        let registry = &self.target(pair)?.registry;
        Some(handle.and_then(|handle| registry.find(handle.id, handle.key)))
    }

    fn piece(&mut self, pair: Pair, number: u64, piece: usize) -> Option<Delivery> {
        let memory = self.memory_of(pair, number)?;
        let operation = self.links.get_mut(&pair)?.operations.get_mut(&number)?;
        let (offset, len) = operation.pieces[piece].take()?;
        let bytes = self.bytes.get_mut(&number).expect("the bytes of an operation live as long as it does");
        let at = (offset.saturating_sub(operation.offset)) as usize;
        let landed = memory.is_some_and(|memory| {
            let part = &mut bytes[at..at + len];
            memory.admits(offset, len as u64)
                && match operation.kind {
                    Kind::Write => memory.remote_write(offset, part),
                    Kind::Read => memory.remote_read(offset, part),
                }
        });
        operation.refused |= !landed;
        let (complete, orphan, kind) = (operation.pieces.iter().all(Option::is_none), operation.orphan, operation.kind);
        let digest = crc32c::crc32c(&bytes[at..at + len]);
        self.mix(u64::from(digest) ^ offset << 32);
        let (written, read) = if kind == Kind::Write { (len, 0) } else { (0, len) };
        self.count_received(pair.1, written);
        self.count_sent(pair.1, read);
        if complete {
            self.count_received(pair.1, OVERHEAD);
        }
        if complete && orphan {
            self.forget(pair, number);
        } else if complete {
            self.count_sent(pair.1, OVERHEAD);
            self.travel((pair.1, pair.0), Event::Answer(pair, number));
        }
        None
    }

    fn answer(&mut self, pair: Pair, number: u64) -> Option<Delivery> {
        self.map(pair, number);
        let link = self.link(pair);
        if link.operations.get(&number).is_none_or(|operation| operation.orphan) {
            return None;
        }
        let Operation { op, kind, refused, .. } = link.operations.remove(&number)?;
        let bytes = self.bytes.remove(&number)?;
        self.count_received(pair.0, OVERHEAD + if kind == Kind::Read { bytes.len() } else { 0 });
        let event = match (refused, kind) {
            (true, _) => LinkEvent::Refused { op },
            (false, Kind::Write) => LinkEvent::Completed { op },
            (false, Kind::Read) => LinkEvent::ReadDone { op, bytes },
        };
        self.deliver(pair.0, pair.1, event)
    }

    fn message(&mut self, pair: Pair, connection: u64) -> Option<Delivery> {
        self.target(pair)?;
        if self.link(pair).connection != connection {
            return None;
        }
        let message = self.link(pair).messages.pop_front()?;
        self.deliver_message(pair, message)
    }

    fn urgent(&mut self, pair: Pair, connection: u64) -> Option<Delivery> {
        self.target(pair)?;
        if self.link(pair).connection != connection {
            return None;
        }
        let message = self.link(pair).urgent.pop_front()?;
        self.deliver_message(pair, message)
    }

    fn deliver_message(&mut self, pair: Pair, message: Vec<u8>) -> Option<Delivery> {
        self.mix(u64::from(crc32c::crc32c(&message)));
        self.count_received(pair.1, OVERHEAD + message.len());
        self.deliver(pair.1, pair.0, LinkEvent::Message(message))
    }

    /// The delivery of `event`, which concerns `peer`, to the sink of `node`.
    pub(super) fn deliver(&mut self, node: PeerId, peer: PeerId, event: LinkEvent) -> Option<Delivery> {
        self.mix(u64::from(node.0) << 32 | u64::from(peer.0));
        let sink = Arc::clone(&self.nodes.get(&node)?.sink);
        Some((sink, peer, event))
    }

    /// The link of `pair`, created on first use.
    pub(super) fn link(&mut self, pair: Pair) -> &mut Link {
        self.links.entry(pair).or_default()
    }

    /// Forgets an operation.
    pub(super) fn forget(&mut self, pair: Pair, number: u64) {
        self.link(pair).operations.remove(&number);
        self.bytes.remove(&number);
    }

    fn count_sent(&self, node: PeerId, bytes: usize) {
        if let Some(node) = self.nodes.get(&node) {
            node.counters.add_sent(bytes);
        }
    }

    pub(super) fn count_received(&self, node: PeerId, bytes: usize) {
        if let Some(node) = self.nodes.get(&node) {
            node.counters.add_received(bytes);
        }
    }

    fn mix(&mut self, value: u64) {
        // FNV-1a over words, with a rotation so that high bits spread as well.
        self.digest = (self.digest ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    }
}

impl Link {
    /// Drops posts that are not flushed.
    pub(super) fn drop_posted(&mut self) {
        self.posted.clear();
    }
}

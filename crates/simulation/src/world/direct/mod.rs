//! Direct reads: clients that read the hash indexes of primaries by one-sided reads, in seeds whose table has any. What
//! they read of shared keys is part of the histories that are checked for linearizability.
//!
//! A direct reader is a node of the network, which no fault strikes: it reaches the memory of any server. Its questions to
//! primaries, and their answers, take their time. A look-up that no direct read answers goes on as a request, and is one
//! operation from its begin to its answer. What is never answered says nothing. Called by the world, on its thread.

mod reader;

use super::{Event, NodeId, World, node_of, server_id};
use crate::load::Purpose;
use crate::{CONTEXT, DirectReads};
use bytes::Bytes;
use leeward_fabric::{LinkEvent, PeerId, SimNetwork};
use leeward_format::op::{Op, OpResult};
use leeward_format::table::DEFAULT_TABLE;
use leeward_platform::{Nanos, Rng};
use leeward_server::node::{Token, links};
use reader::{DirectReader, Next};

/// Tokens from here on are of direct readers: the reader is in these bits, and below them a number.
const TOKENS: u64 = 1 << 56;
const READER_SHIFT: u32 = 48;
/// Longest pause between two look-ups of a reader, in microseconds.
const GAP_US: u64 = 2_500;

/// What happens to a direct reader.
#[derive(Debug)]
pub(super) enum DirectEvent {
    /// It is ready for its next look-up.
    Begin,
    /// It runs again.
    Resume { look: u64 },
    /// A question of it reaches a node.
    Question { node: NodeId, token: Token, op: Op },
    /// The answer to a question reaches it.
    Answer { token: Token, result: OpResult },
    /// Its wait for the answer to a request times out.
    GiveUp { look: u64 },
}

/// The direct readers of a world.
pub(super) struct Direct {
    readers: Vec<DirectReader>,
    rng: Rng,
    last_token: u64,
    /// What a direct read has found last: another reader may look for the same, just after.
    found: Option<Purpose>,
    /// Requests that were not answered yet: of each reader, the token and the look-up.
    requests: Vec<Option<(Token, u64)>>,
    /// The answers to questions now take longer than it takes to replace a primary.
    is_slow: bool,
}

impl Direct {
    pub(super) fn new(
        readers: usize,
        nodes: usize,
        network: &SimNetwork,
        arrivals: &super::Arrivals,
        mut rng: Rng,
    ) -> Direct {
        let reader = |number: usize| {
            let (place, arrivals) = (nodes + number, arrivals.clone());
            let sink = move |peer: PeerId, event| arrivals.lock().push((place, 0, links::server(peer), event));
            let fabric = network.node(links::peer(server_id(place)), std::sync::Arc::new(sink));
            DirectReader::new(fabric, nodes, &mut rng)
        };
        let all = (0..readers).map(reader).collect();
        Direct { readers: all, rng, last_token: 0, found: None, requests: vec![None; readers], is_slow: false }
    }

    /// What came of the look-ups of all readers.
    pub(super) fn counts(&self) -> DirectReads {
        let mut sum = DirectReads::default();
        self.readers.iter().for_each(|reader| sum += reader.counts);
        sum
    }

    fn token(&mut self, reader: usize) -> Token {
        self.last_token += 1;
        Token(TOKENS | (reader as u64) << READER_SHIFT | self.last_token)
    }

    /// The reader that an answer is for.
    pub(super) fn reader_of(&self, token: Token) -> Option<usize> {
        (token.0 >= TOKENS).then(|| ((token.0 - TOKENS) >> READER_SHIFT) as usize)
    }

    /// How long the memory of a process that was killed stays readable.
    pub(super) fn until_unmapped(&mut self) -> Nanos {
        Nanos::from_micros(self.rng.between(1, 1_000_000))
    }

    /// How long a question or its answer takes.
    fn delay(&mut self) -> Nanos {
        match self.rng.below(16) {
            _ if self.is_slow => Nanos::from_micros(self.rng.between(800_000, 3_500_000)),
            0 => Nanos::from_micros(self.rng.below(5_000_000)),
            1 => Nanos::from_micros(self.rng.below(500_000)),
            _ => Nanos::from_micros(self.rng.between(20, 2_000)),
        }
    }
}

impl World {
    pub(super) fn begin_direct_reads(&mut self) {
        for reader in 0..self.direct.readers.len() {
            self.push(Nanos::from_millis(100), Event::Direct { reader, event: DirectEvent::Begin });
        }
    }

    pub(super) fn happen_to_reader(&mut self, reader: usize, event: DirectEvent) {
        CONTEXT.set((self.now, None));
        match event {
            DirectEvent::Begin => self.begin_look(reader),
            DirectEvent::Resume { look } => {
                let next = self.direct.readers[reader].resume(self.now, look);
                self.go_on(reader, next);
            }
            DirectEvent::Question { node, token, op } => {
                self.submit(node, token, op, None, true);
            }
            DirectEvent::Answer { token, result } => {
                let answer = if let OpResult::HashIndex(answer) = result { Some(*answer) } else { None };
                self.direct.readers[reader].answered(self.now, token, answer);
                self.begin_look(reader);
            }
            DirectEvent::GiveUp { look } => {
                if self.direct.readers[reader].end(look).is_some() {
                    self.direct.requests[reader] = None;
                    self.next_look(reader);
                }
            }
        }
    }

    /// Something has happened on a link of a reader.
    pub(super) fn reader_hears(&mut self, reader: usize, node: NodeId, event: LinkEvent) {
        let Direct { readers, rng, .. } = &mut self.direct;
        let next = readers[reader].hear(node, event, rng);
        self.go_on(reader, next);
    }

    fn begin_look(&mut self, reader: usize) {
        if !self.is_loaded || !self.direct.readers[reader].is_idle() {
            return;
        }
        let Direct { readers, rng, found, .. } = &mut self.direct;
        let (key, purpose) = self.load.look_up(self.now, found.take(), rng);
        let next = readers[reader].begin(self.now, key.clone(), purpose, rng);
        self.ask_about_index(reader, key);
        self.go_on(reader, next);
    }

    fn next_look(&mut self, reader: usize) {
        let at = self.now + Nanos::from_micros(self.direct.rng.below(GAP_US));
        self.push(at, Event::Direct { reader, event: DirectEvent::Begin });
    }

    fn go_on(&mut self, reader: usize, next: Next) {
        match next {
            Next::Wait => {}
            Next::Resume { look, pause } => {
                self.push(self.now + pause, Event::Direct { reader, event: DirectEvent::Resume { look } });
            }
            Next::Request { look, key } => self.look_by_request(reader, look, key),
            Next::Found { key, purpose, value } => {
                self.load.looked_up(self.now, purpose, key, &OpResult::Value(Some(value)));
                self.direct.found = Some(purpose);
                // Itself, or the first that is idle.
                let idle = self.direct.readers.iter().position(DirectReader::is_idle);
                let next = idle.filter(|_| self.direct.rng.one_in(2)).unwrap_or(reader);
                self.push(self.now, Event::Direct { reader: next, event: DirectEvent::Begin });
                self.next_look(reader);
            }
        }
    }

    /// A node is about to store something. A reader that is paused, and reads just that next, may run again while the
    /// node stops between two stores, and another reader after it.
    pub(super) fn wake_readers(&mut self, node: NodeId) {
        let (peer, delay) = (links::peer(server_id(node)), self.scenario.network.max_delay);
        for reader in 0..self.direct.readers.len() {
            let is_stored = |memory: &_, bytes| self.network.has_stores_to(peer, memory, bytes);
            let look = self.direct.readers[reader].reads_next(node, is_stored);
            if let Some(look) = look.filter(|_| !self.direct.rng.one_in(4)) {
                let rng = &mut self.direct.rng;
                let (left, while_) = (1 + rng.index(3), Nanos(delay.0 * rng.between(1, 8)));
                let at = self.now + Nanos(rng.below(delay.0));
                self.network.hold_stores(peer, left, while_);
                self.push(at, Event::Direct { reader, event: DirectEvent::Resume { look } });
            }
        }
    }

    /// A node that runs, or is paused.
    fn any_node(&mut self) -> Option<NodeId> {
        let up: Vec<NodeId> = self.nodes().filter(|node| self.machines[*node].node.is_some()).collect();
        (!up.is_empty()).then(|| up[self.direct.rng.index(up.len())])
    }

    /// Asks the primary of the key's region about its index, if it is time to. Any node tells which that is.
    fn ask_about_index(&mut self, reader: usize, key: Bytes) {
        let Some(any) = self.any_node() else { return };
        let routes = self.machines[any].node.as_ref().map(|node| node.routes());
        let config = routes.and_then(|routes| Op::Get { key }.region_in(routes, DEFAULT_TABLE));
        let Some((region, primary)) = config.and_then(|config| Some((config.region, config.primary?))) else { return };
        let (node, token) = (node_of(primary.server), self.direct.token(reader));
        let question = self.direct.readers[reader].ask(self.now, region, node, token);
        if let Some(question) = question {
            let (at, op) = (self.now + self.direct.delay(), Op::HashIndex(Box::new(question)));
            self.push(at, Event::Direct { reader, event: DirectEvent::Question { node, token, op } });
        }
    }

    /// A node is about to be paused: readers have just asked it, and its answers are on their way for as long as it takes to
    /// replace it.
    pub(super) fn ask_before_pause(&mut self, node: NodeId) {
        for reader in 0..self.direct.readers.len() {
            let token = self.direct.token(reader);
            if let Some(question) = self.direct.readers[reader].ask_again(self.now, node, token) {
                self.direct.is_slow = true;
                self.submit(node, token, Op::HashIndex(Box::new(question)), None, true);
                self.network.hold_stores(links::peer(server_id(node)), 0, Nanos::ZERO);
                self.finish_turns();
                self.direct.is_slow = false;
            }
        }
    }

    fn look_by_request(&mut self, reader: usize, look: u64, key: Bytes) {
        let timeout = Nanos::from_millis(self.direct.rng.between(20, 400));
        self.push(self.now + timeout, Event::Direct { reader, event: DirectEvent::GiveUp { look } });
        let Some(node) = self.any_node() else { return };
        let token = self.direct.token(reader);
        self.direct.requests[reader] = Some((token, look));
        self.submit(node, token, Op::Get { key }, None, false);
    }

    /// A node has answered a request or a question of a reader.
    pub(super) fn reader_answered(&mut self, reader: usize, token: Token, result: OpResult) {
        let request = self.direct.requests[reader].take_if(|(asked, _)| *asked == token);
        let Some((_, look)) = request else {
            let at = self.now + self.direct.delay();
            return self.push(at, Event::Direct { reader, event: DirectEvent::Answer { token, result } });
        };
        if let Some((key, purpose)) = self.direct.readers[reader].end(look) {
            self.load.looked_up(self.now, purpose, key, &result);
            self.next_look(reader);
        }
    }
}

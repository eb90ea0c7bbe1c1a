//! A client that keeps to the protocol, as simple as can be.

use super::{NODE, answer_to};
use bytes::Bytes;
use leeward_fabric::{Descriptor, Fabric, LinkEvent, Memory, PeerId, SimNetwork};
use leeward_format::op::Reply;
use leeward_format::ring::space::RingSpace;
use leeward_format::ring::{CONTROL_BYTES, Identity, RingKind, Slot, message_bytes, read_message, write_message};
use leeward_platform::Rng;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const SLEEP_OP: u64 = u64::MAX;

struct Out {
    request_at: usize,
    /// Numbers of writes that are not completed.
    writes: Vec<u64>,
    slot: Option<Slot>,
    request: Vec<u8>,
}

pub(super) struct Client {
    peer: PeerId,
    fabric: Arc<dyn Fabric>,
    memory: Arc<dyn Memory>,
    ring_bytes: usize,
    events: Arc<Mutex<Vec<LinkEvent>>>,
    is_up: bool,
    request: Descriptor,
    keys: (u64, u64),
    requests: RingSpace,
    replies: RingSpace,
    sequence: u64,
    out: BTreeMap<u64, Out>,
    over_stream: Vec<Vec<u8>>,
    /// Answers that are kept for it: number, size, and the request.
    fetches: Vec<(u64, usize, Vec<u8>)>,
    announced: u64,
    heard: u64,
    is_asleep: bool,
}

impl Client {
    pub(super) fn new(network: &SimNetwork, peer: PeerId, ring_bytes: usize) -> Client {
        let events: Arc<Mutex<Vec<LinkEvent>>> = Arc::default();
        let sunk = Arc::clone(&events);
        let fabric = network.node(peer, Arc::new(move |_, event| sunk.lock().expect("no panic").push(event)));
        let memory = fabric.allocate(ring_bytes + CONTROL_BYTES).expect("memory");
        fabric.connect(NODE, "@node");
        Client {
            peer,
            fabric,
            memory,
            ring_bytes,
            events,
            is_up: false,
            request: Descriptor(Vec::new()),
            keys: (0, 0),
            requests: RingSpace::new(ring_bytes),
            replies: RingSpace::new(ring_bytes),
            sequence: 0,
            out: BTreeMap::new(),
            over_stream: Vec::new(),
            fetches: Vec::new(),
            announced: 0,
            heard: 0,
            is_asleep: false,
        }
    }

    pub(super) fn peer(&self) -> PeerId {
        self.peer
    }

    pub(super) fn descriptor(&self) -> Bytes {
        self.memory.descriptor().0.into()
    }

    /// Key of the request ring.
    pub(super) fn request_key(&self) -> u64 {
        self.keys.0
    }

    /// To write into the request ring by hand.
    pub(super) fn raw(&self) -> (&dyn Fabric, &Descriptor) {
        (&*self.fabric, &self.request)
    }

    pub(super) fn is_up(&self) -> bool {
        self.is_up || self.events.lock().expect("no panic").contains(&LinkEvent::Up)
    }

    pub(super) fn open(&mut self, reply: Reply) {
        let Reply::RingOpen { request, request_key, reply_key } = reply else { panic!("{reply:?}") };
        (self.request, self.keys) = (Descriptor(request.to_vec()), (request_key, reply_key));
    }

    /// Asleep, and nothing has woken it.
    pub(super) fn is_asleep(&self) -> bool {
        self.is_asleep && self.events.lock().expect("no panic").is_empty()
    }

    /// Requests are not answered.
    pub(super) fn waits(&self) -> bool {
        self.out.values().any(|out| out.slot.is_some()) || !self.over_stream.is_empty() || !self.fetches.is_empty()
    }

    pub(super) fn rung(&mut self, sleep: u64) {
        assert!(self.heard < sleep && sleep <= self.announced, "it was announced, and rung for once");
        self.heard = sleep;
        self.is_asleep = false;
    }

    pub(super) fn answered_over_stream(&mut self, answer: &[u8]) {
        self.over_stream.push(answer.to_vec());
        self.is_asleep = false;
    }

    /// Looks, sends if there is room and anything `left`, sleeps if it may; answers whether the server must be rung.
    pub(super) fn turn(&mut self, left: &mut usize, rng: &mut Rng) -> bool {
        self.is_asleep = false;
        let mut must_ring = false;
        for event in std::mem::take(&mut *self.events.lock().expect("no panic")) {
            match event {
                LinkEvent::Up => self.is_up = true,
                LinkEvent::Completed { op: SLEEP_OP } => {}
                LinkEvent::Completed { op } => {
                    self.out.values_mut().for_each(|out| out.writes.retain(|write| *write != op));
                    must_ring |= self.memory.load_u64(self.ring_bytes) == 0;
                }
                other => panic!("{other:?}"),
            }
        }
        let mut has_some = self.look();
        for _ in 0..rng.below(3) {
            let request = vec![rng.u64() as u8; 1 + rng.index(700)];
            let slot = message_bytes(rng.index(900));
            if *left > 0 && self.requests.has_room(message_bytes(request.len())) && self.replies.has_room(slot) {
                self.post(RingKind::Frames, &request.clone(), slot, request);
                *left -= 1;
                has_some = true;
            }
        }
        if !has_some && self.waits() && rng.one_in(2) {
            if self.announced == self.heard {
                self.announced += 1;
                let word = self.announced.to_le_bytes();
                self.fabric.write(NODE, &self.request, self.ring_bytes as u64, &word, SLEEP_OP);
            }
            // What was announced is completed later; that wakes it, and it looks once more.
            self.is_asleep = true;
        }
        self.fabric.flush();
        must_ring
    }

    fn post(&mut self, kind: RingKind, payload: &[u8], slot_bytes: usize, request: Vec<u8>) {
        let slot = self.replies.take(slot_bytes).expect("room");
        let slot = Slot { at: slot.at as u32, room: slot_bytes as u32 };
        let piece = self.requests.take(message_bytes(payload.len())).expect("room");
        let mut writes = Vec::new();
        let noop = piece.skipped_at.map(|at| (at, RingKind::Noop, Slot::default(), &[][..]));
        for (at, kind, slot, payload) in noop.into_iter().chain([(piece.at, kind, slot, payload)]) {
            self.sequence += 1;
            let mut bytes = Vec::new();
            let identity = Identity { key: self.keys.0, sequence: self.sequence, place: at as u32 };
            write_message(identity, kind, slot, payload, &mut bytes);
            self.fabric.write(NODE, &self.request, at as u64, &bytes, self.sequence);
            writes.push(self.sequence);
        }
        self.out.insert(self.sequence, Out { request_at: piece.at, writes, slot: Some(slot), request });
    }

    /// Takes every answer that is there; answers whether there was any.
    fn look(&mut self) -> bool {
        let mut fetches = Vec::new();
        let mut has_some = false;
        for (&sequence, out) in &mut self.out {
            let Some(slot) = out.slot else { continue };
            let mut bytes = vec![0; slot.room as usize];
            self.memory.read(slot.at as usize, &mut bytes);
            let identity = Identity { key: self.keys.1, sequence, place: slot.at };
            let first = u64::from_le_bytes(*bytes.first_chunk().expect("a unit"));
            let Some(len) = identity.begun(first, bytes.len()) else { continue };
            let Some(message) = read_message(identity, &bytes[..len]).expect("a message") else { continue };
            match message.kind {
                RingKind::Frames => assert_eq!(message.payload, answer_to(&out.request), "another's answer"),
                RingKind::TooSmall => {
                    assert!(message.slot.room > slot.room && message.slot.room as usize <= self.ring_bytes / 2);
                    fetches.push((sequence, message.slot.room as usize, out.request.clone()));
                }
                RingKind::OnStream => {
                    let answer = answer_to(&out.request);
                    let at = self.over_stream.iter().position(|over| *over == answer);
                    let Some(at) = at else { continue };
                    self.over_stream.remove(at);
                }
                other => panic!("{other:?} is no answer"),
            }
            has_some = true;
            out.slot = None;
            self.replies.give_back(slot.at as usize);
        }
        self.fetches.extend(fetches);
        // First: a fetch may wait for their room, and for nothing else that would wake it.
        let done = self.out.extract_if(.., |_, out| out.slot.is_none() && out.writes.is_empty());
        done.for_each(|(_, out)| self.requests.give_back(out.request_at));
        while let Some((sequence, room, request)) =
            self.fetches.pop_if(|(_, room, _)| self.requests.has_room(64) && self.replies.has_room(*room))
        {
            self.post(RingKind::Fetch, &sequence.to_le_bytes(), room, request);
        }
        has_some
    }
}

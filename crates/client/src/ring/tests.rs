//! The client's end over a simulated fabric, where bytes land in any order and at any time, with a node that answers in
//! any order and sleeps whenever it may.

use super::*;
use leeward_fabric::{SimNetwork, SimOptions};
use leeward_format::ring::{Cursor, Next};
use leeward_platform::Rng;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Mutex;

const NODE: PeerId = PeerId(1);
const CLIENT: PeerId = PeerId(2);
const RING: usize = 4096;
const KEYS: (u64, u64) = (11, 12);
const AWAKE_OP: u64 = u64::MAX;

type Log = Arc<Mutex<Vec<LinkEvent>>>;

fn log() -> (Log, leeward_fabric::Sink) {
    let log = Log::default();
    let sunk = Arc::clone(&log);
    (log, Arc::new(move |_, event| sunk.lock().expect("no panic").push(event)))
}

/// The answer to a request: its bytes, repeated as often as the first one says.
fn answer_to(request: &[u8]) -> Vec<u8> {
    request.repeat(usize::from(request[0] % 5))
}

/// A node that keeps to the protocol, as simple as can be.
struct Node {
    fabric: Arc<dyn Fabric>,
    memory: Arc<dyn Memory>,
    reply: Descriptor,
    events: Log,
    cursor: Cursor,
    /// Requests without an answer, with their numbers and slots.
    work: Vec<(u64, Slot, Vec<u8>)>,
    kept: BTreeMap<u64, Vec<u8>>,
    /// Slots whose answer is not completed: written again only then.
    writes: BTreeMap<u64, Slot>,
    next_op: u64,
    rung: u64,
    bell: Option<u64>,
    look: bool,
    /// What the client was told about the node's sleep, and whether that write is under way.
    is_awake: bool,
    is_telling: bool,
}

impl Node {
    fn has_work(&self) -> bool {
        self.look || self.is_awake || !self.work.is_empty() || !self.events.lock().expect("no panic").is_empty()
    }

    fn turn(&mut self, rng: &mut Rng) {
        for event in std::mem::take(&mut *self.events.lock().expect("no panic")) {
            match event {
                LinkEvent::Up => {}
                LinkEvent::Completed { op: AWAKE_OP } => {
                    self.is_telling = false;
                    self.look = true;
                }
                LinkEvent::Completed { op } => {
                    self.writes.remove(&op).expect("it was posted");
                    let sleep = self.memory.load_u64(RING);
                    if sleep != self.rung {
                        self.rung = sleep;
                        self.bell = Some(sleep);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        if std::mem::take(&mut self.look) || self.is_awake {
            self.receive();
        }
        if !self.is_telling && rng.one_in(3) {
            self.is_awake ^= true;
            self.is_telling = true;
            let word = u64::from(self.is_awake).to_le_bytes();
            self.fabric.write(CLIENT, &self.reply, RING as u64, &word, AWAKE_OP);
        }
        while !self.work.is_empty() && !rng.one_in(3) {
            let at = rng.index(self.work.len());
            let slot = self.work[at].1;
            if self.writes.values().any(|write| write.at < slot.at + slot.room && slot.at < write.at + write.room) {
                break;
            }
            let (sequence, slot, request) = self.work.swap_remove(at);
            self.answer(sequence, slot, answer_to(&request));
        }
        self.fabric.flush();
    }

    fn receive(&mut self) {
        let mut buffer = Vec::new();
        let memory = &self.memory;
        while let Next::Message(sequence, message) = (self.cursor)
            .take(|at| memory.load_u64(at), |at, bytes| memory.read(at, bytes), &mut buffer)
            .expect("the client keeps to the protocol")
        {
            assert!(message.slot.fits(RING));
            let request = match message.kind {
                RingKind::Fetch => {
                    let wanted = u64::from_le_bytes(message.payload.try_into().expect("a number"));
                    self.kept.remove(&wanted).expect("it fetches what is kept, once")
                }
                _ => message.payload.to_vec(),
            };
            self.work.push((sequence, message.slot, request));
        }
    }

    fn answer(&mut self, sequence: u64, slot: Slot, answer: Vec<u8>) {
        let needed = message_bytes(answer.len());
        let (kind, room, payload) = match needed {
            _ if needed <= slot.room as usize => (RingKind::Frames, 0, &answer[..]),
            _ if needed <= RING / 2 => (RingKind::TooSmall, needed as u32, &[][..]),
            _ => (RingKind::OnStream, 0, &[][..]),
        };
        let mut bytes = Vec::new();
        let identity = Identity { key: KEYS.1, sequence, place: slot.at };
        write_message(identity, kind, Slot { at: 0, room }, payload, &mut bytes);
        self.fabric.write(CLIENT, &self.reply, slot.at.into(), &bytes, self.next_op);
        self.writes.insert(self.next_op, Slot { at: slot.at, room: bytes.len() as u32 });
        self.next_op += 1;
        if kind == RingKind::TooSmall {
            // The kept bytes are the request, which is answered again.
            let request = answer[..answer.len() / usize::from(answer[0] % 5)].to_vec();
            self.kept.insert(sequence, request);
        }
    }
}

fn pair(network: &SimNetwork) -> (Ends, Log, Node) {
    let ((client_log, client_sink), (events, node_sink)) = (log(), log());
    let node_fabric = network.node(NODE, node_sink);
    let fabric = network.node(CLIENT, client_sink);
    let mut ends = Ends::new(fabric, NODE, "sim", (RING, RING)).expect("memory");
    let memory = node_fabric.allocate(RING + CONTROL_BYTES).expect("memory");
    node_fabric.connect(CLIENT, "sim");
    assert!(!ends.is_open());
    ends.granted(Grant { request: memory.descriptor(), request_key: KEYS.0, reply_key: KEYS.1 });
    while client_log.lock().expect("no panic").is_empty() || events.lock().expect("no panic").is_empty() {
        assert!(network.step(), "both links come up");
    }
    for event in client_log.lock().expect("no panic").drain(..) {
        assert!(ends.hear(&event));
    }
    assert!(ends.is_open());
    let node = Node {
        fabric: node_fabric,
        memory,
        reply: ends.descriptor(),
        events,
        cursor: Cursor::new(RING, KEYS.0),
        work: Vec::new(),
        kept: BTreeMap::new(),
        writes: BTreeMap::new(),
        next_op: 0,
        rung: 0,
        bell: None,
        look: false,
        is_awake: false,
        is_telling: false,
    };
    (ends, client_log, node)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Whatever the fabric does with bytes, and whichever side sleeps when: each request is answered once, and neither
    /// side sleeps while the other waits for it. Answers that fit no slot are not checked here: they come over the
    /// connection.
    #[test]
    fn every_request_is_answered_once_and_nobody_oversleeps(seed in any::<u64>()) {
        let network = SimNetwork::new(seed, SimOptions::default());
        let mut rng = Rng::new(seed);
        let (mut ends, events, mut node) = pair(&network);
        let (mut left, mut number, mut is_asleep) = (150_u64, 0, false);
        // Requests without an answer, by their answers.
        let mut due: Vec<Vec<u8>> = Vec::new();
        while left > 0 || ends.due() > 0 {
            is_asleep &= events.lock().expect("no panic").is_empty();
            match rng.below(3) {
                0 if !is_asleep => {
                    for event in std::mem::take(&mut *events.lock().expect("no panic")) {
                        prop_assert!(ends.hear(&event));
                    }
                    node.look |= ends.must_ring();
                    let before = ends.due();
                    let mut wrong = false;
                    ends.poll(|answer| match due.iter().position(|other| other == answer) {
                        Some(at) => drop(due.swap_remove(at)),
                        None => wrong = true,
                    }).expect("the node keeps to the protocol");
                    prop_assert!(!wrong, "no request waits for that answer");
                    let mut has_some = ends.due() != before;
                    let (size, room) = (9 + rng.index(700), rng.index(900));
                    if left > 0 && ends.has_room(size, room) {
                        (left, number, has_some) = (left - 1, number + 1, true);
                        let mut request = vec![rng.u64() as u8; size];
                        request[1..9].copy_from_slice(&u64::to_le_bytes(number));
                        due.push(answer_to(&request));
                        ends.send(&request, room);
                    }
                    if !has_some && ends.due() > 0 {
                        ends.announce_sleep();
                        is_asleep = true;
                    }
                    ends.flush();
                }
                1 if node.has_work() => node.turn(&mut rng),
                _ if network.step() => {}
                _ => prop_assert!(!is_asleep || node.has_work(), "both sleep, and {left} requests are left"),
            }
            if let Some(sleep) = node.bell.take() {
                ends.rung(sleep);
                is_asleep = false;
            }
        }
        // The remaining answers went over the connection, or are empty, of which there may be several.
        prop_assert!(due.iter().all(|answer| message_bytes(answer.len()) > RING / 2), "an answer was lost");
        while network.step() {}
        for event in std::mem::take(&mut *events.lock().expect("no panic")) {
            prop_assert!(ends.hear(&event));
        }
        prop_assert!(ends.requests.is_empty() && ends.replies.is_empty() && ends.exchanges.is_empty());
    }
}

#[test]
fn a_node_that_is_gone_is_no_longer_heard() {
    let network = SimNetwork::new(1, SimOptions::default());
    let (mut ends, events, _node) = pair(&network);
    ends.send(b"a request without an answer", 64);
    ends.flush();
    network.kill(NODE);
    let is_down = |event: &LinkEvent| matches!(event, LinkEvent::Down);
    while !events.lock().expect("no panic").iter().any(is_down) {
        assert!(network.step(), "the link notices");
    }
    let heard: Vec<bool> = events.lock().expect("no panic").iter().map(|event| ends.hear(event)).collect();
    assert_eq!(heard.last(), Some(&false), "the rings are of no use any more");
}

#[test]
fn an_answer_that_waits_for_room_is_fetched_before_anything_else_takes_any() {
    let network = SimNetwork::new(1, SimOptions::default());
    let (mut ends, events, node) = pair(&network);
    ends.send(b"whose answer is large", 0);
    let too_small = |place, sequence| {
        let mut bytes = Vec::new();
        let (identity, slot) = (Identity { key: KEYS.1, sequence, place }, Slot { at: 0, room: RING as u32 / 2 });
        write_message(identity, RingKind::TooSmall, slot, &[], &mut bytes);
        node.fabric.write(CLIENT, &node.reply, place.into(), &bytes, sequence);
    };
    // Others have so much room that the large one has none, and would never have any if more could come.
    for _ in 0..3 {
        ends.send(b"x", 900);
    }
    too_small(0, 1);
    node.fabric.flush();
    ends.flush();
    while network.step() {}
    for event in events.lock().expect("no panic").drain(..) {
        assert!(ends.hear(&event));
    }
    assert!(ends.has_room(9, 9), "before the client knows");
    ends.poll(|_| panic!("no answer")).expect("the node keeps to the protocol");
    assert_eq!(ends.fetches.len(), 1, "it waits");
    assert!(!ends.has_room(9, 9));
    for sequence in 2..=4 {
        let exchange = ends.exchanges.iter().find(|exchange| exchange.sequence == sequence);
        let slot = exchange.and_then(|exchange| exchange.slot).expect("it is due");
        let mut bytes = Vec::new();
        let identity = Identity { key: KEYS.1, sequence, place: slot.at };
        write_message(identity, RingKind::Frames, Slot::default(), b"answer", &mut bytes);
        node.fabric.write(CLIENT, &node.reply, slot.at.into(), &bytes, sequence);
    }
    node.fabric.flush();
    while network.step() {}
    ends.poll(|answer| assert_eq!(answer, b"answer")).expect("the node keeps to the protocol");
    assert!(ends.fetches.is_empty() && ends.has_room(9, 9), "it has its room");
}

#[test]
fn what_no_node_writes_is_an_error() {
    for (kind, room) in [(RingKind::Noop, 0), (RingKind::Fetch, 0), (RingKind::TooSmall, 0), (RingKind::TooSmall, 4096)]
    {
        let network = SimNetwork::new(1, SimOptions::default());
        let (mut ends, _events, node) = pair(&network);
        ends.send(b"x", 64);
        let mut bytes = Vec::new();
        write_message(Identity { key: KEYS.1, sequence: 1, place: 0 }, kind, Slot { at: 0, room }, &[], &mut bytes);
        assert!(ends.poll(|_| panic!("no answer")).is_ok(), "nothing is there yet");
        node.fabric.write(CLIENT, &node.reply, 0, &bytes, 0);
        node.fabric.flush();
        while network.step() {}
        assert!(ends.poll(|_| panic!("no answer")).is_err(), "{kind:?}");
    }
}

#[test]
fn guesses_grow_with_what_was_seen_up_to_a_limit() {
    use leeward_format::op::{Op, OpResult};
    let get = Op::Get { key: "k".into() };
    let mut rooms = AnswerSizes::new(1000);
    let first = rooms.of(&get);
    rooms.learn(&OpResult::Value(Some(vec![0; 600].into())));
    assert!(rooms.of(&get) >= 600 && rooms.of(&get) > first);
    rooms.learn(&OpResult::Value(None));
    assert!(rooms.of(&get) >= 600, "it is the largest that counts");
    rooms.learn(&OpResult::Value(Some(vec![0; 9000].into())));
    assert!(rooms.of(&get) < 1100);
    assert!(rooms.of(&Op::Add { key: "k".into(), delta: 1 }) < 100, "the size is known");
}

#[test]
fn a_read_from_any_member_is_given_as_much_room_as_one_from_the_primary() {
    use leeward_format::op::{Op, OpResult, Read, ReadResult, ScanRange};
    let (mut rooms, key) = (AnswerSizes::new(10_000), bytes::Bytes::from("k"));
    let result = ReadResult::Value(Some(vec![0; 600].into()));
    rooms.learn(&OpResult::Stale { age_ms: 3, lsn: leeward_format::Lsn(9), result });
    assert!(rooms.of(&Op::Get { key: key.clone() }) >= 600);
    for op in [
        Op::Get { key: key.clone() },
        Op::GetPair { key: key.clone(), want_value: true },
        Op::GetPair { key, want_value: false },
        Op::Scan(ScanRange { start: "a".into(), end: None, reverse: false, limit: 9, keys_only: false }),
    ] {
        assert_eq!(rooms.of(&Read::stale(op.clone(), 100)), rooms.of(&op), "{op:?}");
    }
}

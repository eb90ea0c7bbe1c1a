//! Direct reads over shared memory, of a hash index in the memory of a scripted node.

use crate::fake::{FakeNode, map, success};
use crate::ringed::{LONG, Node, connect};
use bytes::Bytes;
use leeward_client::{ClientError, ClientOptions, DirectStats, Op, OpError, OpResult, Partition, RegionId, Session};
use leeward_fabric::{Fabric, ReadableMemory};
use leeward_format::hash_index::{
    BOARD_BYTES, Board, BytesToRead, Content, Extent, Grant, GrantFields, LINE_BYTES, Line, Record, RecordPlace, Slot,
    SlotPlace, fingerprint, publish, record_lines, tag,
};
use leeward_format::op::{HashIndexAnswer, HashIndexQuestion, HashIndexState, Reply, Request};
use leeward_format::routes::RoutesUpdate;
use leeward_format::{Epoch, Lsn, filter};
use leeward_platform::{BootClock, Clock};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const NONCE: u64 = 77;
const RECORDS: u32 = 16;
/// How long the board says that the index may be read.
const LEASE: Duration = Duration::from_secs(2);

/// An index of one bucket. Its board is in a memory of its own.
#[derive(Clone)]
struct Index {
    lines: ReadableMemory,
    board: ReadableMemory,
}

impl Index {
    fn new(node: &Node) -> Index {
        let allocate = |bytes| node.fabric.allocate_readable(bytes).expect("memory");
        Index { lines: allocate((1 + RECORDS as usize) * LINE_BYTES), board: allocate(BOARD_BYTES) }
    }

    fn grant(&self) -> Grant {
        let extent = |first, lines, content| {
            let offset = u64::from(first) * LINE_BYTES as u64;
            Extent { first: Line(first), lines, content, memory: 1, offset }
        };
        let fields = GrantFields {
            region: RegionId(1),
            term: Epoch(1),
            nonce: NONCE,
            partition: Partition::Range,
            start: Bytes::new(),
            end: None,
            buckets: 1,
            memories: vec![self.board.descriptor().0.into(), self.lines.descriptor().0.into()],
            extents: vec![extent(0, 1, Content::Buckets), extent(1, RECORDS, Content::Records { class: 1 })],
            board: BytesToRead { memory: 0, offset: 0, bytes: BOARD_BYTES as u32 },
        };
        Grant::try_from(fields).expect("a grant")
    }

    /// Extends the lease.
    fn extend(&self) {
        let readable_until = BootClock.now().0 + LEASE.as_nanos() as u64;
        let words = Board { nonce: NONCE, readable_until }.words();
        words.iter().enumerate().for_each(|(at, word)| self.board.store_u64(at * 8, *word));
    }

    /// Publishes version `lsn` of the key with the slot `index`, whose version was `old`. Versions use the records in
    /// turn.
    fn put(&self, index: u8, key: &str, value: &str, (lsn, old): (u32, Option<u32>)) {
        let line = |lsn: u32| Line(1 + lsn % RECORDS);
        let (key, value, hash) = (key.as_bytes(), value.as_bytes(), filter::hash(key.as_bytes()));
        let mut record = Vec::new();
        let lines = record_lines(key.len(), value.len()).expect("it is short");
        let place = RecordPlace { nonce: NONCE, line: line(lsn) };
        Record { lsn: Lsn(lsn.into()), key, value }.append_to(place, &mut record);
        let slot = Slot { fingerprint: fingerprint(hash), tag: tag(Lsn(lsn.into())), lines, line: line(lsn) };
        for write in publish(SlotPlace { bucket: Line(0), index }, slot, &record, old.map(line)) {
            self.lines.store_u64(write.at as usize, write.word);
        }
    }
}

/// What reached the node.
#[derive(Default)]
struct Seen {
    gets: usize,
    questions: Vec<HashIndexQuestion>,
}

/// A node with an index. Requests about "held" wait until one about "release" comes.
struct Fixture {
    session: Session,
    index: Index,
    seen: Arc<Mutex<Seen>>,
    node: thread::JoinHandle<()>,
}

type Answer = Box<dyn FnMut(&Index, &HashIndexQuestion) -> OpResult + Send>;

fn granted(index: &Index, question: &HashIndexQuestion) -> OpResult {
    let state = match question.nonce {
        NONCE => HashIndexState::Unchanged,
        _ => HashIndexState::Granted { version: 1, grant: Box::new(index.grant()) },
    };
    OpResult::HashIndex(Box::new(HashIndexAnswer { clock: BootClock.now().0, state }))
}

impl Fixture {
    fn new(
        scheme: &str,
        options: ClientOptions,
        answer: impl FnMut(&Index, &HashIndexQuestion) -> OpResult + Send + 'static,
    ) -> Fixture {
        let seen = Arc::<Mutex<Seen>>::default();
        let (sender, index): (Sender<Index>, Receiver<Index>) = channel();
        let noted = Arc::clone(&seen);
        let (session, node) = connect(scheme, options, move |node| {
            let index = Index::new(&node);
            index.extend();
            index.put(0, "key", "direct", (1, None));
            sender.send(index.clone()).expect("the test waits");
            serve(node, &index, &noted, Box::new(answer));
        });
        Fixture { session, index: index.recv_timeout(LONG).expect("the node runs"), seen, node }
    }

    fn get(&mut self, key: &'static str) -> String {
        match self.session.execute(vec![Op::Get { key: key.into() }]).expect("an answer").pop() {
            Some(OpResult::Value(Some(value))) => String::from_utf8(value.to_vec()).expect("text"),
            other => panic!("{other:?}"),
        }
    }

    /// Gets "key" until it has that value. The node itself would answer "key".
    fn get_until(&mut self, wanted: &str) {
        let begun = Instant::now();
        loop {
            self.index.extend();
            if self.get("key") == wanted {
                return;
            }
            assert!(begun.elapsed() < LONG, "{:?}", self.session.direct_stats());
        }
    }

    /// How many gets reached the node.
    fn gets(&self) -> usize {
        self.seen.lock().expect("no panic").gets
    }

    /// Ends the session, and returns the questions that reached the node.
    fn end(mut self) -> (DirectStats, Vec<HashIndexQuestion>) {
        self.get("stop");
        let stats = self.session.direct_stats();
        self.node.join().expect("the script is done");
        (stats, std::mem::take(&mut self.seen.lock().expect("no panic").questions))
    }
}

/// Answers requests until a get of "stop".
fn serve(mut node: Node, index: &Index, seen: &Mutex<Seen>, mut answer: Answer) {
    let mut held = Vec::new();
    loop {
        let (sequence, slot, request) = node.request();
        let reply = match request {
            Request::Routes { .. } => Reply::Routes(RoutesUpdate::everything(&node.map)),
            Request::Ops { id, ops, direct: true, .. } | Request::Once { id, ops, direct: true, .. } => {
                let is_question = |op: &Op| matches!(op, Op::HashIndex(_));
                assert!(ops.len() == 1 || !ops.iter().any(is_question), "a question is a request of its own: {ops:?}");
                let result = |op: &Op| match op {
                    Op::HashIndex(question) => {
                        seen.lock().expect("no panic").questions.push((**question).clone());
                        answer(index, question)
                    }
                    op => success(op),
                };
                seen.lock().expect("no panic").gets += ops.iter().filter(|op| matches!(op, Op::Get { .. })).count();
                let is = |key: &str| ops.iter().any(|op| op.key().is_some_and(|asked| asked == key));
                let reply = Reply::Results { id, results: ops.iter().map(result).collect() };
                if is("held") {
                    held.push((sequence, slot, reply));
                    continue;
                }
                if is("release") {
                    held.drain(..).for_each(|(sequence, slot, reply)| node.answer(sequence, slot, &reply));
                }
                if is("stop") {
                    return node.answer(sequence, slot, &reply);
                }
                reply
            }
            other => panic!("{other:?} in a ring"),
        };
        node.answer(sequence, slot, &reply);
    }
}

#[test]
fn gets_are_answered_without_the_node_until_its_lease_is_over() {
    let mut fixture = Fixture::new("leeward+ring", ClientOptions::default(), granted);
    fixture.get_until("direct");
    let before = fixture.gets();
    assert!(before >= 4, "the first ones");
    while fixture.session.direct_stats().questions < 3 {
        fixture.index.extend();
        assert_eq!(fixture.get("key"), "direct");
    }
    assert_eq!(fixture.gets(), before, "none reaches the node");
    fixture.index.put(0, "key", "newer", (2, Some(1)));
    assert_eq!(fixture.get("key"), "newer");
    assert_eq!(fixture.get("absent"), "absent", "the node's answer");
    // The board is not extended any more.
    thread::sleep(LEASE);
    assert_eq!(fixture.get("key"), "key", "the node's answer");
    assert_eq!(fixture.gets(), before + 2);
    let (stats, questions) = fixture.end();
    assert!(stats.hits > 10 && stats.too_old >= 1 && stats.absent >= 1, "{stats:?}");
    assert_eq!((questions[0].nonce, questions[1].nonce), (0, NONCE));
    assert!((1..=512).contains(&questions[1].read.len()), "{questions:?}");
    assert!(questions[1].read.iter().all(|line| *line == Line(2)), "{questions:?}");
}

#[test]
fn hits_alone_keep_a_pipelined_session_informed() {
    let mut fixture = Fixture::new("leeward+direct", ClientOptions::default(), granted);
    fixture.get_until("direct");
    // No poll waits. Without the answers to its questions, the session could not read for so long.
    let begun = Instant::now();
    while begun.elapsed() < LEASE * 5 / 2 {
        fixture.index.extend();
        fixture.session.submit(vec![Op::Get { key: "key".into() }]).expect("there is room");
        let done = fixture.session.poll(Duration::ZERO).expect("a poll");
        assert_eq!(done[0].results, [OpResult::Value(Some("direct".into()))]);
    }
    let (_, questions) = fixture.end();
    assert!(questions.len() > 3, "{questions:?}");
}

#[test]
fn revoked_memory_sends_gets_the_usual_way_and_a_new_grant_is_asked_for() {
    let mut is_first = true;
    let mut fixture = Fixture::new("leeward+ring", ClientOptions::default(), move |index, question| {
        match question.nonce == 0 && !std::mem::take(&mut is_first) {
            true => OpResult::HashIndex(Box::new(HashIndexAnswer {
                clock: BootClock.now().0,
                state: HashIndexState::None { again_ms: 100_000 },
            })),
            false => granted(index, question),
        }
    });
    fixture.get_until("direct");
    fixture.index.lines.revoke();
    thread::sleep(Duration::from_millis(20));
    for _ in 0..10 {
        assert_eq!(fixture.get("key"), "key", "the node's answer");
    }
    let (stats, questions) = fixture.end();
    assert_eq!(stats.refused, 1);
    assert_eq!(questions.last().map(|question| question.nonce), Some(0));
}

#[test]
fn memory_that_the_node_does_not_hand_over_costs_no_link() {
    let mut fixture = Fixture::new("leeward+ring", ClientOptions::default(), |index, question| {
        index.lines.revoke();
        granted(index, question)
    });
    let begun = Instant::now();
    while fixture.session.direct_stats().refused == 0 {
        assert_eq!(fixture.get("key"), "key");
        assert!(begun.elapsed() < LONG, "{:?}", fixture.session.direct_stats());
    }
    let (stats, _) = fixture.end();
    assert_eq!(stats.hits, 0);
}

#[test]
fn a_get_behind_an_unanswered_write_of_its_key_goes_the_usual_way() {
    let mut fixture = Fixture::new("leeward+ring", ClientOptions::default(), granted);
    fixture.get_until("direct");
    fixture.index.put(1, "held", "before", (2, None));
    assert_eq!(fixture.get("held"), "before");
    let add = |key: &'static str| Op::Add { key: key.into(), delta: 1 };
    let get = |key: &'static str| Op::Get { key: key.into() };
    let session = &mut fixture.session;
    let before = session.direct_stats().hits;
    session.submit(vec![add("held"), get("held"), get("key")]).expect("there is room");
    session.submit(vec![get("held")]).expect("there is room");
    assert_eq!(session.direct_stats().hits, before + 1, "of the other key");
    let other = session.submit(vec![get("key")]).expect("there is room");
    let done = session.poll(LONG).expect("a poll");
    assert_eq!((done.len(), done[0].ticket), (1, other), "it is answered at once, and alone");
    fixture.get("release");
    let value = |value: &'static str| OpResult::Value(Some(value.into()));
    let mut results = Vec::new();
    while results.len() < 2 {
        results.extend(fixture.session.poll(LONG).expect("a poll").into_iter().map(|done| done.results));
    }
    results.sort_by_key(Vec::len);
    assert_eq!(results, [vec![value("held")], vec![OpResult::Integer(1), value("held"), value("direct")]]);
    fixture.index.extend();
    assert_eq!(fixture.get("held"), "before", "in the index of this test");
    fixture.end();
}

#[test]
fn a_question_that_is_refused_or_not_answered_changes_nothing() {
    let answers: [fn() -> OpResult; 3] = [
        || OpResult::Error(OpError::NotPrimary { region: RegionId(1), epoch: Epoch(3) }),
        || OpResult::Error(OpError::Unavailable("no".into())),
        || OpResult::Value(None),
    ];
    for answer in answers {
        let mut fixture = Fixture::new("leeward+ring", ClientOptions::default(), move |_, _| answer());
        for _ in 0..20 {
            assert_eq!(fixture.get("key"), "key");
        }
        let (stats, questions) = fixture.end();
        assert_eq!((stats.hits, stats.questions as usize), (0, questions.len()));
        assert!((1..=6).contains(&questions.len()), "{questions:?}");
    }
}

#[test]
fn without_direct_reads_nothing_is_asked() {
    let options = ClientOptions { direct_reads: false, ..ClientOptions::default() };
    let mut fixture = Fixture::new("leeward+ring", options, granted);
    for _ in 0..20 {
        assert_eq!(fixture.get("key"), "key");
    }
    let (stats, questions) = fixture.end();
    assert_eq!((stats, questions), (DirectStats::default(), Vec::new()));
}

#[test]
fn an_address_that_insists_on_direct_reads_is_refused_over_other_fabrics() {
    let (listener, address) = FakeNode::bind();
    let map = map(3, &[("", 1)], &[&address]);
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut input = Vec::new();
        while let Some(request) = Node::frame(&mut stream, &mut input) {
            let reply = match request {
                Request::RingOffer => {
                    let (fabric, address) = ("tcp".into(), "127.0.0.1:1".into());
                    Reply::RingOffer { fabric, node: 1, client: 2, address, most_bytes: 64 << 10 }
                }
                _ => Reply::Routes(RoutesUpdate::everything(&map)),
            };
            Node::say(&mut stream, &reply);
        }
    });
    let options = ClientOptions { connect_within: LONG, ..ClientOptions::default() };
    let error = Session::connect(&[format!("leeward+direct://{address}")], options).expect_err("no shared memory");
    assert!(matches!(error, ClientError::Direct { .. }), "{error}");
    assert!(error.to_string().contains("fabric \"tcp\""), "{error}");
}

/// Prints what a hit costs: `cargo test --release -p leeward-client --test scripted -- --ignored --nocapture hit`.
#[test]
#[ignore = "measures"]
fn what_a_hit_costs() {
    const HITS: usize = 200_000;
    let mut fixture = Fixture::new("leeward+ring", ClientOptions::default(), granted);
    fixture.get_until("direct");
    let mut took = Vec::with_capacity(HITS);
    for round in 0..HITS {
        if round % 1000 == 0 {
            fixture.index.extend();
        }
        let ops = vec![Op::Get { key: "key".into() }];
        let begun = Instant::now();
        let results = fixture.session.execute(ops).expect("an answer");
        took.push(begun.elapsed());
        assert_eq!(results.len(), 1);
    }
    took.sort_unstable();
    let (stats, _) = fixture.end();
    println!("p50 {:?}, p90 {:?}, p99 {:?}; {stats:?}", took[HITS / 2], took[HITS / 10 * 9], took[HITS / 100 * 99]);
    assert!(stats.hits as usize > HITS / 10 * 9, "{stats:?}");
}

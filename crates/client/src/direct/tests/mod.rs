//! Direct reads of indexes that the tests write, with clocks that the tests set.

mod table;

use super::*;
use bytes::Bytes;
use leeward_format::hash_index::{Board, Grant, GrantFields, Line};
use leeward_format::op::{Condition, HashIndexAnswer, Lifetime, RangeOp};
use leeward_platform::Rng;
use proptest::prelude::*;
use std::collections::HashMap;
use table::{World, Writer, fields};

const REGION: RegionId = RegionId(7);
const LINK: Token = Token(3);
const NONCE: u64 = 0x0123_4567_89ab_cdef;

fn route(epoch: u32, primary: u32) -> RegionRoute {
    RegionRoute {
        region: REGION,
        table: "default".into(),
        start: Bytes::new(),
        epoch: Epoch(epoch),
        primary: Some(ServerId(primary)),
        backups: Vec::new(),
    }
}

/// A session's direct reads of one region, with the time.
struct Client<'a> {
    direct: Direct,
    world: &'a World,
    route: RegionRoute,
    now: Instant,
    number: u64,
}

impl<'a> Client<'a> {
    fn new(world: &'a World) -> Client<'a> {
        let now = Instant::now();
        Client { direct: Direct::new(now, Rng::new(1)), world, route: route(5, 1), now, number: 0 }
    }

    /// A client that has a grant; the primary's clock is the client's own.
    fn granted(world: &'a World) -> Client<'a> {
        let mut client = Client::new(world);
        for _ in 0..WARM_GETS {
            client.get(b"key");
        }
        client.ask();
        client.answer(granted(1, fields(NONCE)));
        client
    }

    fn get(&mut self, key: &[u8]) -> Get {
        self.direct.get(&self.route, key, self.now, self.world)
    }

    fn value(&mut self, key: &[u8]) -> Option<Bytes> {
        self.get(key).value
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.world.now.set(self.world.now.get() + time.as_nanos() as u64);
    }

    fn ask(&mut self) -> HashIndexQuestion {
        let question = self.direct.question(REGION).expect("the region is known");
        self.number += 1;
        let id = QuestionId { link: LINK, number: self.number };
        self.direct.asked(REGION, id, self.world.now(), self.now);
        question
    }

    fn answer(&mut self, state: HashIndexState) {
        let answer = HashIndexAnswer { clock: self.world.now.get(), state };
        self.answer_with(OpResult::HashIndex(Box::new(answer)));
    }

    fn answer_with(&mut self, result: OpResult) {
        let id = QuestionId { link: LINK, number: self.number };
        self.direct.answered(REGION, id, result, self.now);
    }

    /// How many gets it takes until the client asks, up to 10.
    fn gets_until_asked(&mut self) -> usize {
        (1..=10).find(|_| self.get(b"key").then == Some(Then::Ask)).unwrap_or(usize::MAX)
    }
}

fn granted(version: u32, fields: GrantFields) -> HashIndexState {
    HashIndexState::Granted { version, grant: Box::new(Grant::try_from(fields).expect("a grant")) }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A world with an index that has `key`, readable for a second.
fn with_key(world: &World) -> Writer<'_> {
    let mut writer = Writer::new(world, NONCE);
    assert!(writer.put(b"key", b"value"));
    world.now.set(1_000_000_000);
    world.write_board(Board { nonce: NONCE, readable_until: 2_000_000_000 });
    writer
}

#[test]
fn a_session_asks_once_a_region_is_read_often_and_then_reads_it() {
    let world = World::default();
    let _writer = with_key(&world);
    world.write_board(Board { nonce: NONCE, readable_until: u64::MAX });
    let mut client = Client::new(&world);
    for _ in 1..WARM_GETS {
        assert_eq!(client.get(b"key"), Get { value: None, then: None });
    }
    client.pass(ms(1001));
    assert_eq!(client.gets_until_asked(), 4, "those before were too long ago");
    assert_eq!(client.ask(), HashIndexQuestion { region: REGION, nonce: 0, version: 0, read: Vec::new() });
    assert_eq!(client.get(b"key"), Get { value: None, then: None }, "it is asked");
    client.answer(granted(1, fields(NONCE)));
    assert_eq!(client.get(b"key"), Get { value: Some("value".into()), then: None });
    assert_eq!(client.value(b"other"), None, "not in the index: it may exist");
    assert_eq!((client.value(b"a"), client.value(b"y")), (None, None), "of other regions, as it was granted");
    client.pass(ms(250));
    assert_eq!(client.get(b"key"), Get { value: Some("value".into()), then: Some(Then::Ask) });
    let question = client.ask();
    assert_eq!((question.nonce, question.version, question.read.len()), (NONCE, 1, 2));
    client.answer(HashIndexState::Unchanged);
    assert_eq!(client.get(b"key"), Get { value: Some("value".into()), then: None });
    let expected = DirectStats { hits: 3, absent: 3, questions: 2, ..DirectStats::default() };
    assert_eq!(client.direct.stats(), expected);
}

#[test]
fn an_answer_of_none_is_kept_for_as_long_as_it_says() {
    let world = World::default();
    let mut client = Client::new(&world);
    assert_eq!(client.gets_until_asked(), 4);
    client.ask();
    client.answer(HashIndexState::None { again_ms: 70_000 });
    client.pass(ms(69_999));
    assert_eq!(client.gets_until_asked(), usize::MAX);
    client.pass(ms(1));
    assert_eq!(client.gets_until_asked(), 1, "it is still read often");
    client.ask();
    client.pass(ms(999));
    assert_eq!(client.gets_until_asked(), usize::MAX, "one question at a time");
    client.pass(ms(1));
    assert_eq!(client.gets_until_asked(), 4, "its answer is lost");
    client.ask();
    client.number -= 1;
    client.answer(granted(1, fields(NONCE)));
    assert!(client.direct.regions[&REGION].index.is_none(), "an answer to an earlier question");
}

#[test]
fn a_stopped_primary_is_not_read_although_the_value_is_there() {
    let world = World::default();
    let _writer = with_key(&world);
    let mut client = Client::granted(&world);
    assert_eq!(client.value(b"key"), Some("value".into()));
    // 800 ms at the client may be 1 s at the primary.
    client.pass(ms(799));
    assert_eq!(client.value(b"key"), Some("value".into()));
    client.pass(ms(1));
    assert_eq!(client.value(b"key"), None);
    client.pass(ms(59_000));
    assert_eq!(client.value(b"key"), None);
    assert_eq!(client.direct.stats().too_old, 2);
    // It goes on, and extends the board: a new bound on its clock is needed.
    world.write_board(Board { nonce: NONCE, readable_until: world.now.get() + 1_000_000_000 });
    assert_eq!(client.get(b"key"), Get { value: None, then: Some(Then::Ask) });
    client.ask();
    client.answer(HashIndexState::Unchanged);
    assert_eq!(client.value(b"key"), Some("value".into()));
}

#[test]
fn the_board_is_read_again_once_the_lease_seems_to_be_over() {
    let world = World::default();
    let _writer = with_key(&world);
    let mut client = Client::granted(&world);
    assert_eq!(client.value(b"key"), Some("value".into()));
    assert_eq!(world.reads.replace(0), 3, "bucket, record, board");
    assert_eq!(client.value(b"key"), Some("value".into()));
    assert_eq!(world.reads.replace(0), 2, "the board is known");
    client.pass(ms(900));
    world.write_board(Board { nonce: NONCE, readable_until: 2_900_000_000 });
    assert_eq!(client.value(b"key"), Some("value".into()));
    assert_eq!(world.reads.replace(0), 3);
    world.write_board(Board { nonce: NONCE + 1, readable_until: u64::MAX });
    client.pass(ms(700));
    assert_eq!(client.value(b"key"), None, "the board of another table");
    assert_eq!(world.reads.replace(0), 3, "once");
}

#[test]
fn the_clock_counts_that_is_read_after_the_last_read() {
    let world = World::default();
    let _writer = with_key(&world);
    let mut client = Client::granted(&world);
    assert_eq!(client.value(b"key"), Some("value".into()));
    // The client stops between bucket and record, and again before its look at the board.
    world.pace.set(400_000_000);
    assert_eq!(client.value(b"key"), None);
}

#[test]
fn the_bound_on_a_clock_counts_from_the_question_and_the_best_one_is_kept() {
    let world = World::default();
    let _writer = with_key(&world);
    // The question comes after 250 ms, and its answer takes 500 ms. The primary's clock was read at its start, or at
    // its end. By the first answer alone, the index is good for 800 ms.
    for (clock, good) in [(1_250_000_000, 849), (1_750_000_000, 799)] {
        world.now.set(1_000_000_000);
        let mut client = Client::granted(&world);
        client.pass(ms(250));
        client.ask();
        client.pass(ms(500));
        let answer = HashIndexAnswer { clock, state: HashIndexState::Unchanged };
        client.answer_with(OpResult::HashIndex(Box::new(answer)));
        client.pass(ms(good - 750));
        assert_eq!(client.value(b"key"), Some("value".into()), "{good}");
        client.pass(ms(1));
        assert_eq!(client.value(b"key"), None, "{good}");
    }
}

#[test]
fn memory_is_mapped_by_a_read_that_is_posted_once() {
    let world = World::default();
    let _writer = with_key(&world);
    for name in [&b"board"[..], b"lines"] {
        world.change(name, |memory| memory.is_mapped = false);
    }
    let mut client = Client::granted(&world);
    let map = |name: &[u8]| Some(Then::Map { link: LINK, memory: ReadableDescriptor(name.to_vec()) });
    assert_eq!(client.get(b"key"), Get { value: None, then: map(b"lines") });
    assert_eq!(client.get(b"key"), Get { value: None, then: None });
    client.pass(ms(1000));
    client.ask();
    client.answer(HashIndexState::Unchanged);
    assert_eq!(client.get(b"key").then, map(b"lines"), "the first read is lost");
    world.change(b"lines", |memory| memory.is_mapped = true);
    assert_eq!(client.get(b"key").then, map(b"board"));
    world.change(b"board", |memory| memory.is_mapped = true);
    world.write_board(Board { nonce: NONCE, readable_until: u64::MAX });
    assert_eq!(client.value(b"key"), Some("value".into()));
    client.direct.unmappable(REGION, LINK, client.now);
    assert_eq!(client.gets_until_asked(), usize::MAX);
    client.pass(ERROR_PAUSE);
    assert!(client.gets_until_asked() <= 4);
}

#[test]
fn revoked_memory_ends_the_grant_and_a_new_term_begins_another() {
    let world = World::default();
    let _writer = with_key(&world);
    let mut client = Client::granted(&world);
    assert_eq!(client.value(b"key"), Some("value".into()));
    client.pass(ms(20));
    for name in [&b"board"[..], b"lines"] {
        world.change(name, |memory| memory.is_revoked = true);
    }
    assert_eq!(client.get(b"key"), Get { value: None, then: Some(Then::Ask) });
    assert_eq!(client.ask().nonce, 0, "it has no grant any more");
    assert_eq!(client.direct.stats().refused, 1);
    // Another table, in the same place; its board is not written yet.
    let mut writer = Writer::new(&world, NONCE + 2);
    assert!(writer.put(b"key", b"newer"));
    client.answer(granted(1, GrantFields { term: Epoch(3), ..fields(NONCE + 2) }));
    assert_eq!(client.value(b"key"), None, "what the board of the old table said does not count");
    world.write_board(Board { nonce: NONCE + 2, readable_until: u64::MAX });
    assert_eq!(client.value(b"key"), Some("newer".into()));
}

#[test]
fn a_table_that_has_grown_is_asked_for_again() {
    let world = World::default();
    let mut writer = with_key(&world);
    let mut small = fields(NONCE);
    small.extents.pop();
    let mut client = Client::new(&world);
    client.gets_until_asked();
    client.ask();
    client.answer(granted(1, small));
    assert!(writer.put(b"key", &[1; 200]));
    client.pass(ms(20));
    assert_eq!(client.get(b"key"), Get { value: None, then: Some(Then::Ask) }, "its record is not granted");
    assert_eq!(client.ask().version, 1);
    client.answer(granted(2, fields(NONCE)));
    assert_eq!(client.value(b"key"), Some(vec![1; 200].into()));
    client.pass(ms(250));
    client.value(b"key");
    assert_eq!(client.ask().version, 2);
}

#[test]
fn a_grant_ends_with_its_configuration_its_link_and_its_primary() {
    let world = World::default();
    let _writer = with_key(&world);
    let not_primary = || OpError::NotPrimary { region: REGION, epoch: Epoch(6) };
    type End = fn(&mut Client<'_>);
    let ends: [(&str, End); 5] = [
        ("epoch", |client| client.route = route(6, 1)),
        ("primary", |client| client.route = route(5, 2)),
        ("link", |client| client.direct.lost(LINK, client.now)),
        ("answer to an operation", |client| client.direct.not_primary(REGION)),
        ("another region's grant", |client| {
            client.ask();
            client.answer(granted(1, GrantFields { region: RegionId(8), ..fields(NONCE) }));
        }),
    ];
    for (what, end) in ends {
        let mut client = Client::granted(&world);
        assert_eq!(client.value(b"key"), Some("value".into()), "{what}");
        end(&mut client);
        assert_eq!(client.value(b"key"), None, "{what}");
    }
    let mut client = Client::granted(&world);
    client.direct.lost(Token(9), client.now);
    assert_eq!(client.value(b"key"), Some("value".into()), "another link");
    client.ask();
    client.answer_with(OpResult::Error(not_primary()));
    assert_eq!(client.value(b"key"), None);
    client.pass(ERROR_PAUSE);
    client.gets_until_asked();
    client.ask();
    client.answer_with(OpResult::Done);
    assert_eq!(client.gets_until_asked(), usize::MAX, "no answer at all");
}

#[test]
fn a_get_waits_for_earlier_writes_of_its_key() {
    let world = World::default();
    let _writer = with_key(&world);
    let mut client = Client::granted(&world);
    let put = |key: &'static str| {
        let (when, lifetime) = (Condition::Always, Lifetime::Forever);
        Op::Put { key: key.into(), value: "new".into(), when, want_old: false, lifetime }
    };
    let delete_range = RangeOp::DeleteRange { start: "p".into(), end: None };
    let writes = [
        (put("key"), true),
        (put("other"), false),
        (Op::Add { key: "key".into(), delta: 1 }, true),
        (Op::DeleteRange { start: "p".into(), end: None }, true),
        (delete_range.within(REGION), true),
        (Op::Get { key: "key".into() }, false),
        (Op::Count { region: REGION }, false),
    ];
    for (op, holds_back) in writes {
        client.direct.submitted(&op);
        client.direct.submitted(&op);
        client.direct.ended(&op);
        assert_eq!(client.value(b"key").is_none(), holds_back, "{op:?}");
        client.direct.ended(&op);
        assert!(client.value(b"key").is_some(), "{op:?}");
    }
}

#[test]
fn few_regions_are_known_and_unused_ones_are_forgotten() {
    let world = World::default();
    let mut client = Client::new(&world);
    for region in 0..MOST_REGIONS as u32 + 10 {
        client.route.region = RegionId(region + 100);
        client.get(b"key");
    }
    assert_eq!(client.direct.regions.len(), MOST_REGIONS);
    assert_eq!(client.gets_until_asked(), usize::MAX, "there are too many others");
    client.pass(UNUSED);
    assert_eq!(client.gets_until_asked(), 4);
    assert_eq!(client.direct.regions.len(), 1);
}

#[test]
fn a_sample_has_each_hit_with_the_same_chance() {
    let (mut sample, mut rng, mut taken) = (Sample::default(), Rng::new(3), [0_u32; 4]);
    for _ in 0..50 {
        (0..4096).for_each(|hit| sample.hit(Line(hit), &mut rng));
        let lines = sample.take();
        assert_eq!(lines.len(), sample::MOST);
        lines.iter().for_each(|line| taken[line.0 as usize / 1024] += 1);
    }
    // 6,400 of each quarter, with a standard deviation of 65.
    assert!(taken.iter().all(|count| (6000..6800).contains(count)), "{taken:?}");
    assert!(sample.take().is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, Vec<u8>),
    Clear(u8),
    /// Begins to write a pair, and stops after so many words.
    PutPart(u8, Vec<u8>, usize),
    Get(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let value = || prop::collection::vec(any::<u8>(), 0..300);
    prop_oneof![
        3 => (0..40_u8, value()).prop_map(|(key, value)| Step::Put(key, value)),
        1 => (0..40_u8).prop_map(Step::Clear),
        2 => (0..40_u8, value(), 0..50_usize).prop_map(|(key, value, words)| Step::PutPart(key, value, words)),
        6 => (0..40_u8).prop_map(Step::Get),
    ]
}

proptest! {
    #[test]
    fn a_direct_read_answers_the_newest_version_or_asks(steps in prop::collection::vec(step(), 1..200)) {
        let world = World::default();
        let mut writer = Writer::new(&world, NONCE);
        world.write_board(Board { nonce: NONCE, readable_until: u64::MAX });
        let mut client = Client::granted(&world);
        let mut model: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        let mut hits = 0;
        for step in steps {
            match step {
                Step::Put(key, value) => {
                    let key = vec![b'k', key];
                    match writer.put(&key, &value) {
                        true => model.insert(key, value),
                        false => model.remove(&key),
                    };
                }
                Step::Clear(key) => {
                    writer.clear(&[b'k', key]);
                    model.remove(&[b'k', key][..]);
                }
                Step::PutPart(key, value, words) => {
                    let key = vec![b'k', key];
                    let Some(writes) = writer.plan(&key, &value) else { continue };
                    let words = words.min(writes.len());
                    writer.write(writes[..words].iter().copied());
                    // It becomes visible at some point between.
                    let got = client.value(&key);
                    let is_known = |got: &Bytes| *got == value || model.get(&key).is_some_and(|old| *got == old);
                    prop_assert!(got.as_ref().is_none_or(is_known), "{got:?}");
                    writer.write(writes[words..].iter().copied());
                    model.insert(key, value);
                }
                Step::Get(key) => {
                    let key = vec![b'k', key];
                    let got = client.value(&key);
                    prop_assert_eq!(got.as_deref(), model.get(&key).map(|value| &value[..]));
                    hits += u64::from(got.is_some());
                }
            }
        }
        prop_assert!(client.direct.stats().hits >= hits);
    }

    /// Whatever is in the memory, a look-up ends, and answers with no more than is there.
    #[test]
    fn hostile_memory_is_harmless(words in prop::collection::vec(prop_oneof![any::<u64>(), 0..200_u64], 1..200)) {
        let world = World::default();
        let _writer = with_key(&world);
        world.change(b"lines", |memory| {
            memory.words.iter_mut().zip(words.iter().cycle()).for_each(|(word, hostile)| *word = *hostile);
        });
        let mut client = Client::granted(&world);
        for key in 0..20_u8 {
            prop_assert_eq!(client.value(&[b'k', key]), None);
        }
    }
}

//! Hash indexes against a map of what is written: clients read the newest value, or ask.

use super::*;
use crate::memory::Purpose;
use leeward_format::hash_index::{Reader, Reason, Step, TRIES, WordWrite};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The words of every memory, by descriptor; revoked ones are gone. And all stores, in their order.
#[derive(Default)]
struct Shared {
    memories: HashMap<u64, Vec<u64>>,
    next: u64,
    stores: Vec<(u64, WordWrite)>,
    refuses: bool,
}

#[derive(Clone, Default)]
struct Host(Arc<Mutex<Shared>>);

struct Words {
    host: Host,
    id: u64,
    /// What its owner has, also once it is revoked.
    own: Mutex<Vec<u64>>,
}

impl HashMemories for Host {
    fn allocate(&self, bytes: usize) -> io::Result<Box<dyn HashMemory>> {
        let mut shared = self.0.lock();
        if shared.refuses {
            return Err(io::Error::other("no memory"));
        }
        let (id, words) = (shared.next, vec![0; bytes.div_ceil(8)]);
        shared.next += 1;
        shared.memories.insert(id, words.clone());
        Ok(Box::new(Words { host: self.clone(), id, own: Mutex::new(words) }))
    }
}

impl HashMemory for Words {
    fn load(&self, offset: usize) -> u64 {
        self.own.lock()[offset / 8]
    }
    fn store(&self, offset: usize, word: u64) {
        self.own.lock()[offset / 8] = word;
        let mut shared = self.host.0.lock();
        shared.stores.push((self.id, WordWrite { at: offset as u64, word }));
        if let Some(words) = shared.memories.get_mut(&self.id) {
            words[offset / 8] = word;
        }
    }
    fn read(&self, offset: usize, bytes: &mut [u8]) {
        copy(&self.own.lock(), offset, bytes);
    }
    fn descriptor(&self) -> Bytes {
        self.id.to_le_bytes().to_vec().into()
    }
    fn revoke(&self) {
        self.host.0.lock().memories.remove(&self.id);
    }
}

fn copy(words: &[u64], offset: usize, out: &mut [u8]) {
    let bytes: Vec<u8> =
        words[offset / 8..].iter().take(out.len() / 8 + 1).flat_map(|word| word.to_le_bytes()).collect();
    out.copy_from_slice(&bytes[..out.len()]);
}

/// What a client gets.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    Found(u64, Vec<u8>),
    Ask(Reason),
    Refused,
}

impl Host {
    fn get(&self, grant: &Grant, key: &[u8]) -> Got {
        let mut bytes: Vec<u8>;
        let mut reads = 0;
        let mut step = Reader::begin(grant, key);
        loop {
            match step {
                Step::Found { lsn, value } => return Got::Found(lsn.0, value.to_vec()),
                Step::Ask(reason) => return Got::Ask(reason),
                Step::Read(reader) => {
                    reads += 1;
                    assert!(reads <= usize::from(TRIES) * 64, "reads are bounded");
                    let place = reader.place();
                    let id = u64::from_le_bytes(grant.memories[usize::from(place.memory)][..].try_into().unwrap());
                    bytes = vec![0; place.bytes as usize];
                    match self.0.lock().memories.get(&id) {
                        Some(words) => copy(words, place.offset as usize, &mut bytes),
                        None => return Got::Refused,
                    }
                    step = reader.feed(&bytes);
                }
            }
        }
    }
}

const NONCE: u64 = 77;

/// An index in a budget of which `share` bytes are for indexes.
fn open(host: &Host, memory: &Memory) -> HashIndex {
    let of = HashIndexOf {
        region: RegionId(1),
        term: Epoch(1),
        partition: Partition::Range,
        start: Bytes::new(),
        end: Some("z".into()),
    };
    HashIndex::open(of, NONCE, memory, Box::new(host.clone())).expect("there is memory").expect("the share is enough")
}

fn memory(share: u64) -> Memory {
    let memory = Memory::new(share * 4);
    assert_eq!(memory.share(Purpose::HashIndexes), share);
    memory
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// The newest version of each key.
type Model = BTreeMap<u64, (u64, Vec<u8>)>;

/// Runs `steps` random writes of keys with values of up to `most` bytes, checks that reads are right, and returns how many
/// of the reads were answered.
fn run(
    host: &Host,
    (index, model): (&mut HashIndex, &mut Model),
    rng: &mut Rng,
    (keys, most, steps): (u64, u64, u64),
) -> u64 {
    let (mut hits, mut first) = (0, model.values().map(|(lsn, _)| *lsn).max().unwrap_or(0));
    for _ in 0..steps {
        first += 1;
        let number = rng.below(keys);
        if rng.one_in(8) {
            index.remove(&key(number));
            model.remove(&number);
        } else if rng.one_in(3) {
            if let Some((lsn, value)) = model.get(&number) {
                index.put(&key(number), Lsn(*lsn), value, Offer::Missed);
            }
        } else {
            let mut value = vec![0; rng.below(most) as usize];
            rng.fill(&mut value);
            index.put(&key(number), Lsn(first), &value, Offer::Written);
            model.insert(number, (first, value));
        }
        index.step();
        let (grant, number) = (index.grant().1, rng.below(keys));
        match (host.get(&grant, &key(number)), model.get(&number)) {
            (Got::Found(lsn, value), Some((newest, expected))) => {
                assert_eq!((lsn, &value), (*newest, expected));
                hits += 1;
            }
            (Got::Ask(Reason::Absent), _) => {}
            (got, expected) => panic!("key {number}: {got:?}, expected {expected:?}"),
        }
    }
    check_counts(index);
    hits
}

/// The slots lead to as many records as are counted.
fn check_counts(index: &HashIndex) {
    let mut records = 0;
    for home in 0..index.buckets {
        let mut bucket = Line(home);
        loop {
            let words = index.parts.bucket(bucket);
            records += words.iter().take(BUCKET_SLOTS).filter(|word| Slot::from_word(**word).is_some()).count() as u64;
            match words[BUCKET_SLOTS] {
                0 => break,
                next => bucket = Line(next as u32),
            }
        }
    }
    assert_eq!(index.stats().records, records);
}

#[test]
fn readers_get_the_newest_value_or_ask() {
    for seed in 0..8 {
        let (host, memory, mut rng) = (Host::default(), memory(1 << 20), Rng::new(seed));
        let (mut index, mut model) = (open(&host, &memory), Model::new());
        let hits = run(&host, (&mut index, &mut model), &mut rng, (200, 600, 3_000));
        assert!(hits > 1_500, "all pairs fit: {hits}");
        assert_eq!(index.stats().evicted, 0);
        let hits = run(&host, (&mut index, &mut model), &mut rng, (4_000, 2_000, 8_000));
        assert!(hits > 100, "{hits}");
        assert!(index.stats().evicted > 100, "{:?}", index.stats());
        assert!(memory.status().hash_indexes <= (1 << 20) && memory.status().hash_indexes == index.stats().bytes);
    }
}

#[test]
fn a_version_is_written_slot_first_and_first_word_last_and_then_the_old_one_is_poisoned() {
    let (host, memory) = (Host::default(), memory(1 << 20));
    let mut index = open(&host, &memory);
    index.put(b"key", Lsn(1), b"one", Offer::Written);
    let before = index.find(b"key", filter::hash(b"key")).expect("it was put");
    host.0.lock().stores.clear();
    index.put(b"key", Lsn(2), b"two", Offer::Written);
    let after = index.find(b"key", filter::hash(b"key")).expect("it was put");
    let stores = std::mem::take(&mut host.0.lock().stores);
    let words: Vec<(u64, u64)> = stores.iter().map(|(memory, write)| (*memory, write.at)).collect();
    let record = |found: &IndexedKey| u64::from(found.line.0 - first_line(&index, found.line)) * 64;
    assert_eq!(words[0].0, 0, "the slot is in a home bucket");
    assert_eq!(words[words.len() - 2..], [(1, record(&after)), (1, record(&before))]);
    assert_eq!((stores[words.len() - 2].1.word, stores[words.len() - 1].1.word), (2, 0), "the LSN, and no LSN");
}

fn first_line(index: &HashIndex, line: Line) -> u32 {
    let (_, extents, _) = index.parts.granted();
    extents.iter().rev().find(|extent| extent.first <= line).map_or(0, |extent| extent.first.0)
}

#[test]
fn records_that_clients_read_stay() {
    let (host, memory) = (Host::default(), memory(512 << 10));
    let mut index = open(&host, &memory);
    let hot: Vec<Vec<u8>> = (0..50).map(key).collect();
    for (number, key) in hot.iter().enumerate() {
        index.put(key, Lsn(1 + number as u64), &[1; 100], Offer::Written);
    }
    let mut kept = 0;
    for round in 0..200 {
        let grant = index.grant().1;
        let is_there = |key: &&Vec<u8>| matches!(host.get(&grant, key), Got::Found(..));
        kept = hot.iter().filter(is_there).count();
        let lines: Vec<Line> =
            hot.iter().filter_map(|key| index.find(key, filter::hash(key))).map(|f| f.line).collect();
        index.note_reads(&lines);
        index.note_reads(&[Line(0), Line(3), Line(u32::MAX)]);
        for cold in 0..100 {
            let number = 1_000 + round * 100 + cold;
            index.put(&key(number), Lsn(100 + number), &[2; 100], Offer::Missed);
        }
    }
    assert!(index.stats().evicted > 1_000, "{:?}", index.stats());
    assert_eq!(kept, hot.len());
}

#[test]
fn memory_follows_the_sizes_of_values() {
    let (host, memory, mut rng) = (Host::default(), memory(1 << 20), Rng::new(5));
    let mut index = open(&host, &memory);
    for number in 0..20_000 {
        index.put(&key(number), Lsn(1 + number), &[1; 20], Offer::Written);
    }
    let (version, old) = index.grant();
    let full = index.stats();
    assert!(full.bytes > 900 << 10, "{full:?}");
    for lsn in 0..60_000 {
        index.put(&key(rng.below(500)), Lsn(100_000 + lsn), &[2; 700], Offer::Missed);
    }
    let grant = index.grant().1;
    assert_ne!(index.grant().0, version);
    let hits =
        (0..500).filter(|number| matches!(host.get(&grant, &key(*number)), Got::Found(_, value) if value[0] == 2));
    assert!(hits.count() > 400, "the pairs that are read fit: {:?}", index.stats());
    let refused =
        (0..500).filter(|number| matches!(host.get(&old, &key(*number)), Got::Refused | Got::Ask(Reason::NotGranted)));
    assert!(refused.count() > 0, "an old grant lacks new parts");
    check_counts(&index);
}

#[test]
fn indexes_share_their_memory_equally() {
    let (host, memory) = (Host::default(), memory(2 << 20));
    let mut one = open(&host, &memory);
    for number in 0..40_000 {
        one.put(&key(number), Lsn(1 + number), &[1; 30], Offer::Written);
    }
    let alone = one.stats().bytes;
    assert!(alone > 3 << 19, "{alone}");
    let other = open(&host, &memory);
    while one.step() {}
    let shared = one.stats().bytes;
    assert!(shared <= (1 << 20) + one.parts.part_bytes(), "{shared} bytes, {alone} before");
    check_counts(&one);
    assert_eq!(memory.status().hash_indexes, shared + other.stats().bytes);
    drop((one, other));
    assert_eq!(memory.status().hash_indexes, 0);
    assert_eq!(Share::join(&memory).limit(), 2 << 20, "those that are gone have no part");
}

#[test]
fn long_pairs_and_failed_allocations_leave_no_old_version() {
    let (host, memory) = (Host::default(), memory(1 << 20));
    let mut index = open(&host, &memory);
    index.put(b"key", Lsn(1), b"short", Offer::Written);
    index.put(b"key", Lsn(2), &[0; 20_000], Offer::Written);
    assert_eq!(host.get(&index.grant().1, b"key"), Got::Ask(Reason::Absent), "too long for the index");
    index.put(b"key", Lsn(3), b"short", Offer::Written);
    host.0.lock().refuses = true;
    index.put(b"key", Lsn(4), &[0; 9_000], Offer::Written);
    assert_eq!(host.get(&index.grant().1, b"key"), Got::Ask(Reason::Absent), "there is no space of this class");
    index.put(b"key", Lsn(6), b"newer", Offer::Written);
    index.put(b"key", Lsn(5), b"older", Offer::Missed);
    assert_eq!(host.get(&index.grant().1, b"key"), Got::Found(6, b"newer".to_vec()));
    assert_eq!(host.get(&index.grant().1, b"zebra"), Got::Ask(Reason::OutOfBounds));
    let grant = index.grant().1;
    index.revoke();
    assert_eq!(host.get(&grant, b"key"), Got::Refused);
}

#[test]
fn a_small_share_has_no_index() {
    let memory = Memory::new(4 * (LEAST_BYTES - 4));
    let of = HashIndexOf {
        region: RegionId(1),
        term: Epoch(1),
        partition: Partition::Range,
        start: Bytes::new(),
        end: None,
    };
    assert!(HashIndex::open(of, NONCE, &memory, Box::new(Host::default())).expect("nothing fails").is_none());
    assert_eq!(Share::join(&memory).limit(), memory.share(Purpose::HashIndexes));
}

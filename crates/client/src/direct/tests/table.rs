//! An index as a primary writes it, in memories that are vectors of words.

use super::{LINK, REGION, Source};
use bytes::Bytes;
use leeward_fabric::{ReadNow, ReadableDescriptor};
use leeward_format::hash_index::{
    BUCKET_SLOTS, Board, BytesToRead, Content, Extent, GrantFields, Line, Record, RecordPlace, Slot, SlotPlace,
    WordWrite, clear, fingerprint, home_bucket, link, publish, record_lines, tag,
};
use leeward_format::partition::Partition;
use leeward_format::{Epoch, Lsn, filter};
use leeward_platform::Nanos;
use mio::Token;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

const HOMES: u32 = 4;
const OVERFLOWS: u32 = 12;
/// Size classes, in lines, with so many records each.
const CLASSES: [(u16, u32); 2] = [(1, 24), (4, 8)];
const LINE: usize = 64;

/// A memory of a node.
#[derive(Clone, Default)]
pub(super) struct Memory {
    pub(super) words: Vec<u64>,
    pub(super) is_mapped: bool,
    pub(super) is_revoked: bool,
}

/// The memories of one node, by descriptor, and both clocks.
#[derive(Default)]
pub(super) struct World {
    memories: RefCell<BTreeMap<Vec<u8>, Memory>>,
    pub(super) now: Cell<u64>,
    /// How far the client's clock gets with each read.
    pub(super) pace: Cell<u64>,
    pub(super) reads: Cell<u64>,
}

impl World {
    pub(super) fn add(&self, name: &[u8], lines: u32) {
        let words = vec![0; lines as usize * LINE / 8];
        self.memories.borrow_mut().insert(name.to_vec(), Memory { words, is_mapped: true, is_revoked: false });
    }

    pub(super) fn change(&self, name: &[u8], change: impl FnOnce(&mut Memory)) {
        change(self.memories.borrow_mut().get_mut(name).expect("there is such a memory"));
    }

    pub(super) fn write_board(&self, board: Board) {
        self.change(b"board", |memory| memory.words[..2].copy_from_slice(&board.words()));
    }
}

impl Source for World {
    fn read(&self, link: Token, memory: &ReadableDescriptor, offset: u64, bytes: &mut [u8]) -> ReadNow {
        assert_eq!(link, LINK, "the link of the grant");
        self.now.set(self.now.get() + self.pace.get());
        self.reads.set(self.reads.get() + 1);
        let memories = self.memories.borrow();
        let Some(memory) = memories.get(&memory.0) else { return ReadNow::Refused };
        if memory.is_revoked {
            return ReadNow::Refused;
        }
        if !memory.is_mapped {
            return ReadNow::NotMapped;
        }
        let from = offset as usize / 8;
        for (bytes, word) in bytes.chunks_mut(8).zip(&memory.words[from..]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        ReadNow::Copied
    }

    fn now(&self) -> Nanos {
        Nanos(self.now.get())
    }
}

/// Home and overflow buckets, and records of two classes, one behind the other in one memory.
pub(super) fn fields(nonce: u64) -> GrantFields {
    let mut extents = vec![(HOMES + OVERFLOWS, Content::Buckets)];
    extents.extend(CLASSES.map(|(class, records)| (u32::from(class) * records, Content::Records { class })));
    let mut first = 0;
    let extents = extents.into_iter().map(|(lines, content)| {
        let extent = Extent { first: Line(first), lines, content, memory: 1, offset: u64::from(first) * LINE as u64 };
        first += lines;
        extent
    });
    GrantFields {
        region: REGION,
        term: Epoch(2),
        nonce,
        partition: Partition::Range,
        start: "b".into(),
        end: Some("y".into()),
        buckets: HOMES,
        extents: extents.collect(),
        memories: vec![Bytes::from_static(b"board"), Bytes::from_static(b"lines")],
        board: BytesToRead { memory: 0, offset: 0, bytes: LINE as u32 },
    }
}

/// The primary that writes an index.
pub(super) struct Writer<'a> {
    world: &'a World,
    nonce: u64,
    lsn: u64,
    /// Slot and record of each key.
    keys: HashMap<Vec<u8>, (SlotPlace, Line, u16)>,
    /// Free records, the first freed first.
    free: Vec<Vec<Line>>,
    /// Buckets of each chain.
    chains: Vec<Vec<Line>>,
    next_bucket: u32,
}

impl<'a> Writer<'a> {
    pub(super) fn new(world: &'a World, nonce: u64) -> Writer<'a> {
        let mut first = HOMES + OVERFLOWS;
        let free = CLASSES.map(|(class, records)| {
            let lines = (0..records).map(|record| Line(first + record * u32::from(class))).collect();
            first += u32::from(class) * records;
            lines
        });
        world.add(b"board", 1);
        world.add(b"lines", first);
        let chains = (0..HOMES).map(|home| vec![Line(home)]).collect();
        Writer { world, nonce, lsn: 0, keys: HashMap::new(), free: free.into(), chains, next_bucket: HOMES }
    }

    pub(super) fn write(&self, writes: impl IntoIterator<Item = WordWrite>) {
        self.world.change(b"lines", |memory| {
            writes.into_iter().for_each(|write| memory.words[write.at as usize / 8] = write.word);
        });
    }

    /// A free slot of the key's chain, which gets another bucket if there is none.
    fn free_slot(&mut self, hash: u64) -> Option<SlotPlace> {
        let chain = &self.chains[home_bucket(hash, HOMES).0 as usize];
        let last = *chain.last().expect("a chain has its home bucket");
        let slots = chain.iter().flat_map(|bucket| (0..BUCKET_SLOTS as u8).map(|index| (*bucket, index)));
        let mut slots = slots.map(|(bucket, index)| SlotPlace { bucket, index });
        let free = slots.find(|place| !self.keys.values().any(|(taken, ..)| taken == place));
        if free.is_some() || chain.len() == 4 || self.next_bucket == HOMES + OVERFLOWS {
            return free;
        }
        let bucket = Line(self.next_bucket);
        self.next_bucket += 1;
        self.write([link(last, bucket)]);
        self.chains[home_bucket(hash, HOMES).0 as usize].push(bucket);
        Some(SlotPlace { bucket, index: 0 })
    }

    /// The writes that publish the pair, if there is room. The old record is free after them.
    pub(super) fn plan(&mut self, key: &[u8], value: &[u8]) -> Option<Vec<WordWrite>> {
        let lines = record_lines(key.len(), value.len())?;
        let class = CLASSES.iter().position(|(class, _)| lines <= *class)?;
        let (hash, old) = (filter::hash(key), self.keys.get(key).copied());
        let place = old.map(|(place, ..)| place).or_else(|| self.free_slot(hash))?;
        let line = (!self.free[class].is_empty()).then(|| self.free[class].remove(0))?;
        self.lsn += 1;
        let (lsn, mut bytes) = (Lsn(self.lsn), Vec::new());
        Record { lsn, key, value }.append_to(RecordPlace { nonce: self.nonce, line }, &mut bytes);
        let slot = Slot { fingerprint: fingerprint(hash), tag: tag(lsn), lines, line };
        self.keys.insert(key.to_vec(), (place, line, lines));
        if let Some((_, old, lines)) = old {
            self.give_back(old, lines);
        }
        Some(publish(place, slot, &bytes, old.map(|(_, line, _)| line)).collect())
    }

    fn give_back(&mut self, line: Line, lines: u16) {
        let class = CLASSES.iter().position(|(class, _)| lines <= *class).expect("it was of a class");
        self.free[class].push(line);
    }

    /// Publishes the pair, or takes the key out if there is no room.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        match self.plan(key, value) {
            Some(writes) => self.write(writes),
            None => self.clear(key),
        }
        self.keys.contains_key(key)
    }

    pub(super) fn clear(&mut self, key: &[u8]) {
        if let Some((place, line, lines)) = self.keys.remove(key) {
            self.write(clear(place, line));
            self.give_back(line, lines);
        }
    }
}

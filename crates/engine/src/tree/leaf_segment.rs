//! Reads one leaf segment: its index, which stays in memory if the cache has room, and its leaves.
//!
//! Any thread may read. If two threads miss the same leaf or index at once, it is read twice.

use crate::cache::{Cache, CacheReservation, Leaf, index_memory_bytes};
use crate::error::{Error, Result};
use crate::reads::{Reach, Reads};
use crate::volume::Segment;
use bytes::Bytes;
use leeward_format::leaf_segment::{LeafIndex, LeafPlace, read_leaf, read_plain_leaf};
use leeward_format::node::{Address, BLOCK_BYTES, Child, Entry, Node};
use leeward_format::{DecodeError, Lsn, Pointer, SegmentId, Stamp, packed};
use leeward_platform::disk::with_scratch;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// A leaf segment of a level.
pub(crate) struct LeafSegment {
    id: SegmentId,
    segment: Arc<Segment>,
    address: Address,
    /// Place of its index nodes, filter and footer, which extend to its end.
    tree: Child,
    resident: OnceLock<(Arc<LeafIndex>, CacheReservation)>,
    cache: Cache,
    overlap: f32,
}

/// Result of a look-up of a key in a level.
#[derive(Debug)]
pub(crate) enum Probe {
    /// The key has an entry.
    Found {
        /// LSN and expiry of the record.
        stamp: Stamp,
        found: EntryContent,
        /// What they come from.
        from: Source,
    },
    /// The level has no entry of the key.
    Absent,
    /// It depends on data that is not in memory.
    NotInMemory,
}

/// Where a key may be, with the LSN of the segment's range tombstone for it, if there is one.
pub(crate) enum KeyPlace<'a> {
    /// In no leaf.
    Nowhere(Option<Lsn>),
    /// In this leaf.
    Leaf(Arc<Leaf>, Option<Lsn>),
    /// In this leaf of a segment; the leaf is not in memory.
    Device(&'a LeafSegment, LeafPlace, Option<Lsn>),
}

/// What a result comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A leaf that the cache had.
    Memory,
    /// A leaf that was read.
    Device,
    /// A range tombstone.
    Range,
}

/// Contents of an entry that was found.
#[derive(Debug)]
pub(crate) enum EntryContent {
    /// The value itself.
    InPlace(Bytes),
    /// The value is in the log.
    InLog(Pointer, u32),
    /// The key was deleted.
    Tombstone,
}

/// An index, borrowed from its segment or shared with the cache.
pub(crate) enum IndexRef<'a> {
    Resident(&'a Arc<LeafIndex>),
    Cached(Arc<LeafIndex>),
}

impl Deref for IndexRef<'_> {
    type Target = LeafIndex;

    #[inline]
    fn deref(&self) -> &LeafIndex {
        match self {
            IndexRef::Resident(index) => index,
            IndexRef::Cached(index) => index,
        }
    }
}

impl LeafSegment {
    /// A segment with an [overlap](LeafSegment::overlap) of 1.
    pub(crate) fn new(reads: &Reads, id: SegmentId, segment: Arc<Segment>, tree: Child) -> LeafSegment {
        let address = Address { region: segment.origin(), segment: id, offset: 0 };
        let cache = reads.volume.cache().clone();
        segment.begin_reading();
        LeafSegment { id, segment, address, tree, resident: OnceLock::new(), cache, overlap: 1.0 }
    }

    /// Sets the [overlap](LeafSegment::overlap).
    pub(crate) fn with_overlap(mut self, overlap: f32) -> LeafSegment {
        self.overlap = overlap;
        self
    }

    /// Part of its pairs that older levels had when it was built; 1 if that is unknown.
    pub(crate) fn overlap(&self) -> f32 {
        self.overlap
    }

    pub(crate) fn id(&self) -> SegmentId {
        self.id
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// The pointer to it in an index.
    pub(crate) fn tree(&self) -> Child {
        self.tree
    }

    /// Bytes of it in use.
    pub(crate) fn end(&self) -> usize {
        self.tree.pointer.offset() as usize + self.tree.bytes()
    }

    /// Keeps the index that was just built or read: as long as the segment exists, or as an object of the cache if
    /// resident indexes have no more room.
    pub(crate) fn keep_index(&self, index: Arc<LeafIndex>) {
        if let Some(reservation) = self.cache.reserve(index_memory_bytes(&index)) {
            // If another thread was faster, its index stays.
            let _ = self.resident.set((index, reservation));
        } else if self.resident.get().is_none() {
            self.cache.insert_index(self.segment.serial(), index);
        }
    }

    /// Calls `each` with the first and the last key of each cached leaf, if the index is resident. A merge has replaced
    /// these leaves by others.
    pub(crate) fn supersede_leaves(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        let Some((index, _)) = self.resident.get() else { return };
        let (mut first, mut last) = (Vec::new(), Vec::new());
        for place in index.leaves().iter() {
            if let Some(leaf) = self.cache.supersede_leaf(self.segment.serial(), place.offset) {
                leaf.key_into(0, &mut first);
                leaf.key_into(leaf.len() - 1, &mut last);
                each(&first, &last);
            }
        }
    }

    /// For each of its leaves, whether it is cached. Each is about to be replaced by one new leaf.
    pub(crate) fn supersede_all(&self, places: &[LeafPlace]) -> Vec<bool> {
        let serial = self.segment.serial();
        places.iter().map(|place| self.cache.supersede_leaf(serial, place.offset).is_some()).collect()
    }

    /// Caches leaves of a new segment with these `bytes`: those that `was_kept` marks, and others while the cache has
    /// room to spare. Packed ones are not worth unpacking.
    pub(crate) fn keep_leaves(&self, index: &LeafIndex, bytes: &[u8], was_kept: &[bool]) {
        for (place, was_kept) in index.leaves().iter().zip(was_kept) {
            let stored = &bytes[place.offset as usize..(place.offset + place.bytes) as usize];
            if packed::is_packed(stored) || !(*was_kept || self.cache.has_room_to_spare()) {
                continue;
            }
            let leaf = read_plain_leaf(stored, self.address.at(place.offset), |len| &stored[..len]);
            let leaf = leaf.expect("what was built can be read");
            self.cache.insert_leaf(self.segment.serial(), place.offset, &leaf);
        }
    }

    /// The index; `None` if it is not in memory and `reach` excludes the device.
    #[inline]
    pub(crate) fn index(&self, reads: &Reads, reach: Reach) -> Result<Option<IndexRef<'_>>> {
        match (self.index_in_memory(), reach) {
            (Some(index), _) => Ok(Some(index)),
            (None, Reach::Memory) => Ok(None),
            (None, Reach::Device) => self.load_index(reads).map(|index| Some(IndexRef::Cached(index))),
        }
    }

    /// The index, if it is in memory.
    #[inline]
    pub(crate) fn index_in_memory(&self) -> Option<IndexRef<'_>> {
        match self.resident.get() {
            Some((index, _)) => Some(IndexRef::Resident(index)),
            None => self.cache.index(self.segment.serial()).map(IndexRef::Cached),
        }
    }

    /// [`LeafSegment::index`], from the device if necessary.
    pub(crate) fn index_from_device(&self, reads: &Reads) -> Result<IndexRef<'_>> {
        Ok(self.index(reads, Reach::Device)?.expect("the device reaches everything"))
    }

    /// Whether it may have a key with this `hash`, as far as memory knows. To the cache that is no use of the index.
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        match self.resident.get() {
            Some((index, _)) => index.may_contain(hash),
            None => self.cache.peek_index(self.segment.serial()).is_none_or(|index| index.may_contain(hash)),
        }
    }

    fn load_index(&self, reads: &Reads) -> Result<Arc<LeafIndex>> {
        self.cache.count_miss();
        let mut bytes = reads.volume.memory().pool().take(self.tree.bytes());
        let offset = self.tree.pointer.offset();
        reads.volume.read(self.segment.no(), offset, &mut bytes)?;
        let name = self.tree.pointer.segment();
        let index = LeafIndex::parse(&bytes.into(), self.address.at(offset), name)
            .map_err(|error| reads.damaged(self.segment.no(), offset, &error))?;
        let index = Arc::new(index);
        self.keep_index(Arc::clone(&index));
        Ok(index)
    }

    /// Looks up `key`, which has this `hash`.
    pub(crate) fn get(&self, reads: &Reads, key: &[u8], hash: u64, reach: Reach) -> Result<Probe> {
        let Some(index) = self.index(reads, reach)? else { return Ok(Probe::NotInMemory) };
        if !index.may_contain(hash) {
            return Ok(Probe::absent(deleted(&index, key)));
        }
        let place = index.leaves()[index.leaf_of(key)];
        if let Some(leaf) = self.cached_leaf(place) {
            return Ok(search(&leaf, key, Source::Memory).or_else(|| deleted(&index, key)));
        }
        if reach == Reach::Memory {
            return Ok(Probe::NotInMemory);
        }
        self.cache.count_miss();
        let found = with_scratch(place.bytes as usize, |bytes| {
            reads.volume.read(self.segment.no(), place.offset, bytes)?;
            self.search_stored(reads, bytes, place, (key, hash))
        });
        Ok(found?.or_else(|| deleted(&index, key)))
    }

    /// Where `key`, which has this `hash`, may be. Reads the index, if that is not in memory, but no leaf.
    pub(crate) fn place(&self, reads: &Reads, key: &[u8], hash: u64) -> Result<KeyPlace<'_>> {
        let index = self.index_from_device(reads)?;
        let deleted = deleted(&index, key);
        if !index.may_contain(hash) {
            return Ok(KeyPlace::Nowhere(deleted));
        }
        let place = index.leaves()[index.leaf_of(key)];
        Ok(match self.cached_leaf(place) {
            Some(leaf) => KeyPlace::Leaf(leaf, deleted),
            None => KeyPlace::Device(self, place, deleted),
        })
    }

    /// The leaf at `place`, if it is in memory.
    pub(crate) fn cached_leaf(&self, place: LeafPlace) -> Option<Arc<Leaf>> {
        self.cache.leaf(self.segment.serial(), place.offset)
    }

    /// Reads the leaf at `place` from the device, and offers it to the cache.
    pub(crate) fn load_leaf(&self, reads: &Reads, place: LeafPlace) -> Result<Arc<Leaf>> {
        let mut bytes = vec![0; place.bytes as usize];
        reads.volume.read(self.segment.no(), place.offset, &mut bytes)?;
        self.supply_leaf(reads, bytes.into(), place)
    }

    /// The leaf at `place`, from bytes that were read from the device; offers it to the cache.
    pub(crate) fn supply_leaf(&self, reads: &Reads, bytes: Bytes, place: LeafPlace) -> Result<Arc<Leaf>> {
        self.cache.count_miss();
        let leaf = Arc::new(self.parse_leaf(reads, &bytes, place)?);
        let serial = self.segment.serial();
        if self.cache.wants_leaf(serial, place.offset, place.bytes) {
            self.cache.insert_leaf(serial, place.offset, &leaf);
        }
        Ok(leaf)
    }

    /// The leaf at `place`, which is `stored` as these bytes.
    pub(crate) fn parse_leaf(&self, reads: &Reads, stored: &Bytes, place: LeafPlace) -> Result<Leaf> {
        read_leaf(stored, self.address.at(place.offset)).map_err(|error| self.damaged(reads, place, &error))
    }

    /// Looks up a key, and its hash, in the `stored` bytes of the leaf at `place`. Offers the leaf to the cache.
    fn search_stored(
        &self,
        reads: &Reads,
        stored: &[u8],
        place: LeafPlace,
        (key, hash): (&[u8], u64),
    ) -> Result<Probe> {
        let address = self.address.at(place.offset);
        let probe = if packed::is_packed(stored) {
            packed::read_leaf::<Vec<u8>>(stored, address).map(|leaf| self.search_read(reads, &leaf, place, (key, hash)))
        } else {
            let leaf = read_plain_leaf(stored, address, |len| &stored[..len]);
            leaf.map(|leaf| self.search_read(reads, &leaf, place, (key, hash)))
        };
        probe.map_err(|error| self.damaged(reads, place, &error))
    }

    /// Looks up a key, and its hash, in a leaf that was read from the device. Keeps the leaf if the cache wants it. A leaf is
    /// for many keys: for one that was missed before, its record is enough.
    pub(crate) fn search_read<B: Deref<Target = [u8]>>(
        &self,
        reads: &Reads,
        leaf: &Node<B>,
        place: LeafPlace,
        (key, hash): (&[u8], u64),
    ) -> Probe {
        let probe = search(leaf, key, Source::Device);
        let has_record =
            matches!(probe, Probe::Found { found: EntryContent::InPlace(_) | EntryContent::Tombstone, .. });
        let serial = self.segment.serial();
        if !(has_record && self.cache.misses_record(reads.owner, hash))
            && self.cache.wants_leaf(serial, place.offset, place.bytes)
        {
            self.cache.insert_leaf(serial, place.offset, leaf);
        }
        probe
    }

    fn damaged(&self, reads: &Reads, place: LeafPlace, error: &DecodeError) -> Error {
        reads.damaged(self.segment.no(), place.offset, error)
    }
}

impl Drop for LeafSegment {
    fn drop(&mut self) {
        // Another region may read what the cache has of the segment.
        if !self.segment.end_reading() {
            return;
        }
        let resident = self.resident.get().map(|(index, _)| Arc::clone(index));
        match resident.or_else(|| self.cache.index(self.segment.serial())) {
            Some(index) => self.cache.forget(self.segment.serial(), index.leaves().iter().map(|leaf| leaf.offset)),
            // Packed leaves may begin anywhere: they stay until others need their room.
            None => {
                let leaves = (0..self.tree.pointer.offset()).step_by(BLOCK_BYTES);
                self.cache.forget(self.segment.serial(), leaves);
            }
        }
    }
}

impl Probe {
    fn range(deleted: Lsn) -> Probe {
        Probe::Found { stamp: deleted.into(), found: EntryContent::Tombstone, from: Source::Range }
    }

    /// No entry, or the tombstone of a deleted range.
    pub(crate) fn absent(deleted: Option<Lsn>) -> Probe {
        deleted.map_or(Probe::Absent, Probe::range)
    }

    /// The result of the leaf; if it has none, the tombstone of a deleted range, if there is one.
    #[inline]
    pub(crate) fn or_else(self, deleted: impl FnOnce() -> Option<Lsn>) -> Probe {
        if matches!(self, Probe::Absent) { Probe::absent(deleted()) } else { self }
    }
}

/// LSN of a segment's range tombstone that covers `key`. An entry of the key in the segment is not older.
#[inline]
fn deleted(index: &LeafIndex, key: &[u8]) -> Option<Lsn> {
    if index.ranges().is_empty() { None } else { index.ranges().covering(key).map(|range| range.lsn) }
}

/// Looks up `key` in a leaf.
pub(crate) fn search<B: Deref<Target = [u8]>>(leaf: &Node<B>, key: &[u8], from: Source) -> Probe {
    let Ok(i) = leaf.search(key) else { return Probe::Absent };
    let (stamp, entry) = leaf.entry(i);
    let found = match entry {
        Entry::InPlace(value) => EntryContent::InPlace(Bytes::copy_from_slice(value)),
        Entry::InLog { pointer, value_bytes } => EntryContent::InLog(pointer, value_bytes),
        Entry::Tombstone => EntryContent::Tombstone,
    };
    Probe::Found { stamp, found, from }
}

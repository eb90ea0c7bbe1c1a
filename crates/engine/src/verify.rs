//! Reads and checks everything in a segment, for `verify` and `inspect`.
//!
//! A walk visits the structures of one segment in order of their offsets, checks each, and shows it to a visitor. After
//! damage it continues if the place of the next structure is known. It reads the device, never a cache, and changes
//! nothing. Any thread. The segment must be pinned, or its volume not in use.

use crate::error::Error;
use crate::log::read_header;
use crate::volume::{Device, Volume};
use bytes::Bytes;
use leeward_format::cluster::Addressing;
use leeward_format::leaf_segment::{Footer, LeafIndex, read_leaf};
use leeward_format::manifest::{SegmentKind, SegmentState};
use leeward_format::node::{Address, BLOCK_BYTES, NODE_BYTES, Node, NodeKind};
use leeward_format::packed::{self, Codec};
use leeward_format::range::RangeTombstones;
use leeward_format::record::{Record, RecordSeed, read_record};
use leeward_format::segment::{LOG_HEADER_BYTES, LogHeader};
use leeward_format::{DecodeError, LogKind, Lsn, RegionId};

/// One structure of a segment.
#[derive(Debug)]
pub enum Item<'a> {
    /// Header of a log segment.
    LogHeader(LogHeader),
    /// A record of a log segment.
    Record {
        /// Offset in the segment, in bytes.
        offset: u32,
        /// Borrowed from the bytes of the segment.
        record: Record<'a>,
    },
    /// Footer of a leaf segment. Shown before its nodes.
    Footer(&'a Footer),
    /// Range tombstones of a leaf segment, if it has any. Shown after its leaves.
    Ranges(&'a RangeTombstones),
    /// A leaf or an index node.
    Node {
        /// Offset in the segment, in bytes.
        offset: u32,
        /// Decompressed, and checked by itself.
        node: &'a Node<Bytes>,
        /// Codec and stored bytes; `None` if it is not compressed.
        packed: Option<(Codec, u32)>,
    },
}

/// Bytes that are not as they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Offset in the volume's file, in bytes.
    pub offset: u64,
    /// What is wrong.
    pub detail: String,
}

/// A segment with damage.
#[derive(Clone, Debug)]
pub struct DamagedSegment {
    /// Its region; of several, the first.
    pub region: RegionId,
    /// As the manifest has it.
    pub segment: SegmentState,
    /// The damage, in order of offsets as far as they are known.
    pub damage: Vec<Damage>,
}

/// Counters and results of a verification. The store is sound if nothing is [damaged](Verification::damaged).
#[derive(Clone, Debug, Default)]
pub struct Verification {
    /// Segments read.
    pub segments: u64,
    /// Bytes whose checksums were computed.
    pub bytes: u64,
    /// Leaves and index nodes.
    pub nodes: u64,
    /// Entries of leaves.
    pub entries: u64,
    /// Range tombstones of leaf segments.
    pub ranges: u64,
    /// Records of logs.
    pub records: u64,
    /// Segments with damage.
    pub damaged: Vec<DamagedSegment>,
}

impl Volume {
    /// Reads every live segment once, even if regions share it, and checks every checksum, while other operations
    /// continue. A segment that is removed meanwhile is still checked, because it is pinned.
    pub fn verify(&self) -> Verification {
        let mut verification = Verification::default();
        for region in self.regions() {
            let Some((state, pinned)) = self.state_and_segments(region) else { continue };
            for segment in state.needed_segments().filter(|segment| self.is_first_holder(region, segment.no)) {
                let of = (region, state.options.addressing);
                verification.check(self.device(), self.segment_bytes(), of, &segment);
            }
            drop(pinned);
        }
        verification
    }
}

impl Verification {
    /// Checks one segment and adds the result.
    pub(crate) fn check(
        &mut self,
        device: &Device,
        segment_bytes: usize,
        (region, addressing): (RegionId, Addressing),
        segment: &SegmentState,
    ) {
        let (mut nodes, mut entries, mut ranges, mut records) = (0, 0, 0, 0);
        let walked = walk(device, segment_bytes, addressing, segment, &mut |item| match item {
            Item::LogHeader(_) | Item::Footer(_) => {}
            Item::Ranges(found) => ranges += found.len() as u64,
            Item::Record { .. } => records += 1,
            Item::Node { node, .. } => {
                nodes += 1;
                entries += if node.kind() == NodeKind::Leaf { node.len() as u64 } else { 0 };
            }
        });
        self.segments += 1;
        self.bytes += walked.bytes;
        self.nodes += nodes;
        self.entries += entries;
        self.ranges += ranges;
        self.records += records;
        if !walked.damage.is_empty() {
            self.damaged.push(DamagedSegment { region, segment: *segment, damage: walked.damage });
        }
    }
}

/// Result of a walk.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    /// Bytes whose checksums were computed.
    pub(crate) bytes: u64,
    pub(crate) damage: Vec<Damage>,
}

/// Walks `segment` of a region with this addressing, read from the device.
pub(crate) fn walk(
    device: &Device,
    segment_bytes: usize,
    addressing: Addressing,
    segment: &SegmentState,
    see: &mut dyn FnMut(Item<'_>),
) -> Walked {
    let most = segment.no.bytes(segment_bytes);
    let wanted = segment.bytes.map_or(most, |bytes| (bytes as usize).min(most));
    let start = segment.no.start(segment_bytes);
    let mut bytes = vec![0; wanted];
    let read = device.read(start, &mut bytes);
    let start = device.file().place(start);
    let detail = match read {
        Err(Error::Io { source, .. }) => format!("cannot be read: {source}"),
        Err(error) => error.to_string(),
        Ok(()) => return walk_bytes(addressing, segment, start, bytes.into(), see),
    };
    Walked { bytes: 0, damage: vec![Damage { offset: start, detail }] }
}

/// Walks the bytes of `segment`, which lies at offset `start` of the file.
pub(crate) fn walk_bytes(
    addressing: Addressing,
    segment: &SegmentState,
    start: u64,
    bytes: Bytes,
    see: &mut dyn FnMut(Item<'_>),
) -> Walked {
    let mut walk = Walk { addressing, segment, start, see, walked: Walked::default() };
    match segment.kind {
        SegmentKind::Log(log) => walk.log(log, &bytes),
        SegmentKind::Leaf => walk.leaf(&bytes),
        SegmentKind::Index => walk.index(&bytes),
    }
    walk.walked
}

struct Walk<'a> {
    addressing: Addressing,
    segment: &'a SegmentState,
    start: u64,
    see: &'a mut dyn FnMut(Item<'_>),
    walked: Walked,
}

impl Walk<'_> {
    fn note(&mut self, offset: usize, detail: impl ToString) {
        self.walked.damage.push(Damage { offset: self.start + offset as u64, detail: detail.to_string() });
    }

    fn address(&self, offset: usize) -> Address {
        Address { region: self.segment.origin, segment: self.segment.id, offset: offset as u32 }
    }

    /// Checks records from the header to their end. Records not known to be durable may end anywhere: that is a tear,
    /// not damage.
    fn log(&mut self, log: LogKind, bytes: &[u8]) {
        let durable = self.segment.certain_bytes() as usize;
        let is_untouched = bytes.iter().take(LOG_HEADER_BYTES).all(|byte| *byte == 0);
        let (end, error) = match read_header(bytes, self.segment.origin, log, self.segment.id) {
            Ok(header) => {
                (self.see)(Item::LogHeader(header));
                self.records(log, bytes)
            }
            Err(_) if is_untouched && durable == 0 => return,
            Err(error) => (0, Some(error)),
        };
        self.walked.bytes += end as u64;
        let is_padding = self.segment.is_run() && bytes[end..].iter().all(|byte| *byte == 0);
        if end < durable && !(is_padding && durable - end < BLOCK_BYTES) {
            let detail = error.map_or_else(|| "the records end too early".into(), |error| error.to_string());
            self.note(end, format!("{detail}; records were durable up to byte {durable} of the segment"));
        }
    }

    /// End of the records, and the error that ends them, if any.
    fn records(&mut self, log: LogKind, bytes: &[u8]) -> (usize, Option<DecodeError>) {
        let seed = RecordSeed::new(self.segment.origin, log, self.segment.id);
        let (mut offset, mut last) = (LOG_HEADER_BYTES, Lsn(0));
        loop {
            let record = match read_record(seed, &bytes[offset..]) {
                Ok(Some(record)) => record,
                Ok(None) => return (offset, None),
                Err(error) => return (offset, Some(error)),
            };
            if record.stamp.lsn <= last && !self.segment.is_run() {
                let detail = format!("LSN {} after {last}", record.stamp.lsn);
                return (offset, Some(DecodeError::invalid("record", detail)));
            }
            last = record.stamp.lsn;
            (self.see)(Item::Record { offset: offset as u32, record });
            offset += record.bytes();
        }
    }

    fn leaf(&mut self, bytes: &Bytes) {
        let footer = match Footer::parse(bytes, self.address(0)) {
            Ok(footer) if footer.end as usize == bytes.len() => footer,
            Ok(_) => return self.note(0, "the footer is of a segment of another length"),
            Err(error) => return self.note(bytes.len(), error),
        };
        (self.see)(Item::Footer(&footer));
        let tree_at = footer.tree_at as usize;
        let index =
            LeafIndex::parse(&bytes.slice(tree_at..), self.address(tree_at), self.segment.name(self.addressing));
        let index = match index {
            Ok(index) => index,
            Err(error) => return self.note(tree_at, error),
        };
        let mut last_key = Vec::new();
        for leaf in index.leaves().iter() {
            let stored = bytes.slice(leaf.offset as usize..(leaf.offset + leaf.bytes) as usize);
            self.walked.bytes += u64::from(leaf.bytes);
            match read_leaf(&stored, self.address(leaf.offset as usize)) {
                Ok(node) => {
                    let packed = packed::describe(&stored);
                    (self.see)(Item::Node { offset: leaf.offset, node: &node, packed });
                    self.keys_in_order(&node, leaf.offset, &mut last_key);
                    self.unhidden(&node, leaf.offset, index.ranges());
                }
                Err(error) => self.note(leaf.offset as usize, error),
            }
        }
        if !index.ranges().is_empty() {
            (self.see)(Item::Ranges(index.ranges()));
        }
        // The index has already checked its nodes, its filter and the footer.
        for (node, offset) in index.nodes().iter().zip((footer.tree_at..).step_by(NODE_BYTES)) {
            (self.see)(Item::Node { offset, node, packed: None });
        }
        self.walked.bytes += u64::from(footer.end - footer.tree_at);
    }

    fn keys_in_order(&mut self, node: &Node<Bytes>, offset: u32, last: &mut Vec<u8>) {
        let mut key = Vec::new();
        for i in 0..node.len() {
            key.clear();
            node.key_into(i, &mut key);
            if !last.is_empty() && key <= *last {
                return self.note(offset as usize, format!("entry {i} is not above the key before it"));
            }
            std::mem::swap(last, &mut key);
        }
    }

    /// Checks that no entry is older than a range tombstone that covers it.
    fn unhidden(&mut self, node: &Node<Bytes>, offset: u32, ranges: &RangeTombstones) {
        let mut key = Vec::new();
        for i in 0..if ranges.is_empty() { 0 } else { node.len() } {
            node.key_into(i, &mut key);
            if ranges.covering(&key).is_some_and(|range| range.lsn > node.entry(i).0.lsn) {
                return self.note(offset as usize, format!("entry {i} is older than the range tombstone over it"));
            }
        }
    }

    /// Index nodes, one after another.
    fn index(&mut self, bytes: &Bytes) {
        for offset in (0..bytes.len()).step_by(NODE_BYTES) {
            self.node(bytes, offset..(offset + NODE_BYTES).min(bytes.len()));
        }
    }

    fn node(&mut self, bytes: &Bytes, place: std::ops::Range<usize>) {
        let offset = place.start;
        self.walked.bytes += place.len() as u64;
        match Node::parse(bytes.slice(place), self.address(offset)) {
            Ok(node) if node.kind() == NodeKind::Index => {
                (self.see)(Item::Node { offset: offset as u32, node: &node, packed: None });
            }
            Ok(_) => self.note(offset, "a leaf in an index segment"),
            Err(error) => self.note(offset, error),
        }
    }
}

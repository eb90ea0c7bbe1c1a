//! The memory of a hash index: parts that are allocated and given back as a whole, and the address space of lines that
//! they make.
//!
//! ```text
//!  part 0    | board | home buckets from line 0 on |             for the life of the index
//!  part n    | overflow buckets                    |             for the life of the index
//!  part n    | records of one size class           |  uses       given up when its records are cleared
//! ```
//! Lines are numbered once: a part that comes later has lines that none had before. *Uses* says for each record whether
//! there is one, and how often it was used since the clock's hand passed.

use super::classes::PartLines;
use super::{HashMemories, HashMemory};
use leeward_format::hash_index::{
    BOARD_BYTES, BUCKET_SLOTS, Board, BytesToRead, Content, Extent, LINE_BYTES, Line, MAX_EXTENTS, WORD_BYTES,
    WordWrite,
};
use leeward_platform::planted::most_index_bytes;
use std::io;

/// A part has one in so many bytes of the index, if that is between these bounds.
const PARTS: u64 = 64;
const LEAST_PART_BYTES: u64 = 64 << 10;
/// The same, where tests want [tiny indexes](most_index_bytes).
const TINY_PART_BYTES: u64 = 512;
const MOST_PART_BYTES: u64 = 16 << 20;
/// Overflow buckets come in parts that are smaller by this factor.
const BUCKET_PART: u64 = 4;
/// Most uses of a record that count.
const MOST_USES: u8 = 3;
/// After a failed allocation so many more are not tried.
const REST: u32 = 4096;

struct Part {
    first: u32,
    lines: u32,
    content: Content,
    memory: Box<dyn HashMemory>,
    /// Offset of its first line in the memory.
    base: usize,
    /// For each record: 0, there is none; otherwise one more than its uses. None for buckets.
    uses: Vec<u8>,
}

impl Part {
    fn class(&self) -> Option<u16> {
        match self.content {
            Content::Records { class } => Some(class),
            Content::Buckets => None,
        }
    }

    fn bytes(&self) -> u64 {
        (self.base + self.lines as usize * LINE_BYTES + self.uses.len()) as u64
    }

    /// Offset in its memory of an offset in the address space.
    fn offset(&self, at: u64) -> usize {
        self.base + (at - u64::from(self.first) * LINE_BYTES as u64) as usize
    }

    /// The uses of the record that begins at `line`.
    fn uses_at(&mut self, line: Line) -> Option<&mut u8> {
        let (behind, class) = (line.0.checked_sub(self.first)?, u32::from(self.class()?));
        if !behind.is_multiple_of(class) {
            return None;
        }
        self.uses.get_mut((behind / class) as usize)
    }
}

/// A part that is being given up.
#[derive(Clone, Copy)]
struct Emptying {
    first: Line,
    /// Its records before this one are cleared.
    next: usize,
}

/// The memory of a hash index.
pub(super) struct IndexMemory {
    memories: Box<dyn HashMemories>,
    /// Ascending by line.
    parts: Vec<Part>,
    next_line: u64,
    part_bytes: u64,
    bytes: u64,
    version: u32,
    emptying: Option<Emptying>,
    /// Overflow buckets that were never used: the next, and the end.
    fresh_buckets: (u32, u32),
    /// Allocations that are not tried.
    rests: u32,
}

impl IndexMemory {
    /// `buckets` home buckets, for an index of `limit` bytes.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn new(memories: Box<dyn HashMemories>, buckets: u32, limit: u64) -> io::Result<IndexMemory> {
        let least = if most_index_bytes().is_some() { TINY_PART_BYTES } else { LEAST_PART_BYTES };
        let part_bytes = (limit / PARTS).next_power_of_two().clamp(least, MOST_PART_BYTES);
        let mut parts = IndexMemory {
            memories,
            parts: Vec::new(),
            next_line: 0,
            part_bytes,
            bytes: 0,
            version: 0,
            emptying: None,
            fresh_buckets: (0, 0),
            rests: 0,
        };
        parts.allocate(buckets, Content::Buckets, BOARD_BYTES)?;
        Ok(parts)
    }

    fn allocate(&mut self, lines: u32, content: Content, base: usize) -> io::Result<PartLines> {
        let memory = self.memories.allocate(base + lines as usize * LINE_BYTES)?;
        let first = self.next_line as u32;
        let records = match content {
            Content::Records { class } => lines / u32::from(class),
            Content::Buckets => 0,
        };
        let part = Part { first, lines, content, memory, base, uses: vec![0; records as usize] };
        self.bytes += part.bytes();
        self.next_line += u64::from(lines);
        self.version += 1;
        self.parts.push(part);
        Ok((Line(first), lines))
    }

    /// Whether there may be another part within `limit` bytes.
    pub(super) fn has_room(&self, limit: u64) -> bool {
        let lines = self.part_bytes / LINE_BYTES as u64;
        self.bytes + self.part_bytes <= limit
            && self.parts.len() < MAX_EXTENTS
            && self.next_line + lines <= u64::from(u32::MAX)
    }

    /// Another part, for records of so many lines; `None` if there is no memory.
    pub(super) fn add(&mut self, class: u16) -> Option<PartLines> {
        let records = (self.part_bytes / LINE_BYTES as u64) as u32 / u32::from(class);
        // Only a tiny part is too small for a record.
        (records > 0).then(|| self.try_allocate(records * u32::from(class), Content::Records { class }))?
    }

    fn try_allocate(&mut self, lines: u32, content: Content) -> Option<PartLines> {
        if self.rests > 0 {
            self.rests -= 1;
            return None;
        }
        let allocated = self.allocate(lines, content, 0);
        allocated.inspect_err(|error| tracing::warn!(%error, "no memory for more of a hash index")).ok().or_else(|| {
            self.rests = REST;
            None
        })
    }

    /// An overflow bucket that was never used; `None` if there is no memory within `limit` bytes.
    pub(super) fn new_bucket(&mut self, limit: u64) -> Option<Line> {
        if self.fresh_buckets.0 == self.fresh_buckets.1 {
            if !self.has_room(limit) {
                return None;
            }
            let lines = self.part_bytes / BUCKET_PART / LINE_BYTES as u64;
            let (first, lines) = self.try_allocate(lines as u32, Content::Buckets)?;
            self.fresh_buckets = (first.0, first.0 + lines);
        }
        self.fresh_buckets.0 += 1;
        Some(Line(self.fresh_buckets.0 - 1))
    }

    /// Memory in use, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of a part of records.
    pub(super) fn part_bytes(&self) -> u64 {
        self.part_bytes
    }

    /// Counts the parts that came and went.
    pub(super) fn version(&self) -> u32 {
        self.version
    }

    /// Descriptors of the memories, which lines are in them, and the place of the board.
    pub(super) fn granted(&self) -> (Vec<bytes::Bytes>, Vec<Extent>, BytesToRead) {
        let extent = |(memory, part): (u16, &Part)| Extent {
            first: Line(part.first),
            lines: part.lines,
            content: part.content,
            memory,
            offset: part.base as u64,
        };
        let extents = (0..).zip(&self.parts).map(extent).collect();
        let board = BytesToRead { memory: 0, offset: 0, bytes: BOARD_BYTES as u32 };
        (self.parts.iter().map(|part| part.memory.descriptor()).collect(), extents, board)
    }

    pub(super) fn write_board(&self, board: Board) {
        let Some(home) = self.parts.first() else { return };
        for (word, at) in board.words().into_iter().zip([0, WORD_BYTES]) {
            home.memory.store(at, word);
        }
    }

    /// Ends remote access to all parts, buckets first.
    pub(super) fn revoke(&self) {
        self.parts.iter().for_each(|part| part.memory.revoke());
    }

    // ---- words ------------------------------------------------------------------------------------------------------

    fn position(&self, line: Line) -> Option<usize> {
        let above = self.parts.partition_point(|part| part.first <= line.0);
        let at = above.checked_sub(1)?;
        (line.0 - self.parts[at].first < self.parts[at].lines).then_some(at)
    }

    fn at(&self, line: Line) -> Option<&Part> {
        self.position(line).map(|at| &self.parts[at])
    }

    fn at_mut(&mut self, line: Line) -> Option<&mut Part> {
        self.position(line).map(|at| &mut self.parts[at])
    }

    /// The part of an offset in the address space that this index uses.
    fn part_of(&self, at: u64) -> &Part {
        self.at(Line((at / LINE_BYTES as u64) as u32)).expect("the index uses the lines that it has")
    }

    /// The word at an offset in the address space.
    pub(super) fn load(&self, at: u64) -> u64 {
        let part = self.part_of(at);
        part.memory.load(part.offset(at))
    }

    pub(super) fn store(&self, write: WordWrite) {
        let part = self.part_of(write.at);
        part.memory.store(part.offset(write.at), write.word);
    }

    /// The words of a bucket.
    pub(super) fn bucket(&self, line: Line) -> [u64; BUCKET_SLOTS + 1] {
        let at = line.word_at(0);
        let (part, mut bytes) = (self.part_of(at), [0; LINE_BYTES]);
        part.memory.read(part.offset(at), &mut bytes);
        let (words, _) = bytes.as_chunks::<WORD_BYTES>();
        std::array::from_fn(|i| u64::from_le_bytes(words[i]))
    }

    /// Reads the first `bytes` bytes of the record at `line`, which has `lines` lines, or all if it is shorter.
    pub(super) fn read(&self, line: Line, bytes: usize, lines: u16, out: &mut Vec<u8>) {
        let at = line.word_at(0);
        let part = self.part_of(at);
        out.resize(bytes.min(usize::from(lines) * LINE_BYTES), 0);
        part.memory.read(part.offset(at), out);
    }

    /// Reads all that may be of the record at `line`.
    pub(super) fn read_record(&self, line: Line, out: &mut Vec<u8>) {
        let class = self.at(line).and_then(Part::class).unwrap_or(1);
        self.read(line, usize::MAX, class, out);
    }

    // ---- uses -------------------------------------------------------------------------------------------------------

    /// Lines of the class at `line`, unless its part is being given up.
    pub(super) fn class_at(&self, line: Line) -> Option<u16> {
        let part = self.at(line)?;
        let is_leaving = self.emptying.is_some_and(|emptying| emptying.first.0 == part.first);
        part.class().filter(|_| !is_leaving)
    }

    /// There is a record at `line`, with so many uses.
    pub(super) fn set_uses(&mut self, line: Line, uses: u8) {
        if let Some(at) = self.at_mut(line).and_then(|part| part.uses_at(line)) {
            *at = 1 + uses.min(MOST_USES);
        }
    }

    /// There is no record at `line`; returns how many uses it had.
    pub(super) fn clear_uses(&mut self, line: Line) -> u8 {
        let uses = self.at_mut(line).and_then(|part| part.uses_at(line));
        uses.map_or(0, |uses| std::mem::take(uses).saturating_sub(1))
    }

    /// A client has read the record at `line`, if there is one.
    pub(super) fn note_use(&mut self, line: Line) {
        if let Some(uses) = self.at_mut(line).and_then(|part| part.uses_at(line)).filter(|uses| **uses > 0) {
            *uses = (*uses + 1).min(1 + MOST_USES);
        }
    }

    /// The clock's hand passes the record at `line`; returns how many uses it had, `None` if there is none.
    pub(super) fn pass(&mut self, line: Line) -> Option<u8> {
        let uses = self.at_mut(line)?.uses_at(line).filter(|uses| **uses > 0)?;
        let had = *uses - 1;
        *uses = 1 + had.saturating_sub(1);
        Some(had)
    }

    // ---- giving a part up -------------------------------------------------------------------------------------------

    pub(super) fn is_emptying(&self) -> bool {
        self.emptying.is_some()
    }

    pub(super) fn begin_emptying(&mut self, (first, _): PartLines) {
        debug_assert!(self.emptying.is_none(), "one at a time");
        self.emptying = Some(Emptying { first, next: 0 });
    }

    /// The next record to clear in the part that is given up.
    pub(super) fn next_to_empty(&mut self) -> Option<Line> {
        let Emptying { first, next } = self.emptying?;
        let part = self.at(first)?;
        let at = next + part.uses.get(next..)?.iter().position(|uses| *uses > 0)?;
        let line = Line(first.0 + at as u32 * u32::from(part.class()?));
        self.emptying = Some(Emptying { first, next: at });
        Some(line)
    }

    /// Gives the part back if it has no record any more; returns whether it did.
    pub(super) fn end_emptying(&mut self) -> bool {
        if self.emptying.is_none() || self.next_to_empty().is_some() {
            return false;
        }
        let Some(at) = self.emptying.take().and_then(|emptying| self.position(emptying.first)) else { return false };
        let part = self.parts.remove(at);
        part.memory.revoke();
        self.bytes -= part.bytes();
        self.version += 1;
        true
    }
}

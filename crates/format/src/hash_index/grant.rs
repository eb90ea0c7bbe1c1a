//! The grant of a table to a client: what the client needs to read it. Part of a message of the native protocol.
//!
//! A table belongs to one region, in one term of its primary. The grant says which memories it is in, how its lines are
//! spread over them, and which keys it is about. [`Grant`] is checked: its home buckets are all there, and each line is
//! in one place at most. So a [`Reader`](super::Reader) asks for no bytes outside of what it was granted, whatever it
//! finds there.
//!
//! Plain data; any thread may use it.

use super::{LINE_BYTES, Line, MAX_CLASS_LINES};
use crate::partition::Partition;
use crate::{DecodeError, Epoch, RegionId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::ops::Deref;

/// Most extents, and most memories, of a table.
pub const MAX_EXTENTS: usize = 4096;
/// Longest descriptor of a memory, in bytes.
pub const MAX_DESCRIPTOR_BYTES: usize = 1024;

const WHAT: &str = "hash index grant";

/// The content of the lines of an extent. It stays the same for the life of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// A bucket each.
    Buckets,
    /// Records of a size class: each begins at a multiple of `class` from the start of the extent.
    Records {
        /// Lines that there are for each, 1 to [`MAX_CLASS_LINES`].
        class: u16,
    },
}

/// A part of a memory that holds lines of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Its first line.
    pub first: Line,
    /// How many, from `first` on.
    pub lines: u32,
    /// What they hold.
    pub content: Content,
    /// Position in [`GrantFields::memories`] of the memory that it is in.
    pub memory: u16,
    /// Offset of its first line in that memory, in bytes, a multiple of [`LINE_BYTES`].
    pub offset: u64,
}

impl Extent {
    /// Line behind its last one.
    fn end(&self) -> u64 {
        u64::from(self.first.0) + u64::from(self.lines)
    }
}

/// Bytes to read from a memory of the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BytesToRead {
    /// Position in [`GrantFields::memories`].
    pub memory: u16,
    /// Offset in bytes, a multiple of [`LINE_BYTES`].
    pub offset: u64,
    /// How many bytes.
    pub bytes: u32,
}

/// The fields of a grant, not checked yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantFields {
    /// The table has keys of this region alone.
    pub region: RegionId,
    /// Term of the primary that grants.
    pub term: Epoch,
    /// Drawn at random for each table, and not 0. Records and board of another table have another one.
    pub nonce: u64,
    /// How the keys of the region's table are split among regions.
    pub partition: Partition,
    /// First key or token of the table, inclusive.
    pub start: Bytes,
    /// Key or token behind its last; `None` for no bound.
    pub end: Option<Bytes>,
    /// Home buckets: the first lines.
    pub buckets: u32,
    /// Descriptors of the memories, which the fabric understands.
    pub memories: Vec<Bytes>,
    /// Ascending by line, and disjoint.
    pub extents: Vec<Extent>,
    /// The [board](super::Board).
    pub board: BytesToRead,
}

/// A checked grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "GrantFields")]
pub struct Grant(GrantFields);

impl Deref for Grant {
    type Target = GrantFields;

    fn deref(&self) -> &GrantFields {
        &self.0
    }
}

impl TryFrom<GrantFields> for Grant {
    type Error = DecodeError;

    fn try_from(fields: GrantFields) -> Result<Grant, DecodeError> {
        let invalid = |detail: String| Err(DecodeError::invalid(WHAT, detail));
        if fields.nonce == 0 || fields.buckets == 0 {
            return invalid("no nonce, or no buckets".into());
        }
        if fields.memories.len() > MAX_EXTENTS || fields.extents.len() > MAX_EXTENTS {
            return invalid(format!("{} memories, {} extents", fields.memories.len(), fields.extents.len()));
        }
        if let Some(long) = fields.memories.iter().find(|memory| memory.len() > MAX_DESCRIPTOR_BYTES) {
            return invalid(format!("a descriptor of {} bytes", long.len()));
        }
        let (mut end, mut home) = (0, 0);
        for extent in &fields.extents {
            if u64::from(extent.first.0) < end || !is_possible(extent, fields.memories.len()) {
                return invalid(format!("extent {extent:?} after line {end}"));
            }
            if extent.content == Content::Buckets && u64::from(extent.first.0) == home {
                home = extent.end();
            }
            end = extent.end();
        }
        if home < fields.buckets.into() {
            return invalid(format!("{} home buckets, of which {home} are there", fields.buckets));
        }
        if !is_within(fields.board, fields.memories.len()) || fields.board.bytes != LINE_BYTES as u32 {
            return invalid(format!("board at {:?}", fields.board));
        }
        Ok(Grant(fields))
    }
}

/// Whether the extent is one of a writer, with so many memories.
fn is_possible(extent: &Extent, memories: usize) -> bool {
    let class = match extent.content {
        Content::Buckets => 1,
        Content::Records { class } => class,
    };
    let bytes = u64::from(extent.lines) * LINE_BYTES as u64;
    (1..=MAX_CLASS_LINES).contains(&class)
        && extent.lines > 0
        && extent.lines.is_multiple_of(class.into())
        && extent.end() <= 1 << 32
        && extent.offset.is_multiple_of(LINE_BYTES as u64)
        && extent.offset.checked_add(bytes).is_some()
        && usize::from(extent.memory) < memories
}

fn is_within(place: BytesToRead, memories: usize) -> bool {
    place.offset.is_multiple_of(LINE_BYTES as u64)
        && place.offset.checked_add(place.bytes.into()).is_some()
        && usize::from(place.memory) < memories
}

impl Grant {
    /// Whether the table is about `key` (rule R3): whatever routes say, no other key is looked for in it.
    pub fn contains(&self, key: &[u8]) -> bool {
        let place = self.partition.place(key);
        *self.start <= *place && self.end.as_ref().is_none_or(|end| *place < **end)
    }

    /// Where a bucket is; `None` if there is none at this line, as far as the grant says.
    pub fn bucket_place(&self, line: Line) -> Option<BytesToRead> {
        let extent = self.extent_of(line)?;
        (extent.content == Content::Buckets).then(|| place(extent, line, 1))
    }

    /// Where a record of `lines` is; `None` if none can begin at this line, as far as the grant says.
    pub fn record_place(&self, line: Line, lines: u16) -> Option<BytesToRead> {
        let extent = self.extent_of(line)?;
        let Content::Records { class } = extent.content else { return None };
        let begins = (line.0 - extent.first.0).is_multiple_of(class.into());
        (begins && (1..=class).contains(&lines)).then(|| place(extent, line, lines))
    }

    fn extent_of(&self, line: Line) -> Option<&Extent> {
        let above = self.extents.partition_point(|extent| extent.first <= line);
        let extent = self.extents.get(above.checked_sub(1)?)?;
        (u64::from(line.0) < extent.end()).then_some(extent)
    }
}

/// The place of some lines of an extent, which has them.
fn place(extent: &Extent, line: Line, lines: u16) -> BytesToRead {
    let before = u64::from(line.0 - extent.first.0) * LINE_BYTES as u64;
    BytesToRead { memory: extent.memory, offset: extent.offset + before, bytes: u32::from(lines) * LINE_BYTES as u32 }
}

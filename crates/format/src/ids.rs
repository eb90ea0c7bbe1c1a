//! Ids and numbers of regions, segments, epochs and so on, and the size limits of keys, values and segments.
//!
//! All are plain integers in little endian wherever they are stored. They are distinct types so that a segment
//! number can never be passed where a segment id is meant.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::fmt;

/// Shortest key, in bytes: the empty key is refused.
pub const MIN_KEY_BYTES: usize = 1;
/// Longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 4 * 1024;
/// Longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 1024 * 1024;
/// Bits of a [`Pointer`] that hold the offset in the segment.
pub const OFFSET_BITS: u32 = 21;
/// The default, and the largest, segment: 2 MiB.
pub const MAX_SEGMENT_BYTES: usize = 1 << OFFSET_BITS;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $int);
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}
macro_rules! shown_as_number {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

shown_as_number!(RegionId Epoch Lsn ServerId Incarnation SegmentName SegmentId);

number!(
    /// A region: unique in the cluster, never reused.
    RegionId(u32)
);
number!(
    /// Version of a replica group's configuration; every change raises it. Fences stale members.
    Epoch(u32)
);
number!(
    /// Log sequence number: dense per region, from 1; 0 means "before the first record".
    Lsn(u64)
);
number!(
    /// A region server, as its operator numbered it.
    ServerId(u32)
);
number!(
    /// One incarnation of a server's process on a volume. Each process that opens the volume has a higher one than
    /// those before it, and has lost their memory. Each volume counts by itself. The high 32 bits are a count, the low
    /// ones are random. So processes on two copies of a volume differ even if their counts are the same.
    Incarnation(u64)
);

impl Incarnation {
    /// The incarnation of the next process, with the random bits `drawn`; `None` if the count is exhausted.
    pub fn next(self, drawn: u32) -> Option<Incarnation> {
        let count = u32::try_from(self.0 >> 32).expect("32 bits are left").checked_add(1)?;
        Some(Incarnation(u64::from(count) << 32 | u64::from(drawn)))
    }
}
number!(
    /// Number of a segment in one volume, which says where it lies: [a whole segment or a part of one](crate::part).
    /// Local to a node.
    SegmentNo(u32)
);
number!(
    /// The name of a segment in pointers, 43 bits: with physical addressing its number on the volume, with logical
    /// addressing a part of its id ([`SegmentId::name`]). See [`crate::cluster::Addressing`].
    SegmentName(u64)
);
number!(
    /// Identity of a segment's content among those made for one region, the same on every replica and never reused:
    /// the term of its primary in the high 24 bits, a counter in the low 40.
    SegmentId(u64)
);

/// The identity of a cluster: of what its coordinator's tree describes. Drawn when the first server registers in an empty
/// tree. 0: not known.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterId(pub u64);

/// The identity of a table, drawn when the table is made. A table of the same name that is made later has another one.
/// 0: not known.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TableId(pub u64);

impl TableId {
    /// Whether the two are of different tables, as far as both are known.
    pub fn is_other_than(self, other: TableId) -> bool {
        self != other && self != TableId(0) && other != TableId(0)
    }
}

macro_rules! shown_as_hex {
    ($($name:ident)*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }
    )*};
}

shown_as_hex!(ClusterId TableId VolumeId);

/// A volume's id, drawn at random when the volume is made. A server that returns with another volume has lost its data.
/// Shown as 16 hex digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u64);

impl Serialize for VolumeId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.collect_str(self),
            false => self.0.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for VolumeId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VolumeId, D::Error> {
        if !deserializer.is_human_readable() {
            return u64::deserialize(deserializer).map(VolumeId);
        }
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map(VolumeId).map_err(D::Error::custom)
    }
}

impl RegionId {
    /// The lowest number of a region. 0 is never used.
    pub const FIRST: RegionId = RegionId(1);
    /// The highest number of a region.
    pub const LAST: RegionId = RegionId(u32::MAX - 1);

    /// Whether a region can have this number.
    pub fn is_possible(self) -> bool {
        (RegionId::FIRST..=RegionId::LAST).contains(&self)
    }
}

impl Lsn {
    /// The LSN after this one.
    pub fn next(self) -> Lsn {
        Lsn(self.0 + 1)
    }
}

impl Epoch {
    /// The highest epoch in which a primary can begin: its term is part of the ids of its segments. A store without
    /// replicas has further terms: see [`Epoch::next_opening`].
    pub const LAST_TERM: Epoch = Epoch((1 << TERM_BITS) - 1);

    /// The epoch after this one. The last epoch stays: a proposal in it is not newer, and is refused.
    pub fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }
    /// Whether a primary can begin in this epoch.
    pub fn can_be_term(self) -> bool {
        self <= Epoch::LAST_TERM
    }
    /// The term of the next opening of a store without replicas, which has begun this one. Each opening is a term. The
    /// first 131,072 are numbered like those of a primary. Later ones have a number of 24 bits and a part from 1 to 127;
    /// part 0 is the number itself. There are two billion; `None` after the last.
    ///
    /// ```
    /// use leeward_format::Epoch;
    /// assert_eq!(Epoch(7).next_opening(), Some(Epoch(8)));
    /// assert_eq!(Epoch(1 << 17).next_opening(), Some(Epoch((1 << 24) + 1)));
    /// assert_eq!(Epoch((1 << 24) + 127).next_opening(), Some(Epoch((1 << 24) + 129)));
    /// ```
    pub fn next_opening(self) -> Option<Epoch> {
        let next = match self.0 {
            few if few < 1 << (TERM_BITS - PART_BITS) => few + 1,
            more if more <= Epoch::LAST_TERM.0 => more << PART_BITS | 1,
            with_part => with_part.checked_add(1)?,
        };
        let next = if next > Epoch::LAST_TERM.0 && part_of(next) == 0 { next.checked_add(1)? } else { next };
        Some(Epoch(next)).filter(|next| next.has_ids())
    }
    /// Whether segments can be made in this term: by a primary, or by a store without replicas.
    pub fn has_ids(self) -> bool {
        self.can_be_term() || self.0 >> PART_BITS <= Epoch::LAST_TERM.0 && part_of(self.0) > 0
    }
}

/// Highest number of a server whose backups can build their own index: it is part of the ids of their segments.
pub const MAX_BUILDER: u32 = (1 << 12) - 1;
const BUILDER_COUNTER_BITS: u32 = 27;
/// Bits of a [`SegmentId`].
const TERM_BITS: u32 = 24;
const COUNTER_BITS: u32 = 40;
/// Bits of the part in the term of an opening: see [`Epoch::next_opening`]. They lie above the ordinal.
const PART_BITS: u32 = 7;
/// Bits of a logical [`SegmentName`].
const NAME_TERM_BITS: u32 = 10;
const NAME_ORDINAL_BITS: u32 = 32;
/// Bit of the counter of a segment that a backup built.
const BUILT_BY_BACKUP: u64 = 1 << (COUNTER_BITS - 1);

/// The part of a term beyond [`Epoch::LAST_TERM`].
const fn part_of(term: u32) -> u32 {
    term & ((1 << PART_BITS) - 1)
}

impl SegmentId {
    /// Segments that one primary can make in one term: the ordinals that fit into a logical [`SegmentName`].
    pub const MOST_OF_TERM: u64 = 1 << NAME_ORDINAL_BITS;

    /// Segments that one backup can build by itself in one term.
    pub const MOST_BUILT: u64 = 1 << BUILDER_COUNTER_BITS;

    /// The `counter`-th segment made by the primary of `term`.
    ///
    /// # Panics
    /// If there is no such id. [`SegmentId::made_by`] returns `None` instead.
    pub fn new(term: Epoch, counter: u64) -> SegmentId {
        SegmentId::made_by(term, counter).expect("a segment id out of range")
    }
    /// The `counter`-th segment made by the primary of `term`; `None` if there is no such id: beyond
    /// [the last term](Epoch::has_ids), or [`SegmentId::MOST_OF_TERM`] segments in a term.
    ///
    /// ```
    /// use leeward_format::{Epoch, SegmentId};
    /// assert_eq!(SegmentId::made_by(Epoch(5), 9), Some(SegmentId::new(Epoch(5), 9)));
    /// assert_eq!(SegmentId::made_by(Epoch::LAST_TERM.next(), 9), None);
    /// assert_eq!(SegmentId::made_by(Epoch(5), SegmentId::MOST_OF_TERM), None);
    /// ```
    pub fn made_by(term: Epoch, counter: u64) -> Option<SegmentId> {
        (counter < SegmentId::MOST_OF_TERM).then(|| SegmentId::of(term, counter)).flatten()
    }
    /// The lowest id of `term`: ids of this and of later terms are not below it.
    pub fn first_of(term: Epoch) -> SegmentId {
        SegmentId::of(term, 0).unwrap_or(SegmentId(u64::MAX))
    }
    /// Ids of later terms are higher.
    fn of(term: Epoch, counter: u64) -> Option<SegmentId> {
        let (number, part) = match term.can_be_term() {
            true => (term.0, 0),
            false => (term.0 >> PART_BITS, part_of(term.0)),
        };
        let fits = term.has_ids() && counter < 1 << if part == 0 { COUNTER_BITS } else { NAME_ORDINAL_BITS };
        fits.then(|| SegmentId(u64::from(number) << COUNTER_BITS | u64::from(part) << NAME_ORDINAL_BITS | counter))
    }
    /// The `counter`-th segment that the backup on `server` built by itself (build-index) in `term`; `None` if there is
    /// no such id: beyond [`MAX_BUILDER`] or [`Epoch::LAST_TERM`], or 2^27 segments in a term.
    ///
    /// ```
    /// use leeward_format::{Epoch, SegmentId, ServerId};
    /// let id = SegmentId::built_by(Epoch(5), ServerId(7), 9).expect("a small server");
    /// assert_eq!((id.term(), id.builder()), (Epoch(5), Some((ServerId(7), 9))));
    /// assert_eq!(SegmentId::new(Epoch(5), 9).builder(), None);
    /// assert_eq!(SegmentId::built_by(Epoch(5), ServerId(4096), 9), None);
    /// ```
    pub fn built_by(term: Epoch, server: ServerId, counter: u64) -> Option<SegmentId> {
        let fits = server.0 <= MAX_BUILDER && counter < SegmentId::MOST_BUILT && term.can_be_term();
        let counter = BUILT_BY_BACKUP | u64::from(server.0) << BUILDER_COUNTER_BITS | counter;
        fits.then(|| SegmentId::of(term, counter)).flatten()
    }
    /// The server whose backup built it, and its number there; `None` for a segment that a primary made.
    pub fn builder(self) -> Option<(ServerId, u64)> {
        let counter = self.counter();
        let server = (counter & !BUILT_BY_BACKUP) >> BUILDER_COUNTER_BITS;
        let number = counter & ((1 << BUILDER_COUNTER_BITS) - 1);
        (counter & BUILT_BY_BACKUP != 0).then_some((ServerId(server as u32), number))
    }
    /// Term of the primary that made the segment.
    pub fn term(self) -> Epoch {
        let number = (self.0 >> COUNTER_BITS) as u32;
        match self.part() {
            0 => Epoch(number),
            part => Epoch(number << PART_BITS | part),
        }
    }
    /// Part of its term; 0 if that is a number alone.
    fn part(self) -> u32 {
        if self.0 & BUILT_BY_BACKUP != 0 { 0 } else { part_of((self.0 >> NAME_ORDINAL_BITS) as u32) }
    }
    /// Ordinal of the segment among those of its term.
    pub fn counter(self) -> u64 {
        let bits = if self.0 & BUILT_BY_BACKUP != 0 { COUNTER_BITS } else { NAME_ORDINAL_BITS };
        self.0 & ((1 << bits) - 1)
    }
    /// Its name in pointers with logical addressing, the same on every volume: whether a backup built it (1 bit), the
    /// lowest bits of its term (10) and its ordinal (32). Names can repeat only after 1024 terms, and a node that makes
    /// a segment skips names that are in use. So a copy's segments have different names.
    ///
    /// ```
    /// use leeward_format::{Epoch, SegmentId, SegmentName};
    /// assert_eq!(SegmentId::new(Epoch(1027), 9).name(), SegmentName(3 << 32 | 9));
    /// ```
    pub fn name(self) -> SegmentName {
        let (built, ordinal) = match self.builder() {
            Some((_, number)) => (1, number),
            None => (0, self.counter()),
        };
        let term = u64::from(self.term().0) & ((1 << NAME_TERM_BITS) - 1);
        SegmentName((built << NAME_TERM_BITS | term) << NAME_ORDINAL_BITS | ordinal)
    }
}

impl SegmentName {
    /// With logical addressing, segments whose terms differ by less than this have different names.
    pub const TERMS: u32 = 1 << NAME_TERM_BITS;

    /// The segment's number on the volume, with physical addressing. A hostile name with higher bits saturates.
    pub fn no(self) -> SegmentNo {
        SegmentNo(u32::try_from(self.0).unwrap_or(u32::MAX))
    }
}

/// A place in a region's segments: the segment's name in the high 43 bits, the offset in bytes in the low 21.
///
/// ```
/// use leeward_format::{Pointer, SegmentName};
/// let p = Pointer::new(SegmentName(7), 4096);
/// assert_eq!((p.segment(), p.offset()), (SegmentName(7), 4096));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pointer(pub u64);

impl Pointer {
    /// The place `offset` bytes into `segment`.
    pub fn new(segment: SegmentName, offset: u32) -> Pointer {
        debug_assert!((offset as usize) < MAX_SEGMENT_BYTES && segment.0 >> (64 - OFFSET_BITS) == 0);
        Pointer(segment.0 << OFFSET_BITS | u64::from(offset))
    }
    /// Name of the segment.
    pub fn segment(self) -> SegmentName {
        SegmentName(self.0 >> OFFSET_BITS)
    }
    /// Offset in the segment, in bytes.
    pub fn offset(self) -> u32 {
        (self.0 & (MAX_SEGMENT_BYTES as u64 - 1)) as u32
    }
}

impl fmt::Debug for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.segment().0, self.offset())
    }
}

/// One of a region's logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LogKind {
    /// Records of small and medium values while they are in L0; trimmed when L0s are compacted (Anthus 2.4.4).
    Recovery,
    /// Records of large values, which leaves point to (Anthus 2.4.2).
    Large,
    /// Medium values above the last level, as sorted runs that compactions write (Anthus 2.4.3). It has no tail, and
    /// replay does not read it.
    Medium,
}

impl LogKind {
    /// The logs that writes are appended to and that replay reads, in the order of [`LogKind::index`].
    pub const APPENDED: [LogKind; 2] = [LogKind::Recovery, LogKind::Large];
    /// Position in per-log arrays.
    pub fn index(self) -> usize {
        self as usize
    }
    /// For messages about tails: refuses the medium log, which has none. So arrays with a place for each appended log
    /// can be indexed by any decoded message.
    pub(crate) fn deserialize_appended<'de, D: Deserializer<'de>>(input: D) -> Result<LogKind, D::Error> {
        let log = LogKind::deserialize(input)?;
        match LogKind::APPENDED.contains(&log) {
            true => Ok(log),
            false => Err(D::Error::custom("a message about a tail of a log that is not appended to")),
        }
    }
    /// Whether leaves point to its records.
    pub fn holds_values(self) -> bool {
        self != LogKind::Recovery
    }
}

#[cfg(test)]
#[path = "ids_tests.rs"]
mod tests;

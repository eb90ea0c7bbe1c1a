//! What the policy sees: a picture of the region. Levels show themselves through [`LevelPicture`], and the rest is plain
//! data, so a picture can also be drawn by hand: `testdata` has some.
//!
//! Memory only: of a leaf segment whose index is not in memory, little is known.

use super::{Lane, Logs};
use crate::reads::ScanCosts;
use crate::tree::{IndexRef, Level};
use crate::volume::CompactionRoom;
use leeward_format::leaf_segment::{Footer, LeafIndex};
use leeward_format::manifest::L1_RUNS;
use leeward_format::{Lsn, UnixMs};
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

/// A region, as the policy sees it.
pub(super) struct Picture<'a> {
    /// Frozen L0s whose records are all committed, oldest first.
    pub(super) l0s: Vec<L0Picture>,
    /// Fewer L0s than this can wait.
    pub(super) least_l0s: usize,
    /// Levels by position, empty ones too: at least those that L1 may have.
    pub(super) levels: Vec<&'a dyn LevelPicture>,
    /// Size of a segment of the volume, in bytes.
    pub(super) segment_bytes: u64,
    /// Room on the device.
    pub(super) room: CompactionRoom,
    /// The same, if the reserve may be used.
    pub(super) room_with_reserve: CompactionRoom,
    /// Compactions under way may still take room.
    pub(super) is_room_planned: bool,
    /// What scans pay for how the data lies.
    pub(super) scan_costs: &'a ScanCosts,
    /// The logs that leaves point to.
    pub(super) logs: &'a Logs<'a>,
    /// The kind of compaction that is wanted.
    pub(super) lane: Lane,
    pub(super) now: UnixMs,
}

/// A frozen L0.
#[derive(Clone, Copy, Debug)]
pub(super) struct L0Picture {
    /// Bytes of memory.
    pub(super) bytes: u64,
    /// LSN of its last record.
    pub(super) last_lsn: Lsn,
}

pub(in crate::compaction) trait LevelPicture {
    /// Bytes of keys and values in place.
    fn bytes(&self) -> u64;
    /// Entries, tombstones included.
    fn entries(&self) -> u64;
    /// See [`Level::overlap`].
    fn overlap(&self) -> f64;
    /// Number of leaf segments.
    fn leaf_segments(&self) -> usize;
    /// Bytes in use of a leaf segment.
    fn leaf_segment_bytes(&self, i: usize) -> u64;
    /// Lower bound of the keys of a leaf segment.
    fn fence(&self, i: usize) -> &[u8];
    /// The leaf segment whose range contains `key`. The level must not be empty.
    fn segment_of(&self, key: &[u8]) -> usize;
    /// Positions of the leaf segments with range tombstones, ascending.
    fn ranged(&self) -> &[usize];
    /// The footer of a leaf segment, if it is in memory.
    fn footer(&self, i: usize) -> Option<FooterRef<'_>>;
    /// Whether it has no leaf segment.
    fn is_empty(&self) -> bool {
        self.leaf_segments() == 0
    }
}

/// Levels by position.
pub(in crate::compaction) type Levels<'a> = [&'a dyn LevelPicture];

/// A footer, borrowed from its level or shared with the cache.
pub(in crate::compaction) enum FooterRef<'a> {
    /// Of the level.
    Resident(&'a Footer),
    /// Of the cache.
    Cached(Arc<LeafIndex>),
}

impl Deref for FooterRef<'_> {
    type Target = Footer;

    fn deref(&self) -> &Footer {
        match self {
            FooterRef::Resident(footer) => footer,
            FooterRef::Cached(index) => index.footer(),
        }
    }
}

impl LevelPicture for Level {
    fn bytes(&self) -> u64 {
        self.bytes()
    }

    fn entries(&self) -> u64 {
        self.state().entries
    }

    fn overlap(&self) -> f64 {
        self.overlap()
    }

    fn leaf_segments(&self) -> usize {
        self.segments().len()
    }

    fn leaf_segment_bytes(&self, i: usize) -> u64 {
        self.segments()[i].end() as u64
    }

    fn fence(&self, i: usize) -> &[u8] {
        self.fence(i)
    }

    fn segment_of(&self, key: &[u8]) -> usize {
        self.segment_of(key)
    }

    fn ranged(&self) -> &[usize] {
        self.ranged()
    }

    fn footer(&self, i: usize) -> Option<FooterRef<'_>> {
        Some(match self.segments()[i].index_in_memory()? {
            IndexRef::Resident(index) => FooterRef::Resident(index.footer()),
            IndexRef::Cached(index) => FooterRef::Cached(index),
        })
    }
}

/// The level at a position where a region has none.
static NO_LEVEL: LazyLock<Level> = LazyLock::new(Level::empty);

impl<'a> Picture<'a> {
    /// The level at a position; one without entries where the region has none.
    pub(super) fn level(&self, position: usize) -> &'a dyn LevelPicture {
        self.levels.get(position).copied().unwrap_or(&*NO_LEVEL)
    }

    /// Position of the last level that is not empty; 0 if all are.
    pub(super) fn last(&self) -> usize {
        self.levels.iter().rposition(|level| !level.is_empty()).unwrap_or(0)
    }
}

/// Pictures of levels by position, with empty ones for those that L1 may have.
pub(super) fn pictures(levels: &[Arc<Level>]) -> Vec<&dyn LevelPicture> {
    let mut all: Vec<&dyn LevelPicture> = levels.iter().map(|level| &**level as &dyn LevelPicture).collect();
    all.resize(levels.len().max(L1_RUNS), &*NO_LEVEL);
    all
}

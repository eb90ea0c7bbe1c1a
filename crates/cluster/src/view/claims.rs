//! Which keys a region had at an epoch, and what a newer region shows of that.
//!
//! ```text
//!  split at m, epoch 6:   region 1  [a, z) 5  ->  region 1  [a, m) 6, region 2  [m, z) 6
//!  merged, epoch 9:       region 2  [m, z) 8  ->  region 1  [a, z) 9
//! ```
//! Keys go from one region to another by a split or a merge, and the region that gets them has a higher epoch then than the other
//! one ever had with these keys. So of all that had a key, the present region has the highest epoch.
//!
//! A split gives the last keys of a region away. So a region that a newer one begins in ends there; and one whose first key is in
//! a newer one is over: it was merged, or has other keys now, in an epoch of its own that is higher still.
//!
//! Pure; any thread.

use super::{Content, HeldCopy};
use bytes::Bytes;
use leeward_format::cluster::GroupConfig;
use leeward_format::{Epoch, RegionId, TableId};

/// A region had the keys from `start` up to `end` at `epoch`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<'a> {
    pub(super) region: RegionId,
    pub(super) table: &'a str,
    table_id: TableId,
    epoch: Epoch,
    start: &'a Bytes,
    end: Option<&'a Bytes>,
}

/// What newer regions have left of a region's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left<'a> {
    All,
    /// Those before this one.
    UpTo(&'a Bytes),
    Nothing,
}

impl<'a> Claim<'a> {
    pub(super) fn of(config: &'a GroupConfig) -> Claim<'a> {
        let GroupConfig { region, table, table_id, epoch, start, end, .. } = config;
        let (table_id, epoch) = (*table_id, *epoch);
        Claim { region: *region, table, table_id, epoch, start, end: end.as_ref() }
    }

    /// What a copy belongs to. Its term may be newer than what the volume was told of the region's keys.
    pub(super) fn of_copy(region: RegionId, copy: &'a HeldCopy) -> Claim<'a> {
        let identity = &copy.identity;
        let (table_id, epoch) = (identity.table_id, identity.epoch);
        Claim { region, table: &copy.options.name, table_id, epoch, start: &identity.start, end: identity.end.as_ref() }
    }

    fn is_of_table(&self, table: &str, table_id: TableId) -> bool {
        self.table == table && self.table_id == table_id
    }

    /// What these claims have left of this one.
    pub(super) fn left<'b>(&self, others: impl Iterator<Item = Claim<'b>>) -> Left<'b> {
        let mut left = Left::All;
        for other in others {
            let is_newer = other.epoch > self.epoch && other.region != self.region;
            let overlaps = other.end.is_none_or(|end| self.start < end) && self.end.is_none_or(|end| other.start < end);
            if !is_newer || !overlaps || !self.is_of_table(other.table, other.table_id) {
                continue;
            }
            left = match left {
                _ if other.start <= self.start => return Left::Nothing,
                Left::UpTo(end) if end <= other.start => left,
                _ => Left::UpTo(other.start),
            };
        }
        left
    }
}

impl Content {
    /// What the regions of the tree say.
    pub(super) fn claims(&self) -> impl Iterator<Item = Claim<'_>> {
        self.routes.regions().map(|config| Claim::of(config))
    }

    /// Its regions of the table of `claim`.
    pub(super) fn regions_of<'a>(&'a self, claim: &'a Claim<'_>) -> impl Iterator<Item = &'a GroupConfig> {
        let is_of_table = |config: &&GroupConfig| claim.is_of_table(&config.table, config.table_id);
        self.routes.regions().map(|config| &**config).filter(is_of_table)
    }
}

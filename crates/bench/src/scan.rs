//! One scan of a worker: what to ask next, and what was read. In a table that is partitioned by hash, each page is
//! [merged](leeward_format::merge) from the answers of all regions. Plain data; it belongs to its worker.
//!
//! Invariant: with the scan's last answer exactly the wanted records, or all up to the last key, were read.

use bytes::Bytes;
use leeward_client::{Op, OpError, OpResult, RegionMap, ScanRange};
use leeward_format::RegionId;
use leeward_format::merge::{self, Page};
use leeward_format::op::RangeOp;

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;

/// Most regions that are asked at once. Nodes reserve about a MiB of the memory for clients for each answer.
const AT_ONCE: usize = 16;

/// The regions that each page of a scan asks; none if keys are split by ranges: then one region after the other has
/// the keys.
pub(crate) fn asked_regions(map: &RegionMap, table: &str) -> Vec<RegionId> {
    let is_hash = map.table(table).is_some_and(|table| table.partition.is_hash());
    let groups = if is_hash { map.regions_of(table) } else { &[] };
    groups.iter().map(|group| group.region).collect()
}

/// A scan of a worker that is under way.
pub(crate) struct Scan {
    /// Where the next page begins.
    start: Bytes,
    /// Records that are still to be read.
    wanted: u32,
    /// How many regions have answered about this page, and what they have of it together.
    answered: usize,
    page: Option<Page>,
    /// Regions that are asked at once.
    at_once: usize,
}

impl Scan {
    /// Of `wanted` records, at least one, from `start` on.
    pub(crate) fn new(start: Bytes, wanted: u32) -> Scan {
        Scan { start, wanted, answered: 0, page: None, at_once: AT_ONCE }
    }

    /// The operations that are to be executed next, at once; none if the scan is over. `regions` are those of
    /// [`asked_regions`].
    pub(crate) fn next(&self, regions: &[RegionId]) -> Vec<Op> {
        let of = |limit| {
            let (start, end) = (self.start.clone(), None);
            RangeOp::Scan(ScanRange { start, end, reverse: false, limit, keys_only: false })
        };
        if self.wanted == 0 {
            return Vec::new();
        }
        if regions.is_empty() {
            return vec![of(self.wanted).into()];
        }
        let of_region = of(merge::share(self.wanted, regions.len()));
        regions[self.answered..].iter().take(self.at_once).map(|region| of_region.clone().within(*region)).collect()
    }

    /// Takes the results of the operations; returns the records that were read with them.
    ///
    /// # Errors
    /// One of the operations failed.
    pub(crate) fn answered(
        &mut self,
        results: Vec<OpResult>,
        regions: &[RegionId],
    ) -> Result<Vec<(Bytes, Bytes)>, OpError> {
        self.answered += results.len();
        let mut parts: Vec<Page> = self.page.take().into_iter().collect();
        for result in results {
            match result.fresh().0 {
                OpResult::Entries { entries, resume } => parts.push(Page { entries, resume }),
                OpResult::Error(error) => return Err(error),
                other => return Err(OpError::Invalid(format!("unexpected answer {other:?}"))),
            }
        }
        let page = merge::page(parts, self.wanted as usize, false);
        if self.answered < regions.len() {
            self.page = Some(page);
            return Ok(Vec::new());
        }
        self.answered = 0;
        match page.resume {
            Some(start) => {
                self.start = start;
                self.wanted = self.wanted.saturating_sub(page.entries.len() as u32);
            }
            None => self.wanted = 0,
        }
        // Perhaps the answers had no room for the next records.
        if page.entries.is_empty() {
            self.at_once = (self.at_once / 2).max(1);
        }
        Ok(page.entries)
    }
}

//! One ordered scan from scans of regions with interleaved keys, as in a table that is [partitioned by
//! hash or slots](crate::partition::Partition).
//!
//! ```text
//! region 1    a . . . f . | more from h on         The horizon is the first key that some region has not answered about:
//! region 2    . b c . . g                          here d. Entries below it are returned in order. Entries f and g are
//! region 3    . . . | more from d on               asked for again with the next page.
//! page        a b c | resume at d
//! ```
//! Invariant: the pages of a scan, each from the resume point of the one before, return the entries of all regions as
//! one sorted map would.

use bytes::Bytes;

/// A page of a scan: entries in its order, and where to continue. As
/// [`OpResult::Entries`](crate::op::OpResult::Entries).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Keys with values.
    pub entries: Vec<(Bytes, Bytes)>,
    /// Where to continue: the new `start` of a forward scan, the new `end` of a reverse one. `None`: the scan is
    /// complete.
    pub resume: Option<Bytes>,
}

impl Page {
    /// Cuts the page to at most `room` bytes, counting `overhead` for each entry besides its key and value. It may
    /// become empty. The resume point then leads to the entries that were cut off.
    pub fn cut(&mut self, room: usize, overhead: usize, reverse: bool) {
        let mut left = room;
        let mut fits = |(key, value): &(Bytes, Bytes)| {
            let rest = left.checked_sub(key.len() + value.len() + overhead);
            rest.inspect(|rest| left = *rest).is_some()
        };
        let kept = self.entries.iter().take_while(|entry| fits(entry)).count();
        let Some((next, _)) = self.entries.get(kept) else { return };
        // An end is exclusive: the end of the rest is just above the first key that is cut off.
        self.resume = Some(if reverse { [&next[..], &[0]].concat().into() } else { next.clone() });
        self.entries.truncate(kept);
    }
}

/// How many entries to ask each of `regions` regions for, so that the answers probably fill a page of `limit` entries.
/// Entries beyond the horizon are asked for again with the next page.
pub fn share(limit: u32, regions: usize) -> u32 {
    let part = u64::from(limit) * 2 / (regions as u64).max(1) + 2;
    part.min(limit.into()) as u32
}

/// The page of at most `limit` entries from the answers of all regions to the same scan.
pub fn page(parts: Vec<Page>, limit: usize, reverse: bool) -> Page {
    let resumes = parts.iter().filter_map(|part| part.resume.as_ref());
    // The resume point itself is not known yet in a forward scan; in a reverse one, only the keys below it are not.
    let horizon = if reverse { resumes.max() } else { resumes.min() }.cloned();
    let is_known =
        |key: &Bytes| horizon.as_ref().is_none_or(|horizon| if reverse { key >= horizon } else { key < horizon });
    let all = parts.into_iter().flat_map(|part| part.entries);
    let mut entries: Vec<(Bytes, Bytes)> = all.filter(|(key, _)| is_known(key)).collect();
    // The entries are sorted runs, which a stable sort merges.
    match reverse {
        false => entries.sort_by(|(left, _), (right, _)| left.cmp(right)),
        true => entries.sort_by(|(left, _), (right, _)| right.cmp(left)),
    }
    let next = entries.get(limit).map(|(key, _)| key.clone());
    entries.truncate(limit);
    let resume = match (next, reverse) {
        (None, _) => horizon,
        (Some(next), false) => Some(next),
        (Some(next), true) => Some(entries.last().map_or(next, |(last, _)| last.clone())),
    };
    Page { entries, resume }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;

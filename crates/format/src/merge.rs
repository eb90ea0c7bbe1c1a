//! One ordered scan out of scans of regions whose keys are interleaved: those of a table that is
//! [partitioned by hash](crate::partition::Partition::Hash).
//!
//! ```text
//! region 1    a . . . f . | more from h on         What every region has told of is known up to the horizon, the first key
//! region 2    . b c . . g                          that one of them has not told of: here d. Up to there entries are given
//! region 3    . . . | more from d on               out in order; f and g are asked for again with the next page.
//! page        a b c | resume at d
//! ```
//! Invariant: the pages of a scan, each of which begins where the one before says, are what one sorted map of all regions'
//! entries would return. Pure.

use bytes::Bytes;

/// Entries of a scan in its order, and where to continue: the new `start` of a forward scan, the new `end` of a reverse one;
/// `None`: that is all. As [`OpResult::Entries`](crate::op::OpResult::Entries).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Keys with values.
    pub entries: Vec<(Bytes, Bytes)>,
    /// Where to continue.
    pub resume: Option<Bytes>,
}

impl Page {
    /// As much of it as takes at most `room` bytes, with `overhead` for each entry besides its key and value; perhaps nothing.
    /// What is left out is asked for again where it says to continue.
    pub fn cut(&mut self, room: usize, overhead: usize, reverse: bool) {
        let mut left = room;
        let mut fits = |(key, value): &(Bytes, Bytes)| {
            let rest = left.checked_sub(key.len() + value.len() + overhead);
            rest.inspect(|rest| left = *rest).is_some()
        };
        let kept = self.entries.iter().take_while(|entry| fits(entry)).count();
        let Some((next, _)) = self.entries.get(kept) else { return };
        // An end is excluded: that of the rest follows on the first key that is left out.
        self.resume = Some(if reverse { [&next[..], &[0]].concat().into() } else { next.clone() });
        self.entries.truncate(kept);
    }
}

/// How many entries to ask each of so many regions for, so that a page of `limit` entries of all is likely to come of it. Each
/// answers about its part of them; what it has beyond the horizon is asked for twice.
pub fn share(limit: u32, regions: usize) -> u32 {
    let part = u64::from(limit) * 2 / (regions as u64).max(1) + 2;
    part.min(limit.into()) as u32
}

/// The page of at most `limit` entries that results from the answers of all regions to the same scan.
pub fn page(parts: Vec<Page>, limit: usize, reverse: bool) -> Page {
    let resumes = parts.iter().filter_map(|part| part.resume.as_ref());
    // A forward scan continues at its resume, which is not known yet; a reverse one below it.
    let horizon = if reverse { resumes.max() } else { resumes.min() }.cloned();
    let is_known =
        |key: &Bytes| horizon.as_ref().is_none_or(|horizon| if reverse { key >= horizon } else { key < horizon });
    let all = parts.into_iter().flat_map(|part| part.entries);
    let mut entries: Vec<(Bytes, Bytes)> = all.filter(|(key, _)| is_known(key)).collect();
    // Made of runs that ascend, or descend: a sort that keeps order merges those.
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

//! The part of the tree that a client knows, and the paths that it has yet to read. Single reads become states of the tree that
//! existed.
//!
//! ZooKeeper reports which path changed, not its new value, so each notification leads to a read. On one connection a server
//! reports every change before it answers a read that shows that change, or anything later. So whenever no read is left to do,
//! the known tree is the whole tree as it was at one instant: [`Mirror::is_settled`]. Only then are events delivered,
//! with all news at once. While changes come without a pause of one round trip, the events are delayed.
//!
//! Paths are relative to the cluster's path, which is the empty path itself. A path whose value is `None` was only made
//! so that others can be beneath it: the mirror knows it, but reports no event for it. Pure; one thread at a time.

use bytes::Bytes;
use leeward_format::coordinator::Change;
use leeward_format::zookeeper::{MAX_READS, Stat};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Reads that are under way at a time, so that heartbeats do not wait behind more.
const MOST_UNDER_WAY: usize = 4;

/// The known state of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// Number of the change that made its value: the version in operations.
    pub(super) version: u64,
    /// How often its value was replaced: the number that ZooKeeper compares.
    pub(super) changes: i32,
    /// Bytes of its value; `None`: it was only made so that others can be beneath it.
    pub(super) value_bytes: Option<usize>,
    /// Number of the change that made it, and how often its access rights were replaced since.
    rights: (i64, i32),
}

impl Known {
    /// What a read found, and the value as it counts here.
    fn of(path: &str, value: Option<Bytes>, stat: Stat) -> (Known, Option<Bytes>) {
        // The process that made the cluster's own path may have given it a value, which means nothing.
        let value = value.filter(|_| !path.is_empty());
        let (version, value_bytes) = (stat.mzxid.unsigned_abs(), value.as_ref().map(Bytes::len));
        (Known { version, changes: stat.version, value_bytes, rights: (stat.czxid, stat.aversion) }, value)
    }

    fn has_value(&self) -> bool {
        self.value_bytes.is_some()
    }

    /// Whether the access rights were replaced between this state and a `later` one. For a while the user may have been
    /// without the right to read. Servers do not report changes then.
    fn has_other_rights(&self, later: &Known) -> bool {
        self.rights.0 == later.rights.0 && self.rights.1 != later.rights.1
    }
}

/// A change that the server did not report although the client watches the tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreported {
    /// The state of this path.
    #[error("a change of {0:?} was not told: the user could not read it at that time, it seems")]
    Change(String),
    /// The access rights of this path. Others may not have been reported while they were different.
    #[error("the access rights of {0:?} were changed, and what changes meanwhile may not be told")]
    Rights(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// The values of paths, at most [`MAX_READS`].
    Data(Vec<String>),
    /// The names beneath a path.
    Children(String),
}

/// The known part of the tree.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    paths: BTreeMap<String, Known>,
    /// Paths whose values are to be read.
    wanted: BTreeSet<String>,
    /// Paths beneath which names are to be read.
    unlisted: Vec<String>,
    /// Reads that are not answered.
    under_way: usize,
    /// News to be told, by path.
    news: BTreeMap<String, Change>,
    /// The whole tree was told once. ZooKeeper reports new paths by itself from then on.
    is_whole: bool,
    /// The highest version that was told.
    told: u64,
}

impl Mirror {
    /// `path` changed, or is to be read for the first time.
    pub(super) fn changed(&mut self, path: String) {
        self.wanted.insert(path);
    }

    /// The next read to be sent, if there is one. The caller then calls [`Mirror::answered`], and reports what the read found.
    pub(super) fn next_read(&mut self) -> Option<Read> {
        if self.under_way >= MOST_UNDER_WAY {
            return None;
        }
        let read = match self.unlisted.pop() {
            Some(path) => Read::Children(path),
            None if self.wanted.is_empty() => return None,
            // A path that changes from here on is to be read again.
            None => Read::Data(std::iter::from_fn(|| self.wanted.pop_first()).take(MAX_READS).collect()),
        };
        self.under_way += 1;
        Some(read)
    }

    /// A read is to be repeated.
    pub(super) fn again(&mut self, read: Read) {
        match read {
            Read::Data(paths) => self.wanted.extend(paths),
            Read::Children(path) => self.unlisted.push(path),
        }
    }

    /// A read was answered.
    pub(super) fn answered(&mut self) {
        self.under_way -= 1;
    }

    /// A read found a path, with or without a value.
    ///
    /// # Errors
    /// Its access rights were replaced, so that changes may not have been reported. The whole tree is to be read anew.
    pub(super) fn found(&mut self, path: String, value: Option<Bytes>, stat: Stat) -> Result<(), Unreported> {
        // Only once: ZooKeeper reports later paths beneath it by itself.
        if !self.is_whole && stat.children > 0 && !self.paths.contains_key(&path) {
            self.unlisted.push(path.clone());
        }
        let (known, value) = Known::of(&path, value, stat);
        let before = self.paths.insert(path.clone(), known);
        if before.is_some_and(|before| before.has_other_rights(&known)) {
            return Err(Unreported::Rights(path));
        }
        let had_value = before.is_some_and(|before| before.has_value());
        if before != Some(known) && (known.has_value() || had_value) {
            self.news.insert(path.clone(), Change { path, version: known.version, value });
        }
        Ok(())
    }

    /// Compares the known state of a path with what a read found; `None`: nothing.
    ///
    /// # Errors
    /// They differ.
    pub(super) fn compare(&self, path: &str, found: Option<(Option<Bytes>, Stat)>) -> Result<(), Unreported> {
        let found = found.map(|(value, stat)| Known::of(path, value, stat).0);
        match (self.get(path), found) {
            (Some(before), Some(found)) if before.has_other_rights(&found) => Err(Unreported::Rights(path.to_owned())),
            (known, found) if known == found => Ok(()),
            _ => Err(Unreported::Change(path.to_owned())),
        }
    }

    /// The known paths after `path`, ascending; all of them: `None`.
    pub(super) fn paths_after(&self, path: Option<&str>) -> impl Iterator<Item = (&String, &Known)> {
        let from = path.map_or(Bound::Unbounded, Bound::Excluded);
        self.paths.range::<str, _>((from, Bound::Unbounded))
    }

    /// How many paths are known.
    pub(super) fn len(&self) -> usize {
        self.paths.len()
    }

    /// A read found nothing; the newest change by then had the number `zxid`.
    pub(super) fn missing(&mut self, path: String, zxid: i64) {
        let had_value = self.paths.remove(&path).is_none_or(|known| known.has_value());
        if !self.is_whole {
            self.news.remove(&path);
        } else if had_value {
            self.news.insert(path.clone(), Change { path, version: zxid.unsigned_abs(), value: None });
        }
    }

    /// A read found these names beneath `path`.
    pub(super) fn children(&mut self, path: &str, names: Vec<String>) {
        names.into_iter().for_each(|name| self.changed(format!("{path}/{name}")));
    }

    /// Whether everything that changed was read: the known tree is one state of the tree.
    pub(super) fn is_settled(&self) -> bool {
        self.under_way == 0 && self.wanted.is_empty() && self.unlisted.is_empty()
    }

    /// The news since the last call, ascending by version; the first time the whole tree. `zxid` is the number of the newest
    /// change that the server reported.
    pub(super) fn take_news(&mut self, zxid: i64) -> Vec<Change> {
        let mut news: Vec<Change> = std::mem::take(&mut self.news).into_values().collect();
        news.sort_by_key(|change| change.version);
        let newest = news.last().map_or(0, |change| change.version);
        let whole = if self.is_whole { 0 } else { zxid.unsigned_abs() };
        self.told = self.told.max(newest).max(whole);
        self.is_whole = true;
        news
    }

    /// The highest version that was told.
    pub(super) fn told(&self) -> u64 {
        self.told
    }

    /// The known state of `path`.
    pub(super) fn get(&self, path: &str) -> Option<Known> {
        self.paths.get(path).copied()
    }

    /// Version of `path`, if it has a value.
    pub(super) fn version(&self, path: &str) -> Option<u64> {
        self.get(path).filter(|known| known.has_value()).map(|known| known.version)
    }
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;

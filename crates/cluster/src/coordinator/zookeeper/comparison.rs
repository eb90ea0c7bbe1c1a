//! The comparison of the known tree with the server's. A server reports every change that it has, but not that of a path that
//! the client may not read at that moment: since ZooKeeper 3.8.4 and 3.9.2 it drops the event. So the whole tree is read again
//! now and then, a little at a time. A difference is never taken over, since the tree would go back and forth in time: it
//! ends the connection, and the whole tree is read anew.
//!
//! Invariant: a comparison is asked for while everything that was reported is read. Until its answer comes, the server reports
//! every change before the answer. So a path that differs and was not reported meanwhile is one whose change was not told.
//!
//! Pure; one thread at a time.

use super::mirror::{Mirror, Read, Unreported};
use bytes::Bytes;
use leeward_format::zookeeper::{MAX_READS, Stat};
use leeward_platform::Nanos;
use std::collections::BTreeSet;

/// How long a comparison of all paths takes, if they are not many.
const ROUND: Nanos = Nanos::from_secs(10);
/// Most bytes of values that are compared at once, but for one value.
const BATCH_BYTES: usize = 64 << 10;
/// Most bytes of values that are compared in a second, on average.
const BYTES_PER_SECOND: u64 = 256 << 10;

/// A comparison of the known tree with the server's, some paths at a time.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// The next batch comes at this instant, after this path.
    due: Nanos,
    after: Option<String>,
    /// Paths about which the server said something that the known tree does not explain: they are next.
    doubted: BTreeSet<String>,
    /// Paths beneath which the names are to be compared.
    unlisted: Vec<String>,
    /// A comparison is under way, and these paths were reported since it was asked for.
    reported: Option<BTreeSet<String>>,
}

impl Comparison {
    /// The next read, if it is time for one. The caller reports what it found with [`Comparison::found`] or
    /// [`Comparison::children`], after [`Comparison::answered`].
    pub(super) fn next_read(&mut self, now: Nanos, mirror: &Mirror) -> Option<Read> {
        if self.reported.is_some() || !mirror.is_settled() {
            return None;
        }
        let read = match self.unlisted.pop() {
            Some(path) => Read::Children(path),
            None if !self.doubted.is_empty() => {
                Read::Data(std::iter::from_fn(|| self.doubted.pop_first()).take(MAX_READS).collect())
            }
            None if now < self.due => return None,
            None => self.next_batch(now, mirror)?,
        };
        self.reported = Some(BTreeSet::new());
        Some(read)
    }

    fn next_batch(&mut self, now: Nanos, mirror: &Mirror) -> Option<Read> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for (path, known) in mirror.paths_after(self.after.as_deref()).take(MAX_READS) {
            let value_bytes = known.value_bytes.unwrap_or(0);
            if bytes + value_bytes > BATCH_BYTES && !batch.is_empty() {
                break;
            }
            bytes += value_bytes;
            batch.push(path.clone());
        }
        self.after = batch.last().cloned();
        let share = ROUND.0 * batch.len() as u64 / mirror.len().max(1) as u64;
        self.due = now + Nanos(share.max(Nanos::from_secs(bytes as u64).0 / BYTES_PER_SECOND));
        (!batch.is_empty()).then_some(Read::Data(batch))
    }

    /// The server refused something about `path` that should have been possible. It is compared at once.
    pub(super) fn doubt(&mut self, path: String) {
        self.doubted.insert(path);
    }

    /// The server reported a change of `path`.
    pub(super) fn reported(&mut self, path: &str) {
        if let Some(reported) = &mut self.reported {
            reported.insert(path.to_owned());
        }
    }

    /// The comparison that was under way is answered. Returns the paths that were reported meanwhile.
    pub(super) fn answered(&mut self) -> BTreeSet<String> {
        self.reported.take().unwrap_or_default()
    }

    /// The read found this at `path`; `None`: nothing.
    ///
    /// # Errors
    /// It differs from the known tree.
    pub(super) fn found(
        &mut self,
        mirror: &Mirror,
        path: String,
        found: Option<(Option<Bytes>, Stat)>,
    ) -> Result<(), Unreported> {
        let has_children = found.as_ref().is_some_and(|(_, stat)| stat.children > 0);
        mirror.compare(&path, found)?;
        if has_children {
            self.unlisted.push(path);
        }
        Ok(())
    }

    /// The read found these names beneath `path`; paths that were `reported` meanwhile do not count.
    ///
    /// # Errors
    /// One of them is not known.
    pub(super) fn children(
        mirror: &Mirror,
        path: &str,
        names: Vec<String>,
        reported: &BTreeSet<String>,
    ) -> Result<(), Unreported> {
        let paths = names.into_iter().map(|name| format!("{path}/{name}"));
        let unknown = paths.into_iter().find(|path| mirror.get(path).is_none() && !reported.contains(path));
        unknown.map_or(Ok(()), |path| Err(Unreported::Change(path)))
    }
}

#[cfg(test)]
#[path = "comparison_tests.rs"]
mod tests;

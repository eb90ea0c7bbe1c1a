//! How many pairs a range of keys has, and of how many bytes, without reading them.
//!
//! In an L0 nodes of its tree are a sample; in a level, whole leaf segments count as the average one of the level, those
//! that the range ends in by their index nodes, and the leaves at its ends by their entries: at most two leaves of a level
//! are read.

use super::Version;
use crate::error::Result;
use crate::tree::{LeafSegment, Level};
use crate::version::Reads;

/// An estimate of what a range holds. Versions that a newer one hides, tombstones and pairs that have expired are counted
/// until compactions have dropped them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Approximation {
    /// Pairs.
    pub pairs: u64,
    /// Bytes of keys and values, wherever the values are.
    pub bytes: u64,
}

impl Approximation {
    fn add(&mut self, pairs: f64, bytes_each: f64) {
        self.pairs += pairs.round() as u64;
        self.bytes += (pairs * bytes_each).round() as u64;
    }
}

impl Version {
    /// What the keys from `start` up to, and without, `end` hold; without an end, all from `start` on. Off by a few percent
    /// in ranges of thousands of pairs, beside what [`Approximation`] says.
    ///
    /// # Errors
    /// The device fails or holds damaged bytes.
    pub fn approximate(&self, start: &[u8], end: Option<&[u8]>) -> Result<Approximation> {
        let mut all = Approximation::default();
        if end.is_some_and(|end| end <= start) {
            return Ok(all);
        }
        for l0 in std::iter::once(self.active()).chain(self.frozen()) {
            let (pairs, bytes) = l0.estimate(start, end);
            all.pairs += pairs;
            all.bytes += bytes;
        }
        for level in self.levels().iter().filter(|level| !level.is_empty()) {
            let (pairs, bytes_each) = in_level(self.reads(), level, start, end)?;
            all.add(pairs, bytes_each);
        }
        Ok(all)
    }
}

/// Pairs of a level in a range, and bytes of one.
fn in_level(reads: &Reads, level: &Level, start: &[u8], end: Option<&[u8]>) -> Result<(f64, f64)> {
    let segments = level.segments();
    let first = level.segment_of(start);
    let last = end.map_or(segments.len() - 1, |end| level.segment_of(end));
    let before = Edge::new(reads, &segments[first], Some(start))?;
    let after = Edge::new(reads, &segments[last], end)?;
    let pairs = match last - first {
        0 => after.below - before.below,
        apart => {
            let average = level.state().entries as f64 / segments.len() as f64;
            before.entries - before.below + after.below + average * (apart - 1) as f64
        }
    };
    // There may be nothing but range tombstones.
    let bytes_each = (before.bytes + after.bytes) / (before.entries + after.entries).max(1.0);
    Ok((pairs.max(0.0), bytes_each))
}

/// A leaf segment that a range ends in.
struct Edge {
    entries: f64,
    /// Bytes of its keys and values.
    bytes: f64,
    /// Entries below the end of the range.
    below: f64,
}

impl Edge {
    /// Without a key the range continues behind the segment.
    fn new(reads: &Reads, segment: &LeafSegment, key: Option<&[u8]>) -> Result<Edge> {
        let index = segment.index_from_device(reads)?;
        let footer = index.footer();
        let (entries, leaves) = (f64::from(footer.entries), f64::from(footer.leaves));
        let below = match key {
            None => entries,
            Some(key) if key <= &footer.span.first[..] => 0.0,
            Some(key) if key > &footer.span.last[..] => entries,
            Some(key) => {
                let at = index.leaf_of(key);
                let place = index.leaves()[at];
                let leaf = match segment.cached_leaf(place) {
                    Some(leaf) => leaf,
                    None => segment.load_leaf(reads, place)?,
                };
                let within = leaf.search(key).unwrap_or_else(|i| i);
                // In the last leaf what is left is known exactly.
                match at + 1 == index.leaves().len() {
                    true => entries - (leaf.len() - within) as f64,
                    false => (at as f64 * entries / leaves + within as f64).min(entries),
                }
            }
        };
        Ok(Edge { entries, bytes: (footer.payload_bytes + footer.log_bytes) as f64, below })
    }
}

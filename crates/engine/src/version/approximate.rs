//! Estimates the number and bytes of the pairs in a range of keys, without reading them.
//!
//! In an L0 the nodes of its tree are a sample. In a level, leaf segments inside the range count as an average one of
//! the level. The segments at the ends of the range count by their index nodes, and the leaves there by their entries:
//! at most two leaves of a level are read.

use super::Version;
use crate::error::Result;
use crate::reads::Reads;
use crate::tree::{LeafSegment, Level};

/// An estimate for a range of keys. Overwritten versions, tombstones and expired pairs count until compactions have
/// dropped them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Approximation {
    /// Pairs.
    pub pairs: u64,
    /// Bytes of keys and values, in leaves or in logs.
    pub bytes: u64,
}

impl Approximation {
    fn add(&mut self, pairs: f64, bytes_each: f64) {
        self.pairs += pairs.round() as u64;
        self.bytes += (pairs * bytes_each).round() as u64;
    }
}

impl Version {
    /// Estimates the pairs with keys from `start` up to, but without, `end`; without an end, all from `start` on. The
    /// error is a few percent in ranges of thousands of pairs, besides what [`Approximation`] includes.
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
        for level in self.filled() {
            let (pairs, bytes_each) = in_level(self.reads(), level, start, end)?;
            all.add(pairs, bytes_each);
        }
        Ok(all)
    }
}

/// Number of pairs of a level in a range, and bytes of one.
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
    // The segments may have only range tombstones.
    let bytes_each = (before.bytes + after.bytes) / (before.entries + after.entries).max(1.0);
    Ok((pairs.max(0.0), bytes_each))
}

/// A leaf segment that contains an end of a range.
struct Edge {
    entries: f64,
    /// Bytes of its keys and values.
    bytes: f64,
    /// Entries below that end.
    below: f64,
}

impl Edge {
    /// Without a key the range continues after the segment.
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
                // In the last leaf the rest is known exactly.
                match at + 1 == index.leaves().len() {
                    true => entries - (leaf.len() - within) as f64,
                    false => (at as f64 * entries / leaves + within as f64).min(entries),
                }
            }
        };
        Ok(Edge { entries, bytes: (footer.payload_bytes + footer.log_bytes) as f64, below })
    }
}

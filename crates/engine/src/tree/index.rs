//! Builds the index of a level: nodes above its leaf segments, laid out in index segments.

use super::LeafSegment;
use crate::error::Result;
use crate::reads::Reads;
use crate::volume::{OfReserve, Segment, SegmentIds};
use leeward_format::leaf_segment::write_index;
use leeward_format::node::{Address, Child, NODE_BYTES};
use leeward_format::{Pointer, SegmentId};
use std::sync::Arc;

/// An index segment that is not written yet.
pub(crate) struct BuiltIndexSegment {
    pub(crate) id: SegmentId,
    pub(crate) segment: Arc<Segment>,
    pub(crate) bytes: Vec<u8>,
}

/// Segments and root of the index above `leaves`, which are in key order, each with its fence.
pub(crate) fn build_index(
    reads: &Reads,
    ids: &SegmentIds,
    leaves: &[(Vec<u8>, Arc<LeafSegment>)],
) -> Result<(Vec<BuiltIndexSegment>, Pointer)> {
    let (volume, region) = (&reads.volume, reads.region);
    let children: Vec<(Vec<u8>, Child)> = leaves.iter().map(|(fence, leaf)| (fence.clone(), leaf.tree())).collect();
    let mut segments = Vec::<BuiltIndexSegment>::new();
    let mut left = likely_bytes(&children);
    let root = write_index(&children, &mut |node| {
        if segments.last().is_none_or(|last| last.bytes.len() + NODE_BYTES > last.segment.bytes()) {
            let segment = volume.allocate_part(region, left.max(NODE_BYTES), OfReserve::All)?;
            left = left.saturating_sub(segment.bytes());
            segments.push(BuiltIndexSegment { id: ids()?, segment, bytes: Vec::new() });
        }
        let last = segments.last_mut().expect("one was added if there was none");
        let offset = last.bytes.len() as u32;
        node.finish(Address { region, segment: last.id, offset }, &mut last.bytes);
        Ok(Pointer::new(reads.name(last.id, &last.segment), offset))
    })?;
    segments.iter().for_each(|built| built.segment.trim(built.bytes.len()));
    Ok((segments, root.pointer))
}

/// Likely upper bound of the bytes of the nodes above `children`.
fn likely_bytes(children: &[(Vec<u8>, Child)]) -> usize {
    const ENTRY_BYTES: usize = 24;
    let entries: usize = children.iter().map(|(fence, _)| fence.len() + ENTRY_BYTES).sum();
    match entries < NODE_BYTES / 8 * 7 {
        true => NODE_BYTES,
        false => entries / 4 * 5 + 2 * NODE_BYTES,
    }
}

//! Changing pointers of a segment in place. A backup does this, because its volume has other segment numbers. Garbage
//! collection does it when it moves values and gives the copy another id. Keys, order, filter and lengths stay. The old
//! checksums are checked, and all are computed anew.

use super::{Footer, TRAILER_BYTES, WHAT};
use crate::filter::Filter;
use crate::manifest::SegmentKind;
use crate::node::{self, Address, NODE_BYTES};
use crate::{DecodeError, MAX_KEY_BYTES, Pointer, SegmentName, packed, range};
use bytes::Bytes;

/// Rewrites every pointer in the `bytes` of a leaf or index segment (Tebis 3.3). `map` gives the new name of each
/// segment, the segment itself included. Offsets stay. Fixes the CRCs. `bytes` are those in use, up to the segment's
/// end, and `address` is that of its start. On an error they may be half rewritten and must not be used.
///
/// # Errors
/// The bytes are no valid segment of that kind and address, or `map` does not know a segment.
pub fn translate(
    kind: SegmentKind,
    address: Address,
    bytes: &mut [u8],
    map: &mut dyn FnMut(SegmentName) -> Option<SegmentName>,
) -> Result<(), DecodeError> {
    let nodes = match kind {
        SegmentKind::Log(_) => return Err(DecodeError::invalid(WHAT, "a log holds no nodes")),
        SegmentKind::Leaf => nodes_of(&checked_footer(address, bytes)?),
        SegmentKind::Index => (0, bytes.len()),
    };
    let mut map = |pointer: Pointer| Some(Pointer::new(map(pointer.segment())?, pointer.offset()));
    rewrite_nodes(nodes, (address, address), bytes, &mut map)
}

/// Turns the `bytes` of the leaf segment at address `from` into those of a segment at `to`. `map` gives each new
/// pointer, also of those to its own leaves. It is called for the pointers in the leaves first, in key order. On an
/// error the bytes may be half rewritten and must not be used.
///
/// # Errors
/// The bytes are no valid leaf segment of the address `from`, or `map` does not know a pointer.
pub fn readdress(
    (from, to): (Address, Address),
    bytes: &mut [u8],
    map: &mut dyn FnMut(Pointer) -> Option<Pointer>,
) -> Result<(), DecodeError> {
    let footer = checked_footer(from, bytes)?;
    rewrite_nodes(nodes_of(&footer), (from, to), bytes, map)?;
    let (filter_at, ranges_at) = (footer.filter_at as usize, footer.ranges_at());
    to.at(footer.filter_at).seal(&mut bytes[filter_at..ranges_at]);
    if footer.ranges > 0 {
        let ranges = ranges_at..ranges_at + footer.ranges_bytes as usize;
        to.at(ranges_at as u32).seal(&mut bytes[ranges]);
    }
    let trailer_at = bytes.len() - TRAILER_BYTES;
    bytes[trailer_at..].copy_from_slice(&footer.trailer(to));
    Ok(())
}

/// The end of a leaf segment's leaves, and of its index nodes.
fn nodes_of(footer: &Footer) -> (usize, usize) {
    (footer.tree_at as usize, footer.filter_at as usize)
}

fn rewrite_nodes(
    (tree_at, nodes_end): (usize, usize),
    (from, to): (Address, Address),
    bytes: &mut [u8],
    map: &mut dyn FnMut(Pointer) -> Option<Pointer>,
) -> Result<(), DecodeError> {
    let mut at = 0;
    // At least one node: no segment is empty.
    while at < nodes_end || at == 0 {
        let addresses = (from.at(at as u32), to.at(at as u32));
        if packed::is_packed(&bytes[at..nodes_end.min(at + NODE_BYTES)]) && at < tree_at {
            packed::rewrite(&mut bytes[at..tree_at], addresses, map)?;
            at += packed::stored_bytes(&bytes[at..tree_at])?;
            continue;
        }
        if at < tree_at && tree_at - at < NODE_BYTES && bytes[at..tree_at].iter().all(|byte| *byte == 0) {
            at = tree_at;
            continue;
        }
        let end = at + node::node_bytes(&bytes[at..nodes_end])?;
        if end > nodes_end {
            return Err(DecodeError::Short { what: WHAT, needed: end, available: nodes_end });
        }
        node::rewrite(&mut bytes[at..end], addresses, map)?;
        at = end;
    }
    Ok(())
}

/// The footer of a whole leaf segment; its filter and range tombstones are checked as well.
fn checked_footer(address: Address, bytes: &[u8]) -> Result<Footer, DecodeError> {
    let footer_bytes = bytes.len().min(TRAILER_BYTES + 2 * MAX_KEY_BYTES);
    let footer = Footer::parse(&Bytes::copy_from_slice(&bytes[bytes.len() - footer_bytes..]), address)?;
    if footer.end as usize != bytes.len() {
        return Err(DecodeError::Short { what: WHAT, needed: footer.end as usize, available: bytes.len() });
    }
    let filter_at = footer.filter_at as usize;
    Filter::parse(&bytes[filter_at..footer.ranges_at()], address.at(footer.filter_at))?;
    if footer.ranges > 0 {
        let ranges = footer.ranges_at()..footer.ranges_at() + footer.ranges_bytes as usize;
        range::check_section(&bytes[ranges], address.at(footer.ranges_at() as u32))?;
    }
    Ok(footer)
}

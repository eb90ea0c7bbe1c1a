//! The packed leaf: the stored form of a leaf in tables that compress, with fewer bytes than the node.
//!
//! ```text
//!  0        4     5        6       7    8            12             16         20
//!  | crc32c | ver | kind 2 | codec | 0  | node bytes | stored bytes | pointers | pointer u64 | ... | compressed node |
//!  | u32    | u8  | u8     | u8    | u8 | u32        | u32          | u32      |
//! ```
//! - `node bytes` is the length of the [`Node`], `stored bytes` that of the whole drawing. Packed leaves follow each
//!   other at any offset. The kind tells them from plain nodes, which are among them where packing would not have saved
//!   an eighth.
//! - The pointers of the node's entries are apart, in the order of the entries, so that a backup rewrites them in place
//!   (`rewrite`) without decompressing. In the compressed node they are zero, and so is its CRC.
//! - The CRC covers everything after itself, as stored, and is seeded with the [`Address`]. It is checked before
//!   anything is decompressed. [`MAX_SEGMENT_BYTES`] bounds the decompressed length, and a leaf with another length
//!   than its header says is refused.
//!
//! Pure functions; any thread may call them. Each thread keeps its own zstd contexts.

use crate::node::{self, Address, NODE_BYTES, NODE_VERSION, Node, NodeKind, PACKED_LEAF};
use crate::{DecodeError, MAX_SEGMENT_BYTES, Pointer};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

#[cfg(test)]
mod tests;

const WHAT: &str = "packed leaf";
const HEADER_BYTES: usize = 20;
const POINTER_BYTES: usize = 8;
/// Compression level of zstd: its default.
const LEVEL: i32 = 3;

/// A compression method, of leaves and of shipped segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Codec {
    /// Not at all.
    #[default]
    None,
    /// LZ4: less CPU time.
    Lz4,
    /// Zstandard: fewer bytes.
    Zstd,
}

impl Codec {
    /// All of them.
    pub const ALL: [Codec; 3] = [Codec::None, Codec::Lz4, Codec::Zstd];

    /// Its name, as options spell it.
    pub fn name(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Codec {
    type Err = String;
    fn from_str(name: &str) -> Result<Codec, String> {
        let known = Codec::ALL.into_iter().find(|codec| codec.name() == name);
        known.ok_or_else(|| format!("{name:?} is no way to compress: it is none, lz4 or zstd"))
    }
}

/// How a table compresses its leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compression {
    /// In all levels but the last.
    pub upper: Codec,
    /// In the last level, where most of the data is.
    pub last: Codec,
}

impl Compression {
    /// The same in all levels.
    pub const fn all(codec: Codec) -> Compression {
        Compression { upper: codec, last: codec }
    }
}

/// Appends the leaf `node`, which was built for `address`, to `out`: packed if that saves an eighth, otherwise
/// unchanged. Do not use `node` afterwards.
pub(crate) fn pack(codec: Codec, node: &mut [u8], address: Address, out: &mut Vec<u8>) {
    let crc: [u8; 4] = node[..4].try_into().expect("a node has a header");
    let pointers = take_pointers(node);
    node[..4].fill(0);
    let start = out.len();
    let header_end = start + HEADER_BYTES + pointers.len() * POINTER_BYTES;
    let most = node.len() - node.len() / 8;
    out.resize(start + most, 0);
    let compressed = match header_end < out.len() {
        true => compress(codec, node, &mut out[header_end..]),
        false => None,
    };
    let Some(compressed) = compressed else {
        out.truncate(start);
        put_pointers(node, pointers.into_iter());
        node[..4].copy_from_slice(&crc);
        return out.extend_from_slice(node);
    };
    out.truncate(header_end + compressed);
    let packed = &mut out[start..];
    let (node_bytes, stored_bytes) = (node.len() as u32, packed.len() as u32);
    packed[4..8].copy_from_slice(&[NODE_VERSION, PACKED_LEAF, codec as u8, 0]);
    for (word, value) in packed[8..20].chunks_exact_mut(4).zip([node_bytes, stored_bytes, pointers.len() as u32]) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    let table = packed[HEADER_BYTES..].chunks_exact_mut(POINTER_BYTES);
    table.zip(pointers).for_each(|(place, pointer)| place.copy_from_slice(&pointer.0.to_le_bytes()));
    address.seal(packed);
}

/// Zeroes the pointers of a leaf's entries, and returns them in order.
fn take_pointers(node: &mut [u8]) -> Vec<Pointer> {
    let places = Node::trusted(&*node).pointer_places();
    let take = |at: usize| {
        let place = &mut node[at..at + POINTER_BYTES];
        let pointer = Pointer(u64::from_le_bytes((&*place).try_into().expect("eight bytes")));
        place.fill(0);
        pointer
    };
    places.into_iter().map(take).collect()
}

/// Puts the pointers of a leaf's entries in their places. Returns whether there was exactly one for each.
fn put_pointers(node: &mut [u8], mut pointers: impl ExactSizeIterator<Item = Pointer>) -> bool {
    let places = Node::trusted(&*node).pointer_places();
    let fits = places.len() == pointers.len();
    for (at, pointer) in places.into_iter().zip(&mut pointers) {
        node[at..at + POINTER_BYTES].copy_from_slice(&pointer.0.to_le_bytes());
    }
    fits
}

/// The decoded header of a packed leaf.
struct Packed {
    codec: Codec,
    node_bytes: usize,
    stored_bytes: usize,
    pointers: usize,
}

/// Whether a stored leaf that starts with these bytes is packed.
pub fn is_packed(start: &[u8]) -> bool {
    start.get(4..6) == Some(&[NODE_VERSION, PACKED_LEAF])
}

/// Length of the packed leaf that starts with these bytes. Only the header is checked.
///
/// # Errors
/// They are not the start of a packed leaf.
pub fn stored_bytes(start: &[u8]) -> Result<usize, DecodeError> {
    header(start).map(|packed| packed.stored_bytes)
}

/// Codec and stored length of the leaf that starts with these bytes; `None` if it is not packed.
pub fn describe(start: &[u8]) -> Option<(Codec, u32)> {
    header(start).ok().map(|packed| (packed.codec, packed.stored_bytes as u32))
}

fn header(start: &[u8]) -> Result<Packed, DecodeError> {
    if start.len() < HEADER_BYTES {
        return Err(DecodeError::Short { what: WHAT, needed: HEADER_BYTES, available: start.len() });
    }
    let word = |at: usize| u32::from_le_bytes(start[at..at + 4].try_into().expect("four bytes")) as usize;
    let codec = Codec::ALL.get(usize::from(start[6])).copied().filter(|codec| *codec != Codec::None);
    let (node_bytes, stored_bytes, pointers) = (word(8), word(12), word(16));
    let is_node = node_bytes.is_multiple_of(NODE_BYTES) && (NODE_BYTES..=MAX_SEGMENT_BYTES).contains(&node_bytes);
    let has_table = pointers < node_bytes && HEADER_BYTES + pointers * POINTER_BYTES < stored_bytes;
    match codec {
        Some(codec) if is_packed(start) && start[7] == 0 && is_node && has_table && stored_bytes < node_bytes => {
            Ok(Packed { codec, node_bytes, stored_bytes, pointers })
        }
        _ => Err(DecodeError::invalid(WHAT, "header out of range")),
    }
}

/// Checks the packed leaf at the start of `bytes`, which belongs at `address`. Returns its header and exactly its
/// bytes.
fn check(bytes: &[u8], address: Address) -> Result<(Packed, &[u8]), DecodeError> {
    let packed = header(bytes)?;
    let Some(stored) = bytes.get(..packed.stored_bytes) else {
        return Err(DecodeError::Short { what: WHAT, needed: packed.stored_bytes, available: bytes.len() });
    };
    let found = u32::from_le_bytes(stored[..4].try_into().expect("four bytes"));
    let expected = address.crc(&stored[4..]);
    if found != expected {
        return Err(DecodeError::Checksum { what: WHAT, found, expected });
    }
    Ok((packed, stored))
}

/// Reads the packed leaf at the start of `stored`, which belongs at `address`.
///
/// # Errors
/// The bytes are damaged, belong to another address, or no writer of this version produces them.
pub fn read_leaf<B: From<Vec<u8>> + Deref<Target = [u8]>>(
    stored: &[u8],
    address: Address,
) -> Result<Node<B>, DecodeError> {
    let (packed, stored) = check(stored, address)?;
    let table_end = HEADER_BYTES + packed.pointers * POINTER_BYTES;
    let mut node = decompress(packed.codec, &stored[table_end..], packed.node_bytes)?;
    if packed.pointers == 0 {
        return leaf_only(Node::parse_unsealed(B::from(node))?);
    }
    Node::parse_unsealed(&node[..])?;
    let pointer = |place: &[u8]| Pointer(u64::from_le_bytes(place.try_into().expect("eight bytes")));
    if !put_pointers(&mut node, stored[HEADER_BYTES..table_end].chunks_exact(POINTER_BYTES).map(pointer)) {
        return Err(DecodeError::invalid(WHAT, "pointers without entries"));
    }
    leaf_only(Node::parse_unsealed(B::from(node))?)
}

fn leaf_only<B: Deref<Target = [u8]>>(node: Node<B>) -> Result<Node<B>, DecodeError> {
    match node.kind() {
        NodeKind::Leaf => Ok(node),
        NodeKind::Index => Err(DecodeError::invalid(WHAT, "an index node in it")),
    }
}

/// Rewrites the pointers of the packed leaf `bytes`: see [`node::rewrite`](crate::node::rewrite).
pub(crate) fn rewrite(
    bytes: &mut [u8],
    (from, to): (Address, Address),
    map: &mut dyn FnMut(Pointer) -> Option<Pointer>,
) -> Result<(), DecodeError> {
    let (packed, _) = check(bytes, from)?;
    for place in bytes[HEADER_BYTES..].chunks_exact_mut(POINTER_BYTES).take(packed.pointers) {
        node::rewrite_pointer(place, map)?;
    }
    to.seal(&mut bytes[..packed.stored_bytes]);
    Ok(())
}

thread_local! {
    static COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Compresses `node` into `out`. Returns the length; `None` if the result does not fit into `out`.
pub(crate) fn compress(codec: Codec, node: &[u8], out: &mut [u8]) -> Option<usize> {
    match codec {
        Codec::None => None,
        Codec::Lz4 => {
            let compressed = lz4_flex::block::compress(node);
            out.get_mut(..compressed.len())?.copy_from_slice(&compressed);
            Some(compressed.len())
        }
        Codec::Zstd => COMPRESSOR.with_borrow_mut(|compressor| {
            if compressor.is_none() {
                *compressor = zstd::bulk::Compressor::new(LEVEL).ok();
            }
            compressor.as_mut()?.compress_to_buffer(node, out).ok()
        }),
    }
}

/// Decompresses `bytes`, which must give exactly `node_bytes`.
pub(crate) fn decompress(codec: Codec, bytes: &[u8], node_bytes: usize) -> Result<Vec<u8>, DecodeError> {
    let mut node = vec![0; node_bytes];
    let made = match codec {
        Codec::None => Err("it is not compressed".to_owned()),
        Codec::Lz4 => lz4_flex::block::decompress_into(bytes, &mut node).map_err(|error| error.to_string()),
        Codec::Zstd => DECOMPRESSOR.with_borrow_mut(|decompressor| {
            if decompressor.is_none() {
                *decompressor = Some(zstd::bulk::Decompressor::new().map_err(|error| error.to_string())?);
            }
            let decompressor = decompressor.as_mut().expect("just made");
            decompressor.decompress_to_buffer(bytes, &mut node[..]).map_err(|error| error.to_string())
        }),
    };
    match made {
        Ok(made) if made == node_bytes => Ok(node),
        Ok(made) => Err(DecodeError::invalid(WHAT, format!("{made} bytes came out of it, not {node_bytes}"))),
        Err(error) => Err(DecodeError::invalid(WHAT, error)),
    }
}

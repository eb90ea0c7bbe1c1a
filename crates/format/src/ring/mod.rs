//! Messages in the memory of a peer: what a client writes into a server's request ring, and what the server writes back into
//! a slot of the client's reply ring (Tebis 3.4, Anthus 3.4).
//!
//! ```text
//!  0         4     8      9   12         16           20  24
//!  | payload | tag | kind | 0 | reply at | reply room | 0 | payload, zeroes ... | crc32c | tag |
//!  | u32     | u32 | u8   |   | u32      | u32        |   |                     | u32    | u32 |
//!  '- first word -'                                                             '- last word --'
//! ```
//! All little endian. A message lies at a multiple of [`UNIT_BYTES`] and is padded to one, so that every header is in a
//! place where the reader looks, and both words are aligned: a fabric never shows half of them.
//!
//! **How a message is seen whole, whatever order its bytes land in.** It is one write, with no flag after it. The reader
//! looks at the first word of the place where the next message must be. Its tag is made of the ring's key and the message's
//! sequence number: while it differs, nothing of that message is there. Once it fits, the length beside it is this message's,
//! and says where the last word is, the second rendezvous point; and once that fits too, the CRC over all the rest decides,
//! seeded with key, sequence number and place. What an earlier lap left has another number, and what a user put into a value
//! does not know the key, so neither passes, and neither side needs to zero what was read.
//!
//! Pure functions over hostile bytes. [`space`] is the client's record of which parts of a ring are in use. [`Cursor`] is the
//! server's position in it.

mod cursor;
pub mod space;

pub use cursor::{Cursor, Next};

use crate::frame::DecodeError;

/// What messages are aligned to and padded to, in bytes: the size of a header with both rendezvous words (Anthus 3.4.3).
pub const UNIT_BYTES: usize = 32;
/// Bytes of a message before its payload.
pub const HEADER_BYTES: usize = 24;
/// Bytes of a message after its payload and padding: checksum and tag.
const LAST_BYTES: usize = 8;
/// Bytes behind a ring: one word by which one side tells the other whether it sleeps.
pub const CONTROL_BYTES: usize = 8;
/// Smallest ring, in bytes.
pub const MIN_RING_BYTES: usize = 4 << 10;
/// Largest ring, in bytes.
pub const MAX_RING_BYTES: usize = 64 << 20;

/// How the address of each client begins whose rings are in shared memory: a node connects to no other.
pub const CLIENT_ADDRESS: &str = "@leeward-client-";

const WHAT: &str = "ring message";

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RingKind {
    /// Its payload is frames of the [native protocol](crate::op): a request, or all that answers one.
    Frames = 1,
    /// Nothing: the rest of the ring stays empty, the next message is at its start. Not answered.
    Noop = 2,
    /// The answer to request `sequence`, which was too large for its slot, is wanted in this one. The payload is that number.
    Fetch = 3,
    /// The answer is kept until it is fetched; `reply_room` says how large its slot must be, in bytes.
    TooSmall = 4,
    /// The answer is larger than any slot can be, and comes over the connection.
    OnStream = 5,
}

impl RingKind {
    fn from_byte(byte: u8) -> Option<RingKind> {
        use RingKind::{Fetch, Frames, Noop, OnStream, TooSmall};
        [Frames, Noop, Fetch, TooSmall, OnStream].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Where in the client's reply ring the answer goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Offset in bytes, a multiple of [`UNIT_BYTES`].
    pub at: u32,
    /// Bytes there are, a multiple of [`UNIT_BYTES`].
    pub room: u32,
}

impl Slot {
    /// Whether a ring of `ring_bytes` has such a slot.
    pub fn fits(self, ring_bytes: usize) -> bool {
        let unit = UNIT_BYTES as u32;
        self.at.is_multiple_of(unit)
            && self.room.is_multiple_of(unit)
            && self.room > 0
            && u64::from(self.at) + u64::from(self.room) <= ring_bytes as u64
    }
}

/// A message as its reader takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingMessage<'a> {
    /// What it is.
    pub kind: RingKind,
    /// Of a request: where its answer goes. Of [`RingKind::TooSmall`]: `room` is what is needed.
    pub slot: Slot,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// What makes a message this one and no other: the secret of its ring, agreed on when it was opened; its number, from 1 on,
/// never used twice; its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The ring's key.
    pub key: u64,
    /// The message's number; an answer has that of the message that asked for it.
    pub sequence: u64,
    /// Its offset in the ring, in bytes.
    pub place: u32,
}

impl Identity {
    fn tag(self) -> u32 {
        (self.key.wrapping_add(self.sequence).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }

    fn crc(self, bytes: &[u8]) -> u32 {
        let mut seed = [0; 20];
        seed[..8].copy_from_slice(&self.key.to_le_bytes());
        seed[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        seed[16..].copy_from_slice(&self.place.to_le_bytes());
        crc32c::crc32c_append(crc32c::crc32c(&seed), bytes)
    }

    /// What the first word of its place says: `None` while no byte of this message is known to be there; else how many
    /// bytes it has in all. At most `most` bytes may follow from its place on: a length beyond it is no writer's, so the word is
    /// one of an earlier lap, in which any user's value may have had this tag by chance.
    pub fn begun(self, first_word: u64, most: usize) -> Option<usize> {
        if (first_word >> 32) as u32 != self.tag() {
            return None;
        }
        Some(message_bytes(first_word as u32 as usize)).filter(|bytes| *bytes <= most)
    }

    /// Whether the last word is this message's. Not a proof that all between is.
    pub fn ended(self, last_word: u64) -> bool {
        (last_word >> 32) as u32 == self.tag()
    }
}

/// Bytes that a message with so much payload takes, padding included.
pub fn message_bytes(payload: usize) -> usize {
    (HEADER_BYTES + payload + LAST_BYTES).next_multiple_of(UNIT_BYTES)
}

/// Appends a message to `out`.
pub fn write_message(identity: Identity, kind: RingKind, slot: Slot, payload: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    let end = start + message_bytes(payload.len());
    let length = u32::try_from(payload.len()).expect("a ring has at most MAX_RING_BYTES");
    let tag = identity.tag().to_le_bytes();
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&tag);
    out.extend_from_slice(&[kind as u8, 0, 0, 0]);
    out.extend_from_slice(&slot.at.to_le_bytes());
    out.extend_from_slice(&slot.room.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
    out.resize(end - LAST_BYTES, 0);
    let crc = identity.crc(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&tag);
}

/// Reads the message `identity` from a copy of all of its bytes; `None` if they are not all there yet, or are another's.
///
/// # Errors
/// The bytes are whole, and no writer's.
pub fn read_message(identity: Identity, bytes: &[u8]) -> Result<Option<RingMessage<'_>>, DecodeError> {
    let half = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("the caller has a whole message"));
    if bytes.len() < UNIT_BYTES || !bytes.len().is_multiple_of(UNIT_BYTES) {
        return Err(DecodeError::Short { what: WHAT, needed: UNIT_BYTES, available: bytes.len() });
    }
    let (content, tag) = (bytes.len() - LAST_BYTES, identity.tag());
    if half(4) != tag || half(content + 4) != tag || half(content) != identity.crc(&bytes[..content]) {
        return Ok(None);
    }
    let payload = half(0) as usize;
    if message_bytes(payload) != bytes.len() {
        return Err(DecodeError::invalid(WHAT, format!("a payload of {payload} bytes in {}", bytes.len())));
    }
    if bytes[9..12] != [0; 3] || half(20) != 0 || bytes[HEADER_BYTES + payload..content].iter().any(|byte| *byte != 0) {
        return Err(DecodeError::invalid(WHAT, "reserved bytes are not 0"));
    }
    let kind = RingKind::from_byte(bytes[8]);
    let kind = kind.ok_or_else(|| DecodeError::invalid(WHAT, format!("unknown kind {}", bytes[8])))?;
    let slot = Slot { at: half(12), room: half(16) };
    Ok(Some(RingMessage { kind, slot, payload: &bytes[HEADER_BYTES..HEADER_BYTES + payload] }))
}

#[cfg(test)]
mod tests;

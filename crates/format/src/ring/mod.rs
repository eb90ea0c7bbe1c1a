//! Messages in the memory of a peer: requests that a client writes into a server's request ring, and replies that the
//! server writes into slots of the client's reply ring (Tebis 3.4, Anthus 3.4).
//!
//! ```text
//!  0         4     8      9   12         16           20  24
//!  | payload | tag | kind | 0 | reply at | reply room | 0 | payload, zeroes ... | crc32c | tag |
//!  | u32     | u32 | u8   |   | u32      | u32        |   |                     | u32    | u32 |
//!  '- first word -'                                                             '- last word --'
//! ```
//! All little endian. Offset and length of a message are multiples of [`UNIT_BYTES`]. So the reader knows where a
//! header can be, and both words are aligned: a fabric never shows half of them.
//!
//! **How a reader knows that a message is whole, whatever order its bytes land in.** A message is one write, with no
//! flag after it. The reader looks at the first word at the place of the next message. The word's tag is made of the
//! ring's key and the message's sequence number. While the tag differs, the message has not arrived. Once it matches,
//! the length beside it gives the place of the last word, the second rendezvous point. Once that tag matches too, the
//! CRC over all the rest decides. It is seeded with key, sequence number and place. Bytes of an earlier lap have
//! another number, and a user's value cannot know the key. So neither passes, and no side needs to zero what was read.
//!
//! Pure functions over hostile bytes. [`space`] is the client's record of which parts of a ring are in use. [`Cursor`]
//! is the server's position in it.

mod cursor;
pub mod space;

pub use cursor::{Cursor, Next};

use crate::frame::DecodeError;

/// Alignment of messages, in bytes: the size of a header with both rendezvous words (Anthus 3.4.3).
pub const UNIT_BYTES: usize = 32;
/// Bytes of a message before its payload.
pub const HEADER_BYTES: usize = 24;
/// Bytes of a message after its payload and padding: checksum and tag.
const LAST_BYTES: usize = 8;
/// Bytes after a ring: one word by which one side tells the other whether it sleeps.
pub const CONTROL_BYTES: usize = 8;
/// Smallest ring, in bytes.
pub const MIN_RING_BYTES: usize = 4 << 10;
/// Largest ring, in bytes.
pub const MAX_RING_BYTES: usize = 64 << 20;

/// Prefix of the addresses of clients whose rings are in shared memory. A node connects to no other address.
pub const CLIENT_ADDRESS: &str = "@leeward-client-";

const WHAT: &str = "ring message";

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RingKind {
    /// Its payload is frames of the [native protocol](crate::op): a request, or the complete answer to one.
    Frames = 1,
    /// No-op: the rest of the ring stays empty, and the next message is at the start of the ring. Not answered.
    Noop = 2,
    /// Fetches an answer that was too large for its slot into the slot of this message. The payload is the number of
    /// the request.
    Fetch = 3,
    /// The answer is too large for the slot, and is kept until it is fetched. [`Slot::room`] says how large its slot
    /// must be, in bytes.
    TooSmall = 4,
    /// The answer is larger than any slot can be, and is sent over the connection.
    OnStream = 5,
}

impl RingKind {
    fn from_byte(byte: u8) -> Option<RingKind> {
        use RingKind::{Fetch, Frames, Noop, OnStream, TooSmall};
        [Frames, Noop, Fetch, TooSmall, OnStream].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The place of an answer in the client's reply ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Offset in bytes, a multiple of [`UNIT_BYTES`].
    pub at: u32,
    /// Its length in bytes, a multiple of [`UNIT_BYTES`].
    pub room: u32,
}

impl Slot {
    /// Whether it is a valid slot in a ring of `ring_bytes`.
    pub fn fits(self, ring_bytes: usize) -> bool {
        let unit = UNIT_BYTES as u32;
        self.at.is_multiple_of(unit)
            && self.room.is_multiple_of(unit)
            && self.room > 0
            && u64::from(self.at) + u64::from(self.room) <= ring_bytes as u64
    }
}

/// A decoded message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingMessage<'a> {
    /// Says what slot and payload mean.
    pub kind: RingKind,
    /// For a request, the place of its answer. For [`RingKind::TooSmall`], `room` is the room that is needed.
    pub slot: Slot,
    /// Frames; of a [`RingKind::Fetch`] the number of the request.
    pub payload: &'a [u8],
}

/// The identity of a message: the secret key of its ring, agreed on when the ring was opened; its number, from 1 on,
/// never used twice; and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The ring's key.
    pub key: u64,
    /// The message's number. An answer has that of its request.
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

    /// Length of the message by the first word at its place; `None` while the message has not begun to arrive. A length
    /// beyond `most`, the bytes from its place to the end of the ring, is no writer's. Such a word is from an earlier
    /// lap, where a user's value may have had this tag by chance.
    pub fn begun(self, first_word: u64, most: usize) -> Option<usize> {
        if (first_word >> 32) as u32 != self.tag() {
            return None;
        }
        Some(message_bytes(first_word as u32 as usize)).filter(|bytes| *bytes <= most)
    }

    /// Whether the last word is this message's. This does not prove that the bytes between are.
    pub fn ended(self, last_word: u64) -> bool {
        (last_word >> 32) as u32 == self.tag()
    }
}

/// Length of a message with this much payload, padding included.
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

/// Reads the message `identity` from a copy of all of its bytes; `None` if they have not all arrived, or are another
/// message's.
///
/// # Errors
/// The message is whole and breaks the format.
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

//! Redis hash slots: the part of a key that is hashed, and the number that comes of it.
//!
//! ```text
//! orders/7          CRC-16/XMODEM of all of it ----------------> mod 16,384
//! {user7}:cart      CRC-16/XMODEM of "user7", the hash tag -----> mod 16,384
//! ```
//! A hash tag is what lies between the first `{` and the first `}` behind it, unless nothing does. Keys with the same
//! tag have the same slot.
//!
//! Invariant: the slot of a key is the one that Redis Cluster gives it, and never changes. Plain data; any thread may
//! use it.

use crc::{CRC_16_XMODEM, Crc};

/// How many slots there are.
pub const SLOTS: u16 = 16 * 1024;

const CRC16: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The slot of a key: less than [`SLOTS`].
pub fn slot_of(key: &[u8]) -> u16 {
    CRC16.checksum(tag_of(key)) % SLOTS
}

/// The hash tag of a key, or the key itself if it has none.
fn tag_of(key: &[u8]) -> &[u8] {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        rest.get(..rest.iter().position(|byte| *byte == b'}')?)
    });
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

#[cfg(test)]
#[path = "slot_tests.rs"]
mod tests;

//! The data key of an encrypted volume, encrypted with a key of the operator's; and what the manifest's entries look
//! like there.
//!
//! Two copies of the encrypted key are in segment 0, at [`WRAPPED_KEY_OFFSETS`], each a [frame](crate::frame). The one
//! with the higher generation counts. None is longer than a sector, so a power loss leaves the old one or the new one.

use crate::frame::{FRAME_HEADER_BYTES, FrameKind, read_frame, write_frame};
use crate::{DecodeError, VolumeId};
use serde::{Deserialize, Serialize};

/// Where the copies of the encrypted key are, in bytes.
pub const WRAPPED_KEY_OFFSETS: [u64; 2] = [8192, 12288];
/// Bytes of a copy, at most.
pub const WRAPPED_KEY_BYTES: usize = 512;
/// Bytes of a nonce of XChaCha20-Poly1305.
pub const SEAL_NONCE_BYTES: usize = 24;
/// Bytes of a data key: 32 for AES-256-CTR, then 32 for XChaCha20-Poly1305.
pub const DATA_KEY_BYTES: usize = 64;
/// Bytes that sealing adds to an entry of the manifest, at most: header, nonce, length and tag.
pub const SEALING_BYTES: usize = FRAME_HEADER_BYTES + SEAL_NONCE_BYTES + 5 + 16;

/// The data key of a volume, encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappedKey {
    /// Raised by each change.
    pub generation: u64,
    /// Name of the operator's key that it is encrypted with, at most 64 bytes.
    pub wrapped_with: String,
    /// Nonce of its encryption.
    pub nonce: [u8; SEAL_NONCE_BYTES],
    /// [`DATA_KEY_BYTES`] and a tag of 16 bytes.
    pub sealed: Vec<u8>,
}

/// What an encrypted data key belongs to: the associated data of its encryption.
pub fn wrapping_context(volume: VolumeId) -> [u8; 24] {
    let mut context = *b"leeward data key........";
    context[16..].copy_from_slice(&volume.0.to_le_bytes());
    context
}

impl WrappedKey {
    /// One frame, at most [`WRAPPED_KEY_BYTES`] long.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_frame(FrameKind::WrappedKey, self, &mut bytes);
        assert!(bytes.len() <= WRAPPED_KEY_BYTES, "the names of keys are limited");
        bytes
    }

    /// Decodes the frame at the start of `bytes`.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn decode(bytes: &[u8]) -> Result<WrappedKey, DecodeError> {
        let found = read_frame(FrameKind::WrappedKey, bytes, WRAPPED_KEY_BYTES - FRAME_HEADER_BYTES)?;
        let (needed, available) = (FRAME_HEADER_BYTES, bytes.len());
        found.map(|(key, _)| key).ok_or(DecodeError::Short { what: "encrypted key", needed, available })
    }
}

/// An entry of the manifest, encrypted. What is encrypted is the entry's whole frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedEntry {
    /// Nonce of its encryption.
    pub nonce: [u8; SEAL_NONCE_BYTES],
    /// The frame and a tag of 16 bytes. The associated data is the volume's id, 8 bytes, little endian.
    pub sealed: Vec<u8>,
}

#[cfg(test)]
#[path = "data_key_tests.rs"]
mod tests;

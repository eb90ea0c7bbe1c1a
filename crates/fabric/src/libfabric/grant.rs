//! The bytes of a grant, by which an owner lets a peer reach a memory. See also `docs/formats/fabric.md`.
//!
//! ```text
//!  0         8          16        24
//!  | key u64 | base u64 | len u64 | address of the owner's endpoint |      little endian
//! ```
//! Pure functions over bytes that may be hostile.

use crate::stream::frame::MAX_GRANT;

/// How a peer reaches a memory: key, address and endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Grant {
    /// The provider's key for the memory.
    pub(super) key: u64,
    /// The provider's address of the first byte of the memory's header, under that key.
    pub(super) base: u64,
    /// Bytes of the memory.
    pub(super) len: u64,
    /// The owner's endpoint for this connection, in the provider's own form.
    pub(super) address: Vec<u8>,
}

/// Bytes before the address.
const FIXED: usize = 24;

impl Grant {
    /// Its bytes on the connection.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED + self.address.len());
        for field in [self.key, self.base, self.len] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(&self.address);
        assert!(bytes.len() <= MAX_GRANT, "a grant of {} bytes", bytes.len());
        bytes
    }

    /// Decodes the bytes from a peer; `None` if they are no grant.
    pub(super) fn decode(bytes: &[u8]) -> Option<Grant> {
        let (fixed, address) = bytes.split_at_checked(FIXED)?;
        let (fields, _) = fixed.as_chunks::<8>();
        let [key, base, len] = [0, 1, 2].map(|i| u64::from_le_bytes(fields[i]));
        Some(Grant { key, base, len, address: address.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_grant() {
        let grant = Grant { key: 1, base: 0x0203, len: 100, address: b"there".to_vec() };
        let bytes = grant.encode();
        assert_eq!(bytes, b"\x01\0\0\0\0\0\0\0\x03\x02\0\0\0\0\0\0\x64\0\0\0\0\0\0\0there");
        assert_eq!(Grant::decode(&bytes), Some(grant));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_grant_or_none(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            match Grant::decode(&bytes) {
                Some(grant) => prop_assert_eq!(grant.encode(), bytes),
                None => prop_assert!(bytes.len() < FIXED),
            }
        }
    }
}

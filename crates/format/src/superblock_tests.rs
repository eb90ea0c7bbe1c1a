//! Tests of the superblock codec.

use super::*;
use proptest::prelude::*;

const SUPERBLOCK: Superblock = Superblock {
    version: VOLUME_VERSION,
    segment_bytes: 2 << 20,
    zone_segments: 4,
    volume: VolumeId(7),
    nonce_bytes: 0,
};

#[test]
fn what_was_written_is_read() {
    for version in OLDEST_VOLUME_VERSION..=VOLUME_VERSION {
        let superblock = Superblock { version, ..SUPERBLOCK };
        assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }
    let encrypted = Superblock { nonce_bytes: 8192, ..SUPERBLOCK };
    assert_eq!(Superblock::decode(&encrypted.encode()), Ok(encrypted));
}

#[test]
fn other_versions_say_which_wherever_their_checksum_is() {
    let mut bytes = SUPERBLOCK.encode();
    for found in [0, OLDEST_VOLUME_VERSION - 1, VOLUME_VERSION + 1, u32::MAX] {
        bytes[8..12].copy_from_slice(&found.to_le_bytes());
        let known = VOLUME_VERSION;
        assert_eq!(Superblock::decode(&bytes), Err(DecodeError::Version { what: "volume", found, known }));
    }
    // Bytes that are no volume have no version either.
    bytes[0] = 0;
    assert!(matches!(Superblock::decode(&bytes), Err(DecodeError::Invalid { .. })));
}

#[test]
fn a_short_file_is_told_from_another_one() {
    let bytes = SUPERBLOCK.encode();
    for len in [0, 5, 8, 100, SUPERBLOCK_BYTES - 1] {
        assert!(matches!(Superblock::decode(&bytes[..len]), Err(DecodeError::Short { .. })), "{len} bytes");
    }
    assert!(matches!(Superblock::decode(b"hello"), Err(DecodeError::Invalid { .. })));
}

#[test]
fn absurd_sizes_are_refused() {
    for (segment_bytes, zone_segments) in [(0, 4), (48 << 10, 4), (4 << 20, 4), (2 << 20, 0), (2 << 20, 1 << 20)] {
        let bytes = Superblock { segment_bytes, zone_segments, ..SUPERBLOCK }.encode();
        assert!(Superblock::decode(&bytes).is_err(), "{segment_bytes} {zone_segments}");
    }
    assert!(Superblock::decode(&Superblock { nonce_bytes: 12, ..SUPERBLOCK }.encode()).is_err());
}

proptest! {
    #[test]
    fn any_flipped_bit_is_noticed(bit in 0usize..SUPERBLOCK_BYTES * 8) {
        let mut bytes = SUPERBLOCK.encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Superblock::decode(&bytes).is_err());
    }
}

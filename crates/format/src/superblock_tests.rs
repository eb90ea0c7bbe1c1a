//! Tests of the superblock codec.

use super::*;
use proptest::prelude::*;

const SUPERBLOCK: Superblock = Superblock { segment_bytes: 2 << 20, zone_segments: 4 };

#[test]
fn what_was_written_is_read() {
    assert_eq!(Superblock::decode(&SUPERBLOCK.encode()), Ok(SUPERBLOCK));
}

#[test]
fn other_versions_say_which() {
    let mut bytes = SUPERBLOCK.encode();
    bytes[8] = 9;
    let crc = crc32c::crc32c(&bytes[..508]);
    bytes[508..].copy_from_slice(&crc.to_le_bytes());
    let error = Superblock::decode(&bytes).unwrap_err().to_string();
    assert_eq!(error, "superblock: a volume of version 9, this program reads version 1");
}

#[test]
fn absurd_sizes_are_refused() {
    for (segment_bytes, zone_segments) in [(0, 4), (48 << 10, 4), (4 << 20, 4), (2 << 20, 0), (2 << 20, 1 << 20)] {
        let bytes = Superblock { segment_bytes, zone_segments }.encode();
        assert!(Superblock::decode(&bytes).is_err(), "{segment_bytes} {zone_segments}");
    }
}

proptest! {
    #[test]
    fn any_flipped_bit_is_noticed(bit in 0usize..SUPERBLOCK_BYTES * 8) {
        let mut bytes = SUPERBLOCK.encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Superblock::decode(&bytes).is_err());
    }
}

//! Packed segments are unpacked, and nothing else is accepted.

use super::*;
use crate::Epoch;
use proptest::prelude::*;

fn of() -> (SegmentId, SegmentKind, SegmentNo) {
    (SegmentId::new(Epoch(2), 3), SegmentKind::Leaf, SegmentNo(4))
}

/// The segment that came as `bytes`, all of it checked.
fn receive(shipped: &Shipped, bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let plain = unpack(shipped, bytes)?.unwrap_or_else(|| bytes.to_vec());
    check(shipped, &plain).map(|()| plain)
}

fn any_plain() -> impl Strategy<Value = Vec<u8>> {
    // Some compress, some do not.
    (1usize..20_000, 1u8..=255).prop_flat_map(|(len, kinds)| prop::collection::vec(0..kinds, len))
}

proptest! {
    #[test]
    fn what_was_packed_is_unpacked(plain in any_plain(), codec in 0usize..3) {
        let (shipped, packed) = pack(of(), &plain, Codec::ALL[codec]);
        prop_assert_eq!(packed.is_some(), shipped.codec != Codec::None);
        let bytes = packed.as_ref().unwrap_or(&plain);
        prop_assert!(packed.is_none() || bytes.len() <= plain.len() - plain.len() / 8);
        prop_assert_eq!(unpack(&shipped, bytes).unwrap().is_some(), packed.is_some());
        prop_assert_eq!(receive(&shipped, bytes).unwrap(), plain);
    }

    #[test]
    fn other_bytes_are_refused(plain in any_plain(), codec in 0usize..3, at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let (shipped, packed) = pack(of(), &plain, Codec::ALL[codec]);
        let mut bytes = packed.unwrap_or_else(|| plain.clone());
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        // Where bytes repeat, a copy of others of them may be the same segment.
        prop_assert!(receive(&shipped, &bytes).map_or(true, |other| other == plain));
        bytes[at] ^= 1 << bit;
        prop_assert!(receive(&shipped, &bytes[..at]).is_err());
        for bytes in [0, 1, shipped.bytes - 1, shipped.bytes + 1, u32::MAX] {
            let other = Shipped { bytes, ..shipped };
            prop_assert!(receive(&other, &[7; 64]).is_err());
        }
    }
}

#[test]
fn what_gains_little_travels_as_it_is() {
    let mut noise = vec![0; 5000];
    let mut word = 1u64;
    for byte in &mut noise {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (word >> 56) as u8;
    }
    for codec in Codec::ALL {
        let (shipped, packed) = pack(of(), &noise, codec);
        assert_eq!((shipped.codec, packed), (Codec::None, None));
    }
    let (shipped, packed) = pack(of(), &[9; 5000], Codec::Lz4);
    assert_eq!((shipped.codec, shipped.bytes), (Codec::Lz4, 5000));
    assert!(packed.unwrap().len() < 100);
}

//! Packed leaves come back as they were, keep their places when pointers change, and refuse what is damaged.

use super::*;
use crate::node::{Entry, LeafBuilder};
use crate::{Lsn, RegionId, SegmentId, SegmentName, Stamp};
use bytes::Bytes;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

const HERE: Address = Address { region: RegionId(3), segment: SegmentId(9 << 40 | 17), offset: 4321 };

/// A leaf that compresses well, every third entry of it in a log.
fn leaf(entries: u32) -> Vec<u8> {
    let mut builder = LeafBuilder::new(NODE_BYTES);
    for n in 0..entries {
        let key = format!("user{n:08}");
        let entry = match n % 3 {
            0 => Entry::InLog { pointer: Pointer::new(SegmentName(n.into()), n * 8), value_bytes: 2000 },
            1 => Entry::InPlace(b"red red green red"),
            _ => Entry::Tombstone,
        };
        assert!(builder.push(key.as_bytes(), Lsn(u64::from(n) + 5), entry));
    }
    let mut node = Vec::new();
    builder.finish(HERE, &mut node);
    node
}

fn packed(codec: Codec, node: &[u8]) -> Vec<u8> {
    let mut out = vec![7; 3];
    pack(codec, &mut node.to_vec(), HERE, &mut out);
    assert_eq!(out[..3], [7; 3]);
    out.split_off(3)
}

fn entries(leaf: &Node<Vec<u8>>) -> Vec<(Vec<u8>, Stamp, String)> {
    let entry = |i| {
        let mut key = Vec::new();
        leaf.key_into(i, &mut key);
        let (stamp, entry) = leaf.entry(i);
        (key, stamp, format!("{entry:?}"))
    };
    (0..leaf.len()).map(entry).collect()
}

#[test]
fn a_leaf_comes_back_from_fewer_bytes() {
    let node = leaf(150);
    let plain = Node::parse(node.clone(), HERE).unwrap();
    for codec in [Codec::Lz4, Codec::Zstd] {
        let stored = packed(codec, &node);
        assert!(is_packed(&stored) && stored.len() < node.len() / 2, "{codec}: {} bytes", stored.len());
        assert_eq!(describe(&stored), Some((codec, stored.len() as u32)));
        let back: Node<Vec<u8>> = read_leaf(&stored, HERE).unwrap();
        assert_eq!(entries(&back), entries(&plain));
        assert_eq!(back.bytes()[4..], plain.bytes()[4..], "all but the CRC");
        let longer = [&stored[..], &[0; 99]].concat();
        assert_eq!(entries(&read_leaf(&longer, HERE).unwrap()), entries(&plain), "zeroes may follow");
        assert!(read_leaf::<Vec<u8>>(&stored, HERE.at(0)).is_err(), "it is of another place");
    }
}

#[test]
fn what_does_not_shrink_is_stored_as_it_is() {
    let mut builder = LeafBuilder::new(NODE_BYTES);
    let mut state = 1u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    })
    .take(7900)
    .collect();
    assert!(builder.push(b"k", Lsn(1), Entry::InPlace(&noise)));
    let mut node = Vec::new();
    builder.finish(HERE, &mut node);
    for codec in Codec::ALL {
        assert_eq!(packed(codec, &node), node);
    }
    // Pointers and the CRC are put back.
    let mut builder = LeafBuilder::new(NODE_BYTES);
    for n in 0..40u32 {
        let key = &noise[n as usize * 190..][..190];
        builder.push(
            &[&n.to_be_bytes(), key].concat(),
            Lsn(1),
            Entry::InLog { pointer: Pointer::new(SegmentName(n.into()), 9), value_bytes: 1 },
        );
    }
    let mut node = Vec::new();
    builder.finish(HERE, &mut node);
    assert_eq!(packed(Codec::Zstd, &node), node);
}

#[test]
fn pointers_are_rewritten_where_they_stand() {
    let node = leaf(150);
    for codec in [Codec::Lz4, Codec::Zstd] {
        let mut stored = packed(codec, &node);
        let bytes = stored.len();
        stored.resize(bytes + 50, 0);
        let mut map = |old: Pointer| Some(Pointer::new(SegmentName(old.segment().0 + 1000), old.offset()));
        rewrite(&mut stored, (HERE, HERE), &mut map).unwrap();
        assert_eq!(stored_bytes(&stored).unwrap(), bytes);
        let back: Node<Vec<u8>> = read_leaf(&stored, HERE).unwrap();
        for n in (0..150).step_by(3) {
            let expected =
                Entry::InLog { pointer: Pointer::new(SegmentName(u64::from(n) + 1000), n * 8), value_bytes: 2000 };
            assert_eq!(back.entry(n as usize).1, expected);
        }
        assert!(rewrite(&mut stored, (HERE, HERE), &mut |_| None).is_err(), "a segment that is not known");
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let node = leaf(60);
    for codec in [Codec::Lz4, Codec::Zstd] {
        let stored = packed(codec, &node);
        for bit in 0..stored.len() * 8 {
            let mut damaged = stored.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(read_leaf::<Vec<u8>>(&damaged, HERE).is_err(), "{codec}: bit {bit}");
            assert!(rewrite(&mut damaged, (HERE, HERE), &mut Some).is_err(), "{codec}: bit {bit}");
        }
        for len in 0..stored.len() {
            assert!(read_leaf::<Vec<u8>>(&stored[..len], HERE).is_err());
        }
    }
}

/// Bytes with a matching checksum, as only a hostile writer makes them.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Ok(len) = stored_bytes(&bytes)
        && len <= bytes.len()
    {
        let crc = HERE.crc(&bytes[4..len]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

#[test]
fn a_length_that_lies_is_refused() {
    for codec in [Codec::Lz4, Codec::Zstd] {
        let stored = packed(codec, &leaf(150));
        for (at, lies) in [(8, vec![16384u32, 1 << 21, 1 << 22, 0, 8191, u32::MAX]), (16, vec![0, 1, 49, 51, u32::MAX])]
        {
            for lie in lies {
                let mut lying = stored.clone();
                lying[at..at + 4].copy_from_slice(&lie.to_le_bytes());
                assert!(read_leaf::<Vec<u8>>(&sealed(lying), HERE).is_err(), "{codec}: {lie} at {at}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_leaf_comes_back(
        pairs in btree_map(vec(0u8..5, 1..20), (1u64..1000, vec(0u8..9, 0..60)), 1..60),
        codec in prop_oneof![Just(Codec::Lz4), Just(Codec::Zstd)],
    ) {
        let mut builder = LeafBuilder::new(NODE_BYTES);
        for (key, (lsn, value)) in &pairs {
            let pointer = Pointer::new(SegmentName(*lsn), 8);
            let in_log = Entry::InLog { pointer, value_bytes: value.len() as u32 };
            let entry = if lsn % 4 == 0 { in_log } else { Entry::InPlace(value) };
            if !builder.push(key, Lsn(*lsn), entry) {
                break;
            }
        }
        let mut node = Vec::new();
        builder.finish(HERE, &mut node);
        let stored = packed(codec, &node);
        let plain = Node::parse(node, HERE).unwrap();
        if is_packed(&stored) {
            prop_assert_eq!(entries(&read_leaf(&stored, HERE).unwrap()), entries(&plain));
        } else {
            prop_assert_eq!(&stored, plain.bytes());
        }
    }

    #[test]
    fn hostile_bytes_are_answered_with_an_error_or_a_leaf(
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<prop::sample::Index>(),
        codec in prop_oneof![Just(Codec::Lz4), Just(Codec::Zstd)],
    ) {
        let mut stored = packed(codec, &leaf(100));
        for (at, byte) in &changes {
            let at = 8 + at.index(stored.len() - 8);
            stored[at] = *byte;
        }
        if cut.index(4) == 0 {
            stored.truncate(cut.index(stored.len()));
        }
        let stored = sealed(stored);
        let _ = rewrite(&mut stored.clone(), (HERE, HERE), &mut Some);
        // A leaf that is accepted can be read to the end.
        if let Ok(leaf) = read_leaf::<Bytes>(&stored, HERE) {
            for i in 0..leaf.len() {
                let _ = (leaf.suffix(i), leaf.entry(i));
            }
        }
    }
}

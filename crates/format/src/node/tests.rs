//! Nodes against a model, and against hostile bytes.

use super::*;
use crate::{Expiry, Lsn, MAX_VALUE_BYTES, SegmentName, Stamp};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::collections::BTreeMap;

const HERE: Address = Address { region: RegionId(3), segment: SegmentId(9 << 40 | 17), offset: 16384 };

#[derive(Clone, Debug)]
enum Owned {
    InPlace(Vec<u8>),
    InLog(u64, u32),
    Tombstone,
}

impl Owned {
    fn as_entry(&self) -> Entry<'_> {
        match self {
            Owned::InPlace(value) => Entry::InPlace(value),
            Owned::InLog(pointer, value_bytes) => {
                Entry::InLog { pointer: Pointer(*pointer), value_bytes: *value_bytes }
            }
            Owned::Tombstone => Entry::Tombstone,
        }
    }
}

fn any_key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(0u8..4, 1..6),
        4 => vec(any::<u8>(), 1..20).prop_map(|tail| [b"user0000".as_slice(), &tail].concat()),
        1 => vec(any::<u8>(), 1..5).prop_map(|tail| [vec![7; 2000], tail].concat()),
    ]
}

fn any_entry() -> impl Strategy<Value = (Stamp, Owned)> {
    let owned = prop_oneof![
        vec(any::<u8>(), 0..150).prop_map(Owned::InPlace),
        (any::<u64>(), 0..=MAX_VALUE_BYTES as u32).prop_map(|(pointer, len)| Owned::InLog(pointer, len)),
        Just(Owned::Tombstone),
    ];
    let expires = prop_oneof![2 => Just(None), 1 => (1..=Expiry::MAX_MS).prop_map(Expiry::from_ms)];
    let stamped = |(lsn, expires, owned): (u64, Option<Expiry>, Owned)| (Stamp { lsn: Lsn(lsn), expires }, owned);
    (prop_oneof![1u64..100_000, any::<u64>()], expires, owned).prop_map(stamped)
}

type Model = BTreeMap<Vec<u8>, (Stamp, Owned)>;

/// The entries of a leaf: any entries, or entries with the same kinds and lengths.
fn any_model(entries: std::ops::Range<usize>) -> impl Strategy<Value = Model> {
    let keys = (1usize..12).prop_flat_map({
        let entries = entries.clone();
        move |bytes| {
            btree_map(vec(any::<u8>(), bytes), (1u64..100_000, 1..=Expiry::MAX_MS, any::<u64>()), entries.clone())
        }
    });
    let same = (keys, 0usize..3, any::<bool>(), 0usize..60).prop_map(|(keys, kind, expires, value_bytes)| {
        let entry = |(lsn, ms, pointer): (u64, u64, u64)| {
            let owned = match kind {
                0 => Owned::InPlace(pointer.to_le_bytes().into_iter().cycle().take(value_bytes).collect()),
                1 => Owned::InLog(pointer, value_bytes as u32),
                _ => Owned::Tombstone,
            };
            (Stamp { lsn: Lsn(lsn), expires: expires.then(|| Expiry::from_ms(ms)).flatten() }, owned)
        };
        keys.into_iter().map(|(key, what)| ([b"user".as_slice(), &key].concat(), entry(what))).collect::<Model>()
    });
    prop_oneof![1 => same, 1 => btree_map(any_key(), any_entry(), entries)]
}

/// A leaf of at most 8 KiB with as many entries of `model` as fit, and their number.
fn build_leaf(model: &Model) -> (Vec<u8>, usize) {
    build_leaf_of(NODE_BYTES, model)
}

/// [`build_leaf`] of a leaf that is a multiple of `unit`.
fn build_leaf_of(unit: usize, model: &Model) -> (Vec<u8>, usize) {
    let mut builder = LeafBuilder::new(unit);
    for (key, (stamp, owned)) in model {
        if !builder.push(key, *stamp, owned.as_entry()) {
            break;
        }
    }
    let (mut out, taken, bytes) = (Vec::new(), builder.len(), builder.node_bytes());
    builder.finish(HERE, &mut out);
    assert_eq!(out.len(), bytes);
    (out, taken)
}

fn build_index(pivots: &[Vec<u8>]) -> (Vec<u8>, usize) {
    let mut builder = IndexNodeBuilder::default();
    for (i, pivot) in pivots.iter().enumerate() {
        let fits = builder.fits(pivot);
        let child = Child { pointer: Pointer::new(SegmentName(i as u64), 8192), blocks: 1 + i as u32 % 512 };
        assert_eq!(builder.push(pivot, child), fits);
        if !fits {
            break;
        }
    }
    let (mut out, taken) = (Vec::new(), builder.len());
    builder.finish(HERE, &mut out);
    (out, taken)
}

fn fix_crc(bytes: &mut [u8]) {
    let crc = HERE.crc(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Calls everything that reads; a panic fails the test.
fn read_all(node: &Node<&[u8]>, key: &[u8]) {
    let mut scratch = Vec::new();
    for i in 0..node.len() {
        match node.kind() {
            NodeKind::Leaf => {
                node.key_into(i, &mut scratch);
                node.entry(i);
            }
            NodeKind::Index => {
                node.pivot_into(i, &mut scratch);
                node.child(i);
            }
        }
    }
    match node.kind() {
        NodeKind::Leaf => assert!(node.search(key).unwrap_or_else(|i| i) <= node.len()),
        NodeKind::Index => assert!(node.child_of(key) < node.len()),
    }
}

proptest! {
    #[test]
    fn leaf_is_its_model(model in any_model(1..400), probes in vec(any_key(), 20)) {
        let (bytes, taken) = build_leaf(&model);
        let node = Node::parse(&bytes[..], HERE).unwrap();
        let model: Vec<_> = model.into_iter().take(taken).collect();
        prop_assert_eq!(node.len(), taken);
        let mut key = Vec::new();
        for (i, (expected, (stamp, owned))) in model.iter().enumerate() {
            node.key_into(i, &mut key);
            prop_assert_eq!(&key, expected);
            prop_assert_eq!(node.entry(i), (*stamp, owned.as_entry()));
            prop_assert_eq!(node.search(expected), Ok(i));
        }
        for probe in probes {
            prop_assert_eq!(node.search(&probe), model.binary_search_by(|(key, _)| key.cmp(&probe)));
        }
    }

    #[test]
    fn index_leads_to_the_child_whose_range_holds_the_key(
        pivots in proptest::collection::btree_set(any_key(), 1..200), probes in vec(any_key(), 20),
    ) {
        let pivots: Vec<_> = pivots.into_iter().collect();
        let (bytes, taken) = build_index(&pivots);
        prop_assert!(taken == pivots.len() || taken >= 2);
        let node = Node::parse(&bytes[..], HERE).unwrap();
        let mut pivot = Vec::new();
        for (i, expected) in pivots[..taken].iter().enumerate() {
            node.pivot_into(i, &mut pivot);
            prop_assert_eq!(&pivot[..], if i == 0 { &[][..] } else { expected });
            let child = Child { pointer: Pointer::new(SegmentName(i as u64), 8192), blocks: 1 + i as u32 % 512 };
            prop_assert_eq!(node.child(i), child);
        }
        for probe in probes {
            let expected = pivots[..taken].partition_point(|pivot| *pivot <= probe).saturating_sub(1);
            prop_assert_eq!(node.child_of(&probe), expected);
        }
    }

    #[test]
    fn hostile_bytes_are_an_error_or_harmless(
        model in any_model(1..60),
        damage in vec((0usize..600, any::<u8>()), 1..6),
        index in any::<bool>(),
    ) {
        let mut bytes = if index { build_index(&model.keys().cloned().collect::<Vec<_>>()).0 } else { build_leaf(&model).0 };
        let whole = bytes.clone();
        for (at, byte) in damage {
            bytes[at] = byte;
        }
        if bytes != whole {
            prop_assert!(Node::parse(&bytes[..], HERE).is_err());
        }
        fix_crc(&mut bytes);
        if let Ok(node) = Node::parse(&bytes[..], HERE) {
            read_all(&node, b"user0000abc");
            let _ = rewrite(&mut bytes, (HERE, HERE), &mut Some);
        }
    }

    #[test]
    fn random_bytes_are_an_error(bytes in vec(any::<u8>(), 0..100)) {
        prop_assert!(Node::parse(&bytes[..], HERE).is_err());
    }

    #[test]
    fn translation_changes_pointers_only(model in any_model(1..100)) {
        let (mut bytes, taken) = build_leaf(&model);
        let before = bytes.clone();
        let there = Address { segment: SegmentId(HERE.segment.0 + 1), ..HERE };
        let mut map = |old: Pointer| Some(Pointer::new(SegmentName(old.segment().0 ^ 5), old.offset()));
        rewrite(&mut bytes, (HERE, there), &mut map).unwrap();
        prop_assert!(Node::parse(&bytes[..], HERE).is_err());
        let (old, new) = (Node::parse(&before[..], HERE).unwrap(), Node::parse(&bytes[..], there).unwrap());
        for i in 0..taken {
            prop_assert_eq!(old.suffix(i), new.suffix(i));
            match (old.entry(i), new.entry(i)) {
                ((stamp, Entry::InLog { pointer, value_bytes }), found) => {
                    let pointer = Pointer::new(SegmentName(pointer.segment().0 ^ 5), pointer.offset());
                    prop_assert_eq!(found, (stamp, Entry::InLog { pointer, value_bytes }));
                }
                (entry, found) => prop_assert_eq!(entry, found),
            }
        }
    }

    #[test]
    fn separators_separate(a in any_key(), b in any_key()) {
        prop_assume!(a != b);
        let (low, high) = if a < b { (a, b) } else { (b, a) };
        let pivot = separator(&low, &high);
        prop_assert!(low.as_slice() < pivot && pivot <= high.as_slice());
    }
}

/// A leaf of keys of six bytes with one value of five and the rest of four, or all of four.
fn small_leaf(is_uniform: bool) -> (Vec<u8>, usize) {
    let last = if is_uniform { vec![9; 4] } else { vec![9; 5] };
    let entry = |i: u32| ((b'b', i), vec![7; 4]);
    let entries = (0..2000).map(entry).chain([((b'a', 0), last)]);
    let model = entries.map(|((first, i), value)| {
        let key = [&[b'k', first][..], &i.to_be_bytes()].concat();
        (key, (Lsn(u64::from(i) + 500).into(), Owned::InPlace(value)))
    });
    build_leaf(&model.collect())
}

#[test]
fn a_uniform_leaf_says_once_what_its_entries_are_made_of() {
    let (bytes, entries) = small_leaf(true);
    // Behind the prefix "k" five bytes of key, two of LSN, four of value.
    assert_eq!(entries, (NODE_BYTES - HEADER_BYTES - SHAPE_BYTES - 1) / 11);
    assert_eq!(Node::parse(&bytes[..], HERE).unwrap().len(), entries);
    assert!(small_leaf(false).1 < entries * 11 / 16, "each entry has a slot and two lengths");
}

/// Small pairs fill a block. Where that would waste more than an eighth of it, a leaf takes two.
#[test]
fn a_leaf_has_one_block_or_two() {
    let leaf_of = |value_bytes: usize, lengths: usize| {
        let entry = |i: usize| (Lsn(9).into(), Owned::InPlace(vec![7; value_bytes + i % lengths]));
        let model = (0..1000u32).map(|i| (i.to_be_bytes().to_vec(), entry(i as usize))).collect();
        let (bytes, entries) = build_leaf_of(BLOCK_BYTES, &model);
        assert_eq!(Node::parse(&bytes[..], HERE).unwrap().len(), entries);
        (bytes.len(), entries)
    };
    for lengths in [1, 2] {
        assert_eq!(leaf_of(9, lengths).0, BLOCK_BYTES);
        assert_eq!(leaf_of(400, lengths).0, BLOCK_BYTES);
        assert_eq!(leaf_of(1100, lengths), (NODE_BYTES, 7), "three would leave a fifth of a block");
        assert_eq!(leaf_of(2100, lengths), (NODE_BYTES, 3), "one would leave half of it");
        assert_eq!(leaf_of(3700, lengths), (BLOCK_BYTES, 1));
        assert_eq!(leaf_of(5000, lengths), (NODE_BYTES, 1));
    }
}

#[test]
fn a_shape_that_no_entry_has_is_refused() {
    let (bytes, entries) = small_leaf(true);
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        fix_crc(&mut bytes);
        Node::parse(&bytes[..], HERE).map(|node| node.len())
    };
    assert_eq!(with(HEADER_BYTES, 5), Ok(entries), "as it is");
    // No suffix, a longer one, another kind, an expiry, a longer value.
    let shape = HEADER_BYTES;
    for (at, byte) in [(shape, 0), (shape, 6), (shape + 1, 255), (shape + 2, 3), (shape + 3, 1), (shape + 7, 1), (7, 2)]
    {
        assert!(with(at, byte).is_err(), "{byte} at {at}");
    }
    assert!(with(shape + 2, 2).is_err(), "tombstones with values");
}

#[test]
fn entries_that_share_bytes_are_refused() {
    let in_log = |value_bytes| Owned::InLog(Pointer::new(SegmentName(7), 64).0, value_bytes);
    let model =
        BTreeMap::from([(b"a", 99), (b"b", 98)].map(|(key, value)| (key.to_vec(), (Lsn(1).into(), in_log(value)))));
    let (bytes, _) = build_leaf(&model);
    let slots = HEADER_BYTES;
    let second = u16::from_le_bytes([bytes[slots + 4], bytes[slots + 5]]);
    for place in [u16::from_le_bytes([bytes[slots], bytes[slots + 1]]), second - 1, second + 1] {
        let mut shared = bytes.clone();
        shared[slots + 4..slots + 6].copy_from_slice(&place.to_le_bytes());
        fix_crc(&mut shared);
        assert!(Node::parse(&shared[..], HERE).is_err(), "entry 1 at {place} where {second} is right");
    }
}

#[test]
fn a_node_belongs_to_one_address() {
    let model = BTreeMap::from([(b"key".to_vec(), (Lsn(1).into(), Owned::Tombstone))]);
    let (bytes, _) = build_leaf(&model);
    for other in
        [HERE.at(0), Address { region: RegionId(4), ..HERE }, Address { segment: SegmentId(9 << 40 | 18), ..HERE }]
    {
        assert!(matches!(Node::parse(&bytes[..], other), Err(DecodeError::Checksum { .. })));
    }
}

#[test]
fn the_largest_pair_makes_a_jumbo_leaf() {
    let (key, value) = (vec![9; MAX_KEY_BYTES], vec![1; MAX_VALUE_BYTES]);
    let mut builder = LeafBuilder::new(BLOCK_BYTES);
    let stamp = Stamp { lsn: Lsn(5), expires: Expiry::from_ms(7) };
    assert!(builder.push(&key, stamp, Entry::InPlace(&value)));
    assert!(!builder.push(&[vec![9; MAX_KEY_BYTES - 1], vec![10]].concat(), Lsn(6), Entry::Tombstone));
    let mut bytes = Vec::new();
    builder.finish(HERE, &mut bytes);
    assert_eq!(bytes.len(), builder.single_bytes(&key, stamp, Entry::InPlace(&value)));
    let node = Node::parse(&bytes[..], HERE).unwrap();
    assert_eq!(node.search(&key), Ok(0));
    assert_eq!(node.entry(0), (stamp, Entry::InPlace(&value)));
}

#[test]
fn two_children_always_fit() {
    let mut builder = IndexNodeBuilder::default();
    let child = Child { pointer: Pointer(0), blocks: 512 };
    for pivot in [vec![1; MAX_KEY_BYTES], vec![2; MAX_KEY_BYTES]] {
        assert!(builder.push(&pivot, child));
    }
    assert!(!builder.push(&[3; MAX_KEY_BYTES], child));
}

#[test]
fn an_unknown_segment_stops_the_translation() {
    let (mut bytes, _) = build_index(&[b"a".to_vec(), b"b".to_vec()]);
    let error = rewrite(&mut bytes, (HERE, HERE), &mut |old| (old.segment().0 == 0).then_some(old)).unwrap_err();
    assert!(error.to_string().contains("unknown segment"), "{error}");
}

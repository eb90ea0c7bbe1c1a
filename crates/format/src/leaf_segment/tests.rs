//! Leaf segments against a model, at their limits, translated, and damaged.

use super::*;
use crate::manifest::SegmentKind;
use crate::node::{Child, Entry};
use crate::packed::Codec;
use crate::range::RangeTombstone;
use crate::superblock::MIN_SEGMENT_BYTES;
use crate::{Pointer, RegionId, SegmentId};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::collections::BTreeMap;

const HERE: Address = Address { region: RegionId(3), segment: SegmentId(9 << 40 | 17), offset: 0 };
const NO: SegmentName = SegmentName(44);

type Model = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// The first segment of as much of `model` as fits, and the number of entries taken.
fn build(segment_bytes: usize, model: &Model, codec: Codec) -> (BuiltLeafSegment, usize) {
    build_at((HERE, NO), segment_bytes, model, codec, &|pointer| pointer)
}

/// [`build`] of a segment with that address and number, and with mapped pointers.
fn build_at(
    (address, no): (Address, SegmentName),
    segment_bytes: usize,
    model: &Model,
    codec: Codec,
    map: &dyn Fn(Pointer) -> Pointer,
) -> (BuiltLeafSegment, usize) {
    let mut builder = LeafSegmentBuilder::new(segment_bytes, address, no, codec, Vec::new());
    for (key, (lsn, value)) in model {
        let entry = match value.len() % 7 {
            0 => Entry::Tombstone,
            1 => Entry::InLog { pointer: map(Pointer::new(SegmentName(*lsn), 77)), value_bytes: 5 },
            _ => Entry::InPlace(value),
        };
        if !builder.push(key, Lsn(*lsn), entry) {
            break;
        }
    }
    let taken = builder.len();
    let built = builder.finish();
    assert!(built.bytes.len() <= segment_bytes && built.bytes.len() == built.footer.end as usize);
    (built, taken)
}

fn open(bytes: &[u8], no: SegmentName) -> Result<LeafIndex, DecodeError> {
    let footer = Footer::parse(&Bytes::copy_from_slice(bytes), HERE)?;
    if footer.end as usize != bytes.len() {
        return Err(DecodeError::invalid(WHAT, "end"));
    }
    let tree = Bytes::copy_from_slice(&bytes[footer.tree_at as usize..]);
    LeafIndex::parse(&tree, HERE.at(footer.tree_at), no)
}

fn leaf(bytes: &[u8], index: &LeafIndex, i: usize) -> Node<Bytes> {
    let LeafPlace { offset, bytes: len } = index.leaves()[i];
    read_leaf(&Bytes::copy_from_slice(&bytes[offset as usize..(offset + len) as usize]), HERE.at(offset)).unwrap()
}

fn any_codec() -> impl Strategy<Value = Codec> {
    prop_oneof![Just(Codec::None), Just(Codec::Lz4), Just(Codec::Zstd)]
}

fn any_model(entries: usize) -> impl Strategy<Value = Model> {
    let key = prop_oneof![
        3 => vec(0u8..3, 1..9),
        6 => vec(any::<u8>(), 1..12),
        // Long keys with and without long common prefixes: separators of every length.
        1 => (0u8..3, any::<u8>(), 1usize..4096).prop_map(|(a, b, len)| { let mut key = vec![a; len]; key[len - 1] = b; key }),
    ];
    btree_map(key, (1u64..1000, vec(any::<u8>(), 0..400)), 1..entries)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn a_segment_is_its_model(
        model in any_model(400),
        size in 0..3,
        codec in any_codec(),
        probes in vec(vec(any::<u8>(), 1..6), 20),
    ) {
        let (built, taken) = build(MIN_SEGMENT_BYTES << size, &model, codec);
        prop_assert!(taken > 0);
        let index = open(&built.bytes, NO).unwrap();
        prop_assert_eq!(index.footer(), &built.footer);
        let model: Model = model.into_iter().take(taken).collect();
        let mut key = Vec::new();
        let mut found = Vec::new();
        for i in 0..index.leaves().len() {
            let leaf = leaf(&built.bytes, &index, i);
            for j in 0..leaf.len() {
                leaf.key_into(j, &mut key);
                prop_assert_eq!(index.leaf_of(&key), i);
                prop_assert!(index.may_contain(crate::filter::hash(&key)));
                found.push((key.clone(), leaf.entry(j).0.lsn.0));
            }
        }
        let expected: Vec<_> = model.iter().map(|(key, (lsn, _))| (key.clone(), *lsn)).collect();
        prop_assert_eq!(&found, &expected);
        let (first, last) = (&found[0].0, &found[found.len() - 1].0);
        prop_assert!(index.footer().span.first == first[..] && index.footer().span.last == last[..]);
        for probe in probes {
            // The leaf that is named is the only one that could hold the key.
            let i = index.leaf_of(&probe);
            let mut bound = Vec::new();
            if i + 1 < index.leaves().len() {
                leaf(&built.bytes, &index, i + 1).key_into(0, &mut bound);
                prop_assert!(probe < bound);
            }
            if i > 0 {
                let before = leaf(&built.bytes, &index, i - 1);
                before.key_into(before.len() - 1, &mut bound);
                prop_assert!(probe > bound);
            }
        }
    }

    /// It equals the segment that a builder makes of the same entries at that address.
    #[test]
    fn a_segment_gets_another_address_and_pointers(model in any_model(300), codec in any_codec(), moved in 0u64..1000) {
        let there = (Address { segment: SegmentId(99), ..HERE }, SegmentName(2000));
        let move_one = |old: Pointer| if old.segment().0 == moved { Pointer::new(SegmentName(3000), 8) } else { old };
        let (mut built, _) = build(MIN_SEGMENT_BYTES, &model, codec);
        let mut map = |old: Pointer| {
            Some(if old.segment() == NO && old.offset() != 77 { Pointer::new(there.1, old.offset()) } else { move_one(old) })
        };
        readdress((HERE, there.0), &mut built.bytes, &mut map).unwrap();
        let (expected, _) = build_at(there, MIN_SEGMENT_BYTES, &model, codec, &move_one);
        prop_assert!(built.bytes == expected.bytes);
        prop_assert!(readdress((HERE, there.0), &mut built.bytes, &mut Some).is_err(), "it is there no more");
    }

    #[test]
    fn damage_is_found(model in any_model(60), codec in any_codec(), at in any::<prop::sample::Index>(), bit in 0..8) {
        let (built, _) = build(MIN_SEGMENT_BYTES, &model, codec);
        let mut bytes = built.bytes.clone();
        let at = at.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        let padding = built.footer.filter_at as usize + built.footer.filter_bytes as usize;
        if at < padding || at >= bytes.len() - TRAILER_BYTES {
            prop_assert!(translate(SegmentKind::Leaf, HERE, &mut bytes, &mut Some).is_err());
        }
        if at >= built.footer.tree_at as usize {
            let _ = open(&bytes, NO);
        }
    }

    #[test]
    fn a_hostile_footer_is_an_error_or_harmless(
        model in any_model(60),
        codec in any_codec(),
        damage in vec((4usize..TRAILER_BYTES, any::<u8>()), 1..4),
    ) {
        let (built, _) = build(MIN_SEGMENT_BYTES, &model, codec);
        let mut bytes = built.bytes;
        let trailer_at = bytes.len() - TRAILER_BYTES;
        for (at, byte) in damage {
            bytes[trailer_at + at] = byte;
        }
        let word = |at: usize| u32::from_le_bytes(bytes[trailer_at + at..trailer_at + at + 4].try_into().unwrap()) as usize;
        let keys = word(40).saturating_add(word(44)).min(trailer_at);
        let crc = HERE.at(word(8) as u32).crc(&bytes[trailer_at + 4..]);
        let crc = crc32c::crc32c_append(crc, &bytes[trailer_at - keys..trailer_at]);
        bytes[trailer_at..trailer_at + 4].copy_from_slice(&crc.to_le_bytes());
        let _ = open(&bytes, NO);
        let _ = translate(SegmentKind::Leaf, HERE, &mut bytes, &mut Some);
    }

    #[test]
    fn random_bytes_are_an_error(mut bytes in vec(any::<u8>(), 0..300), leaf in any::<bool>()) {
        let kind = if leaf { SegmentKind::Leaf } else { SegmentKind::Index };
        prop_assert!(translate(kind, HERE, &mut bytes, &mut Some).is_err());
        prop_assert!(Footer::parse(&bytes.into(), HERE).is_err());
    }
}

#[test]
fn the_largest_pair_fits_an_empty_segment() {
    for segment_bytes in [MIN_SEGMENT_BYTES, 64 << 10, MAX_SEGMENT_BYTES] {
        let pair = max_pair_bytes(segment_bytes).min(crate::MAX_VALUE_BYTES + MAX_KEY_BYTES);
        for (key_bytes, codec) in [1, MAX_KEY_BYTES].into_iter().flat_map(|key| Codec::ALL.map(|codec| (key, codec))) {
            let (key, value) = (vec![1; key_bytes], vec![2; (pair - key_bytes).min(crate::MAX_VALUE_BYTES)]);
            let mut builder = LeafSegmentBuilder::new(segment_bytes, HERE, NO, codec, Vec::new());
            assert!(builder.push(&key, Lsn(1), Entry::InPlace(&value)));
            let built = builder.finish();
            assert!(built.bytes.len() <= segment_bytes);
            assert_eq!(leaf(&built.bytes, &open(&built.bytes, NO).unwrap(), 0).entry(0).1, Entry::InPlace(&value));
        }
    }
    assert!(max_pair_bytes(MAX_SEGMENT_BYTES) > crate::MAX_VALUE_BYTES + MAX_KEY_BYTES);
}

#[test]
fn a_full_segment_wastes_less_than_two_nodes() {
    let mut builder = LeafSegmentBuilder::new(MAX_SEGMENT_BYTES, HERE, NO, Codec::None, Vec::new());
    for i in 0.. {
        let key = format!("user{i:012}");
        if !builder.push(key.as_bytes(), Lsn(i), Entry::InPlace(b"seventeen bytes..")) {
            break;
        }
    }
    let built = builder.finish();
    assert!(built.bytes.len() > MAX_SEGMENT_BYTES - 2 * NODE_BYTES, "{}", built.bytes.len());
    assert!(built.footer.entries > 50_000, "{}", built.footer.entries);
}

#[test]
fn packed_leaves_fill_a_segment_with_more() {
    const SEGMENT_BYTES: usize = 512 << 10;
    let fill = |codec| {
        let mut builder = LeafSegmentBuilder::new(SEGMENT_BYTES, HERE, NO, codec, Vec::new());
        for i in 0.. {
            let key = format!("user{i:012}");
            if !builder.push(key.as_bytes(), Lsn(i), Entry::InPlace(b"north wind, north wind, north wind")) {
                break;
            }
        }
        let built = builder.finish();
        assert!(built.bytes.len() > SEGMENT_BYTES - 3 * NODE_BYTES, "{codec}: {}", built.bytes.len());
        built.footer.entries
    };
    let [plain, lz4, zstd] = Codec::ALL.map(fill);
    assert!(lz4 > plain * 3 / 2 && zstd > lz4, "{plain}, {lz4}, {zstd} entries");
}

#[test]
fn translation_moves_a_segment_to_another_volume() {
    Codec::ALL.into_iter().for_each(translated);
}

fn translated(codec: Codec) {
    let model: Model =
        (0..800u64).map(|i| (format!("k{i:05}").into_bytes(), (i % 50, vec![i as u8; i as usize % 97]))).collect();
    let (built, taken) = build(MIN_SEGMENT_BYTES, &model, codec);
    let mut bytes = built.bytes.clone();
    // Log segments 0 to 49 become 100 to 149; the segment itself, 44, becomes 7.
    let mut map = |no: SegmentName| Some(if no == NO { SegmentName(7) } else { SegmentName(no.0 + 100) });
    translate(SegmentKind::Leaf, HERE, &mut bytes, &mut map).unwrap();
    assert!(open(&bytes, NO).is_err(), "its pointers still lead to the old segment");
    let index = open(&bytes, SegmentName(7)).unwrap();
    let (mut key, mut seen) = (Vec::new(), 0);
    for i in 0..index.leaves().len() {
        let leaf = leaf(&bytes, &index, i);
        for j in 0..leaf.len() {
            leaf.key_into(j, &mut key);
            let (lsn, value) = &model[&key];
            seen += 1;
            match (leaf.entry(j).1, value.len() % 7) {
                (Entry::Tombstone, 0) => {}
                (Entry::InLog { pointer, value_bytes: 5 }, 1) => {
                    let local = if *lsn == 44 { 7 } else { *lsn + 100 };
                    assert_eq!(pointer, Pointer::new(SegmentName(local), 77));
                }
                (Entry::InPlace(found), _) => assert_eq!(found, value),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(seen, taken);
    let error = translate(SegmentKind::Leaf, HERE, &mut bytes, &mut |_| None).unwrap_err();
    assert!(error.to_string().contains("unknown segment"), "{error}");
}

#[test]
fn an_index_segment_is_translated_node_by_node() {
    let children: Vec<(Vec<u8>, Child)> = (0..2000u32)
        .map(|i| {
            (
                format!("pivot{i:06}").into_bytes(),
                Child { pointer: Pointer::new(SegmentName(i.into()), 8192), blocks: 3 },
            )
        })
        .collect();
    let mut bytes = Vec::new();
    let Ok(root) = write_index::<std::convert::Infallible>(&children, &mut |node| {
        let offset = bytes.len() as u32;
        node.finish(HERE.at(offset), &mut bytes);
        Ok(Pointer::new(SegmentName(5000), offset))
    });
    assert_eq!(root.pointer.offset() as usize, bytes.len() - NODE_BYTES);
    translate(SegmentKind::Index, HERE, &mut bytes, &mut |no| Some(SegmentName(no.0 + 1))).unwrap();
    let top_at = root.pointer.offset();
    let top = Node::parse(&bytes[top_at as usize..], HERE.at(top_at)).unwrap();
    assert!(top.len() > 1 && top.child(0).pointer == Pointer::new(SegmentName(5001), 0));
    let first = Node::parse(&bytes[..NODE_BYTES], HERE).unwrap();
    assert_eq!(first.child(1).pointer, Pointer::new(SegmentName(2), 8192));
    assert!(translate(SegmentKind::Index, HERE, &mut bytes[..NODE_BYTES - 1], &mut Some).is_err());
    assert!(translate(SegmentKind::Index, HERE, &mut [], &mut Some).is_err());
}

/// Range tombstones among entries: every segment agrees with the model about each key in its part, and its span holds
/// all.
fn segments_with_ranges(model: &Model, cuts: &[Vec<u8>]) -> Vec<BuiltLeafSegment> {
    let mut bounds: Vec<&Vec<u8>> = cuts.iter().collect();
    bounds.sort();
    bounds.dedup();
    let pairs = bounds.chunks_exact(2).map(|pair| RangeTombstone::new(pair[0], pair[1], Lsn(1)));
    let mut ranges: std::collections::VecDeque<RangeTombstone> = pairs.collect();
    let mut built = Vec::new();
    let start = || LeafSegmentBuilder::new(MIN_SEGMENT_BYTES, HERE, NO, Codec::None, Vec::new());
    let mut builder = start();
    let mut entries = model.iter().peekable();
    loop {
        let key = entries.peek().map(|(key, _)| &key[..]);
        if let Some(range) = ranges.pop_front_if(|range| key.is_none_or(|key| range.start <= key)) {
            if !builder.push_range(&range) {
                let bound = builder.bound_before(&range.start).to_vec();
                assert_eq!(builder.cut(&bound), None, "ranges are disjoint");
                built.push(std::mem::replace(&mut builder, start()).finish());
                ranges.push_front(range);
            }
            continue;
        }
        let Some((key, (lsn, value))) = entries.next() else { break };
        if builder.push(key, Lsn(*lsn), Entry::InPlace(value)) {
            continue;
        }
        let bound = if builder.is_empty() { key.clone() } else { builder.bound_before(key).to_vec() };
        assert!(bound <= *key);
        let rest = builder.cut(&bound);
        built.push(std::mem::replace(&mut builder, start()).finish());
        if let Some(rest) = rest {
            assert!(builder.push_range(&rest));
        }
        if !builder.push(key, Lsn(*lsn), Entry::InPlace(value)) {
            return built;
        }
    }
    if !builder.is_empty() || !builder.has_no_ranges() {
        built.push(builder.finish());
    }
    built
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn range_tombstones_are_kept_beside_entries(model in any_model(300), cuts in vec(vec(any::<u8>(), 1..12), 0..12), long in vec((any::<u8>(), 4000usize..=4096), 0..4)) {
        let cuts: Vec<_> = cuts.into_iter().chain(long.into_iter().map(|(byte, len)| vec![byte; len])).collect();
        let mut last: Option<Span> = None;
        for built in segments_with_ranges(&model, &cuts) {
            prop_assert!(built.bytes.len() <= MIN_SEGMENT_BYTES);
            let index = open(&built.bytes, NO).unwrap();
            prop_assert_eq!(index.footer(), &built.footer);
            let span = &built.footer.span;
            prop_assert!(last.is_none_or(|last| last.is_below(&span.first) && last.separator(&span.first) <= &span.first[..]));
            for range in index.ranges().as_slice() {
                prop_assert!(span.first <= range.start && range.end <= span.last || !span.is_open);
            }
            let mut copy = built.bytes.clone();
            translate(SegmentKind::Leaf, HERE, &mut copy, &mut Some).unwrap();
            prop_assert_eq!(&copy, &built.bytes);
            last = Some(span.clone());
        }
    }
}

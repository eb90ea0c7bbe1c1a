//! Golden bytes of leaf and index segments: a change of a format fails here before it loses data.

mod golden;

use bytes::Bytes;
use golden::check;
use leeward_format::leaf_segment::{LeafIndex, LeafPlace, LeafSegmentBuilder, write_index};
use leeward_format::node::{Address, BLOCK_BYTES, Child, Entry, LeafBuilder, NODE_BYTES, Node};
use leeward_format::packed::{self, Codec};
use leeward_format::range::RangeTombstone;
use leeward_format::superblock::MIN_SEGMENT_BYTES;
use leeward_format::{Epoch, Expiry, Lsn, Pointer, RegionId, SegmentId, SegmentName, Stamp, filter};
use std::convert::Infallible;

fn address() -> Address {
    Address { region: RegionId(1), segment: SegmentId::new(Epoch(2), 3), offset: 0 }
}

#[test]
fn leaf_segments() {
    let no = SegmentName(7);
    let mut builder = LeafSegmentBuilder::new(MIN_SEGMENT_BYTES, address(), no, Codec::None, Vec::new());
    assert!(builder.push(b"user17", Lsn(258), Entry::InPlace(b"wind")));
    assert!(builder.push(b"user2", Lsn(300), Entry::Tombstone));
    assert!(builder.push(
        b"user33",
        Lsn(259),
        Entry::InLog { pointer: Pointer::new(SegmentName(9), 64), value_bytes: 1000 }
    ));
    let stamp = Stamp { lsn: Lsn(260), expires: Expiry::from_ms(0x0192_a5b6_c7d8) };
    assert!(builder.push(b"user4", stamp, Entry::InPlace(b"lee")));
    assert!(builder.push_range(&RangeTombstone::new(b"user5", b"user7", Lsn(301))));
    let built = builder.finish();
    check("leaf-segment.hex", include_str!("golden/leaf-segment.hex"), &built.bytes);
    let footer = &built.footer;
    assert_eq!((footer.tree_at, footer.root_at, footer.filter_at, footer.end), (4096, 4096, 12288, 16384));
    read_leaf_segment(built.bytes, BLOCK_BYTES);
    // Until November 2026 no leaf was smaller than 8 KiB.
    read_leaf_segment(golden::bytes(include_str!("golden/leaf-segment-8k.hex")), NODE_BYTES);
}

/// Reads the segment of `leaf_segments`, whose leaf has `leaf_bytes`.
fn read_leaf_segment(bytes: Vec<u8>, leaf_bytes: usize) {
    let stamp = Stamp { lsn: Lsn(260), expires: Expiry::from_ms(0x0192_a5b6_c7d8) };
    let leaf = Node::parse(&bytes[..leaf_bytes], address()).expect("it is a leaf");
    assert_eq!(leaf.entry(leaf.search(b"user2").expect("it is there")), (Lsn(300).into(), Entry::Tombstone));
    assert_eq!(leaf.entry(leaf.search(b"user4").expect("it is there")), (stamp, Entry::InPlace(b"lee")));
    let tree = Bytes::from(bytes).slice(leaf_bytes..);
    let index = LeafIndex::parse(&tree, address().at(leaf_bytes as u32), SegmentName(7)).expect("an index follows");
    assert_eq!(index.leaves()[..], [LeafPlace { offset: 0, bytes: leaf_bytes as u32 }]);
    assert!(index.may_contain(filter::hash(b"user33")));
    assert_eq!(index.ranges().covering(b"user6").map(|range| range.lsn), Some(Lsn(301)));
}

#[test]
fn uniform_leaves() {
    let mut builder = LeafBuilder::new(NODE_BYTES);
    for (key, lsn, value) in [(b"user17", 258, b"wind"), (b"user33", 300, b"calm")] {
        assert!(builder.push(key, Lsn(lsn), Entry::InPlace(value)));
    }
    let mut bytes = Vec::new();
    builder.finish(address(), &mut bytes);
    check("uniform-leaf.hex", include_str!("golden/uniform-leaf.hex"), &bytes);
    let leaf = Node::parse(&bytes[..], address()).expect("it was just built");
    assert_eq!(leaf.entry(leaf.search(b"user33").expect("it is there")), (Lsn(300).into(), Entry::InPlace(b"calm")));
}

#[test]
fn index_segments() {
    let child = |no, blocks| Child { pointer: Pointer::new(SegmentName(no), 8192), blocks };
    let children = [(Vec::new(), child(7, 3)), (b"user4".to_vec(), child(8, 3)), (b"user51".to_vec(), child(3, 300))];
    let mut bytes = Vec::new();
    let Ok(_) = write_index::<Infallible>(&children, &mut |node| {
        node.finish(address(), &mut bytes);
        Ok(Pointer::new(SegmentName(2), 0))
    });
    check("index-segment.hex", include_str!("golden/index-segment.hex"), &bytes);
    let node = Node::parse(&bytes[..], address()).expect("it was just built");
    assert_eq!(node.child(node.child_of(b"user44")), child(8, 3));
}

/// A packed leaf, as both codecs once wrote it. Their output may change, but old output must stay readable.
#[test]
fn packed_leaves() {
    let mut builder = LeafSegmentBuilder::new(MIN_SEGMENT_BYTES, address(), SegmentName(7), Codec::Lz4, Vec::new());
    let mut zstd = LeafSegmentBuilder::new(MIN_SEGMENT_BYTES, address(), SegmentName(7), Codec::Zstd, Vec::new());
    for builder in [&mut builder, &mut zstd] {
        let pointer = Pointer::new(SegmentName(9), 64);
        assert!(builder.push(b"user17", Lsn(258), Entry::InPlace(b"wind, wind, wind, wind")));
        assert!(builder.push(b"user33", Lsn(259), Entry::InLog { pointer, value_bytes: 1000 }));
    }
    let files = [include_str!("golden/packed-leaf-lz4.hex"), include_str!("golden/packed-leaf-zstd.hex")];
    for (builder, file) in [builder, zstd].into_iter().zip(files) {
        let built = builder.finish().bytes;
        let stored = packed::stored_bytes(&built).expect("it is packed");
        if std::env::var_os("LEEWARD_GOLDEN").is_some() {
            println!("{}", built[..stored].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "));
        }
        let leaf: Node<Vec<u8>> = packed::read_leaf(&golden::bytes(file), address()).expect("it was written once");
        assert_eq!(leaf.entry(0), (Lsn(258).into(), Entry::InPlace(b"wind, wind, wind, wind")));
        let in_log = Entry::InLog { pointer: Pointer::new(SegmentName(9), 64), value_bytes: 1000 };
        assert_eq!(leaf.entry(leaf.search(b"user33").expect("it is there")), (Lsn(259).into(), in_log));
    }
}

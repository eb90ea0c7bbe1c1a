//! Tests of the uses of a segment.

use super::*;

const SEGMENT: u32 = 32 << 10;

fn empty() -> Uses {
    Uses::decode(&[0; 4096], SEGMENT)
}

fn begin(uses: &mut Uses, start: u32, end: u32, block: &mut [u8]) -> Use {
    let nonce = [start as u8; NONCE_BYTES];
    let begun = uses.begin((start, end), (UseKind::Stream, nonce), start).expect("a slot is free");
    let (at, slot) = begun.slot();
    block[at as usize..][..SLOT_BYTES].copy_from_slice(&slot);
    let of = begun.of();
    uses.commit(begun);
    of
}

fn ranges(uses: &Uses) -> Vec<(u32, u32, u32)> {
    uses.extents().iter().map(|extent| (extent.start, extent.end, extent.of.generation)).collect()
}

#[test]
fn a_later_use_takes_its_range_from_earlier_ones_also_when_read_again() {
    let (mut uses, mut block) = (empty(), vec![0; 4096]);
    begin(&mut uses, 0, SEGMENT, &mut block);
    begin(&mut uses, 8192, 16384, &mut block);
    begin(&mut uses, 12000, 20000, &mut block);
    let expected = vec![(0, 8192, 1), (8192, 12000, 2), (12000, 20000, 3), (20000, SEGMENT, 1)];
    assert_eq!(ranges(&uses), expected);
    assert_eq!(ranges(&Uses::decode(&block, SEGMENT)), expected);
}

#[test]
fn keystream_is_handed_out_once_and_never_of_a_use_that_was_read() {
    let (mut uses, mut block) = (empty(), vec![0; 4096]);
    assert_eq!(uses.take(0, 10), None, "no use");
    let of = begin(&mut uses, 0, 8192, &mut block);
    assert_eq!(uses.take(0, 100), Some(of));
    assert_eq!(uses.take(99, 200), None, "byte 99 is used");
    assert_eq!(uses.take(100, 200), Some(of));
    assert_eq!(uses.take(300, 400), Some(of), "a gap may stay");
    assert_eq!(uses.take(200, 300), None, "but is not filled");
    assert_eq!(uses.take(8000, 9000), None, "beyond it");
    let mut read = Uses::decode(&block, SEGMENT);
    assert_eq!(read.take(400, 500), None);
    assert_eq!(read.end_of(400, 500), 500, "what is behind is unknown");
    assert_eq!(uses.end_of(350, 500), 8192, "nothing is behind");
    assert_eq!((uses.uncovered(0, 8192), uses.uncovered(100, 9000), uses.uncovered(9000, 9001)), (8192, 8192, 9000));
}

#[test]
fn slots_of_uses_that_are_over_are_taken_again_and_no_others() {
    let (mut uses, mut block) = (empty(), vec![0; 4096]);
    for _ in 0..1000 {
        begin(&mut uses, 0, SEGMENT, &mut block);
    }
    assert_eq!(ranges(&Uses::decode(&block, SEGMENT)), [(0, SEGMENT, 1000)]);
    for at in 0..127 {
        begin(&mut uses, at * 2, at * 2 + 1, &mut block);
    }
    assert!(uses.begin((1000, 1001), (UseKind::Stream, [0; NONCE_BYTES]), 1000).is_none(), "all are needed");
    begin(&mut uses, 0, 1000, &mut block);
    assert_eq!(ranges(&Uses::decode(&block, SEGMENT)), [(0, 1000, 1128), (1000, SEGMENT, 1000)]);
}

#[test]
fn bytes_that_the_caller_has_encrypted_may_be_written_again() {
    let mut uses = empty();
    let begun = uses.begin((0, SEGMENT), (UseKind::Sealed, [0; NONCE_BYTES]), 0).unwrap();
    uses.commit(begun);
    for _ in 0..2 {
        assert_eq!(uses.take(0, 64).map(|of| of.kind), Some(UseKind::Sealed));
    }
}

//! Range tombstones against a model that knows of each key the newest LSN that covers it.

use super::*;
use crate::{RegionId, SegmentId};
use proptest::collection::vec;
use proptest::prelude::*;

const HERE: Address = Address { region: RegionId(3), segment: SegmentId(9 << 40 | 17), offset: 8192 };
const KEYS: u8 = 40;

/// For each key of one byte the LSN that covers it; 0: none does.
type Model = [u64; KEYS as usize];

fn any_ranges(at_least: usize) -> impl Strategy<Value = Vec<(u8, u8)>> {
    let range = (0..KEYS).prop_flat_map(|start| (Just(start), start + 1..=KEYS + 4));
    vec(range, at_least..20)
}

/// The result of deletes of `ranges`, the first with `lsn`. An end beyond all keys means no end.
fn build(ranges: &[(u8, u8)], lsn: u64) -> (RangeTombstones, Model) {
    let (mut all, mut model) = (RangeTombstones::default(), [0; KEYS as usize]);
    for ((start, end), lsn) in ranges.iter().zip(lsn..) {
        let end_bytes = if *end > KEYS { Vec::new() } else { vec![*end] };
        all = all.with(RangeTombstone::new(&[*start], &end_bytes, Lsn(lsn)));
        model[usize::from(*start)..usize::from((*end).min(KEYS))].fill(lsn);
    }
    (all, model)
}

fn check(ranges: &RangeTombstones, model: &Model) {
    for pair in ranges.as_slice().windows(2) {
        assert!(pair[0].end <= pair[1].start && (pair[0].end < pair[1].start || pair[0].lsn != pair[1].lsn));
    }
    for key in 0..KEYS {
        let expected = Some(Lsn(model[usize::from(key)])).filter(|lsn| lsn.0 > 0);
        assert_eq!(ranges.covering(&[key]).map(|range| range.lsn), expected, "key {key} of {ranges:?}");
        let window = ranges.window(&[key]);
        assert!(window.has(&[key]) && window.lsn == expected, "{window:?}");
        let inside = (0..KEYS).filter(|other| window.has(&[*other]));
        assert!(inside.into_iter().all(|other| model[usize::from(other)] == model[usize::from(key)]));
    }
}

proptest! {
    #[test]
    fn the_newest_counts(older in any_ranges(0), newer in any_ranges(0), cut in 0..KEYS) {
        let (lower, low) = build(&older, 1);
        let (upper, high) = build(&newer, 100);
        check(&lower, &low);
        let mut both = lower.under(&upper);
        let mut model: Model = std::array::from_fn(|key| high[key].max(low[key]));
        check(&both, &model);
        let before = both.len();
        if let Some(rest) = both.cut(&[cut]) {
            prop_assert!(both.len() == before || both.len() + 1 == before);
            prop_assert!(rest.start[..] >= [cut][..]);
            let from = usize::from(rest.start[0]);
            prop_assert!(from >= usize::from(KEYS) || model[from] == rest.lsn.0);
            for key in model.iter_mut().skip(from) { *key = 0; }
        }
        check(&both, &model);
    }

    #[test]
    fn a_span_is_covered_if_each_of_its_keys_is(ranges in any_ranges(0), first in 0..KEYS, more in 0..KEYS, open: bool) {
        let (all, model) = build(&ranges, 1);
        let last = first.saturating_add(more).min(KEYS - 1);
        prop_assume!(!open || first < last);
        let keys = usize::from(first)..usize::from(last) + usize::from(!open);
        let expected = model[keys].iter().all(|lsn| *lsn > 0);
        prop_assert_eq!(all.cover(&[first], &[last], open), expected);
    }

    #[test]
    fn a_section_is_read_as_it_was_written(ranges in any_ranges(1), before in 0..2u8, behind in 0..2u8) {
        let (all, _) = build(&ranges, 1);
        let first = if before == 0 { all.as_slice()[0].start.clone() } else { Bytes::from_static(&[0]) };
        let end = &all.as_slice()[all.len() - 1].end;
        let last = if behind == 0 { end.clone() } else { Bytes::from_static(&[0xff]) };
        let mut section = Vec::new();
        write_section(&all, (&first, &last), HERE, &mut section);
        let bound = CRC_BYTES + all.as_slice().iter().map(fragment_bytes).sum::<usize>();
        prop_assert!(section.len() <= bound);
        prop_assert_eq!(read_section(&section.into(), HERE, (&first, &last)).unwrap(), all);
    }

    #[test]
    fn hostile_sections_are_errors_or_harmless(ranges in any_ranges(0), damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), keep in any::<prop::sample::Index>()) {
        let (all, _) = build(&ranges, 1);
        let mut section = Vec::new();
        write_section(&all, (&[1], &[2]), HERE, &mut section);
        for (at, byte) in damage {
            let at = at.index(section.len());
            section[at] = byte;
        }
        section.truncate(keep.index(section.len() + 1).max(4));
        let crc = HERE.crc(&section[4..]);
        section[..4].copy_from_slice(&crc.to_le_bytes());
        let keys = (Bytes::from_static(&[1]), Bytes::from_static(&[2]));
        if let Ok(ranges) = read_section(&section.into(), HERE, (&keys.0, &keys.1)) {
            prop_assert!(ranges.as_slice().windows(2).all(|pair| pair[0].end <= pair[1].start));
        }
    }
}

#[test]
fn what_is_no_range_is_told() {
    assert!(is_range(b"a", b"b") && is_range(b"a", b"") && is_range(b"a", b"a\0"));
    assert!(!is_range(b"b", b"a") && !is_range(b"a", b"a"));
    assert!(!is_range(b"a", &[b'b'; MAX_KEY_BYTES + 1]) && !is_range(&[0; MAX_KEY_BYTES + 1], b"b"));
}

#[test]
fn no_key_lies_between_a_key_and_what_is_after_it() {
    assert_eq!(after(b"k").as_deref(), Some(&b"k\0"[..]));
    let longest = [&[b'k'; MAX_KEY_BYTES - 1][..], &[0xff]].concat();
    assert_eq!(after(&longest), Some([&[b'k'; MAX_KEY_BYTES - 2][..], b"l"].concat()));
    assert_eq!(after(&[0xff; MAX_KEY_BYTES]), None);
}

//! The region of a key, and that tokens never change.

use super::*;
use proptest::prelude::*;

#[test]
fn tokens_do_not_change() {
    // A build must find the data of earlier builds.
    let partition = Partition::Hash { tokens: 1 };
    let of = |key: &[u8]| partition.bound_text(&partition.place(key), |_| unreachable!("it is no key"));
    assert_eq!([of(b"a"), of(b"orders/7")], ["#5d9c72d942965107", "#77552980a425c395"]);
}

#[test]
fn slots_are_bounds_of_two_bytes() {
    let partition = Partition::Slots { tokens: 3 };
    let text = |bound: &[u8]| partition.bound_text(bound, |_| "first".into());
    assert_eq!(text(&partition.place(b"foo")), "slot 12182");
    assert_eq!(text(b""), "first");
    assert_eq!(partition.splits().map(|split| text(&split)).collect::<Vec<_>>(), ["slot 5461", "slot 10922"]);
    // A key is in the first region that it is not before: the last slot of a region is the one before the next.
    let splits: Vec<Bytes> = partition.splits().collect();
    for slot in 0..SLOTS {
        let region = splits.partition_point(|split| split[..] <= slot.to_be_bytes()[..]);
        assert_eq!(region, [5461, 10922].iter().filter(|first| slot >= **first).count());
    }
    assert_eq!([slot_at(Some(b"")), slot_at(Some(&splits[0])), slot_at(None)], [0, 5461, SLOTS]);
    // Bounds that no table has.
    assert_eq!([slot_at(Some(b"\xff\xff")), slot_at(Some(b"abc"))], [SLOTS, 0]);
}

#[test]
fn each_region_begins_at_its_token_and_has_as_many_as_others() {
    let counts = [1, 2, 3, 7, 16, 1000, 16_384].into_iter();
    let partitions = counts.flat_map(|tokens| [Partition::Hash { tokens }, Partition::Slots { tokens }]);
    for partition in partitions {
        let tokens = partition.tokens().expect("a number that does not change");
        let starts: Vec<Bytes> = std::iter::once(Bytes::new()).chain(partition.splits()).collect();
        assert_eq!(starts.len(), tokens as usize);
        assert!(starts.is_sorted_by(|left, right| left < right));
        for (index, start) in starts.iter().enumerate() {
            assert_eq!(partition.token_index(start), Some(index as u32));
        }
    }
    assert_eq!(Partition::Range.splits().count(), 0);
    assert_eq!(Partition::Range.token_index(b"a"), None);
}

#[test]
fn keys_spread_over_regions() {
    for partition in [Partition::Hash { tokens: 8 }, Partition::Slots { tokens: 8 }] {
        spreads(partition);
    }
}

fn spreads(partition: Partition) {
    let splits: Vec<Bytes> = partition.splits().collect();
    let mut counts = [0; 8];
    for number in 0..8_000 {
        let key = format!("user{number:06}");
        let place = partition.place(key.as_bytes());
        counts[splits.partition_point(|split| split[..] <= place[..])] += 1;
    }
    assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
}

proptest! {
    /// To a filter, the keys of one region look like any keys.
    #[test]
    fn a_token_says_nothing_of_the_hash_in_filters(seed in any::<u32>()) {
        let partition = Partition::Hash { tokens: 16 };
        let first = |key: &[u8]| partition.place(key)[0] >> 4;
        let of_one = (0..4_000_u32).map(|number| format!("{seed}-{number}")).filter(|key| first(key.as_bytes()) == 3);
        let mut tops = [0; 16];
        let mut keys = 0;
        for key in of_one {
            tops[(xxhash_rust::xxh3::xxh3_64(key.as_bytes()) >> 60) as usize] += 1;
            keys += 1;
        }
        prop_assert!((150..350).contains(&keys), "{}", keys);
        prop_assert!(tops.iter().all(|top| *top < keys / 4), "{:?}", tops);
    }
}

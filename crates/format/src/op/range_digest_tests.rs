//! What tells two ranges apart, and that a range may be hashed in parts.

use super::*;
use proptest::prelude::*;

type Pair = (Vec<u8>, u64, Option<u64>, Vec<u8>);

fn add(hasher: &mut RangeHasher, (key, lsn, expires, value): &Pair) -> bool {
    hasher.add(key, Lsn(*lsn), expires.and_then(Expiry::from_ms), value)
}

fn digest(pairs: &[Pair]) -> RangeDigest {
    let mut hasher = RangeHasher::new(RangeDigest::default());
    for pair in pairs {
        add(&mut hasher, pair);
    }
    hasher.finish()
}

fn pair(key: &str, lsn: u64, expires: Option<u64>, value: &str) -> Pair {
    (key.into(), lsn, expires, value.into())
}

#[test]
fn each_part_of_a_pair_counts() {
    let lists = [
        vec![],
        vec![pair("a", 1, None, "")],
        vec![pair("", 1, None, "a")],
        vec![pair("a", 2, None, "")],
        vec![pair("a", 1, Some(1), "")],
        vec![pair("a", 1, None, "b")],
        vec![pair("ab", 1, None, "")],
        vec![pair("a", 1, None, ""), pair("b", 1, None, "")],
    ];
    let digests: Vec<_> = lists.iter().map(|list| digest(list)).collect();
    for (i, one) in digests.iter().enumerate() {
        assert_eq!(one.pairs, lists[i].len() as u64);
        assert!(digests[..i].iter().all(|other| other.hash != one.hash), "{:?}", lists[i]);
    }
    assert_eq!(digests[0], RangeDigest::default());
    // A change of this value is a change of the protocol.
    let known = digest(&[pair("key", 300, Some(1_000), "value")]).hash;
    assert_eq!(known.map(|byte| format!("{byte:02x}")).concat(), "9939a543b50aa63c88d1c5465d694de6");
}

#[test]
fn a_range_goes_on_from_whatever_was_said() {
    let mut hasher = RangeHasher::new(RangeDigest { pairs: u64::MAX, hash: [255; 16], damage: None });
    add(&mut hasher, &pair("a", 1, None, ""));
    assert_eq!(hasher.finish().pairs, u64::MAX);
}

proptest! {
    #[test]
    fn a_range_may_be_hashed_in_parts(sizes in prop::collection::vec(0..PIECE_BYTES as usize, 0..12), stops in any::<u16>()) {
        let name = |i: usize| format!("key{i:03}").into_bytes();
        let pairs: Vec<Pair> = sizes.iter().enumerate().map(|(i, size)| (name(i), i as u64, None, vec![7; *size])).collect();
        let mut hasher = RangeHasher::new(RangeDigest::default());
        for (i, pair) in pairs.iter().enumerate() {
            if add(&mut hasher, pair) && stops & (1 << i) != 0 {
                hasher = RangeHasher::new(hasher.so_far().clone());
            }
        }
        prop_assert_eq!(hasher.finish(), digest(&pairs));
    }
}

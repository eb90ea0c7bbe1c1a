//! Questions that are refused.

use super::*;
use bytes::Bytes;
use leeward_format::Lsn;
use leeward_format::op::RangeDigest;

fn question(start: &'static str, ends: &[Option<&'static str>]) -> RangeQuestion {
    RangeQuestion {
        region: RegionId(1),
        at: DigestInstant { term: Epoch(1), lsn: Lsn(1), now: UnixMs(1) },
        start: start.into(),
        ends: ends.iter().map(|end| end.map(Bytes::from)).collect(),
        so_far: RangeDigest::default(),
    }
}

#[test]
fn only_consecutive_ranges_are_answered() {
    for sound in [question("", &[None]), question("", &[]), question("a", &[Some("b"), Some("c"), None])] {
        assert_eq!(check(&sound), Ok(()), "{sound:?}");
    }
    let long = RangeQuestion { start: vec![7; MAX_KEY_BYTES + 2].into(), ..question("", &[None]) };
    let many = RangeQuestion { ends: vec![None; MOST_RANGES + 1], ..question("", &[]) };
    let damaged = RangeDigest { damage: Some("torn".into()), ..RangeDigest::default() };
    let damaged = RangeQuestion { so_far: damaged, ..question("", &[None]) };
    let wrong = [
        question("b", &[Some("a")]),
        question("b", &[Some("b")]),
        question("", &[Some("")]),
        question("a", &[None, Some("b")]),
        question("a", &[None, None]),
        question("a", &[Some("c"), Some("b")]),
        long,
        many,
        damaged,
    ];
    for wrong in wrong {
        assert!(matches!(check(&wrong), Err(OpError::Invalid(_))), "{wrong:?}");
    }
}

//! SegmentFindings from the digests of replicas.

use super::*;
use leeward_format::manifest::SegmentKind;

fn digest(id: u64, crc: u32, damage: Option<&str>) -> SegmentDigest {
    let damage = damage.map(str::to_owned);
    SegmentDigest { id: SegmentId(id), kind: SegmentKind::Leaf, bytes: 100, crc, damage }
}

fn found(digests: &[(u32, SegmentDigest)]) -> SegmentFindings {
    let mut all = BTreeMap::<SegmentId, Vec<(ServerId, SegmentDigest)>>::new();
    for (server, digest) in digests {
        all.entry(digest.id).or_default().push((ServerId(*server), digest.clone()));
    }
    judge(&all)
}

#[test]
fn what_several_have_must_be_the_same() {
    let same =
        found(&[(1, digest(7, 5, None)), (2, digest(7, 5, None)), (3, digest(7, 5, None)), (2, digest(8, 9, None))]);
    assert_eq!(same, SegmentFindings { equal: (1, 100), alone: 1, faults: Vec::new() });
    let differs = found(&[(1, digest(7, 5, None)), (2, digest(7, 6, None))]);
    assert_eq!((differs.equal, differs.faults.len()), ((0, 0), 1));
    assert_eq!(
        differs.faults[0].what,
        "differs, without damage: 100 bytes with CRC 00000005 on server 1, 100 bytes with CRC 00000006 on server 2"
    );
    assert_eq!((differs.faults[0].damaged, differs.faults[0].whole), (None, None), "no replica is known to be right");
}

#[test]
fn a_damaged_segment_is_repaired_from_a_whole_one() {
    let one = found(&[(1, digest(7, 0, Some("torn"))), (2, digest(7, 5, None)), (3, digest(7, 5, None))]);
    assert_eq!(one.equal, (1, 100));
    let (what, damaged, whole) = ("leaves damaged on server 1: torn".into(), Some(ServerId(1)), Some(ServerId(2)));
    assert_eq!(one.faults, [SegmentFault { id: SegmentId(7), what, damaged, whole }]);
    let two = found(&[(1, digest(7, 0, Some("torn"))), (2, digest(7, 5, None))]);
    assert_eq!((two.equal, two.alone, two.faults[0].whole), ((0, 0), 0, whole));
    let all = found(&[(1, digest(7, 0, Some("torn"))), (2, digest(7, 0, Some("torn")))]);
    assert_eq!(all.faults.iter().map(|fault| fault.whole).collect::<Vec<_>>(), [None, None]);
}

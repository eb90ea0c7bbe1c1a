//! Findings from the digests of a range.

use super::*;

fn digest(pairs: u64, hash: u8, damage: Option<&str>) -> RangeDigest {
    RangeDigest { pairs, hash: [hash; 16], damage: damage.map(str::to_owned) }
}

/// The findings for digests of servers 1, 2 and so on, the last of which is the primary.
fn found(digests: &[RangeDigest]) -> RangeFindings {
    let mut findings = RangeFindings::default();
    let told: Vec<_> = (1..).map(ServerId).zip(digests).collect();
    judge(&mut findings, (Bytes::from_static(b"a\xff"), Some(Bytes::from_static(b"b"))), &told);
    findings
}

#[test]
fn equal_digests_are_counted() {
    let same = found(&[digest(7, 1, None), digest(7, 1, None), digest(7, 1, None)]);
    assert_eq!(same, RangeFindings { equal: (1, 7), ..RangeFindings::default() });
    assert_eq!(found(&[digest(7, 1, None)]).equal, (1, 7), "a region without backups");
}

#[test]
fn a_backup_that_differs_or_is_damaged_can_be_rebuilt() {
    let differs = found(&[digest(7, 2, None), digest(7, 1, None), digest(7, 1, None)]);
    assert_eq!((differs.equal, differs.faults.len()), ((0, 0), 1));
    let fault = &differs.faults[0];
    assert_eq!((fault.server, fault.can_rebuild), (ServerId(1), true));
    assert_eq!(
        fault.to_string(),
        "keys from \"a\\xff\" to \"b\": server 1 one of its 7 pairs, or more, is not that of server 3"
    );
    let damaged = found(&[digest(3, 2, Some("torn")), digest(7, 1, None)]);
    assert_eq!((damaged.faults[0].what.as_str(), damaged.faults[0].can_rebuild), ("cannot be read: torn", true));
    assert_eq!(damaged.equal, (0, 0));
}

fn can_rebuild(findings: &RangeFindings) -> Vec<(u32, bool)> {
    findings.faults.iter().map(|fault| (fault.server.0, fault.can_rebuild)).collect()
}

#[test]
fn nothing_is_rebuilt_from_a_primary_that_may_be_wrong() {
    let alone = found(&[digest(7, 2, None), digest(7, 2, None), digest(7, 1, None)]);
    assert_eq!(can_rebuild(&alone), [(3, false)]);
    let torn = found(&[digest(7, 2, Some("torn")), digest(7, 2, None), digest(0, 0, Some("torn"))]);
    assert_eq!(can_rebuild(&torn), [(1, false), (3, false)]);
    let three = found(&[digest(7, 2, None), digest(7, 3, None), digest(7, 1, None)]);
    assert_eq!(can_rebuild(&three), [(1, false), (2, false)]);
    let two = found(&[digest(6, 2, None), digest(7, 1, None)]);
    assert_eq!(can_rebuild(&two), [(1, false)], "one word against the other");
    assert_eq!(two.faults[0].what, "has 6 pairs, server 2 has 7");
    let doubted = found(&[digest(3, 2, Some("torn")), digest(7, 2, None), digest(7, 1, None)]);
    assert_eq!(can_rebuild(&doubted), [(1, false), (2, false)]);
    let most = found(&[digest(7, 2, None), digest(3, 2, Some("torn")), digest(7, 1, None), digest(7, 1, None)]);
    assert_eq!(can_rebuild(&most), [(2, true), (1, true)]);
}

#[test]
fn a_clock_that_is_ahead_is_named() {
    let at =
        DigestInstant { term: leeward_format::Epoch(1), lsn: leeward_format::Lsn(5), now: leeward_format::UnixMs(9) };
    let state = NamedState { region: RegionId(1), at, named: Instant::now() };
    let why = reason(ServerId(3), &state, &RangeAnswer::InstantPassed);
    assert!(why.starts_with("clocks are apart: that of server 3 is "), "{why}");
}

//! The effects of operations, given the key's current pair.

use super::*;
use leeward_format::op::{ExpireIf, Lifetime};

const NOW: UnixMs = UnixMs(1_000);

fn key() -> Bytes {
    Bytes::from_static(b"k")
}

fn put(when: Condition, want_old: bool) -> Op {
    Op::Put { key: key(), value: Bytes::from_static(b"new"), when, want_old, lifetime: Lifetime::AsBefore }
}

/// A pair of version 7.
fn old(expires: Option<u64>) -> Current {
    Current { lsn: Lsn(7), pair: Some((Bytes::from_static(b"old"), expires.and_then(Expiry::from_ms))) }
}

#[test]
fn a_condition_decides_on_the_current_pair() {
    let answer = |when, want_old, current| match decide(&put(when, want_old), current, NOW) {
        Decision::Put(value, expires, OpResult::Put { done: true, old, .. }) => {
            format!("put {value:?} until {:?}, old {old:?}", expires.map(Expiry::ms))
        }
        Decision::Answer(OpResult::Put { done: false, old, version }) => {
            format!("nothing, old {old:?}, version {:?}", version.map(|version| version.0))
        }
        _ => panic!("a put answers as a put"),
    };
    let absent = Current::default;
    assert_eq!(answer(Condition::Absent, false, absent()), "put b\"new\" until None, old None");
    assert_eq!(answer(Condition::Absent, true, old(None)), "nothing, old Some(b\"old\"), version Some(7)");
    assert_eq!(answer(Condition::Present, false, old(Some(5000))), "put b\"new\" until Some(5000), old None");
    assert_eq!(answer(Condition::Present, false, absent()), "nothing, old None, version None");
    assert_eq!(answer(Condition::Always, true, old(None)), "put b\"new\" until None, old Some(b\"old\")");
    let holds = |when, current| answer(when, false, current).starts_with("put");
    for (value, is_same) in [("old", true), ("other", false), ("", false)] {
        assert_eq!(holds(Condition::Value(value.into()), old(None)), is_same);
        assert_eq!(holds(Condition::NotValue(value.into()), old(None)), !is_same);
        assert!(!holds(Condition::Value(value.into()), absent()) && holds(Condition::NotValue(value.into()), absent()));
    }
    assert!(holds(Condition::Version(Lsn(7)), old(None)));
    assert!(!holds(Condition::Version(Lsn(8)), old(None)) && !holds(Condition::Version(Lsn(0)), absent()));
}

#[test]
fn a_pair_that_has_expired_since_it_was_looked_up_is_absent() {
    let decide = |op: &Op, expires| decide(op, old(Some(expires)), NOW);
    let forever = ExpireIf { expires: Some(true), later: None };
    let persist = Op::Expire { key: key(), lifetime: Lifetime::Forever, when: forever, want_old: false };
    let nothing = |decision| matches!(decision, Decision::Answer(OpResult::Put { done: false, version: None, .. }));
    assert!(nothing(decide(&persist, NOW.0)) && !nothing(decide(&persist, NOW.0 + 1)));
    assert!(nothing(decide(&put(Condition::Present, false), NOW.0)));
    let sum = Op::Append { key: key(), suffix: "x".into() };
    assert!(matches!(decide(&sum, NOW.0), Decision::Put(value, None, _) if value == "x"));
    let read = decide(&Op::Get { key: key() }, NOW.0);
    assert!(matches!(read, Decision::Answer(OpResult::Value(None))));
}

#[test]
fn a_delete_writes_only_if_there_is_something_and_the_condition_holds() {
    let decide = |when, current| decide(&Op::Delete { key: key(), when }, current, NOW);
    let deleted = |decision| matches!(decision, Decision::Delete(OpResult::Deleted { done: true, old: Some(_), .. }));
    assert!(deleted(decide(Condition::Always, old(None))));
    assert!(deleted(decide(Condition::NotValue("x".into()), old(None))));
    let kept = |decision, of| match decision {
        Decision::Answer(OpResult::Deleted { done: false, old: None, version }) => version == of,
        _ => false,
    };
    assert!(kept(decide(Condition::Always, Current::default()), None));
    assert!(kept(decide(Condition::NotValue("x".into()), Current::default()), None));
    assert!(kept(decide(Condition::Version(Lsn(6)), old(None)), Some(Lsn(7))));
}

#[test]
fn an_expiry_changes_only_in_the_direction_that_is_asked_for() {
    let change = |ms: u64, expires, later, before| {
        let (lifetime, when) = (Lifetime::For(ms), ExpireIf { expires, later });
        match decide(&Op::Expire { key: key(), lifetime, when, want_old: false }, before, NOW) {
            Decision::Put(value, after, OpResult::Put { done: true, .. }) if value == "old" => after.map(Expiry::ms),
            Decision::Delete(OpResult::Put { done: true, .. }) => Some(0),
            Decision::Answer(OpResult::Put { done: false, .. }) => None,
            _ => panic!("a change of an expiry answers as a put"),
        }
    };
    assert_eq!(change(500, None, None, old(None)), Some(1500));
    assert_eq!(change(0, None, None, old(None)), Some(0), "it has come already");
    assert_eq!(change(500, None, None, Current::default()), None);
    assert_eq!(change(500, Some(true), None, old(None)), None);
    assert_eq!(change(500, Some(true), None, old(Some(1009))), Some(1500));
    assert_eq!(change(500, Some(false), None, old(None)), Some(1500));
    assert_eq!(change(500, Some(false), None, old(Some(1009))), None);
    // A pair that stays expires after all others.
    assert_eq!(change(500, None, Some(true), old(None)), None);
    assert_eq!(change(500, None, Some(false), old(None)), Some(1500));
    assert_eq!(change(500, None, Some(true), old(Some(1499))), Some(1500));
    assert_eq!(change(500, None, Some(true), old(Some(1500))), None);
    assert_eq!(change(500, None, Some(false), old(Some(1501))), Some(1500));
    assert_eq!(change(500, None, Some(false), old(Some(1500))), None);
}

#[test]
fn only_canonical_integers_are_added_to() {
    assert_eq!(add(None, 5), Ok(5));
    assert_eq!(add(Some(b"-7"), 5), Ok(-2));
    for text in [&b" 1"[..], b"1 ", b"01", b"+1", b"1.5", b"", b"x", b"9223372036854775808", b"\xff"] {
        assert!(add(Some(text), 1).is_err(), "{text:?}");
    }
    assert!(add(Some(b"9223372036854775807"), 1).unwrap_err().contains("overflow"));
    assert_eq!(add(Some(b"-9223372036854775808"), 1), Ok(i64::MIN + 1));
}

#[test]
fn an_append_keeps_to_the_limit_and_the_expiry() {
    let append = |bytes| {
        let op = Op::Append { key: key(), suffix: Bytes::from(vec![0; bytes]) };
        decide(&op, old(Some(5000)), NOW)
    };
    let kept = Expiry::from_ms(5000);
    assert!(
        matches!(append(3), Decision::Put(value, expires, OpResult::Integer(6)) if value.len() == 6 && expires == kept)
    );
    assert!(matches!(append(MAX_VALUE_BYTES), Decision::Answer(OpResult::Error(OpError::Invalid(_)))));
}

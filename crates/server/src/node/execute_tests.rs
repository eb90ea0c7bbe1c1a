//! What operations come to, given the current value.

use super::*;

fn key() -> Bytes {
    Bytes::from_static(b"k")
}

fn put(when: PutIf, want_old: bool) -> Op {
    Op::Put { key: key(), value: Bytes::from_static(b"new"), when, want_old }
}

fn old() -> Option<Bytes> {
    Some(Bytes::from_static(b"old"))
}

#[test]
fn a_condition_decides_on_the_current_value() {
    let answer = |op, current| match decide(&op, current) {
        Decision::Put(value, OpResult::Put { done: true, old }) => format!("put {value:?}, old {old:?}"),
        Decision::Answer(OpResult::Put { done: false, old }) => format!("nothing, old {old:?}"),
        _ => panic!("a put answers as a put"),
    };
    assert_eq!(answer(put(PutIf::Absent, false), None), "put b\"new\", old None");
    assert_eq!(answer(put(PutIf::Absent, true), old()), "nothing, old Some(b\"old\")");
    assert_eq!(answer(put(PutIf::Present, false), old()), "put b\"new\", old None");
    assert_eq!(answer(put(PutIf::Present, false), None), "nothing, old None");
    assert_eq!(answer(put(PutIf::Always, true), old()), "put b\"new\", old Some(b\"old\")");
}

#[test]
fn a_delete_writes_only_if_there_is_something() {
    let op = Op::Delete { key: key() };
    assert!(matches!(decide(&op, old()), Decision::Delete(OpResult::Deleted { old: Some(_) })));
    assert!(matches!(decide(&op, None), Decision::Answer(OpResult::Deleted { old: None })));
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
fn an_append_keeps_to_the_limit() {
    let append = |bytes| Op::Append { key: key(), suffix: Bytes::from(vec![0; bytes]) };
    assert!(matches!(decide(&append(3), old()), Decision::Put(value, OpResult::Integer(6)) if value.len() == 6));
    assert!(matches!(decide(&append(MAX_VALUE_BYTES), old()), Decision::Answer(OpResult::Error(OpError::Invalid(_)))));
}

#[test]
fn what_no_region_holds_is_refused_with_the_limit() {
    let get = |bytes| Op::Get { key: Bytes::from(vec![b'k'; bytes]) };
    assert!(check(&get(1)).is_ok() && check(&get(MAX_KEY_BYTES)).is_ok());
    assert!(check(&get(0)).unwrap_err().to_string().contains("empty"));
    assert!(check(&get(MAX_KEY_BYTES + 1)).unwrap_err().to_string().contains("4097 bytes"));
    let put =
        Op::Put { key: key(), value: Bytes::from(vec![0; MAX_VALUE_BYTES + 1]), when: PutIf::Always, want_old: false };
    assert!(check(&put).unwrap_err().to_string().contains("at most 1048576"));
}

#[test]
fn a_reverse_scan_goes_on_below_what_it_gave() {
    let entries = [(key(), Bytes::new())];
    assert_eq!(resume_at(&entries, Bytes::from_static(b"a"), true), Some(key()));
    assert_eq!(resume_at(&entries, Bytes::from_static(b"z"), false), Some(Bytes::from_static(b"z")));
}

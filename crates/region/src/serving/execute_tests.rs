//! Which operations are refused, and where scans resume.

use super::*;
use leeward_format::op::{Condition, Lifetime};

fn key() -> Bytes {
    Bytes::from_static(b"k")
}

fn check(op: &Op) -> Result<(), OpError> {
    super::check(op, false)
}

#[test]
fn only_writes_have_request_ids() {
    assert!(super::check(&Op::Add { key: key(), delta: 1 }, true).is_ok());
    assert!(super::check(&Op::DeleteRange { start: key(), end: None }, true).is_ok());
    assert!(matches!(super::check(&Op::Get { key: key() }, true), Err(OpError::Invalid(_))));
}

#[test]
fn what_no_region_holds_is_refused_with_the_limit() {
    let get = |bytes| Op::Get { key: Bytes::from(vec![b'k'; bytes]) };
    assert!(check(&get(1)).is_ok() && check(&get(MAX_KEY_BYTES)).is_ok());
    assert!(check(&get(0)).unwrap_err().to_string().contains("empty"));
    assert!(check(&get(MAX_KEY_BYTES + 1)).unwrap_err().to_string().contains("4097 bytes"));
    let put = Op::Put {
        key: key(),
        value: Bytes::from(vec![0; MAX_VALUE_BYTES + 1]),
        when: Condition::Always,
        want_old: false,
        lifetime: Lifetime::Forever,
    };
    assert!(check(&put).unwrap_err().to_string().contains("at most 1048576"));
}

#[test]
fn a_reverse_scan_resumes_below_what_it_gave() {
    let entries = [(key(), Bytes::new())];
    assert_eq!(resume_at(&entries, Bytes::from_static(b"a"), true), Some(key()));
    assert_eq!(resume_at(&entries, Bytes::from_static(b"z"), false), Some(Bytes::from_static(b"z")));
}

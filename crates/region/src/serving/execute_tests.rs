//! Where scans resume.

use super::*;

fn key() -> Bytes {
    Bytes::from_static(b"k")
}

#[test]
fn a_reverse_scan_resumes_below_what_it_gave() {
    let entries = [(key(), Bytes::new())];
    assert_eq!(resume_at(&entries, Bytes::from_static(b"a"), true), Some(key()));
    assert_eq!(resume_at(&entries, Bytes::from_static(b"z"), false), Some(Bytes::from_static(b"z")));
}

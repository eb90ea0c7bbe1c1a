//! Single reads become states that existed, whatever is told between them.

use super::*;

fn stat(mzxid: i64, version: i32) -> Stat {
    Stat { mzxid, version, children: 0 }
}

fn value(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from(text))
}

/// A mirror that has told an empty tree as of 10.
fn whole() -> Mirror {
    let mut mirror = Mirror::default();
    mirror.changed(String::new());
    assert_eq!(mirror.next_read(), Some(Read::Data(String::new())));
    mirror.found(String::new(), None, stat(1, 0));
    assert!(mirror.is_settled() && mirror.take_news(10).is_empty());
    assert_eq!(mirror.told(), 10);
    mirror
}

fn data(path: &str) -> Option<Read> {
    Some(Read::Data(path.into()))
}

fn told(mirror: &mut Mirror) -> Vec<(String, u64, Option<Bytes>)> {
    assert!(mirror.is_settled());
    mirror.take_news(0).into_iter().map(|change| (change.path, change.version, change.value)).collect()
}

#[test]
fn the_tree_is_read_down_to_its_leaves_and_told_by_version() {
    let mut mirror = Mirror::default();
    mirror.changed(String::new());
    mirror.next_read().unwrap();
    mirror.found(String::new(), value("somebody's"), Stat { mzxid: 1, version: 0, children: 1 });
    assert_eq!(mirror.next_read(), Some(Read::Children(String::new())));
    mirror.children("", vec!["d".into()]);
    assert_eq!(mirror.next_read(), data("/d"));
    mirror.found("/d".into(), None, Stat { mzxid: 2, version: 3, children: 2 });
    assert_eq!(mirror.next_read(), Some(Read::Children("/d".into())));
    mirror.children("/d", vec!["a".into(), "b".into(), "gone".into()]);
    for path in ["/d/a", "/d/b", "/d/gone"] {
        assert!(!mirror.is_settled());
        assert_eq!(mirror.next_read(), data(path));
    }
    mirror.found("/d/a".into(), value("a"), stat(9, 1));
    mirror.found("/d/b".into(), value(""), stat(5, 0));
    mirror.missing("/d/gone".into(), 9);
    assert_eq!(told(&mut mirror), [("/d/b".into(), 5, value("")), ("/d/a".into(), 9, value("a"))]);
    assert_eq!((mirror.version("/d/a"), mirror.version("/d"), mirror.version("")), (Some(9), None, None));
    assert_eq!(mirror.get("/d").map(|known| known.changes), Some(3), "it is known all the same");
}

#[test]
fn nothing_is_told_between_two_changes_of_one_step() {
    let mut mirror = whole();
    mirror.changed("/a".into());
    assert_eq!(mirror.next_read(), data("/a"));
    // Before it is answered, more changed; /a itself, too.
    mirror.changed("/b".into());
    mirror.changed("/a".into());
    mirror.changed("/b".into());
    mirror.found("/a".into(), value("1"), stat(11, 0));
    assert!(!mirror.is_settled());
    assert_eq!([mirror.next_read(), mirror.next_read(), mirror.next_read()], [data("/b"), data("/a"), None]);
    mirror.found("/b".into(), value("1"), stat(12, 0));
    assert!(!mirror.is_settled());
    mirror.found("/a".into(), value("2"), stat(13, 1));
    assert_eq!(told(&mut mirror), [("/b".into(), 12, value("1")), ("/a".into(), 13, value("2"))]);
    assert_eq!(mirror.told(), 13);
    // What is read again and is the same is no news.
    mirror.changed("/a".into());
    mirror.next_read().unwrap();
    mirror.found("/a".into(), value("2"), stat(13, 1));
    assert!(told(&mut mirror).is_empty());
}

#[test]
fn what_vanished_is_told_even_if_it_was_never_shown() {
    let mut mirror = whole();
    for (path, zxid) in [("/a", 15), ("/b", 16)] {
        mirror.changed(path.into());
        mirror.next_read().unwrap();
        mirror.missing(path.into(), zxid);
    }
    assert_eq!(told(&mut mirror), [("/a".into(), 15, None), ("/b".into(), 16, None)]);
    // Made, removed and made anew: the last counts.
    mirror.changed("/a".into());
    mirror.next_read().unwrap();
    mirror.found("/a".into(), value("1"), stat(17, 0));
    mirror.changed("/a".into());
    mirror.next_read().unwrap();
    mirror.missing("/a".into(), 19);
    assert_eq!(told(&mut mirror), [("/a".into(), 19, None)]);
    assert_eq!((mirror.version("/a"), mirror.told()), (None, 19));
    // A path without a value comes and goes unnoticed.
    mirror.changed("/d".into());
    mirror.next_read().unwrap();
    mirror.found("/d".into(), None, stat(20, 0));
    mirror.changed("/d".into());
    mirror.next_read().unwrap();
    mirror.missing("/d".into(), 21);
    assert!(told(&mut mirror).is_empty());
}

#[test]
fn reads_are_bounded() {
    let mut mirror = whole();
    (0..2 * MOST_READS).for_each(|number| mirror.changed(format!("/{number}")));
    let first: Vec<Read> = std::iter::from_fn(|| mirror.next_read()).collect();
    assert_eq!(first.len(), MOST_READS);
    mirror.missing(first[0].path().to_owned(), 11);
    assert_eq!(mirror.next_read(), data(&format!("/{MOST_READS}")));
    assert_eq!(mirror.next_read(), None);
}

//! Single reads become states that existed, whatever notifications come between them.

use super::*;

fn stat(mzxid: i64, version: i32) -> Stat {
    Stat { mzxid, version, ..Stat::default() }
}

fn value(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from(text))
}

/// A mirror that has told an empty tree at version 10.
fn whole() -> Mirror {
    let mut mirror = Mirror::default();
    mirror.changed(String::new());
    read(&mut mirror, &[("", Some((None, stat(1, 0))))]);
    assert!(mirror.is_settled() && mirror.take_news(10).is_empty());
    assert_eq!(mirror.told(), 10);
    mirror
}

fn data(paths: &[&str]) -> Option<Read> {
    Some(Read::Data(paths.iter().map(|path| (*path).to_owned()).collect()))
}

/// The result of a read of a path.
type Found = Option<(Option<Bytes>, Stat)>;

/// Answers the oldest read, which was for these paths; removed ones vanished with change 19.
fn answer(mirror: &mut Mirror, found: &[(&str, Found)]) {
    mirror.answered();
    for (path, found) in found.iter().cloned() {
        match found {
            Some((value, stat)) => mirror.found(path.into(), value, stat).expect("it was reported"),
            None => mirror.missing(path.into(), 19),
        }
    }
}

/// Has these paths read.
fn read(mirror: &mut Mirror, found: &[(&str, Found)]) {
    let paths: Vec<&str> = found.iter().map(|(path, _)| *path).collect();
    assert_eq!(mirror.next_read(), data(&paths));
    answer(mirror, found);
}

/// Has the names beneath `path` read.
fn list(mirror: &mut Mirror, path: &str, names: &[&str]) {
    assert_eq!(mirror.next_read(), Some(Read::Children(path.into())));
    mirror.answered();
    mirror.children(path, names.iter().map(|name| (*name).to_owned()).collect());
}

fn told(mirror: &mut Mirror) -> Vec<(String, u64, Option<Bytes>)> {
    assert!(mirror.is_settled());
    mirror.take_news(0).into_iter().map(|change| (change.path, change.version, change.value)).collect()
}

#[test]
fn the_tree_is_read_down_to_its_leaves_and_told_by_version() {
    let mut mirror = Mirror::default();
    mirror.changed(String::new());
    let inner = |mzxid, version, children| Some((None, Stat { mzxid, version, children, ..Stat::default() }));
    read(&mut mirror, &[("", Some((value("another's"), Stat { mzxid: 1, children: 1, ..Stat::default() })))]);
    list(&mut mirror, "", &["d"]);
    read(&mut mirror, &[("/d", inner(2, 3, 2))]);
    list(&mut mirror, "/d", &["b", "gone", "a"]);
    assert!(!mirror.is_settled());
    let found = [("/d/a", Some((value("a"), stat(9, 1)))), ("/d/b", Some((value(""), stat(5, 0)))), ("/d/gone", None)];
    read(&mut mirror, &found);
    assert_eq!(told(&mut mirror), [("/d/b".into(), 5, value("")), ("/d/a".into(), 9, value("a"))]);
    assert_eq!((mirror.version("/d/a"), mirror.version("/d"), mirror.version("")), (Some(9), None, None));
    assert_eq!(mirror.get("/d").map(|known| known.changes), Some(3), "it is known all the same");
}

#[test]
fn a_change_during_the_first_reads_does_not_repeat_the_reads_beneath_it() {
    let mut mirror = Mirror::default();
    let inner = |version, children| Some((None, Stat { mzxid: 1, version, children, ..Stat::default() }));
    mirror.changed(String::new());
    read(&mut mirror, &[("", inner(0, 2))]);
    list(&mut mirror, "", &["a", "b"]);
    assert_eq!(mirror.next_read(), data(&["/a", "/b"]));
    // Another path is made beside them: the path above changes with it.
    mirror.changed(String::new());
    mirror.changed("/c".into());
    assert_eq!(mirror.next_read(), data(&["", "/c"]));
    answer(&mut mirror, &[("/a", Some((value("a"), stat(2, 0)))), ("/b", Some((value("b"), stat(3, 0))))]);
    answer(&mut mirror, &[("", inner(1, 3)), ("/c", Some((value("c"), stat(4, 0))))]);
    assert_eq!(mirror.next_read(), None);
    assert_eq!(told(&mut mirror).len(), 3);
}

#[test]
fn nothing_is_told_between_two_changes_of_one_step() {
    let mut mirror = whole();
    mirror.changed("/a".into());
    assert_eq!(mirror.next_read(), data(&["/a"]));
    // More paths change before the answer, /a itself too.
    for path in ["/b", "/a", "/b"] {
        mirror.changed(path.into());
    }
    answer(&mut mirror, &[("/a", Some((value("1"), stat(11, 0))))]);
    assert!(!mirror.is_settled());
    assert_eq!([mirror.next_read(), mirror.next_read()], [data(&["/a", "/b"]), None]);
    assert!(!mirror.is_settled());
    answer(&mut mirror, &[("/a", Some((value("2"), stat(13, 1)))), ("/b", Some((value("1"), stat(12, 0))))]);
    assert_eq!(told(&mut mirror), [("/b".into(), 12, value("1")), ("/a".into(), 13, value("2"))]);
    assert_eq!(mirror.told(), 13);
    // A path that is read again and is the same is no news.
    mirror.changed("/a".into());
    read(&mut mirror, &[("/a", Some((value("2"), stat(13, 1))))]);
    assert!(told(&mut mirror).is_empty());
}

#[test]
fn a_removed_path_is_told_even_if_it_was_never_shown() {
    let mut mirror = whole();
    mirror.changed("/a".into());
    mirror.changed("/b".into());
    read(&mut mirror, &[("/a", None), ("/b", None)]);
    assert_eq!(told(&mut mirror), [("/a".into(), 19, None), ("/b".into(), 19, None)]);
    // Made, removed and made anew: the last counts.
    mirror.changed("/a".into());
    read(&mut mirror, &[("/a", Some((value("1"), stat(17, 0))))]);
    mirror.changed("/a".into());
    read(&mut mirror, &[("/a", None)]);
    assert_eq!(told(&mut mirror), [("/a".into(), 19, None)]);
    assert_eq!((mirror.version("/a"), mirror.told()), (None, 19));
    // A path without a value comes and goes unnoticed.
    mirror.changed("/d".into());
    read(&mut mirror, &[("/d", Some((None, stat(20, 0))))]);
    mirror.changed("/d".into());
    read(&mut mirror, &[("/d", None)]);
    assert!(told(&mut mirror).is_empty());
}

#[test]
fn reads_are_bounded() {
    let mut mirror = whole();
    (0..5 * MAX_READS).for_each(|number| mirror.changed(format!("/{number}")));
    for _ in 0..MOST_UNDER_WAY {
        assert!(matches!(mirror.next_read(), Some(Read::Data(paths)) if paths.len() == MAX_READS));
    }
    assert_eq!(mirror.next_read(), None);
    mirror.answered();
    assert!(mirror.next_read().is_some());
    assert_eq!(mirror.next_read(), None);
}

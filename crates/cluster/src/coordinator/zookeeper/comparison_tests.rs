//! Which reads a comparison makes, when, and which differences it finds.

use super::*;

const NOW: Nanos = Nanos::from_secs(100);

fn stat(mzxid: i64, children: i32) -> Stat {
    Stat { czxid: 1, mzxid, children, ..Stat::default() }
}

fn value(bytes: usize) -> Option<Bytes> {
    Some(Bytes::from(vec![b'x'; bytes]))
}

/// A mirror of the cluster's path, `/d`, and these paths with values of so many bytes.
fn mirror(paths: &[(&str, usize)]) -> Mirror {
    let mut mirror = Mirror::default();
    for path in ["", "/d"] {
        mirror.found(path.into(), None, stat(1, 0)).unwrap();
    }
    for (path, bytes) in paths {
        mirror.found((*path).into(), value(*bytes), stat(5, 0)).unwrap();
    }
    mirror.take_news(10);
    mirror
}

fn data(paths: &[&str]) -> Option<Read> {
    Some(Read::Data(paths.iter().map(|path| (*path).to_owned()).collect()))
}

#[test]
fn all_paths_are_compared_in_turn_within_a_round() {
    let paths: Vec<String> = (0..200).map(|number| format!("/d/{number:03}")).collect();
    let mirror = mirror(&paths.iter().map(|path| (&path[..], 100)).collect::<Vec<_>>());
    let mut comparison = Comparison::default();
    let (mut now, mut seen) = (NOW, Vec::new());
    while now < NOW + ROUND {
        if let Some(Read::Data(batch)) = comparison.next_read(now, &mirror) {
            assert!(batch.len() <= MAX_READS);
            assert_eq!(comparison.next_read(now, &mirror), None, "one at a time");
            seen.extend(batch);
            comparison.answered();
        }
        now += Nanos::from_millis(100);
    }
    assert_eq!(seen.len(), 202, "each path once: {seen:?}");
    assert!(seen.is_sorted());
    now += Nanos::from_millis(200);
    let again = (0..2).find_map(|_| comparison.next_read(now, &mirror)).expect("the next round");
    assert!(matches!(again, Read::Data(batch) if batch[0].is_empty()));
}

#[test]
fn large_values_are_compared_at_a_limited_rate() {
    let mirror = mirror(&[("/d/a", 1 << 20), ("/d/b", 1 << 20), ("/d/c", 10)]);
    let mut comparison = Comparison::default();
    let mut next = |now: Nanos| {
        let read = comparison.next_read(now, &mirror);
        comparison.answered();
        read
    };
    assert_eq!(next(NOW), data(&["", "/d"]));
    assert_eq!(next(NOW + ROUND), data(&["/d/a"]));
    let enough = Nanos::from_secs((1 << 20) / BYTES_PER_SECOND);
    assert_eq!(next(NOW + ROUND + Nanos(enough.0 - 1)), None);
    assert_eq!(next(NOW + ROUND + enough), data(&["/d/b"]));
}

#[test]
fn nothing_is_compared_while_reported_changes_are_not_read() {
    let mut mirror = mirror(&[("/d/a", 1)]);
    let mut comparison = Comparison::default();
    mirror.changed("/d/a".into());
    assert_eq!(comparison.next_read(NOW, &mirror), None);
    assert!(mirror.next_read().is_some());
    assert_eq!(comparison.next_read(NOW, &mirror), None);
    mirror.answered();
    assert_eq!(comparison.next_read(NOW, &mirror), data(&["", "/d", "/d/a"]));
    comparison.reported("/d/a");
    assert_eq!(comparison.answered().into_iter().collect::<Vec<_>>(), ["/d/a"]);
    comparison.reported("/d/a");
    assert!(comparison.answered().is_empty(), "none is under way");
}

#[test]
fn each_difference_is_found() {
    let mirror = mirror(&[("/d/a", 1)]);
    let mut comparison = Comparison::default();
    let mut found = |path: &str, found| comparison.found(&mirror, path.into(), found);
    let change = |path: &str| Err(Unreported::Change(path.into()));
    assert_eq!(found("", Some((value(9), stat(1, 1)))), Ok(()), "the value of the cluster's own path means nothing");
    assert_eq!(found("/d/a", Some((value(1), stat(5, 0)))), Ok(()));
    assert_eq!(found("/d/b", None), Ok(()));
    assert_eq!(found("/d/a", Some((value(1), stat(6, 0)))), change("/d/a"));
    assert_eq!(found("/d/a", Some((value(1), Stat { version: 1, ..stat(5, 0) }))), change("/d/a"));
    assert_eq!(found("/d/a", None), change("/d/a"));
    assert_eq!(found("/d/b", Some((value(1), stat(6, 0)))), change("/d/b"));
    assert_eq!(found("/d/a", Some((None, stat(5, 0)))), change("/d/a"));
    let rights = Stat { aversion: 1, ..stat(5, 0) };
    assert_eq!(found("/d/a", Some((value(1), rights))), Err(Unreported::Rights("/d/a".into())));
    // A path that was made anew has rights of its own.
    assert_eq!(found("/d/a", Some((value(1), Stat { czxid: 2, ..rights }))), change("/d/a"));
    // The names beneath a path are compared next.
    assert_eq!(comparison.next_read(NOW, &mirror), Some(Read::Children(String::new())));
    let reported = comparison.answered();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(Comparison::children(&mirror, "/d", names(&["a"]), &reported), Ok(()));
    assert_eq!(Comparison::children(&mirror, "/d", names(&["a", "b"]), &reported), change("/d/b"));
    let reported = BTreeSet::from(["/d/b".to_owned()]);
    assert_eq!(Comparison::children(&mirror, "/d", names(&["a", "b"]), &reported), Ok(()));
}

#[test]
fn a_doubted_path_is_compared_at_once() {
    let mirror = mirror(&[("/d/a", 1)]);
    let mut comparison = Comparison::default();
    assert!(comparison.next_read(NOW, &mirror).is_some());
    comparison.doubt("/d/a".into());
    comparison.answered();
    assert_eq!(comparison.next_read(NOW, &mirror), data(&["/d/a"]));
}

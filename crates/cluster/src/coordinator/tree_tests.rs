//! The tree against a naive model, and each rule by itself.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

fn create(path: &str, value: &str, ephemeral: bool) -> CoordinatorOp {
    CoordinatorOp::Create { path: path.into(), value: Bytes::copy_from_slice(value.as_bytes()), ephemeral }
}

fn set(path: &str, value: &str, version: u64) -> CoordinatorOp {
    CoordinatorOp::Set { path: path.into(), value: Bytes::copy_from_slice(value.as_bytes()), version }
}

fn delete(path: &str, version: Option<u64>) -> CoordinatorOp {
    CoordinatorOp::Delete { path: path.into(), version }
}

#[test]
fn compare_and_set_takes_only_the_version_that_is_there() {
    let mut tree = Tree::new();
    assert_eq!(tree.apply(None, &set("/a", "x", 0)), Err(CoordinatorError::Missing));
    assert_eq!(tree.apply(None, &create("/a", "1", false)).unwrap().version, 1);
    assert_eq!(tree.apply(None, &create("/a", "1", false)), Err(CoordinatorError::Exists { version: 1 }));
    assert_eq!(tree.apply(None, &set("/a", "2", 1)).unwrap().version, 2);
    assert_eq!(tree.apply(None, &set("/a", "3", 1)), Err(CoordinatorError::Stale { version: 2 }));
    assert_eq!(tree.apply(None, &delete("/a", Some(1))), Err(CoordinatorError::Stale { version: 2 }));
    let gone = Change { path: "/a".into(), version: 3, value: None };
    assert_eq!(tree.apply(None, &delete("/a", Some(2))).unwrap().changes, [gone]);
    // A path that is made again has a new version: an old compare-and-set cannot change it.
    assert_eq!(tree.apply(None, &create("/a", "1", false)).unwrap().version, 4);
}

#[test]
fn ephemeral_paths_vanish_with_their_session_only() {
    let mut tree = Tree::new();
    let (one, two) = (tree.open(1000).unwrap(), tree.open(1000).unwrap());
    for (session, path, ephemeral) in [(one, "/1", true), (one, "/kept", false), (two, "/2", true), (one, "/0", true)] {
        tree.apply(Some(session), &create(path, "", ephemeral)).unwrap();
    }
    let gone: Vec<(String, u64)> = tree.close(one).into_iter().map(|change| (change.path, change.version)).collect();
    assert_eq!(gone, [("/0".into(), 5), ("/1".into(), 6)]);
    assert!(tree.get("/kept").is_some() && tree.get("/2").is_some());
    assert!(tree.apply(Some(one), &create("/late", "", false)).is_err(), "a session that is over does nothing");
    assert!(tree.close(one).is_empty());
    assert!(tree.apply(None, &create("/e", "", true)).is_err(), "there is no session to vanish with");
    assert!(tree.open(1000).unwrap() > two, "ids are never used again");
}

#[test]
fn a_refused_part_undoes_the_whole_operation() {
    let mut tree = Tree::new();
    tree.apply(None, &create("/a", "1", false)).unwrap();
    let before = tree.clone();
    let parts = vec![set("/a", "2", 1), create("/b", "", false), delete("/a", None), create("/b", "", false)];
    assert_eq!(tree.apply(None, &CoordinatorOp::All(parts)), Err(CoordinatorError::Exists { version: 3 }));
    assert_eq!(tree, before);
    let nested = CoordinatorOp::All(vec![CoordinatorOp::All(vec![])]);
    assert!(matches!(tree.apply(None, &nested), Err(CoordinatorError::Refused(_))));
    let applied = tree.apply(None, &CoordinatorOp::All(vec![create("/c", "", false), delete("/a", Some(1))])).unwrap();
    assert_eq!((applied.version, applied.changes.len()), (3, 2));
}

#[test]
fn no_path_is_beneath_another() {
    let mut tree = Tree::new();
    tree.apply(None, &create("/a/b", "1", false)).unwrap();
    tree.apply(None, &create("/a/b-", "2", false)).unwrap();
    let before = tree.clone();
    for (path, why) in [
        ("/a/b/c", "nothing can be made beneath /a/b, which has a value"),
        ("/a/b/c/d", "nothing can be made beneath /a/b, which has a value"),
        ("/a", "/a cannot be made: there are paths beneath it"),
    ] {
        assert_eq!(tree.apply(None, &create(path, "", false)), Err(CoordinatorError::Refused(why.into())));
    }
    let both = vec![create("/x/y", "", false), create("/x", "", false)];
    assert!(matches!(tree.apply(None, &CoordinatorOp::All(both)), Err(CoordinatorError::Refused(_))));
    assert_eq!(tree, before);
    for path in ["/a/c", "/b", "/aa", "/a/b-c", "/a/a"] {
        tree.apply(None, &create(path, "", false)).unwrap();
    }
}

#[test]
fn limits_are_refused_and_leave_no_trace() {
    let mut tree = Tree::new();
    let before = tree.clone();
    let long = "/".to_owned() + &"x".repeat(MAX_PATH_BYTES);
    for path in ["", "a", "/a/", "/", &long] {
        assert!(matches!(tree.apply(None, &create(path, "", false)), Err(CoordinatorError::Refused(_))), "{path}");
    }
    let value = Bytes::from(vec![0; MAX_NODE_BYTES + 1]);
    let op = CoordinatorOp::Create { path: "/big".into(), value, ephemeral: false };
    assert!(matches!(tree.apply(None, &op), Err(CoordinatorError::Refused(_))));
    assert!(matches!(
        tree.apply(None, &CoordinatorOp::All(vec![delete("/x", None); MAX_ALL_OPS + 1])),
        Err(CoordinatorError::Refused(_))
    ));
    assert_eq!(tree, before);

    let value = Bytes::from(vec![0; MAX_NODE_BYTES]);
    let full = (0..1000).find(|number| {
        let op = CoordinatorOp::Create { path: format!("/{number}"), value: value.clone(), ephemeral: false };
        tree.apply(None, &op).is_err()
    });
    assert_eq!(full, Some(64), "64 MiB hold 64 values of nearly one MiB");
    tree.apply(None, &delete("/0", None)).unwrap();
    tree.apply(None, &create("/again", "", false)).unwrap();

    while tree.open(1).is_ok() {}
    assert_eq!(tree.sessions().count(), MAX_SESSIONS);
}

#[derive(Clone, Debug)]
enum Step {
    Open,
    Close(usize),
    Apply { session: Option<usize>, op: CoordinatorOp },
}

fn one_op() -> impl Strategy<Value = CoordinatorOp> {
    let path = (0..4u8, 0..3u8).prop_map(|(number, beneath)| match beneath {
        0 => format!("/{number}/{number}"),
        _ => format!("/{number}"),
    });
    prop_oneof![
        (path.clone(), any::<bool>(), any::<u8>()).prop_map(|(path, ephemeral, value)| CoordinatorOp::Create {
            path,
            value: vec![value].into(),
            ephemeral
        }),
        (path.clone(), any::<u8>(), 0..40u64).prop_map(|(path, value, version)| CoordinatorOp::Set {
            path,
            value: vec![value].into(),
            version
        }),
        (path, proptest::option::of(0..40u64)).prop_map(|(path, version)| CoordinatorOp::Delete { path, version }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let op = prop_oneof![4 => one_op(), 1 => proptest::collection::vec(one_op(), 0..4).prop_map(CoordinatorOp::All)];
    prop_oneof![
        1 => Just(Step::Open),
        1 => (0..8usize).prop_map(Step::Close),
        8 => (proptest::option::of(0..8usize), op).prop_map(|(session, op)| Step::Apply { session, op }),
    ]
}

/// The tree of a watcher, built from changes only.
type Mirror = HashMap<String, (u64, Bytes)>;

fn follow(mirror: &mut Mirror, version: &mut u64, changes: &[Change]) {
    for change in changes {
        assert_eq!(change.version, *version + 1, "every change gets the next number");
        *version = change.version;
        match &change.value {
            Some(value) => drop(mirror.insert(change.path.clone(), (change.version, value.clone()))),
            None => assert!(mirror.remove(&change.path).is_some(), "only what is there is removed"),
        }
    }
}

proptest! {
    /// The changes lead to the same tree. The log entries of successful operations restore it, and so does a snapshot.
    #[test]
    fn changes_log_and_snapshot_all_tell_the_same_tree(steps in proptest::collection::vec(step(), 0..80)) {
        let mut tree = Tree::new();
        let mut replayed = Tree::new();
        let (mut mirror, mut version) = (Mirror::new(), 0);
        let mut owners: HashMap<String, SessionId> = HashMap::new();
        let mut sessions = Vec::new();
        for step in steps {
            let entry = match step {
                Step::Open => {
                    let session = tree.open(500).unwrap();
                    sessions.push(session);
                    LogEntry::Opened { session, timeout_ms: 500 }
                }
                Step::Close(index) => {
                    let Some(session) = sessions.get(index).copied().filter(|session| tree.timeout_ms(*session).is_some()) else { continue };
                    let mut gone: Vec<String> = owners.iter().filter(|(_, owner)| **owner == session).map(|(path, _)| path.clone()).collect();
                    gone.sort();
                    let changes = tree.close(session);
                    prop_assert_eq!(changes.iter().map(|change| change.path.clone()).collect::<Vec<_>>(), gone);
                    follow(&mut mirror, &mut version, &changes);
                    LogEntry::Closed { session }
                }
                Step::Apply { session, op } => {
                    let session = session.and_then(|index| sessions.get(index).copied());
                    let before = tree.clone();
                    let Ok(applied) = tree.apply(session, &op) else {
                        prop_assert_eq!(&tree, &before);
                        continue;
                    };
                    prop_assert_eq!(applied.version, tree.version());
                    follow(&mut mirror, &mut version, &applied.changes);
                    let is_beneath = mirror.keys().any(|path| path.len() > 2 && mirror.contains_key(&path[..2]));
                    prop_assert!(!is_beneath, "a path is beneath another");
                    let parts = if let CoordinatorOp::All(parts) = &op { &parts[..] } else { std::slice::from_ref(&op) };
                    for part in parts {
                        if let CoordinatorOp::Create { path, ephemeral: true, .. } = part {
                            owners.insert(path.clone(), session.unwrap());
                        } else if let CoordinatorOp::Create { path, .. } | CoordinatorOp::Delete { path, .. } = part {
                            owners.remove(path);
                        }
                    }
                    LogEntry::Applied { session, op }
                }
            };
            owners.retain(|path, _| tree.get(path).is_some());
            replayed.replay(entry).unwrap();
        }
        let told: Mirror = tree.changes().map(|change| (change.path, (change.version, change.value.unwrap()))).collect();
        prop_assert_eq!(told, mirror);
        prop_assert_eq!(&replayed, &tree);
        prop_assert_eq!(&Tree::restore(tree.snapshot()), &tree);
    }
}

/// A host that was put back to an older state must not give a process the session of another one.
#[test]
fn sessions_of_another_host_process_are_not_given_again() {
    let mut before = Tree::new();
    let snapshot = before.snapshot();
    let given = before.open(1_000).unwrap();
    let mut put_back = Tree::restore(snapshot);
    put_back.draw_sessions_from(77 << 40);
    let other = put_back.open(1_000).unwrap();
    assert_ne!(given, other);
    assert_eq!(put_back.timeout_ms(given), None, "its process begins a new session");
    let mut replayed = Tree::new();
    replayed.replay(LogEntry::Opened { session: other, timeout_ms: 1_000 }).unwrap();
    assert_eq!(replayed.timeout_ms(other), Some(1_000));
    assert!(replayed.replay(LogEntry::Opened { session: other, timeout_ms: 1_000 }).is_err(), "it is open already");
}

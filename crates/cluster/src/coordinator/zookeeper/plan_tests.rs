//! The requests to ZooKeeper for operations, and the meaning of its refusals.

use super::*;
use crate::coordinator::chunk;
use crate::master::region_ops;
use leeward_format::cluster::TableOptions;
use leeward_format::table::{MAX_NEW_REGIONS, NewTable};
use leeward_format::zookeeper::Stat;
use leeward_format::{MAX_KEY_BYTES, RegionId};

fn place(access: Access) -> ClusterRoot {
    ClusterRoot { root: "/r".into(), access }
}

/// A mirror that knows these paths, each with its version and number of changes. Paths with a version below 5 have no value.
fn mirror(paths: &[(&str, i64, i32)]) -> Mirror {
    let mut mirror = Mirror::default();
    for (path, mzxid, version) in paths {
        let value = (*mzxid >= 5).then(|| Bytes::from("v"));
        let stat = Stat { mzxid: *mzxid, version: *version, ..Stat::default() };
        mirror.found((*path).into(), value, stat).expect("it was reported");
    }
    mirror.take_news(50);
    mirror
}

fn known() -> Mirror {
    mirror(&[("", 1, 7), ("/d", 2, 8), ("/d/x", 20, 3), ("/y", 30, 0)])
}

fn create(path: &str) -> CoordinatorOp {
    CoordinatorOp::Create { path: path.into(), value: "v".into(), ephemeral: true }
}

fn set(path: &str, version: u64) -> CoordinatorOp {
    CoordinatorOp::Set { path: path.into(), value: "w".into(), version }
}

/// The steps of a plan, in short form.
fn steps(mirror: &Mirror, op: CoordinatorOp) -> Vec<String> {
    let plan = place(Access::Anyone).plan(mirror, &op).unwrap();
    assert_eq!(plan.steps.len(), plan.subjects.len());
    let text = |step: &Step| match step {
        Step::Create { path, value, ephemeral, .. } => format!("create {path} {} {ephemeral}", value.is_some()),
        Step::Set { path, value, version } => format!("set {path} {} {version:?}", value.is_some()),
        Step::Delete { path, version } => format!("delete {path} {version:?}"),
        Step::Check { path, version } => format!("check {path} {version}"),
    };
    plan.steps.iter().map(text).collect()
}

#[test]
fn an_empty_path_that_was_made_by_hand_is_named_with_what_to_do() {
    let mut mirror = known();
    let stat = Stat { mzxid: 40, ..Stat::default() };
    mirror.found("/d".into(), Some(Bytes::new()), stat).expect("it was reported");
    let Err(CoordinatorError::Refused(why)) = place(Access::Anyone).plan(&mirror, &create("/d/z")) else {
        panic!("taken")
    };
    assert!(why.contains("beneath /d, which has a value, an empty one") && why.contains("`delete /r/d`"), "{why}");
}

#[test]
fn making_a_path_changes_the_one_above_and_comparing_compares_it() {
    assert_eq!(steps(&known(), create("/d/z")), ["set /r/d false None", "create /r/d/z true true"]);
    assert_eq!(steps(&known(), set("/d/x", 20)), ["check /r/d 8", "set /r/d/x true Some(3)"]);
    let delete = |version| CoordinatorOp::Delete { path: "/y".into(), version };
    assert_eq!(steps(&known(), delete(Some(30))), ["check /r 7", "delete /r/y Some(0)"]);
    assert_eq!(steps(&known(), delete(None)), ["delete /r/y None"]);
    let both = CoordinatorOp::All(vec![create("/d/z"), set("/d/x", 20), delete(None)]);
    assert_eq!(
        steps(&known(), both),
        ["set /r/d false Some(8)", "create /r/d/z true true", "set /r/d/x true Some(3)", "delete /r/y None"]
    );
    assert!(steps(&known(), CoordinatorOp::All(Vec::new())).is_empty());
}

#[test]
fn missing_paths_above_are_made_as_well() {
    let made = ["create /r/a false false", "create /r/a/b false false", "create /r/a/b/c true true"];
    assert_eq!(steps(&known(), create("/a/b/c")), made);
}

#[test]
fn nothing_is_made_beneath_a_value() {
    let mirror = known();
    let refused = |ops: Vec<CoordinatorOp>| place(Access::Anyone).plan(&mirror, &CoordinatorOp::All(ops)).unwrap_err();
    for (ops, value) in [
        (vec![create("/y/z")], "/y"),
        (vec![create("/q"), create("/d/x/1/2/3")], "/d/x"),
        (vec![create("/a/b"), create("/a")], "/a"),
        (vec![create("/a/b"), create("/a/b/c/d")], "/a/b"),
    ] {
        let why = CoordinatorError::Refused(format!("nothing can be made beneath {value}, which has a value"));
        assert_eq!(refused(ops), why);
    }
    // A path that is only above others is not there for a removal, and stays.
    let delete = |path: &str| CoordinatorOp::Delete { path: path.into(), version: None };
    assert_eq!(refused(vec![delete("/y"), delete("/d")]), CoordinatorError::Missing);
    assert_eq!(steps(&mirror, delete("/unknown")), ["delete /r/unknown None"], "it may have been made meanwhile");
}

#[test]
fn the_operations_for_a_large_table_are_parted_so_that_each_part_fits() {
    let place = ClusterRoot { root: format!("/{}", "r".repeat(200)), access: Access::Creator };
    for (regions, key_bytes) in [(MAX_NEW_REGIONS, 8), (MAX_NEW_REGIONS / 8, MAX_KEY_BYTES)] {
        let splits = (1..regions).map(|split| format!("{split:0key_bytes$}").into()).collect();
        let table = NewTable::new(TableOptions::default(), splits);
        let numbers: Vec<RegionId> = (1..).take(regions).map(RegionId).collect();
        let all = region_ops(&table, leeward_format::TableId(9), &numbers);
        let (mut rest, mut parts) = (&all[..], 0);
        while !rest.is_empty() {
            let (part, others) = rest.split_at(chunk(rest));
            let part = part.iter().cloned().chain([set("/d/x", 20)]).collect();
            place.plan(&known(), &CoordinatorOp::All(part)).expect("ZooKeeper takes it");
            (rest, parts) = (others, parts + 1);
        }
        assert!(parts > 5, "{regions}: {parts}");
    }
}

#[test]
fn impossible_operations_are_not_sent() {
    let refusal = |op: CoordinatorOp| place(Access::Creator).plan(&known(), &op).unwrap_err();
    assert_eq!(refusal(set("/d/x", 19)), CoordinatorError::Stale { version: 20 });
    assert_eq!(refusal(set("/d/q", 19)), CoordinatorError::Missing);
    assert_eq!(refusal(set("/d", 2)), CoordinatorError::Missing, "it has no value");
    let reason = |op: CoordinatorOp| match refusal(op) {
        CoordinatorError::Refused(reason) => reason,
        other => panic!("{other:?}"),
    };
    for path in ["", "/", "x", "/x/", "/x//y", "/x/./y", "/\n"] {
        assert!(reason(create(path)).contains("is not a path: it"), "{path:?}");
    }
    assert!(reason(CoordinatorOp::All(vec![CoordinatorOp::All(Vec::new())])).contains("do not nest"));
    assert!(reason(CoordinatorOp::All(vec![set("/d/x", 20); MAX_ALL_OPS + 1])).contains("at most 16384"));
    let big = Bytes::from(vec![0; MAX_NODE_BYTES + 1]);
    let create_big = CoordinatorOp::Create { path: "/x".into(), value: big, ephemeral: false };
    assert!(reason(create_big).contains("a value of 1047553 bytes, at most 1047552"));
    let half = Bytes::from(vec![0; 600_000]);
    let half = |path: &str| CoordinatorOp::Create { path: path.into(), value: half.clone(), ephemeral: false };
    let why = reason(CoordinatorOp::All(vec![half("/x"), half("/z")]));
    assert!(why.contains("ZooKeeper takes at most 1048575 at once"), "{why}");
}

#[test]
fn a_refusal_is_about_the_path_or_about_what_is_beside_it() {
    let (place, mirror) = (place(Access::Creator), known());
    let plan = place.plan(&mirror, &CoordinatorOp::All(vec![set("/d/x", 20), create("/q"), set("/y", 30)])).unwrap();
    let judge = |step: usize, code: i32| place.judge(&mirror, &plan, step, code);
    // Two guards, then the three.
    for (step, code) in [(0, error::BAD_VERSION), (1, error::NO_NODE), (0, error::NODE_EXISTS)] {
        assert_eq!(judge(step, code), Verdict::Again);
    }
    let failed = |step, code| match judge(step, code) {
        Verdict::Failed(error) => error,
        Verdict::Again => panic!("it is the answer"),
    };
    assert_eq!(failed(2, error::BAD_VERSION), CoordinatorError::Stale { version: 20 });
    assert_eq!(failed(3, error::NODE_EXISTS), CoordinatorError::Exists { version: 50 }, "it came and went");
    assert_eq!(failed(4, error::NO_NODE), CoordinatorError::Missing);
    for (step, code, why) in [
        (3, error::NO_AUTH, "refuses access to /r/q: it belongs to another user, or the password is wrong"),
        (3, error::NO_CHILDREN_FOR_EPHEMERALS, "/r/q cannot be made: what is above it is ephemeral"),
        (2, error::NOT_EMPTY, "/r/d/x cannot be removed: there are paths beneath it"),
        (0, error::NO_AUTH, "refuses access to /r:"),
        (9, -4, "error -4 at /r"),
    ] {
        match failed(step, code) {
            CoordinatorError::Refused(reason) => assert!(reason.contains(why), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    let beneath = place.plan(&mirror, &create("/d")).unwrap();
    let Verdict::Failed(CoordinatorError::Refused(why)) = place.judge(&mirror, &beneath, 1, error::NODE_EXISTS) else {
        panic!("a path above others is not there for others");
    };
    assert!(why.contains("/d cannot be made: there are paths beneath it"), "{why}");
}

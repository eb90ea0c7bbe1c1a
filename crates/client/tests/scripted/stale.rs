//! Reads that any member may answer: the member that the client asks, and its handling of answers.

use crate::fake::{Act, FakeNode, map, succeed};
use bytes::Bytes;
use leeward_client::{
    Client, ClientOptions, Condition, Op, OpError, OpResult, Range, Read, ReadPaths, ReadResult, RegionMap, ScanRange,
    Scans, Session, Stale,
};
use leeward_format::{Epoch, Lsn, RegionId};
use std::time::Duration;

const MOST: Duration = Duration::from_millis(500);

/// The answer of a backup that can answer.
fn stale(ops: &[Op]) -> Act {
    let answer = |op: &Op| {
        let result = match op {
            Op::Stale { read: Read::Get { .. }, .. } => ReadResult::Value(Some("old".into())),
            Op::Stale { .. } => ReadResult::Entries { entries: vec![("k".into(), "old".into())], resume: None },
            other => panic!("{other:?} is the primary's"),
        };
        OpResult::Stale { age_ms: 300, lsn: Lsn(7), result }
    };
    Act::Results(ops.iter().map(answer).collect())
}

fn refuse(ops: &[Op]) -> Act {
    let error = || OpResult::Error(OpError::NotPrimary { region: RegionId(1), epoch: Epoch(1) });
    Act::RoutesThen(ops.iter().map(|_| error()).collect())
}

/// A backup that answers scans, and nothing else.
fn scans(ops: &[Op]) -> Act {
    let answer = |op: &Op| {
        assert!(matches!(op, Op::Stale { at_most_ms: 0, read: Read::Scan(_) }), "{op:?} is the primary's");
        OpResult::Entries { entries: vec![("k".into(), "new".into())], resume: None }
    };
    Act::Results(ops.iter().map(answer).collect())
}

/// A primary, and a backup that does as the script says.
fn two(script: fn(&[Op]) -> Act) -> (FakeNode, FakeNode, Client) {
    two_of(Scans::Primary, script)
}

/// The same, of a table whose scans these answer.
fn two_of(scans: Scans, script: fn(&[Op]) -> Act) -> (FakeNode, FakeNode, Client) {
    let nodes = two_with(scans, succeed, script);
    let options = ClientOptions { retry_pause: Duration::from_secs(2), ..ClientOptions::default() };
    let client = Client::connect(&[&nodes.0.address], options).expect("the node answers");
    (nodes.0, nodes.1, client)
}

/// A primary and a backup that do as the scripts say.
fn two_with(scans: Scans, primary: fn(&[Op]) -> Act, backup: fn(&[Op]) -> Act) -> (FakeNode, FakeNode) {
    let ((one, a), (two, b)) = (FakeNode::bind(), FakeNode::bind());
    let mut map: RegionMap = map(1, &[("", 1)], &[&a, &b]);
    map.regions[0].backups = vec![map.servers[1].member];
    map.tables[0].reads = ReadPaths { scans, ..ReadPaths::default() };
    (FakeNode::serve(one, map.clone(), primary), FakeNode::serve(two, map, backup))
}

#[test]
fn reads_go_to_one_member_after_the_other_and_tell_their_age() {
    let (primary, backup, client) = two(stale);
    let answers: Vec<_> = (0..10).map(|_| client.get_stale("key", MOST).expect("a value")).collect();
    let old = Stale { value: Some("old".into()), age: Duration::from_millis(300) };
    let new = Stale { value: Some("key".into()), age: Duration::ZERO };
    let count = |wanted| answers.iter().filter(|answer| *answer == wanted).count();
    assert_eq!((count(&old), count(&new)), (5, 5));
    assert_eq!((primary.ops().len(), backup.ops().len()), (5, 5));
    client.put("key", "value").expect("a put is the primary's");
    assert_eq!(client.get("key").expect("so is a read that says nothing").as_deref(), Some(&b"key"[..]));
    assert_eq!((primary.ops().len(), backup.ops().len()), (7, 5));
}

#[test]
fn what_a_member_cannot_answer_is_asked_of_the_primary_at_once() {
    let (primary, backup, client) = two(refuse);
    let begun = std::time::Instant::now();
    for _ in 0..6 {
        let answer = client.get_stale("key", MOST).expect("a value");
        assert_eq!(answer, Stale { value: Some("key".into()), age: Duration::ZERO });
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "no pause");
    assert_eq!((primary.ops().len(), backup.ops().len()), (6, 3));
}

#[test]
fn an_option_has_all_reads_put_up_with_it() {
    let (primary, backup, _) = two(stale);
    let options = ClientOptions { at_most_stale: Some(MOST), ..ClientOptions::default() };
    let client = Client::connect(&[&primary.address], options).expect("the node answers");
    let values: Vec<_> = (0..2).map(|_| client.get("key").expect("a value").expect("there is one")).collect();
    assert!(values.contains(&"old".into()) && values.contains(&"key".into()), "{values:?}");
    let scans: Vec<_> = (0..2)
        .map(|_| {
            let mut scan = client.scan(Range::default());
            (scan.by_ref().count(), scan.age())
        })
        .collect();
    assert!(scans.contains(&(1, Duration::from_millis(300))) && scans.contains(&(0, Duration::ZERO)), "{scans:?}");
    client.put("key", "value").expect("a put is the primary's");
    assert_eq!((primary.ops().len(), backup.ops().len()), (3, 2));
}

#[test]
fn scans_go_to_backups_where_the_table_says_so_and_to_the_primary_if_those_cannot() {
    let scan = |client: &Client| client.scan(Range::default()).collect::<Result<Vec<_>, _>>().expect("pairs").len();
    let (primary, backup, client) = two_of(Scans::Backups, scans);
    client.get("key").expect("a value");
    assert_eq!((0..4).map(|_| scan(&client)).collect::<Vec<_>>(), [1; 4]);
    assert_eq!((primary.ops().len(), backup.ops().len()), (1, 4));

    let (primary, backup, client) = two_of(Scans::Backups, refuse);
    client.get("key").expect("a value");
    let begun = std::time::Instant::now();
    assert_eq!(scan(&client), 0, "the primary has none");
    assert!(begun.elapsed() < Duration::from_secs(2), "no pause");
    assert_eq!((primary.ops().len(), backup.ops().len()), (2, 1));
}

/// A primary that answers reads, and no write.
fn reads_only(ops: &[Op]) -> Act {
    if ops.iter().any(Op::writes_data) { Act::Silence } else { succeed(ops) }
}

#[test]
fn a_scan_that_may_show_an_unanswered_write_is_the_primarys() {
    let (primary, backup) = two_with(Scans::Backups, reads_only, scans);
    let mut session = Session::connect(&[&primary.address], ClientOptions::default()).expect("the node answers");
    session.submit(vec![Op::Delete { key: "m".into(), when: Condition::Always }]).expect("there is room");
    let mut scan = |start: &'static str, end: Option<&'static str>| {
        let (start, end) = (start.into(), end.map(Bytes::from));
        let range = ScanRange { start, end, reverse: false, limit: 10, keys_only: false };
        let ticket = session.submit(vec![Op::Scan(range)]).expect("there is room");
        while session.poll(Duration::from_secs(10)).expect("an answer").iter().all(|done| done.ticket != ticket) {}
        backup.ops().len()
    };
    assert_eq!(scan("a", Some("m")), 1, "the end is exclusive");
    assert_eq!(scan("n", None), 2);
    assert_eq!(scan("a", Some("n")), 2);
    assert_eq!(scan("m", None), 2);
    assert_eq!(scan("a", None), 2);
}

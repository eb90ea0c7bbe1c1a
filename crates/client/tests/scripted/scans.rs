//! Scans that cross regions, against scripted nodes with a sorted map each.

use crate::fake::{Act, FakeNode, map};
use bytes::Bytes;
use leeward_client::{Client, ClientOptions, Op, OpResult, Range};
use leeward_format::op::{RangeOp, ScanRange};
use leeward_format::partition::Partition;

/// Answers scans over `keys`, at most `page` entries each, ending at the region `[start, end)`.
fn store(
    keys: &'static [&'static str],
    start: &'static str,
    end: &'static str,
    page: usize,
) -> impl FnMut(&[Op]) -> Act {
    move |ops| {
        let [Op::Scan(ScanRange { start: from, end: to, reverse, limit, keys_only })] = ops else {
            panic!("one scan: {ops:?}")
        };
        let wanted = |key: &&&str| key.as_bytes() >= &from[..] && to.as_ref().is_none_or(|to| key.as_bytes() < &to[..]);
        let mut found: Vec<&str> = keys.iter().filter(wanted).copied().collect();
        if *reverse {
            found.reverse();
        }
        let count = found.len().min(page).min(*limit as usize);
        let cut = count < found.len();
        let entry = |key: &&str| (Bytes::from(key.to_string()), if *keys_only { Bytes::new() } else { "v".into() });
        let entries: Vec<_> = found[..count].iter().map(entry).collect();
        let last = entries.last().map(|(key, _)| key.clone());
        let resume = match (cut, *reverse) {
            (true, true) => last,
            (true, false) => last.map(|key| [&key[..], b"\0"].concat().into()),
            (false, true) => (start.as_bytes() > &from[..]).then(|| start.into()),
            (false, false) => to.as_ref().is_none_or(|to| end.as_bytes() < &to[..]).then(|| end.into()),
        };
        let resume = resume.filter(|resume: &Bytes| resume != "~");
        Act::Results(vec![OpResult::Entries { entries, resume }])
    }
}

fn cluster() -> Client {
    let ((one, a), (two, b)) = (FakeNode::bind(), FakeNode::bind());
    let map = map(1, &[("", 1), ("m", 2)], &[&a, &b]);
    FakeNode::serve(one, map.clone(), store(&["a", "b", "c", "d", "e"], "", "m", 2));
    FakeNode::serve(two, map, store(&["m", "n", "o"], "m", "~", 2));
    Client::connect(&[&a], ClientOptions::default()).expect("the node answers")
}

fn keys(client: &Client, range: Range) -> String {
    let entries = client.scan(range).map(|entry| entry.expect("an entry").0);
    entries.map(|key| key.escape_ascii().to_string()).collect()
}

#[test]
fn a_scan_goes_on_where_a_page_or_region_ends() {
    let client = cluster();
    assert_eq!(keys(&client, Range::default()), "abcdemno");
    assert_eq!(keys(&client, Range { reverse: true, ..Range::default() }), "onmedcba");
    assert_eq!(keys(&client, Range { start: "b".into(), end: Some("n".into()), ..Range::default() }), "bcdem");
    let range = Range { start: "b".into(), end: Some("n".into()), reverse: true, ..Range::default() };
    assert_eq!(keys(&client, range), "medcb");
}

#[test]
fn a_limit_is_over_all_regions() {
    let client = cluster();
    for limit in 0..10 {
        let forward = keys(&client, Range { limit: Some(limit), ..Range::default() });
        assert_eq!(forward, "abcdemno"[..(limit as usize).min(8)]);
        let reverse = keys(&client, Range { limit: Some(limit), reverse: true, ..Range::default() });
        assert_eq!(reverse, "onmedcba"[..(limit as usize).min(8)]);
    }
}

#[test]
fn an_empty_range_asks_nobody() {
    let client = cluster();
    assert_eq!(keys(&client, Range { start: "d".into(), end: Some("d".into()), ..Range::default() }), "");
    assert_eq!(keys(&client, Range { start: "e".into(), end: Some("d".into()), ..Range::default() }), "");
}

#[test]
fn keys_only_leaves_the_values_out() {
    let entries: Vec<_> = cluster().scan(Range { keys_only: true, ..Range::default() }).collect();
    assert!(entries.iter().all(|entry| entry.as_ref().is_ok_and(|(_, value)| value.is_empty())));
}

/// Regions of a table that is partitioned by hash, each with the keys that belong to it; the second is on the second
/// node.
fn hashed(keys: &'static [&'static str]) -> Client {
    let ((one, a), (two, b)) = (FakeNode::bind(), FakeNode::bind());
    let partition = Partition::Hash { tokens: 3 };
    let mut map = map(1, &[("", 1), ("x", 2), ("y", 1)], &[&a, &b]);
    map.tables[0].partition = partition;
    for (at, token) in partition.splits().enumerate() {
        (map.regions[at].end, map.regions[at + 1].start) = (Some(token.clone()), token);
    }
    for node in [one, two] {
        let regions = map.regions.clone();
        FakeNode::serve(node, map.clone(), move |ops| {
            let answer = |op: &Op| {
                let Op::In { region, op } = op else { panic!("it names no region: {op:?}") };
                let group = regions.iter().find(|group| group.region == *region).expect("a region");
                let own: Vec<&str> =
                    keys.iter().copied().filter(|key| group.contains(&partition.place(key.as_bytes()))).collect();
                part(&own, op)
            };
            Act::Results(ops.iter().map(answer).collect())
        });
    }
    Client::connect(&[&a], ClientOptions::default()).expect("the node answers")
}

/// The answer of a region with the keys `own`: at most two at a time.
fn part(own: &[&str], op: &RangeOp) -> OpResult {
    let RangeOp::Scan(ScanRange { start, end, reverse, limit, .. }) = op else {
        return match op {
            RangeOp::DeleteRange { .. } => OpResult::RangeDeleted { resume: None },
            _ => OpResult::Approximation { pairs: own.len() as u64, bytes: 10, resume: None },
        };
    };
    let inside = |key: &&str| key.as_bytes() >= &start[..] && end.as_ref().is_none_or(|end| key.as_bytes() < &end[..]);
    let mut found: Vec<&str> = own.iter().copied().filter(inside).collect();
    if *reverse {
        found.reverse();
    }
    let next = found.get(2.min(*limit as usize)).map(|key| Bytes::from(key.to_string()));
    found.truncate(2.min(*limit as usize));
    let entries: Vec<(Bytes, Bytes)> = found.iter().map(|key| (key.to_string().into(), "v".into())).collect();
    let last = entries.last().map(|(key, _)| key.clone());
    OpResult::Entries { entries, resume: if *reverse { next.and(last) } else { next } }
}

#[test]
fn where_keys_are_partitioned_by_hash_all_regions_make_one_scan() {
    const ALL: [&str; 14] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"];
    let client = hashed(&ALL);
    assert_eq!(keys(&client, Range::default()), "abcdefghijklmn");
    assert_eq!(keys(&client, Range { reverse: true, ..Range::default() }), "nmlkjihgfedcba");
    for limit in 0..16 {
        let forward = keys(&client, Range { limit: Some(limit), ..Range::default() });
        assert_eq!(forward, "abcdefghijklmn"[..(limit as usize).min(14)]);
        let reverse = keys(&client, Range { limit: Some(limit), reverse: true, ..Range::default() });
        assert_eq!(reverse, "nmlkjihgfedcba"[..(limit as usize).min(14)]);
    }
    let range = || Range { start: "c".into(), end: Some("l".into()), ..Range::default() };
    assert_eq!(keys(&client, range()), "cdefghijk");
    assert_eq!(keys(&client, Range { reverse: true, ..range() }), "kjihgfedc");
    assert_eq!(client.approximate("", None).expect("all answer"), (14, 30));
    client.delete_range("a", Some("c".into())).expect("all answer");
}

//! Which names and which new tables are accepted.

use super::*;
use crate::partition::Partition;

#[test]
fn names_begin_with_a_letter_and_are_plain() {
    for good in ["a", "default", "orders-2026_q1", &"x".repeat(64)] {
        assert_eq!(good.parse::<TableName>().expect(good).to_string(), good);
    }
    for bad in ["", "0", "1st", "-1", "_a", "Orders", "a b", "a/b", "tête", &"x".repeat(65)] {
        let reason = bad.parse::<TableName>().expect_err(bad);
        assert!(reason.contains("begins with a letter"), "{reason}");
    }
}

#[test]
fn a_decoded_name_is_checked() {
    let good = postcard::to_stdvec("orders").expect("it is written");
    assert_eq!(postcard::from_bytes::<TableName>(&good), Ok("orders".parse().expect("a name")));
    let bad = postcard::to_stdvec("/leeward/server/1").expect("it is written");
    assert!(postcard::from_bytes::<TableName>(&bad).is_err());
}

fn table(change: impl FnOnce(&mut NewTable)) -> Result<(), String> {
    let options = TableOptions { name: "orders".into(), ..TableOptions::default() };
    let mut table = NewTable::new(options, vec!["g".into(), "p".into()]);
    change(&mut table);
    table.check()
}

#[test]
fn a_new_table_is_checked() {
    assert_eq!(table(|_| {}), Ok(()));
    assert_eq!(table(|table| table.splits.clear()), Ok(()));
    let refused = |change: fn(&mut NewTable), part: &str| {
        let reason = table(change).expect_err(part);
        assert!(reason.contains(part), "{reason}");
    };
    refused(|table| table.options.name = "7".into(), "no name of a table");
    refused(|table| table.splits.reverse(), "must ascend");
    refused(|table| table.splits = vec!["g".into(), "g".into()], "must ascend");
    refused(|table| table.splits = vec![Bytes::new()], "must ascend");
    refused(|table| table.splits = vec![vec![b'x'; MAX_KEY_BYTES + 1].into()], "4096 bytes");
    refused(|table| table.splits = (0..16_384).map(|n| format!("{n:06}").into()).collect(), "at most 16384");
    refused(|table| table.options.replicas = 0, "replicas is 0: it must be from 1 to 32");
    refused(|table| table.options.min_in_sync = 4, "min_in_sync is 4: it must be from 1 to 3");
    refused(|table| table.options.min_in_sync = 0, "min_in_sync is 0");
    refused(|table| table.options.l0_bytes = 1, "l0_bytes is 1: it must be from 65536");
    refused(|table| table.options.growth_factor = 1, "growth_factor is 1");
    refused(|table| table.options.garbage_percent = 0, "garbage_percent is 0");
    refused(|table| table.options.max_space_percent = 100, "max_space_percent is 100: it must be from 105");
    refused(|table| table.options.placement.medium_from = 1001, "medium_from is 1001: it must be from 0 to 1000");
}

#[test]
fn a_change_of_the_index_changes_nothing_else() {
    let before = TableOptions { name: "orders".into(), reads: Reads::ANY.into(), ..TableOptions::default() };
    assert_eq!(before.reads.index, IndexKind::Lsm);
    let to = |index| TableChange { index, ..TableChange::default() };
    let after = to(Some(IndexKind::Hybrid)).apply(&before).expect("it goes with any option");
    assert_eq!(after, TableOptions { reads: ReadPaths { index: IndexKind::Hybrid, ..before.reads }, ..before.clone() });
    assert_eq!(to(None).apply(&after).as_ref(), Ok(&after), "it stays as it is");
    assert_eq!(to(Some(IndexKind::Lsm)).apply(&after), Ok(before));
}

#[test]
fn tokens_say_what_regions_there_are() {
    let hashed = |tokens, change: fn(&mut NewTable)| {
        let mut made = None;
        let checked = table(|table| {
            table.options.partition = Partition::Hash { tokens };
            table.splits.clear();
            change(table);
            made = Some(table.clone());
        });
        checked.map(|()| made.expect("it was changed").starts().len())
    };
    let slots = hashed(1, |table| table.options.partition = Partition::Slots { tokens: 16_384 });
    assert_eq!(slots, Ok(16_384), "a region for each slot");
    let none = hashed(1, |table| table.options.partition = Partition::Slots { tokens: 0 });
    assert!(none.is_err_and(|why| why.contains("from 1 to 16384")));
    assert_eq!([hashed(1, |_| {}), hashed(3, |_| {}), hashed(16_384, |_| {})], [Ok(1), Ok(3), Ok(16_384)]);
    for tokens in [0, 16_385, u32::MAX] {
        assert_eq!(hashed(tokens, |_| {}), Err(format!("tokens is {tokens}: it must be from 1 to 16384")));
    }
    let refused = hashed(3, |table| table.splits = vec!["g".into()]).expect_err("two answers to one question");
    assert!(refused.contains("its tokens say"), "{refused}");
}

#[test]
fn only_ranges_of_keys_are_split() {
    let beyond =
        |split_bytes, partition| TableOptions { split_bytes, partition, ..TableOptions::default() }.split_beyond();
    assert_eq!(beyond(1 << 30, Partition::Range), Some(1 << 30));
    assert_eq!(beyond(0, Partition::Range), None);
    assert_eq!(beyond(1 << 30, Partition::Hash { tokens: 4 }), None);
    assert_eq!(beyond(1 << 30, Partition::Slots { tokens: 4 }), None);
}

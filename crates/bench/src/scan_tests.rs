//! Scans of tables of one region and of many, whose answers may have little room.

use super::*;
use std::collections::{BTreeMap, HashSet};

type Pairs = BTreeMap<Bytes, Bytes>;

/// Regions that share keys as a table does that is partitioned by hash; none: one region has them all.
struct Table {
    regions: Vec<RegionId>,
    all: Pairs,
    /// Entries that the answers to operations that come together may have.
    room: usize,
}

impl Table {
    fn new(regions: u32, keys: u32, room: usize) -> Table {
        let regions = (1..=regions).map(RegionId).collect();
        let pair = |key: u32| (Bytes::from(format!("{key:04}")), Bytes::from(format!("value {key}")));
        Table { regions, all: (0..keys).map(pair).collect(), room }
    }

    /// The region that has a key.
    fn place(&self, key: &[u8]) -> Option<RegionId> {
        let scattered = crate::keys::mix64(key.iter().fold(0, |hash, byte| hash * 10 + u64::from(*byte))) as usize;
        (!self.regions.is_empty()).then(|| self.regions[scattered % self.regions.len()])
    }

    fn answer(&self, ops: Vec<Op>) -> Vec<OpResult> {
        let mut room = self.room;
        let answer = |op: Op| {
            let (range, region) = match op {
                Op::Scan(range) => (range, None),
                Op::In { region, op: RangeOp::Scan(range) } => (range, Some(region)),
                other => panic!("{other:?}"),
            };
            assert!(range.limit > 0 && range.end.is_none() && !range.reverse && !range.keys_only);
            let of_region = self.all.range(range.start..).filter(|(key, _)| self.place(key) == region);
            let mut of_region = of_region.map(|(key, value)| (key.clone(), value.clone()));
            let entries: Vec<_> = of_region.by_ref().take(room.min(range.limit as usize)).collect();
            room -= entries.len();
            OpResult::Entries { entries, resume: of_region.next().map(|(key, _)| key) }
        };
        ops.into_iter().map(answer).collect()
    }

    /// What a scan reads, and how often it asks.
    fn scan(&self, start: &str, wanted: u32) -> (Vec<(Bytes, Bytes)>, usize) {
        let mut scan = Scan::new(Bytes::copy_from_slice(start.as_bytes()), wanted);
        let (mut read, mut asked) = (Vec::new(), 0);
        loop {
            let ops = scan.next(&self.regions);
            if ops.is_empty() {
                return (read, asked);
            }
            asked += 1;
            assert!(asked < 10_000, "it does not come to an end");
            read.extend(scan.answered(self.answer(ops), &self.regions).expect("nothing fails"));
        }
    }

    fn check(&self, start: &str, wanted: u32) -> usize {
        let (read, asked) = self.scan(start, wanted);
        let right = self.all.range(Bytes::copy_from_slice(start.as_bytes())..).take(wanted as usize);
        assert!(read.iter().map(|(key, value)| (key, value)).eq(right), "{wanted} from {start}: {read:?}");
        asked
    }
}

#[test]
fn a_scan_reads_the_wanted_records_in_order_whatever_the_regions() {
    for regions in [0, 1, 2, 6, 16, 300] {
        let table = Table::new(regions, 700, usize::MAX);
        for start in ["", "0000", "0350", "0350x", "0640", "0699", "07"] {
            for wanted in [1, 2, 7, 100] {
                table.check(start, wanted);
            }
        }
    }
}

#[test]
fn many_regions_are_asked_in_turn() {
    let table = Table::new(40, 100, usize::MAX);
    let mut scan = Scan::new(Bytes::new(), 30);
    for asked in [16, 16, 8] {
        let ops = scan.next(&table.regions);
        assert_eq!(ops.len(), asked);
        let read = scan.answered(table.answer(ops), &table.regions).expect("nothing fails");
        assert_eq!(read.is_empty(), asked == 16, "a page is complete with the last region");
    }
}

#[test]
fn every_region_is_asked_at_once_and_seldom_twice() {
    let table = Table::new(16, 700, usize::MAX);
    let ops = Scan::new(Bytes::new(), 100).next(&table.regions);
    let asked = ops.iter().map(|op| match op {
        Op::In { region, op: RangeOp::Scan(range) } => (*region, range.limit),
        other => panic!("{other:?}"),
    });
    assert!(asked.eq(table.regions.iter().map(|region| (*region, 14))), "{ops:?}");
    let rounds: Vec<usize> = (0..600).map(|start| table.check(&format!("{start:04}"), 100)).collect();
    assert!(rounds.iter().sum::<usize>() < 700, "{rounds:?}");
    assert!(rounds.iter().collect::<HashSet<_>>().len() > 1, "some need another page");
}

#[test]
fn where_answers_have_little_room_fewer_regions_are_asked_at_once() {
    for (regions, room) in [(0, 3), (6, 1), (16, 2), (300, 5)] {
        let table = Table::new(regions, 200, room);
        table.check("0100", 20);
        table.check("0195", 20);
    }
}

#[test]
fn a_scan_fails_with_any_of_its_operations() {
    let table = Table::new(3, 20, usize::MAX);
    let failed = |result| {
        let mut scan = Scan::new(Bytes::new(), 10);
        let mut results = table.answer(scan.next(&table.regions));
        results[1] = result;
        scan.answered(results, &table.regions).expect_err("one of three failed")
    };
    let error = OpError::Recovering(RegionId(2));
    assert_eq!(failed(OpResult::Error(error.clone())), error);
    assert!(matches!(failed(OpResult::Done), OpError::Invalid(_)));
}

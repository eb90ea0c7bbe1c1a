//! Scans lead to merges of levels, and to values in key order, when they have paid for it; not before.

use super::Region;
use super::accounts_tests::{Model, compact, open_in, options, write};
use crate::scan::ScanBounds;
use crate::volume::VolumeOptions;
use leeward_format::cluster::{Placement, TableOptions};
use leeward_format::manifest::SegmentKind;
use leeward_format::{LogKind, UnixMs};
use leeward_platform::{Rng, SimDisk};
use std::sync::Arc;

const SEGMENT_BYTES: usize = 32 << 10;
/// Keys of the model.
const KEYS: u64 = 6000;

/// A region whose cache holds hardly anything.
fn open(disk: &SimDisk, placement: Placement) -> Arc<Region> {
    let volume = VolumeOptions { segment_bytes: SEGMENT_BYTES, memory_budget: 1 << 20, ..VolumeOptions::default() };
    let table = TableOptions { l1_runs: 8, l0_bytes: 256 << 10, max_space_percent: 115, ..options(placement) };
    open_in(disk, volume, table)
}

/// Writes each key once, in random order.
fn fill(region: &Region) -> Model {
    let mut model = Model::new();
    let mut order: Vec<u64> = (0..KEYS).collect();
    Rng::new(4).shuffle(&mut order);
    for n in order {
        let (key, value) = (format!("key{n:05}").into_bytes(), vec![n as u8; 1000]);
        write(region, &key, Some(&value), None);
        model.insert(key, (value, None));
    }
    region.freeze();
    while compact(region) {}
    model
}

/// Scans of 50 pairs each from evenly spread keys, whose pairs are checked.
fn scan(region: &Region, model: &Model) {
    let snapshot = region.snapshot(region.last_lsn(), UnixMs(0));
    for n in (0..KEYS).step_by(20) {
        let start = format!("key{n:05}").into_bytes();
        let bounds = ScanBounds { start: start.clone().into(), limit: Some(50), ..ScanBounds::default() };
        let mut cursor = snapshot.cursor(bounds);
        for (key, (value, _)) in model.range(start..).take(50) {
            let found = cursor.next().expect("a sound disk").expect("a pair is next");
            assert_eq!((&found.key[..], &found.value[..]), (&key[..], &value[..]));
        }
    }
}

/// So many rounds of scans, and all compactions after each.
fn scan_and_compact(region: &Region, model: &Model, rounds: usize) {
    for _ in 0..rounds {
        scan(region, model);
        while compact(region) {}
    }
}

/// What scans have paid until now for levels above the last one, and for scattered values.
fn paid(region: &Region) -> (u64, u64) {
    let view = region.view.load();
    let costs = &view.version.reads().scan_costs;
    (view.version.positions().iter().map(|position| costs.level(*position)).max().unwrap_or(0), costs.values())
}

fn above_the_last(region: &Region) -> u64 {
    let view = region.view.load();
    let (_, above) = view.version.filled().split_last().expect("there is a level");
    above.iter().map(|level| level.bytes()).sum()
}

#[test]
fn scans_merge_levels_that_they_pay_for() {
    let region = open(&SimDisk::new(1, u64::MAX), Placement::IN_PLACE);
    let mut model = fill(&region);
    // Some newer pairs, which are a level of their own.
    for (key, (value, _)) in model.iter_mut().step_by(10) {
        value.fill(1);
        write(&region, key, Some(&*value), None);
    }
    region.freeze();
    while compact(&region) {}
    let before = above_the_last(&region);
    scan(&region, &model);
    assert!(!compact(&region), "a few scans have not paid for a merge: {:?}", paid(&region));
    let rounds = (0..150).take_while(|_| {
        scan(&region, &model);
        !compact(&region)
    });
    assert!(rounds.count() < 140, "they pay in the end");
    while compact(&region) {}
    let after = above_the_last(&region);
    assert!(after < before && after * 2 > before, "a part is merged at a time: {after} bytes are left of {before}");
    scan_and_compact(&region, &model, 150);
    let after = above_the_last(&region);
    assert!(after * 2 < before, "{after} bytes are above the last level, which were {before}");
    scan(&region, &model);
}

#[test]
fn scans_bring_values_into_key_order_within_the_space_of_the_table() {
    let region = open(&SimDisk::new(1, u64::MAX), Placement::SEPARATED);
    let model = fill(&region);
    let unordered = || {
        let of = |state: &leeward_format::manifest::RegionState| {
            let large = state.segments.values().filter(|segment| segment.kind == SegmentKind::Log(LogKind::Large));
            large.filter(|segment| !segment.is_run()).count()
        };
        region.with_ledger(|ledger| of(ledger.state)).expect("it serves")
    };
    let before = unordered();
    assert!(before > 20);
    let one_scan = |region: &Region| {
        let paid_before = paid(region).1;
        scan(region, &model);
        paid(region).1 - paid_before
    };
    let scattered = one_scan(&region);
    assert!(!compact(&region), "a few scans have not paid for the order: {:?}", paid(&region));
    let mut most_space = 0;
    for _ in 0..100 {
        scan(&region, &model);
        while compact(&region) {
            let log = region.stats().large_log;
            most_space = most_space.max(log.space_bytes * 100 / log.live_bytes);
        }
    }
    assert!(unordered() * 16 < before, "{} of {before} segments are still in the order of the writes", unordered());
    assert!(most_space <= 115, "{most_space} % of the live bytes");
    let ordered = one_scan(&region);
    assert!(ordered * 8 < scattered, "{ordered} bytes are scattered, which were {scattered}");
    let moved = region.stats().compactions.relocated_bytes;
    scan_and_compact(&region, &model, 40);
    assert_eq!(region.stats().compactions.relocated_bytes, moved, "what is in order stays where it is");
}

/// A segment that a checkpoint has would stay: to move its values would only take space.
#[test]
fn values_that_a_checkpoint_has_stay_where_they_are() {
    let region = open(&SimDisk::new(1, u64::MAX), Placement::SEPARATED);
    let model = fill(&region);
    region.checkpoint("before").expect("a sound disk");
    scan_and_compact(&region, &model, 40);
    assert!(region.stats().compactions.relocated_bytes < 500_000, "{:?}", region.stats().compactions);
    region.drop_checkpoint("before").expect("it is there");
    scan_and_compact(&region, &model, 40);
    assert!(region.stats().compactions.relocated_bytes > 2_000_000, "{:?}", region.stats().compactions);
}

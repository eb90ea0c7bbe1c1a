//! Crash tests: the process or the machine dies at every single operation on the device, and everything guaranteed
//! survives.
//!
//! The guarantee: after `kill -9`, everything up to the last `write_tails` is there; after a power loss, everything up
//! to the last `sync_tails` or install. In both cases a prefix of the history remains that ends with a whole batch, and
//! recovery never takes a tear for damage. A failed sync loses what a power loss would: the next process does not read
//! data that only the page cache has.

use crate::support::{History, assert_holds, choose_options, compact, end_process, flush, open_region};
use leeward_engine::Error;
use leeward_platform::disk::{Fault, FaultPlan};
use leeward_platform::{Rng, SimDisk};

const DISK_BYTES: u64 = 256 << 20;

/// Opens the region and works on it until a fault ends it.
fn work(disk: &SimDisk, rng: &mut Rng, history: &mut History, batches: u64) -> Result<(), Error> {
    let region = open_region(disk)?;
    history.cut(region.last_lsn());
    for _ in 0..batches {
        history.append(&region, rng)?;
        if !rng.one_in(4) {
            history.write(&region)?;
        }
        match rng.below(12) {
            0 => history.sync(&region)?,
            1 => flush(&region)?,
            2 => drop(compact(&region)?),
            3 if rng.one_in(8) => region.seal_tails(),
            _ => {}
        }
    }
    Ok(())
}

/// A region recovers to a prefix of the history that reaches at least to `guaranteed`.
fn check(disk: &SimDisk, history: &mut History, guaranteed: u64, context: &str) {
    let region = open_region(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
    let last = region.last_lsn();
    assert!(last.0 >= guaranteed && last.0 <= history.last(), "{context}: {last} of {guaranteed}..={}", history.last());
    history.cut(last);
    history.assert_requests(&region, context);
    assert_holds(&region, &history.model(last), context);
}

/// A disk that maps files, or not.
fn disk(seed: u64, maps: bool) -> SimDisk {
    let disk = SimDisk::new(seed, DISK_BYTES);
    disk.set_maps(maps);
    disk
}

/// A history of so many batches.
pub(crate) fn crash_at_every_operation(seed: u64, batches: u64, power: bool) {
    choose_options(&mut Rng::new(seed));
    for maps in [false, true] {
        crash_everywhere(seed, batches, power, maps);
    }
}

fn crash_everywhere(seed: u64, batches: u64, power: bool, maps: bool) {
    let total = {
        let (disk, mut rng) = (disk(seed, maps), Rng::new(seed));
        work(&disk, &mut rng, &mut History::with_refusals(), batches).expect("no faults yet");
        disk.ops()
    };
    assert!(total > 300, "{total} operations prove little");
    for op in 1..=total {
        let context = format!("seed {seed}, operation {op} of {total}, power loss: {power}, mapped: {maps}");
        let (disk, mut rng) = (disk(seed, maps), Rng::new(seed));
        let mut history = History::with_refusals();
        disk.set_faults(FaultPlan { at: vec![(op, Fault::Kill)], ..FaultPlan::default() });
        assert!(work(&disk, &mut rng, &mut history, batches).is_err(), "{context}: the fault was not met");
        disk.set_faults(FaultPlan::default());
        if power {
            disk.lose_power(&mut Rng::new(seed ^ op));
        }
        let guaranteed = if power { history.synced } else { history.written };
        check(&disk, &mut history, guaranteed, &context);
        // The history continues from there.
        work(&disk, &mut rng, &mut history, 30).unwrap_or_else(|error| panic!("{context}: {error}"));
        let written = history.written;
        check(&disk, &mut history, written, &context);
    }
}

#[test]
fn kill_at_every_operation() {
    crash_at_every_operation(1, 400, false);
}

#[test]
fn power_loss_at_every_operation() {
    // So little memory that 200 batches are 700 operations, compactions down to the last level among them.
    crash_at_every_operation(2, 200, true);
}

#[test]
fn many_crashes_in_a_row() {
    for seed in 0..40 {
        let (disk, mut rng) = (disk(seed, seed % 2 == 0), Rng::new(seed));
        choose_options(&mut Rng::new(seed));
        let mut history = History::with_refusals();
        for round in 0..12 {
            let context = format!("seed {seed}, round {round}");
            let at = 1 + rng.below(1200);
            disk.set_faults(FaultPlan { at: vec![(at, Fault::Kill)], ..FaultPlan::default() });
            let batches = rng.below(1500);
            let died = work(&disk, &mut rng, &mut history, batches).is_err();
            let guaranteed = end_process(&disk, &mut rng, &history, died);
            check(&disk, &mut history, guaranteed, &context);
        }
    }
}

#[test]
fn failed_operations_end_the_volume_and_lose_nothing_that_no_failed_sync_was_to_keep() {
    for seed in 0..30 {
        let (disk, mut rng) = (disk(seed, seed % 2 == 0), Rng::new(seed));
        choose_options(&mut Rng::new(seed));
        let mut history = History::with_refusals();
        for round in 0..5 {
            disk.set_faults(FaultPlan { write_errors_one_in: 300, ..FaultPlan::default() });
            let failed = work(&disk, &mut rng, &mut history, 600);
            disk.set_faults(FaultPlan::default());
            disk.kill_process();
            let is_sync = matches!(failed, Err(Error::Io { action: "sync", .. }));
            let guaranteed = if is_sync { history.synced } else { history.written };
            check(&disk, &mut history, guaranteed, &format!("seed {seed}, round {round}, after {failed:?}"));
        }
    }
}

//! The memory budget holds: the test measures the memory of the process while stores of one region and of a thousand
//! are written to, compacted, read and scanned.

mod process;

use leeward_engine::compaction::{Compaction, Step};
use leeward_engine::embedded::{Db, DbOptions};
use leeward_engine::{AppendError, Reach, Region, Replica, ScanBounds, VOLUME_NAME, Volume, VolumeOptions, Write};
use leeward_format::cluster::TableOptions;
use leeward_format::{Epoch, LogKind, RegionId, UnixMs, VolumeId};
use leeward_platform::{Disk, RealDisk, Rng};
use process::{MIB, memory_bytes};
use std::sync::Arc;

/// Peak memory of the process during `work`, beyond its memory before, compared with the budget.
fn check(budget: usize, what: &str, work: impl FnOnce()) {
    let before = memory_bytes();
    let peak = process::watch(|peak| {
        work();
        peak.take()
    });
    let peak = peak.saturating_sub(before);
    println!("{what}: {} KiB of {} KiB", peak >> 10, budget >> 10);
    assert!(peak <= budget / 10 * 11, "{what}: {} KiB of a budget of {} KiB", peak >> 10, budget >> 10);
    assert!(peak >= budget / 2, "{what}: {} KiB of a budget of {} KiB: nothing is shown", peak >> 10, budget >> 10);
}

fn value(rng: &mut Rng) -> Vec<u8> {
    let bytes = [20, 20, 20, 100, 100, 1200][rng.index(6)];
    let mut value = vec![0; bytes];
    rng.fill(&mut value);
    value
}

fn key(rng: &mut Rng, keys: u64) -> [u8; 16] {
    let mut key = *b"key-000000000000";
    key[4..].copy_from_slice(format!("{:012}", rng.below(keys)).as_bytes());
    key
}

/// One test for both, because it measures the memory of the process.
#[test]
fn what_a_process_has_stays_within_the_budget() {
    one_region(24 * MIB);
    a_thousand_regions(48 * MIB);
}

fn one_region(budget: usize) {
    let directory = tempfile::tempdir().unwrap();
    check(budget, "one region", || {
        let volume = VolumeOptions { memory_budget: budget as u64, ..VolumeOptions::default() };
        // L0s that would not fit.
        let options = DbOptions { volume, l0_bytes: 8 << 20, growth_factor: 4, ..DbOptions::default() };
        let db = Db::open(directory.path(), options).unwrap();
        let mut rng = Rng::new(1);
        for round in 0..250_000 {
            db.put(&key(&mut rng, 200_000), &value(&mut rng)).unwrap();
            db.get(&key(&mut rng, 200_000)).unwrap();
            if round % 5_000 == 0 {
                let mut cursor =
                    db.scan(ScanBounds { start: key(&mut rng, 200_000).to_vec().into(), ..ScanBounds::default() });
                (0..500).for_each(|_| drop(cursor.next().unwrap()));
            }
        }
        let memory = db.stats().memory;
        assert!(memory.used <= memory.budget, "{memory:?}");
        assert!(db.stats().data.levels.iter().any(|level| level.entries > 0));
        db.close().unwrap();
    });
}

/// A small node: regions, and the compactions under way.
struct Many {
    regions: Vec<Arc<Region>>,
    running: Vec<(usize, Compaction)>,
    compactions: usize,
}

impl Many {
    fn open(volume: &Arc<Volume>, regions: u32) -> Many {
        let options = TableOptions { l0_bytes: 4 << 20, ..TableOptions::default() };
        let open = |id| Replica::create(volume, RegionId(id), options.clone()).unwrap().serve(Epoch(1)).unwrap();
        Many { regions: (1..=regions).map(open).collect(), running: Vec::new(), compactions: 0 }
    }

    fn put(&mut self, at: usize, key: &[u8], value: &[u8]) {
        loop {
            match self.regions[at].append(&[Write::put(key, value)]) {
                Ok(appended) => return self.regions[at].set_commit(appended.last),
                Err(AppendError::TailBusy(_)) => self.flush(at),
                Err(AppendError::L0Full) => self.compact(),
                Err(AppendError::Engine(error)) => panic!("{error}"),
            }
        }
    }

    fn flush(&self, at: usize) {
        let region = &self.regions[at];
        for log in LogKind::APPENDED {
            for tail in region.tails(log).iter().filter(|tail| tail.sealed()) {
                region.flush_tail(log, tail.index()).unwrap();
                region.release_tail(log, tail.index());
                region.allow_tails(log, tail.index() + 2);
            }
        }
    }

    /// Begins every compaction that is admitted, and runs one step of each.
    fn compact(&mut self) {
        for at in 0..self.regions.len() {
            if self.running.iter().all(|(running, _)| *running != at)
                && let Some(compaction) = self.regions[at].next_compaction(UnixMs(0))
            {
                self.running.push((at, compaction));
            }
        }
        let mut running = std::mem::take(&mut self.running);
        running.retain_mut(|(at, compaction)| match compaction.step().unwrap() {
            Step::Segment(_) => true,
            Step::Finished(done) => {
                self.regions[*at].install(&done).unwrap();
                self.flush(*at);
                self.compactions += 1;
                false
            }
        });
        self.running = running;
    }
}

fn a_thousand_regions(budget: usize) {
    let directory = tempfile::tempdir().unwrap();
    check(budget, "a thousand regions", || {
        let file = RealDisk::open(directory.path()).unwrap().open(VOLUME_NAME).unwrap();
        let options = VolumeOptions { segment_bytes: 256 << 10, memory_budget: budget as u64, ..Default::default() };
        let (volume, _) = Volume::open(file, VolumeId(1), options).unwrap();
        let mut many = Many::open(&volume, 1000);
        let mut rng = Rng::new(2);
        for round in 0..300_000u32 {
            // Some regions are busy, most are not.
            let at = if rng.one_in(3) { rng.index(1000) } else { rng.index(50) };
            many.put(at, &key(&mut rng, 4000), &value(&mut rng));
            let read = &many.regions[rng.index(50)];
            read.get(&key(&mut rng, 4000), Reach::Device, &|| UnixMs(0)).unwrap();
            if round % 500 == 0 {
                many.compact();
            }
        }
        let memory = volume.memory().status();
        println!("{memory:?}, {} compactions", many.compactions);
        assert!(memory.used <= memory.budget / 10 * 11, "{memory:?}");
        assert!(many.compactions > 50);
    });
}

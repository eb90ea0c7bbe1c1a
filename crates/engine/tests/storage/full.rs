//! Full volumes: deletes are taken, and give room to writes again. One thread does everything, so a seed repeats its run.

use crate::support::{Model, assert_holds, choose_options, compact, flush, open_region, pass};
use leeward_engine::{AppendError, Error, Region, Write};
use leeward_platform::{Rng, SimDisk};

/// 256 segments.
const DISK_BYTES: u64 = 8 << 20;
/// Attempts to make room for one write, a second apart.
const MOST_ATTEMPTS: u32 = 500;
/// Attempts after which a volume is full.
const FULL_AFTER: u32 = 12;

/// Does what the threads of a store do, as far as there is room.
fn tend(region: &Region) {
    region.write_tails().expect("tails have room");
    region.set_commit(region.last_lsn());
    for result in [flush(region), compact(region).map(drop)] {
        assert!(matches!(result, Ok(()) | Err(Error::NoSpace { .. })), "{result:?}");
    }
}

/// Appends a write, with what makes room for a tail and an L0; `false` without room.
fn append(region: &Region, write: Write<'_>) -> bool {
    for _ in 0..20 {
        match region.append(&[write]) {
            Ok(_) => return true,
            Err(AppendError::Engine(Error::NoSpace { .. })) => return false,
            Err(AppendError::Engine(error)) => panic!("{error}"),
            Err(AppendError::TailBusy(_) | AppendError::L0Full) => tend(region),
        }
    }
    false
}

/// Appends a write, making room for it.
fn append_with_room(region: &Region, write: Write<'_>, what: &str) {
    let mut attempts = 0;
    while !append(region, write) {
        attempts += 1;
        assert!(attempts < MOST_ATTEMPTS, "{what}: {:?}", region.volume().why_full());
        tend(region);
        pass(1000);
    }
}

/// Puts pairs until none is taken, whatever the region does about it.
fn fill(region: &Region, rng: &mut Rng, longest: u64, model: &mut Model) {
    let mut refused = 0;
    while refused < FULL_AFTER {
        let key = format!("key{:06}", rng.below(1_000_000)).into_bytes();
        let mut value = vec![0; rng.below(longest) as usize];
        rng.fill(&mut value);
        if append(region, Write::put(&key, &value)) {
            model.insert(key, value);
            refused = 0;
        } else {
            refused += 1;
            tend(region);
            pass(1000);
        }
    }
}

/// Fills volumes up, and deletes all that they hold, twice.
pub(crate) fn deletes_make_room(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut rng = Rng::new(seed);
        choose_options(&mut rng);
        let disk = SimDisk::new(seed, DISK_BYTES);
        let region = open_region(&disk).expect("an empty disk");
        let longest = [40, 180, 2000, 6000][(seed % 4) as usize];
        let mut model = Model::new();
        for round in 0..2 {
            let context = format!("seed {seed}, round {round}");
            fill(&region, &mut rng, longest, &mut model);
            assert!(model.len() > 500, "{context}: {} pairs fill it", model.len());
            assert_holds(&region, &model, &context);
            for key in std::mem::take(&mut model).keys() {
                append_with_room(&region, Write::delete(key), &context);
            }
            append_with_room(&region, Write::put(b"more", &[0; 40]), &context);
            model.insert(b"more".to_vec(), vec![0; 40]);
        }
        assert_holds(&region, &model, &format!("seed {seed}"));
    }
}

#[test]
fn a_full_volume_is_emptied_by_deletes() {
    deletes_make_room(0..8);
}

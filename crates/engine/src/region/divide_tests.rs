//! What a division leaves in memory; and where a region is divided.

use super::Region;
use super::accounts_tests::{Model, compact, open_with, options, write};
use crate::version::{Lookup, Reach};
use leeward_format::cluster::{Placement, TableOptions};
use leeward_format::{RegionId, UnixMs};
use leeward_platform::{Rng, SimDisk};
use std::sync::Arc;

const CHILD: RegionId = RegionId(2);
const KEYS: u64 = 4000;

fn key(n: u64) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// A region with a large log in which every segment has values from all over, compacted.
fn filled(seed: u64, placement: Placement) -> (Arc<Region>, Model) {
    let (disk, mut model) = (SimDisk::new(seed, u64::MAX), Model::new());
    let region = open_with(&disk, options(placement));
    for n in 0..KEYS {
        let (key, value) = (key(n * 1_237 % KEYS), vec![n as u8; 1000]);
        write(&region, &key, Some(&value), None);
        model.insert(key, (value, None));
    }
    region.seal_tails();
    region.freeze();
    while compact(&region) {}
    (region, model)
}

/// What memory has of leaves that both sides share stays there for the one, whatever becomes of the other.
#[test]
fn a_side_that_goes_takes_nothing_from_the_cache_of_the_other() {
    let (region, model) = filled(4, Placement::IN_PLACE);
    let (count, missed) = (model.len(), |reach| {
        let found = |key: &Vec<u8>| region.get(key, reach, &|| UnixMs(0)).expect("a sound disk");
        model.keys().filter(|key| found(key) == Lookup::NotInMemory).count()
    });
    region.volume.cache().forget_records(region.view.load().version.reads().owner, &|_, _| true);
    assert_eq!(missed(Reach::Device), 0);
    let missed_before = missed(Reach::Memory);
    assert!(missed_before < count / 10, "{missed_before} of {count} keys are not in memory");
    let (copy, _) = region.divide(CHILD).expect("all is committed");
    let child = copy.serve(region.term().next()).expect("a sound disk");
    child.clone().into_replica().expect("a sound disk").destroy().expect("a sound disk");
    drop(child);
    region.volume.cache().forget_records(region.view.load().version.reads().owner, &|_, _| true);
    assert_eq!(missed(Reach::Memory), missed_before);
}

/// Bytes of a model's pairs below a key, and from it on.
fn halves(model: &Model, at: &[u8]) -> (usize, usize) {
    let bytes = |(key, (value, _)): (&Vec<u8>, &(Vec<u8>, _))| key.len() + value.len();
    let below = model.iter().filter(|(key, _)| &key[..] < at).map(bytes).sum();
    (below, model.iter().map(bytes).sum::<usize>() - below)
}

#[test]
fn the_middle_halves_the_bytes() {
    for seed in 0..8 {
        let (disk, mut rng, mut model) = (SimDisk::new(seed, u64::MAX), Rng::new(seed), Model::new());
        let table = TableOptions { l0_bytes: 24 << 10, ..options(Placement { medium_from: 60, large_from: 300 }) };
        let region = open_with(&disk, table);
        assert_eq!(region.middle(b"", None).expect("a sound disk"), None, "it is empty");
        let mut looked_at = 0;
        for n in 0..3000u64 {
            // Values of the last keys are ten times as large.
            let number = rng.below(4000);
            let value = vec![n as u8; if number < 3000 { 100 } else { 1000 }];
            write(&region, &key(number), Some(&value), None);
            model.insert(key(number), (value, None));
            let is_first = [1, 2, 50, 400].contains(&n);
            if !is_first && n % 700 != 699 {
                continue;
            }
            while compact(&region) {}
            let (first, end) = (rng.below(1000), 3200 + rng.below(800));
            for (start, end) in [(Vec::new(), None), (key(first), Some(key(end)))] {
                let inside = |at: &[u8]| at >= &start[..] && end.as_ref().is_none_or(|end| at < &end[..]);
                let found = region.middle(&start, end.as_deref()).expect("a sound disk");
                let part: Model =
                    model.iter().filter(|(key, _)| inside(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
                let Some(found) = found else {
                    assert!(part.len() < 3 || n < 50, "seed {seed}, {n}: {} keys without a middle", part.len());
                    continue;
                };
                assert!(found > start && inside(&found));
                let (below, above) = halves(&part, &found);
                let most = [20, 4, 2][usize::from(n > 2) + usize::from(n > 600)];
                assert!(below < most * above && above < most * below, "seed {seed}, {n}: {below} and {above} bytes");
                looked_at += 1;
            }
        }
        assert!(looked_at > 8, "{looked_at}");
        assert_eq!(region.middle(&key(0), Some(&key(1))).expect("a sound disk"), None, "one key");
    }
}

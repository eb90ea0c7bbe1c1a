//! Tests of moves of the manifest to its other zone: no edit waits for their syncs, and none is lost at any step.

use crate::volume::gate::Gate;
use crate::volume::tests::{REGION, SEGMENT_BYTES, add, ids};
use crate::volume::{Durability, Owner, Volume, VolumeOptions};
use leeward_format::VolumeId;
use leeward_format::cluster::TableOptions;
use leeward_format::manifest::RegionState;
use leeward_platform::{Disk, Rng, SimDisk};
use std::sync::Arc;
use std::thread;

fn open(disk: &SimDisk) -> (Arc<Volume>, Owner, Arc<Gate>) {
    let gate = Gate::new(disk.open("volume").unwrap());
    let options = VolumeOptions { segment_bytes: SEGMENT_BYTES, ..VolumeOptions::default() };
    let (volume, _) = Volume::open(gate.clone(), VolumeId(7), options).unwrap();
    let state = || RegionState::new(REGION, TableOptions::default());
    let owner = volume.take_region(REGION).unwrap_or_else(|| volume.create_region(state()).unwrap());
    volume.sync().unwrap();
    (volume, owner, gate)
}

/// Edits that need not be durable, until the next one that must be begins a move. Returns the id of that.
fn fill(volume: &Volume, owner: &Owner) -> u64 {
    let mut id = 1;
    while !volume.manifest.lock().is_due() {
        add(volume, owner, id, Durability::Lazy).unwrap();
        id += 1;
    }
    id
}

/// At each of the three syncs edits go on. A power loss during the next sync loses none of them.
#[test]
fn edits_go_on_while_the_manifest_moves() {
    for (stop, seed) in (1..=4u64).flat_map(|stop| (0..8).map(move |seed| (stop, seed))) {
        let disk = SimDisk::new(seed, 1 << 30);
        let (volume, owner, gate) = open(&disk);
        let first = fill(&volume, &owner);
        let (zone, before) = (volume.manifest.lock().current(), gate.close());
        let acknowledged = thread::scope(|scope| {
            let mover = scope.spawn(|| add(&volume, &owner, first, Durability::Synced));
            for number in 1..=stop.min(3) {
                gate.until_begun(before + number);
                assert_eq!(volume.manifest.lock().current(), zone);
                let lazy = || add(&volume, &owner, first + number, Durability::Lazy);
                gate.must_return("a lazy edit", lazy).unwrap();
                if number < stop {
                    gate.let_one_end();
                }
            }
            if stop < 4 {
                disk.lose_power(&mut Rng::new(seed));
                gate.open();
                assert!(mover.join().unwrap().is_err(), "the process is dead");
                // What was written while the last sync was held that ended.
                return first + stop - 1;
            }
            mover.join().unwrap().unwrap();
            assert_ne!(volume.manifest.lock().current(), zone);
            gate.open();
            add(&volume, &owner, first + 4, Durability::Synced).unwrap();
            disk.lose_power(&mut Rng::new(seed));
            first + 4
        });
        let (volume, owner, _) = open(&disk);
        let found = ids(&volume, &owner);
        let last = found.last().copied().unwrap_or(0);
        assert!(found.iter().copied().eq(1..=last), "stop {stop}, seed {seed}: not the first of them: {found:?}");
        assert!(stop == 1 || last >= acknowledged, "stop {stop}, seed {seed}: {last} of {acknowledged}");
        add(&volume, &owner, last + 1, Durability::Synced).unwrap();
    }
}

/// An edit that must be durable at once, during a move, is so in whichever zone counts afterwards.
#[test]
fn what_is_made_durable_during_a_move_stays() {
    for seed in 0..40 {
        let disk = SimDisk::new(seed, 1 << 30);
        let (volume, owner, gate) = open(&disk);
        let first = fill(&volume, &owner);
        let before = gate.close();
        let mut rng = Rng::new(seed);
        let acknowledged = thread::scope(|scope| {
            let mover = scope.spawn(|| add(&volume, &owner, first, Durability::Synced));
            gate.until_begun(before + 1);
            let other = scope.spawn(|| add(&volume, &owner, first + 1, Durability::Synced));
            for _ in 0..rng.below(6) {
                gate.let_one_end();
                thread::yield_now();
            }
            disk.lose_power(&mut rng);
            gate.open();
            let (moved, synced) = (mover.join().unwrap().is_ok(), other.join().unwrap().is_ok());
            if synced {
                first + 1
            } else if moved {
                first
            } else {
                0
            }
        });
        let (volume, owner, _) = open(&disk);
        let last = ids(&volume, &owner).last().copied().unwrap_or(0);
        assert!(last >= acknowledged, "seed {seed}: {last} of {acknowledged}");
    }
}

/// An edit for which the old zone has no room waits for the end of the move, and is executed then.
#[test]
fn an_edit_without_room_waits_for_the_move() {
    let disk = SimDisk::new(1, 1 << 30);
    let (volume, owner, gate) = open(&disk);
    let first = fill(&volume, &owner);
    let (zone, before) = (volume.manifest.lock().current(), gate.close());
    let mut id = first + 1;
    thread::scope(|scope| {
        let mover = scope.spawn(|| add(&volume, &owner, first, Durability::Synced));
        gate.until_begun(before + 1);
        while volume.manifest.lock().room() >= 256 {
            add(&volume, &owner, id, Durability::Lazy).unwrap();
            id += 1;
        }
        let late = scope.spawn(|| (id..id + 20).try_for_each(|id| add(&volume, &owner, id, Durability::Lazy)));
        thread::yield_now();
        assert_eq!(volume.manifest.lock().current(), zone);
        gate.open();
        mover.join().unwrap().unwrap();
        late.join().unwrap().unwrap();
    });
    assert_ne!(volume.manifest.lock().current(), zone);
    volume.sync().unwrap();
    disk.lose_power(&mut Rng::new(1));
    assert_eq!(ids_of(&disk), (1..id + 20).collect::<Vec<u64>>());
}

fn ids_of(disk: &SimDisk) -> Vec<u64> {
    let (volume, owner, _) = open(disk);
    ids(&volume, &owner)
}

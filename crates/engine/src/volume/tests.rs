//! Tests of the volume: its manifest over crashes and damage, and its space.

use super::reserve::TailUse;
use super::*;
use leeward_format::cluster::{CopyIdentity, TableOptions};
use leeward_format::{ClusterId, Epoch, LogKind, Lsn, TableId};
use leeward_platform::disk::{Fault, FaultPlan};
use leeward_platform::{Disk, Rng, SimDisk};

pub(super) const REGION: RegionId = RegionId(1);
pub(super) const SEGMENT_BYTES: usize = 32 << 10;
const ZONE_BYTES: usize = ZONE_SEGMENTS as usize * SEGMENT_BYTES;

fn options() -> VolumeOptions {
    VolumeOptions { segment_bytes: SEGMENT_BYTES, memory_budget: 1 << 20, ..VolumeOptions::default() }
}

fn open(disk: &SimDisk) -> Result<Arc<Volume>> {
    Volume::open(disk.open("volume").unwrap(), VolumeId(1), options()).map(|(volume, _)| volume)
}

/// A volume with a region, owned.
fn open_owned(disk: &SimDisk) -> Result<(Arc<Volume>, Owner)> {
    let volume = open(disk)?;
    let owner = match volume.take_region(REGION) {
        Some(owner) => owner,
        None => volume.create_region(RegionState::new(REGION, TableOptions::default()))?,
    };
    Ok((volume, owner))
}

/// Adds a log segment; returns its id.
pub(super) fn add(volume: &Volume, owner: &Owner, id: u64, durability: Durability) -> Result<()> {
    let segment = volume.allocate(REGION)?;
    let id = SegmentId(id);
    let opened = Change::OpenLog { region: REGION, log: LogKind::Recovery, id, no: segment.no() };
    volume.commit(owner, vec![opened], &[(id, segment)], durability)
}

fn forget(volume: &Volume, owner: &Owner, id: u64) -> Result<()> {
    let gone = Change::Forget { region: REGION, ids: vec![SegmentId(id)] };
    volume.commit(owner, vec![gone], &[], Durability::Synced)
}

pub(super) fn ids(volume: &Volume, owner: &Owner) -> Vec<u64> {
    volume.with_region(owner, |state| state.segments.keys().map(|id| id.0).collect()).unwrap()
}

#[test]
fn each_open_is_a_new_incarnation() {
    let disk = SimDisk::new(1, 1 << 30);
    for count in 1..5 {
        assert_eq!(open(&disk).unwrap().incarnation().0 >> 32, count);
        disk.lose_power(&mut Rng::new(count));
    }
}

#[test]
fn a_crash_while_a_volume_is_made_leaves_nothing_in_the_way() {
    for op in 1..20 {
        for power in [false, true] {
            let disk = SimDisk::new(op, 1 << 30);
            disk.set_faults(FaultPlan { at: vec![(op, Fault::Kill)], ..FaultPlan::default() });
            let first = open_owned(&disk);
            disk.set_faults(FaultPlan::default());
            if power {
                disk.lose_power(&mut Rng::new(op));
            }
            drop(first);
            disk.kill_process();
            open_owned(&disk).unwrap_or_else(|error| panic!("operation {op}, power loss {power}: {error}"));
        }
    }
}

/// After a start it is not known which free segments have space: one without it does not hide those behind it.
#[test]
fn a_full_disk_gives_the_free_segments_that_have_space_after_a_start() {
    let disk = SimDisk::new(1, 1 << 30);
    let (volume, _owner) = open_owned(&disk).unwrap();
    let mut low: Vec<_> = (0..200).map(|_| volume.allocate(REGION).unwrap()).collect();
    let high = low.split_off(120);
    drop(low);
    volume.release_space();
    let with_space = (volume.usage().1 / SEGMENT_BYTES as u64) as usize;
    drop((high, volume));
    disk.kill_process();
    disk.leave_room(Some(0));
    let (volume, _owner) = open_owned(&disk).unwrap();
    let reserved = (volume.usage().0 / SEGMENT_BYTES as u64) as usize;
    let mut taken = Vec::new();
    // Those without space are looked at a few at a time.
    for _ in 0..300 {
        taken.extend(volume.allocate(REGION));
    }
    assert_eq!(taken.len(), with_space - reserved);
    assert!(matches!(volume.allocate(REGION), Err(Error::NoSpace { .. })));
    disk.leave_room(Some(SEGMENT_BYTES as u64));
    let last = volume.allocate(REGION);
    assert!(last.is_ok() && volume.allocate(REGION).is_err());
}

#[test]
fn edits_survive_many_checkpoints_and_a_crash_at_any_of_them() {
    let mut rng = Rng::new(2);
    let disk = SimDisk::new(2, 1 << 30);
    let mut live: Vec<u64> = Vec::new();
    let mut next = 1;
    for _ in 0..60 {
        let (volume, owner) = open_owned(&disk).unwrap();
        assert_eq!(ids(&volume, &owner), live);
        disk.set_faults(FaultPlan { at: vec![(1 + rng.below(500), Fault::Kill)], ..FaultPlan::default() });
        // The operation during which it died may or may not count.
        let doubtful = loop {
            if live.len() < 5 || (live.len() < 60 && rng.one_in(2)) {
                if add(&volume, &owner, next, Durability::Synced).is_err() {
                    break next;
                }
                live.push(next);
                next += 1;
            } else {
                let id = live[rng.index(live.len())];
                if forget(&volume, &owner, id).is_err() {
                    break id;
                }
                live.retain(|live| *live != id);
            }
        };
        disk.set_faults(FaultPlan::default());
        disk.lose_power(&mut rng);
        let (volume, owner) = open_owned(&disk).unwrap();
        let found = ids(&volume, &owner);
        let certain = |ids: &[u64]| ids.iter().copied().filter(|id| *id != doubtful).collect::<Vec<_>>();
        assert_eq!(certain(&found), certain(&live));
        live = found;
        next += 1;
        assert_eq!(volume.usage().0, (1 + 2 * ZONE_SEGMENTS as usize + live.len()) as u64 * SEGMENT_BYTES as u64);
        disk.kill_process();
    }
    assert!(next > 500, "both zones were filled several times");
}

#[test]
fn lazy_edits_are_durable_with_the_next_sync() {
    for seed in 0..50 {
        let disk = SimDisk::new(seed, 1 << 30);
        let (volume, owner) = open_owned(&disk).unwrap();
        (1..5).for_each(|id| add(&volume, &owner, id, Durability::Lazy).unwrap());
        volume.sync().unwrap();
        (5..9).for_each(|id| add(&volume, &owner, id, Durability::Lazy).unwrap());
        disk.lose_power(&mut Rng::new(seed));
        let (volume, owner) = open_owned(&disk).expect("a tear is no damage");
        let found = ids(&volume, &owner);
        assert!(found.len() >= 4 && found == (1..=found.len() as u64).collect::<Vec<_>>(), "{found:?}");
        // A later write over the torn entry does not revive the rest of it.
        add(&volume, &owner, 100, Durability::Synced).unwrap();
        disk.kill_process();
        let (volume, owner) = open_owned(&disk).unwrap();
        assert_eq!(ids(&volume, &owner), [found, vec![100]].concat());
    }
}

#[test]
fn damage_before_the_last_entry_is_an_error_that_says_where() {
    let disk = SimDisk::new(3, 1 << 30);
    let (volume, owner) = open_owned(&disk).unwrap();
    (1..10).for_each(|id| add(&volume, &owner, id, Durability::Synced).unwrap());
    disk.kill_process();
    let zone = SEGMENT_BYTES as u64;
    let frames = (0..40).map(|frame| zone + frame * 64);
    let contents = disk.contents("volume");
    let used: Vec<u64> = frames.filter(|at| contents[*at as usize..][..12].iter().any(|byte| *byte != 0)).collect();
    let (last, earlier) = used.split_last().unwrap();
    disk.flip_bit("volume", earlier[earlier.len() / 2] + 14, 0);
    let error = open(&disk).unwrap_err();
    let Error::Damaged { offset, .. } = &error else { panic!("{error}") };
    assert_eq!(*offset, earlier[earlier.len() / 2]);
    assert!(error.to_string().contains("cannot be read"), "{error}");
    disk.kill_process();
    disk.flip_bit("volume", earlier[earlier.len() / 2] + 14, 0);
    // The last entry might be a tear: it does not count, whatever damaged it.
    disk.flip_bit("volume", last + 14, 0);
    let (volume, owner) = open_owned(&disk).unwrap();
    assert_eq!(ids(&volume, &owner).len(), 8);
}

#[test]
fn a_lost_checkpoint_is_damage_and_not_an_older_state() {
    let disk = SimDisk::new(4, 1 << 30);
    let (volume, owner) = open_owned(&disk).unwrap();
    let mut id = 0;
    let current = || volume.manifest.lock().current();
    while current() == 0 {
        id += 1;
        add(&volume, &owner, id, Durability::Synced).unwrap();
        forget(&volume, &owner, id).unwrap();
    }
    disk.kill_process();
    disk.flip_bit("volume", (SEGMENT_BYTES + ZONE_BYTES + 14) as u64, 5);
    let error = open(&disk).unwrap_err().to_string();
    assert!(error.contains("the newest checkpoint cannot be read"), "{error}");
}

#[test]
fn segments_are_free_again_when_nothing_holds_them() {
    let disk = SimDisk::new(5, 1 << 30);
    let (volume, owner) = open_owned(&disk).unwrap();
    add(&volume, &owner, 1, Durability::Synced).unwrap();
    let pin = volume.segment(REGION, SegmentId(1)).unwrap();
    forget(&volume, &owner, 1).unwrap();
    let other = volume.allocate(REGION).unwrap();
    assert_ne!(other.no(), pin.no(), "a pinned segment is not reused");
    let (no, serial) = (pin.no(), pin.serial());
    drop(pin);
    let again = volume.allocate(REGION).unwrap();
    assert_eq!(again.no(), no);
    assert_ne!(again.serial(), serial);
}

/// A region that shares all segments of another.
fn share(volume: &Volume, from: RegionId, to: RegionId) -> Owner {
    let (state, segments) = volume.state_and_segments(from).unwrap();
    let owner = volume.create_region(RegionState::new(to, TableOptions::default())).unwrap();
    let state = RegionState { region: to, ..state };
    let held: Vec<_> = segments.into_iter().collect();
    volume.commit(&owner, vec![Change::Region(Box::new(state))], &held, Durability::Synced).unwrap();
    owner
}

#[test]
fn what_regions_share_is_free_when_none_of_them_names_it() {
    let disk = SimDisk::new(9, 1 << 30);
    let other = RegionId(2);
    let (volume, owner) = open_owned(&disk).unwrap();
    (1..4).for_each(|id| add(&volume, &owner, id, Durability::Synced).unwrap());
    let used = |volume: &Volume| volume.usage().0 / SEGMENT_BYTES as u64 - (1 + 2 * u64::from(ZONE_SEGMENTS));
    share(&volume, REGION, other);
    assert_eq!(used(&volume), 3);
    forget(&volume, &owner, 1).unwrap();
    assert_eq!(used(&volume), 3, "the other region has it");
    drop(volume);
    disk.kill_process();

    let (volume, owner) = open_owned(&disk).unwrap();
    assert_eq!((used(&volume), ids(&volume, &owner)), (3, vec![2, 3]));
    let one = |region| volume.segment(region, SegmentId(2)).unwrap();
    assert!(Arc::ptr_eq(&one(REGION), &one(other)) && one(other).origin() == REGION);
    let theirs = volume.take_region(other).unwrap();
    let gone = |id: u64| vec![Change::Forget { region: other, ids: vec![SegmentId(id)] }];
    volume.commit(&theirs, gone(1), &[], Durability::Synced).unwrap();
    assert_eq!(used(&volume), 2, "no region has it");
    volume.commit(&theirs, gone(2), &[], Durability::Synced).unwrap();
    assert_eq!(used(&volume), 2, "this region has it");
    volume.commit(&owner, vec![Change::Drop(REGION)], &[], Durability::Synced).unwrap();
    assert_eq!(used(&volume), 1, "the other region still has one");
    volume.commit(&theirs, vec![Change::Drop(other)], &[], Durability::Synced).unwrap();
    assert_eq!(used(&volume), 0);
}

#[test]
fn a_number_that_regions_mean_two_things_by_is_damage() {
    let disk = SimDisk::new(10, 1 << 30);
    let (volume, owner) = open_owned(&disk).unwrap();
    add(&volume, &owner, 1, Durability::Synced).unwrap();
    let (id, segment) = (SegmentId(1), volume.segment(REGION, SegmentId(1)).unwrap());
    let other = RegionId(2);
    let theirs = volume.create_region(RegionState::new(other, TableOptions::default())).unwrap();
    // Made for the region itself: another segment with the same id by chance.
    let opened = Change::OpenLog { region: other, log: LogKind::Recovery, id, no: segment.no() };
    volume.commit(&theirs, vec![opened], &[(id, segment)], Durability::Synced).unwrap();
    disk.kill_process();
    let error = open(&disk).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }) && error.to_string().contains("for two uses"), "{error}");
}

/// A segment that had the same id before is reused only when the manifest no longer names it, too.
#[test]
fn a_segment_that_is_replaced_is_given_back() {
    let disk = SimDisk::new(11, 1 << 30);
    let (volume, owner) = open_owned(&disk).unwrap();
    add(&volume, &owner, 1, Durability::Synced).unwrap();
    let used = volume.usage().0;
    let (mut state, _) = volume.state_and_segments(REGION).unwrap();
    let (id, before) = (SegmentId(1), volume.segment(REGION, SegmentId(1)).unwrap().no());
    let segment = volume.allocate(REGION).unwrap();
    state.segments.get_mut(&id).unwrap().no = segment.no();
    volume.commit(&owner, vec![Change::Region(Box::new(state))], &[(id, segment)], Durability::Lazy).unwrap();
    assert_eq!(volume.usage().0, used);
    assert_eq!(volume.allocate(REGION).unwrap().no(), before, "the edit is durable, lazy or not");
    disk.lose_power(&mut Rng::new(11));
    let (volume, _) = open_owned(&disk).unwrap();
    assert_ne!(volume.segment(REGION, id).unwrap().no(), before);
}

/// For any failed operation of the edit, also when the zone is full.
#[test]
fn what_an_edit_that_failed_let_go_of_is_never_used_again() {
    let mut failed = 0;
    for (filled, op) in [1, 3, 900].into_iter().flat_map(|filled| (1..8).map(move |op| (filled, op))) {
        for fault in [Fault::Fail, Fault::Writeback] {
            let disk = SimDisk::new(op, 1 << 30);
            let (volume, owner) = open_owned(&disk).unwrap();
            (1..=12).for_each(|id| add(&volume, &owner, id, Durability::Synced).unwrap());
            let (state, segments) = volume.state_and_segments(REGION).unwrap();
            drop(segments);
            let before = volume.manifest.lock().current();
            // Until the zone is full, or only a little.
            for epoch in (100..100 + filled).take_while(|_| volume.manifest.lock().room() > 200) {
                assert!(volume.identify(REGION, identity(epoch)).unwrap(), "without a sync, which would begin a move");
            }
            assert_eq!(volume.manifest.lock().current(), before);
            disk.set_faults(FaultPlan { at: vec![(op, fault)], ..FaultPlan::default() });
            let ids = (1..=10).map(SegmentId).collect();
            let gone = vec![Change::Forget { region: REGION, ids }];
            let answer = volume.commit(&owner, gone, &[], Durability::Lazy);
            let (used, released) = (volume.usage(), disk.contents("volume"));
            volume.release_space();
            if answer.is_ok() {
                assert!(used.0 < 22 * SEGMENT_BYTES as u64 && !volume.is_failed());
                continue;
            }
            failed += 1;
            assert!(volume.is_failed());
            assert!(matches!(volume.allocate(REGION), Err(Error::VolumeFailed { .. })));
            assert_eq!((volume.usage(), disk.contents("volume")), (used, released), "nothing is given back");
            disk.set_faults(FaultPlan::default());
            disk.lose_power(&mut Rng::new(op));
            let (volume, owner) = open_owned(&disk).unwrap();
            let found = volume.with_region(&owner, RegionState::clone).unwrap().segments;
            assert!(found == state.segments || found.len() == 2, "all of it or nothing: {found:?}");
        }
    }
    assert!(failed >= 12, "{failed} edits failed");
}

#[test]
fn the_capacity_is_kept_and_said() {
    let disk = SimDisk::new(6, 1 << 30);
    let capacity = 12 * SEGMENT_BYTES as u64;
    let options = VolumeOptions { capacity_bytes: Some(capacity), ..options() };
    let (volume, _) = Volume::open(disk.open("volume").unwrap(), VolumeId(1), options).unwrap();
    let taken: Vec<_> = std::iter::from_fn(|| volume.allocate(REGION).ok()).collect();
    assert_eq!(taken.len(), 3);
    let error = volume.allocate(REGION).unwrap_err().to_string();
    assert_eq!(error, format!("volume: no space: the volume is at its capacity of {capacity} bytes"));
    assert!(!volume.is_failed());
    assert_eq!((volume.capacity(), volume.why_full()), (Some(capacity), Some(error)));
    drop(taken);
    assert_eq!(volume.why_full(), None, "segments are free again");
    volume.allocate(REGION).unwrap();
}

/// A thread that finds no free segment grows the file, and other threads may take the new segments.
#[test]
fn segments_are_taken_by_many_at_a_time() {
    let disk = SimDisk::new(6, 1 << 30);
    let (volume, _) = Volume::open(disk.open("volume").unwrap(), VolumeId(1), options()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for i in 0..300 {
                    let taken: Vec<_> = (0..i % 7).map(|_| volume.allocate(REGION).unwrap()).collect();
                    volume.release_space();
                    drop(taken);
                    volume.release_space();
                }
            });
        }
    });
}

#[test]
fn a_failed_sync_ends_all_writing() {
    let disk = SimDisk::new(7, 1 << 30);
    let (volume, owner) = open_owned(&disk).unwrap();
    let segment = volume.allocate(REGION).unwrap();
    volume.write(segment.no(), 0, &[1; 4096]).unwrap();
    disk.set_faults(FaultPlan { at: vec![(1, Fault::Fail)], ..FaultPlan::default() });
    assert!(matches!(volume.sync(), Err(Error::Io { action: "sync", .. })));
    assert!(volume.is_failed());
    for refused in [volume.sync(), volume.write(segment.no(), 0, &[2; 4096]), forget(&volume, &owner, 1)] {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("takes no writes since an earlier failure"), "{error}");
    }
    let mut back = [0; 4096];
    volume.read(segment.no(), 0, &mut back).unwrap();
    assert_eq!(back, [1; 4096], "reads go on");
}

/// The page cache still has the data, also for the next process: no later sync would write it, and a power loss would
/// lose it.
#[test]
fn what_a_failed_sync_has_lost_is_not_read_by_the_next_process() {
    for fault in [Fault::Fail, Fault::Writeback] {
        let disk = SimDisk::new(9, 1 << 30);
        let (volume, owner) = open_owned(&disk).unwrap();
        let segment = volume.allocate(REGION).unwrap();
        volume.write(segment.no(), 0, &[1; 4096]).unwrap();
        volume.sync().unwrap();
        let op = if fault == Fault::Fail { 2 } else { 1 };
        disk.set_faults(FaultPlan { at: vec![(op, fault)], ..FaultPlan::default() });
        volume.write(segment.no(), 0, &[2; 4096]).unwrap();
        assert!(volume.sync().is_err());
        let no = segment.no();
        drop((segment, owner, volume));
        disk.kill_process();
        disk.set_faults(FaultPlan::default());
        let mut back = [0; 4096];
        let (volume, _) = open_owned(&disk).unwrap();
        volume.read(no, 0, &mut back).unwrap();
        assert_eq!(back, [1; 4096], "{fault:?}");
    }
}

#[test]
fn only_the_owner_changes_a_region() {
    let disk = SimDisk::new(8, 1 << 30);
    let (volume, old) = open_owned(&disk).unwrap();
    let new = volume.take_region(REGION).unwrap();
    assert!(matches!(add(&volume, &old, 1, Durability::Synced), Err(Error::Superseded(REGION))));
    assert!(volume.with_region(&old, |_| ()).is_err());
    add(&volume, &new, 1, Durability::Synced).unwrap();
    assert!(volume.create_region(RegionState::new(REGION, TableOptions::default())).is_err());
    let seal = Change::SealLog { region: REGION, id: SegmentId(9), bytes: 64, last_lsn: Lsn(1) };
    let nonsense = volume.commit(&new, vec![seal], &[], Durability::Synced);
    assert!(matches!(nonsense, Err(Error::Protocol { .. })));
}

pub(super) fn identity(epoch: u32) -> CopyIdentity {
    CopyIdentity {
        cluster: ClusterId(7),
        table_id: TableId(8),
        epoch: Epoch(epoch),
        start: "a".into(),
        end: Some("m".into()),
        inherited_below: SegmentId(4),
    }
}

#[test]
fn what_a_copy_belongs_to_survives_checkpoints_and_goes_with_the_copy() {
    let disk = SimDisk::new(7, 1 << 30);
    let identity = identity(3);
    {
        let (volume, owner) = open_owned(&disk).unwrap();
        assert!(!volume.identify(RegionId(99), identity.clone()).unwrap(), "there is no such copy");
        assert!(volume.identify(REGION, identity.clone()).unwrap());
        assert!(volume.identify(REGION, identity.clone()).unwrap());
        // So many edits that the manifest moves to its other zone and back.
        for id in 0..3000 {
            add(&volume, &owner, id, Durability::Lazy).unwrap();
            forget(&volume, &owner, id).unwrap();
        }
        assert_eq!(volume.identity(REGION), Some(identity.clone()));
    }
    let (volume, owner) = open_owned(&disk).unwrap();
    assert_eq!(volume.identity(REGION), Some(identity));
    volume.commit(&owner, vec![Change::Drop(REGION)], &[], Durability::Synced).unwrap();
    assert_eq!(volume.identity(REGION), None);
}

#[test]
fn a_compaction_that_found_no_room_is_followed_by_one_that_knows_of_the_shortage() {
    let disk = SimDisk::new(1, 1 << 30);
    let options = VolumeOptions { capacity_bytes: Some(256 * SEGMENT_BYTES as u64), ..options() };
    let (volume, _) = Volume::open(disk.open("volume").unwrap(), VolumeId(1), options).unwrap();
    let is_short = |region| volume.room_for_compaction(region).is_short;
    assert!(!is_short(REGION));
    volume.compacted(REGION, Err(&volume.no_room_to_compact()));
    assert!(is_short(REGION) && !is_short(RegionId(2)));
    // Writes may have room that a compaction has not.
    volume.writes_have_room(REGION);
    assert!(is_short(REGION));
    volume.compacted(REGION, Ok(()));
    assert!(!is_short(REGION));
}

/// A server without a copy asks for nothing, so nothing else would tell that its device has room again.
#[test]
fn a_refusal_is_forgotten_once_nobody_asks_and_the_device_has_room() {
    let disk = SimDisk::new(1, 1 << 30);
    let (volume, _) = Volume::open(disk.open("volume").unwrap(), VolumeId(1), options()).unwrap();
    disk.leave_room(Some(0));
    let mut held = Vec::new();
    while let Ok(segment) = volume.allocate_tail(REGION, TailUse::Writes) {
        held.push(segment);
    }
    volume.compacted(REGION, Err(&volume.no_room_to_compact()));
    let looks = |wanted: bool, when: &str| {
        volume.look_at_device();
        assert_eq!(volume.why_full().is_some(), wanted, "{when}");
    };
    looks(true, "somebody has asked since");
    looks(true, "the device is full");
    disk.leave_room(None);
    looks(false, "nobody has asked");
}

//! Tests of a manifest that outgrows its own place.

use crate::error::{Error, Result};
use crate::volume::tests::identity;
use crate::volume::{Durability, Owner, TailUse, Volume, VolumeOptions, ZONE_SEGMENTS};
use leeward_format::cluster::TableOptions;
use leeward_format::frame::{FrameKind, write_frame};
use leeward_format::manifest::{
    Change, Entry, EntryBody, FRAME_ALIGN, RegionState, SegmentKind, SegmentState, VolumeState,
};
use leeward_format::superblock::{OLDEST_VOLUME_VERSION, SUPERBLOCK_COPY_OFFSET, Superblock, VOLUME_VERSION};
use leeward_format::{Incarnation, LogKind, RegionId, SegmentId, SegmentNo, VolumeId};
use leeward_platform::disk::{Fault, FaultPlan};
use leeward_platform::{Disk, Rng, SimDisk};
use std::collections::BTreeSet;
use std::sync::Arc;

const SEGMENT_BYTES: usize = 32 << 10;
const ZONE_BYTES: usize = ZONE_SEGMENTS as usize * SEGMENT_BYTES;
const RESERVED: u64 = 1 + 2 * ZONE_SEGMENTS as u64;

fn options() -> VolumeOptions {
    VolumeOptions { segment_bytes: SEGMENT_BYTES, memory_budget: 1 << 20, ..VolumeOptions::default() }
}

fn open_with(disk: &SimDisk, options: VolumeOptions) -> Result<Arc<Volume>> {
    Volume::open(disk.open("volume").unwrap(), VolumeId(1), options).map(|(volume, _)| volume)
}

fn open(disk: &SimDisk) -> Result<Arc<Volume>> {
    open_with(disk, options())
}

fn own(volume: &Volume, region: RegionId) -> Result<Owner> {
    match volume.take_region(region) {
        Some(owner) => Ok(owner),
        None => volume.create_region(RegionState::new(region, TableOptions::default())),
    }
}

/// Names `count` segments in one edit; ids continue from `first`.
fn add(volume: &Volume, owner: &Owner, first: u64, count: u64) -> Result<()> {
    let named =
        (first..first + count).map(|id| Ok((SegmentId(id), volume.allocate_tail(owner.region, TailUse::Writes)?)));
    let named: Vec<_> = named.collect::<Result<_>>()?;
    let open = |(id, segment): &(SegmentId, Arc<crate::volume::Segment>)| Change::OpenLog {
        region: owner.region,
        log: LogKind::Recovery,
        id: *id,
        no: segment.no(),
    };
    volume.commit(owner, named.iter().map(open).collect(), &named, Durability::Synced)
}

/// A region of `count` segments, which no open examines.
fn add_leaves(volume: &Volume, region: RegionId, count: u64) -> Owner {
    let mut state = RegionState::new(region, TableOptions::default());
    let mut held = Vec::new();
    for id in (1..=count).map(|id| SegmentId((1 << 40) + id)) {
        let segment = volume.allocate_tail(region, TailUse::Writes).unwrap();
        let named = SegmentState::new(region, id, segment.no(), SegmentKind::Leaf);
        state.segments.insert(id, SegmentState { bytes: Some(0), ..named });
        held.push((id, segment));
    }
    volume.put_region(state, &held).unwrap()
}

fn forget(volume: &Volume, owner: &Owner, ids: Vec<u64>) -> Result<()> {
    let gone = Change::Forget { region: owner.region, ids: ids.into_iter().map(SegmentId).collect() };
    volume.commit(owner, vec![gone], &[], Durability::Synced)
}

fn ids(volume: &Volume, owner: &Owner) -> BTreeSet<u64> {
    volume.with_region(owner, |state| state.segments.keys().map(|id| id.0).collect()).unwrap()
}

/// A region that names all segments of another: a larger manifest, but no larger disk.
fn share(volume: &Volume, from: RegionId, to: RegionId) -> Result<Owner> {
    let (state, segments) = volume.state_and_segments(from).unwrap();
    let held: Vec<_> = segments.into_iter().collect();
    volume.put_region(RegionState { region: to, ..state }, &held)
}

/// Segments that the manifest has allocated.
fn taken(volume: &Volume) -> usize {
    volume.manifest.lock().segments().iter().map(Vec::len).sum()
}

#[test]
fn a_manifest_grows_far_beyond_its_own_place_and_shrinks_again() {
    let disk = SimDisk::new(1, 1 << 30);
    let volume = open(&disk).unwrap();
    let first = add_leaves(&volume, RegionId(1), 1000);
    assert_eq!(taken(&volume), 0, "a thousand names fit");
    // As many names as 16 GiB of such segments have: 120 times as many as once filled the manifest.
    let others: Vec<Owner> = (2..502).map(|to| share(&volume, RegionId(1), RegionId(to)).unwrap()).collect();
    assert!(!volume.is_failed());
    let most = taken(&volume);
    assert!(most * SEGMENT_BYTES > 20 * ZONE_BYTES, "{most} segments");
    drop(others);
    drop((volume, first));
    disk.lose_power(&mut Rng::new(1));

    let volume = open(&disk).unwrap();
    assert_eq!(volume.registry.lock().state.regions.len(), 501);
    assert_eq!(ids(&volume, &own(&volume, RegionId(501)).unwrap()).len(), 1000);
    for region in 2..502 {
        let owner = own(&volume, RegionId(region)).unwrap();
        volume.commit(&owner, vec![Change::Drop(RegionId(region))], &[], Durability::Synced).unwrap();
    }
    // The next checkpoints free the segments that they no longer need.
    let owner = own(&volume, RegionId(1)).unwrap();
    let switches = |volume: &Volume| volume.manifest.lock().current();
    for _ in 0..2 {
        let before = switches(&volume);
        let mut rounds = 0;
        while switches(&volume) == before {
            let change = Change::Region(Box::new(volume.with_region(&owner, RegionState::clone).unwrap()));
            volume.commit(&owner, vec![change], &[], Durability::Lazy).unwrap();
            rounds += 1;
            assert!(rounds < 10_000);
        }
    }
    assert_eq!(taken(&volume), 0);
    let of_leaves = 1000 * SegmentNo::LEAST_PART_BYTES as u64;
    assert_eq!(volume.usage().0, RESERVED * SEGMENT_BYTES as u64 + of_leaves, "empty ones take the smallest part");
}

/// Checkpoints cost in proportion to edits.
#[test]
fn a_checkpoint_comes_after_as_many_bytes_of_edits_as_it_has() {
    let disk = SimDisk::new(2, 1 << 30);
    let volume = open(&disk).unwrap();
    let first = own(&volume, RegionId(1)).unwrap();
    (0..4).for_each(|i| add(&volume, &first, 1 + i * 250, 250).unwrap());
    let _others: Vec<Owner> = (2..102).map(|to| share(&volume, RegionId(1), RegionId(to)).unwrap()).collect();
    let (written, edits) = (volume.counters().bytes_written, 40_000);
    for id in 0..edits / 2 {
        let segment = volume.allocate(RegionId(1)).unwrap();
        let id = SegmentId(10_000 + id);
        let opened = Change::OpenLog { region: RegionId(1), log: LogKind::Recovery, id, no: segment.no() };
        volume.commit(&first, vec![opened], &[(id, segment)], Durability::Lazy).unwrap();
        let gone = Change::Forget { region: RegionId(1), ids: vec![id] };
        volume.commit(&first, vec![gone], &[], Durability::Lazy).unwrap();
    }
    let (written, of_edits) = (volume.counters().bytes_written - written, edits * FRAME_ALIGN as u64);
    assert!(written < 4 * of_edits, "{written} bytes for {of_edits} of edits");
}

/// Has regions share all segments of the first one, until the current zone has data segments and is nearly so full that
/// the next checkpoint is due.
/// Returns the number of regions.
fn fill(volume: &Volume) -> u32 {
    add_leaves(volume, RegionId(1), 200);
    let (mut regions, mut before) = (1, 0);
    loop {
        regions += 1;
        share(volume, RegionId(1), RegionId(regions)).unwrap();
        let manifest = volume.manifest.lock();
        let (position, _) = manifest.extent();
        let step = position.saturating_sub(before);
        if !manifest.segments()[manifest.current()].is_empty() && step > 0 && position + 3 * step > manifest.due_at() {
            return regions;
        }
        before = position;
    }
}

/// The file of such a volume, and its number of regions.
fn filled() -> (Vec<u8>, u64) {
    let disk = SimDisk::new(3, 1 << 30);
    let volume = open(&disk).unwrap();
    let regions = fill(&volume);
    drop(volume);
    disk.kill_process();
    (disk.contents("volume"), u64::from(regions))
}

fn disk_with(contents: &[u8], seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed, 1 << 30);
    let file = disk.open("volume").unwrap();
    file.allocate(contents.len() as u64, &[SEGMENT_BYTES as u64]).unwrap();
    file.write_buffered_at(contents, 0).unwrap();
    file.sync().unwrap();
    disk
}

/// Opens the volume and has regions share the first one's segments, up to a switch. Returns how many were acknowledged
/// at least.
fn switch(disk: &SimDisk, regions: u64) -> (u64, Result<()>) {
    let mut certain = regions;
    let switched = open(disk).and_then(|volume| {
        let before = volume.manifest.lock().current();
        while volume.manifest.lock().current() == before {
            share(&volume, RegionId(1), RegionId(certain as u32 + 1))?;
            certain += 1;
        }
        Ok(())
    });
    (certain, switched)
}

/// Faults at each I/O of growing, switching zones and freeing segments, with and without a power loss.
#[test]
fn a_crash_at_any_io_of_a_switch_loses_nothing() {
    let (contents, regions) = filled();
    let disk = disk_with(&contents, 0);
    disk.set_faults(FaultPlan::default());
    switch(&disk, regions).1.unwrap();
    let ops = disk.ops();
    assert!(ops > 20, "{ops} operations");
    for op in 1..=ops {
        for (power, fault) in [(false, Fault::Kill), (true, Fault::Kill), (true, Fault::Fail)] {
            let disk = disk_with(&contents, op);
            disk.set_faults(FaultPlan { at: vec![(op, fault)], ..FaultPlan::default() });
            let (certain, outcome) = switch(&disk, regions);
            disk.set_faults(FaultPlan::default());
            match power {
                true => disk.lose_power(&mut Rng::new(op)),
                false => disk.kill_process(),
            }
            let volume =
                open(&disk).unwrap_or_else(|error| panic!("operation {op}, {fault:?}, power {power}: {error}"));
            let found = volume.registry.lock().state.regions.len() as u64;
            let expected = certain..=certain + u64::from(outcome.is_err());
            assert!(expected.contains(&found), "operation {op}, {fault:?}, power {power}: {found} of {expected:?}");
            // The volume continues to work.
            let owner = share(&volume, RegionId(1), RegionId(9999)).unwrap();
            assert_eq!(ids(&volume, &owner).len(), 200);
        }
    }
}

/// Against a model, through many switches, crashes and full disks.
#[test]
fn a_growing_manifest_says_what_a_model_says() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let disk = SimDisk::new(seed, 1 << 30);
        let mut model: Vec<BTreeSet<u64>> = vec![BTreeSet::new(); 40];
        let mut next = 1;
        for round in 0..12 {
            let volume = open(&disk).unwrap();
            let owners: Vec<Owner> = (0..40).map(|region| own(&volume, RegionId(region + 1)).unwrap()).collect();
            for (owner, expected) in owners.iter().zip(&model) {
                assert_eq!(ids(&volume, owner), *expected, "seed {seed}, round {round}");
            }
            let limit = rng.one_in(3).then(|| disk.contents("volume").len() as u64 + (20 << 15));
            disk.set_capacity(limit.unwrap_or(1 << 30));
            for _ in 0..400 {
                let at = rng.index(owners.len());
                if rng.one_in(3) && !model[at].is_empty() {
                    let gone: Vec<u64> = model[at].iter().copied().filter(|_| rng.one_in(2)).collect();
                    forget(&volume, &owners[at], gone.clone()).unwrap();
                    model[at].retain(|id| !gone.contains(id));
                } else {
                    let count = 1 + rng.below(30);
                    match add(&volume, &owners[at], next, count) {
                        Ok(()) => model[at].extend(next..next + count),
                        Err(error) => assert!(matches!(error, Error::NoSpace { .. }), "{error}"),
                    }
                    next += count;
                }
            }
            assert!(!volume.is_failed());
            disk.set_capacity(1 << 30);
            match rng.one_in(2) {
                true => disk.lose_power(&mut rng),
                false => disk.kill_process(),
            }
        }
    }
}

#[test]
fn without_space_writes_are_refused_and_go_on_when_there_is_some() {
    let disk = SimDisk::new(4, 1 << 30);
    let limited = |segments: u64| VolumeOptions { capacity_bytes: Some(segments * SEGMENT_BYTES as u64), ..options() };
    let volume = open_with(&disk, limited(RESERVED + 240)).unwrap();
    let owner = own(&volume, RegionId(1)).unwrap();
    add(&volume, &owner, 1, 200).unwrap();
    // Names that take no segments: only the manifest needs more space.
    let mut to = 1;
    let refused = loop {
        to += 1;
        match share(&volume, RegionId(1), RegionId(to)) {
            Ok(_) => assert!(to < 1000),
            Err(error) => break error,
        }
    };
    assert!(matches!(&refused, Error::NoSpace { .. }), "{refused}");
    // What is left has room for smaller ones.
    while own(&volume, RegionId(to + 1)).is_ok() {
        to += 1;
    }
    assert!(!volume.is_failed(), "the device is well");
    let error = volume.allocate_tail(RegionId(1), TailUse::Writes).unwrap_err().to_string();
    assert!(error.contains("no space") && error.contains("manifest"), "{error}");
    assert!(volume.why_full().is_some_and(|why| why.contains("manifest")));
    assert!(volume.is_short_of_space(RegionId(1)));
    // Edits that name fewer segments continue without limit, through checkpoints.
    let region = volume.take_region(RegionId(2)).unwrap();
    let before = volume.manifest.lock().current();
    let mut id = 1;
    while volume.manifest.lock().current() == before && id < 200 {
        forget(&volume, &region, vec![id]).unwrap();
        id += 1;
    }
    for gone in 2..=to {
        let Some(region) = volume.take_region(RegionId(gone)) else { continue };
        volume.commit(&region, vec![Change::Drop(RegionId(gone))], &[], Durability::Synced).unwrap();
    }
    // The next checkpoints free the segments of the manifest.
    let mut epoch = 0;
    for _ in 0..2 {
        let before = volume.manifest.lock().current();
        while volume.manifest.lock().current() == before {
            epoch += 1;
            volume.identify(RegionId(1), identity(epoch)).unwrap();
        }
    }
    assert_eq!(volume.why_full(), None);
    forget(&volume, &owner, (100..150).collect()).unwrap();
    add(&volume, &owner, 1000, 10).unwrap();
    drop((volume, owner));
    disk.lose_power(&mut Rng::new(4));
    let volume = open_with(&disk, limited(RESERVED + 240)).unwrap();
    assert_eq!(volume.registry.lock().state.regions.len(), 1);
}

/// Client data in a segment that the manifest continues in later is never read as an entry.
#[test]
fn bytes_of_clients_are_no_entries() {
    let disk = SimDisk::new(5, 1 << 30);
    let volume = open(&disk).unwrap();
    // Whichever number is next, one of these entries has it; and all say that they were durable.
    let mut forged = Vec::new();
    for at in 0..SEGMENT_BYTES / FRAME_ALIGN {
        let body = EntryBody::Edit(vec![Change::Drop(RegionId(1))]);
        let entry = Entry { sequence: 1 + at as u64, durable: 1 << 40, incarnation: Incarnation(2), body };
        let mut frame = Vec::new();
        write_frame(FrameKind::ManifestEdit, &entry, &mut frame);
        frame.resize(FRAME_ALIGN, 0);
        forged.extend(frame);
    }
    let segments: Vec<_> = (0..40).map(|_| volume.allocate(RegionId(1)).unwrap()).collect();
    for segment in &segments {
        volume.write(segment.no(), 0, &forged).unwrap();
    }
    volume.sync().unwrap();
    drop(segments);
    let to = fill(&volume);
    drop(volume);
    disk.lose_power(&mut Rng::new(5));
    let volume = open(&disk).unwrap();
    assert_eq!(volume.registry.lock().state.regions.len() as u32, to);
}

/// A flipped bit in anything but the last entry is an error, never an older state.
#[test]
fn damage_of_a_large_manifest_is_told() {
    let (contents, regions) = filled();
    let disk = disk_with(&contents, 6);
    let volume = open(&disk).unwrap();
    let (entries, own) = {
        let manifest = volume.manifest.lock();
        (manifest.entries().unwrap(), (SEGMENT_BYTES + (manifest.current() + 1) * ZONE_BYTES) as u64)
    };
    drop(volume);
    disk.kill_process();
    let (_, all_but_last) = entries.split_last().unwrap();
    assert!(all_but_last.iter().any(|(offset, ..)| *offset > own), "some are in segments of data");
    for (offset, bytes, _) in all_but_last {
        for at in [offset + 4, offset + *bytes as u64 / 2] {
            // A frame may continue elsewhere.
            if !(at < own && *offset < own || *offset > own) {
                continue;
            }
            disk.flip_bit("volume", at, 3);
            let error = open(&disk).expect_err("it is damaged");
            assert!(matches!(error, Error::Damaged { .. }), "byte {at}: {error}");
            disk.kill_process();
            disk.flip_bit("volume", at, 3);
        }
    }
    let volume = open(&disk).unwrap();
    assert_eq!(volume.registry.lock().state.regions.len() as u64, regions);
}

/// A `Zone` entry with impossible segments and a correct checksum.
#[test]
fn a_zone_in_impossible_segments_is_damage() {
    for segments in [vec![0], vec![3], vec![9, 9], vec![u32::MAX], vec![1 << 20], (9..4000).collect()] {
        let disk = SimDisk::new(7, 1 << 30);
        drop(open(&disk).unwrap());
        disk.kill_process();
        let body = EntryBody::Zone(segments.iter().copied().map(SegmentNo).collect());
        let entry = Entry { sequence: 1 << 40, durable: 0, incarnation: Incarnation(1), body };
        let file = disk.open("volume").unwrap();
        file.write_buffered_at(&framed(&entry), SEGMENT_BYTES as u64).unwrap();
        let error = open(&disk).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{segments:?}: {error}");
    }
}

fn framed(entry: &Entry) -> Vec<u8> {
    let mut frame = Vec::new();
    write_frame(FrameKind::ManifestEdit, entry, &mut frame);
    frame.resize(frame.len().next_multiple_of(FRAME_ALIGN), 0);
    frame
}

/// A volume of version 8 with a manifest too large for its zone, as that program left it: a checkpoint that nearly
/// fills its zone, and edits up to the one that would not fit. Returns the number of segments that it names.
fn overfull(disk: &SimDisk) -> u64 {
    let (region, incarnation) = (RegionId(1), Incarnation(1));
    let mut state = VolumeState { incarnation, ..VolumeState::default() };
    state.regions.insert(region, RegionState::new(region, TableOptions::default()).into());
    let mut next = 1;
    let open_log = |next: u64| Change::OpenLog {
        region,
        log: LogKind::Large,
        id: SegmentId((1 << 40) + next),
        no: SegmentNo((RESERVED + next - 1) as u32),
    };
    let checkpoint = |state: &VolumeState| {
        let body = EntryBody::Checkpoint(state.clone());
        framed(&Entry { sequence: 77, durable: 76, incarnation, body })
    };
    while checkpoint(&state).len() + 12 * FRAME_ALIGN <= ZONE_BYTES {
        let leaves = &mut Arc::make_mut(state.regions.get_mut(&region).expect("it was made")).segments;
        let (id, no) = (SegmentId((1 << 40) + next), SegmentNo((RESERVED + next - 1) as u32));
        leaves.insert(id, SegmentState { bytes: Some(0), ..SegmentState::new(region, id, no, SegmentKind::Leaf) });
        next += 1;
    }
    let file = disk.open("volume").unwrap();
    let mut zone = checkpoint(&state);
    let mut sequence = 78;
    loop {
        // An edit is smaller than what it adds to a checkpoint.
        let changes: Vec<Change> = (next..next + 40).map(open_log).collect();
        let body = EntryBody::Edit(changes.clone());
        let frame = framed(&Entry { sequence, durable: sequence - 1, incarnation, body });
        // Room kept for `Moved`.
        if zone.len() + frame.len() + 2 * FRAME_ALIGN > ZONE_BYTES {
            break;
        }
        zone.extend(frame);
        changes.iter().for_each(|change| state.apply(change).unwrap());
        (sequence, next) = (sequence + 1, next + 40);
    }
    assert!(checkpoint(&state).len() + 2 * FRAME_ALIGN > ZONE_BYTES, "no checkpoint of it fits");
    file.allocate((RESERVED + next) * SEGMENT_BYTES as u64, &[SEGMENT_BYTES as u64]).unwrap();
    let (segment_bytes, zone_segments) = (SEGMENT_BYTES as u32, ZONE_SEGMENTS);
    let superblock = Superblock {
        version: OLDEST_VOLUME_VERSION,
        segment_bytes,
        zone_segments,
        volume: VolumeId(1),
        nonce_bytes: 0,
    }
    .encode();
    file.write_buffered_at(&superblock, 0).unwrap();
    file.write_buffered_at(&superblock, SUPERBLOCK_COPY_OFFSET).unwrap();
    // The other zone: an older checkpoint, which ends with `Moved`.
    let older = EntryBody::Checkpoint(VolumeState::default());
    let mut other = framed(&Entry { sequence: 2, durable: 1, incarnation, body: older });
    other.extend(framed(&Entry { sequence: 3, durable: 1, incarnation, body: EntryBody::Moved }));
    file.write_buffered_at(&other, (SEGMENT_BYTES + ZONE_BYTES) as u64).unwrap();
    file.write_buffered_at(&zone, SEGMENT_BYTES as u64).unwrap();
    file.sync().unwrap();
    next - 1
}

#[test]
fn a_volume_of_version_8_that_has_outgrown_its_zone_opens_and_goes_on() {
    let disk = SimDisk::new(8, 1 << 30);
    let named = overfull(&disk);
    disk.lose_power(&mut Rng::new(8));
    let volume = open(&disk).unwrap();
    let owner = own(&volume, RegionId(1)).unwrap();
    assert_eq!(ids(&volume, &owner).len() as u64, named);
    assert!(taken(&volume) > 0);
    (0..20).for_each(|i| add(&volume, &owner, 1 + i * 100, 100).unwrap());
    drop((volume, owner));
    disk.lose_power(&mut Rng::new(9));
    let contents = disk.contents("volume");
    for at in [0, SUPERBLOCK_COPY_OFFSET as usize] {
        assert_eq!(Superblock::decode(&contents[at..]).unwrap().version, VOLUME_VERSION);
    }
    let volume = open(&disk).unwrap();
    assert_eq!(ids(&volume, &own(&volume, RegionId(1)).unwrap()).len() as u64, named + 2000);
}

#[test]
fn a_crash_at_any_io_of_the_upgrade_loses_nothing() {
    let disk = SimDisk::new(0, 1 << 30);
    let named = overfull(&disk);
    // The named segments have no contents.
    let mut contents = disk.contents("volume");
    contents.truncate(RESERVED as usize * SEGMENT_BYTES);
    let (mut op, mut struck) = (0, true);
    while struck {
        op += 1;
        struck = false;
        for power in [false, true] {
            let disk = disk_with(&contents, op);
            disk.set_faults(FaultPlan { at: vec![(op, Fault::Kill)], ..FaultPlan::default() });
            struck |= open(&disk).is_err();
            disk.set_faults(FaultPlan::default());
            match power {
                true => disk.lose_power(&mut Rng::new(op)),
                false => disk.kill_process(),
            }
            let volume = open(&disk).unwrap_or_else(|error| panic!("operation {op}, power {power}: {error}"));
            assert_eq!(ids(&volume, &own(&volume, RegionId(1)).unwrap()).len() as u64, named);
        }
    }
    assert!(op > 8, "{op} operations");
}

//! Split regions: both sides have all data, continue independently, and share only the segments that both name; at a
//! primary and at backups, whatever happens to process and machine.

use crate::backup::{Backup, connected, finish, serve, try_work, work};
use crate::support::{
    History, REGION, assert_holds, choose_backups, choose_options, compact, contents, encryption, flush, now,
    open_volume, table_options, volume_options,
};
use leeward_engine::image::Image;
use leeward_engine::{Error, Region, Replica, Volume, Write};
use leeward_format::cluster::BackupMode;
use leeward_format::{Epoch, Lsn, RegionId, SegmentId};
use leeward_platform::disk::{Fault, FaultPlan};
use leeward_platform::{Disk, Rng, SimDisk};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

const DISK_BYTES: u64 = 512 << 20;
pub(crate) const CHILD: RegionId = RegionId(2);
const GRANDCHILD: RegionId = RegionId(3);
/// Regions that a volume has at a time, at most.
const MOST_REGIONS: usize = 5;
/// Segments that a volume takes for itself.
const RESERVED: usize = 9;

/// Live segments, and the bytes that they take, according to the manifest.
fn named(disk: &SimDisk) -> Result<(usize, u64), Error> {
    let image = Image::read(disk.open("volume").expect("it is there"), Some(&encryption()))?.expect("a volume");
    let segment_bytes = volume_options().segment_bytes;
    let mut places = BTreeMap::new();
    for segment in image.state().regions.values().flat_map(|region| region.needed_segments()) {
        // A region may know less of a shared segment than another one.
        let bytes = segment.place(segment_bytes).bytes(segment_bytes) as u64;
        places.entry(segment.no).and_modify(|most: &mut u64| *most = bytes.max(*most)).or_insert(bytes);
    }
    Ok((places.len(), places.values().sum()))
}

/// No segment leaks, and no named segment is free.
fn assert_names(disk: &SimDisk, volume: &Volume, context: &str) {
    let named = named(disk).expect("a sound disk");
    assert_eq!(used(volume), named.1, "{context}: bytes in use");
}

/// Bytes in use, without the segments that a volume takes for itself.
fn used(volume: &Volume) -> u64 {
    volume.usage().0 - (RESERVED * volume.segment_bytes()) as u64
}

/// Regions on one volume, each with its history.
#[derive(Default)]
struct Regions {
    /// Existing regions.
    certain: BTreeMap<RegionId, History>,
    /// Regions that were being created or dropped when the process died.
    doubtful: BTreeMap<RegionId, History>,
    next: u32,
}

type OpenRegions = BTreeMap<RegionId, Arc<Region>>;

/// Opens the volume and serves all of its regions.
fn open_all(disk: &SimDisk) -> Result<(Arc<Volume>, OpenRegions), Error> {
    let (volume, copies) = open_volume(disk)?;
    let mut open = BTreeMap::new();
    for copy in copies {
        let (id, term) = (copy.region(), copy.position().0.next());
        let region = copy.serve(term)?;
        region.set_commit(region.last_lsn());
        open.insert(id, region);
    }
    Ok((volume, open))
}

impl Regions {
    /// Works on them until a fault ends it.
    fn work(&mut self, disk: &SimDisk, rng: &mut Rng, steps: u64) -> Result<(), Error> {
        let (volume, mut open) = open_all(disk)?;
        if open.is_empty() {
            self.next = REGION.0 + 1;
            self.doubtful.insert(REGION, History::default());
            let copy = Replica::create(&volume, REGION, table_options())?;
            open.insert(REGION, copy.serve(Epoch(1))?);
            volume.sync()?;
            self.certain.extend(self.doubtful.remove_entry(&REGION));
        }
        for step in 0..steps {
            let id = *open.keys().nth(rng.index(open.len())).expect("there is always one");
            self.one(&mut open, id, rng)?;
            if step % 50 == 0 {
                assert_eq!(used(&volume), named(disk)?.1, "bytes in use at step {step}");
            }
        }
        Ok(())
    }

    fn one(&mut self, open: &mut OpenRegions, id: RegionId, rng: &mut Rng) -> Result<(), Error> {
        let region = open[&id].clone();
        let history = self.certain.get_mut(&id).expect("it is open");
        match rng.below(60) {
            0..6 => flush(&region)?,
            6..14 => drop(compact(&region)?),
            14..17 => history.sync(&region)?,
            17 if region.checkpoints().len() < 2 => region.checkpoint(&format!("at-{}", region.last_lsn()))?,
            18 => {
                if let Some(info) = region.checkpoints().first() {
                    region.drop_checkpoint(&info.name)?;
                }
            }
            19 => region.seal_tails(),
            20 if open.len() < MOST_REGIONS => {
                history.write(&region)?;
                let (child, history) = (RegionId(self.next), history.split());
                self.next += 1;
                self.doubtful.insert(child, history);
                let (copy, below) = region.split(child)?;
                self.certain.extend(self.doubtful.remove_entry(&child));
                let term = Epoch(region.term().0 + 1 + rng.below(2) as u32);
                open.insert(child, serve_split(&region, copy, term, below)?);
            }
            21 if open.len() > 1 && rng.one_in(2) => {
                let gone = self.certain.remove_entry(&id).expect("it is open");
                self.doubtful.extend([gone]);
                open.remove(&id);
                region.into_replica()?.destroy()?;
                self.doubtful.remove(&id);
            }
            _ => {
                history.append(&region, rng)?;
                if !rng.one_in(4) {
                    history.write(&region)?;
                }
            }
        }
        Ok(())
    }

    /// After a crash, every region has its guaranteed data, and no other region exists.
    fn check(&mut self, disk: &SimDisk, is_power: bool, context: &str) {
        let (volume, open) = open_all(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
        let doubtful = std::mem::take(&mut self.doubtful);
        let missing: Vec<_> = self.certain.keys().filter(|id| !open.contains_key(*id)).collect();
        assert!(missing.is_empty(), "{context}: {missing:?} are gone");
        self.certain.extend(doubtful.into_iter().filter(|(id, _)| open.contains_key(id)));
        let verification = volume.verify();
        assert!(verification.damaged.is_empty(), "{context}: {:?}", verification.damaged);
        assert_eq!(
            Ok(verification.segments as usize),
            named(disk).map(|named| named.0).map_err(drop),
            "{context}: each segment is looked at once"
        );
        assert_names(disk, &volume, context);
        for (id, region) in &open {
            let history = self.certain.get_mut(id).unwrap_or_else(|| panic!("{context}: where does {id} come from?"));
            let guaranteed = if is_power { history.synced } else { history.written };
            let last = region.last_lsn();
            assert!(
                last.0 >= guaranteed && last.0 <= history.last(),
                "{context}: {id}: {last}, {guaranteed} guaranteed"
            );
            history.cut(last);
            assert_holds(region, &history.model(last), &format!("{context}, region {id}"));
        }
    }
}

/// Serves the child of `parent`.
fn serve_split(parent: &Region, copy: Replica, term: Epoch, below: SegmentId) -> Result<Arc<Region>, Error> {
    assert_eq!(copy.position(), (parent.term(), parent.last_lsn()));
    let child = copy.serve(term)?;
    child.set_commit(child.last_lsn());
    parent.set_inherited_below(below);
    child.set_inherited_below(SegmentId::new(term, 0));
    Ok(child)
}

#[test]
fn split_regions_are_independent() {
    continue_independently(0..40);
}

pub(crate) fn continue_independently(seeds: Range<u64>) {
    let mut split = 0;
    for seed in seeds {
        let (disk, mut rng) = (SimDisk::new(seed, DISK_BYTES), Rng::new(seed));
        disk.set_maps(seed % 2 == 0);
        choose_options(&mut Rng::new(seed));
        let mut regions = Regions::default();
        for round in 0..8 {
            let context = format!("seed {seed}, round {round}");
            let at = 1 + rng.below(2500);
            disk.set_faults(FaultPlan { at: vec![(at, Fault::Kill)], ..FaultPlan::default() });
            let steps = rng.below(1500);
            let died = regions.work(&disk, &mut rng, steps).is_err();
            disk.set_faults(FaultPlan::default());
            let is_power = rng.one_in(2);
            if is_power {
                disk.lose_power(&mut rng);
            } else if !died {
                disk.kill_process();
            }
            regions.check(&disk, is_power, &context);
            disk.kill_process();
        }
        split += regions.next.saturating_sub(REGION.0 + 1);
    }
    assert!(split > 0, "none was split");
}

/// A copy with segments of another origin reads, moves and proves them all the same.
#[test]
fn segments_made_for_another_region() {
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        choose_options(&mut rng);
        choose_backups(BackupMode::SendIndex);
        let (here, there) = (SimDisk::new(seed, DISK_BYTES), SimDisk::new(seed + 1, DISK_BYTES));
        let (primary, mut history) = (serve(Backup::new(&here, 0).replica), History::default());
        fill(&primary, &mut history, &mut rng, 700);
        let (volume, _) = open_volume(&there).unwrap();
        let mut copy = Backup::of(&volume, Replica::create(&volume, CHILD, table_options()).unwrap());
        assert!(copy.sync(&primary).unwrap() > 4);
        let origins = |disk: &SimDisk| {
            let image = Image::read(disk.open("volume").unwrap(), Some(&encryption())).unwrap().unwrap();
            image.state().regions[&CHILD].segments.values().map(|one| one.origin).collect::<BTreeSet<_>>()
        };
        assert_eq!(origins(&there), BTreeSet::from([REGION]));
        let region = serve(copy.replica);
        assert_holds(&region, &history.model(region.last_lsn()), &format!("seed {seed}"));
        let digests = |region: &Region| region.volume().digests(region.id(), None, usize::MAX).unwrap();
        let (mine, theirs) = (digests(&primary), digests(&region));
        assert!(theirs.iter().all(|digest| digest.damage.is_none()));
        assert!(mine.iter().filter(|one| theirs.contains(one)).count() > 4, "seed {seed}");
        fill(&region, &mut history, &mut rng, 700);
        assert_eq!(origins(&there).last(), Some(&CHILD));
        assert!(volume.verify().damaged.is_empty());
        drop((region, volume));
        there.kill_process();
        let (_, open) = open_all(&there).unwrap();
        assert_holds(&open[&CHILD], &history.model(Lsn(history.last())), &format!("seed {seed}, reopened"));
    }
}

/// Batches, with all upkeep.
fn fill(region: &Region, history: &mut History, rng: &mut Rng, batches: u64) {
    for _ in 0..batches {
        history.append(region, rng).expect("a sound disk");
        history.write(region).expect("a sound disk");
        flush(region).expect("a sound disk");
        while compact(region).expect("a sound disk") {}
    }
}

/// Deletes the keys outside `own` by ranges, some at a time, and has compactions collect them.
fn trim(region: &Region, own: (&[u8], Option<&[u8]>)) {
    let delete = |start: &[u8], end: Option<&[u8]>| {
        region.append(&[Write::delete_range(start, end)]).expect("there is room");
        region.set_commit(region.last_lsn());
        flush(region).expect("a sound disk");
    };
    let bounds: Vec<Vec<u8>> = (0..2000).step_by(250).map(|n| format!("key{n:05}").into_bytes()).collect();
    for (i, start) in bounds.iter().enumerate() {
        let end = bounds.get(i + 1).map(Vec::as_slice);
        if &start[..] < own.0 {
            delete(start, Some(end.map_or(own.0, |end| end.min(own.0))));
        }
        if let Some(from) = own.1.filter(|from| end.is_none_or(|end| end > *from)) {
            delete(from.max(start), end);
        }
        while let Some(compaction) = region.next_compaction_of_all(now()) {
            region.install(&compaction.finish().expect("a sound disk")).expect("a sound disk");
        }
    }
}

/// Each side deletes the other's keys by ordinary writes: then it has its half, and the other half's bytes are
/// collected.
#[test]
fn each_side_is_left_with_its_half() {
    for seed in 0..12 {
        let (disk, mut rng) = (SimDisk::new(seed, DISK_BYTES), Rng::new(seed));
        choose_options(&mut rng);
        choose_backups(BackupMode::SendIndex);
        let (parent, mut history) = (serve(Backup::new(&disk, 0).replica), History::default());
        let volume = parent.volume().clone();
        fill(&parent, &mut history, &mut rng, 2500);
        let all = contents(&parent);
        let key = parent.middle(b"", None).unwrap().expect("it has a middle");
        let used = volume.usage().0;
        let (copy, below) = parent.split(CHILD).unwrap();
        assert_eq!(volume.usage().0, used, "seed {seed}: nothing is copied");
        let child = serve_split(&parent, copy, parent.term().next(), below).unwrap();
        let (mut left, mut right) = (all.clone(), all.clone());
        left.retain(|at, _| *at < key);
        right.retain(|at, _| *at >= key);
        let bytes = |model: &crate::support::Model| model.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
        let (below, above) = (bytes(&left), bytes(&right));
        assert!(below > above / 3 && above > below / 3, "seed {seed}: {below} and {above} bytes");

        trim(&parent, (b"", Some(&key)));
        trim(&child, (&key, None));
        assert_holds(&parent, &left, &format!("seed {seed}, the left half"));
        assert_holds(&child, &right, &format!("seed {seed}, the right half"));
        let outside = [parent.approximate(&key, None).unwrap(), child.approximate(b"", Some(&key)).unwrap()];
        assert!(outside.iter().all(|outside| outside.pairs < 20), "seed {seed}: {outside:?} is left of the other half");
        let left = volume.usage().0;
        let beside = 20 * volume.segment_bytes() as u64;
        assert!(left <= used * 3 / 2 + beside, "seed {seed}: {left} bytes are in use, of {used} before");
        assert!(volume.verify().damaged.is_empty());
        assert_names(&disk, &volume, &format!("seed {seed}"));
    }
}

/// Splits a region at its primary while both the primary and its backup are quiesced.
pub(crate) fn split_quiesced(primary: &Region, backup: &mut Backup, term: Epoch) -> Result<Arc<Region>, Error> {
    while backup.compact(primary)? {}
    primary.seal_tails();
    backup.flush(primary)?;
    backup.replica.set_committed(primary.commit());
    let (copy, below) = primary.split(CHILD).expect("a sound disk");
    Ok(serve_split(primary, copy, term, below).expect("a sound disk"))
}

/// The copy of the child on a backup's volume.
pub(crate) fn copy_of_child(backup: &Backup) -> Result<Backup, Error> {
    let copy = match Replica::open(&backup.volume, CHILD)? {
        Some(copy) => copy,
        None => Replica::create(&backup.volume, CHILD, backup.replica.options().clone())?,
    };
    Ok(Backup::of(&backup.volume, copy))
}

/// Splits a region at its primary and at its backup. Returns the child's primary and backup.
fn split_both(primary: &Arc<Region>, backup: &mut Backup, context: &str) -> (Arc<Region>, Backup) {
    let child = split_quiesced(primary, backup, primary.term().next()).unwrap();
    let mut theirs = copy_of_child(backup).unwrap();
    let (used, written) = (backup.volume.usage().0, backup.volume.counters().bytes_written);
    assert_eq!(theirs.sync(&child).unwrap(), 0, "{context}: nothing is shipped");
    assert_eq!(backup.volume.usage().0, used, "{context}: nothing is copied");
    let written = backup.volume.counters().bytes_written - written;
    assert!(written < volume_options().segment_bytes as u64, "{context}: {written} bytes were written");
    (child, theirs)
}

/// With either addressing, and with send-index and build-index.
#[test]
fn a_backup_is_split_by_reference_too() {
    for (seed, mode) in (0..20).flat_map(|seed| BackupMode::ALL.map(|mode| (seed, mode))) {
        let (mut rng, context) = (Rng::new(300 + seed), format!("seed {seed}, {mode}"));
        choose_options(&mut rng);
        choose_backups(mode);
        let (_, primary, mut backup) = connected(seed, DISK_BYTES, 5);
        let mut history = History::default();
        work(&primary, &mut backup, &mut history, &mut rng, 800);
        let (child, mut childs) = split_both(&primary, &mut backup, &context);
        let mut childs_history = history.split();
        for _ in 0..3 {
            work(&primary, &mut backup, &mut history, &mut rng, 200);
            work(&child, &mut childs, &mut childs_history, &mut rng, 200);
        }
        assert!(backup.volume.verify().damaged.is_empty(), "{context}");
        let (buffers, childs_buffers) = (backup.buffers.clone(), childs.buffers.clone());
        backup.replica.adopt_tails(buffers).unwrap();
        childs.replica.adopt_tails(childs_buffers).unwrap();
        let pairs = [(&primary, backup.replica, &history), (&child, childs.replica, &childs_history)];
        for (primary, replica, history) in pairs {
            let promoted = serve(replica);
            assert_eq!(promoted.last_lsn(), primary.last_lsn(), "{context}");
            assert_holds(&promoted, &history.model(promoted.last_lsn()), &format!("{context}, {}", promoted.id()));
        }
    }
}

/// The backup has collected what the child no longer needs. So its copy of the region that the child was split from has
/// more of the segments that the child's primary names. It keeps the levels that it built for the child all the same.
#[test]
fn a_backup_keeps_the_levels_of_the_parent_whatever_older_copies_have() {
    for seed in 0..10 {
        let (mut rng, context) = (Rng::new(600 + seed), format!("seed {seed}"));
        choose_options(&mut rng);
        choose_backups(BackupMode::BuildIndex);
        let (_, primary, mut backup) = connected(seed, DISK_BYTES, 5);
        let mut history = History::default();
        work(&primary, &mut backup, &mut history, &mut rng, 600);
        let (child, mut childs) = split_both(&primary, &mut backup, &context);
        let writes = [Write::delete_range(b"", None), Write::put(b"a", &[1; 300]), Write::put(b"b", &[2; 20])];
        for write in writes {
            child.append(&[write]).expect("there is room");
        }
        child.set_commit(child.last_lsn());
        child.seal_tails();
        childs.flush(&child).unwrap();
        childs.replica.set_committed(child.commit());
        childs.replica.run_next().unwrap();
        let building = childs.replica.building().expect("it follows");
        while let Some(mut compaction) = building.next_compaction_of_all(now()) {
            finish(&building, &mut compaction).unwrap();
        }
        drop(building);
        let (copy, below) = child.split(GRANDCHILD).expect("a sound disk");
        let grandchild = serve_split(&child, copy, child.term().next(), below).unwrap();
        let copy = Replica::create(&backup.volume, GRANDCHILD, backup.replica.options().clone()).unwrap();
        let mut grandchilds = Backup::of(&backup.volume, copy);
        assert_eq!(grandchilds.sync(&grandchild).unwrap(), 0, "{context}: nothing is shipped");
        assert!(backup.volume.verify().damaged.is_empty(), "{context}");
        assert_eq!(contents(&serve(grandchilds.replica)), contents(&grandchild), "{context}");
    }
}

/// The next attempt replaces the rest of a failed one. A server that was away during the split, or where the parent
/// continued before the child came, uses what it has of the child.
#[test]
fn attempts_are_repeated_and_late_copies_share_what_they_have() {
    let (mut shipped, mut all) = (0, 0);
    for (seed, mode) in (0..12).flat_map(|seed| BackupMode::ALL.map(|mode| (seed, mode))) {
        let (mut rng, context) = (Rng::new(400 + seed), format!("seed {seed}, {mode}"));
        choose_options(&mut rng);
        choose_backups(mode);
        let ([here, there], mut primary, mut backup) = connected(seed, DISK_BYTES, 5);
        let mut history = History::default();
        work(&primary, &mut backup, &mut history, &mut rng, 600);
        let (child, mut childs) = split_both(&primary, &mut backup, &context);
        work(&child, &mut childs, &mut history.split(), &mut rng, 40);
        drop((child, childs));
        // It had effects only on its own volume. The parent continues to serve, perhaps in the term that the child had.
        if rng.one_in(2) {
            primary = serve(primary.into_replica().unwrap());
            backup.sync(&primary).unwrap();
        }
        let (is_away, term) = (rng.one_in(2), Epoch(primary.term().0 + 2));
        work(&primary, &mut backup, &mut history, &mut rng, 100);
        let child = if is_away {
            let batches = if rng.one_in(2) { 300 } else { 30 };
            fill(&primary, &mut history, &mut rng, batches);
            primary.seal_tails();
            flush(&primary).unwrap();
            let (copy, below) = primary.split(CHILD).unwrap();
            serve_split(&primary, copy, term, below).unwrap()
        } else {
            work(&primary, &mut backup, &mut history, &mut rng, 300);
            split_quiesced(&primary, &mut backup, term).unwrap()
        };
        let mut childs_history = history.split();
        if rng.one_in(2) {
            fill(&child, &mut childs_history, &mut rng, 100);
        }
        if !is_away {
            // Later writes of the parent do not concern the child.
            work(&primary, &mut backup, &mut history, &mut rng, 200);
        }
        let mut childs = copy_of_child(&backup).unwrap();
        shipped += childs.sync(&child).unwrap();
        all += child.base().base.segments.len();
        look_aside(&there, [(CHILD, &childs_history)], &context);
        work(&child, &mut childs, &mut childs_history, &mut rng, 200);
        assert!(backup.volume.verify().damaged.is_empty(), "{context}");
        drop(backup);
        childs.replica.adopt_tails(childs.buffers.clone()).unwrap();
        let promoted = serve(childs.replica);
        assert_holds(&promoted, &childs_history.model(promoted.last_lsn()), &context);
        assert_names(&here, primary.volume(), &context);
    }
    assert!(shipped < all * 3 / 4, "{shipped} of {all} segments were shipped");
}

/// Serves a copy of a disk, so that the disk itself does not change. Each region has a prefix of its history.
fn look_aside<const N: usize>(disk: &SimDisk, histories: [(RegionId, &History); N], context: &str) {
    let aside = SimDisk::new(1, DISK_BYTES);
    aside.open("volume").unwrap().write_at(&disk.contents("volume"), 0).unwrap();
    let (volume, open) = open_all(&aside).unwrap_or_else(|error| panic!("{context}: {error}"));
    for (id, history) in histories {
        let Some(region) = open.get(&id) else { continue };
        assert!(region.last_lsn().0 <= history.last(), "{context}");
        assert_holds(region, &history.model(region.last_lsn()), &format!("{context}, {id}"));
    }
    assert!(volume.verify().damaged.is_empty(), "{context}");
    assert_names(&aside, &volume, context);
}

/// Whatever a backup does when it dies, each of its copies is a prefix of its region's history, and can be brought in
/// sync again.
#[test]
fn a_backup_dies_at_any_operation_of_a_split() {
    for seed in 0..80 {
        let (mut rng, mode) = (Rng::new(500 + seed), BackupMode::ALL[(seed % 2) as usize]);
        choose_options(&mut rng);
        choose_backups(mode);
        let ([_, there], primary, mut backup) = connected(seed, DISK_BYTES, 5);
        let mut history = History::default();
        work(&primary, &mut backup, &mut history, &mut rng, 300);
        let child = split_quiesced(&primary, &mut backup, primary.term().next()).unwrap();
        let mut childs_history = history.split();
        for round in 0..4 {
            let context = format!("seed {seed}, {mode}, round {round}");
            let died = FaultPlan { at: vec![(1 + rng.below(150), Fault::Kill)], ..FaultPlan::default() };
            there.set_faults(died);
            let outcome = copy_of_child(&backup).and_then(|mut childs| {
                childs.sync(&child)?;
                try_work(&primary, &mut backup, &mut history, &mut rng, 20)?;
                try_work(&child, &mut childs, &mut childs_history, &mut rng, 20)
            });
            there.set_faults(FaultPlan::default());
            drop(backup);
            if rng.one_in(2) {
                there.lose_power(&mut rng)
            } else {
                there.kill_process()
            }
            let histories = [(REGION, &history), (CHILD, &childs_history)];
            look_aside(&there, histories, &format!("{context}, {outcome:?}"));
            let (volume, mut copies) = open_volume(&there).unwrap();
            let at = copies.iter().position(|copy| copy.region() == REGION).expect("it is there");
            backup = Backup::of(&volume, copies.swap_remove(at));
            backup.sync(&primary).unwrap();
        }
    }
}

#[test]
fn what_is_not_committed_is_not_split() {
    let disk = SimDisk::new(1, DISK_BYTES);
    let region = serve(Backup::new(&disk, 0).replica);
    assert!(matches!(region.split(REGION), Err(Error::Invalid(_))));
    region.append(&[Write::put(b"key", b"value")]).unwrap();
    assert!(matches!(region.split(CHILD), Err(Error::Invalid(_))));
    region.set_commit(region.last_lsn());
    let (copy, below) = region.split(CHILD).unwrap();
    let shared = region.base().base.segments;
    assert!(!shared.is_empty() && shared.iter().all(|segment| segment.id < below));
    assert!(matches!(copy.serve(region.term()), Err(Error::StaleTerm { .. })), "its ids would be the parent's");
}

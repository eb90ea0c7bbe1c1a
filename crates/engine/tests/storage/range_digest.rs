//! Digests of ranges: equal on copies with the same pairs, whatever their levels, and different where a pair is.

use crate::backup::{BUILDER, Backup, DISK_BYTES, connected, serve, step_to_the_end, work};
use crate::support::{History, choose_backups, choose_options, compact, now, open_region};
use bytes::Bytes;
use leeward_engine::{Region, SnapshotAt, Write};
use leeward_format::cluster::BackupMode;
use leeward_format::op::{PIECE_BYTES, RangeAnswer, RangeDigest, RangeHasher};
use leeward_format::{Expiry, Lsn, UnixMs};
use leeward_platform::{Rng, SimDisk};
use std::sync::Arc;

/// The digests of the ranges between `bounds`, as of an LSN and an instant, from questions of `most` bytes.
fn digests(region: &Region, bounds: &[Bytes], (lsn, now): (Lsn, UnixMs), most: u64) -> Vec<RangeDigest> {
    let ends: Vec<Option<Bytes>> = bounds.iter().cloned().map(Some).chain([None]).collect();
    let (mut start, mut so_far, mut all) = (Bytes::new(), RangeDigest::default(), Vec::new());
    while all.len() < ends.len() {
        // A snapshot for each question, as at a node.
        let SnapshotAt::Shown(snapshot) = region.snapshot_at(lsn, now) else { panic!("{lsn} can be shown") };
        let answer = snapshot.range_digests(&start, &ends[all.len()..], &so_far, most);
        let RangeAnswer::Digests { whole, begun } = answer else { panic!("{answer:?}") };
        assert!(!whole.is_empty() || begun.is_some(), "each question comes further");
        all.extend(whole);
        (start, so_far) = match begun {
            Some(begun) => begun,
            None if all.len() == ends.len() => break,
            None => (bounds[all.len() - 1].clone(), RangeDigest::default()),
        };
    }
    all
}

/// The digests that the model says.
fn expected(history: &History, bounds: &[Bytes], (lsn, now): (Lsn, UnixMs)) -> Vec<RangeDigest> {
    let pairs = history.pairs(lsn, now);
    let bound = |i: usize| bounds.get(i).map_or(&[0xff; 8][..], |bound| &bound[..]);
    let of = |i: usize| {
        let start = if i == 0 { &[][..] } else { bound(i - 1) };
        let mut hasher = RangeHasher::new(RangeDigest::default());
        for (key, (at, expires, value)) in pairs.range(start.to_vec()..bound(i).to_vec()) {
            hasher.add(key, *at, *expires, value);
        }
        hasher.finish()
    };
    (0..=bounds.len()).map(of).collect()
}

/// Modes in which a backup builds its own index; a two-layer log also with few runs, which it merges often.
const BUILT: [BackupMode; 3] =
    [BackupMode::BuildIndex, BackupMode::TWO_LAYER_LOG, BackupMode::TwoLayerLog { ordering_degree: 2 }];

/// What a run of [`compare`] met.
#[derive(Debug, Default)]
struct Met {
    compared: u32,
    too_late: u32,
    too_early: u32,
    ranges: usize,
}

/// Works on a primary and a backup of `mode`, and compares both with the model now and then.
fn compare(seed: u64, mode: BackupMode, met: &mut Met) {
    let mut rng = Rng::new(seed);
    choose_options(&mut rng);
    choose_backups(mode);
    let (_, primary, mut backup) = connected(seed, DISK_BYTES, 3);
    let mut history = History::default();
    for _ in 0..30 {
        let batches = rng.between(1, 60);
        work(&primary, &mut backup, &mut history, &mut rng, batches);
        let lsn = primary.last_lsn();
        // Pairs that have expired by then are in the copies, or were dropped: it makes no difference.
        let at = (lsn, UnixMs(now().0 + rng.below(1_000)));
        let copy = backup.replica.building().expect("it builds");
        met.too_early += u32::from(copy.last_lsn() < lsn && matches!(copy.snapshot_at(lsn, at.1), SnapshotAt::NotYet));
        backup.save(&primary).unwrap();
        backup.replica.run_next().unwrap();
        backup.replica.set_committed(lsn);
        let batches = rng.between(0, 40);
        work(&primary, &mut backup, &mut history, &mut rng, batches);
        let bounds = primary.range_bounds();
        let copy = backup.replica.building().expect("it builds");
        let wanted = expected(&history, &bounds, at);
        for region in [&primary, &copy] {
            match region.snapshot_at(lsn, at.1) {
                SnapshotAt::Shown(_) => {
                    let most = [1, 10_000, u64::MAX][rng.index(3)];
                    assert_eq!(digests(region, &bounds, at, most), wanted, "seed {seed}, {mode}, {at:?}");
                    (met.compared, met.ranges) = (met.compared + 1, met.ranges + wanted.len());
                }
                SnapshotAt::TooLate => met.too_late += 1,
                SnapshotAt::NotYet => {}
            }
        }
    }
}

#[test]
fn copies_with_other_levels_have_the_digests_of_the_model() {
    for mode in BUILT {
        let mut met = Met::default();
        (0..10).for_each(|seed| compare(seed, mode, &mut met));
        assert!(met.compared > 200 && met.too_late > 20 && met.too_early > 20, "{mode}: {met:?}");
        assert!(met.ranges > 1_000, "{mode}: {met:?}");
    }
}

fn two() -> [Arc<Region>; 2] {
    [1, 2].map(|seed| open_region(&SimDisk::new(seed, DISK_BYTES)).unwrap())
}

fn append(region: &Region, write: &Write<'_>) {
    region.append(std::slice::from_ref(write)).unwrap();
}

/// Makes all of it durable and committed.
fn commit(region: &Region) {
    region.sync_tails().unwrap();
    region.set_commit(region.last_lsn());
}

fn compact_all(region: &Region) {
    commit(region);
    while let Some(compaction) = region.next_compaction_of_all(now()) {
        region.install(&compaction.finish().unwrap()).unwrap();
    }
}

/// The whole region as one range.
fn whole(region: &Region, now: u64) -> RangeDigest {
    digests(region, &[], (region.last_lsn(), UnixMs(now)), u64::MAX).remove(0)
}

fn fill(region: &Region) {
    for n in 0..100_u32 {
        append(region, &Write::put(&n.to_be_bytes(), &[n as u8; 150]));
    }
}

#[test]
fn a_difference_in_one_pair_is_seen() {
    let [one, other] = two();
    fill(&one);
    compact_all(&one);
    fill(&other);
    assert_eq!(whole(&one, 0), whole(&other, 0), "one of them has levels, the other an L0");
    append(&one, &Write::put(b"key", b"value"));
    append(&other, &Write::put(b"key", b"valuf"));
    assert_eq!(whole(&one, 0).pairs, whole(&other, 0).pairs);
    assert_ne!(whole(&one, 0), whole(&other, 0), "a value differs");
    // The same pair again: another LSN, the same on both.
    for region in [&one, &other] {
        append(region, &Write::put(b"key", b"value"));
    }
    assert_eq!(whole(&one, 0), whole(&other, 0));
    append(&one, &Write::delete(&7_u32.to_be_bytes()));
    append(&other, &Write::delete(b"is not there"));
    assert_eq!(whole(&one, 0).pairs + 1, whole(&other, 0).pairs, "one key is missing");
    append(&one, &Write::delete(b"is not there"));
    append(&other, &Write::delete(&7_u32.to_be_bytes()));
    assert_eq!(whole(&one, 0), whole(&other, 0), "a tombstone of no pair makes no difference");
    append(&one, &Write::delete_range(&8_u32.to_be_bytes(), Some(&9_u32.to_be_bytes())));
    append(&other, &Write::delete(&8_u32.to_be_bytes()));
    compact_all(&other);
    assert_eq!(whole(&one, 0), whole(&other, 0), "nor how a key was deleted");
}

#[test]
fn the_named_instant_decides_which_pairs_are_live() {
    let [one, other] = two();
    let expires = Expiry::from_ms(1_000);
    for region in [&one, &other] {
        fill(region);
        append(region, &Write { expires, ..Write::put(b"key", b"value") });
    }
    assert_eq!(whole(&one, 999), whole(&other, 999));
    assert_eq!((whole(&one, 999).pairs, whole(&one, 1_000).pairs), (101, 100));
    assert_ne!(whole(&one, 999), whole(&other, 1_000), "two clocks, two answers: the planted bug of digests");
    // One copy has dropped the expired pair, the other has it.
    commit(&one);
    while let Some(compaction) = one.next_compaction_of_all(UnixMs(1_000)) {
        one.install(&compaction.finish().unwrap()).unwrap();
    }
    assert_eq!(whole(&one, 1_000), whole(&other, 1_000));
}

#[test]
fn a_state_that_is_gone_or_yet_to_come_is_not_shown() {
    let [region, _] = two();
    fill(&region);
    let then = region.last_lsn();
    assert!(matches!(region.snapshot_at(then.next(), UnixMs(0)), SnapshotAt::NotYet));
    let before = digests(&region, &[], (then, UnixMs(0)), 1);
    append(&region, &Write::put(&3_u32.to_be_bytes(), b"new"));
    append(&region, &Write::delete_range(&4_u32.to_be_bytes(), None));
    assert_eq!(digests(&region, &[], (then, UnixMs(0)), 1), before, "later writes are not seen");
    compact_all(&region);
    assert!(matches!(region.snapshot_at(then, UnixMs(0)), SnapshotAt::TooLate));
    let last = region.last_lsn();
    assert!(matches!(region.snapshot_at(last, UnixMs(0)), SnapshotAt::Shown(_)));
    assert!(!compact(&region).unwrap());
}

#[test]
fn a_long_range_is_hashed_in_several_questions() {
    let [region, _] = two();
    let value = vec![5; 20_000];
    for n in 0..(3 * PIECE_BYTES / 20_000) as u32 {
        while region.append(&[Write::put(&n.to_be_bytes(), &value)]).is_err() {
            commit(&region);
            crate::support::flush(&region).unwrap();
            compact(&region).unwrap();
        }
    }
    let at = (region.last_lsn(), UnixMs(0));
    assert_eq!(digests(&region, &[], at, 1), digests(&region, &[], at, u64::MAX));
    let SnapshotAt::Shown(snapshot) = region.snapshot_at(at.0, at.1) else { panic!("it is the last") };
    let first = snapshot.range_digests(&Bytes::new(), &[None], &RangeDigest::default(), 1);
    assert!(matches!(first, RangeAnswer::Digests { begun: Some(_), .. }), "{first:?}");
}

/// A backup gives up the index that it has built, and takes its primary's. If it loses power meanwhile, it has the old one.
#[test]
fn an_index_is_built_anew_from_the_base() {
    for mode in BUILT {
        build_anew(mode);
    }
}

fn build_anew(mode: BackupMode) {
    choose_backups(mode);
    let (here, there) = (SimDisk::new(1, DISK_BYTES), SimDisk::new(2, DISK_BYTES));
    let primary = serve(Backup::new(&here, 0).replica);
    let mut backup = Backup::new(&there, 3);
    backup.sync(&primary).unwrap();
    let (mut history, mut rng) = (History::default(), Rng::new(3));
    work(&primary, &mut backup, &mut history, &mut rng, 600);
    let is_own = |backup: &Backup| backup.replica.have().iter().any(|have| have.id.builder().is_some());
    assert!(is_own(&backup), "{mode}");
    primary.seal_tails();
    let pinned = primary.base();
    let kept = backup.replica.begin_base(&pinned.base).unwrap().len();
    let anew = backup.replica.begin_base_anew(&pinned.base).unwrap();
    assert!(anew.len() > kept, "{mode}: {} segments are shipped in place of {kept}", anew.len());
    there.lose_power(&mut rng);
    let mut backup = Backup::new(&there, 0);
    assert!(is_own(&backup), "{mode}: until the base is installed, the copy is as it was");
    let anew = backup.replica.begin_base_anew(&pinned.base).unwrap();
    for id in &anew {
        let segment = pinned.base.segments.iter().find(|segment| segment.id == *id).unwrap();
        let bytes = pinned.read_segment(*id).unwrap();
        backup.store(&primary, (*id, segment.kind, segment.primary), &bytes).unwrap();
    }
    backup.replica.install_base().unwrap();
    assert!(!is_own(&backup), "{mode}: all of it is the primary's");
    backup.replica.follow(BUILDER).unwrap();
    let copy = backup.replica.building().unwrap();
    while step_to_the_end(&copy).unwrap() {}
    let (at, bounds) = ((primary.last_lsn(), now()), primary.range_bounds());
    assert_eq!(digests(&copy, &bounds, at, u64::MAX), digests(&primary, &bounds, at, u64::MAX), "{mode}");
    backup.sync(&primary).unwrap();
    work(&primary, &mut backup, &mut history, &mut rng, 600);
    assert!(is_own(&backup), "{mode}: it builds upon that");
}

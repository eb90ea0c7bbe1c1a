//! Replication's storage half: a primary's region and a backup's replica on two simulated disks, connected by the test
//! (`backup`).

use crate::backup::{Backup, DISK_BYTES, connected, finish, serve, try_work, work};
use crate::support::{
    Encrypted, History, REGION, assert_holds, choose_backups, choose_encryption, choose_options, encryption, now,
    open_volume,
};
use leeward_engine::compaction::Step;
use leeward_engine::image::Image;
use leeward_engine::{Error, Replica, Unopened, Volume};
use leeward_format::cluster::BackupMode;
use leeward_format::manifest::{InstallEdit, LevelState, SegmentKind, Shipped};
use leeward_format::packed::Codec;
use leeward_format::{Epoch, LogKind, Lsn, Pointer, SegmentId, SegmentName, SegmentNo, wire};
use leeward_platform::disk::{Fault, FaultPlan};
use leeward_platform::{Disk, Rng, SimDisk};
use std::ops::Range;

const MODES: [BackupMode; 4] = [
    BackupMode::SendIndex,
    BackupMode::BuildIndex,
    BackupMode::TwoLayerLog { ordering_degree: 1 },
    BackupMode::TwoLayerLog { ordering_degree: 3 },
];

#[test]
fn a_backup_takes_over_with_everything_that_was_mirrored() {
    for (seed, mode) in (0..20).flat_map(|seed| MODES.map(|mode| (seed, mode))) {
        let mut rng = Rng::new(seed);
        choose_options(&mut rng);
        choose_encryption([Encrypted::EverySecond, Encrypted::All, Encrypted::None][seed as usize % 3]);
        choose_backups(mode);
        let (here, there) = (SimDisk::new(seed, DISK_BYTES), SimDisk::new(seed, DISK_BYTES));
        let primary = serve(Backup::new(&here, 0).replica);
        let mut history = History::default();
        let mut backup = Backup::new(&there, 5);
        let before = rng.below(300);
        for _ in 0..before {
            history.append(&primary, &mut rng).unwrap();
        }
        history.write(&primary).unwrap();
        backup.sync(&primary).unwrap();
        let read = backup.volume.counters().bytes_read;
        work(&primary, &mut backup, &mut history, &mut rng, 1500);
        assert!(primary.stats().levels.len() > 1, "several levels were shipped");
        match backup.replica.building() {
            Some(region) => {
                assert!(mode.builds_index());
                let is_sorted = mode.ordering_degree().is_none();
                assert!(region.stats().compactions.installed > 0 && (region.stats().depth() > 1) >= is_sorted);
            }
            None => assert_eq!(backup.volume.counters().bytes_read, read, "a backup reads nothing"),
        }
        let buffers = backup.buffers.clone();
        backup.replica.adopt_tails(buffers).unwrap();
        assert_eq!(backup.replica.position(), (primary.term(), primary.last_lsn()), "seed {seed}");
        // The next attempt to join, if the primary did not wait for this one.
        let (read, buffers) = (backup.volume.counters().bytes_read, backup.buffers.clone());
        backup.replica.adopt_tails(buffers).unwrap();
        assert_eq!(backup.volume.counters().bytes_read, read, "seed {seed}: the logs are not read again");
        assert_eq!(backup.replica.position(), (primary.term(), primary.last_lsn()), "seed {seed}");
        let promoted = serve(backup.replica);
        assert_eq!(promoted.last_lsn(), primary.last_lsn());
        history.assert_requests(&promoted, &format!("seed {seed}"));
        assert_holds(&promoted, &history.model(promoted.last_lsn()), &format!("seed {seed}"));
    }
}

#[test]
fn primaries_die_and_return_as_backups() {
    primaries_return(0..12);
}

pub(crate) fn primaries_return(seeds: Range<u64>) {
    for (seed, mode) in seeds.flat_map(|seed| MODES.map(|mode| (seed, mode))) {
        let mut rng = Rng::new(100 + seed);
        choose_options(&mut rng);
        choose_encryption([Encrypted::EverySecond, Encrypted::All, Encrypted::None][seed as usize % 3]);
        choose_backups(mode);
        let disks = [SimDisk::new(seed, DISK_BYTES), SimDisk::new(seed + 1, DISK_BYTES)];
        let mut history = History::default();
        let mut primary = serve(Backup::new(&disks[0], 0).replica);
        for round in 1..8usize {
            let context = format!("seed {seed}, {mode}, round {round}");
            let disk = &disks[round % 2];
            if rng.one_in(2) {
                disk.lose_power(&mut rng);
            } else {
                disk.kill_process();
            }
            let mut backup = Backup::new(disk, round % 3);
            let total = {
                primary.seal_tails();
                primary.base().base.segments.len()
            };
            let shipped = backup.sync(&primary).unwrap();
            assert!(round < 3 || total < 12 || shipped < total, "{context}: {shipped} of {total} shipped");
            let batches = 100 + rng.below(400);
            work(&primary, &mut backup, &mut history, &mut rng, batches);
            // Writes that reach no backup: the primary dies with them, and its copy must drop them.
            for _ in 0..rng.below(30) {
                match primary.append(&[leeward_engine::Write::put(b"lost", b"lost")]) {
                    Ok(_) => {}
                    Err(error) => assert!(!matches!(error, leeward_engine::AppendError::Engine(_)), "{error}"),
                }
            }
            primary.write_tails().unwrap();
            let buffers = backup.buffers.clone();
            backup.replica.adopt_tails(buffers).unwrap();
            assert_eq!(backup.replica.position().1.0, history.last(), "{context}");
            primary = serve(backup.replica);
            assert_holds(&primary, &history.model(primary.last_lsn()), &context);
        }
    }
}

/// All members lost power. One of them has committed, durable records that no remaining member has. It follows a member
/// that had fewer, and may have written more since, and drops its extra records.
#[test]
fn a_copy_that_has_more_than_is_left_takes_what_is_left() {
    for (seed, mode) in (0..32).flat_map(|seed| MODES.map(|mode| (seed, mode))) {
        let mut rng = Rng::new(900 + seed);
        choose_options(&mut rng);
        choose_backups(mode);
        let disks = [0, 1, 2, 3].map(|number| SimDisk::new(4 * seed + number, DISK_BYTES));
        let mut history = History::default();
        let (mut long, mut short) = (Backup::new(&disks[1], 5), Backup::new(&disks[2], 3));
        {
            let primary = serve(Backup::new(&disks[0], 0).replica);
            long.sync(&primary).unwrap();
            let batches = 1 + rng.below(600);
            work(&primary, &mut long, &mut history, &mut rng, batches);
            short.sync(&primary).unwrap();
            let batches = 1 + rng.below(300);
            work(&primary, &mut long, &mut history, &mut rng, batches);
            long.save(&primary).unwrap();
            long.replica.set_committed(primary.last_lsn());
            if let Some(region) = long.replica.building() {
                while let Some(mut compaction) = region.next_compaction_of_all(now()).filter(|_| seed % 2 == 0) {
                    finish(&region, &mut compaction).unwrap();
                }
            }
        }
        let left = serve(short.replica);
        history.cut(left.last_lsn());
        if seed % 4 > 1 {
            let mut other = Backup::new(&disks[3], 0);
            other.sync(&left).unwrap();
            let batches = 1 + rng.below(400);
            work(&left, &mut other, &mut history, &mut rng, batches);
        }
        drop(long);
        disks[1].kill_process();
        let mut long = Backup::new(&disks[1], 0);
        long.sync(&left).unwrap();
        let context = format!("seed {seed}, {mode}");
        let model = history.model(left.last_lsn());
        assert_holds(&serve(long.replica), &model, &context);
    }
}

/// After a backup's death, its volume has a prefix of the primary's history, whatever it was doing. It is brought in
/// sync again from there.
#[test]
fn a_backup_dies_at_any_operation() {
    for seed in 0..60 {
        let mut rng = Rng::new(200 + seed);
        choose_options(&mut rng);
        choose_backups(MODES[(seed % 2) as usize]);
        let (here, there) = (SimDisk::new(seed, DISK_BYTES), SimDisk::new(seed + 1, DISK_BYTES));
        let mut primary = serve(Backup::new(&here, 0).replica);
        let mut history = History::default();
        for round in 0..6 {
            let context = format!("seed {seed}, round {round}");
            let mut backup = Backup::new(&there, round % 3);
            there.set_faults(FaultPlan { at: vec![(1 + rng.below(400), Fault::Kill)], ..FaultPlan::default() });
            let batches = rng.below(250);
            let outcome = backup.sync(&primary);
            let outcome = outcome.and_then(|_| try_work(&primary, &mut backup, &mut history, &mut rng, batches));
            there.set_faults(FaultPlan::default());
            drop(backup);
            if rng.one_in(2) {
                there.lose_power(&mut rng);
            } else {
                there.kill_process();
            }
            let found = Backup::new(&there, 0);
            let (_, last) = found.replica.position();
            assert!(last.0 <= history.last(), "{context}");
            if rng.one_in(3) {
                // It is asked to serve, without an effect: the history continues without that.
                let alone = serve(found.replica);
                assert_eq!(alone.last_lsn(), last, "{context}");
                assert_holds(&alone, &history.model(last), &format!("{context}, after {outcome:?}"));
                let term = alone.term();
                drop(alone);
                there.kill_process();
                let again = primary.clone().into_replica().unwrap();
                primary = again.serve(Epoch(term.0.max(primary.term().0) + 1)).unwrap();
                primary.set_commit(primary.last_lsn());
                assert_eq!(primary.last_lsn().0, history.last(), "{context}");
            }
            there.kill_process();
        }
    }
}

#[test]
fn torn_buffers_give_a_dense_prefix_of_whole_batches() {
    torn_buffers(0..60);
}

pub(crate) fn torn_buffers(seeds: Range<u64>) {
    for seed in seeds {
        let mut rng = Rng::new(seed);
        choose_options(&mut rng);
        let (here, there) = (SimDisk::new(seed, DISK_BYTES), SimDisk::new(seed, DISK_BYTES));
        let primary = serve(Backup::new(&here, 0).replica);
        let mut backup = Backup::new(&there, 3);
        backup.sync(&primary).unwrap();
        let mut history = History::default();
        for _ in 0..40 {
            history.append(&primary, &mut rng).unwrap();
        }
        backup.mirror(&primary).unwrap();
        let mut buffers = backup.buffers.clone();
        for _ in 0..1 + rng.below(3) {
            // A part of a one-sided write that never arrived, or arrived damaged.
            let buffer = rng.index(4);
            let at = rng.index(buffers[buffer].len() / 4);
            let end = at + rng.index(600);
            if rng.one_in(2) { buffers[buffer][at..end].fill(0) } else { rng.fill(&mut buffers[buffer][at..end]) }
        }
        backup.replica.adopt_tails(buffers).unwrap();
        let (_, last) = backup.replica.position();
        let promoted = serve(backup.replica);
        assert_eq!(promoted.last_lsn(), last);
        history.cut(last);
        history.assert_requests(&promoted, &format!("seed {seed}"));
        assert_holds(&promoted, &history.model(last), &format!("seed {seed}"));
        // And it is durably so.
        drop(promoted);
        there.lose_power(&mut rng);
        let reopened = serve(Backup::new(&there, 0).replica);
        assert_eq!(reopened.last_lsn(), last);
        assert_holds(&reopened, &history.model(last), &format!("seed {seed}, reopened"));
    }
}

#[test]
fn buffers_of_other_lives_are_passed_over() {
    let (here, there) = (SimDisk::new(1, DISK_BYTES), SimDisk::new(2, DISK_BYTES));
    let mut rng = Rng::new(1);
    let primary = serve(Backup::new(&here, 0).replica);
    let mut backup = Backup::new(&there, 3);
    backup.sync(&primary).unwrap();
    let mut history = History::default();
    work(&primary, &mut backup, &mut history, &mut rng, 10);
    let stale = backup.buffers.clone();
    let primary = serve(primary.into_replica().unwrap());
    assert_eq!(primary.term(), Epoch(2));
    backup.sync(&primary).unwrap();
    let before = backup.replica.position();
    assert_eq!(before, (Epoch(2), Lsn(history.last())));
    backup.replica.adopt_tails(stale).unwrap();
    backup.replica.adopt_tails(vec![Vec::new(), vec![7; 100], vec![0; 1 << 20]]).unwrap();
    assert_eq!(backup.replica.position(), before);
}

/// Replicas agree on the digest of each segment that both have, with either addressing. Damage on one is found and
/// repaired from the other, and nothing else is rewritten.
#[test]
fn replicas_prove_that_they_are_equal_and_repair_each_other() {
    let mut repaired = 0;
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        choose_options(&mut rng);
        choose_backups(BackupMode::SendIndex);
        let ([here, there], primary, mut backup) = connected(seed, DISK_BYTES, 3);
        let mut history = History::default();
        work(&primary, &mut backup, &mut history, &mut rng, 700);
        let volumes = [primary.volume().clone(), backup.volume.clone()];
        let all = |volume: &Volume| volume.digests(REGION, None, usize::MAX).expect("it has the region");
        let (mine, theirs) = (all(&volumes[0]), all(&volumes[1]));
        assert!(mine.iter().chain(&theirs).all(|digest| digest.damage.is_none()));
        let both: Vec<_> = mine.iter().filter(|one| theirs.contains(one)).collect();
        let shared = mine.iter().filter(|one| theirs.iter().any(|other| other.id == one.id)).count();
        assert_eq!(both.len(), shared, "seed {seed}");
        assert!(both.iter().any(|one| one.kind == SegmentKind::Leaf) && both.len() > 4, "seed {seed}: {}", both.len());
        for _ in 0..6 {
            let (victim, disk) = if rng.one_in(2) { (0, &here) } else { (1, &there) };
            let id = both[rng.index(both.len())].id;
            let whole = volumes[1 - victim].content(REGION, id).unwrap();
            assert!(!volumes[victim].repair(REGION, id, &whole).unwrap(), "it is sound");
            let image = Image::read(disk.open("volume").unwrap(), Some(&encryption())).unwrap().expect("a volume");
            let no = image.state().regions[&REGION].segments[&id].no;
            let place = volumes[victim].file_offset(no, rng.below(whole.len() as u64 / 2) as u32);
            disk.flip_bit("volume", place, 3);
            let found = all(&volumes[victim]);
            let damaged: Vec<_> =
                found.iter().filter(|digest| digest.damage.is_some()).map(|digest| digest.id).collect();
            if damaged.is_empty() {
                // A bit of padding, which no checksum covers.
                disk.flip_bit("volume", place, 3);
                continue;
            }
            repaired += 1;
            assert_eq!(damaged, [id], "seed {seed}");
            let mut wrong = whole.clone();
            wrong[9] ^= 1;
            let other = both.iter().find(|one| one.id != id).expect("there are several").id;
            let other = volumes[1 - victim].content(REGION, other).unwrap();
            for bad in [&wrong[..], &whole[1..], &other[..], &[]] {
                let refused = volumes[victim].repair(REGION, id, bad);
                assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
            }
            assert!(volumes[victim].repair(REGION, id, &whole).unwrap());
            assert_eq!(all(&volumes[victim]), if victim == 0 { mine.clone() } else { theirs.clone() });
        }
        assert_holds(&primary, &history.model(primary.last_lsn()), &format!("seed {seed}"));
    }
    assert!(repaired > 20, "only {repaired}");
}

#[test]
fn a_base_that_was_given_up_changes_nothing() {
    let (here, there) = (SimDisk::new(1, DISK_BYTES), SimDisk::new(2, DISK_BYTES));
    let mut rng = Rng::new(2);
    let primary = serve(Backup::new(&here, 0).replica);
    let mut backup = Backup::new(&there, 3);
    backup.sync(&primary).unwrap();
    let mut history = History::default();
    work(&primary, &mut backup, &mut history, &mut rng, 400);
    backup.replica.adopt_tails(backup.buffers.clone()).unwrap();
    let (position, have) = (backup.replica.position(), backup.replica.have());
    let used = backup.volume.usage().0;
    history.append(&primary, &mut rng).unwrap();
    primary.seal_tails();
    let pinned = primary.base();
    let missing = backup.replica.begin_base(&pinned.base).unwrap();
    assert!(!missing.is_empty());
    let error = backup.replica.install_base().unwrap_err();
    assert!(error.to_string().ends_with("was not shipped"), "{error}");
    backup.replica.abandon();
    assert_eq!((backup.replica.position(), backup.replica.have()), (position, have));
    assert_eq!(backup.volume.usage().0, used, "what was taken for it is free again");
    assert!(backup.replica.install_base().is_err());
}

#[test]
fn a_compaction_that_was_given_up_leaves_nothing_behind() {
    let (here, there) = (SimDisk::new(7, DISK_BYTES), SimDisk::new(8, DISK_BYTES));
    let mut rng = Rng::new(9);
    let primary = serve(Backup::new(&here, 0).replica);
    let mut history = History::default();
    let mut backup = Backup::new(&there, 3);
    backup.sync(&primary).unwrap();
    let mut compaction = loop {
        history.append(&primary, &mut rng).unwrap();
        history.write(&primary).unwrap();
        if let Some(compaction) = primary.next_compaction_at_once(now()) {
            break compaction;
        }
    };
    backup.mirror(&primary).unwrap();
    let (used, _) = backup.volume.usage();
    while let Step::Segment(built) = compaction.step().unwrap() {
        backup.store(&primary, (built.id, built.kind, built.segment.no()), &built.bytes).unwrap();
    }
    assert!(!compaction.built().is_empty() && backup.volume.usage().0 > used);
    backup.replica.discard(compaction.built());
    assert_eq!(backup.volume.usage().0, used);
    drop(compaction);
    assert!(backup.compact(&primary).unwrap(), "the same again, with numbers that are used again");
}

#[test]
fn messages_that_make_no_sense_are_refused() {
    let (here, there) = (SimDisk::new(1, DISK_BYTES), SimDisk::new(2, DISK_BYTES));
    let mut rng = Rng::new(3);
    let primary = serve(Backup::new(&here, 0).replica);
    let mut backup = Backup::new(&there, 3);
    let mut history = History::default();
    for _ in 0..50 {
        history.append(&primary, &mut rng).unwrap();
    }
    backup.sync(&primary).unwrap();
    history.append(&primary, &mut rng).unwrap();
    let tail = LogKind::APPENDED.into_iter().flat_map(|log| primary.tails(log)).find(|tail| !tail.sealed()).unwrap();
    let (log, id, no) = (tail.log(), tail.id(), tail.segment());
    let replica = &mut backup.replica;
    let refused = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Protocol { .. })), "{result:?}");
    refused(replica.persist_tail(log, id, 0, b"unknown tail"));
    replica.open_tail(log, id, no).unwrap();
    refused(replica.open_tail(log, id, no));
    refused(replica.persist_tail(log, id, 1, b"leaves a gap"));
    refused(replica.persist_tail(log, id, 0, &vec![0; 1 << 20]));
    refused(replica.seal_tail(log, id, 64, Lsn(1)));
    let kind = SegmentKind::Leaf;
    let (shipped, _) = wire::pack((SegmentId(77), kind, SegmentNo(9)), &[3; 8192], Codec::None);
    refused(replica.store(&shipped, &mut [3; 8192]).map(drop));
    refused(replica.store(&Shipped { bytes: 0, ..shipped }, &mut []).map(drop));
    refused(replica.store(&shipped, &mut [4; 8192]).map(drop));
    refused(replica.install(&InstallEdit { added: vec![(shipped.id, kind)], ..InstallEdit::default() }));
    let root = Some(Pointer::new(SegmentName(900), 0));
    let level = LevelState { root, ..LevelState::default() };
    refused(replica.install(&InstallEdit { levels: vec![(0, level)], ..InstallEdit::default() }));
    let logs = vec![leeward_format::manifest::LogExtent { log, id, bytes: 4096 }];
    refused(replica.install(&InstallEdit { logs, ..InstallEdit::default() }));
}

#[test]
fn a_superseded_region_changes_nothing_any_more() {
    let disk = SimDisk::new(1, DISK_BYTES);
    let mut rng = Rng::new(4);
    let old = serve(Backup::new(&disk, 0).replica);
    let mut history = History::default();
    for _ in 0..30 {
        history.append(&old, &mut rng).unwrap();
    }
    let replica = old.clone().into_replica().unwrap();
    assert_eq!(replica.position(), (Epoch(1), Lsn(history.last())));
    assert!(matches!(old.prepare_tails(), Err(Error::Superseded(REGION)) | Ok(())));
    old.seal_tails();
    let tail = LogKind::APPENDED.into_iter().flat_map(|log| old.tails(log)).next().unwrap();
    assert!(matches!(old.flush_tail(tail.log(), tail.index()), Err(Error::Superseded(REGION))));
    assert!(matches!(replica.serve(Epoch(1)), Err(Error::StaleTerm { .. })));
}

/// A full device delays a promotion: no mirrored record is lost, and the promotion succeeds once there is room.
#[test]
fn a_promotion_that_there_was_no_room_for_succeeds_later() {
    let disks = [0, 1].map(|number| SimDisk::new(number, DISK_BYTES));
    let primary = serve(Backup::new(&disks[0], 0).replica);
    let mut backup = Backup::new(&disks[1], 0);
    backup.sync(&primary).unwrap();
    let (mut history, mut rng) = (History::default(), Rng::new(6));
    for _ in 0..20 {
        history.append(&primary, &mut rng).unwrap();
    }
    // The records are mirrored, and the volume knows none of their segments.
    let tails = LogKind::APPENDED.into_iter().flat_map(|log| primary.tails(log));
    let buffers: Vec<Vec<u8>> = tails.map(|tail| tail.bytes()[..tail.filled() as usize].to_vec()).collect();
    assert!(!buffers.is_empty());
    disks[1].set_capacity(0);
    disks[1].set_faults(FaultPlan { no_room_one_in: 1, ..FaultPlan::default() });
    let mut copy = backup.replica;
    for _ in 0..3 {
        let before = copy.position();
        let Unopened { copy: again, error } = copy.promote(buffers.clone(), Epoch(2)).unwrap_err();
        assert!(matches!(error, Error::NoSpace { .. }), "{error}");
        copy = *again.expect("it is as it was");
        assert_eq!(copy.position(), before);
    }
    disks[1].set_capacity(DISK_BYTES);
    disks[1].set_faults(FaultPlan::default());
    let region = copy.promote(buffers, Epoch(2)).unwrap();
    assert_holds(&region, &history.model(primary.last_lsn()), "there is room");
}

#[test]
fn a_base_of_an_earlier_term_changes_nothing() {
    let disks = [0, 1].map(|number| SimDisk::new(number, DISK_BYTES));
    let primary = serve(Backup::new(&disks[0], 0).replica);
    let mut backup = Backup::new(&disks[1], 0);
    backup.sync(&primary).unwrap();
    let mut base = primary.base().base.clone();
    let mut copy = serve(backup.replica).into_replica().unwrap();
    assert!(matches!(copy.begin_base(&base), Err(Error::StaleTerm { term: Epoch(1), seen: Epoch(2), .. })));
    base.term = Epoch(2);
    base.terms.begin(Epoch(3), Lsn(0));
    assert!(matches!(copy.begin_base(&base), Err(Error::Protocol { .. })));
    assert_eq!(copy.position(), (Epoch(2), Lsn(0)));
}

#[test]
fn a_dropped_region_is_gone() {
    let disk = SimDisk::new(1, DISK_BYTES);
    let backup = Backup::new(&disk, 0);
    let used = backup.volume.usage().0;
    let region = serve(backup.replica);
    let mut history = History::default();
    for _ in 0..200 {
        history.append(&region, &mut Rng::new(5)).unwrap();
    }
    region.clone().into_replica().unwrap().destroy().unwrap();
    drop(region);
    assert_eq!(backup.volume.usage().0, used);
    assert!(Replica::open(&backup.volume, REGION).unwrap().is_none());
    disk.kill_process();
    assert!(open_volume(&disk).unwrap().1.is_empty());
}

//! A backup whose copy is read while it follows its primary: the copy shows the primary's state at some LSN, and pinned
//! data stays.

use crate::backup::{BUILDER, Backup, DISK_BYTES, connected, serve, work};
use crate::support::{History, Model, assert_holds, choose_backups, choose_options, read_all};
use leeward_engine::{Expiry, Lookup, Reach, Region, Snapshot, Write};
use leeward_format::cluster::BackupMode;
use leeward_format::{Lsn, UnixMs};
use leeward_platform::{Rng, SimDisk};
use std::collections::VecDeque;

/// Snapshots that are kept for a while, and their expected contents.
#[derive(Default)]
struct Pinned(VecDeque<(Snapshot, Model)>);

impl Pinned {
    fn pin(&mut self, snapshot: Snapshot, model: Model) {
        self.0.push_back((snapshot, model));
        if self.0.len() > 4 {
            self.check();
        }
    }

    fn check(&mut self) {
        let (snapshot, model) = self.0.pop_front().expect("just pinned");
        assert!(read_all(&snapshot) == model, "what was pinned at {}", snapshot.lsn());
    }
}

#[test]
fn a_copy_is_read_while_it_is_sent_the_index() {
    let (mut levels, mut beyond) = (0, 0);
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        choose_options(&mut rng);
        let builds =
            if seed % 8 == 3 { BackupMode::BuildIndex } else { BackupMode::TwoLayerLog { ordering_degree: 2 } };
        choose_backups(if seed % 4 == 3 { builds } else { BackupMode::SendIndex });
        let (_, primary, mut backup) = connected(seed, DISK_BYTES, 3);
        let (mut history, mut pinned) = (History::default(), Pinned::default());
        for round in 0..60 {
            if round == 0 || seed % 4 != 3 && rng.one_in(20) {
                backup.replica.follow(BUILDER).unwrap();
            }
            let batches = rng.between(1, 40);
            work(&primary, &mut backup, &mut history, &mut rng, batches);
            if rng.one_in(2) {
                backup.save(&primary).unwrap();
                backup.replica.run_next().unwrap();
            }
            let copy = backup.replica.reading().expect("it follows");
            let last = copy.last_lsn();
            beyond += u64::from(last < primary.last_lsn());
            assert_holds(&copy, &history.model(last), &format!("seed {seed}, round {round}"));
            let at = Lsn(last.0.saturating_sub(rng.below(30)));
            let snapshot = copy.snapshot(at, crate::support::now());
            assert!(snapshot.lsn() >= at && snapshot.lsn() <= last);
            let model = history.model(snapshot.lsn());
            pinned.pin(snapshot, model);
            levels += copy.stats().levels.len();
        }
        while !pinned.0.is_empty() {
            pinned.check();
        }
    }
    assert!(levels > 400 && beyond > 100, "{levels} levels, {beyond} copies that were behind");
}

/// Found by comparing ranges at backups that no client reads: such a copy persists its logs when a tail is full, or twice a
/// second. Levels come earlier, unless they refer to the logs. A copy that was then made readable waited for the record after
/// its levels behind records that they have, and stayed as it was until the next install.
#[test]
fn a_copy_whose_logs_are_behind_its_levels_goes_on() {
    choose_backups(BackupMode::SendIndex);
    for saved in [0, 40] {
        let (here, there) = (SimDisk::new(1, DISK_BYTES), SimDisk::new(2, DISK_BYTES));
        let primary = serve(Backup::new(&here, 0).replica);
        let mut backup = Backup::new(&there, 3);
        backup.sync(&primary).unwrap();
        for n in 1..=100_u8 {
            primary.append(&[Write::put(&[n], b"value")]).unwrap();
            backup.mirror(&primary).unwrap();
            if n == saved {
                backup.save(&primary).unwrap();
            }
        }
        primary.sync_tails().unwrap();
        primary.set_commit(primary.last_lsn());
        let compaction = primary.next_compaction_of_all(UnixMs(1)).expect("an L0");
        backup.ship(&primary, compaction, false).unwrap();
        primary.append(&[Write::put(b"later", b"value")]).unwrap();
        backup.replica.follow(BUILDER).unwrap();
        let copy = backup.replica.reading().expect("it follows");
        assert_eq!(copy.last_lsn(), Lsn(100), "what the levels have");
        backup.mirror(&primary).unwrap();
        backup.save(&primary).unwrap();
        assert_eq!(copy.last_lsn(), Lsn(101), "{saved} were saved before");
        assert_eq!(read_all(&copy.snapshot(Lsn(101), UnixMs(1))).len(), 101);
    }
}

/// Scans at backups read the newest pairs all the time: a value that only the large log has is kept in memory, as at the primary.
#[test]
fn a_copy_that_is_read_has_the_newest_large_values_in_memory() {
    choose_backups(BackupMode::SendIndex);
    let (here, there) = (SimDisk::new(1, DISK_BYTES), SimDisk::new(2, DISK_BYTES));
    let primary = serve(Backup::new(&here, 0).replica);
    let mut backup = Backup::new(&there, 3);
    backup.sync(&primary).unwrap();
    backup.replica.follow(BUILDER).unwrap();
    let value = [7; 300];
    primary.append(&[Write::put(b"large", &value), Write::put(b"small", b"value")]).unwrap();
    backup.mirror(&primary).unwrap();
    backup.save(&primary).unwrap();
    let copy = backup.replica.reading().expect("it follows");
    let found = copy.snapshot(Lsn(2), UnixMs(1)).get(b"large", Reach::Memory).unwrap();
    assert!(matches!(found, Lookup::Found { value: here, .. } if here == value[..]), "it is read from the device");
}

/// Values of each size class, overwritten again and again: a reader of an old state keeps what it sees, and no more.
#[test]
fn a_reader_of_an_old_state_keeps_nothing_that_was_written_after_it() {
    for mode in [BackupMode::SendIndex, BackupMode::BuildIndex] {
        choose_backups(mode);
        let (here, there) = (SimDisk::new(1, DISK_BYTES), SimDisk::new(2, DISK_BYTES));
        let primary = serve(Backup::new(&here, 0).replica);
        let mut backup = Backup::new(&there, 3);
        backup.sync(&primary).unwrap();
        backup.replica.follow(BUILDER).unwrap();
        let mut overwrite = |writes: std::ops::Range<u32>| {
            let mut most = [0; 2];
            for n in writes {
                let value = n.to_be_bytes().repeat([20, 30, 500][n as usize % 3]);
                primary.append(&[Write::put(&[(n % 30) as u8], &value)]).unwrap();
                primary.sync_tails().unwrap();
                primary.set_commit(primary.last_lsn());
                backup.flush(&primary).unwrap();
                backup.save(&primary).unwrap();
                while backup.compact(&primary).unwrap() {}
                for (most, volume) in most.iter_mut().zip([primary.volume(), &backup.volume]) {
                    *most = (*most).max(volume.usage().0);
                }
            }
            let copy = backup.replica.reading().expect("it follows");
            (most, [primary.snapshot(primary.last_lsn(), UnixMs(1)), copy.snapshot(copy.last_lsn(), UnixMs(1))])
        };
        let (before, snapshots) = overwrite(0..900);
        let (after, _) = overwrite(900..5400);
        for (before, after) in before.into_iter().zip(after) {
            assert!(after <= before + before / 2, "{mode:?}: {before} bytes in use before, {after} under a snapshot");
        }
        for snapshot in snapshots {
            let pairs = read_all(&snapshot);
            assert_eq!(pairs.len(), 30);
            for n in 870..900_u32 {
                let value = n.to_be_bytes().repeat([20, 30, 500][n as usize % 3]);
                let found = snapshot.get(&[(n % 30) as u8], Reach::Device).unwrap().into_value();
                assert_eq!(found.as_deref(), Some(&value[..]), "{mode:?}, write {n}");
            }
        }
    }
}

/// The primary's compaction takes pairs for expired that have not expired by the clock of the backup.
#[test]
fn a_get_and_a_scan_agree_at_a_backup_whose_clock_is_behind() {
    choose_backups(BackupMode::SendIndex);
    let (here, there) = (SimDisk::new(1, DISK_BYTES), SimDisk::new(2, DISK_BYTES));
    let primary = serve(Backup::new(&here, 0).replica);
    let mut backup = Backup::new(&there, 3);
    backup.sync(&primary).unwrap();
    backup.replica.follow(BUILDER).unwrap();
    for n in 0..60_u8 {
        let value = vec![n; [20, 80, 500][n as usize % 3]];
        let expires = Expiry::from_ms(20 + u64::from(n));
        primary.append(&[Write { expires, ..Write::put(&[n], &value) }]).unwrap();
    }
    primary.sync_tails().unwrap();
    primary.set_commit(primary.last_lsn());
    backup.mirror(&primary).unwrap();
    backup.save(&primary).unwrap();
    let copy = backup.replica.reading().expect("it follows");
    let check = |region: &Region, now: u64, expected: usize| {
        let snapshot = region.snapshot(Lsn(60), UnixMs(now));
        let scanned = read_all(&snapshot);
        assert_eq!(scanned.len(), expected);
        for n in 0..60 {
            let found = snapshot.get(&[n], Reach::Device).unwrap().into_value();
            assert_eq!(found.is_some(), scanned.contains_key(&vec![n]), "key {n} at {now}");
        }
    };
    check(&copy, 10, 60);
    backup.ship(&primary, primary.next_compaction_of_all(UnixMs(49)).expect("an L0"), true).unwrap();
    for region in [&*copy, &*primary] {
        check(region, 10, 30);
        check(region, 10, 30);
        check(region, 60, 19);
    }
}

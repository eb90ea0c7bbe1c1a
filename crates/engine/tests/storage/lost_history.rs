//! Committed records that all members lose with their power, while a backup that builds its own index has them in its
//! levels. The group goes on without them, and the backup's copy must as well.

use crate::backup::{Backup, DISK_BYTES, connected, serve, step_to_the_end, work};
use crate::support::{History, assert_holds, choose_backups, choose_options};
use leeward_engine::Replica;
use leeward_format::cluster::BackupMode;
use leeward_platform::Rng;

/// Returns the number of copies that had levels of lost records.
pub(crate) fn takes_the_history_that_went_on(seeds: std::ops::Range<u64>) -> usize {
    seeds.map(|seed| usize::from(has_lost(seed))).sum()
}

fn has_lost(seed: u64) -> bool {
    let mut rng = Rng::new(seed);
    choose_options(&mut rng);
    choose_backups([BackupMode::BuildIndex, BackupMode::TWO_LAYER_LOG][rng.index(2)]);
    let ([here, there], primary, mut backup) = connected(seed, DISK_BYTES, 5);
    let mut history = History::default();
    work(&primary, &mut backup, &mut history, &mut rng, 100);
    backup.flush(&primary).unwrap();
    primary.sync_tails().unwrap();
    // The primary does not sync these, and the backup compacts them.
    for _ in 0..40 {
        history.append(&primary, &mut rng).unwrap();
    }
    history.write(&primary).unwrap();
    backup.mirror(&primary).unwrap();
    backup.save(&primary).unwrap();
    backup.replica.set_committed(primary.commit());
    let copy = backup.replica.building().expect("it builds");
    while step_to_the_end(&copy).unwrap() {}
    backup.replica.run_next().unwrap();
    let lost = copy.last_lsn();
    drop((copy, primary));
    here.lose_power(&mut rng);
    let primary = serve(Backup::new(&here, 0).replica);
    let is_lost = primary.last_lsn() < lost;
    history.cut(primary.last_lsn());
    drop(backup);
    there.kill_process();
    let mut backup = Backup::new(&there, 5);
    let term = primary.term();
    assert!(Replica::position(&backup.replica).0 < term, "seed {seed}: a later term");
    for _ in 0..30 {
        history.append(&primary, &mut rng).unwrap();
    }
    history.write(&primary).unwrap();
    backup.sync(&primary).unwrap();
    work(&primary, &mut backup, &mut history, &mut rng, 40);
    while backup.compact(&primary).unwrap() {}
    let copy = backup.replica.building().expect("it builds");
    assert_holds(&copy, &history.model(copy.last_lsn()), &format!("seed {seed}"));
    drop(copy);
    let buffers = backup.buffers.clone();
    backup.replica.adopt_tails(buffers).unwrap();
    let promoted = serve(backup.replica);
    assert_holds(&promoted, &history.model(promoted.last_lsn()), &format!("seed {seed}, promoted"));
    is_lost
}

#[test]
fn a_copy_keeps_no_levels_of_records_that_the_group_has_lost() {
    let lost = takes_the_history_that_went_on(0..30);
    assert!(lost > 10, "{lost} copies had lost records");
}

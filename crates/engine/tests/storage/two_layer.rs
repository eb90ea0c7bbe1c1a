//! A backup whose copy is a two-layer log: it has no more sorted runs than its ordering degree allows, more of them mean
//! less writing, and it is promoted as it is.

use crate::backup::{Backup, DISK_BYTES, serve, work};
use crate::support::{History, assert_holds, choose_backups, choose_options};
use leeward_engine::Region;
use leeward_format::cluster::BackupMode;
use leeward_format::manifest::{LevelState, PIECES};
use leeward_platform::{Rng, SimDisk};

/// Sorted runs, without pieces, and pieces.
fn runs(region: &Region) -> (usize, usize) {
    let levels = region.stats().levels;
    let count = |levels: &[LevelState]| levels.iter().filter(|level| level.root.is_some()).count();
    let (pieces, runs) = levels.split_at(PIECES.min(levels.len()));
    (count(runs), count(pieces))
}

/// Bytes that the backup's compactions wrote with this ordering degree, and the most runs and pieces that it had.
fn written(seed: u64, ordering_degree: u8) -> (u64, usize, usize) {
    let mut rng = Rng::new(seed);
    choose_options(&mut rng);
    choose_backups(BackupMode::TwoLayerLog { ordering_degree });
    let (here, there) = (SimDisk::new(seed, DISK_BYTES), SimDisk::new(seed + 1, DISK_BYTES));
    let primary = serve(Backup::new(&here, 0).replica);
    let mut backup = Backup::new(&there, 5);
    backup.sync(&primary).unwrap();
    let mut history = History::default();
    let mut most = (0, 0);
    for round in 0..60 {
        work(&primary, &mut backup, &mut history, &mut rng, 80);
        while backup.compact(&primary).unwrap() {}
        let copy = backup.replica.building().expect("it builds");
        let (runs, pieces) = runs(&copy);
        most = (most.0.max(runs), most.1.max(pieces));
        assert!(runs <= usize::from(ordering_degree), "{runs} runs in round {round}");
        assert!(pieces < 20 && (ordering_degree > 1 || pieces == 0), "{pieces} pieces in round {round}");
        assert_holds(&copy, &history.model(copy.last_lsn()), &format!("seed {seed}, round {round}"));
    }
    let bytes = backup.replica.building().expect("it builds").stats().compactions.bytes_written;
    let buffers = backup.buffers.clone();
    backup.replica.adopt_tails(buffers).unwrap();
    let promoted = serve(backup.replica);
    assert_holds(&promoted, &history.model(promoted.last_lsn()), &format!("seed {seed}, promoted"));
    (bytes, most.0, most.1)
}

#[test]
fn a_copy_has_as_many_runs_as_its_ordering_degree_allows() {
    for seed in 0..4 {
        let [(sorted, one, _), (some, few, _), (least, many, pieces)] = [1, 2, 12].map(|degree| written(seed, degree));
        assert!((one, few) == (1, 2) && many > 3 && pieces > 0, "seed {seed}: {one}, {few} and {many} runs");
        assert!(sorted > some && some > least, "seed {seed}: {sorted}, {some} and {least} bytes written");
    }
}

//! A backup whose copy is a two-layer log: it has no more sorted runs than its ordering degree allows, more of them mean
//! less writing, and it is promoted as it is.

use crate::backup::{DISK_BYTES, connected, serve, work};
use crate::support::{History, assert_holds, choose_backups, choose_options};
use leeward_engine::Region;
use leeward_format::cluster::BackupMode;
use leeward_format::manifest::{LevelState, PIECES};
use leeward_platform::Rng;

/// Sorted runs, without pieces, and pieces.
fn runs(region: &Region) -> (usize, usize) {
    let levels = region.stats().levels;
    let count = |levels: &[LevelState]| levels.iter().filter(|level| level.root.is_some()).count();
    let (pieces, runs) = levels.split_at(PIECES.min(levels.len()));
    (count(runs), count(pieces))
}

/// What the backup's compactions did with this ordering degree.
struct Copied {
    bytes_written: u64,
    /// The most runs and pieces at a time.
    runs: usize,
    pieces: usize,
    /// How often all runs were merged.
    merges: u64,
}

fn copied(seed: u64, ordering_degree: u8) -> Copied {
    let mut rng = Rng::new(seed);
    choose_options(&mut rng);
    choose_backups(BackupMode::TwoLayerLog { ordering_degree });
    let (_, primary, mut backup) = connected(seed, DISK_BYTES, 5);
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
    let totals = backup.replica.building().expect("it builds").stats().compactions;
    let buffers = backup.buffers.clone();
    backup.replica.adopt_tails(buffers).unwrap();
    let promoted = serve(backup.replica);
    assert_holds(&promoted, &history.model(promoted.last_lsn()), &format!("seed {seed}, promoted"));
    Copied { bytes_written: totals.bytes_written, runs: most.0, pieces: most.1, merges: totals.run_merges }
}

#[test]
fn a_copy_has_as_many_runs_as_its_ordering_degree_allows() {
    for seed in 0..4 {
        let [one, few, many] = [1, 2, 12].map(|degree| copied(seed, degree));
        let [runs, merges] =
            [[one.runs, few.runs, many.runs], [one.merges, few.merges, many.merges].map(|n| n as usize)];
        assert!(runs[..2] == [1, 2] && runs[2] > 3 && many.pieces > 0, "seed {seed}: {runs:?} runs");
        let bytes = [&one, &few, &many].map(|copied| copied.bytes_written);
        assert!(bytes[0] > bytes[1] && bytes[1] > bytes[2], "seed {seed}: {bytes:?} bytes written");
        assert!(merges[0] > merges[1] && merges[1] > merges[2], "seed {seed}: {merges:?} merges");
    }
}

//! `leeward_bench::faults` with a real cluster: primaries are killed while the table changes, and nothing is lost.

use leeward_bench::faults::{self, Options};
use leeward_bench::replication::CellOptions;
use leeward_bench::starter::Starter;
use std::time::Duration;

#[test]
fn nothing_is_lost_while_modes_change_and_primaries_die() {
    let directory = tempfile::tempdir().expect("a directory");
    let json = directory.path().join("result.json");
    let options = Options {
        only: vec!["send-index".into(), "3".into()],
        kills: 0,
        every: Duration::from_millis(100),
        records: 3000,
        cell: CellOptions { l0_kib: None, nodes: 3, memory_mib: 64, regions: 2, threads: 2, depth: 8 },
        json: Some(json.clone()),
    };
    let starter = Starter::new(env!("CARGO_BIN_EXE_leeward").into(), None).expect("a directory");
    let is_clean = faults::run(&options, &starter).expect("it runs");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).expect("it was written")).expect("it is JSON");
    let run = &report["runs"][0];
    assert!(is_clean && report["runs"][1].is_null(), "{report}");
    let figures = ["kills", "changes", "errors", "lost_writes", "replica_faults"].map(|name| run[name].as_u64());
    assert_eq!(figures, [6, 6, 0, 0, 0].map(Some), "{run}");
}

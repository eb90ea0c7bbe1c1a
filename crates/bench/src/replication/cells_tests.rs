//! Medians over rounds, and the names of the JSON.

use super::*;
use crate::keys::Mix;
use crate::report::{PhaseReport, tests as report_tests};

/// A sample of `variant` with `kops` thousand operations a second, and one CPU-second of compactions of a backup.
pub(in super::super) fn sample(variant: &'static str, round: u32, workload: &str, kops: f64) -> Sample {
    let phase = report_tests::report().phases.remove(0);
    let phase = PhaseReport { workload: workload.into(), settled_ops_per_second: kops * 1000.0, ..phase };
    Sample { setup: Setup::new(variant, Mix::SD, 2, 8), round, phase }
}

#[test]
fn a_cell_is_the_median_of_its_rounds() {
    let samples: Vec<Sample> =
        [(1, 9.0), (2, 3.0), (3, 5.0)].map(|(round, kops)| sample("send-index", round, "load", kops)).into();
    let cells = cells(&samples);
    assert_eq!(cells.len(), 1);
    assert_eq!((cells[0].rounds, cells[0].ops_per_second, cells[0].levels), (3, 5000.0, 4));
}

#[test]
fn the_json_has_the_names_that_scripts_rely_on() {
    let samples = [sample("send-index", 1, "load", 5.0), sample("none", 1, "a", 7.0)];
    let json = serde_json::to_value(cells(&samples)).expect("plain data");
    let cell = &json[0];
    for (name, value) in [("mode", "send-index"), ("addressing", "physical"), ("mix", "sd"), ("workload", "load")] {
        assert_eq!(cell[name], value);
    }
    assert_eq!((&cell["replicas"], &cell["growth_factor"]), (&2.into(), &8.into()));
    assert_eq!(cell["ops_per_second"], 5000.0);
    assert_eq!(cell["client_ops_per_second"], 500.0);
    assert_eq!(cell["cpu_seconds_per_million_ops"], 2000.0);
    assert_eq!(cell["backup_index_cpu_seconds_per_million_ops"], 1000.0);
    assert_eq!(cell["backup_index_bytes_read"], 0.0);
    assert_eq!((&cell["io_amplification"], &cell["network_amplification"]), (&6.5.into(), &3.0.into()));
    for percentile in ["p50", "p99", "p999", "p9999"] {
        assert!(cell["latency_us"][percentile].as_f64().is_some_and(|us| us > 99.0), "{percentile}");
    }
    assert_eq!(cell["cpu"][0]["activity"], "compaction");
    assert_eq!((&json[1]["mode"], &json[1]["replicas"]), (&"none".into(), &1.into()));
    assert!(json[1]["addressing"].is_null());
}

#[test]
fn what_backups_do_for_mirrored_records_is_not_for_their_index() {
    let mut phase = sample("send-index", 1, "load", 1.0).phase;
    for (activity, role) in [("mirroring", "backup"), ("compaction", "primary"), ("engine", "backup")] {
        let spent = crate::report::CpuSeconds { activity: activity.into(), role: role.into(), seconds: 0.5 };
        phase.server_cpu.as_mut().expect("it is told").push(spent);
    }
    assert_eq!(Figure::BackupIndexCpu.of(&phase), Some(1500.0));
}

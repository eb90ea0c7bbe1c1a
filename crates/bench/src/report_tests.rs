//! The names of the JSON, and what is absent.

use super::{Backups, PhaseReport, Report};
use crate::meter::Totals;
use crate::options::Options;
use crate::settle::Settled;
use crate::verify::Verified;
use crate::worker::Measured;
use crate::workload::{Kind, Workload};
use hdrhistogram::Histogram;
use leeward_client::Traffic;
use serde_json::Value;

pub(crate) fn measured() -> Measured {
    let mut measured = Measured::new();
    for (kind, nanoseconds) in [(Kind::Read, 100_000), (Kind::Update, 200_000)] {
        let mut histogram = Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("bounds");
        histogram.record_n(nanoseconds, 500).expect("in bounds");
        measured.latency.insert(kind, histogram);
    }
    measured.ops = 1000;
    measured.user_bytes = 1_000_000;
    measured.traffic = Traffic { sent: 400_000, received: 600_000 };
    measured
}

pub(crate) fn totals() -> Totals {
    let mut totals = Totals::default();
    totals.all.user_ticks = Some(150);
    totals.all.system_ticks = Some(50);
    totals.all.read_bytes = Some(500_000);
    totals.all.written_bytes = Some(6_000_000);
    totals.all.engine_read_bytes = Some(500_000);
    totals.all.engine_written_bytes = Some(6_000_000);
    totals.all.fabric_bytes = Some(2_000_000);
    totals.primaries.index_bytes_shipped = 700;
    totals.backups.index_bytes_received = 700;
    totals.backups.index_bytes_rewritten = 700;
    totals.levels = 3;
    totals
}

/// Servers that had settled after `waited` seconds and spent a CPU-second on merging for backups.
pub(crate) fn settled(totals: Totals, waited: f64) -> Settled {
    let cpu = [(("compaction".to_owned(), "backup".to_owned()), 1_000_000_000)];
    Settled { totals, cpu: Some(cpu.into()), waited, worked: waited }
}

pub(crate) fn report() -> Report {
    let mut report = Report::new(&Options::default());
    report.add_phase(PhaseReport::new(Workload::A, &measured(), 2.0, &settled(totals(), 0.5)));
    report
}

fn json(report: &Report) -> Value {
    serde_json::to_value(report).expect("plain data")
}

#[test]
fn the_json_has_the_names_that_scripts_rely_on() {
    let mut report = report();
    report.set_verified(&Verified { records: 10, ..Verified::default() });
    let json = json(&report);
    assert_eq!(json["errors"], 0);
    assert_eq!(json["lost_writes"], 0);
    let phase = &json["phases"][0];
    assert_eq!(phase["workload"], "a");
    assert_eq!(phase["ops"], 1000);
    assert_eq!(phase["errors"], 0);
    assert_eq!(phase["ops_per_second"], 500.0);
    assert_eq!(phase["settled_ops_per_second"], 400.0);
    assert_eq!(phase["server_cpu"][0]["activity"], "compaction");
    assert_eq!(phase["server_cpu"][0]["role"], "backup");
    assert_eq!(phase["server_cpu"][0]["seconds"], 1.0);
    for (kind, us) in [("read", 100.0), ("update", 200.0)] {
        for percentile in ["p50", "p99", "p999", "max"] {
            let found = phase["latency_us"][kind][percentile].as_f64().expect(percentile);
            assert!((found - us).abs() < us * 0.001, "{kind} {percentile}: {found}");
        }
    }
    assert_eq!(phase["server_cpu_seconds_per_million_ops"], 2000.0);
    assert_eq!(phase["io_amplification"]["read"], 0.5);
    assert_eq!(phase["io_amplification"]["write"], 6.0);
    assert_eq!(phase["network_amplification"], 3.0);
    for holder in [phase, &json] {
        assert_eq!(holder["backups"]["compactions"], 0);
        assert_eq!(holder["backups"]["index_bytes_read"], 0);
        assert_eq!(holder["backups"]["index_bytes_shipped"], 700);
        assert_eq!(holder["backups"]["index_bytes_rewritten"], 700);
    }
    for figure in ["server_cpu_seconds_per_million_ops", "io_amplification", "network_amplification"] {
        assert_eq!(json[figure], phase[figure], "one phase is all phases");
    }
}

#[test]
fn what_was_not_measured_is_null() {
    let mut report = Report::new(&Options::default());
    report.add_phase(PhaseReport::new(Workload::C, &measured(), 2.0, &settled(Totals::default(), 0.0)));
    let json = json(&report);
    assert_eq!(json["lost_writes"], Value::Null);
    let phase = &json["phases"][0];
    assert_eq!(phase["latency_us"]["scan"], Value::Null);
    for absent in ["server_cpu_seconds_per_million_ops", "network_amplification"] {
        assert_eq!(phase[absent], Value::Null);
    }
    assert_eq!(phase["io_amplification"]["write"], Value::Null);
    assert!(report.to_string().contains(" - "), "{report}");
}

#[test]
fn sums_weigh_phases_by_their_size() {
    let mut report = report();
    let large = Measured { ops: 9000, user_bytes: 9_000_000, ..Measured::new() };
    report.add_phase(PhaseReport::new(Workload::B, &large, 2.0, &settled(totals(), 0.5)));
    assert_eq!(report.server_cpu_seconds_per_million_ops, Some(400.0));
    assert_eq!(report.io_amplification.write, Some(1.2));
    let Backups { index_bytes_shipped, .. } = report.backups;
    assert_eq!(index_bytes_shipped, 1400);
}

#[test]
fn failures_are_errors_wherever_they_happen() {
    let mut report = report();
    assert!(report.is_clean());
    let mut bad = measured();
    bad.misses = 2;
    bad.errors = 1;
    report.add_phase(PhaseReport::new(Workload::B, &bad, 1.0, &settled(totals(), 0.0)));
    assert_eq!(report.errors, 3);
    report.set_verified(&Verified {
        records: 9,
        lost: 1,
        newest_lost: None,
        errors: 4,
        details: vec!["record 7 is gone".into()],
    });
    assert_eq!((report.errors, report.lost_writes), (7, Some(1)));
    assert!(!report.is_clean());
    let text = report.to_string();
    assert!(text.contains("record 7 is gone") && text.contains("7 errors, 1 lost writes"), "{text}");
}

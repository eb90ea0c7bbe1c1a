//! The text that Prometheus reads: every role is there, and figures add up by role.

use super::*;
use leeward_format::status::{DeviceStatus, PeerStatus, RegionCounters};
use leeward_format::{RegionId, ServerId};

fn region(role: Role, counters: RegionCounters) -> RegionStatus {
    RegionStatus { region: RegionId(4), role, counters, ..RegionStatus::default() }
}

#[test]
fn figures_add_up_by_role_and_zeros_are_told() {
    let primary = RegionCounters {
        compactions: 2,
        index_bytes_shipped: 100,
        stall_tail_ns: 1_500_000_000,
        stall_slowed_ns: 250_000_000,
        ..Default::default()
    };
    let backup = RegionCounters { index_bytes_rewritten: 100, index_bytes_received: 100, ..Default::default() };
    let mut status = NodeStatus {
        regions: vec![region(Role::Primary, primary), region(Role::Primary, primary), region(Role::Backup, backup)],
        ..NodeStatus::default()
    };
    status.device = Some(DeviceStatus { bytes_written: 77, ..DeviceStatus::default() });
    let spent = |role: &str, nanos| CpuSpent { activity: "compaction".into(), role: role.into(), nanos };
    status.cpu = Some(CpuStatus { process_ns: 0, spent: vec![spent("primary", 2_500_000_000), spent("backup", 0)] });
    (status.memory.budget, status.memory.l0s) = (1000, 50);
    (status.cache.record_bytes, status.cache.index_bytes) = (30, 7);
    status.regions[0].peers.push(PeerStatus { server: ServerId(3), lag_bytes: 12, ..PeerStatus::default() });
    let text = crate::commands::new_metrics().encode(&status);
    for line in [
        "leeward_compactions_total{role=\"primary\"} 4",
        "leeward_compactions_total{role=\"backup\"} 0",
        "leeward_compaction_read_bytes_total{role=\"backup\"} 0",
        "leeward_index_read_bytes_total{role=\"backup\"} 0",
        "leeward_index_shipped_bytes_total{role=\"primary\"} 200",
        "leeward_index_rewritten_bytes_total{role=\"backup\"} 100",
        "leeward_write_stall_seconds_total{role=\"primary\",reason=\"log-tail\"} 3.0",
        "leeward_write_stall_seconds_total{role=\"primary\",reason=\"l0-full\"} 0.0",
        "leeward_write_stall_seconds_total{role=\"primary\",reason=\"slowed\"} 0.5",
        "leeward_replication_lag_bytes{region=\"4\",peer=\"3\"} 12",
        "leeward_device_written_bytes_total 77",
        "leeward_memory_budget_bytes 1000",
        "leeward_cpu_seconds_total{activity=\"compaction\",role=\"primary\"} 2.5",
        "leeward_cpu_seconds_total{activity=\"compaction\",role=\"backup\"} 0.0",
        "leeward_memory_bytes{purpose=\"l0s\"} 50",
        "leeward_memory_bytes{purpose=\"cache\"} 0",
        "leeward_cache_bytes{contents=\"records\"} 30",
        "leeward_cache_bytes{contents=\"indexes\"} 7",
        "leeward_cache_bytes{contents=\"objects\"} 0",
        "leeward_regions{role=\"backup\"} 1",
        "leeward_connections{protocol=\"resp\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in:\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn commands_are_counted_by_name_and_timed_by_class() {
    let metrics = crate::commands::new_metrics();
    let position = |name| crate::commands::all().iter().position(|spec| spec.name == name);
    metrics.command(position("get"), 30_000, false);
    metrics.command(position("set"), 3_000_000, true);
    metrics.command(None, 1, true);
    metrics.resp_connections().opened();
    let text = metrics.encode(&NodeStatus::default());
    for line in [
        "leeward_commands_total{command=\"get\"} 1",
        "leeward_commands_failed_total{command=\"set\"} 1",
        "leeward_commands_total{command=\"unknown\"} 1",
        "leeward_command_seconds_bucket{le=\"0.00005\",class=\"read\"} 1",
        "leeward_command_seconds_count{class=\"write\"} 1",
        "leeward_connections{protocol=\"resp\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in:\n{text}");
    }
    assert_eq!(metrics.totals(), Totals { commands: 3, failed: 2, connections: 1, refused: 0 });
}

#[test]
fn no_metric_is_described_twice() {
    let text = crate::commands::new_metrics().encode(&NodeStatus::default());
    let mut described: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let count = described.len();
    described.sort_unstable();
    described.dedup();
    assert_eq!(described.len(), count);
}

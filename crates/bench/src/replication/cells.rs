//! Measurements: samples, one a round, and the cells of the JSON, which are medians over the rounds.

use super::figure::Figure;
use super::plan::Setup;
use super::variants::{Variant, variant};
use crate::figures::median;
use crate::report::PhaseReport;
use crate::starter::Link;
use serde::Serialize;

#[cfg(test)]
#[path = "cells_tests.rs"]
pub(super) mod tests;

/// One workload on one cluster in one round.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) setup: Setup,
    pub(crate) round: u32,
    pub(crate) phase: PhaseReport,
}

/// CPU-seconds per million operations of the activities and roles that `is_it` selects.
pub(crate) fn cpu(phase: &PhaseReport, is_it: impl Fn(&str, &str) -> bool) -> Option<f64> {
    let spent = phase.server_cpu.as_ref()?.iter().filter(|spent| is_it(&spent.activity, &spent.role));
    Some(spent.map(|spent| spent.seconds).sum::<f64>() * 1e6 / phase.ops.max(1) as f64)
}

/// Values of `figure` of a cell, each with the number of its round.
pub(crate) fn values(
    samples: &[Sample],
    setup: Setup,
    workload: &str,
    figure: impl Fn(&PhaseReport) -> Option<f64>,
) -> Vec<(u32, f64)> {
    let of_cell = samples.iter().filter(|sample| sample.setup == setup && sample.phase.workload == workload);
    of_cell.filter_map(|sample| Some((sample.round, figure(&sample.phase)?))).collect()
}

/// Median over all rounds; `None` if there are no values.
pub(crate) fn middle(values: &[(u32, f64)]) -> Option<f64> {
    median(values.iter().map(|(_, value)| *value).collect())
}

/// One cell. A figure is `null` if the servers did not report it.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Name of the variant.
    pub variant: &'static str,
    /// `none`, `build-index`, `send-index` or `two-layer-log`.
    pub mode: &'static str,
    /// How pointers of a shipped index are made valid; `null` where none is shipped.
    pub addressing: Option<&'static str>,
    /// Preset of the table.
    pub preset: String,
    /// How nodes and clients reach each other.
    pub link: Link,
    /// Mix of pair sizes.
    pub mix: String,
    /// `load`, `a`, `c`, `c-2` or `c-3` (reads of so many members), `recovery`.
    pub workload: String,
    /// Nodes and regions, if the experiment says how many.
    pub nodes: Option<u32>,
    /// See there.
    pub regions: Option<u32>,
    /// Copies of a region, the primary's included.
    pub replicas: u32,
    /// How much larger each level is than the one above.
    pub growth_factor: u32,
    /// Rounds that the medians are over.
    pub rounds: usize,
    /// Operations per second, until the servers had settled.
    pub ops_per_second: f64,
    /// The same until the last answer.
    pub client_ops_per_second: f64,
    /// CPU time of all servers.
    pub cpu_seconds_per_million_ops: Option<f64>,
    /// CPU time by activity and role.
    pub cpu: Vec<CpuShare>,
    /// CPU time of backups for their index.
    pub backup_index_cpu_seconds_per_million_ops: Option<f64>,
    /// Bytes that backups read from their devices for their index.
    pub backup_index_bytes_read: Option<f64>,
    /// Device bytes, read and written, for each user byte.
    pub io_amplification: Option<f64>,
    /// Of them, those read.
    pub read_amplification: Option<f64>,
    /// Of them, those written.
    pub write_amplification: Option<f64>,
    /// Network bytes for each user byte.
    pub network_amplification: Option<f64>,
    /// Latency of all operations.
    pub latency_us: Percentiles,
    /// Peak memory of the L0s of all replicas together.
    pub l0_bytes: Option<f64>,
    /// The same of backups.
    pub backup_l0_bytes: Option<f64>,
    /// Bytes of index that a backup wrote for each user byte.
    pub index_write_amplification_of_a_copy: Option<f64>,
    /// Bytes of segments of all nodes, once the servers had settled.
    pub space_bytes: Option<f64>,
    /// Most sorted runs of a backup's copy.
    pub sorted_runs: Option<f64>,
    /// Fewest merges of all runs of a backup's copy.
    pub run_merges: Option<f64>,
    /// What happened when a node died; `null` in other workloads.
    pub recovery: Option<RecoveryFigures>,
    /// Fewest levels in any round, L0 included.
    pub levels: u32,
}

/// CPU time of one activity in one role.
#[derive(Clone, Debug, Serialize)]
pub struct CpuShare {
    /// `receive`, `compaction` and so on, as nodes report it.
    pub activity: String,
    /// `primary`, `backup` or `node`.
    pub role: String,
    /// CPU-seconds for a million operations.
    pub seconds_per_million_ops: f64,
}

/// The death of a node, and its return with an empty volume.
#[derive(Clone, Debug, Serialize)]
pub struct RecoveryFigures {
    /// Longest time until a region took a write again.
    pub outage_ms: Option<f64>,
    /// Reads in the ten seconds after that, as a part of those before the kill.
    pub reads_after: Option<f64>,
    /// Until all members were in sync.
    pub in_sync_seconds: f64,
    /// Bytes sent to the node in that time, as a part of what its device takes.
    pub in_sync_speed: Option<f64>,
}

/// Percentiles in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Percentiles {
    /// Half were faster.
    pub p50: Option<f64>,
    /// 99 % were faster.
    pub p99: Option<f64>,
    /// 99.9 % were faster.
    pub p999: Option<f64>,
    /// 99.99 % were faster.
    pub p9999: Option<f64>,
}

/// All cells, in the order in which they were first measured.
pub(crate) fn cells(samples: &[Sample]) -> Vec<Cell> {
    let mut keys: Vec<(Setup, &str)> = Vec::new();
    for sample in samples {
        let key = (sample.setup, &*sample.phase.workload);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.into_iter().map(|(setup, workload)| cell(samples, setup, workload)).collect()
}

fn cell(samples: &[Sample], setup: Setup, workload: &str) -> Cell {
    let of = |figure: Figure| middle(&values(samples, setup, workload, |phase| figure.of(phase)));
    let rounds = samples.iter().filter(|sample| sample.setup == setup && sample.phase.workload == workload);
    let Variant { name, mode, addressing, preset, link, .. } = variant(setup.variant);
    Cell {
        variant: name,
        mode,
        addressing: *addressing,
        preset: format!("{preset:?}").to_lowercase(),
        link: *link,
        mix: setup.mix.to_string(),
        workload: workload.to_owned(),
        nodes: setup.shape.nodes,
        regions: setup.shape.regions,
        replicas: setup.replicas,
        growth_factor: setup.growth_factor,
        rounds: rounds.clone().count(),
        ops_per_second: of(Figure::Throughput).unwrap_or(0.0) * 1000.0,
        client_ops_per_second: of(Figure::ClientThroughput).unwrap_or(0.0) * 1000.0,
        cpu_seconds_per_million_ops: of(Figure::Cpu),
        cpu: shares(samples, setup, workload),
        backup_index_cpu_seconds_per_million_ops: of(Figure::BackupIndexCpu),
        backup_index_bytes_read: of(Figure::BackupIndexRead).map(|mebibytes| mebibytes * f64::from(1 << 20)),
        io_amplification: of(Figure::IoAmplification),
        read_amplification: of(Figure::ReadAmplification),
        write_amplification: of(Figure::WriteAmplification),
        network_amplification: of(Figure::NetworkAmplification),
        latency_us: Percentiles {
            p50: of(Figure::P50),
            p99: of(Figure::P99),
            p999: of(Figure::P999),
            p9999: of(Figure::P9999),
        },
        l0_bytes: of(Figure::L0).map(|kibibytes| kibibytes * 1024.0),
        backup_l0_bytes: of(Figure::BackupL0).map(|kibibytes| kibibytes * 1024.0),
        index_write_amplification_of_a_copy: of(Figure::BackupIndexWritten),
        space_bytes: of(Figure::Space).map(|mebibytes| mebibytes * f64::from(1 << 20)),
        sorted_runs: of(Figure::Runs),
        run_merges: of(Figure::RunMerges),
        recovery: of(Figure::InSync).map(|in_sync_seconds| RecoveryFigures {
            outage_ms: of(Figure::Outage),
            reads_after: of(Figure::ReadsAfter),
            in_sync_seconds,
            in_sync_speed: of(Figure::InSyncSpeed),
        }),
        levels: rounds.map(|sample| levels(&sample.phase)).min().unwrap_or(0),
    }
}

/// Levels that hold data, L0 included.
pub(crate) fn levels(phase: &PhaseReport) -> u32 {
    phase.levels + 1
}

/// CPU time by activity and role, medians over the rounds.
pub(crate) fn shares(samples: &[Sample], setup: Setup, workload: &str) -> Vec<CpuShare> {
    let mut accounts: Vec<(&str, &str)> = Vec::new();
    for spent in
        samples.iter().filter(|sample| sample.setup == setup).filter_map(|s| s.phase.server_cpu.as_ref()).flatten()
    {
        if !accounts.contains(&(&spent.activity, &spent.role)) {
            accounts.push((&spent.activity, &spent.role));
        }
    }
    let share = |(activity, role): (&str, &str)| {
        let of_it = |phase: &PhaseReport| cpu(phase, |of, for_whom| of == activity && for_whom == role);
        let seconds_per_million_ops = middle(&values(samples, setup, workload, of_it))?;
        Some(CpuShare { activity: activity.to_owned(), role: role.to_owned(), seconds_per_million_ops })
    };
    accounts.into_iter().filter_map(share).collect()
}

//! Measurements: samples, one a round; figures of samples; and the cells of the JSON, which are medians over the
//! rounds.

use super::plan::{Link, Setup, Variant, variant};
use crate::figures::median;
use crate::report::PhaseReport;
use serde::Serialize;

#[cfg(test)]
#[path = "cells_tests.rs"]
pub(super) mod tests;

/// Activities by which a backup gets its index.
const INDEX: [&str; 3] = ["engine", "compaction", "rewriting"];
/// Activities of receiving requests and sending answers.
const CLIENTS: [&str; 2] = ["receive", "send"];

/// One workload on one cluster in one round.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) setup: Setup,
    pub(crate) round: u32,
    pub(crate) phase: PhaseReport,
}

/// A figure of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Thousands of operations per second, until the servers had settled.
    Throughput,
    /// The same until the last answer.
    ClientThroughput,
    /// CPU-seconds of all servers for a million operations.
    Cpu,
    /// Of those, what went into receiving requests and sending answers.
    ClientCpu,
    /// Of those, what backups spent on their index.
    BackupIndexCpu,
    /// MiB that backups read from their devices for their index.
    BackupIndexRead,
    /// Device bytes read for each user byte.
    ReadAmplification,
    /// Device bytes written for each user byte.
    WriteAmplification,
    /// Both together.
    IoAmplification,
    /// Network bytes for each user byte.
    NetworkAmplification,
    /// Median of latencies, in microseconds.
    P50,
    /// 99th percentile of latencies, in microseconds.
    P99,
    /// 99.9th percentile, in microseconds.
    P999,
    /// 99.99th percentile, in microseconds.
    P9999,
    /// Peak size of the L0s of all replicas together, in KiB.
    L0,
}

impl Figure {
    /// Every figure, in the order of the report.
    pub(crate) const ALL: [Figure; 15] = [
        Figure::Throughput,
        Figure::ClientThroughput,
        Figure::Cpu,
        Figure::ClientCpu,
        Figure::BackupIndexCpu,
        Figure::BackupIndexRead,
        Figure::IoAmplification,
        Figure::ReadAmplification,
        Figure::WriteAmplification,
        Figure::NetworkAmplification,
        Figure::P50,
        Figure::P99,
        Figure::P999,
        Figure::P9999,
        Figure::L0,
    ];

    /// Its name in file names.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Figure::Throughput => "throughput",
            Figure::ClientThroughput => "client-throughput",
            Figure::Cpu => "cpu",
            Figure::ClientCpu => "client-cpu",
            Figure::BackupIndexCpu => "backup-index-cpu",
            Figure::BackupIndexRead => "backup-index-read",
            Figure::ReadAmplification => "read-amplification",
            Figure::WriteAmplification => "write-amplification",
            Figure::IoAmplification => "io-amplification",
            Figure::NetworkAmplification => "network-amplification",
            Figure::P50 => "p50",
            Figure::P99 => "p99",
            Figure::P999 => "p999",
            Figure::P9999 => "p9999",
            Figure::L0 => "l0",
        }
    }

    /// Its title, with the unit.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Figure::Throughput => "Throughput until the servers have settled, thousands of operations a second",
            Figure::ClientThroughput => "Throughput until the last answer, thousands of operations a second",
            Figure::Cpu => "CPU-seconds of all servers per million operations",
            Figure::ClientCpu => "Of them, what receiving requests and sending answers takes",
            Figure::BackupIndexCpu => "Of them, what backups spend on their index",
            Figure::BackupIndexRead => "Device reads of backups for their index, MiB",
            Figure::ReadAmplification => "Device bytes read per user byte",
            Figure::WriteAmplification => "Device bytes written per user byte",
            Figure::IoAmplification => "I/O amplification, device bytes per user byte",
            Figure::NetworkAmplification => "Network amplification, bytes per user byte",
            Figure::P50 => "p50, microseconds",
            Figure::P99 => "p99, microseconds",
            Figure::P999 => "p99.9, microseconds",
            Figure::P9999 => "p99.99, microseconds",
            Figure::L0 => "L0s of all replicas, most KiB",
        }
    }

    /// Its value; `None` if the servers did not report it.
    pub(crate) fn of(self, phase: &PhaseReport) -> Option<f64> {
        let io = phase.io_amplification;
        match self {
            Figure::Throughput => Some(phase.settled_ops_per_second / 1000.0),
            Figure::ClientThroughput => Some(phase.ops_per_second / 1000.0),
            Figure::Cpu => phase.server_cpu_seconds_per_million_ops,
            Figure::ClientCpu => cpu(phase, |activity, _| CLIENTS.contains(&activity)),
            Figure::BackupIndexCpu => {
                let is_index = |activity: &str, role: &str| role == "backup" && INDEX.contains(&activity);
                cpu(phase, is_index)
            }
            Figure::BackupIndexRead => Some(phase.backups.index_bytes_read as f64 / f64::from(1 << 20)),
            Figure::ReadAmplification => io.read,
            Figure::WriteAmplification => io.write,
            Figure::IoAmplification => Some(io.read? + io.write?),
            Figure::NetworkAmplification => phase.network_amplification,
            Figure::P50 => Some(phase.latency_us_of_all?.p50),
            Figure::P99 => Some(phase.latency_us_of_all?.p99),
            Figure::P999 => Some(phase.latency_us_of_all?.p999),
            Figure::P9999 => Some(phase.latency_us_of_all?.p9999),
            Figure::L0 => Some(phase.l0_bytes as f64 / 1024.0),
        }
    }
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

/// Their median.
pub(crate) fn middle(values: &[(u32, f64)]) -> Option<f64> {
    median(values.iter().map(|(_, value)| *value).collect())
}

/// One cell. A figure is `null` if the servers did not report it.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Name of the variant.
    pub variant: &'static str,
    /// `none`, `build-index` or `send-index`.
    pub mode: &'static str,
    /// How pointers of a shipped index are made valid; `null` where none is shipped.
    pub addressing: Option<&'static str>,
    /// Preset of the table.
    pub preset: String,
    /// How nodes and clients reach each other.
    pub link: Link,
    /// Mix of pair sizes.
    pub mix: String,
    /// `load` or `a`.
    pub workload: String,
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
    /// Fewest levels in any round, L0 included.
    pub levels: u32,
}

/// CPU time of one activity in one role.
#[derive(Clone, Debug, Serialize)]
pub struct CpuShare {
    /// The activity.
    pub activity: String,
    /// The role.
    pub role: String,
    /// CPU-seconds for a million operations.
    pub seconds_per_million_ops: f64,
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

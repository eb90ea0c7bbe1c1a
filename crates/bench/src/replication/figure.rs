//! Figures of a phase, by which variants are compared. Plain data; any thread.

use super::cells::cpu;
use crate::report::{PhaseReport, Recovery};
use serde::Serialize;

/// Activities by which a backup gets its index.
const INDEX: [&str; 3] = ["engine", "compaction", "rewriting"];
/// Activities of receiving requests and sending answers.
const CLIENTS: [&str; 2] = ["receive", "send"];
const KIB: f64 = 1024.0;
const MIB: f64 = KIB * KIB;

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
    /// Of those, what nodes spent as primaries.
    PrimaryCpu,
    /// Reads that a hash index answered, as a part of all operations.
    DirectReads,
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
    /// The same of backups.
    BackupL0,
    /// Bytes of index that a backup writes for each user byte: C, with build-index.
    BackupIndexWritten,
    /// MiB of segments of all nodes, once the servers have settled.
    Space,
    /// Most sorted runs of a backup's copy.
    Runs,
    /// Fewest merges of all runs of a backup's copy.
    RunMerges,
    /// Longest time until a region of a killed primary took a write, in milliseconds.
    Outage,
    /// Reads after the outage, as a part of those before.
    ReadsAfter,
    /// Milliseconds from the first answer of a new primary to the first read from its hash index.
    FirstHit,
    /// Microseconds a key until it has all pairs.
    FillTime,
    /// Seconds until a node with an empty volume was in sync.
    InSync,
    /// Bytes sent to it in that time, as a part of what its device takes.
    InSyncSpeed,
}

impl Figure {
    /// Every figure, in the order of the report.
    pub(crate) const ALL: [Figure; 28] = [
        Figure::Throughput,
        Figure::ClientThroughput,
        Figure::Cpu,
        Figure::ClientCpu,
        Figure::PrimaryCpu,
        Figure::DirectReads,
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
        Figure::BackupL0,
        Figure::BackupIndexWritten,
        Figure::Space,
        Figure::Runs,
        Figure::RunMerges,
        Figure::Outage,
        Figure::ReadsAfter,
        Figure::FirstHit,
        Figure::FillTime,
        Figure::InSync,
        Figure::InSyncSpeed,
    ];

    /// Its name in file names.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Figure::Throughput => "throughput",
            Figure::ClientThroughput => "client-throughput",
            Figure::Cpu => "cpu",
            Figure::ClientCpu => "client-cpu",
            Figure::PrimaryCpu => "primary-cpu",
            Figure::DirectReads => "direct-reads",
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
            Figure::BackupL0 => "backup-l0",
            Figure::BackupIndexWritten => "backup-index-written",
            Figure::Space => "space",
            Figure::Runs => "runs",
            Figure::RunMerges => "run-merges",
            Figure::Outage => "outage",
            Figure::ReadsAfter => "reads-after",
            Figure::FirstHit => "first-hit",
            Figure::FillTime => "fill-time",
            Figure::InSync => "in-sync",
            Figure::InSyncSpeed => "in-sync-speed",
        }
    }

    /// Its title, with the unit.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Figure::Throughput => "Throughput until the servers have settled, thousands of operations a second",
            Figure::ClientThroughput => "Throughput until the last answer, thousands of operations a second",
            Figure::Cpu => "CPU-seconds of all servers per million operations",
            Figure::ClientCpu => "Of them, what receiving requests and sending answers takes",
            Figure::PrimaryCpu => "Of them, what nodes spend as primaries",
            Figure::DirectReads => "Reads that a hash index answered, as a part of all operations",
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
            Figure::BackupL0 => "L0s of backups, most KiB",
            Figure::BackupIndexWritten => "Bytes of index that a backup writes per user byte (C, of build-index)",
            Figure::Space => "Space of all nodes once they have settled, MiB",
            Figure::Runs => "Sorted runs of a backup's copy, most",
            Figure::RunMerges => "Merges of all runs of a backup's copy, fewest",
            Figure::Outage => "Outage of a region whose primary is killed, longest, milliseconds",
            Figure::ReadsAfter => "Reads in the 10 s after it, as a part of those before",
            Figure::FirstHit => {
                "From the first answer of a new primary to the first read from its hash index, milliseconds"
            }
            Figure::FillTime => "Until that index has all pairs, microseconds a key",
            Figure::InSync => "Until a node with an empty volume is in sync, seconds",
            Figure::InSyncSpeed => "Bytes sent to it in that time, as a part of what its device takes",
        }
    }

    /// Whether only some experiments have it: the others are reported without it.
    pub(crate) fn is_rare(self) -> bool {
        use Figure::{DirectReads, FillTime, FirstHit, InSync, InSyncSpeed, Outage, ReadsAfter, RunMerges};
        matches!(self, DirectReads | FillTime | FirstHit | RunMerges | Outage | ReadsAfter | InSync | InSyncSpeed)
    }

    /// Its value; `None` if the servers did not report it.
    pub(crate) fn of(self, phase: &PhaseReport) -> Option<f64> {
        let io = phase.io_amplification;
        match self {
            Figure::Throughput => Some(phase.settled_ops_per_second / 1000.0),
            Figure::ClientThroughput => Some(phase.ops_per_second / 1000.0),
            Figure::Cpu => phase.server_cpu_seconds_per_million_ops,
            Figure::ClientCpu => cpu(phase, |activity, _| CLIENTS.contains(&activity)),
            Figure::PrimaryCpu => cpu(phase, |_, role| role == "primary"),
            Figure::DirectReads => Some(phase.direct_reads as f64 / phase.ops.max(1) as f64),
            Figure::BackupIndexCpu => {
                let is_index = |activity: &str, role: &str| role == "backup" && INDEX.contains(&activity);
                cpu(phase, is_index)
            }
            Figure::BackupIndexRead => Some(phase.backups.index_bytes_read as f64 / MIB),
            Figure::ReadAmplification => io.read,
            Figure::WriteAmplification => io.write,
            Figure::IoAmplification => Some(io.read? + io.write?),
            Figure::NetworkAmplification => phase.network_amplification,
            Figure::P50 => Some(phase.latency_us_of_all?.p50),
            Figure::P99 => Some(phase.latency_us_of_all?.p99),
            Figure::P999 => Some(phase.latency_us_of_all?.p999),
            Figure::P9999 => Some(phase.latency_us_of_all?.p9999),
            Figure::L0 => Some(phase.l0_bytes as f64 / KIB),
            Figure::BackupL0 => Some(phase.backup_l0_bytes as f64 / KIB),
            // While a node recovers, clients only read.
            Figure::BackupIndexWritten if phase.recovery.is_some() => None,
            Figure::BackupIndexWritten => phase.index_write_amplification_of_a_copy,
            Figure::Space => Some(phase.space_bytes? as f64 / MIB),
            Figure::Runs => Some(phase.sorted_runs as f64),
            Figure::RunMerges => Some(phase.run_merges as f64),
            Figure::Outage => Some(phase.recovery?.outage_seconds? * 1000.0),
            Figure::ReadsAfter => {
                let Recovery { reads_per_second_after, reads_per_second_before, .. } = phase.recovery?;
                Some(reads_per_second_after / reads_per_second_before)
            }
            Figure::FirstHit => Some(phase.rebuild?.first_hit_seconds * 1000.0),
            Figure::FillTime => phase.rebuild?.fill_us_a_key,
            Figure::InSync => Some(phase.recovery?.in_sync_seconds),
            Figure::InSyncSpeed => {
                let Recovery { sync_bytes, in_sync_seconds, device_bytes_per_second, .. } = phase.recovery?;
                Some(sync_bytes as f64 / in_sync_seconds / device_bytes_per_second)
            }
        }
    }
}

//! The report of a run, and its JSON. Plain data; [`crate::table`] shows it to people.
//!
//! Names in the JSON never change; new ones may be added. A figure that could not be measured, or did not occur, is
//! `null`, never zero.

use crate::figures::new_histogram;
use crate::kills::Kill;
use crate::meter::{RoleSpent, Totals};
use crate::options::Options;
use crate::process::{Amount, seconds};
use crate::settle::Settled;
use crate::verify::Verified;
use crate::worker::Measured;
use crate::workload::{Kind, Workload};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

#[cfg(test)]
#[path = "report_tests.rs"]
pub(crate) mod tests;

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Mix of pair sizes.
    pub mix: String,
    /// Records asked for.
    pub records: u64,
    /// Client threads.
    pub threads: usize,
    /// Operations that each thread kept under way.
    pub depth: usize,
    /// Operations that failed for good, in all phases and in reading back.
    pub errors: u64,
    /// Records with a value, or without one, that the acknowledged writes rule out. `None` without `--verify`.
    pub lost_writes: Option<u64>,
    /// Writes that were lost with a killed primary, as a table with `last-flush` allows. `None` for other tables.
    pub newest_lost: Option<u64>,
    /// Segments that are damaged, or differ between the replicas of a region. `None` if replicas were not compared.
    pub replica_faults: Option<u64>,
    /// Records read back.
    pub verified_records: Option<u64>,
    /// Server CPU of all phases.
    pub server_cpu_seconds_per_million_ops: Option<f64>,
    /// Device bytes over user bytes, all phases.
    pub io_amplification: IoAmplification,
    /// Network bytes over user bytes, all phases.
    pub network_amplification: Option<f64>,
    /// Work of the backups, all phases.
    pub backups: Backups,
    /// The phases, in order.
    pub phases: Vec<PhaseReport>,
    /// Processes killed, in order.
    pub kills: Vec<Kill>,
    /// The first few losses, for people.
    #[serde(skip)]
    pub(crate) details: Vec<String>,
}

/// One phase.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseReport {
    /// `load`, `a` to `f`.
    pub workload: String,
    /// Operations done, failed ones included.
    pub ops: u64,
    /// Operations that failed for good, and reads that did not find the record.
    pub errors: u64,
    /// The first failure.
    pub first_error: Option<String>,
    /// Seconds from the first operation to the last answer.
    pub seconds: f64,
    /// Seconds that the servers went on working after the last answer.
    pub settle_seconds: f64,
    /// Operations a second.
    pub ops_per_second: f64,
    /// The same until the servers had settled, so that the work that they do after the last answer counts as well.
    pub settled_ops_per_second: f64,
    /// Latency by kind of operation.
    pub latency_us: LatencyByOperation,
    /// Latency of all operations together.
    pub latency_us_of_all: Option<Latency>,
    /// User and system time of all server processes.
    pub server_cpu_seconds_per_million_ops: Option<f64>,
    /// Of it, user time.
    pub server_user_cpu_seconds: Option<f64>,
    /// Of it, system time.
    pub server_system_cpu_seconds: Option<f64>,
    /// CPU time by activity and role.
    pub server_cpu: Option<Vec<CpuSeconds>>,
    /// Bytes of keys and values written, read and scanned.
    pub user_bytes: u64,
    /// Device bytes, by the processes' own I/O accounting.
    pub device_bytes: DeviceBytes,
    /// Device bytes, by the engine's count.
    pub engine_device_bytes: DeviceBytes,
    /// Device bytes over user bytes.
    pub io_amplification: IoAmplification,
    /// Bytes sent and received by servers, between each other and with the clients.
    pub network_bytes: Option<u64>,
    /// Network bytes over user bytes.
    pub network_amplification: Option<f64>,
    /// Work in the role of primary.
    pub primaries: RoleFigures,
    /// Work in the role of backup.
    pub backups: Backups,
    /// Levels of the deepest region.
    pub levels: u32,
    /// Peak memory of the L0s of all replicas together, of the samples taken each second.
    pub l0_bytes: u64,
    /// The same of backups.
    pub backup_l0_bytes: u64,
    /// Bytes of the segments of all nodes when the servers had settled.
    pub space_bytes: Option<u64>,
    /// Bytes of index that a backup wrote for each byte that clients wrote, per copy. With `build-index`, how often a
    /// byte is written by flushes and compactions.
    pub index_write_amplification_of_a_copy: Option<f64>,
    /// Most sorted runs of a backup's copy, of the samples taken each second.
    pub sorted_runs: u64,
    /// Fewest merges of all runs of a backup's copy. 0 unless it is a two-layer log.
    pub run_merges: u64,
    /// Reads that backups answered, and that might be stale.
    pub stale_reads: Option<u64>,
    /// Reads that clients answered from hash indexes.
    pub direct_reads: u64,
    /// What happened when a node died. `None` in all but the recovery of `leeward bench replication`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// What happened when a primary with a hash index died. `None` in all but that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebuild: Option<Rebuild>,
}

/// The death of a primary whose hash index clients read.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rebuild {
    /// Seconds from the kill until a region of it answered a get.
    pub served_seconds: f64,
    /// Seconds from then until a get was answered from the new primary's hash index.
    pub first_hit_seconds: f64,
    /// Microseconds a pair from then until the index had grown to its end.
    pub fill_us_a_key: Option<f64>,
    /// Pairs that it had then, as a part of those of its regions.
    pub filled: f64,
}

/// The death of a node while clients read, and the return of another with an empty volume.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Recovery {
    /// Longest time, over the regions of which it was primary, from the kill to the first acknowledged write, in
    /// seconds; `None`: a region acknowledged none in time.
    pub outage_seconds: Option<f64>,
    /// Reads a second in the ten seconds after the outage.
    pub reads_per_second_after: f64,
    /// Reads a second before the kill.
    pub reads_per_second_before: f64,
    /// Seconds from the start of the node with an empty volume until every region had all of its members.
    pub in_sync_seconds: f64,
    /// Bytes of segments sent to it.
    pub sync_bytes: u64,
    /// Bytes a second that a device takes in order, which are slower than the links between processes of one machine.
    pub device_bytes_per_second: f64,
}

/// CPU time of all servers for one activity in one role.
#[derive(Clone, Debug, Serialize)]
pub struct CpuSeconds {
    /// `receive`, `compaction` and so on, as nodes report it.
    pub activity: String,
    /// The role: `primary`, `backup` or `node`.
    pub role: String,
    /// Seconds.
    pub seconds: f64,
}

/// Latencies of the kinds of operation; `null` for a kind that did not occur.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LatencyByOperation {
    /// Reads.
    pub read: Option<Latency>,
    /// Updates.
    pub update: Option<Latency>,
    /// Inserts.
    pub insert: Option<Latency>,
    /// Scans.
    pub scan: Option<Latency>,
    /// Read-modify-writes, both steps together.
    pub rmw: Option<Latency>,
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// Operations.
    pub count: u64,
    /// Half were faster.
    pub p50: f64,
    /// 99 % were faster.
    pub p99: f64,
    /// 99.9 % were faster.
    pub p999: f64,
    /// 99.99 % were faster.
    pub p9999: f64,
    /// No operation was slower.
    pub max: f64,
}

/// Bytes read from and written to devices.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct DeviceBytes {
    /// Bytes read.
    pub read: Option<u64>,
    /// Bytes written.
    pub write: Option<u64>,
}

/// Device bytes over user bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct IoAmplification {
    /// Bytes read for each user byte.
    pub read: Option<f64>,
    /// Bytes written for each user byte.
    pub write: Option<f64>,
}

/// Work in one role.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RoleFigures {
    /// Compactions finished.
    pub compactions: u64,
    /// Bytes that compactions read.
    pub compaction_bytes_read: u64,
    /// Bytes that compactions wrote.
    pub compaction_bytes_written: u64,
    /// Bytes of leaf and index segments sent to backups.
    pub index_bytes_shipped: u64,
    /// Bytes of whole segments sent to bring a backup in sync.
    pub sync_bytes_shipped: u64,
    /// Seconds during which writes waited for compactions or log tails, over all regions.
    pub stall_seconds: f64,
}

/// Work of the backups for their index.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Backups {
    /// Compactions finished. 0 with `send-index`, where a backup does not compact.
    pub compactions: u64,
    /// Bytes that compactions wrote.
    pub compaction_bytes_written: u64,
    /// Bytes read from backups' devices for their index. 0 with `send-index`.
    pub index_bytes_read: u64,
    /// Bytes of leaf and index segments that primaries shipped to backups.
    pub index_bytes_shipped: u64,
    /// Bytes of them that arrived.
    pub index_bytes_received: u64,
    /// Bytes of them whose pointers were translated.
    pub index_bytes_rewritten: u64,
}

impl Report {
    pub(crate) fn new(options: &Options) -> Report {
        Report {
            mix: options.mix.to_string(),
            records: options.records,
            threads: options.threads,
            depth: options.depth,
            errors: 0,
            lost_writes: None,
            newest_lost: None,
            replica_faults: None,
            verified_records: None,
            server_cpu_seconds_per_million_ops: None,
            io_amplification: IoAmplification::default(),
            network_amplification: None,
            backups: Backups::default(),
            phases: Vec::new(),
            kills: Vec::new(),
            details: Vec::new(),
        }
    }

    pub(crate) fn add_phase(&mut self, phase: PhaseReport) {
        self.errors += phase.errors;
        self.phases.push(phase);
        let phases = &self.phases;
        let over = |figure: fn(&PhaseReport) -> Option<u64>| {
            ratio(phases.iter().map(figure).sum::<Option<u64>>()?, phases.iter().map(|phase| phase.user_bytes).sum())
        };
        let cpu = |phase: &PhaseReport| Some(phase.server_user_cpu_seconds? + phase.server_system_cpu_seconds?);
        let ops: u64 = phases.iter().map(|phase| phase.ops).sum();
        let cpu_seconds: Option<f64> = phases.iter().map(cpu).sum();
        self.server_cpu_seconds_per_million_ops = cpu_seconds.and_then(|seconds| per_million(seconds, ops));
        self.io_amplification = IoAmplification {
            read: over(|phase| phase.device_bytes.read),
            write: over(|phase| phase.device_bytes.write),
        };
        self.network_amplification = over(|phase| phase.network_bytes);
        let total = |figure: fn(&PhaseReport) -> u64| phases.iter().map(figure).sum();
        self.backups = Backups {
            compactions: total(|phase| phase.backups.compactions),
            compaction_bytes_written: total(|phase| phase.backups.compaction_bytes_written),
            index_bytes_read: total(|phase| phase.backups.index_bytes_read),
            index_bytes_shipped: total(|phase| phase.backups.index_bytes_shipped),
            index_bytes_received: total(|phase| phase.backups.index_bytes_received),
            index_bytes_rewritten: total(|phase| phase.backups.index_bytes_rewritten),
        };
    }

    pub(crate) fn set_verified(&mut self, verified: &Verified) {
        self.lost_writes = Some(verified.lost);
        self.newest_lost = verified.newest_lost;
        self.verified_records = Some(verified.records);
        self.errors += verified.errors;
        self.details.clone_from(&verified.details);
    }

    pub(crate) fn set_compared(&mut self, faults: &[String]) {
        self.replica_faults = Some(faults.len() as u64);
        self.details.extend(faults.iter().cloned());
    }

    /// Whether no operation failed, no acknowledged write was lost that the table may not lose, and replicas are the
    /// same.
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && self.lost_writes.unwrap_or(0) == 0 && self.replica_faults.unwrap_or(0) == 0
    }

    /// Descriptions of the first few losses and differences.
    pub fn details(&self) -> &[String] {
        &self.details
    }
}

impl PhaseReport {
    pub(crate) fn new(workload: Workload, measured: &Measured, seconds_taken: f64, settled: &Settled) -> PhaseReport {
        let totals = &settled.totals;
        let user = totals.all.user_ticks.map(seconds);
        let system = totals.all.system_ticks.map(seconds);
        let cpu = user.zip(system).and_then(|(user, system)| per_million(user + system, measured.ops));
        let over = |bytes: Amount| ratio(bytes?, measured.user_bytes);
        let clients = measured.traffic.sent + measured.traffic.received;
        let network_bytes = totals.all.fabric_bytes.map(|fabric| fabric + clients);
        let missed = (measured.misses > 0).then(|| {
            format!(
                "{} reads did not find their record: was it loaded with the same --records and --mix?",
                measured.misses
            )
        });
        PhaseReport {
            workload: workload.to_string(),
            ops: measured.ops,
            errors: measured.errors + measured.misses,
            first_error: measured.first_error.clone().or(missed),
            seconds: seconds_taken,
            settle_seconds: settled.waited,
            ops_per_second: measured.ops as f64 / seconds_taken.max(1e-9),
            settled_ops_per_second: measured.ops as f64 / (seconds_taken + settled.worked).max(1e-9),
            latency_us: LatencyByOperation::new(measured),
            latency_us_of_all: of_all(measured),
            server_cpu_seconds_per_million_ops: cpu,
            server_user_cpu_seconds: user,
            server_system_cpu_seconds: system,
            server_cpu: settled.cpu.as_ref().map(|cpu| cpu.iter().map(CpuSeconds::new).collect()),
            user_bytes: measured.user_bytes,
            device_bytes: DeviceBytes { read: totals.all.read_bytes, write: totals.all.written_bytes },
            engine_device_bytes: DeviceBytes {
                read: totals.all.engine_read_bytes,
                write: totals.all.engine_written_bytes,
            },
            io_amplification: IoAmplification {
                read: over(totals.all.read_bytes),
                write: over(totals.all.written_bytes),
            },
            network_bytes,
            network_amplification: over(network_bytes),
            primaries: RoleFigures::new(&totals.primaries),
            backups: Backups {
                compactions: totals.backups.compactions,
                compaction_bytes_written: totals.backups.compaction_bytes_written,
                index_bytes_read: totals.backups.index_bytes_read,
                index_bytes_shipped: totals.primaries.index_bytes_shipped,
                index_bytes_received: totals.backups.index_bytes_received,
                index_bytes_rewritten: totals.backups.index_bytes_rewritten,
            },
            levels: totals.levels,
            l0_bytes: totals.l0_bytes,
            backup_l0_bytes: totals.backup_l0_bytes,
            space_bytes: totals.space_bytes,
            index_write_amplification_of_a_copy: index_write_amplification(totals),
            sorted_runs: totals.sorted_runs,
            run_merges: totals.least_run_merges,
            stale_reads: totals.all.stale_reads,
            direct_reads: measured.direct_reads,
            recovery: None,
            rebuild: None,
        }
    }
}

impl CpuSeconds {
    fn new(((activity, role), nanos): (&(String, String), &u64)) -> CpuSeconds {
        CpuSeconds { activity: activity.clone(), role: role.clone(), seconds: *nanos as f64 / 1e9 }
    }
}

fn of_all(measured: &Measured) -> Option<Latency> {
    let mut sum = new_histogram();
    for histogram in measured.latency.values() {
        sum.add(histogram).expect("all histograms have the same bounds");
    }
    (!sum.is_empty()).then(|| Latency::new(&sum))
}

impl LatencyByOperation {
    fn new(measured: &Measured) -> LatencyByOperation {
        let of = |kind: Kind| measured.latency.get(&kind).map(Latency::new);
        LatencyByOperation {
            read: of(Kind::Read),
            update: of(Kind::Update),
            insert: of(Kind::Insert),
            scan: of(Kind::Scan),
            rmw: of(Kind::ReadModifyWrite),
        }
    }
}

impl Latency {
    /// Percentiles of a histogram of nanoseconds.
    pub fn new(histogram: &Histogram<u64>) -> Latency {
        let us = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Latency {
            count: histogram.len(),
            p50: us(0.5),
            p99: us(0.99),
            p999: us(0.999),
            p9999: us(0.9999),
            max: histogram.max() as f64 / 1000.0,
        }
    }
}

impl RoleFigures {
    fn new(spent: &RoleSpent) -> RoleFigures {
        RoleFigures {
            compactions: spent.compactions,
            compaction_bytes_read: spent.compaction_bytes_read,
            compaction_bytes_written: spent.compaction_bytes_written,
            index_bytes_shipped: spent.index_bytes_shipped,
            sync_bytes_shipped: spent.sync_bytes_shipped,
            stall_seconds: spent.stall_ns as f64 / 1e9,
        }
    }
}

/// Of a backup's copy: every region is written alike, so it is the mean.
fn index_write_amplification(totals: &Totals) -> Option<f64> {
    let written = totals.primaries.user_bytes as f64 * totals.backup_copies as f64 / totals.regions.max(1) as f64;
    (written > 0.0).then(|| totals.backups.compaction_bytes_written as f64 / written)
}

fn ratio(bytes: u64, user_bytes: u64) -> Option<f64> {
    (user_bytes > 0).then(|| bytes as f64 / user_bytes as f64)
}

fn per_million(cpu_seconds: f64, ops: u64) -> Option<f64> {
    (ops > 0).then(|| cpu_seconds * 1e6 / ops as f64)
}

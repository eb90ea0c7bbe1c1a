//! The tables of a report, for people: absent figures are `-`.

use crate::kills::Kill;
use crate::report::{Latency, LatencyByOperation, PhaseReport, Report, RoleFigures};
use crate::workload::Kind;
use std::fmt;

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;

/// The engine's count of device bytes and the kernel's may differ by this fraction.
const AGREE_WITHIN: f64 = 0.05;
/// Fewer bytes are too few to compare.
const LITTLE: u32 = 8 << 20;

impl LatencyByOperation {
    fn rows(&self) -> [(&'static str, Option<Latency>); 5] {
        Kind::ALL.map(|kind| match kind {
            Kind::Read => ("read", self.read),
            Kind::Update => ("update", self.update),
            Kind::Insert => ("insert", self.insert),
            Kind::Scan => ("scan", self.scan),
            Kind::ReadModifyWrite => ("rmw", self.rmw),
        })
    }
}

/// A figure with two decimals, or `-` where it is absent.
fn figure(value: impl Into<Option<f64>>) -> String {
    value.into().map_or_else(|| "-".into(), |value| format!("{value:.2}"))
}

fn mebibytes(bytes: impl Into<Option<u64>>) -> String {
    bytes.into().map_or_else(|| "-".into(), |bytes| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)))
}

impl fmt::Display for PhaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PhaseReport { workload, ops, errors, seconds, settle_seconds, .. } = self;
        let rate = self.ops_per_second;
        writeln!(f, "\n{workload}: {ops} ops in {seconds:.2} s, {rate:.0} ops/s, {errors} errors")?;
        if let Some(error) = &self.first_error {
            writeln!(f, "  first error  {error}")?;
        }
        writeln!(f, "  {:<11}{:>11}{:>11}{:>11}{:>11}{:>11}", "latency us", "count", "p50", "p99", "p99.9", "max")?;
        for (name, latency) in self.latency_us.rows() {
            if let Some(Latency { count, p50, p99, p999, max, .. }) = latency {
                writeln!(f, "  {name:<11}{count:>11}{p50:>11.0}{p99:>11.0}{p999:>11.0}{max:>11.0}")?;
            }
        }
        let cpu = figure(self.server_cpu_seconds_per_million_ops);
        let (user, system) = (figure(self.server_user_cpu_seconds), figure(self.server_system_cpu_seconds));
        writeln!(f, "  server CPU   {cpu} s per million ops ({user} s user, {system} s system)")?;
        let (read, write) = (figure(self.io_amplification.read), figure(self.io_amplification.write));
        let (read_bytes, write_bytes) = (mebibytes(self.device_bytes.read), mebibytes(self.device_bytes.write));
        writeln!(f, "  device       {read} read, {write} written per user byte ({read_bytes}, {write_bytes})")?;
        let (read, write) = (mebibytes(self.engine_device_bytes.read), mebibytes(self.engine_device_bytes.write));
        let differ = [
            (self.device_bytes.read, self.engine_device_bytes.read),
            (self.device_bytes.write, self.engine_device_bytes.write),
        ];
        let note = if differ.into_iter().any(|(kernel, engine)| differs(kernel, engine)) {
            ": the kernel's count above differs, see docs/benchmark.md"
        } else {
            ""
        };
        writeln!(f, "  engine says  {read} read, {write} written{note}")?;
        let (network, bytes) = (figure(self.network_amplification), mebibytes(self.network_bytes));
        writeln!(f, "  network      {network} per user byte ({bytes}; user data {})", mebibytes(self.user_bytes))?;
        let RoleFigures { compactions, compaction_bytes_read, compaction_bytes_written, .. } = self.primaries;
        writeln!(
            f,
            "  primaries    {} compactions read {}, wrote {}; shipped {}; writes stalled {} s; {} levels",
            compactions,
            mebibytes(compaction_bytes_read),
            mebibytes(compaction_bytes_written),
            mebibytes(self.primaries.index_bytes_shipped),
            figure(self.primaries.stall_seconds),
            self.levels
        )?;
        writeln!(
            f,
            "  backups      {} compactions, {} read for the index; rewrote {} of {} received",
            self.backups.compactions,
            mebibytes(self.backups.index_bytes_read),
            mebibytes(self.backups.index_bytes_rewritten),
            mebibytes(self.backups.index_bytes_received)
        )?;
        writeln!(f, "  settled      {settle_seconds:.2} s after the last answer")
    }
}

/// Whether the two counts of device bytes differ too much.
fn differs(kernel: Option<u64>, engine: Option<u64>) -> bool {
    kernel.zip(engine).is_some_and(|(kernel, engine)| {
        let larger = kernel.max(engine) as f64;
        larger > f64::from(LITTLE) && (kernel.abs_diff(engine) as f64) > larger * AGREE_WITHIN
    })
}

impl fmt::Display for Kill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.server)?;
        for (region, seconds) in self.regions.iter().zip(&self.unavailable_seconds) {
            match seconds {
                Some(seconds) => write!(f, ", region {region} unavailable for {seconds:.3} s")?,
                None => write!(f, ", region {region} unavailable until the deadline")?,
            }
        }
        match self.recovery_seconds {
            Some(seconds) => write!(f, "; it was restarted at once and recovered in {seconds:.3} s")?,
            None => write!(f, ", all in sync {:.2} s after the restart", self.in_sync_seconds)?,
        }
        self.changed.as_ref().map_or(Ok(()), |changed| write!(f, "; the table was changed: {changed}"))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<6}{:>11}{:>11}{:>9}{:>9}{:>9}{:>10}{:>10}{:>10}{:>10}",
            "phase", "ops", "ops/s", "p50 us", "p99 us", "p99.9", "CPU s/Mop", "dev read", "dev write", "network"
        )?;
        for phase in &self.phases {
            let busiest =
                phase.latency_us.rows().into_iter().filter_map(|(_, latency)| latency).max_by_key(|l| l.count);
            let us = |figure: fn(&Latency) -> f64| {
                busiest.as_ref().map_or_else(|| "-".into(), |l| format!("{:.0}", figure(l)))
            };
            writeln!(
                f,
                "{:<6}{:>11}{:>11.0}{:>9}{:>9}{:>9}{:>10}{:>10}{:>10}{:>10}",
                phase.workload,
                phase.ops,
                phase.ops_per_second,
                us(|l| l.p50),
                us(|l| l.p99),
                us(|l| l.p999),
                figure(phase.server_cpu_seconds_per_million_ops),
                figure(phase.io_amplification.read),
                figure(phase.io_amplification.write),
                figure(phase.network_amplification)
            )?;
        }
        if self.phases.iter().any(|phase| phase.workload != "load") && self.phases.iter().all(|phase| phase.levels < 2)
        {
            writeln!(f, "note: the data is too small to reach a second level, so this says little about compaction")?;
        }
        for detail in &self.details {
            writeln!(f, "{detail}")?;
        }
        match self.lost_writes.zip(self.verified_records) {
            Some((lost, records)) => {
                let allowed = self.newest_lost.map_or_else(String::new, |newest| {
                    format!("; {newest} of the newest went with a primary, as last-flush allows")
                });
                writeln!(f, "{} errors, {lost} lost writes ({records} records read back{allowed})", self.errors)
            }
            None => writeln!(f, "{} errors; lost writes were not looked for (--verify)", self.errors),
        }
    }
}

//! Leeward against RocksDB: the targets, whether Leeward meets them, and where any rival is ahead. The figures are ratios of
//! medians of one comparison. Missed targets are listed like the others.

use crate::cells::Group;
use crate::engine::EngineName;
use crate::measurement::Measurement;
use crate::work::Work;
use leeward_bench::Workload::{self, A, B, C, D, E, F};
use leeward_bench::median;
use serde::Serialize;

#[cfg(test)]
#[path = "targets_tests.rs"]
mod tests;

/// Mixes that have targets, in the order of the bounds below.
pub(crate) const MIXES: [&str; 3] = ["sd", "s", "l"];

/// A figure of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    /// Operations a second.
    Throughput,
    /// CPU-seconds for a million operations.
    Cpu,
    /// Device bytes read for each user byte.
    ReadAmplification,
    /// Device bytes written for each user byte.
    WriteAmplification,
    /// Bytes on the device for each live byte.
    Space,
    /// 99.9th percentile of the latency of writes.
    WriteP999,
    /// 99.9th percentile of the latency of reads and scans.
    ReadP999,
}

impl Figure {
    /// Every figure, in the order of the report.
    pub(crate) const ALL: [Figure; 7] = [
        Figure::Throughput,
        Figure::Cpu,
        Figure::ReadAmplification,
        Figure::WriteAmplification,
        Figure::Space,
        Figure::WriteP999,
        Figure::ReadP999,
    ];

    /// Its name, with the unit.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Figure::Throughput => "Throughput, thousands of operations a second",
            Figure::Cpu => "CPU-seconds per million operations",
            Figure::ReadAmplification => "Read amplification, device bytes per user byte",
            Figure::WriteAmplification => "Write amplification, device bytes per user byte",
            Figure::Space => "Space amplification, device bytes per live byte",
            Figure::WriteP999 => "p99.9 of writes, microseconds",
            Figure::ReadP999 => "p99.9 of reads and scans, microseconds",
        }
    }

    /// Its name in a table and in file names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Figure::Throughput => "throughput",
            Figure::Cpu => "cpu",
            Figure::ReadAmplification => "read-amplification",
            Figure::WriteAmplification => "write-amplification",
            Figure::Space => "space",
            Figure::WriteP999 => "write-p999",
            Figure::ReadP999 => "read-p999",
        }
    }

    /// Its value; `None` if no such operation occurred.
    pub(crate) fn of(self, measurement: &Measurement) -> Option<f64> {
        match self {
            Figure::Throughput => Some(measurement.ops_per_second() / 1000.0),
            Figure::Cpu => Some(measurement.cpu_seconds_per_million_ops()),
            Figure::ReadAmplification => Some(measurement.read_amplification()),
            Figure::WriteAmplification => Some(measurement.write_amplification()),
            Figure::Space => Some(measurement.space_amplification()),
            Figure::WriteP999 => Some(measurement.write_latency_us?.p999),
            Figure::ReadP999 => Some(measurement.read_latency_us?.p999),
        }
    }

    /// Whether a value, or a ratio, of this figure is as good as `bound`.
    fn reaches(self, value: f64, bound: f64) -> bool {
        if self == Figure::Throughput { value >= bound } else { value <= bound }
    }
}

/// Bounds of one row: figure, workload, and the ratio to reach for each of [`MIXES`]. Where it was reached before it became a
/// target, the bound is the ratio of then and 3 % more.
const TARGETS: [(Figure, Work, [f64; 3]); 26] = [
    (Figure::Throughput, LOAD, [3.5, 3.5, 4.0]),
    (Figure::Throughput, Work::Ycsb(A), [3.0, 1.8, 2.3]),
    (Figure::Throughput, Work::Ycsb(B), [3.0, 1.8, 1.7]),
    (Figure::Throughput, Work::Ycsb(C), [3.0, 1.9, 1.7]),
    (Figure::Throughput, Work::Ycsb(D), [4.0, 1.7, 1.7]),
    (Figure::Throughput, Work::Ycsb(E), [1.5, 2.4, 1.4]),
    (Figure::Throughput, Work::Ycsb(F), [3.0, 1.7, 2.3]),
    (Figure::Cpu, LOAD, [0.27, 0.27, 0.3]),
    (Figure::Cpu, Work::Ycsb(A), [0.35, 0.5, 0.5]),
    (Figure::Cpu, Work::Ycsb(B), [0.41, 0.5, 0.6]),
    (Figure::Cpu, Work::Ycsb(C), [0.41, 0.45, 0.6]),
    (Figure::Cpu, Work::Ycsb(D), [0.33, 0.5, 0.6]),
    (Figure::Cpu, Work::Ycsb(F), [0.4, 0.5, 0.45]),
    (Figure::ReadAmplification, Work::Ycsb(A), [0.77, 1.0, 0.99]),
    (Figure::ReadAmplification, Work::Ycsb(B), [0.77, 1.0, 0.99]),
    (Figure::ReadAmplification, Work::Ycsb(C), [0.77, 1.0, 0.99]),
    (Figure::ReadAmplification, Work::Ycsb(D), [0.77, 1.0, 0.99]),
    (Figure::ReadAmplification, Work::Ycsb(E), [1.2, 0.83, 1.3]),
    (Figure::ReadAmplification, Work::Ycsb(F), [0.77, 1.0, 0.99]),
    (Figure::WriteAmplification, LOAD, [0.26, 0.72, 0.15]),
    (Figure::WriteP999, LOAD, [0.11, 0.81, 0.18]),
    (Figure::WriteP999, Work::Ycsb(A), [1.0; 3]),
    (Figure::WriteP999, Work::Ycsb(B), [1.0; 3]),
    (Figure::WriteP999, Work::Ycsb(D), [1.0; 3]),
    (Figure::WriteP999, Work::Ycsb(F), [1.0; 3]),
    (Figure::Space, Work::Space, [1.08, 1.11, 1.07]),
];
const LOAD: Work = Work::Ycsb(Workload::Load);

/// One ratio of Leeward's figure to RocksDB's, and its target.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) figure: Figure,
    pub(crate) workload: Work,
    /// Mix of pair sizes.
    pub(crate) mix: String,
    /// Ratio of the medians.
    pub(crate) ratio: f64,
    /// Lowest and highest ratio of a round.
    pub(crate) range: [f64; 2],
    /// The bound of the ratio: a minimum for throughput, a maximum for all other figures.
    pub(crate) target: f64,
    /// Whether the ratio meets the target.
    pub(crate) met: bool,
}

/// A cell in which Leeward is behind.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Loss {
    pub(crate) figure: Figure,
    pub(crate) workload: Work,
    /// Mix of pair sizes.
    pub(crate) mix: String,
    /// The rival that is furthest ahead.
    pub(crate) rival: EngineName,
    /// Leeward's median.
    pub(crate) leeward: f64,
    /// The rival's median.
    pub(crate) best: f64,
}

/// The verdict on every target whose cells were measured, in the order of the table.
pub(crate) fn verdicts(groups: &[Group<'_>]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (figure, workload, bounds) in TARGETS {
        for (mix, target) in MIXES.into_iter().zip(bounds) {
            let of = |engine| {
                groups.iter().find(|group| group.mix == mix && group.workload == workload && group.engine == engine)
            };
            let Some((leeward, rocksdb)) = of(EngineName::Leeward).zip(of(EngineName::Rocksdb)) else { continue };
            let (ours, theirs) = (figures(leeward, figure), figures(rocksdb, figure));
            let ratios = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs);
            let range =
                ratios.fold([f64::INFINITY, 0.0], |[low, high]: [f64; 2], ratio| [low.min(ratio), high.max(ratio)]);
            let Some((ours, theirs)) = median(ours).zip(median(theirs)) else { continue };
            let ratio = ours / theirs;
            let met = figure.reaches(ratio, target);
            verdicts.push(Verdict { figure, workload, mix: mix.to_owned(), ratio, range, target, met });
        }
    }
    verdicts
}

/// Every cell in which some rival's median is better than Leeward's.
pub(crate) fn losses(groups: &[Group<'_>]) -> Vec<Loss> {
    let mut losses = Vec::new();
    for figure in Figure::ALL {
        for ours in groups.iter().filter(|group| group.engine == EngineName::Leeward) {
            let Some(leeward) = median(figures(ours, figure)) else { continue };
            let rivals = groups.iter().filter(|group| {
                group.mix == ours.mix && group.records == ours.records && group.workload == ours.workload
            });
            let ahead = rivals
                .filter(|group| group.engine.is_rival())
                .filter_map(|group| Some((group.engine, median(figures(group, figure))?)))
                .filter(|(_, theirs)| !figure.reaches(leeward, *theirs))
                .reduce(|best, other| if figure.reaches(best.1, other.1) { best } else { other });
            if let Some((rival, best)) = ahead {
                losses.push(Loss { figure, workload: ours.workload, mix: ours.mix.to_owned(), rival, leeward, best });
            }
        }
    }
    losses
}

/// A figure in every round in which it occurred.
pub(crate) fn figures(group: &Group<'_>, figure: Figure) -> Vec<f64> {
    group.samples.iter().filter_map(|sample| figure.of(&sample.measurement)).collect()
}

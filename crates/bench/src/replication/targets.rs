//! Targets for the gain of replication by shipped indexes, whether they are met, and the results of the papers. A
//! target is a ratio of medians of one run. Missed targets are reported like the others.

use super::cells::{Figure, Sample, middle, values};
use super::plan::{Row, variant};
use crate::keys::Mix;
use serde::Serialize;

#[cfg(test)]
#[path = "targets_tests.rs"]
mod tests;

/// Growth factor of the rows that have targets.
const GROWTH_FACTOR: u32 = 8;

/// The bound of a target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// At least so much.
    AtLeast(f64),
    /// At most so much.
    AtMost(f64),
}

use Bound::{AtLeast, AtMost};

impl Bound {
    fn is_met(self, value: f64) -> bool {
        match self {
            AtLeast(bound) => value >= bound,
            AtMost(bound) => value <= bound,
        }
    }
}

/// A figure of one variant over that of another, or by itself.
struct Target {
    figure: Figure,
    of: &'static str,
    over: Option<&'static str>,
    workloads: &'static [&'static str],
    mixes: &'static [Mix],
    bound: Bound,
    /// The bound that the best of the mixes must reach.
    best: Option<f64>,
    papers: &'static str,
}

const LOAD: &[&str] = &["load"];
const BOTH: &[&str] = &["load", "a"];
const SD: &[Mix] = &[Mix::SD];

const GAIN: Target = Target {
    figure: Figure::Throughput,
    of: "send-index",
    over: Some("build-index"),
    workloads: LOAD,
    mixes: &[Mix::S, Mix::SD, Mix::MD],
    bound: AtLeast(1.3),
    best: Some(1.8),
    papers: "1.04 to 2.46 (Anthus), 1.1 to 1.48 (Tebis)",
};
const SAVED: Target = Target { of: "build-index", over: Some("send-index"), best: None, ..GAIN };

/// Every target.
static TARGETS: [Target; 15] = [
    GAIN,
    Target {
        figure: Figure::Cpu,
        workloads: BOTH,
        mixes: &[Mix::S, Mix::M, Mix::SD, Mix::MD],
        best: Some(1.8),
        papers: "1.06 to 2.1 (Anthus)",
        ..SAVED
    },
    Target {
        figure: Figure::Cpu,
        workloads: BOTH,
        mixes: &[Mix::L, Mix::LD],
        bound: AtLeast(1.1),
        papers: "1.06 to 2.1 (Anthus)",
        ..SAVED
    },
    Target {
        figure: Figure::BackupIndexCpu,
        workloads: BOTH,
        mixes: &Mix::ALL,
        bound: AtLeast(10.0),
        papers: "1.8 to 4 (Anthus, all of a backup), 10 (Talos)",
        ..SAVED
    },
    Target {
        figure: Figure::BackupIndexCpu,
        over: Some("send-index-logical"),
        workloads: BOTH,
        mixes: &Mix::ALL,
        bound: AtLeast(20.0),
        papers: "1.8 to 4 (Anthus, all of a backup), 10 (Talos)",
        ..SAVED
    },
    Target {
        figure: Figure::NetworkAmplification,
        of: "send-index-lz4",
        mixes: SD,
        bound: AtMost(1.5),
        best: None,
        papers: "1.32 to 3.76 (Anthus), not compressed",
        ..GAIN
    },
    Target {
        of: "send-index-last-flush",
        over: Some("send-index"),
        mixes: &[Mix::S, Mix::SD, Mix::LD],
        workloads: BOTH,
        bound: AtMost(1.10),
        best: None,
        papers: "1 to 1.15 (Anthus)",
        ..GAIN
    },
    Target {
        figure: Figure::BackupIndexRead,
        of: "send-index",
        over: None,
        workloads: BOTH,
        mixes: &Mix::ALL,
        bound: AtMost(0.0),
        best: None,
        papers: "none (all)",
    },
    Target {
        figure: Figure::IoAmplification,
        mixes: SD,
        bound: AtLeast(1.5),
        papers: "1.08 to 1.42 (Anthus), 1.13 to 1.81 (Tebis)",
        ..SAVED
    },
    Target {
        over: Some("build-index-reduced-l0"),
        mixes: SD,
        bound: AtLeast(2.0),
        best: None,
        papers: "1.06 to 2.9 (Anthus), 1.2 to 1.32 (Tebis)",
        ..GAIN
    },
    Target {
        figure: Figure::IoAmplification,
        of: "build-index-reduced-l0",
        mixes: SD,
        bound: AtLeast(2.0),
        papers: "1.7 to 3.27 (Anthus), 1.95 to 5.48 (Tebis)",
        ..SAVED
    },
    Target {
        figure: Figure::NetworkAmplification,
        mixes: SD,
        bound: AtMost(2.0),
        best: None,
        papers: "1.32 to 3.76 (Anthus)",
        ..GAIN
    },
    Target {
        figure: Figure::P99,
        workloads: BOTH,
        mixes: SD,
        bound: AtLeast(1.5),
        papers: "1.05 to 1.9 (Tebis), 1.1 to 1.5 (Talos)",
        ..SAVED
    },
    Target {
        figure: Figure::ClientCpu,
        of: "none-one-by-one",
        over: Some("none-rings-one-by-one"),
        workloads: BOTH,
        mixes: SD,
        bound: AtLeast(2.5),
        papers: "6.8 (Anthus)",
        ..SAVED
    },
    Target {
        figure: Figure::Cpu,
        of: "none-one-by-one",
        over: Some("none-rings-one-by-one"),
        workloads: BOTH,
        mixes: SD,
        bound: AtLeast(1.5),
        papers: "2.4 to 2.55 (Anthus)",
        ..SAVED
    },
];

impl Target {
    /// Numbers of replicas of the cells that it compares. Without backups there is only one replica.
    fn replicas(&self) -> &'static [u32] {
        if variant(self.of).mode == "none" { &[1] } else { &[2, 3] }
    }
}

/// One ratio, its bound, and whether the bound is met.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The figure.
    pub figure: Figure,
    /// The variant whose figure it is.
    pub of: &'static str,
    /// The variant whose figure is the denominator; `null`: none.
    pub over: Option<&'static str>,
    /// `load` or `a`.
    pub workload: &'static str,
    /// Mix of pair sizes; `best`: that with the best ratio.
    pub mix: String,
    /// Copies of a region.
    pub replicas: u32,
    /// Ratio of the medians.
    pub ratio: f64,
    /// Lowest and highest ratio of a round.
    pub range: [f64; 2],
    /// The bound.
    pub bound: Bound,
    /// Whether the ratio meets the bound.
    pub met: bool,
    /// The results of the papers.
    pub papers: &'static str,
}

impl Verdict {
    /// The factor by which the bound is missed.
    pub(crate) fn missed_by(&self) -> f64 {
        match self.bound {
            AtLeast(bound) => bound / self.ratio.max(f64::MIN_POSITIVE),
            AtMost(bound) => self.ratio / bound.max(f64::MIN_POSITIVE),
        }
    }
}

/// The verdict on every target for which there are samples.
pub(crate) fn verdicts(samples: &[Sample]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for target in &TARGETS {
        for replicas in target.replicas() {
            for workload in target.workloads {
                let of_row = |mix: &Mix| {
                    verdict(
                        samples,
                        target,
                        workload,
                        Row { mix: *mix, replicas: *replicas, growth_factor: GROWTH_FACTOR },
                    )
                };
                let found: Vec<Verdict> = target.mixes.iter().filter_map(of_row).collect();
                let best =
                    found.iter().max_by(|a, b| a.ratio.total_cmp(&b.ratio)).zip(target.best).map(|(best, bound)| {
                        let (bound, met) = (AtLeast(bound), best.ratio >= bound);
                        Verdict { mix: format!("best ({})", best.mix), bound, met, ..best.clone() }
                    });
                verdicts.extend(found);
                verdicts.extend(best);
            }
        }
    }
    verdicts
}

fn verdict(samples: &[Sample], target: &Target, workload: &'static str, row: Row) -> Option<Verdict> {
    let Target { figure, of, over, bound, papers, .. } = *target;
    let values = |variant: &'static str| values(samples, row.setup(variant), workload, |phase| figure.of(phase));
    let upper = values(of);
    let (ratio, range) = match over {
        None => (middle(&upper)?, span(upper.into_iter().map(|(_, value)| value))),
        Some(over) => {
            let lower = values(over);
            let ratio = middle(&upper)? / middle(&lower)?;
            let of_round =
                |(round, value): &(u32, f64)| lower.iter().find(|(of, _)| of == round).map(|(_, below)| value / below);
            (ratio, span(upper.iter().filter_map(of_round)))
        }
    };
    Some(Verdict {
        figure,
        of,
        over,
        workload,
        mix: row.mix.to_string(),
        replicas: row.replicas,
        ratio,
        range,
        bound,
        met: bound.is_met(ratio),
        papers,
    })
    .filter(|verdict| verdict.ratio.is_finite())
}

fn span(values: impl Iterator<Item = f64>) -> [f64; 2] {
    values.fold([f64::INFINITY, 0.0], |[low, high], value| [low.min(value), high.max(value)])
}

//! Whether targets are met, beside the results of the papers. A target is a ratio of medians of one run. Missed targets
//! are reported like the others.

use super::cells::{Sample, middle, values};
use super::figure::Figure;
use super::plan::Row;
use super::wanted::{RISING, Target, targets};
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

/// One ratio, its bound, and whether the bound is met.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Its median for `of` is the numerator of `ratio`.
    pub figure: Figure,
    /// The variant whose figure it is.
    pub of: &'static str,
    /// The variant whose figure is the denominator; `null`: none.
    pub over: Option<&'static str>,
    /// Of which phase it is: see [`super::Cell::workload`].
    pub workload: &'static str,
    /// Mix of pair sizes; `best`: that with the best ratio.
    pub mix: String,
    /// Copies of a region.
    pub replicas: u32,
    /// Ratio of the medians.
    pub ratio: f64,
    /// Lowest and highest ratio of a round.
    pub range: [f64; 2],
    /// Least or most that `ratio` may be.
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
    for target in targets() {
        for replicas in target.replicas() {
            for workload in target.workloads {
                let of_row = |mix: &Mix| verdict(samples, target, workload, row(target, *mix, *replicas));
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
    verdicts.extend(RISING.iter().filter_map(|(target, many, few)| rise(samples, target, *many, *few)));
    verdicts
}

fn row(target: &Target, mix: Mix, replicas: u32) -> Row {
    Row { mix, replicas, growth_factor: GROWTH_FACTOR, shape: target.shape }
}

/// The verdict on a ratio that is to be larger with `many` replicas than with `few`.
fn rise(samples: &[Sample], target: &Target, many: u32, few: u32) -> Option<Verdict> {
    let (mix, workload) = (*target.mixes.first()?, *target.workloads.first()?);
    let of = |replicas| verdict(samples, target, workload, row(target, mix, replicas));
    let (above, below) = (of(many)?, of(few)?);
    let ratio = above.ratio / below.ratio;
    let range = [above.range[0] / below.range[1], above.range[1] / below.range[0]];
    let mix = format!("{mix}: the gain with {many} replicas over that with {few}");
    Some(Verdict { mix, ratio, range, met: target.bound.is_met(ratio), ..above })
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

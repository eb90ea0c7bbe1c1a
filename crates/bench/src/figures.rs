//! Figures over rounds, and how they are written. Plain functions; any thread.

use hdrhistogram::Histogram;
use std::time::Duration;

#[cfg(test)]
#[path = "figures_tests.rs"]
mod tests;

/// The middle one, or the mean of the two in the middle; `None` of nothing.
pub fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let upper = figures.get(figures.len() / 2)?;
    let lower = figures[(figures.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// The word for a target that is met, or missed.
pub(crate) fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "MISSED" }
}

/// Parses a time in seconds, as options give it.
///
/// # Errors
/// It is no number, negative, or too large.
pub fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|error| format!("{error}"));
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()))
}

/// Formats a figure with three significant digits.
pub fn number(value: f64) -> String {
    match value {
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// Longest latency that histograms can hold, in nanoseconds: ten minutes.
const LONGEST_NS: u64 = 600_000_000_000;

/// An empty histogram of latencies in nanoseconds, with three significant digits. All have the same bounds.
pub fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are in order")
}

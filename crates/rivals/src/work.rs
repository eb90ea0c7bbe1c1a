//! The workloads: those of YCSB, and *space*.

use leeward_bench::Workload;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Passes of [`Work::Space`] over the records: one that loads and two that overwrite.
pub(crate) const SPACE_PASSES: u64 = 3;

/// A workload of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) enum Work {
    /// One of YCSB's.
    Ycsb(Workload),
    /// Load and two full overwrites of a new store, each in an order of its own; then what the store takes on the device.
    Space,
}

impl Work {
    /// Every workload, in the order in which they run. D and E insert records, so they come after those that expect
    /// only the loaded records.
    pub(crate) const ALL: [Work; 8] = [
        Work::Ycsb(Workload::Load),
        Work::Ycsb(Workload::A),
        Work::Ycsb(Workload::B),
        Work::Ycsb(Workload::C),
        Work::Ycsb(Workload::F),
        Work::Ycsb(Workload::D),
        Work::Ycsb(Workload::E),
        Work::Space,
    ];

    /// Whether it fills an empty store.
    pub(crate) fn loads(self) -> bool {
        matches!(self, Work::Ycsb(Workload::Load) | Work::Space)
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Ycsb(workload) => workload.fmt(f),
            Work::Space => f.write_str("space"),
        }
    }
}

impl FromStr for Work {
    type Err = String;
    fn from_str(text: &str) -> Result<Work, String> {
        if text.eq_ignore_ascii_case("space") {
            return Ok(Work::Space);
        }
        text.parse().map(Work::Ycsb).map_err(|error: String| format!("{error}, space"))
    }
}

impl From<Work> for String {
    fn from(work: Work) -> String {
        work.to_string()
    }
}

impl TryFrom<String> for Work {
    type Error = String;
    fn try_from(text: String) -> Result<Work, String> {
        text.parse()
    }
}

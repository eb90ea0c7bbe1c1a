//! The machine that a measurement ran on, for readers of its report.

use serde::Serialize;
use std::fs;

/// Where a measurement ran, for its report.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model of its processor.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Release of its Linux kernel.
    pub kernel: String,
}

impl Machine {
    /// This one.
    pub fn here() -> Machine {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine {
            processor: model.map_or_else(|| "unknown processor".into(), |(_, model)| model.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
        }
    }
}

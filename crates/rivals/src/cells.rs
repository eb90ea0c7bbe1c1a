//! Cells: for each mix, workload and engine the medians over the rounds. Pure.

use crate::engine::EngineName;
use crate::measurement::{DeviceBytes, Measurement};
use crate::rounds::Sample;
use crate::work::Work;
use leeward_bench::median;
use serde::Serialize;

/// One cell. A figure is `null` if no such operation occurred.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    /// Mix of pair sizes.
    pub(crate) mix: String,
    pub(crate) workload: Work,
    pub(crate) engine: EngineName,
    /// Operations a second, from the first operation to the last answer.
    pub(crate) ops_per_second: f64,
    /// User and system time of the engine's process, until it had settled.
    pub(crate) cpu_seconds_per_million_ops: f64,
    /// Bytes read from the device for each byte of keys and values written, read and scanned.
    pub(crate) read_amplification: f64,
    /// Bytes written to the device for each such byte.
    pub(crate) write_amplification: f64,
    /// Bytes on the device at the end for each byte of live keys and values.
    pub(crate) space_amplification: f64,
    /// 99.9th percentile of the latency of writes.
    pub(crate) write_p999_us: Option<f64>,
    /// 99.9th percentile of the latency of reads and scans.
    pub(crate) read_p999_us: Option<f64>,
    /// Records that Load inserted.
    pub(crate) records: u64,
    /// Rounds that the medians are over.
    pub(crate) rounds: usize,
    /// Seconds that the engine worked after the last answer.
    pub(crate) settle_seconds: f64,
    /// Fewest levels in any round, L0 included.
    pub(crate) levels: u32,
    /// Peak memory of the process so far.
    pub(crate) peak_memory_bytes: f64,
    /// Device bytes by the kernel's account, all rounds together.
    pub(crate) device_bytes: DeviceBytes,
    /// The same by the engine's own account, if it keeps one.
    pub(crate) engine_device_bytes: Option<DeviceBytes>,
}

/// Samples of one cell, one a round.
#[derive(Clone, Debug)]
pub(crate) struct Group<'a> {
    pub(crate) mix: &'a str,
    pub(crate) records: u64,
    pub(crate) workload: Work,
    pub(crate) engine: EngineName,
    pub(crate) samples: Vec<&'a Sample>,
}

/// Samples by cell, in order of first appearance of each mix, then of the workloads, then of `engines`.
pub(crate) fn groups<'a>(samples: &'a [Sample], engines: &[EngineName]) -> Vec<Group<'a>> {
    let mut sets: Vec<(&str, u64)> = Vec::new();
    for sample in samples {
        if !sets.contains(&(&sample.mix, sample.records)) {
            sets.push((&sample.mix, sample.records));
        }
    }
    let mut groups = Vec::new();
    for (mix, records) in sets {
        for workload in Work::ALL {
            for engine in engines {
                let is_of = |sample: &&Sample| {
                    sample.mix == mix
                        && sample.records == records
                        && sample.engine == *engine
                        && sample.measurement.workload == workload
                };
                let samples: Vec<&Sample> = samples.iter().filter(is_of).collect();
                if !samples.is_empty() {
                    groups.push(Group { mix, records, workload, engine: *engine, samples });
                }
            }
        }
    }
    groups
}

impl Group<'_> {
    /// The median of each figure over the rounds.
    pub(crate) fn cell(&self) -> Cell {
        let of = |figure: fn(&Measurement) -> f64| median(self.figures(figure)).expect("a group has samples");
        let maybe = |figure: fn(&Measurement) -> Option<f64>| {
            median(self.samples.iter().filter_map(|sample| figure(&sample.measurement)).collect())
        };
        let total = |bytes: fn(&Measurement) -> Option<DeviceBytes>| {
            self.samples.iter().map(|sample| bytes(&sample.measurement)).try_fold(
                DeviceBytes::default(),
                |sum, bytes| {
                    bytes.map(|bytes| DeviceBytes { read: sum.read + bytes.read, written: sum.written + bytes.written })
                },
            )
        };
        Cell {
            mix: self.mix.to_owned(),
            workload: self.workload,
            engine: self.engine,
            ops_per_second: of(Measurement::ops_per_second),
            cpu_seconds_per_million_ops: of(Measurement::cpu_seconds_per_million_ops),
            read_amplification: of(Measurement::read_amplification),
            write_amplification: of(Measurement::write_amplification),
            space_amplification: of(Measurement::space_amplification),
            write_p999_us: maybe(|measurement| Some(measurement.write_latency_us?.p999)),
            read_p999_us: maybe(|measurement| Some(measurement.read_latency_us?.p999)),
            records: self.records,
            rounds: self.samples.len(),
            settle_seconds: of(|measurement| measurement.settle_seconds),
            levels: self.samples.iter().map(|sample| sample.measurement.levels).min().unwrap_or(0),
            peak_memory_bytes: of(|measurement| measurement.peak_memory_bytes as f64),
            device_bytes: total(|measurement| Some(measurement.device)).unwrap_or_default(),
            engine_device_bytes: total(|measurement| measurement.engine_device),
        }
    }

    /// A figure in every round.
    pub(crate) fn figures(&self, figure: impl Fn(&Measurement) -> f64) -> Vec<f64> {
        self.samples.iter().map(|sample| figure(&sample.measurement)).collect()
    }
}

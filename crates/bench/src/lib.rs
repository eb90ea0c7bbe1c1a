//! The benchmark: YCSB over the native client, measured as the papers measure (throughput, CPU, device and network
//! bytes per user byte, by role). A ledger proves that no acknowledged write was lost.
//!
//! ```text
//!   ycsb::run -> phase (Load, Run A ...) -> worker threads, one Session each
//!                  |                           |  keys, generators: what to ask
//!                  |                           |  ledger: what may be found afterwards
//!                  |-- meter: /proc and /status of every node, by role
//!                  |-- kills: kill -9 of a primary at intervals, through its NodeProcesses
//!                  v
//!               report: the table and the JSON
//! ```
//! The crate sees a cluster as its clients and operators do. `leeward-operate` runs the clusters that it measures, and
//! [`starter`] says which. The parts of its workloads (keys, values, choosers, histograms, accounting of processes) are
//! public for `leeward-rivals`, which runs the same workloads on embedded engines.
#![forbid(unsafe_code)]

mod distribution;
pub mod faults;
mod figures;
mod generators;
mod idle;
mod json;
mod keys;
mod kills;
mod ledger;
mod loaded;
mod machine;
mod meter;
pub mod moves;
mod newest;
mod operator;
mod options;
pub mod pauses;
mod phase;
mod plot;
mod process;
mod records;
pub mod redis;
mod redis_benchmark;
pub mod replication;
mod report;
pub mod rights;
pub mod rotation;
mod scan;
mod settle;
pub mod splits;
pub mod starter;
mod table;
mod verify;
mod worker;
mod workload;
pub mod ycsb;

pub use distribution::{Distribution, Theta};
pub use figures::{duration, median, new_histogram, number};
pub use generators::{Chooser, Zipfian};
pub use idle::{IdleProcess, IdleReport, idle};
pub use json::{check_json, write_json};
pub use keys::{KEY_BYTES, Mix, even_split_points, fill_value, key_bytes, mix64, sequence_of};
pub use kills::Kill;
pub use loaded::{Load, Requests};
pub use machine::Machine;
pub use options::{BenchError, Failure, Options, Reading};
pub use plot::{Panel, Point, Series, draw, plot_file};
pub use process::{ProcessSpent, seconds};
pub use records::Records;
pub use report::{Backups, CpuSeconds, IoAmplification, Latency, LatencyByOperation, PhaseReport, Report, RoleFigures};
pub use workload::{Kind, LONGEST_SCAN, Workload};

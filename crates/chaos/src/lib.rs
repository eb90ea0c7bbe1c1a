//! The chaos suite. It runs real server processes, each in a network namespace and with its own disk. It breaks them in every way
//! that a machine allows, while clients work, and then judges what the clients saw.
//!
//! ```text
//!   run -> cluster (network, disks, processes, coordinator) <- faults (schedule by seed; strike, heal)
//!    |
//!    |--> clients: histories of shared keys, a ledger of filling keys -> verdict -> report
//!    |                         successes -> gaps: how long regions were unavailable
//!  place: everything that must be removed again
//! ```
//! The suite sees the store only from outside: it starts the binary `leeward` and is its client. It uses Leeward's own client
//! library and Redis commands. `docs/chaos.md` says what runs and how to read the result.
#![forbid(unsafe_code)]

mod clients;
mod cluster;
mod error;
mod faults;
mod gaps;
mod groups;
mod hostile;
mod place;
mod report;
mod run;
mod stress;
mod tool;
mod verdict;
mod workload;

pub use cluster::coordinator::CoordinatorKind;
pub use error::ChaosError;
pub use faults::kind::FaultKind;
pub use report::{KindReport, LongestMs, Report, RoundReport};
pub use run::{Options, run};
pub use stress::{StressOptions, StressReport, stress};

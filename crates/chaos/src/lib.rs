//! The chaos suite: real server processes, each in a network namespace and with a disk of its own, broken in every way that a
//! machine allows while clients work, and then judged.
//!
//! ```text
//!   run -> cluster (network, disks, processes, coordinator) <- faults (schedule by seed; strike, heal)
//!    |
//!    |--> clients: histories of shared keys, a ledger of filling keys -> verdict -> report
//!    |                         successes -> gaps: how long regions were unavailable
//!  place: all that must be removed again
//! ```
//! The store is seen from outside only: the crate starts the binary `leeward`, and is its client. Leeward's own client library
//! and Redis commands are the ways in. `docs/chaos.md` says what is run and how to read what comes of it.
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

//! Keeps what a node holds in memory from core files and debuggers, once it holds secrets: keys, or passwords of users.
//!
//! The flag is one of the whole process, and is never taken back. Belongs to one thread.

use crate::config::NodeConfig;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

#[cfg(test)]
#[path = "secrecy_tests.rs"]
mod tests;

/// Whether the flag of the process is still to be set.
#[derive(Debug)]
pub(super) struct Secrecy {
    /// There is nothing left to do: the flag is set, or is not wanted.
    is_done: bool,
}

impl Secrecy {
    /// For a node with these settings. If they name keys, the flag is set now, before the keys are read.
    pub(super) fn of(config: &NodeConfig) -> Secrecy {
        let mut secrecy = Secrecy { is_done: config.secrecy.core_dumps };
        if config.has_keys() {
            secrecy.keep();
        }
        secrecy
    }

    /// The process holds secrets from now on.
    pub(super) fn keep(&mut self) {
        if self.is_done {
            return;
        }
        self.is_done = true;
        match set_dumpable_behavior(DumpableBehavior::NotDumpable) {
            Ok(()) => {
                tracing::info!("this node holds secrets: the system writes no core file of it (core_dumps = false)")
            }
            Err(error) => {
                tracing::warn!(%error, "the system may write this node's memory, with secrets, to a core file")
            }
        }
    }
}

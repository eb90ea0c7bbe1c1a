//! Why a run cannot continue. A failure of the store is no error of the run: it is in the report.

use std::io;
use std::path::Path;

/// Why a run cannot continue. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ChaosError {
    /// An option, or this machine, makes the run impossible.
    #[error("{0}")]
    Refused(String),
    /// A tool of the system refused.
    #[error("`{command}` failed: {reason}")]
    Tool {
        /// As it was called.
        command: String,
        /// What it said.
        reason: String,
    },
    /// The system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was to be done.
        what: String,
        /// Why it was not.
        source: io::Error,
    },
    /// The cluster did not come up.
    #[error("{0}")]
    NotReady(String),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// For `map_err`: `what` was to be done with `path`.
pub(crate) fn fault(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ChaosError {
    let what = format!("cannot {what} {}", path.display());
    move |source| ChaosError::Io { what, source }
}

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
        /// Its command line.
        command: String,
        /// Its error output, or its exit status.
        reason: String,
    },
    /// The system refused.
    #[error("{what}: {source}")]
    Io {
        /// The action that failed.
        what: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// The cluster did not come up.
    #[error("{0}")]
    NotReady(String),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// For `map_err`: the action `what` on `path` failed.
pub(crate) fn fault(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ChaosError {
    let what = format!("cannot {what} {}", path.display());
    move |source| ChaosError::Io { what, source }
}

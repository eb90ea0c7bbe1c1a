//! A panic of a thread that the node cannot do without ends the process: another node takes over. Any thread.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`. A panic in it, which was printed already, ends the process.
pub(crate) fn die_of_panic(what: &str, work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        die(what);
    }
}

/// Ends the process, so that another node can take over.
pub(crate) fn die(what: &str) -> ! {
    tracing::error!("{what} panicked, which is a bug; the node ends so that another can take over");
    std::process::abort();
}

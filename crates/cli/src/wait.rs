//! Waits for the cluster, and reports the progress whenever it changes.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

/// Pause between two checks of the cluster.
const LOOK: Duration = Duration::from_millis(100);

/// How a wait ended.
pub(crate) enum Waited {
    /// The condition came true in time.
    Done,
    /// The time ran out; this was still lacking.
    Late(String),
}

/// Calls `lack` until it answers `None`, for at most `timeout` seconds. `Some` says what is still lacking; `say` is
/// called when that changes.
///
/// # Errors
/// Those of `lack`.
pub(crate) fn wait(
    timeout: u64,
    say: impl Fn(&str),
    mut lack: impl FnMut() -> Result<Option<String>, Box<dyn Error>>,
) -> Result<Waited, Box<dyn Error>> {
    let deadline = Instant::now() + Duration::from_secs(timeout);
    let mut said = None;
    while let Some(lacks) = lack()? {
        if said.as_ref() != Some(&lacks) {
            say(&lacks);
        }
        if Instant::now() > deadline {
            return Ok(Waited::Late(lacks));
        }
        said = Some(lacks);
        thread::sleep(LOOK);
    }
    Ok(Waited::Done)
}

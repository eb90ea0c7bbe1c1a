//! Waits for the cluster, and reports the progress whenever it changes.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

/// How often the cluster is asked.
const LOOK: Duration = Duration::from_millis(100);

/// How a wait ended.
pub(crate) enum Waited {
    /// Nothing is lacking any more.
    Done,
    /// What was still lacking when time was over.
    Late(String),
}

/// Asks `lack` what is lacking until nothing is, for at most `timeout` seconds. Calls `say` whenever the answer changes.
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

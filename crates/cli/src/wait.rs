//! Waits for the cluster, and says how it goes whenever that changes.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

/// How often it is asked.
const LOOK: Duration = Duration::from_millis(100);

/// How a wait ended.
pub(crate) enum Waited {
    /// Nothing lacks any more.
    Done,
    /// This did when time was over.
    Late(String),
}

/// Asks what lacks until nothing does, `patience` seconds at most; `say` is told whenever that changes.
///
/// # Errors
/// Those of `lack`.
pub(crate) fn wait(
    patience: u64,
    say: impl Fn(&str),
    mut lack: impl FnMut() -> Result<Option<String>, Box<dyn Error>>,
) -> Result<Waited, Box<dyn Error>> {
    let deadline = Instant::now() + Duration::from_secs(patience);
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

//! Reports as files. A plain function; any thread.

use serde::Serialize;
use std::path::Path;
use std::{fs, io};

/// Writes a report to the file that `--json` names, if it names one: indented, with a newline at the end.
///
/// # Errors
/// The file cannot be written, which the message names.
pub fn write_json(path: Option<&Path>, report: &impl Serialize) -> io::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(report)? + "\n";
    let said = |error: io::Error| io::Error::new(error.kind(), format!("--json {}: {error}", path.display()));
    fs::write(path, text).map_err(said)
}

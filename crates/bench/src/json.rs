//! Reports as files. A plain function; any thread.

use serde::Serialize;
use std::path::Path;
use std::{fs, io};

/// Checks that results can be written to the file that `--json` names, if it names one. Call it before a long
/// measurement.
///
/// # Errors
/// It cannot be opened, which the message names.
pub fn check_json(path: Option<&Path>) -> io::Result<()> {
    let Some(path) = path else { return Ok(()) };
    fs::File::options().create(true).append(true).open(path).map(drop).map_err(|error| said(path, error))
}

/// Writes a report to the file that `--json` names, if it names one: indented, with a newline at the end.
///
/// # Errors
/// The file cannot be written, which the message names.
pub fn write_json(path: Option<&Path>, report: &impl Serialize) -> io::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(report)? + "\n";
    fs::write(path, text).map_err(|error| said(path, error))
}

fn said(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("--json {}: {error}", path.display()))
}

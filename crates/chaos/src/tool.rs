//! The system tools that a run uses: `ip`, `nft`, `mount` and others. Blocking; any thread.

use crate::error::ChaosError;
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs `line` (words, without quotes) to its end. Answers its output.
///
/// # Errors
/// It cannot be run, or fails.
pub(crate) fn run(line: &str) -> Result<String, ChaosError> {
    run_with(line, "")
}

/// As [`run`], with a standard input.
pub(crate) fn run_with(line: &str, input: &str) -> Result<String, ChaosError> {
    let failed = |reason: String| ChaosError::Tool { command: line.into(), reason };
    let output = output(line, input).map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(failed(if said.is_empty() { output.status.to_string() } else { said }))
}

/// As [`run`], for a command that may have nothing to do and may fail.
pub(crate) fn attempt(line: &str) {
    // A failure means that there was nothing to do.
    drop(output(line, ""));
}

fn output(line: &str, input: &str) -> std::io::Result<Output> {
    let mut words = line.split_whitespace();
    let mut child = Command::new(words.next().unwrap_or_default())
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    child.wait_with_output()
}

/// Whether `program` is somewhere in the path.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

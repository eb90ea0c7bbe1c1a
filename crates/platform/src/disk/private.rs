//! Directories and files that only the user of this process may open: all that Leeward writes.
//!
//! Invariant: what is created by these is closed to others whatever the umask is. What exists keeps its permissions:
//! [`warning`] is about that. Any thread.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Permissions of a file.
const FILE_MODE: u32 = 0o600;
/// Permissions of a directory.
const DIRECTORY_MODE: u32 = 0o700;
/// Permissions of all others than the owner: its group, and the rest.
const OTHERS: u32 = 0o077;
/// Permission to go through a directory, of the same.
const OTHERS_PASS: u32 = 0o011;

/// Options to open a file with, which is private if that creates it.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE);
    options
}

/// Makes a directory, and those above it, where they are missing.
///
/// # Errors
/// Those of the operating system.
pub fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// What to warn of, if others may open `directory` or files in it: an earlier version made them so, or an operator.
/// `None` if they may not, or if that cannot be told.
pub fn warning(directory: &Path) -> Option<String> {
    let found = open_to_others(directory).ok()?;
    let first = found.first()?.display();
    let more = match found.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more there"),
    };
    Some(format!("other users of this host may open {first}{more}: chmod -R go= {}", directory.display()))
}

/// What others may open: `directory`, if its permissions are wider than those of a new one, and the files in it that are.
/// Nothing in a directory that others cannot go through is open to them.
fn open_to_others(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mode = fs::metadata(directory)?.mode();
    let mut found = Vec::new();
    if mode & OTHERS != 0 {
        found.push(directory.to_owned());
    }
    if mode & OTHERS_PASS != 0 {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            // It may be gone by now.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_file() && metadata.mode() & OTHERS != 0 {
                found.push(entry.path());
            }
        }
        found[1..].sort();
    }
    Ok(found)
}

#[cfg(test)]
#[path = "private_tests.rs"]
mod tests;

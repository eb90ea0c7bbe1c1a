//! The rules of this repository that no compiler checks. Each is a function from the repository to its violations.
//!
//! | module | holds |
//! |---|---|
//! | `imports` | which crate may depend on which: every `Cargo.toml` matches the tables of `docs/design/source.md` |
//! | `floors` | which module of a crate may use which: the code matches a table of `docs/design/source.md` |
//! | `rules` | one source file: header, sizes, forbidden words, `unsafe` and effects only where the tables say |
//! | `panics` | in code that handles bytes from outside, each place that may panic says why it cannot |
//! | `map` | `ARCHITECTURE.md` is short; lines of documents are short |
//! | `documents` | every path and link resolves, every folder is named, every format has a page |
//! | `named` | every file, function and field that a document names without its path exists |
//! | `words` | one word for each thing: banned words, with their replacements, in code and documents |
//!
//! `cargo test` and `cargo xtask tidy` run the same `check`. Reads files, writes nothing.

mod documents;
mod floors;
mod imports;
mod map;
mod named;
mod panics;
mod rules;
mod source;
mod words;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// One broken rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// File, relative to the repository.
    pub file: PathBuf,
    /// Line, from 1; 0 where the rule is about the whole file.
    pub line: usize,
    /// The fault, and what to do about it.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line.max(1), self.what)
    }
}

/// Where the repository is: two folders above this crate.
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().and_then(Path::parent).expect("crates/xtask lies two folders deep").to_path_buf()
}

/// Every violation in the repository at `root`, sorted by file and line.
///
/// # Errors
/// A file cannot be read.
pub fn check(root: &Path) -> io::Result<Vec<Violation>> {
    let repository = Repository::read(root)?;
    let mut violations = Vec::new();
    imports::check(&repository, &mut violations);
    floors::check(&repository, &mut violations);
    rules::check(&repository, &mut violations);
    documents::check(&repository, &mut violations);
    named::check(&repository, &mut violations);
    panics::check(&repository, &mut violations);
    words::check(&repository, &mut violations);
    map::check(&repository, &mut violations);
    violations.sort();
    Ok(violations)
}

/// Every place that may panic in code that handles bytes from outside, with the reason why it does not: a line each.
///
/// # Errors
/// A file cannot be read.
pub fn panics(root: &Path) -> io::Result<Vec<String>> {
    Ok(panics::list(&Repository::read(root)?))
}

/// The repository in memory: every file that a rule may need.
struct Repository {
    /// Path relative to the root, and content; sorted by path.
    files: Vec<(PathBuf, String)>,
}

impl Repository {
    fn read(root: &Path) -> io::Result<Repository> {
        let mut files = Vec::new();
        collect(root, root, &mut files)?;
        files.sort();
        Ok(Repository { files })
    }

    /// Content of the file at `path`; empty if it does not exist, so that a missing document breaks every rule about
    /// it.
    fn text(&self, path: &str) -> &str {
        let found = self.files.binary_search_by(|(file, _)| file.as_path().cmp(Path::new(path)));
        found.map_or("", |at| &self.files[at].1)
    }

    /// Whether a file or folder exists in the repository.
    fn exists(&self, path: &Path) -> bool {
        self.files.iter().any(|(file, _)| file.starts_with(path))
    }

    /// Files whose name ends in `.extension`.
    fn with_extension(&self, extension: &str) -> impl Iterator<Item = (&Path, &str)> {
        let wanted = extension.to_owned();
        self.files
            .iter()
            .filter(move |(file, _)| file.extension().is_some_and(|found| *found == *wanted))
            .map(|(file, text)| (file.as_path(), text.as_str()))
    }

    /// Folders under `crates/`, by name.
    fn crates(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .files
            .iter()
            .filter_map(|(file, _)| Some(file.strip_prefix("crates").ok()?.iter().next()?.to_str()?.to_owned()))
            .collect();
        names.dedup();
        names
    }
}

/// Folders that hold no source of ours.
const SKIPPED: [&str; 3] = ["target", ".git", "leeward-data"];

fn collect(root: &Path, folder: &Path, files: &mut Vec<(PathBuf, String)>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if SKIPPED.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            collect(root, &path, files)?;
        } else {
            let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
            let relative = path.strip_prefix(root).expect("the walk starts at the root").to_path_buf();
            files.push((relative, text));
        }
    }
    Ok(())
}

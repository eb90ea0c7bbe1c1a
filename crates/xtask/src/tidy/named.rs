//! Documents name files and functions that exist: a file of Rust by its name or the end of its path, a function or a
//! field as `Type::name`, a function as `name()`. Records of measurements stay as they were written down.
//!
//! Pure.

use super::documents::is_whole_path;
use super::imports::names;
use super::{Repository, Violation};
use std::collections::BTreeSet;
use std::path::Path;

/// Pages that say what was, not what is.
const RECORDS: &str = "benchmarks/record";

pub(super) fn check(repository: &Repository, violations: &mut Vec<Violation>) {
    let sources: Vec<&str> = repository.with_extension("rs").map(|(_, text)| text).collect();
    let mut known = BTreeSet::new();
    for (file, text) in repository.with_extension("md").filter(|(file, _)| !file.starts_with(RECORDS)) {
        for (number, line) in text.lines().enumerate() {
            for name in names(line) {
                if known.contains(&name) {
                    continue;
                }
                match missing(repository, &sources, &name) {
                    Some(what) => violations.push(Violation { file: file.into(), line: number + 1, what }),
                    None => _ = known.insert(name),
                }
            }
        }
    }
}

/// What is wrong with the name, if it is one of a file or a function that is not there.
fn missing(repository: &Repository, sources: &[&str], name: &str) -> Option<String> {
    if let Some(file) = as_file(name) {
        let is_there = repository.files.iter().any(|(path, _)| path.ends_with(file));
        return (!is_there).then(|| format!("names the file {name}, which is not there"));
    }
    let (owner, function) = as_function(name)?;
    (!is_there(sources, owner, function)).then(|| format!("names the function {name}, which is not there"))
}

/// Parses a Rust file, without or with folders above it. Paths from the root of the repository are checked elsewhere.
fn as_file(name: &str) -> Option<&Path> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte));
    (name.ends_with(".rs") && !name.starts_with('.') && is_plain && !is_whole_path(name)).then(|| Path::new(name))
}

/// Parses `Type::function`, `Type::function()` or `function()`; `None` for any other name.
fn as_function(name: &str) -> Option<(Option<&str>, &str)> {
    let is_snake = |word: &str| {
        let is_of_snake = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        word.starts_with(|first: char| first.is_ascii_lowercase()) && word.bytes().all(is_of_snake)
    };
    let called = name.strip_suffix("()");
    match called.unwrap_or(name).split_once("::") {
        Some((owner, function)) => (owner.starts_with(|first: char| first.is_ascii_uppercase()) && is_snake(function))
            .then_some((Some(owner), function)),
        None => called.filter(|function| is_snake(function)).map(|function| (None, function)),
    }
}

/// Whether a source file has the function. If it has an owner, the file must declare or implement the owner, and a field
/// of that name will do.
fn is_there(sources: &[&str], owner: Option<&str>, name: &str) -> bool {
    let [plain, generic, field] = [format!("fn {name}("), format!("fn {name}<"), format!(" {name}: ")];
    let has_function = |text: &str| text.contains(&plain) || text.contains(&generic);
    sources.iter().any(|text| match owner {
        None => has_function(text),
        Some(owner) => (has_function(text) || text.contains(&field)) && text.lines().any(|line| is_about(line, owner)),
    })
}

/// Whether the line declares `owner`, or begins an implementation of it.
fn is_about(line: &str, owner: &str) -> bool {
    let is_word = |part: &str| part == owner;
    let declares = ["trait ", "struct ", "enum "].iter().any(|word| line.contains(word));
    (line.starts_with("impl") || declares) && line.split(|c: char| !c.is_alphanumeric() && c != '_').any(is_word)
}

#[cfg(test)]
mod tests {
    use super::super::tests::violations;

    const SOURCE: &str = "pub struct Options {\n    pub depth: u8,\n}\nimpl Node {\n    fn route(&self) {}\n}\n";

    /// What is wrong with `text` as a page at `path`.
    fn found(path: &str, text: &str) -> Vec<String> {
        let files = [(path, text), ("crates/a/src/node/lib.rs", SOURCE)];
        let found = violations(&files).into_iter();
        found.filter(|what| what.starts_with(path) && what.contains("names the")).collect()
    }

    #[test]
    fn functions_and_fields_of_every_document_exist() {
        for there in ["`Node::route`", "`Node::route()`", "`route()`", "`Options::depth`", "`Node`", "`Reach::Memory`"]
        {
            assert_eq!(found("docs/a.md", there), [""; 0], "{there}");
        }
        for gone in ["`Node::send`", "`Node::send()`", "`Slot::route`", "`send()`", "`Options::route_to`"] {
            for page in ["ARCHITECTURE.md", "docs/a.md"] {
                assert_eq!(found(page, &format!("A.\n\nIt calls {gone}.\n")).len(), 1, "{page} {gone}");
            }
        }
        assert_eq!(
            found("docs/a.md", "A.\n\nIt calls `Node::send`.\n"),
            ["docs/a.md:3: names the function Node::send, which is not there"]
        );
    }

    #[test]
    fn bare_names_of_files_exist() {
        for there in ["`lib.rs`", "`node/lib.rs`", "`src/node/lib.rs`", "`<x>.rs`", "`*_tests.rs`", "files in `.rs`"] {
            assert_eq!(found("docs/a.md", there), [""; 0], "{there}");
        }
        for gone in ["`gone.rs`", "`other/lib.rs`", "`ode/lib.rs`", "`b.rs`"] {
            let expected = format!("docs/a.md:1: names the file {}, which is not there", gone.trim_matches('`'));
            assert_eq!(found("docs/a.md", gone), [expected], "{gone}");
        }
    }

    #[test]
    fn records_stay_as_they_were_written() {
        assert_eq!(found("benchmarks/record/a.md", "`gone.rs` and `Node::send`\n"), [""; 0]);
    }
}

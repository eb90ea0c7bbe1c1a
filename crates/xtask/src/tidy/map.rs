//! The map of the code, `ARCHITECTURE.md`: it is short, and each function that it names exists. Lines of documents are short enough
//! to be read.
//!
//! Pure.

use super::imports::names;
use super::{Repository, Violation};
use std::collections::BTreeSet;
use std::path::Path;

/// The map.
const MAP: &str = "ARCHITECTURE.md";
/// Lines that the map has at most.
const MOST_LINES: usize = 200;
/// Columns of a line of a document at most. Rows of tables and code may be longer, but not in the map.
const MOST_COLUMNS: usize = 120;

pub(super) fn check(repository: &Repository, violations: &mut Vec<Violation>) {
    for (file, text) in repository.with_extension("md") {
        columns(file, text, violations);
    }
    let map = repository.text(MAP);
    let mut broken = |line, what| violations.push(Violation { file: MAP.into(), line, what });
    if map.lines().count() > MOST_LINES {
        broken(0, format!("has {} lines, may have {MOST_LINES}: move detail to docs/design", map.lines().count()));
    }
    let sources: Vec<&str> = repository.with_extension("rs").map(|(_, text)| text).collect();
    let mut known = BTreeSet::new();
    for (number, line) in map.lines().enumerate() {
        for name in names(line) {
            let Some((owner, function)) = as_function(&name) else { continue };
            if known.insert(name.clone()) && !is_there(&sources, owner, function) {
                broken(number + 1, format!("names the function {name}, which is not there"));
            }
        }
    }
}

/// No line is too long; in tables and code blocks only where `file` is the map.
fn columns(file: &Path, text: &str, violations: &mut Vec<Violation>) {
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        is_code ^= line.starts_with("```");
        let is_table_or_code = is_code || line.starts_with('|') || line.starts_with("    ");
        let columns = line.chars().count();
        if columns > MOST_COLUMNS && (!is_table_or_code || file == Path::new(MAP)) {
            let what = format!("the line has {columns} columns, may have {MOST_COLUMNS}");
            violations.push(Violation { file: file.into(), line: number + 1, what });
        }
    }
}

/// Parses `Type::function` or `function()`; `None` for any other name.
fn as_function(name: &str) -> Option<(Option<&str>, &str)> {
    let is_snake = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if let Some(function) = name.strip_suffix("()") {
        return is_snake(function).then_some((None, function));
    }
    let (owner, function) = name.split_once("::")?;
    (owner.starts_with(|first: char| first.is_ascii_uppercase()) && is_snake(function))
        .then_some((Some(owner), function))
}

/// Whether a source file has the function and, if it has an owner, an implementation or the declaration of that owner.
fn is_there(sources: &[&str], owner: Option<&str>, function: &str) -> bool {
    let [plain, generic] = [format!("fn {function}("), format!("fn {function}<")];
    let is_owned = |text: &str| owner.is_none_or(|owner| text.lines().any(|line| implements(line, owner)));
    sources.iter().any(|text| (text.contains(&plain) || text.contains(&generic)) && is_owned(text))
}

/// Whether the line begins an implementation of `owner`, or its declaration as a trait.
fn implements(line: &str, owner: &str) -> bool {
    let is_word = |part: &str| part == owner;
    (line.starts_with("impl") || line.contains("trait "))
        && line.split(|c: char| !c.is_alphanumeric() && c != '_').any(is_word)
}

#[cfg(test)]
mod tests {
    use super::super::tests::violations;

    fn of_map(map: &str) -> Vec<String> {
        let files = [("ARCHITECTURE.md", map), ("crates/a/src/lib.rs", "impl Node {\n    fn route(&self) {}\n}\n")];
        violations(&files).into_iter().filter(|violation| violation.starts_with("ARCHITECTURE.md")).collect()
    }

    fn says(map: &str, what: &str) -> bool {
        of_map(map).iter().any(|violation| violation.contains(what))
    }

    #[test]
    fn functions_of_the_map_exist() {
        for there in ["`Node::route`", "`route()`", "`Node`", "`crates/a/src`", "`Reach::Memory`"] {
            assert!(!says(there, "names the function"), "{there}");
        }
        for gone in ["`Node::send`", "`Slot::route`", "`send()`"] {
            assert!(says(gone, "names the function"), "{gone}");
        }
    }

    #[test]
    fn the_map_is_short_and_narrow() {
        assert!(says(&"a\n".repeat(201), "may have 200"));
        assert!(!says(&"a\n".repeat(200), "may have 200"));
        let long = "a".repeat(121);
        assert!(says(&long, "columns") && says(&format!("| {long} |"), "columns"));
        assert!(!says(&"ä".repeat(120), "columns"), "characters count, not bytes");
    }

    #[test]
    fn lines_of_other_documents_are_narrow_but_for_tables_and_code() {
        let long = "a".repeat(121);
        let of =
            |text: &str| violations(&[("docs/a.md", text)]).iter().filter(|found| found.contains("columns")).count();
        assert_eq!(of(&long), 1);
        assert_eq!(of(&format!("| {long} |\n    {long}\n```\n{long}\n```\n")), 0);
    }
}

//! The map of the code, `ARCHITECTURE.md`, is short. Lines of documents are short enough to be read.
//!
//! Pure.

use super::{Repository, Violation};
use std::path::Path;

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

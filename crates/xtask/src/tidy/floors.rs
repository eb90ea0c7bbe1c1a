//! Floors inside crates: which module of a crate may use which. The table "Floors inside crates" of `docs/design/source.md` lists
//! the modules at the root of a crate, or of a folder in it (`crate/folder`), the lowest first. A module uses only those before
//! it, so there are no circles.
//!
//! Tests are exempt. Pure.

use super::imports::{SOURCE_MAP, names, rows};
use super::rules::{is_test, line_of};
use super::source::{code_only, without_tests};
use super::{Repository, Violation};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The first column of the table.
const HEADING: &str = "inside crate";

/// The floors of a crate, or of a folder in it.
struct Floors {
    /// The crate, or the crate, `/` and the folder.
    name: String,
    /// Its modules, the lowest first.
    modules: Vec<String>,
}

impl Floors {
    /// From a row of the table.
    fn of(row: &[&str]) -> Option<Floors> {
        Some(Floors { name: names(row.first()?).into_iter().next()?, modules: names(row.get(1)?) })
    }

    /// The folder of the modules, and what their names begin with in code.
    fn source(&self) -> (PathBuf, String) {
        let (name, folders) = self.name.split_once('/').unwrap_or((&self.name, ""));
        let within = folders.split('/').filter(|folder| !folder.is_empty()).map(|folder| format!("{folder}::"));
        (Path::new("crates").join(name).join("src").join(folders), format!("crate::{}", within.collect::<String>()))
    }

    fn floor(&self, module: &str) -> Option<usize> {
        self.modules.iter().position(|known| known == module)
    }
}

pub(super) fn check(repository: &Repository, violations: &mut Vec<Violation>) {
    for row in rows(repository.text(SOURCE_MAP), HEADING) {
        match Floors::of(&row) {
            Some(floors) => check_folder(repository, &floors, violations),
            None => violations.push(in_map(format!("a row of the table of floors has no crate: {row:?}"))),
        }
    }
}

fn in_map(what: String) -> Violation {
    Violation { file: SOURCE_MAP.into(), line: 0, what }
}

fn check_folder(repository: &Repository, floors: &Floors, violations: &mut Vec<Violation>) {
    let (source, prefix) = floors.source();
    let mut found = BTreeSet::new();
    for (file, text) in repository.with_extension("rs") {
        let Some(module) = file.strip_prefix(&source).ok().and_then(root_module).filter(|_| !is_test(file)) else {
            continue;
        };
        found.insert(module.clone());
        let Some(floor) = floors.floor(&module) else { continue };
        for (line, used) in uses(&without_tests(&code_only(text)), &prefix) {
            if floors.floor(&used).is_some_and(|other| other > floor) {
                let what =
                    format!("`{module}` uses `{used}`, which is above it: see the table of floors in {SOURCE_MAP}");
                violations.push(Violation { file: file.into(), line, what });
            }
        }
    }
    let name = &floors.name;
    for module in found.iter().filter(|module| floors.floor(module).is_none()) {
        violations.push(in_map(format!("module `{module}` of {name} is on no floor: add it to the table of floors")));
    }
    for module in floors.modules.iter().filter(|module| !found.contains(*module)) {
        violations.push(in_map(format!("{name} has no module `{module}`, which is in the table of floors")));
    }
}

/// The module that a file belongs to, which is given as seen from the folder of the modules; `None` for the root itself.
fn root_module(file: &Path) -> Option<String> {
    let first = Path::new(file.iter().next()?).file_stem()?.to_str()?;
    (!matches!(first, "lib" | "main" | "mod")).then(|| first.to_owned())
}

/// The names after `prefix` in `code`, alone or in braces, each with its line.
fn uses(code: &str, prefix: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        let is_whole = !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':');
        let rest = &code[at + prefix.len()..];
        let listed = match rest.strip_prefix('{') {
            _ if !is_whole => Vec::new(),
            Some(group) => outermost(group),
            None => vec![rest],
        };
        found.extend(
            listed.into_iter().map(|text| (line_of(code, at), word(text))).filter(|(_, name)| !name.is_empty()),
        );
    }
    found
}

/// The parts of a group of imports between its outermost commas, up to its end.
fn outermost(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                parts.push(&group[start..at]);
                return parts;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts
}

/// The identifier at the start of `text`.
fn word(text: &str) -> String {
    text.trim_start().chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}

#[cfg(test)]
#[path = "floors_tests.rs"]
mod tests;

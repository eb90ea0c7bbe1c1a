//! The places where the product may panic, each with the reason why it does not.
//!
//! If bytes from a socket or a disk can cause a panic, they take a node down, and then the next node that gets them. So
//! there are two rules in the crates that handle such bytes ([`REACHED`]):
//!
//! - `expect`, `panic!`, `unreachable!` and the asserts say in a string why they cannot happen.
//! - Each file that decodes bytes ([`DECODERS`]) and indexes or slices has a row in `docs/panics.md`. The row has the number of
//!   places, and the reason why those are within bounds. A change of the number demands another review of the row.
//!
//! [`list`] lists all of that for a reviewer. Pure.

use super::imports::{names, rows};
use super::rules::is_test;
use super::source::{code_only, without_tests};
use super::{Repository, Violation};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Crates that handle bytes from sockets and disks.
const REACHED: [&str; 6] = ["format", "fabric", "engine", "replication", "cluster", "server"];
/// Files and folders in them that decode bytes, or store parts of messages.
const DECODERS: [&str; 14] = [
    "crates/cluster/src/coordinator/connection.rs",
    "crates/cluster/src/coordinator/embedded",
    "crates/cluster/src/coordinator/zookeeper",
    "crates/engine/src/log",
    "crates/engine/src/replica",
    "crates/engine/src/volume",
    "crates/fabric/src/stream",
    "crates/format/src",
    "crates/replication/src",
    "crates/server/src/commands",
    "crates/server/src/native",
    "crates/region/src/serving/decide.rs",
    "crates/server/src/resp",
    "crates/server/src/rings",
];
/// The document with the table of decoders that index, and the heading of the table's first column.
const TABLE: &str = "docs/panics.md";
const HEADING: &str = "file that indexes";
/// Calls that panic, up to the parenthesis that opens the arguments, and the number of arguments before the reason. Assertions of
/// debug builds are not among them.
const CALLS: [(&str, usize); 7] = [
    (".expect(", 0),
    (".expect_err(", 0),
    ("panic!(", 0),
    ("unreachable!(", 0),
    ("assert!(", 1),
    ("assert_eq!(", 2),
    ("assert_ne!(", 2),
];

/// One place that may panic.
#[derive(Debug, PartialEq, Eq)]
struct PanicPlace {
    line: usize,
    /// The call; `None` for an index or a slice.
    call: Option<&'static str>,
    /// The reason in the call's string; empty if it has none.
    reason: String,
}

pub(super) fn check(repository: &Repository, violations: &mut Vec<Violation>) {
    let mut listed = table(repository);
    for (file, text) in reached(repository) {
        let (indexed, called): (Vec<PanicPlace>, Vec<PanicPlace>) =
            places(text).into_iter().partition(|place| place.call.is_none());
        for place in called.iter().filter(|place| place.reason.is_empty()) {
            let call = place.call.unwrap_or_default().trim_start_matches('.').trim_end_matches('(');
            let what = format!("{call}: say in a string why it cannot happen; if bytes can reach it, make it an error");
            violations.push(Violation { file: file.into(), line: place.line, what });
        }
        let row = if is_decoder(file) { listed.remove(&*file.to_string_lossy()) } else { None };
        let known = row.as_ref().map_or(0, |row| row.places);
        if is_decoder(file) && known != indexed.len() {
            let what = format!(
                "indexes or slices in {} places, {TABLE} says {known}: look at each, and correct its row, why they are within bounds \
                 included",
                indexed.len()
            );
            violations.push(Violation { file: file.into(), line: indexed.last().map_or(0, |last| last.line), what });
        }
        if row.is_some_and(|row| row.reason.is_empty()) {
            let what = format!("{TABLE} does not say why it indexes within bounds");
            violations.push(Violation { file: file.into(), line: 0, what });
        }
    }
    for file in listed.keys() {
        let what = format!("{file} has a row, and is not there or no code that takes bytes apart");
        violations.push(Violation { file: TABLE.into(), line: 0, what });
    }
}

/// Every place that may panic, with its reason: `file:line: what: why`, a line each.
pub(super) fn list(repository: &Repository) -> Vec<String> {
    let listed = table(repository);
    let of_file = |(file, text): (&Path, &str)| {
        let within = listed.get(&*file.to_string_lossy()).map_or("", |row| row.reason.as_str()).to_owned();
        let (is_listed, file) = (is_decoder(file), file.display().to_string());
        let places = places(text).into_iter().filter(move |place| is_listed || place.call.is_some());
        places.map(move |place| {
            let what = place.call.map_or("index", |call| call.trim_start_matches('.').trim_end_matches('('));
            let why = if place.call.is_none() { &within } else { &place.reason };
            format!("{file}:{}: {what}: {why}", place.line)
        })
    };
    reached(repository).flat_map(of_file).collect()
}

/// A row of the table.
struct Row {
    places: usize,
    reason: String,
}

fn table(repository: &Repository) -> BTreeMap<String, Row> {
    let row = |cells: Vec<&str>| {
        let [file, places, reason, ..] = cells[..] else { return None };
        let row = Row { places: places.parse().unwrap_or(0), reason: reason.to_owned() };
        Some((names(file).pop()?, row))
    };
    rows(repository.text(TABLE), HEADING).into_iter().filter_map(row).collect()
}

/// Product code of the crates that handle such bytes.
fn reached(repository: &Repository) -> impl Iterator<Item = (&Path, &str)> {
    let is_reached =
        |file: &Path| REACHED.iter().any(|name| file.starts_with(Path::new("crates").join(name).join("src")));
    repository.with_extension("rs").filter(move |(file, _)| is_reached(file) && !is_test(file))
}

fn is_decoder(file: &Path) -> bool {
    DECODERS.iter().any(|path| file.starts_with(path))
}

/// Every place of a file that may panic.
fn places(text: &str) -> Vec<PanicPlace> {
    let code = without_tests(&code_only(text));
    let line_of = |at: usize| code[..at].matches('\n').count() + 1;
    let mut found: Vec<(usize, PanicPlace)> = Vec::new();
    for (call, needed) in CALLS {
        for (at, _) in code.match_indices(call) {
            let is_whole = call.starts_with('.') || !follows_word(&code, at);
            // The compiler evaluates an assertion in a constant.
            let is_constant = code[..at].ends_with("const _: () = ");
            if is_whole && !is_constant {
                let reason = reason(text, &code, at + call.len() - 1, needed);
                found.push((at, PanicPlace { line: line_of(at), call: Some(call), reason }));
            }
        }
    }
    for at in indexed(&code) {
        found.push((at, PanicPlace { line: line_of(at), call: None, reason: String::new() }));
    }
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, place)| place).collect()
}

fn follows_word(code: &str, at: usize) -> bool {
    code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// The reason in the call whose arguments open at `open`: the first string after `needed` arguments; empty if there is
/// none.
fn reason(text: &str, code: &str, open: usize, needed: usize) -> String {
    let said = arguments(code, open).into_iter().skip(needed).find_map(|argument| {
        let literal = text[argument].trim_start().strip_prefix('"')?;
        literal.rsplit_once('"').map(|(said, _)| said)
    });
    said.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The arguments between the parenthesis at `open` and the one that closes it.
fn arguments(code: &str, open: usize) -> Vec<Range<usize>> {
    let (mut depth, mut start, mut found) = (0_usize, open + 1, Vec::new());
    for (at, c) in code[open..].char_indices().map(|(at, c)| (open + at, c)) {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 1 => {
                found.push(start..at);
                break;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 1 => {
                found.push(start..at);
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// Offsets of the brackets that index or slice: those that follow a value. `[..]` is always within bounds.
fn indexed(code: &str) -> impl Iterator<Item = usize> {
    code.match_indices('[').map(|(at, _)| at).filter(move |at| {
        let is_behind_value =
            code[..*at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ')' | ']' | '?'));
        is_behind_value && !code[*at..].starts_with("[..]")
    })
}

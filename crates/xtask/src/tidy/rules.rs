//! Rules about one Rust file at a time. Pure.

use super::imports::{SOURCE_MAP, names, rows};
use super::source::{code_only, functions, without_tests};
use super::{Repository, Violation};
use std::path::{Path, PathBuf};

/// Longest source file, in lines.
const MAX_FILE_LINES: usize = 600;
/// Longest function, in lines, from `fn` to its closing brace.
const MAX_FUNCTION_LINES: usize = 70;

/// Words that are banned in code, and what to do instead.
const BANNED: [(&str, &str); 5] = [
    ("todo!", "finish it, or leave it out and say so in docs/open.md"),
    ("unimplemented!", "finish it, or leave it out and say so in docs/open.md"),
    ("dbg!", "log with tracing"),
    ("#[allow", "use #[expect(lint, reason = \"...\")]"),
    ("#![allow", "use #![expect(lint, reason = \"...\")]"),
];

/// Words that are banned in a file, comments included.
const UNFINISHED: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// A comment that says nothing.
const EMPTY_COMMENT: &str = concat!("/// See the ", "module.");

/// A doc comment of one of these and a single word, such as "Its name.", repeats the name of its item.
const ARTICLES: [&str; 5] = ["Its", "Their", "The", "A", "An"];

/// Names of types that do not say what they hold.
const NAMELESS: [&str; 8] = ["State", "Shared", "Place", "Found", "Way", "Held", "Wanted", "Parts"];

/// Effects that only the files in the table of seams may use, since all other code also runs in the simulator.
const EFFECTS: [&str; 10] = [
    "Instant::now",
    "SystemTime::now",
    "thread::spawn",
    "thread::Builder",
    "thread::scope",
    "thread::sleep",
    "TcpStream::connect",
    "TcpListener::bind",
    "fastrand::",
    "RandomState",
];

/// The grants of `docs/design/source.md`.
struct Grants {
    /// Files and folders that may hold `unsafe`.
    unsafety: Vec<PathBuf>,
    /// Files and folders that may use [`EFFECTS`].
    effects: Vec<PathBuf>,
}

pub(super) fn check(repository: &Repository, violations: &mut Vec<Violation>) {
    let architecture = repository.text(SOURCE_MAP);
    let grants = Grants { unsafety: granted(architecture, "unsafe"), effects: granted(architecture, "seam") };
    for (file, text) in repository.with_extension("rs") {
        let mut broken = |line: usize, what: String| violations.push(Violation { file: file.into(), line, what });
        shape(text, &mut broken);
        if let Some(what) = misplaced(repository, file, text) {
            broken(0, what);
        }
        let code = code_only(text);
        words(file, text, &code, &mut broken);
        if !may(&grants.unsafety, file) {
            each_word(&code, "unsafe", |line| {
                broken(line, format!("unsafe outside the table of unsafe code in {SOURCE_MAP}"));
            });
        }
        let product = if is_test(file) { String::new() } else { without_tests(&code) };
        nameless_types(&product, &mut broken);
        if !may(&grants.effects, file) {
            for effect in EFFECTS {
                each_word(&product, effect, |line| {
                    broken(line, format!("{effect} outside the table of seams in {SOURCE_MAP}"));
                });
            }
        }
        for (at, _) in product.match_indices(".unwrap()") {
            broken(line_of(&product, at), "unwrap: handle the fault, or expect(\"why it cannot fail\")".into());
        }
        if is_crate_root(file) {
            root_attribute(file, &code, &grants, &mut broken);
        }
    }
}

/// One convention for modules and their tests: a module with others inside is `x/mod.rs`, and its tests are `x/tests.rs`. A module
/// without is `x.rs`, and its tests are inside it or beside it, in `x_tests.rs`.
fn misplaced(repository: &Repository, file: &Path, text: &str) -> Option<String> {
    let (folder, stem) = (file.parent()?, file.file_stem()?.to_str()?);
    if !folder.components().any(|part| part.as_os_str() == "src") {
        return None;
    }
    if repository.exists(&folder.join(stem)) && !matches!(stem, "lib" | "main") {
        return Some(format!("a module with a folder is {stem}/mod.rs"));
    }
    let elsewhere = text.lines().filter_map(|line| line.trim().strip_prefix("#[path = \"")?.strip_suffix("\"]"));
    let tests = |path: &&str| path.ends_with("_tests.rs") && !path.contains('/');
    elsewhere.filter(|path| !tests(path)).map(|path| format!("{path}: only x_tests.rs beside x.rs has a path")).next()
}

/// First column of the table headed `heading`.
fn granted(architecture: &str, heading: &str) -> Vec<PathBuf> {
    rows(architecture, heading).iter().flat_map(|row| names(row[0])).map(PathBuf::from).collect()
}

fn may(granted: &[PathBuf], file: &Path) -> bool {
    granted.iter().any(|path| file.starts_with(path))
}

/// Header and sizes.
fn shape(text: &str, broken: &mut impl FnMut(usize, String)) {
    if !text.starts_with("//!") {
        broken(1, "opens with //!: what it is, its invariants, who may call it from which thread".into());
    }
    let lines = text.lines().count();
    if lines > MAX_FILE_LINES {
        broken(lines, format!("{lines} lines, the limit is {MAX_FILE_LINES}: split it by message or phase"));
    }
    for function in functions(&code_only(text)) {
        if function.lines > MAX_FUNCTION_LINES {
            let what = format!("fn {} has {} lines, the limit is {MAX_FUNCTION_LINES}", function.name, function.lines);
            broken(function.line, what);
        }
    }
}

/// Words that stand for unfinished or silenced work.
fn words(file: &Path, text: &str, code: &str, broken: &mut impl FnMut(usize, String)) {
    for (word, instead) in BANNED {
        for (at, _) in code.match_indices(word) {
            broken(line_of(code, at), format!("{word}: {instead}"));
        }
    }
    bare_comments(text, broken);
    if is_test(file) {
        return;
    }
    for word in UNFINISHED {
        each_word(text, word, |line| broken(line, format!("{word}: finish it, or write a line in docs/open.md")));
    }
    for (at, comment) in text.match_indices(EMPTY_COMMENT) {
        broken(line_of(text, at), format!("{comment}: say in a sentence what it holds, or leave the comment out"));
    }
}

/// Types whose name fits anything.
fn nameless_types(product: &str, broken: &mut impl FnMut(usize, String)) {
    for keyword in ["struct", "enum", "type"] {
        for name in NAMELESS {
            let definition = format!("{keyword} {name}");
            each_word(product, &definition, |line| {
                broken(line, format!("type {name}: a name that says what it holds"))
            });
        }
    }
}

/// Doc comments of one line that only repeat a name. The last line of a longer comment may be such a line.
fn bare_comments(text: &str, broken: &mut impl FnMut(usize, String)) {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_doc = |line: Option<&&str>| line.is_some_and(|line| line.starts_with("///"));
    for (at, line) in lines.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|before| lines.get(before));
        let is_alone = !is_doc(before) && !is_doc(lines.get(at + 1));
        if is_alone && line.strip_prefix("/// ").is_some_and(repeats_name) {
            broken(at + 1, format!("{line}: say what the name and the type do not, or leave the comment out"));
        }
    }
}

/// Whether `comment` is one of [`ARTICLES`] and a lower-case word.
fn repeats_name(comment: &str) -> bool {
    let words = comment.strip_suffix('.').and_then(|words| words.split_once(' '));
    words.is_some_and(|(article, name)| {
        ARTICLES.contains(&article) && !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase())
    })
}

/// Calls `found` with the line of each whole-word `word` in `text`.
fn each_word(text: &str, word: &str, mut found: impl FnMut(usize)) {
    let part_of_word = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    for (at, _) in text.match_indices(word) {
        let bytes = text.as_bytes();
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        let whole = !part_of_word(before) && (word.ends_with(':') || !part_of_word(bytes.get(at + word.len())));
        if whole {
            found(line_of(text, at));
        }
    }
}

/// The line of an offset, from 1.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Code that only tests run: sibling test files, `tests/`, `benches/`.
pub(super) fn is_test(file: &Path) -> bool {
    let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let folder = |name: &str| file.iter().any(|part| part == name);
    stem == "tests" || stem.ends_with("_tests") || folder("tests") || folder("benches")
}

fn is_crate_root(file: &Path) -> bool {
    file.ends_with("src/lib.rs") || file.ends_with("src/main.rs")
}

/// A crate without a grant must forbid unsafe code. A crate with one must deny it, and its granted modules say
/// `expect`.
fn root_attribute(file: &Path, code: &str, grants: &Grants, broken: &mut impl FnMut(usize, String)) {
    let source = file.parent().expect("a crate root lies in src");
    let granted = grants.unsafety.iter().any(|path| path.starts_with(source) || source.starts_with(path));
    let wanted = if granted { "#![deny(unsafe_code)]" } else { "#![forbid(unsafe_code)]" };
    if !code.contains(wanted) {
        broken(1, format!("the crate's root says {wanted}"));
    }
}

//! Documents match the repository: every path that they name exists, every folder is named, every format has its page.
//! Pure.

use super::imports::{SOURCE_MAP, names};
use super::{Repository, Violation};
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// A path in a document starts with one of these.
const ROOTS: [&str; 7] = ["crates/", "docs/", "tests/", "benchmarks/", ".ci/", ".cargo/", "examples/"];

/// Where format pages are, and the crate they describe.
const PAGES: &str = "docs/formats";
const FORMAT: &str = "crates/format";

pub(super) fn check(repository: &Repository, violations: &mut Vec<Violation>) {
    for (file, text) in repository.with_extension("md") {
        named_paths(repository, file, text, violations);
        links(repository, file, text, violations);
    }
    folders_are_named(repository, violations);
    formats_have_pages(repository, violations);
    golden_files_are_used(repository, violations);
}

/// Paths between backticks exist. A path with a placeholder (`<id>`) or a star is a pattern, not a path.
fn named_paths(repository: &Repository, file: &Path, text: &str, violations: &mut Vec<Violation>) {
    for (number, line) in text.lines().enumerate() {
        for name in names(line) {
            if is_whole_path(&name) && !repository.exists(Path::new(&name)) {
                violations.push(Violation {
                    file: file.into(),
                    line: number + 1,
                    what: format!("{name} is not there"),
                });
            }
        }
    }
}

/// Whether the name is a path from the root of the repository, and no pattern.
pub(super) fn is_whole_path(name: &str) -> bool {
    ROOTS.iter().any(|root| name.starts_with(root)) && !name.contains(['<', '*', ' ', '{'])
}

/// Links to files resolve.
fn links(repository: &Repository, file: &Path, text: &str, violations: &mut Vec<Violation>) {
    for (number, line) in text.lines().enumerate() {
        for rest in line.split("](").skip(1) {
            let target = rest.split([')', '#']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let path = resolve(file.parent().unwrap_or(Path::new("")), Path::new(target));
            if !repository.exists(&path) {
                let what = format!("link to {target}, which is not there");
                violations.push(Violation { file: file.into(), line: number + 1, what });
            }
        }
    }
}

/// `target` as seen from `folder`, without `.` and `..`.
fn resolve(folder: &Path, target: &Path) -> PathBuf {
    let mut path = folder.to_path_buf();
    for part in target.components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

/// `docs/design/source.md` names every folder of source.
fn folders_are_named(repository: &Repository, violations: &mut Vec<Violation>) {
    let named: BTreeSet<String> = repository.text(SOURCE_MAP).lines().flat_map(names).collect();
    let folders: BTreeSet<&Path> = repository.with_extension("rs").filter_map(|(file, _)| file.parent()).collect();
    for folder in folders {
        let path = folder.display().to_string();
        let written = [path.clone(), format!("{path}/"), format!("{path}/mod.rs")];
        if !written.iter().any(|path| named.contains(path)) {
            let what = format!("folder {path} is not named");
            violations.push(Violation { file: SOURCE_MAP.into(), line: 0, what });
        }
    }
}

/// Every module of `format` is named by a page, and every page is in the list of formats.
fn formats_have_pages(repository: &Repository, violations: &mut Vec<Violation>) {
    let pages: Vec<&str> =
        repository.with_extension("md").filter(|(file, _)| file.starts_with(PAGES)).map(|(_, text)| text).collect();
    let library = format!("{FORMAT}/src/lib.rs");
    for (number, line) in repository.text(&library).lines().enumerate() {
        let declared = line.strip_prefix("pub mod ").or(line.strip_prefix("mod "));
        let Some(module) = declared.and_then(|rest| rest.strip_suffix(';')) else { continue };
        let file = format!("{FORMAT}/src/{module}.rs");
        let path = if repository.exists(Path::new(&file)) { file } else { format!("{FORMAT}/src/{module}/mod.rs") };
        let is_tests = module.ends_with("tests");
        if !is_tests && !pages.iter().any(|page| page.contains(&path)) {
            let what = format!("no page of {PAGES} names {path}");
            violations.push(Violation { file: library.clone().into(), line: number + 1, what });
        }
    }
}

/// Every golden file is read by a test of its crate.
fn golden_files_are_used(repository: &Repository, violations: &mut Vec<Violation>) {
    for (file, _) in repository.files.iter().filter(|(file, _)| file.iter().any(|part| part == "golden")) {
        let (Some(name), Some(stem)) = (file.file_name(), file.file_stem()) else { continue };
        let words = [name.to_string_lossy(), stem.to_string_lossy()];
        let tests: PathBuf = file.iter().take(2).collect();
        let mut sources = repository.with_extension("rs").filter(|(source, _)| source.starts_with(&tests));
        if !sources.any(|(_, text)| words.iter().any(|word| text.contains(&**word))) {
            violations.push(Violation { file: file.clone(), line: 0, what: "no test reads this golden file".into() });
        }
    }
}

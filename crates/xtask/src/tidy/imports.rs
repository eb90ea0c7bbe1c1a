//! Which crate may depend on which. The tables "Crates" and "Dependencies" of `docs/design/source.md` decide: they and
//! the `Cargo.toml` files must match. Pure.

use super::{Repository, Violation};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use toml::Table;

/// Where the tables are.
pub(super) const SOURCE_MAP: &str = "docs/design/source.md";

/// Prefix of our crates' package names; the folder is the rest.
const OURS: &str = "leeward-";

/// Sections of a manifest that declare edges.
const SECTIONS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

pub(super) fn check(repository: &Repository, violations: &mut Vec<Violation>) {
    let architecture = repository.text(SOURCE_MAP);
    let allowed = crate_table(architecture);
    for name in repository.crates() {
        let file = PathBuf::from(format!("crates/{name}/Cargo.toml"));
        let mut broken = |what: String| violations.push(Violation { file: file.clone(), line: 0, what });
        let manifest = match repository.text(&file.display().to_string()).parse::<Table>() {
            Ok(manifest) => manifest,
            Err(error) => {
                broken(format!("not a manifest: {error}"));
                continue;
            }
        };
        if package_name(&manifest) != Some(&format!("{OURS}{name}")) {
            broken(format!("the package of folder {name} is called {OURS}{name}"));
        }
        if manifest.get("lints").and_then(|lints| lints.get("workspace")?.as_bool()) != Some(true) {
            broken("takes the workspace's lints: [lints] workspace = true".into());
        }
        let Some(row) = allowed.get(&name) else {
            broken(format!("crate {name} has no row in the table of crates in {SOURCE_MAP}"));
            continue;
        };
        for dependency in dependencies(&manifest) {
            if let Some(import) = dependency.strip_prefix(OURS).filter(|import| !row.contains(*import)) {
                broken(format!("{name} may not import {import}: see the table of crates in {SOURCE_MAP}"));
            }
            if !is_used(repository, &name, &dependency) {
                broken(format!("{dependency} is declared and not used"));
            }
        }
    }
    for name in allowed.keys().filter(|name| !repository.crates().contains(name)) {
        violations.push(Violation { file: SOURCE_MAP.into(), line: 0, what: format!("there is no crate {name}") });
    }
    outside(repository, architecture, violations);
}

/// Each dependency from outside has its line of justification, and each line its dependency.
fn outside(repository: &Repository, architecture: &str, violations: &mut Vec<Violation>) {
    let workspace = repository.text("Cargo.toml").parse::<Table>().unwrap_or_default();
    let declared: BTreeSet<String> = workspace
        .get("workspace")
        .and_then(|workspace| workspace.get("dependencies")?.as_table())
        .into_iter()
        .flat_map(|table| table.keys().filter(|name| !name.starts_with(OURS)).cloned())
        .collect();
    let justified: BTreeSet<String> =
        rows(architecture, "dependency").iter().flat_map(|row| names(row.first().map_or("", |cell| cell))).collect();
    let mut broken = |what: String| violations.push(Violation { file: SOURCE_MAP.into(), line: 0, what });
    for name in declared.difference(&justified) {
        broken(format!("dependency {name} has no line in the table of dependencies"));
    }
    for name in justified.difference(&declared) {
        broken(format!("the table of dependencies names {name}, which the workspace does not declare"));
    }
}

/// Crate -> what it may import, from the table of `architecture` whose first column is headed "crate".
fn crate_table(architecture: &str) -> BTreeMap<String, BTreeSet<String>> {
    let rows = rows(architecture, "crate");
    rows.iter()
        .filter_map(|row| {
            let name = names(row.first()?).into_iter().next()?;
            Some((name, names(row.get(2)?).into_iter().collect()))
        })
        .collect()
}

/// Rows, cell by cell, of the Markdown tables whose first column is headed `heading`.
pub(super) fn rows<'a>(markdown: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in markdown.lines() {
        let Some(cells) = line.strip_prefix('|') else {
            inside = false;
            continue;
        };
        let cells: Vec<&str> = cells.trim_end_matches('|').split('|').map(str::trim).collect();
        if cells[0] == heading {
            inside = true;
        } else if inside && !cells[0].starts_with("--") {
            found.push(cells);
        }
    }
    found
}

/// The texts between backticks in `cell`.
pub(super) fn names(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn package_name(manifest: &Table) -> Option<&str> {
    manifest.get("package")?.get("name")?.as_str()
}

/// Names of all dependencies, under `[target]` sections too.
fn dependencies(manifest: &Table) -> BTreeSet<String> {
    let targets = manifest.get("target").and_then(|targets| targets.as_table()).into_iter();
    let nested = targets.flat_map(|targets| targets.values()).filter_map(|target| target.as_table());
    std::iter::once(manifest)
        .chain(nested)
        .flat_map(|table| SECTIONS.iter().filter_map(|section| table.get(*section)?.as_table()))
        .flat_map(|section| section.keys().cloned())
        .collect()
}

/// Whether a source file of crate `name` names the dependency.
fn is_used(repository: &Repository, name: &str, dependency: &str) -> bool {
    let word = dependency.replace('-', "_");
    let folder = Path::new("crates").join(name);
    repository.with_extension("rs").any(|(file, text)| file.starts_with(&folder) && text.contains(&word))
}

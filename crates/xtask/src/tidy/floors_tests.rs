//! A crate of three floors, and arrows that must not be.

use super::*;
use std::path::PathBuf;

const LOW: &str = "crates/a/src/low.rs";
const TOP: &str = "crates/a/src/top/mod.rs";

/// The violations of a crate with the modules `low`, `middle` and `top`, and one more file.
fn found(row: &str, file: &str, text: &str) -> Vec<String> {
    let table = format!("| inside crate | floors |\n|---|---|\n| {row} |\n");
    let mut files: Vec<(PathBuf, String)> = vec![(SOURCE_MAP.into(), table), (file.into(), text.into())];
    for known in ["crates/a/src/lib.rs", LOW, "crates/a/src/middle.rs", TOP] {
        if known != file {
            files.push((known.into(), String::new()));
        }
    }
    files.sort();
    let mut violations = Vec::new();
    check(&Repository { files }, &mut violations);
    violations.iter().map(ToString::to_string).collect()
}

const ROW: &str = "`a` | `low`, `middle`, `top`";

#[test]
fn a_module_uses_only_what_is_below_it() {
    for text in ["use crate::low::A;", "use crate::{low, middle::{top, B}};", "fn f() { crate::low::f(); }"] {
        assert_eq!(found(ROW, TOP, text), [""; 0], "{text}");
    }
    let up = |file: &str, line, from, to| {
        [format!("{file}:{line}: `{from}` uses `{to}`, which is above it: see the table of floors in {SOURCE_MAP}")]
    };
    for text in ["\nuse crate::top::A;", "\nuse crate::{\n    low::B,\n    top,\n};", "\nfn f() { crate::top::f(); }"] {
        assert_eq!(
            found(ROW, "crates/a/src/middle.rs", text),
            up("crates/a/src/middle.rs", 2, "middle", "top"),
            "{text}"
        );
    }
    // What is not code, is a test, or is another's, does not count.
    let others = "// crate::top\nconst A: &str = \"crate::top\";\nuse mycrate::top;\n#[cfg(test)]\nmod tests {\n    use crate::top;\n}\n";
    assert_eq!(found(ROW, LOW, others), [""; 0]);
    assert_eq!(found(ROW, "crates/a/src/low_tests.rs", "use crate::top;"), [""; 0]);
    assert_eq!(found(ROW, "crates/a/src/lib.rs", "use crate::top;"), [""; 0]);
}

#[test]
fn the_table_names_each_module() {
    let says = |row: &str, file: &str, text: &str, what: &str| {
        let found = found(row, file, text);
        assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
    };
    says(ROW, "crates/a/src/more/of_it.rs", "", "module `more` of a is on no floor");
    says("`a` | `low`, `middle`, `top`, `gone`", LOW, "", "a has no module `gone`");
}

#[test]
fn a_folder_has_floors_too() {
    let table = |middle: &str| {
        let row = "| inside crate | floors |\n|---|---|\n| `a/b` | `low`, `middle`, `top` |\n";
        let source = "crates/a/src/b";
        let files = [("mod.rs", "use crate::b::top::A;"), ("low.rs", ""), ("middle.rs", middle), ("top/mod.rs", "")];
        let mut files: Vec<(PathBuf, String)> =
            files.map(|(file, text)| (Path::new(source).join(file), text.into())).into();
        files.push((SOURCE_MAP.into(), row.into()));
        files.sort();
        let mut violations = Vec::new();
        check(&Repository { files }, &mut violations);
        violations.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(table("use crate::{b::low::A, top};"), [""; 0], "another `top`, of the crate");
    let up = table("use crate::b::{low::A, top};");
    assert!(up.len() == 1 && up[0].starts_with("crates/a/src/b/middle.rs:1: `middle` uses `top`"), "{up:?}");
}

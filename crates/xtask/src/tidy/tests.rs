//! Each rule finds its violations in a repository of a few lines.

use super::source::{Function, code_only, functions, without_tests};
use super::{Repository, check};
use std::fs;
use std::path::PathBuf;

/// The violations that `check` finds in a repository of these files.
pub(super) fn violations(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder for the repository");
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("files lie in folders")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    check(folder.path()).expect("readable").iter().map(ToString::to_string).collect()
}

/// A repository of two crates, `a` and `b`, in which `a` imports `b`, with `table` as the rest of the document.
fn two_crates(may_import: &str, source: &str, table: &str) -> Vec<String> {
    let manifest = "[package]\nname = \"leeward-a\"\n[lints]\nworkspace = true\n[dependencies]\nleeward-b = {}\n";
    let architecture = format!(
        "| crate | owns | may import |\n|---|---|---|\n| `a` | it | {may_import} |\n| `b` | it | nothing |\n\n\
         `crates/a/src` `crates/b/src`\n\n{table}\n"
    );
    violations(&[
        ("docs/design/source.md", &architecture),
        ("Cargo.toml", "[workspace.dependencies]\n"),
        ("crates/a/Cargo.toml", manifest),
        ("crates/a/src/lib.rs", &format!("//! A.\n#![forbid(unsafe_code)]\nuse leeward_b as _;\n{source}")),
        ("crates/b/Cargo.toml", "[package]\nname = \"leeward-b\"\n[lints]\nworkspace = true\n"),
        ("crates/b/src/lib.rs", "//! B.\n#![forbid(unsafe_code)]\n"),
    ])
}

#[test]
fn a_tidy_repository_has_no_violations() {
    assert_eq!(two_crates("`b`", "", ""), [""; 0]);
}

#[test]
fn an_edge_that_the_table_does_not_grant_is_found() {
    let found = two_crates("nothing", "", "");
    assert_eq!(found, ["crates/a/Cargo.toml:1: a may not import b: see the table of crates in docs/design/source.md"]);
}

#[test]
fn modules_and_their_tests_follow_one_convention() {
    let repository = |file: &str, text: &str| {
        let texts = [("crates/a/src/x/y.rs", "//! Y.\n"), (file, text)];
        let found = violations(&texts);
        found.into_iter().filter(|what| what.starts_with(file)).collect::<Vec<_>>()
    };
    let beside = repository("crates/a/src/x.rs", "//! X.\n");
    assert_eq!(beside, ["crates/a/src/x.rs:1: a module with a folder is x/mod.rs"]);
    assert_eq!(repository("crates/a/src/x/mod.rs", "//! X.\n"), [""; 0]);
    let far = repository("crates/a/src/x/z.rs", "//! Z.\n#[path = \"../tests.rs\"]\nmod tests;\n");
    assert_eq!(far, ["crates/a/src/x/z.rs:1: ../tests.rs: only x_tests.rs beside x.rs has a path"]);
}

#[test]
fn effects_belong_to_the_seams() {
    let source = "fn f() { std::thread::spawn(|| Instant::now()); }\n";
    let found = two_crates("`b`", source, "");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("crates/a/src/lib.rs:4: Instant::now outside"), "{found:?}");
    assert_eq!(two_crates("`b`", source, "| seam | why |\n|---|---|\n| `crates/a/src` | threads |"), [""; 0]);
    let in_tests = format!("#[cfg(test)]\nmod tests {{\n{source}}}\n");
    assert_eq!(two_crates("`b`", &in_tests, ""), [""; 0]);
}

#[test]
fn unfinished_and_silenced_work_is_found() {
    for word in [
        "todo!()",
        "dbg!(1)",
        "#[allow(dead_code)]",
        "x.unwrap()",
        "unsafe {}",
        concat!("// TO", "DO: later"),
        concat!("/// See the ", "module.\nfn g() {}"),
    ] {
        let found = two_crates("`b`", &format!("fn f() {{\n{word}\n}}\n"), "");
        assert_eq!(found.len(), 1, "{word}: {found:?}");
        assert!(found[0].starts_with("crates/a/src/lib.rs:5: "), "{word}: {found:?}");
    }
    assert_eq!(two_crates("`b`", "/// Never `todo!()`: says \"dbg!\".\nconst A: &str = \"unsafe\";\n", ""), [""; 0]);
}

#[test]
fn doc_comments_that_repeat_a_name_are_found() {
    let of = |comment: &str| two_crates("`b`", &format!("struct S {{\n    {comment}\n    a: u8,\n}}\n"), "");
    for comment in ["/// Its name.", "/// Their number.", "/// The file.", "/// A time.", "/// An event."] {
        let found = of(comment);
        assert_eq!(found.len(), 1, "{comment}: {found:?}");
        assert!(found[0].starts_with(&format!("crates/a/src/lib.rs:5: {comment}: say ")), "{comment}: {found:?}");
    }
    for comment in [
        "/// Its name, as told.",
        "/// The WAL.",
        "/// The file",
        "/// Bytes.",
        "// Its name.",
        "/// # Errors\n    /// The reason.",
        "/// The size.\n    ///\n    /// In bytes.",
    ] {
        assert_eq!(of(comment), [""; 0], "{comment}");
    }
}

#[test]
fn long_files_and_functions_are_found() {
    let long = format!("fn f() {{\n{}}}\n", "    g();\n".repeat(70));
    let found = two_crates("`b`", &long, "");
    assert_eq!(found, ["crates/a/src/lib.rs:4: fn f has 72 lines, the limit is 70"]);
    let found = two_crates("`b`", &"// line\n".repeat(600), "");
    assert!(found[0].contains("603 lines"), "{found:?}");
}

#[test]
fn documents_name_what_is_there() {
    let found =
        two_crates("`b`", "", "`crates/a/src/gone.rs` and [a page](docs/gone.md), [that](https://x.y), `crates/<id>`");
    assert_eq!(
        found,
        [
            "docs/design/source.md:8: crates/a/src/gone.rs is not there",
            "docs/design/source.md:8: link to docs/gone.md, which is not there",
        ]
    );
}

#[test]
fn literals_and_comments_are_blanked_line_for_line() {
    let source = "a /* { /* } */\n } */ b \"{\\\"\n\" r#\"}\"\"# '{' '\\'' 'x b'\"' br\"{\" 'é' // }\nc";
    let code = code_only(source);
    assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a", "b", "'x", "c"]);
    assert_eq!(code.lines().count(), source.lines().count());
}

#[test]
fn functions_are_measured_from_signature_to_brace() {
    let code =
        "trait T { fn none(&self); }\nfn one() {}\nfn three<const N: usize>(\n  a: [u8; 3]) {\n}\nlet f: fn (u8);\n";
    let of = |name: &str, line, lines| Function { name: name.into(), line, lines };
    assert_eq!(functions(code), [of("one", 2, 1), of("three", 3, 3)]);
}

#[test]
fn test_modules_are_not_product() {
    let code =
        "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() { x.unwrap() }\n}\n#[cfg(test)]\nmod other;\nfn c() { d }\n";
    let product = without_tests(code);
    assert!(!product.contains("unwrap") && product.contains("fn c() { d }"), "{product}");
    assert_eq!(product.lines().count(), code.lines().count());
}

#[test]
fn a_file_that_is_not_there_is_empty() {
    let repository = Repository { files: vec![(PathBuf::from("a"), "text".into())] };
    assert_eq!((repository.text("a"), repository.text("b")), ("text", ""));
}

/// The violations in a crate that handles bytes from outside, with `row` in the table of places that index.
fn reached(source: &str, row: &str) -> Vec<String> {
    let architecture = "| crate | owns | may import |\n|---|---|---|\n| `format` | it | nothing |\n\n\
                        `crates/format/src` `docs/formats`\n";
    let table = format!("| file that indexes | places | why |\n|---|---|---|\n{row}\n");
    violations(&[
        ("docs/design/source.md", architecture),
        ("Cargo.toml", "[workspace.dependencies]\n"),
        ("docs/panics.md", &table),
        ("docs/formats/lib.md", "A page.\n"),
        ("crates/format/Cargo.toml", "[package]\nname = \"leeward-format\"\n[lints]\nworkspace = true\n"),
        ("crates/format/src/lib.rs", &format!("//! A.\n#![forbid(unsafe_code)]\n{source}")),
    ])
    .into_iter()
    .filter(|violation| violation.contains("lib.rs:") || violation.contains("panics.md"))
    .collect()
}

#[test]
fn what_may_panic_where_bytes_come_in_says_why_it_does_not() {
    let why = |call: &str| reached(&format!("fn f() {{\n    {call};\n}}\n"), "");
    for call in [
        "a.expect(reason)",
        "panic!()",
        "unreachable!()",
        "assert!(a < b)",
        "assert_eq!(a, b(c))",
        "assert!(a == \"b\")",
        "a.expect(\"\")",
    ] {
        let found = why(call);
        assert!(found.len() == 1 && found[0].starts_with("crates/format/src/lib.rs:4: "), "{call}: {found:?}");
    }
    for call in [
        "a.expect(\"it was checked\")",
        "panic!(\"{a} (never)\")",
        "assert!(a < b, \"for {b}\")",
        "assert_eq!(a, \"b\",\n \"since\")",
        "debug_assert!(a)",
        "expected(a)",
    ] {
        assert_eq!(why(call), [""; 0], "{call}");
    }
    assert_eq!(reached("const _: () = assert!(A < B);\n", ""), [""; 0], "the compiler tells");
    assert_eq!(reached("#[cfg(test)]\nmod tests {\nfn f() { panic!() }\n}\n", ""), [""; 0]);
}

#[test]
fn places_that_index_are_counted_and_have_a_reason() {
    let source =
        "fn f(a: &[u8], b: [u8; 4]) -> Vec<[u8; 2]> {\n    (a[1], &b[2..], g()[3], a[..].len(), vec![0; 4])\n}\n";
    let row = |row: &str| reached(source, row);
    assert_eq!(row("| `crates/format/src/lib.rs` | 3 | b is long enough |"), [""; 0]);
    for (wrong, what) in [
        ("", "indexes or slices in 3 places, docs/panics.md says 0"),
        ("| `crates/format/src/lib.rs` | 2 | b is long enough |", "in 3 places, docs/panics.md says 2"),
        ("| `crates/format/src/lib.rs` | 4 | b is long enough |", "in 3 places, docs/panics.md says 4"),
        ("| `crates/format/src/lib.rs` | 3 | |", "does not say why"),
    ] {
        let found = row(wrong);
        assert!(found.len() == 1 && found[0].contains(what), "{wrong}: {found:?}");
    }
    let gone = reached("", "| `crates/format/src/gone.rs` | 3 | b is long enough |");
    assert!(gone.iter().any(|violation| violation.contains("gone.rs has a row")), "{gone:?}");
}

#[test]
fn a_types_name_says_what_it_holds() {
    for (source, name) in
        [("struct State;", "State"), ("pub(crate) enum Found<'a> {}", "Found"), ("type Way = u8;", "Way")]
    {
        let expected = format!("crates/a/src/lib.rs:4: type {name}: a name that says what it holds");
        assert_eq!(two_crates("`b`", source, ""), [expected], "{source}");
    }
    for fine in
        ["struct StateOfDisk;", "#[cfg(test)]\nmod tests {\n    struct State;\n}", "const A: &str = \"enum Way\";"]
    {
        assert_eq!(two_crates("`b`", fine, ""), [""; 0], "{fine}");
    }
}

//! Planted words: one of each kind that the check finds, and some that it must not find.

use super::*;
use crate::tidy::tests::violations;
use std::path::PathBuf;

/// The violations in one file.
fn said(file: &str, text: &str) -> Vec<String> {
    let repository = Repository { files: vec![(PathBuf::from(file), text.into())] };
    let mut violations = Vec::new();
    check(&repository, &mut violations);
    violations.iter().map(ToString::to_string).collect()
}

#[test]
fn a_planted_word_of_each_kind_is_found() {
    let planted = [
        ("let a = 1;\nlet old_office = 2;\n", "a.rs:2: office: say the primary role; to become primary"),
        ("struct RegionWishes;\n", "a.rs:1: wishes: say the desired state, or a request"),
        ("enum E {\n    HTTPTwin,\n}\n", "a.rs:2: twin: say a duplicate server id, or a copy"),
        ("const MOST_GUESTS: usize = 1;\n", "a.rs:1: guests: say the sessions"),
        ("let patienceMs = 1;\n", "a.rs:1: patience: say the timeout"),
        ("// The backup vouches for it.\n", "a.rs:1: vouches: say publish the safe LSN"),
        (
            "let text = \"one\\nwhoever two\";\n",
            "a.rs:1: whoever: say the thing itself: the caller, the node, the client",
        ),
        ("//! The heir's log.\n", "a.rs:1: heir: say the transfer target, or a promotion candidate"),
        ("// It must stand still.\n", "a.rs:1: stand still: say quiesce"),
        ("/// A region comes\n    /// to rest there.\n", "a.rs:1: comes to rest: say quiesce"),
        ("fn stand_still() {}\n", "a.rs:1: stand still: say quiesce"),
        ("struct StandStill;\n", "a.rs:1: stand still: say quiesce"),
    ];
    for (text, expected) in planted {
        assert_eq!(said("a.rs", text), [expected], "{text}");
    }
}

#[test]
fn each_kind_of_text_is_searched_and_no_other() {
    for file in ["a.rs", "docs/a.md", "a.html", "tests/a.sh", "a.py", "Cargo.toml"] {
        assert_eq!(said(file, "one\nan Office\n").len(), 1, "{file}");
    }
    for file in ["a.go", "Cargo.lock", "a", EXEMPT[0], EXEMPT[1]] {
        assert_eq!(said(file, "one\nan Office\n"), [""; 0], "{file}");
    }
    assert_eq!(said("src/habits.rs", ""), ["src/habits.rs:1: habits: say the client mix, or the workload"]);
}

#[test]
fn parts_of_words_and_words_of_two_sentences_are_not_found() {
    let text = "An officer, a guest and a patient promise. They stand. Still, all come, to rest: subdivision, \
                twinned, `attester`, and win.\n";
    assert_eq!(said("a.md", text), [""; 0]);
}

#[test]
fn what_is_to_be_said_instead_may_be_said() {
    let entries = by_first_word();
    for (banned, instead) in BANNED {
        find(&entries, instead, |_, (entry, _)| panic!("{entry} is banned, and said instead of {banned:?}"));
    }
}

#[test]
fn the_check_is_one_of_those_that_tidy_makes() {
    let found = violations(&[("docs/a.md", "One.\nIt takes office.\n")]);
    let expected = "docs/a.md:2: office: say the primary role; to become primary";
    assert!(found.iter().any(|violation| violation == expected), "{found:?}");
}

#[test]
fn words_are_split_as_identifiers_are() {
    let text = "one_two threeFour\n// HTTPServer, l0_x";
    let found: Vec<(&str, usize, bool)> =
        words(text).iter().map(|word| (word.text, word.line, word.is_joined)).collect();
    let expected = [
        ("one", 1, false),
        ("two", 1, true),
        ("three", 1, true),
        ("Four", 1, true),
        ("HTTP", 2, true),
        ("Server", 2, true),
        ("l", 2, false),
        ("x", 2, false),
    ];
    assert_eq!(found, expected);
}

//! The command line is well-formed, its help has examples, and a missing binary is named.

use super::*;
use clap::{Command, FromArgMatches};

fn parse(line: &str) -> Result<Measure, clap::Error> {
    let words = ["measure"].into_iter().chain(line.split_whitespace());
    let matches = Measure::augment_args(Command::new("measure")).try_get_matches_from(words)?;
    Measure::from_arg_matches(&matches)
}

#[test]
fn the_definition_is_well_formed() {
    Measure::augment_args(Command::new("measure")).debug_assert();
}

#[test]
fn every_page_has_an_example() {
    for page in ["idle", "routes", "pauses", "moves", "splits", "faults", "rights", "rotation"] {
        let text = parse(&format!("{page} --help")).expect_err("help ends it").to_string();
        let example = format!("cargo xtask measure {page}");
        assert!(text.contains(&example) && text.contains("--leeward") && text.contains("--json"), "{text}");
    }
}

#[test]
fn the_command_lines_of_the_documents_are_understood() {
    for line in [
        "idle --dev 3 --regions 1000 --pairs 20 --seconds 30 --leeward target/release/leeward",
        "routes --regions 10000 --key-bytes 20",
        "pauses --only hand-over --rounds 5 --data /srv",
        "moves --regions 48 --records 5000000 --mix md --json moves.json --rest 0.5",
        "splits --rounds 1 --records 4000000 --mix md",
        "faults --only send-index,build-index,3 --kills 10 --kill-primary-every 0.1",
        "rights --rounds 9 --users 1000 --json rights.json",
        "rotation --rounds 3 --records 100000 --json rotation.json",
    ] {
        assert!(parse(line).is_ok_and(|parsed| format!("{parsed:?}").to_lowercase().contains(&line[..4])), "{line}");
    }
}

#[test]
fn bad_flags_are_refused_with_what_would_be_right() {
    for (line, part) in [
        ("idle --fabric carrier-pigeon", "possible values: shm, tcp, libfabric, libfabric:verbs"),
        ("moves --rest=-1", "negative"),
        ("splits --mix xxl", "s, m, l, sd, md, ld"),
        ("pauses --rounds 0", "1..=10000"),
        ("faults --regions 0", "1..=1024"),
        ("rights --grants 64", "1..=63"),
    ] {
        let text = parse(line).expect_err(line).to_string();
        assert!(text.contains(part), "{line}: {part:?} in {text}");
    }
}

#[test]
fn names_that_there_are_not_and_a_missing_binary_are_refused() {
    let refused = |line: &str| parse(line).expect("it is well-formed").run().expect_err("nothing runs").to_string();
    let missing = refused("idle --leeward /nonexistent/leeward");
    assert!(missing.contains("/nonexistent/leeward") && missing.contains("build it first: cargo build"));
    // The name is checked before the binary is run, so any existing file serves as the binary.
    let unknown = refused("faults --only colour --leeward /proc/self/exe");
    assert!(unknown.starts_with("--only colour: it is 2, 3, or one of"), "{unknown}");
    let unknown = refused("pauses --only colour --leeward /proc/self/exe");
    assert!(unknown.starts_with("--only colour: must be one of hand-over"), "{unknown}");
}

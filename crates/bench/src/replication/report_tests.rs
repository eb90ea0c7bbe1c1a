//! The report says what was run, and what was missed.

use super::super::cells::tests::sample;
use super::super::targets::verdicts;
use super::*;

fn options() -> Options {
    Options {
        only: Vec::new(),
        quick: true,
        rounds: 1,
        records: None,
        ops: None,
        cell: CellOptions { l0_kib: None, nodes: 3, memory_mib: 64, regions: 3, threads: 2, depth: 32 },
        json: None,
        out: None,
    }
}

#[test]
fn it_has_targets_papers_and_every_variant() {
    let samples = vec![sample("send-index", 1, "load", 11.0), sample("build-index", 1, "load", 10.0)];
    let verdicts = verdicts(&samples);
    let failures = vec![Failed { cell: "tebis".into(), round: 1, reason: "it rained".into() }];
    let (scope, results) = (Scope::new(&[], true).expect("a scope"), Results { samples, failures });
    let text = markdown(&Machine::here(), &options(), &scope, &results, &verdicts, true);
    for part in [
        "| throughput | send-index | build-index | load | sd | 2 | 1.10 (1.10 to 1.10) | >= 1.3 | **MISSED** by a factor of 1.18 |",
        "1.04 to 2.46 (Anthus)",
        "| workload | cell | none | build-index | build-index-reduced-l0 | send-index |",
        "| Load A | sd, 2 replicas, growth 8 | - | 10.0 | - | 11.0 |",
        "| compaction | backup | - | 1000 | - | 1000 |",
        "![Throughput until the servers have settled",
        "- tebis, round 1: it rained",
    ] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
}

#[test]
fn plots_are_drawn_of_what_was_measured() {
    let directory = tempfile::tempdir().expect("a directory");
    let samples = [sample("send-index", 1, "load", 11.0), sample("build-index", 1, "load", 10.0)];
    draw_all(directory.path(), &Scope::new(&[], true).expect("a scope"), &samples).expect("files can be written");
    let svg = std::fs::read_to_string(directory.path().join("modes-throughput.svg")).expect("a plot");
    assert!(svg.contains("send-index") && svg.contains("Load A"));
}

//! What is refused, and how large L0s are.

use super::super::CellOptions;
use super::super::cells::tests::sample;
use super::super::experiments::{MANY, Shape, indexed};
use super::*;
use crate::options::NODES;

fn options(l0_kib: Option<u64>, records: Option<u64>) -> Options {
    let cell = CellOptions { l0_kib, nodes: NODES, memory_mib: 64, regions: 3, threads: 2, depth: 32 };
    Options { only: Vec::new(), quick: false, rounds: 1, records, ops: None, cell, json: None, out: None }
}

fn setup(variant: &'static str) -> Setup {
    Setup { shape: Shape::RUNS, ..Setup::new(variant, Mix::SD, 3, 8) }
}

fn load(run_merges: u64) -> PhaseReport {
    PhaseReport { levels: 3, run_merges, ..sample("two-layer-20", 1, "load", 5.0).phase }
}

#[test]
fn a_two_layer_log_that_has_hardly_merged_is_refused() {
    for (variant, run_merges, refused) in [
        ("two-layer-20", 1, true),
        ("two-layer-20", 2, false),
        ("two-layer-10", 0, true),
        ("two-layer-one-run", 1, true),
        ("two-layer-31", 0, false),
        ("build-index-depart", 0, false),
        ("send-index", 0, false),
    ] {
        let result = check(setup(variant), &load(run_merges), 1);
        assert_eq!(result.is_err(), refused, "{variant}, {run_merges} merges");
        if let Err(error) = result {
            assert!(error.is_refusal(), "{error}");
            assert!(error.to_string().contains("--records") && error.to_string().contains("refused"), "{error}");
        }
    }
    let reads = PhaseReport { workload: "c".into(), ..load(0) };
    assert!(check(setup("two-layer-20"), &reads, 1).is_ok(), "only Load must have merged");
    let many = Setup { shape: MANY, ..setup("two-layer-20") };
    assert!(check(many, &load(0), 1).is_ok(), "the memory of L0s is compared");
}

#[test]
fn reads_that_only_primaries_answer_are_refused() {
    // Of two members of three, backups should answer four of three reads.
    let reads = |stale_reads| PhaseReport { workload: "c".into(), ops: 900, stale_reads: Some(stale_reads), ..load(0) };
    assert!(check(setup("two-layer-20"), &reads(590), 2).is_err_and(|error| error.is_refusal()));
    assert!(check(setup("two-layer-20"), &reads(610), 2).is_ok());
    assert!(check(setup("two-layer-20"), &reads(0), 1).is_ok(), "one member is the primary");
}

#[test]
fn l0s_are_as_large_as_the_records_allow() {
    let pair = Mix::SD.mean_pair_bytes() + ENTRY_BYTES;
    assert_eq!(Mix::SD.mean_pair_bytes(), (60 * 33 + 20 * 123 + 20 * 1023) / 100);
    let l0s = Shape::RUNS.l0s.expect("a number");
    let records = 3_000_000;
    assert_eq!(l0_bytes(&options(None, Some(records)), setup("two-layer-20")), records * pair / u64::from(3 * l0s));
    let many = Setup { shape: MANY, ..setup("two-layer-20") };
    assert_eq!(l0_bytes(&options(None, Some(records)), many), 256 << 10, "as in the experiments of the other papers");
    assert_eq!(l0_bytes(&options(Some(128), None), setup("two-layer-20")), 128 << 10, "the option wins");
    assert_eq!(l0_bytes(&options(None, None), Setup::new("send-index", Mix::SD, 3, 8)), 256 << 10);
    assert_eq!(l0_bytes(&options(None, Some(1000)), setup("two-layer-20")), 64 << 10, "a table has no smaller one");
}

#[test]
fn segments_are_so_small_that_two_layer_logs_merge() {
    let of_a_region = Mix::SD.mean_pair_bytes() * 1_000_000 / 3;
    let bytes = segment_bytes(&options(None, Some(1_000_000)), setup("two-layer-20"));
    assert_eq!(bytes, Some(1 << 20));
    assert!(of_a_region / (1 << 20) >= SEGMENTS_OF_A_COPY);
    let most = segment_bytes(&options(None, Some(100_000_000)), setup("two-layer-20"));
    assert_eq!(most, Some(2 << 20), "not larger than usual");
    assert_eq!(segment_bytes(&options(None, Some(10)), setup("two-layer-20")), Some(64 << 10));
    let many = Setup { shape: MANY, ..setup("two-layer-20") };
    assert_eq!(segment_bytes(&options(None, Some(1_000_000)), many), None, "it need not merge");
}

#[test]
fn a_hash_index_has_the_part_of_the_pairs_that_its_row_says() {
    let in_part = |percent| Setup { shape: indexed(percent), ..setup("histore") };
    let pair = Mix::SD.mean_pair_bytes() + RECORD_BYTES;
    for percent in [5, 10, 25] {
        let memory = memory_bytes(&options(None, None), in_part(percent)).expect("there are enough records");
        let of_all = RECORDS_INDEXED_IN_PART * pair / u64::from(NODES);
        assert_eq!(memory / HASH_SHARE, of_all * u64::from(percent) / 100, "{percent} %");
    }
    let refused = memory_bytes(&options(None, Some(200_000)), in_part(5)).expect_err("too few records");
    let BenchError::Indexed { least, .. } = refused else { panic!("{refused}") };
    assert!(refused.is_refusal() && refused.to_string().contains(&format!("--records {least}")), "{refused}");
    assert!(memory_bytes(&options(None, Some(least)), in_part(5)).is_ok());
    assert!(memory_bytes(&options(None, Some(least - 100)), in_part(5)).is_err());
    let all = memory_bytes(&options(None, None), in_part(100)).expect("no part");
    assert!(all / HASH_SHARE > RECORDS_INDEXED * pair / u64::from(NODES), "all of them, however regions are spread");
}

//! The list of runs, the changes in them, and what counts as a failure.

use super::*;

fn outcome() -> Outcome {
    Outcome {
        variant: "send-index",
        replicas: 3,
        kills: 8,
        changes: 6,
        ops: 1000,
        lost_writes: Some(0),
        unavailable_seconds: Some(1.25),
        in_sync_seconds: Some(2.0),
        replica_faults: Some(0),
        ..Outcome::default()
    }
}

#[test]
fn every_variant_with_replicas_is_run_with_two_and_three() {
    let all = setups(&[]).expect("all of them");
    assert_eq!(all.len(), 2 * VARIANTS.iter().filter(|variant| variant.mode != "none").count());
    for (mode, replicas) in [("send-index", 2), ("build-index-last-flush", 3), ("tebis", 2), ("send-index-tcp", 3)] {
        assert!(all.iter().any(|setup| (setup.variant, setup.replicas) == (mode, replicas)), "{mode}, {replicas}");
    }
    let tables = all.iter().map(|setup| setup.table(256 << 10));
    let modes: std::collections::BTreeSet<String> = tables
        .map(|table| format!("{} {} {} {}", table.replicas, table.backups, table.addressing, table.acknowledge))
        .collect();
    assert!(modes.len() >= 14, "{modes:?}");
}

#[test]
fn names_choose_among_them() {
    let named = |names: &[&str]| setups(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    assert_eq!(named(&["tebis", "2"]).expect("one"), [Setup::new("tebis", Mix::SD, 2, GROWTH_FACTOR)]);
    assert!(named(&["3"]).expect("half").iter().all(|setup| setup.replicas == 3));
    assert!(named(&["none"]).expect_err("it has no replicas").contains("send-index-tcp"));
    assert!(named(&["4"]).expect_err("there are not so many").contains("2 and with 3"));
}

#[test]
fn changes_touch_every_option_and_end_where_they_began() {
    for setup in setups(&[]).expect("all of them") {
        let first = setup.table(256 << 10);
        let mut table = first.clone();
        for change in changes(&first) {
            let before = table.clone();
            table = change.apply(&before).expect("it is possible");
            assert_ne!(table, before, "{change:?}");
        }
        assert_eq!(table, first);
    }
}

#[test]
fn a_loss_a_difference_or_a_run_without_an_end_is_a_failure() {
    assert!(outcome().is_clean());
    for failed in [
        Outcome { errors: 1, ..outcome() },
        Outcome { lost_writes: Some(1), ..outcome() },
        Outcome { lost_writes: None, ..outcome() },
        Outcome { replica_faults: Some(1), ..outcome() },
        Outcome { unavailable_seconds: None, ..outcome() },
        Outcome { failure: Some("it did not start".into()), ..outcome() },
    ] {
        assert!(!failed.is_clean(), "{failed:?}");
    }
    assert!(Outcome { newest_lost: Some(7), ..outcome() }.is_clean(), "that is what last-flush is");
}

#[test]
fn the_table_has_a_line_a_run_and_says_what_is_wrong() {
    let failed = Outcome { lost_writes: Some(1), details: vec!["record 7 holds None".into()], ..outcome() };
    let machine = Machine { processor: "a processor".into(), cores: 2, kernel: "6".into() };
    let text = table(&machine, &[outcome(), failed], &["send-index-libfabric, 2 replicas: none here".into()]);
    assert!(text.contains("| send-index | 3 | 8 | 6 | 1000 | 0 | 0 | - | 1.25 | 2.00 | 0 |\n"), "{text}");
    assert!(text.contains("2 runs, 1 failed\n- send-index, 3 replicas FAILED\n  - record 7 holds None\n"), "{text}");
    assert!(text.ends_with("- left out: send-index-libfabric, 2 replicas: none here\n"), "{text}");
}

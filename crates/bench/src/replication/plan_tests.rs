//! The tables are consistent, and options leave out the right parts of a run.

use super::*;

#[test]
fn every_experiment_names_variants_that_there_are() {
    for experiment in &EXPERIMENTS {
        for name in experiment.variants {
            assert_eq!(variant(name).name, *name);
        }
    }
}

#[test]
fn every_setup_makes_a_table() {
    for setup in Scope::default().setups().into_iter().flatten() {
        setup.table(256 << 10).check().expect("a table");
    }
}

#[test]
fn a_reduced_l0_takes_as_much_memory_in_all_replicas_as_one_that_is_not() {
    let setup = Setup::new("build-index-reduced-l0", Mix::SD, 3, 8);
    let table = setup.table(300 << 10);
    assert_eq!((table.l0_bytes, table.backups, table.replicas), (100 << 10, BackupMode::BuildIndex, 3));
}

#[test]
fn what_is_posted_per_record_differs_in_nothing_else() {
    let table = |variant| Setup::new(variant, Mix::SD, 2, 8).table(256 << 10);
    let per_record = table("send-index-per-record");
    assert_eq!(per_record.posting, Posting::PerRecord);
    assert_eq!(TableOptions { posting: Posting::Coalesced, ..per_record }, table("send-index"));
}

#[test]
fn without_backups_there_is_one_replica_and_it_is_measured_once() {
    let scope = Scope::new(&["modes".into(), "none".into(), "sd".into()], false).expect("a scope");
    assert_eq!(scope.setups(), [[Setup { variant: "none", mix: Mix::SD, replicas: 1, growth_factor: 8 }]]);
}

#[test]
fn cells_that_several_experiments_want_are_run_once() {
    let setups = Scope::default().setups().concat();
    for (place, setup) in setups.iter().enumerate() {
        assert!(!setups[..place].contains(setup), "{setup} twice");
    }
}

#[test]
fn quick_is_two_mixes_with_two_replicas() {
    let setups = Scope::new(&[], true).expect("a scope").setups().concat();
    assert!(setups.iter().all(|setup| [Mix::SD, Mix::S].contains(&setup.mix) && setup.replicas <= 2));
    assert!(setups.len() > 10);
}

#[test]
fn an_unknown_name_is_refused_with_those_there_are() {
    let error = Scope::new(&["nonsense".into()], false).expect_err("no such name");
    assert!(error.contains("nonsense") && error.contains("send-index-tcp") && error.contains("growth"), "{error}");
}

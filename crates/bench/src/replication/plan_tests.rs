//! The tables are consistent, and options leave out the right parts of a run.

use super::super::experiments::{FIVE, MANY};
use super::*;
use leeward_format::cluster::{BackupMode, CompactionMode, Placement, Posting};

#[test]
fn every_experiment_names_variants_that_there_are() {
    for experiment in &EXPERIMENTS {
        for name in experiment.variants {
            assert_eq!(variant(name).name, *name);
        }
    }
}

#[test]
fn no_name_is_of_two_kinds() {
    let experiments: Vec<&str> = EXPERIMENTS.iter().map(|experiment| experiment.name).collect();
    let variants: Vec<&str> = VARIANTS.iter().map(|variant| variant.name).collect();
    assert!(experiments.iter().all(|name| !variants.contains(name) && name.parse::<Mix>().is_err()));
    for names in [experiments, variants] {
        assert!((0..names.len()).all(|at| !names[..at].contains(&names[at])), "{names:?}");
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
fn a_two_layer_log_and_its_baselines_differ_in_nothing_else() {
    let table = |variant| Setup::new(variant, Mix::SD, 3, 8).table(256 << 10);
    let two_layer = table("two-layer-20");
    assert_eq!((two_layer.backups, two_layer.placement), (BackupMode::TWO_LAYER_LOG, Placement::IN_PLACE));
    let same = |table: &TableOptions| TableOptions { backups: BackupMode::TWO_LAYER_LOG, ..table.clone() } == two_layer;
    for (variant, backups) in [
        ("build-index-depart", BackupMode::BuildIndex),
        ("send-index-depart", BackupMode::SendIndex),
        ("two-layer-1", BackupMode::TwoLayerLog { ordering_degree: 1 }),
        ("two-layer-10", BackupMode::TwoLayerLog { ordering_degree: 10 }),
        ("two-layer-31", BackupMode::TwoLayerLog { ordering_degree: 31 }),
    ] {
        let table = table(variant);
        assert_eq!(table.backups, backups, "{variant}");
        assert!(same(&table), "{variant}");
    }
    for (one_run, default) in [("two-layer-one-run", "two-layer-20"), ("build-index-one-run", "build-index-depart")] {
        let one_run = table(one_run);
        assert_eq!((one_run.l1_runs, one_run.compaction), (1, CompactionMode::WholeLevel));
        let (l1_runs, compaction) = (table(default).l1_runs, table(default).compaction);
        assert_eq!(TableOptions { l1_runs, compaction, ..one_run }, table(default));
    }
}

#[test]
fn rows_say_how_many_nodes_and_regions_they_have() {
    let setups = |only: &[&str]| {
        let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
        Scope::new(&only, false).expect("a scope").setups().concat()
    };
    let levels = setups(&["levels", "two-layer"]);
    assert!(levels.iter().any(|setup| setup.shape == FIVE && setup.replicas == 5), "{levels:?}");
    assert!(levels.iter().any(|setup| setup.shape == MANY && setup.variant == "two-layer-20"));
    let many: Vec<Setup> = setups(&["two-layer"]).into_iter().filter(|setup| setup.shape == MANY).collect();
    assert_eq!(many.iter().map(|setup| setup.variant).collect::<Vec<_>>(), ["build-index-depart", "two-layer-20"]);
    assert_eq!(many[0].to_string(), "build-index-depart, mix sd, 3 replicas, growth factor 8, 100 regions");
    assert!(setups(&["recovery"]).iter().all(|setup| setup.shape.nodes == Some(5)));
    let quorums = setups(&["levels", "two-layer-quorum"]);
    assert_eq!((quorums.len(), quorums[0].table(256 << 10).quorum), (1, Some(2)));
}

#[test]
fn reads_of_several_members_need_a_table_that_allows_them() {
    let setup = Setup { shape: FIVE, ..Setup::new("two-layer-20", Mix::SD, 3, 8) };
    assert_ne!(setup.table(256 << 10).reads.stale, Reads::Primary);
    assert_eq!(Setup::new("two-layer-20", Mix::SD, 3, 8).table(256 << 10).reads.stale, Reads::Primary);
}

#[test]
fn without_backups_there_is_one_replica_and_it_is_measured_once() {
    let scope = Scope::new(&["modes".into(), "none".into(), "sd".into()], false).expect("a scope");
    assert_eq!(scope.setups(), [[Setup::new("none", Mix::SD, 2, 8)]]);
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

//! Whole runs against a store in memory: what they count, that they survive kills, and that they detect a store that
//! loses writes.

mod store;

use leeward_bench::ycsb::run;
use leeward_bench::{Mix, Options, Report, Workload};
use std::time::Duration;
use store::Store;

fn options(store: &Store) -> Options {
    Options {
        seeds: vec![store.address.clone()],
        workloads: Workload::ALL.to_vec(),
        mix: Mix::SD,
        records: 2000,
        ops: 3000,
        threads: 2,
        depth: 8,
        verify: true,
        deadline: Duration::from_secs(20),
        ..Options::default()
    }
}

fn phase_ops(report: &Report) -> Vec<(String, u64)> {
    report.phases.iter().map(|phase| (phase.workload.clone(), phase.ops)).collect()
}

#[test]
fn every_workload_runs_and_every_write_is_read_back() {
    let store = Store::start();
    let report = run(&options(&store), None).expect("a report");
    assert_eq!((report.errors, report.lost_writes), (0, Some(0)), "{report}");
    let expected =
        ["load", "a", "b", "c", "d", "e", "f", "u"].map(|w| (w.to_string(), if w == "load" { 2000 } else { 3000 }));
    assert_eq!(phase_ops(&report), expected);
    let verified = report.verified_records.expect("it verified");
    assert_eq!(verified, store.len() as u64, "all that was ever inserted");
    assert!(verified > 2200, "D and E insert 5 % each: {verified}");
    let latency = &report.phases[5].latency_us;
    assert!(latency.scan.is_some() && latency.insert.is_some() && latency.read.is_none());
    let network = report.phases[0].network_amplification.expect("the node tells its network bytes");
    assert!(network > 1.0, "what the clients sent is counted: {network}");
    assert!(report.phases[0].server_cpu_seconds_per_million_ops.is_some(), "the node is of this machine");
    assert_eq!(report.phases[0].engine_device_bytes.write, None, "the node does not tell");
}

#[test]
fn records_that_are_missing_are_loaded_first() {
    let store = Store::start();
    let options = Options { workloads: vec![Workload::C], ..options(&store) };
    let report = run(&options, None).expect("a report");
    assert_eq!(phase_ops(&report), [("load".into(), 2000), ("c".into(), 3000)]);
    let again = run(&options, None).expect("a report");
    assert_eq!(phase_ops(&again), [("c".into(), 3000)]);
    assert!(report.is_clean() && again.is_clean());
}

#[test]
fn a_store_that_forgets_is_found_out() {
    let store = Store::start();
    let options = Options { workloads: vec![Workload::Load, Workload::A], ..options(&store) };
    store.forget_every(100);
    let report = run(&options, None).expect("a report");
    let lost = report.lost_writes.expect("it verified");
    assert!((10..=35).contains(&lost), "about 1 % of 3500 writes, unless overwritten: {lost}");
    assert!(!report.is_clean());
    assert!(report.to_string().contains("may hold"), "{report}");
}

#[test]
fn refused_writes_are_errors_and_not_losses() {
    let store = Store::start();
    let load = Options { workloads: vec![Workload::Load], ..options(&store) };
    assert!(run(&load, None).expect("a report").is_clean());
    store.set_full();
    let report = run(&Options { workloads: vec![Workload::A], ..load }, None).expect("a report");
    assert!(report.errors > 1000, "half of the operations: {}", report.errors);
    assert_eq!(report.lost_writes, Some(0));
    assert_eq!(report.phases[0].first_error.as_deref(), Some("no space"));
}

#[test]
fn kills_are_survived_and_timed() {
    let store = Store::start();
    let options = Options {
        workloads: vec![Workload::Load, Workload::A],
        kill_primary_every: Some(Duration::from_millis(100)),
        kills: Some(3),
        ..options(&store)
    };
    let report = run(&options, Some(Box::new(store))).expect("a report");
    assert_eq!((report.errors, report.lost_writes), (0, Some(0)), "{report}");
    assert_eq!(report.kills.len(), 3);
    for kill in &report.kills {
        assert_eq!((kill.server, &kill.regions[..]), (1, &[1, 2][..]));
        for seconds in &kill.unavailable_seconds {
            assert!(seconds.is_some_and(|seconds| (0.05..5.0).contains(&seconds)), "{kill}");
        }
    }
    assert!(report.phases[1].ops > 3000, "it goes on until the kills are made: {}", report.phases[1].ops);
}

#[test]
fn a_target_rate_is_kept() {
    let store = Store::start();
    let options = Options { workloads: vec![Workload::Load], target_rate: Some(4000.0), ..options(&store) };
    let report = run(&options, None).expect("a report");
    let seconds = report.phases[0].seconds;
    assert!((0.45..2.0).contains(&seconds), "2000 operations at 4000 a second: {seconds}");
}

#[test]
fn a_cluster_that_dies_ends_the_run() {
    let store = Store::start();
    let load = Options { workloads: vec![Workload::Load], records: 1_000_000_000, ..options(&store) };
    let mut dying = store.clone();
    let death = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        dying.break_down();
    });
    let error = run(&load, Some(Box::new(store))).expect_err("it died").to_string();
    assert!(error.contains("node 1 died"), "{error}");
    death.join().expect("no panic");
}

#[test]
fn a_run_in_which_nothing_succeeds_ends() {
    let store = Store::start();
    let load = Options { deadline: Duration::from_millis(200), ..options(&store) };
    let load = Options { workloads: vec![Workload::Load], records: 1_000_000_000, ..load };
    let death = {
        let mut store = store.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            leeward_operate::dev::NodeProcesses::kill(&mut store, 1).expect("it can be killed");
        })
    };
    let error = run(&load, Some(Box::new(store))).expect_err("nothing works any more").to_string();
    assert!(error.contains("no operation has succeeded for"), "{error}");
    death.join().expect("no panic");
}

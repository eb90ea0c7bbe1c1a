//! Sums over samples, over incarnations and over changes of role; absent figures stay absent.

use super::{Meter, Spent, is_local, process_spent};
use crate::process::cpu_ticks;
use leeward_client::Access;
use leeward_format::status::NodeStatus;

fn meter() -> Meter {
    Meter::new(Access::default(), Vec::new())
}

fn status(text: &str) -> NodeStatus {
    serde_json::from_str(text).expect("a status")
}

fn process(ticks: u64, written: u64) -> Spent {
    Spent {
        user_ticks: Some(ticks),
        system_ticks: Some(1),
        read_bytes: Some(0),
        written_bytes: Some(written),
        ..Spent::default()
    }
}

#[test]
fn an_incarnation_that_began_before_the_run_counts_from_its_first_sample() {
    let mut meter = meter();
    meter.primed = false;
    let node = status(r#"{"server":1,"pid":10}"#);
    meter.take(&node, process(100, 1000));
    meter.primed = true;
    meter.take(&node, process(130, 5000));
    let totals = meter.take_totals();
    assert_eq!((totals.all.user_ticks, totals.all.written_bytes), (Some(30), Some(4000)));
    assert_eq!(meter.take_totals().all.user_ticks, Some(0), "taken once");
}

#[test]
fn a_restarted_process_counts_from_its_start() {
    let mut meter = meter();
    meter.take(&status(r#"{"server":1,"pid":10}"#), process(100, 0));
    meter.take(&status(r#"{"server":1,"pid":11}"#), process(7, 0));
    meter.take(&status(r#"{"server":1,"pid":11}"#), process(9, 0));
    assert_eq!(meter.take_totals().all.user_ticks, Some(109));
}

#[test]
fn what_a_node_does_not_tell_is_absent_not_zero() {
    let mut meter = meter();
    meter.take(&status(r#"{"server":1,"pid":10}"#), process(1, 1));
    meter.take(&status(r#"{"server":2,"pid":20}"#), Spent::default());
    let totals = meter.take_totals();
    let told = Spent { stale_reads: Some(0), ..Spent::default() };
    assert_eq!(totals.all, told, "a sum with a hole is no sum");
    assert_eq!(totals.primaries.compactions, 0, "no region was primary anywhere");
}

#[test]
fn counters_are_summed_by_role_whether_or_not_they_begin_anew_with_it() {
    let region = |role: &str, compactions: u64, rewritten: u64| {
        status(&format!(
            r#"{{"server":1,"pid":10,"regions":[{{"region":1,"role":"{role}","levels":[{{"level":2}}],
            "counters":{{"compactions":{compactions},"compaction_bytes_read":0,"compaction_bytes_written":0,
            "index_bytes_shipped":0,"run_bytes_shipped":0,"index_bytes_received":{rewritten},"index_bytes_rewritten":{rewritten},
            "index_bytes_read":0,"sync_bytes_shipped":0,"stall_l0_full_ns":1,"stall_tail_ns":2}}}}]}}"#
        ))
    };
    let mut meter = meter();
    meter.take(&region("backup", 0, 100), Spent::default());
    meter.take(&region("backup", 0, 250), Spent::default());
    meter.take(&region("primary", 3, 250), Spent::default());
    meter.take(&region("primary", 5, 250), Spent::default());
    meter.take(&region("backup", 0, 260), Spent::default());
    let totals = meter.take_totals();
    assert_eq!((totals.backups.compactions, totals.backups.index_bytes_rewritten), (0, 260));
    assert_eq!((totals.primaries.compactions, totals.primaries.index_bytes_rewritten), (5, 0));
    assert_eq!(totals.levels, 2);
}

#[test]
fn the_copy_that_has_merged_least_counts() {
    let node = |server: u32, merges: u64| {
        let region = |region: u32, role: &str, runs: u64, merges: u64| {
            format!(
                r#"{{"region":{region},"role":"{role}","l0_bytes":100,"levels":[{{"level":1,"runs":{runs}}},{{"level":2,"runs":1}}],
                "counters":{{"run_merges":{merges},"compaction_bytes_written":300,"user_bytes":200}}}}"#
            )
        };
        let (backup, primary) = (region(1, "backup", 20, merges), region(2, "primary", 40, 0));
        status(&format!(r#"{{"server":{server},"pid":10,"regions":[{backup},{primary}]}}"#))
    };
    let mut meter = meter();
    for (server, merges) in [(1, 2), (2, 1), (1, 5)] {
        meter.take(&node(server, merges), Spent::default());
    }
    let mut shown = super::Totals::default();
    for server in [1, 2] {
        node(server, 0).regions.iter().for_each(|region| shown.look_at(region));
    }
    meter.totals.keep_most(&shown);
    let totals = meter.take_totals();
    assert_eq!((totals.least_run_merges, totals.backups.run_merges), (1, 6));
    assert_eq!((totals.sorted_runs, totals.l0_bytes, totals.backup_l0_bytes), (21, 400, 200));
    assert_eq!((totals.backup_copies, totals.regions, totals.primaries.user_bytes), (2, 2, 400));
    assert_eq!(meter.take_totals().least_run_merges, 0, "taken once");
}

#[test]
fn cpu_time_is_summed_by_activity_and_role_or_absent() {
    let node = |server: u32, nanos: u64| {
        let spent = format!(r#"{{"activity":"compaction","role":"backup","nanos":{nanos}}}"#);
        status(&format!(r#"{{"server":{server},"pid":10,"cpu":{{"spent":[{spent}]}}}}"#))
    };
    let mut meter = meter();
    for (server, nanos) in [(1, 100), (1, 250), (2, 30)] {
        meter.take(&node(server, nanos), Spent::default());
    }
    let sum = meter.take_cpu().expect("all of them tell");
    assert_eq!(sum[&("compaction".to_owned(), "backup".to_owned())], 280);
    meter.take(&status(r#"{"server":3,"pid":10}"#), Spent::default());
    assert_eq!(meter.take_cpu(), None, "a sum with a hole is no sum");
}

#[test]
fn this_process_can_be_measured() {
    let spent = process_spent(std::process::id());
    assert!(spent.user_ticks.is_some() && spent.system_ticks.is_some(), "{spent:?}");
    assert_eq!(process_spent(u32::MAX), Spent::default());
}

#[test]
fn a_program_may_have_any_name() {
    let stat = "42 (a b) c) S 1 2 3 4 5 6 7 8 9 10 111 222 13";
    assert_eq!(cpu_ticks(stat), Some((111, 222)));
    assert_eq!(cpu_ticks(""), None);
    assert_eq!(cpu_ticks("42 (x) S 1"), None);
}

#[test]
fn only_this_machine_has_its_processes_in_proc() {
    assert!(is_local("127.0.0.1:7579") && is_local("[::1]:7579"));
    assert!(!is_local("192.0.2.1:7579"));
}

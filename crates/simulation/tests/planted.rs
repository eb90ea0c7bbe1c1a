//! Planted bugs: each breaks one rule of the design on purpose, and some seed must find it.
//!
//! A bug that no seed finds any more shows a gap in the simulation: a check is gone, or a situation no longer occurs.
//! A seed finds a bug only if it passes without it. One that fails in both cases shows a defect of the code: the test
//! fails, and says so.
//!
//! Each bug has a hint below: the seed that found it last, which is tried first. A change of what the simulation draws
//! changes the runs of all seeds. Then a hint may find nothing, and all other seeds are searched. The test prints the
//! seed that found the bug instead. This command prints all hints as they should be; it takes two minutes:
//!
//! ```text
//! cargo test -p leeward-simulation --test planted -- --ignored --nocapture
//! ```

use leeward_platform::planted::Bug;
use leeward_simulation::seeds;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, OnceLock};

/// The first of `seeds` that fails, with `bug` or without any, and its failure.
fn first_failure(bug: Option<Bug>, seeds: impl Iterator<Item = u64> + Send) -> Option<(u64, String)> {
    let found = Mutex::new(None);
    // The tests of this file already run in parallel.
    seeds::search(seeds, bug, NonZero::new(1), |report| match report.failure {
        None => ControlFlow::Continue(()),
        Some(failure) => {
            found.lock().expect("no thread panics with it").get_or_insert((report.seed, failure));
            ControlFlow::Break(())
        }
    });
    found.into_inner().expect("no thread panics with it")
}

/// How a seed fails without a bug, if it does. Several bugs have the same hint: their tests share the run.
fn failure_without(seed: u64) -> Option<String> {
    static RUNS: Mutex<BTreeMap<u64, Arc<OnceLock<Option<String>>>>> = Mutex::new(BTreeMap::new());
    let run = RUNS.lock().expect("no thread panics with it").entry(seed).or_default().clone();
    run.get_or_init(|| first_failure(None, [seed].into_iter()).map(|(_, failure)| failure)).clone()
}

/// The first of `seeds` that finds `bug`, and its failure.
///
/// # Panics
/// That seed fails without the bug too.
fn find(bug: Bug, seeds: impl Iterator<Item = u64> + Send) -> Option<(u64, String)> {
    let found = first_failure(Some(bug), seeds)?;
    if let Some(failure) = failure_without(found.0) {
        panic!("a defect, and no proof of {bug:?}: {} fails: {failure}", seeds::replay_command(found.0, None));
    }
    Some(found)
}

/// `bug` is found, by the seed `hint` or by another one.
fn is_found(bug: Bug, hint: u64) {
    let hinted = seeds::planted(bug).find(|seed| *seed == hint);
    let others = seeds::planted(bug).filter(|seed| *seed != hint);
    let (seed, failure) = find(bug, hinted.into_iter().chain(others)).expect("some seed finds it");
    println!("{}: {failure}", seeds::replay_command(seed, Some(bug)));
    if seed != hint {
        // Written past the capture of output, so that it is seen although the test passes.
        drop(writeln!(io::stderr(), "{bug:?} is found by seed {seed}, not by its hint {hint} in tests/planted.rs"));
    }
}

macro_rules! planted {
    ($($test:ident: $bug:ident at $hint:literal,)*) => {
        $(#[test]
        fn $test() {
            is_found(Bug::$bug, $hint);
        })*

        #[test]
        fn every_bug_is_tried() {
            assert_eq!(Bug::ALL, [$(Bug::$bug),*]);
        }

        #[test]
        #[ignore = "long: prints the hints as they should be; the command is above"]
        fn hints() {
            $(let (seed, _) = find(Bug::$bug, seeds::planted(Bug::$bug)).expect("some seed finds it");
            println!("    {}: {:?} at {seed},", stringify!($test), Bug::$bug);)*
        }
    };
}

planted! {
    records_are_taken_without_their_checksum: SkipChecksum at 70,
    a_write_is_acknowledged_before_its_completions: AcknowledgeBeforeCompletion at 7,
    the_lease_is_not_looked_at: SkipLeaseCheck at 13,
    a_write_is_acknowledged_without_a_failed_member: AcknowledgeWithFailedMember at 179,
    a_write_is_acknowledged_by_too_few_members: AcknowledgeBelowMinInSync at 6,
    a_restarted_incarnation_is_promoted: PromoteRestarted at 6,
    longer_tails_are_not_cut: PromoteWithoutCut at 30,
    uncommitted_records_are_served: ServeUncommitted at 17,
    replay_stops_at_the_end_of_one_log: StopReplayAtOneLog at 202,
    a_compaction_is_installed_before_its_log: InstallBeforeLogDurable at 934,
    a_mirror_buffer_is_reused_before_its_flush: ReuseTailBeforeFlush at 39,
    an_empty_volume_passes_for_the_one_it_replaced: TakeReplacedVolume at 6,
    a_copy_of_an_older_state_passes_for_the_volume: TakeOlderVolume at 174,
    what_is_not_committed_is_compacted: CompactUncommitted at 13,
    a_primary_serves_without_hearing_of_longer_copies: ServeUnheard at 92,
    leases_are_released_while_a_region_is_served: ReleaseBeforeKnown at 134,
    every_lease_grant_is_released_once_another_primary_is_appointed: ReleaseEverything at 245,
    what_members_have_is_destroyed: DestroyNamed at 1,
    a_tree_that_lacks_something_is_taken: TakeAnyTree at 21,
    a_region_of_which_a_server_has_known_more_is_decided_about: DecideOnOlderTree at 32,
    a_merged_region_is_there_again_after_a_restoration: RestoreMerged at 96,
    what_was_asked_for_before_is_executed_again: ForgetRequests at 2,
    what_was_asked_for_under_another_primary_is_executed_again: ForgetAtTakeover at 47,
    a_region_is_split_before_every_member_has_the_child: ActivateBeforeInstalled at 61,
    keys_of_the_child_are_deleted_before_the_split: TrimBeforeSplit at 10,
    another_attempt_to_split_a_region_has_the_term_of_the_first: ReuseTerm at 1,
    a_region_is_merged_before_every_member_of_the_target_has_all_of_it: MergeUnsettled at 177,
    what_was_asked_of_a_merge_source_is_executed_again: ForgetMergeSource at 8,
    a_safe_lsn_is_published_without_the_lease: PublishSafeLsnWithoutLease at 400,
    a_clock_that_stopped_is_trusted: TrustStoppedClock at 13,
    the_age_of_a_backup_read_counts_from_the_arrival_of_its_safe_lsn: AgeFromArrival at 15,
    the_oldest_piece_wins: OldestPieceWins at 3,
    tombstones_end_above_runs: DropTombstoneAboveRuns at 13,
    copies_are_digested_at_unlike_instants: DigestAcrossInstants at 2,
    what_is_not_committed_is_in_a_hash_index: PublishUncommitted at 238,
    a_version_is_answered_before_it_is_in_a_hash_index: AnswerUnpublished at 9,
    a_record_is_written_before_its_slot: BytesBeforeSlot at 579,
    space_of_a_record_is_used_again_while_the_record_is_valid: ReuseUnpoisoned at 582,
    what_is_perhaps_not_the_newest_fills_a_hash_index: FillStale at 716,
    a_new_process_joins_a_term_at_once: ServeAtOnce at 70,
    clients_read_the_index_of_a_primary_that_hands_over: ProposeUnrevoked at 574,
    slots_outlive_a_delete_of_their_range: KeepDeletedSlots at 17,
    a_direct_read_counts_without_the_lease: ReadWithoutLease at 329,
    a_bound_counts_from_the_answer: BoundFromAnswer at 2273,
    a_backup_answers_a_scan_with_the_records_that_it_has: ScanUndrained at 2,
    a_safe_lsn_counts_for_scans_that_came_after_its_question: SafeLsnBeforeQuestion at 18,
    a_scan_at_a_backup_goes_beyond_the_safe_lsn: ScanBeyondSafe at 24,
    an_answer_leaves_before_backups_can_read_its_safe_lsn: AnswerUnshown at 41,
    a_backup_grants_leases_as_long_as_its_own: GrantOwnDuration at 5203,
    copies_share_a_host_where_another_is_free: IgnoreLocations at 32,
    a_full_server_keeps_its_primary_roles: IgnoreRoom at 616,
    a_volume_that_was_full_once_stays_full: StayFull at 4,
    an_edit_that_need_not_be_durable_is_synced: SyncEveryEdit at 1,
    a_copy_of_a_volume_evicts_the_original: EvictOriginal at 20,
}

/// The documents name every bug, in the order of the code, and the README says how many there are.
#[test]
fn documents_tell_of_every_bug() {
    let simulation = include_str!("../../../docs/simulation.md");
    let (_, table) =
        simulation.split_once("| bug | the rule that it breaks |").expect("docs/simulation.md has the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let named: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    assert_eq!(named, Bug::ALL.map(|bug| format!("{bug:?}")));

    let readme = include_str!("../../../README.md");
    let before = readme.match_indices(" planted bugs").map(|(at, _)| readme[..at].split_whitespace().next_back());
    let counts: Vec<&str> = before.map(|word| word.expect("a number is before it")).collect();
    assert!(!counts.is_empty() && counts.iter().all(|count| *count == Bug::ALL.len().to_string()), "{counts:?}");
}

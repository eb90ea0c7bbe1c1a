//! Rules of the design, broken on purpose one at a time. Some seed finds each of them.
//!
//! A bug that no seed finds any more shows a gap in the simulation: a check is gone, or a situation does not come about.

use leeward_platform::planted::Bug;
use leeward_simulation::seeds;
use std::num::NonZero;
use std::ops::ControlFlow;
use std::sync::Mutex;

/// The seed that finds `bug`, and its failure.
fn find(bug: Bug) -> Option<(u64, String)> {
    let found = Mutex::new(None);
    // The tests of this file already run in parallel.
    seeds::search(seeds::planted(bug), Some(bug), NonZero::new(1), |report| match report.failure {
        None => ControlFlow::Continue(()),
        Some(failure) => {
            found.lock().expect("no thread panics with it").get_or_insert((report.seed, failure));
            ControlFlow::Break(())
        }
    });
    found.into_inner().expect("no thread panics with it")
}

macro_rules! planted {
    ($($test:ident: $bug:ident,)*) => {
        $(#[test]
        fn $test() {
            let (seed, failure) = find(Bug::$bug).expect("some seed finds it");
            println!("{}: {failure}", seeds::replay_command(seed, Some(Bug::$bug)));
        })*

        #[test]
        fn every_bug_is_tried() {
            assert_eq!(Bug::ALL, [$(Bug::$bug),*]);
        }
    };
}

planted! {
    records_are_taken_without_their_checksum: SkipChecksum,
    a_write_is_acknowledged_before_its_completions: AcknowledgeBeforeCompletion,
    the_lease_is_not_looked_at: SkipLeaseCheck,
    a_write_is_acknowledged_without_a_failed_member: AcknowledgeWithFailedMember,
    a_write_is_acknowledged_by_too_few_members: AcknowledgeBelowMinInSync,
    a_restarted_incarnation_is_promoted: PromoteRestarted,
    longer_tails_are_not_cut: PromoteWithoutCut,
    uncommitted_records_are_served: ServeUncommitted,
    replay_stops_at_the_end_of_one_log: StopReplayAtOneLog,
    a_compaction_is_installed_before_its_log: InstallBeforeLogDurable,
    a_mirror_buffer_is_reused_before_its_flush: ReuseTailBeforeFlush,
    an_empty_volume_passes_for_the_one_it_replaced: TakeReplacedVolume,
    a_copy_of_an_older_state_passes_for_the_volume: TakeOlderVolume,
    what_is_not_committed_is_compacted: CompactUncommitted,
    a_primary_serves_without_hearing_of_longer_copies: ServeUnheard,
    leases_are_released_while_a_region_is_served: ReleaseBeforeKnown,
    every_lease_grant_is_released_once_another_primary_is_appointed: ReleaseEverything,
    what_members_have_is_destroyed: DestroyNamed,
    what_was_asked_for_before_is_carried_out_again: ForgetRequests,
    what_was_asked_for_under_another_primary_is_carried_out_again: ForgetAtTakeover,
    a_region_is_split_before_every_member_has_the_child: ActivateBeforeInstalled,
    keys_of_the_child_are_deleted_before_the_split: TrimBeforeSplit,
    another_attempt_to_split_a_region_has_the_term_of_the_first: ReuseTerm,
    a_region_is_merged_before_every_member_of_the_target_has_all_of_it: MergeUnsettled,
    what_was_asked_of_a_merge_source_is_carried_out_again: ForgetMergeSource,
    a_safe_lsn_is_published_without_the_lease: PublishSafeLsnWithoutLease,
    a_clock_that_stopped_is_trusted: TrustStoppedClock,
    the_age_of_a_backup_read_counts_from_the_arrival_of_its_safe_lsn: AgeFromArrival,
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

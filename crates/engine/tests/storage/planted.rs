//! Rules of the engine broken on purpose: the tests of crashes, replicas and splits must notice each of them.

use crate::{crash, full, lost_history, replica, split};
use leeward_platform::planted::{Bug, plant};
use std::panic::{UnwindSafe, catch_unwind};

fn is_noticed(bug: Bug, test: impl FnOnce() + UnwindSafe) {
    plant(Some(bug));
    let outcome = catch_unwind(test);
    plant(None);
    assert!(outcome.is_err(), "no test noticed {bug:?}");
}

#[test]
fn records_without_checksum() {
    is_noticed(Bug::SkipChecksum, || replica::torn_buffers(0..60));
}

#[test]
fn a_replay_that_stops_at_the_end_of_one_log_only() {
    is_noticed(Bug::StopReplayAtOneLog, || replica::torn_buffers(0..60));
}

#[test]
fn an_install_before_its_log_bytes_are_durable() {
    is_noticed(Bug::InstallBeforeLogDurable, || {
        for seed in 0..10 {
            crash::crash_at_every_operation(seed, 400, true);
        }
    });
}

#[test]
fn a_promotion_that_does_not_cut_longer_tails() {
    is_noticed(Bug::PromoteWithoutCut, || replica::primaries_return(0..12));
}

#[test]
fn a_shared_segment_that_is_freed_with_the_first_region_that_forgets_it() {
    is_noticed(Bug::ForgetSharer, || split::continue_independently(0..10));
}

#[test]
fn levels_of_a_history_that_the_group_has_lost() {
    is_noticed(Bug::KeepBeyondShared, || {
        lost_history::takes_the_history_that_went_on(0..30);
    });
}

#[test]
fn writes_that_use_up_what_is_kept() {
    is_noticed(Bug::SpendReserve, || full::deletes_make_room(0..8));
}

#[test]
fn compactions_for_which_there_is_no_room() {
    is_noticed(Bug::MergeWithoutRoom, || full::deletes_make_room(0..8));
}

//! Elections of a table with a quorum of two of three: P was the primary, A campaigns, B is the other backup.

use super::*;
use leeward_format::cluster::PriorMember;
use leeward_format::{Incarnation, RegionId, VolumeId};

fn member(server: u32, incarnation: u64) -> Member {
    Member { server: ServerId(server), volume: VolumeId(server.into()), incarnation: Incarnation(incarnation) }
}

const TERM: Epoch = Epoch(4);
const NOW: Nanos = Nanos::from_secs(100);

/// P died, A was chosen.
fn campaigning() -> Candidate {
    Candidate::new(
        NOW,
        GroupConfig {
            epoch: Epoch(9),
            term: Epoch(9),
            primary: Some(member(2, 1)),
            backups: vec![member(3, 1)],
            learners: vec![],
            prior_members: vec![PriorMember { member: member(1, 1), term: TERM }],
            recovery_quorum: 2,
            ..GroupConfig::unassigned(RegionId(1), "default")
        },
    )
}

#[test]
fn the_longest_of_enough_copies_serves() {
    let mut candidate = campaigning();
    assert_eq!(candidate.verdict(NOW), Verdict::Open);
    candidate.opened(member(2, 1), Some((TERM, Lsn(70))));
    assert_eq!(candidate.verdict(NOW), Verdict::Open, "B may have more");
    candidate.opened(member(3, 1), Some((TERM, Lsn(70))));
    assert_eq!(candidate.verdict(NOW), Verdict::Serve);
    candidate.opened(member(3, 1), Some((TERM, Lsn(71))));
    assert_eq!(candidate.verdict(NOW), Verdict::HandOver(member(3, 1)));
    assert_eq!(candidate.verdict(NOW), Verdict::Open, "it is said once");
    let next = candidate.config.handed_to(member(3, 1));
    assert_eq!((next.primary, next.backups), (Some(member(3, 1)), vec![member(2, 1)]));
    assert_eq!((next.term, next.epoch, next.recovery_quorum), (Epoch(10), Epoch(10), 2));
    assert_eq!(next.prior_members.len(), 1, "P's copy may still be asked for");
}

#[test]
fn a_later_term_wins_over_a_higher_lsn() {
    let mut candidate = campaigning();
    candidate.opened(member(2, 1), Some((Epoch(8), Lsn(60))));
    candidate.opened(member(3, 1), Some((TERM, Lsn(70))));
    assert_eq!(candidate.verdict(NOW), Verdict::Serve, "B missed a primary that had all that was committed");
}

#[test]
fn a_restarted_candidate_counts_only_when_all_have_answered() {
    let mut candidate = campaigning();
    candidate.opened(member(2, 1), Some((TERM, Lsn(70))));
    candidate.opened(member(3, 2), Some((TERM, Lsn(50))));
    assert_eq!(candidate.verdict(NOW), Verdict::Open, "B may have lost what was in its memory, and P is not heard");
    candidate.opened(Member { volume: VolumeId(99), ..member(1, 2) }, Some((Epoch(0), Lsn(0))));
    assert_eq!(candidate.verdict(NOW), Verdict::Open, "P came back without its volume");
    candidate.opened(member(1, 2), Some((TERM, Lsn(80))));
    assert_eq!(candidate.verdict(NOW), Verdict::HandOver(member(1, 2)), "P's volume has more");
    let next = candidate.config.handed_to(member(1, 2));
    assert!(!next.kept_running(member(1, 2)), "the incarnation that was primary is over");
    assert_eq!(next.backups, [member(2, 1), member(3, 1)]);
}

#[test]
fn candidates_are_asked_again_until_they_answer() {
    let mut candidate = campaigning();
    let now = Nanos::from_secs(1);
    let reached = |server: ServerId| server != ServerId(1);
    assert_eq!(candidate.ask(now, reached), [ServerId(2), ServerId(3)]);
    assert_eq!(candidate.ask(now, |_| true), [ServerId(1)]);
    candidate.opened(member(3, 1), Some((TERM, Lsn(70))));
    assert_eq!(candidate.ask(now + ASK_AGAIN, reached), [ServerId(2)]);
}

#[test]
fn a_damaged_copy_counts_for_nothing() {
    let mut candidate = campaigning();
    candidate.opened(member(2, 1), Some((TERM, Lsn(70))));
    candidate.opened(member(3, 1), None);
    assert_eq!(candidate.verdict(NOW), Verdict::Open);
}

#[test]
fn the_role_is_not_handed_to_a_damaged_copy() {
    let mut candidate = campaigning();
    candidate.opened(member(2, 1), Some((TERM, Lsn(70))));
    candidate.opened(member(3, 2), None);
    let later = NOW + TIMEOUT + ASK_AGAIN;
    assert_eq!(candidate.verdict(later), Verdict::Open, "P is missing, and B is there again, damaged");
    candidate.opened(member(1, 2), Some((TERM, Lsn(80))));
    assert_eq!(candidate.verdict(later), Verdict::Open, "B may have had more");
}

#[test]
fn a_damaged_candidate_steps_aside_for_any_other() {
    let mut candidate = campaigning();
    candidate.opened(member(2, 1), None);
    assert_eq!(candidate.verdict(NOW), Verdict::Open);
    candidate.opened(member(3, 1), Some((TERM, Lsn(70))));
    assert_eq!(candidate.verdict(NOW), Verdict::HandOver(member(3, 1)));

    let mut candidate = campaigning();
    candidate.opened(member(2, 1), None);
    let later = NOW + TIMEOUT + ASK_AGAIN;
    assert_eq!(candidate.verdict(later), Verdict::HandOver(member(3, 1)), "B has not answered");

    let mut candidate = campaigning();
    candidate.opened(member(2, 1), None);
    candidate.opened(member(3, 1), None);
    assert_eq!(candidate.verdict(later), Verdict::Open, "P may be sound");
    candidate.opened(member(1, 2), Some((TERM, Lsn(80))));
    assert_eq!(candidate.verdict(later), Verdict::HandOver(member(1, 2)));
}

#[test]
fn copies_that_lost_their_power_before_anything_was_durable_are_empty() {
    let mut candidate = campaigning();
    let nothing = Some((Epoch(0), Lsn(0)));
    candidate.opened(member(1, 2), nothing);
    candidate.opened(member(2, 1), nothing);
    assert_eq!(candidate.verdict(NOW), Verdict::Open);
    candidate.opened(member(3, 2), nothing);
    assert_eq!(candidate.verdict(NOW), Verdict::Serve);
}

#[test]
fn a_candidate_that_reaches_no_member_hands_over_to_one_that_may() {
    let mut candidate = campaigning();
    candidate.opened(member(2, 1), Some((TERM, Lsn(70))));
    let later = NOW + TIMEOUT + ASK_AGAIN;
    assert_eq!(candidate.verdict(NOW + TIMEOUT), Verdict::Open);
    assert_eq!(candidate.verdict(later), Verdict::HandOver(member(3, 1)));
    assert_eq!(candidate.verdict(later), Verdict::Open);
    candidate.proposal_ended();
    candidate.opened(member(3, 2), Some((TERM, Lsn(70))));
    assert_eq!(candidate.verdict(later), Verdict::Open, "that one was heard: P is missing");
}

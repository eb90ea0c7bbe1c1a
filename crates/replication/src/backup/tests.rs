//! A backup, and the messages of its primary.

use super::*;
use crate::Timing;
use leeward_engine::Memory as Budget;
use leeward_fabric::{PeerId, SimNetwork, SimOptions};
use leeward_format::manifest::{Base, Terms};
use leeward_format::{Incarnation, VolumeId};

const REGION: RegionId = RegionId(3);
const ME: Member = Member { server: ServerId(2), volume: VolumeId(2), incarnation: Incarnation(1) };

fn primary_session(primary: u32, term: u32, session: u64) -> PrimarySession {
    PrimarySession { primary: ServerId(primary), term: Epoch(term), session }
}

fn open() -> ToBackup {
    ToBackup::Open { options: TableOptions::default() }
}

fn started(backup: &mut Backup) -> Vec<Work> {
    let actions = backup.take_actions().into_iter();
    actions.filter_map(|action| if let BackupAction::Start(work) = action { Some(work) } else { None }).collect()
}

#[test]
fn work_is_done_one_piece_at_a_time_in_order() {
    let (mut backup, grants) = (Backup::new(REGION, ME), Grants::default());
    let now = Nanos::from_secs(1);
    backup.message(now, primary_session(1, 5, 1), open(), &grants);
    assert!(matches!(started(&mut backup)[..], [Work::Join { .. }]));
    backup.message(now, primary_session(1, 5, 1), ToBackup::InstallBase, &grants);
    assert!(started(&mut backup).is_empty());
    backup.done(Ok(Done::Quiet));
    assert!(matches!(started(&mut backup)[..], [Work::InstallBase]));
    backup.done(Ok(Done::BaseInstalled { builds_index: false }));
    assert!(backup.is_in_sync());
    let answers = backup.take_actions();
    assert!(matches!(answers[..], [BackupAction::Send(_, ToPrimary::BaseInstalled)]));
}

#[test]
fn a_newer_term_waits_for_the_lease_of_the_older() {
    let (mut backup, mut grants) = (Backup::new(REGION, ME), Grants::default());
    let timing = Timing::default();
    let now = Nanos::from_secs(1);
    backup.message(now, primary_session(1, 5, 1), open(), &grants);
    assert!(backup.may_grant(ServerId(1), Epoch(5)));
    grants.grant(now, REGION, Epoch(5), timing.lease);
    backup.message(now, primary_session(2, 6, 1), open(), &grants);
    assert!(!backup.may_grant(ServerId(1), Epoch(5)), "no lease is renewed once a newer term is known");
    assert_eq!(backup.primary_session(), Some(primary_session(1, 5, 1)));
    backup.join_when_allowed(now + timing.lease, &grants);
    assert_eq!(backup.primary_session(), Some(primary_session(1, 5, 1)));
    backup.join_when_allowed(now + timing.lease + Nanos(1), &grants);
    assert_eq!(backup.primary_session(), Some(primary_session(2, 6, 1)));
}

#[test]
fn stale_sessions_are_ignored() {
    let (mut backup, grants) = (Backup::new(REGION, ME), Grants::default());
    let now = Nanos::from_secs(1);
    backup.message(now, primary_session(2, 6, 4), open(), &grants);
    started(&mut backup);
    for stale in [primary_session(1, 5, 9), primary_session(2, 6, 3), primary_session(1, 6, 9)] {
        backup.message(now, stale, open(), &grants);
        backup.message(now, stale, ToBackup::InstallBase, &grants);
        assert_eq!(backup.primary_session(), Some(primary_session(2, 6, 4)));
    }
    backup.done(Ok(Done::Quiet));
    assert!(started(&mut backup).is_empty(), "nothing of a stale session was queued");
}

#[test]
fn an_older_term_is_ignored_after_a_lease_grant_even_by_a_new_copy() {
    let mut grants = Grants::default();
    let (now, timing) = (Nanos::from_secs(1), Timing::default());
    grants.grant(now, REGION, Epoch(7), timing.lease);
    for later in [now, now + timing.lease + timing.lease] {
        let mut backup = Backup::new(REGION, ME);
        backup.message(later, primary_session(1, 5, 1), open(), &grants);
        backup.join_when_allowed(later, &grants);
        assert!(backup.primary_session().is_none() && !backup.may_grant(ServerId(1), Epoch(5)));
        backup.message(later, primary_session(1, 7, 1), open(), &grants);
        assert!(backup.may_grant(ServerId(1), Epoch(7)));
    }
}

#[test]
fn a_failure_is_told_and_ends_the_session() {
    let (mut backup, grants) = (Backup::new(REGION, ME), Grants::default());
    let now = Nanos::from_secs(1);
    backup.message(now, primary_session(1, 5, 1), open(), &grants);
    backup.message(now, primary_session(1, 5, 1), ToBackup::InstallBase, &grants);
    started(&mut backup);
    backup.done(Err("the disk is full".to_owned().into()));
    let answers = backup.take_actions();
    assert!(matches!(&answers[..], [BackupAction::Send(_, ToPrimary::Failed(why))] if why.contains("full")));
    backup.message(now, primary_session(1, 5, 1), ToBackup::InstallBase, &grants);
    assert!(started(&mut backup).is_empty(), "what follows builds on what failed");
    backup.message(now, primary_session(1, 5, 2), open(), &grants);
    assert!(matches!(started(&mut backup)[..], [Work::Join { .. }]), "a new session starts afresh");
}

#[test]
fn a_session_ends_with_the_link_that_its_answers_took() {
    let (mut backup, grants) = (Backup::new(REGION, ME), Grants::default());
    let now = Nanos::from_secs(1);
    backup.link_up(ServerId(1));
    assert!(backup.take_actions().is_empty(), "nothing was said over a link before");
    backup.message(now, primary_session(1, 5, 1), open(), &grants);
    backup.message(now, primary_session(1, 5, 1), ToBackup::InstallBase, &grants);
    started(&mut backup);
    backup.link_up(ServerId(3));
    assert!(backup.take_actions().is_empty(), "that link is another server's");
    backup.link_up(ServerId(1));
    let answers = backup.take_actions();
    assert!(matches!(&answers[..], [BackupAction::Send(_, ToPrimary::Failed(why))] if why.contains("link")));
    backup.done(Ok(Done::BaseInstalled { builds_index: false }));
    assert!(!backup.is_in_sync() && started(&mut backup).is_empty(), "what was under way counts for nothing");
    backup.link_up(ServerId(1));
    assert!(!matches!(backup.take_actions()[..], [.., BackupAction::Send(_, ToPrimary::Failed(_))]), "told once");
    backup.message(now, primary_session(1, 5, 2), open(), &grants);
    assert!(matches!(started(&mut backup)[..], [Work::Join { .. }]));
}

#[test]
fn what_was_mirrored_is_given_up_when_a_newer_term_has_begun_and_no_lease_is_valid() {
    let fabric = SimNetwork::new(1, SimOptions::default()).node(PeerId(1), Arc::new(|_, _| {}));
    let mounted = || Mounted::allocate(&*fabric, 32 << 10, &Budget::new(64 << 20)).expect("there is memory");
    let (mut backup, mut grants, timing) = (Backup::new(REGION, ME), Grants::default(), Timing::default());
    let now = Nanos::from_secs(1);
    backup.term_began(now, Epoch(5), &grants);
    assert!(started(&mut backup).is_empty(), "no primary was followed");
    backup.message(now, primary_session(1, 5, 1), open(), &grants);
    backup.term_began(now, Epoch(6), &grants);
    assert!(matches!(started(&mut backup)[..], [Work::Join { .. }]), "there is nothing to give up yet");
    backup.done(Ok(Done::Joined(mounted(), None)));
    backup.message(now, primary_session(1, 5, 1), ToBackup::InstallBase, &grants);
    assert!(matches!(started(&mut backup)[..], [Work::InstallBase]));
    backup.done(Ok(Done::BaseInstalled { builds_index: false }));
    grants.grant(now, REGION, Epoch(5), timing.lease);

    backup.term_began(now, Epoch(5), &grants);
    backup.term_began(now, Epoch(6), &grants);
    assert!(started(&mut backup).is_empty() && backup.is_in_sync(), "its lease grant holds it in the term");
    assert!(!backup.is_settled(), "and it waits for the grant to expire");
    let later = now + timing.lease + Nanos(1);
    backup.join_when_allowed(later, &grants);
    assert!(matches!(started(&mut backup)[..], [Work::Leave]) && !backup.is_in_sync());
    backup.message(later, primary_session(1, 5, 1), ToBackup::Committed(Lsn(1)), &grants);
    backup.message(later, primary_session(2, 6, 1), open(), &grants);
    backup.done(Ok(Done::Left));
    assert!(backup.mounted().is_none());
    assert!(matches!(started(&mut backup)[..], [Work::Join { .. }]), "then it joins the new primary");
    backup.done(Ok(Done::Joined(mounted(), None)));
    assert!(backup.is_settled() && backup.primary_session() == Some(primary_session(2, 6, 1)));
    backup.term_began(later, Epoch(6), &grants);
    assert!(backup.is_settled(), "that one is followed");
}

#[test]
fn buffers_that_cannot_be_given_up_are_kept_for_the_next_primary() {
    let fabric = SimNetwork::new(1, SimOptions::default()).node(PeerId(1), Arc::new(|_, _| {}));
    let mounted = Mounted::allocate(&*fabric, 32 << 10, &Budget::new(64 << 20)).expect("there is memory");
    let (mut backup, grants, now) = (Backup::new(REGION, ME), Grants::default(), Nanos::from_secs(1));
    backup.message(now, primary_session(1, 5, 1), open(), &grants);
    backup.done(Ok(Done::Joined(mounted, None)));
    started(&mut backup);
    backup.term_began(now, Epoch(6), &grants);
    assert!(matches!(started(&mut backup)[..], [Work::Leave]));
    backup.done(Err("the disk is full".to_owned().into()));
    assert!(started(&mut backup).is_empty(), "it is not tried again at once");
    assert!(backup.mounted().is_some());
    backup.message(now, primary_session(2, 6, 1), open(), &grants);
    assert!(matches!(started(&mut backup)[..], [Work::Join { .. }]));
    assert!(backup.mounted().is_some(), "joining gives them up");
}

#[test]
fn a_base_is_begun_anew_if_the_primary_says_so() {
    let (term, terms, parent) = (Epoch(5), Terms::default(), None);
    let (replay_from, last_lsn, commit) = (Lsn(1), Lsn(0), Lsn(0));
    let (options, levels, segments) = (TableOptions::default(), Vec::new(), Vec::new());
    let base = Base { options, term, terms, replay_from, last_lsn, commit, levels, segments, parent };
    for (message, wanted) in [(ToBackup::Base(base.clone()), false), (ToBackup::BaseAnew(base.clone()), true)] {
        let (mut backup, grants) = (Backup::new(REGION, ME), Grants::default());
        backup.message(Nanos::from_secs(1), primary_session(1, 5, 1), open(), &grants);
        backup.done(Ok(Done::Quiet));
        backup.take_actions();
        backup.message(Nanos::from_secs(1), primary_session(1, 5, 1), message, &grants);
        assert!(matches!(started(&mut backup)[..], [Work::BeginBase { anew, .. }] if anew == wanted));
    }
}

#[test]
fn an_index_is_built_after_the_primary_was_told_that_the_base_is_installed() {
    let (mut backup, grants, now) = (Backup::new(REGION, ME), Grants::default(), Nanos::from_secs(1));
    backup.message(now, primary_session(1, 5, 1), open(), &grants);
    backup.message(now, primary_session(1, 5, 1), ToBackup::InstallBase, &grants);
    backup.message(now, primary_session(1, 5, 1), ToBackup::Committed(Lsn(3)), &grants);
    backup.done(Ok(Done::Quiet));
    backup.take_actions();
    backup.done(Ok(Done::BaseInstalled { builds_index: true }));
    let actions = backup.take_actions();
    let is_told = |action: &BackupAction| matches!(action, BackupAction::Send(_, ToPrimary::BaseInstalled));
    assert!(actions.iter().any(is_told) && backup.is_in_sync());
    let works =
        actions.iter().any(|action| matches!(action, BackupAction::Start(Work::Follow { builder: ServerId(2) })));
    assert!(works, "before anything else: {actions:?}");
    backup.done(Ok(Done::Quiet));
    assert!(matches!(started(&mut backup)[..], [Work::Commit(_)]));
}

#[test]
fn priming_is_answered_once_and_ends_with_its_session() {
    let (mut backup, grants, now) = (Backup::new(REGION, ME), Grants::default(), Nanos::from_secs(1));
    backup.message(now, primary_session(1, 5, 1), ToBackup::Prime, &grants);
    assert!(!backup.is_priming(), "no primary is followed");
    backup.message(now, primary_session(1, 5, 1), open(), &grants);
    backup.message(now, primary_session(1, 5, 1), ToBackup::Prime, &grants);
    assert!(backup.is_priming());
    backup.take_actions();
    backup.primed();
    assert!(!backup.is_priming());
    assert!(matches!(backup.take_actions()[..], [BackupAction::Send(_, ToPrimary::Primed)]));
    backup.message(now, primary_session(1, 5, 1), ToBackup::Prime, &grants);
    backup.message(now, primary_session(1, 5, 2), open(), &grants);
    assert!(!backup.is_priming(), "another session asks for itself");
}

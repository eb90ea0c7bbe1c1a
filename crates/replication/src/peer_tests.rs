//! One peer's session, answer by answer.

use super::*;
use leeward_format::manifest::Terms;
use leeward_format::{Epoch, Incarnation, LogKind, SegmentNo, ServerId, VolumeId};

const MEMBER: Member = Member { server: ServerId(2), volume: VolumeId(2), incarnation: Incarnation(9) };
const NOW: Nanos = Nanos::from_secs(1);

fn opened() -> ToPrimary {
    let reach = Some((Epoch(1), Lsn(0)));
    ToPrimary::Opened { member: MEMBER, buffers: vec![vec![1]; 4], slots: vec![vec![2]; 2], reach }
}

fn base() -> Base {
    Base {
        options: TableOptions::default(),
        term: Epoch(5),
        terms: Terms::default(),
        replay_from: Lsn(1),
        last_lsn: Lsn(10),
        commit: Lsn(10),
        levels: Vec::new(),
        segments: Vec::new(),
        parent: None,
    }
}

fn message(peer: &mut Peer, session: u64, message: ToPrimary, out: &mut Vec<PeerAction>) -> Result<(), String> {
    peer.message(NOW, session, message, &mut || 1, out)
}

#[test]
fn a_session_goes_from_contact_to_in_sync() {
    let (mut peer, mut out) = (Peer::new(NOW, MEMBER, true), Vec::new());
    peer.link_up(NOW, &mut out);
    peer.begin(NOW, (1, false), &TableOptions::default(), &mut out);
    assert!(matches!(out.pop(), Some(PeerAction::Send(ToBackup::Open { .. }))));
    message(&mut peer, 1, opened(), &mut out).unwrap();
    assert!(peer.wants_base() && !peer.is_shipped_to());
    peer.base(base(), Lsn(10), [0, 0], &mut out);
    assert!(matches!(out.pop(), Some(PeerAction::Send(ToBackup::Base(_)))));
    message(&mut peer, 1, ToPrimary::Missing(vec![SegmentId(4)]), &mut out).unwrap();
    assert!(matches!(out.pop(), Some(PeerAction::Load(SegmentId(4)))));
    assert_eq!((peer.state(), peer.confirmed()), (PeerState::Syncing, Lsn(0)));
}

#[test]
fn messages_of_another_session_are_ignored_and_nonsense_is_an_error() {
    let (mut peer, mut out) = (Peer::new(NOW, MEMBER, true), Vec::new());
    peer.link_up(NOW, &mut out);
    peer.begin(NOW, (7, false), &TableOptions::default(), &mut out);
    message(&mut peer, 6, ToPrimary::BaseInstalled, &mut out).unwrap();
    assert!(message(&mut peer, 7, ToPrimary::BaseInstalled, &mut out).is_err());
    message(&mut peer, 7, opened(), &mut out).unwrap();
    let flushed = ToPrimary::Flushed { log: LogKind::Large, index: 3 };
    assert!(message(&mut peer, 7, flushed, &mut out).is_err());
    assert!(message(&mut peer, 7, opened(), &mut out).is_err(), "opened twice");
}

#[test]
fn a_base_for_a_session_that_ended_is_let_go() {
    let (mut peer, mut out) = (Peer::new(NOW, MEMBER, true), Vec::new());
    peer.link_up(NOW, &mut out);
    peer.begin(NOW, (1, false), &TableOptions::default(), &mut out);
    message(&mut peer, 1, opened(), &mut out).unwrap();
    peer.link_down(NOW, &mut out);
    out.clear();
    peer.base(base(), Lsn(10), [0, 0], &mut out);
    assert!(matches!(out[..], [PeerAction::UnpinBase]));
    assert!(!peer.is_linked() && peer.failures() == 1);
}

#[test]
fn a_refused_write_of_this_session_ends_it() {
    let (mut peer, mut out) = (Peer::new(NOW, MEMBER, true), Vec::new());
    peer.link_up(NOW, &mut out);
    peer.begin(NOW, (1, false), &TableOptions::default(), &mut out);
    message(&mut peer, 1, opened(), &mut out).unwrap();
    peer.base(base(), Lsn(10), [0, 0], &mut out);
    let id = SegmentId(1);
    let view = TailView { log: LogKind::Large, index: 0, id, segment: SegmentNo(1), bytes: &[0; 99], sealed: None };
    peer.post((&[view], Lsn(11)), Posting::Coalesced, &mut || 42, &mut out);
    peer.refused(NOW, 41, &mut out);
    assert_eq!(peer.state(), PeerState::Basing, "a write of an earlier session says nothing");
    peer.refused(NOW, 42, &mut out);
    assert_eq!(peer.state(), PeerState::Away);
}

/// A tail that is full, behind a base at LSN 10.
fn full_tail(index: u64) -> TailView<'static> {
    let id = SegmentId(100 + index);
    let sealed = Some(Lsn(11 + index));
    TailView { log: LogKind::Recovery, index, id, segment: SegmentNo(1), bytes: &[0; 99], sealed }
}

#[test]
fn a_peer_that_builds_its_index_is_shipped_nothing_and_bounds_how_far_it_is_behind() {
    let (mut peer, mut out) = (Peer::new(NOW, MEMBER, true), Vec::new());
    let options = TableOptions { backups: BackupMode::BuildIndex, ..TableOptions::default() };
    peer.link_up(NOW, &mut out);
    peer.begin(NOW, (1, false), &options, &mut out);
    message(&mut peer, 1, opened(), &mut out).unwrap();
    peer.base(base(), Lsn(10), [0, 0], &mut out);
    assert!(!peer.is_shipped_to());
    peer.committed(Lsn(10), &mut out);
    assert!(!out.iter().any(|action| matches!(action, PeerAction::Send(ToBackup::Committed(_)))), "not in sync yet");
    message(&mut peer, 1, ToPrimary::Missing(Vec::new()), &mut out).unwrap();
    message(&mut peer, 1, ToPrimary::BaseInstalled, &mut out).unwrap();
    out.clear();
    peer.committed(Lsn(10), &mut out);
    peer.committed(Lsn(10), &mut out);
    assert!(matches!(out[..], [PeerAction::Send(ToBackup::Committed(Lsn(10)))]), "told once: {out:?}");
    for index in 0..MOST_UNAPPLIED as u64 {
        assert_eq!(peer.window(LogKind::Recovery), Some(index + 1));
        peer.post((&[full_tail(index)], Lsn(11 + index)), Posting::Coalesced, &mut || index, &mut out);
        assert!(peer.complete(NOW, index, &mut || 1, &mut out));
        message(&mut peer, 1, ToPrimary::Flushed { log: LogKind::Recovery, index }, &mut out).unwrap();
    }
    let newest = MOST_UNAPPLIED as u64 - 1;
    assert_eq!(peer.window(LogKind::Recovery), Some(newest), "no other tail opens");
    assert!(peer.silence(NOW + Nanos::from_secs(3)) >= Nanos::from_secs(3), "it owes progress");
    message(&mut peer, 1, ToPrimary::Applied(Lsn(11)), &mut out).unwrap();
    assert_eq!(peer.window(LogKind::Recovery), Some(newest + 2));
    let mut shipping = Peer::new(NOW, MEMBER, true);
    shipping.link_up(NOW, &mut out);
    shipping.begin(NOW, (1, false), &TableOptions::default(), &mut out);
    message(&mut shipping, 1, opened(), &mut out).unwrap();
    assert!(message(&mut shipping, 1, ToPrimary::Applied(Lsn(1)), &mut out).is_err(), "it builds nothing");
}

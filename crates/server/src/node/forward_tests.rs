//! What becomes of operations whose answers are lost.

use super::*;
use crate::node::Token;
use bytes::Bytes;
use leeward_format::{Epoch, Incarnation, VolumeId};

const THERE: ServerId = ServerId(2);

fn member(volume: u64, incarnation: u64) -> Member {
    Member { server: ServerId(1), volume: VolumeId(volume), incarnation: Incarnation(incarnation) }
}

fn get() -> Op {
    Op::Get { key: Bytes::from_static(b"k") }
}

fn add() -> Op {
    Op::Add { key: Bytes::from_static(b"k"), delta: 1 }
}

fn to(token: u64) -> ReplyTo {
    ReplyTo::Client(Token(token))
}

fn unrouted(since: Nanos, to: ReplyTo, op: Op) -> Unrouted {
    Unrouted { since, to, table: TableName::default(), op }
}

#[test]
fn only_a_read_is_retried_when_its_answer_was_lost() {
    let mut forwarding = Forwarding::new(member(1, 1));
    forwarding.send(unrouted(Nanos(0), to(1), get()), THERE);
    forwarding.send(unrouted(Nanos(0), to(2), add()), THERE);
    forwarding.send(unrouted(Nanos(0), to(3), get()), ServerId(3));
    let next = forwarding.lost(THERE);
    assert!(matches!(&next[0], Next::Again(forwarded) if forwarded.to == to(1)));
    assert!(matches!(&next[1], Next::Answer((_, OpResult::Error(OpError::Unknown(_))))));
    assert_eq!(next.len(), 2);
}

#[test]
fn not_done_is_routed_again_until_its_time_is_over() {
    let mut forwarding = Forwarding::new(member(1, 1));
    let not_primary = || OpResult::Error(OpError::NotPrimary { region: RegionId(1), epoch: Epoch(3) });
    let id = forwarding.send(unrouted(Nanos(0), to(1), add()), THERE);
    let again = forwarding.answered(Nanos::from_secs(1), THERE, id, not_primary());
    assert!(matches!(again, Some(Next::Again(_))));
    let id = forwarding.send(unrouted(Nanos(0), to(1), add()), THERE);
    let late = forwarding.answered(Nanos::from_secs(9), THERE, id, not_primary());
    assert!(matches!(late, Some(Next::Answer((_, OpResult::Error(OpError::Recovering(_)))))));
}

#[test]
fn answers_count_once_and_only_from_where_they_were_asked() {
    let mut forwarding = Forwarding::new(member(1, 1));
    let id = forwarding.send(unrouted(Nanos(0), to(1), add()), THERE);
    assert!(forwarding.answered(Nanos(1), ServerId(9), id, OpResult::Integer(1)).is_none());
    assert!(matches!(
        forwarding.answered(Nanos(1), THERE, id, OpResult::Integer(1)),
        Some(Next::Answer((_, OpResult::Integer(1))))
    ));
    assert!(forwarding.answered(Nanos(1), THERE, id, OpResult::Integer(1)).is_none());
}

#[test]
fn an_answer_to_an_earlier_process_answers_nothing() {
    let lives = [member(1, 1), member(1, 2), member(1, 3), member(2, 1), member(2, 2), member(3, 1)];
    let mut lives = lives.map(Forwarding::new);
    let mut ids = Vec::new();
    for forwarding in &mut lives {
        let new: Vec<u64> =
            (0..1_000).map(|token| forwarding.send(unrouted(Nanos(0), to(token), get()), THERE)).collect();
        for id in std::mem::replace(&mut ids, new) {
            assert!(forwarding.answered(Nanos(1), THERE, id, OpResult::Value(None)).is_none());
        }
    }
    let mut ids: Vec<u64> = lives.iter().flat_map(|forwarding| forwarding.sent.keys().copied()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 6_000, "an id of two processes");
}

#[test]
fn what_is_not_answered_in_time_is_unknown() {
    let mut forwarding = Forwarding::new(member(1, 1));
    forwarding.send(unrouted(Nanos(0), to(1), add()), THERE);
    forwarding.send(unrouted(Nanos::from_secs(4), to(2), add()), THERE);
    let expired = forwarding.expire(Nanos::from_secs(6));
    assert_eq!(expired.len(), 1);
    assert!(matches!(expired[0].1, OpResult::Error(OpError::Unknown(_))));
}

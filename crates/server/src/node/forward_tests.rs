//! What becomes of operations whose answers are lost.

use super::*;
use crate::node::Token;
use bytes::Bytes;
use leeward_format::Epoch;

const THERE: ServerId = ServerId(2);

fn get() -> Op {
    Op::Get { key: Bytes::from_static(b"k") }
}

fn add() -> Op {
    Op::Add { key: Bytes::from_static(b"k"), delta: 1 }
}

fn to(token: u64) -> ReplyTo {
    ReplyTo::Client(Token(token))
}

#[test]
fn only_a_read_is_retried_when_its_answer_was_lost() {
    let mut forwarding = Forwarding::default();
    forwarding.send(Nanos(0), to(1), TableName::default(), get(), THERE);
    forwarding.send(Nanos(0), to(2), TableName::default(), add(), THERE);
    forwarding.send(Nanos(0), to(3), TableName::default(), get(), ServerId(3));
    let next = forwarding.lost(THERE);
    assert!(matches!(&next[0], Next::Again(forwarded) if forwarded.to == to(1)));
    assert!(matches!(&next[1], Next::Answer((_, OpResult::Error(OpError::Unknown(_))))));
    assert_eq!(next.len(), 2);
}

#[test]
fn not_done_is_routed_again_until_its_time_is_over() {
    let mut forwarding = Forwarding::default();
    let not_primary = || OpResult::Error(OpError::NotPrimary { region: RegionId(1), epoch: Epoch(3) });
    let id = forwarding.send(Nanos(0), to(1), TableName::default(), add(), THERE);
    let again = forwarding.answered(Nanos::from_secs(1), THERE, id, not_primary());
    assert!(matches!(again, Some(Next::Again(_))));
    let id = forwarding.send(Nanos(0), to(1), TableName::default(), add(), THERE);
    let late = forwarding.answered(Nanos::from_secs(9), THERE, id, not_primary());
    assert!(matches!(late, Some(Next::Answer((_, OpResult::Error(OpError::Recovering(_)))))));
}

#[test]
fn answers_count_once_and_only_from_where_they_were_asked() {
    let mut forwarding = Forwarding::default();
    let id = forwarding.send(Nanos(0), to(1), TableName::default(), add(), THERE);
    assert!(forwarding.answered(Nanos(1), ServerId(9), id, OpResult::Integer(1)).is_none());
    assert!(matches!(
        forwarding.answered(Nanos(1), THERE, id, OpResult::Integer(1)),
        Some(Next::Answer((_, OpResult::Integer(1))))
    ));
    assert!(forwarding.answered(Nanos(1), THERE, id, OpResult::Integer(1)).is_none());
}

#[test]
fn what_is_not_answered_in_time_is_unknown() {
    let mut forwarding = Forwarding::default();
    forwarding.send(Nanos(0), to(1), TableName::default(), add(), THERE);
    forwarding.send(Nanos::from_secs(4), to(2), TableName::default(), add(), THERE);
    let expired = forwarding.expire(Nanos::from_secs(6));
    assert_eq!(expired.len(), 1);
    assert!(matches!(expired[0].1, OpResult::Error(OpError::Unknown(_))));
}

//! Operations whose answers are lost.

use super::*;
use crate::node::Token;
use bytes::Bytes;
use leeward_format::op::{Condition, Lifetime};
use leeward_format::request::RequestId;
use leeward_format::table::TableName;
use leeward_format::{Epoch, Incarnation, VolumeId};
use leeward_region::client_memory::ClientMemory;
use leeward_region::request::ReplyTo;

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

fn put() -> Op {
    let (key, value) = (Bytes::from_static(b"k"), Bytes::from_static(b"v"));
    Op::Put { key, value, when: Condition::Always, want_old: false, lifetime: Lifetime::Forever }
}

fn request(since: Nanos, to: ReplyTo, op: Op) -> Request {
    Request::new(since, to, TableName::default(), op, None)
}

const REGION: RegionId = RegionId(1);

impl Forwarding {
    /// Sends to `server`. Answers the id of the message.
    fn send_to(&mut self, request: Request, server: ServerId) -> u64 {
        self.send(request, REGION, server).0
    }
}

#[test]
fn what_a_backup_does_not_answer_goes_to_the_primary() {
    let mut forwarding = Forwarding::new(member(1, 1), ClientMemory::unlimited());
    let mut ask = |at| forwarding.send_to_backup(request(at, to(1), get()), REGION, THERE);
    let (refused, lost, late) = (ask(Nanos(0)), ask(Nanos(0)), ask(AT_BACKUP));
    let is_for_primary = |next: &Next| matches!(next, Next::ToPrimary { region: REGION, backup: THERE, .. });
    let error = OpResult::Error(OpError::Recovering(REGION));
    assert!(forwarding.answered(Nanos(1), THERE, refused, error).as_ref().is_some_and(is_for_primary));
    // A change of configurations takes no read back from a backup; time does.
    assert!(forwarding.deposed(Nanos(2), ServerId(1), |_| Some(ServerId(3))).is_empty());
    let late_ones = forwarding.take_from_backups(AT_BACKUP);
    assert!(late_ones.len() == 1 && late_ones.iter().all(is_for_primary), "the first, and not the last");
    assert!(forwarding.answered(AT_BACKUP, THERE, lost, OpResult::Value(None)).is_none(), "it comes too late");
    let gone = forwarding.lost(AT_BACKUP, THERE);
    assert!(gone.len() == 1 && gone.iter().all(is_for_primary));
    assert!(forwarding.is_empty() && forwarding.answered(AT_BACKUP, THERE, late, OpResult::Value(None)).is_none());
}

#[test]
fn a_lost_operation_is_sent_again_unless_that_may_do_it_twice() {
    let mut forwarding = Forwarding::new(member(1, 1), ClientMemory::unlimited());
    forwarding.heard.note(REGION, Lsn(40));
    let theirs = Once { request: RequestId { client: 7, sequence: 7 }, region: REGION, since: Lsn(3), is_again: false };
    assert_eq!(forwarding.send(request(Nanos(0), to(1), get()), REGION, THERE).1, None);
    let (_, mine) = forwarding.send(request(Nanos(0), to(2), add()), REGION, THERE);
    assert_eq!(forwarding.send(request(Nanos(0), to(3), put()), REGION, THERE).1, None, "it has no request id");
    let of_client = Request::new(Nanos(0), to(4), TableName::default(), add(), Some(theirs));
    assert_eq!(forwarding.send(of_client, REGION, THERE).1, Some(theirs));
    forwarding.send_to(request(Nanos(0), to(5), get()), ServerId(3));
    assert_eq!(mine.map(|once| once.since), Some(Lsn(40)));

    let mut next = forwarding.lost(Nanos(1), THERE).into_iter();
    assert!(matches!(next.next(), Some(Next::Again(again)) if again.to == to(1)));
    let Some(Next::Again(again)) = next.next() else { panic!("it has a request id") };
    for token in [3, 4] {
        let Some(Next::Answer((answered, result))) = next.next() else {
            panic!("this node did not give its request id")
        };
        assert!(answered == to(token) && matches!(result, OpResult::Error(OpError::Unknown(_))));
    }
    assert!(next.next().is_none());
    forwarding.heard.note(REGION, Lsn(90));
    assert!(again.is_doubtful());
    let as_before = mine.map(|once| Once { is_again: true, ..once });
    assert_eq!(forwarding.send(again, REGION, THERE).1, as_before, "the first attempt may have been executed");
}

#[test]
fn an_unknown_outcome_is_asked_for_until_an_answer_or_the_timeout() {
    let mut forwarding = Forwarding::new(member(1, 1), ClientMemory::unlimited());
    let mut doubtful = || {
        forwarding.send_to(request(Nanos(0), to(1), add()), THERE);
        let Some(Next::Again(again)) = forwarding.lost(Nanos(1), THERE).pop() else { panic!("it has a request id") };
        again
    };
    let (one, two, three) = (doubtful(), doubtful(), doubtful());
    let recovering = || OpResult::Error(OpError::Recovering(REGION));
    let id = forwarding.send_to(one, THERE);
    let next = forwarding.answered(Nanos::from_secs(1), THERE, id, recovering());
    assert!(matches!(next, Some(Next::Again(_))), "the answer does not say that nothing was done");
    let id = forwarding.send_to(two, THERE);
    let late = forwarding.answered(Nanos::from_secs(9), THERE, id, recovering());
    assert!(matches!(late, Some(Next::Answer((_, OpResult::Error(OpError::Unknown(_)))))));
    let id = forwarding.send_to(three, THERE);
    let done = forwarding.answered(Nanos::from_secs(1), THERE, id, OpResult::Integer(4));
    assert!(matches!(done, Some(Next::Answer((_, OpResult::Integer(4))))));
}

#[test]
fn a_forgotten_request_is_sent_again_at_once_with_a_newer_lsn() {
    let mut forwarding = Forwarding::new(member(1, 1), ClientMemory::unlimited());
    let forgotten = || OpResult::Error(OpError::Forgotten(REGION));
    let id = forwarding.send_to(request(Nanos(0), to(1), add()), THERE);
    let next = forwarding.answered(Nanos(1), THERE, id, forgotten());
    let Some(Next::Again(again)) = next else { panic!("nothing new was heard") };
    let id = forwarding.send_to(again, THERE);
    forwarding.heard.note(REGION, Lsn(9));
    let next = forwarding.answered(Nanos(1), THERE, id, forgotten());
    let Some(Next::AtOnce(again)) = next else { panic!("something was") };
    assert_eq!(forwarding.send(again, REGION, THERE).1.map(|once| once.since), Some(Lsn(9)));
}

#[test]
fn answers_of_a_deposed_primary_are_not_waited_for() {
    let mut forwarding = Forwarding::new(member(1, 1), ClientMemory::unlimited());
    let mut sent = |token, op, server| forwarding.send_to(request(Nanos(0), to(token), op), server);
    sent(1, add(), THERE);
    sent(2, get(), THERE);
    sent(3, put(), THERE);
    sent(4, add(), ServerId(3));
    assert!(forwarding.deposed(Nanos(1), ServerId(1), |_| None).is_empty(), "there may be none for a while");
    let next = forwarding.deposed(Nanos(1), ServerId(1), |region| (region == REGION).then_some(ServerId(3)));
    let again = |next: &Next| matches!(next, Next::Again(again) if again.to == to(1) || again.to == to(2));
    assert!(next.len() == 2 && next.iter().all(again), "the old primary may yet answer a plain put");
}

#[test]
fn an_operation_that_was_not_done_is_routed_again_until_its_time_is_over() {
    let mut forwarding = Forwarding::new(member(1, 1), ClientMemory::unlimited());
    let not_primary = || OpResult::Error(OpError::NotPrimary { region: RegionId(1), epoch: Epoch(3) });
    let id = forwarding.send_to(request(Nanos(0), to(1), add()), THERE);
    let again = forwarding.answered(Nanos::from_secs(1), THERE, id, not_primary());
    assert!(matches!(again, Some(Next::Again(_))));
    let id = forwarding.send_to(request(Nanos(0), to(1), add()), THERE);
    let late = forwarding.answered(Nanos::from_secs(9), THERE, id, not_primary());
    assert!(matches!(late, Some(Next::Answer((_, OpResult::Error(OpError::Recovering(_)))))));
}

#[test]
fn an_answer_counts_once_and_only_from_the_server_that_was_asked() {
    let mut forwarding = Forwarding::new(member(1, 1), ClientMemory::unlimited());
    let id = forwarding.send_to(request(Nanos(0), to(1), add()), THERE);
    assert!(forwarding.answered(Nanos(1), ServerId(9), id, OpResult::Integer(1)).is_none());
    assert!(matches!(
        forwarding.answered(Nanos(1), THERE, id, OpResult::Integer(1)),
        Some(Next::Answer((_, OpResult::Integer(1))))
    ));
    assert!(forwarding.answered(Nanos(1), THERE, id, OpResult::Integer(1)).is_none());
}

#[test]
fn an_answer_to_an_earlier_process_answers_nothing() {
    let members = [member(1, 1), member(1, 2), member(1, 3), member(2, 1), member(2, 2), member(3, 1)];
    let mut processes = members.map(|member| Forwarding::new(member, ClientMemory::unlimited()));
    let mut ids = Vec::new();
    for forwarding in &mut processes {
        let new: Vec<u64> =
            (0..1_000).map(|token| forwarding.send_to(request(Nanos(0), to(token), get()), THERE)).collect();
        for id in std::mem::replace(&mut ids, new) {
            assert!(forwarding.answered(Nanos(1), THERE, id, OpResult::Value(None)).is_none());
        }
    }
    let mut ids: Vec<u64> = processes.iter().flat_map(|forwarding| forwarding.sent.keys().copied()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 6_000, "an id of two processes");
}

#[test]
fn an_operation_that_is_not_answered_in_time_has_an_unknown_outcome() {
    let mut forwarding = Forwarding::new(member(1, 1), ClientMemory::unlimited());
    forwarding.send_to(request(Nanos(0), to(1), add()), THERE);
    forwarding.send_to(request(Nanos::from_secs(4), to(2), add()), THERE);
    let expired = forwarding.expire(Nanos::from_secs(6));
    assert_eq!(expired.len(), 1);
    assert!(matches!(expired[0].1, OpResult::Error(OpError::Unknown(_))));
}

//! The bytes in flight to a server and back are bounded, and operations that wait are sent in order.

use super::*;
use crate::node::Token;
use bytes::Bytes;
use leeward_format::op::{Condition, Lifetime};
use leeward_format::table::TableName;
use leeward_platform::Nanos;
use leeward_region::request::ReplyTo;
use std::collections::VecDeque;

const PEER: ServerId = ServerId(2);
const LIMIT: u64 = 32 << 20;

fn get(number: u64) -> Request {
    let op = Op::Get { key: Bytes::from(number.to_string()) };
    Request::new(Nanos::ZERO, ReplyTo::Peer(ServerId(1), number), TableName::default(), op, None)
}

fn put(value_bytes: usize) -> Op {
    let value = Bytes::from(vec![b'v'; value_bytes]);
    Op::Put { key: "k".into(), value, when: Condition::Always, want_old: false, lifetime: Lifetime::Forever }
}

#[test]
fn no_more_of_a_thousand_reads_are_in_flight_than_there_is_memory_for() {
    let mut in_flight = InFlight::new(ClientMemory::with_limit(LIMIT));
    let result = OpResult::Value(Some(Bytes::from(vec![b'v'; 1 << 20])));
    (0..1_024).for_each(|number| in_flight.wait(PEER, get(number)));
    let (mut sent, mut order) = (VecDeque::new(), Vec::new());
    while order.len() < 1_024 {
        for server in in_flight.ready() {
            let mut waiting = in_flight.take(server);
            while let Some(request) = in_flight.next(server, &mut waiting) {
                sent.push_back((in_flight.sent(server, &request.op), request.to));
            }
            in_flight.put_back(server, waiting);
        }
        assert!((1..=16).contains(&sent.len()), "{} reads of up to a megabyte are in flight", sent.len());
        let (bytes, to) = sent.pop_front().expect("just seen");
        in_flight.ended(PEER, bytes, Some(&result));
        order.push(to);
    }
    assert_eq!(order, (0..1_024).map(|number| ReplyTo::Peer(ServerId(1), number)).collect::<Vec<_>>());
    assert!(in_flight.is_empty() && !in_flight.must_wait(PEER));
}

#[test]
fn small_answers_allow_more_in_flight_and_a_large_one_fewer() {
    let mut in_flight = InFlight::new(ClientMemory::with_limit(LIMIT));
    let fill = |in_flight: &mut InFlight| {
        let mut sent = Vec::new();
        while !in_flight.must_wait(PEER) {
            sent.push(in_flight.sent(PEER, &get(1).op));
        }
        let count = sent.len();
        sent.into_iter().for_each(|bytes| in_flight.ended(PEER, bytes, None));
        count
    };
    assert_eq!(fill(&mut in_flight), 16);
    for _ in 0..1_000 {
        let bytes = in_flight.sent(PEER, &get(1).op);
        in_flight.ended(PEER, bytes, Some(&OpResult::Value(None)));
    }
    assert_eq!(fill(&mut in_flight), 1_928);
    let bytes = in_flight.sent(PEER, &get(1).op);
    in_flight.ended(PEER, bytes, Some(&OpResult::Value(Some(Bytes::from(vec![1; 1 << 20])))));
    assert_eq!(fill(&mut in_flight), 16);
}

#[test]
fn requests_never_fill_a_link() {
    let mut in_flight = InFlight::new(ClientMemory::with_limit(1 << 40));
    let (mut count, op) = (0, put(1 << 20));
    while !in_flight.must_wait(PEER) {
        in_flight.sent(PEER, &op);
        count += 1;
    }
    assert_eq!(count, 16, "of 64 MiB that a link accepts");
}

#[test]
fn one_operation_may_always_be_in_flight() {
    let memory = ClientMemory::with_limit(LIMIT);
    let mut in_flight = InFlight::new(memory.clone());
    let _full = memory.hold(Bytes::from(vec![1; LIMIT as usize]));
    assert!(!in_flight.must_wait(PEER));
    let bytes = in_flight.sent(PEER, &get(1).op);
    assert!(in_flight.must_wait(PEER));
    in_flight.ended(PEER, bytes, None);
    assert!(!in_flight.must_wait(PEER));
    in_flight.wait(PEER, get(2));
    assert!(in_flight.late(|_| false).is_empty() && !in_flight.is_empty());
    assert_eq!(in_flight.late(|_| true).len(), 1);
}

#[test]
fn a_read_without_memory_for_its_answer_is_sent_again() {
    let memory = ClientMemory::with_limit(LIMIT);
    let mut in_flight = InFlight::new(memory.clone());
    let large = OpResult::Value(Some(memory.hold(Bytes::from(vec![1; 1 << 20]))));
    assert!(!in_flight.lacks_memory_for(&large));
    let _full = memory.hold(Bytes::from(vec![1; (LIMIT + LIMIT / 4) as usize]));
    assert!(in_flight.lacks_memory_for(&large) && !in_flight.lacks_memory_for(&OpResult::Integer(1)));
    in_flight.wait(PEER, get(2));
    in_flight.wait_again(PEER, get(1));
    assert_eq!(in_flight.ready(), [PEER], "nothing is in flight");
    let order: Vec<Bytes> = in_flight.take(PEER).into_all().filter_map(|one| one.op.key().cloned()).collect();
    assert_eq!(order, ["1", "2"]);
}

#[test]
fn one_operation_of_a_client_does_not_wait_behind_the_thousands_of_others() {
    let of = |connection: u64, number: u64| {
        let op = Op::Get { key: Bytes::from(number.to_string()) };
        let to = ReplyTo::Client(Token::new(connection, number));
        Request::new(Nanos::ZERO, to, TableName::default(), op, None)
    };
    let mut queue = FairQueue::default();
    (0..3_000).for_each(|number| queue.push(of(number % 3, number)));
    let costs = |_: &Request| 100;
    for _ in 0..300 {
        assert!(queue.pop(costs).is_some());
    }
    queue.push(of(7, 1));
    queue.push(of(7, 2));
    let order: Vec<ReplyTo> = (0..8).filter_map(|_| queue.pop(costs)).map(|one| one.to).collect();
    let at = |number| order.iter().position(|to| *to == ReplyTo::Client(Token::new(7, number)));
    assert!(at(1) < at(2) && at(1).is_some_and(|at| at < 4) && at(2).is_some_and(|at| at < 8), "{order:?}");
    let mut of_each = [0; 3];
    while let Some(next) = queue.pop(costs) {
        let ReplyTo::Client(token) = next.to else { panic!("no server is a caller") };
        let connection = token.connection() as usize;
        let number =
            next.op.key().and_then(|key| std::str::from_utf8(key).ok()?.parse::<u64>().ok()).expect("a number");
        assert!(number >= of_each[connection], "those of one client stay in order");
        of_each[connection] = number;
    }
    assert!(queue.is_empty() && of_each == [2_997, 2_998, 2_999]);
}

//! Native connections: ids come back, answers find their place, limits hold, hostile bytes end the connection.

use super::*;
use crate::commands::idle_node::{IdleNode, number_of};
use crate::session_context::Facts;
use bytes::Bytes;
use leeward_cluster::{Change, CoordinatorEvent};
use leeward_format::cluster::{ClusterPath, GroupConfig, TableOptions, encode_value};
use leeward_format::op::{Condition, Lifetime, Op, OpResult};
use leeward_format::request::RequestId;
use leeward_format::table::TableName;
use leeward_format::user::{PasswordHash, User, Users};
use leeward_format::{Epoch, MAX_VALUE_BYTES, ServerId};
use leeward_region::client_memory::ClientMemory;
use leeward_region::request::Naming;
use proptest::prelude::*;
use serde::Serialize;
use std::sync::Arc;

struct Wire {
    session: Session,
    node: IdleNode,
    submitted: Vec<Operation>,
}

impl Wire {
    fn new() -> Wire {
        let facts = Facts { server: ServerId(3), admin_address: "admin:1".into(), ..Facts::default() };
        let mut node = IdleNode::new(facts);
        let session = Session::new(4, "peer".into(), "here".into(), &mut node.context());
        let mut wire = Wire { session, node, submitted: Vec::new() };
        wire.change(9);
        wire
    }

    /// Another session of the same process.
    fn anew(mut self) -> Wire {
        self.session = self.with(|_, context, _| Session::new(5, "peer".into(), "here".into(), context));
        self
    }

    /// Changes something in the cluster.
    fn change(&mut self, version: u64) {
        let options = TableOptions { name: format!("t{version}"), ..TableOptions::default() };
        self.put(version, ClusterPath::Table(options.name.clone()), &options);
    }

    fn put(&mut self, version: u64, path: ClusterPath, value: &impl Serialize) {
        let change = Change { path: path.to_string(), version, value: Some(encode_value(value)) };
        self.node.view.handle(&CoordinatorEvent::Changed(vec![change]));
    }

    /// The routes that a client gets that knows this version.
    fn routes(&self, known: u64) -> Reply {
        Reply::Routes(self.node.view.routes().update_since(known))
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Session, &mut Context, &mut Vec<Operation>) -> T) -> T {
        act(&mut self.session, &mut self.node.context(), &mut self.submitted)
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.with(|session, context, submit| {
            session.feed(bytes);
            session.advance(context, submit);
        });
        self.advance();
    }

    fn request(&mut self, request: &Request) {
        self.feed(&frame(request));
    }

    fn complete(&mut self, number: u64, result: OpResult) {
        self.with(|session, context, submit| {
            session.complete(number, result, context);
            session.advance(context, submit);
        });
        self.advance();
    }

    /// Takes steps until the session waits for something.
    fn advance(&mut self) {
        while self.session.has_work() {
            self.with(|session, context, submit| session.advance(context, submit));
        }
    }

    fn replies(&mut self) -> Vec<Reply> {
        let mut replies = Vec::new();
        while let Some((reply, len)) =
            read_frame(FrameKind::Reply, self.session.output(), MAX_MESSAGE_BYTES).expect("frames of replies")
        {
            replies.push(reply);
            self.session.output().advance(len);
        }
        assert!(self.session.output().is_empty());
        replies
    }
}

fn frame(request: &Request) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_frame(FrameKind::Request, request, &mut bytes);
    bytes
}

fn get(key: &str) -> Op {
    Op::Get { key: Bytes::copy_from_slice(key.as_bytes()) }
}

fn ops(id: u64, direct: bool, ops: Vec<Op>) -> Request {
    Request::Ops { id, direct, table: TableName::default(), ops }
}

fn value(text: &str) -> OpResult {
    OpResult::Value(Some(Bytes::copy_from_slice(text.as_bytes())))
}

#[test]
fn a_hello_gets_the_routes_and_names_the_client() {
    let mut wire = Wire::new();
    wire.request(&Request::Hello { client: "bench\n1".into(), known: 0 });
    wire.request(&Request::Map);
    wire.request(&Request::Identify);
    let map = Reply::Map(wire.node.view.routes().region_map());
    let node = Reply::Node { server: ServerId(3), admin_address: "admin:1".into() };
    assert_eq!(wire.replies(), [wire.routes(0), map, node]);
    assert_eq!(wire.node.shared.clients.get_mut(4).map(|client| client.name.clone()).as_deref(), Some("bench1"));
}

#[test]
fn requests_are_answered_by_id_when_all_their_operations_are() {
    let mut wire = Wire::new();
    wire.request(&ops(70, true, vec![get("a"), get("b")]));
    wire.request(&ops(71, false, vec![get("c")]));
    wire.request(&ops(72, false, vec![]));
    let submitted: Vec<(u64, bool)> = wire.submitted.iter().map(|s| (number_of(s), s.is_direct)).collect();
    assert_eq!(submitted, [(0, true), (1, true), (2, false)]);
    assert_eq!(wire.replies(), [Reply::Results { id: 72, results: vec![] }]);
    wire.complete(1, value("B"));
    assert_eq!(wire.replies(), []);
    wire.complete(2, value("C"));
    assert_eq!(wire.replies(), [Reply::Results { id: 71, results: vec![value("C")] }]);
    wire.complete(0, value("A"));
    wire.complete(0, value("again"));
    assert_eq!(wire.replies(), [Reply::Results { id: 70, results: vec![value("A"), value("B")] }]);
}

#[test]
fn a_misrouted_operation_brings_what_is_new_of_the_routes_first() {
    let mut wire = Wire::new();
    let misrouted = OpResult::Error(OpError::NotPrimary { region: RegionId(1), epoch: Epoch(2) });
    let results = |id| Reply::Results { id, results: vec![misrouted.clone()] };
    let fail = |wire: &mut Wire, id: u64| {
        wire.request(&ops(id, true, vec![get("a")]));
        wire.complete(id, misrouted.clone());
        wire.replies()
    };
    assert_eq!(fail(&mut wire, 0), [wire.routes(0), results(0)]);
    assert_eq!(fail(&mut wire, 1), [results(1)], "it was told already");
    wire.change(12);
    assert_eq!(fail(&mut wire, 2), [wire.routes(9), results(2)]);
    wire.request(&Request::Routes { known: 15 });
    assert_eq!(wire.replies(), [wire.routes(15)]);
    wire.change(14);
    assert_eq!(fail(&mut wire, 3), [results(3)], "the client knows more than the node");
    wire.change(16);
    assert_eq!(fail(&mut wire, 4), [wire.routes(15), results(4)]);
}

fn add(key: &str) -> Op {
    Op::Add { key: Bytes::copy_from_slice(key.as_bytes()), delta: 1 }
}

fn once(sequence: u32) -> Once {
    Once { request: RequestId { client: 8, sequence }, region: RegionId(3), since: Lsn(5), is_again: false }
}

#[test]
fn what_is_executed_once_keeps_its_name_and_brings_what_is_committed() {
    let mut wire = Wire::new();
    wire.put(10, ClusterPath::Table("default".into()), &TableOptions::default());
    for (region, start, end) in [(3, "", Some("m".into())), (4, "m", None)] {
        let config = GroupConfig { start: start.into(), end, ..GroupConfig::unassigned(RegionId(region), "default") };
        wire.put(8 + u64::from(region), ClusterPath::Region(config.region), &config);
    }
    let table = TableName::default();
    let batch = vec![add("z"), get("a"), add(""), add("a")];
    let named = vec![(0, once(7)), (2, once(8)), (3, once(9))];
    wire.request(&Request::Once { id: 1, direct: true, table: table.clone(), ops: batch, named });
    let submitted: Vec<_> = wire.submitted.iter().map(|s| (number_of(s), once_of(s))).collect();
    assert_eq!(submitted, [(0, Some(once(7))), (1, None), (2, Some(once(9)))], "the key of one is empty");
    (0..3).for_each(|number| wire.complete(number, OpResult::Integer(1)));
    let replies = wire.replies();
    assert_eq!(replies[0], Reply::Heard { regions: vec![(RegionId(3), Lsn(300)), (RegionId(4), Lsn(400))] });
    assert!(matches!(&replies[1..], [Reply::Results { id: 1, results }] if results.len() == 4));

    // Names that fit no operation end the connection: what is executed without its name might be so twice.
    for named in [vec![(1, once(1))], vec![(0, once(1)), (0, once(2))]] {
        let mut wire = Wire::new();
        wire.request(&Request::Once { id: 1, direct: true, table: table.clone(), ops: vec![add("a")], named });
        assert!(wire.submitted.is_empty() && wire.session.is_finished());
    }
}

#[test]
fn what_the_store_cannot_hold_is_refused_without_asking_the_node() {
    let mut wire = Wire::new();
    let long = Op::Put {
        key: "k".into(),
        value: Bytes::from(vec![0; MAX_VALUE_BYTES + 1]),
        when: Condition::Always,
        lifetime: Lifetime::Forever,
        want_old: false,
    };
    wire.request(&ops(1, false, vec![get(""), get("a"), get(&"k".repeat(5000)), long]));
    assert_eq!(wire.submitted.len(), 1);
    wire.complete(0, value("A"));
    let replies = wire.replies();
    let [Reply::Results { id: 1, results }] = &replies[..] else { panic!("{replies:?}") };
    let invalid: Vec<bool> =
        results.iter().map(|result| matches!(result, OpResult::Error(OpError::Invalid(_)))).collect();
    assert_eq!(invalid, [true, false, true, true]);
}

#[test]
fn answers_that_do_not_fit_a_frame_become_errors_that_tell_reads_from_writes() {
    let mut wire = Wire::new();
    let delete = Op::Delete { key: "k".into(), when: Condition::Always };
    let batch: Vec<Op> = (0..9).map(|_| get("k")).chain([delete]).collect();
    wire.request(&ops(1, false, batch));
    let large = Bytes::from(vec![7; MAX_VALUE_BYTES]);
    for number in 0..9 {
        wire.complete(number, OpResult::Value(Some(large.clone())));
    }
    wire.complete(9, OpResult::Deleted { done: true, old: Some(large), version: None });
    let replies = wire.replies();
    let [Reply::Results { results, .. }] = &replies[..] else { panic!("one reply") };
    assert!(results[..7].iter().all(|result| matches!(result, OpResult::Value(Some(_)))));
    assert_eq!(results[8], OpResult::Error(OpError::Overloaded(RegionId(0))));
    assert!(matches!(results[9], OpResult::Error(OpError::Unknown(_))));
}

#[test]
fn frames_are_found_wherever_the_stream_is_cut() {
    let stream = [frame(&ops(1, false, vec![get("a")])), frame(&Request::Map), frame(&ops(2, true, vec![get("b")]))];
    let stream = stream.concat();
    for step in 1..stream.len() {
        let mut wire = Wire::new();
        stream.chunks(step).for_each(|piece| wire.feed(piece));
        assert_eq!(wire.submitted.len(), 2, "in pieces of {step}");
        assert_eq!(wire.replies().len(), 1);
    }
}

#[test]
fn broken_frames_end_the_connection_after_what_was_asked_before() {
    let mut wire = Wire::new();
    wire.request(&ops(1, false, vec![get("a")]));
    let mut broken = frame(&Request::Map);
    *broken.last_mut().expect("a frame has bytes") ^= 1;
    wire.feed(&broken);
    wire.request(&Request::Map);
    assert!(!wire.session.wants_input() && !wire.session.is_finished());
    wire.complete(0, value("A"));
    assert_eq!(wire.replies().len(), 1);
    assert!(wire.session.is_finished());
}

#[test]
fn a_client_of_another_version_hears_which_is_spoken() {
    let mut wire = Wire::new();
    let mut other = frame(&Request::Map);
    other[4] += 1;
    wire.feed(&other);
    assert_eq!(wire.session.output()[..], version_frame(FrameKind::Reply));
    assert!(!wire.session.wants_input());
}

#[test]
fn a_batch_of_too_many_operations_is_refused() {
    let mut wire = Wire::new();
    wire.request(&ops(1, false, vec![Op::Count { region: RegionId(1) }; MAX_OPERATIONS + 1]));
    assert!(wire.submitted.is_empty() && wire.session.is_finished());
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let mut wire = Wire::new();
    for round in 0_u64.. {
        if !wire.session.wants_input() {
            break;
        }
        wire.request(&ops(round, false, vec![get("k")]));
        wire.complete(round, OpResult::Value(Some(Bytes::from(vec![1; MAX_VALUE_BYTES]))));
    }
    assert!(wire.session.output().len() < OUTPUT_PAUSE_BYTES + 2 * MAX_VALUE_BYTES);
}

fn reply_path(sequence: u64) -> ReplyPath {
    ReplyPath { sequence, slot: leeward_format::ring::Slot { at: 0, room: 64 } }
}

impl Wire {
    fn feed_ring(&mut self, bytes: &[u8], sequence: u64) {
        self.with(|session, context, submit| {
            session.take_from_ring(bytes, reply_path(sequence), context, submit);
            session.advance(context, submit);
        });
    }

    /// The answers that go through rings: the number of the message, and the replies.
    fn ring_replies(&mut self) -> Vec<(u64, Vec<Reply>)> {
        let all: Vec<(ReplyPath, Vec<u8>)> = self.session.for_rings().collect();
        let parse = |mut bytes: &[u8]| {
            let mut replies = Vec::new();
            while let Some((reply, len)) = read_frame(FrameKind::Reply, bytes, MAX_MESSAGE_BYTES).expect("a reply") {
                replies.push(reply);
                bytes = &bytes[len..];
            }
            assert!(bytes.is_empty());
            replies
        };
        all.into_iter().map(|(reply_path, bytes)| (reply_path.sequence, parse(&bytes))).collect()
    }
}

#[test]
fn an_answer_leaves_by_the_door_that_its_request_came_by() {
    let mut wire = Wire::new();
    wire.feed_ring(&frame(&ops(1, true, vec![get("a")])), 11);
    wire.request(&ops(1, true, vec![get("b")]));
    wire.feed_ring(&frame(&ops(1, true, vec![get("c")])), 12);
    wire.feed_ring(&frame(&Request::Map), 13);
    let map = Reply::Map(wire.node.view.routes().region_map());
    assert_eq!(wire.ring_replies(), [(13, vec![map])]);
    let misrouted = OpResult::Error(OpError::NotPrimary { region: RegionId(1), epoch: Epoch(2) });
    wire.complete(2, misrouted.clone());
    wire.complete(1, value("B"));
    wire.complete(0, value("A"));
    let results = |result| Reply::Results { id: 1, results: vec![result] };
    let expected = [(12, vec![wire.routes(0), results(misrouted)]), (11, vec![results(value("A"))])];
    assert_eq!(wire.ring_replies(), expected, "routes and results are one answer");
    assert_eq!(wire.replies(), [results(value("B"))]);
}

#[test]
fn what_is_asked_about_rings_is_for_their_owner() {
    let mut wire = Wire::new();
    wire.request(&Request::RingOffer);
    wire.request(&Request::RingBell);
    let (address, reply) = ("@c".to_string(), Bytes::from_static(b"d"));
    let open = Request::RingOpen { address: address.clone(), request_bytes: 1, reply_bytes: 2, reply: reply.clone() };
    wire.request(&open);
    assert!(wire.session.has_ring_asks());
    let asks: Vec<Ask> = wire.session.ring_asks().collect();
    assert_eq!(asks, [Ask::Offer, Ask::Open { address, request_bytes: 1, reply_bytes: 2, reply }]);
    assert!(wire.replies().is_empty() && wire.session.wants_input());
}

#[test]
fn a_message_in_a_ring_that_is_no_request_ends_the_connection() {
    let map = frame(&Request::Map);
    let mut broken = map.clone();
    *broken.last_mut().expect("a frame has bytes") ^= 1;
    let two = [map.clone(), map.clone()].concat();
    let bell = frame(&Request::RingBell);
    for bytes in [&broken[..], &two, &map[..map.len() - 1], &[], &bell] {
        let mut wire = Wire::new();
        wire.feed_ring(bytes, 1);
        assert!(!wire.session.wants_input() && wire.session.is_finished(), "{bytes:?}");
    }
}

proptest! {
    #[test]
    fn mutated_frames_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        keep in any::<prop::sample::Index>(),
        step in 1_usize..40,
    ) {
        let mut stream = [frame(&Request::Hello { client: "c".into(), known: 0 }), frame(&ops(3, false, vec![get("a")]))].concat();
        for (at, byte) in changes {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        stream.truncate(keep.index(stream.len()) + 1);
        let mut wire = Wire::new();
        stream.chunks(step).for_each(|piece| wire.feed(piece));
    }
}

#[test]
fn a_frame_is_charged_before_it_comes() {
    let mut wire = Wire::new();
    let memory = wire.node.shared.memory.clone();
    let before = memory.used();
    let put = Op::Put {
        key: Bytes::from_static(b"k"),
        value: Bytes::from(vec![b'v'; MAX_VALUE_BYTES]),
        when: Condition::Always,
        want_old: false,
        lifetime: Lifetime::Forever,
    };
    let bytes = frame(&ops(1, false, vec![put; 7]));
    wire.feed(&bytes[..FRAME_HEADER_BYTES]);
    assert!(memory.used() - before >= bytes.len() as u64, "{} bytes are charged", memory.used());
    wire.feed(&bytes[FRAME_HEADER_BYTES..]);
    assert!(memory.used() - before >= bytes.len() as u64, "its operations have them now");
    for number in 0..7 {
        wire.complete(number, OpResult::Put { done: true, old: None, version: None });
    }
    wire.replies();
    wire.with(|session, context, submit| session.advance(context, submit));
    assert!(memory.used() - before < 64 << 10, "{} bytes are left", memory.used() - before);
}

#[test]
fn nothing_is_taken_from_a_native_client_while_the_account_is_full() {
    let mut wire = Wire::new();
    wire.node.shared.memory = ClientMemory::with_limit(1 << 20);
    wire = wire.anew();
    let other = wire.node.shared.memory.hold(Bytes::from(vec![1; 1 << 20]));
    wire.request(&ops(1, false, vec![get("k")]));
    assert!(!wire.session.wants_input() && wire.submitted.is_empty());
    drop(other);
    wire.feed(&[]);
    assert_eq!(wire.submitted.len(), 1);
    wire.complete(0, value("v"));
    assert_eq!(wire.replies().len(), 1);
}

/// One operation of each kind that needs a right.
fn one_of_each() -> Vec<Op> {
    use leeward_format::op::{ExpireIf, HashIndexQuestion, RangeOp, Read, ScanRange};
    use leeward_format::user::{Presence, UserChange};
    let (key, region) = (Bytes::from_static(b"key"), RegionId(1));
    let range = || ScanRange { start: Bytes::new(), end: None, reverse: false, limit: 9, keys_only: false };
    let name = || "bob".parse().expect("a name");
    let change = UserChange { name: name(), presence: Presence::Any, rules: Vec::new() };
    let (always, forever) = (Condition::Always, Lifetime::Forever);
    vec![
        get("key"),
        Op::Put { key: key.clone(), value: key.clone(), when: always.clone(), want_old: false, lifetime: forever },
        Op::Delete { key: key.clone(), when: always },
        Op::Add { key: key.clone(), delta: 1 },
        Op::Append { key: key.clone(), suffix: key.clone() },
        Op::Scan(range()),
        Op::Count { region },
        Op::AcceptLoss { region, server: ServerId(1) },
        Op::RestoreTree { confirms: true },
        Op::GetPair { key: key.clone(), want_value: true },
        Op::Expire { key: key.clone(), lifetime: forever, when: ExpireIf::default(), want_old: false },
        Op::DeleteRange { start: Bytes::new(), end: None },
        Op::Approximate { start: Bytes::new(), end: None },
        Op::Checkpoint { region, name: "x".into() },
        Op::Digests { region, after: None },
        Op::RequestRegion { region, request: leeward_format::cluster::RegionRequest::Split { at: None } },
        Op::Intend { server: ServerId(1), intent: None },
        Op::DropTable { table: "none".parse().expect("a name") },
        Read::stale(get("key"), 9),
        Read::stale(Op::Scan(range()), 9),
        RangeOp::Scan(range()).within(region),
        RangeOp::DeleteRange { start: Bytes::new(), end: None }.within(region),
        Op::RangeBounds { region, want_bounds: true },
        Op::RebuildIndex { region, server: ServerId(1) },
        Op::HashIndex(Box::new(HashIndexQuestion { region, nonce: 0, version: 0, read: Vec::new() })),
        Op::ListUsers,
        Op::ChangeUser { change: Box::new(change) },
        Op::RemoveUsers { names: Some(vec![name()]) },
        Op::RemoveUsers { names: None },
    ]
}

fn user_with(grants: &[&str]) -> User {
    let passwords = vec![PasswordHash::new("$argon2id$x".into())];
    let mut user = User { is_enabled: true, passwords, ..User::new("alice".parse().expect("a name")) };
    user.grants.extend(grants.iter().map(|grant| grant.parse().expect("a grant")));
    user
}

impl Wire {
    /// There is this user, and the connection is of it.
    fn become_user(&mut self, user: User) {
        let (name, id) = (user.name.clone(), user.passwords[0].id());
        let mut users = Users::none();
        users.put(user);
        users.revision = self.node.users.revision + 1;
        self.node.users = Arc::new(users);
        self.request(&Request::Auth { user: name.to_string(), password: Secret(Bytes::from_static(b"pw")) });
        assert_eq!(std::mem::take(&mut self.node.shared.gate.questions).len(), 1);
        assert!(!self.session.wants_input(), "requests behind it wait");
        self.with(|session, context, _| session.answered(Answer::Admitted(name, Some(id)), context));
        assert_eq!(self.replies(), [Reply::Auth { refused: None }]);
    }

    /// The results of operations that must not reach the node.
    fn refused(&mut self, tried: Vec<Op>) -> Vec<OpResult> {
        self.request(&ops(7, false, tried));
        assert!(self.submitted.is_empty(), "{:?}", self.submitted);
        match &mut self.replies()[..] {
            [Reply::Results { id: 7, results }] => std::mem::take(results),
            other => panic!("one answer: {other:?}"),
        }
    }
}

#[test]
fn no_operation_reaches_the_node_without_its_right_or_before_a_user_is_named() {
    let mut wire = Wire::new();
    let mut users = Users::none();
    users.put(user_with(&["all"]));
    users.revision = 1;
    wire.node.users = Arc::new(users);
    let unauthenticated = |result: &OpResult| matches!(result, OpResult::Error(OpError::Unauthenticated(_)));
    assert!(wire.refused(one_of_each()).iter().all(unauthenticated));
    let mut wire = Wire::new();
    wire.become_user(user_with(&["all@orders"]));
    for (op, result) in one_of_each().into_iter().zip(wire.refused(one_of_each())) {
        assert!(matches!(result, OpResult::Error(OpError::NotPermitted(_))), "{op:?}: {result:?}");
    }
    // With all rights, each reaches it.
    let mut wire = Wire::new();
    wire.become_user(user_with(&["all"]));
    wire.request(&ops(8, false, one_of_each()));
    assert_eq!(wire.submitted.len(), one_of_each().len());
}

#[test]
fn a_connection_that_may_read_memory_ends_when_its_user_may_no_longer() {
    let mut wire = Wire::new();
    let config = GroupConfig::unassigned(RegionId(1), "default");
    wire.put(10, ClusterPath::Table("default".into()), &TableOptions::default());
    wire.put(11, ClusterPath::Region(config.region), &config);
    wire.become_user(user_with(&["read"]));
    let question = one_of_each().into_iter().find(|op| matches!(op, Op::HashIndex(_))).expect("there is one");
    wire.request(&ops(1, false, vec![question]));
    assert_eq!(wire.submitted.len(), 1);
    for (grants, stays) in [(&["read@default"][..], true), (&["read@default:a"], false)] {
        let mut users = Users::none();
        users.put(user_with(grants));
        users.revision = wire.node.users.revision + 1;
        wire.node.users = Arc::new(users);
        assert_eq!(wire.with(|session, context, _| session.follow_users(context)), stays, "{grants:?}");
    }
}

/// Its request id and more, as the caller gave it.
fn once_of(operation: &Operation) -> Option<Once> {
    match operation.naming {
        Naming::Caller(once) => Some(once),
        _ => None,
    }
}

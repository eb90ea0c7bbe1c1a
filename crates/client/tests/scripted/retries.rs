//! Retries of the client against scripted nodes: which operations it retries, which it never retries, and its errors
//! when it gives up.

use crate::fake::{Act, FakeNode, HEARD, map, succeed, success};
use bytes::Bytes;
use leeward_client::{
    Client, ClientError, ClientOptions, NewTable, Op, OpError, OpResult, Session, TableName, TableOptions,
};
use leeward_format::request::Once;
use leeward_format::{Epoch, RegionId};
use std::time::{Duration, Instant};

fn options() -> ClientOptions {
    ClientOptions {
        deadline: Duration::from_secs(5),
        retry_pause: Duration::from_millis(2),
        answer_timeout: Duration::from_millis(100),
        ..ClientOptions::default()
    }
}

/// One node that serves everything by `script`, and a client of it.
fn lone_node(options: ClientOptions, script: impl FnMut(&[Op]) -> Act + Send + 'static) -> (FakeNode, Client) {
    let (listener, address) = FakeNode::bind();
    let node = FakeNode::serve(listener, map(1, &[("", 1)], &[&address]), script);
    let client = Client::connect(&[&node.address], options).expect("the node answers");
    (node, client)
}

/// Acts on the n-th request as `first[n]` says, then succeeds.
fn first_then_succeed(first: Vec<fn(&[Op]) -> Act>) -> impl FnMut(&[Op]) -> Act + Send + 'static {
    let mut first = first.into_iter();
    move |ops| first.next().map_or_else(|| succeed(ops), |act| act(ops))
}

fn refuse(error: OpError) -> Act {
    Act::Results(vec![OpResult::Error(error)])
}

fn recovering(_: &[Op]) -> Act {
    refuse(OpError::Recovering(RegionId(1)))
}

fn close(_: &[Op]) -> Act {
    Act::Close
}

fn hang(_: &[Op]) -> Act {
    Act::Hang
}

fn absent() -> leeward_client::PutOptions {
    leeward_client::PutOptions { when: leeward_client::Condition::Absent, ..Default::default() }
}

/// Several attempts within that time would fail like the first.
#[test]
fn an_attempt_waits_as_long_as_the_error_says() {
    const ERROR: OpError = OpError::NotEnoughReplicas { region: RegionId(1), in_sync: 1, needed: 2 };
    let (node, client) = lone_node(options(), first_then_succeed(vec![|_| refuse(ERROR)]));
    let begun = Instant::now();
    client.put("key", "value").expect("the second attempt succeeds");
    assert!(begun.elapsed() >= ERROR.kind().pause(), "{:?}", begun.elapsed());
    assert_eq!(node.ops().len(), 2);
}

#[test]
fn keys_go_to_the_primaries_of_their_regions() {
    let ((one, a), (two, b)) = (FakeNode::bind(), FakeNode::bind());
    let map = map(1, &[("", 1), ("m", 2)], &[&a, &b]);
    let (one, two) = (FakeNode::serve(one, map.clone(), succeed), FakeNode::serve(two, map, succeed));
    let client = Client::connect(&[&a], options()).expect("the node answers");
    assert_eq!(client.get("apple").expect("a value").as_deref(), Some(&b"apple"[..]));
    client.put("zebra", "1").expect("a put");
    let batch = ["b", "y", "c"].map(|key| Op::Get { key: key.into() }).to_vec();
    let values = client.execute(batch).expect("a batch");
    assert_eq!(values, ["b", "y", "c"].map(|key| OpResult::Value(Some(key.into()))).to_vec());
    assert_eq!(one.ops().len(), 3);
    assert_eq!(two.ops().len(), 2);
}

#[test]
fn not_primary_moves_every_kind_of_operation_to_the_new_primary_once() {
    let ((one, a), (two, b)) = (FakeNode::bind(), FakeNode::bind());
    let new = map(2, &[("", 2)], &[&a, &b]);
    let one = FakeNode::serve(one, map(1, &[("", 1)], &[&a, &b]), |ops| {
        let error = OpError::NotPrimary { region: RegionId(1), epoch: Epoch(2) };
        Act::RoutesThen(vec![OpResult::Error(error); ops.len()])
    });
    let two = FakeNode::serve(two, new.clone(), succeed);
    let client = Client::connect(&[&a], options()).expect("the node answers");
    one.set_map(new);
    assert_eq!(client.add("counter", 7).expect("a sum"), 7);
    assert_eq!((one.ops().len(), two.ops().len()), (1, 1));
    client.put("key", "value").expect("a put");
    assert_eq!(one.ops().len(), 1, "the new map is remembered");
}

/// The node with the only connection has lost the coordinator, and answers with the routes that it knew last.
#[test]
fn another_seed_is_connected_to_if_the_connected_node_knows_nothing_newer() {
    let ((one, a), (two, b)) = (FakeNode::bind(), FakeNode::bind());
    let _one = FakeNode::serve(one, map(1, &[("", 1)], &[&a]), recovering);
    let two = FakeNode::serve(two, map(2, &[("", 2)], &[&a, &b]), succeed);
    // The second seed is asked first.
    let client = Client::connect(&[&b, &a], options()).expect("a node answers");
    assert!(two.ops().is_empty() && client.region_map().expect("a map").version == 1);
    assert!(client.get("key").expect("the other node knows the primary").is_some());
}

#[test]
fn a_recovering_region_is_waited_for_since_nothing_was_changed() {
    let (node, client) = lone_node(options(), first_then_succeed(vec![recovering; 4]));
    assert_eq!(client.add("counter", 1).expect("a sum"), 1);
    assert_eq!(node.ops().len(), 5);
}

#[test]
fn after_the_deadline_the_last_error_is_answered() {
    let options = ClientOptions { deadline: Duration::from_millis(200), ..options() };
    let (_node, client) = lone_node(options, recovering);
    let started = Instant::now();
    // A read: the outcome of a write that is in flight at the deadline is unknown.
    match client.get("key") {
        Err(ClientError::Op(OpError::Recovering(RegionId(1)))) => {}
        other => panic!("{other:?}"),
    }
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(190) && took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn bad_input_is_answered_at_once() {
    let (node, client) = lone_node(options(), |_| refuse(OpError::Invalid("the key is empty".into())));
    match client.put("", "value") {
        Err(ClientError::Op(OpError::Invalid(why))) => assert_eq!(why, "the key is empty"),
        other => panic!("{other:?}"),
    }
    assert_eq!(node.ops().len(), 1);
}

#[test]
fn a_read_survives_broken_connections_and_a_plain_put_is_made_once() {
    let (node, client) = lone_node(options(), first_then_succeed(vec![close, close, succeed, close]));
    client.get("key").expect("a value, at the third attempt");
    let error = client.put("key", "value").expect_err("the outcome is unknown");
    assert!(matches!(error, ClientError::Op(OpError::Unknown(_))), "{error:?}");
    assert_eq!((node.ops().len(), node.named().len()), (4, 0));
}

#[test]
fn a_write_with_a_name_is_asked_for_again_as_the_same() {
    type Call = fn(&Client) -> Result<(), ClientError>;
    let calls: [Call; 6] = [
        |client| client.add("key", 1).map(drop),
        |client| client.append("key", "x").map(drop),
        |client| client.delete("key").map(drop),
        |client| client.delete_range("a", None),
        |client| client.put_with("key", "x", absent()).map(drop),
        |client| client.expire("key", leeward_client::Lifetime::For(5), Default::default()).map(drop),
    ];
    for call in calls {
        let (node, client) = lone_node(options(), first_then_succeed(vec![close, unknown]));
        call(&client).expect("the third attempt");
        let named = node.named();
        assert_eq!(named.len(), 3);
        let again = |once: &Once| *once == Once { is_again: true, ..named[0] };
        assert!(!named[0].is_again && named[1..].iter().all(again), "{named:?}");
        assert_eq!(named[0].since.0, 0, "nothing was heard before the first attempt");
        call(&client).expect("another one");
        let another = node.named()[3];
        assert!(another.request != named[0].request && another.request.client == named[0].request.client);
        assert_eq!(another.since.0, HEARD + 2, "what was heard with the last answer");
    }
}

#[test]
fn puts_have_names_with_retry_puts() {
    let (node, client) =
        lone_node(ClientOptions { retry_puts: true, ..options() }, first_then_succeed(vec![close, unknown]));
    client.put("key", "value").expect("a put");
    assert_eq!((node.ops().len(), node.named().len()), (3, 3));
    client.get("key").expect("a value");
    assert_eq!(node.named().len(), 3, "reads have none");
}

fn unknown(_: &[Op]) -> Act {
    refuse(OpError::Unknown("is no longer primary".into()))
}

fn forgotten(_: &[Op]) -> Act {
    refuse(OpError::Forgotten(RegionId(1)))
}

#[test]
fn who_is_not_remembered_begins_anew_only_if_nothing_can_have_been_done() {
    let (node, client) = lone_node(options(), first_then_succeed(vec![forgotten]));
    client.add("key", 1).expect("a sum");
    let since: Vec<u64> = node.named().iter().map(|once| once.since.0).collect();
    assert_eq!(since, [0, HEARD], "with what was heard beside the refusal");
    assert_eq!(node.named()[0].request, node.named()[1].request);

    let (node, client) = lone_node(options(), first_then_succeed(vec![close, forgotten]));
    let error = client.add("key", 1).expect_err("the first attempt may have been executed");
    assert!(matches!(error, ClientError::Op(OpError::Unknown(_))), "{error:?}");
    assert_eq!(node.ops().len(), 2);
}

#[test]
fn a_write_whose_answer_is_gone_is_known_to_be_done() {
    let done: fn(&[Op]) -> Act = |_| refuse(OpError::AnswerGone { done: true });
    let (_node, client) = lone_node(options(), first_then_succeed(vec![close, done]));
    let swap = Op::Put {
        key: "key".into(),
        value: "value".into(),
        when: leeward_client::Condition::Always,
        lifetime: leeward_client::Lifetime::Forever,
        want_old: true,
    };
    assert_eq!(client.execute(vec![swap]).expect("an answer"), [OpResult::Error(OpError::AnswerGone { done: true })]);
    let removed: fn(&[Op]) -> Act = |_| Act::Results(vec![OpResult::Deleted { done: true, old: None, version: None }]);
    let (_node, client) = lone_node(options(), first_then_succeed(vec![close, removed]));
    assert!(matches!(client.delete("key"), Err(ClientError::Op(OpError::AnswerGone { done: true }))));
}

#[test]
fn who_is_overloaded_is_given_time() {
    let overloaded: fn(&[Op]) -> Act = |_| refuse(OpError::Overloaded(RegionId(1)));
    let (node, client) = lone_node(options(), first_then_succeed(vec![overloaded; 3]));
    client.put("key", "value").expect("a put");
    assert_eq!(node.ops().len(), 4);
}

#[test]
fn no_more_is_under_way_than_may_be() {
    let (node, client) = lone_node(ClientOptions { max_outstanding: 3, ..options() }, succeed);
    let mut session =
        Session::connect(&[&node.address], ClientOptions { max_outstanding: 3, ..options() }).expect("it answers");
    let get = || Op::Get { key: "key".into() };
    let mut tickets = vec![session.submit(vec![get(), get()]).expect("there is room")];
    assert_eq!(session.submit(vec![get(), get()]), Err(leeward_client::Busy(vec![get(), get()])));
    tickets.push(session.submit(vec![get()]).expect("there is room for one"));
    session.submit(vec![get()]).expect_err("and for no more");
    while session.outstanding() > 0 {
        session.poll(Duration::from_secs(1)).expect("it waits");
    }
    session.submit(vec![get(); 9]).expect("a large batch that is alone");
    assert_eq!(session.execute(vec![get()]).expect("it waits for that").len(), 1);

    // Threads wait for each other, and give up at their deadline.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(client.execute(vec![get(), get()]).expect("its turn comes").len(), 2));
        }
    });
    let hurried = ClientOptions { max_outstanding: 1, deadline: Duration::from_millis(200), ..options() };
    let (_silent, client) = lone_node(hurried, |_| Act::Silence);
    std::thread::scope(|scope| {
        // One has its turn, and perhaps one more that began later; neither is answered.
        let threads = [0; 4].map(|_| scope.spawn(|| client.get("key")));
        let errors = threads.map(|thread| thread.join().expect("no panic").expect_err("no node answers"));
        let busy = errors.iter().filter(|error| matches!(error, ClientError::Busy)).count();
        assert!((1..4).contains(&busy), "{errors:?}");
    });
}

#[test]
fn a_write_that_may_have_happened_is_never_called_a_failure() {
    let full: fn(&[Op]) -> Act = |_| refuse(OpError::Unavailable("no space".into()));
    let (_node, client) = lone_node(options(), first_then_succeed(vec![close, full]));
    let error = client.add("key", 1).expect_err("the retry was refused");
    assert!(matches!(error, ClientError::Op(OpError::Unknown(_))), "{error:?}");

    let options = ClientOptions { deadline: Duration::from_millis(200), ..options() };
    let mut calls = 0;
    let (_node, client) = lone_node(options, move |ops| {
        calls += 1;
        if calls == 1 { close(ops) } else { recovering(ops) }
    });
    let error = client.add("key", 1).expect_err("it never recovers");
    assert!(matches!(error, ClientError::Op(OpError::Unknown(_))), "{error:?}");
}

#[test]
fn a_silent_primary_is_left_when_the_map_names_another() {
    let ((one, a), (two, b)) = (FakeNode::bind(), FakeNode::bind());
    let old = map(1, &[("", 1)], &[&a, &b]);
    let one = FakeNode::serve(one, old.clone(), |_| Act::Silence);
    let two = FakeNode::serve(two, old, succeed);
    let mut session = Session::connect(&[&b, &a], options()).expect("a node answers");
    let put = session.submit(vec![Op::Put {
        key: "key".into(),
        value: "value".into(),
        when: leeward_client::Condition::Always,
        lifetime: leeward_client::Lifetime::Forever,
        want_old: false,
    }]);
    let add = session.submit(vec![Op::Add { key: "key".into(), delta: 1 }]).expect("there is room");
    let put = put.expect("there was room");
    assert!(session.poll(Duration::from_millis(50)).expect("no fault").is_empty());
    two.set_map(map(2, &[("", 2)], &[&a, &b]));
    let mut done = Vec::new();
    while session.outstanding() > 0 {
        done.extend(session.poll(Duration::from_secs(3)).expect("no fault"));
    }
    done.sort_by_key(|done| done.ticket.0);
    assert_eq!((done[0].ticket, done[1].ticket), (put, add));
    assert!(matches!(done[0].results[..], [OpResult::Error(OpError::Unknown(_))]), "{:?}", done[0]);
    assert_eq!(done[1].results, [OpResult::Integer(1)]);
    assert_eq!((one.ops().len(), two.ops().len()), (2, 1));
    assert_eq!(two.named(), [Once { is_again: true, ..one.named()[0] }]);
}

#[test]
fn a_silent_primary_is_left_also_if_the_routes_named_another_before_it_was_late() {
    let ((one, a), (two, b)) = (FakeNode::bind(), FakeNode::bind());
    let old = map(1, &[("", 1), ("m", 2)], &[&a, &b]);
    let one = FakeNode::serve(one, old.clone(), |_| Act::Silence);
    let two = FakeNode::serve(two, old, |ops| Act::RoutesThen(ops.iter().map(success).collect()));
    let mut session = Session::connect(&[&b, &a], options()).expect("a node answers");
    let get = |key: &'static str| Op::Get { key: key.into() };
    let late = session.submit(vec![get("apple")]).expect("there is room");
    assert!(session.poll(Duration::from_millis(20)).expect("no fault").is_empty());
    two.set_map(map(2, &[("", 2), ("m", 2)], &[&a, &b]));
    session.submit(vec![get("zebra")]).expect("there is room");
    let mut done = Vec::new();
    while session.outstanding() > 0 {
        done.extend(session.poll(Duration::from_secs(3)).expect("no fault"));
    }
    let late = done.iter().find(|done| done.ticket == late).expect("all are done");
    assert_eq!(late.results, [OpResult::Value(Some("apple".into()))]);
    assert_eq!((one.ops().len(), two.ops().len()), (1, 2));
}

#[test]
fn a_node_that_went_silent_gets_another_connection() {
    let options = ClientOptions { deadline: Duration::from_millis(1_500), ..options() };
    let (node, client) = lone_node(options, first_then_succeed(vec![hang]));
    let error = client.get("key").expect_err("no answer");
    assert!(matches!(error, ClientError::Op(OpError::Unavailable(_))), "{error:?}");
    assert_eq!(client.get("key").expect("it answers").as_deref(), Some(&b"key"[..]));
    assert_eq!(node.ops().len(), 2);
}

#[test]
fn a_node_that_never_answers_is_unknown_to_writes_and_unavailable_to_reads() {
    let options = ClientOptions { deadline: Duration::from_millis(150), ..options() };
    let (_node, client) = lone_node(options, |_| Act::Silence);
    let error = client.put("key", "value").expect_err("no answer");
    assert!(matches!(error, ClientError::Op(OpError::Unknown(_))), "{error:?}");
    let error = client.get("key").expect_err("no answer");
    assert!(matches!(error, ClientError::Op(OpError::Unavailable(_))), "{error:?}");
}

#[test]
fn an_operation_that_was_never_sent_waits_for_its_primary() {
    let ((one, a), (two, b)) = (FakeNode::bind(), FakeNode::bind());
    drop(two);
    let map = map(1, &[("", 2)], &[&a, &b]);
    let _one = FakeNode::serve(one, map.clone(), |_| panic!("it is not the primary"));
    let client = Client::connect(&[&a], options()).expect("the node answers");
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        let listener = std::net::TcpListener::bind(&b).expect("the port is still free");
        FakeNode::serve(listener, map, succeed)
    });
    assert_eq!(client.add("counter", 5).expect("a sum"), 5);
    assert_eq!(late.join().expect("no panic").ops().len(), 1);
}

#[test]
fn the_first_seed_that_answers_is_enough() {
    let (gone, dead) = FakeNode::bind();
    drop(gone);
    let (listener, address) = FakeNode::bind();
    let _node = FakeNode::serve(listener, map(1, &[("", 1)], &[&address]), succeed);
    let client = Client::connect(&[dead.clone(), address], options()).expect("the second seed answers");
    client.put("key", "value").expect("a put");

    let hurried = ClientOptions { deadline: Duration::from_millis(100), ..options() };
    let error = Client::connect(&[&dead], hurried).expect_err("no node is there").to_string();
    assert!(error.contains(&dead), "{error}");
}

#[test]
fn a_node_that_talks_nonsense_is_left() {
    let nonsense: fn(&[Op]) -> Act = |_| Act::Raw(b"-ERR what is this\r\n".to_vec());
    let (node, client) = lone_node(options(), first_then_succeed(vec![nonsense]));
    client.get("key").expect("a value, at the second connection");
    assert_eq!(node.ops().len(), 2);

    let too_few: fn(&[Op]) -> Act = |_| Act::Results(Vec::new());
    let (_node, client) = lone_node(options(), first_then_succeed(vec![too_few]));
    let error = client.put("key", "value").expect_err("the outcome is unknown");
    assert!(matches!(error, ClientError::Op(OpError::Unknown(_))), "{error:?}");
}

#[test]
fn what_is_submitted_together_travels_together() {
    let (node, client) = lone_node(options(), succeed);
    drop(client);
    let mut session = Session::connect(&[&node.address], options()).expect("the node answers");
    for number in 0..100 {
        session.submit(vec![Op::Add { key: "n".into(), delta: number }]).expect("there is room");
    }
    let big = Op::Append { key: "big".into(), suffix: vec![0; 1 << 20].into() };
    session.submit(vec![big.clone(), big.clone(), success_free_get()]).expect("there is room");
    session.submit(Vec::new()).expect("it needs none");
    let mut done = Vec::new();
    while session.outstanding() > 0 {
        done.extend(session.poll(Duration::from_secs(3)).expect("no fault"));
    }
    assert_eq!(done.len(), 102);
    let batches: Vec<usize> = node.requests().iter().map(|(_, size)| *size).collect();
    assert_eq!(batches, [100, 1, 1, 1], "the large ones have requests of their own");
    let deltas: Vec<OpResult> = node.ops()[..100].iter().map(success).collect();
    assert_eq!(deltas, (0..100).map(OpResult::Integer).collect::<Vec<_>>(), "in order");
    let traffic = session.traffic();
    assert!(traffic.sent > 2 << 20 && traffic.received > 0, "{traffic:?}");
}

#[test]
fn values_that_do_not_fit_one_answer_are_asked_for_again_in_smaller_requests() {
    let value = Bytes::from(vec![7; 1 << 20]);
    // As a node does: what does not fit one frame is refused.
    let script = move |ops: &[Op]| {
        let result = |at| match at < 7 {
            true => OpResult::Value(Some(value.clone())),
            false => OpResult::Error(OpError::Overloaded(RegionId(0))),
        };
        Act::Results((0..ops.len()).map(result).collect())
    };
    let (node, client) = lone_node(options(), script);
    drop(client);
    let mut session = Session::connect(&[&node.address], options()).expect("the node answers");
    for _ in 0..20 {
        session.submit(vec![success_free_get()]).expect("there is room");
    }
    let mut done = Vec::new();
    while session.outstanding() > 0 {
        done.extend(session.poll(Duration::from_secs(3)).expect("no fault"));
    }
    assert_eq!(done.len(), 20);
    for batch in done {
        assert!(matches!(&batch.results[..], [OpResult::Value(Some(_))]), "{:?}", batch.results);
    }
    let sizes: Vec<usize> = node.requests().iter().map(|(_, size)| *size).collect();
    assert_eq!(sizes[0], 20, "as long as the sizes of values are unknown, all go together");
    assert!(sizes[1..].iter().all(|size| *size <= 3) && sizes[1..].iter().sum::<usize>() == 13, "{sizes:?}");
}

fn success_free_get() -> Op {
    Op::Get { key: "big".into() }
}

#[test]
fn each_request_names_one_table_and_an_unknown_one_is_asked_for_anyway() {
    let (node, client) = lone_node(options(), succeed);
    let orders: TableName = "orders".parse().expect("a name");
    client.put("a", "1").expect("a put");
    client.table(orders.clone()).put("a", "2").expect("a put, since the node does not mind");
    client.put("b", "1").expect("a put");
    let requests = [("default".to_owned(), 1), ("orders".to_owned(), 1), ("default".to_owned(), 1)];
    assert_eq!(node.requests(), requests);

    let mut session = Session::connect(&[&node.address], options()).expect("the node answers");
    let get = || Op::Get { key: "a".into() };
    session.submit(vec![get(), get()]).expect("there is room");
    session.submit_in(&orders, vec![get()]).expect("there is room");
    session.submit(vec![get()]).expect("there is room");
    while session.outstanding() > 0 {
        session.poll(Duration::from_secs(1)).expect("it waits");
    }
    let sizes: Vec<usize> = node.requests()[3..].iter().map(|(_, size)| *size).collect();
    assert_eq!(sizes, [2, 1, 1], "a request holds operations on one table");
    let options = TableOptions { name: "orders".into(), ..TableOptions::default() };
    client.create_table(NewTable::new(options, Vec::new())).expect("the node does it");
}

#[test]
fn a_creation_whose_outcome_is_unknown_is_not_repeated() {
    let (node, client) = lone_node(options(), first_then_succeed(vec![close]));
    let table = NewTable::new(TableOptions::default(), Vec::new());
    let error = client.create_table(table).expect_err("the outcome is unknown");
    assert!(matches!(error, ClientError::Op(OpError::Unknown(_))), "{error}");
    assert_eq!(node.ops().len(), 1);
}

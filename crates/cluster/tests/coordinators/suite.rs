//! The guarantees of every coordinator: the same cases for each of them.

use crate::probe::{Actor, LONG, Probe, Sink, State, sink};
use crate::proxy::Proxy;
use bytes::Bytes;
use leeward_cluster::{
    Agent, ClusterOptions, CoordinatorError, CoordinatorEvent, CoordinatorOp, Outcome, View, bootstrap_op,
};
use leeward_format::cluster::{GroupConfig, Member, ServerInfo, TableOptions};
use leeward_format::coordinator::MAX_NODE_BYTES;
use leeward_format::table::{NewTable, TableName};
use leeward_format::{Incarnation, MAX_KEY_BYTES, ServerId, TableId, VolumeId};
use leeward_platform::{BootClock, Clock, Nanos};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// A coordinator with an empty tree.
pub(crate) trait Stage {
    /// The address of one of its servers.
    fn server(&self) -> SocketAddr;

    /// A client whose session expires after `timeout` of silence. It knows the whole coordinator, or only the server at
    /// `through`.
    fn client(&self, through: Option<SocketAddr>, timeout: Duration, sink: Sink) -> Box<dyn Actor>;

    /// A client that checks the guarantees, with a session that does not end by itself.
    fn probe(&self) -> Probe {
        self.probe_with(Duration::from_secs(20))
    }

    /// A probe with that timeout.
    fn probe_with(&self, timeout: Duration) -> Probe {
        self.probe_through(None, timeout)
    }

    /// A probe that knows only the server at `through`.
    fn probe_through(&self, through: Option<SocketAddr>, timeout: Duration) -> Probe {
        let (sink, events) = sink();
        let probe = Probe::new(self.client(through, timeout, sink), events);
        probe.synced();
        probe
    }
}

/// A case, by its name.
pub(crate) type Case = (&'static str, fn(&dyn Stage));

/// All of them.
pub(crate) const CASES: [Case; 12] = [
    ("answers say what became of it", answers_say_what_became_of_it),
    ("all clients see the same trees", all_clients_see_the_same_trees),
    ("several operations are done wholly or not at all", several_operations_are_done_wholly_or_not_at_all),
    ("of concurrent compare-and-sets one wins", of_concurrent_compare_and_sets_one_wins),
    ("a path that is made anew is not the one before", a_path_that_is_made_anew_is_not_the_one_before),
    ("a path has a value or others beneath it", a_path_has_a_value_or_others_beneath_it),
    ("what breaks a limit is refused", what_breaks_a_limit_is_refused),
    ("silence ends a session and its paths", silence_ends_a_session_and_its_paths),
    ("a client that is cut off knows before the others", a_cut_off_client_knows_before_the_others),
    ("a newcomer is told a large tree", a_newcomer_is_told_a_large_tree),
    ("agents elect and assign", agents_elect_and_assign),
    ("a large table comes and goes", a_large_table_comes_and_goes),
];

fn create(path: &str, value: &str, ephemeral: bool) -> CoordinatorOp {
    CoordinatorOp::Create { path: path.into(), value: value.to_owned().into(), ephemeral }
}

fn set(path: &str, value: &str, version: u64) -> CoordinatorOp {
    CoordinatorOp::Set { path: path.into(), value: value.to_owned().into(), version }
}

fn delete(path: &str, version: Option<u64>) -> CoordinatorOp {
    CoordinatorOp::Delete { path: path.into(), version }
}

fn values(tree: &State) -> Vec<(&str, &str)> {
    tree.iter().map(|(path, (_, value))| (path.as_str(), std::str::from_utf8(value).unwrap())).collect()
}

fn answers_say_what_became_of_it(stage: &dyn Stage) {
    let (one, two) = (stage.probe(), stage.probe());
    assert!(one.tree().is_empty());
    let made = one.submit(create("/a/b", "1", false)).unwrap();
    assert_eq!(values(&one.tree()), [("/a/b", "1")]);
    assert_eq!(one.version("/a/b"), made);
    // The other client need not have been told of it when it asks, but it was told when it gets the answer.
    assert_eq!(two.submit(create("/a/b", "2", false)), Err(CoordinatorError::Exists { version: made }));
    assert_eq!(two.tree(), one.tree());
    let changed = two.submit(set("/a/b", "3", made)).unwrap();
    assert!(changed > made);
    assert_eq!(one.submit(set("/a/b", "4", made)), Err(CoordinatorError::Stale { version: changed }));
    assert_eq!(one.submit(delete("/a/b", Some(made))), Err(CoordinatorError::Stale { version: changed }));
    assert_eq!(one.submit(set("/a/c", "4", made)), Err(CoordinatorError::Missing));
    assert_eq!(one.submit(delete("/a/c", None)), Err(CoordinatorError::Missing));
    assert!(one.submit(create("/empty", "", true)).is_ok());
    assert!(one.submit(delete("/a/b", Some(changed))).unwrap() > changed);
    assert_eq!(values(&one.tree()), [("/empty", "")]);
    assert!(one.submit(create("/gone", "", false)).is_ok());
    assert!(one.submit(delete("/gone", None)).is_ok());
    two.until_tree(|tree| tree.len() == 1 && tree.contains_key("/empty"));
    // The ephemeral paths of a leaving client vanish at once.
    let left = Instant::now();
    drop(one);
    let gone = two.until_tree(State::is_empty);
    assert!(gone - left < Duration::from_secs(10), "its session lasts for 20 s");
}

fn all_clients_see_the_same_trees(stage: &dyn Stage) {
    let probes: Vec<Probe> = (0..3).map(|_| stage.probe()).collect();
    probes[0].submit(create("/shared", "", false)).unwrap();
    for number in 0..100u64 {
        for (index, probe) in probes.iter().enumerate() {
            probe.ask(number, create(&format!("/made/{index}-{number}"), "", number % 2 == 0));
            if number % 10 == 9 {
                probe.catch_up();
                let known = probe.tree().get("/shared").map_or(0, |(version, _)| *version);
                probe.ask(1_000 + number, set("/shared", &format!("{index}-{number}"), known));
                probe.ask(2_000 + number, delete(&format!("/made/{index}-{}", number - 5), None));
            }
        }
    }
    for probe in &probes {
        (0..100).for_each(|number| {
            probe.answer(number).unwrap();
        });
        (9..100).step_by(10).for_each(|number| {
            probe.answer(2_000 + number).unwrap();
        });
        (9..100).step_by(10).for_each(|number| drop(probe.answer(1_000 + number)));
    }
    let last = probes.iter().flat_map(|probe| probe.history().into_keys().last()).max();
    for probe in &probes {
        // The number of paths is the same before one is made and another is deleted.
        let is_as_asked = |tree: &State, index: usize, number: u64| {
            tree.contains_key(&format!("/made/{index}-{number}")) == (number % 10 != 4)
        };
        probe.until_tree(|tree| (0..3).all(|index| (0..100).all(|number| is_as_asked(tree, index, number))));
        assert_eq!(probe.tree(), probes[0].tree(), "after {last:?}");
    }
    let mut all: BTreeMap<u64, State> = BTreeMap::new();
    for probe in &probes {
        for (version, tree) in probe.history() {
            let known = all.entry(version).or_insert_with(|| tree.clone());
            assert!(*known == tree, "two trees at version {version}");
        }
    }
}

fn several_operations_are_done_wholly_or_not_at_all(stage: &dyn Stage) {
    let (one, two) = (stage.probe(), stage.probe());
    let made = one.submit(create("/x", "1", false)).unwrap();
    let all = |ops: Vec<CoordinatorOp>| CoordinatorOp::All(ops);
    let failing = [
        (all(vec![create("/y", "", false), create("/x", "", false)]), CoordinatorError::Exists { version: made }),
        (all(vec![create("/z/1", "", false), set("/x", "2", made - 1)]), CoordinatorError::Stale { version: made }),
        (all(vec![set("/x", "2", made), delete("/y", None)]), CoordinatorError::Missing),
    ];
    for (op, error) in failing {
        assert_eq!(one.submit(op), Err(error));
        assert_eq!(values(&one.tree()), [("/x", "1")]);
    }
    let op = all(vec![
        create("/y", "2", true),
        create("/z/1", "3", false),
        create("/z/2", "4", false),
        set("/x", "5", made),
    ]);
    // An operation is compared with the tree that its process was told, and the process may be told later than others.
    two.until_tree(|tree| tree.contains_key("/x"));
    let done = two.submit(op).unwrap();
    let expected = [("/x", "5"), ("/y", "2"), ("/z/1", "3"), ("/z/2", "4")];
    assert_eq!(values(&two.tree()), expected);
    assert!(done >= two.version("/x"));
    // The tree that is told at a version is complete.
    one.until_tree(|tree| values(tree) == expected);
    drop(two);
    one.until_tree(|tree| !tree.contains_key("/y"));
}

fn of_concurrent_compare_and_sets_one_wins(stage: &dyn Stage) {
    const EACH: u64 = 40;
    let mut counters: Vec<(Probe, u64, u64)> = (0..3).map(|_| (stage.probe(), 0, 0)).collect();
    counters[0].0.submit(create("/n/count", "0", false)).unwrap();
    for (probe, ..) in &counters {
        probe.until_tree(|tree| tree.contains_key("/n/count"));
    }
    while counters.iter().any(|(_, done, _)| *done < EACH) {
        // All clients compare with what they know, and make paths beside it. Then all look at the result.
        for (probe, done, asked) in counters.iter_mut().filter(|(_, done, _)| *done < EACH) {
            let (version, value) = probe.tree()["/n/count"].clone();
            let next = String::from_utf8(value).unwrap().parse::<u64>().unwrap() + 1;
            *asked += 1;
            probe.ask(2 * *asked, set("/n/count", &next.to_string(), version));
            probe.ask(2 * *asked + 1, create(&format!("/n/{:p}-{asked}-{done}", probe), "", true));
        }
        for (probe, done, asked) in counters.iter_mut().filter(|(_, done, _)| *done < EACH) {
            probe.answer(2 * *asked + 1).unwrap();
            match probe.answer(2 * *asked) {
                Ok(_) => *done += 1,
                Err(CoordinatorError::Stale { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    let total = (EACH * counters.len() as u64).to_string();
    for (probe, ..) in &counters {
        probe.until_tree(|tree| tree["/n/count"].1 == total.as_bytes());
    }
}

fn a_path_that_is_made_anew_is_not_the_one_before(stage: &dyn Stage) {
    let (one, two) = (stage.probe(), stage.probe());
    let first = one.submit(create("/p/x", "first", true)).unwrap();
    assert!(one.submit(delete("/p/x", Some(first))).unwrap() > first);
    let second = one.submit(create("/p/x", "second", true)).unwrap();
    assert!(second > first);
    two.until_tree(|tree| tree.get("/p/x").is_some_and(|(version, _)| *version == second));
    for op in [set("/p/x", "?", first), delete("/p/x", Some(first))] {
        assert_eq!(two.submit(op), Err(CoordinatorError::Stale { version: second }));
    }
    // Whatever the other client was told when it asks.
    for round in 0..50 {
        let known = one.version("/p/x");
        two.until_tree(|tree| tree.get("/p/x").is_some_and(|(version, _)| *version >= known));
        one.ask(2 * round, delete("/p/x", None));
        one.ask(2 * round + 1, create("/p/x", "new", true));
        let taken = two.submit(delete("/p/x", Some(known)));
        let removed = one.answer(2 * round);
        let made = one.answer(2 * round + 1);
        assert_eq!(taken.is_ok(), removed.is_err(), "both or neither removed it: {taken:?}, {removed:?}");
        assert!(made.is_ok() && one.tree().contains_key("/p/x"), "the new one was removed for the old: {taken:?}");
    }
}

fn a_path_has_a_value_or_others_beneath_it(stage: &dyn Stage) {
    let (one, two) = (stage.probe(), stage.probe());
    let made = one.submit(create("/p/x", "1", false)).unwrap();
    let all = |ops: Vec<CoordinatorOp>| CoordinatorOp::All(ops);
    // The other client need not have been told of it.
    for probe in [&two, &one] {
        for op in [
            create("/p/x/y", "2", false),
            create("/p/x/y/z", "2", true),
            create("/p", "2", false),
            all(vec![create("/q", "2", false), create("/q/r", "2", false)]),
            all(vec![create("/q/r", "2", false), create("/q", "2", false)]),
        ] {
            let answer = probe.submit(op.clone());
            assert!(matches!(answer, Err(CoordinatorError::Refused(_))), "{op:?}: {answer:?}");
        }
        assert_eq!(probe.submit(delete("/p", None)), Err(CoordinatorError::Missing));
        assert_eq!(values(&probe.tree()), [("/p/x", "1")]);
        assert_eq!(probe.version("/p/x"), made);
    }
    assert!(two.submit(set("/p/x", "2", made)).is_ok());
    // The first operation wins, and no part of it is lost, whatever the other client was told by then.
    for round in 0..30 {
        let (above, beneath) = (format!("/race/{round}"), format!("/race/{round}/beneath"));
        one.ask(round, create(&above, "above", false));
        two.ask(round, create(&beneath, "beneath", false));
        let (first, second) = (one.answer(round), two.answer(round));
        assert!(first.is_ok() != second.is_ok(), "{first:?} and {second:?}");
        let version = *first.as_ref().or(second.as_ref()).unwrap();
        for probe in [&one, &two] {
            let made = if first.is_ok() { &above } else { &beneath };
            let is_made =
                |tree: &State| tree.get(made).is_some_and(|(made, value)| *made == version && !value.is_empty());
            probe.until_tree(is_made);
        }
    }
}

fn what_breaks_a_limit_is_refused(stage: &dyn Stage) {
    let probe = stage.probe();
    let refused = |op: CoordinatorOp, why: &str| match probe.submit(op) {
        Err(CoordinatorError::Refused(reason)) => assert!(reason.contains(why), "{reason}"),
        other => panic!("{other:?}, not: {why}"),
    };
    let big = |bytes: usize| Bytes::from(vec![b'x'; bytes]);
    let create_big = |bytes: usize| CoordinatorOp::Create { path: "/big".into(), value: big(bytes), ephemeral: false };
    refused(create_big(MAX_NODE_BYTES + 1), "a value of 1047553 bytes, at most 1047552");
    refused(create_big(5 << 20), "at most 1047552");
    for path in ["", "a", "/", "/a/", &format!("/{}", "x".repeat(256))] {
        refused(create(path, "", false), "not a path");
    }
    assert!(probe.tree().is_empty());
    let made = probe.submit(create_big(MAX_NODE_BYTES)).expect("the largest value is taken");
    assert_eq!(probe.tree()["/big"].1.len(), MAX_NODE_BYTES);
    let op = CoordinatorOp::Set { path: "/big".into(), value: big(MAX_NODE_BYTES + 1), version: made };
    refused(op, "at most 1047552");
    assert!(probe.submit(delete("/big", Some(made))).is_ok(), "the session goes on");
}

fn silence_ends_a_session_and_its_paths(stage: &dyn Stage) {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let watcher = stage.probe();
    let (lively, silent) = (stage.probe_with(TIMEOUT), stage.probe_with(TIMEOUT));
    lively.submit(create("/s/lively", "", true)).unwrap();
    silent.submit(create("/s/silent", "", true)).unwrap();
    silent.submit(create("/s/kept", "", false)).unwrap();
    watcher.until_tree(|tree| tree.len() == 3);
    silent.abandon();
    let since = Instant::now();
    let gone = watcher.until_tree(|tree| !tree.contains_key("/s/silent")) - since;
    println!("    an owner that died was noticed after {gone:?}, with a timeout of {TIMEOUT:?}");
    // Its last heartbeat may have been sent a ninth of the timeout earlier. A busy machine may be late, never early.
    assert!(gone >= TIMEOUT * 8 / 10 && gone < TIMEOUT * 5, "{gone:?}");
    std::thread::sleep(TIMEOUT);
    watcher.catch_up();
    assert_eq!(watcher.tree().into_keys().collect::<Vec<_>>(), ["/s/kept", "/s/lively"]);
    lively.catch_up();
    assert_eq!(lively.tree(), watcher.tree());
}

fn a_cut_off_client_knows_before_the_others(stage: &dyn Stage) {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let proxy = Proxy::start(stage.server());
    let watcher = stage.probe();
    let probe = stage.probe_through(Some(proxy.address), TIMEOUT);
    let session = probe.session();
    probe.submit(create("/c/mine", "", true)).unwrap();
    watcher.until_tree(|tree| tree.len() == 1);
    proxy.cut(true);
    let since = Instant::now();
    let knew = probe.until(|event| *event == CoordinatorEvent::Down) - since;
    let gone = watcher.until_tree(State::is_empty) - since;
    println!("    cut off: known after {knew:?}, dead for the others after {gone:?}, with a timeout of {TIMEOUT:?}");
    assert!(knew >= TIMEOUT / 6, "{knew:?}");
    assert!(knew + TIMEOUT / 6 < gone, "it knew after {knew:?}, the others after {gone:?}");
    proxy.cut(false);
    probe.until(|event| *event == CoordinatorEvent::Expired);
    assert_ne!(probe.synced(), session);
}

fn a_newcomer_is_told_a_large_tree(stage: &dyn Stage) {
    const PATHS: usize = 2_000;
    const BIG: usize = 9;
    let writer = stage.probe();
    let ops = |chunk: usize| {
        let paths = (0..PATHS / 4).map(|number| format!("/large/{}", chunk * PATHS / 4 + number));
        CoordinatorOp::All(paths.map(|path| create(&path, &"v".repeat(200), false)).collect())
    };
    (0..4).for_each(|chunk| writer.ask(chunk as u64, ops(chunk)));
    (0..4).for_each(|chunk| {
        writer.answer(chunk).unwrap();
    });
    // More bytes beneath one path than one message to a coordinator may have.
    for id in 0..BIG {
        let value = Bytes::from(vec![b'x'; MAX_NODE_BYTES]);
        let op = CoordinatorOp::Create { path: format!("/large/big-{id}"), value, ephemeral: false };
        writer.submit(op).unwrap();
    }
    assert_eq!(writer.tree().len(), PATHS + BIG);
    for id in 0..200 {
        writer.ask(100 + id, create(&format!("/more/{id}"), "", false));
    }
    let started = Instant::now();
    let newcomer = stage.probe();
    println!("    a tree of {PATHS} paths and {BIG} large values was told after {:?}", started.elapsed());
    newcomer.until_tree(|tree| tree.len() == PATHS + BIG + 200);
    (0..200).for_each(|id| {
        writer.answer(100 + id).unwrap();
    });
    assert_eq!(newcomer.tree(), writer.tree());
}

/// Three agents: they register, elect a master, assign regions, and recover when one dies.
fn agents_elect_and_assign(stage: &dyn Stage) {
    let probe = stage.probe();
    probe.submit(bootstrap_op(&TableOptions::default(), TableId(1), &["m".into()])).unwrap();
    let mut runners: Vec<Runner> = (1..=3).map(|server| Runner::start(stage, server)).collect();
    run(&mut runners, |view| {
        view.regions().count() == 2
            && view.regions().all(|config| config.primary.is_some() && config.members().count() == 3)
    });
    let master = runners[0].agent.view().master().unwrap();
    let index = runners.iter().position(|runner| runner.member == master).unwrap();
    runners.remove(index).client.abandon();
    run(&mut runners, |view| view.master().is_some_and(|now| now != master) && !view.is_live(master));
}

/// A table that takes several operations is made through one agent, dropped through another and made again, small.
pub(crate) fn a_large_table_comes_and_goes(stage: &dyn Stage) {
    let probe = stage.probe();
    probe.submit(bootstrap_op(&TableOptions::default(), TableId(1), &[])).unwrap();
    let mut runners: Vec<Runner> = (1..=3).map(|server| Runner::start(stage, server)).collect();
    let is_assigned = |view: &View, regions: usize| {
        let has_primary = |config: &GroupConfig| config.primary.is_some();
        view.regions().count() == regions && view.regions().all(has_primary)
    };
    run(&mut runners, |view| is_assigned(view, 1));
    let name: TableName = "large".parse().unwrap();
    let options = TableOptions { name: name.to_string(), ..TableOptions::default() };
    for regions in [200, 2] {
        let key = |split: usize| Bytes::from(format!("{split:0MAX_KEY_BYTES$}"));
        let table = NewTable::new(options.clone(), (1..regions).map(key).collect());
        runners[1].agent.create_table(BootClock.now(), table).unwrap();
        run(&mut runners, |view| {
            let there = view.routes().regions_of(&name).count();
            assert!([0, regions].contains(&there) || regions == 2, "its path comes last: {there} of {regions}");
            is_assigned(view, 1 + regions)
        });
        runners[2].agent.drop_table(BootClock.now(), &name).unwrap();
        run(&mut runners, |view| view.regions().count() == 1);
    }
    let outcomes = |runner: &mut Runner| runner.agent.take_outcomes().into_iter().map(|(_, outcome)| outcome);
    let outcomes: Vec<Outcome> = runners.iter_mut().flat_map(outcomes).collect();
    assert_eq!(outcomes, vec![Outcome::Accepted; 4]);
}

struct Runner {
    member: Member,
    agent: Agent,
    client: Box<dyn Actor>,
    events: Receiver<(Instant, CoordinatorEvent)>,
}

impl Runner {
    fn start(stage: &dyn Stage, server: u32) -> Runner {
        let member = Member { server: ServerId(server), volume: VolumeId(server.into()), incarnation: Incarnation(1) };
        let info = ServerInfo::of(member);
        let (sink, events) = sink();
        let client = stage.client(None, Duration::from_secs(1), sink);
        Runner { member, agent: Agent::new(info, ClusterOptions::default()), client, events }
    }
}

fn run(runners: &mut [Runner], done: impl Fn(&View) -> bool) {
    let deadline = Instant::now() + LONG;
    while !runners.iter().all(|runner| done(runner.agent.view())) {
        assert!(Instant::now() < deadline, "{:?}", runners[0].agent.view());
        for runner in runners.iter_mut() {
            let now: Nanos = BootClock.now();
            while let Ok((_, event)) = runner.events.try_recv() {
                runner.agent.handle(now, event);
            }
            runner.agent.tick(now);
            for (id, op) in runner.agent.take_ops() {
                runner.client.submit(id, op);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

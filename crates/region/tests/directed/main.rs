//! What a region does, as lists of inputs and of what it asks for: no search over seeds, no node.

mod group;

use group::{Group, REGION, TABLE};
use leeward_format::cluster::{DesiredState, GroupConfig, Plan, Reads, TableOptions};
use leeward_format::control::SafeLsnOf;
use leeward_format::op::{Op, OpResult};
use leeward_format::{Epoch, Lsn, RegionId, SegmentId, ServerId, TableId};
use leeward_platform::Nanos;
use leeward_region::input::Input;
use leeward_region::serving::reshape::split::SplitStep;
use leeward_replication::Timing;
use leeward_replication::clock::ClockWatch;

/// Server 1 serves the region with server 2, which is in sync and has granted a lease. One key is written.
fn served(table: &TableOptions) -> (Group, GroupConfig) {
    let mut group = Group::new(2, table);
    let config = group.config(1, &[2]);
    group.configure(2, &config);
    assert_eq!(group.configure(1, &config), ["job"], "a job opens the copy");
    group.settle(&[]);
    for server in [1, 2] {
        group.pass(server, REGION, Timing::default().lease_interval);
        group.settle(&[]);
    }
    assert!(group.is_open(1, REGION), "{:?}", group.said(1));
    group.put(1, "key", "value");
    group.settle(&[]);
    assert_eq!(group.answers(1).len(), 1);
    group.forget_said();
    (group, config)
}

fn get(group: &mut Group, server: u32) -> Vec<OpResult> {
    group.execute(server, Op::Get { key: "key".into() });
    group.settle(&[1]);
    group.answers(server)
}

#[test]
fn a_write_is_mirrored_and_acknowledged_only_then() {
    let (mut group, _) = served(&TableOptions::default());
    group.put(1, "key", "later");
    let said = group.said(1);
    assert_eq!(group.answers(1), [], "{said:?}");
    group.settle(&[]);
    assert_eq!(group.answers(1).len(), 1);
}

#[test]
fn a_failover_waits_until_the_grant_to_the_old_primary_has_ended() {
    let (mut group, config) = served(&TableOptions::default());
    // Server 1 is silent from here on.
    let (me, next) = (group.member(2), Epoch(2));
    let new = GroupConfig { epoch: next, term: next, primary: Some(me), backups: Vec::new(), ..config };
    let opens = |said: Vec<String>| said.contains(&"job".to_owned());
    assert!(!opens(group.configure(2, &new)), "its grant to server 1 binds it");
    let lease = Timing::default().lease;
    assert!(!opens(group.pass(2, REGION, Nanos(lease.0 / 2))));
    assert!(opens(group.pass(2, REGION, lease)), "now its copy is opened");
    group.settle(&[1]);
    assert!(group.is_open(2, REGION));
    assert_eq!(get(&mut group, 2), [OpResult::Value(Some("value".into()))]);
    // The old primary comes back, and hears of the new term.
    let said = group.configure(1, &new);
    assert_eq!(said.last().map(String::as_str), Some("job"), "it becomes a copy again: {said:?}");
    assert!(group.region(1, REGION).served().is_none());
}

#[test]
fn a_hand_over_waits_for_no_lease() {
    let (mut group, config) = served(&TableOptions::default());
    let desired = DesiredState { primary: Some(ServerId(2)), ..DesiredState::default() };
    let asked = GroupConfig { epoch: Epoch(2), desired, ..config };
    group.configure(1, &asked);
    group.configure(2, &asked);
    let mut said = Vec::new();
    for _ in 0..50 {
        said.extend(group.end_turn(1, REGION));
        group.settle(&[]);
        said.extend(group.said(1));
        if said.iter().any(|one| one.starts_with("propose")) {
            break;
        }
        group.now += Nanos::from_millis(1);
    }
    assert_eq!(said.iter().rfind(|one| one.starts_with("propose")).unwrap(), "propose term 3 primary 2, 1 backups");
    // A write queues meanwhile, and is handed on.
    group.put(1, "key", "later");
    let handed = asked.handed_over(group.member(2));
    let before = group.configure(2, &handed);
    assert!(!before.contains(&"job".to_owned()), "the grant to server 1 still binds it: {before:?}");
    let said = group.configure(1, &handed);
    assert!(said.contains(&"route again".into()), "{said:?}");
    assert!(said.contains(&"send urgently 2 Released".into()), "{said:?}");
    group.settle(&[]);
    group.pass(2, REGION, Timing::default().lease_interval);
    group.settle(&[]);
    assert!(group.is_open(2, REGION), "no time had to pass: {:?}", group.said(2));
}

#[test]
fn a_place_for_a_session_is_given_back_by_a_region_that_has_stepped_down() {
    let mut group = Group::new(2, &TableOptions::default());
    let config = group.config(1, &[2]);
    group.configure(1, &config);
    let done = group.take_job(1).run().outcome;
    let said = group.give(1, REGION, Input::JobDone(done));
    assert!(said.contains(&"ask place 2".into()), "{said:?}");
    let new = GroupConfig { epoch: Epoch(2), term: Epoch(2), primary: Some(group.member(2)), ..config };
    group.configure(1, &new);
    let places = vec![(ServerId(2), Ok(()))];
    let said = group.give(1, REGION, Input::Places { term: Epoch(1), places });
    assert_eq!(said, ["count sessions 0 instead of 1"]);
}

#[test]
fn a_split_makes_a_child_that_answers_nothing_until_it_is_in_a_configuration() {
    let child = RegionId(2);
    let mut group = Group::new(1, &TableOptions { replicas: 1, ..TableOptions::default() });
    let config = GroupConfig { table_id: TableId(3), ..group.config(1, &[]) };
    group.configure(1, &config);
    group.settle(&[]);
    assert!(group.is_open(1, REGION));
    for key in ["a", "key", "z"] {
        group.put(1, key, "value");
        group.settle(&[]);
    }
    let plan = Some(Plan::Split { at: Some("m".into()), child });
    let planned = GroupConfig { epoch: Epoch(2), desired: DesiredState { plan, ..DesiredState::default() }, ..config };
    group.configure(1, &planned);
    let step = |group: &mut Group| {
        for _ in 0..50 {
            group.end_turn(1, REGION);
            group.settle(&[]);
            let next = group.region(1, REGION).served().and_then(|serving| serving.next_split_step(group.now, true));
            if let Some(next) = next {
                return next;
            }
            group.now += Nanos::from_millis(1);
        }
        panic!("it does not quiesce");
    };
    let SplitStep::Begin(made) = step(&mut group) else { panic!("it is to be made") };
    assert_eq!(made, child);
    let (now, lease) = (group.now, Timing::default().lease);
    let machine = group.hosts.get_mut(&ServerId(1)).unwrap().regions.get_mut(&REGION).unwrap();
    let serving = machine.serving().expect("it is served");
    let (_, right) = serving.halves(child, SegmentId(0));
    let parent = (serving.begin_split(now, lease), Epoch(1));
    assert_eq!(group.give(1, child, Input::MakeChild { parent, config: Box::new(right) }), ["job"]);
    group.settle(&[]);
    assert!(group.said(1).contains(&"child made true".into()));
    assert!(!group.is_open(1, child), "it is in no configuration");
    assert!(matches!(step(&mut group), SplitStep::Propose(ready) if ready == child));
    let serving = group.region(1, child).served().expect("it is a pending child");
    let below = serving.ready_child(group.now).expect("it has no members to wait for");
    let said = group.give(1, REGION, Input::ChildReady { child: (child, below) });
    assert_eq!(said, ["propose split into 2"]);
    // The coordinator accepts it.
    let (left, right) = planned.split("m".into(), child, below);
    group.configure(1, &left);
    group.configure(1, &right);
    group.give(1, REGION, Input::SplitProposed { term: Epoch(1), is_accepted: true });
    group.end_turn(1, child);
    group.settle(&[]);
    assert!(group.is_open(1, child) && group.is_open(1, REGION));
    let bounds = group.region(1, REGION).served().unwrap().key_bounds();
    assert_eq!(bounds, ("".into(), Some("m".into())));
}

#[test]
fn a_stale_read_needs_a_safe_lsn_of_this_configuration_and_the_records_up_to_it() {
    let mut table = TableOptions::default();
    table.reads.stale = Reads::Any { max_staleness_ms: 5_000 };
    let (mut group, config) = served(&table);
    let mut watch = ClockWatch::default();
    watch.look(Nanos::ZERO, 0, Nanos::from_secs(1));
    let heard = watch.reading(group.now).expect("later than the look");
    let publish = |group: &mut Group, epoch, lsn| {
        let safe_lsn = SafeLsnOf { region: REGION, epoch, lsn: Lsn(lsn) };
        group.give(2, REGION, Input::SafeLsn(ServerId(1), heard, safe_lsn));
        group.settle(&[]);
    };
    let readable =
        |group: &Group, config: &GroupConfig| group.region(2, REGION).readable(config).map(|(_, known)| known.lsn);
    assert_eq!(readable(&group, &config), None, "nothing was published");
    publish(&mut group, config.epoch, 1);
    publish(&mut group, config.epoch, 1);
    assert_eq!(readable(&group, &config), Some(Lsn(1)));
    publish(&mut group, config.epoch, 1_000);
    assert_eq!(readable(&group, &config), Some(Lsn(1)), "it does not have those records");
    let next = GroupConfig { epoch: Epoch(2), ..config.clone() };
    assert_eq!(readable(&group, &next), None, "another region may have some of the keys by now");
    group.give(2, REGION, Input::ClockDoubted);
    assert_eq!(readable(&group, &config), None, "who knows how old it is");
    assert_eq!(TABLE, config.table);
}

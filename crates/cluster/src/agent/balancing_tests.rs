//! A master that evens out what servers have, told by hand what happens.

use super::super::tests::Fixture;
use super::*;
use crate::CoordinatorOp;
use leeward_format::cluster::ServerInfo;
use leeward_format::cluster::{TableOptions, decode_value, encode_value};
use leeward_format::{Epoch, Incarnation, VolumeId};

const MIB: u64 = 1 << 20;

fn member(server: u32) -> Member {
    let incarnation = Incarnation(if server == 1 { 2 } else { 1 });
    Member { server: ServerId(server), volume: VolumeId(server.into()), incarnation }
}

fn info(server: u32) -> bytes::Bytes {
    encode_value(&ServerInfo::of(member(server)))
}

fn region(id: u32, primary: u32, backup: u32) -> GroupConfig {
    GroupConfig {
        start: if id == 1 { bytes::Bytes::new() } else { format!("{id:04}").into() },
        end: Some(format!("{:04}", id + 1).into()),
        epoch: Epoch(1),
        term: Epoch(1),
        primary: Some(member(primary)),
        backups: vec![member(backup)],
        ..GroupConfig::unassigned(RegionId(id), "default")
    }
}

/// Server 1 is the master; six regions, of which servers 1 and 2 have all copies and offices; server 3 has nothing.
fn master() -> Fixture {
    let table = TableOptions { replicas: 2, min_in_sync: 1, ..TableOptions::default() };
    let servers: Vec<(String, bytes::Bytes)> =
        (1..=3).map(|id| (ClusterPath::Server(ServerId(id)).to_string(), info(id))).collect();
    let regions = (1..=6).map(|id| {
        let config = region(id, 1 + id % 2, 2 - id % 2);
        (ClusterPath::Region(RegionId(id)).to_string(), encode_value(&config))
    });
    let rest = [
        (ClusterPath::Table("default".into()).to_string(), encode_value(&table)),
        (ClusterPath::Master.to_string(), encode_value(&member(1))),
    ];
    let tree: Vec<(String, bytes::Bytes)> = servers.into_iter().chain(regions).chain(rest).collect();
    let tree: Vec<(&str, Option<bytes::Bytes>)> =
        tree.iter().map(|(path, value)| (&path[..], Some(value.clone()))).collect();
    Fixture::new(&tree)
}

/// Every server says what it has to do, each region the same.
fn report(fixture: &mut Fixture) {
    for server in 1..=3 {
        let serves = |config: &&GroupConfig| config.primary == Some(member(server));
        let regions = fixture.agent.view().regions().filter(serves);
        let of = |config: &GroupConfig| RegionLoad { region: config.region, bytes: 100 * MIB, ops: 10, written: 0 };
        let load = ServerLoad { used: 0, capacity: None, regions: regions.map(of).collect() };
        fixture.agent.hear_load(fixture.now, ServerId(server), &load);
    }
}

/// Lets so many seconds pass, with reports.
fn pass(fixture: &mut Fixture, seconds: u64) {
    for _ in 0..seconds {
        report(fixture);
        fixture.pass(Nanos::from_secs(1));
    }
}

/// The configurations that were asked for.
fn asked(fixture: &mut Fixture) -> Vec<(u64, GroupConfig)> {
    let config = |(id, op)| match op {
        CoordinatorOp::Set { value, .. } => (id, decode_value("region", &value).unwrap()),
        op => panic!("{op:?}"),
    };
    std::mem::take(&mut fixture.asked).into_iter().map(config).collect()
}

/// The configuration is made as if its primary had asked for it.
fn made(fixture: &mut Fixture, config: &GroupConfig) {
    let config = GroupConfig { epoch: config.epoch.next(), ..config.clone() };
    fixture.change(&ClusterPath::Region(config.region).to_string(), Some(encode_value(&config)));
}

/// The master wishes for the first time: copies go to server 3. Answers the configurations, which are made.
fn first_wishes(fixture: &mut Fixture) -> Vec<GroupConfig> {
    pass(fixture, 15);
    let asked = asked(fixture);
    assert_eq!(asked.len(), 2, "two copies are built on a server at a time: {asked:?}");
    for (id, config) in &asked {
        fixture.change(&ClusterPath::Region(config.region).to_string(), Some(encode_value(config)));
        fixture.tell(crate::CoordinatorEvent::Reply { id: *id, result: Ok(fixture.version) });
    }
    asked.into_iter().map(|(_, config)| config).collect()
}

/// What becomes of a configuration whose wishes come about.
fn fulfilled(config: &GroupConfig) -> GroupConfig {
    let mut next = config.clone();
    next.backups.append(&mut next.learners);
    if let Some(server) = config.wishes.primary {
        let heir = next.backups.iter().copied().find(|backup| backup.server == server).unwrap();
        next.backups.retain(|backup| *backup != heir);
        next.backups.extend(next.primary.replace(heir));
    }
    next.backups.retain(|backup| config.wishes.leaving != Some(backup.server));
    next.wishes = Wishes::default();
    next
}

#[test]
fn a_server_that_has_nothing_gets_copies_once_all_have_come_to_rest() {
    let mut fixture = master();
    pass(&mut fixture, 9);
    assert!(fixture.asked.is_empty(), "servers may still be coming");
    for config in first_wishes(&mut fixture) {
        assert_eq!(config.learners, [member(3)]);
        assert_eq!(config.wishes.primary, None, "copies without offices are moved first");
        made(&mut fixture, &fulfilled(&config));
    }
    pass(&mut fixture, 3);
    assert_eq!(asked(&mut fixture).len(), 2, "and then others");
}

#[test]
fn nothing_is_wished_while_a_server_is_gone_or_says_nothing() {
    let mut fixture = master();
    for _ in 0..30 {
        fixture.pass(Nanos::from_secs(1));
    }
    assert!(fixture.asked.is_empty(), "nobody has said what it has to do");
    let path = ClusterPath::Server(ServerId(3)).to_string();
    fixture.change(&path, None);
    fixture.change(&path, Some(info(3)));
    pass(&mut fixture, 8);
    assert!(fixture.asked.is_empty(), "it has just come");
}

#[test]
fn what_an_operator_wishes_or_takes_back_is_left_alone_for_a_while() {
    let mut fixture = master();
    pass(&mut fixture, 5);
    // Somebody else moves a copy, and that has come about.
    let operators = region(1, 2, 1).wishing(Wishes { primary: Some(ServerId(1)), ..Wishes::default() });
    made(&mut fixture, &operators);
    let before = fixture.agent.view().region(RegionId(1)).unwrap().clone();
    made(&mut fixture, &GroupConfig { wishes: Wishes::default(), ..before });
    let wished = first_wishes(&mut fixture);
    // And takes back what the master wished of another.
    let (cancelled, other) = (&wished[0], &wished[1]);
    made(&mut fixture, &GroupConfig { wishes: Wishes::default(), learners: Vec::new(), ..cancelled.clone() });
    made(&mut fixture, &fulfilled(other));
    let mut named = Vec::new();
    for _ in 0..20 {
        pass(&mut fixture, 2);
        for (id, config) in asked(&mut fixture) {
            named.push(config.region);
            made(&mut fixture, &fulfilled(&config));
            fixture.tell(crate::CoordinatorEvent::Reply { id, result: Ok(fixture.version) });
        }
    }
    assert!(!named.is_empty(), "others are moved");
    assert!(!named.contains(&RegionId(1)) && !named.contains(&cancelled.region), "{named:?}");
}

#[test]
fn whoever_is_not_the_master_wishes_nothing() {
    let mut fixture = master();
    let path = ClusterPath::Master.to_string();
    fixture.change(&path, Some(encode_value(&member(2))));
    pass(&mut fixture, 40);
    assert!(fixture.asked.is_empty());
    assert_eq!(fixture.agent.tells_load_to(), Some(ServerId(2)));
}

#[test]
fn an_office_that_does_not_change_hands_stays_where_it_is() {
    let mut fixture = master();
    for id in 1..=6 {
        // All offices are on server 1.
        let config = GroupConfig { epoch: Epoch(2), ..region(id, 1, 2 + id % 2) };
        fixture.change(&ClusterPath::Region(RegionId(id)).to_string(), Some(encode_value(&config)));
    }
    pass(&mut fixture, 15);
    let wished: Vec<(u64, GroupConfig)> = asked(&mut fixture);
    let is_office = |wishes: &Wishes| wishes.primary.is_some() && wishes.leaving.is_none();
    let offices = || wished.iter().filter(|(_, config)| is_office(&config.wishes));
    assert!(offices().count() > 1, "{wished:?}");
    for (id, config) in &wished {
        fixture.change(&ClusterPath::Region(config.region).to_string(), Some(encode_value(config)));
        fixture.tell(crate::CoordinatorEvent::Reply { id: *id, result: Ok(fixture.version) });
    }
    pass(&mut fixture, 50);
    let regions: BTreeSet<RegionId> = offices().map(|(_, config)| config.region).collect();
    asked(&mut fixture).iter().for_each(|(_, config)| assert!(!regions.contains(&config.region), "it is waited for"));
    pass(&mut fixture, 20);
    let taken_back = asked(&mut fixture);
    let given_up: BTreeSet<RegionId> = taken_back
        .iter()
        .filter(|(_, config)| config.wishes == Wishes::default())
        .map(|(_, config)| config.region)
        .collect();
    assert!(regions.is_subset(&given_up), "{taken_back:?}");
}

#[test]
fn an_operator_may_wish_what_the_master_wished_before() {
    let mut fixture = master();
    let wished = first_wishes(&mut fixture);
    let config = &wished[0];
    made(&mut fixture, &fulfilled(config));
    made(&mut fixture, &fulfilled(&wished[1]));
    pass(&mut fixture, 1);
    assert_eq!(fixture.agent.balancing.wished[&config.region].wishes, Wishes::default());
    // The copy went back, and an operator moves it once more.
    let back = fixture.agent.view().region(config.region).unwrap().clone();
    made(&mut fixture, &GroupConfig { wishes: config.wishes.clone(), ..back.clone() });
    pass(&mut fixture, 1);
    made(&mut fixture, &back);
    pass(&mut fixture, 1);
    let left_alone_until = fixture.agent.balancing.resting[&config.region];
    assert!(left_alone_until > fixture.now + Nanos::from_secs(50), "it is the operator's");
}

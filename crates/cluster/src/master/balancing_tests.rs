//! A master that balances the load of servers. The tests feed it events by hand.

use super::*;
use crate::CoordinatorOp;
use crate::agent::tests::Fixture;
use leeward_format::cluster::{ClusterPath, ServerInfo, TableOptions, decode_value, encode_value};
use leeward_format::load::Fullness;
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

/// Server 1 is the master. There are six regions. Servers 1 and 2 have all copies and primary roles, and server 3 has none.
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

/// Every server reports its load, the same for each region.
fn report(fixture: &mut Fixture) {
    report_sizes(fixture, |_| 100 * MIB);
}

/// The same, with regions of so many bytes.
fn report_sizes(fixture: &mut Fixture, size: impl Fn(RegionId) -> u64) {
    for server in 1..=3 {
        let serves = |config: &&GroupConfig| config.primary == Some(member(server));
        let regions = fixture.agent.view().regions().filter(serves);
        let of = |config: &GroupConfig| RegionLoad {
            region: config.region,
            bytes: size(config.region),
            ops: 10,
            is_trimmed: true,
            ..RegionLoad::default()
        };
        let load = ServerLoad { regions: regions.map(of).collect(), ..ServerLoad::default() };
        fixture.agent.record_load(fixture.now, ServerId(server), &load);
    }
}

/// Lets so many seconds pass, with reports.
fn pass(fixture: &mut Fixture, seconds: u64) {
    for _ in 0..seconds {
        report(fixture);
        fixture.pass(Nanos::from_secs(1));
    }
}

/// The configurations that the agent asked for.
fn asked(fixture: &mut Fixture) -> Vec<(u64, GroupConfig)> {
    let config = |(id, op)| match op {
        CoordinatorOp::Set { value, .. } => (id, decode_value("region", &value).unwrap()),
        op => panic!("{op:?}"),
    };
    std::mem::take(&mut fixture.asked).into_iter().map(config).collect()
}

/// Applies the configuration as if its primary had asked for it.
fn made(fixture: &mut Fixture, config: &GroupConfig) {
    let config = GroupConfig { epoch: config.epoch.next(), ..config.clone() };
    fixture.change(&ClusterPath::Region(config.region).to_string(), Some(encode_value(&config)));
}

/// The first requests of the master: copies move to server 3. Applies the configurations and returns them.
fn first_requests(fixture: &mut Fixture) -> Vec<GroupConfig> {
    pass(fixture, 15);
    let asked = asked(fixture);
    assert_eq!(asked.len(), 2, "two copies are built on a server at a time: {asked:?}");
    for (id, config) in &asked {
        fixture.change(&ClusterPath::Region(config.region).to_string(), Some(encode_value(config)));
        fixture.tell(crate::CoordinatorEvent::Reply { id: *id, result: Ok(fixture.version) });
    }
    asked.into_iter().map(|(_, config)| config).collect()
}

/// The configuration once its desired state is reached.
fn fulfilled(config: &GroupConfig) -> GroupConfig {
    let mut next = config.clone();
    next.backups.append(&mut next.learners);
    if let Some(server) = config.desired.primary {
        let target = next.backups.iter().copied().find(|backup| backup.server == server).unwrap();
        next.backups.retain(|backup| *backup != target);
        next.backups.extend(next.primary.replace(target));
    }
    next.backups.retain(|backup| config.desired.leaving != Some(backup.server));
    next.desired = DesiredState::default();
    next
}

#[test]
fn an_empty_server_gets_copies_once_all_servers_have_settled() {
    let mut fixture = master();
    pass(&mut fixture, 9);
    assert!(fixture.asked.is_empty(), "servers may still be joining");
    for config in first_requests(&mut fixture) {
        assert_eq!(config.learners, [member(3)]);
        assert_eq!(config.desired.primary, None, "copies of backups are moved first");
        made(&mut fixture, &fulfilled(&config));
    }
    pass(&mut fixture, 3);
    assert_eq!(asked(&mut fixture).len(), 2, "and then others");
}

#[test]
fn nothing_is_requested_while_a_server_is_gone_or_reports_nothing() {
    let mut fixture = master();
    for _ in 0..30 {
        fixture.pass(Nanos::from_secs(1));
    }
    assert!(fixture.asked.is_empty(), "no server has reported its load");
    let path = ClusterPath::Server(ServerId(3)).to_string();
    fixture.change(&path, None);
    fixture.change(&path, Some(info(3)));
    pass(&mut fixture, 8);
    assert!(fixture.asked.is_empty(), "it has just joined");
}

#[test]
fn the_region_of_an_operators_request_or_cancellation_is_left_alone_for_a_while() {
    let mut fixture = master();
    pass(&mut fixture, 5);
    // An operator moves the primary role, and that is done.
    let operators =
        region(1, 2, 1).with_desired(DesiredState { primary: Some(ServerId(1)), ..DesiredState::default() });
    made(&mut fixture, &operators);
    let before = fixture.agent.view().region(RegionId(1)).unwrap().clone();
    made(&mut fixture, &GroupConfig { desired: DesiredState::default(), ..before });
    let requested = first_requests(&mut fixture);
    // The operator cancels a request of the master for another region.
    let (cancelled, other) = (&requested[0], &requested[1]);
    made(&mut fixture, &GroupConfig { desired: DesiredState::default(), learners: Vec::new(), ..cancelled.clone() });
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
fn an_agent_that_is_not_the_master_requests_nothing() {
    let mut fixture = master();
    let path = ClusterPath::Master.to_string();
    fixture.change(&path, Some(encode_value(&member(2))));
    pass(&mut fixture, 40);
    assert!(fixture.asked.is_empty());
    assert_eq!(fixture.agent.reports_load_to(), Some(ServerId(2)));
}

#[test]
fn a_hand_over_that_is_not_done_is_cancelled() {
    let mut fixture = master();
    for id in 1..=6 {
        // Server 1 is the primary of all regions.
        let config = GroupConfig { epoch: Epoch(2), ..region(id, 1, 2 + id % 2) };
        fixture.change(&ClusterPath::Region(RegionId(id)).to_string(), Some(encode_value(&config)));
    }
    pass(&mut fixture, 15);
    let requested: Vec<(u64, GroupConfig)> = asked(&mut fixture);
    let is_hand_over = |desired: &DesiredState| desired.primary.is_some() && desired.leaving.is_none();
    let hand_overs = || requested.iter().filter(|(_, config)| is_hand_over(&config.desired));
    assert!(hand_overs().count() > 1, "{requested:?}");
    for (id, config) in &requested {
        fixture.change(&ClusterPath::Region(config.region).to_string(), Some(encode_value(config)));
        fixture.tell(crate::CoordinatorEvent::Reply { id: *id, result: Ok(fixture.version) });
    }
    pass(&mut fixture, 110);
    let regions: BTreeSet<RegionId> = hand_overs().map(|(_, config)| config.region).collect();
    asked(&mut fixture).iter().for_each(|(_, config)| assert!(!regions.contains(&config.region), "it is waited for"));
    pass(&mut fixture, 20);
    let taken_back = asked(&mut fixture);
    let given_up: BTreeSet<RegionId> = taken_back
        .iter()
        .filter(|(_, config)| config.desired == DesiredState::default())
        .map(|(_, config)| config.region)
        .collect();
    assert!(regions.is_subset(&given_up), "{taken_back:?}");
}

/// Servers report, and the volumes of these servers are full.
fn report_full(fixture: &mut Fixture, full: &[u32]) {
    report(fixture);
    for server in full {
        let load = ServerLoad { fullness: Fullness::Full, ..ServerLoad::default() };
        fixture.agent.record_load(fixture.now, ServerId(*server), &load);
    }
}

#[test]
fn full_servers_hand_primary_roles_over_where_nobody_balances_and_while_servers_come() {
    for balance in [None, Some(Balance::default())] {
        let mut fixture = master();
        fixture.balance_with(balance);
        pass(&mut fixture, 4);
        report_full(&mut fixture, &[2]);
        fixture.pass(Nanos::from_millis(10));
        let requested = asked(&mut fixture);
        let primaries = fixture.agent.view().regions().filter(|config| config.primary == Some(member(2))).count();
        assert_eq!((requested.len(), primaries), (3, 3), "{balance:?}: {requested:?}");
        for (id, config) in &requested {
            assert_eq!(config.desired, DesiredState { primary: Some(ServerId(1)), ..DesiredState::default() });
            made(&mut fixture, &fulfilled(config));
            fixture.tell(crate::CoordinatorEvent::Reply { id: *id, result: Ok(fixture.version) });
        }
        // The other member is full as well by now, and the first one still is.
        report_full(&mut fixture, &[1, 2]);
        fixture.pass(Nanos::from_secs(2));
        assert!(asked(&mut fixture).is_empty(), "{balance:?}: no member has room");
    }
}

#[test]
fn where_nobody_balances_nothing_but_a_full_server_is_relieved() {
    let mut fixture = master();
    fixture.balance_with(None);
    pass(&mut fixture, 60);
    assert!(fixture.asked.is_empty(), "server 3 is empty, and stays so");
    assert!(!fixture.agent.balances());
    // An operator moves a role to a full server: it does not stay there, as no write would be taken.
    let operators =
        region(1, 2, 1).with_desired(DesiredState { primary: Some(ServerId(1)), ..DesiredState::default() });
    made(&mut fixture, &operators);
    pass(&mut fixture, 1);
    report_full(&mut fixture, &[1]);
    fixture.pass(Nanos::from_secs(2));
    // Those of other regions are fulfilled.
    let of_region_1 = |fixture: &mut Fixture| {
        let (mine, others): (Vec<_>, Vec<_>) =
            asked(fixture).into_iter().partition(|(_, config)| config.region == RegionId(1));
        for (id, config) in others {
            made(fixture, &fulfilled(&config));
            fixture.tell(crate::CoordinatorEvent::Reply { id, result: Ok(fixture.version) });
        }
        mine.into_iter().next()
    };
    assert_eq!(of_region_1(&mut fixture), None, "the request is pending");
    made(&mut fixture, &fulfilled(&operators));
    report_full(&mut fixture, &[1]);
    fixture.pass(Nanos::from_secs(2));
    let (_, config) = of_region_1(&mut fixture).expect("its primary is full");
    assert_eq!(config.desired.primary, Some(ServerId(2)));
}

/// Seed 1062: the target was restarted before it was the primary, and the full server kept the role for a minute.
#[test]
fn a_hand_over_whose_target_dropped_out_is_requested_again_once_it_is_in_sync() {
    let mut fixture = master();
    fixture.balance_with(None);
    pass(&mut fixture, 4);
    let relieve = |fixture: &mut Fixture| {
        report_full(fixture, &[2]);
        fixture.pass(Nanos::from_secs(2));
        let mut of_region_1 = None;
        for (id, config) in asked(fixture) {
            fixture.change(&ClusterPath::Region(config.region).to_string(), Some(encode_value(&config)));
            fixture.tell(crate::CoordinatorEvent::Reply { id, result: Ok(fixture.version) });
            of_region_1 = Some(config).filter(|config| config.region == RegionId(1)).or(of_region_1);
        }
        of_region_1
    };
    let config = relieve(&mut fixture).expect("a backup has room");
    let target = config.backups[0];
    assert_eq!(config.desired.primary, Some(target.server));
    let alone = GroupConfig { desired: DesiredState::default(), backups: vec![], ..config.clone() };
    made(&mut fixture, &GroupConfig { learners: vec![target], ..alone.clone() });
    assert!(relieve(&mut fixture).is_none(), "a learner cannot serve");
    made(&mut fixture, &GroupConfig { epoch: config.epoch.next(), backups: vec![target], ..alone });
    let again = relieve(&mut fixture).expect("it is in sync again");
    assert_eq!(again.desired.primary, Some(target.server));
}

/// A region on a full disk may never be split: the plan stands, or is given up. Neither asks for this primary.
#[test]
fn a_split_that_an_operator_requested_keeps_no_role_on_a_full_server() {
    for is_given_up in [false, true] {
        let mut fixture = master();
        fixture.balance_with(None);
        pass(&mut fixture, 4);
        let plan = Some(Plan::Split { at: None, child: RegionId(7) });
        let planned = region(1, 2, 1).with_desired(DesiredState { plan, ..DesiredState::default() });
        made(&mut fixture, &planned);
        pass(&mut fixture, 1);
        if is_given_up {
            made(&mut fixture, &fulfilled(&planned));
            pass(&mut fixture, 1);
        }
        report_full(&mut fixture, &[2]);
        fixture.pass(Nanos::from_secs(2));
        let asked = asked(&mut fixture);
        let config = asked.iter().map(|(_, config)| config).find(|config| config.region == RegionId(1));
        assert_eq!(config.and_then(|config| config.desired.primary), Some(ServerId(1)), "{is_given_up}: {asked:?}");
    }
}

#[test]
fn an_operator_may_repeat_an_earlier_request_of_the_master() {
    let mut fixture = master();
    let requested = first_requests(&mut fixture);
    let config = &requested[0];
    made(&mut fixture, &fulfilled(config));
    made(&mut fixture, &fulfilled(&requested[1]));
    pass(&mut fixture, 1);
    assert_eq!(fixture.master().balancing.requested[&config.region].desired, DesiredState::default());
    // The copy went back, and an operator moves it once more.
    let back = fixture.agent.view().region(config.region).unwrap().clone();
    made(&mut fixture, &GroupConfig { desired: config.desired.clone(), ..back.clone() });
    pass(&mut fixture, 1);
    made(&mut fixture, &back);
    pass(&mut fixture, 1);
    let left_alone_until = fixture.master().balancing.cooldowns[&config.region];
    assert!(left_alone_until > fixture.now + Nanos::from_secs(50), "it is the operator's request");
}

/// Lets so many seconds pass while region 5 has so many bytes. The regions of the table are split from 200 MiB on.
fn pass_with_large(fixture: &mut Fixture, seconds: u64, bytes: u64) -> Vec<(u64, CoordinatorOp)> {
    let mut of_region_5 = Vec::new();
    for _ in 0..seconds {
        report_sizes(fixture, |region| if region == RegionId(5) { bytes } else { MIB });
        fixture.pass(Nanos::from_secs(1));
        for (id, op) in std::mem::take(&mut fixture.asked) {
            match op {
                // The other requests fail.
                CoordinatorOp::Set { path, .. } if path != "/leeward/region/5" => {
                    fixture.tell(crate::CoordinatorEvent::Reply { id, result: Err(crate::CoordinatorError::Missing) });
                }
                op => of_region_5.push((id, op)),
            }
        }
    }
    of_region_5
}

/// The master asks for a split plan of region 5, with a number for its child. Applies the plan.
fn planned_split(fixture: &mut Fixture) -> GroupConfig {
    let table = TableOptions { replicas: 2, min_in_sync: 1, split_bytes: 200 * MIB, ..TableOptions::default() };
    fixture.change(&ClusterPath::Table("default".into()).to_string(), Some(encode_value(&table)));
    let asked = pass_with_large(fixture, 15, 300 * MIB);
    let is_split_plan = |(_, op): &&(u64, CoordinatorOp)| matches!(op, CoordinatorOp::All(_));
    let (id, op) = asked.iter().find(is_split_plan).unwrap_or_else(|| panic!("no split: {asked:?}")).clone();
    assert_eq!(asked.iter().filter(is_split_plan).count(), 1, "{asked:?}");
    let CoordinatorOp::All(ops) = op else { unreachable!("just looked at") };
    let [CoordinatorOp::Set { path, value, .. }, CoordinatorOp::Create { .. }] = &ops[..] else { panic!("{ops:?}") };
    assert_eq!(path, "/leeward/region/5");
    let config: GroupConfig = decode_value("region", value).unwrap();
    fixture.change(path, Some(value.clone()));
    fixture.tell(crate::CoordinatorEvent::Reply { id, result: Ok(fixture.version) });
    config
}

fn has_split(asked: &[(u64, CoordinatorOp)]) -> bool {
    asked.iter().any(|(_, op)| format!("{op:?}").contains("/leeward/region/5"))
}

#[test]
fn a_region_that_is_too_large_is_split_and_not_soon_again() {
    let mut fixture = master();
    let config = planned_split(&mut fixture);
    let child = config.desired.plan.as_ref().and_then(|plan| plan.child()).expect("a plan");
    let (left, right) = config.split("0005x".into(), child, leeward_format::SegmentId(9));
    assert_eq!(right.desired, DesiredState::default());
    fixture.change(&ClusterPath::Region(child).to_string(), Some(encode_value(&right)));
    fixture.change("/leeward/region/5", Some(encode_value(&left)));
    assert!(!has_split(&pass_with_large(&mut fixture, 58, 300 * MIB)), "it was split just now");
    assert!(has_split(&pass_with_large(&mut fixture, 10, 300 * MIB)), "it is still too large");
}

#[test]
fn a_split_that_is_not_done_is_given_up_and_tried_again_with_a_growing_backoff() {
    let mut fixture = master();
    let mut config = planned_split(&mut fixture);
    assert!(!has_split(&pass_with_large(&mut fixture, 115, 300 * MIB)), "it is waited for");
    for (attempt, pause) in [300, 600].into_iter().enumerate() {
        let asked = pass_with_large(&mut fixture, 20, 300 * MIB);
        let given_up = asked.iter().find_map(|(id, op)| match op {
            CoordinatorOp::Set { path, value, .. } if path == "/leeward/region/5" => Some((*id, value.clone())),
            _ => None,
        });
        let (id, value) = given_up.unwrap_or_else(|| panic!("attempt {attempt}: {asked:?}"));
        config = GroupConfig { desired: DesiredState::default(), epoch: config.epoch.next(), ..config };
        assert_eq!(decode_value::<GroupConfig>("region", &value).unwrap(), config);
        fixture.change("/leeward/region/5", Some(value));
        fixture.tell(crate::CoordinatorEvent::Reply { id, result: Ok(fixture.version) });
        assert!(!has_split(&pass_with_large(&mut fixture, pause - 30, 300 * MIB)), "attempt {attempt}: too soon");
        let asked = pass_with_large(&mut fixture, 40, 300 * MIB);
        let again = asked.iter().find_map(|(id, op)| match op {
            CoordinatorOp::All(ops) => Some((*id, ops.clone())),
            _ => None,
        });
        let (id, ops) = again.unwrap_or_else(|| panic!("attempt {attempt}: {asked:?}"));
        let CoordinatorOp::Set { value, .. } = &ops[0] else { panic!("{ops:?}") };
        config = decode_value("region", value).unwrap();
        fixture.change("/leeward/region/5", Some(value.clone()));
        fixture.tell(crate::CoordinatorEvent::Reply { id, result: Ok(fixture.version) });
        pass_with_large(&mut fixture, 110, 300 * MIB);
    }
}

/// An operator asks for a split of a region that the master wants to hand over. Neither is done.
#[test]
fn a_plan_of_an_operator_does_not_keep_a_request_of_the_master_pending() {
    let mut fixture = master();
    for id in 1..=6 {
        let config = GroupConfig { epoch: Epoch(2), ..region(id, 1, 2 + id % 2) };
        fixture.change(&ClusterPath::Region(RegionId(id)).to_string(), Some(encode_value(&config)));
    }
    pass(&mut fixture, 15);
    let mut others = asked(&mut fixture);
    let (id, config) = others.remove(0);
    for (id, _) in others {
        fixture.tell(crate::CoordinatorEvent::Reply { id, result: Err(crate::CoordinatorError::Missing) });
    }
    assert!(config.desired.primary.is_some(), "{config:?}");
    fixture.change(&ClusterPath::Region(config.region).to_string(), Some(encode_value(&config)));
    fixture.tell(crate::CoordinatorEvent::Reply { id, result: Ok(fixture.version) });
    let plan = Some(Plan::Split { at: None, child: RegionId(99) });
    let desired = DesiredState { plan: plan.clone(), ..config.desired.clone() };
    made(&mut fixture, &config.with_desired(desired));
    let mut found = Vec::new();
    for _ in 0..130 {
        pass(&mut fixture, 1);
        for (id, other) in asked(&mut fixture) {
            match other.region == config.region {
                true => found.push(other.desired),
                false => {
                    fixture.tell(crate::CoordinatorEvent::Reply { id, result: Err(crate::CoordinatorError::Missing) })
                }
            }
        }
    }
    assert_eq!(
        found.first(),
        Some(&DesiredState { plan, ..DesiredState::default() }),
        "the primary stays, and so does the plan: {found:?}"
    );
}

/// The request, if there is one, to merge region 5 into region 6 or the other way round.
fn merge_of(asked: Vec<(u64, CoordinatorOp)>) -> Option<(u64, bytes::Bytes, GroupConfig)> {
    asked.into_iter().find_map(|(id, op)| {
        let CoordinatorOp::All(ops) = op else { return None };
        let Some(CoordinatorOp::Set { value, .. }) = ops.into_iter().next() else { return None };
        let config: GroupConfig = decode_value("region", &value).unwrap();
        config.desired.plan.as_ref().and_then(|plan| plan.neighbour())?;
        Some((id, value, config))
    })
}

/// Time passes, with idle regions.
fn pass_idle(fixture: &mut Fixture, seconds: u64) -> Vec<(u64, CoordinatorOp)> {
    let mut asked = Vec::new();
    for _ in 0..seconds {
        report_sizes(fixture, |_| MIB);
        fixture.pass(Nanos::from_secs(1));
        for (id, op) in std::mem::take(&mut fixture.asked) {
            match &op {
                CoordinatorOp::Set { value, .. }
                    if decode_value::<GroupConfig>("region", value)
                        .is_ok_and(|config| config.desired.plan.is_none()) =>
                {
                    fixture.tell(crate::CoordinatorEvent::Reply { id, result: Err(crate::CoordinatorError::Missing) });
                }
                _ => asked.push((id, op)),
            }
        }
    }
    asked
}

#[test]
fn neighbours_from_splits_are_merged_once_both_have_been_quiet_for_long() {
    let mut fixture = master();
    // All servers have the same load.
    for (id, primary, backup) in [(1, 1, 2), (2, 2, 3), (3, 1, 3), (4, 2, 1), (5, 3, 1), (6, 3, 2)] {
        let split = leeward_format::SegmentId(if id >= 5 { 9 } else { 0 });
        let config = GroupConfig { epoch: Epoch(2), inherited_below: split, ..region(id, primary, backup) };
        fixture.change(&ClusterPath::Region(RegionId(id)).to_string(), Some(encode_value(&config)));
    }
    assert!(merge_of(pass_idle(&mut fixture, 590)).is_none(), "they may have been busy before");
    let (id, value, config) = merge_of(pass_idle(&mut fixture, 30)).expect("they are quiet");
    assert_eq!((config.region, config.desired.plan.as_ref()), (RegionId(5), Some(&Plan::Merge { into: RegionId(6) })));
    fixture.change("/leeward/region/5", Some(value));
    fixture.tell(crate::CoordinatorEvent::Reply { id, result: Ok(fixture.version) });
    // The merge is not done, and the master cancels it. It is not tried again for a while.
    let asked = pass_idle(&mut fixture, 100);
    assert!(merge_of(asked).is_none(), "it is waited for");
    let mut taken_back = None;
    for _ in 0..40 {
        report_sizes(&mut fixture, |_| MIB);
        fixture.pass(Nanos::from_secs(1));
        for (id, op) in std::mem::take(&mut fixture.asked) {
            let CoordinatorOp::Set { path, value, .. } = op else { continue };
            match path == "/leeward/region/5" && taken_back.is_none() {
                true => taken_back = Some((id, value)),
                false => {
                    fixture.tell(crate::CoordinatorEvent::Reply { id, result: Err(crate::CoordinatorError::Missing) })
                }
            }
        }
    }
    let (id, value) = taken_back.expect("it is taken back");
    assert_eq!(decode_value::<GroupConfig>("region", &value).unwrap().desired.plan, None);
    fixture.change("/leeward/region/5", Some(value));
    fixture.tell(crate::CoordinatorEvent::Reply { id, result: Ok(fixture.version) });
    assert!(merge_of(pass_idle(&mut fixture, 250)).is_none(), "too soon");
    let (id, value, config) = merge_of(pass_idle(&mut fixture, 100)).expect("it is tried again");
    fixture.change("/leeward/region/5", Some(value));
    fixture.tell(crate::CoordinatorEvent::Reply { id, result: Ok(fixture.version) });
    // The merge is done. The merged region is not split, nor does it count as quiet for long.
    let other = fixture.agent.view().region(RegionId(6)).unwrap().clone();
    fixture.change("/leeward/region/6", Some(encode_value(&other.merged_with(&config))));
    fixture.change("/leeward/region/5", None);
    assert!(
        !fixture.master().balancing.regions.contains_key(&RegionId(6)) || fixture.master().balancing.due.is_empty()
    );
    pass_idle(&mut fixture, 1);
    let pause = fixture.master().balancing.split_pauses.get(&RegionId(6)).expect("the master knows of the merge");
    assert!(pause.until > fixture.now && pause.failed == 0);
}

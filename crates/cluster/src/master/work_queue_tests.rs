//! A master that only looks at changed regions decides the same as a master that looks at all regions.

use super::*;
use crate::{CoordinatorEvent, SessionId, View};
use bytes::Bytes;
use leeward_format::cluster::{ClusterPath, CopyFound, GroupConfig, Member, ServerInfo, TableOptions, encode_value};
use leeward_format::coordinator::Change;
use leeward_format::load::{Fullness, ServerLoad};
use leeward_format::{Epoch, Incarnation, Lsn, ServerId, VolumeId};
use leeward_platform::Nanos;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn policy(assign: Assign) -> Policy {
    Policy { assign, keeps: true }
}

const REGIONS: u32 = 6;

#[derive(Clone, Debug)]
enum Step {
    /// A server registers, in its next incarnation, with a copy of a region or none.
    Up(u32, Option<u32>),
    Down(u32),
    /// This one of the operations under way is done or refused.
    Settle(usize, bool),
    /// The primary of a region changes its configuration: it drops a backup, or adds a learner.
    Change(u32, bool),
    Replicas(u32),
    /// The region is removed. No other region will have its number.
    Gone(u32),
    Assign(Assign),
    /// A server reports a load of 1, this capacity, and whether it takes writes.
    Report(u32, Option<u64>, Fullness),
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    let assign = prop_oneof![Just(Assign::No), Just(Assign::Fresh), Just(Assign::Any)];
    let fullness = prop_oneof![Just(Fullness::HasRoom), Just(Fullness::WasFull), Just(Fullness::Full)];
    prop_oneof![
        4 => (1..5_u32, prop::option::of(1..=REGIONS)).prop_map(|(server, copy)| Step::Up(server, copy)),
        2 => (1..5_u32).prop_map(Step::Down),
        6 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(at, done)| Step::Settle(at.index(8), done)),
        3 => (1..=REGIONS, any::<bool>()).prop_map(|(region, grows)| Step::Change(region, grows)),
        1 => (1..4_u32).prop_map(Step::Replicas),
        1 => (1..=REGIONS).prop_map(Step::Gone),
        1 => assign.prop_map(Step::Assign),
        4 => (1..5_u32, prop_oneof![Just(None), Just(Some(2))], fullness)
            .prop_map(|(server, capacity, fullness)| Step::Report(server, capacity, fullness)),
        10 => Just(Step::Look),
    ]
}

fn fresh(region: u32) -> GroupConfig {
    GroupConfig { start: Bytes::from(format!("{region}")), ..GroupConfig::unassigned(RegionId(region), "default") }
}

/// A view, a work queue that follows it, and operations under way.
struct World {
    view: View,
    work_queue: WorkQueue,
    under_way: BTreeMap<RegionId, Arc<GroupConfig>>,
    lives: BTreeMap<u32, u64>,
    assign: Assign,
    rooms: Rooms,
}

impl World {
    fn new() -> World {
        let mut world = World {
            view: View::default(),
            work_queue: WorkQueue::default(),
            under_way: BTreeMap::new(),
            lives: BTreeMap::new(),
            assign: Assign::Any,
            rooms: Rooms::default(),
        };
        world.view.handle(&CoordinatorEvent::Up { session: SessionId(1) });
        world.view.handle(&CoordinatorEvent::Synced { version: 0 });
        world.put(ClusterPath::Table("default".into()), Some(encode_value(&TableOptions::default())));
        (1..=REGIONS)
            .for_each(|region| world.put(ClusterPath::Region(RegionId(region)), Some(encode_value(&fresh(region)))));
        world
    }

    fn put(&mut self, path: ClusterPath, value: Option<Bytes>) {
        let version = self.view.version() + 1;
        self.view.handle(&CoordinatorEvent::Changed(vec![Change { path: path.to_string(), version, value }]));
        let changed = self.view.take_changed();
        self.work_queue.changed(&changed);
    }

    /// Looks at the regions that are due, and checks the result against a work queue that looks at all regions.
    fn look(&mut self) {
        let is_free = |region: RegionId| !self.under_way.contains_key(&region);
        let mut anew = WorkQueue { policy: policy(self.assign), ..WorkQueue::default() };
        for (region, config) in &self.under_way {
            anew.loads.set(&self.view, &self.rooms, *region, Some(config.clone()));
        }
        let expected = anew.decide(&self.view, &self.rooms, policy(self.assign), is_free);
        let decided = self.work_queue.decide(&self.view, &self.rooms, policy(self.assign), is_free);
        assert_eq!(decided.next, expected.next);
        self.under_way.extend(decided.next.into_iter().map(|config| (config.region, config)));
    }

    /// An operation under way ends.
    fn settle(&mut self, at: usize, is_done: bool) {
        let Some(region) = self.under_way.keys().nth(at).copied() else { return };
        let config = self.under_way.remove(&region).expect("it is there");
        let fits = self.view.region(region).is_some_and(|known| known.epoch.next() == config.epoch);
        if is_done && fits {
            self.put(ClusterPath::Region(region), Some(encode_value(&*config)));
        }
        self.work_queue.put_back(region);
    }

    fn change(&mut self, region: u32, grows: bool) {
        let Some(config) = self.view.region(RegionId(region)) else { return };
        let next = match (grows, config.learners.first(), config.backups.first()) {
            (true, Some(learner), _) => config.with_backup(*learner),
            (false, _, Some(backup)) => config.without(*backup),
            _ => return,
        };
        self.put(ClusterPath::Region(RegionId(region)), Some(encode_value(&next)));
    }

    fn report(&mut self, server: u32, capacity: Option<u64>, fullness: Fullness) {
        let Some(info) = self.view.server(ServerId(server)) else { return };
        let load = ServerLoad { used: 1, capacity, fullness, regions: Vec::new() };
        self.rooms.hear(Nanos::ZERO, info.member, &load);
        if self.rooms.has_full() {
            self.work_queue.put_back_learners();
        }
    }

    fn up(&mut self, server: u32, copy: Option<u32>) {
        let life = self.lives.entry(server).or_default();
        *life += 1;
        let copy = copy.map(|region| CopyFound::new(RegionId(region), Epoch(1), Lsn(*life)));
        let member =
            Member { server: ServerId(server), volume: VolumeId(server.into()), incarnation: Incarnation(*life) };
        let info = ServerInfo { copies: copy.into_iter().collect(), ..ServerInfo::of(member) };
        self.put(ClusterPath::Server(ServerId(server)), Some(encode_value(&info)));
    }
}

proptest! {
    #[test]
    fn only_changed_regions_need_a_look(steps in prop::collection::vec(step(), 1..150)) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Up(server, copy) => world.up(server, copy),
                Step::Down(server) => world.put(ClusterPath::Server(ServerId(server)), None),
                Step::Settle(at, is_done) => world.settle(at, is_done),
                Step::Change(region, grows) => world.change(region, grows),
                Step::Replicas(replicas) => {
                    let options = TableOptions { replicas, min_in_sync: replicas.div_ceil(2), ..TableOptions::default() };
                    world.put(ClusterPath::Table("default".into()), Some(encode_value(&options)));
                }
                Step::Gone(region) => world.put(ClusterPath::Region(RegionId(region)), None),
                Step::Assign(assign) => world.assign = assign,
                Step::Report(server, capacity, fullness) => world.report(server, capacity, fullness),
                Step::Look => world.look(),
            }
        }
        world.look();
    }
}

#[test]
fn a_quiet_cluster_costs_no_look() {
    let mut world = World::new();
    (1..4).for_each(|server| world.up(server, None));
    world.look();
    while !world.under_way.is_empty() {
        world.settle(0, true);
    }
    assert_eq!(
        world.work_queue.decide(&world.view, &world.rooms, policy(Assign::Any), |_| true).looked_at.len(),
        REGIONS as usize
    );
    assert!(world.work_queue.decide(&world.view, &world.rooms, policy(Assign::Any), |_| true).looked_at.is_empty());
    world.change(2, false);
    let looked_at = world.work_queue.decide(&world.view, &world.rooms, policy(Assign::Any), |_| true).looked_at;
    assert_eq!(looked_at, [RegionId(2)].into());
}

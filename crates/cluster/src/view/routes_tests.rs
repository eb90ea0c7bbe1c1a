//! Updates of nodes for clients that keep what they were told, whatever changed and whichever node is asked.

use super::*;
use crate::{CoordinatorEvent, CoordinatorOp, SessionId, Tree, View};
use leeward_format::cluster::{Member, encode_value};
use leeward_format::coordinator::Change;
use leeward_format::partition::Partition;
use leeward_format::routes::{Applied, RouteCache};
use leeward_format::{Incarnation, VolumeId};
use proptest::prelude::*;

const TABLES: [&str; 2] = ["a", "b"];
const KEYS: [&str; 4] = ["", "f", "m", "t"];

#[derive(Clone, Debug)]
enum Step {
    /// A region has this table, first key and primary from now on.
    Region(u32, usize, usize, u32),
    NoRegion(u32),
    Table(usize, bool),
    Server(u32, bool),
    /// A node is told of everything up to now.
    Hear(usize),
    /// A node's connection is made anew.
    Connect(usize),
    /// A client asks a node.
    Ask(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..6_u32, 0..TABLES.len(), 0..KEYS.len(), 1..4_u32).prop_map(|(id, t, k, p)| Step::Region(id, t, k, p)),
        2 => (1..6_u32).prop_map(Step::NoRegion),
        2 => (0..TABLES.len(), any::<bool>()).prop_map(|(table, is_there)| Step::Table(table, is_there)),
        2 => (1..4_u32, any::<bool>()).prop_map(|(server, is_there)| Step::Server(server, is_there)),
        6 => (0..2_usize).prop_map(Step::Hear),
        1 => (0..2_usize).prop_map(Step::Connect),
        8 => (0..2_usize, 0..2_usize).prop_map(|(client, node)| Step::Ask(client, node)),
    ]
}

fn config(id: u32, table: usize, key: usize, primary: u32, epoch: u32) -> GroupConfig {
    let member = Member { server: ServerId(primary), volume: VolumeId(1), incarnation: Incarnation(1) };
    GroupConfig {
        start: KEYS[key].into(),
        epoch: Epoch(epoch),
        term: Epoch(epoch),
        primary: Some(member),
        ..GroupConfig::unassigned(RegionId(id), TABLES[table])
    }
}

fn info(server: u32) -> ServerInfo {
    ServerInfo {
        native_address: format!("host:{server}"),
        ..ServerInfo::of(Member { server: ServerId(server), volume: VolumeId(1), incarnation: Incarnation(1) })
    }
}

/// The coordinator, and two nodes that are told of its changes at any time.
struct World {
    tree: Tree,
    nodes: [View; 2],
    /// The changes that each node was not told yet.
    waiting: [Vec<Change>; 2],
    epoch: u32,
}

impl World {
    fn new() -> World {
        let nodes = [View::default(), View::default()];
        let mut world = World { tree: Tree::new(), nodes, waiting: [Vec::new(), Vec::new()], epoch: 0 };
        (0..2).for_each(|node| world.connect(node));
        world
    }

    /// Sets the value of the path, or removes the path.
    fn set(&mut self, path: &ClusterPath, value: Option<bytes::Bytes>) {
        let path = path.to_string();
        let op = match (self.tree.get(&path).map(|(version, _)| version), value) {
            (Some(version), Some(value)) => CoordinatorOp::Set { path, value, version },
            (None, Some(value)) => CoordinatorOp::Create { path, value, ephemeral: false },
            (Some(_), None) => CoordinatorOp::Delete { path, version: None },
            (None, None) => return,
        };
        let changes = self.tree.apply(None, &op).expect("it fits the tree").changes;
        for waiting in &mut self.waiting {
            waiting.retain(|waiting| changes.iter().all(|change| change.path != waiting.path));
            waiting.extend(changes.iter().cloned());
        }
    }

    fn hear(&mut self, node: usize) {
        let changes = std::mem::take(&mut self.waiting[node]);
        if !changes.is_empty() {
            self.nodes[node].handle(&CoordinatorEvent::Changed(changes));
        }
    }

    fn connect(&mut self, node: usize) {
        self.waiting[node].clear();
        self.nodes[node].handle(&CoordinatorEvent::Down);
        self.nodes[node].handle(&CoordinatorEvent::Up { session: SessionId(1) });
        self.nodes[node].handle(&CoordinatorEvent::Changed(self.tree.changes().collect()));
        self.nodes[node].handle(&CoordinatorEvent::Synced { version: self.tree.version() });
    }
}

/// The comparable state of a client or a node: regions by table and key, with their primaries, and servers.
type Held = (Vec<(String, bytes::Bytes, RegionId, Option<ServerId>)>, Vec<(ServerId, String)>);

fn held_by_node(routes: &Routes) -> Held {
    let regions = TABLES.into_iter().flat_map(|table| routes.regions_of(table)).map(|config| {
        (config.table.clone(), config.start.clone(), config.region, config.primary.map(|primary| primary.server))
    });
    let servers = routes.servers().map(|info| (info.member.server, info.native_address.clone()));
    (regions.collect(), servers.collect())
}

fn held_by_client(cache: &RouteCache) -> Held {
    let regions = TABLES.into_iter().flat_map(|table| cache.regions().regions_of(table));
    let regions = regions.map(|route| (route.table.to_string(), route.start.clone(), route.region, route.primary));
    (regions.collect(), cache.servers().map(|(server, address)| (server, address.to_owned())).collect())
}

proptest! {
    #[test]
    fn a_client_holds_the_state_of_the_newest_node_that_it_asked(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        let mut clients = [RouteCache::default(), RouteCache::default()];
        for step in steps {
            match step {
                Step::Region(id, table, key, primary) => {
                    world.epoch += 1;
                    let config = config(id, table, key, primary, world.epoch);
                    world.set(&ClusterPath::Region(RegionId(id)), Some(encode_value(&config)));
                }
                Step::NoRegion(id) => world.set(&ClusterPath::Region(RegionId(id)), None),
                Step::Table(table, is_there) => {
                    let options = TableOptions { name: TABLES[table].into(), ..TableOptions::default() };
                    let value = is_there.then(|| encode_value(&options));
                    world.set(&ClusterPath::Table(options.name), value);
                }
                Step::Server(server, is_there) => {
                    let value = is_there.then(|| encode_value(&info(server)));
                    world.set(&ClusterPath::Server(ServerId(server)), value);
                }
                Step::Hear(node) => world.hear(node),
                Step::Connect(node) => world.connect(node),
                Step::Ask(client, node) => {
                    let (cache, routes) = (&mut clients[client], world.nodes[node].routes());
                    let known = cache.version();
                    let update = routes.update_since(known);
                    prop_assert_eq!(update.version, routes.version());
                    let applied = cache.apply(update).expect("as a node says it");
                    prop_assert_ne!(applied, Applied::Unfit, "each removal was told, or everything was");
                    match routes.version() >= known {
                        true => prop_assert_eq!(held_by_client(cache), held_by_node(routes)),
                        false => prop_assert_eq!((applied, cache.version()), (Applied::Known, known)),
                    }
                }
            }
        }
    }
}

#[test]
fn an_update_contains_the_changes() {
    let mut world = World::new();
    world.set(
        &ClusterPath::Table("a".into()),
        Some(encode_value(&TableOptions { name: "a".into(), ..Default::default() })),
    );
    for id in 1..=4 {
        let path = ClusterPath::Region(RegionId(id));
        world.set(&path, Some(encode_value(&config(id, 0, id as usize - 1, 1, 1))));
    }
    world.hear(0);
    let known = world.nodes[0].version();
    let nothing = world.nodes[0].routes().update_since(known);
    assert_eq!((nothing.since, nothing.tables.len(), nothing.gone.len()), (Some(known), 0, 0));
    assert_eq!(
        world.nodes[0].routes().update_since(u64::MAX).tables.len(),
        0,
        "a client that knows more is told nothing"
    );

    world.set(&ClusterPath::Region(RegionId(2)), Some(encode_value(&config(2, 0, 1, 3, 2))));
    world.set(&ClusterPath::Region(RegionId(3)), None);
    world.hear(0);
    let mut cache = RouteCache::default();
    let update = world.nodes[0].routes().update_since(known);
    assert_eq!((update.since, &update.gone[..]), (Some(known), &[RegionId(3)][..]));
    let one = TableRoutes::pack("a", Some(Partition::Range.into()), [&config(2, 0, 1, 3, 2)]);
    assert_eq!(update.tables, [one]);
    assert_eq!(cache.apply(update), Ok(Applied::Unfit), "a client that knows nothing needs everything");
    assert!(world.nodes[0].routes().update_since(0).since.is_none());
}

#[test]
fn old_removals_are_forgotten_and_everything_is_told() {
    let mut routes = Routes::default();
    let mut version = 0;
    let mut next = |routes: &mut Routes| {
        version += 1;
        routes.reach(version);
        version
    };
    for id in 0..MOST_GONE as u32 {
        let version = next(&mut routes);
        routes.remove_region(version, RegionId(id));
    }
    assert_eq!(routes.update_since(1).gone.len(), MOST_GONE - 1);
    let last = next(&mut routes);
    routes.remove_region(last, RegionId(u32::MAX));
    assert!(routes.update_since(1).since.is_none());
    let recent = routes.update_since(last - 1);
    assert_eq!((recent.since, recent.gone), (Some(last - 1), vec![RegionId(u32::MAX)]));
}

#[test]
fn a_table_that_is_not_there_has_no_regions_to_route_to() {
    let mut routes = Routes::default();
    routes.put_region(1, config(1, 0, 0, 1, 1));
    assert!(routes.region_of("a", b"x").is_none() && routes.regions_of("a").next().is_none());
    assert!(routes.region(RegionId(1)).is_some());
    routes.put_table(2, TableOptions { name: "a".into(), ..TableOptions::default() });
    assert_eq!(routes.region_of("a", b"x").map(|config| config.region), Some(RegionId(1)));
    assert_eq!(routes.region_map().regions_of("a").len(), 1);
    routes.remove_table(3, "a");
    assert!(routes.region_of("a", b"x").is_none());
}

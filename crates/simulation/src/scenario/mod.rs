//! The scenario of a seed: how many nodes, which table, what clients do, what breaks. Each seed has its own scenario,
//! so that a few hundred seeds cover many combinations.
//!
//! Options are drawn independently of each other. A bug that needs two options is found only in a seed that has both. A test
//! therefore checks that the seeds of CI contain every pair of values that the product allows. The log of a seed begins with its
//! choices.
//!
//! - `table`: the options of the table.
//! - `operator`: what the operator does.
//! - `fault_schedule`: what breaks.
//! - `planted`: which seeds can show a planted bug.

mod fault_schedule;
mod operator;
mod planted;
mod table;

use crate::client_mix::ClientMix;
use crate::world::{FaultKind, Forget};
use bytes::Bytes;
pub(crate) use fault_schedule::{Cloning, Filling, Origin, SyncTime};
use fault_schedule::{FaultSchedule, SyncTimes, Theme};
use leeward_cluster::Balance;
use leeward_fabric::SimOptions;
use leeward_format::cluster::{Acknowledge, IndexKind, Location, Preset, Reads, Scans, TableOptions};
use leeward_platform::{Nanos, Rng};
use leeward_server::node::NodeTiming;
use operator::Operator;

/// What a power loss may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Nothing: power is lost only where a member in sync survives it.
    Everything,
    /// Acknowledged writes of the last second, and only the newest ones: power is lost anywhere, everywhere at once too.
    AllButTheLastSecond,
}

impl Durability {
    /// How old a lost acknowledged write may be, for this `acknowledge` option. A power loss takes the writes since the last
    /// flush began; some time is added for slow devices. With last-flush, a failover also takes what the primary had not
    /// replicated before the other nodes declared it dead.
    pub(crate) fn window(self, acknowledge: Acknowledge) -> Nanos {
        match (self, acknowledge) {
            (Durability::Everything, Acknowledge::LastWrite) => Nanos::ZERO,
            (Durability::AllButTheLastSecond, Acknowledge::LastWrite) => Nanos::from_millis(2_000),
            (_, Acknowledge::LastFlush) => Nanos::from_millis(8_000),
        }
    }
}

/// How nodes differ from those of other seeds.
#[derive(Clone, Debug)]
pub(crate) struct Traits {
    /// The preset that the table uses unchanged.
    preset: Option<Preset>,
    /// The timeout of lease grants is as long as that of answers.
    has_long_grants: bool,
    /// A node that all messages take longer to reach, and how much longer.
    far: Option<(usize, Nanos)>,
    /// The master balances the servers.
    is_balanced: bool,
    /// Each process draws from this how long its leases last. `None`: they last as long as by default.
    leases: Option<u64>,
    /// The node that shares no host with another one: the others share one. `None`: nobody says where nodes stand.
    apart: Option<usize>,
    theme: Theme,
}

/// What is drawn from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) nodes: usize,
    pub(crate) table: TableOptions,
    pub(crate) splits: Vec<Bytes>,
    pub(crate) network: SimOptions,
    pub(crate) durability: Durability,
    pub(crate) client_mix: ClientMix,
    /// Clients that read hash indexes. Only where there are any, the table has some.
    pub(crate) direct_readers: usize,
    /// Most bytes of a hash index: so few that space is used again at once, or what the memory budget leaves.
    pub(crate) index_bytes: u64,
    pub(crate) fault_schedule: FaultSchedule,
    /// When the coordinator forgets something, and what.
    pub(crate) forgets: Vec<(Nanos, Forget)>,
    /// The copies of volumes that are started.
    pub(crate) clonings: Vec<Cloning>,
    /// When disks fill.
    pub(crate) fillings: Vec<Filling>,
    /// `None`: syncs take no time of their own.
    sync_times: Option<SyncTimes>,
    operator: Operator,
    traits: Traits,
}

/// How long leases last where each process draws that, in milliseconds. A member may be far away: a shorter lease would end
/// before its grant has come.
const LEASES_MS: [u64; 4] = [400, 600, 1_200, 2_400];

/// Bytes a second of a narrow link: those of 1 Gbit/s, and of four times as much. Segments are 64 times smaller than in
/// production, and so are these.
const LINK_RATES: [u64; 2] = [125_000_000 / 64, 4 * 125_000_000 / 64];

/// Presets that are drawn with the rest of the table.
const PRESETS: [Preset; 5] = [Preset::Default, Preset::Anthus, Preset::Tebis, Preset::BuildIndex, Preset::Depart];

/// One of HiStore's presets, drawn apart, as direct readers are.
fn histore(seed: u64) -> Option<Preset> {
    let mut rng = Rng::new(seed.rotate_left(8));
    rng.one_in(10).then(|| [Preset::Histore, Preset::HistoreSend][rng.index(2)])
}

impl Scenario {
    /// The scenario of `seed`, of which `rng` is at the beginning.
    pub(crate) fn choose(seed: u64, rng: &mut Rng) -> Scenario {
        let mut scenario = Scenario::choose_without_readers(seed, rng);
        // Drawn apart, so that a seed without direct readers is what it was before there were any.
        let mut rng = Rng::new(seed.rotate_left(32));
        if rng.one_in(3) {
            scenario.add_readers(&mut rng);
        }
        let mut rng = Rng::new(seed.rotate_left(24));
        scenario.traits.leases = rng.one_in(4).then(|| rng.u64());
        let mut rng = Rng::new(seed.rotate_left(40));
        if rng.one_in(4) {
            scenario.network.bytes_per_second = LINK_RATES[rng.index(LINK_RATES.len())];
        }
        // The same.
        let mut rng = Rng::new(seed.rotate_left(16));
        if rng.one_in(3) {
            scenario.table.reads.scans = Scans::Backups;
            scenario.maps_memory(&mut rng);
        }
        // The same.
        let mut rng = Rng::new(seed.rotate_left(48));
        scenario.traits.apart = rng.one_in(3).then(|| rng.index(3));
        // The same.
        scenario.forgets = scenario.fault_schedule.forgets(&mut Rng::new(seed.rotate_left(24)));
        // The same.
        let mut rng = Rng::new(seed.rotate_left(4));
        let may_be_long = scenario.durability.window(scenario.table.acknowledge) == Nanos::ZERO;
        scenario.sync_times = rng.one_in(4).then(|| SyncTimes { salt: rng.u64(), may_be_long });
        scenario.clonings = scenario.fault_schedule.clonings(scenario.nodes, &mut Rng::new(seed.rotate_left(12)));
        // The same.
        scenario.fillings = scenario.fault_schedule.fillings(scenario.nodes, &mut Rng::new(seed.rotate_left(56)));
        scenario
    }

    /// Backups read the safe LSNs of primaries in their memory, in some of the seeds.
    fn maps_memory(&mut self, rng: &mut Rng) {
        self.network.maps_memory = rng.one_in(if self.direct_readers > 0 { 4 } else { 2 });
        if self.network.maps_memory && self.network.store_gap == Nanos::ZERO {
            self.network.store_gap = Nanos(rng.between(100, 2_000));
        }
    }

    fn add_readers(&mut self, rng: &mut Rng) {
        self.direct_readers = rng.between(2, 5) as usize;
        self.table.reads.index = IndexKind::Hybrid;
        self.network.store_gap = Nanos(rng.between(100, 2_000));
        self.index_bytes = [3 << 9, 3 << 10, 24 << 10, u64::MAX][rng.index(4)];
        // A delete of a range ends an index, and then it is never full. The space of the smallest has few keys in turn.
        self.client_mix.deletes_ranges = self.index_bytes > 3 << 10;
        self.client_mix.shared_keys = if self.index_bytes > 3 << 9 { 6 } else { 3 };
    }

    fn choose_without_readers(seed: u64, rng: &mut Rng) -> Scenario {
        let nodes = if rng.one_in(5) { 1 } else { 3 };
        let preset = rng.one_in(8).then(|| PRESETS[rng.index(PRESETS.len())]).or_else(|| histore(seed));
        let mut table = table::draw(nodes, preset, rng);
        let splits = splits(&mut table, rng);
        let traits = Traits::choose(nodes, preset, &table, rng);
        let durability = match nodes == 1 || rng.one_in(if traits.theme == Theme::Power { 2 } else { 6 }) {
            true => Durability::AllButTheLastSecond,
            false => Durability::Everything,
        };
        let mut client_mix = ClientMix::choose(nodes, rng);
        if table.reads.stale != Reads::Primary {
            client_mix.read_stale(500 + rng.below(4) as u32 * 500);
        }
        Scenario {
            nodes,
            table,
            splits,
            network: SimOptions {
                min_delay: Nanos::from_micros(20),
                max_delay: Nanos::from_micros(rng.between(100, 2_000)),
                min_detect: Nanos::from_millis(20),
                max_detect: Nanos::from_millis(300),
                retry_pause: Nanos::from_millis(50),
                store_gap: Nanos::ZERO,
                maps_memory: false,
                bytes_per_second: 0,
            },
            durability,
            client_mix,
            direct_readers: 0,
            index_bytes: 0,
            fault_schedule: fault_schedule::choose(nodes, traits.theme, durability, rng),
            forgets: Vec::new(),
            clonings: Vec::new(),
            fillings: Vec::new(),
            sync_times: None,
            operator: Operator::choose(nodes, rng),
            traits,
        }
    }

    /// The scenario of `seed`.
    pub(crate) fn of(seed: u64) -> Scenario {
        Scenario::choose(seed, &mut Rng::new(seed))
    }

    /// Every choice among a few values: its name, and the value that was drawn.
    pub(crate) fn draw(&self) -> Vec<(&'static str, String)> {
        let Traits { preset, has_long_grants, far, is_balanced, leases, apart, theme } = &self.traits;
        let mut draw = vec![
            ("nodes", self.nodes.to_string()),
            ("regions", self.regions().to_string()),
            ("preset", preset.map_or("none".into(), |preset| format!("{preset:?}"))),
            ("durability", format!("{:?}", self.durability)),
            ("theme", format!("{theme:?}")),
            ("long_grants", has_long_grants.to_string()),
            ("far", far.map_or("none".into(), |(_, extra)| extra.as_millis().to_string())),
            ("balanced", is_balanced.to_string()),
            ("drawn_leases", leases.is_some().to_string()),
            ("located", apart.is_some().to_string()),
            ("narrow", (self.network.bytes_per_second > 0).to_string()),
            ("cloned", (!self.clonings.is_empty()).to_string()),
            ("slow_syncs", self.sync_times.is_some().to_string()),
            ("filled", (!self.fillings.is_empty()).to_string()),
        ];
        draw.push(("index", self.table.reads.index.to_string()));
        draw.push(("scans", self.table.reads.scans.to_string()));
        draw.extend(self.operator.labels());
        draw.extend(table::labels(&self.table));
        draw
    }

    /// [`Scenario::draw`], and each kind of fault that may strike.
    pub(crate) fn choices(&self) -> Vec<(&'static str, String)> {
        let faults = self.fault_schedule.kinds.iter().map(|kind| ("fault", format!("{kind:?}")));
        self.draw().into_iter().chain(faults).collect()
    }

    /// How many regions the table begins with.
    fn regions(&self) -> u64 {
        self.table.partition.tokens().map_or(self.splits.len() as u64 + 1, u64::from)
    }

    /// Whether a process may die at any moment, because no disk is lost.
    pub(crate) fn may_die(&self) -> bool {
        !self.fault_schedule.kinds.contains(&FaultKind::ReplaceDisk)
    }

    /// A member that is farther from the others than they are from each other, and by how much.
    pub(crate) fn far(&self) -> Option<(usize, Nanos)> {
        self.traits.far
    }

    /// Where a node stands.
    pub(crate) fn location(&self, node: usize) -> Location {
        let host = |apart| if apart == node { "host=b" } else { "host=a" };
        self.traits.apart.map(|apart| host(apart).parse().expect("a location")).unwrap_or_default()
    }

    /// Whether nodes say where they stand.
    pub(crate) fn has_locations(&self) -> bool {
        self.traits.apart.is_some()
    }

    /// How long a sync of a node's disk takes.
    pub(crate) fn sync_time(&self, node: usize, now: Nanos) -> SyncTime {
        self.sync_times.as_ref().map_or(SyncTime::default(), |times| times.at(node, now))
    }

    /// When a master checks the balance of the servers: often, since a run is short.
    pub(crate) fn balance(&self) -> Option<Balance> {
        let often = Balance {
            every: Nanos::from_millis(200),
            settle: Nanos::from_millis(300),
            server_loss_grace: Nanos::from_millis(600),
            cooldown: Nanos::from_millis(200),
            operator_cooldown: Nanos::from_millis(400),
            remember: Nanos::from_secs(2),
            stale: Nanos::from_secs(2),
            split_ops: 80,
            busy: Nanos::from_millis(300),
            split_cooldown: Nanos::from_millis(500),
            attempt: Nanos::from_millis(1_500),
            failed_split_backoff: Nanos::from_millis(1_000),
            merge_bytes: 256 << 10,
            quiet: Nanos::from_millis(500),
        };
        Some(often).filter(|_| self.traits.is_balanced)
    }

    /// Timing of a process of a node. With long lease grants, a primary may die while some members lack records that others have. Tails are
    /// then also saved often, so that a backup builds its index from records that it has just received. Unneeded replicas are
    /// destroyed soon, since a run is short.
    pub(crate) fn timing(&self, node: usize, incarnation: u64) -> NodeTiming {
        let (replica_gc_after, load_interval) = (Nanos::from_millis(100), Nanos::from_millis(150));
        let mut timing = NodeTiming { replica_gc_after, load_interval, ..NodeTiming::default() };
        timing.bulk_bytes /= 64;
        if let Some(leases) = self.traits.leases {
            // Far apart, as those of neighbours are alike.
            let process = ((node as u64) << 32 | incarnation).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let lease = LEASES_MS[Rng::new(leases.wrapping_add(process)).index(LEASES_MS.len())];
            timing = timing.with_lease(Nanos::from_millis(lease));
        }
        if self.traits.has_long_grants {
            timing.replication.lease_grant_timeout = timing.replication.answer_timeout;
            timing.flush_interval = Nanos::from_millis(20);
        }
        if self.fault_schedule.kinds.contains(&FaultKind::RestoreCopy) {
            timing.replication.floor_interval = Nanos::from_millis(300);
        }
        timing
    }

    /// The scenario in a few words.
    pub(crate) fn name(&self) -> String {
        let draw: Vec<String> = self.draw().into_iter().map(|(name, value)| format!("{name} {value}")).collect();
        format!("{}; {:?}", draw.join(", "), self.fault_schedule.kinds)
    }
}

impl Traits {
    /// The table decides how likely a theme and a far member are. It does not decide whether they are possible.
    fn choose(nodes: usize, preset: Option<Preset>, table: &TableOptions, rng: &mut Rng) -> Traits {
        let has_long_grants = rng.one_in(2);
        // With a quorum a far member delays no write, and its copy is the shortest. Without a quorum, and with long lease grants,
        // the other members collect many uncommitted records, and may build their index from them.
        let has_quorum = table.quorum.is_some_and(|quorum| quorum < table.replicas);
        let builds = table.replicas > 2 && table.backups.builds_index() && has_long_grants;
        let is_far = if has_quorum || builds { !rng.one_in(5) } else { rng.one_in(6) };
        let extra = if has_quorum || !has_long_grants { 30 } else { 140 };
        let far = (1 + rng.index(2), Nanos::from_millis(extra));
        Traits {
            preset,
            has_long_grants,
            far: Some(far).filter(|_| nodes > 1 && is_far),
            is_balanced: nodes > 1 && rng.one_in(3),
            leases: None,
            apart: None,
            theme: Theme::choose(nodes, table, rng),
        }
    }
}

/// First keys of regions. Each region has some of the keys in use.
const MANY_SPLITS: [&[u8]; 5] = [b"h", b"k000020", b"m", b"q000021", b"v"];

/// The first keys of the regions after the first: one, two or six regions. Where keys are partitioned by hash, the table has as
/// many tokens instead.
fn splits(table: &mut TableOptions, rng: &mut Rng) -> Vec<Bytes> {
    let splits: &[&'static [u8]] = match rng.index(3) {
        0 => &[],
        1 => &[b"m"],
        _ => &MANY_SPLITS,
    };
    if table.partition.is_hash() {
        table.partition = table.partition.with_tokens(splits.len() as u32 + 1);
        return Vec::new();
    }
    splits.iter().copied().map(Bytes::from_static).collect()
}

#[cfg(test)]
mod tests;

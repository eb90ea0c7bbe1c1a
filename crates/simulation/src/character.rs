//! What a seed is like: how many nodes, which table, what clients do, what breaks. Each seed has a character of its own,
//! so that a few hundred of them go to many corners instead of all to the same middle.

use crate::habits::Habits;
use crate::world::{FaultKind, SEGMENT_BYTES};
use bytes::Bytes;
use leeward_cluster::Balance;
use leeward_fabric::SimOptions;
use leeward_format::cluster::{
    Acknowledge, Addressing, BackupMode, CompactionMode, Intent, Placement, Posting, Reads, RegionWish, TableOptions,
};
use leeward_format::op::Op;
use leeward_format::packed::{Codec, Compression};
use leeward_format::partition::Partition;
use leeward_format::table::TableChange;
use leeward_format::{RegionId, ServerId};
use leeward_platform::{Nanos, Rng};
use leeward_server::node::NodeTiming;

/// Wishes of an operator in a seed that has any.
const WISHES: u64 = 16;
/// Times that one wishes for a division in a seed that has any.
const SPLITS: u64 = 8;
/// Times that one wishes for a merge in a seed that has any.
const MERGES: u64 = 12;
/// Segments of a region from which on the master divides it, where it does.
const SPLIT_SEGMENTS: u64 = 11;

/// What a power loss may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// No acknowledged write: power is lost only where a member in sync survives it.
    Everything,
    /// Acknowledged writes of the last second, and only the newest ones: power is lost anywhere, everywhere at once too.
    AllButTheLastSecond,
}

impl Promise {
    /// How old an acknowledged write may be that is lost, in a table whose writes are acknowledged so: those since the last flush
    /// began, and some time for slow devices; with last-flush also what a primary had not got through before others took it for
    /// dead.
    pub(crate) fn window(self, acknowledge: Acknowledge) -> Nanos {
        match (self, acknowledge) {
            (Promise::Everything, Acknowledge::LastWrite) => Nanos::ZERO,
            (Promise::AllButTheLastSecond, Acknowledge::LastWrite) => Nanos::from_millis(2_000),
            (_, Acknowledge::LastFlush) => Nanos::from_millis(8_000),
        }
    }
}

/// What breaks, how often, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Troubles {
    /// No fault strikes after this.
    pub(crate) end: Nanos,
    pub(crate) kinds: Vec<FaultKind>,
    /// Usual time between two faults.
    pub(crate) gap: Nanos,
    /// So many in a hundred faults outlast leases and sessions; the others are short.
    pub(crate) long: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Character {
    pub(crate) nodes: usize,
    pub(crate) table: TableOptions,
    pub(crate) splits: Vec<Bytes>,
    pub(crate) network: SimOptions,
    pub(crate) promise: Promise,
    pub(crate) habits: Habits,
    pub(crate) troubles: Troubles,
}

/// What the faults of a seed have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Theme {
    Network,
    Crash,
    Power,
    Disk,
    Mixture,
}

impl Theme {
    fn choose(nodes: usize, rng: &mut Rng) -> Theme {
        match rng.below(10) {
            0..4 if nodes > 1 => Theme::Network,
            0..=4 => Theme::Power,
            5 | 6 => Theme::Crash,
            7 => Theme::Disk,
            _ => Theme::Mixture,
        }
    }

    fn kinds(self) -> &'static [FaultKind] {
        match self {
            Theme::Network => &[
                FaultKind::Isolate,
                FaultKind::CutOneWay,
                FaultKind::SlowLink,
                FaultKind::CutCoordinator,
                FaultKind::CoordinatorDown,
                FaultKind::Pause,
            ],
            Theme::Crash => {
                &[FaultKind::Kill, FaultKind::KillAll, FaultKind::DiskKill, FaultKind::Pause, FaultKind::ReplaceDisk]
            }
            Theme::Power => &[
                FaultKind::PowerLoss,
                FaultKind::PowerLossAll,
                FaultKind::DiskPowerLoss,
                FaultKind::DiskPowerLoss,
                FaultKind::Kill,
            ],
            Theme::Disk => &[
                FaultKind::DiskError,
                FaultKind::DiskFull,
                FaultKind::SlowDisk,
                FaultKind::DiskKill,
                FaultKind::ReplaceDisk,
            ],
            Theme::Mixture => &FaultKind::ALL,
        }
    }
}

impl Character {
    pub(crate) fn choose(rng: &mut Rng) -> Character {
        let nodes = if rng.one_in(5) { 1 } else { 3 };
        let theme = Theme::choose(nodes, rng);
        let promise = match nodes == 1 || rng.one_in(if theme == Theme::Power { 2 } else { 8 }) {
            true => Promise::AllButTheLastSecond,
            false => Promise::Everything,
        };
        let mut table = table(nodes, rng);
        let mut splits = if rng.one_in(2) { vec![Bytes::from_static(b"m")] } else { Vec::new() };
        let max_delay_us = rng.between(100, 2_000);
        // Nor are these drawn.
        let may_lose = promise == Promise::AllButTheLastSecond && nodes > 1;
        if may_lose && (table.growth_factor.is_multiple_of(2) || splits.is_empty()) {
            (table.acknowledge, table.max_unacked_bytes) = (Acknowledge::LastFlush, 16 << 10);
        }
        if nodes > 1 && max_delay_us.is_multiple_of(4) {
            table.replicas = 2;
        }
        // With more regions there is more to move. The ledger judges what a loss of power took by two of them at most.
        if nodes > 1 && is_balanced(max_delay_us) && promise == Promise::Everything {
            splits = MANY_SPLITS.map(Bytes::from_static).to_vec();
            // And regions that grow are divided by the master.
            table.split_bytes = SPLIT_SEGMENTS * SEGMENT_BYTES as u64;
        }
        let (mut habits, mut troubles) = (Habits::choose(nodes, rng), troubles(nodes, theme, promise, rng));
        if nodes > 1 && is_read_anywhere(max_delay_us) {
            table.reads = Reads::Any { max_staleness_ms: 2_000 };
            habits.read_stale(500 + (max_delay_us % 4 * 500) as u32);
            if promise == Promise::Everything && table.replicas > 2 && table.quorum.is_none() {
                // Whoever is left alone takes writes, and nothing else keeps it from that.
                table.min_in_sync = 1;
                troubles.kinds.retain(|kind| !kind.cuts());
                troubles.kinds.extend([FaultKind::Strand; 2]);
                troubles.long = 90;
            }
        }
        if is_hashed(max_delay_us) {
            table.partition = Partition::Hash { tokens: splits.len().max(1) as u32 + 1 };
            splits.clear();
        }
        Character {
            nodes,
            table,
            splits,
            network: SimOptions {
                min_delay: Nanos::from_micros(20),
                max_delay: Nanos::from_micros(max_delay_us),
                min_detect: Nanos::from_millis(20),
                max_detect: Nanos::from_millis(300),
                retry_pause: Nanos::from_millis(50),
            },
            promise,
            habits,
            troubles,
        }
    }

    /// How many regions there are in the beginning.
    fn regions(&self) -> u64 {
        match self.table.partition {
            Partition::Range => self.splits.len() as u64 + 1,
            Partition::Hash { tokens } => tokens.into(),
        }
    }

    /// When an operator changes how the table is replicated, and how. Not drawn.
    pub(crate) fn alterations(&self) -> Vec<(Nanos, TableChange)> {
        let table = &self.table;
        let is_wide = table.growth_factor == 4 && self.regions() > 1;
        if self.nodes == 1 || !(table.growth_factor == 5 || is_wide) {
            return Vec::new();
        }
        let [send, build] = BackupMode::ALL;
        let other = if table.backups == send { build } else { send };
        let backups = [other, table.backups, other]
            .map(|backups| TableChange { backups: Some(backups), ..TableChange::default() });
        let [mut first, mut second, mut third] = backups;
        if table.growth_factor == 5 {
            let [coalesced, per_record] = Posting::ALL;
            (first.posting, second.posting, third.posting) = (Some(per_record), Some(coalesced), Some(per_record));
        }
        if is_wide {
            (first.wire, second.wire, third.wire) = (Some(Codec::None), Some(Codec::Lz4), Some(Codec::Zstd));
            (first.min_in_sync, third.min_in_sync) = (Some(1), Some(table.min_in_sync));
            // What a failover may take is judged by what the table begins with.
            if table.acknowledge == Acknowledge::LastFlush {
                (first.acknowledge, second.acknowledge) = (Some(Acknowledge::LastWrite), Some(Acknowledge::LastFlush));
            }
        }
        let times = [3, 5, 6].map(|eighths| Nanos(self.troubles.end.0 / 8 * eighths));
        times.into_iter().zip([first, second, third]).collect()
    }

    /// What an operator wishes of regions and servers, and when. Not drawn.
    pub(crate) fn wishes(&self) -> Vec<(Nanos, Op)> {
        let mut wishes = self.moves();
        wishes.extend(self.splits_wished());
        wishes
    }

    /// A process may die at any moment, whatever else has happened: no disk is lost.
    pub(crate) fn may_die(&self) -> bool {
        !self.troubles.kinds.contains(&FaultKind::ReplaceDisk)
    }

    /// That regions become two, and those again: in every other seed.
    fn splits_wished(&self) -> Vec<(Nanos, Op)> {
        let salt = self.network.max_delay.0 / 1_000;
        if salt % 4 > 1 {
            return Vec::new();
        }
        let regions = self.regions();
        let keys = [None, Some("b4"), Some("k000004"), None, Some("z3"), Some("q000003"), Some("b7")];
        let wish = |number: u64| {
            let at = keys[(salt / 4 + number) as usize % keys.len()].map(|key: &'static str| Bytes::from(key));
            let wish = if (salt + number).is_multiple_of(9) { RegionWish::Whole } else { RegionWish::Split { at } };
            Op::Wish { region: RegionId(1 + ((salt / 2 + number) % (regions + number / 2)) as u32), wish }
        };
        let first = Nanos::from_millis(600);
        (0..SPLITS)
            .map(|number| (first + Nanos(self.troubles.end.since(first).0 * number / SPLITS), wish(number)))
            .collect()
    }

    /// When an operator wishes that two regions become one: in half of the seeds, in half of which regions become two as well. Not
    /// drawn.
    pub(crate) fn merges(&self) -> Vec<Nanos> {
        let salt = self.network.max_delay.0 / 1_000;
        if !matches!(salt % 4, 1 | 2) || self.table.partition.is_hash() {
            return Vec::new();
        }
        let first = Nanos::from_millis(800);
        (0..MERGES).map(|number| first + Nanos(self.troubles.end.since(first).0 * number / MERGES)).collect()
    }

    /// That offices and copies are elsewhere: in two of three seeds.
    fn moves(&self) -> Vec<(Nanos, Op)> {
        let salt = self.network.max_delay.0 / 1_000;
        if self.nodes == 1 || salt.is_multiple_of(3) {
            return Vec::new();
        }
        let (nodes, regions) = (self.nodes as u64, self.regions());
        let server = |number: u64| ServerId(1 + (number % nodes) as u32);
        let wish = |number: u64| {
            let region = RegionId(1 + (number % regions) as u32);
            match (salt / 3 + number) % 8 {
                0 => Op::Intend { server: server(salt), intent: Some(Intent::Restart) },
                1 => Op::Intend { server: server(salt + number), intent: Some(Intent::Leave) },
                2 | 3 => Op::Intend { server: server(salt + number - 2), intent: None },
                4 => Op::Wish { region, wish: RegionWish::Move { from: server(number), to: server(number + 1) } },
                _ => Op::Wish { region, wish: RegionWish::Primary(server(salt + number)) },
            }
        };
        let first = Nanos::from_millis(700);
        (0..WISHES)
            .map(|number| (first + Nanos(self.troubles.end.since(first).0 * number / WISHES), wish(number)))
            .collect()
    }

    /// A member that is farther from the others than they are from each other, and how much. With a quorum it holds up no write, and
    /// has the shortest copy; without, and where members are given time, others come to have much that is not committed, and may
    /// build their index of it. Not drawn.
    pub(crate) fn far(&self) -> Option<(usize, Nanos)> {
        let far = 1 + (self.table.l0_bytes >> 12).ilog2() as usize % 2;
        let builds = self.table.replicas > 2 && self.table.backups == BackupMode::BuildIndex;
        match self.table.quorum {
            Some(quorum) if quorum < self.table.replicas => Some((far, Nanos::from_millis(30))),
            None if builds && self.is_patient() => Some((far, Nanos::from_millis(140))),
            _ => None,
        }
    }

    /// A member may break its promises as long as it may owe an answer.
    fn is_patient(&self) -> bool {
        (self.network.max_delay.0 / 1_000).is_multiple_of(2)
    }

    /// When a master looks whether servers have alike: often, since a run is short. In a third of the seeds. Not drawn.
    pub(crate) fn balance(&self) -> Option<Balance> {
        let often = Balance {
            every: Nanos::from_millis(200),
            settle: Nanos::from_millis(300),
            mourn: Nanos::from_millis(600),
            rest: Nanos::from_millis(200),
            respect: Nanos::from_millis(400),
            remember: Nanos::from_secs(2),
            stale: Nanos::from_secs(2),
            split_ops: 80,
            busy: Nanos::from_millis(300),
            apart: Nanos::from_millis(500),
            attempt: Nanos::from_millis(1_500),
            futile: Nanos::from_millis(1_000),
            merge_bytes: 256 << 10,
            quiet: Nanos::from_millis(500),
        };
        Some(often).filter(|_| self.nodes > 1 && is_balanced(self.network.max_delay.0 / 1_000))
    }

    /// Timing of its nodes. In every other seed a member may break its promises as long as it may owe an answer, so that primaries
    /// die while some members lack what others have; and tails are saved often, so that backups that build their index do it of
    /// what they have just got. What nobody needs is destroyed soon, since a run is short. Not drawn.
    pub(crate) fn timing(&self) -> NodeTiming {
        let (surplus_after, load_interval) = (Nanos::from_millis(100), Nanos::from_millis(150));
        let mut timing = NodeTiming { surplus_after, load_interval, ..NodeTiming::default() };
        if self.is_patient() {
            timing.replication.promise_patience = timing.replication.answer_patience;
            timing.flush_interval = Nanos::from_millis(20);
        }
        timing
    }

    /// It in a few words.
    pub(crate) fn name(&self) -> String {
        let table = &self.table;
        format!(
            "{} nodes, {} regions by {}, {:?}, {} {} {} by {}, wire {}, {}, {} alterations, {} wishes, {} merges{}, leaves {}/{}, L0 {} KiB, reads by {}, {} of {} in sync, \
             {:?}; {:?}",
            self.nodes,
            self.regions(),
            table.partition,
            table.placement,
            table.backups,
            table.addressing,
            table.acknowledge,
            table.needed_of(table.replicas as usize),
            table.wire,
            table.posting,
            self.alterations().len(),
            self.wishes().len(),
            self.merges().len(),
            if self.balance().is_some() { ", balanced" } else { "" },
            table.compression.upper,
            table.compression.last,
            table.l0_bytes >> 10,
            table.reads,
            table.min_in_sync,
            table.replicas,
            self.promise,
            self.troubles.kinds
        )
    }
}

/// First keys of regions, so that each has some of the keys that are used.
const MANY_SPLITS: [&[u8]; 5] = [b"h", b"k000020", b"m", b"q000021", b"v"];

/// Whether every member answers reads in a seed whose network delays at most by so much: a quarter of them.
fn is_read_anywhere(max_delay_us: u64) -> bool {
    (max_delay_us / 7).is_multiple_of(3)
}

/// Whether servers come to have alike in a seed whose network delays at most by so much.
fn is_balanced(max_delay_us: u64) -> bool {
    (max_delay_us / 12).is_multiple_of(3)
}

/// Whether keys are partitioned by hash in a seed whose network delays at most by so much: in a quarter of the seeds, of those in
/// which regions are not to be divided, and members are not given time.
fn is_hashed(max_delay_us: u64) -> bool {
    max_delay_us % 4 == 3
}

fn table(nodes: usize, rng: &mut Rng) -> TableOptions {
    let placement = match rng.below(8) {
        0 | 1 => Placement::SEPARATED,
        2 => Placement::IN_PLACE,
        3 => Placement::threshold(200),
        4 => Placement::HYBRID,
        _ => Placement { medium_from: 60, large_from: 300 },
    };
    let min_in_sync = if nodes == 1 || rng.one_in(5) { 1 } else { 2 };
    let l0_bytes = [4, 8, 16, 32, 64][rng.index(5)] << 10;
    let growth_factor = rng.between(2, 6) as u32;
    // Not drawn, so that seeds stay what they were.
    let compression = match growth_factor {
        2 => Compression::all(Codec::None),
        3 => Compression::all(Codec::Zstd),
        4 => Compression { upper: Codec::Lz4, last: Codec::Zstd },
        _ => Compression { upper: Codec::None, last: Codec::Lz4 },
    };
    let compaction = if growth_factor == 6 { CompactionMode::WholeLevel } else { CompactionMode::Partial };
    let (l1_runs, replicas) = (growth_factor - 1, nodes as u32);
    let quorum = (nodes > 1 && matches!(growth_factor, 3 | 4)).then_some(2);
    let addressing = if growth_factor.is_multiple_of(2) { Addressing::Logical } else { Addressing::Physical };
    let posting = if growth_factor == 6 { Posting::PerRecord } else { Posting::Coalesced };
    let backups = if l0_bytes <= 8 << 10 { BackupMode::BuildIndex } else { BackupMode::SendIndex };
    TableOptions {
        backups,
        addressing,
        wire: compression.last,
        posting,
        l1_runs,
        compaction,
        placement,
        replicas,
        min_in_sync,
        l0_bytes,
        growth_factor,
        compression,
        quorum,
        ..TableOptions::default()
    }
}

/// A few kinds of fault a seed: a mixture of all of them would be the same mixture every time.
fn troubles(nodes: usize, theme: Theme, promise: Promise, rng: &mut Rng) -> Troubles {
    let mut kinds = theme.kinds().to_vec();
    kinds.retain(|kind| kind.is_possible(nodes, promise));
    rng.shuffle(&mut kinds);
    kinds.truncate(rng.between(1, 4) as usize);
    // A power loss beside a volume that has failed may take the only copy: nothing is promised then.
    let loses_power = kinds.iter().any(|kind| kind.loses_power());
    kinds.retain(|kind| *kind != FaultKind::DiskError || !loses_power);
    Troubles {
        end: Nanos::from_millis(rng.between(3_000, 8_000)),
        kinds,
        gap: Nanos::from_millis(rng.between(150, if theme == Theme::Power { 800 } else { 2_000 })),
        long: [0, 30, 60, 90][rng.index(4)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_and_are_possible() {
        let characters: Vec<Character> = (0..400).map(|seed| Character::choose(&mut Rng::new(seed))).collect();
        let names: std::collections::BTreeSet<String> = characters.iter().map(Character::name).collect();
        assert!(names.len() > 350, "only {} characters", names.len());
        for character in &characters {
            assert!(!character.troubles.kinds.is_empty());
            assert!(character.troubles.kinds.iter().all(|kind| kind.is_possible(character.nodes, character.promise)));
            assert!(!character.table.partition.is_hash() || character.splits_wished().is_empty());
            assert!(character.nodes == 3 || character.promise == Promise::AllButTheLastSecond);
        }
        let hashed = characters.iter().filter(|character| character.table.partition.is_hash()).count();
        assert!((75..125).contains(&hashed), "{hashed} of 400 are partitioned by hash");
        for kind in FaultKind::ALL {
            assert!(characters.iter().any(|character| character.troubles.kinds.contains(&kind)), "{kind:?}");
        }
    }

    /// How a table is replicated, what can be said of it in one word each.
    fn mode(character: &Character) -> [String; 4] {
        let TableOptions { replicas, backups, addressing, acknowledge, .. } = &character.table;
        [replicas.to_string(), backups.to_string(), addressing.to_string(), acknowledge.to_string()]
    }

    #[test]
    fn the_seeds_of_ci_have_every_mode_and_change_each() {
        let characters: Vec<Character> = crate::seeds::CI.map(|seed| Character::choose(&mut Rng::new(seed))).collect();
        let count = |wanted: &dyn Fn(&Character) -> bool| characters.iter().filter(|one| wanted(one)).count();
        let kills =
            [FaultKind::Kill, FaultKind::KillAll, FaultKind::PowerLoss, FaultKind::DiskKill, FaultKind::DiskPowerLoss];
        let crashes = |one: &Character| one.troubles.kinds.iter().any(|kind| kills.contains(kind));
        for replicas in ["2", "3"] {
            for backups in BackupMode::ALL.map(|mode| mode.to_string()) {
                for addressing in ["physical", "logical"] {
                    let wanted = [replicas, &backups, addressing];
                    let is_it = |one: &Character| mode(one)[..3] == wanted;
                    let altered = count(&|one| is_it(one) && !one.alterations().is_empty() && crashes(one));
                    assert!(count(&is_it) >= 20 && altered >= 3, "{wanted:?}: {altered} of {}", count(&is_it));
                    for acknowledge in ["last-write", "last-flush"] {
                        let those = count(&|one| is_it(one) && mode(one)[3] == acknowledge);
                        assert!(those > 0, "{wanted:?} {acknowledge}");
                    }
                }
                for wire in [Codec::None, Codec::Lz4, Codec::Zstd] {
                    let those = count(&|one| mode(one)[..2] == [replicas, &backups] && one.table.wire == wire);
                    assert!(those > 5, "{replicas} {backups} {wire}");
                }
            }
        }
    }
}

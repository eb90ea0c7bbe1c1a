//! What a seed is like: how many nodes, which table, what clients do, what breaks. Each seed has a character of its own,
//! so that a few hundred of them go to many corners instead of all to the same middle.

use crate::load::Habits;
use crate::world::FaultKind;
use bytes::Bytes;
use leeward_fabric::SimOptions;
use leeward_format::cluster::{Acknowledge, Addressing, BackupMode, CompactionMode, Placement, Posting, TableOptions};
use leeward_format::packed::{Codec, Compression};
use leeward_format::table::TableChange;
use leeward_platform::{Nanos, Rng};

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
        if promise == Promise::AllButTheLastSecond && nodes > 1 && table.growth_factor.is_multiple_of(2) {
            (table.acknowledge, table.max_unacked_bytes) = (Acknowledge::LastFlush, 16 << 10);
        }
        Character {
            nodes,
            table,
            splits: if rng.one_in(2) { vec![Bytes::from_static(b"m")] } else { Vec::new() },
            network: SimOptions {
                min_delay: Nanos::from_micros(20),
                max_delay: Nanos::from_micros(rng.between(100, 2_000)),
                min_detect: Nanos::from_millis(20),
                max_detect: Nanos::from_millis(300),
                retry_pause: Nanos::from_millis(50),
            },
            promise,
            habits: Habits::choose(nodes, rng),
            troubles: troubles(nodes, theme, promise, rng),
        }
    }

    /// When an operator changes how backups keep their copies and how they are sent records, and to what. Not drawn.
    pub(crate) fn alterations(&self) -> Vec<(Nanos, TableChange)> {
        if self.nodes == 1 || self.table.growth_factor != 5 {
            return Vec::new();
        }
        let [send, build] = BackupMode::ALL;
        let other = if self.table.backups == send { build } else { send };
        let times = [3, 5, 6].map(|eighths| Nanos(self.troubles.end.0 / 8 * eighths));
        let change =
            |backups, posting| TableChange { backups: Some(backups), posting: Some(posting), ..TableChange::default() };
        let (there, back) = (change(other, Posting::PerRecord), change(self.table.backups, Posting::Coalesced));
        times.into_iter().zip([there.clone(), back, there]).collect()
    }

    /// It in a few words.
    pub(crate) fn name(&self) -> String {
        let table = &self.table;
        format!(
            "{} nodes, {} regions, {:?}, {} {} {} {}, leaves {}/{}, L0 {} KiB, {} of {} in sync, {:?}; {:?}",
            self.nodes,
            self.splits.len() + 1,
            table.placement,
            table.backups,
            table.addressing,
            table.acknowledge,
            table.posting,
            table.compression.upper,
            table.compression.last,
            table.l0_bytes >> 10,
            table.min_in_sync,
            table.replicas,
            self.promise,
            self.troubles.kinds
        )
    }
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
            assert!(character.nodes == 3 || character.promise == Promise::AllButTheLastSecond);
        }
        for kind in FaultKind::ALL {
            assert!(characters.iter().any(|character| character.troubles.kinds.contains(&kind)), "{kind:?}");
        }
    }
}

//! The requests of the operator of a seed, and their times. The operator alters the table, moves, splits and merges
//! regions, and restarts and removes servers. Each kind of request is drawn by itself.

use super::Scenario;
use crate::world::FaultKind;
use bytes::Bytes;
use leeward_format::cluster::{Acknowledge, BackupMode, Intent, Posting, RegionRequest, TableOptions};
use leeward_format::op::Op;
use leeward_format::packed::Codec;
use leeward_format::table::TableChange;
use leeward_format::{RegionId, ServerId};
use leeward_platform::{Nanos, Rng};

/// Requests for moves in a seed that has any.
const MOVES: u64 = 16;
/// Requests for splits in a seed that has any.
const SPLITS: u64 = 8;
/// Requests for merges in a seed that has any.
const MERGES: u64 = 12;

/// Options of the table that are changed while it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alterations {
    backups: bool,
    posting: bool,
    /// `wire`, `min_in_sync` and `acknowledge`.
    others: bool,
}

/// The kinds of requests that the operator makes.
#[derive(Clone, Debug)]
pub(crate) struct Operator {
    alters: Option<Alterations>,
    pub(super) moves: bool,
    pub(super) splits: bool,
    pub(super) merges: bool,
    /// Begins the choices of regions, servers and keys.
    salt: u64,
}

impl Operator {
    /// The operator of `nodes` nodes. With one node there is nothing to move, and no replication to alter.
    pub(super) fn choose(nodes: usize, rng: &mut Rng) -> Operator {
        let alters = Alterations { backups: !rng.one_in(4), posting: rng.one_in(2), others: rng.one_in(2) };
        let (is_altered, moves) = (rng.one_in(3), !rng.one_in(3));
        Operator {
            alters: Some(alters).filter(|_| nodes > 1 && is_altered),
            moves: nodes > 1 && moves,
            splits: rng.one_in(2),
            merges: rng.one_in(2),
            salt: rng.below(10_000),
        }
    }

    /// Each choice and its value.
    pub(super) fn labels(&self) -> Vec<(&'static str, String)> {
        vec![
            ("altered", self.alters.is_some().to_string()),
            ("moves", self.moves.to_string()),
            ("splits", self.splits.to_string()),
            ("merges", self.merges.to_string()),
        ]
    }
}

impl Scenario {
    /// When the operator changes how the table is replicated, and how: three times.
    pub(crate) fn alterations(&self) -> Vec<(Nanos, TableChange)> {
        let table = &self.table;
        let Some(alters) = self.operator.alters else { return Vec::new() };
        let others: Vec<BackupMode> = BackupMode::ALL.into_iter().filter(|mode| *mode != table.backups).collect();
        let other = |number: u64| others[(self.operator.salt + number) as usize % others.len()];
        let [mut first, mut second, mut third] = [other(0), table.backups, other(1)]
            .map(|backups| TableChange { backups: Some(backups).filter(|_| alters.backups), ..TableChange::default() });
        if alters.posting {
            let [coalesced, per_record] = Posting::ALL;
            let (one, other) =
                if table.posting == coalesced { (per_record, coalesced) } else { (coalesced, per_record) };
            (first.posting, second.posting, third.posting) = (Some(one), Some(other), Some(one));
        }
        if alters.others {
            (first.wire, second.wire, third.wire) = (Some(Codec::None), Some(Codec::Lz4), Some(Codec::Zstd));
            (first.min_in_sync, third.min_in_sync) = (Some(1), Some(table.min_in_sync));
            // The verdict on lost writes uses the option that the table begins with.
            if table.acknowledge == Acknowledge::LastFlush {
                (first.acknowledge, second.acknowledge) = (Some(Acknowledge::LastWrite), Some(Acknowledge::LastFlush));
            }
        }
        let times = [3, 5, 6].map(|eighths| Nanos(self.fault_schedule.end.0 / 8 * eighths));
        times.into_iter().zip([first, second, third]).collect()
    }

    /// The replicas, backup mode and addressing of a table whose mode is changed beside crashes.
    pub(crate) fn conversion(&self) -> Option<String> {
        let kills =
            [FaultKind::Kill, FaultKind::KillAll, FaultKind::PowerLoss, FaultKind::DiskKill, FaultKind::DiskPowerLoss];
        let TableOptions { replicas, backups, addressing, .. } = &self.table;
        let mode = match backups {
            BackupMode::TwoLayerLog { .. } => BackupMode::TWO_LAYER_LOG,
            mode => *mode,
        };
        let crashes = self.fault_schedule.kinds.iter().any(|kind| kills.contains(kind));
        let is_altered = !self.alterations().is_empty();
        (crashes && is_altered).then(|| format!("{replicas} replicas, {mode}, {addressing}"))
    }

    /// What the operator requests of regions and servers, and when.
    pub(crate) fn desired(&self) -> Vec<(Nanos, Op)> {
        let mut desired = self.moves();
        desired.extend(self.splits_requested());
        desired
    }

    /// Requests for splits, also of regions that were split off.
    fn splits_requested(&self) -> Vec<(Nanos, Op)> {
        if !self.operator.splits {
            return Vec::new();
        }
        let salt = self.operator.salt;
        let regions = self.regions();
        let keys = [None, Some("b4"), Some("k000004"), None, Some("z3"), Some("q000003"), Some("b7")];
        let request = |number: u64| {
            let at = keys[(salt / 4 + number) as usize % keys.len()].map(|key: &'static str| Bytes::from(key));
            let request =
                if (salt + number).is_multiple_of(9) { RegionRequest::KeepBounds } else { RegionRequest::Split { at } };
            Op::RequestRegion { region: RegionId(1 + ((salt / 2 + number) % (regions + number / 2)) as u32), request }
        };
        let first = Nanos::from_millis(600);
        (0..SPLITS)
            .map(|number| (first + Nanos(self.fault_schedule.end.since(first).0 * number / SPLITS), request(number)))
            .collect()
    }

    /// When the operator requests the merge of two neighbours.
    pub(crate) fn merges(&self) -> Vec<Nanos> {
        let times = if self.operator.merges { MERGES } else { 0 };
        let first = Nanos::from_millis(800);
        (0..times).map(|number| first + Nanos(self.fault_schedule.end.since(first).0 * number / MERGES)).collect()
    }

    /// Requests that move primaries and replicas to other servers.
    fn moves(&self) -> Vec<(Nanos, Op)> {
        if !self.operator.moves {
            return Vec::new();
        }
        let salt = self.operator.salt;
        let (nodes, regions) = (self.nodes as u64, self.regions());
        let server = |number: u64| ServerId(1 + (number % nodes) as u32);
        let request = |number: u64| {
            let region = RegionId(1 + (number % regions) as u32);
            match (salt / 3 + number) % 8 {
                0 => Op::Intend { server: server(salt), intent: Some(Intent::Restart) },
                1 => Op::Intend { server: server(salt + number), intent: Some(Intent::Leave) },
                2 | 3 => Op::Intend { server: server(salt + number - 2), intent: None },
                4 => Op::RequestRegion {
                    region,
                    request: RegionRequest::Move { from: server(number), to: server(number + 1) },
                },
                _ => Op::RequestRegion { region, request: RegionRequest::Primary(server(salt + number)) },
            }
        };
        let first = Nanos::from_millis(700);
        (0..MOVES)
            .map(|number| (first + Nanos(self.fault_schedule.end.since(first).0 * number / MOVES), request(number)))
            .collect()
    }
}

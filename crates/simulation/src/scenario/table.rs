//! The options of a seed's table. Each is drawn by itself, so that some seed has every pair of values. A table that the product
//! refuses is drawn again as a whole. Called by [`super::Scenario::choose`]. The tests count the pairs.
//!
//! A run is short, so sizes are fractions of those that the product allows ([`in_production`]).

use crate::world::SEGMENT_BYTES;
use leeward_format::cluster::{
    Acknowledge, Addressing, BackupMode, CompactionMode, Placement, Posting, Preset, Reads, TableOptions,
};
use leeward_format::packed::{Codec, Compression};
use leeward_format::partition::Partition;
use leeward_platform::Rng;

/// Regions, at the beginning, of a table that is partitioned by hash, until the seed says how many it has.
const TOKENS: u32 = 1;
/// Segments at which the master splits a region, where it splits by size.
const SPLIT_SEGMENTS: u64 = 11;
/// A run makes few L0s, so the ordering degrees are low. Changes of the table bring the default one.
const BACKUPS: [BackupMode; 6] = [
    BackupMode::SendIndex,
    BackupMode::SendIndex,
    BackupMode::BuildIndex,
    BackupMode::BuildIndex,
    BackupMode::TwoLayerLog { ordering_degree: 1 },
    BackupMode::TwoLayerLog { ordering_degree: 4 },
];
/// An L0 is smaller by this factor than the smallest that the product allows.
const L0_SHRINK: u64 = 16;
/// The size at which a region is split is smaller by this factor than in production.
const SPLIT_SHRINK: u64 = 1 << 10;

/// Sets an option to one of its values.
pub(super) type Set = Box<dyn Fn(&mut TableOptions)>;

/// An option, and the values among which it is drawn. A value that is listed twice is drawn twice as often.
pub(super) struct Choice {
    pub(super) values: Vec<Set>,
    /// Part of a preset: a table with a preset does not draw it.
    is_of_preset: bool,
}

fn among<T: Copy + 'static, const N: usize>(values: [T; N], set: fn(&mut TableOptions, T)) -> Choice {
    let of = |value: T| Box::new(move |table: &mut TableOptions| set(table, value)) as Set;
    Choice { values: values.into_iter().map(of).collect(), is_of_preset: true }
}

/// As [`among`], for the options that no preset sets: copies and sizes.
fn beside_preset<T: Copy + 'static, const N: usize>(values: [T; N], set: fn(&mut TableOptions, T)) -> Choice {
    Choice { is_of_preset: false, ..among(values, set) }
}

/// How many copies there are, and which of them count towards an acknowledgement.
fn copies() -> Vec<Choice> {
    let any = Reads::Any { max_staleness_ms: 2_000 };
    vec![
        beside_preset([1, 2, 2, 3, 3, 3, 3], |table, replicas| table.replicas = replicas),
        beside_preset([1, 1, 2, 2, 3], |table, members| table.min_in_sync = members),
        among([None, None, None, Some(2), Some(2), Some(3)], |table, quorum| table.quorum = quorum),
        among(Acknowledge::ALL, |table, when| table.acknowledge = when),
        among([4 << 10, 16 << 10, 1 << 20], |table, bytes| table.max_unacked_bytes = bytes),
        among(Posting::ALL, |table, posting| table.posting = posting),
        among(BACKUPS, |table, backups| table.backups = backups),
        among(Addressing::ALL, |table, addressing| table.addressing = addressing),
        among([Codec::None, Codec::Lz4, Codec::Zstd], |table, wire| table.wire = wire),
        among([Reads::Primary, any], |table, reads| table.reads = reads.into()),
        among([Partition::Range, Partition::Range, Partition::Hash { tokens: TOKENS }], |table, partition| {
            table.partition = partition;
        }),
        beside_preset([0, SPLIT_SEGMENTS * SEGMENT_BYTES as u64, 8 << 30], |table, bytes| table.split_bytes = bytes),
    ]
}

/// How data is stored, and what compactions do.
fn levels() -> Vec<Choice> {
    let small = Placement { medium_from: 60, large_from: 300 };
    let placements =
        [Placement::SEPARATED, Placement::IN_PLACE, Placement::threshold(200), Placement::HYBRID, small, small];
    let codecs = [Codec::None, Codec::Lz4, Codec::Zstd];
    vec![
        among(placements, |table, placement| table.placement = placement),
        beside_preset([4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10], |table, bytes| table.l0_bytes = bytes),
        beside_preset([2, 3, 4, 5, 6, 8], |table, factor| table.growth_factor = factor),
        among([1, 2, 3, 4, 5, 6], |table, runs| table.l1_runs = runs),
        among([CompactionMode::Partial, CompactionMode::WholeLevel], |table, mode| table.compaction = mode),
        among(codecs, |table, codec| table.compression = Compression { upper: codec, ..table.compression }),
        among(codecs, |table, codec| table.compression = Compression { last: codec, ..table.compression }),
        among([10, 10, 1, 60], |table, percent| table.garbage_percent = percent),
        among([0, 0, 1], |table, mib| table.garbage_mib_per_second = mib),
        among([130, 130, 105, 1_000], |table, percent| table.max_space_percent = percent),
    ]
}

/// Every option that is drawn.
pub(super) fn choices() -> Vec<Choice> {
    copies().into_iter().chain(levels()).collect()
}

/// The same table with the sizes that it would have in production. The product's own check accepts or refuses that one.
pub(super) fn in_production(table: &TableOptions) -> TableOptions {
    TableOptions {
        l0_bytes: table.l0_bytes * L0_SHRINK,
        split_bytes: table.split_bytes * SPLIT_SHRINK,
        ..table.clone()
    }
}

/// Whether `nodes` nodes can have such a table: the product accepts it, and there is a node for each of its copies. With several
/// nodes a table has several copies, so that there is something to compare.
pub(super) fn is_possible(table: &TableOptions, nodes: usize) -> bool {
    let is_enough = if nodes == 1 { table.replicas == 1 } else { (2..=nodes as u32).contains(&table.replicas) };
    is_enough && in_production(table).check().is_ok()
}

/// A table for `nodes` nodes. If `preset` is given, the table has all of its options.
pub(super) fn draw(nodes: usize, preset: Option<Preset>, rng: &mut Rng) -> TableOptions {
    let choices = choices();
    loop {
        let mut table = preset.map_or_else(TableOptions::default, Preset::options);
        for choice in choices.iter().filter(|choice| preset.is_none() || !choice.is_of_preset) {
            choice.values[rng.index(choice.values.len())](&mut table);
        }
        if is_possible(&table, nodes) {
            return table;
        }
    }
}

/// Each option and its value.
pub(super) fn labels(table: &TableOptions) -> Vec<(&'static str, String)> {
    let Placement { medium_from, large_from } = table.placement;
    vec![
        ("replicas", table.replicas.to_string()),
        ("min_in_sync", table.min_in_sync.to_string()),
        ("quorum", table.quorum.map_or("none".into(), |quorum| quorum.to_string())),
        ("acknowledge", table.acknowledge.to_string()),
        ("max_unacked_bytes", table.max_unacked_bytes.to_string()),
        ("posting", table.posting.to_string()),
        ("backups", table.backups.to_string()),
        ("addressing", table.addressing.to_string()),
        ("wire", table.wire.to_string()),
        ("reads", table.reads.stale.to_string()),
        ("partition", if table.partition.is_hash() { "hash" } else { "range" }.into()),
        ("split_bytes", table.split_bytes.to_string()),
        ("placement", format!("{medium_from}/{large_from}")),
        ("l0_bytes", table.l0_bytes.to_string()),
        ("growth_factor", table.growth_factor.to_string()),
        ("l1_runs", table.l1_runs.to_string()),
        ("compaction", table.compaction.to_string()),
        ("upper", table.compression.upper.to_string()),
        ("last", table.compression.last.to_string()),
        ("garbage_percent", table.garbage_percent.to_string()),
        ("garbage_mib_per_second", table.garbage_mib_per_second.to_string()),
        ("max_space_percent", table.max_space_percent.to_string()),
    ]
}

//! Presets: sets of table options that go together, by the names that operators and the simulation use. Plain data.

use super::{Addressing, BackupMode, CompactionMode, IndexKind, Placement, ReadPaths, Scans, TableOptions};
use crate::partition::{DEFAULT_TOKENS, Partition};

/// A named set of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preset {
    /// The default: as `anthus`, but with logical addressing, so backups rewrite nothing.
    Default,
    /// Small pairs in leaves, medium ones in sorted runs and in the last level in leaves, large ones in the large log;
    /// physical addressing.
    Anthus,
    /// Every value in the large log; whole levels are merged, from L0 on; physical addressing. Also called `talos`.
    Tebis,
    /// As `anthus`, but each backup builds its own index: the baseline of the papers.
    BuildIndex,
    /// Every value in leaves; partitioned by hash; backups with two-layer logs (DEPART).
    Depart,
    /// Every value in the large log; partitioned by hash; a hash index at the primary, and a sorted one that each backup
    /// builds and answers scans from (HiStore).
    Histore,
    /// As `histore`, but backups get the index that the primary builds.
    HistoreSend,
}

impl Preset {
    /// All of them.
    pub const ALL: [Preset; 7] = [
        Preset::Default,
        Preset::Anthus,
        Preset::Tebis,
        Preset::BuildIndex,
        Preset::Depart,
        Preset::Histore,
        Preset::HistoreSend,
    ];

    /// The defaults, with what the preset sets in their place.
    pub fn options(self) -> TableOptions {
        let default = TableOptions::default();
        let anthus = TableOptions { placement: Placement::HYBRID, addressing: Addressing::Physical, ..default.clone() };
        match self {
            Preset::Default => default,
            Preset::Anthus => anthus,
            Preset::Tebis => {
                let compaction = CompactionMode::WholeLevel;
                TableOptions { placement: Placement::SEPARATED, l1_runs: 1, compaction, ..anthus }
            }
            Preset::BuildIndex => TableOptions { backups: BackupMode::BuildIndex, ..anthus },
            Preset::Depart => {
                let (placement, partition) = (Placement::IN_PLACE, Partition::Hash { tokens: DEFAULT_TOKENS });
                TableOptions { placement, partition, backups: BackupMode::TWO_LAYER_LOG, ..default }
            }
            Preset::Histore => TableOptions { backups: BackupMode::BuildIndex, ..Preset::HistoreSend.options() },
            Preset::HistoreSend => {
                let (placement, partition) = (Placement::SEPARATED, Partition::Hash { tokens: DEFAULT_TOKENS });
                let reads = ReadPaths { index: IndexKind::Hybrid, scans: Scans::Backups, ..ReadPaths::default() };
                TableOptions { placement, partition, reads, ..default }
            }
        }
    }
}

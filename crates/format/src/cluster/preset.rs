//! Presets: sets of table options that go together, by the names that operators and the simulation use. Plain data.

use super::{Addressing, BackupMode, CompactionMode, Placement, TableOptions};
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
}

impl Preset {
    /// All of them.
    pub const ALL: [Preset; 5] = [Preset::Default, Preset::Anthus, Preset::Tebis, Preset::BuildIndex, Preset::Depart];

    /// Its options.
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
        }
    }
}

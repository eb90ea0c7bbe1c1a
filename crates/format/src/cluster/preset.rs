//! Presets: sets of table options that go together, by the names that operators and the simulation use. Plain data.

use super::{Addressing, BackupMode, CompactionMode, Placement, TableOptions};

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
}

impl Preset {
    /// All of them.
    pub const ALL: [Preset; 4] = [Preset::Default, Preset::Anthus, Preset::Tebis, Preset::BuildIndex];

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
        }
    }
}

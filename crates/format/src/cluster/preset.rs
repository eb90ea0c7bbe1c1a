//! Presets: sets of table options that go together, by the names that operators and the simulation use. Plain data.

use super::{Addressing, BackupMode, CompactionMode, IndexKind, Placement, ReadPaths, Scans, TableOptions};
use crate::partition::{DEFAULT_TOKENS, Partition};

/// A named set of options. [`Preset::about`] says what each sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preset {
    /// What a table has unless its creator says otherwise.
    Default,
    /// Of Parallax and Anthus.
    Anthus,
    /// Of Tebis and Talos.
    Tebis,
    /// The baseline of the papers.
    BuildIndex,
    /// Of DEPART.
    Depart,
    /// Of HiStore.
    Histore,
    /// Of HiStore, with an index that is sent.
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

    /// As operators write it.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Default => "default",
            Preset::Anthus => "anthus",
            Preset::Tebis => "tebis",
            Preset::BuildIndex => "build-index",
            Preset::Depart => "depart",
            Preset::Histore => "histore",
            Preset::HistoreSend => "histore-send",
        }
    }

    /// Another name of it, if it has one.
    pub fn alias(self) -> Option<&'static str> {
        (self == Preset::Tebis).then_some("talos")
    }

    /// The preset of that name.
    pub fn of_name(name: &str) -> Option<Preset> {
        Preset::ALL.into_iter().find(|preset| preset.name() == name || preset.alias() == Some(name))
    }

    /// What it sets, in a line.
    pub fn about(self) -> &'static str {
        match self {
            Preset::Default => "Suits most uses: as anthus, but backups rewrite nothing",
            Preset::Anthus => {
                "Small pairs in leaves, medium ones in sorted runs until the last level, large ones in the large log; physical \
                 addressing"
            }
            Preset::Tebis => "Every value in the large log; whole levels are merged, from L0 on; physical addressing",
            Preset::BuildIndex => "As anthus, but each backup builds its own index: the baseline of the papers",
            Preset::Depart => "Every value in leaves; partitioned by hash; backups keep two-layer logs",
            Preset::Histore => {
                "Every value in the large log; partitioned by hash; a hash index at the primary; each backup builds an index and \
                 answers scans from it"
            }
            Preset::HistoreSend => "As histore, but the primary ships its index to the backups",
        }
    }

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

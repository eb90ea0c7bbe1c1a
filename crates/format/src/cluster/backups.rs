//! How backups keep their copies: with the index that the primary ships, or with one that they build themselves, as an
//! LSM tree or as a two-layer log. Plain data, the same on every replica.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// How backups keep their copies of a table's regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackupMode {
    /// The primary ships the segments that its compactions build (Tebis 3.3). A backup has no L0, merges nothing, and
    /// reads nothing from its device.
    #[default]
    SendIndex,
    /// The papers' baseline: a backup builds its index from the mirrored logs, with an L0 and compactions of its own.
    /// How far it may lag behind the primary is bounded (Anthus 3.3.3).
    BuildIndex,
    /// As [`BackupMode::BuildIndex`], but a backup sorts less: each L0 becomes a sorted run, and all runs are merged into
    /// one once there are too many (DEPART 4.3, 4.4).
    TwoLayerLog {
        /// Most sorted runs of a copy, from 1 to [`BackupMode::MOST_RUNS`]. With 1, each L0 is merged with the whole
        /// copy. More runs mean less writing, and more work for each read at a backup (DEPART 4.4: `S`).
        ordering_degree: u8,
    },
}

impl BackupMode {
    /// The highest ordering degree.
    pub const MOST_RUNS: u8 = 31;
    /// Ordering degrees that a table may have.
    pub const ORDERING_DEGREES: RangeInclusive<u8> = 1..=BackupMode::MOST_RUNS;
    /// The ordering degree of DEPART (5.1).
    pub const DEFAULT_ORDERING_DEGREE: u8 = 20;
    /// A two-layer log of the default ordering degree.
    pub const TWO_LAYER_LOG: BackupMode =
        BackupMode::TwoLayerLog { ordering_degree: BackupMode::DEFAULT_ORDERING_DEGREE };
    /// Each of them; the last with its default.
    pub const ALL: [BackupMode; 3] = [BackupMode::SendIndex, BackupMode::BuildIndex, BackupMode::TWO_LAYER_LOG];

    /// Whether the primary ships its index to the backups. Otherwise they build their own.
    pub fn ships_index(self) -> bool {
        self == BackupMode::SendIndex
    }

    /// Whether a backup builds its own index.
    pub fn builds_index(self) -> bool {
        !self.ships_index()
    }

    /// Most sorted runs of a copy, if it is a two-layer log.
    pub fn ordering_degree(self) -> Option<u8> {
        match self {
            BackupMode::TwoLayerLog { ordering_degree } => Some(ordering_degree),
            BackupMode::SendIndex | BackupMode::BuildIndex => None,
        }
    }
}

const SEND_INDEX: &str = "send-index";
const BUILD_INDEX: &str = "build-index";
const TWO_LAYER_LOG: &str = "two-layer-log";

impl fmt::Display for BackupMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            BackupMode::SendIndex => f.pad(SEND_INDEX),
            BackupMode::BuildIndex => f.pad(BUILD_INDEX),
            BackupMode::TWO_LAYER_LOG => f.pad(TWO_LAYER_LOG),
            BackupMode::TwoLayerLog { ordering_degree } => f.pad(&format!("{TWO_LAYER_LOG}:{ordering_degree}")),
        }
    }
}

impl FromStr for BackupMode {
    type Err = String;
    fn from_str(text: &str) -> Result<BackupMode, String> {
        if let Some(known) = BackupMode::ALL.into_iter().find(|mode| mode.to_string() == text) {
            return Ok(known);
        }
        let degrees = BackupMode::ORDERING_DEGREES;
        let (least, most) = (degrees.start(), degrees.end());
        let degree = text.strip_prefix(TWO_LAYER_LOG).and_then(|rest| rest.strip_prefix(':'));
        match degree.map(|degree| degree.parse().ok().filter(|degree| degrees.contains(degree))) {
            Some(Some(ordering_degree)) => Ok(BackupMode::TwoLayerLog { ordering_degree }),
            Some(None) => Err(format!("{text:?}: a {TWO_LAYER_LOG} has from {least} to {most} sorted runs")),
            None => Err(format!(
                "{text:?} is no way to keep a backup: it is {SEND_INDEX}, {BUILD_INDEX}, {TWO_LAYER_LOG} or \
                 {TWO_LAYER_LOG}:RUNS"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_has_a_name() {
        let ten = BackupMode::TwoLayerLog { ordering_degree: 10 };
        for mode in BackupMode::ALL.into_iter().chain([ten]) {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!("two-layer-log:20".parse(), Ok(BackupMode::TWO_LAYER_LOG));
        for wrong in ["two-layer-log:0", "two-layer-log:32", "two-layer-log:", "two-layer-log:x", "two-layer", ""] {
            assert!(wrong.parse::<BackupMode>().is_err(), "{wrong}");
        }
    }
}

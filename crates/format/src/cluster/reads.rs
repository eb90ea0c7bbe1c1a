//! How reads of a table are answered: from which index, and by which members. Plain data; any thread.

use super::either::either;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Which members answer reads that accept a stale answer. The primary answers all other reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reads {
    /// None but the primary, so no answer is stale.
    #[default]
    Primary,
    /// Every member in sync: a backup keeps an index of the newest records in memory, an L0, as its primary does.
    Any {
        /// Backups answer nothing that may be staler, in milliseconds, even if the reader would accept it.
        max_staleness_ms: u32,
    },
}

impl Reads {
    /// Allowed values of `max_staleness_ms`.
    pub const STALENESS_MS: RangeInclusive<u32> = 50..=600_000;
    /// [`Reads::Any`] with the default staleness, 1000 ms.
    pub const ANY: Reads = Reads::Any { max_staleness_ms: 1000 };

    /// How stale, in milliseconds, a backup's answer may be to a reader that accepts `at_most_ms`; `None`: backups
    /// answer nothing.
    pub fn at_most(self, at_most_ms: u32) -> Option<u32> {
        match self {
            Reads::Primary => None,
            Reads::Any { max_staleness_ms } => Some(max_staleness_ms.min(at_most_ms)),
        }
    }
}

/// What a primary answers reads from. It touches no stored bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum IndexKind {
    /// L0s and levels.
    #[default]
    Lsm,
    /// The same, and beside them a hash table in memory: the newest committed version of each hot key. Clients read it
    /// by one-sided reads (HiStore 3.2, 4.1).
    Hybrid,
}

either!(IndexKind, "no kind of index", Lsm = "lsm", Hybrid = "hybrid");

/// Which members answer scans that accept no stale answer (HiStore 3.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scans {
    /// None but the primary, which needs no question first.
    #[default]
    Primary,
    /// Backups, which ask the primary for its safe LSN first. The primary answers where a backup cannot.
    Backups,
}

either!(Scans, "no way to answer scans", Primary = "primary", Backups = "backups");

/// How reads of a table are answered. It touches no stored bytes.
///
/// Where index and scans are the default, it is encoded as its [`Reads`] alone, as in volumes up to version 10.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Encoded", into = "Encoded")]
pub struct ReadPaths {
    /// Which members answer reads that accept a stale answer.
    pub stale: Reads,
    /// What the primary answers reads from.
    pub index: IndexKind,
    /// Which members answer scans.
    pub scans: Scans,
}

impl ReadPaths {
    /// Whether backups answer any reads, so that their copies must be readable.
    pub fn is_at_backups(self) -> bool {
        self.stale != Reads::Primary || self.scans == Scans::Backups
    }

    /// How stale, in milliseconds, a backup's answer may be to a read that accepts `at_most_ms`. 0: it is as of an instant
    /// after the call. `None`: backups do not answer it.
    pub fn at_most(self, at_most_ms: u32, is_scan: bool) -> Option<u32> {
        let fresh = (is_scan && self.scans == Scans::Backups).then_some(0);
        self.stale.at_most(at_most_ms).or(fresh)
    }
}

impl From<Reads> for ReadPaths {
    fn from(stale: Reads) -> ReadPaths {
        ReadPaths { stale, ..ReadPaths::default() }
    }
}

/// The first two have the numbers and fields of [`Reads`].
#[derive(Serialize, Deserialize)]
enum Encoded {
    Primary,
    Any { max_staleness_ms: u32 },
    Paths { stale: Reads, index: IndexKind, scans: Scans },
}

impl From<ReadPaths> for Encoded {
    fn from(ReadPaths { stale, index, scans }: ReadPaths) -> Encoded {
        match (stale, index, scans) {
            (Reads::Primary, IndexKind::Lsm, Scans::Primary) => Encoded::Primary,
            (Reads::Any { max_staleness_ms }, IndexKind::Lsm, Scans::Primary) => Encoded::Any { max_staleness_ms },
            _ => Encoded::Paths { stale, index, scans },
        }
    }
}

impl From<Encoded> for ReadPaths {
    fn from(encoded: Encoded) -> ReadPaths {
        match encoded {
            Encoded::Primary => ReadPaths::default(),
            Encoded::Any { max_staleness_ms } => Reads::Any { max_staleness_ms }.into(),
            Encoded::Paths { stale, index, scans } => ReadPaths { stale, index, scans },
        }
    }
}

impl fmt::Display for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reads::Primary => f.pad("primary"),
            Reads::Any { max_staleness_ms } => write!(f, "any:{max_staleness_ms}"),
        }
    }
}

impl FromStr for Reads {
    type Err = String;
    fn from_str(text: &str) -> Result<Reads, String> {
        match text.split_once(':').map_or((text, None), |(members, bound)| (members, Some(bound))) {
            ("primary", None) => Ok(Reads::Primary),
            ("any", None) => Ok(Reads::ANY),
            ("any", Some(bound)) => match bound.parse() {
                Ok(max_staleness_ms) => Ok(Reads::Any { max_staleness_ms }),
                Err(_) => Err(format!("{bound:?} is no number of milliseconds")),
            },
            _ => {
                Err(format!("{text:?} does not say which members answer reads: use primary, any, or any:MILLISECONDS"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_that_is_shown_is_parsed_again() {
        for reads in [Reads::Primary, Reads::ANY, Reads::Any { max_staleness_ms: 250 }] {
            assert_eq!(reads.to_string().parse(), Ok(reads));
        }
        assert_eq!("any".parse(), Ok(Reads::ANY));
        for wrong in ["", "backup", "primary:5", "any:", "any:5s", "any:-1"] {
            assert!(wrong.parse::<Reads>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_stricter_bound_counts() {
        assert_eq!(Reads::ANY.at_most(200), Some(200));
        assert_eq!(Reads::ANY.at_most(u32::MAX), Some(1000));
        assert_eq!(Reads::Primary.at_most(200), None);
    }

    #[test]
    fn tables_without_other_paths_are_encoded_as_before_there_were_any() {
        for reads in [Reads::Primary, Reads::Any { max_staleness_ms: 300 }] {
            let encoded = postcard::to_stdvec(&reads).unwrap();
            assert_eq!(postcard::to_stdvec(&ReadPaths::from(reads)).unwrap(), encoded);
            assert_eq!(postcard::from_bytes(&encoded), Ok(ReadPaths::from(reads)));
            for (index, scans) in [
                (IndexKind::Hybrid, Scans::Primary),
                (IndexKind::Lsm, Scans::Backups),
                (IndexKind::Hybrid, Scans::Backups),
            ] {
                let paths = ReadPaths { stale: reads, index, scans };
                assert_eq!(postcard::from_bytes(&postcard::to_stdvec(&paths).unwrap()), Ok(paths));
            }
        }
    }

    #[test]
    fn backups_answer_what_the_table_says() {
        let (none, any) = (ReadPaths::default(), ReadPaths::from(Reads::ANY));
        assert_eq!(
            (none.at_most(500, true), any.at_most(500, true), any.at_most(0, false)),
            (None, Some(500), Some(0))
        );
        let scans = ReadPaths { scans: Scans::Backups, ..none };
        assert_eq!((scans.at_most(500, true), scans.at_most(500, false)), (Some(0), None));
        assert!(!none.is_at_backups() && any.is_at_backups() && scans.is_at_backups());
    }
}

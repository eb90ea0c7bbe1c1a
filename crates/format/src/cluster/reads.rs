//! Which members may answer reads of a table. Plain data; any thread.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Which members answer reads that accept a stale answer. The primary answers all other reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reads {
    /// The primary.
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
}

//! The stamp of a version of a key: its LSN and, if it has one, the instant at which it expires.
//!
//! Pure values; any thread may use them.

use crate::{DecodeError, Lsn};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

/// An instant by the wall clock: milliseconds since 1970 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UnixMs(pub u64);

/// The instant from which on a pair reads as absent: milliseconds since 1970 UTC, 1 to 2^48 - 1 (in the year 10889).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Expiry(NonZeroU64);

impl Expiry {
    /// The last possible expiry.
    pub const MAX_MS: u64 = (1 << 48) - 1;

    /// `ms` milliseconds after 1970 UTC; `None` if that is 0 or more than [`Expiry::MAX_MS`].
    pub const fn from_ms(ms: u64) -> Option<Expiry> {
        match NonZeroU64::new(ms) {
            Some(ms) if ms.get() <= Expiry::MAX_MS => Some(Expiry(ms)),
            _ => None,
        }
    }

    /// `ttl` after `now`, limited to the possible instants.
    pub fn after(now: UnixMs, ttl: Duration) -> Expiry {
        let ms = u128::from(now.0) + ttl.as_millis();
        let ms = u64::try_from(ms).unwrap_or(u64::MAX).clamp(1, Expiry::MAX_MS);
        Expiry::from_ms(ms).expect("it is within the bounds")
    }

    /// Milliseconds since 1970 UTC.
    pub const fn ms(self) -> u64 {
        self.0.get()
    }

    /// Whether it has passed at `now`.
    pub const fn is_over(self, now: UnixMs) -> bool {
        self.0.get() <= now.0
    }
}

impl TryFrom<u64> for Expiry {
    type Error = DecodeError;

    fn try_from(ms: u64) -> Result<Expiry, DecodeError> {
        Expiry::from_ms(ms).ok_or_else(|| DecodeError::invalid("expiry", format!("{ms} ms since 1970")))
    }
}

impl From<Expiry> for u64 {
    fn from(expiry: Expiry) -> u64 {
        expiry.ms()
    }
}

impl fmt::Debug for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expiry({})", self.0)
    }
}

/// LSN of a version of a key, and when it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Its place in the region's history.
    pub lsn: Lsn,
    /// From then on the key reads as deleted by this version; `None`: never. A compaction replaces an expired pair by a
    /// tombstone with the pair's expiry. Reads as of an earlier instant cannot know the value any more.
    pub expires: Option<Expiry>,
}

impl Stamp {
    /// Whether it has expired at `now`.
    #[inline]
    pub fn is_over(self, now: UnixMs) -> bool {
        self.expires.is_some_and(|expires| expires.is_over(now))
    }
}

/// A stamp that never expires.
impl From<Lsn> for Stamp {
    #[inline]
    fn from(lsn: Lsn) -> Stamp {
        Stamp { lsn, expires: None }
    }
}

//! Pauses that grow while something keeps failing.

use crate::Nanos;

/// Exponential backoff: a pause of `first` after one failure, twice as long after each further one in a row, at most
/// `most`. The owner counts the failures.
///
/// ```
/// # use leeward_platform::{Backoff, Nanos};
/// let backoff = Backoff { first: Nanos::from_millis(50), most: Nanos::from_millis(300) };
/// assert_eq!([0, 1, 2, 3, 4].map(|earlier| backoff.after(earlier).as_millis()), [50, 100, 200, 300, 300]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The shortest pause, in nanoseconds.
    pub first: Nanos,
    /// The longest, in nanoseconds.
    pub most: Nanos,
}

impl Backoff {
    /// Pauses that grow to `times` the first.
    pub const fn up_to_times(first: Nanos, times: u64) -> Backoff {
        Backoff { first, most: Nanos(first.0.saturating_mul(times)) }
    }

    /// The pause, in nanoseconds, after a failure that follows `earlier` others in a row.
    pub fn after(self, earlier: u32) -> Nanos {
        let times = 1_u64.checked_shl(earlier).unwrap_or(u64::MAX);
        Nanos(self.first.0.saturating_mul(times)).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let backoff = Backoff::up_to_times(Nanos(50), 128);
        let pauses = [0, 1, 2, 6, 7, 8, 63, 64, u32::MAX].map(|earlier| backoff.after(earlier).0);
        assert_eq!(pauses, [50, 100, 200, 3_200, 6_400, 6_400, 6_400, 6_400, 6_400]);
        assert_eq!(Backoff { first: Nanos(9), most: Nanos(5) }.after(0), Nanos(5), "the first is too long already");
    }

    #[test]
    fn nothing_overflows_and_no_pause_stays_none() {
        let backoff = Backoff { first: Nanos(3), most: Nanos::MAX };
        assert_eq!(
            [61, 62, 63, 64].map(|earlier| backoff.after(earlier)),
            [Nanos(3 << 61), Nanos(3 << 62), Nanos::MAX, Nanos::MAX]
        );
        assert_eq!(Backoff::up_to_times(Nanos(u64::MAX / 2), 16).after(9), Nanos::MAX);
        assert_eq!(Backoff { first: Nanos::ZERO, most: Nanos::MAX }.after(u32::MAX), Nanos::ZERO);
    }
}

//! Detects that this machine's boot clock was stopped, by comparison with the wall clock.
//!
//! When a hypervisor stops a virtual machine, the machine's clocks stop too. After it resumes, its boot clock does not
//! show the time that has passed, and a lease counted by that clock still seems valid. The wall clock shows that time
//! once the hypervisor's agent or NTP sets it. So once wall time and boot time diverge, the node drops every lease that
//! it holds. Until the wall clock is set, nothing shows the stop: a lease may then be relied on for the time that it
//! had left when the machine was stopped.
//!
//! A wall clock may also be slewed, by up to 10 % on Linux, and clocks of machines differ a little. So much divergence
//! does not count as a stop. A stop that is too short to be noticed is shorter than the margin of a lease. An
//! age has no such margin: it adds what the wall clock has gained on the boot clock since ([`ClockWatch::age_ms`]).
//!
//! The watch belongs to the node's thread, which passes it both clocks once a turn.

use leeward_platform::Nanos;
use std::collections::VecDeque;

/// Wall time and boot time may diverge by one part in this many of the time that passes, or of a lease. That is a little
/// more than a clock may be slewed by.
const APART_PART: u64 = 8;
/// How often both clocks are noted during one lease.
const NOTES: u64 = 8;

/// Leases allow for a clock that runs at 0.9 times the speed of time. Such a clock lacks a ninth of what it has counted: an
/// eighth is more.
const SLOWNESS_PART: u64 = 8;
/// The wall clock is read in milliseconds. It may be so much later.
const WALL_STEP: i128 = 1_000_000;

/// Recent readings of both clocks.
#[derive(Debug, Default)]
pub struct ClockWatch {
    /// Oldest first.
    noted: VecDeque<ClockReading>,
    last: ClockReading,
}

/// The readings of both clocks at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockReading {
    boot: Nanos,
    /// How far the wall clock was ahead of the boot clock, in nanoseconds.
    ahead: i128,
}

impl ClockReading {
    /// The boot clock.
    pub fn boot(self) -> Nanos {
        self.boot
    }
}

impl ClockWatch {
    /// It is `now` by the boot clock and `wall_ms` by the wall clock. Returns by how many milliseconds the wall clock
    /// has advanced more than the boot clock (negative: less), if that is more than clocks may differ. `lease` is how
    /// long a lease lasts.
    pub fn look(&mut self, now: Nanos, wall_ms: u64, lease: Nanos) -> Option<i64> {
        let ahead = i128::from(wall_ms) * 1_000_000 - i128::from(now.0);
        self.last = ClockReading { boot: now, ahead };
        let jump = self.noted.iter().find_map(|earlier| {
            let gained = ahead - earlier.ahead;
            let allowed = (now - earlier.boot).max(lease).0 / APART_PART;
            (gained.unsigned_abs() > u128::from(allowed)).then_some(gained / 1_000_000)
        });
        if jump.is_some() {
            self.noted.clear();
        }
        if self.noted.back().is_none_or(|last| now - last.boot >= Nanos(lease.0 / NOTES)) {
            self.noted.push_back(self.last);
            // One that is older than a lease is enough.
            while self.noted.get(1).is_some_and(|second| now - second.boot >= lease) {
                self.noted.pop_front();
            }
        }
        jump.map(|apart| i64::try_from(apart).unwrap_or(if apart < 0 { i64::MIN } else { i64::MAX }))
    }

    /// The clocks at `boot`, for [`ClockWatch::age_ms`]. `None` if that is more than about a lease ago, or before a stop.
    pub fn reading(&self, boot: Nanos) -> Option<ClockReading> {
        let before = self.noted.iter().rev().find(|noted| noted.boot <= boot)?;
        // A stop between the two counts as if it came later: an age is too high, if anything.
        Some(ClockReading { boot, ..*before })
    }

    /// Milliseconds from `earlier` to `now` by the boot clock, rounded up. The age is not too low if the clock is slow, or if it
    /// was stopped and the wall clock showed that at the last [`ClockWatch::look`].
    pub fn age_ms(&self, earlier: ClockReading, now: Nanos) -> u64 {
        let elapsed = (now - earlier.boot).0;
        let gained = (self.last.ahead + WALL_STEP - earlier.ahead).max(0);
        let age = elapsed + elapsed / SLOWNESS_PART;
        age.saturating_add(u64::try_from(gained).unwrap_or(u64::MAX)).div_ceil(1_000_000)
    }
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;

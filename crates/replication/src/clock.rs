//! Detects that this machine's boot clock was stopped, by comparison with the wall clock.
//!
//! When a hypervisor stops a virtual machine, the machine's clocks stop too. After it resumes, its boot clock does not
//! show the time that has passed, and a lease counted by that clock still seems valid. The wall clock shows that time
//! once the hypervisor's agent or NTP sets it. So once wall time and boot time diverge, the node drops every lease that
//! it holds. Until the wall clock is set, nothing shows the stop: a lease may then be relied on for the time that it
//! had left when the machine was stopped.
//!
//! A wall clock may also be slewed, by up to 10 % on Linux, and clocks of machines differ a little. So much divergence
//! does not count as a stop. A stop that is too short to be noticed is shorter than the margin of a lease.
//!
//! The watch belongs to the node's thread, which passes it both clocks once a turn.

use leeward_platform::Nanos;
use std::collections::VecDeque;

/// Wall time and boot time may diverge by the time that passes (at least a lease) divided by this. That is a little
/// more than a clock may be slewed by.
const APART_PART: u64 = 8;
/// How often both clocks are noted during one lease.
const NOTES: u64 = 8;

/// Recent readings of both clocks.
#[derive(Debug, Default)]
pub struct ClockWatch {
    /// Boot clock, and wall clock in milliseconds; oldest first.
    noted: VecDeque<(Nanos, u64)>,
}

impl ClockWatch {
    /// It is `now` by the boot clock and `wall_ms` by the wall clock. Returns by how many milliseconds the wall clock
    /// has advanced more than the boot clock (negative: less), if that is more than clocks may differ. `lease` is how
    /// long a lease lasts.
    pub fn look(&mut self, now: Nanos, wall_ms: u64, lease: Nanos) -> Option<i64> {
        let jump = self.noted.iter().find_map(|(at, wall_at)| {
            let elapsed = now - *at;
            let apart = i128::from(wall_ms) - i128::from(*wall_at) - i128::from(elapsed.as_millis());
            let allowed = elapsed.max(lease).0 / APART_PART;
            (apart.unsigned_abs() * 1_000_000 > u128::from(allowed)).then_some(apart)
        });
        if jump.is_some() {
            self.noted.clear();
        }
        if self.noted.back().is_none_or(|(at, _)| now - *at >= Nanos(lease.0 / NOTES)) {
            self.noted.push_back((now, wall_ms));
            // One note older than a lease is enough.
            while self.noted.get(1).is_some_and(|(at, _)| now - *at >= lease) {
                self.noted.pop_front();
            }
        }
        jump.map(|apart| i64::try_from(apart).unwrap_or(if apart < 0 { i64::MIN } else { i64::MAX }))
    }
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;

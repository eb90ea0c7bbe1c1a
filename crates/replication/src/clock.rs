//! Whether this machine's boot clock was stopped, by comparison with the wall clock.
//!
//! When a hypervisor stops a virtual machine, the machine's clocks stop too. When it goes on, its boot clock does not show the
//! time that has passed, and a lease counted by that clock seems to be valid still. The wall clock shows it once the hypervisor's
//! agent or NTP sets that clock. So once wall time and boot time come apart, nothing counts any more that was counted by the boot
//! clock before. Until the wall clock is set, no sign of the stop exists: a lease may then be relied on for the part that was
//! left of it when the machine was stopped.
//!
//! A wall clock may also be slewed, by up to 10 % on Linux, and clocks of machines differ a little. That much does not count as a
//! stop. A stop that is too short to be noticed is shorter than the margin of a lease.
//!
//! The watch belongs to the node's thread, which gives it both clocks once a turn.

use leeward_platform::Nanos;
use std::collections::VecDeque;

/// Wall time and boot time may come apart by one part in this many of the time that passes, or of a lease. That is a little more
/// than a clock may be slewed by.
const APART_PART: u64 = 8;
/// How often both clocks are noted in the time of a lease.
const NOTES: u64 = 8;

/// What both clocks said lately.
#[derive(Debug, Default)]
pub struct ClockWatch {
    /// Boot clock, and wall clock in milliseconds; oldest first.
    noted: VecDeque<(Nanos, u64)>,
}

impl ClockWatch {
    /// It is `now` by the boot clock and `wall_ms` by the wall clock. Returns by how many milliseconds the wall clock has gone
    /// farther than the boot clock (negative: less far), if that is more than clocks may differ. `lease` is how long a lease
    /// lasts.
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
            // One that is older than a lease is enough.
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

//! Time: an instant in nanoseconds on one machine's boot clock, and where it comes from.
//!
//! The boot clock counts while the machine sleeps, so a lease never outlives a suspended process. It is never slewed:
//! chrony may run the kernel's other clocks 8.3 % faster or slower, and the kernel permits 10 %.

use std::ops::{Add, AddAssign, Sub};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// An instant, in nanoseconds since an origin that all callers of one [`Clock`] share. Also used for short spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The origin of the clock, and the empty span.
    pub const ZERO: Nanos = Nanos(0);
    /// Later than every instant.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Nanos {
        Nanos(micros * 1_000)
    }
    /// `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Nanos {
        Nanos(millis * 1_000_000)
    }
    /// `secs` seconds.
    pub const fn from_secs(secs: u64) -> Nanos {
        Nanos(secs * 1_000_000_000)
    }
    /// Whole milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }
    /// Seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// The span from `earlier` to this instant; nothing if it is later.
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
    /// As a [`Duration`].
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Nanos {
        Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, span: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(span.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, span: Nanos) {
        *self = *self + span;
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    /// Saturates at zero, like [`Nanos::since`].
    fn sub(self, other: Nanos) -> Nanos {
        self.since(other)
    }
}

/// Where time comes from.
pub trait Clock: Send + Sync {
    /// The present instant; never goes back.
    fn now(&self) -> Nanos;
    /// Milliseconds since 1970 UTC by the wall clock, which may go back: for messages, and for pairs that expire.
    fn unix_ms(&self) -> u64;
}

/// The time since the machine booted, at the speed of its own oscillator: `CLOCK_MONOTONIC_RAW`, which is never slewed,
/// plus the time that the machine was suspended.
///
/// A virtual machine that its hypervisor stops is not suspended: its clocks stop, and this one with them.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Nanos {
        use rustix::time::ClockId;
        let read = |id: ClockId| {
            let time = rustix::time::clock_gettime(id);
            time.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec)
        };
        // In this order: see `Suspended::after`.
        let (boot, monotonic) = (read(ClockId::Boottime), read(ClockId::Monotonic));
        let suspended = SUSPENDED.after(boot, monotonic);
        Nanos(u64::try_from(read(ClockId::MonotonicRaw).saturating_add(suspended)).unwrap_or(0))
    }
    fn unix_ms(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_millis() as u64)
    }
}

/// As far as any thread of this process knows.
static SUSPENDED: Suspended = Suspended(AtomicI64::new(i64::MIN));

/// How long the machine was suspended, in nanoseconds: the lead of `CLOCK_BOOTTIME` over `CLOCK_MONOTONIC`, which are
/// slewed alike. It is negative only in a time namespace.
///
/// The two cannot be read at once. If `CLOCK_BOOTTIME` is read first, their difference is at most the time suspended
/// until then, and is less by the time between the readings. So the largest difference ever seen is the best estimate.
/// It is never too large and never decreases: a clock that it is added to stays monotonic, without a lock.
struct Suspended(AtomicI64);

/// A difference counts only if it is larger than the known one by this, in nanoseconds. No suspend is so short, and
/// most readings then write nothing that threads share.
const SUSPEND_STEP: i64 = 1_000_000;

impl Suspended {
    /// The time suspended, where `boot` was read just before `monotonic`.
    fn after(&self, boot: i64, monotonic: i64) -> i64 {
        let known = self.0.load(Ordering::Relaxed);
        let seen = boot.saturating_sub(monotonic);
        if seen > known.saturating_add(SUSPEND_STEP) {
            return self.0.fetch_max(seen, Ordering::Relaxed).max(seen);
        }
        known
    }
}

#[cfg(test)]
#[path = "time_tests.rs"]
mod tests;

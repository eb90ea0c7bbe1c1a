//! Appends, and what they wait for: a tail, an L0, or the room that deletes get once compactions have made some. Any
//! thread.

use super::Db;
use crate::error::{Error, Result};
use crate::region::{AppendError, Region};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long an append waits for room while the workers achieve nothing, and in all.
const NO_PROGRESS: Duration = Duration::from_secs(5);
const MOST_WAIT: Duration = Duration::from_secs(30);
/// How long a delete waits before it tries again.
const PAUSE: Duration = Duration::from_millis(20);

/// Appends that wait for room.
#[derive(Debug)]
pub(super) struct TimedOut {
    /// The workers' progress when one gave up: the next does not wait for the same.
    progress: AtomicU64,
}

impl TimedOut {
    pub(super) fn new() -> TimedOut {
        TimedOut { progress: AtomicU64::new(u64::MAX) }
    }
}

/// How long one append still waits for room.
pub(super) struct RoomTimeout<'a> {
    shared: &'a TimedOut,
    began: Instant,
    progress: (u64, Instant),
}

impl RoomTimeout<'_> {
    /// Whether it waits on, now that the workers' progress is `seen`.
    fn lasts(&mut self, seen: u64) -> bool {
        if self.progress.0 != seen {
            self.progress = (seen, Instant::now());
        }
        let was_in_vain = self.shared.progress.load(Ordering::Relaxed) == seen;
        let is_over = self.progress.1.elapsed() > NO_PROGRESS || self.began.elapsed() > MOST_WAIT;
        if is_over {
            self.shared.progress.store(seen, Ordering::Relaxed);
        }
        !was_in_vain && !is_over
    }
}

impl Db {
    /// What `makes_room` waits for the room that compactions give back. Anything else is refused without it.
    pub(super) fn append<T>(&self, makes_room: bool, append: impl Fn(&Region) -> Result<T, AppendError>) -> Result<T> {
        match append(&self.region) {
            Ok(appended) => Ok(appended),
            Err(AppendError::Engine(error @ Error::NoSpace { .. })) if !makes_room => {
                // The L0 must freeze, so that its overwritten values become known as garbage. Perhaps nothing else
                // wakes the workers.
                self.workers.call();
                Err(error)
            }
            Err(AppendError::Engine(Error::NoSpace { .. }) | AppendError::TailBusy(_) | AppendError::L0Full) => {
                self.append_later(makes_room, append)
            }
            Err(AppendError::Engine(error)) => Err(error),
        }
    }

    /// Appends once the workers have made room.
    #[cold]
    fn append_later<T>(&self, makes_room: bool, append: impl Fn(&Region) -> Result<T, AppendError>) -> Result<T> {
        let mut timeout = self.timeout();
        self.workers.call();
        loop {
            let seen = self.workers.progress();
            let started = Instant::now();
            let (reason, waited) = match append(&self.region) {
                Ok(appended) => return Ok(appended),
                Err(AppendError::L0Full) => (&self.stalls.l0_full, self.wait(seen, &mut timeout)),
                Err(AppendError::TailBusy(_)) => (&self.stalls.tail_busy, self.wait(seen, &mut timeout)),
                Err(AppendError::Engine(error)) => (&self.stalls.tail_busy, Err(error)),
            };
            match waited {
                Err(Error::NoSpace { .. }) if makes_room && timeout.lasts(seen) => {
                    std::thread::sleep(PAUSE);
                    self.workers.call();
                }
                waited => waited?,
            }
            reason.add(started.elapsed());
        }
    }

    pub(super) fn timeout(&self) -> RoomTimeout<'_> {
        let now = Instant::now();
        RoomTimeout { shared: &self.timed_out, began: now, progress: (u64::MAX, now) }
    }

    /// Waits for the workers. Without room they may have nothing to do.
    pub(super) fn wait(&self, seen: u64, timeout: &mut RoomTimeout<'_>) -> Result<()> {
        if self.volume.is_short_of_space(self.region.id()) && !timeout.lasts(seen) {
            return Err(self.volume.no_room_to_compact());
        }
        self.workers.wait(seen, NO_PROGRESS)
    }
}

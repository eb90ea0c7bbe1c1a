//! The threads of a [`super::Db`]: one flushes tails and syncs, one compacts L0s, and two compact levels, side by side
//! if they work on different levels.
//!
//! They sleep until a write, or the time of a sync, gives them work. Each result is *progress*, which a refused writer
//! waits for. A worker that fails tries again; meanwhile a writer that would wait gets its error. If a worker panics,
//! the volume takes no more writes, the other workers end, and every present and later writer gets the error.

use super::SyncMode;
use crate::compaction::{Lane, Step};
use crate::error::{Error, Result};
use crate::region::Region;
use leeward_format::{LogKind, UnixMs};
use leeward_platform::Clock;
use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a worker waits before it tries again on a full device.
const RETRY: Duration = Duration::from_millis(200);
/// How often a compactor checks whether an L0 that waits for a quiet store may be compacted, or garbage collected
/// again.
const LOOK: Duration = Duration::from_millis(500);
/// How long nothing happens before the compactors look again, and one of them whether others have filled the device.
const DEVICE_LOOK: Duration = Duration::from_secs(2);

/// The threads and what they share.
#[derive(Debug)]
pub(super) struct Workers {
    shared: Arc<WorkSignals>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct WorkSignals {
    state: Mutex<WorkerState>,
    /// A writer has called, or the threads must stop.
    work: Condvar,
    /// A worker has done or failed something.
    progress: Condvar,
}

#[derive(Debug, Default)]
struct WorkerState {
    stop: bool,
    /// Counts calls, so that each worker sees whether there is a new one.
    calls: u64,
    /// Counts results of the workers.
    progress: u64,
    /// Why the worker of that number cannot continue; cleared when it can.
    errors: [Option<Error>; 4],
    /// A worker has panicked: the error for all callers.
    dead: Option<Error>,
}

/// Position of a worker in [`WorkerState::errors`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Worker {
    Flusher,
    OfL0s,
    OfLevels,
    OfOtherLevels,
}

impl Worker {
    const ALL: [Worker; 4] = [Worker::Flusher, Worker::OfL0s, Worker::OfLevels, Worker::OfOtherLevels];

    /// Name of its thread.
    fn name(self) -> &'static str {
        ["lw-flush", "lw-l0s", "lw-levels-1", "lw-levels-2"][self as usize]
    }

    /// Compactions that a compactor chooses from.
    fn lane(self) -> Lane {
        if self == Worker::OfL0s { Lane::L0s } else { Lane::Levels }
    }
}

impl Workers {
    /// # Errors
    /// [`Error::Io`] if the system refuses threads.
    pub(super) fn start(region: &Arc<Region>, sync: SyncMode, clock: &Arc<dyn Clock>) -> Result<Workers> {
        let mut workers = Workers { shared: Arc::default(), threads: Vec::new() };
        for worker in Worker::ALL {
            let (shared, region, clock) = (workers.shared.clone(), region.clone(), clock.clone());
            let file = region.volume().name().to_owned();
            let run = move || {
                let work = || match worker {
                    Worker::Flusher => run_flusher(&shared, &region, sync),
                    _ => run_compactor(worker, &shared, &region, &*clock),
                };
                if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
                    shared.die(region.volume().panicked(&*panic));
                }
            };
            let thread = std::thread::Builder::new().name(worker.name().into()).spawn(run);
            let failed = |error| Error::Io { file, action: "start a thread", offset: 0, source: Arc::new(error) };
            workers.threads.push(thread.map_err(failed)?);
        }
        Ok(workers)
    }

    /// Calls the workers: there is something to do.
    pub(super) fn call(&self) {
        self.shared.call();
    }

    /// Counts an install that writers or workers may have waited for.
    pub(super) fn advance(&self) {
        self.shared.state.lock().progress += 1;
        self.shared.progress.notify_all();
        self.shared.call();
    }

    /// Number of results of the workers so far.
    pub(super) fn progress(&self) -> u64 {
        self.shared.state.lock().progress
    }

    /// Waits until the workers have more results than `seen`, for some time. The caller has called them since there is
    /// work.
    pub(super) fn wait(&self, seen: u64, at_most: Duration) -> Result<()> {
        let until = Instant::now() + at_most;
        let mut state = self.shared.state.lock();
        while state.progress == seen {
            if let Some(error) = state.dead.iter().chain(state.errors.iter().flatten()).next() {
                return Err(error.clone());
            }
            if self.shared.progress.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        Ok(())
    }

    /// Ends the threads after their current work.
    pub(super) fn stop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panic in it was caught, and reported.
            drop(thread.join());
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}

impl WorkSignals {
    fn call(&self) {
        self.state.lock().calls += 1;
        self.work.notify_all();
    }

    /// Sleeps until there was a call after `seen`, or for `at_most`. Returns the number of calls so far; `None` to
    /// stop.
    fn sleep(&self, seen: u64, at_most: Option<Duration>) -> Option<u64> {
        let mut state = self.state.lock();
        if !state.stop && state.calls == seen {
            match at_most {
                Some(time) => drop(self.work.wait_for(&mut state, time)),
                None => self.work.wait(&mut state),
            }
        }
        (!state.stop).then_some(state.calls)
    }

    /// A worker has panicked: no worker continues, no writer waits.
    fn die(&self, error: Error) {
        let mut state = self.state.lock();
        (state.stop, state.dead) = (true, Some(error));
        self.work.notify_all();
        self.progress.notify_all();
    }

    /// Notes the outcome of a worker's turn: an error, or whether it did anything. Returns whether it can continue at
    /// once. Wakes writers only for results that they may have waited for.
    fn note(&self, worker: Worker, result: Result<bool>) -> bool {
        let mut state = self.state.lock();
        let (is_ok, did) = (result.is_ok(), !matches!(result, Ok(false)));
        if let Err(error) = &result
            && state.errors[worker as usize].is_none()
        {
            tracing::warn!(worker = worker.name(), %error, "a worker of the store failed, and will try again");
        }
        state.errors[worker as usize] = result.err();
        if did {
            state.progress += u64::from(is_ok);
            self.progress.notify_all();
        }
        is_ok
    }
}

fn run_flusher(shared: &WorkSignals, region: &Region, sync: SyncMode) {
    let interval = match sync {
        SyncMode::Always => None,
        SyncMode::Every(interval) => Some(interval),
    };
    let mut seen = 0;
    let mut pause = None;
    let mut synced = Instant::now();
    loop {
        // Calls may have come during the last turn.
        let until_sync = interval.map(|interval| interval.saturating_sub(synced.elapsed()));
        let Some(calls) = shared.sleep(seen, [pause, until_sync].into_iter().flatten().min()) else { return };
        seen = calls;
        let is_due = interval.is_some_and(|interval| synced.elapsed() >= interval);
        if is_due {
            synced = Instant::now();
        }
        let result = flush(region, is_due && region.is_unsynced());
        pause = (!shared.note(Worker::Flusher, result)).then_some(RETRY);
    }
}

/// Flushes and releases sealed tails, and prepares the next ones. Returns whether there was anything to do besides a
/// sync.
fn flush(region: &Region, sync: bool) -> Result<bool> {
    let mut did = region.wants_tails();
    // Without room for another tail, the existing ones are made durable all the same.
    let prepared = if did { region.prepare_tails() } else { Ok(()) };
    for log in LogKind::APPENDED {
        for tail in region.tails(log).iter().filter(|tail| tail.sealed()) {
            region.flush_tail(log, tail.index())?;
            region.release_tail(log, tail.index());
            region.allow_tails(log, tail.index() + 2);
            did = true;
        }
    }
    if sync {
        region.sync_tails()?;
    }
    prepared.map(|()| did)
}

fn run_compactor(worker: Worker, shared: &WorkSignals, region: &Region, clock: &dyn Clock) {
    let (mut seen, mut is_ok) = (0, true);
    let mut pause = None;
    let looks = matches!(worker, Worker::OfLevels);
    // Each looks now and then whether the scarcity of room gives it work: nobody calls for that.
    while let Some(calls) = shared.sleep(seen, pause.or(Some(DEVICE_LOOK))) {
        if looks && pause.is_none() && calls == seen {
            region.volume().look_at_device();
        }
        seen = calls;
        pause = None;
        while let Some(result) = compact(worker.lane(), shared, region, clock) {
            let was_ok = std::mem::replace(&mut is_ok, result.is_ok());
            shared.note(worker, result.map(|()| true));
            // Another worker may have waited for what this one claimed, or for its result: all are called, this one
            // included. After a second fault in a row none is.
            if is_ok || was_ok {
                shared.call();
            }
            if !is_ok {
                pause = Some(RETRY);
                break;
            }
        }
        // Frees segments that readers still held at the last install.
        region.volume().release_space();
        if pause.is_none() && !is_ok {
            // The work that failed is done, or no longer needed.
            is_ok = shared.note(worker, Ok(false));
        }
        if pause.is_none() && region.waits_for_time(worker.lane(), UnixMs(clock.unix_ms())) {
            pause = Some(LOOK);
        }
    }
}

/// Executes the most urgent compaction; `None` if there is none, or the threads must stop.
fn compact(lane: Lane, shared: &WorkSignals, region: &Region, clock: &dyn Clock) -> Option<Result<()>> {
    let mut compaction = region.next_compaction_in(lane, UnixMs(clock.unix_ms()))?;
    let done = loop {
        if shared.state.lock().stop {
            return None;
        }
        match compaction.step() {
            Ok(Step::Segment(_)) => {}
            Ok(Step::Finished(done)) => break done,
            Err(error) => return Some(Err(error)),
        }
    };
    // It holds segments that the install frees.
    drop(compaction);
    Some(region.install(&done))
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;

//! The progress thread. A software provider moves bytes only while some thread polls the completion queues, and threads
//! of the application do not.
//!
//! It sleeps on the queues' descriptors if the provider has them. With a provider without descriptors (shm, some
//! versions of EFA), it polls with pauses. A pause is short for a while after an operation has ended or the thread was
//! woken: by a post of this process, or by a message of a peer that has operations (`remote`). Otherwise pauses grow up
//! to [`PAUSES`]: an idle process wakes a thousand times a second.
//!
//! It holds no lock while it sleeps or delivers, takes a link's lock before the device's, and calls the sink, which
//! must not block. If it panics, the device has failed: every link goes down, and none can be used any more.

use super::{
    Context,
    device::{Device, End},
    remote::{self, Remote},
};
use crate::stream::{Links, link::Status};
use leeward_platform::{Backoff, Nanos};
use std::{
    num::NonZeroU64,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};
use tracing::{debug, error};

/// Pauses with a provider without descriptors, and shorter ones while more events are expected.
const PAUSES: Backoff = Backoff { first: Nanos::from_micros(20), most: Nanos::from_millis(1) };
const KEEN_PAUSES: Backoff = Backoff { most: Nanos::from_micros(40), ..PAUSES };
/// Nanoseconds by which a pause may be longer. With the system's 50,000 the shortest pauses would be three times as
/// long.
const TIMER_SLACK: Option<NonZeroU64> = NonZeroU64::new(1000);
/// How long more events are expected after one. Peers send messages more often than this while they have operations.
const BUSY_PERIOD: Duration = Duration::from_millis(20);
/// How often a provider without descriptors is polled before the first pause.
const LOOKS: u32 = 16;
/// Time after which an operation that the provider did not accept is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// Longest sleep on descriptors. Completions end it, but not all other work of libfabric 1.17's tcp provider: with 500
/// ms a new cluster's primaries waited two seconds for their backups.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);
/// If a descriptor is always ready for this long without any event, it is ignored, and `ALWAYS_READY_PAUSE` is the pause in its
/// place. A peer that writes sends messages more often than this.
const ALWAYS_READY_LIMIT: Duration = Duration::from_secs(10);
const ALWAYS_READY_PAUSE: Duration = Duration::from_micros(100);

/// Runs until the fabric is dropped.
pub(super) fn run(context: &Context, links: &Links<Remote>) {
    let _failing = FailOnPanic { context, links };
    if !context.device.tells_when_ready()
        && let Err(error) = rustix::thread::set_current_timer_slack(TIMER_SLACK)
    {
        debug!(%error, "pauses of the libfabric fabric are longer than they need to be");
    }
    let (mut ends, mut pace) = (Vec::new(), Pace::new());
    let (mut retried, mut has_failed) = (Instant::now(), false);
    loop {
        context.device.begin_round();
        if context.stopped.load(Ordering::Acquire) {
            return;
        }
        if !has_failed && let Some(reason) = context.device.failure() {
            has_failed = true;
            fail_links(links, reason);
        }
        context.device.progress(&mut ends);
        let is_idle = ends.is_empty();
        for of_connection in ends.chunk_by(|one, other| one.connection == other.connection) {
            hand_over(context, links, of_connection);
        }
        ends.clear();
        let mut waiting = false;
        // Also while others are busy.
        if is_idle || retried.elapsed() >= RETRY_PAUSE {
            retried = Instant::now();
            waiting = start_again(links);
        }
        if is_idle {
            pace.sleep(&context.device, waiting);
        } else {
            pace = Pace::new();
        }
    }
}

/// Passes the ends of one connection to its link.
fn hand_over(context: &Context, links: &Links<Remote>, ends: &[End]) {
    let connection = ends[0].connection;
    let peer = context.peers.lock().get(&connection).copied();
    let link = peer.and_then(|peer| links.read().get(&peer).map(Arc::clone));
    if let Some(link) = link {
        link.post(|state, options| remote::take_ends(state, options, connection, ends));
        link.flush();
    }
}

/// Retries operations that the provider did not accept before. Returns whether some still wait.
fn start_again(links: &Links<Remote>) -> bool {
    let waits = |remote: &Remote| remote.waits();
    let mut still = false;
    let links: Vec<_> = links.read().values().map(Arc::clone).collect();
    for link in links {
        if !waits(&link.state().extension) {
            continue;
        }
        link.post(|state, _| {
            remote::start_again(state);
            still |= waits(&state.extension);
        });
        link.flush();
    }
    still
}

/// Takes every link down.
fn fail_links(links: &Links<Remote>, reason: &str) {
    let links: Vec<_> = links.read().values().map(Arc::clone).collect();
    for link in links {
        let mut state = link.state();
        if state.status == Status::Up {
            state.fail(reason.to_owned());
            link.waker.wake();
        }
    }
}

struct FailOnPanic<'a> {
    context: &'a Context,
    links: &'a Links<Remote>,
}

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.context.device.fail("the thread that makes progress has panicked".into());
            fail_links(self.links, "the thread that makes progress is gone");
        }
    }
}

/// Decides how long the thread sleeps.
struct Pace {
    /// Number of rounds in a row without an event.
    empty: u32,
    /// Time of the last event.
    happened: Instant,
    /// Time of the last sleep or event.
    slept: Instant,
}

impl Pace {
    /// After an event.
    fn new() -> Pace {
        let now = Instant::now();
        Pace { empty: 0, happened: now, slept: now }
    }

    /// Sleeps until there may be something to do. `waiting`: an operation must be retried.
    fn sleep(&mut self, device: &Device, waiting: bool) {
        if device.tells_when_ready() {
            if self.slept.elapsed() >= ALWAYS_READY_LIMIT {
                thread::sleep(ALWAYS_READY_PAUSE);
            }
            return self.wait(device, if waiting { RETRY_PAUSE } else { LONGEST_SLEEP });
        }
        let before = self.empty;
        self.empty = self.empty.saturating_add(1);
        let Some(before) = before.checked_sub(LOOKS) else { return thread::yield_now() };
        let keen = waiting || self.happened.elapsed() < BUSY_PERIOD;
        let pauses = if keen { KEEN_PAUSES } else { PAUSES };
        self.wait(device, pauses.after(before).duration());
    }

    fn wait(&mut self, device: &Device, timeout: Duration) {
        let begun = Instant::now();
        match device.wait(timeout) {
            Ok(true) => *self = Pace::new(),
            Ok(false) if begun.elapsed() >= ALWAYS_READY_PAUSE.min(timeout) => self.slept = Instant::now(),
            Ok(false) => {}
            Err(error) => {
                error!(%error, "the libfabric fabric cannot sleep");
                thread::sleep(PAUSES.most.duration());
            }
        }
    }
}

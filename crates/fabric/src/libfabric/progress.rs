//! The thread that makes progress: no byte comes in or goes out of a software provider unless a thread looks at the
//! completion queues, and no thread of the application does.
//!
//! It sleeps on the queues' descriptors where the provider has them. Where it has none (shm, some versions of EFA), it looks
//! again after a pause. That is short for a while after something has ended or it was woken: by a post of this process, or by
//! what a peer said over its connection, which rings there when it has something to do (`remote`). Else it grows to the
//! longest of [`PAUSES`]: an idle process wakes a thousand times a second.
//!
//! It holds no lock while it sleeps or delivers, takes a link's lock before the device's, and calls the sink, which must not
//! block. When it panics the device has failed: every link goes down, and none is of use from then on.

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

/// Pauses of a provider without a descriptor, and those while something may be expected.
const PAUSES: Backoff = Backoff { first: Nanos::from_micros(20), most: Nanos::from_millis(1) };
const KEEN_PAUSES: Backoff = Backoff { most: Nanos::from_micros(40), ..PAUSES };
/// By how many nanoseconds a pause may be longer: with the system's 50,000 the shortest are thrice as long.
const TIMER_SLACK: Option<NonZeroU64> = NonZeroU64::new(1000);
/// For how long more is expected after something has happened. Peers ring more often while they have something to do.
const KEEN: Duration = Duration::from_millis(20);
/// How often a provider without a descriptor is looked at before the first pause.
const LOOKS: u32 = 16;
/// After how long an operation that the provider did not take is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// Longest sleep on descriptors. Completions end it, but not all else that libfabric 1.17's tcp provider has to do: with 500 ms a
/// new cluster's primaries waited two seconds for their backups.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);
/// After how long a descriptor that is always ready, without any reported event, is not believed any more; and the pause
/// in its place. A peer that does write says so more often.
const BELIEVED: Duration = Duration::from_secs(10);
const FLOOR: Duration = Duration::from_micros(100);

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

/// Gives a link what has ended of one of its connections.
fn hand_over(context: &Context, links: &Links<Remote>, ends: &[End]) {
    let connection = ends[0].connection;
    let peer = context.peers.lock().get(&connection).copied();
    let link = peer.and_then(|peer| links.read().get(&peer).map(Arc::clone));
    if let Some(link) = link {
        link.post(|state, options| remote::take_ends(state, options, connection, ends));
        link.flush();
    }
}

/// Tries what the provider did not take before; tells whether something still waits.
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

/// How long it sleeps.
struct Pace {
    /// How often in a row there was nothing.
    empty: u32,
    /// When something last happened.
    happened: Instant,
    /// When it last slept, or something happened.
    slept: Instant,
}

impl Pace {
    /// Something has just happened.
    fn new() -> Pace {
        let now = Instant::now();
        Pace { empty: 0, happened: now, slept: now }
    }

    /// Sleeps until there may be something to do; `waiting`: something is to be tried again.
    fn sleep(&mut self, device: &Device, waiting: bool) {
        if device.tells_when_ready() {
            if self.slept.elapsed() >= BELIEVED {
                thread::sleep(FLOOR);
            }
            return self.wait(device, if waiting { RETRY_PAUSE } else { LONGEST_SLEEP });
        }
        let before = self.empty;
        self.empty = self.empty.saturating_add(1);
        let Some(before) = before.checked_sub(LOOKS) else { return thread::yield_now() };
        let keen = waiting || self.happened.elapsed() < KEEN;
        let pauses = if keen { KEEN_PAUSES } else { PAUSES };
        self.wait(device, pauses.after(before).duration());
    }

    fn wait(&mut self, device: &Device, timeout: Duration) {
        let begun = Instant::now();
        match device.wait(timeout) {
            Ok(true) => *self = Pace::new(),
            Ok(false) if begun.elapsed() >= FLOOR.min(timeout) => self.slept = Instant::now(),
            Ok(false) => {}
            Err(error) => {
                error!(%error, "the libfabric fabric cannot sleep");
                thread::sleep(PAUSES.most.duration());
            }
        }
    }
}

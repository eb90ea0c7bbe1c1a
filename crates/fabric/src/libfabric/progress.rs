//! The thread that makes progress: no byte comes in or goes out of a software provider unless somebody looks at the
//! completion queues, and nobody of the application does.
//!
//! It sleeps on the queues' descriptors where the provider has them. Where it has none (shm, some versions of EFA), it looks again
//! after a pause that grows while nothing happens, to [`LONGEST_PAUSE`]: an idle process then wakes a thousand times a second.
//!
//! It holds no lock while it sleeps or delivers, takes a link's lock before the device's, and calls the sink, which must not block.

use super::{
    Context,
    device::Completion,
    remote::{self, Remote},
};
use crate::stream::Links;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tracing::error;

/// First pause of a provider without a descriptor, and the longest.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// How often a provider without a descriptor is looked at before the first pause.
const LOOKS: u32 = 16;
/// After how long an operation that the provider did not take is tried again, if nothing happens before.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// Longest sleep on descriptors. Completions end it, but not all else that libfabric 1.17's tcp provider has to do: with 500 ms a new
/// cluster's primaries waited two seconds for their backups.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);

/// Runs until the fabric is dropped.
pub(super) fn run(context: &Context, links: &Links<Remote>) {
    let mut ends = Vec::new();
    // How often in a row there was nothing.
    let mut idle = 0;
    loop {
        context.device.begin_round();
        if context.stopped.load(Ordering::Acquire) {
            return;
        }
        context.device.progress(&mut ends);
        if ends.is_empty() {
            let waiting = start_again(links);
            sleep(context, idle, waiting);
            idle += 1;
            continue;
        }
        idle = 0;
        for of_connection in ends.chunk_by(|one, other| connection(one) == connection(other)) {
            let number = connection(&of_connection[0]);
            let peer = context.peers.lock().get(&number).copied();
            let link = peer.and_then(|peer| links.read().get(&peer).map(Arc::clone));
            if let Some(link) = link {
                link.post(|state, _| remote::take_ends(state, number, of_connection));
                link.deliver();
            }
        }
        ends.clear();
    }
}

/// The number of the connection that started what has ended.
fn connection(end: &Completion) -> u32 {
    (end.token >> 32) as u32
}

/// Tries what the provider did not take before; tells whether something still waits.
fn start_again(links: &Links<Remote>) -> bool {
    let mut waits = false;
    let links: Vec<_> = links.read().values().map(Arc::clone).collect();
    for link in links {
        link.post(|state, _| waits |= remote::start_again(state));
        link.deliver();
    }
    waits
}

/// Sleeps until there may be something to do.
fn sleep(context: &Context, idle: u32, waiting: bool) {
    let longest = if waiting { RETRY_PAUSE } else { LONGEST_SLEEP };
    if context.device.tells_when_ready() {
        pause(context, longest);
    } else if let Some(doublings) = idle.checked_sub(LOOKS) {
        pause(context, (FIRST_PAUSE * (1 << doublings.min(10))).min(LONGEST_PAUSE));
    } else {
        std::thread::yield_now();
    }
}

fn pause(context: &Context, timeout: Duration) {
    if let Err(error) = context.device.wait(timeout) {
        error!(%error, "the libfabric fabric cannot sleep");
    }
}

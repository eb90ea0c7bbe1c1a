//! Reads of large values that wait for memory: the [account of all clients](crate::client_memory) is full.
//!
//! - A scan has charged a page of its answer when it was asked for. So one scan of the region runs in any case: otherwise
//!   scans that wait would keep each other waiting.
//! - A look-up waits as of the instant at which it was submitted, so that no other operation waits behind it. A scan begins
//!   later.
//! - While the account is full, a region still reads one large value each [`FORCED_EVERY`], of each batch in turn. Without
//!   that, clients could stop each other for good: the account may be full of what operations under way have reserved, and of
//!   results that wait for an earlier reply of their connection. With it each connection gets its replies in the end, or leaves
//!   them unread and is disconnected.
//! - A read that has waited for [`OP_TIMEOUT`] is answered with an error.

use super::Serving;
use super::answers::OP_TIMEOUT;
use super::queues::queue;
use crate::client_memory::ClientMemory;
use crate::job::{Lookups, OperationDone, Outcome};
use crate::request::{Answer, Pending};
use crate::wait_queue::WaitQueue;
use leeward_engine::{Error, Lookup, Reach};
use leeward_format::op::{OpError, OpResult};
use leeward_format::{Lsn, UnixMs};
use leeward_platform::Nanos;
use std::collections::VecDeque;

/// Bytes of values that one job reads before it charges them.
const READ_AT_ONCE_BYTES: usize = 1 << 20;
/// Pause between two large values that a region reads although the account is full.
const FORCED_EVERY: Nanos = Nanos::from_millis(50);

/// The reads that wait; see the module.
pub(super) struct MemoryQueue {
    lookups: VecDeque<Lookups>,
    scans: WaitQueue<Pending>,
    /// Scans that have begun and not ended.
    running_scans: usize,
    forced_at: Nanos,
}

impl MemoryQueue {
    pub(super) fn new() -> MemoryQueue {
        MemoryQueue { lookups: VecDeque::new(), scans: queue(), running_scans: 0, forced_at: Nanos::ZERO }
    }

    /// Nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.lookups.is_empty() && self.scans.is_empty()
    }

    /// Keys that were not read for want of memory.
    pub(super) fn push_lookups(&mut self, lookups: Option<Lookups>) {
        self.lookups.extend(lookups);
    }

    /// Whether a scan has to wait.
    pub(super) fn must_scans_wait(&self, clients: &ClientMemory) -> bool {
        clients.is_full() && self.running_scans > 0
    }

    /// A scan begins.
    pub(super) fn scan_began(&mut self) {
        self.running_scans += 1;
    }

    /// A scan has ended.
    pub(super) fn scan_ended(&mut self) {
        self.running_scans -= 1;
    }

    /// A scan that has not begun.
    pub(super) fn push_scan(&mut self, scan: Pending) {
        self.scans.push(scan.since, scan);
    }

    /// Forgets all of it; gives back the scans. Operations with look-ups are in `Queues::at_device`.
    pub(super) fn take_scans(&mut self) -> impl Iterator<Item = Pending> + use<> {
        self.lookups.clear();
        self.scans.take()
    }
}

impl Serving {
    /// Begins to read the keys of this turn from the device. Of what waited for memory it begins one of each kind a turn, if
    /// there is some: jobs know nothing of each other until they have read.
    pub(super) fn start_lookups(&mut self, now: Nanos) {
        let has_memory = !self.clients.is_full();
        if (has_memory || now - self.queues.for_memory.forced_at >= FORCED_EVERY)
            && let Some(oldest) = self.queues.for_memory.lookups.pop_front()
        {
            if !has_memory {
                self.queues.for_memory.forced_at = now;
            }
            self.spawn_lookups(oldest, !has_memory);
        }
        if !self.queues.for_memory.must_scans_wait(&self.clients)
            && let Some(scan) = self.queues.for_memory.scans.pop()
        {
            self.start_scan(scan);
        }
        if let Some(lookups) = self.queues.lookups.take() {
            self.spawn_lookups(lookups, false);
        }
    }

    /// Reads keys from the device in a job; `is_forced`: one large value although the account is full.
    pub(super) fn spawn_lookups(&mut self, lookups: Lookups, is_forced: bool) {
        let (now, clients) = (self.wall.now(), self.clients.clone());
        self.spawn(move || look_up(lookups, now, &clients, is_forced));
    }

    /// Answers reads that have waited for memory for too long.
    pub(super) fn expire_for_memory(&mut self, now: Nanos, out: &mut Vec<Answer>) {
        let is_late = |pending: &Pending| now - pending.since > OP_TIMEOUT;
        let why = format!(
            "region {}: the memory for clients is full; raise memory_budget, or ask for less at once",
            self.id()
        );
        let mut refuse = |pending: &Pending| out.push((pending.to, OpResult::Error(OpError::Unavailable(why.clone()))));
        while let Some(scan) = self.queues.for_memory.scans.pop_late(now) {
            refuse(&scan);
        }
        let mut unlocked = Vec::new();
        for lookups in &mut self.queues.for_memory.lookups {
            let late =
                lookups.keys.extract_if(.., |(ticket, ..)| self.queues.at_device.get(ticket).is_none_or(is_late));
            for (ticket, key, _) in late.collect::<Vec<_>>() {
                let Some(pending) = self.queues.at_device.remove(&ticket) else { continue };
                refuse(&pending);
                unlocked.extend(pending.op.is_write().then_some(key));
            }
        }
        self.queues.for_memory.lookups.retain(|lookups| !lookups.keys.is_empty());
        unlocked.iter().for_each(|key| self.unlock(now, key));
    }
}

/// Reads keys from the device, as far as there is memory for their values. Small values were charged when they were asked for.
/// Where there is any memory, one of the large values is read.
fn look_up(lookups: Lookups, now: UnixMs, clients: &ClientMemory, is_forced: bool) -> Outcome {
    let Lookups { version, mut keys } = lookups;
    let mut answers = Vec::with_capacity(keys.len());
    loop {
        // Other jobs read at the same time, and know of these values only once they are held.
        let room = usize::try_from(clients.room()).unwrap_or(usize::MAX).clamp(is_forced.into(), READ_AT_ONCE_BYTES);
        let wanted: Vec<(&[u8], Lsn)> = keys.iter().map(|(_, key, at)| (&key[..], *at)).collect();
        let found: Vec<Result<Lookup, Error>> = match version.get_many_within(&wanted, &|| now, room) {
            Ok(found) => found.into_iter().map(Ok).collect(),
            // One by one: only keys whose read fails are answered with an error.
            Err(_) => {
                let look_up = |(key, at): (&[u8], Lsn)| version.get(key, at, Reach::Device, &|| now);
                wanted.into_iter().map(look_up).collect()
            }
        };
        let mut unread = Vec::new();
        for ((ticket, key, at), found) in keys.into_iter().zip(found) {
            match found {
                Ok(Lookup::NotInMemory) => unread.push((ticket, key, at)),
                found => answers.push((ticket, found.map(|found| held(found, clients)))),
            }
        }
        if unread.is_empty() || clients.is_full() {
            let unread = (!unread.is_empty()).then_some(Lookups { version, keys: unread });
            return Outcome::Operation(OperationDone::LookedUp { answers, unread });
        }
        keys = unread;
    }
}

/// With a value that charges the account.
pub(super) fn held(found: Lookup, clients: &ClientMemory) -> Lookup {
    match found {
        Lookup::Found { lsn, expires, value } => Lookup::Found { lsn, expires, value: clients.hold(value) },
        other => other,
    }
}

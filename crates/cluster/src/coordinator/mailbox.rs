//! The channel between the threads of a process and the thread of its coordinator client, for either kind of coordinator.
//! Operations and the request to stop go in. The reason for an outage comes out.
//!
//! Invariant: no thread holds a lock while it waits for anything, so a submission never blocks. Any thread may use it.

use crate::{CoordinatorOp, Outage};
use mio::{Poll, Token, Waker};
use parking_lot::Mutex;
use std::io;

/// How a client ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Its session ends too.
    Leave,
    /// Its session stays, as if the process had been killed.
    Abandon,
}

/// The state that the client's thread shares with the others.
#[derive(Debug)]
pub(super) struct Mailbox {
    inbox: Mutex<Inbox>,
    outage: Mutex<Option<Outage>>,
    concern: Mutex<Option<String>>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Inbox {
    ops: Vec<(u64, CoordinatorOp)>,
    stop: Option<Stop>,
}

impl Mailbox {
    /// An empty mailbox, which wakes `poll` with `token` when something is put in.
    pub(super) fn new(poll: &Poll, token: Token) -> io::Result<Mailbox> {
        let waker = Waker::new(poll.registry(), token)?;
        Ok(Mailbox { inbox: Mutex::default(), outage: Mutex::default(), concern: Mutex::default(), waker })
    }

    /// Puts in an operation for the thread.
    pub(super) fn submit(&self, id: u64, op: CoordinatorOp) {
        self.inbox.lock().ops.push((id, op));
        self.wake();
    }

    /// Operations that were submitted since the last call, in order.
    pub(super) fn take_ops(&self) -> Vec<(u64, CoordinatorOp)> {
        std::mem::take(&mut self.inbox.lock().ops)
    }

    /// Makes the thread end.
    pub(super) fn end(&self, stop: Stop) {
        self.inbox.lock().stop = Some(stop);
        self.wake();
    }

    /// Whether the thread is to end, and how.
    pub(super) fn stop(&self) -> Option<Stop> {
        self.inbox.lock().stop
    }

    /// Why there is no session, if there is none and the thread has noted it.
    pub(super) fn outage(&self) -> Option<Outage> {
        self.outage.lock().clone()
    }

    /// Records why there is no session: the time of the first failure, and the reason of the last one.
    pub(super) fn note_outage(&self, new: Outage) {
        let mut outage = self.outage.lock();
        let since = outage.as_ref().map_or(new.since, |outage| outage.since);
        *outage = Some(Outage { since, ..new });
    }

    /// There is a session again.
    pub(super) fn end_outage(&self) {
        *self.outage.lock() = None;
    }

    /// What the operator should change although there is a session.
    pub(super) fn concern(&self) -> Option<String> {
        self.concern.lock().clone()
    }

    /// Records what the operator should change; `None`: nothing.
    pub(super) fn note_concern(&self, concern: Option<String>) {
        *self.concern.lock() = concern;
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        self.waker.wake().expect("an eventfd takes a write of one");
    }
}

//! How the threads of a process reach the thread of its coordinator client, whatever coordinator that is: operations and the
//! wish to stop go in, the reason for an outage comes out.
//!
//! Invariant: nobody holds a lock while he waits for anything, so a submission never blocks. Any thread may use it.

use crate::{CoordinatorOp, Outage};
use mio::{Poll, Token, Waker};
use parking_lot::Mutex;
use std::io;

/// How a client ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// With its session.
    Leave,
    /// Without a word, as if the process had been killed.
    Abandon,
}

/// What lies between the client's thread and the others.
#[derive(Debug)]
pub(crate) struct Mailbox {
    inbox: Mutex<Inbox>,
    outage: Mutex<Option<Outage>>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Inbox {
    ops: Vec<(u64, CoordinatorOp)>,
    stop: Option<Stop>,
}

impl Mailbox {
    /// An empty one, which wakes `poll` with `token` when something is put in.
    pub(crate) fn new(poll: &Poll, token: Token) -> io::Result<Mailbox> {
        let waker = Waker::new(poll.registry(), token)?;
        Ok(Mailbox { inbox: Mutex::default(), outage: Mutex::default(), waker })
    }

    /// Puts an operation where the thread finds it.
    pub(crate) fn submit(&self, id: u64, op: CoordinatorOp) {
        self.inbox.lock().ops.push((id, op));
        self.wake();
    }

    /// Operations that were submitted since the last call, in order.
    pub(crate) fn take_ops(&self) -> Vec<(u64, CoordinatorOp)> {
        std::mem::take(&mut self.inbox.lock().ops)
    }

    /// Has the thread end.
    pub(crate) fn end(&self, stop: Stop) {
        self.inbox.lock().stop = Some(stop);
        self.wake();
    }

    /// Whether the thread is to end, and how.
    pub(crate) fn stop(&self) -> Option<Stop> {
        self.inbox.lock().stop
    }

    /// Why there is no session, if there is none and the thread has noted it.
    pub(crate) fn outage(&self) -> Option<Outage> {
        self.outage.lock().clone()
    }

    /// Remembers why there is no session: the first failure's time, the last one's reason.
    pub(crate) fn note_outage(&self, new: Outage) {
        let mut outage = self.outage.lock();
        let since = outage.as_ref().map_or(new.since, |outage| outage.since);
        *outage = Some(Outage { since, ..new });
    }

    /// There is a session again.
    pub(crate) fn end_outage(&self) {
        *self.outage.lock() = None;
    }

    /// Has the thread look around.
    pub(crate) fn wake(&self) {
        self.waker.wake().expect("an eventfd takes a write of one");
    }
}

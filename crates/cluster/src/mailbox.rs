//! How the threads of a process reach the thread of its coordinator client, whatever coordinator that is: operations and the
//! wish to stop go in, the reason for an outage comes out.
//!
//! Invariant: nobody holds a lock while he waits for anything, so a submission never blocks. Any thread may use it.

use crate::{CoordinatorOp, Outage};
use leeward_platform::Nanos;
use mio::{Events, Poll, Token, Waker};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a client that leaves tries to say so.
pub(crate) const LEAVE_WITHIN: Nanos = Nanos::from_millis(300);

/// Pause between attempts to connect; the first one, where they grow.
pub(crate) const RETRY: Nanos = Nanos::from_millis(50);

/// Has a client's thread wait until something happens or `span` has passed.
pub(crate) fn wait(poll: &mut Poll, events: &mut Events, span: Nanos) {
    // Not before: a poll counts whole milliseconds.
    let span = span.duration() + Duration::from_micros(999);
    if let Err(error) = poll.poll(events, Some(span))
        && error.kind() != io::ErrorKind::Interrupted
    {
        tracing::error!(%error, "the coordinator's client cannot wait for its socket");
        std::thread::sleep(RETRY.duration());
    }
}

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

/// A client's thread. Dropping it ends the session.
#[derive(Debug)]
pub(crate) struct Running {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts `run` on a thread of its own.
    pub(crate) fn start(mailbox: Arc<Mailbox>, run: impl FnOnce() + Send + 'static) -> io::Result<Running> {
        let thread = std::thread::Builder::new().name("coordinator-client".into()).spawn(run)?;
        Ok(Running { mailbox, thread: Some(thread) })
    }

    pub(crate) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Ends the thread and waits for its end.
    pub(crate) fn stop(&mut self, stop: Stop) {
        let Some(thread) = self.thread.take() else { return };
        self.mailbox.inbox.lock().stop = Some(stop);
        self.mailbox.wake();
        // A panic of the thread was printed when it happened.
        drop(thread.join());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop(Stop::Leave);
    }
}

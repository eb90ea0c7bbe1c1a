//! A process's session with a coordinator of either kind: the handle for all threads of the process, and the loop of the one
//! thread behind it.
//!
//! ```text
//! any thread          thread coordinator-client                      coordinator
//!   Client --- Mailbox ---> run, Link::work, Link::work ... --- TCP --->
//!          <--- events ---
//! ```
//! Invariants: the thread waits for its socket, its mailbox and the clock, and for nothing else. It sends nine heartbeats in a
//! session timeout, and counts the session as lost after a third of the timeout.

use super::mailbox::{Mailbox, Stop};
use crate::{Coordinator, CoordinatorError, CoordinatorEvent, CoordinatorOp, Outage};
use leeward_platform::{BootClock, Clock, Nanos};
use mio::{Events, Poll, Token};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The token of the socket to the coordinator.
pub(super) const SOCKET: Token = Token(0);
const WAKER: Token = Token(1);

/// Pause between attempts to connect. The first pause, if pauses grow.
pub(super) const RETRY: Nanos = Nanos::from_millis(50);
/// How long a leaving client tries to end its session.
const LEAVE_WITHIN: Nanos = Nanos::from_millis(300);

/// Time between two heartbeats of a session with that timeout.
pub(super) fn heartbeat_interval(timeout: Nanos) -> Nanos {
    Nanos(timeout.0 / 9)
}

/// Silence after which a process considers itself cut off from a session with that timeout.
pub(super) fn silence_timeout(timeout: Nanos) -> Nanos {
    Nanos(timeout.0 / 3)
}

/// The state of a client's thread for either kind of coordinator.
pub(super) struct Context {
    pub(super) poll: Poll,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) sink: Box<dyn FnMut(CoordinatorEvent) + Send>,
}

impl Context {
    /// A context whose events go to `sink`.
    ///
    /// # Errors
    /// The machine refuses descriptors.
    pub(super) fn new(sink: impl FnMut(CoordinatorEvent) + Send + 'static) -> io::Result<Context> {
        let poll = Poll::new()?;
        let mailbox = Arc::new(Mailbox::new(&poll, WAKER)?);
        Ok(Context { poll, mailbox, sink: Box::new(sink) })
    }

    pub(super) fn now(&self) -> Nanos {
        BootClock.now()
    }

    /// Answers an operation while no coordinator is connected, or when the connection is lost.
    pub(super) fn disconnected(&mut self, id: u64) {
        (self.sink)(CoordinatorEvent::Reply { id, result: Err(CoordinatorError::Disconnected) });
    }

    /// Waits until an event arrives or `span` has passed.
    fn wait(&mut self, events: &mut Events, span: Nanos) {
        // Rounded up, so as not to wake too early: a poll counts whole milliseconds.
        let span = span.duration() + Duration::from_micros(999);
        if let Err(error) = self.poll.poll(events, Some(span))
            && error.kind() != io::ErrorKind::Interrupted
        {
            tracing::error!(%error, "the coordinator's client cannot wait for its socket");
            std::thread::sleep(RETRY.duration());
        }
    }
}

/// The part of a client's thread that depends on the kind of coordinator.
pub(super) trait Link: Send + 'static {
    fn context(&mut self) -> &mut Context;

    /// The next instant at which work is due by the clock.
    fn next_deadline(&self) -> Nanos;

    /// Handles received packets, sends submitted operations, and does what is due.
    fn work(&mut self);

    /// Asks the coordinator to end the session.
    fn leave(&mut self);

    /// Sends and receives. Returns whether the end of the session is not confirmed yet.
    fn is_leaving(&mut self) -> bool;
}

fn run(mut link: impl Link) {
    let mut events = Events::with_capacity(16);
    loop {
        let deadline = link.next_deadline();
        let context = link.context();
        context.wait(&mut events, deadline.since(context.now()));
        link.work();
        match link.context().mailbox.stop() {
            Some(Stop::Leave) => break,
            Some(Stop::Abandon) => return,
            None => {}
        }
    }
    link.leave();
    let until = link.context().now() + LEAVE_WITHIN;
    while link.is_leaving() && link.context().now() < until {
        link.context().wait(&mut events, RETRY);
    }
}

/// The session. Dropping it ends it at once; [`Client::abandon`] does not.
#[derive(Debug)]
pub struct Client {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// Starts the thread of `link`.
    pub(super) fn start(mut link: impl Link) -> io::Result<Client> {
        let mailbox = link.context().mailbox.clone();
        let thread = std::thread::Builder::new().name("coordinator-client".into()).spawn(move || run(link))?;
        Ok(Client { mailbox, thread: Some(thread) })
    }

    /// Stops without ending the session, as if the process had been killed.
    pub fn abandon(mut self) {
        self.stop(Stop::Abandon);
    }

    /// Ends the thread and waits for its end.
    fn stop(&mut self, stop: Stop) {
        let Some(thread) = self.thread.take() else { return };
        self.mailbox.end(stop);
        // A panic of the thread was printed when it happened.
        drop(thread.join());
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop(Stop::Leave);
    }
}

impl Coordinator for Client {
    fn submit(&self, id: u64, op: CoordinatorOp) {
        self.mailbox.submit(id, op);
    }

    fn outage(&self) -> Option<Outage> {
        self.mailbox.outage()
    }

    fn concern(&self) -> Option<String> {
        self.mailbox.concern()
    }
}

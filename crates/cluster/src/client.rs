//! A process's session with a coordinator, of either kind: the handle that its threads have, and the loop of the one thread
//! behind it.
//!
//! ```text
//! any thread          thread coordinator-client                      coordinator
//!   Client --- Mailbox ---> run, Link::work, Link::work ... --- TCP --->
//!          <--- events ---
//! ```
//! Invariants: the thread waits for its socket, its mailbox and the clock, and for nothing else. A session is asked after nine
//! times in its timeout, and missed after a third of it.

use crate::mailbox::{Mailbox, Stop};
use crate::{Coordinator, CoordinatorError, CoordinatorEvent, CoordinatorOp, Outage};
use leeward_platform::{BootClock, Clock, Nanos};
use mio::{Events, Poll, Token};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Of the socket to the coordinator.
pub(crate) const SOCKET: Token = Token(0);
const WAKER: Token = Token(1);

/// Pause between attempts to connect; the first one, where they grow.
pub(crate) const RETRY: Nanos = Nanos::from_millis(50);
/// How long a client that leaves tries to say so.
const LEAVE_WITHIN: Nanos = Nanos::from_millis(300);

/// Time between two heartbeats of a session with that timeout.
pub(crate) fn heartbeat_interval(timeout: Nanos) -> Nanos {
    Nanos(timeout.0 / 9)
}

/// Silence after which a process takes itself for cut off from a session with that timeout.
pub(crate) fn patience(timeout: Nanos) -> Nanos {
    Nanos(timeout.0 / 3)
}

/// What a client's thread has, whatever the coordinator.
pub(crate) struct Context {
    pub(crate) poll: Poll,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) sink: Box<dyn FnMut(CoordinatorEvent) + Send>,
}

impl Context {
    /// One whose events go to `sink`.
    ///
    /// # Errors
    /// The machine refuses descriptors.
    pub(crate) fn new(sink: impl FnMut(CoordinatorEvent) + Send + 'static) -> io::Result<Context> {
        let poll = Poll::new()?;
        let mailbox = Arc::new(Mailbox::new(&poll, WAKER)?);
        Ok(Context { poll, mailbox, sink: Box::new(sink) })
    }

    pub(crate) fn now(&self) -> Nanos {
        BootClock.now()
    }

    /// Answers an operation while there is nobody to ask, or when he is lost.
    pub(crate) fn disconnected(&mut self, id: u64) {
        (self.sink)(CoordinatorEvent::Reply { id, result: Err(CoordinatorError::Disconnected) });
    }

    /// Waits until something happens or `span` has passed.
    fn wait(&mut self, events: &mut Events, span: Nanos) {
        // Not before: a poll counts whole milliseconds.
        let span = span.duration() + Duration::from_micros(999);
        if let Err(error) = self.poll.poll(events, Some(span))
            && error.kind() != io::ErrorKind::Interrupted
        {
            tracing::error!(%error, "the coordinator's client cannot wait for its socket");
            std::thread::sleep(RETRY.duration());
        }
    }
}

/// What one kind of coordinator is to its client's thread.
pub(crate) trait Link: Send + 'static {
    fn context(&mut self) -> &mut Context;

    /// When something is to be done by the clock.
    fn next_deadline(&self) -> Nanos;

    /// Takes what came, asks for what was submitted, does what is due, and sends.
    fn work(&mut self);

    /// Asks for the session's end.
    fn leave(&mut self);

    /// Sends and takes what there is; answers whether the session's end has yet to be told.
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
    pub(crate) fn start(mut link: impl Link) -> io::Result<Client> {
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
}

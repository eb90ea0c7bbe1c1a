//! The way from other threads to the event loop: a channel, and a waker that is rung once per batch.

use crate::figures::Figures;
use crate::node::JobDone;
use crate::users::Answer;
use leeward_cluster::CoordinatorEvent;
use leeward_fabric::LinkEvent;
use leeward_format::ServerId;
use leeward_format::control::{Control, Subject};
use leeward_platform::cpu::{Account, Activity};
use leeward_platform::{BootClock, Clock, Nanos};
use mio::Waker;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};

/// An event from another thread.
pub(crate) enum Event {
    /// From a fabric thread.
    Link(ServerId, LinkEvent),
    /// From the coordinator client's thread.
    Coordinator(CoordinatorEvent),
    /// From a thread of the pool.
    Job(JobDone),
    /// From the admin thread: a request for the node's figures.
    Figures(tokio::sync::oneshot::Sender<Arc<Figures>>),
    /// From a thread of the rings' fabric: the rings' mailbox has events.
    Rings,
    /// From the password thread: the answer to the question of a connection.
    Answered(u64, Answer),
    /// The server is to stop when the other nodes have taken over, or at the latest after this time.
    Depart(Nanos),
    /// The server is to stop.
    Stop,
}

impl Event {
    /// The subject of a message of another node; `None` for other events.
    pub(crate) fn subject(&self) -> Option<Subject> {
        match self {
            Event::Link(_, LinkEvent::Message(bytes)) => Some(Control::subject(bytes)),
            _ => None,
        }
    }

    /// Whether a one-sided write has ended.
    pub(crate) fn is_completion(&self) -> bool {
        matches!(self, Event::Link(_, LinkEvent::Completed { .. } | LinkEvent::Refused { .. }))
    }

    /// The account of the CPU time that handling it takes.
    pub(crate) fn account(&self) -> Account {
        match self {
            Event::Link(_, LinkEvent::Completed { .. } | LinkEvent::Refused { .. }) => Activity::Mirroring.of_primary(),
            Event::Link(..) => Activity::Mirroring.of_node(),
            Event::Job(done) => done.account,
            Event::Rings => Activity::Receive.of_node(),
            Event::Coordinator(_) | Event::Figures(_) | Event::Answered(..) | Event::Depart(_) | Event::Stop => {
                Activity::Other.of_node()
            }
        }
    }
}

/// The sending end. Any thread may use it; it never blocks.
#[derive(Clone)]
pub(crate) struct Doorbell {
    sender: Sender<(Option<Nanos>, Event)>,
    bell: Arc<Bell>,
}

#[derive(Default)]
struct Bell {
    /// It was rung since the event loop last looked.
    is_rung: AtomicBool,
    /// Made with the event loop's poll, which starts after the threads that ring.
    waker: OnceLock<Waker>,
}

/// The receiving end.
pub(crate) struct Events {
    receiver: Receiver<(Option<Nanos>, Event)>,
    bell: Arc<Bell>,
}

/// A channel whose waker is yet to be [attached](Doorbell::attach).
pub(crate) fn event_channel() -> (Doorbell, Events) {
    let (sender, receiver) = channel();
    let bell = Arc::new(Bell::default());
    (Doorbell { sender, bell: bell.clone() }, Events { receiver, bell })
}

impl Doorbell {
    /// Sends `event`. Nothing happens if the event loop has ended.
    pub(crate) fn send(&self, event: Event) {
        // How late other events are, nobody asks, and the clock costs more than sending them.
        let sent = (event.subject() == Some(Subject::Lease)).then(|| BootClock.now());
        if self.sender.send((sent, event)).is_err() {
            return;
        }
        // Pairs with `Events::look`: either that sees the event, or this sees that the event loop has looked.
        if !self.bell.is_rung.swap(true, Ordering::AcqRel) {
            self.ring();
        }
    }

    /// From now on, `waker` wakes the event loop.
    pub(crate) fn attach(&self, waker: Waker) {
        assert!(self.bell.waker.set(waker).is_ok(), "there is one event loop");
        self.ring();
    }

    fn ring(&self) {
        if let Some(Err(error)) = self.bell.waker.get().map(Waker::wake) {
            tracing::error!(%error, "the event loop cannot be woken; it will look at its next tick");
        }
    }
}

impl Events {
    /// Begins the next look: senders ring again from now on. What was sent before is in [`Events::next`].
    pub(crate) fn look(&self) {
        self.bell.is_rung.swap(false, Ordering::AcqRel);
    }

    /// The oldest event that was not taken, and, for a message of leases, when it was sent. A caller that leaves some must
    /// come back by itself.
    pub(crate) fn next(&self) -> Option<(Option<Nanos>, Event)> {
        self.receiver.try_recv().ok()
    }
}

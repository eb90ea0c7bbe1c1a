//! The way of events from the fabric's threads to the owner of the rings.

use leeward_fabric::{LinkEvent, PeerId, Sink};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Events that were not taken yet. Any thread adds events. The owner is woken once for all events between two looks,
/// and not for events that it causes itself while it is awake.
pub struct Mailbox {
    events: Mutex<Vec<(PeerId, LinkEvent)>>,
    is_rung: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Mailbox {
    /// An empty mailbox; any thread may call `wake`.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Arc<Mailbox> {
        Arc::new(Mailbox { events: Mutex::default(), is_rung: AtomicBool::new(false), wake: Box::new(wake) })
    }

    /// The sink that the fabric is made with.
    pub fn sink(self: &Arc<Mailbox>) -> Sink {
        let mailbox = Arc::clone(self);
        Arc::new(move |peer, event| mailbox.put(peer, event))
    }

    fn put(&self, peer: PeerId, event: LinkEvent) {
        // No correct client sends these here. A hostile one could fill the mailbox with them.
        if matches!(event, LinkEvent::Message(_) | LinkEvent::ReadDone { .. }) {
            return;
        }
        self.events.lock().push((peer, event));
        // Pairs with `take`: either `take` sees the event, or this sees that `take` has looked.
        if !self.is_rung.swap(true, Ordering::AcqRel) {
            (self.wake)();
        }
    }

    /// Does not wake the owner until [`Mailbox::take`], which must follow.
    pub(super) fn suppress_wake(&self) {
        self.is_rung.store(true, Ordering::Release);
    }

    /// All events so far.
    pub(super) fn take(&self) -> Vec<(PeerId, LinkEvent)> {
        if !self.is_rung.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *self.events.lock())
    }
}

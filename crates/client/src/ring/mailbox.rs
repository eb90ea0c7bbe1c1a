//! The mailbox by which the fabric's threads pass events to the session's thread.

use leeward_fabric::{LinkEvent, Sink};
use mio::{Token, Waker};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Events that were not taken yet, each with its link.
pub(crate) struct Mailbox {
    events: Mutex<Vec<(Token, LinkEvent)>>,
    has_some: AtomicBool,
    /// The session's thread waits in its poll, or is about to.
    is_asleep: AtomicBool,
    waker: Waker,
}

impl Mailbox {
    pub(crate) fn new(waker: Waker) -> Arc<Mailbox> {
        let (has_some, is_asleep) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Mailbox { events: Mutex::default(), has_some, is_asleep, waker })
    }

    /// The sink for the fabric of the link `token`.
    pub(crate) fn sink(self: &Arc<Mailbox>, token: Token) -> Sink {
        let mailbox = Arc::clone(self);
        Arc::new(move |_, event| mailbox.put(token, event))
    }

    fn put(&self, token: Token, event: LinkEvent) {
        // No node sends control messages here. A hostile one could fill the mailbox with them.
        if matches!(event, LinkEvent::Message(_) | LinkEvent::ReadDone { .. }) {
            return;
        }
        self.events.lock().push((token, event));
        // Pairs with `may_sleep`: one of the two sees the other.
        self.has_some.store(true, Ordering::SeqCst);
        if self.is_asleep.swap(false, Ordering::SeqCst)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "a client cannot be woken; it looks at its next tick");
        }
    }

    /// Whether there is something to take.
    pub(crate) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Relaxed)
    }

    /// Everything so far.
    pub(crate) fn take(&self) -> Vec<(Token, LinkEvent)> {
        if !self.has_some.swap(false, Ordering::SeqCst) {
            return Vec::new();
        }
        std::mem::take(&mut *self.events.lock())
    }

    /// From now on each event wakes the poll. Returns false if there is one already.
    pub(crate) fn may_sleep(&self) -> bool {
        self.is_asleep.store(true, Ordering::SeqCst);
        !self.has_some.load(Ordering::SeqCst)
    }

    /// The poll has returned.
    pub(crate) fn is_up(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
    }
}

//! How the fabric's threads reach who owns the rings.

use leeward_fabric::{LinkEvent, PeerId, Sink};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Events that were not taken yet. Any thread puts them in; the owner is woken once for those between two looks, and not
/// for those that it causes itself while it is awake.
pub struct Mail {
    events: Mutex<Vec<(PeerId, LinkEvent)>>,
    is_rung: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Mail {
    /// An empty box; `wake` is called by any thread.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Arc<Mail> {
        Arc::new(Mail { events: Mutex::default(), is_rung: AtomicBool::new(false), wake: Box::new(wake) })
    }

    /// What the fabric is made with.
    pub fn sink(self: &Arc<Mail>) -> Sink {
        let mail = Arc::clone(self);
        Arc::new(move |peer, event| mail.put(peer, event))
    }

    fn put(&self, peer: PeerId, event: LinkEvent) {
        // Nobody sends these here, but whoever would like to fill the box.
        if matches!(event, LinkEvent::Message(_) | LinkEvent::ReadDone { .. }) {
            return;
        }
        self.events.lock().push((peer, event));
        // Pairs with `take`: either it sees the event, or this sees that it has looked.
        if !self.is_rung.swap(true, Ordering::AcqRel) {
            (self.wake)();
        }
    }

    /// Nobody is woken until [`Mail::take`], which must follow.
    pub(super) fn hush(&self) {
        self.is_rung.store(true, Ordering::Release);
    }

    /// Everything so far.
    pub(super) fn take(&self) -> Vec<(PeerId, LinkEvent)> {
        if !self.is_rung.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *self.events.lock())
    }
}

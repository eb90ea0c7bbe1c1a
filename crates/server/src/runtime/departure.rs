//! How the event loop ends: at once when it is told to stop, and in two steps when the node departs.
//!
//! First the other nodes take over, and all of them know it. Until then this node answers requests for the regions that
//! it had. Then Redis clients, which do not retry by themselves, are *drained*: their requests are answered, and no
//! more are read. If the other nodes take too long, the node stops without them.

use crate::node::Node;
use leeward_platform::Nanos;

/// How long a node answers after the others have taken over.
const LINGER: Nanos = Nanos::from_millis(300);
/// How long the answers to its clients may take after that.
const DRAIN: Nanos = Nanos::from_secs(2);

/// How far the departure has come. Without one, the event loop runs until it is told to stop.
#[derive(Default)]
pub(super) struct Departure {
    /// Until when the other nodes may take over.
    by: Option<Nanos>,
    /// Since when they have taken over.
    taken_over_at: Option<Nanos>,
    /// Since when Redis clients are drained.
    drain_at: Option<Nanos>,
    is_over: bool,
}

impl Departure {
    /// Begins the departure. The other nodes may take over until `by`.
    pub(super) fn begin(&mut self, by: Nanos) {
        self.by.get_or_insert(by);
    }

    /// Ends the event loop now.
    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// A tick. Returns whether Redis clients are to be drained from now on.
    pub(super) fn is_drain_due(&mut self, now: Nanos, node: &Node) -> bool {
        let Some(by) = self.by else { return false };
        self.taken_over_at = node.has_departed().then(|| self.taken_over_at.unwrap_or(now));
        let is_due = now > by || self.taken_over_at.is_some_and(|at| now - at >= LINGER);
        let is_new = self.drain_at.is_none() && is_due;
        if is_new {
            self.drain_at = Some(now);
        }
        is_new
    }

    /// Ends the event loop if everything is done. `has_clients`: there are Redis clients that are not drained.
    pub(super) fn end_if_drained(&mut self, now: Nanos, node: &Node, has_clients: impl FnOnce() -> bool) {
        let Some((by, drain_at)) = self.by.zip(self.drain_at) else { return };
        self.is_over |= now - drain_at >= DRAIN || !has_clients() && (now > by || node.is_idle());
    }
}

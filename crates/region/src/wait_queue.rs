//! Operations that wait for one thing, in the order in which they came. Each queue has a bound on the number of
//! operations, and on the time that one waits. The owner checks `WaitQueue::is_full` before it adds an operation. The
//! first is the oldest.
//!
//! Belongs to the node's thread; pure.

use leeward_platform::Nanos;
use std::collections::VecDeque;

/// Operations that wait for one thing, the oldest first.
pub struct WaitQueue<T> {
    waiting: VecDeque<(Nanos, T)>,
    most: usize,
    timeout: Nanos,
}

impl<T> WaitQueue<T> {
    /// An empty queue for `most` operations, each of which waits up to `timeout`.
    pub(crate) const fn new(most: usize, timeout: Nanos) -> WaitQueue<T> {
        WaitQueue { waiting: VecDeque::new(), most, timeout }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether no more operations may be added.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= self.most
    }

    /// Adds an operation behind the others. It waits since `since`.
    pub(crate) fn push(&mut self, since: Nanos, operation: T) {
        self.waiting.push_back((since, operation));
    }

    /// Puts the operation back that was taken last.
    pub(crate) fn put_back(&mut self, since: Nanos, operation: T) {
        self.waiting.push_front((since, operation));
    }

    /// Takes the oldest.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.waiting.pop_front().map(|(_, operation)| operation)
    }

    /// Takes the oldest, if it has waited for too long.
    pub(crate) fn pop_late(&mut self, now: Nanos) -> Option<T> {
        let timeout = self.timeout;
        self.waiting.pop_front_if(|(since, _)| now - *since > timeout).map(|(_, operation)| operation)
    }

    /// Takes all, oldest first.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, operation)| operation)
    }

    /// All, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter().map(|(_, operation)| operation)
    }

    /// Adds all of `others` behind these.
    pub(crate) fn append(&mut self, others: &mut WaitQueue<T>) {
        self.waiting.append(&mut others.waiting);
    }
}

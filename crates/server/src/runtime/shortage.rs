//! What the event loop does when the [memory for clients](crate::client_memory) is full: connections wait for room, those that hold
//! most and give nothing back are disconnected.
//!
//! A connection that was looked at while the account was full is looked at again once it is not, in turn with the others, some at a
//! time: each may fill it again. Belongs to the event loop's thread.

use super::event_loop::EventLoop;
use crate::client_memory::Stuck;
use crate::metrics::Dropped;
use leeward_platform::Nanos;
use std::collections::BTreeSet;

/// Connections that are looked at again at a time.
const AT_ONCE: usize = 64;

/// What the event loop knows of connections that wait for memory.
#[derive(Default)]
pub(super) struct Shortage {
    waiting: BTreeSet<u64>,
    /// The one that was looked at again last.
    last: u64,
    was_full: bool,
    stuck: Stuck,
}

impl Shortage {
    /// Connection `id` may have to wait.
    pub(super) fn waits(&mut self, id: u64) {
        self.waiting.insert(id);
    }

    /// The next of those that wait, in turn.
    fn next(&mut self) -> Vec<u64> {
        let next = self.waiting.range(self.last + 1..).chain(self.waiting.range(..=self.last));
        let next: Vec<u64> = next.take(AT_ONCE).copied().collect();
        for id in &next {
            self.waiting.remove(id);
        }
        self.last = next.last().copied().unwrap_or(self.last);
        next
    }
}

impl EventLoop {
    /// Looks at connections again if there is memory for them; answers whether the next turn must not wait.
    pub(super) fn end_shortage(&mut self) -> bool {
        let is_full = self.shared.memory.is_full();
        let was_full = std::mem::replace(&mut self.shortage.was_full, is_full);
        if is_full {
            return false;
        }
        let next = self.shortage.next();
        let is_any = !next.is_empty();
        self.touched.extend(next);
        // What waits in regions goes on in a turn, too.
        was_full || is_any
    }

    /// Disconnects the client that keeps the others waiting.
    pub(super) fn end_stuck(&mut self, now: Nanos) {
        if !self.shared.memory.is_full() {
            return self.shortage.stuck.clear();
        }
        let alive = self.connections.iter().filter(|(_, connection)| !connection.is_dead);
        let holders = alive.map(|(id, connection)| (*id, connection.conversation.holder()));
        let Some((id, bytes)) = self.shortage.stuck.look(now, holders) else { return };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_dead = true;
            self.shared.metrics.dropped(Dropped::Memory);
            tracing::warn!(
                client = id,
                bytes,
                "the memory for clients, a part of memory_budget, is full: the client that holds most was disconnected"
            );
            self.touched.insert(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_wait_have_turns() {
        let mut shortage = Shortage::default();
        (1..=100).for_each(|id| shortage.waits(id));
        assert_eq!(shortage.next(), (1..=64).collect::<Vec<u64>>());
        (1..=64).for_each(|id| shortage.waits(id));
        assert_eq!(shortage.next(), (65..=100).chain(1..=28).collect::<Vec<u64>>());
        assert_eq!(shortage.next(), (29..=64).collect::<Vec<u64>>());
        assert_eq!(shortage.next(), Vec::<u64>::new());
    }
}

//! The event loop's part when the [memory for clients](crate::client_memory) is full: connections wait for room, and
//! the clients that hold most and give nothing back are disconnected.
//!
//! A connection that was looked at while the account was full is looked at again once it is not. Connections have
//! turns, a few at a time, since each may fill the account again. Belongs to the event loop's thread.

use super::event_loop::EventLoop;
use crate::metrics::Dropped;
use leeward_platform::Nanos;
use leeward_region::client_memory::{LITTLE_BYTES, Stuck};
use std::collections::BTreeSet;

/// Connections that are looked at again together.
const AT_ONCE: usize = 64;
/// Pause between two warnings.
const LOG_EVERY: Nanos = Nanos::from_secs(1);

/// What the event loop knows of connections that wait for memory.
#[derive(Default)]
pub(super) struct Shortage {
    /// Connections that hold little, and others.
    little: Turns,
    others: Turns,
    was_full: bool,
    stuck: Stuck,
    /// Disconnected clients that are not logged yet, and the bytes that they held.
    unlogged: (u64, u64),
    logged_at: Option<Nanos>,
}

/// Connections that have turns.
#[derive(Default)]
struct Turns {
    waiting: BTreeSet<u64>,
    /// The one that had its turn last.
    last: u64,
}

impl Turns {
    /// Removes and returns the next connections that wait.
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

impl Shortage {
    /// Notes that connection `id` may have to wait. It holds `held` bytes.
    pub(super) fn waits(&mut self, id: u64, held: u64) {
        let turns = if held <= LITTLE_BYTES { &mut self.little } else { &mut self.others };
        turns.waiting.insert(id);
    }
}

impl EventLoop {
    /// Looks at connections again if there is memory for them. Returns whether the next turn must come at once.
    pub(super) fn end_shortage(&mut self) -> bool {
        let is_full = self.driver.shared.memory.is_full();
        let was_full = std::mem::replace(&mut self.shortage.was_full, is_full);
        if is_full {
            return false;
        }
        let mut next = self.shortage.little.next();
        if !self.driver.shared.memory.is_scarce() {
            next.extend(self.shortage.others.next());
        }
        let is_any = !next.is_empty();
        self.connections.touch_all(next);
        // Reads that wait in regions continue in a turn, too.
        was_full || is_any
    }

    /// Frees what idle connections keep, and disconnects the clients that keep the others waiting.
    pub(super) fn end_stuck(&mut self, now: Nanos) {
        if !self.driver.shared.memory.is_scarce() {
            self.shortage.stuck.clear();
            return self.log_dropped(now);
        }
        self.connections.all_mut().for_each(|(_, connection)| connection.protocol_session.give_back());
        let holders = self.connections.alive().map(|(id, connection)| (id, connection.protocol_session.holder()));
        for (id, bytes) in self.shortage.stuck.look(now, self.driver.shared.memory.excess(), holders) {
            self.connections.give_up(id);
            self.driver.metrics().dropped(Dropped::Memory);
            self.shortage.unlogged = (self.shortage.unlogged.0 + 1, self.shortage.unlogged.1 + bytes);
        }
        self.log_dropped(now);
    }

    /// Logs at intervals how many clients were disconnected, so that they cannot fill the log.
    fn log_dropped(&mut self, now: Nanos) {
        let Shortage { unlogged, logged_at, .. } = &mut self.shortage;
        if unlogged.0 == 0 || logged_at.is_some_and(|at| now - at < LOG_EVERY) {
            return;
        }
        let (clients, bytes) = std::mem::take(unlogged);
        *logged_at = Some(now);
        tracing::warn!(
            clients,
            bytes,
            "the memory for clients, a part of memory_budget, is full: clients that held most and gave nothing back were disconnected"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_wait_have_turns() {
        let mut turns = Turns::default();
        turns.waiting.extend(1..=100);
        assert_eq!(turns.next(), (1..=64).collect::<Vec<u64>>());
        turns.waiting.extend(1..=64);
        assert_eq!(turns.next(), (65..=100).chain(1..=28).collect::<Vec<u64>>());
        assert_eq!(turns.next(), (29..=64).collect::<Vec<u64>>());
        assert_eq!(turns.next(), Vec::<u64>::new());
    }
}

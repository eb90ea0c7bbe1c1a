//! Events in the order of their instants. Events of the same instant keep the order in which they were pushed.

use leeward_platform::Nanos;
use std::collections::BTreeMap;

#[derive(Debug)]
pub(crate) struct Queue<E> {
    events: BTreeMap<(Nanos, u64), E>,
    made: u64,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Queue<E> {
        Queue { events: BTreeMap::new(), made: 0 }
    }

    /// `event` happens at `at`.
    pub(crate) fn push(&mut self, at: Nanos, event: E) {
        self.made += 1;
        self.events.insert((at, self.made), event);
    }

    /// When the next event happens.
    pub(crate) fn next_time(&self) -> Option<Nanos> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next event.
    pub(crate) fn pop(&mut self) -> Option<E> {
        self.events.pop_first().map(|(_, event)| event)
    }

    /// Events pushed so far.
    pub(crate) fn made(&self) -> u64 {
        self.made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_instants_keep_their_order() {
        let mut queue = Queue::new();
        for (at, name) in [(2, "c"), (1, "a"), (2, "d"), (1, "b")] {
            queue.push(Nanos(at), name);
        }
        assert_eq!((queue.next_time(), queue.made()), (Some(Nanos(1)), 4));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["a", "b", "c", "d"]);
    }
}

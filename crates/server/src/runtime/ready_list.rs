//! Which connections the event loop looks at, and whether it may sleep. Only a list, without sockets, rings or a clock.
//!
//! **Rings** are looked into after an event: bytes on their socket, a completed word, or a turn that left messages.
//! While the loop is *awake*, clients know that they need not ring, and each turn looks into every ring that has
//! something. The loop falls asleep once nothing came for the time of the spin, whatever else there is to do.
//!
//! **Bytes in a socket** that an event has reported are in one of two states, until they are read:
//!
//! - *due*: they are read as soon as the session accepts any. Nothing else ends this state.
//! - *left*: the connection has a ring, so the bytes are most likely bells. A bell says nothing that the ring does not
//!   say, and reading it costs more than the request that it is for. They become due when the ring has nothing, when
//!   there are many, when the client is gone, and with the next tick.
//!
//! Belongs to the event loop's thread. Its tests enumerate what clients, loop and time may do.

use leeward_platform::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// The state of all connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReadyList {
    spin: Nanos,
    most_deferred: u32,
    /// When a ring last had something.
    last_request: Nanos,
    /// Some client knows that the loop is awake.
    is_awake: bool,
    /// Rings to be looked into in the next turn.
    look: BTreeSet<u64>,
    /// Rings with something that their session does not accept at the moment.
    held: BTreeSet<u64>,
    due: BTreeSet<u64>,
    /// Sockets to be read in this turn or the next.
    readable: BTreeSet<u64>,
    /// How many events of each socket have left bytes there.
    left: BTreeMap<u64, u32>,
}

/// What to do before a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// Let clients know that they must ring.
    FallAsleep,
    /// Begin the turn at once: there is something to do.
    Nothing,
    /// Look into rings for a moment.
    Spin,
    /// Sleep until an event comes.
    Sleep,
}

/// The result of a look into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingLook {
    Nothing,
    Requests {
        has_more: bool,
    },
    /// It was not looked into: the session accepts nothing.
    Held,
}

impl ReadyList {
    /// An empty list. A loop that does not spin is never awake. `most_deferred` events of a socket may leave its bytes
    /// there.
    pub(super) fn new(spin: Nanos, most_deferred: u32) -> ReadyList {
        ReadyList {
            spin,
            most_deferred,
            last_request: Nanos::ZERO,
            is_awake: false,
            look: BTreeSet::new(),
            held: BTreeSet::new(),
            due: BTreeSet::new(),
            readable: BTreeSet::new(),
            left: BTreeMap::new(),
        }
    }

    /// What to do before the next turn; `is_busy`: the turn must not wait.
    pub(super) fn before(&mut self, now: Nanos, is_busy: bool) -> Before {
        if self.is_awake && now - self.last_request >= self.spin {
            self.is_awake = false;
            return Before::FallAsleep;
        }
        match self.is_awake {
            _ if is_busy || !self.look.is_empty() || !self.readable.is_empty() => Before::Nothing,
            true => Before::Spin,
            false => Before::Sleep,
        }
    }

    /// Handles an event of the socket of `id`: it has bytes, and the end of the stream if `is_last`.
    pub(super) fn told(&mut self, id: u64, has_ring: bool, is_last: bool) {
        let left = self.left.get(&id).copied().unwrap_or(0);
        if has_ring {
            self.look.insert(id);
        }
        if has_ring && !is_last && left < self.most_deferred && !self.due.contains(&id) {
            self.left.insert(id, left + 1);
        } else {
            self.must_read(id);
        }
    }

    fn must_read(&mut self, id: u64) {
        self.left.remove(&id);
        self.due.insert(id);
        self.readable.insert(id);
    }

    /// Notes that the ring of `id` is to be looked into.
    pub(super) fn look(&mut self, id: u64) {
        self.look.insert(id);
    }

    /// Whether the next turn finds something in the rings. `waiting` are the rings that have something.
    pub(super) fn has_news(&self, mut waiting: impl Iterator<Item = u64>) -> bool {
        waiting.any(|id| !self.held.contains(&id))
    }

    /// The rings to look into in this turn. `waiting` are the rings that have something.
    pub(super) fn turn(&mut self, waiting: impl Iterator<Item = u64>) -> BTreeSet<u64> {
        if self.is_awake {
            self.look.extend(waiting.filter(|id| !self.held.contains(id)));
        }
        std::mem::take(&mut self.look)
    }

    /// Notes what a look into the ring of `id` has found. Returns whether its client must learn that the loop is awake.
    pub(super) fn looked(&mut self, id: u64, found: RingLook, now: Nanos) -> bool {
        match found {
            // The bytes on the socket were not bells.
            RingLook::Nothing if self.left.contains_key(&id) => self.must_read(id),
            RingLook::Nothing => {}
            RingLook::Held => {
                self.held.insert(id);
            }
            RingLook::Requests { has_more } => {
                self.last_request = now;
                self.is_awake = self.spin > Nanos::ZERO;
                if has_more {
                    self.look.insert(id);
                }
                return self.is_awake;
            }
        }
        false
    }

    /// Sockets to be read now. Call [`ReadyList::read`] for each afterwards.
    pub(super) fn take_readable(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.readable)
    }

    /// Notes that the socket of `id` was read. It may have more bytes, which its session may accept.
    pub(super) fn read(&mut self, id: u64, has_ring: bool, has_more: bool, takes_more: bool) {
        if has_ring {
            // A bell may have been read, and nothing else reports it.
            self.look.insert(id);
        }
        if !has_more {
            self.due.remove(&id);
        } else if takes_more {
            self.readable.insert(id);
        }
    }

    /// Notes that there was no time in this turn to read the socket of `id`.
    pub(super) fn read_later(&mut self, id: u64) {
        self.readable.insert(id);
    }

    /// Notes that the session of `id` accepts input.
    pub(super) fn takes(&mut self, id: u64) {
        if self.due.contains(&id) {
            self.readable.insert(id);
        }
        if self.held.remove(&id) {
            self.look.insert(id);
        }
    }

    /// A tick: bytes that were left become due.
    pub(super) fn tick(&mut self) {
        for id in std::mem::take(&mut self.left).into_keys() {
            self.must_read(id);
        }
    }

    /// Forgets `id`, which is gone.
    pub(super) fn remove(&mut self, id: u64) {
        self.left.remove(&id);
        for ids in [&mut self.look, &mut self.held, &mut self.due, &mut self.readable] {
            ids.remove(&id);
        }
    }
}

#[cfg(test)]
#[path = "ready_list_tests.rs"]
mod tests;

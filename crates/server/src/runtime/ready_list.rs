//! Which connections the event loop looks at, and whether it may sleep: only a list, without sockets, rings or a clock.
//!
//! **Rings** are looked into when something tells of them: a byte of their socket, a completed word, a turn that left some.
//! While the loop is *awake*, which it tells clients so that they need not ring, it looks in every turn into each that has
//! something. It falls asleep once nothing came for the spin, whatever else there is to do.
//!
//! **Bytes in a socket** that were told of are in one of two states, until they are read:
//!
//! - *due*: they are read as soon as their session accepts any. Nothing else ends this state.
//! - *left*: the connection has a ring, so they are bells, most likely: a bell says nothing that the ring does not say, and a
//!   system call to read it costs more than what it is rung for. They become due when the ring has nothing, when there are
//!   many, when the client is gone, and with the next tick.
//!
//! Belongs to the event loop's thread. Its tests enumerate what clients, loop and time may do.

use leeward_platform::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// The state of all connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReadyList {
    spin: Nanos,
    most_left: u32,
    /// When something was in a ring last.
    last_request: Nanos,
    /// Some client was told that the loop is awake.
    is_awake: bool,
    /// Rings to be looked into in the next turn.
    look: BTreeSet<u64>,
    /// Rings with something that their session does not accept at the moment.
    held: BTreeSet<u64>,
    due: BTreeSet<u64>,
    /// Sockets to be read in this turn or the next.
    readable: BTreeSet<u64>,
    /// How often each socket told of bytes that were left there.
    left: BTreeMap<u64, u32>,
}

/// What the loop does before a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// Clients are to be told that they must ring.
    FallAsleep,
    /// There is something to do: the turn comes at once.
    Nothing,
    /// It looks into rings for a moment.
    Spin,
    /// It may sleep.
    Sleep,
}

/// What a look into a ring found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Requests {
        has_more: bool,
    },
    /// It was not looked into: the session accepts nothing.
    Held,
}

impl ReadyList {
    /// Nothing is known yet. A loop that does not spin is never awake; `most_left` as in [`ReadyList::told`].
    pub(super) fn new(spin: Nanos, most_left: u32) -> ReadyList {
        ReadyList {
            spin,
            most_left,
            last_request: Nanos::ZERO,
            is_awake: false,
            look: BTreeSet::new(),
            held: BTreeSet::new(),
            due: BTreeSet::new(),
            readable: BTreeSet::new(),
            left: BTreeMap::new(),
        }
    }

    /// What is to be done before the next turn; `is_busy` when that must not wait anyway.
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

    /// The socket of `id` has bytes, and the end of the stream if `is_last`. Up to so many times they are left there.
    pub(super) fn told(&mut self, id: u64, has_ring: bool, is_last: bool) {
        let left = self.left.get(&id).copied().unwrap_or(0);
        if has_ring {
            self.look.insert(id);
        }
        if has_ring && !is_last && left < self.most_left && !self.due.contains(&id) {
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

    /// The ring of `id` is to be looked into.
    pub(super) fn look(&mut self, id: u64) {
        self.look.insert(id);
    }

    /// Whether there is something in the rings that the next turn finds; `waiting` are those that have something.
    pub(super) fn has_news(&self, mut waiting: impl Iterator<Item = u64>) -> bool {
        waiting.any(|id| !self.held.contains(&id))
    }

    /// A turn has come to the rings: those to be looked into. `waiting` are those that have something.
    pub(super) fn turn(&mut self, waiting: impl Iterator<Item = u64>) -> BTreeSet<u64> {
        if self.is_awake {
            self.look.extend(waiting.filter(|id| !self.held.contains(id)));
        }
        std::mem::take(&mut self.look)
    }

    /// What a look into the ring of `id` has found; returns whether to tell its client that the loop is awake.
    pub(super) fn looked(&mut self, id: u64, found: Found, now: Nanos) -> bool {
        match found {
            // So they were not bells.
            Found::Nothing if self.left.contains_key(&id) => self.must_read(id),
            Found::Nothing => {}
            Found::Held => {
                self.held.insert(id);
            }
            Found::Requests { has_more } => {
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

    /// Sockets to be read now; [`ReadyList::read`] follows for each.
    pub(super) fn take_readable(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.readable)
    }

    /// The socket of `id` was read. It may have more, of which its session accepts some or none.
    pub(super) fn read(&mut self, id: u64, has_ring: bool, has_more: bool, takes_more: bool) {
        if has_ring {
            // What was read may have been a bell, of which nothing else tells.
            self.look.insert(id);
        }
        if !has_more {
            self.due.remove(&id);
        } else if takes_more {
            self.readable.insert(id);
        }
    }

    /// There was no time to read the socket of `id`, which was to be read in this turn.
    pub(super) fn read_later(&mut self, id: u64) {
        self.readable.insert(id);
    }

    /// The session of `id` accepts input, perhaps again.
    pub(super) fn takes(&mut self, id: u64) {
        if self.due.contains(&id) {
            self.readable.insert(id);
        }
        if self.held.remove(&id) {
            self.look.insert(id);
        }
    }

    /// Some time has passed: what was left is due.
    pub(super) fn tick(&mut self) {
        for id in std::mem::take(&mut self.left).into_keys() {
            self.must_read(id);
        }
    }

    /// `id` is gone.
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

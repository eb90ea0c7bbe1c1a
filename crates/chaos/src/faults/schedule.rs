//! When each fault strikes: rounds of one or two faults, each followed by healing and a quiet time. All of it follows from a
//! seed. Pure.
//!
//! Kinds come from two shuffled decks. So each kind of a deck strikes before any of them strikes again. Hostile clients are one
//! deck, and every second round begins with them. So each kind of hostile client strikes even in a short run, which has few
//! rounds.

use crate::faults::kind::{Class, FaultKind};
use leeward_platform::Rng;
use std::time::Duration;

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;

/// One round in this many has two faults.
const TWO_IN: u64 = 3;

/// A fault and its parameters. The meaning of the parameters depends on the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    /// The number of the server or region that it strikes, modulo how many there are.
    pub(crate) target: usize,
    /// Any number. It decides how hard the fault strikes, and which way.
    pub(crate) entropy: u64,
}

/// The faults between two healings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) faults: Vec<Fault>,
    /// From the first of two faults to the second: at most 4 s, so that the cluster is still handling the first.
    pub(crate) between: Duration,
    /// From the last of them to healing.
    pub(crate) lasts: Duration,
    /// From the moment when the cluster is whole to the next round.
    pub(crate) quiet: Duration,
}

/// Kinds, in an order that is shuffled again each time all of them have been drawn.
#[derive(Debug, Default)]
struct Deck {
    kinds: Vec<FaultKind>,
    left: Vec<FaultKind>,
}

impl Deck {
    /// Draws the next kind for which `wanted` is true; `None` if the deck has none.
    fn draw(&mut self, rng: &mut Rng, wanted: impl Fn(FaultKind) -> bool) -> Option<FaultKind> {
        if !self.left.iter().any(|kind| wanted(*kind)) {
            let mut more = self.kinds.clone();
            rng.shuffle(&mut more);
            self.left.extend(more);
        }
        let at = self.left.iter().position(|kind| wanted(*kind))?;
        Some(self.left.remove(at))
    }
}

/// The rounds of faults of a seed.
#[derive(Debug)]
pub(crate) struct Schedule {
    rng: Rng,
    rounds: u64,
    /// Faults of processes, networks, disks, coordinators, and operators.
    breaking: Deck,
    /// Hostile clients.
    hostile: Deck,
}

impl Schedule {
    /// A schedule of rounds with these kinds of faults.
    ///
    /// # Panics
    /// `kinds` is empty.
    pub(crate) fn new(seed: u64, kinds: Vec<FaultKind>) -> Schedule {
        assert!(!kinds.is_empty(), "there is something to strike with");
        let (hostile, breaking) = kinds.into_iter().partition(|kind| kind.class() == Class::Client);
        let deck = |kinds| Deck { kinds, left: Vec::new() };
        Schedule { rng: Rng::new(seed), rounds: 0, breaking: deck(breaking), hostile: deck(hostile) }
    }

    pub(crate) fn next_round(&mut self) -> Round {
        self.rounds += 1;
        let is_hostile =
            !self.hostile.kinds.is_empty() && (self.rounds.is_multiple_of(2) || self.breaking.kinds.is_empty());
        let first = self.fault(is_hostile, |_| true);
        let mut faults: Vec<Fault> = first.into_iter().collect();
        if self.rng.one_in(TWO_IN)
            && let Some(class) = first.map(|fault| fault.kind.class())
        {
            faults.extend(self.fault(false, |kind| kind.class() != class));
        }
        if let [first, second] = &mut faults[..]
            && self.rng.one_in(2)
        {
            second.target = first.target;
        }
        let is_together = faults.len() == 1 || self.rng.one_in(3);
        let between = if is_together { 0 } else { self.rng.between(100, 4_000) };
        let is_short = self.rng.one_in(3);
        let lasts = if is_short { self.rng.between(300, 2_000) } else { self.rng.between(2_500, 7_000) };
        let least = faults.iter().map(|fault| least_ms(fault.kind)).max().unwrap_or_default();
        let quiet = self.rng.between(300, 1_500);
        let [between, lasts, quiet] = [between, lasts.max(least), quiet].map(Duration::from_millis);
        Round { faults, between, lasts, quiet }
    }

    /// A fault of the next kind in a deck that is `wanted`.
    fn fault(&mut self, is_hostile: bool, wanted: impl Fn(FaultKind) -> bool) -> Option<Fault> {
        let deck = if is_hostile { &mut self.hostile } else { &mut self.breaking };
        let kind = deck.draw(&mut self.rng, wanted)?;
        Some(Fault { kind, target: self.rng.index(usize::MAX), entropy: self.rng.u64() })
    }
}

/// The least time that a fault of this kind must last to have an effect.
fn least_ms(kind: FaultKind) -> u64 {
    match kind {
        // Until the free space in open segments is used up.
        FaultKind::FullDisk => 6_000,
        FaultKind::Fill => 12_000,
        // Until the session has expired.
        FaultKind::CoordinatorCut => 4_000,
        FaultKind::SlowDisk | FaultKind::Delay | FaultKind::Loss => 3_000,
        _ => 0,
    }
}

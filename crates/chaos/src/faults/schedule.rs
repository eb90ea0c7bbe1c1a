//! What strikes when: rounds of one or two faults, each followed by healing and a quiet time. All of it follows from a seed.
//! Pure.
//!
//! Kinds come from a shuffled deck, so that each has struck before any strikes again.

use crate::faults::kind::FaultKind;
use leeward_platform::Rng;
use std::time::Duration;

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;

/// One round in so many has two faults.
const TWO_IN: u64 = 3;

/// A fault and its particulars, which mean what its kind makes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    /// Whom it strikes; to be taken modulo how many there are.
    pub(crate) target: usize,
    /// Any number: how hard, and which way.
    pub(crate) dice: u64,
}

/// What strikes before all is healed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) faults: Vec<Fault>,
    /// From the first of two to the second: what is weak already is struck while it is at work.
    pub(crate) between: Duration,
    /// From the last of them to healing.
    pub(crate) lasts: Duration,
    /// From when all is well again to the next round.
    pub(crate) quiet: Duration,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Schedule {
    rng: Rng,
    kinds: Vec<FaultKind>,
    deck: Vec<FaultKind>,
}

impl Schedule {
    /// Rounds of these kinds.
    ///
    /// # Panics
    /// There are none.
    pub(crate) fn new(seed: u64, kinds: Vec<FaultKind>) -> Schedule {
        assert!(!kinds.is_empty(), "there is something to strike with");
        Schedule { rng: Rng::new(seed), kinds, deck: Vec::new() }
    }

    pub(crate) fn next_round(&mut self) -> Round {
        let first = self.fault(|_| true);
        let mut faults: Vec<Fault> = first.into_iter().collect();
        if self.rng.one_in(TWO_IN)
            && let Some(class) = first.map(|fault| fault.kind.class())
        {
            faults.extend(self.fault(|kind| kind.class() != class));
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

    /// A fault of the next kind of the deck that is `wanted`.
    fn fault(&mut self, wanted: impl Fn(FaultKind) -> bool) -> Option<Fault> {
        if !self.deck.iter().any(|kind| wanted(*kind)) {
            let mut more = self.kinds.clone();
            self.rng.shuffle(&mut more);
            self.deck.extend(more);
        }
        let at = self.deck.iter().position(|kind| wanted(*kind))?;
        let (target, dice) = (self.rng.index(usize::MAX), self.rng.u64());
        Some(Fault { kind: self.deck.remove(at), target, dice })
    }
}

/// For how long at least a fault must last to be one.
fn least_ms(kind: FaultKind) -> u64 {
    match kind {
        // Until what is left in open segments is used up.
        FaultKind::FullDisk => 6_000,
        // Until the session has expired.
        FaultKind::CoordinatorCut => 4_000,
        FaultKind::SlowDisk | FaultKind::Delay | FaultKind::Loss => 3_000,
        _ => 0,
    }
}

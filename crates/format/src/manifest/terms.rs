//! The term of each LSN, which tells how far two copies of a region have the same records. Kafka's leader epochs
//! (KIP-279) and the terms in Raft's log do the same.
//!
//! Invariant: a term has one primary, and its entry says which records that primary had when the term began. Two copies
//! with the same entry have the same records up to there, and the same records of that term as far as both reach.

use crate::{Epoch, Lsn};
use serde::{Deserialize, Serialize};

/// The last terms of a region's primaries, ascending, each with the last LSN before it; at most [`Terms::MOST`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms(Vec<(Epoch, Lsn)>);

impl Terms {
    /// How many terms are remembered. A copy that knows none of them needs all of a base.
    pub const MOST: usize = 32;

    /// Adds `term`, which is above all earlier ones, of a primary that begins with records up to `last`.
    pub fn begin(&mut self, term: Epoch, last: Lsn) {
        assert!(self.0.last().is_none_or(|(before, _)| *before < term), "terms rise");
        if self.0.len() >= Terms::MOST {
            self.0.drain(..=self.0.len() - Terms::MOST);
        }
        self.0.push((term, last));
    }

    /// The last term.
    pub fn last(&self) -> Option<Epoch> {
        self.0.last().map(|(term, _)| *term)
    }

    /// The LSN up to which a copy with these terms and one with `others` have the same records, as far as each reaches;
    /// `None` if it is not known.
    pub fn shared(&self, others: &Terms) -> Option<Lsn> {
        let mine = self.0.iter().rposition(|began| others.0.contains(began))?;
        let theirs = others.0.iter().rposition(|began| *began == self.0[mine])?;
        let later = self.0[mine + 1..].iter().chain(&others.0[theirs + 1..]);
        Some(later.map(|(_, last)| *last).min().unwrap_or(Lsn(u64::MAX)))
    }
}

#[cfg(test)]
#[path = "terms_tests.rs"]
mod tests;

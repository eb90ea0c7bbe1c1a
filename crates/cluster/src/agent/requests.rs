//! The requests of this server's primaries and of operators that have no outcome yet, in the order in which they are executed.
//! Requests whose operation is under way are not among them.
//!
//! Invariant: each request gets one outcome.

use super::pace::Pace;
use super::{Alteration, Creation, Outcome, Proposal, ProposalId, Restoration};
use std::collections::VecDeque;

/// The requests that are not executed yet.
#[derive(Debug, Default)]
pub(super) struct Requests {
    pub(super) proposals: VecDeque<Proposal>,
    pub(super) creations: VecDeque<Creation>,
    pub(super) alterations: VecDeque<Alteration>,
    pub(super) restorations: VecDeque<Restoration>,
    pub(super) pace: Pace,
    outcomes: Vec<(ProposalId, Outcome)>,
    /// The number of the last request.
    last: u64,
}

impl Requests {
    /// An id for a new request.
    pub(super) fn new_id(&mut self) -> ProposalId {
        self.last += 1;
        ProposalId(self.last)
    }

    /// Records the outcome of a request.
    pub(super) fn end(&mut self, id: ProposalId, outcome: Outcome) {
        self.outcomes.push((id, outcome));
    }

    /// The outcomes since the last call.
    pub(super) fn take_outcomes(&mut self) -> Vec<(ProposalId, Outcome)> {
        std::mem::take(&mut self.outcomes)
    }
}

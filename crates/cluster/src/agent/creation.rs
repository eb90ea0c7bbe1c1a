//! Makes tables: an operator's wish becomes one operation of the coordinator, which creates the table's path and those of
//! all its regions, or nothing.
//!
//! Invariants:
//! - At most one creation of this agent is outstanding, so that two of its own never ask for the same region numbers.
//! - Whoever takes the numbers first wins; the other asks again with the next free ones. A region's number is never used
//!   twice, because regions are never removed.
//! - After a lost connection the view tells whether the table is there; one with the same options and regions is taken for
//!   the one that was asked for.

use super::{Agent, Answer, Outcome, ProposalId, Purpose};
use crate::bootstrap::bootstrap_op;
use leeward_format::RegionId;
use leeward_format::cluster::ClusterPath;
use leeward_format::table::NewTable;
use leeward_platform::Nanos;

/// Attempts after which something must be in the way that the view cannot show, such as a value that makes no sense.
const MOST_ATTEMPTS: u32 = 16;

/// A table that is being made.
#[derive(Debug)]
pub(super) struct Creation {
    id: ProposalId,
    table: NewTable,
    /// Attempts that the coordinator answered with no.
    failed: u32,
    /// Lowest number for its first region: numbers below were taken.
    not_below: u32,
    /// The answer to an attempt was lost: it may have been made, or may still be.
    is_doubtful: bool,
    /// Why the coordinator will not have it.
    pub(super) refusal: Option<String>,
}

impl Agent {
    /// Makes a table with its regions, for the operator; the master assigns them then. Its [`Outcome`] is never
    /// [`Outcome::Rejected`].
    ///
    /// # Errors
    /// There is such a table, what is asked for cannot be, or the coordinator cannot be reached.
    pub fn create_table(&mut self, now: Nanos, table: NewTable) -> Result<ProposalId, String> {
        if !self.view.is_synced() {
            return Err("the coordinator cannot be reached: nothing can be changed now".into());
        }
        table.check()?;
        if self.view.table(&table.options.name).is_some() {
            return Err(exists(&table));
        }
        let id = self.new_proposal();
        let creation = Creation { id, table, failed: 0, not_below: 1, is_doubtful: false, refusal: None };
        self.creations.push_back(creation);
        self.advance(now);
        Ok(id)
    }

    /// Sends the next creation, if none is under way.
    pub(super) fn carry_creations(&mut self) {
        let is_under_way =
            |agent: &Agent| agent.asked.purposes().any(|purpose| matches!(purpose, Purpose::Creation(_)));
        while !is_under_way(self)
            && let Some(mut creation) = self.creations.pop_front()
        {
            let path = ClusterPath::Table(creation.table.options.name.clone());
            if self.view.table(&creation.table.options.name).is_some() {
                self.judge_creation(creation);
                continue;
            }
            if !self.is_free(&path) {
                return self.creations.push_front(creation);
            }
            let highest = self.view.regions().map(|config| config.region.0).max().unwrap_or(0);
            let first = creation.not_below.max(highest.saturating_add(1));
            if first.checked_add(creation.table.splits.len() as u32).is_none() {
                self.outcomes.push((creation.id, Outcome::Refused("there are no region numbers left".into())));
                continue;
            }
            creation.not_below = first;
            let op = bootstrap_op(&creation.table.options, RegionId(first), &creation.table.splits);
            self.submit(path, op, Purpose::Creation(Box::new(creation)));
        }
    }

    /// A creation was answered, and the view holds whatever the answer is about; or its answer was lost.
    pub(super) fn settle_creation(&mut self, mut creation: Creation, answer: Option<Answer>) {
        match answer {
            Some(Answer { done: true, .. }) => {
                tracing::info!(table = creation.table.options.name, "a table was made");
                self.outcomes.push((creation.id, Outcome::Accepted));
            }
            Some(Answer { done: false, .. }) => {
                creation.failed += 1;
                creation.not_below = creation.not_below.saturating_add(1);
                self.judge_creation(creation);
            }
            None => {
                creation.is_doubtful = true;
                self.creations.push_front(creation);
            }
        }
    }

    /// Ends a creation by what the view holds, or lets it try again.
    fn judge_creation(&mut self, mut creation: Creation) {
        let outcome = match self.view.table(&creation.table.options.name) {
            Some(_) if creation.is_doubtful && self.is_there(&creation.table) => Outcome::Accepted,
            Some(_) => Outcome::Refused(exists(&creation.table)),
            None => match creation.refusal.take() {
                Some(reason) => Outcome::Refused(reason),
                None if creation.failed >= MOST_ATTEMPTS => Outcome::Refused(format!(
                    "{MOST_ATTEMPTS} attempts failed: others make tables all the time, or the coordinator holds a value \
                     that makes no sense, of which the node's log tells"
                )),
                None => return self.creations.push_front(creation),
            },
        };
        self.outcomes.push((creation.id, outcome));
    }

    /// Whether the view holds a table exactly as `table` says.
    fn is_there(&self, table: &NewTable) -> bool {
        let name = &table.options.name;
        let regions = self.view.regions().filter(|config| config.table == *name);
        let mut starts: Vec<bytes::Bytes> = regions.map(|config| config.start.clone()).collect();
        starts.sort();
        self.view.table(name) == Some(&table.options) && starts == table.starts()
    }
}

fn exists(table: &NewTable) -> String {
    format!("there is a table {} already", table.options.name)
}

#[cfg(test)]
#[path = "creation_tests.rs"]
mod tests;

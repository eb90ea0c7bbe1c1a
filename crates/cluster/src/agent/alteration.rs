//! Changes options of tables: an operator's wish becomes a compare-and-set of the table's path.
//!
//! Invariant: a change says what options are to be, so carrying it out twice does no harm: after a lost connection, or when
//! somebody else was faster, it is asked for again, until the view shows what was wished for.

use super::{Agent, Answer, Outcome, ProposalId, Purpose};
use crate::CoordinatorOp;
use leeward_format::cluster::{ClusterPath, TableOptions, encode_value};
use leeward_format::table::{TableChange, unknown_table};
use leeward_platform::Nanos;

/// Attempts that may come too late for the version that they were made for.
const MOST_ATTEMPTS: u32 = 16;

/// A change that is being made.
#[derive(Debug)]
pub(super) struct Alteration {
    id: ProposalId,
    change: TableChange,
    /// Attempts that the coordinator answered with no.
    failed: u32,
    /// Why the coordinator will not have it.
    pub(super) refusal: Option<String>,
}

impl Agent {
    /// Changes options of a table, for the operator; each primary of the table follows as soon as it hears of it. Its
    /// [`Outcome`] is never [`Outcome::Rejected`].
    ///
    /// # Errors
    /// There is no such table, what is asked for cannot be, or the coordinator cannot be reached.
    pub fn alter_table(&mut self, now: Nanos, change: TableChange) -> Result<ProposalId, String> {
        if !self.view.is_synced() {
            return Err("the coordinator cannot be reached: nothing can be changed now".into());
        }
        self.wanted(&change)?;
        let id = self.new_proposal();
        self.alterations.push_back(Alteration { id, change, failed: 0, refusal: None });
        self.advance(now);
        Ok(id)
    }

    /// The options that a change leads to.
    fn wanted(&self, change: &TableChange) -> Result<TableOptions, String> {
        let options = self.view.table(&change.name).ok_or_else(|| unknown_table(&change.name))?;
        change.apply(options)
    }

    /// Sends the changes whose tables are free.
    pub(super) fn carry_alterations(&mut self) {
        for alteration in std::mem::take(&mut self.alterations) {
            let path = ClusterPath::Table(alteration.change.name.to_string());
            let refusal = match (&alteration.refusal, self.wanted(&alteration.change)) {
                (Some(reason), _) => Some(reason.clone()),
                (None, Err(reason)) => Some(reason),
                (None, Ok(options)) if self.view.table(&options.name) == Some(&options) => {
                    self.outcomes.push((alteration.id, Outcome::Accepted));
                    continue;
                }
                (None, Ok(_)) if alteration.failed >= MOST_ATTEMPTS => {
                    Some(format!("{MOST_ATTEMPTS} attempts failed: others change the table all the time"))
                }
                (None, Ok(options)) => match self.view.version_of(&path).filter(|_| self.is_free(&path)) {
                    Some(version) => {
                        let value = encode_value(&options);
                        let op = CoordinatorOp::Set { path: path.to_string(), value, version };
                        self.submit(path, op, Purpose::Alteration(Box::new(alteration)));
                        continue;
                    }
                    None => None,
                },
            };
            match refusal {
                Some(reason) => self.outcomes.push((alteration.id, Outcome::Refused(reason))),
                None => self.alterations.push_back(alteration),
            }
        }
    }

    /// A change was answered, and the view holds whatever the answer is about; or its answer was lost.
    pub(super) fn settle_alteration(&mut self, mut alteration: Alteration, answer: Option<Answer>) {
        if let Some(Answer { done: true, .. }) = answer {
            tracing::info!(table = %alteration.change.name, change = ?alteration.change, "options of a table were changed");
            return self.outcomes.push((alteration.id, Outcome::Accepted));
        }
        alteration.failed += u32::from(answer.is_some());
        self.alterations.push_front(alteration);
    }
}

#[cfg(test)]
#[path = "alteration_tests.rs"]
mod tests;

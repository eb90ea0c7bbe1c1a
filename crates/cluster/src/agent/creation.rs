//! Makes tables. An operator's request becomes an operation of the coordinator, which creates all of a table's regions and its
//! path. If that is too much for one operation, it becomes several.
//!
//! ```text
//! one:      table, regions, numbers
//! several:  making, numbers    regions, making    regions, making ...    regions, table, no more making
//! ```
//! The coordinator may report the changes of one operation one by one, in this order. So no process mistakes the
//! regions for leftovers, or their copies for those of removed regions. And a process that sees that numbers were taken
//! also sees which process took them.
//!
//! Invariants:
//! - Of several operations, the last one makes the table's path: regions without that path belong to no table. An agent that
//!   makes a table step by step holds the table's [`Making`](ClusterPath::Making) path. This path vanishes with the agent's
//!   session, and each step compares its version. So when a table appears, exactly its own regions are there. Leftovers of an
//!   earlier attempt, or of a dropped table, are removed first, and a master that was about to remove them finds another version.
//! - A region's number is given once: see [`RegionNumbers`](leeward_format::cluster::RegionNumbers). The agent that takes numbers
//!   first wins, and the other asks again with the next free ones. Numbers of copies that servers have are skipped unless the
//!   operator asks for them: they may belong to a table that the coordinator does not know any more.
//! - At most one creation of this agent is under way.
//! - After a lost connection the view shows whether the table is there. A table with the same options and regions counts as the
//!   one that was asked for.

use super::{Agent, Answer, Outcome, ProposalId, Purpose};
use crate::CoordinatorOp;
use crate::coordinator::chunk;
use crate::master::{region_ops, table_ops};
use crate::view::create;
use leeward_format::cluster::{ClusterPath, GroupConfig, encode_value};
use leeward_format::table::NewTable;
use leeward_format::{RegionId, TableId};
use leeward_platform::Nanos;

/// Failed attempts after which a creation is refused: something that the view cannot show is in the way.
const MOST_ATTEMPTS: u32 = 16;

/// A table that is being made.
#[derive(Debug)]
pub(super) struct Creation {
    id: ProposalId,
    table: NewTable,
    /// The identity of the table.
    table_id: TableId,
    /// Attempts that the coordinator rejected.
    failed: u32,
    /// Present once its numbers are taken and the table is made step by step.
    claim: Option<Claim>,
    /// What the present operation does.
    step: Step,
    /// The answer to an attempt was lost: the attempt may have succeeded, or may still succeed.
    is_outcome_unknown: bool,
    /// Why the coordinator refuses it.
    pub(super) refusal: Option<String>,
}

/// The right to make a table step by step.
#[derive(Clone, Debug)]
struct Claim {
    /// The numbers of its regions.
    numbers: Vec<RegionId>,
    /// Version of the operation that took the right. Every region of the table that is newer was made under it.
    since: u64,
}

/// What one operation does for a table.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// It makes the table, or the last part of it.
    Last,
    /// It takes these numbers, and the right to make the table.
    Claim(Vec<RegionId>),
    /// It removes what is in the way, or makes some of the regions.
    Between,
}

impl Agent {
    /// Makes a table with its regions, for the operator; the master assigns them then. Its [`Outcome`] is never
    /// [`Outcome::Rejected`].
    ///
    /// # Errors
    /// The table exists already, the request is impossible, or the coordinator cannot be reached.
    pub fn create_table(&mut self, now: Nanos, table: NewTable) -> Result<ProposalId, String> {
        self.can_change()?;
        table.check()?;
        if self.view.table(&table.options.name).is_some() {
            return Err(exists(&table));
        }
        self.refuse_unreadable(&table)?;
        let id = self.requests.new_id();
        let (failed, claim, step) = (0, None, Step::Last);
        let table_id = TableId(self.me.member.draw(&format!("table {}", id.0)));
        self.requests.creations.push_back(Creation {
            id,
            table,
            table_id,
            failed,
            claim,
            step,
            is_outcome_unknown: false,
            refusal: None,
        });
        self.advance(now);
        Ok(id)
    }

    /// Sends the next operation of the next creation, if none is under way.
    pub(super) fn carry_creations(&mut self) {
        self.release_creations();
        let is_under_way =
            |agent: &Agent| agent.operations.purposes().any(|purpose| matches!(purpose, Purpose::Creation(_)));
        while !is_under_way(self)
            && let Some(mut creation) = self.requests.creations.pop_front()
        {
            let name = &creation.table.options.name;
            let path = ClusterPath::Table(name.clone());
            if self.view.table(name).is_some() {
                self.judge_creation(creation);
                continue;
            }
            let is_anothers = self.view.maker(name).is_some_and(|maker| maker != self.me.member);
            if !self.is_free(&path) || is_anothers {
                return self.requests.creations.push_front(creation);
            }
            match self.next_step(&creation) {
                Ok((step, op)) => {
                    creation.step = step;
                    self.submit(path, op, Purpose::Creation(Box::new(creation)));
                }
                Err(reason) => self.requests.end(creation.id, Outcome::Refused(reason)),
            }
        }
    }

    /// The next operation.
    fn next_step(&self, creation: &Creation) -> Result<(Step, CoordinatorOp), String> {
        let (table, name) = (&creation.table, &creation.table.options.name);
        self.refuse_unreadable(table)?;
        let making = ClusterPath::Making(name.clone());
        let holds = self.view.version_of(&making);
        let mine = encode_value(&self.me.member);
        let hold = match holds {
            Some(version) => CoordinatorOp::Set { path: making.to_string(), value: mine.clone(), version },
            None => create(making.clone(), mine, true),
        };
        let claimed = creation.claim.as_ref().filter(|_| holds.is_some());
        let in_the_way = self.in_the_way(name, claimed);
        let Some(Claim { numbers, .. }) = claimed else {
            let numbers = self.view.free_numbers(table.starts().len() as u32)?;
            let all = table_ops(table, creation.table_id, &numbers, self.view.give_op(&numbers));
            if chunk(&all) == all.len() && in_the_way.is_empty() && holds.is_none() {
                return Ok((Step::Last, CoordinatorOp::All(all)));
            }
            let give = self.view.give_op(&numbers);
            return Ok((Step::Claim(numbers), CoordinatorOp::All(vec![hold, give])));
        };
        let is_missing = |op: &CoordinatorOp| match op {
            CoordinatorOp::Create { path, .. } => {
                ClusterPath::parse(path).is_some_and(|path| self.view.version_of(&path).is_none())
            }
            _ => false,
        };
        let is_clear = in_the_way.is_empty();
        let mut ops = if is_clear { region_ops(table, creation.table_id, numbers) } else { in_the_way };
        ops.retain(|op| !is_clear || is_missing(op));
        let now = chunk(&ops).min(ops.len());
        let is_last = is_clear && now == ops.len();
        ops.truncate(now);
        if is_last {
            let make = create(ClusterPath::Table(name.clone()), encode_value(&table.options), false);
            ops.extend([make, CoordinatorOp::Delete { path: making.to_string(), version: holds }]);
            return Ok((Step::Last, CoordinatorOp::All(ops)));
        }
        ops.push(hold);
        Ok((Step::Between, CoordinatorOp::All(ops)))
    }

    /// Refuses a table whose path has a value that the view cannot read. Regions of it could be there, and would be mistaken for
    /// leftovers.
    fn refuse_unreadable(&self, table: &NewTable) -> Result<(), String> {
        let name = &table.options.name;
        match self.view.lacks(&ClusterPath::Table(name.clone())) {
            true => Ok(()),
            false => Err(format!("the coordinator has a table {name} that this version of Leeward cannot read")),
        }
    }

    /// Operations that remove the regions of a table that does not exist, except for those that were made under this claim. The
    /// regions of an earlier claim are not reused even if they have the right numbers: the master may be about to remove them.
    fn in_the_way(&self, name: &str, claim: Option<&Claim>) -> Vec<CoordinatorOp> {
        let is_made = |config: &GroupConfig| {
            let version = self.view.version_of(&ClusterPath::Region(config.region));
            claim.is_some_and(|claim| version.is_some_and(|version| version > claim.since))
        };
        let others = self.view.regions().filter(|config| config.table == name && !is_made(config));
        others.map(|config| self.view.remove_op(&ClusterPath::Region(config.region))).collect()
    }

    /// Gives up the right to make tables that this server no longer makes.
    fn release_creations(&mut self) {
        let me = self.me.member;
        let wanted = |agent: &Agent, name: &str| {
            let is_it = |creation: &Creation| creation.table.options.name == name;
            let mut asked = agent.operations.purposes();
            agent.requests.creations.iter().any(is_it)
                || asked.any(|purpose| matches!(purpose, Purpose::Creation(creation) if is_it(creation)))
        };
        let mine = self.view.making().filter(|(name, maker)| *maker == me && !wanted(self, name));
        let mine: Vec<ClusterPath> = mine.map(|(name, _)| ClusterPath::Making(name.to_owned())).collect();
        mine.into_iter().for_each(|path| self.release_path(path, Some(me)));
    }

    /// Handles the answer to a creation, once the view holds the state that it is about; `None`: the answer was lost.
    pub(super) fn settle_creation(&mut self, mut creation: Creation, answer: Option<Answer>) {
        match (answer, std::mem::replace(&mut creation.step, Step::Last)) {
            (Some(Answer { done: true, .. }), Step::Last) => {
                tracing::info!(table = creation.table.options.name, "a table was made");
                self.requests.end(creation.id, Outcome::Accepted);
            }
            (Some(Answer { done: true, .. }), step) => {
                if let Step::Claim(numbers) = step {
                    let making = ClusterPath::Making(creation.table.options.name.clone());
                    creation.claim = self.view.version_of(&making).map(|since| Claim { numbers, since });
                }
                self.requests.creations.push_front(creation);
            }
            (Some(Answer { done: false, .. }), _) => {
                creation.failed += 1;
                creation.claim = None;
                self.judge_creation(creation);
            }
            (None, _) => {
                creation.is_outcome_unknown = true;
                creation.claim = None;
                self.requests.creations.push_front(creation);
            }
        }
    }

    /// Ends a creation by what the view shows, or lets it try again.
    fn judge_creation(&mut self, mut creation: Creation) {
        let outcome = match self.view.table(&creation.table.options.name) {
            Some(_) if creation.is_outcome_unknown && self.is_there(&creation.table) => Outcome::Accepted,
            Some(_) => Outcome::Refused(exists(&creation.table)),
            None => match creation.refusal.take() {
                Some(reason) => Outcome::Refused(reason),
                None if creation.failed >= MOST_ATTEMPTS => Outcome::Refused(format!(
                    "{MOST_ATTEMPTS} attempts failed: others make tables all the time, or the coordinator holds a value \
                     that cannot be decoded: the log of this node names it"
                )),
                None => return self.requests.creations.push_front(creation),
            },
        };
        self.requests.end(creation.id, outcome);
    }

    /// Whether the view holds a table exactly as `table` describes it.
    fn is_there(&self, table: &NewTable) -> bool {
        let name = &table.options.name;
        let starts = self.view.routes().regions_of(name).map(|config| config.start.clone());
        self.view.table(name) == Some(&table.options) && starts.collect::<Vec<_>>() == table.starts()
    }
}

fn exists(table: &NewTable) -> String {
    format!("there is a table {} already", table.options.name)
}

#[cfg(test)]
#[path = "creation_tests.rs"]
mod tests;

//! One server's part in the cluster, as a state machine. It registers its server, campaigns for master, makes the decisions of a
//! master, and carries the proposals of its primaries and the requests of operators to the coordinator.
//!
//! - `Operations` are what it has asked of the coordinator, one a path. `Requests` wait until they become operations, and get an
//!   outcome. Their kinds: `proposals` of primaries; `creation` and `alteration`, of operators.
//! - `presence`, `claims` and `agreement` have the paths of this server itself, and whether it belongs to the cluster.
//! - `restoration` brings a coordinator's tree that forgot something up to what this server knows.
//! - `run_as_master` submits what [`Master`] decides while this server is the master.
//!
//! Invariants:
//! - At most one operation a path is outstanding, for all parts of this process together.
//! - The agent asks for nothing while the view is not synced. So every decision depends on one consistent state of the tree.
//! - A proposal has exactly one outcome, and the view holds it by then. If the connection was lost, the outcome waits until the
//!   next synchronisation shows the result.
//!
//! `(now, event) -> operations`: no thread, clock or socket. One thread at a time. After each call, the caller hands
//! [`Agent::take_ops`] to the coordinator.

mod agreement;
mod alteration;
mod claims;
mod creation;
mod operations;
mod pace;
mod presence;
mod proposals;
mod requests;
mod restoration;
mod run_as_master;

pub use agreement::Incompatible;
pub use presence::NotJoined;

use crate::master::{ClusterOptions, Master};
use crate::{Changed, CoordinatorError, CoordinatorEvent, CoordinatorOp, HeldCopy, View};
use alteration::Alteration;
use claims::Claims;
use creation::Creation;
use leeward_format::RegionId;
use leeward_format::cluster::{ClusterPath, Member, ServerInfo};
use leeward_platform::Nanos;
use operations::{Operations, Outstanding};
use proposals::Proposal;
use requests::Requests;
use restoration::Restoration;
use std::collections::{BTreeMap, BTreeSet};

/// Names a proposal of a primary, or a request of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProposalId(pub u64);

/// The outcome of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The configuration, or the table, was made. The view has held it; it may hold a newer one already.
    Accepted,
    /// The view holds another configuration: look at it and decide again. The proposal never takes effect from here on. If the
    /// connection was lost, it may have taken effect and have been replaced since.
    Rejected,
    /// The table was not made or changed, for this reason.
    Refused(String),
}

#[derive(Debug)]
enum Purpose {
    /// Registration, campaign or a master's decision: the view shows the result.
    Plain,
    /// A primary's proposal.
    Proposal(Box<Proposal>),
    /// An operator's table.
    Creation(Box<Creation>),
    /// An operator's change of a table.
    Alteration(Box<Alteration>),
    /// This server no longer registers its copies of these regions.
    Deregistration(BTreeSet<RegionId>),
    /// An operator has the tree restored.
    Restoration(Box<Restoration>),
    /// A master removes leftover regions of tables.
    Clearing,
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    done: bool,
    version: u64,
}

/// The state machine of one server in the cluster: see the module.
#[derive(Debug)]
pub struct Agent {
    me: ServerInfo,
    options: ClusterOptions,
    view: View,
    /// Changes of the view since the owner last asked for them.
    news: Changed,
    operations: Operations,
    requests: Requests,
    master: Master,
    claims: Claims,
    has_stepped_aside: bool,
    /// Its process is about to end.
    is_departing: bool,
    /// Why the coordinator last refused an operation, if it has done none since.
    refusal: Option<String>,
}

impl Agent {
    /// An agent for the server `me`. It knows nothing yet.
    pub fn new(mut me: ServerInfo, options: ClusterOptions) -> Agent {
        Agent {
            claims: Claims::of(&mut me.copies),
            me,
            options,
            view: View::default(),
            news: Changed::default(),
            operations: Operations::default(),
            requests: Requests::default(),
            master: Master::default(),
            has_stepped_aside: false,
            is_departing: false,
            refusal: None,
        }
    }

    /// The same agent, whose server holds these copies.
    #[must_use]
    pub fn holding(self, copies: BTreeMap<RegionId, HeldCopy>) -> Agent {
        Agent { view: View::of_server(copies), ..self }
    }

    /// Handles an event of the coordinator, and does what follows from it.
    pub fn handle(&mut self, now: Nanos, event: CoordinatorEvent) {
        self.hear(now, event);
        self.advance(now);
    }

    /// Handles one of several events of the coordinator without acting on it. A later [`Agent::tick`] acts on all of
    /// them at once.
    pub fn hear(&mut self, now: Nanos, event: CoordinatorEvent) {
        let may_take_another = matches!(event, CoordinatorEvent::Synced { .. }) || self.view.refusal().is_some();
        let known = may_take_another.then(|| self.registration());
        self.view.handle(&event);
        if let Some(known) = known.filter(|_| self.view.is_synced()) {
            self.keep_known(known);
        }
        let changed = self.view.take_changed();
        self.master.changed(&changed);
        self.news.add(changed);
        match event {
            CoordinatorEvent::Up { .. } | CoordinatorEvent::Down | CoordinatorEvent::Expired => {
                self.forget_outstanding()
            }
            CoordinatorEvent::Synced { .. } => {}
            CoordinatorEvent::Changed(changes) => {
                for path in changes.iter().filter_map(|change| ClusterPath::parse(&change.path)) {
                    self.operations.resume(&path);
                }
            }
            CoordinatorEvent::Reply { id, result } => self.answered(now, id, result),
        }
    }

    /// Does the work that is due by the clock. Call it about every 100 ms.
    pub fn tick(&mut self, now: Nanos) {
        self.advance(now);
    }

    /// Operations to submit, in order, each with its id.
    pub fn take_ops(&mut self) -> Vec<(u64, CoordinatorOp)> {
        self.operations.take_new()
    }

    /// The outcomes of proposals since the last call.
    pub fn take_outcomes(&mut self) -> Vec<(ProposalId, Outcome)> {
        self.requests.take_outcomes()
    }

    /// Whether an operator's request can be executed now.
    fn can_change(&self) -> Result<(), String> {
        match self.incompatible() {
            _ if let Some(refusal) = self.view.refusal() => {
                Err(format!("the coordinator's tree is refused: {refusal}"))
            }
            _ if !self.view.is_synced() => Err("the coordinator cannot be reached: nothing can be changed now".into()),
            Some(incompatible) => Err(format!("this node is not part of the cluster: {incompatible}")),
            None => Ok(()),
        }
    }

    /// The mirror of the coordinator's tree.
    pub fn view(&self) -> &View {
        &self.view
    }
    /// The changes of the mirror since the last call.
    pub fn take_changed(&mut self) -> Changed {
        std::mem::take(&mut self.news)
    }
    /// Whether exactly this incarnation of the server has a session, as far as this agent knows.
    pub fn is_live(&self, member: Member) -> bool {
        self.view.is_live(member)
    }
    /// Whether this server is the master now.
    pub fn is_master(&self) -> bool {
        self.view.is_synced() && self.view.master() == Some(self.me.member)
    }

    /// Handles the loss of the connection. The next synchronisation shows which outstanding operations are done.
    fn forget_outstanding(&mut self) {
        self.operations.disconnected();
        self.master.disconnected();
        while let Some((path, outstanding)) = self.operations.take_any() {
            self.settle(path, outstanding);
        }
    }

    /// Handles the answer to an operation. The answer to an unknown operation belongs to a lost connection.
    fn answered(&mut self, now: Nanos, id: u64, result: Result<u64, CoordinatorError>) {
        let Some((path, purpose)) = self.operations.get_mut(id) else { return };
        let answer = match result {
            Ok(version) => Some(Answer { done: true, version }),
            Err(CoordinatorError::Exists { version } | CoordinatorError::Stale { version }) => {
                Some(Answer { done: false, version })
            }
            Err(CoordinatorError::Missing) => Some(Answer { done: false, version: 0 }),
            Err(CoordinatorError::Disconnected) => None,
            Err(CoordinatorError::Refused(reason)) => {
                if self.refusal.as_ref() != Some(&reason) {
                    tracing::error!(%path, reason, "the coordinator refuses an operation");
                    self.refusal = Some(reason.clone());
                }
                match purpose {
                    Purpose::Creation(creation) => creation.refusal = Some(reason),
                    Purpose::Alteration(alteration) => alteration.refusal = Some(reason),
                    Purpose::Restoration(restoration) => restoration.refusal = Some(reason),
                    Purpose::Plain | Purpose::Proposal(_) | Purpose::Deregistration(_) | Purpose::Clearing => {}
                }
                Some(Answer { done: false, version: 0 })
            }
        };
        // A failed operation pauses its path if the answer has no version to wait for, or if another process holds the
        // path. It is repeated when the path changes, or after the pause.
        let failed = answer.is_none_or(|answer| !answer.done);
        let is_held = matches!(path, ClusterPath::Server(_) | ClusterPath::Master);
        if !failed {
            self.refusal = None;
        }
        if failed && (is_held || answer.is_none_or(|answer| answer.version == 0)) {
            let path = path.clone();
            self.operations.pause(path, now + self.options.retry_pause);
        }
        match answer {
            Some(answer) => self.operations.answer(id, answer),
            None => {
                let (path, outstanding) = self.operations.take(id);
                self.settle(path, outstanding);
            }
        }
    }

    /// Ends an operation. A proposal that was made or refused for good gets its outcome. Otherwise it is sent again if it still
    /// fits the view, which decides its outcome if it does not ([`Agent::carry_proposals`]).
    fn settle(&mut self, path: ClusterPath, outstanding: Outstanding) {
        self.look_again(&path);
        let proposal = match outstanding.purpose {
            Purpose::Proposal(proposal) => proposal,
            Purpose::Creation(creation) => return self.settle_creation(*creation, outstanding.answer),
            Purpose::Alteration(alteration) => return self.settle_alteration(*alteration, outstanding.answer),
            Purpose::Restoration(restoration) => return self.settle_restoration(*restoration, outstanding.answer),
            Purpose::Deregistration(regions) => return self.settle_deregistration(regions, outstanding.answer),
            Purpose::Plain | Purpose::Clearing => return,
        };
        match outstanding.answer {
            Some(Answer { done: true, .. }) => self.requests.end(proposal.id, Outcome::Accepted),
            Some(Answer { done: false, version: 0 }) => self.judge(&proposal),
            // It is sent again if its configuration is still the current one: another process may have written that anew.
            _ => self.requests.proposals.push_front(*proposal),
        }
    }

    fn advance(&mut self, now: Nanos) {
        let is_refused = self.view.refusal().is_some();
        if !self.view.is_synced() && !is_refused {
            return;
        }
        while let Some((path, outstanding)) = self.operations.take_answered(self.view.told_version()) {
            self.settle(path, outstanding);
        }
        for path in self.operations.take_resumed(now) {
            self.look_again(&path);
        }
        self.carry_restorations();
        if is_refused {
            return self.register_in_refused();
        }
        if !self.agree() {
            return;
        }
        self.register();
        self.announce_departure();
        self.campaign();
        self.carry_claims();
        self.carry_proposals();
        self.carry_creations();
        self.carry_alterations();
        self.run_as_master(now);
    }

    /// Whether an operation on `path` may be asked for.
    fn is_free(&self, path: &ClusterPath) -> bool {
        // A primary that knows less than others must not change its group either.
        let is_contradicted = matches!(path, ClusterPath::Region(region) if self.view.is_contradicted(*region));
        self.operations.is_free(path) && !is_contradicted
    }

    /// An operation on `path` may be asked for again.
    fn look_again(&mut self, path: &ClusterPath) {
        if let ClusterPath::Region(region) = path {
            self.master.put_back(*region);
        }
    }

    fn submit(&mut self, path: ClusterPath, op: CoordinatorOp, purpose: Purpose) {
        self.operations.submit(path, op, purpose);
    }
}

#[cfg(test)]
mod merging_tests;
#[cfg(test)]
mod split_tests;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod user_tests;

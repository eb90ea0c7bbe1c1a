//! One server's part in the cluster, as a state machine. It registers its server, campaigns for master, makes the decisions of a
//! master, and carries the proposals of its primaries to the coordinator.
//!
//! Invariants:
//! - At most one operation a path is outstanding, for all parts of this process together.
//! - The agent asks for nothing while the view is not synced. So every decision depends on one consistent state of the tree.
//! - A proposal has exactly one outcome, and the view holds it by then. If the connection was lost, the outcome waits until the
//!   next synchronisation shows the result.
//!
//! `(now, event) -> operations`: no thread, clock or socket. One thread at a time. After each call, the caller hands
//! [`Agent::take_ops`] to the coordinator.

use crate::missing_volumes::{Found, MissingVolume, missing_volumes};
use crate::work_queue::WorkQueue;
use crate::{Changed, CoordinatorError, CoordinatorEvent, CoordinatorOp, View};
use leeward_format::cluster::{ClusterPath, GroupConfig, Member, ServerInfo, encode_value};
use leeward_format::{RegionId, ServerId};
use leeward_platform::Nanos;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

mod agreement;
mod alteration;
mod asked;
mod balancing;
mod claims;
mod creation;
mod departure;
pub(crate) mod pace;
mod proposals;
mod run_as_master;
pub use agreement::Incompatible;
use alteration::Alteration;
use asked::{Asked, Outstanding};
pub use balancing::Balance;
use balancing::Balancing;
use claims::Claims;
use creation::Creation;
use proposals::{Other, Proposal};

/// How a master works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterOptions {
    /// With this many live servers, regions are assigned at once.
    pub expected_servers: u32,
    /// With fewer, a master waits this long before it assigns regions to the servers that are there.
    pub assign_grace: Nanos,
    /// The places of a restarting server stay empty for so long.
    pub restart_timeout: Nanos,
    /// The pause before an operation is repeated that failed for a reason that the tree does not show.
    pub retry_pause: Nanos,
    /// When a master balances the load of servers; `None`: never.
    pub balance: Option<Balance>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        ClusterOptions {
            expected_servers: 3,
            assign_grace: Nanos::from_secs(2),
            restart_timeout: Nanos::from_secs(300),
            retry_pause: Nanos::from_millis(200),
            balance: Some(Balance::default()),
        }
    }
}

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

/// Why a server is not part of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotJoined {
    /// It has no session with the coordinator, or has not received the whole tree yet.
    NoSession,
    /// It is about to register.
    Registering,
    /// Another process has its number: a process with another volume, or with a copy of this one. This server must not remove
    /// that process. It registers when the session of that process ends.
    DuplicateId {
        /// The member that holds the number.
        holder: Member,
        /// The address of that process for native clients.
        address: String,
    },
    /// The coordinator refuses its registration, with this reason.
    Refused(String),
    /// It has given up its primary roles: see [`Agent::step_aside`].
    SteppedAside,
    /// It and the cluster are incompatible.
    Incompatible(Incompatible),
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
    /// A master removes leftover regions of tables.
    Clearing,
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    done: bool,
    version: u64,
}

/// The machine.
#[derive(Debug)]
pub struct Agent {
    me: ServerInfo,
    options: ClusterOptions,
    view: View,
    /// Changes of the view since the owner last asked for them.
    news: Changed,
    asked: Asked,
    /// Paths that are left alone until then, or until they change.
    paused: BTreeMap<ClusterPath, Nanos>,
    proposals: VecDeque<Proposal>,
    creations: VecDeque<Creation>,
    alterations: VecDeque<Alteration>,
    pace: pace::Pace,
    outcomes: Vec<(ProposalId, Outcome)>,
    ops: Vec<(u64, CoordinatorOp)>,
    next_op: u64,
    next_proposal: u64,
    master_since: Option<Nanos>,
    /// The regions that this server, as the master, has yet to look at.
    work_queue: WorkQueue,
    /// Leftover regions of tables that this master knows of.
    leftovers: BTreeSet<RegionId>,
    claims: Claims,
    balancing: Balancing,
    has_stepped_aside: bool,
    /// Its process is about to end.
    is_departing: bool,
    /// Restarting servers, and since when this master has known of each.
    restarting: BTreeMap<ServerId, Nanos>,
    /// The reason of the coordinator when it last refused an operation, if it has done none since.
    refusal: Option<String>,
    /// The volumes that regions wait for, as last reported to the operator.
    reported: BTreeMap<RegionId, Vec<MissingVolume>>,
}

impl Agent {
    /// An agent for the server `me`. It knows nothing yet.
    pub fn new(me: ServerInfo, options: ClusterOptions) -> Agent {
        Agent {
            me,
            options,
            view: View::default(),
            news: Changed::default(),
            asked: Asked::default(),
            paused: BTreeMap::new(),
            proposals: VecDeque::new(),
            creations: VecDeque::new(),
            alterations: VecDeque::new(),
            pace: pace::Pace::default(),
            outcomes: Vec::new(),
            ops: Vec::new(),
            next_op: 1,
            next_proposal: 1,
            master_since: None,
            work_queue: WorkQueue::default(),
            leftovers: BTreeSet::new(),
            claims: Claims::default(),
            balancing: Balancing::default(),
            has_stepped_aside: false,
            is_departing: false,
            restarting: BTreeMap::new(),
            refusal: None,
            reported: BTreeMap::new(),
        }
    }

    /// Handles an event of the coordinator, and does what follows from it.
    pub fn handle(&mut self, now: Nanos, event: CoordinatorEvent) {
        self.hear(now, event);
        self.advance(now);
    }

    /// Handles one of several events of the coordinator. A later [`Agent::tick`] does what follows from all of them, at the cost
    /// of what follows from one.
    pub fn hear(&mut self, now: Nanos, event: CoordinatorEvent) {
        self.view.handle(&event);
        let changed = self.view.take_changed();
        self.work_queue.changed(&changed);
        self.balancing.changed(&changed.regions);
        self.news.add(changed);
        match event {
            CoordinatorEvent::Up { .. } | CoordinatorEvent::Down | CoordinatorEvent::Expired => {
                self.forget_outstanding()
            }
            CoordinatorEvent::Synced { .. } => {}
            CoordinatorEvent::Changed(changes) => {
                for path in changes.iter().filter_map(|change| ClusterPath::parse(&change.path)) {
                    self.paused.remove(&path);
                }
            }
            CoordinatorEvent::Reply { id, result } => self.answered(now, id, result),
        }
    }

    /// Does everything that only waited for time to pass. To be called about every 100 ms.
    pub fn tick(&mut self, now: Nanos) {
        self.advance(now);
    }

    /// Operations to submit, in order, each with its id.
    pub fn take_ops(&mut self) -> Vec<(u64, CoordinatorOp)> {
        std::mem::take(&mut self.ops)
    }

    /// The outcomes of proposals since the last call.
    pub fn take_outcomes(&mut self) -> Vec<(ProposalId, Outcome)> {
        std::mem::take(&mut self.outcomes)
    }

    /// Proposes, for the operator, that `region` waits no more for volumes of `server`. Data that only they hold is lost.
    ///
    /// # Errors
    /// The region does not wait for that server. The text says what it waits for.
    pub fn accept_loss(&mut self, now: Nanos, region: RegionId, server: ServerId) -> Result<ProposalId, String> {
        self.can_change()?;
        let Some(old) = self.view.region(region).cloned() else { return Err(format!("there is no region {region}")) };
        let missing_volumes = self.missing_volumes(&old);
        let lost: Vec<Member> =
            missing_volumes.iter().map(|one| one.member).filter(|member| member.server == server).collect();
        if lost.is_empty() {
            let others: Vec<String> = missing_volumes.iter().map(|one| one.member.server.to_string()).collect();
            let waits = match others.is_empty() {
                true => "it waits for no server".to_owned(),
                false => format!("it waits for server {}", others.join(", ")),
            };
            return Err(format!("region {region} does not wait for server {server}: {waits}"));
        }
        let new = lost.iter().fold(old.clone(), |config, member| config.without_volume(member));
        let mut new = GroupConfig { epoch: old.epoch.next(), ..new };
        if self.view.table(&old.table).is_some_and(|table| table.quorum.is_some()) {
            // With fewer members left, any one of them may be the only one that has a write.
            new.recovery_quorum = new.candidate_servers();
        }
        tracing::warn!(%region, %server, ?lost, "an operator gives up the data that only these volumes hold");
        Ok(self.carry(now, old, new, Other::Nothing))
    }

    /// Whether an operator's request can be carried out now.
    fn can_change(&self) -> Result<(), String> {
        match self.incompatible() {
            _ if !self.view.is_synced() => Err("the coordinator cannot be reached: nothing can be changed now".into()),
            Some(incompatible) => Err(format!("this node is not part of the cluster: {incompatible}")),
            None => Ok(()),
        }
    }

    fn new_proposal(&mut self) -> ProposalId {
        let id = ProposalId(self.next_proposal);
        self.next_proposal += 1;
        id
    }

    /// The volumes that the region of `config` waits for, as far as this agent knows.
    fn missing_volumes(&self, config: &GroupConfig) -> Vec<MissingVolume> {
        missing_volumes(config, |server| self.view.server(server).map(|info| Found::of(info, config.region)))
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
    /// Whether this server is registered, as far as this agent knows.
    pub fn is_registered(&self) -> bool {
        self.view.is_live(self.me.member)
    }
    /// Why this server is not part of the cluster now; `None` if it is.
    pub fn not_joined(&self) -> Option<NotJoined> {
        let me = self.me.member;
        match self.view.server(me.server) {
            Some(info) if self.view.is_synced() && info.member != me && !self.is_earlier_incarnation(info.member) => {
                Some(NotJoined::DuplicateId { holder: info.member, address: info.native_address.clone() })
            }
            _ if self.has_stepped_aside => Some(NotJoined::SteppedAside),
            _ if !self.view.is_synced() => Some(NotJoined::NoSession),
            info => match self.incompatible() {
                Some(incompatible) => Some(NotJoined::Incompatible(incompatible)),
                None if info.is_some_and(|info| info.member == me) => None,
                None => Some(self.refusal.clone().map_or(NotJoined::Registering, NotJoined::Refused)),
            },
        }
    }
    /// Whether this server is the master now.
    pub fn is_master(&self) -> bool {
        self.view.is_synced() && self.view.master() == Some(self.me.member)
    }

    /// The connection is gone. Outstanding operations may or may not be done: the next synchronisation shows which.
    fn forget_outstanding(&mut self) {
        self.ops.clear();
        self.paused.clear();
        self.master_since = None;
        self.work_queue = WorkQueue::default();
        while let Some((path, outstanding)) = self.asked.take_any() {
            self.settle(path, outstanding);
        }
    }

    /// Handles the answer to an operation. The answer to an unknown operation belongs to a lost connection.
    fn answered(&mut self, now: Nanos, id: u64, result: Result<u64, CoordinatorError>) {
        let Some((path, purpose)) = self.asked.get_mut(id) else { return };
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
                    Purpose::Plain | Purpose::Proposal(_) | Purpose::Deregistration(_) | Purpose::Clearing => {}
                }
                Some(Answer { done: false, version: 0 })
            }
        };
        // Without a version to wait for, only time helps. An operation on a path that could not be held is repeated when the path
        // changes, or later.
        let failed = answer.is_none_or(|answer| !answer.done);
        let is_held = matches!(path, ClusterPath::Server(_) | ClusterPath::Master);
        if !failed {
            self.refusal = None;
        }
        if failed && (is_held || answer.is_none_or(|answer| answer.version == 0)) {
            self.paused.insert(path.clone(), now + self.options.retry_pause);
        }
        match answer {
            Some(answer) => self.asked.answer(id, answer),
            None => {
                let (path, outstanding) = self.asked.take(id);
                self.settle(path, outstanding);
            }
        }
    }

    /// Ends an operation. A proposal gets its outcome if it was answered. Otherwise it waits until the view decides its outcome.
    fn settle(&mut self, path: ClusterPath, outstanding: Outstanding) {
        self.look_again(&path);
        let proposal = match outstanding.purpose {
            Purpose::Proposal(proposal) => proposal,
            Purpose::Creation(creation) => return self.settle_creation(*creation, outstanding.answer),
            Purpose::Alteration(alteration) => return self.settle_alteration(*alteration, outstanding.answer),
            Purpose::Deregistration(regions) => return self.settle_deregistration(regions, outstanding.answer),
            Purpose::Plain | Purpose::Clearing => return,
        };
        match outstanding.answer {
            Some(Answer { done: true, .. }) => self.outcomes.push((proposal.id, Outcome::Accepted)),
            Some(Answer { done: false, .. }) => self.judge(&proposal),
            None => self.proposals.push_front(*proposal),
        }
    }

    fn advance(&mut self, now: Nanos) {
        if !self.view.is_synced() {
            return;
        }
        while let Some((path, outstanding)) = self.asked.take_answered(self.view.version()) {
            self.settle(path, outstanding);
        }
        let resumed: Vec<ClusterPath> =
            self.paused.extract_if(.., |_, until| *until <= now).map(|(path, _)| path).collect();
        resumed.iter().for_each(|path| self.look_again(path));
        if !self.agree() {
            return;
        }
        self.register();
        self.tell_departure();
        self.campaign();
        self.carry_claims();
        self.carry_proposals();
        self.carry_creations();
        self.carry_alterations();
        self.run_as_master(now);
        self.balance(now);
    }

    /// Whether an operation on `path` may be asked for.
    fn is_free(&self, path: &ClusterPath) -> bool {
        !self.asked.has(path) && !self.paused.contains_key(path)
    }

    /// An operation on `path` may be asked for again.
    fn look_again(&mut self, path: &ClusterPath) {
        if let ClusterPath::Region(region) = path {
            self.work_queue.put_back(*region);
        }
    }

    fn submit(&mut self, path: ClusterPath, op: CoordinatorOp, purpose: Purpose) {
        let id = self.next_op;
        self.next_op += 1;
        self.ops.push((id, op));
        self.asked.insert(path, id, purpose);
    }

    /// Gives up every primary role of this server, until a call with `false`. In the meantime the server does not register, so
    /// that the master replaces it wherever it is a member. For a server whose volume failed while other servers have its data.
    pub fn step_aside(&mut self, now: Nanos, has_stepped_aside: bool) {
        self.has_stepped_aside = has_stepped_aside;
        self.advance(now);
    }

    /// Whether this server has given up its primary roles.
    pub fn has_stepped_aside(&self) -> bool {
        self.has_stepped_aside
    }

    /// Holds the server's own path.
    fn register(&mut self) {
        let path = ClusterPath::Server(self.me.member.server);
        let holder = self.view.server(self.me.member.server).map(|info| info.member);
        match self.has_stepped_aside {
            false => self.hold(path, holder, |agent| encode_value(&agent.me)),
            true => self.let_go(path, holder),
        }
    }

    /// Removes an ephemeral path of this incarnation.
    fn let_go(&mut self, path: ClusterPath, holder: Option<Member>) {
        if holder == Some(self.me.member) && self.is_free(&path) {
            let op = CoordinatorOp::Delete { path: path.to_string(), version: self.view.version_of(&path) };
            self.submit(path, op, Purpose::Plain);
        }
    }

    /// Holds the master's path if no server does. Only a registered server campaigns.
    fn campaign(&mut self) {
        if self.has_stepped_aside {
            return self.let_go(ClusterPath::Master, self.view.master());
        }
        if self.is_registered() && self.view.master().is_none_or(|master| master.server == self.me.member.server) {
            self.hold(ClusterPath::Master, self.view.master(), |agent| encode_value(&agent.me.member));
        }
    }

    /// Whether `holder` is an earlier process of this server. It is gone, because this process has its volume.
    fn is_earlier_incarnation(&self, holder: Member) -> bool {
        holder.has_volume_of(&self.me.member) && holder.incarnation < self.me.member.incarnation
    }

    /// Makes an ephemeral path that no process holds. A path held by an earlier incarnation of this server is removed first. A
    /// path held by this incarnation, or by a process with another volume (or a copy of this one), stays: it vanishes with its
    /// session.
    fn hold(&mut self, path: ClusterPath, holder: Option<Member>, value: impl FnOnce(&Agent) -> bytes::Bytes) {
        if !self.is_free(&path) {
            return;
        }
        let text = path.to_string();
        let op = match holder {
            None => CoordinatorOp::Create { path: text, value: value(self), ephemeral: true },
            Some(holder) if self.is_earlier_incarnation(holder) => {
                CoordinatorOp::Delete { path: text, version: self.view.version_of(&path) }
            }
            Some(_) => return,
        };
        self.submit(path, op, Purpose::Plain);
    }
}

#[cfg(test)]
mod merging_tests;
#[cfg(test)]
mod split_tests;
#[cfg(test)]
mod tests;

//! The node's part in the cluster: what it knows of the configuration, what it asks of the coordinator, the leases that it
//! grants and asks for, and whether it belongs to the cluster at all.
//!
//! | file | holds |
//! |---|---|
//! | `presence` | why the node is not part of the cluster |
//! | `leases` | lease grants, requested and given |
//! | `replica_gc` | copies that the cluster does not need any more |
//! | `load` | load reports for the master |
//! | `settings` | settings that are to be the same on all nodes |
//! | `admission`, `catch_up` | how many copies sync at a time, and how fast |
//! | `clock` | the two clocks that a node compares |
//! | `operators` | what operators ask of the cluster |
//!
//! It sees no region, and of operations those of operators alone. What it needs to know of regions comes with the call, and what
//! they are to do is in the answer. It sends what is between it and the control of other nodes.
//!
//! Belongs to the node's thread.

pub(super) mod admission;
pub(super) mod catch_up;
pub(super) mod clock;
pub(super) mod leases;
mod load;
pub(super) mod operators;
mod presence;
pub(super) mod replica_gc;
pub(super) mod settings;

use crate::node::links::Links;
use crate::node::parts::NodeTiming;
use admission::Admission;
use catch_up::CatchUp;
use clock::NodeClock;
use leases::LeaseGrants;
use leeward_cluster::{
    Agent, Changed, Coordinator, CoordinatorEvent, HeldCopy, NotJoined, Outcome, ProposalId, Routes, View,
};
use leeward_engine::Replica;
use leeward_format::cluster::{CopyFound, GroupConfig, IndexKind, Intent, Member, TableOptions};
use leeward_format::load::ServerLoad;
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use leeward_region::effects::{NodeResources, Proposal, ProposedChange};
use leeward_region::request::ReplyTo;
use leeward_replication::lease::Grants;
use load::LoadReports;
use presence::{Notice, Presence};
use replica_gc::ReplicaGc;
use settings::PeerSettings;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The part of the node that waits for the outcome of a proposal.
pub(super) enum Proposer {
    /// The primary of a region.
    Primary(RegionId),
    /// The primary of a region, in a term, that it wants to split.
    Split { parent: RegionId, term: Epoch, child: RegionId },
    /// The primary of two regions, each in a term, that it wants to merge: `source` becomes part of `target`.
    Merge { source: (RegionId, Epoch), target: (RegionId, Epoch) },
    /// Where the operator's answer goes.
    Operator(ReplyTo),
}

/// What a node knows of the cluster, and its part in it.
pub(super) struct NodeControl {
    resources: Arc<NodeResources>,
    agent: Agent,
    coordinator: Arc<dyn Coordinator>,
    /// The node has not yet followed the coordinator's last event.
    has_news: bool,
    /// Proposals that are under way.
    proposals: BTreeMap<ProposalId, Proposer>,
    /// The lease grants that this node has given as a backup.
    grants: Grants,
    lease_grants: LeaseGrants,
    pub(super) admission: Admission,
    pub(super) catch_up: CatchUp,
    clock: NodeClock,
    pub(super) settings: PeerSettings,
    presence: Presence,
    replica_gc: ReplicaGc,
    loads: LoadReports,
}

/// What a node's control is built from.
pub(super) struct ControlParts {
    pub(super) agent: Agent,
    pub(super) coordinator: Arc<dyn Coordinator>,
    /// Regions of which the volume holds a copy.
    pub(super) regions: Vec<RegionId>,
    pub(super) settings: settings::Settings,
    pub(super) timing: NodeTiming,
}

impl NodeControl {
    pub(super) fn new(now: Nanos, resources: Arc<NodeResources>, parts: ControlParts) -> NodeControl {
        let ControlParts { agent, coordinator, regions, settings, timing } = parts;
        NodeControl {
            resources,
            agent,
            coordinator,
            has_news: false,
            proposals: BTreeMap::new(),
            grants: Grants::after_start(now, regions),
            lease_grants: LeaseGrants::new(now),
            admission: Admission::new(timing.catch_up_bytes),
            catch_up: CatchUp::new(timing.catch_up_bytes),
            clock: NodeClock::new(now),
            settings: PeerSettings::new(settings),
            presence: Presence::new(now),
            replica_gc: ReplicaGc::new(timing.replica_gc_after),
            loads: LoadReports::new(timing.load_interval),
        }
    }

    /// The time of the input that is handled.
    pub(super) fn now(&self) -> Nanos {
        self.clock.now
    }

    /// Another input is handled, at this time.
    pub(super) fn set_now(&mut self, now: Nanos) {
        self.clock.now = now;
    }

    /// This node as a member of groups.
    pub(super) fn me(&self) -> Member {
        self.resources.me
    }

    pub(super) fn view(&self) -> &View {
        self.agent.view()
    }

    pub(super) fn routes(&self) -> &Routes {
        self.agent.view().routes()
    }

    pub(super) fn grants(&self) -> &Grants {
        &self.grants
    }

    // ---- what comes from the coordinator ---------------------------------------------------------------------------

    /// The coordinator has said something.
    pub(super) fn hear(&mut self, event: CoordinatorEvent) {
        self.agent.hear(self.clock.now, event);
        self.has_news = true;
    }

    /// Whether the coordinator has said something that the node has not followed yet.
    pub(super) fn has_news(&self) -> bool {
        self.has_news
    }

    /// Follows what the coordinator has said since the last call, or `false` if that is nothing.
    pub(super) fn take_news(&mut self) -> bool {
        let has_news = std::mem::take(&mut self.has_news);
        if has_news {
            self.tick();
        }
        has_news
    }

    pub(super) fn tick(&mut self) {
        self.agent.tick(self.clock.now);
    }

    /// The proposals that have ended, each with the part of the node that waits for it.
    pub(super) fn take_outcomes(&mut self) -> Vec<(Proposer, Outcome)> {
        let outcomes = self.agent.take_outcomes().into_iter();
        let mut proposer = |proposal| self.proposals.remove(&proposal).expect("a proposal ends once");
        outcomes.map(|(proposal, outcome)| (proposer(proposal), outcome)).collect()
    }

    pub(super) fn take_changed(&mut self) -> Changed {
        self.agent.take_changed()
    }

    /// A region has another configuration, which the shard is about to be given.
    pub(super) fn will_configure(&mut self, maps_memory: bool, config: &GroupConfig) {
        let is_read = |TableOptions { reads, .. }: &TableOptions| {
            reads.index == IndexKind::Hybrid || maps_memory && reads.is_at_backups()
        };
        if !self.view().table(&config.table).is_none_or(is_read) {
            self.grants.forget_before(config.region);
        }
        if planted(Bug::ReleaseEverything) {
            self.grants.release(config.region, config.term);
        }
    }

    /// The live servers have changed. Answers the servers whose link ends by that.
    ///
    /// Peers know a server by its number. So where another process has this server's number, this process leaves the fabric to
    /// the one that is registered; and it does not enter the fabric before it was registered itself.
    pub(super) fn follow_servers(&mut self, links: &mut Links) -> Vec<ServerId> {
        self.presence.has_joined |= self.agent.is_registered();
        self.presence.duplicate_id = match self.agent.not_joined() {
            Some(NotJoined::DuplicateId { holder, address, is_copy }) => {
                Some(presence::duplicate_id(&holder, &address, is_copy))
            }
            _ => None,
        };
        if self.presence.duplicate_id.is_some() {
            return links.disconnect_all();
        }
        if self.presence.has_joined {
            let me = self.me().server;
            for info in self.agent.view().servers().filter(|info| info.member.server != me) {
                links.connect(info.member.server, &info.fabric_address);
            }
        }
        Vec::new()
    }

    /// The members that should leave a region's group, as the configuration and the coordinator say now.
    pub(super) fn departing_from(&self, config: Option<&GroupConfig>) -> BTreeMap<ServerId, Intent> {
        let view = self.view();
        let departs = |config, member| Some((member, view.departs(config, member)?));
        let departing =
            config.into_iter().flat_map(|config| config.members().filter_map(move |one| departs(config, one)));
        departing.map(|(member, intent)| (member.server, intent)).collect()
    }

    // ---- what goes to the coordinator ------------------------------------------------------------------------------

    /// Gives the coordinator all that was asked of it.
    pub(super) fn submit_ops(&mut self) {
        for (id, op) in self.agent.take_ops() {
            self.coordinator.submit(id, op);
        }
    }

    pub(super) fn propose(&mut self, Proposal { old, change }: Proposal) {
        let now = self.clock.now;
        let (region, term) = (old.region, old.term);
        let (proposal, proposer) = match change {
            ProposedChange::Replace(new) => (self.agent.propose(now, old, new), Proposer::Primary(region)),
            ProposedChange::Split { left, right } => {
                let proposer = Proposer::Split { parent: region, term, child: right.region };
                (self.agent.split(now, old, left, right), proposer)
            }
            ProposedChange::Merge { wider, source } => {
                let proposer = Proposer::Merge { source: (source.region, source.term), target: (region, term) };
                (self.agent.merge(now, old, wider, source), proposer)
            }
        };
        self.proposals.insert(proposal, proposer);
    }

    /// Whether a split that makes this child is proposed.
    pub(super) fn has_proposed_child(&self, child: RegionId) -> bool {
        let is_it = |proposer: &Proposer| matches!(proposer, Proposer::Split { child: it, .. } if *it == child);
        self.proposals.values().any(is_it)
    }

    /// Tells the cluster whether a copy is damaged, if it was told otherwise.
    pub(super) fn register(&mut self, copy: CopyFound) {
        if self.agent.says_damaged(copy.region) != copy.is_damaged() {
            self.agent.update_copy(self.clock.now, copy);
        }
    }

    /// Another node has reported its load.
    pub(super) fn record_load(&mut self, from: ServerId, load: &ServerLoad) {
        self.agent.record_load(self.clock.now, from, load);
    }

    /// The node steps aside for the others if its volume failed, or if it cannot open a region that it should serve, or has
    /// long had no room for one. It stays if no other live node has one of its regions: then it goes on reading, and others can
    /// get the region from it. If the nodes that it stepped aside for die before they took over, it comes back.
    pub(super) fn step_aside_if<'a>(&mut self, is_broken: bool, mut mine: impl Iterator<Item = &'a GroupConfig>) {
        let has_stepped_aside = self.agent.has_stepped_aside();
        if !is_broken && !has_stepped_aside {
            return;
        }
        let view = self.agent.view();
        let has_transfer_target =
            |config: &GroupConfig| config.backups.iter().any(|backup| view.is_sound(*backup, config.region));
        let is_needed = mine.any(|config| !has_transfer_target(config));
        if has_stepped_aside != is_needed {
            return;
        }
        match is_needed {
            false => tracing::error!(
                "this node steps aside: it gives its primary roles to other servers; repair its volume and restart it"
            ),
            true => tracing::warn!("this node takes its primary roles back: no other live server has what it has"),
        }
        self.agent.step_aside(self.clock.now, !is_needed);
    }

    // ---- this node -------------------------------------------------------------------------------------------------

    /// Tells the operator if this node is not part of the cluster, and when it is again.
    pub(super) fn look_for_not_joined(&mut self) {
        let now = self.now();
        let not_joined = self.agent.not_joined();
        let server = self.me().server;
        match self.presence.look(now, not_joined.as_ref(), self.coordinator.outage().as_ref()) {
            Some(Notice::Absent(why)) if self.presence.duplicate_id.is_some() => tracing::error!(%server, "{why}"),
            Some(Notice::Absent(why)) => tracing::warn!(%server, "{why}"),
            Some(Notice::Present(what)) => tracing::info!(%server, "{what}"),
            None => {}
        }
    }

    /// Whether no other live process has this server's id.
    pub(super) fn is_unique(&self) -> bool {
        self.presence.is_unique()
    }

    /// Why this server has the id of another, if it has.
    pub(super) fn duplicate_id(&self) -> Option<&String> {
        self.presence.duplicate_id.as_ref()
    }

    /// Why this node is not part of the cluster, if it is not.
    pub(super) fn why_not_joined(&self) -> Option<String> {
        let outage = self.coordinator.outage();
        self.agent.not_joined().map(|why| self.presence.describe(self.now(), &why, outage.as_ref()))
    }

    /// What an operator should know of the coordinator, if there is anything.
    pub(super) fn coordinator_concern(&self) -> Option<String> {
        self.coordinator.concern()
    }

    /// Why this node gets no roles, if it gets none.
    pub(super) fn why_no_roles(&self) -> Option<String> {
        self.loads.why_full(self.now())
    }

    /// Whether this node is the master.
    pub(super) fn is_master(&self) -> bool {
        self.agent.is_master()
    }

    /// Whether this node is the master and evens out the load of servers.
    pub(super) fn balances(&self) -> bool {
        self.agent.balances()
    }

    /// The process is about to end. Asks the other nodes to take over what this node has.
    pub(super) fn depart(&mut self, now: Nanos) {
        self.agent.depart(now);
    }
}

/// The copies that a volume holds, as they are registered.
pub(super) fn held(copies: &[Replica]) -> BTreeMap<RegionId, HeldCopy> {
    let held = copies.iter().filter_map(|copy| {
        let identity = copy.volume().identity(copy.region())?;
        Some((copy.region(), HeldCopy { identity, options: copy.options().clone(), term: copy.position().0 }))
    });
    held.collect()
}

//! How a node follows the cluster's configuration: which regions it holds, which servers it is linked with, and whether it is
//! part of the cluster at all.
//!
//! | file | holds |
//! |---|---|
//! | `presence` | why the node is not part of the cluster |
//! | `desired` | members that should leave |
//! | `replica_gc` | copies that the cluster does not need any more |
//! | `load` | load reports for the master |
//!
//! Belongs to the node's thread.

mod desired;
pub(crate) mod load;
pub(crate) mod presence;
pub(crate) mod replica_gc;

use crate::node::{Context, Node};
use leeward_cluster::{HeldCopy, NotJoined, Outcome, ProposalId};
use leeward_engine::Replica;
use leeward_fabric::LinkEvent;
use leeward_format::cluster::{GroupConfig, IndexKind, Member, TableOptions};
use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::routing::Routing;
use leeward_format::table::{NewTable, TableChange, unknown_table};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use leeward_region::input::Input as RegionInput;
use leeward_region::machine::RegionMachine;
use leeward_region::request::ReplyTo;
use presence::Notice;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The part of the node that waits for the outcome of a proposal.
pub(crate) enum Proposer {
    /// The primary of a region.
    Primary(RegionId),
    /// The primary of a region, in a term, that it wants to split.
    Split { parent: RegionId, term: Epoch, child: RegionId },
    /// The primary of two regions, each in a term, that it wants to merge: `source` becomes part of `target`.
    Merge { source: (RegionId, Epoch), target: (RegionId, Epoch) },
    /// Where the operator's answer goes.
    Operator(ReplyTo),
}

impl Node {
    /// The node steps aside for the others if its volume failed, or if it cannot open a region that it should serve, or has
    /// long had no room for one. It stays if no other live node has one of its regions: then it goes on reading, and others can
    /// get the region from it. If the nodes that it stepped aside for die before they took over, it comes back.
    pub(crate) fn step_aside_if_broken(&mut self, now: Nanos) {
        let me = self.context.me;
        let is_mine = |machine: &&RegionMachine| machine.config().is_some_and(|config| config.primary == Some(me));
        // A broken region is never idle.
        let mut active = self.idle.looked_at().iter().filter_map(|region| self.machines.get(region)).filter(is_mine);
        let is_broken = self.context.volume.is_failed() || active.any(|machine| machine.is_out_of_order(now));
        let has_stepped_aside = self.context.agent.has_stepped_aside();
        if !is_broken && !has_stepped_aside {
            return;
        }
        let view = self.context.agent.view();
        let mine = self.machines.values().filter(is_mine);
        let has_transfer_target =
            |config: &GroupConfig| config.backups.iter().any(|backup| view.is_sound(*backup, config.region));
        let is_needed = mine.filter_map(|machine| machine.config()).any(|config| !has_transfer_target(config));
        if has_stepped_aside != is_needed {
            return;
        }
        match is_needed {
            false => tracing::error!(
                "this node steps aside: it gives its primary roles to other servers; repair its volume and restart it"
            ),
            true => tracing::warn!("this node takes its primary roles back: no other live server has what it has"),
        }
        self.context.agent.step_aside(now, !is_needed);
    }

    /// Tells the operator when this node is not part of the cluster, and when it is again.
    pub(crate) fn look_for_not_joined(&mut self, now: Nanos) {
        let not_joined = self.context.agent.not_joined();
        let server = self.context.me.server;
        match self.presence.look(now, not_joined.as_ref(), self.coordinator.outage().as_ref()) {
            Some(Notice::Absent(why)) if self.presence.duplicate_id.is_some() => tracing::error!(%server, "{why}"),
            Some(Notice::Absent(why)) => tracing::warn!(%server, "{why}"),
            Some(Notice::Present(what)) => tracing::info!(%server, "{what}"),
            None => {}
        }
    }

    pub(crate) fn follow_cluster(&mut self, now: Nanos) {
        for (proposal, outcome) in self.context.agent.take_outcomes() {
            match self.context.proposals.remove(&proposal).expect("a proposal ends once") {
                Proposer::Primary(region) => {
                    self.give(region, RegionInput::Proposed { is_accepted: outcome == Outcome::Accepted });
                }
                Proposer::Split { parent, term, .. } => {
                    let is_accepted = outcome == Outcome::Accepted;
                    self.give(parent, RegionInput::SplitProposed { term, is_accepted });
                    self.idle.touch(parent);
                }
                Proposer::Merge { source, target } => {
                    self.merge_ended(now, source, target, outcome == Outcome::Accepted);
                }
                Proposer::Operator(to) => self.effects.answers.push((to, accepted(outcome))),
            }
        }
        let changed = self.context.agent.take_changed();
        if !changed.tables.is_empty() || changed.servers {
            self.wake_all(now);
        }
        if changed.servers {
            self.look_for_duplicate_id(now);
            if self.presence.has_joined && self.presence.duplicate_id.is_none() {
                self.follow_servers();
            }
        }
        let (me, has_changed) = (self.context.me, !changed.regions.is_empty());
        for region in changed.regions {
            let is_named = self.routes().region(region).is_some_and(|config| config.has(me));
            if is_named || self.machines.contains_key(&region) {
                self.configure(region);
                self.look_for_replica_garbage(now, region);
            }
        }
        if changed.servers {
            // Also machines of regions that are not in the view.
            let all: Vec<RegionId> = self.machines.keys().copied().collect();
            all.into_iter().for_each(|region| self.look_for_replica_garbage(now, region));
        }
        if has_changed {
            let routes = self.context.agent.view().routes();
            // A primary that has handed its role over is still alive: it answers what it has executed, and forwards all else.
            // The new primary may not remember requests that old.
            let is_lost = |config: &&Arc<GroupConfig>| config.released_term().is_none();
            let primary_of = |region| Some(routes.region(region).filter(is_lost)?.primary?.server);
            let deposed = self.forwarding.deposed(now, me.server, primary_of);
            deposed.into_iter().for_each(|next| self.next(now, next));
        }
        self.route_again(now);
    }

    /// Tells the machine of a region the current configuration, and makes the machine if there is none.
    pub(crate) fn configure(&mut self, region: RegionId) {
        let config = self.routes().region(region).cloned();
        let new = || RegionMachine::new(region, None, Arc::clone(&self.context.resources));
        let machine = self.machines.entry(region).or_insert_with(new);
        let is_newer = |config: &Arc<GroupConfig>| machine.config().is_none_or(|known| known.epoch < config.epoch);
        let Some(config) = config.filter(is_newer) else { return };
        let maps_memory = self.context.links.fabric().maps_memory();
        let is_read = |TableOptions { reads, .. }: &TableOptions| {
            reads.index == IndexKind::Hybrid || maps_memory && reads.is_at_backups()
        };
        if !self.context.agent.view().table(&config.table).is_none_or(is_read) {
            self.context.grants.forget_before(region);
        }
        if planted(Bug::ReleaseEverything) {
            self.context.grants.release(region, config.term);
        }
        if planted(Bug::ReleaseEverything) {
            self.give(region, RegionInput::LeaseReleased);
        }
        self.give(region, RegionInput::Configuration(config));
        self.idle.touch(region);
    }

    fn follow_servers(&mut self) {
        let Context { agent, links, me, .. } = &mut self.context;
        for info in agent.view().servers().filter(|info| info.member.server != me.server) {
            links.connect(info.member.server, &info.fabric_address);
        }
    }

    /// Checks whether another process has this server's number. Peers know a server by its number. So this process leaves the
    /// fabric to the one that is registered, and does not enter it before it was registered itself.
    fn look_for_duplicate_id(&mut self, now: Nanos) {
        self.presence.has_joined |= self.context.agent.is_registered();
        self.presence.duplicate_id = match self.context.agent.not_joined() {
            Some(NotJoined::DuplicateId { holder, address, is_copy }) => {
                Some(presence::duplicate_id(&holder, &address, is_copy))
            }
            _ => None,
        };
        if self.presence.duplicate_id.is_none() {
            return;
        }
        for server in self.context.links.disconnect_all() {
            self.link_event(now, server, LinkEvent::Down);
        }
    }

    /// The error for an operation of `region` that this node cannot execute.
    pub(crate) fn not_serving(&self, region: RegionId) -> OpError {
        match &self.presence.duplicate_id {
            Some(why) => OpError::Unavailable(why.clone()),
            None => OpError::Recovering(region),
        }
    }

    /// The error for an operation on `table` that finds no region. A node that does not hear the coordinator cannot know that
    /// the table or region does not exist.
    pub(crate) fn no_region(&self, table: &str, op: &Op) -> OpError {
        let (view, routes) = (self.context.agent.view(), self.routes());
        let knows_all = view.is_synced() && routes.tables().next().is_some();
        match op {
            Op::Count { region } | Op::Checkpoint { region, .. } if view.is_gone(*region) => OpError::Invalid(format!(
                "region {region} no longer exists: it was merged into a neighbour, or its table was dropped; list the \
                 regions again"
            )),
            _ if knows_all && routes.table(table).is_none() => OpError::Invalid(unknown_table(table)),
            _ => self.not_serving(RegionId(0)),
        }
    }

    /// The process is about to end. Asks the other nodes to take over what this node has.
    pub fn depart(&mut self, now: Nanos) {
        self.context.agent.depart(now);
    }

    /// Whether the nodes that stay can take over no more of what this node has.
    pub fn has_departed(&self) -> bool {
        let view = self.context.agent.view();
        let me = self.context.me;
        view.is_synced()
            && view.intent(me.server).is_some()
            && view.regions().all(|config| {
                let stays =
                    |member: &Member| *member != me && view.is_live(*member) && view.departs(config, *member).is_none();
                let staying = config.in_sync().filter(stays).count() as u32;
                let needed = view.table(&config.table).map_or(1, |table| table.min_in_sync.max(1));
                match config.primary == Some(me) {
                    true => staying == 0,
                    false => staying < needed || !config.backups.contains(&me),
                }
            })
    }

    /// Whether no operation waits here, neither for another node's answer nor for a region that this node is about to serve.
    pub fn is_idle(&self) -> bool {
        self.forwarding.is_empty()
            && self.fresh.is_empty()
            && self.machines.values().all(|machine| !machine.has_waiting())
    }

    /// The operator creates a table.
    pub(crate) fn create_table(&mut self, now: Nanos, to: ReplyTo, table: NewTable) {
        let asked = self.context.agent.create_table(now, table);
        self.request(to, asked);
    }

    /// The operator changes options of a table.
    pub(crate) fn alter_table(&mut self, now: Nanos, to: ReplyTo, change: TableChange) {
        let asked = self.context.agent.alter_table(now, change);
        self.request(to, asked);
    }

    /// The operator's request went to the coordinator, or was refused here.
    pub(crate) fn request(&mut self, to: ReplyTo, asked: Result<ProposalId, String>) {
        match asked {
            Ok(proposal) => drop(self.context.proposals.insert(proposal, Proposer::Operator(to))),
            Err(why) => self.effects.answers.push((to, OpResult::Error(OpError::Invalid(why)))),
        }
    }

    /// The operator gives up volumes of `server` that `region` waits for.
    pub(crate) fn accept_loss(&mut self, now: Nanos, to: ReplyTo, region: RegionId, server: ServerId) {
        let asked = self.context.agent.accept_loss(now, region, server);
        self.request(to, asked);
    }
}

/// The copies of a volume that say what they belong to.
pub(super) fn held(copies: &[Replica]) -> BTreeMap<RegionId, HeldCopy> {
    let held = copies.iter().filter_map(|copy| {
        let identity = copy.volume().identity(copy.region())?;
        Some((copy.region(), HeldCopy { identity, options: copy.options().clone(), term: copy.position().0 }))
    });
    held.collect()
}

fn accepted(outcome: Outcome) -> OpResult {
    match outcome {
        Outcome::Accepted => OpResult::Done,
        Outcome::Refused(reason) => OpResult::Error(OpError::Invalid(reason)),
        Outcome::Rejected => OpResult::Error(OpError::Invalid(
            "the region's configuration changed meanwhile, and nothing was given up: look at `leeward status` again"
                .into(),
        )),
    }
}

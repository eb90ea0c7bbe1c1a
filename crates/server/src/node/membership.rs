//! What a node makes of the cluster's configuration: which regions it holds, whom it is linked with, and whether it is
//! part of the cluster at all.

use super::presence::{self, Word};
use super::serving::ReplyTo;
use super::slot::Slot;
use super::{Context, Node, link};
use leeward_cluster::{Absence, Outcome, ProposalId};
use leeward_fabric::LinkEvent;
use leeward_format::cluster::{GroupConfig, Member};
use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::routing::Routing;
use leeward_format::table::{NewTable, TableChange, unknown_table};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use std::sync::Arc;

/// Who waits for what comes of a proposal.
pub(super) enum Proposer {
    /// The primary of a region.
    Primary(RegionId),
    /// The primary of a region, in a term, that is to be divided.
    Division { parent: RegionId, term: Epoch, child: RegionId },
    /// The primary of two regions, each in a term, of which the one is to become part of the other.
    Merge { taken: (RegionId, Epoch), taker: (RegionId, Epoch) },
    /// An operator.
    Operator(ReplyTo),
}

impl Node {
    /// A node whose volume failed, or that cannot open a region that it should serve, or has long had no room for that, makes way for
    /// the others, unless no other that lives has one of its regions: then it goes on reading, and others can get the region from
    /// it. If those that it made way for die before they took over, it comes back.
    pub(super) fn withdraw_if_broken(&mut self, now: Nanos) {
        let me = self.context.me;
        let is_mine = |slot: &&Slot| slot.config.as_ref().is_some_and(|config| config.primary == Some(me));
        // What is broken does not rest.
        let mut restless = self.rest.looked_at().iter().filter_map(|region| self.slots.get(region)).filter(is_mine);
        let is_broken = self.context.volume.is_failed() || restless.any(|slot| slot.is_out_of_order(now));
        let is_withdrawn = self.context.agent.is_withdrawn();
        if !is_broken && !is_withdrawn {
            return;
        }
        let view = self.context.agent.view();
        let mine = self.slots.values().filter(is_mine);
        let has_heir = |config: &GroupConfig| config.backups.iter().any(|backup| view.is_live(*backup));
        let is_needed = mine.filter_map(|slot| slot.config.as_ref()).any(|config| !has_heir(config));
        if is_withdrawn != is_needed {
            return;
        }
        match is_needed {
            false => tracing::error!("this node gives up its offices to the others; repair its volume and restart it"),
            true => tracing::warn!("this node takes its offices back: no other that lives has what it has"),
        }
        self.context.agent.withdraw(now, !is_needed);
    }

    /// Tells the operator when this node is not part of the cluster, and when it is again.
    pub(super) fn look_for_absence(&mut self, now: Nanos) {
        let absence = self.context.agent.absence();
        let server = self.context.me.server;
        match self.presence.look(now, absence.as_ref(), self.coordinator.outage().as_ref()) {
            Some(Word::Absent(why)) if self.twin.is_some() => tracing::error!(%server, "{why}"),
            Some(Word::Absent(why)) => tracing::warn!(%server, "{why}"),
            Some(Word::Present(what)) => tracing::info!(%server, "{what}"),
            None => {}
        }
    }

    pub(super) fn follow_cluster(&mut self, now: Nanos) {
        for (proposal, outcome) in self.context.agent.take_outcomes() {
            match self.context.proposals.remove(&proposal).expect("a proposal ends once") {
                Proposer::Primary(region) => {
                    if let Some(slot) = self.slots.get_mut(&region) {
                        slot.proposal_ended(now, &outcome);
                    }
                }
                Proposer::Division { parent, term, .. } => self.division_ended(now, (parent, term), &outcome),
                Proposer::Merge { taken, taker } => self.merge_ended(now, taken, taker, &outcome),
                Proposer::Operator(to) => self.answers.push((to, accepted(outcome))),
            }
        }
        let changed = self.context.agent.take_changed();
        if !changed.tables.is_empty() || changed.servers {
            self.wake_all(now);
        }
        if changed.servers {
            self.look_for_twin(now);
            if self.has_joined && self.twin.is_none() {
                self.follow_servers();
            }
        }
        let (me, has_changed) = (self.context.me, !changed.regions.is_empty());
        for region in changed.regions {
            let is_named = self.routes().region(region).is_some_and(|config| config.has(me));
            if is_named || self.slots.contains_key(&region) {
                self.configure(now, region);
                self.look_for_surplus(now, region);
            }
        }
        if changed.servers {
            // Also those of regions that are not there.
            let all: Vec<RegionId> = self.slots.keys().copied().collect();
            all.into_iter().for_each(|region| self.look_for_surplus(now, region));
        }
        if has_changed {
            let routes = self.context.agent.view().routes();
            // One that has given its office up lives, answers what it has carried out, and passes on the rest; its heir may not remember
            // what is that old.
            let is_lost = |config: &&Arc<GroupConfig>| config.voided().is_none();
            let primary_of = |region| Some(routes.region(region).filter(is_lost)?.primary?.server);
            let deposed = self.forwarding.deposed(now, me.server, primary_of);
            deposed.into_iter().for_each(|next| self.next(now, next));
        }
        self.route_again(now);
    }

    /// Has the slot of a region know the configuration that there is; makes the slot if there is none.
    pub(super) fn configure(&mut self, now: Nanos, region: RegionId) {
        let config = self.routes().region(region).cloned();
        let slot = self.slots.entry(region).or_insert_with(|| Slot::new(region, None, &self.context));
        let is_newer = |config: &Arc<GroupConfig>| slot.config.as_ref().is_none_or(|known| known.epoch < config.epoch);
        if let Some(config) = config.filter(is_newer) {
            slot.configure(now, &config, &mut self.context, &mut self.answers);
            self.touched.insert(region);
        }
    }

    fn follow_servers(&mut self) {
        let Context { agent, links, fabric, me, .. } = &mut self.context;
        for info in agent.view().servers().filter(|info| info.member.server != me.server) {
            let link = links.entry(info.member.server).or_default();
            if link.address != info.fabric_address {
                link.address.clone_from(&info.fabric_address);
                fabric.connect(link::peer(info.member.server), &info.fabric_address);
            }
        }
    }

    /// Whether another process has this server's number. Its peers know a server by its number, so this one leaves the
    /// fabric to the process that is registered; and it does not enter it before it was registered itself.
    fn look_for_twin(&mut self, now: Nanos) {
        self.has_joined |= self.context.agent.is_registered();
        self.twin = match self.context.agent.absence() {
            Some(Absence::Twin { holder, address }) => Some(presence::twin(&holder, &address)),
            _ => None,
        };
        if self.twin.is_none() {
            return;
        }
        for (server, link) in std::mem::take(&mut self.context.links) {
            self.context.fabric.disconnect(link::peer(server));
            if link.up {
                self.link_event(now, server, LinkEvent::Down);
            }
        }
    }

    /// Why an operation of `region` is not carried out.
    pub(super) fn not_serving(&self, region: RegionId) -> OpError {
        match &self.twin {
            Some(why) => OpError::Unavailable(why.clone()),
            None => OpError::Recovering(region),
        }
    }

    /// Why an operation on `table` finds no region. A node that does not hear the coordinator cannot know that there is no
    /// such table, or region.
    pub(super) fn no_region(&self, table: &str, op: &Op) -> OpError {
        let (view, routes) = (self.context.agent.view(), self.routes());
        let knows_all = view.is_synced() && routes.tables().next().is_some();
        match op {
            Op::Count { region } | Op::Checkpoint { region, .. } if view.is_gone(*region) => OpError::Invalid(format!(
                "region {region} is no more: it has become part of a neighbour, or its table was dropped; ask again what regions there are"
            )),
            _ if knows_all && routes.table(table).is_none() => OpError::Invalid(unknown_table(table)),
            _ => self.not_serving(RegionId(0)),
        }
    }

    /// The process is about to end: asks the others to take over what this node has.
    pub fn depart(&mut self, now: Nanos) {
        self.context.agent.depart(now);
    }

    /// No other that stays can take over more of what this node has.
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

    /// No operation waits here, for another node's answer or for a region that is to be served.
    pub fn is_idle(&self) -> bool {
        self.forwarding.is_empty() && self.slots.values().all(|slot| slot.waiting.is_empty())
    }

    /// An operator wants a table.
    pub(super) fn create_table(&mut self, now: Nanos, to: ReplyTo, table: NewTable) {
        let asked = self.context.agent.create_table(now, table);
        self.wish(to, asked);
    }

    /// An operator wants other options of a table.
    pub(super) fn alter_table(&mut self, now: Nanos, to: ReplyTo, change: TableChange) {
        let asked = self.context.agent.alter_table(now, change);
        self.wish(to, asked);
    }

    /// An operator's wish was passed on, or cannot be.
    pub(super) fn wish(&mut self, to: ReplyTo, asked: Result<ProposalId, String>) {
        match asked {
            Ok(proposal) => drop(self.context.proposals.insert(proposal, Proposer::Operator(to))),
            Err(why) => self.answers.push((to, OpResult::Error(OpError::Invalid(why)))),
        }
    }

    /// An operator gives up volumes of `server` that `region` waits for.
    pub(super) fn accept_loss(&mut self, now: Nanos, to: ReplyTo, region: RegionId, server: ServerId) {
        let asked = self.context.agent.accept_loss(now, region, server);
        self.wish(to, asked);
    }
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

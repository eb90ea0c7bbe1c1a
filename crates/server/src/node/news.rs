//! What changes in the cluster, or on a link to another node, and whom it concerns.

use super::{Front, Node, RegionInput};
use crate::node::control::Proposer;
use crate::node::control::operators::accepted;
use leeward_cluster::Outcome;
use leeward_format::cluster::GroupConfig;
use leeward_format::routing::Routing;
use leeward_format::{RegionId, ServerId};
use leeward_platform::planted::{Bug, planted};
use leeward_region::machine::RegionMachine;
use std::sync::Arc;

impl Node {
    pub(super) fn follow_cluster(&mut self) {
        let now = self.control.now();
        for (proposer, outcome) in self.control.take_outcomes() {
            let is_accepted = outcome == Outcome::Accepted;
            match proposer {
                Proposer::Primary(region) => drop(self.give(region, RegionInput::Proposed { is_accepted })),
                Proposer::Split { parent, term, .. } => {
                    self.give(parent, RegionInput::SplitProposed { term, is_accepted });
                    self.shard.idle.touch(parent);
                }
                Proposer::Merge { source, target } => self.shard.merge_ended(now, source, target, is_accepted),
                Proposer::Operator(to) => self.shard.answer(to, accepted(outcome)),
            }
        }
        let changed = self.control.take_changed();
        if !changed.tables.is_empty() || changed.servers {
            self.shard.wake_all(now);
        }
        if changed.servers {
            for server in self.control.follow_servers(&mut self.links) {
                self.link_changed(server, false);
            }
        }
        let (me, has_changed) = (self.control.me(), !changed.regions.is_empty());
        for region in changed.regions {
            let is_named = self.routes().region(region).is_some_and(|config| config.has(me));
            if is_named || self.shard.machine(region).is_some() {
                self.configure(region);
                self.look_for_replica_garbage(region);
            }
        }
        if changed.servers {
            // Also machines of regions that are not in the view.
            let all: Vec<RegionId> = self.shard.machines.keys().copied().collect();
            all.into_iter().for_each(|region| self.look_for_replica_garbage(region));
        }
        if has_changed {
            self.with_front(Front::map_changed);
        }
        self.with_front(Front::route_again);
    }

    /// Tells the machine of a region the current configuration, and makes the machine if there is none.
    pub(super) fn configure(&mut self, region: RegionId) {
        let config = self.routes().region(region).cloned();
        let machine = self.shard.machine_or_new(region);
        let is_newer = |config: &Arc<GroupConfig>| machine.config().is_none_or(|known| known.epoch < config.epoch);
        let Some(config) = config.filter(is_newer) else { return };
        self.control.will_configure(self.links.fabric().maps_memory(), &config);
        if planted(Bug::ReleaseEverything) {
            self.give(region, RegionInput::LeaseReleased);
        }
        self.give(region, RegionInput::Configuration(config));
        self.shard.idle.touch(region);
    }

    /// The link to a server came up, or went down.
    pub(super) fn link_changed(&mut self, server: ServerId, up: bool) {
        self.shard.idle.touch_all();
        self.links.changed(server, up);
        self.front.forget_lines(server);
        if up {
            self.control.tell_settings(&self.links, server);
            self.links.send_unsent(server);
        }
        self.with_facts(|shard, facts| shard.give_each(facts, || RegionInput::Link { server, is_up: up }));
        if !up {
            self.with_front(|front, reach| front.link_lost(reach, server));
        }
    }

    /// Notes whether this server is a member of the region's group, and tells its machine if the region has ended.
    pub(super) fn look_for_replica_garbage(&mut self, region: RegionId) {
        self.control.look_for_replica_garbage(region, self.shard.machine(region).is_some());
        if self.control.view().is_gone(region) && self.give(region, RegionInput::Ended) {
            self.shard.idle.touch(region);
        }
    }

    /// Destroys unneeded copies, or takes the next step towards that.
    pub(super) fn collect_replica_garbage(&mut self) {
        for region in self.control.destroyable(|region| self.shard.copy_use(region)) {
            tracing::info!(%region, "destroys an unneeded copy");
            self.give(region, RegionInput::NotNeeded);
        }
        for region in self.control.collect_replica_garbage(|region| self.shard.copy_use(region)) {
            self.forget(region);
        }
    }

    /// Removes the machine of a region of which this node has nothing.
    pub(super) fn forget(&mut self, region: RegionId) {
        if self.shard.forget(self.control.now(), region) {
            self.control.forget_copy(region);
        }
    }

    /// The node steps aside for the others if its volume failed, or a region of its own is out of order.
    pub(super) fn step_aside_if_broken(&mut self) {
        let shard = &self.shard;
        let is_broken = shard.resources.volume.is_failed() || shard.has_broken(self.control.now());
        let mine = shard.machines.values().filter(|machine| shard.is_mine(machine)).filter_map(RegionMachine::config);
        self.control.step_aside_if(is_broken, mine);
    }
}

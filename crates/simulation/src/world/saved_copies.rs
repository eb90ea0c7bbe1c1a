//! Disks that are replaced by empty ones, and put back if a region cannot serve without them.
//!
//! A removed disk is kept beside its machine until every region is whole again. The store guarantees that no region is served
//! without a volume that may be the only one with some acknowledged writes. Such a region waits, and names the volume. So the
//! operator of this world puts back exactly those disks that a region waits for. The other disks never return.
//!
//! A disk that a region needs stays in its machine. But several regions may wait for different disks of one machine, which has
//! only one disk at a time. When nothing else makes progress, the operator completes the first of these regions, and then the
//! next.
//!
//! A copy of an older state of a disk is not kept when it is removed. But a process that ran on it may have become a member in
//! sync meanwhile, or the primary. So the operator stops the process first, and removes the copy once other members have taken
//! over. Before that, the death of those members would leave a region that waits for the removed copy.

use super::{Event, FaultKind, NodeId, World, node_of, server_id};
use crate::CONTEXT;
use leeward_cluster::{ServerCopy, missing_volumes};
use leeward_format::ServerId;
use leeward_format::cluster::{GroupConfig, Member, ServerInfo, decode_value};
use leeward_platform::Nanos;
use leeward_platform::disk::FaultPlan;
use leeward_server::node::Node;

/// How often the operator checks which disks are needed.
const ROUND: Nanos = Nanos::from_millis(300);
/// This long after the last fault and the last disk that was put back, the operator concludes that regions wait for each other's
/// disks.
const STUCK: Nanos = Nanos::from_secs(5);
/// This long after the operator stopped a process on a copy, other members have taken over, or it starts again.
const TAKEOVER: Nanos = Nanos::from_secs(3);

impl World {
    /// Replaces the disk of a node by an empty one. From `look_at` on the operator checks whether a region waits for the old
    /// disk.
    pub(super) fn replace_disk(&mut self, node: NodeId, look_at: Nanos) -> bool {
        // A region without members could be assigned to the empty disk while another region needs the old disk.
        let is_assigned = self.configs().iter().all(|config| config.epoch.0 > 0);
        // A removed copy of an older state is not kept.
        if !is_assigned
            || self.counts_on_copy(node)
            || (self.machines[node].node.is_some() && !self.may_crash(&[node], false))
        {
            return false;
        }
        self.log(FaultKind::ReplaceDisk, node, look_at);
        self.crash_if_running(node);
        self.machines[node].replace_disk(&mut self.rng);
        let restart = self.now + Nanos::from_millis(self.rng.between(20, 1_500));
        self.push(restart, Event::Restart { node });
        self.push(look_at, Event::SavedCopies { node });
        true
    }

    /// All processes die, and the node restarts with a copy of its disk. The copy must be recognizably older for each region in
    /// which this node may be the only one with some acknowledged writes. If there is no copy yet, one is made for later.
    pub(super) fn restore_copy(&mut self, node: NodeId, look_at: Nanos) -> bool {
        if self.scenario.table.quorum.is_some() || self.machines[node].on_copy.is_some() {
            return false;
        }
        let Some(copy) = &self.machines[node].copy else {
            if self.machines[node].node.is_some() {
                let seed = self.rng.u64();
                self.machines[node].make_copy(seed);
            }
            return false;
        };
        let (server, volume) = (server_id(node), self.machines[node].volume);
        let is_it = |member: &Member| (member.server, member.volume) == (server, volume);
        let is_known = |config: &GroupConfig| {
            let former = config.prior_members.iter().map(|former| former.member);
            let reach = copy.reaches.get(&config.region).copied().unwrap_or_default();
            config.primary.into_iter().chain(former).filter(is_it).all(|member| !config.is_reached_by(&member, reach))
        };
        let configs = self.configs();
        let is_needed = configs.iter().any(|config| config.primary.as_ref().is_some_and(is_it));
        let everyone: Vec<NodeId> = self.nodes().collect();
        if !is_needed || !configs.iter().all(is_known) || !self.may_crash(&everyone, false) {
            return false;
        }
        self.log(FaultKind::RestoreCopy, node, look_at);
        for victim in everyone {
            self.crash_if_running(victim);
            let restart = self.now + Nanos::from_millis(self.rng.between(20, 1_500));
            self.push(restart, Event::Restart { node: victim });
        }
        let machine = &mut self.machines[node];
        let copy = machine.copy.take().expect("just seen");
        machine.change_disk(volume, copy.disk);
        machine.on_copy = Some(Vec::new());
        self.push(look_at, Event::SavedCopies { node });
        true
    }

    /// The operator checks the disks that were removed from a machine.
    pub(super) fn look_at_saved_copies(&mut self, node: NodeId) {
        if self.is_well() {
            self.machines[node].saved_copies.clear();
            self.machines[node].on_copy = None;
        }
        if self.machines[node].saved_copies.is_empty() {
            return;
        }
        self.push(self.now + ROUND, Event::SavedCopies { node });
        let Some(place) = self.to_be_put_back(node) else { return };
        CONTEXT.set((self.now, None));
        if self.counts_on_copy(node) && self.may_part_with_disk(node) {
            if self.machines[node].node.is_some() {
                tracing::info!(node, "a process on a copy is stopped, for others to take over");
                self.crash(node, false);
                self.push(self.now + TAKEOVER, Event::Restart { node });
            }
            return;
        }
        tracing::info!(node, "a disk is put back");
        self.fault_state.disk_put_back = self.now;
        self.crash_if_running(node);
        let (volume, disk) = self.machines[node].saved_copies.remove(place);
        // The disk was repaired meanwhile: it has no faults.
        disk.set_faults(FaultPlan::default());
        self.machines[node].change_disk(volume, disk);
        self.push(self.now + Nanos::from_millis(50), Event::Restart { node });
    }

    fn crash_if_running(&mut self, node: NodeId) {
        if self.machines[node].node.is_some() {
            self.crash(node, false);
        }
    }

    /// The process that runs as `server`, and what it reports of its replica of a region.
    fn found(&self, server: ServerId, config: &GroupConfig) -> Option<ServerCopy> {
        let path = format!("/leeward/server/{server}");
        let value = self.host.tree.changes().find(|change| change.path == path)?.value?;
        let info: ServerInfo = decode_value("server", &value).expect("the tree holds what was written");
        let lives = self.machines[node_of(server)].node.as_ref().map(Node::member) == Some(info.member);
        lives.then(|| ServerCopy::of(&info, config))
    }

    /// The index, among the node's `saved_copies`, of a disk that a region waits for and that can be put back now.
    fn to_be_put_back(&self, node: NodeId) -> Option<usize> {
        let place_of = |member: Member| {
            let saved_copies = &self.machines[node_of(member.server)].saved_copies;
            Some((node_of(member.server), saved_copies.iter().position(|(volume, _)| *volume == member.volume)?))
        };
        let needed = |config: &GroupConfig| -> Vec<(NodeId, usize)> {
            missing_volumes(config, |server| self.found(server, config))
                .into_iter()
                .filter_map(|one| place_of(one.member))
                .collect()
        };
        let mut needed = self.configs().iter().map(needed).filter(|needed| !needed.is_empty()).collect::<Vec<_>>();
        if !self.may_part_with_disk(node) {
            let since = self.scenario.fault_schedule.end.max(self.fault_state.disk_put_back);
            needed.truncate(usize::from(self.now > since + STUCK));
        }
        needed.into_iter().flatten().find(|(other, _)| *other == node).map(|(_, place)| place)
    }

    /// Whether each region that counts on the node's current disk has another member in sync with all committed writes.
    fn may_part_with_disk(&self, node: NodeId) -> bool {
        let is_other = |member: &Member| node_of(member.server) != node && self.is_alive(*member);
        self.configs().iter().all(|config| !self.counts_on_disk(node, config) || self.is_held_by(config, is_other))
    }

    /// Whether the node's current disk is a copy of an older state, and a region counts on it.
    fn counts_on_copy(&self, node: NodeId) -> bool {
        self.machines[node].on_copy.is_some() && self.configs().iter().any(|config| self.counts_on_disk(node, config))
    }

    /// Whether a region with `config` counts on the node's current disk: the disk may have acknowledged writes.
    fn counts_on_disk(&self, node: NodeId, config: &GroupConfig) -> bool {
        let machine = &self.machines[node];
        let (server, volume) = (server_id(node), machine.volume);
        // A region may count on a copy of an older state only since processes run on the copy.
        let is_it = |member: Member| match &machine.on_copy {
            Some(processes) => processes.contains(&member),
            None => (member.server, member.volume) == (server, volume),
        };
        let former = config.prior_members.iter().map(|former| former.member);
        config.in_sync().chain(former).any(is_it)
    }
}

#[cfg(test)]
#[path = "saved_copies_tests.rs"]
mod tests;

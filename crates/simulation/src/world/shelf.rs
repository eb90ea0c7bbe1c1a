//! Disks that are replaced by empty ones, and put back where a region cannot go on without them.
//!
//! A disk that was taken out lies on its machine's shelf until every region is whole again. What the store promises is
//! that no region is served without a volume that may hold acknowledged writes which no other has: it waits, and says
//! for whom. So the operator of this world puts exactly those disks back that a region waits for; the others never
//! return.

use super::{Event, FaultKind, NodeId, World, node_of, server_id};
use crate::HERE;
use leeward_cluster::awaited;
use leeward_format::VolumeId;
use leeward_platform::Nanos;
use leeward_server::node::Node;

/// How often the operator looks which disks are missed.
const ROUND: Nanos = Nanos::from_millis(300);

impl World {
    /// The disk of a node is replaced by an empty one; from `look_at` on the operator looks whether it is missed.
    pub(super) fn replace_disk(&mut self, node: NodeId, look_at: Nanos) -> bool {
        // A region that was not assigned yet could be assigned to the empty disk beside one that needs the old disk.
        let is_assigned = self.configs().iter().all(|config| config.epoch.0 > 0);
        if !is_assigned || (self.machines[node].node.is_some() && !self.may_crash(&[node], false)) {
            return false;
        }
        self.log(FaultKind::ReplaceDisk, node, look_at);
        self.crash_if_running(node);
        self.machines[node].replace_disk(&mut self.rng);
        let restart = self.now + Nanos::from_millis(self.rng.between(20, 1_500));
        self.push(restart, Event::Restart { node });
        self.push(look_at, Event::Shelf { node });
        true
    }

    /// The operator looks at the disks that were taken out of a machine.
    pub(super) fn look_at_shelf(&mut self, node: NodeId) {
        if self.is_well() {
            self.machines[node].shelf.clear();
        }
        if self.machines[node].shelf.is_empty() {
            return;
        }
        self.push(self.now + ROUND, Event::Shelf { node });
        let missed = self.machines[node].shelf.iter().position(|(volume, _)| self.is_missed(node, *volume));
        if let Some(place) = missed.filter(|_| self.may_part_with_disk(node)) {
            HERE.set((self.now, None));
            tracing::info!(node, "a disk is put back");
            self.crash_if_running(node);
            let (volume, disk) = self.machines[node].shelf.remove(place);
            self.machines[node].change_disk(volume, disk);
            self.push(self.now + Nanos::from_millis(50), Event::Restart { node });
        }
    }

    fn crash_if_running(&mut self, node: NodeId) {
        if self.machines[node].node.is_some() {
            self.crash(node, false);
        }
    }

    /// Whether a region waits for this volume of the node.
    fn is_missed(&self, node: NodeId, volume: VolumeId) -> bool {
        let live = |server| self.machines[node_of(server)].node.as_ref().map(Node::member);
        let awaited = self.configs().into_iter().flat_map(|config| awaited(&config, live));
        let mut awaited = awaited.map(|one| one.member);
        awaited.any(|member| (member.server, member.volume) == (server_id(node), volume))
    }

    /// Whether each region that counts on the disk which the node has now is held up by another member in sync.
    fn may_part_with_disk(&self, node: NodeId) -> bool {
        let (server, volume) = (server_id(node), self.machines[node].volume);
        self.configs().iter().all(|config| {
            let former = config.former.iter().map(|former| former.member);
            let mut named = config.in_sync().chain(former);
            let is_named = named.any(|member| (member.server, member.volume) == (server, volume));
            !is_named || self.is_held_by(config, |member| member.server != server && self.is_alive(*member))
        })
    }
}

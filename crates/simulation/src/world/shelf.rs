//! Disks that are replaced by empty ones, and put back where a region cannot go on without them.
//!
//! A disk that was taken out lies on its machine's shelf until every region is whole again. What the store promises is
//! that no region is served without a volume that may hold acknowledged writes which no other has: it waits, and says
//! for whom. So the operator of this world puts exactly those disks back that a region waits for; the others never
//! return. A disk that holds up a region stays where it is. But regions may wait for disks of one machine, which cannot all be in it:
//! when nothing else goes on, the first of these regions is made whole, and then the next.

use super::{Event, FaultKind, NodeId, World, node_of, server_id};
use crate::HERE;
use leeward_cluster::{Found, awaited};
use leeward_format::cluster::{GroupConfig, Member, ServerInfo, decode_value};
use leeward_format::{RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::disk::FaultPlan;
use leeward_server::node::Node;

/// How often the operator looks which disks are missed.
const ROUND: Nanos = Nanos::from_millis(300);
/// So long after the last fault and the last disk that was put back, the operator sees that regions wait for each other's.
const STUCK: Nanos = Nanos::from_secs(5);

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

    /// All processes die, and the node comes back with a copy of its disk, if there is one that can be known to be older: of each region
    /// whose acknowledged writes it may be the only one to have. If there is none yet, one is made for later.
    pub(super) fn restore_copy(&mut self, node: NodeId, look_at: Nanos) -> bool {
        if self.character.table.quorum.is_some() || self.machines[node].has_copy {
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
            let former = config.former.iter().map(|former| former.member);
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
        machine.has_copy = true;
        self.push(look_at, Event::Shelf { node });
        true
    }

    /// The operator looks at the disks that were taken out of a machine.
    pub(super) fn look_at_shelf(&mut self, node: NodeId) {
        if self.is_well() {
            self.machines[node].shelf.clear();
            self.machines[node].has_copy = false;
        }
        if self.machines[node].shelf.is_empty() {
            return;
        }
        self.push(self.now + ROUND, Event::Shelf { node });
        if let Some(place) = self.to_be_put_back(node) {
            HERE.set((self.now, None));
            tracing::info!(node, "a disk is put back");
            self.trouble.disk_put_back = self.now;
            self.crash_if_running(node);
            let (volume, disk) = self.machines[node].shelf.remove(place);
            // What was to go wrong with it has been repaired meanwhile.
            disk.set_faults(FaultPlan::default());
            self.machines[node].change_disk(volume, disk);
            self.push(self.now + Nanos::from_millis(50), Event::Restart { node });
        }
    }

    fn crash_if_running(&mut self, node: NodeId) {
        if self.machines[node].node.is_some() {
            self.crash(node, false);
        }
    }

    /// Who runs as a server, and what it says of its copy of a region.
    fn found(&self, server: ServerId, region: RegionId) -> Option<Found> {
        let path = format!("/leeward/server/{server}");
        let value = self.host.tree.changes().find(|change| change.path == path)?.value?;
        let info: ServerInfo = decode_value("server", &value).expect("the tree holds what was written");
        let lives = self.machines[node_of(server)].node.as_ref().map(Node::member) == Some(info.member);
        lives.then(|| Found::of(&info, region))
    }

    /// The place on the node's shelf of a disk that a region waits for, and that can be put in now.
    fn to_be_put_back(&self, node: NodeId) -> Option<usize> {
        let place_of = |member: Member| {
            let shelf = &self.machines[node_of(member.server)].shelf;
            Some((node_of(member.server), shelf.iter().position(|(volume, _)| *volume == member.volume)?))
        };
        let missed = |config: &GroupConfig| -> Vec<(NodeId, usize)> {
            awaited(config, |server| self.found(server, config.region))
                .into_iter()
                .filter_map(|one| place_of(one.member))
                .collect()
        };
        let mut missed = self.configs().iter().map(missed).filter(|missed| !missed.is_empty()).collect::<Vec<_>>();
        if !self.may_part_with_disk(node) {
            let since = self.character.troubles.end.max(self.trouble.disk_put_back);
            missed.truncate(usize::from(self.now > since + STUCK));
        }
        missed.into_iter().flatten().find(|(other, _)| *other == node).map(|(_, place)| place)
    }

    /// Whether each region that counts on the disk which the node has now is held up by another member in sync.
    fn may_part_with_disk(&self, node: NodeId) -> bool {
        if self.machines[node].has_copy {
            return true;
        }
        let (server, volume) = (server_id(node), self.machines[node].volume);
        self.configs().iter().all(|config| {
            let former = config.former.iter().map(|former| former.member);
            let mut named = config.in_sync().chain(former);
            let is_named = named.any(|member| (member.server, member.volume) == (server, volume));
            !is_named || self.is_held_by(config, |member| member.server != server && self.is_alive(*member))
        })
    }
}

//! Replica garbage collection: destroys unneeded copies, so that their space is free again. A copy is unneeded if its region
//! has ended, or if its group is whole without this server.
//!
//! ```text
//! unneeded (by the view) for a while ---> deregister ---> still unneeded, and no primary spoke ---> destroy ---> no machine
//! ```
//! Invariant: a copy is destroyed only under two conditions. The view shows that the copy is unneeded after this server has
//! told the coordinator that it has none. And no primary has spoken to the copy since the server began to tell it. Between the
//! two, the view has shown all that was done before. So the view shows a group that counts on this copy, since a group must
//! bring a copy in sync before it counts on it. A group that comes later brings an empty copy in sync.

use super::NodeControl;
use leeward_cluster::View;
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use std::collections::BTreeMap;

/// How often the node looks for copies that it may destroy.
const LOOK: Nanos = Nanos::from_millis(500);

/// Copies of regions to whose groups this server does not belong.
#[derive(Debug)]
pub(super) struct ReplicaGc {
    /// How long a group must be whole without this node before the node destroys its copy.
    after: Nanos,
    copies: BTreeMap<RegionId, Removable>,
    /// Regions of which this incarnation of the server was a member, and the last configuration that said so. After the
    /// coordinator has lost its data, groups are made of the copies of other servers. That says nothing about the copy here:
    /// the server keeps the copy of a region that it never left.
    was_member: BTreeMap<RegionId, Epoch>,
    looked: Nanos,
}

/// A copy that may be destroyed.
#[derive(Debug)]
struct Removable {
    /// Since then its group was whole whenever the node looked, and no primary has spoken to it.
    since: Nanos,
    /// This server is telling the coordinator that it has no such copy.
    deregisters: bool,
}

impl ReplicaGc {
    pub(super) fn new(after: Nanos) -> ReplicaGc {
        ReplicaGc { after, copies: BTreeMap::new(), was_member: BTreeMap::new(), looked: Nanos::ZERO }
    }
}

/// Whether the copy that `server` has of a region is unneeded. `since` is the epoch of the last configuration that named the
/// server, if one did: it must have left the group after that.
fn is_unneeded(view: &View, region: RegionId, server: ServerId, since: Option<Epoch>) -> bool {
    let has_left = view.region(region).zip(since).is_some_and(|(config, since)| config.epoch > since);
    view.is_gone(region) || ((has_left || planted(Bug::DestroyNamed)) && view.is_replica_garbage(region, server))
}

/// What the node has of a region that may be unneeded.
pub(in crate::node) struct CopyUse {
    /// No job has it, and it is not served.
    pub(in crate::node) is_idle: bool,
    pub(in crate::node) has_copy: bool,
}

impl NodeControl {
    /// Notes whether this server is a member of the region's group.
    pub(in crate::node) fn look_for_replica_garbage(&mut self, region: RegionId, is_here: bool) {
        let (me, now) = (self.me(), self.now());
        let member_of = self.agent.view().region(region).filter(|config| config.has(me));
        if let Some(config) = member_of {
            self.replica_gc.was_member.insert(region, config.epoch);
        }
        let is_named = self.agent.view().names(region, me.server);
        match is_named || !is_here {
            true => drop(self.replica_gc.copies.remove(&region)),
            false => {
                self.replica_gc.copies.entry(region).or_insert(Removable { since: now, deregisters: false });
            }
        }
    }

    /// A primary has spoken to the copy of a region.
    pub(in crate::node) fn copy_is_asked_for(&mut self, region: RegionId) {
        let since = self.now();
        if let Some(candidate) = self.replica_gc.copies.get_mut(&region) {
            *candidate = Removable { since, deregisters: false };
        }
    }

    /// The node has nothing of a region any more.
    pub(in crate::node) fn forget_copy(&mut self, region: RegionId) {
        self.replica_gc.copies.remove(&region);
        self.replica_gc.was_member.remove(&region);
    }

    /// Takes the next step towards the end of unneeded copies. Answers the regions of which the node may forget all.
    pub(in crate::node) fn collect_replica_garbage(
        &mut self,
        of: impl Fn(RegionId) -> Option<CopyUse>,
    ) -> Vec<RegionId> {
        let (me, now) = (self.me().server, self.now());
        if self.replica_gc.copies.is_empty() || now - self.replica_gc.looked < LOOK {
            return Vec::new();
        }
        self.replica_gc.looked = now;
        let (mut deregistered, mut empty) = (Vec::new(), Vec::new());
        for (region, candidate) in &mut self.replica_gc.copies {
            let Some(CopyUse { is_idle, has_copy }) = of(*region) else { continue };
            let view = self.agent.view();
            let since = self.replica_gc.was_member.get(region).copied();
            if !is_unneeded(view, *region, me, since) {
                candidate.since = now;
                continue;
            }
            let is_due = view.is_gone(*region) || now - candidate.since >= self.replica_gc.after;
            if !is_idle || !is_due {
                continue;
            }
            if !has_copy {
                empty.push(*region);
            } else if !std::mem::replace(&mut candidate.deregisters, true) {
                deregistered.push(*region);
            }
        }
        deregistered.into_iter().for_each(|region| self.agent.deregister(now, region));
        empty
    }

    /// The coordinator knows now that this server has no copies of some regions. Answers which copies are to be destroyed: those
    /// that are still unneeded.
    pub(in crate::node) fn destroyable(&mut self, of: impl Fn(RegionId) -> Option<CopyUse>) -> Vec<RegionId> {
        let (me, now) = (self.me().server, self.now());
        let mut destroyable = Vec::new();
        for region in self.agent.take_deregistered() {
            let Some(candidate) = self.replica_gc.copies.get_mut(&region).filter(|candidate| candidate.deregisters)
            else {
                continue;
            };
            let (view, since) = (self.agent.view(), self.replica_gc.was_member.get(&region).copied());
            let is_idle = of(region).is_some_and(|copy| copy.is_idle);
            match is_idle && is_unneeded(view, region, me, since) {
                true => destroyable.push(region),
                false => *candidate = Removable { since: now, deregisters: false },
            }
        }
        destroyable
    }
}

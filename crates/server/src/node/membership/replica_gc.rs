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

use crate::node::Node;
use leeward_cluster::View;
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use leeward_region::input::Input as RegionInput;
use leeward_region::machine::RegionMachine;
use std::collections::BTreeMap;

/// How often the node looks for copies that it may destroy.
const LOOK: Nanos = Nanos::from_millis(500);

/// Copies of regions to whose groups this server does not belong.
#[derive(Debug)]
pub(crate) struct ReplicaGc {
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
    pub(crate) fn new(after: Nanos) -> ReplicaGc {
        ReplicaGc { after, copies: BTreeMap::new(), was_member: BTreeMap::new(), looked: Nanos::ZERO }
    }

    /// A primary has spoken to the copy of a region.
    pub(crate) fn is_asked_for(&mut self, now: Nanos, region: RegionId) {
        if let Some(candidate) = self.copies.get_mut(&region) {
            *candidate = Removable { since: now, deregisters: false };
        }
    }
}

/// Whether the copy that `server` has of a region is unneeded. `since` is the epoch of the last configuration that named the
/// server, if one did: it must have left the group after that.
fn is_unneeded(view: &View, region: RegionId, server: ServerId, since: Option<Epoch>) -> bool {
    let has_left = view.region(region).zip(since).is_some_and(|(config, since)| config.epoch > since);
    view.is_gone(region) || ((has_left || planted(Bug::DestroyNamed)) && view.is_replica_garbage(region, server))
}

impl Node {
    /// Notes whether this server is a member of the region's group.
    pub(crate) fn look_for_replica_garbage(&mut self, now: Nanos, region: RegionId) {
        let me = self.context.me;
        let member_of = self.context.agent.view().region(region).filter(|config| config.has(me));
        if let Some(config) = member_of {
            self.replica_gc.was_member.insert(region, config.epoch);
        }
        let is_named = self.context.agent.view().names(region, me.server);
        match is_named || !self.machines.contains_key(&region) {
            true => drop(self.replica_gc.copies.remove(&region)),
            false => {
                self.replica_gc.copies.entry(region).or_insert(Removable { since: now, deregisters: false });
            }
        }
        if self.context.agent.view().is_gone(region) && self.give(region, RegionInput::Ended) {
            self.idle.touch(region);
        }
    }

    /// Destroys unneeded copies, or takes the next step towards that.
    pub(crate) fn collect_replica_garbage(&mut self, now: Nanos) {
        for region in self.context.agent.take_deregistered() {
            self.destroy(now, region);
        }
        if self.replica_gc.copies.is_empty() || now - self.replica_gc.looked < LOOK {
            return;
        }
        self.replica_gc.looked = now;
        let me = self.context.me.server;
        let mut deregistered = Vec::new();
        let mut empty = Vec::new();
        for (region, candidate) in &mut self.replica_gc.copies {
            let Some(machine) = self.machines.get(region) else { continue };
            let view = self.context.agent.view();
            let since = self.replica_gc.was_member.get(region).copied();
            if !is_unneeded(view, *region, me, since) {
                candidate.since = now;
                continue;
            }
            let is_due = view.is_gone(*region) || now - candidate.since >= self.replica_gc.after;
            if !machine.is_idle() || !is_due {
                continue;
            }
            if !machine.has_copy() {
                empty.push(*region);
            } else if !std::mem::replace(&mut candidate.deregisters, true) {
                deregistered.push(*region);
            }
        }
        deregistered.into_iter().for_each(|region| self.context.agent.deregister(now, region));
        empty.into_iter().for_each(|region| self.forget(region));
    }

    /// The coordinator knows now that this server has no copy of `region`. Destroys the copy, unless it is needed after all.
    fn destroy(&mut self, now: Nanos, region: RegionId) {
        let Some(candidate) = self.replica_gc.copies.get_mut(&region).filter(|candidate| candidate.deregisters) else {
            return;
        };
        let (view, since) = (self.context.agent.view(), self.replica_gc.was_member.get(&region).copied());
        let is_idle = self.machines.get(&region).is_some_and(RegionMachine::is_idle);
        match is_idle && is_unneeded(view, region, self.context.me.server, since) {
            true => {
                tracing::info!(%region, "destroys an unneeded copy");
                self.give(region, RegionInput::NotNeeded);
            }
            false => *candidate = Removable { since: now, deregisters: false },
        }
    }

    /// Removes the machine of a region of which this node has nothing.
    pub(crate) fn forget(&mut self, region: RegionId) {
        let me = self.context.me.server;
        let is_member =
            |machine: &RegionMachine| machine.config().is_some_and(|c| c.members().any(|member| member.server == me));
        let is_empty = |machine: &RegionMachine| machine.is_idle() && !machine.has_copy() && !machine.has_waiting();
        if self.machines.get(&region).is_some_and(|machine| is_empty(machine) && !is_member(machine)) {
            self.machines.remove(&region);
            self.wake(self.context.clock.now, region);
            self.replica_gc.copies.remove(&region);
            self.replica_gc.was_member.remove(&region);
        }
    }
}

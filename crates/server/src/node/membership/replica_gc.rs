//! Replica garbage collection: destroys unneeded copies, so that their space is free again. A copy is unneeded if its region
//! has ended, or if its group is whole without this server.
//!
//! ```text
//! unneeded (by the view) for a while ---> deregister ---> still unneeded, and no primary spoke ---> destroy ---> no slot
//! ```
//! Invariant: a copy is destroyed only under two conditions. The view shows that the copy is unneeded after this server has
//! told the coordinator that it has none. And no primary has spoken to the copy since the server began to tell it. Between the
//! two, the view has shown all that was done before. So the view shows a group that counts on this copy, since a group must
//! bring a copy in sync before it counts on it. A group that comes later brings an empty copy in sync.

use crate::node::Node;
use crate::node::job::Outcome;
use crate::node::region::effects::Step;
use crate::node::region::{Holding, RoleDone, Slot};
use leeward_cluster::View;
use leeward_engine::{Error, Replica};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_platform::planted::{Bug, planted};
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
        match is_named || !self.slots.contains_key(&region) {
            true => drop(self.replica_gc.copies.remove(&region)),
            false => {
                self.replica_gc.copies.entry(region).or_insert(Removable { since: now, deregisters: false });
            }
        }
        if self.context.agent.view().is_gone(region) && self.step(region, Slot::end).is_some() {
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
            let Some(slot) = self.slots.get(region) else { continue };
            let view = self.context.agent.view();
            let since = self.replica_gc.was_member.get(region).copied();
            if !is_unneeded(view, *region, me, since) {
                candidate.since = now;
                continue;
            }
            let is_due = view.is_gone(*region) || now - candidate.since >= self.replica_gc.after;
            if !slot.is_idle() || !is_due {
                continue;
            }
            if !slot.has_copy() {
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
        let is_idle = self.slots.get(&region).is_some_and(Slot::is_idle);
        match is_idle && is_unneeded(view, region, self.context.me.server, since) {
            true => {
                tracing::info!(%region, "destroys an unneeded copy");
                self.step(region, Slot::destroy);
            }
            false => *candidate = Removable { since: now, deregisters: false },
        }
    }

    /// Removes the slot of a region of which this node has nothing.
    pub(crate) fn forget(&mut self, region: RegionId) {
        let me = self.context.me.server;
        let is_member =
            |slot: &Slot| slot.config.as_ref().is_some_and(|c| c.members().any(|member| member.server == me));
        let is_empty = |slot: &Slot| slot.is_idle() && !slot.has_copy() && slot.waiting.is_empty();
        if self.slots.get(&region).is_some_and(|slot| is_empty(slot) && !is_member(slot)) {
            self.slots.remove(&region);
            self.wake(self.context.clock.now, region);
            self.replica_gc.copies.remove(&region);
            self.replica_gc.was_member.remove(&region);
        }
    }
}

impl Slot {
    /// Whether no work on the copy is under way or waits.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.holding, Holding::Copy(_)) && self.work.is_none() && self.backup.is_idle() && !self.is_building
    }

    /// Whether the volume has a copy.
    fn has_copy(&self) -> bool {
        matches!(self.holding, Holding::Copy(Some(_)))
    }

    /// The region has ended.
    fn end(&mut self, step: &mut Step<'_>) {
        (self.config, self.candidate) = (None, None);
        if matches!(self.holding, Holding::Serving(_)) {
            self.step_down(step);
        }
    }

    /// Stops following a primary, and destroys the copy. A session that begins meanwhile starts with an empty copy.
    fn destroy(&mut self, step: &mut Step<'_>) {
        let Holding::Copy(Some(copy)) = std::mem::replace(&mut self.holding, Holding::Working) else {
            unreachable!("only an idle copy is destroyed");
        };
        drop(self.backup.retire());
        (self.building, self.candidate) = (None, None);
        step.spawn(Activity::Engine.of_backup(), move || Outcome::Role(RoleDone::Destroyed(destroy(*copy))));
    }

    /// The copy was destroyed, or could not be.
    pub(crate) fn destroyed(&mut self, result: Result<(), Error>) {
        self.holding = match result {
            Ok(()) => Holding::Copy(None),
            Err(error) => {
                tracing::error!(region = %self.id, %error, "an unneeded copy cannot be destroyed");
                Holding::Broken(error.to_string())
            }
        };
    }
}

fn destroy(mut copy: Replica) -> Result<(), Error> {
    copy.abandon();
    copy.destroy()
}

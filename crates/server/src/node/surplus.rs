//! Copies that nobody needs: of regions that are no more, and of groups that are whole without this server. They are destroyed, so that
//! their space is free again.
//!
//! ```text
//! nobody needs it (by the view), and for a while ---> disclaim ---> still so, and no primary spoke ---> destroy ---> no slot
//! ```
//! Invariant: a copy is destroyed only if the view shows that nobody needs it after this server has said to the coordinator that it
//! has none, and no primary has spoken to it since it began to say so. Between the two, whatever had been done before was
//! shown; so a group that counts on this copy, which it cannot without bringing it in sync, is known of, or comes too late: then it
//! brings an empty copy in sync.

use super::slot::{Holding, Slot};
use super::{Context, Node};
use crate::node::job::Outcome;
use leeward_cluster::View;
use leeward_engine::{Error, Replica};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_platform::planted::{Bug, planted};
use std::collections::BTreeMap;

/// How often copies are looked at that may be destroyed.
const LOOK: Nanos = Nanos::from_millis(500);

/// Copies of groups that this server is no member of.
#[derive(Debug, Default)]
pub(super) struct Surplus {
    copies: BTreeMap<RegionId, Candidate>,
    /// Regions of which this life of the server was a member, and the last configuration that said so. What others were made of when
    /// the coordinator had lost its data says nothing of what is here: that of a region that it never left is kept.
    was_member: BTreeMap<RegionId, Epoch>,
    looked: Nanos,
}

/// A copy that may be destroyed.
#[derive(Debug)]
struct Candidate {
    /// Since then its group is whole, as far as was seen, and no primary has spoken to it.
    since: Nanos,
    /// The coordinator is being told that there is no such copy.
    disclaims: bool,
}

impl Surplus {
    /// A primary has spoken to the copy of a region.
    pub(super) fn is_asked_for(&mut self, now: Nanos, region: RegionId) {
        if let Some(candidate) = self.copies.get_mut(&region) {
            *candidate = Candidate { since: now, disclaims: false };
        }
    }
}

/// Whether nobody needs what `server` has of a region that it left after the configuration of `since`, if it did.
fn is_unneeded(view: &View, region: RegionId, server: ServerId, since: Option<Epoch>) -> bool {
    let has_left = view.region(region).zip(since).is_some_and(|(config, since)| config.epoch > since);
    view.is_gone(region) || ((has_left || planted(Bug::DestroyNamed)) && view.is_surplus(region, server))
}

impl Node {
    /// Takes note of whether this server is a member of the region's group.
    pub(super) fn look_for_surplus(&mut self, now: Nanos, region: RegionId) {
        let me = self.context.me;
        let member_of = self.context.agent.view().region(region).filter(|config| config.has(me));
        if let Some(config) = member_of {
            self.surplus.was_member.insert(region, config.epoch);
        }
        let is_named = self.context.agent.view().names(region, me.server);
        match is_named || !self.slots.contains_key(&region) {
            true => drop(self.surplus.copies.remove(&region)),
            false => {
                self.surplus.copies.entry(region).or_insert(Candidate { since: now, disclaims: false });
            }
        }
        if self.context.agent.view().is_gone(region)
            && let Some(slot) = self.slots.get_mut(&region)
        {
            slot.end(&mut self.context, &mut self.answers);
            self.touched.insert(region);
        }
    }

    /// Destroys copies that nobody needs, or comes nearer to it.
    pub(super) fn clear_surplus(&mut self, now: Nanos) {
        for region in self.context.agent.take_disclaimed() {
            self.destroy(now, region);
        }
        if self.surplus.copies.is_empty() || now - self.surplus.looked < LOOK {
            return;
        }
        self.surplus.looked = now;
        let me = self.context.me.server;
        let mut disclaimed = Vec::new();
        let mut empty = Vec::new();
        for (region, candidate) in &mut self.surplus.copies {
            let Some(slot) = self.slots.get(region) else { continue };
            let view = self.context.agent.view();
            let since = self.surplus.was_member.get(region).copied();
            if !is_unneeded(view, *region, me, since) {
                candidate.since = now;
                continue;
            }
            let is_due = view.is_gone(*region) || now - candidate.since >= self.surplus_after;
            if !slot.is_at_rest() || !is_due {
                continue;
            }
            if !slot.has_copy() {
                empty.push(*region);
            } else if !std::mem::replace(&mut candidate.disclaims, true) {
                disclaimed.push(*region);
            }
        }
        disclaimed.into_iter().for_each(|region| self.context.agent.disclaim(now, region));
        empty.into_iter().for_each(|region| self.forget(region));
    }

    /// The coordinator was told that there is no copy of `region`: now there is to be none, unless somebody needs it after all.
    fn destroy(&mut self, now: Nanos, region: RegionId) {
        let Some(candidate) = self.surplus.copies.get_mut(&region).filter(|candidate| candidate.disclaims) else {
            return;
        };
        let (view, since) = (self.context.agent.view(), self.surplus.was_member.get(&region).copied());
        let slot = self.slots.get_mut(&region).filter(|slot| slot.is_at_rest());
        match slot.filter(|_| is_unneeded(view, region, self.context.me.server, since)) {
            Some(slot) => {
                tracing::info!(%region, "destroys a copy that nobody needs");
                slot.destroy(&mut self.context);
            }
            None => *candidate = Candidate { since: now, disclaims: false },
        }
    }

    /// Gives up the slot of a region of which there is nothing here.
    pub(super) fn forget(&mut self, region: RegionId) {
        let me = self.context.me.server;
        let is_member =
            |slot: &Slot| slot.config.as_ref().is_some_and(|c| c.members().any(|member| member.server == me));
        let is_empty = |slot: &Slot| slot.is_at_rest() && !slot.has_copy() && slot.waiting.is_empty();
        if self.slots.get(&region).is_some_and(|slot| is_empty(slot) && !is_member(slot)) {
            self.slots.remove(&region);
            self.wake(self.context.now, region);
            self.surplus.copies.remove(&region);
            self.surplus.was_member.remove(&region);
        }
    }
}

impl Slot {
    /// Nothing is done with the copy, and nothing waits to be.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.holding, Holding::Copy(_)) && self.work.is_none() && self.backup.is_idle() && !self.is_building
    }

    /// The volume has a copy.
    fn has_copy(&self) -> bool {
        matches!(self.holding, Holding::Copy(Some(_)))
    }

    /// The region is no more.
    fn end(&mut self, context: &mut Context, out: &mut Vec<super::Answer>) {
        (self.config, self.candidate) = (None, None);
        if matches!(self.holding, Holding::Serving(_)) {
            self.lose_office(context, out);
        }
    }

    /// Follows nobody any more, and destroys the copy; what comes meanwhile begins with an empty one.
    fn destroy(&mut self, context: &mut Context) {
        let Holding::Copy(Some(copy)) = std::mem::replace(&mut self.holding, Holding::Working) else {
            unreachable!("only a copy at rest is destroyed");
        };
        drop(self.backup.retire());
        (self.building, self.candidate) = (None, None);
        context.spawn(self.id, Activity::Engine.of_backup(), move || Outcome::Destroyed(destroy(*copy)));
    }

    /// It was destroyed, or could not be.
    pub(super) fn destroyed(&mut self, result: Result<(), Error>) {
        self.holding = match result {
            Ok(()) => Holding::Copy(None),
            Err(error) => {
                tracing::error!(region = %self.id, %error, "a copy that nobody needs cannot be destroyed");
                Holding::Broken(error.to_string())
            }
        };
    }
}

fn destroy(mut copy: Replica) -> Result<(), Error> {
    copy.abandon();
    copy.destroy()
}

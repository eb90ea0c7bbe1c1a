//! Promises between this node and the others: asked for where it is primary, given where it is a backup.
//!
//! Each server is asked for those of all regions in one message. So regions that rest ([`super::rest`]) need not be looked at for
//! promises that are not renewed: the server does not answer, or its answer lacks them.

use super::slot::Slot;
use super::{Context, Node};
use leeward_format::cluster::GroupConfig;
use leeward_format::control::{Attested, Control};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_replication::Timing;
use leeward_replication::lease::Attention;
use std::collections::BTreeMap;

/// What was asked of a server last.
#[derive(Debug, Default)]
struct Asked {
    sent: Nanos,
    /// By region; and since when each question has asked for it.
    regions: Vec<((RegionId, Epoch), Nanos)>,
    /// When the last question was asked that it answered; or when it was asked first.
    answered: Nanos,
}

/// What this node, where it is primary, was promised.
#[derive(Debug)]
pub(super) struct Promises {
    asked: BTreeMap<ServerId, Asked>,
    asked_at: Nanos,
    attention: Attention,
}

impl Promises {
    pub(super) fn new(now: Nanos) -> Promises {
        Promises { asked: BTreeMap::new(), asked_at: Nanos::ZERO, attention: Attention::new(now) }
    }

    /// How this node has looked at what it was promised.
    pub(super) fn attention(&self) -> Attention {
        self.attention
    }

    /// This node's clock may have stood still: everyone is asked at once, and nobody was silent until now.
    pub(super) fn doubt_clock(&mut self, now: Nanos) {
        self.asked_at = Nanos::ZERO;
        self.attention = Attention::new(now);
    }

    /// These are asked, and nobody else.
    fn ask(&mut self, now: Nanos, wanted: &BTreeMap<ServerId, Vec<(RegionId, Epoch)>>) {
        self.asked_at = now;
        let mut before = std::mem::take(&mut self.asked);
        for (server, regions) in wanted {
            let before = before.remove(server);
            let answered = before.as_ref().map_or(now, |asked| asked.answered);
            let mut known = before.map_or(Vec::new(), |asked| asked.regions).into_iter().peekable();
            let mut since = |one: &(RegionId, Epoch)| {
                while known.next_if(|(other, _)| other < one).is_some() {}
                known.next_if(|(other, _)| other == one).map_or(now, |(_, since)| since)
            };
            let regions = regions.iter().map(|one| (*one, since(one))).collect();
            self.asked.insert(*server, Asked { sent: now, regions, answered });
        }
    }

    /// A server has promised for `regions` when it was asked at `sent`; answers for which it has not.
    fn answered(&mut self, from: ServerId, sent: Nanos, regions: &[(RegionId, Epoch)]) -> Vec<RegionId> {
        let Some(asked) = self.asked.get_mut(&from) else { return Vec::new() };
        asked.answered = asked.answered.max(sent.min(asked.sent));
        if sent == asked.sent && regions.len() == asked.regions.len() {
            return Vec::new();
        }
        // The answer may be to an earlier question: where it is far to the server, it always is.
        let mut promised = regions.iter().peekable();
        let is_refused = |(one, since): &&((RegionId, Epoch), Nanos)| {
            while promised.next_if(|other| *other < one).is_some() {}
            promised.next_if_eq(&one).is_none() && *since <= sent
        };
        asked.regions.iter().filter(is_refused).map(|((region, _), _)| *region).collect()
    }

    /// Time passes; answers whether some server lets promises run out.
    fn look(&mut self, now: Nanos, timing: &Timing) -> bool {
        self.attention.look(now, timing.lease_interval);
        let begun = self.attention.since();
        let is_late = |asked: &Asked| now - asked.answered.max(begun) > timing.renewal_patience();
        self.asked.values().any(is_late)
    }
}

impl Context {
    /// Asks `server` for its promises to this node as the primary of `regions`.
    pub(super) fn ask_lease(&mut self, server: ServerId, regions: Vec<(RegionId, Epoch)>) {
        self.ask_lease_and_attest(server, regions, Vec::new());
    }

    /// The primary of `term` answers nothing any more. If it was handed over, as `config` says, nobody need wait for its leases.
    pub(super) fn release_leases(&mut self, config: &GroupConfig, term: Epoch) {
        if config.voided() == Some(term) {
            let me = self.me;
            for member in config.members().filter(|member| *member != me) {
                self.send(member.server, &Control::Released { regions: vec![(config.region, term)] });
            }
        }
    }

    /// [`Context::ask_lease`], and tells what is attested besides, if it counts for anything.
    fn ask_lease_and_attest(&mut self, server: ServerId, regions: Vec<(RegionId, Epoch)>, mut attested: Vec<Attested>) {
        let (sent, heard) = (self.now.0, self.heard_of(server).filter(|_| !attested.is_empty()));
        if heard.is_none() {
            attested.clear();
        }
        self.send(server, &Control::LeaseRequest { sent, regions, heard, attested });
    }
}

impl Node {
    /// Time passes: where promises are not renewed, each region looks at its own.
    pub(super) fn look_at_promises(&mut self, now: Nanos) {
        if self.promises.look(now, &self.context.timing) {
            self.wake_all(now);
        }
    }

    /// Asks every peer of every region that this node serves, if it is time to.
    pub(super) fn ask_for_leases(&mut self, now: Nanos) {
        if now - self.promises.asked_at < self.context.timing.lease_interval {
            return;
        }
        let mut wanted: BTreeMap<ServerId, Vec<(RegionId, Epoch)>> = BTreeMap::new();
        let mut attested: BTreeMap<ServerId, Vec<Attested>> = BTreeMap::new();
        for slot in self.slots.values_mut() {
            let id = slot.id;
            if let Some(serving) = slot.serving() {
                let linked = serving.primary.peers().filter(|peer| peer.is_linked());
                for server in linked.map(|peer| peer.member.server) {
                    wanted.entry(server).or_default().push((id, serving.term));
                    attested.entry(server).or_default().extend(serving.attest(now));
                }
            }
        }
        self.promises.ask(now, &wanted);
        for (server, regions) in wanted {
            self.context.ask_lease_and_attest(server, regions, attested.remove(&server).unwrap_or_default());
        }
    }

    /// A primary asks. That of a region that is no more is promised nothing: what it acknowledges would be lost.
    pub(super) fn grant_leases(&mut self, now: Nanos, from: ServerId, sent: u64, regions: &[(RegionId, Epoch)]) {
        let mut granted = Vec::new();
        for &(region, term) in regions {
            let view = self.context.agent.view();
            let slot = self.slots.get_mut(&region).filter(|slot| {
                let newer = slot.config.as_ref().is_some_and(|config| config.term > term);
                !newer && !view.has_ended(region) && slot.backup.may_grant(from, term)
            });
            if let Some(slot) = slot {
                slot.look_after_reads(&mut self.context);
                if !slot.backup.is_idle() {
                    self.touched.insert(region);
                }
                self.context.grants.grant(now, region, term, &self.context.timing);
                granted.push((region, term));
            }
        }
        if !granted.is_empty() {
            self.context.send(from, &Control::LeaseGrant { sent, regions: granted, now: now.0 });
        }
    }

    /// A primary that has handed these regions over relies on no lease of them any more: whoever waited for that goes on.
    pub(super) fn leases_released(&mut self, now: Nanos, regions: &[(RegionId, Epoch)]) {
        for (region, term) in regions {
            self.context.grants.void(*region, *term);
            if let Some(slot) = self.slots.get_mut(region) {
                self.touched.insert(*region);
                slot.backup.join_when_allowed(now, &self.context.grants);
                slot.act_as_backup(&mut self.context);
                slot.reconcile(now, &mut self.context, &mut self.answers);
            }
        }
    }

    /// A backup promised.
    pub(super) fn lease_granted(&mut self, from: ServerId, sent: u64, regions: Vec<(RegionId, Epoch)>) {
        let refused = self.promises.answered(from, Nanos(sent), &regions);
        if Nanos(sent) < self.context.clock_since {
            return;
        }
        self.touched.extend(refused.into_iter().filter(|region| self.rest.is_resting(*region)));
        for (region, term) in regions {
            let serving = self.slots.get_mut(&region).and_then(Slot::serving);
            if let Some(serving) = serving.filter(|serving| serving.term == term) {
                serving.primary.lease_granted(from, Nanos(sent));
                // No answer waits for it where it rests.
                if !self.rest.is_resting(region) {
                    self.touched.insert(region);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "leases_tests.rs"]
mod tests;

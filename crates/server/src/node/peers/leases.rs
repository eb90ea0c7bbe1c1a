//! Lease grants between this node and the others: it requests them where it is primary, and gives them where it is a backup.
//!
//! These messages wait for no other: they are [urgent](leeward_fabric::Fabric::send_urgent). So they have no order with
//! messages of sessions, and may be lost.
//!
//! One message asks a server for the grants of all regions. So the node need not look at idle regions
//! ([`leeward_region::machine::idle`]) to find grants that are not renewed: the server does not answer, or its answer lacks them.

use crate::node::{Context, Node};
use leeward_format::control::{Control, SafeLsnOf};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use leeward_region::input::Input as RegionInput;
use leeward_region::machine::RegionMachine;
use leeward_replication::Timing;
use leeward_replication::lease::SchedulingGap;
use std::collections::BTreeMap;

/// Why no lease is granted that lasts so long; `None` if one may be.
fn refusal(lasts: Nanos) -> Option<String> {
    let (least, most) = (Timing::LEASES.start().as_millis(), Timing::LEASES.end().as_millis());
    let says =
        || format!("a lease lasts {least} to {most} ms, and {} ns were asked for: check lease_ms there", lasts.0);
    (!Timing::LEASES.contains(&lasts)).then(says)
}

/// The last request to a server.
#[derive(Debug, Default)]
struct Asked {
    sent: Nanos,
    /// The regions it names, each with the time since when every request has named it.
    regions: Vec<((RegionId, Epoch), Nanos)>,
    /// When the last request was sent that the server answered; or when the first one was sent.
    answered: Nanos,
}

/// The lease grants that this node has requested as a primary.
#[derive(Debug)]
pub(crate) struct LeaseGrants {
    asked: BTreeMap<ServerId, Asked>,
    asked_at: Nanos,
    scheduling_gap: SchedulingGap,
}

impl LeaseGrants {
    pub(crate) fn new(now: Nanos) -> LeaseGrants {
        LeaseGrants { asked: BTreeMap::new(), asked_at: Nanos::ZERO, scheduling_gap: SchedulingGap::new(now) }
    }

    /// How regularly this node has looked at its lease grants.
    pub(crate) fn scheduling_gap(&self) -> SchedulingGap {
        self.scheduling_gap
    }

    /// This node's clock may have stopped. All servers are asked at once, and no server counts as silent until now.
    pub(crate) fn doubt_clock(&mut self, now: Nanos) {
        self.asked_at = Nanos::ZERO;
        self.scheduling_gap = SchedulingGap::new(now);
    }

    /// The node asks exactly these servers, for these regions.
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

    /// A server has granted leases of `regions`, to the request of `sent`. Answers which regions it has refused.
    fn answered(&mut self, from: ServerId, sent: Nanos, regions: &[(RegionId, Epoch)]) -> Vec<RegionId> {
        let Some(asked) = self.asked.get_mut(&from) else { return Vec::new() };
        asked.answered = asked.answered.max(sent.min(asked.sent));
        if sent == asked.sent && regions.len() == asked.regions.len() {
            return Vec::new();
        }
        // The answer may be to an earlier request. If the server is far away, it always is.
        let mut granted = regions.iter().peekable();
        let is_refused = |(one, since): &&((RegionId, Epoch), Nanos)| {
            while granted.next_if(|other| *other < one).is_some() {}
            granted.next_if_eq(&one).is_none() && *since <= sent
        };
        asked.regions.iter().filter(is_refused).map(|((region, _), _)| *region).collect()
    }

    /// Answers whether some server lets lease grants run out.
    fn look(&mut self, now: Nanos, timing: &Timing) -> bool {
        self.scheduling_gap.look(now, timing.scheduling_gap());
        let begun = self.scheduling_gap.since();
        let is_late = |asked: &Asked| now - asked.answered.max(begun) > timing.renewal_timeout();
        self.asked.values().any(is_late)
    }
}

impl Context {
    /// Asks `server` for lease grants to this node as the primary of `regions`.
    pub(crate) fn ask_lease(&mut self, server: ServerId, regions: Vec<(RegionId, Epoch)>) {
        self.ask_lease_and_publish(server, regions, Vec::new());
    }

    /// [`Context::ask_lease`], which also publishes `safe_lsns`, if the server can use them.
    fn ask_lease_and_publish(
        &mut self,
        server: ServerId,
        regions: Vec<(RegionId, Epoch)>,
        mut safe_lsns: Vec<SafeLsnOf>,
    ) {
        let heard = self.links.clock_of(self.clock.now, server).filter(|_| !safe_lsns.is_empty());
        if heard.is_none() {
            safe_lsns.clear();
        }
        let (sent, lasts) = (self.clock.now.0, self.timing.lease.0);
        self.links.send_urgent(server, &Control::LeaseRequest { sent, lasts, regions, heard, safe_lsns });
    }
}

impl Node {
    /// A tick. If a server does not renew its lease grants, each region looks at its own.
    pub(crate) fn look_at_lease_grants(&mut self, now: Nanos) {
        if self.lease_grants.look(now, &self.context.timing) {
            self.wake_all(now);
        }
    }

    /// Asks every peer of every region that this node serves, if it is time to.
    pub(crate) fn ask_for_leases(&mut self, now: Nanos) {
        if now - self.lease_grants.asked_at < self.context.timing.lease_interval {
            return;
        }
        let mut wanted: BTreeMap<ServerId, Vec<(RegionId, Epoch)>> = BTreeMap::new();
        let mut safe_lsns: BTreeMap<ServerId, Vec<SafeLsnOf>> = BTreeMap::new();
        for serving in self.served() {
            let linked = serving.primary().peers().filter(|peer| peer.is_linked());
            for server in linked.map(|peer| peer.member.server) {
                wanted.entry(server).or_default().push((serving.id(), serving.term()));
                safe_lsns.entry(server).or_default().extend(serving.publish_safe_lsn(now));
            }
        }
        self.lease_grants.ask(now, &wanted);
        for (server, regions) in wanted {
            self.context.ask_lease_and_publish(server, regions, safe_lsns.remove(&server).unwrap_or_default());
        }
    }

    /// A primary asks for lease grants. It gets none for a region that has ended: what it acknowledges there would be lost.
    /// The grant lasts as long as the primary asks for, whatever this node asks for as a primary.
    pub(super) fn grant_leases(
        &mut self,
        now: Nanos,
        from: ServerId,
        (sent, lasts): (Nanos, Nanos),
        regions: &[(RegionId, Epoch)],
    ) {
        if let Some(reason) = refusal(lasts) {
            return self.context.links.send_urgent(from, &Control::LeaseRefused { reason });
        }
        let kept = if planted(Bug::GrantOwnDuration) { self.context.timing.lease } else { lasts };
        let mut granted = Vec::new();
        for &(region, term) in regions {
            let view = self.context.agent.view();
            let machine =
                self.machines.get(&region).filter(|machine| !view.has_ended(region) && machine.may_grant(from, term));
            if machine.is_some() {
                self.give(region, RegionInput::LookAfterReads);
                self.context.grants.grant(now, region, term, kept);
                granted.push((region, term));
            }
        }
        if !granted.is_empty() {
            let (sent, lasts, regions) = (sent.0, lasts.0, granted);
            self.context.links.send_urgent(from, &Control::LeaseGrant { sent, lasts, regions, now: now.0 });
        }
    }

    /// A primary that has handed these regions over no longer relies on their leases. A copy that waited for them to end goes
    /// on.
    pub(super) fn leases_released(&mut self, regions: &[(RegionId, Epoch)]) {
        for (region, term) in regions {
            self.context.grants.release(*region, *term);
            if self.give(*region, RegionInput::LeaseReleased) {
                self.idle.touch(*region);
            }
        }
    }

    /// A backup has granted leases of this length.
    pub(super) fn lease_granted(
        &mut self,
        from: ServerId,
        (sent, lasts): (Nanos, Nanos),
        regions: Vec<(RegionId, Epoch)>,
    ) {
        let refused = self.lease_grants.answered(from, sent, &regions);
        if sent < self.context.clock.since {
            return;
        }
        for region in refused {
            if self.idle.is_idle(region) {
                self.idle.touch(region);
            }
        }
        for (region, term) in regions {
            let served = self.machines.get(&region).and_then(RegionMachine::served);
            if served.is_some_and(|serving| serving.term() == term) {
                self.give(region, RegionInput::LeaseGranted { server: from, term, lease: (sent, lasts) });
                // In an idle region no answer waits for it.
                if !self.idle.is_idle(region) {
                    self.idle.touch(region);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "leases_tests.rs"]
mod tests;

//! Lease grants between this node and the others: it requests them where it is primary, and gives them where it is a backup.
//!
//! These messages wait for no other: they are [urgent](leeward_fabric::Fabric::send_urgent). So they have no order with
//! messages of sessions, and may be lost.
//!
//! One message asks a server for the grants of all regions. So the node need not look at idle regions
//! ([`leeward_region::machine::idle`]) to find grants that are not renewed: the server does not answer, or its answer lacks them.

use super::NodeControl;
use crate::node::links::Links;
use leeward_format::control::{Control, SafeLsnOf};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
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

/// What is asked of a server and told to it.
#[derive(Default)]
pub(in crate::node) struct LeaseWants {
    /// The regions that are served here and have a member there, each with the term of its primary; ascending.
    pub(in crate::node) regions: Vec<(RegionId, Epoch)>,
    /// Safe LSNs of such regions.
    pub(in crate::node) safe_lsns: Vec<SafeLsnOf>,
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
pub(super) struct LeaseGrants {
    asked: BTreeMap<ServerId, Asked>,
    asked_at: Nanos,
    scheduling_gap: SchedulingGap,
}

impl LeaseGrants {
    pub(super) fn new(now: Nanos) -> LeaseGrants {
        LeaseGrants { asked: BTreeMap::new(), asked_at: Nanos::ZERO, scheduling_gap: SchedulingGap::new(now) }
    }

    /// This node's clock may have stopped. All servers are asked at once, and no server counts as silent until now.
    pub(super) fn doubt_clock(&mut self, now: Nanos) {
        self.asked_at = Nanos::ZERO;
        self.scheduling_gap = SchedulingGap::new(now);
    }

    /// The node asks exactly these servers, for these regions.
    fn ask(&mut self, now: Nanos, wanted: &BTreeMap<ServerId, LeaseWants>) {
        self.asked_at = now;
        let mut before = std::mem::take(&mut self.asked);
        for (server, LeaseWants { regions, .. }) in wanted {
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

impl NodeControl {
    /// Asks `server` for a lease grant to this node as the primary of a region.
    pub(in crate::node) fn ask_lease(&self, links: &Links, server: ServerId, region: RegionId, term: Epoch) {
        self.send_lease_request(links, server, LeaseWants { regions: vec![(region, term)], safe_lsns: Vec::new() });
    }

    /// Sends a request for lease grants. It publishes safe LSNs too, if the server can use them.
    fn send_lease_request(&self, links: &Links, server: ServerId, wants: LeaseWants) {
        let LeaseWants { regions, mut safe_lsns } = wants;
        let heard = links.clock_of(self.now(), server).filter(|_| !safe_lsns.is_empty());
        if heard.is_none() {
            safe_lsns.clear();
        }
        let (sent, lasts) = (self.now().0, self.resources.timing.lease.0);
        links.send_urgent(server, &Control::LeaseRequest { sent, lasts, regions, heard, safe_lsns });
    }

    /// A tick. Answers whether some server lets lease grants run out: then each region is to look at its own.
    pub(in crate::node) fn look_at_lease_grants(&mut self) -> bool {
        self.lease_grants.look(self.clock.now, &self.resources.timing)
    }

    /// How regularly this node looks at its lease grants.
    pub(in crate::node) fn scheduling_gap(&self) -> SchedulingGap {
        self.lease_grants.scheduling_gap
    }

    /// Whether it is time to ask for all lease grants.
    pub(in crate::node) fn leases_are_due(&self) -> bool {
        self.now() - self.lease_grants.asked_at >= self.resources.timing.lease_interval
    }

    /// Asks every server for all that the primaries here want of it.
    pub(in crate::node) fn ask_for_leases(&mut self, links: &Links, wants: BTreeMap<ServerId, LeaseWants>) {
        self.lease_grants.ask(self.clock.now, &wants);
        for (server, wants) in wants {
            self.send_lease_request(links, server, wants);
        }
    }

    /// A primary asks for lease grants that last for `lasts`. Answers whether it may be given any. The grant lasts as long as the
    /// primary asks for, whatever this node asks for as a primary.
    pub(in crate::node) fn may_grant(&self, links: &Links, from: ServerId, lasts: Nanos) -> bool {
        let Some(reason) = refusal(lasts) else { return true };
        links.send_urgent(from, &Control::LeaseRefused { reason });
        false
    }

    /// Grants leases of these regions to the primary that has asked.
    pub(in crate::node) fn grant_leases(
        &mut self,
        links: &Links,
        from: ServerId,
        (sent, lasts): (Nanos, Nanos),
        regions: Vec<(RegionId, Epoch)>,
    ) {
        let now = self.now();
        let kept = if planted(Bug::GrantOwnDuration) { self.resources.timing.lease } else { lasts };
        regions.iter().for_each(|(region, term)| self.grants.grant(now, *region, *term, kept));
        if !regions.is_empty() {
            let (sent, lasts) = (sent.0, lasts.0);
            links.send_urgent(from, &Control::LeaseGrant { sent, lasts, regions, now: now.0 });
        }
    }

    /// A primary no longer relies on its leases of a region.
    pub(in crate::node) fn release_grant(&mut self, region: RegionId, term: Epoch) {
        self.grants.release(region, term);
    }

    /// A server has answered a request. Answers which regions it has refused, and whether its grants count: not if this node's
    /// clock may have stopped since it asked.
    pub(in crate::node) fn leases_answered(
        &mut self,
        from: ServerId,
        sent: Nanos,
        regions: &[(RegionId, Epoch)],
    ) -> Option<Vec<RegionId>> {
        let refused = self.lease_grants.answered(from, sent, regions);
        (sent >= self.clock.since).then_some(refused)
    }
}

#[cfg(test)]
#[path = "leases_tests.rs"]
mod tests;

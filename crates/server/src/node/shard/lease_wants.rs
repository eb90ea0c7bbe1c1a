//! The leases that the primaries of a shard need, and the lease grants that its copies may give. Control asks and answers for
//! all of them at once.

use super::{NodeFacts, Shard};
use crate::node::control::leases::LeaseWants;
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_region::input::Input as RegionInput;
use leeward_region::machine::RegionMachine;
use std::collections::BTreeMap;

impl Shard {
    /// What the primaries here want of each server.
    pub(in crate::node) fn lease_wants(&self, now: Nanos) -> BTreeMap<ServerId, LeaseWants> {
        let mut wants: BTreeMap<ServerId, LeaseWants> = BTreeMap::new();
        for serving in self.served() {
            let linked = serving.primary().peers().filter(|peer| peer.is_linked());
            for server in linked.map(|peer| peer.member.server) {
                let of = wants.entry(server).or_default();
                of.regions.push((serving.id(), serving.term()));
                of.safe_lsns.extend(serving.publish_safe_lsn(now));
            }
        }
        wants
    }

    /// Of these regions, those whose copy may be bound by a lease grant to `from`. It looks after its reads from here on. A region
    /// that has ended is none of them: what its primary acknowledges there would be lost.
    pub(in crate::node) fn grantable(
        &mut self,
        facts: NodeFacts,
        from: ServerId,
        regions: &[(RegionId, Epoch)],
    ) -> Vec<(RegionId, Epoch)> {
        let view = facts.control.view();
        let may_grant =
            |machine: &&RegionMachine, region, term| !view.has_ended(region) && machine.may_grant(from, term);
        let mut grantable = Vec::new();
        for &(region, term) in regions {
            if self.machine(region).filter(|machine| may_grant(machine, region, term)).is_some() {
                self.give(facts, region, RegionInput::LookAfterReads);
                grantable.push((region, term));
            }
        }
        grantable
    }

    /// A server has granted leases of this length for these regions, and refused others.
    pub(in crate::node) fn leases_granted(
        &mut self,
        facts: NodeFacts,
        (from, lease): (ServerId, (Nanos, Nanos)),
        regions: Vec<(RegionId, Epoch)>,
        refused: Vec<RegionId>,
    ) {
        for region in refused {
            if self.idle.is_idle(region) {
                self.idle.touch(region);
            }
        }
        for (region, term) in regions {
            let served = self.machine(region).and_then(RegionMachine::served);
            if served.is_some_and(|serving| serving.term() == term) {
                self.give(facts, region, RegionInput::LeaseGranted { server: from, term, lease });
                // In an idle region no answer waits for it.
                if !self.idle.is_idle(region) {
                    self.idle.touch(region);
                }
            }
        }
    }
}

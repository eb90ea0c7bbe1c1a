//! Promises between this node and the others: asked for where it is primary, given where it is a backup.

use super::slot::Slot;
use super::{Context, Node};
use leeward_format::control::Control;
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use std::collections::BTreeMap;

impl Context {
    /// Asks `server` for its promises to this node as the primary of `regions`.
    pub(super) fn ask_lease(&mut self, server: ServerId, regions: Vec<(RegionId, Epoch)>) {
        let sent = self.now.0;
        self.send(server, &Control::LeaseRequest { sent, regions });
    }
}

impl Node {
    /// Asks every peer of every region that this node serves.
    pub(super) fn ask_for_leases(&mut self) {
        let mut wanted: BTreeMap<ServerId, Vec<(RegionId, Epoch)>> = BTreeMap::new();
        for slot in self.slots.values_mut() {
            let id = slot.id;
            if let Some(serving) = slot.serving() {
                let linked = serving.primary.peers().filter(|peer| peer.is_linked());
                for peer in linked {
                    wanted.entry(peer.member.server).or_default().push((id, serving.term));
                }
            }
        }
        for (server, regions) in wanted {
            self.context.ask_lease(server, regions);
        }
    }

    /// A primary asks. That of a region that is no more is promised nothing: what it acknowledges would be lost.
    pub(super) fn grant_leases(&mut self, now: Nanos, from: ServerId, sent: u64, regions: &[(RegionId, Epoch)]) {
        let mut granted = Vec::new();
        for &(region, term) in regions {
            let view = self.context.agent.view();
            let slot = self.slots.get(&region).filter(|slot| {
                let newer = slot.config.as_ref().is_some_and(|config| config.term > term);
                !newer && !view.has_ended(region) && slot.backup.may_grant(from, term)
            });
            if slot.is_some() {
                self.context.grants.grant(now, region, term, &self.context.timing);
                granted.push((region, term));
            }
        }
        if !granted.is_empty() {
            self.context.send(from, &Control::LeaseGrant { sent, regions: granted });
        }
    }

    /// A backup promised.
    pub(super) fn lease_granted(&mut self, from: ServerId, sent: u64, regions: Vec<(RegionId, Epoch)>) {
        for (region, term) in regions {
            let serving = self.slots.get_mut(&region).and_then(Slot::serving);
            if let Some(serving) = serving.filter(|serving| serving.term == term) {
                serving.primary.lease_granted(from, Nanos(sent));
                self.touched.insert(region);
            }
        }
    }
}

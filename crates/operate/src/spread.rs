//! How copies, their bytes and primary roles are spread over the servers of a cluster. Computed from its region map and
//! the status of primaries. Pure.

use leeward_client::{GroupConfig, RegionMap};
use leeward_format::status::{NodeStatus, Role};
use leeward_format::{RegionId, ServerId};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// The share of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// Regions that it is primary of.
    pub primaries: u64,
    /// Copies, including those that are being built.
    pub copies: u64,
    /// Of them, those that are being built.
    pub builds: u64,
    /// Bytes of all copies. A region whose primary does not answer counts as 0.
    pub bytes: u64,
}

/// The shares of all servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// By server, for live servers.
    pub shares: BTreeMap<ServerId, Share>,
    /// Regions with a request for their members pending, or that lack a member or have one that is being built.
    pub moving: Vec<RegionId>,
}

impl Spread {
    /// Computes the shares of the servers of `map`, with sizes from `statuses`.
    pub fn of(map: &RegionMap, statuses: &[&NodeStatus]) -> Spread {
        let told = statuses.iter().flat_map(|node| &node.regions).filter(|region| region.role == Role::Primary);
        let bytes: HashMap<RegionId, u64> = told.map(|region| (region.region, region.bytes)).collect();
        let live = map.servers.iter().map(|info| (info.member.server, Share::default()));
        let mut spread = Spread { shares: live.collect(), moving: Vec::new() };
        for group in &map.regions {
            let size = bytes.get(&group.region).copied().unwrap_or(0);
            for member in group.members() {
                let Some(share) = spread.shares.get_mut(&member.server) else { continue };
                share.primaries += u64::from(group.primary == Some(member));
                share.builds += u64::from(group.learners.contains(&member));
                share.copies += 1;
                share.bytes += size;
            }
        }
        spread.moving = map.regions.iter().filter(|group| is_active(map, group)).map(|group| group.region).collect();
        spread
    }

    /// Bytes that each of these servers would have in an even spread; 0 if there are no servers.
    pub fn even_bytes(&self, among: impl Fn(ServerId) -> bool) -> u64 {
        let mut sum = (0, 0);
        for share in self.among(among) {
            sum = (sum.0 + share.bytes, sum.1 + 1);
        }
        sum.0.checked_div(sum.1).unwrap_or(0)
    }

    /// The largest difference between the bytes of one of these servers and their average, as a fraction of the
    /// average.
    pub fn widest(&self, among: impl Fn(ServerId) -> bool) -> f64 {
        let even = self.even_bytes(&among);
        let widest = self.among(among).map(|share| share.bytes.abs_diff(even)).max().unwrap_or(0);
        widest as f64 / even.max(1) as f64
    }

    /// The fewest and the most regions that one of these servers is primary of.
    pub fn primaries(&self, among: impl Fn(ServerId) -> bool) -> (u64, u64) {
        let of = |least: (u64, u64), share: &Share| (least.0.min(share.primaries), least.1.max(share.primaries));
        let found = self.among(among).fold((u64::MAX, 0), of);
        (found.0.min(found.1), found.1)
    }

    fn among(&self, is_one: impl Fn(ServerId) -> bool) -> impl Iterator<Item = &Share> {
        self.shares.iter().filter(move |(server, _)| is_one(**server)).map(|(_, share)| share)
    }
}

/// Whether the group lacks a member, has a learner, or has a pending request for its members.
fn is_active(map: &RegionMap, group: &GroupConfig) -> bool {
    let replicas = map.table(&group.table).map_or(0, |table| table.replicas as usize);
    group.desired.primary.is_some()
        || group.desired.leaving.is_some()
        || !group.learners.is_empty()
        || group.in_sync().count() != replicas
}

#[cfg(test)]
#[path = "spread_tests.rs"]
mod tests;

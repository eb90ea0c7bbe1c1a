//! How close the copies of a region are, by the locations of their servers. Pure.
//!
//! The fewer copies one place can take with it the better, and a zone counts before any number of its machines. So two
//! sets of servers are compared by how many of their pairs share the coarsest label, then by how many share the next.

use crate::view::View;
use leeward_format::ServerId;
use leeward_format::cluster::Location;
use leeward_platform::{Bug, planted};
use std::collections::BTreeMap;

/// How close the servers of a set are to each other: for each level of locations, the coarsest first, how many of their
/// pairs share it, in eight bits. 0: no two of them share anything.
pub(super) type Closeness = u64;

const BITS: usize = 8;
const _: () = assert!(Location::MAX_LABELS * BITS <= Closeness::BITS as usize);

/// How close each two servers are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Distances {
    /// The pairs that share something, each in both orders.
    close: BTreeMap<(ServerId, ServerId), Closeness>,
}

impl Distances {
    /// Of these servers, each at its location.
    pub(super) fn of<'a>(servers: impl IntoIterator<Item = (ServerId, &'a Location)>) -> Distances {
        let mut distances = Distances::default();
        let is_placed = |location: &Location| !location.is_empty() && !planted(Bug::IgnoreLocations);
        let placed: Vec<_> = servers.into_iter().filter(|(_, location)| is_placed(location)).collect();
        for (index, (one, location)) in placed.iter().enumerate() {
            for (other, other_location) in &placed[index + 1..] {
                let levels = (0..location.closeness(other_location)).map(|level| Location::MAX_LABELS - 1 - level);
                let closeness: Closeness = levels.map(|level| 1 << (BITS * level)).sum();
                if closeness > 0 {
                    distances.close.extend([((*one, *other), closeness), ((*other, *one), closeness)]);
                }
            }
        }
        distances
    }

    /// Of the live servers.
    pub(super) fn of_live(view: &View) -> Distances {
        Distances::of(view.servers().map(|info| (info.member.server, &info.location)))
    }

    /// Whether no two servers share anything, or nobody has said where they stand.
    pub(super) fn are_even(&self) -> bool {
        self.close.is_empty()
    }

    /// What `server` adds to the closeness of `others`.
    pub(super) fn added(&self, server: ServerId, others: impl IntoIterator<Item = ServerId>) -> Closeness {
        if self.are_even() {
            return 0;
        }
        let one = |other| self.close.get(&(server, other)).copied().unwrap_or_default();
        // A level of so many pairs that it would run over is no likely group.
        others.into_iter().map(one).fold(0, Closeness::saturating_add)
    }

    /// How much less close the `members` are once the copy on `from` is on `to`; `None`: they are closer then.
    pub(super) fn gain(&self, members: &[ServerId], from: ServerId, to: ServerId) -> Option<Closeness> {
        let others = || members.iter().copied().filter(|member| *member != from);
        self.added(from, others()).checked_sub(self.added(to, others()))
    }

    /// How close these servers are.
    #[cfg(test)]
    pub(super) fn within(&self, servers: &[ServerId]) -> Closeness {
        let one = |(index, server): (usize, &ServerId)| self.added(*server, servers[..index].iter().copied());
        servers.iter().enumerate().map(one).sum()
    }
}

#[cfg(test)]
#[path = "spread_tests.rs"]
mod tests;

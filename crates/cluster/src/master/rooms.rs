//! How much more each server can store, by the load that it reported last. Pure; one thread at a time.
//!
//! Invariant: a server that has not reported lately is not known. It is neither full nor does it have room for certain.

use crate::view::View;
use leeward_format::RegionId;
use leeward_format::cluster::Member;
use leeward_format::load::{Fullness, ServerLoad};
use leeward_platform::{Bug, Nanos, planted};
use std::collections::BTreeMap;

/// A copy counts as at least so many bytes. Its tails take as much, and a thousand empty copies are a load too.
pub(super) const LEAST_BYTES: u64 = 4 << 20;

/// Room for more on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Its volume takes no writes.
    Full,
    /// Its volume takes writes, and refused some within the last minute.
    WasFull,
    /// So many bytes.
    Bytes(u64),
}

/// How well more bytes fit on a server; the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    /// There is room for them, or nothing is known.
    Room,
    /// They would take the last tenth of the capacity, or more than that.
    Tight,
    /// The volume refused writes within the last minute.
    WasFull,
    /// The volume takes no writes.
    Full,
}

/// How much more each server can store.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    servers: BTreeMap<Member, (Nanos, Room)>,
    /// Bytes of a copy of each region.
    copies: BTreeMap<RegionId, u64>,
}

impl Rooms {
    /// A live server reports its load. Answers whether it is full and was not.
    pub(super) fn hear(&mut self, now: Nanos, member: Member, load: &ServerLoad) -> bool {
        // A tenth stays free: compactions need space, and so do the writes in the meantime.
        let bytes = load.capacity.map_or(u64::MAX, |capacity| (capacity - capacity / 10).saturating_sub(load.used));
        let room = match load.fullness {
            Fullness::Full if !planted(Bug::IgnoreRoom) => Room::Full,
            Fullness::WasFull if !planted(Bug::IgnoreRoom) => Room::WasFull,
            _ => Room::Bytes(bytes),
        };
        let was_full = self.is_full(member);
        self.servers.insert(member, (now, room));
        !was_full && self.is_full(member)
    }

    /// A copy of the region takes so many bytes on a server that does not have it.
    pub(super) fn size(&mut self, region: RegionId, bytes: u64) {
        self.copies.insert(region, bytes);
    }

    /// The region is gone, or has other keys.
    pub(super) fn forget(&mut self, region: RegionId) {
        self.copies.remove(&region);
    }

    /// Forgets processes that are gone, and reports that are older than `stale`.
    pub(super) fn forget_old(&mut self, now: Nanos, view: &View, stale: Nanos) {
        self.servers.retain(|member, (at, _)| view.is_live(*member) && now.since(*at) <= stale);
    }

    /// What the server reported; `None`: nothing, lately.
    pub(super) fn of(&self, member: Member) -> Option<Room> {
        self.servers.get(&member).map(|(_, room)| *room)
    }

    /// Whether it refused writes within the last minute: it gets no roles.
    pub(super) fn is_full(&self, member: Member) -> bool {
        matches!(self.of(member), Some(Room::Full | Room::WasFull))
    }

    /// Whether any server refused writes within the last minute.
    pub(super) fn has_full(&self) -> bool {
        self.servers.values().any(|(_, room)| matches!(room, Room::Full | Room::WasFull))
    }

    /// How well so many more bytes fit on a server.
    pub(super) fn fit(&self, member: Member, bytes: u64) -> Fit {
        match self.of(member) {
            Some(Room::Full) => Fit::Full,
            Some(Room::WasFull) => Fit::WasFull,
            Some(Room::Bytes(room)) if room < bytes => Fit::Tight,
            _ => Fit::Room,
        }
    }

    /// Bytes of a copy of the region on a server that does not have it, as far as they are known.
    pub(super) fn bytes_of(&self, region: RegionId) -> u64 {
        self.copies.get(&region).copied().unwrap_or_default().max(LEAST_BYTES)
    }
}

//! Which primary roles leave full servers. A region whose primary has a full disk refuses writes, although its other members may
//! have room: one of those becomes the primary. This is for the sake of serving, and no matter of balance. So it is done while
//! servers come and go, and also where nobody balances.
//!
//! Invariants: only a member in sync that has said that it has room gets a role. The regions of a full server have their turn,
//! a few at a time. No thread, clock or socket.

use super::rooms::{LEAST_BYTES, Room, Rooms};
use crate::View;
use leeward_format::cluster::{GroupConfig, Member, Plan, RegionRequest};
use leeward_format::{RegionId, ServerId};
use std::collections::BTreeMap;

/// Primary roles that are handed over at a time.
pub(super) const HAND_OVERS: u32 = 4;

/// The hand-overs to request now, at most one a region; of regions that are `is_free` only.
pub(super) fn relief(view: &View, rooms: &Rooms, is_free: impl Fn(RegionId) -> bool) -> Vec<(RegionId, RegionRequest)> {
    let pending = view.regions().filter(|config| config.desired.primary.is_some()).count();
    let most = (HAND_OVERS as usize).saturating_sub(pending);
    let is_due = |config: &&GroupConfig| {
        let is_full = config.primary.is_some_and(|primary| rooms.is_full(primary));
        is_full && config.desired.primary.is_none() && !follows(view, rooms, config) && is_free(config.region)
    };
    let mut due = view.regions().filter(is_due).peekable();
    if most == 0 || due.peek().is_none() {
        return Vec::new();
    }
    let mut roles: BTreeMap<ServerId, u32> = BTreeMap::new();
    for primary in view.regions().filter_map(|config| config.primary) {
        *roles.entry(primary.server).or_default() += 1;
    }
    let mut steps = Vec::new();
    for config in due {
        if steps.len() == most {
            break;
        }
        if let Some(to) = with_room(view, rooms, config, &roles) {
            *roles.entry(to).or_default() += 1;
            steps.push((config.region, RegionRequest::Primary(to)));
        }
    }
    steps
}

/// Whether a region is to be merged, and so follows the primary of its target, which has room.
fn follows(view: &View, rooms: &Rooms, config: &GroupConfig) -> bool {
    let Some(Plan::Merge { into }) = &config.desired.plan else { return false };
    view.region(*into).and_then(|target| target.primary).is_some_and(|primary| !rooms.is_full(primary))
}

/// The member in sync that should serve the region in place of its full primary: one with much room rather than with little, and
/// of these the one with the fewest primary roles.
fn with_room(view: &View, rooms: &Rooms, config: &GroupConfig, roles: &BTreeMap<ServerId, u32>) -> Option<ServerId> {
    let takes_no_writes = config.primary.is_some_and(|primary| rooms.of(primary) == Some(Room::Full));
    let can_serve = |member: &&Member| {
        let has_room = match rooms.of(**member) {
            Some(Room::Bytes(_)) => true,
            // It may fill up again. But the region takes no writes where it is.
            Some(Room::WasFull) => takes_no_writes,
            Some(Room::Full) | None => false,
        };
        has_room && view.is_sound(**member, config.region) && view.departs(config, **member).is_none()
    };
    let rank = |member: &&Member| {
        // It has a copy already.
        (rooms.fit(**member, LEAST_BYTES), roles.get(&member.server).copied().unwrap_or_default(), member.server)
    };
    config.backups.iter().filter(can_serve).min_by_key(rank).map(|member| member.server)
}

#[cfg(test)]
#[path = "relief_tests.rs"]
mod tests;

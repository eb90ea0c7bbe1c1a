//! The reserve: the last free segments, which only what makes room may use. They have space on the device, so they are
//! there when the file system is full. A declared capacity is the same: the file cannot grow either.
//!
//! ```text
//!   free:  | reserve / 3       | reserve * 2 / 3     | the rest
//!          | compactions that  | and deletes         | and writes, and any compaction
//!          | know of it        |                     |
//! ```
//! - A write gets a segment only if the whole reserve is left, a delete if a third of it is. Deletes give room once
//!   they are merged with what they delete.
//! - A compaction that is picked when room is short may use all of it: it gives back about what it takes, but only at
//!   its end. So one is picked that fits ([`Space::plan`]), and leaves some to deletes. One that was begun before brings
//!   medium values into leaves, which takes room for good. It leaves the reserve, or fails and is picked again.
//! - While the file can grow, it grows before the reserve is used.
//!
//! Any thread. No lock is held across I/O.

use super::Volume;
use super::device::Device;
use super::space::{Segment, Space, SpaceState};
use crate::error::{Error, Result};
use leeward_format::RegionId;
use leeward_platform::disk::DeviceRoom;
use leeward_platform::planted::{Bug, planted};
use std::sync::Arc;

/// One segment in this many of the capacity, or without one of those in use, is in the reserve.
const SHARE_OF_CAPACITY: u32 = 6;
const SHARE_IN_USE: u32 = 4;
/// Segments of the reserve, at least and at most.
const LEAST: u32 = 10;
const MOST: u32 = 32;
/// Segments with which a leaf segment is cut, and a part of it merged with one segment and its neighbours.
pub(crate) const LEAST_MERGE: u32 = 6;
/// A device is nearly full if less than one byte in this many is left.
const NEARLY_FULL_SHARE: u64 = 16;
/// Segments that the smallest compaction of L0s takes.
const LEAST_RUN: u32 = 3;

/// Segments of the reserve that deletes leave.
fn least_of(reserve: u32) -> u32 {
    (reserve / 3).max(LEAST_MERGE + LEAST_RUN).min(reserve * 3 / 4)
}

fn nearly_full(room: DeviceRoom) -> bool {
    room.left < room.bytes / NEARLY_FULL_SHARE
}

/// Whether others miss what a file on this device keeps.
pub(super) fn is_nearly_full(device: &Device) -> bool {
    device.file().device_room().is_some_and(nearly_full)
}

/// Segments of the reserve of a volume with `used` segments in use.
pub(super) fn reserve_of(limit: u32, used: u32) -> u32 {
    // In a volume of a few segments, half of them are the manifest's.
    let least = LEAST.min(limit / 3);
    let share = if limit < u32::MAX { limit / SHARE_OF_CAPACITY } else { used / SHARE_IN_USE };
    share.clamp(least, MOST)
}

/// Free segments that an allocation leaves.
#[derive(Clone, Copy)]
pub(super) struct Floors {
    /// The file grows before fewer are left.
    pub(super) wanted: u32,
    /// If the file cannot grow, so many are left.
    pub(super) least: u32,
}

/// Whether what is written at once may take the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfReserve {
    /// All of it: it knows that room is short, or must not wait.
    All,
    /// None: begun while there was room, it may need more than it gives back.
    None,
}

/// What there is for the next compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompactionRoom {
    /// Segments that it may take; `u32::MAX` while the file grows.
    pub(crate) segments: u32,
    /// They are those of the reserve, or little more.
    pub(crate) is_short: bool,
    /// Others miss what the file has given up: see [`SpaceState::is_room_missed`].
    pub(crate) is_room_missed: bool,
}

/// How scarce room is. The scarcer, the more there is to compact, also in regions in which nothing happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scarcity {
    /// There is room.
    #[default]
    None,
    /// Others miss what the file has given up.
    Missed,
    /// Compactions have little more than the reserve.
    Short,
}

/// What a tail is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TailUse {
    /// Any records.
    Writes,
    /// Records that make room: deletes.
    Deletes,
}

/// Segments that a compaction may take until it ends.
#[derive(Debug)]
pub(crate) struct Planned {
    space: Arc<Space>,
    segments: u32,
}

impl Drop for Planned {
    fn drop(&mut self) {
        self.space.state.lock().planned -= self.segments;
    }
}

impl SpaceState {
    fn reserve(&self, limit: u32) -> u32 {
        reserve_of(limit, self.used())
    }

    /// Segments that there are, if that is known: the file cannot grow.
    fn room(&self, limit: u32) -> Option<u32> {
        let of_capacity = (limit < u32::MAX).then(|| limit.saturating_sub(self.used()));
        let of_device = self.refusal.is_some().then_some(self.free.len() as u32);
        of_capacity.into_iter().chain(of_device).min()
    }

    /// Segments that one more compaction may take of these.
    fn room_in_short(&self, room: u32, reserve: u32) -> u32 {
        let of_deletes = if room > reserve { 0 } else { room.saturating_sub(least_of(reserve)).min(reserve / 2) };
        (room - of_deletes).saturating_sub(self.planned)
    }

    /// Whether there is not much more than the reserve.
    fn is_short(&self, limit: u32) -> bool {
        let of_reserve = self.room(limit).is_some_and(|room| room < self.reserve(limit) + LEAST_MERGE);
        of_reserve || self.manifest_short.is_some()
    }

    /// Whether only the reserve is left.
    fn is_in_reserve(&self, limit: u32) -> bool {
        self.room(limit).is_some_and(|room| room <= self.reserve(limit))
    }
}

impl Space {
    /// Takes a free segment for a compaction, or for what must not wait.
    pub(super) fn allocate(self: &Arc<Self>, origin: RegionId) -> Result<Arc<Segment>> {
        let wanted = {
            let state = self.state.lock();
            // A device that is known to be full is not asked again for each segment.
            if state.refusal.is_some() { 0 } else { state.reserve(self.limit) }
        };
        self.allocate_above(origin, Floors { wanted, least: 0 })
    }

    /// Takes a free segment for a tail.
    pub(super) fn allocate_tail(self: &Arc<Self>, origin: RegionId, of: TailUse) -> Result<Arc<Segment>> {
        if let (Some(detail), TailUse::Writes) = (self.why_manifest_is_short(), of) {
            return Err(self.no_space(detail));
        }
        let reserve = self.state.lock().reserve(self.limit);
        let least = match of {
            TailUse::Writes if planted(Bug::SpendReserve) => 0,
            TailUse::Writes => reserve,
            TailUse::Deletes => least_of(reserve),
        };
        let allocated = self.allocate_above(origin, Floors { wanted: reserve, least });
        let allocated = allocated.map_err(|error| self.kept(error));
        if of == TailUse::Writes {
            let refusal = allocated.as_ref().err().filter(|error| matches!(error, Error::NoSpace { .. }));
            self.state.lock().refuses_writes = refusal.map(ToString::to_string);
        }
        allocated
    }

    /// Takes a free segment for a use that can do without: none of the reserve.
    pub(super) fn allocate_spare(self: &Arc<Self>, origin: RegionId) -> Result<Arc<Segment>> {
        let reserve = self.state.lock().reserve(self.limit);
        self.allocate_above(origin, Floors { wanted: reserve, least: reserve }).map_err(|error| self.kept(error))
    }

    /// The error of those who get nothing of the reserve.
    fn kept(&self, error: Error) -> Error {
        let left = self.left();
        match error {
            Error::NoSpace { file, detail } if left > 0 => {
                Error::NoSpace { file, detail: format!("{detail}, and needs the last {left} segments to make room") }
            }
            error => error,
        }
    }

    /// Makes the reserve whole, so that writes may use a tail that was taken for deletes.
    pub(super) fn restore_reserve(&self) -> Result<()> {
        let restored = self.try_restore_reserve().map_err(|error| self.kept(error));
        self.state.lock().refuses_writes = restored.as_ref().err().map(ToString::to_string);
        restored
    }

    fn try_restore_reserve(&self) -> Result<()> {
        let _growing = self.growth.lock();
        loop {
            let reserve = {
                let state = self.state.lock();
                if !state.is_in_reserve(self.limit) {
                    return Ok(());
                }
                state.reserve(self.limit)
            };
            // At a declared capacity this fails at once, or makes room for the file's last segments.
            let grown = self.fill_or_grow(reserve);
            self.note_growth(&grown);
            grown?;
        }
    }

    /// Room for the next compaction of `region`. Of the reserve, what deletes may use is left to them, up to half. If its
    /// last one found no room, the next is picked as if room were short, whatever was estimated.
    pub(super) fn room_for_compaction(&self, region: RegionId) -> CompactionRoom {
        let state = self.state.lock();
        let is_room_missed = state.is_room_missed;
        let Some(room) = state.room(self.limit) else {
            return CompactionRoom { segments: u32::MAX, is_short: state.is_short(self.limit), is_room_missed };
        };
        let reserve = state.reserve(self.limit);
        if !state.is_short(self.limit) && !state.starved.contains(&region) {
            let segments = (room - reserve).saturating_sub(state.planned);
            return CompactionRoom { segments, is_short: false, is_room_missed };
        }
        CompactionRoom { segments: state.room_in_short(room, reserve), is_short: true, is_room_missed }
    }

    /// Room for a compaction that does not fit into what is left besides the reserve.
    pub(super) fn room_with_reserve(&self) -> CompactionRoom {
        let state = self.state.lock();
        let room = state.room(self.limit).map(|room| state.room_in_short(room, state.reserve(self.limit)));
        let segments = room.unwrap_or(u32::MAX);
        CompactionRoom { segments, is_short: true, is_room_missed: state.is_room_missed }
    }

    /// Segments that are free.
    fn left(&self) -> usize {
        self.state.lock().free.len()
    }

    /// Notes that a compaction takes at most about `segments` until it ends.
    pub(super) fn plan(self: &Arc<Self>, segments: u32) -> Planned {
        self.state.lock().planned += segments;
        Planned { space: Arc::clone(self), segments }
    }

    /// Whether compactions are under way.
    pub(super) fn has_planned(&self) -> bool {
        self.state.lock().planned > 0
    }

    pub(super) fn look_at_device(&self) {
        let room = self.device.file().device_room();
        let mut state = self.state.lock();
        state.is_room_missed |= room.is_some_and(nearly_full);
        if std::mem::take(&mut state.is_room_wanted) {
            return;
        }
        // What was refused once is nobody's business any more where there is room again, and would count for ever: a
        // server without a copy asks for nothing.
        let wanted = state.reserve(self.limit) + LEAST_MERGE;
        let on_device = room.is_none_or(|room| room.left >= u64::from(wanted) * self.segment_bytes);
        let in_capacity = self.limit == u32::MAX || self.limit.saturating_sub(state.used()) >= wanted;
        if on_device && in_capacity {
            (state.refusal, state.refuses_writes) = (None, None);
            state.unfinished.clear();
        }
    }

    /// Why there is no room for writes: the last attempt failed, or a compaction that makes room has none.
    pub(super) fn why_full(&self) -> Option<String> {
        if let Some(detail) = self.why_manifest_is_short() {
            return Some(self.no_space(detail).to_string());
        }
        let state = self.state.lock();
        let of_writes = state.refuses_writes.as_ref().filter(|_| state.is_in_reserve(self.limit));
        let of_all = state.refusal.as_ref().filter(|_| state.has_none_free());
        of_writes.or(of_all).or_else(|| state.unfinished.values().next()).cloned()
    }
}

impl Volume {
    /// [`Volume::allocate`] for a tail: the last segments are kept for what makes room.
    ///
    /// # Errors
    /// As [`Volume::allocate`].
    pub(crate) fn allocate_tail(&self, origin: RegionId, of: TailUse) -> Result<Arc<Segment>> {
        if self.space.why_manifest_is_short().is_some() && of == TailUse::Writes {
            self.manifest.lock().look_for_room(self.registry.lock().size(), &self.space)?;
        }
        self.space.allocate_tail(origin, of)
    }

    /// Whether compactions of `region` are short of room.
    pub(crate) fn is_short_of_space(&self, region: RegionId) -> bool {
        self.room_for_compaction(region).is_short
    }

    /// Looks whether others have filled the device, or given it room. A volume that takes segments does so by itself. Where
    /// the regions are idle, or there is none, it must be called every two seconds: what was refused before the last call
    /// is forgotten if nobody has asked since.
    pub fn look_at_device(&self) {
        self.space.look_at_device();
    }

    /// How scarce room is, for compactions of any region.
    pub fn scarcity(&self) -> Scarcity {
        let state = self.space.state.lock();
        match state.is_short(self.space.limit) {
            true => Scarcity::Short,
            false if state.is_room_missed => Scarcity::Missed,
            false => Scarcity::None,
        }
    }

    /// Whether the device was nearly full, or did not let the file grow, and the file has not grown since.
    pub(crate) fn is_room_missed(&self) -> bool {
        self.space.state.lock().is_room_missed
    }

    /// The error of what waits for compactions that have no room.
    pub(crate) fn no_room_to_compact(&self) -> Error {
        let left = self.space.left();
        self.space.no_space(format!("compactions, which make room, find none in the last {left} segments"))
    }

    /// Makes the reserve whole, so that writes may use a tail that was taken for deletes.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; those of growing.
    pub(crate) fn restore_reserve(&self) -> Result<()> {
        self.space.restore_reserve()
    }

    /// Room for the next compaction of `region`.
    pub(crate) fn room_for_compaction(&self, region: RegionId) -> CompactionRoom {
        self.space.room_for_compaction(region)
    }

    /// Room for a compaction that does not fit into [`Volume::room_for_compaction`], although that is not short.
    pub(crate) fn room_with_reserve(&self) -> CompactionRoom {
        self.space.room_with_reserve()
    }

    /// A compaction is about to take at most about so many segments.
    pub(crate) fn plan_room(&self, segments: u32) -> Planned {
        self.space.plan(segments)
    }

    /// Whether compactions under way may still take segments.
    pub(crate) fn has_planned_room(&self) -> bool {
        self.space.has_planned()
    }
}

//! The segments in use, and the space that the file takes. The free list is in memory only.
//!
//! A segment that the manifest names is never free, even when nothing in memory holds it any more. A name is removed
//! only with the proof that the manifest without it is durable ([`Segment::unname`]). Without that proof, because the
//! manifest could not be written, the segment stays in use until the volume is opened again, and its bytes stay
//! unchanged. A failed volume hands out no segments and gives no space back.
//!
//! ```text
//!   in use --dropped--> free --more are than may be--> hollow, its space given back to the device
//!     ^-------taken------|  ^-------space taken again-----|
//! ```
//! What is written at once and needs less than half of a segment takes a [part](leeward_format::part) of one. Parts are
//! halves of halves. A free part and its free other half become one again. So small regions take little space, and a
//! volume without small segments has no parts.

use super::device::{Device, Durable};
use super::parts::FreeParts;
use super::reserve::{Floors, OfReserve, is_nearly_full, reserve_of};
use crate::error::{Error, Result};
use leeward_format::{RegionId, SegmentNo};
use leeward_platform::disk::Content;
use leeward_platform::planted::{Bug, planted};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Segments that the file grows by at a time, at most.
const MOST_GROWTH: u32 = 16;
/// One segment in this many in use may be free, and the file grows by as many.
const SPARE_SHARE: u32 = 64;
/// Segments without space that are found before one allocation is refused.
const MOST_TRIED: u32 = 64;
/// Number of segments that may always be free.
const LEAST_SPARE: u32 = 2;

/// A segment in use. Dropping the last [`Arc`] of it frees the segment, unless the manifest may name it.
#[derive(Debug)]
pub struct Segment {
    no: SegmentNo,
    /// The part that it takes, as a number with the same start. It only shrinks.
    place: AtomicU32,
    origin: RegionId,
    /// Leaf segments in memory that are this segment: several if regions share it.
    readers: AtomicU32,
    /// Number of regions for which the manifest, in memory or on the device, names it.
    names: AtomicU32,
    serial: u64,
    space: Arc<Space>,
}

impl Segment {
    /// Its number on this volume.
    pub fn no(&self) -> SegmentNo {
        self.no
    }
    /// Bytes that it has room for.
    pub fn bytes(&self) -> usize {
        SegmentNo(self.place.load(Ordering::Relaxed)).bytes(self.space.segment_bytes as usize)
    }
    /// The region that it was allocated for. It seeds all checksums of the contents.
    pub fn origin(&self) -> RegionId {
        self.origin
    }
    /// Unique among all uses of segments of the volume since it was opened. A cache uses it as a key, because the
    /// number may be reused for other bytes.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }
    /// Counts one more leaf segment in memory.
    pub(crate) fn begin_reading(&self) {
        self.readers.fetch_add(1, Ordering::Relaxed);
    }
    /// Counts one less; returns whether it was the last.
    pub(crate) fn end_reading(&self) -> bool {
        self.readers.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Segment {
    /// The manifest is about to name it for one more region.
    pub(super) fn name(&self) {
        self.names.fetch_add(1, Ordering::AcqRel);
    }

    /// The manifest no longer names it for one of its regions, and that is durable.
    pub(super) fn unname(&self, _proof: &Durable) {
        let before = self.names.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "segment {} had a name", self.no);
    }

    /// All that will ever be written to it has been: it keeps room for `bytes`, and gives the rest back.
    pub(crate) fn trim(&self, bytes: usize) {
        let before = SegmentNo(self.place.load(Ordering::Relaxed));
        let after = before.trimmed(bytes, self.space.segment_bytes as usize);
        let mut state = self.space.state.lock();
        let mut part = after;
        while part != before
            && let (Some(rest), Some(parent)) = (part.buddy(), part.parent())
        {
            state.give_back(rest);
            part = parent;
        }
        self.place.store(after.0, Ordering::Relaxed);
    }

    pub(super) fn free(&self) {
        self.space.state.lock().give_back(SegmentNo(self.place.load(Ordering::Relaxed)));
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if *self.names.get_mut() == 0 {
            self.free();
        }
    }
}

/// The free list, and the end of the file.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) device: Arc<Device>,
    pub(super) segment_bytes: u64,
    /// Most segments of the file.
    pub(super) limit: u32,
    pub(super) state: Mutex<SpaceState>,
    /// Held while the file grows; never together with `state` across I/O.
    pub(super) growth: Mutex<()>,
}

#[derive(Debug)]
pub(super) struct SpaceState {
    /// Free, with space on the device.
    pub(super) free: BTreeSet<SegmentNo>,
    /// Free, perhaps without space on the device.
    hollow: BTreeSet<SegmentNo>,
    /// Of those from here on it is not known whether they have space: they were free when the volume was opened.
    untried: SegmentNo,
    /// Free parts of segments that are in use in part.
    parts: FreeParts,
    /// The file system cannot take space back.
    keeps_all: bool,
    /// Length of the file, in segments.
    end: u32,
    /// Serial of the next use.
    serial: u64,
    /// Why the file did not grow at the last attempt.
    pub(super) refusal: Option<String>,
    /// The device was nearly full, or did not let the file grow, and the file has not grown since: others miss what it has
    /// given up.
    pub(super) is_room_missed: bool,
    /// Somebody has asked for room since the device was looked at.
    pub(super) is_room_wanted: bool,
    /// Why the last attempt to allocate for writes failed.
    pub(super) refuses_writes: Option<String>,
    /// Segments that compactions under way may still take.
    pub(super) planned: u32,
    /// Why the manifest has no room to name more segments.
    pub(super) manifest_short: Option<String>,
    /// The regions of which a compaction found no room, and why.
    pub(super) unfinished: BTreeMap<RegionId, String>,
    /// The regions whose last compaction found no room.
    pub(super) starved: BTreeSet<RegionId>,
}

impl Space {
    /// The first `reserved` of the `end` segments are never handed out; all others are free.
    pub(super) fn new(device: Arc<Device>, segment_bytes: u64, reserved: u32, end: u32, limit: u32) -> Arc<Space> {
        let (free, hollow) = (BTreeSet::new(), (reserved..end).map(SegmentNo).collect());
        let state = SpaceState {
            free,
            hollow,
            untried: SegmentNo(reserved),
            parts: FreeParts::default(),
            keeps_all: false,
            end,
            serial: 0,
            refusal: None,
            is_room_missed: is_nearly_full(&device),
            is_room_wanted: false,
            refuses_writes: None,
            planned: 0,
            manifest_short: None,
            unfinished: BTreeMap::new(),
            starved: BTreeSet::new(),
        };
        Arc::new(Space { device, segment_bytes, limit, state: Mutex::new(state), growth: Mutex::new(()) })
    }

    /// Takes segment `no`, which the manifest names with this `origin`, when the volume is opened. It needs only `place`,
    /// which has the same start. `None` if that is taken already or does not exist.
    pub(super) fn claim(
        self: &Arc<Self>,
        (no, place): (SegmentNo, SegmentNo),
        origin: RegionId,
    ) -> Option<Arc<Segment>> {
        let mut state = self.state.lock();
        if place.halvings() == 0 {
            return state.hollow.remove(&place).then(|| self.take(&mut state, (no, place), origin));
        }
        if place.bytes(self.segment_bytes as usize) < SegmentNo::LEAST_PART_BYTES {
            return None;
        }
        if state.hollow.remove(&place.whole()) {
            state.parts.add(place.whole());
        }
        state.parts.take(place).then(|| self.take(&mut state, (no, place), origin))
    }

    /// Takes a free part with room for `bytes` for what is written at once, or a whole segment.
    pub(super) fn allocate_part(
        self: &Arc<Self>,
        origin: RegionId,
        bytes: usize,
        of: OfReserve,
    ) -> Result<Arc<Segment>> {
        let halvings = SegmentNo(0).trimmed(bytes, self.segment_bytes as usize).halvings();
        if halvings > 0 {
            self.device.check()?;
            if let Some(part) = self.pop_part(origin, halvings) {
                return self.renewed(part);
            }
        }
        let whole = match of {
            OfReserve::All => self.allocate(origin)?,
            OfReserve::None => self.allocate_spare(origin)?,
        };
        whole.trim(bytes);
        Ok(whole)
    }

    /// A part of at least `bytes` of a segment that is in use already, if it is smaller than `than`.
    pub(super) fn spare_part(self: &Arc<Self>, origin: RegionId, bytes: usize, than: &Segment) -> Option<Arc<Segment>> {
        let halvings = SegmentNo(0).trimmed(bytes, self.segment_bytes as usize).halvings();
        let part = if halvings > than.no().halvings() { self.pop_part(origin, halvings)? } else { return None };
        self.renewed(part).ok()
    }

    /// Takes a free segment for `origin`, so that more are left than `floors` say; grows the file if there are too few.
    pub(super) fn allocate_above(self: &Arc<Self>, origin: RegionId, floors: Floors) -> Result<Arc<Segment>> {
        self.device.check()?;
        if let Some(segment) = self.pop(origin, floors.wanted) {
            return self.renewed(segment);
        }
        let _growing = self.growth.lock();
        loop {
            if let Some(segment) = self.pop(origin, floors.wanted) {
                return self.renewed(segment);
            }
            self.device.check()?;
            // Other threads try to pop a free segment without this lock, and may take the new ones.
            let grown = self.fill_or_grow(floors.wanted);
            self.note_growth(&grown);
            if let Err(refusal) = grown {
                return match self.pop(origin, floors.least) {
                    Some(segment) => self.renewed(segment),
                    None => Err(refusal),
                };
            }
        }
    }

    /// Why the manifest has no room for more segments, if it has none.
    pub(super) fn why_manifest_is_short(&self) -> Option<String> {
        self.state.lock().manifest_short.clone()
    }

    /// Sets why the manifest has no room for more segments.
    pub(super) fn set_manifest_short(&self, why: Option<String>) {
        self.state.lock().manifest_short = why;
    }

    pub(super) fn no_space(&self, detail: String) -> Error {
        Error::NoSpace { file: self.device.file().name().to_owned(), detail }
    }

    /// Bytes in use, reserved segments included; and bytes that the file has space for.
    pub(super) fn usage(&self) -> (u64, u64) {
        let state = self.state.lock();
        let free_parts = state.parts.bytes(self.segment_bytes as usize);
        let used = u64::from(state.used()) * self.segment_bytes - free_parts;
        (used, u64::from(state.end - state.hollow.len() as u32) * self.segment_bytes)
    }

    /// Gives space back to the device if more segments are free than should be. Nothing after a failure. One segment at
    /// a time: while it is being released it is in no list, and seems to be in use.
    pub(super) fn release(&self) {
        let kept = {
            let state = self.state.lock();
            let spare = state.spare() as usize;
            let kept = spare.max(reserve_of(self.limit, state.used()) as usize);
            if state.keeps_all || state.free.len() <= kept + spare {
                return;
            }
            kept
        };
        while self.device.check().is_ok() {
            let excess = |state: &mut SpaceState| if state.free.len() > kept { state.free.pop_last() } else { None };
            let Some(no) = excess(&mut self.state.lock()) else { return };
            let released = self.device.release(self.offset(no), self.segment_bytes);
            let mut state = self.state.lock();
            // A segment that was not released counts as hollow too.
            state.hollow.insert(no);
            state.keeps_all = !matches!(released, Ok(true));
            if let Err(error) = released {
                tracing::warn!(%error, "space is not given back to the device");
            }
            if state.keeps_all {
                return;
            }
        }
    }

    fn offset(&self, no: SegmentNo) -> u64 {
        no.start(self.segment_bytes as usize)
    }

    /// A compaction of `region` found no room, because of this; `None`: one has ended. What a compaction without room
    /// gives back, when it is given up, is free, and still not enough.
    pub(super) fn compacted(&self, region: RegionId, why: Option<String>) {
        let mut state = self.state.lock();
        match why {
            Some(why) => {
                state.is_room_wanted = true;
                state.unfinished.insert(region, why);
                state.starved.insert(region);
            }
            None => {
                state.unfinished.remove(&region);
                state.starved.remove(&region);
            }
        }
    }

    /// Writes of `region` have room.
    pub(super) fn writes_have_room(&self, region: RegionId) {
        self.state.lock().unfinished.remove(&region);
    }

    /// A segment is about to get other contents.
    pub(super) fn renew(&self, segment: &Segment) -> Result<()> {
        self.device.renew(self.offset(segment.no), segment.bytes() as u64, Content::Plain)
    }

    fn renewed(&self, segment: Arc<Segment>) -> Result<Arc<Segment>> {
        if is_nearly_full(&self.device) {
            self.state.lock().is_room_missed = true;
        }
        self.renew(&segment)?;
        Ok(segment)
    }

    /// A free part of a segment that is in use already.
    fn pop_part(self: &Arc<Self>, origin: RegionId, halvings: u32) -> Option<Arc<Segment>> {
        let mut state = self.state.lock();
        let part = state.parts.pop(halvings)?;
        Some(self.take(&mut state, (part, part), origin))
    }

    /// A free segment, if more than `floor` are free.
    fn pop(self: &Arc<Self>, origin: RegionId, floor: u32) -> Option<Arc<Segment>> {
        let mut state = self.state.lock();
        state.is_room_wanted = true;
        let no = if state.free.len() > floor as usize { state.free.pop_first()? } else { return None };
        Some(self.take(&mut state, (no, no), origin))
    }

    fn take(
        self: &Arc<Self>,
        state: &mut SpaceState,
        (no, place): (SegmentNo, SegmentNo),
        origin: RegionId,
    ) -> Arc<Segment> {
        state.serial += 1;
        Arc::new(Segment {
            no,
            place: AtomicU32::new(place.0),
            origin,
            readers: AtomicU32::new(0),
            names: AtomicU32::new(0),
            serial: state.serial,
            space: self.clone(),
        })
    }

    pub(super) fn note_growth(&self, grown: &Result<()>) {
        let mut state = self.state.lock();
        state.refusal = grown.as_ref().err().map(ToString::to_string);
        state.is_room_missed |= grown.is_err();
    }

    /// Makes at least one more segment free, and more if only `floor` or fewer are.
    pub(super) fn fill_or_grow(&self, floor: u32) -> Result<()> {
        if planted(Bug::StayFull)
            && let Some(refusal) = self.state.lock().refusal.clone()
        {
            return Err(self.no_space(refusal));
        }
        let mut refused = Ok(());
        for _ in 0..MOST_TRIED {
            let Some((no, is_untried)) = self.state.lock().pop_hollow() else { break };
            let reserved = self.device.reserve(self.offset(no), self.segment_bytes);
            let mut state = self.state.lock();
            let list = if reserved.is_ok() { &mut state.free } else { &mut state.hollow };
            list.insert(no);
            if !is_untried || !matches!(reserved, Err(Error::NoSpace { .. })) {
                return reserved;
            }
            // It has no space. Another one may have some, also where the device is full.
            state.untried = SegmentNo(no.0 + 1);
            refused = reserved;
        }
        refused.and_then(|()| self.grow(floor))
    }

    fn grow(&self, floor: u32) -> Result<()> {
        let (old, wanted) = {
            let state = self.state.lock();
            (state.end, state.spare().max((floor + 1).saturating_sub(state.free.len() as u32)))
        };
        let room = self.limit.min(SegmentNo::LAST_WHOLE.0).saturating_sub(old);
        if room == 0 {
            let detail =
                format!("the volume is at its capacity of {} bytes", u64::from(self.limit) * self.segment_bytes);
            return Err(self.no_space(detail));
        }
        let by = room.min(wanted).min(MOST_GROWTH);
        let end = match self.extend(old + by) {
            Err(_) if by > 1 => self.extend(old + 1),
            other => other,
        }?;
        let mut state = self.state.lock();
        state.end = end;
        state.is_room_missed = false;
        state.free.extend((old..end).map(SegmentNo));
        Ok(())
    }

    fn extend(&self, end: u32) -> Result<u32> {
        self.device.allocate(u64::from(end) * self.segment_bytes, self.segment_bytes).map(|()| end)
    }
}

impl SpaceState {
    /// A whole segment, or a part of one, is free.
    fn give_back(&mut self, place: SegmentNo) {
        self.free.extend(self.parts.give_back(place));
    }

    /// Whether no segment is free.
    pub(super) fn has_none_free(&self) -> bool {
        self.free.is_empty() && self.hollow.is_empty()
    }

    pub(super) fn used(&self) -> u32 {
        self.end - self.free.len() as u32 - self.hollow.len() as u32
    }

    /// Takes out a free segment that may lack space: one of those of which that is not known, while there are any.
    fn pop_hollow(&mut self) -> Option<(SegmentNo, bool)> {
        let untried = self.hollow.range(self.untried..).next().copied();
        let no = untried.or_else(|| self.hollow.first().copied())?;
        self.hollow.remove(&no);
        Some((no, untried.is_some()))
    }

    /// Number of segments that may be free.
    fn spare(&self) -> u32 {
        (self.used() / SPARE_SHARE).max(LEAST_SPARE)
    }
}

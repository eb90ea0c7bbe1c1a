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

use super::device::{Device, Durable};
use crate::error::{Error, Result};
use leeward_format::{RegionId, SegmentNo};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Segments that the file grows by at a time, at most.
const MOST_GROWTH: u32 = 16;
/// One segment in this many in use may be free, and the file grows by as many.
const SPARE_SHARE: u32 = 64;
/// One segment in this many below a declared capacity is kept for compactions.
const KEPT_SHARE: u32 = 16;
/// Most segments that are kept for compactions.
const MOST_KEPT: u32 = 32;
/// Number of segments that may always be free.
const LEAST_SPARE: u32 = 2;

/// A segment in use. Dropping the last [`Arc`] of it frees the segment, unless the manifest may name it.
#[derive(Debug)]
pub struct Segment {
    no: SegmentNo,
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

    pub(super) fn free(&self) {
        self.space.state.lock().free.insert(self.no);
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
    device: Arc<Device>,
    segment_bytes: u64,
    /// Most segments of the file.
    limit: u32,
    state: Mutex<State>,
    /// Held while the file grows; never together with `state` across I/O.
    growth: Mutex<()>,
}

#[derive(Debug)]
struct State {
    /// Free, with space on the device.
    free: BTreeSet<SegmentNo>,
    /// Free, perhaps without space on the device.
    hollow: BTreeSet<SegmentNo>,
    /// The file system cannot take space back.
    keeps_all: bool,
    /// Length of the file, in segments.
    end: u32,
    /// Serial of the next use.
    serial: u64,
    /// Why the file did not grow at the last attempt.
    refusal: Option<String>,
    /// At the last attempt to allocate for writes, too few segments were left.
    refuses_writes: bool,
    /// Why the manifest has no room to name more segments.
    manifest_short: Option<String>,
}

impl Space {
    /// The first `reserved` of the `end` segments are never handed out; all others are free.
    pub(super) fn new(device: Arc<Device>, segment_bytes: u64, reserved: u32, end: u32, limit: u32) -> Arc<Space> {
        let (free, hollow) = (BTreeSet::new(), (reserved..end).map(SegmentNo).collect());
        let state = State {
            free,
            hollow,
            keeps_all: false,
            end,
            serial: 0,
            refusal: None,
            refuses_writes: false,
            manifest_short: None,
        };
        Arc::new(Space { device, segment_bytes, limit, state: Mutex::new(state), growth: Mutex::new(()) })
    }

    /// Takes segment `no`, which the manifest names with this `origin`, when the volume is opened; `None` if it is
    /// taken already or does not exist.
    pub(super) fn claim(self: &Arc<Self>, no: SegmentNo, origin: RegionId) -> Option<Arc<Segment>> {
        let mut state = self.state.lock();
        state.hollow.remove(&no).then(|| self.take(&mut state, no, origin))
    }

    /// Takes a free segment for `origin`; grows the file if there is none.
    pub(super) fn allocate(self: &Arc<Self>, origin: RegionId) -> Result<Arc<Segment>> {
        self.device.check()?;
        if let Some(segment) = self.pop(origin) {
            return Ok(segment);
        }
        let _growing = self.growth.lock();
        loop {
            if let Some(segment) = self.pop(origin) {
                return Ok(segment);
            }
            self.device.check()?;
            // Other threads try to pop a free segment without this lock, and may take the new ones.
            let grown = self.fill_or_grow();
            self.state.lock().refusal = grown.as_ref().err().map(ToString::to_string);
            grown?;
        }
    }

    /// [`Space::allocate`] for writes: not of the last segments below a declared capacity, which are kept for
    /// compactions, because they make room.
    pub(super) fn allocate_for_writes(self: &Arc<Self>, origin: RegionId) -> Result<Arc<Segment>> {
        if let Some(detail) = self.why_manifest_is_short() {
            return Err(self.no_space(detail));
        }
        let too_few = self.too_few_for_writes();
        self.state.lock().refuses_writes = too_few.is_some();
        match too_few {
            Some(left) => Err(self.kept_for_compactions(left)),
            None => self.allocate(origin),
        }
    }

    /// [`Space::allocate`] for uses that can do without: not of the segments that are kept for compactions.
    pub(super) fn allocate_spare(self: &Arc<Self>, origin: RegionId) -> Result<Arc<Segment>> {
        match self.too_few_for_writes() {
            Some(left) => Err(self.kept_for_compactions(left)),
            None => self.allocate(origin),
        }
    }

    /// Whether only the last segments below a declared capacity are left, or the manifest has no room to name more.
    pub(super) fn is_short(&self) -> bool {
        self.too_few_for_writes().is_some() || self.why_manifest_is_short().is_some()
    }

    /// Why the manifest has no room for more segments, if it has none.
    pub(super) fn why_manifest_is_short(&self) -> Option<String> {
        self.state.lock().manifest_short.clone()
    }

    /// Sets why the manifest has no room for more segments.
    pub(super) fn set_manifest_short(&self, why: Option<String>) {
        self.state.lock().manifest_short = why;
    }

    fn no_space(&self, detail: String) -> Error {
        Error::NoSpace { file: self.device.file().name().to_owned(), detail }
    }

    /// Segments left below a declared capacity; `None` without one.
    pub(super) fn left(&self) -> Option<u32> {
        (self.limit < u32::MAX).then(|| self.limit.saturating_sub(self.state.lock().used()))
    }

    /// The segments left, if they are too few for writes.
    fn too_few_for_writes(&self) -> Option<u32> {
        self.left().filter(|left| *left <= (self.limit / KEPT_SHARE).min(MOST_KEPT))
    }

    /// The error of writes when only the last `left` segments are left.
    fn kept_for_compactions(&self, left: u32) -> Error {
        let capacity = u64::from(self.limit) * self.segment_bytes;
        self.no_space(format!(
            "the volume has {left} segments left of its capacity of {capacity} bytes, which it needs to make room"
        ))
    }

    /// Segments in use, reserved ones included; and segments that the file has space for.
    pub(super) fn usage(&self) -> (u32, u32) {
        let state = self.state.lock();
        (state.used(), state.end - state.hollow.len() as u32)
    }

    /// Gives space back to the device if more segments are free than should be. Nothing after a failure. One segment at
    /// a time: while it is being released it is in no list, and seems to be in use.
    pub(super) fn release(&self) {
        let excess = {
            let state = self.state.lock();
            let (free, spare) = (state.free.len(), state.spare() as usize);
            if state.keeps_all || free <= 2 * spare { 0 } else { free - spare }
        };
        for _ in 0..excess {
            if self.device.check().is_err() {
                return;
            }
            let Some(no) = self.state.lock().free.pop_last() else { return };
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
        u64::from(no.0) * self.segment_bytes
    }

    /// Why there is no room for writes: no segment is free and the file did not grow, or too few are left.
    pub(super) fn why_full(&self) -> Option<String> {
        if let Some(detail) = self.why_manifest_is_short() {
            return Some(self.no_space(detail).to_string());
        }
        let refuses_writes = self.state.lock().refuses_writes;
        if refuses_writes && let Some(left) = self.too_few_for_writes() {
            return Some(self.kept_for_compactions(left).to_string());
        }
        let state = self.state.lock();
        state.refusal.clone().filter(|_| state.free.is_empty() && state.hollow.is_empty())
    }

    fn pop(self: &Arc<Self>, origin: RegionId) -> Option<Arc<Segment>> {
        let mut state = self.state.lock();
        let no = state.free.pop_first()?;
        Some(self.take(&mut state, no, origin))
    }

    fn take(self: &Arc<Self>, state: &mut State, no: SegmentNo, origin: RegionId) -> Arc<Segment> {
        state.serial += 1;
        Arc::new(Segment {
            no,
            origin,
            readers: AtomicU32::new(0),
            names: AtomicU32::new(0),
            serial: state.serial,
            space: self.clone(),
        })
    }

    fn fill_or_grow(&self) -> Result<()> {
        let hollow = self.state.lock().hollow.pop_first();
        let Some(no) = hollow else { return self.grow() };
        let reserved = self.device.reserve(self.offset(no), self.segment_bytes);
        let mut state = self.state.lock();
        let list = if reserved.is_ok() { &mut state.free } else { &mut state.hollow };
        list.insert(no);
        reserved
    }

    fn grow(&self) -> Result<()> {
        let (old, spare) = {
            let state = self.state.lock();
            (state.end, state.spare())
        };
        let room = self.limit.saturating_sub(old);
        if room == 0 {
            let detail =
                format!("the volume is at its capacity of {} bytes", u64::from(self.limit) * self.segment_bytes);
            return Err(self.no_space(detail));
        }
        let by = room.min(spare).min(MOST_GROWTH);
        let end = match self.extend(old + by) {
            Err(_) if by > 1 => self.extend(old + 1),
            other => other,
        }?;
        let mut state = self.state.lock();
        state.end = end;
        state.free.extend((old..end).map(SegmentNo));
        Ok(())
    }

    fn extend(&self, end: u32) -> Result<u32> {
        self.device.allocate(u64::from(end) * self.segment_bytes).map(|()| end)
    }
}

impl State {
    fn used(&self) -> u32 {
        self.end - self.free.len() as u32 - self.hollow.len() as u32
    }

    /// Number of segments that may be free.
    fn spare(&self) -> u32 {
        (self.used() / SPARE_SHARE).max(LEAST_SPARE)
    }
}

//! Which segments are in use, and growth of the file. The free list lives in memory only.

use super::device::Device;
use crate::error::{Error, Result};
use leeward_format::SegmentNo;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Segments that the file grows by at once.
const GROWTH_SEGMENTS: u32 = 16;

/// A segment in use. Dropping the last [`Arc`] of it frees the segment.
#[derive(Debug)]
pub struct Segment {
    no: SegmentNo,
    serial: u64,
    space: Arc<Space>,
}

impl Segment {
    /// Its number on this volume.
    pub fn no(&self) -> SegmentNo {
        self.no
    }
    /// Unique among all uses of segments of the volume since it was opened: what a cache may use as a key, where the
    /// number may come back with other bytes.
    pub fn serial(&self) -> u64 {
        self.serial
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.space.state.lock().free.insert(self.no);
    }
}

/// The free list, and the end of the file.
#[derive(Debug)]
pub(super) struct Space {
    device: Arc<Device>,
    segment_bytes: u64,
    /// Segments that the file may have at most.
    limit: u32,
    state: Mutex<State>,
    /// Held while the file grows; never together with `state` across I/O.
    growth: Mutex<()>,
}

#[derive(Debug)]
struct State {
    free: BTreeSet<SegmentNo>,
    /// Segments that the file has.
    end: u32,
    /// Serial of the next use.
    serial: u64,
    /// Why the file did not grow when it last should have.
    refusal: Option<String>,
}

impl Space {
    /// The first `reserved` of the `end` segments are never handed out; all others are free.
    pub(super) fn new(device: Arc<Device>, segment_bytes: u64, reserved: u32, end: u32, limit: u32) -> Arc<Space> {
        let free = (reserved..end).map(SegmentNo).collect();
        let state = Mutex::new(State { free, end, serial: 0, refusal: None });
        Arc::new(Space { device, segment_bytes, limit, state, growth: Mutex::new(()) })
    }

    /// Takes `no`, which the manifest names; `None` if it is taken or there is no such segment.
    pub(super) fn claim(self: &Arc<Self>, no: SegmentNo) -> Option<Arc<Segment>> {
        let mut state = self.state.lock();
        state.free.remove(&no).then(|| self.take(&mut state, no))
    }

    /// Takes a free segment; grows the file if there is none.
    pub(super) fn allocate(self: &Arc<Self>) -> Result<Arc<Segment>> {
        if let Some(segment) = self.pop() {
            return Ok(segment);
        }
        let _growing = self.growth.lock();
        if let Some(segment) = self.pop() {
            return Ok(segment);
        }
        self.device.check()?;
        let grown = self.grow();
        self.state.lock().refusal = grown.as_ref().err().map(ToString::to_string);
        grown?;
        Ok(self.pop().expect("nobody takes segments of the file's new end without the growth lock"))
    }

    /// Segments in use, those reserved included, and segments of the file.
    pub(super) fn usage(&self) -> (u32, u32) {
        let state = self.state.lock();
        (state.end - state.free.len() as u32, state.end)
    }

    /// Why there is no room: no segment is free, and the file did not grow.
    pub(super) fn why_full(&self) -> Option<String> {
        let state = self.state.lock();
        state.refusal.clone().filter(|_| state.free.is_empty())
    }

    fn pop(self: &Arc<Self>) -> Option<Arc<Segment>> {
        let mut state = self.state.lock();
        let no = state.free.pop_first()?;
        Some(self.take(&mut state, no))
    }

    fn take(self: &Arc<Self>, state: &mut State, no: SegmentNo) -> Arc<Segment> {
        state.serial += 1;
        Arc::new(Segment { no, serial: state.serial, space: self.clone() })
    }

    fn grow(&self) -> Result<()> {
        let old = self.state.lock().end;
        let room = self.limit.saturating_sub(old);
        if room == 0 {
            let detail =
                format!("the volume is at its capacity of {} bytes", u64::from(self.limit) * self.segment_bytes);
            return Err(Error::NoSpace { file: self.device.file().name().to_owned(), detail });
        }
        let by = room.min(GROWTH_SEGMENTS);
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

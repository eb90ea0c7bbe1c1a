//! Reads and writes of segments on other threads. Dropping one waits for its end.

use super::{Device, Segment, Volume};
use crate::error::Result;
use bytes::Bytes;
use leeward_format::SegmentNo;
use leeward_platform::Block;
use leeward_platform::disk::Pending;
use std::fmt;
use std::sync::Arc;

/// A write that was begun.
pub(crate) struct Writing {
    /// Declared, and so dropped, before the segment, which must not be reused while the write is pending.
    pending: Pending,
    device: Arc<Device>,
    offset: u64,
    _segment: Arc<Segment>,
}

impl Writing {
    /// Waits for its end.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub(crate) fn wait(self) -> Result<()> {
        let Writing { pending, device, offset, _segment } = self;
        pending.wait().map(drop).map_err(|error| device.not_written(offset, error))
    }
}

/// A read that was begun.
pub(crate) struct Reading {
    pending: Pending,
    device: Arc<Device>,
    offset: u64,
}

impl Reading {
    /// Waits for its end.
    ///
    /// # Errors
    /// [`crate::Error::Io`].
    pub(crate) fn wait(self) -> Result<Block> {
        self.pending.wait().map_err(|error| self.device.error("read", self.offset, error))
    }
}

impl Volume {
    /// Begins to write a segment from its start; direct if `bytes` are a multiple of 4096.
    ///
    /// # Errors
    /// As [`Volume::write`], if the volume refuses writes already.
    pub(crate) fn begin_write(&self, segment: &Arc<Segment>, bytes: Bytes) -> Result<Writing> {
        let offset = self.place(segment.no(), 0, bytes.len());
        let (device, segment) = (Arc::clone(&self.device), Arc::clone(segment));
        Ok(Writing { pending: device.begin_write(offset, bytes)?, device, offset, _segment: segment })
    }

    /// Begins to read `bytes` bytes from `offset` of a segment, which the caller, or its region, holds until the end.
    pub(crate) fn begin_read(&self, no: SegmentNo, offset: u32, bytes: usize) -> Reading {
        let (offset, device) = (self.place(no, offset, bytes), Arc::clone(&self.device));
        Reading { pending: device.begin_read(offset, self.memory().pool().take(bytes)), device, offset }
    }
}

impl fmt::Debug for Writing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writing(at {})", self.offset)
    }
}

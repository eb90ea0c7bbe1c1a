//! The bytes of a volume's segments: written, appended to, and read.
//!
//! A segment that several regions hold is complete: only bytes that it should hold already are written to it again.
//!
//! Any thread may call anything.

use super::{Segment, Volume};
use crate::error::Result;
use crate::memory::Purpose;
use leeward_format::{SegmentId, SegmentNo};
use leeward_platform::Appender;
use leeward_platform::disk::{DIRECT_ALIGN, Read};
use std::sync::Arc;

/// Source of the ids of segments that compactions write.
pub(crate) type SegmentIds = Arc<dyn Fn() -> Result<SegmentId> + Send + Sync>;

impl Volume {
    /// Writes `bytes` at `offset` of a segment, direct where both are multiples of 4096.
    ///
    /// # Errors
    /// A failed write makes the volume refuse all later ones, except by [`crate::Error::NoSpace`].
    pub fn write(&self, no: SegmentNo, offset: u32, bytes: &[u8]) -> Result<()> {
        debug_assert!(!self.is_shared(no), "segment {no} is complete");
        self.write_again(no, offset, bytes)
    }

    /// [`Volume::write`] of bytes that the segment should hold already.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub(crate) fn write_again(&self, no: SegmentNo, offset: u32, bytes: &[u8]) -> Result<()> {
        self.device.write(self.place(no, offset, bytes.len()), bytes)
    }

    /// Writes to the page cache: survives the process, but power loss only after [`Volume::sync`].
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub(crate) fn write_buffered(&self, no: SegmentNo, offset: u32, bytes: &[u8]) -> Result<()> {
        debug_assert!(!self.is_shared(no), "segment {no} is complete");
        self.device.write_buffered(self.place(no, offset, bytes.len()), bytes)
    }

    /// [`Volume::write_buffered`], and `padding` bytes behind `bytes`: see [`leeward_platform::File::write_padded_at`].
    pub(crate) fn write_padded(&self, no: SegmentNo, offset: u32, bytes: &[u8], padding: usize) -> Result<()> {
        debug_assert!(!self.is_shared(no), "segment {no} is complete");
        self.device.write_padded(self.place(no, offset, bytes.len() + padding), bytes, padding)
    }

    /// What the segment holds is not needed any more, and is undefined until it is written.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub(crate) fn renew(&self, segment: &Segment) -> Result<()> {
        debug_assert!(!self.is_shared(segment.no()), "segment {} is complete", segment.no());
        self.space.renew(segment)
    }

    /// Memory to append a segment's bytes to: its page cache if the disk can map it, otherwise the heap.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub(crate) fn appender(&self, segment: &Segment) -> Result<Appender> {
        let offset = self.place(segment.no(), 0, segment.bytes());
        let mapped = self.device.map(offset, self.segment_bytes)?;
        Ok(mapped.unwrap_or_else(|| Appender::in_memory(self.segment_bytes)))
    }

    /// Makes the next `bytes` of an appender ready; there must be room. This may change the memory that the appender
    /// takes.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub(crate) fn reserve(&self, appender: &mut Appender, bytes: usize) -> Result<()> {
        let reserved = match self.memory.is_short(Purpose::Tails) {
            false => appender.reserve(bytes),
            true => {
                appender.shed();
                appender.make_ready(bytes, DIRECT_ALIGN)
            }
        };
        reserved.map_err(|error| self.device.not_written(0, error))
    }

    /// Publishes appended bytes to readers.
    ///
    /// # Errors
    /// As [`Volume::write`].
    #[inline]
    pub(crate) fn publish(&self, appender: &mut Appender) -> Result<()> {
        appender.publish().map_err(|error| self.device.failed("write", 0, error))
    }

    /// Fills `buffer` from `offset` of a segment.
    ///
    /// # Errors
    /// [`crate::Error::Io`].
    pub fn read(&self, no: SegmentNo, offset: u32, buffer: &mut [u8]) -> Result<()> {
        self.device.read(self.place(no, offset, buffer.len()), buffer)
    }

    /// Fills each buffer from an offset of a segment, several at a time.
    ///
    /// # Errors
    /// [`crate::Error::Io`], of any that failed.
    pub(crate) fn read_many(&self, reads: &mut [((SegmentNo, u32), impl AsMut<[u8]>)]) -> Result<()> {
        let mut reads: Vec<Read<'_>> = reads
            .iter_mut()
            .map(|((no, offset), buffer)| {
                let buffer = buffer.as_mut();
                Read { offset: self.place(*no, *offset, buffer.len()), buffer }
            })
            .collect();
        self.device.read_many(&mut reads)
    }

    /// Whether several regions hold a segment.
    pub(crate) fn is_shared(&self, no: SegmentNo) -> bool {
        self.registry.lock().holders(no).nth(1).is_some()
    }

    /// Offset in the volume of `bytes` bytes of a segment.
    pub(super) fn place(&self, no: SegmentNo, offset: u32, bytes: usize) -> u64 {
        assert!(offset as usize + bytes <= self.bytes_of(no), "an access ends in the segment it begins in");
        no.start(self.segment_bytes) + u64::from(offset)
    }
}

//! Appending to a range of a file by plain stores: the open end of a log.
//!
//! [`File::map`] answers an [`Appender`] whose memory *is* the file's page cache: what was published survives the death of
//! the process without a system call, and after [`File::sync`] a power loss as well. Where that cannot be had,
//! [`Appender::in_memory`] has the same interface and leaves the writing to its owner.
//!
//! **What is mapped.** It is mapped because a system call a batch costs too much: records of 100 bytes, put one by one, take 1.8
//! us each to a mapped tail and 4.8 us where each is written with `pwrite`, 2.7 and 3.0 us where 16 are put at once. The price is
//! that a load or a store may need the file system, and has no result that could be an error. So:
//!
//! - *A store without a page.* Bytes are handed out only after [`Appender::reserve`] has written zeroes over them through the
//!   page cache, which takes the space and reads nothing from the device, and has made the pages present; both answer errors like
//!   any other write. Only file systems that write a page back to the blocks it has are mapped at all.
//! - *A store after a writeback.* A page that was written back is clean. The kernel asks the file system before it is stored to
//!   again, which refuses once it has shut itself down; or it has dropped the page, and reads it from the device, which
//!   may fail. Nothing that is done before the store excludes this, for the writeback may come in between.
//! - *A load* of a page that was dropped reads it from the device. That may fail, or, where the writeback had failed, find
//!   what stood there before.
//!
//! What fails is a bus error. Where the owner of the process has asked for it ([`catch_bus_errors`]), that is an error of
//! the next [`Appender::publish`], before anything of it is acknowledged; readers find zeroes. So a load is never
//! trusted to find what was stored: before a reader uses bytes of a mapped buffer as a record, it checks the CRC.
//!
//! One thread appends; any number read the [`AppendBuffer`] beside it.
//!
//! [`File::map`]: super::File::map
//! [`File::sync`]: super::File::sync

#[expect(unsafe_code, reason = "a signal's handler, and pages that are put in the place of others")]
mod bus;
#[expect(unsafe_code, reason = "memory that is appended to and read at the same time, on the heap or mapped")]
mod memory;
#[cfg(test)]
mod tests;

pub use bus::catch_bus_errors;
pub use memory::AppendBuffer;

use super::real::RealRange;
use super::sim::SimRange;
use memory::Spare;
use std::io;
use std::sync::Arc;

/// Bytes that are made ready at once, where memory is not short: a multiple of 4096.
const READY_BYTES: usize = 64 << 10;

/// The one writer of an [`AppendBuffer`].
#[derive(Debug)]
pub struct Appender {
    spare: Spare,
    /// End of what was appended; published up to `filled` of the buffer.
    end: usize,
    /// End of what can be appended without an error.
    ready: usize,
    range: Range,
}

/// What stands behind the memory.
#[derive(Debug)]
enum Range {
    Nothing,
    Real(RealRange),
    Sim(SimRange),
}

impl Appender {
    /// Memory with nothing behind it, `capacity` bytes.
    pub fn in_memory(capacity: usize) -> Appender {
        Appender::new(Spare::heap(capacity), capacity, Range::Nothing)
    }

    pub(super) fn real(range: RealRange, capacity: usize) -> io::Result<Appender> {
        Ok(Appender::new(Spare::map(range.file(), range.offset(), capacity)?, 0, Range::Real(range)))
    }

    pub(super) fn sim(range: SimRange, capacity: usize) -> Appender {
        Appender::new(Spare::heap(capacity), 0, Range::Sim(range))
    }

    fn new(spare: Spare, ready: usize, range: Range) -> Appender {
        Appender { spare, end: 0, ready, range }
    }

    /// What readers share.
    pub fn buffer(&self) -> &Arc<AppendBuffer> {
        self.spare.buffer()
    }

    /// Whether published bytes are in the page cache.
    pub fn is_mapped(&self) -> bool {
        !matches!(self.range, Range::Nothing)
    }

    /// Bytes that still fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.buffer().capacity() - self.end
    }

    /// Makes sure that the next `bytes` can be appended. There must be room.
    ///
    /// # Errors
    /// Those of writing to the file.
    #[inline]
    pub fn reserve(&mut self, bytes: usize) -> io::Result<()> {
        if self.is_ready(bytes) { Ok(()) } else { self.make_ready(bytes, READY_BYTES) }
    }

    /// Whether the next `bytes` can be appended without an error. There must be room.
    #[inline]
    pub fn is_ready(&self, bytes: usize) -> bool {
        assert!(bytes <= self.room(), "{bytes} bytes where {} have room", self.room());
        self.end + bytes <= self.ready
    }

    /// [`Appender::reserve`], with as little beyond as makes a multiple of `window`, itself a multiple of 4096 and at most
    /// 64 KiB. Each call costs some system calls; what is ready takes memory.
    ///
    /// # Errors
    /// Those of writing to the file.
    #[cold]
    pub fn make_ready(&mut self, bytes: usize, window: usize) -> io::Result<()> {
        let end = (self.end + bytes).next_multiple_of(window).min(self.buffer().capacity());
        while self.ready < end {
            let bytes = (end - self.ready).min(READY_BYTES);
            match &self.range {
                Range::Nothing => {}
                Range::Real(range) => {
                    range.fill(self.ready, bytes)?;
                    self.spare.populate(self.ready, bytes)?;
                }
                Range::Sim(range) => range.make_ready()?,
            }
            self.ready += bytes;
        }
        Ok(())
    }

    /// Bytes of memory that it holds: of a mapped one, those of pages that are present.
    pub fn resident_bytes(&self) -> usize {
        self.ready - self.buffer().detached()
    }

    /// Lets go of the filled pages, if the buffer is mapped. They stay in the page cache, and the next read of a page makes it
    /// present again.
    pub fn shed(&self) {
        self.buffer().detach();
    }

    /// Appends `bytes` bytes, which were reserved, as `fill` writes them; returns their offset. No reader sees them before
    /// they are published.
    #[inline]
    pub fn append(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8])) -> usize {
        let at = self.end;
        assert!(at + bytes <= self.ready, "{bytes} bytes at {at} were not reserved");
        fill(self.spare.bytes_mut(at, bytes));
        self.end = at + bytes;
        at
    }

    /// Shows what was appended to readers; mapped, it survives the process from now on.
    ///
    /// # Errors
    /// A page of a mapped buffer was lost: see [`catch_bus_errors`]. On a simulated disk, where the process may die here, with
    /// a part of it written.
    #[inline]
    pub fn publish(&mut self) -> io::Result<()> {
        let at = self.spare.buffer().filled();
        if at == self.end {
            return Ok(());
        }
        if !self.buffer().is_sound() {
            return Err(io::Error::other("a mapped page is lost: the device or the file system has failed"));
        }
        if let Range::Sim(range) = &self.range {
            range.write(at, self.spare.bytes_mut(at, self.end - at))?;
        }
        self.spare.publish(self.end);
        Ok(())
    }
}

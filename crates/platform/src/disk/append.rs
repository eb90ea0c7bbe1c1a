//! Appending to a range of a file by plain stores: the open end of a log.
//!
//! [`File::map`] answers an [`Appender`] whose memory *is* the file's page cache: what was published survives the death of
//! the process without a system call, and after [`File::sync`] a power loss as well. Where that cannot be had,
//! [`Appender::in_memory`] has the same interface and leaves the writing to its owner.
//!
//! **No signals.** A store to a mapped page can only fail where the kernel has to find a page or a block for it. So
//! bytes are handed out only after [`Appender::reserve`] has written zeroes over them through the page cache, which takes
//! the space and reads nothing from the device, and has made the pages present; both answer errors like any other write.
//! Only file systems that write a page back to the blocks it has are mapped at all.
//!
//! One thread appends; any number read the [`AppendBuffer`] beside it.
//!
//! [`File::map`]: super::File::map
//! [`File::sync`]: super::File::sync

#[expect(unsafe_code, reason = "memory that is appended to and read at the same time, on the heap or mapped")]
mod memory;
#[cfg(test)]
#[path = "append_tests.rs"]
mod tests;

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

    /// Of one that is mapped, lets go of the pages that are filled: they stay in the page cache, and whoever reads them makes
    /// them present again.
    pub fn shed(&self) {
        self.buffer().detach();
    }

    /// Appends `bytes` bytes, which were reserved, as `fill` writes them; answers their offset. Nobody sees them before
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
    /// Only on a simulated disk, where the process may die here, with a part of it written.
    #[inline]
    pub fn publish(&mut self) -> io::Result<()> {
        let at = self.spare.buffer().filled();
        if at == self.end {
            return Ok(());
        }
        if let Range::Sim(range) = &self.range {
            range.write(at, self.spare.bytes_mut(at, self.end - at))?;
        }
        self.spare.publish(self.end);
        Ok(())
    }
}

//! Appending to a range of a file by plain stores: the open end of a log.
//!
//! [`File::map`] returns an [`Appender`] whose memory *is* the file's page cache: published bytes survive the death of
//! the process without a system call, and after [`File::sync`] a power loss as well. Where a file cannot be mapped,
//! [`Appender::in_memory`] has the same interface and leaves the writing to its owner. [`Appender::through`] keeps what
//! was appended on the heap, and appends something else to another one: the encrypted bytes.
//!
//! **Mapping.** Tails are mapped because a system call per batch costs too much. Records of 100 bytes, put one by one,
//! take 1.8 us each in a mapped tail, and 4.8 us each with `pwrite`; with 16 put at once, 2.7 and 3.0 us. The price: a
//! load or a store may need the file system, and neither can return an error. So:
//!
//! - *A store to a missing page.* [`Appender::reserve`] first writes zeroes through the page cache, which allocates the
//!   space and reads nothing from the device. Then it makes the pages present. Both steps return errors like any other
//!   write. Only file systems that write a page back to the blocks it has are mapped at all.
//! - *A store after a writeback.* A page that was written back is clean. At the next store the kernel asks the file
//!   system, which refuses once it has shut itself down. Or the kernel has dropped the page and reads it from the
//!   device, which may fail. No check before the store excludes this, because the writeback may come in between.
//! - *A load* of a dropped page reads it from the device. The read may fail. If the writeback had failed, it returns
//!   the older contents.
//!
//! Such a failure is a bus error. If the owner of the process has called [`catch_bus_errors`], the failure is an error
//! of the next [`Appender::publish`], before anything of it is acknowledged; readers find zeroes. So no load is
//! trusted: before a reader uses bytes of a mapped buffer as a record, it checks the CRC.
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
use std::fmt::Debug;
use std::io;
use std::sync::Arc;

/// Bytes made ready at a time, unless memory is short: a multiple of 4096. One in 65 writes of 250 bytes waits for
/// that: 25 us alone, some 40 us beside reads of the device. With 64 KiB a fourth of these writes wait, twice as long. A
/// thread that makes them ready ahead of the writer takes a processor from it for longer than that.
const READY_BYTES: usize = 16 << 10;

/// The one writer of an [`AppendBuffer`].
#[derive(Debug)]
pub struct Appender {
    spare: Spare,
    /// End of the appended bytes. `filled` of the buffer is the end of the published ones.
    end: usize,
    /// End of the bytes that can be appended without an error.
    ready: usize,
    range: Range,
}

/// What backs the memory.
#[derive(Debug)]
enum Range {
    Nothing,
    Real(RealRange),
    Sim(SimRange),
    Through(Box<Appender>, Box<dyn Transform>),
}

/// Makes the bytes of a file of those that were appended: encrypts them.
pub trait Transform: Send + Sync + Debug {
    /// Makes `out` of `bytes`, of the same length, which follow those of the last call.
    fn apply(&mut self, bytes: &[u8], out: &mut [u8]);
}

impl Appender {
    /// Memory with nothing behind it, `capacity` bytes.
    pub fn in_memory(capacity: usize) -> Appender {
        Appender::new(Spare::heap(capacity), capacity, Range::Nothing)
    }

    /// Memory on the heap, of which `inner` gets what `transform` makes of the bytes. No other bytes reach `inner`. They
    /// are in memory twice.
    pub fn through(inner: Appender, transform: Box<dyn Transform>) -> Appender {
        let capacity = inner.buffer().capacity();
        let mut appender = Appender::new(Spare::heap(capacity), 0, Range::Through(Box::new(inner), transform));
        if let Range::Through(inner, _) = &appender.range {
            appender.ready = inner.ready;
        }
        appender
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

    /// The buffer, for readers.
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

    /// As [`Appender::reserve`], but makes ready only up to a multiple of `window`, which is a multiple of 4096 and at
    /// most 16 KiB. Each call costs some system calls; bytes made ready take memory.
    ///
    /// # Errors
    /// Those of writing to the file.
    #[cold]
    pub fn make_ready(&mut self, bytes: usize, window: usize) -> io::Result<()> {
        if self.is_ready(bytes) {
            return Ok(());
        }
        let end = (self.end + bytes).next_multiple_of(window).min(self.buffer().capacity());
        while self.ready < end {
            let bytes = (end - self.ready).min(READY_BYTES);
            match &mut self.range {
                Range::Nothing => {}
                Range::Through(inner, _) => inner.make_ready(self.ready + bytes - inner.end, window)?,
                Range::Real(range) => range.make_ready(self.spare.buffer(), self.ready, bytes)?,
                Range::Sim(range) => range.make_ready()?,
            }
            self.ready += bytes;
        }
        Ok(())
    }

    /// Bytes of memory that it holds; for a mapped buffer, those of present pages.
    pub fn resident_bytes(&self) -> usize {
        let behind = if let Range::Through(inner, _) = &self.range { inner.resident_bytes() } else { 0 };
        self.ready - self.buffer().detached() + behind
    }

    /// Releases the filled pages, if the buffer is mapped. They stay in the page cache, and the next read of a page
    /// makes it present again.
    pub fn shed(&self) {
        match &self.range {
            Range::Through(inner, _) => inner.shed(),
            _ => self.buffer().detach(),
        }
    }

    /// Appends `bytes` reserved bytes, which `fill` writes; returns their offset. No reader sees them before
    /// [`Appender::publish`].
    #[inline]
    pub fn append(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8])) -> usize {
        let at = self.end;
        assert!(at + bytes <= self.ready, "{bytes} bytes at {at} were not reserved");
        fill(self.spare.bytes_mut(at, bytes));
        self.end = at + bytes;
        at
    }

    /// Publishes the appended bytes to readers. In a mapped buffer they survive the process from now on.
    ///
    /// # Errors
    /// A page of a mapped buffer was lost: see [`catch_bus_errors`]. On a simulated disk also where the process dies
    /// here, with a part of the bytes written.
    #[inline]
    pub fn publish(&mut self) -> io::Result<()> {
        let at = self.spare.buffer().filled();
        if at == self.end {
            return Ok(());
        }
        if !self.buffer().is_sound() {
            return Err(io::Error::other("a mapped page is lost: the device or the file system has failed"));
        }
        match &mut self.range {
            Range::Sim(range) => range.write(at, self.spare.bytes_mut(at, self.end - at))?,
            Range::Through(inner, transform) => {
                // After a failure what was transformed is not transformed again.
                let (from, bytes) = (inner.end, self.end - inner.end);
                let new = self.spare.bytes_mut(from, bytes);
                inner.append(bytes, |out| transform.apply(new, out));
                inner.publish()?;
            }
            Range::Nothing | Range::Real(_) => {}
        }
        self.spare.publish(self.end);
        Ok(())
    }
}

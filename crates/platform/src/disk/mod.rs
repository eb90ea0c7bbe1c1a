//! Files as a volume needs them: positioned reads and writes, growth, and a sync that means durable.
//!
//! Two implementations: [`RealDisk`], a directory, with direct I/O where the file system allows it; and [`SimDisk`],
//! memory that loses power and processes on command. A write, direct or buffered, is visible to every read that starts
//! after it returned. It survives the death of the process, and after [`File::sync`] a power loss as well.

mod append;
mod background;
mod direct;
mod extents;
pub mod private;
mod real;
mod ring;
mod room;
mod sim;
mod sim_file;

pub use append::{AppendBuffer, Appender, Transform, catch_bus_errors};
pub use background::Pending;
pub use real::RealDisk;
pub use room::write_in_place;
pub use sim::{Fault, FaultPlan, SECTOR_BYTES, SimDisk};

use crate::Block;
use bytes::Bytes;
use rustix::io::Errno;
use std::cell::RefCell;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;

/// Alignment, in bytes, of offset and length for direct I/O.
pub const DIRECT_ALIGN: usize = 4096;

/// Calls `with` with `bytes` bytes of scratch memory of this thread, aligned for direct I/O, for data that is not kept.
/// The contents are arbitrary. A call within `with` panics.
pub fn with_scratch<T>(bytes: usize, with: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|buffer| with(aligned(buffer, bytes)))
}

/// `bytes` bytes of `buffer` that are aligned for direct I/O; it grows if it must.
fn aligned(buffer: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if buffer.len() < bytes + DIRECT_ALIGN {
        *buffer = vec![0; bytes + DIRECT_ALIGN];
    }
    let start = buffer.as_ptr().addr().next_multiple_of(DIRECT_ALIGN) - buffer.as_ptr().addr();
    &mut buffer[start..start + bytes]
}

/// Whether a read failed because the device has lost what is there. Linux reports such a sector by `EIO`, `ENODATA` or
/// `EILSEQ`, as the driver names it.
pub fn is_unreadable(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::IO | Errno::NODATA | Errno::ILSEQ))
}

/// Whether a file could not take bytes because there is no room for them: on the device (`ENOSPC`), in a quota
/// (`EDQUOT`), or under the limit on the size of files (`EFBIG`). Nothing that was written before is concerned, unless a
/// sync says so.
pub fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Bytes read from and written to the device through a file, as the engine counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

/// How much room a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRoom {
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes that files of this process may still take.
    pub left: u64,
}

/// What a range of a file is going to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Bytes that the file protects, if it encrypts at all.
    Plain,
    /// Bytes that the caller has encrypted, and that the file leaves as they are.
    Sealed,
}

/// One of several reads.
#[derive(Debug)]
pub struct Read<'a> {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Memory to fill.
    pub buffer: &'a mut [u8],
}

/// An open file. Calls may come from any thread, also at the same time.
pub trait File: Send + Sync + Debug {
    /// Its path, for messages.
    fn name(&self) -> &str;
    /// Its length in bytes.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn len(&self) -> io::Result<u64>;
    /// Whether it has no bytes.
    ///
    /// # Errors
    /// As [`File::len`].
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Fills `buffer` from `offset`; direct where supported. Past the end is `UnexpectedEof`.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// [`File::read_at`] for each of `reads`, several at a time where the device is real. After an error the contents
    /// of all buffers are undefined.
    ///
    /// # Errors
    /// That of one of the failed reads.
    fn read_many(&self, reads: &mut [Read<'_>]) -> io::Result<()> {
        reads.iter_mut().try_for_each(|read| self.read_at(read.buffer, read.offset))
    }
    /// Begins [`File::read_at`] into `buffer`, on another thread where the device is real.
    fn begin_read(&self, mut buffer: Block, offset: u64) -> Pending {
        Pending::done(self.read_at(&mut buffer, offset).map(|()| buffer))
    }
    /// Writes all of `bytes` at `offset`; direct where offset and length are multiples of [`DIRECT_ALIGN`] and the
    /// file system supports it.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Begins [`File::write_at`], on another thread where the device is real.
    fn begin_write(&self, bytes: Bytes, offset: u64) -> Pending {
        Pending::done(self.write_at(&bytes, offset).map(|()| Block::default()))
    }
    /// Writes all of `bytes` at `offset` to the page cache: survives `kill -9`, and power loss only after a sync.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn write_buffered_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// [`File::write_buffered_at`] of `bytes`, and of `padding` bytes behind them whose contents do not matter until
    /// they are written. A page that is written as a whole is not read from the device first.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn write_padded_at(&self, bytes: &[u8], padding: usize, offset: u64) -> io::Result<()> {
        let mut padded = Vec::with_capacity(bytes.len() + padding);
        padded.extend_from_slice(bytes);
        padded.resize(bytes.len() + padding, 0);
        self.write_buffered_at(&padded, offset)
    }
    /// The range gets another use: what it holds is not needed any more, and is undefined until it is written.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn renew(&self, _offset: u64, _bytes: u64, _content: Content) -> io::Result<()> {
        Ok(())
    }
    /// Maps `bytes` from `offset` on, all within the file and both multiples of [`DIRECT_ALIGN`], for appending by
    /// stores to memory; `None` where the file system or the kernel cannot do that safely. The range must not be
    /// written in another way until the [`AppendBuffer`] is dropped, and must never be cut off the file. Reads see
    /// published bytes.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn map(&self, offset: u64, bytes: usize) -> io::Result<Option<Appender>>;
    /// Makes everything written or published before durable.
    ///
    /// # Errors
    /// Whatever the operating system says; the caller must then assume that any unsynced write is lost.
    fn sync(&self) -> io::Result<()>;
    /// Drops the file from the page cache, so that later reads come from the device. After a failed writeback the page
    /// cache still has the lost bytes, also for the next process, and no later sync writes them. Call it after a
    /// [`File::sync`], while nothing of the file is mapped.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn forget_cached(&self) -> io::Result<()>;
    /// Grows the file to at least `len` bytes, and makes room for them, so that no write runs out of it. (A file system
    /// that copies on write cannot promise that.) From the old end on, as many bytes as each of `extents`, in turn and
    /// above 0, get their room by themselves, so that [`File::release`] gives it back by itself.
    ///
    /// # Errors
    /// One that [is full](is_full) where there is no room; the file keeps its old length.
    fn allocate(&self, len: u64, extents: &[u64]) -> io::Result<()>;
    /// Makes room for a range of the file, as [`File::allocate`]. Bytes that were not released keep their contents.
    ///
    /// # Errors
    /// As [`File::allocate`].
    fn reserve(&self, offset: u64, bytes: u64) -> io::Result<()>;
    /// Gives the space of a range back to the device; its contents are lost. `false` where the file system cannot.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn release(&self, offset: u64, bytes: u64) -> io::Result<bool>;
    /// How much room the file's device has. `None` where nobody can tell.
    fn device_room(&self) -> Option<DeviceRoom> {
        None
    }
    /// Where byte `offset` is on the device, for messages: elsewhere if the file is a view of another one.
    fn place(&self, offset: u64) -> u64 {
        offset
    }
    /// Bytes moved so far.
    fn counters(&self) -> DeviceCounters;
}

/// A directory of files that one process uses at a time.
pub trait Disk: Send + Sync {
    /// Opens `name`, creating it empty where it does not exist.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Whether `name` exists.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn exists(&self, name: &str) -> io::Result<bool>;
    /// Removes `name`, if it exists.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Puts file `from` in the place of `to`, durably and at once: a crash leaves the one or the other. Handles that are
    /// open stay with their file.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn replace(&self, from: &str, to: &str) -> io::Result<()>;
    /// Locks the directory for this process until the returned lock is dropped.
    ///
    /// # Errors
    /// `WouldBlock` when another process has it.
    fn lock(&self) -> io::Result<DiskLock>;
}

/// Holds a [`Disk`] for this process; dropping it lets go.
#[derive(Debug)]
pub struct DiskLock {
    _held: HeldLock,
    identity: String,
}

impl DiskLock {
    /// The locked file, and the boot of the machine on which it is locked; empty if that cannot be told. A process that holds a
    /// lock of this identity knows that each that held one before has let go of it. A copy of the directory, here or
    /// on another machine, has a lock of another identity, and so has this one after a reboot.
    pub fn identity(&self) -> &str {
        &self.identity
    }
}

#[derive(Debug)]
enum HeldLock {
    /// Closing the file releases the lock that the kernel keeps on it.
    Real {
        _file: std::fs::File,
    },
    Sim {
        _lock: sim::SimLock,
    },
}

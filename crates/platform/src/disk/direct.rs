//! A file opened with `O_DIRECT`: reads of any alignment and writes of whole blocks, past the page cache.
//!
//! Direct I/O needs aligned memory. Bytes of other memory go through a bounce buffer of the calling thread.
//!
//! Several reads at a time go by a [`ring`]. So do single reads while the file is written through the page cache as well;
//! otherwise `pread` costs less of the processor. What a ring does not read, and everything where there are no rings,
//! goes by `pread`, which also tells what is wrong. Any number of threads use a [`Direct`] at a time.

use super::ring::{self, RingRead};
use super::{DIRECT_ALIGN, Read, aligned};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that are written at once, or read through a bounce buffer for a single read. The lock of the file's inode is held meanwhile, and
/// appends wait for it: see [`ring`].
const PIECE_BYTES: usize = 256 << 10;
/// Bytes between two reads that are read along with them: that costs less than another read.
const GAP_BYTES: u64 = 8 << 10;
/// Largest read, in bytes, that several reads are combined into.
const COMBINED_BYTES: u64 = 64 << 10;
/// Most bytes of a bounce buffer, except for a single read that is larger.
const MOST_BOUNCE_BYTES: usize = 4 << 20;
/// Bytes of a bounce buffer that a thread keeps: as many reads of a leaf as a ring takes. The memory of a larger one is
/// given back after use, because any number of threads may have made one.
const KEPT_BYTES: usize = 512 << 10;
/// Threads that read in parallel where there is no ring.
const READ_THREADS: usize = 8;
/// Bytes read until single reads leave rings again after a write through the page cache. Where five of 100 operations
/// write, up to 10 MiB are read between two such writes.
const RING_BYTES: u64 = 64 << 20;
/// [`DIRECT_ALIGN`], of offsets.
const ALIGN: u64 = DIRECT_ALIGN as u64;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    /// And to read.
    Write,
}

/// A file that is read and written past the page cache.
#[derive(Debug)]
pub(super) struct Direct {
    file: File,
    bytes_read: AtomicU64,
    /// Single reads go by a ring until so many bytes were read.
    ring_until: AtomicU64,
}

impl Direct {
    /// Opens `path`; `None` where the file system refuses, at the open or at the first read.
    pub(super) fn open(path: &Path, access: Access) -> io::Result<Option<Direct>> {
        let flags = i32::try_from(OFlags::DIRECT.bits()).expect("O_DIRECT is a small bit");
        let file = match OpenOptions::new().read(true).write(access == Access::Write).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if is_refusal(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let probe = with_bounce(DIRECT_ALIGN, |buffer| file.read_at(buffer, 0));
        match probe {
            Ok(_) => Ok(Some(Direct { file, bytes_read: AtomicU64::new(0), ring_until: AtomicU64::new(0) })),
            Err(error) if is_refusal(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Bytes read so far, with those of whole blocks that nothing asked for.
    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Relaxed)
    }

    /// The file is written through the page cache.
    pub(super) fn written_beside(&self) {
        self.ring_until.store(self.bytes_read() + RING_BYTES, Relaxed);
    }

    /// Reads `buffer`, rounding out to whole blocks.
    ///
    /// # Errors
    /// Those of the operating system; `UnexpectedEof` at the end of the file.
    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let is_whole = offset.is_multiple_of(ALIGN) && buffer.len().is_multiple_of(DIRECT_ALIGN) && is_aligned(buffer);
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let got = if is_whole {
                self.read_blocks(&mut buffer[done..], at)?
            } else {
                let skip = (at % ALIGN) as usize;
                let wanted = (buffer.len() - done).min(PIECE_BYTES - skip);
                with_bounce((skip + wanted).next_multiple_of(DIRECT_ALIGN), |bounce| -> io::Result<usize> {
                    let got = self.read_blocks(bounce, at - skip as u64)?.saturating_sub(skip).min(wanted);
                    buffer[done..done + got].copy_from_slice(&bounce[skip..skip + got]);
                    Ok(got)
                })?
            };
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            done += got;
        }
        Ok(())
    }

    /// Reads what it can at once of `blocks`, which is aligned as `offset` is; 0 at the end of the file.
    fn read_blocks(&self, blocks: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut read = 0;
        if self.bytes_read() < self.ring_until.load(Relaxed) {
            let mut by_ring = RingRead::new(blocks, offset);
            ring::read(&self.file, slice::from_mut(&mut by_ring));
            read = by_ring.bytes().len();
        }
        if read == 0 {
            read = retry(|| self.file.read_at(blocks, offset))?;
        }
        self.bytes_read.fetch_add(read as u64, Relaxed);
        Ok(read)
    }

    /// Reads all of `reads`, several at a time.
    ///
    /// # Errors
    /// As [`Direct::read_at`].
    pub(super) fn read_many(&self, reads: &mut [Read<'_>]) -> io::Result<()> {
        if !ring::is_missing() {
            return self.read_through_ring(reads);
        }
        let share = reads.len().div_ceil(READ_THREADS);
        let parts = Mutex::new(reads.chunks_mut(share));
        let read_parts = || {
            loop {
                let Some(part) = parts.lock().next() else { return Ok(()) };
                part.iter_mut().try_for_each(|read| self.read_at(read.buffer, read.offset))?;
            }
        };
        std::thread::scope(|scope| {
            let start = |_| {
                let read_parts = || {
                    ring::go_without();
                    read_parts()
                };
                // If no more threads can be started, fewer read more.
                std::thread::Builder::new().spawn_scoped(scope, read_parts).ok()
            };
            let others: Vec<_> = (1..READ_THREADS).map_while(start).collect();
            let own = read_parts();
            others.into_iter().map(|other| other.join().expect("a read does not panic")).fold(own, io::Result::and)
        })
    }

    /// Reads as many pieces at a time as a ring takes. Reads whose piece it did not read whole are read again.
    fn read_through_ring(&self, reads: &mut [Read<'_>]) -> io::Result<()> {
        reads.sort_unstable_by_key(|read| read.offset);
        let pieces = pieces(reads);
        let mut rest = &pieces[..];
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(at_once(rest));
            rest = later;
            let total = batch.iter().map(|piece| piece.bytes).sum();
            let missing = with_bounce(total, |mut rest| {
                let mut by_ring = Vec::with_capacity(batch.len());
                for piece in batch {
                    let (own, after) = rest.split_at_mut(piece.bytes);
                    by_ring.push(RingRead::new(own, piece.offset));
                    rest = after;
                }
                ring::read(&self.file, &mut by_ring);
                self.hand_out(batch, &by_ring, reads)
            });
            for at in missing {
                self.read_at(reads[at].buffer, reads[at].offset)?;
            }
        }
        Ok(())
    }

    /// Copies what was read of `pieces` to `reads`; returns the positions of those that got not all.
    fn hand_out(&self, pieces: &[Piece], by_ring: &[RingRead<'_>], reads: &mut [Read<'_>]) -> Vec<usize> {
        let mut missing = Vec::new();
        for (piece, by_ring) in pieces.iter().zip(by_ring) {
            self.bytes_read.fetch_add(by_ring.bytes().len() as u64, Relaxed);
            for at in piece.reads.clone() {
                let read = &mut reads[at];
                let skip = (read.offset - piece.offset) as usize;
                match by_ring.bytes().get(skip..skip + read.buffer.len()) {
                    Some(bytes) => read.buffer.copy_from_slice(bytes),
                    None => missing.push(at),
                }
            }
        }
        missing
    }

    /// Writes whole blocks at the start of a block.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let is_aligned = is_aligned(bytes);
        for (index, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            let at = offset + (index * PIECE_BYTES) as u64;
            if is_aligned {
                self.file.write_all_at(piece, at)?;
            } else {
                with_bounce(piece.len(), |bounce| {
                    bounce.copy_from_slice(piece);
                    self.file.write_all_at(bounce, at)
                })?;
            }
        }
        Ok(())
    }
}

fn is_refusal(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    errno == Some(Errno::INVAL.raw_os_error()) || errno == Some(Errno::OPNOTSUPP.raw_os_error())
}

/// Calls `with` with `bytes` bytes of aligned memory of this thread; the contents are arbitrary.
fn with_bounce<T>(bytes: usize, with: impl FnOnce(&mut [u8]) -> T) -> T {
    BOUNCE.with_borrow_mut(|buffer| {
        let result = with(aligned(buffer, bytes));
        if buffer.len() > KEPT_BYTES + DIRECT_ALIGN {
            *buffer = Vec::new();
        }
        result
    })
}

thread_local! {
    static BOUNCE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(DIRECT_ALIGN)
}

/// Whole blocks that are read at once, for one or several reads.
struct Piece {
    offset: u64,
    bytes: usize,
    /// Positions of those reads.
    reads: Range<usize>,
}

/// How many of `pieces` are read at once: as many as a ring and a bounce buffer take, and at least one.
fn at_once(pieces: &[Piece]) -> usize {
    let mut bytes = 0;
    let fits = |piece: &&Piece| {
        bytes += piece.bytes;
        bytes <= MOST_BOUNCE_BYTES
    };
    pieces.iter().take(ring::MOST).take_while(fits).count().max(1)
}

/// Combines `reads`, ordered by offset, into pieces: reads near each other share one.
fn pieces(reads: &[Read<'_>]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::with_capacity(reads.len());
    for (at, read) in reads.iter().enumerate() {
        let start = read.offset / ALIGN * ALIGN;
        let end = (read.offset + read.buffer.len() as u64).next_multiple_of(ALIGN);
        if let Some(last) = pieces.last_mut()
            && start <= last.offset + last.bytes as u64 + GAP_BYTES
            && end <= last.offset + COMBINED_BYTES
        {
            last.bytes = last.bytes.max((end - last.offset) as usize);
            last.reads.end = at + 1;
        } else {
            pieces.push(Piece { offset: start, bytes: (end - start) as usize, reads: at..at + 1 });
        }
    }
    pieces
}

/// Repeats `call` while a signal interrupts it.
pub(super) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_a_small_bounce_buffer_only() {
        let kept = || BOUNCE.with_borrow(Vec::len);
        with_bounce(KEPT_BYTES, |buffer| buffer.fill(1));
        assert_eq!(kept(), KEPT_BYTES + DIRECT_ALIGN);
        with_bounce(8 << 20, |buffer| buffer.fill(1));
        assert_eq!(kept(), 0);
    }

    #[test]
    fn reads_at_once_are_bounded_in_number_and_in_bytes() {
        let piece = |bytes| Piece { offset: 0, bytes, reads: 0..1 };
        let of = |bytes, count| at_once(&(0..count).map(|_| piece(bytes)).collect::<Vec<_>>());
        assert_eq!(of(8 << 10, 1000), ring::MOST);
        assert_eq!(of(1 << 20, 128), 4);
        assert_eq!(of(5 << 20, 3), 1);
        assert_eq!(of(4096, 2), 2);
    }
}

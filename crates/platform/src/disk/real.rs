//! A directory of the operating system.
//!
//! Every file is opened twice: through the page cache, and with `O_DIRECT` where the file system takes it. Aligned
//! writes and all reads of volumes are direct, so that the engine's own cache is the only one; the kernel keeps both
//! views coherent. Direct I/O needs aligned memory. Bytes of other memory go through a bounce buffer of the calling
//! thread.

use super::background::{Background, Pending};
use super::{AppendBuffer, Appender, DIRECT_ALIGN, DeviceCounters, Disk, DiskLock, File, Held, Read, aligned, ring};
use crate::Block;
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::{Advice, FallocateFlags, FlockOperation, OFlags, fadvise};
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Name of the file whose lock is the directory's.
const LOCK_NAME: &str = "lock";
/// Largest piece that goes through a bounce buffer at once, in bytes.
const BOUNCE_BYTES: usize = 256 * 1024;
/// Bytes between two reads that are read along with them: that costs less than another read.
const GAP_BYTES: u64 = 8 << 10;
/// Largest read, in bytes, that several reads are combined into.
const PIECE_BYTES: u64 = 64 << 10;
/// Threads that read and write whole segments of a file.
const IO_THREADS: usize = 2;
/// Threads that read in parallel where `io_uring` is not available.
const READ_THREADS: usize = 8;

/// ext2 to ext4, XFS and tmpfs, by their magic numbers. They write a page back to the blocks that it has, so a store to
/// a written page cannot run out of space. On file systems that copy on write it can.
const MAPPED_FILE_SYSTEMS: [rustix::fs::FsWord; 3] = [0xef53, 0x5846_5342, 0x0102_1994];
/// Filling of a mapped range before it is handed out.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// A directory of the operating system.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
}

impl RealDisk {
    /// Uses the directory `root`, creating it where it does not exist.
    ///
    /// # Errors
    /// Those of the operating system; if a file is in the way, the message says what to do.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<RealDisk> {
        let root = root.into();
        fs::create_dir_all(&root).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                let advice = "a file is where a directory should be: name another directory, or move the file away";
                io::Error::new(io::ErrorKind::NotADirectory, advice)
            }
            _ => error,
        })?;
        Ok(RealDisk { root })
    }
}

impl Disk for RealDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let path = self.root.join(name);
        if path.is_dir() {
            let advice = format!("{name} is a directory and should be a file: move it away, or use another directory");
            return Err(io::Error::new(io::ErrorKind::IsADirectory, advice));
        }
        let is_new = !path.try_exists()?;
        let buffered = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        if is_new {
            fs::File::open(&self.root)?.sync_all()?;
        }
        let direct = open_direct(&path)?;
        let maps = MAPPED_FILE_SYSTEMS.contains(&rustix::fs::fstatfs(&buffered)?.f_type);
        let (counters, ahead) = (Counters::default(), Background::new(1));
        let handles = Arc::new(Handles { buffered, direct, counters, ahead });
        let (name, background) = (path.display().to_string(), Background::new(IO_THREADS));
        Ok(Arc::new(RealFile { handles, name, maps, mapped: Mutex::default(), background }))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.root.join(name).try_exists()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.root.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => fs::File::open(&self.root)?.sync_all(),
        }
    }

    fn replace(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.root.join(from), self.root.join(to))?;
        fs::File::open(&self.root)?.sync_all()
    }

    fn lock(&self) -> io::Result<DiskLock> {
        let path = self.root.join(LOCK_NAME);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(DiskLock { _held: Held::Real { _file: file } })
    }
}

/// Opens `path` with `O_DIRECT`; `None` where the file system refuses, at the open or at the first read.
fn open_direct(path: &Path) -> io::Result<Option<fs::File>> {
    let flags = i32::try_from(OFlags::DIRECT.bits()).expect("O_DIRECT is a small bit");
    let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if refuses_direct(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let probe = with_bounce(DIRECT_ALIGN, |buffer| file.read_at(buffer, 0));
    match probe {
        Ok(_) => Ok(Some(file)),
        Err(error) if refuses_direct(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn refuses_direct(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    errno == Some(Errno::INVAL.raw_os_error()) || errno == Some(Errno::OPNOTSUPP.raw_os_error())
}

/// Calls `with` with `bytes` bytes of aligned memory of this thread; the contents are arbitrary.
fn with_bounce<T>(bytes: usize, with: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static BOUNCE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    BOUNCE.with_borrow_mut(|buffer| with(aligned(buffer, bytes)))
}

fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(DIRECT_ALIGN)
}

#[derive(Debug, Default)]
struct Counters {
    read: AtomicU64,
    written: AtomicU64,
}

/// A file.
#[derive(Debug)]
struct RealFile {
    handles: Arc<Handles>,
    name: String,
    /// Whether ranges may be mapped.
    maps: bool,
    /// Its mapped ranges.
    mapped: Mutex<Vec<Weak<AppendBuffer>>>,
    /// For reads and writes of whole segments.
    background: Background,
}

/// A file, open in both ways.
#[derive(Debug)]
struct Handles {
    buffered: fs::File,
    direct: Option<fs::File>,
    counters: Counters,
    /// Makes mapped pages ready, behind no long I/O.
    ahead: Background,
}

/// A range of a file that is mapped.
#[derive(Debug)]
pub(super) struct RealRange {
    handles: Arc<Handles>,
    offset: u64,
}

impl RealRange {
    pub(super) fn file(&self) -> &fs::File {
        &self.handles.buffered
    }

    /// Its offset in the file.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Makes pages of the range ready to be stored to, which `buffer` maps.
    pub(super) fn make_ready(&self, buffer: &AppendBuffer, at: usize, bytes: usize) -> io::Result<()> {
        self.handles.fill(self.offset + at as u64, bytes)?;
        buffer.populate(at, bytes)
    }

    /// Begins [`RealRange::make_ready`] on another thread.
    pub(super) fn begin_make_ready(&self, buffer: &Arc<AppendBuffer>, at: usize, bytes: usize) -> Pending {
        let range = RealRange { handles: Arc::clone(&self.handles), offset: self.offset };
        let buffer = Arc::clone(buffer);
        self.handles.ahead.begin(move || range.make_ready(&buffer, at, bytes).map(|()| Block::default()))
    }
}

impl Handles {
    /// Writes zeroes to whole pages of the page cache, without reading them. They count as written here: the device
    /// gets each page once, with the bytes that were stored to it until then.
    fn fill(&self, offset: u64, bytes: usize) -> io::Result<()> {
        self.counters.written.fetch_add(bytes as u64, Relaxed);
        self.buffered.write_all_at(&ZEROES[..bytes], offset)
    }

    /// Reads `buffer` through `direct`, rounding out to whole blocks.
    fn read_direct(&self, direct: &fs::File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        const ALIGN: u64 = DIRECT_ALIGN as u64;
        if offset.is_multiple_of(ALIGN) && buffer.len().is_multiple_of(DIRECT_ALIGN) && is_aligned(buffer) {
            self.counters.read.fetch_add(buffer.len() as u64, Relaxed);
            return direct.read_exact_at(buffer, offset);
        }
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let skip = (at % ALIGN) as usize;
            let wanted = (buffer.len() - done).min(BOUNCE_BYTES - skip);
            let rounded = (skip + wanted).next_multiple_of(DIRECT_ALIGN);
            let got = with_bounce(rounded, |bounce| -> io::Result<usize> {
                let read = retry(|| direct.read_at(bounce, at - skip as u64))?;
                let got = read.saturating_sub(skip).min(wanted);
                buffer[done..done + got].copy_from_slice(&bounce[skip..skip + got]);
                self.counters.read.fetch_add(read as u64, Relaxed);
                Ok(got)
            })?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            done += got;
        }
        Ok(())
    }

    fn read_many_direct(&self, direct: &fs::File, reads: &mut [Read<'_>]) -> io::Result<()> {
        if !ring::is_refused() {
            return self.read_through_ring(direct, reads);
        }
        let share = reads.len().div_ceil(READ_THREADS);
        let parts = Mutex::new(reads.chunks_mut(share));
        let read_parts = || {
            loop {
                let Some(part) = parts.lock().next() else { return Ok(()) };
                part.iter_mut().try_for_each(|read| self.read_direct(direct, read.buffer, read.offset))?;
            }
        };
        std::thread::scope(|scope| {
            // If no more threads can be started, fewer read more.
            let start = |_| std::thread::Builder::new().spawn_scoped(scope, read_parts).ok();
            let others: Vec<_> = (1..READ_THREADS).map_while(start).collect();
            let own = read_parts();
            others.into_iter().map(|other| other.join().expect("a read does not panic")).fold(own, io::Result::and)
        })
    }

    /// Reads as many pieces at a time as the ring takes. A piece that it did not read whole is read again, which tells
    /// why.
    fn read_through_ring(&self, direct: &fs::File, reads: &mut [Read<'_>]) -> io::Result<()> {
        reads.sort_unstable_by_key(|read| read.offset);
        let pieces = pieces(reads);
        for batch in pieces.chunks(ring::MOST_READS) {
            let wanted: Vec<(u64, usize)> = batch.iter().map(|piece| (piece.offset, piece.bytes)).collect();
            let mut missing = Vec::new();
            let done = ring::read(direct, &wanted, |i, bytes| {
                self.counters.read.fetch_add(bytes.len() as u64, Relaxed);
                for at in batch[i].reads.clone() {
                    let read = &mut reads[at];
                    let skip = (read.offset - batch[i].offset) as usize;
                    match bytes.get(skip..skip + read.buffer.len()) {
                        Some(bytes) => read.buffer.copy_from_slice(bytes),
                        None => missing.push(at),
                    }
                }
            });
            if !done {
                missing = batch.iter().flat_map(|piece| piece.reads.clone()).collect();
            }
            for at in missing {
                self.read_direct(direct, reads[at].buffer, reads[at].offset)?;
            }
        }
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.direct {
            Some(direct) => self.read_direct(direct, buffer, offset),
            None => {
                self.counters.read.fetch_add(buffer.len() as u64, Relaxed);
                self.buffered.read_exact_at(buffer, offset)
            }
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let whole_blocks = offset.is_multiple_of(DIRECT_ALIGN as u64) && bytes.len().is_multiple_of(DIRECT_ALIGN);
        match &self.direct {
            Some(direct) if whole_blocks => {
                self.counters.written.fetch_add(bytes.len() as u64, Relaxed);
                self.write_direct(direct, bytes, offset)
            }
            _ => self.write_buffered_at(bytes, offset),
        }
    }

    fn write_buffered_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.counters.written.fetch_add(bytes.len() as u64, Relaxed);
        self.buffered.write_all_at(bytes, offset)
    }

    fn write_direct(&self, direct: &fs::File, bytes: &[u8], offset: u64) -> io::Result<()> {
        if is_aligned(bytes) {
            return direct.write_all_at(bytes, offset);
        }
        for (index, piece) in bytes.chunks(BOUNCE_BYTES).enumerate() {
            with_bounce(piece.len(), |bounce| {
                bounce.copy_from_slice(piece);
                direct.write_all_at(bounce, offset + (index * BOUNCE_BYTES) as u64)
            })?;
        }
        Ok(())
    }
}

/// Whole blocks that are read at once, for one or several reads.
struct Piece {
    offset: u64,
    bytes: usize,
    /// Positions of those reads.
    reads: Range<usize>,
}

/// Combines `reads`, ordered by offset, into pieces: reads near each other share one.
fn pieces(reads: &[Read<'_>]) -> Vec<Piece> {
    const ALIGN: u64 = DIRECT_ALIGN as u64;
    let mut pieces: Vec<Piece> = Vec::with_capacity(reads.len());
    for (at, read) in reads.iter().enumerate() {
        let start = read.offset / ALIGN * ALIGN;
        let end = (read.offset + read.buffer.len() as u64).next_multiple_of(ALIGN);
        if let Some(last) = pieces.last_mut()
            && start <= last.offset + last.bytes as u64 + GAP_BYTES
            && end <= last.offset + PIECE_BYTES
        {
            last.bytes = last.bytes.max((end - last.offset) as usize);
            last.reads.end = at + 1;
        } else {
            pieces.push(Piece { offset: start, bytes: (end - start) as usize, reads: at..at + 1 });
        }
    }
    pieces
}

/// `false` where the file system does not support it.
fn fallocate(file: &fs::File, flags: FallocateFlags, offset: u64, bytes: u64) -> io::Result<bool> {
    match retry(|| Ok(rustix::fs::fallocate(file, flags, offset, bytes)?)) {
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => Ok(false),
        done => done.map(|()| true),
    }
}

/// Repeats `call` while a signal interrupts it.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

impl File for RealFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.handles.buffered.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.handles.read_at(buffer, offset)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> io::Result<()> {
        match &self.handles.direct {
            Some(direct) if reads.len() > 1 => self.handles.read_many_direct(direct, reads),
            _ => reads.iter_mut().try_for_each(|read| self.read_at(read.buffer, read.offset)),
        }
    }

    fn begin_read(&self, mut buffer: Block, offset: u64) -> Pending {
        let handles = Arc::clone(&self.handles);
        self.background.begin(move || {
            handles.read_at(&mut buffer, offset)?;
            Ok(buffer)
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.handles.write_at(bytes, offset)
    }

    fn begin_write(&self, bytes: Bytes, offset: u64) -> Pending {
        let handles = Arc::clone(&self.handles);
        self.background.begin(move || handles.write_at(&bytes, offset).map(|()| Block::default()))
    }

    fn write_buffered_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.handles.write_buffered_at(bytes, offset)
    }

    fn map(&self, offset: u64, bytes: usize) -> io::Result<Option<Appender>> {
        if offset.checked_add(bytes as u64).is_none_or(|end| self.len().is_ok_and(|len| end > len)) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !self.maps {
            return Ok(None);
        }
        let range = RealRange { handles: Arc::clone(&self.handles), offset };
        let mut appender = Appender::real(range, bytes)?;
        match appender.make_ready(1, DIRECT_ALIGN) {
            Ok(()) => {
                self.mapped.lock().push(Arc::downgrade(appender.buffer()));
                Ok(Some(appender))
            }
            // Linux before 5.14 cannot make pages present.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// To write a page back, the kernel removes it from every mapping and notifies every processor, page by page. So
    /// all filled pages are removed at once before.
    fn sync(&self) -> io::Result<()> {
        self.mapped.lock().retain(|buffer| buffer.upgrade().inspect(|buffer| buffer.detach()).is_some());
        self.handles.buffered.sync_data()
    }

    fn forget_cached(&self) -> io::Result<()> {
        Ok(fadvise(&self.handles.buffered, 0, None, Advice::DontNeed)?)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let (old, buffered) = (self.len()?, &self.handles.buffered);
        if len <= old {
            return Ok(());
        }
        match fallocate(buffered, FallocateFlags::empty(), old, len - old) {
            Ok(true) => Ok(()),
            Ok(false) => buffered.set_len(len),
            Err(error) => {
                buffered.set_len(old)?;
                Err(error)
            }
        }
    }

    fn reserve(&self, offset: u64, bytes: u64) -> io::Result<()> {
        fallocate(&self.handles.buffered, FallocateFlags::KEEP_SIZE, offset, bytes).map(drop)
    }

    fn release(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.handles.buffered, flags, offset, bytes)
    }

    fn counters(&self) -> DeviceCounters {
        DeviceCounters {
            bytes_read: self.handles.counters.read.load(Relaxed),
            bytes_written: self.handles.counters.written.load(Relaxed),
        }
    }
}

#[cfg(test)]
#[path = "real_tests.rs"]
mod tests;

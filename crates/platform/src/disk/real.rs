//! A directory of the operating system.
//!
//! Every file is opened twice: through the page cache, and with `O_DIRECT` where the file system takes it. Aligned
//! writes and all reads of volumes are direct, so that the engine's own cache is the only one; the kernel keeps both
//! views coherent.

use super::background::{Background, Pending};
use super::direct::{Access, Direct};
use super::room::{Room, write_in_place};
use super::{
    AppendBuffer, Appender, DIRECT_ALIGN, DeviceCounters, DeviceRoom, Disk, DiskLock, File, HeldLock, Read, private,
};
use crate::Block;
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::{Advice, FlockOperation, FsWord, fadvise, fstatvfs};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Name of the file whose lock is the directory's.
const LOCK_NAME: &str = "lock";
/// Threads that read and write whole segments of a file.
const IO_THREADS: usize = 2;

/// ext2 to ext4, XFS and tmpfs, by their magic numbers. They write a page back to the blocks that it has, so a store to
/// a written page cannot run out of space. On file systems that copy on write it can. Ranges are mapped only where there
/// is `fallocate` as well, so not on ext2 and ext3.
const MAPPED_FILE_SYSTEMS: [FsWord; 3] = [0xef53, 0x5846_5342, 0x0102_1994];
/// Filling of a mapped range before it is handed out.
static ZEROES: [u8; 16 << 10] = [0; 16 << 10];

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
        private::create_directory(&root).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                let advice = "a file is where a directory should be: name another directory, or move the file away";
                io::Error::new(io::ErrorKind::NotADirectory, advice)
            }
            _ => error,
        })?;
        Ok(RealDisk { root })
    }

    /// Opens `name` to read only, which needs no right to write: to look at a copy, or at the files of another user.
    /// Writes to the file fail.
    ///
    /// # Errors
    /// Whatever the operating system says; `NotFound` if there is no such file.
    pub fn open_to_read(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let path = self.root.join(name);
        file(&path, fs::File::open(&path)?, Access::Read)
    }

    /// As [`Disk::lock`], for a process that only reads: it keeps out those that write, and needs no right to write.
    /// `None`: no process has ever locked the directory, as where it is a copy of the volume alone.
    ///
    /// # Errors
    /// `WouldBlock` when a process that writes has it.
    pub fn lock_to_read(&self) -> io::Result<Option<DiskLock>> {
        let file = match fs::File::open(self.root.join(LOCK_NAME)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)?;
        Ok(Some(DiskLock { identity: identity(&file), _held: HeldLock::Real { _file: file } }))
    }
}

fn file(path: &Path, buffered: fs::File, access: Access) -> io::Result<Arc<dyn File>> {
    let direct = Direct::open(path, access)?;
    Ok(Arc::new(RealFile::new(buffered, direct, path.display().to_string(), Room::default())?))
}

impl Disk for RealDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let path = self.root.join(name);
        if path.is_dir() {
            let advice = format!("{name} is a directory and should be a file: move it away, or use another directory");
            return Err(io::Error::new(io::ErrorKind::IsADirectory, advice));
        }
        let is_new = !path.try_exists()?;
        let buffered = private::options().read(true).write(true).create(true).truncate(false).open(&path)?;
        if is_new {
            write_in_place(&buffered)?;
            fs::File::open(&self.root)?.sync_all()?;
        }
        file(&path, buffered, Access::Write)
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
        let file = private::options().read(true).write(true).create(true).truncate(false).open(path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(DiskLock { identity: identity(&file), _held: HeldLock::Real { _file: file } })
    }
}

/// The boot of the machine, the device and the file. While a file is open, no other one has its numbers in that boot.
fn identity(file: &fs::File) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let found = boot.zip(file.metadata().ok());
    found.map_or_else(String::new, |(boot, file)| format!("{} {} {}", boot.trim(), file.dev(), file.ino()))
}

#[derive(Debug, Default)]
struct Counters {
    read: AtomicU64,
    written: AtomicU64,
}

#[derive(Debug)]
struct RealFile {
    handles: Arc<Handles>,
    name: String,
    /// Its file system, by its magic number.
    file_system: FsWord,
    /// How room for ranges of it is made.
    room: Room,
    /// Its mapped ranges.
    mapped: Mutex<Vec<Weak<AppendBuffer>>>,
    /// For reads and writes of whole segments.
    background: Background,
}

/// A file, open in both ways.
#[derive(Debug)]
pub(super) struct Handles {
    pub(super) buffered: fs::File,
    direct: Option<Direct>,
    counters: Counters,
}

impl RealFile {
    fn new(buffered: fs::File, direct: Option<Direct>, name: String, room: Room) -> io::Result<RealFile> {
        let file_system = rustix::fs::fstatfs(&buffered)?.f_type;
        let handles = Arc::new(Handles::of(buffered, direct));
        let (mapped, background) = (Mutex::default(), Background::new(IO_THREADS));
        Ok(RealFile { handles, name, file_system, room, mapped, background })
    }

    /// Whether ranges may be mapped.
    fn maps(&self) -> io::Result<bool> {
        Ok(MAPPED_FILE_SYSTEMS.contains(&self.file_system) && self.room.has_fallocate(&self.handles.buffered)?)
    }
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

    /// Makes pages of the range ready to be stored to, which `buffer` maps: writes zeroes to whole pages of the page cache,
    /// without reading them. They count as written here: the device gets each page once, with the bytes that were stored
    /// to it until then.
    pub(super) fn make_ready(&self, buffer: &AppendBuffer, at: usize, bytes: usize) -> io::Result<()> {
        self.handles.write_buffered_at(&ZEROES[..bytes], self.offset + at as u64)?;
        buffer.populate(at, bytes)
    }
}

impl Handles {
    pub(super) fn of(buffered: fs::File, direct: Option<Direct>) -> Handles {
        Handles { buffered, direct, counters: Counters::default() }
    }

    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.direct {
            Some(direct) => direct.read_at(buffer, offset),
            None => {
                self.counters.read.fetch_add(buffer.len() as u64, Relaxed);
                self.buffered.read_exact_at(buffer, offset)
            }
        }
    }

    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let whole_blocks = offset.is_multiple_of(DIRECT_ALIGN as u64) && bytes.len().is_multiple_of(DIRECT_ALIGN);
        match &self.direct {
            Some(direct) if whole_blocks => {
                self.counters.written.fetch_add(bytes.len() as u64, Relaxed);
                direct.write_at(bytes, offset)
            }
            _ => self.write_buffered_at(bytes, offset),
        }
    }

    fn write_buffered_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Some(direct) = &self.direct {
            direct.written_beside();
        }
        self.counters.written.fetch_add(bytes.len() as u64, Relaxed);
        self.buffered.write_all_at(bytes, offset)
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
            Some(direct) if reads.len() > 1 => direct.read_many(reads),
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
        if !self.maps()? {
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

    fn allocate(&self, len: u64, extents: &[u64]) -> io::Result<()> {
        let old = self.len()?;
        if len <= old { Ok(()) } else { self.room.grow(&self.handles, old, len, extents) }
    }

    fn reserve(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.room.reserve(&self.handles, offset, bytes)
    }

    fn release(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        self.room.release(&self.handles.buffered, offset, bytes)
    }

    fn device_room(&self) -> Option<DeviceRoom> {
        let device = fstatvfs(&self.handles.buffered).ok()?;
        Some(DeviceRoom { bytes: device.f_blocks * device.f_frsize, left: device.f_bavail * device.f_frsize })
    }

    fn counters(&self) -> DeviceCounters {
        let direct = self.handles.direct.as_ref().map_or(0, Direct::bytes_read);
        DeviceCounters {
            bytes_read: self.handles.counters.read.load(Relaxed) + direct,
            bytes_written: self.handles.counters.written.load(Relaxed),
        }
    }
}

#[cfg(test)]
#[path = "real_tests.rs"]
mod tests;

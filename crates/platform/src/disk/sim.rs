//! A disk in memory that loses power, runs full and fails on command, the same way for the same seed.
//!
//! For every 512-byte sector that was written since the last sync, the disk keeps the earlier versions. A power loss
//! then chooses a version, sector by sector. A sector is never torn, as on real devices.
//!
//! A failed sync behaves as on Linux. It reports the error once. The data counts as written from then on: no later sync
//! makes it durable, or fails because of it. Reads return the data until [`File::forget_cached`].

use super::sim_file::Contents;
use super::{Appender, DIRECT_ALIGN, DeviceCounters, DeviceRoom, Disk, DiskLock, File, HeldLock};
use crate::Rng;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Bytes that a power loss cannot tear.
pub const SECTOR_BYTES: usize = 512;
/// Sectors of a block that a device's cache may write out as one.
const BLOCK_SECTORS: usize = 64;

/// Filling of a released range.
const RELEASED: u8 = 0xdd;

/// A fault of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails; the process continues.
    Fail,
    /// A write succeeds, but the device takes none of it: the next sync fails, and only that one. A sync fails.
    Writeback,
    /// The process dies in the operation. A write may have written its first sectors. The operation fails, and so does
    /// every later one by handles that were opened before.
    Kill,
}

/// Faults to inject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Operations, counted from [`SimDisk::set_faults`] and from 1, and what happens to them.
    pub at: Vec<(u64, Fault)>,
    /// The same, counting only syncs.
    pub at_sync: Vec<(u64, Fault)>,
    /// One in this many reads fails; 0 for none.
    pub read_errors_one_in: u64,
    /// One in this many writes and syncs fails; 0 for none.
    pub write_errors_one_in: u64,
    /// One in this many allocations finds no room, even below the length of its file, where there are holes; 0 for
    /// none.
    pub no_room_one_in: u64,
}

/// A simulated disk. Clones share it.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<DiskState>>,
}

#[derive(Debug)]
struct DiskState {
    files: BTreeMap<String, Contents>,
    capacity: u64,
    room: Option<u64>,
    plan: FaultPlan,
    ops: u64,
    syncs: u64,
    /// A sync has failed since [`SimDisk::take_failed_sync`] was called last.
    has_failed_sync: bool,
    /// Raised by a kill; handles of an older incarnation are dead.
    incarnation: u64,
    locked: bool,
    /// Whether ranges of files can be mapped.
    maps: bool,
    rng: Rng,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OpKind {
    Read,
    Write,
    /// To mapped memory.
    Store,
    /// Mapped memory is made ready to be stored to.
    Ready,
    Sync,
    Allocate,
}

impl SimDisk {
    /// An empty disk of `capacity` bytes. `seed` decides random faults and how far a killed write got.
    pub fn new(seed: u64, capacity: u64) -> SimDisk {
        SimDisk {
            state: Arc::new(Mutex::new(DiskState {
                files: BTreeMap::new(),
                capacity,
                room: None,
                plan: FaultPlan::default(),
                ops: 0,
                syncs: 0,
                has_failed_sync: false,
                incarnation: 0,
                locked: false,
                maps: true,
                rng: Rng::new(seed),
            })),
        }
    }

    /// Replaces the fault plan; operations are counted anew from here.
    pub fn set_faults(&self, plan: FaultPlan) {
        let mut state = self.state.lock();
        state.plan = plan;
        (state.ops, state.syncs) = (0, 0);
    }

    /// Takes the failures out of the plan: no operation fails, unless the process dies in it.
    pub fn forget_failures(&self) {
        let plan = &mut self.state.lock().plan;
        plan.at.retain(|(_, fault)| *fault == Fault::Kill);
        plan.at_sync.retain(|(_, fault)| *fault == Fault::Kill);
    }

    /// Whether a sync has failed since the last call. What it should have made durable is lost with the cache.
    pub fn take_failed_sync(&self) -> bool {
        std::mem::take(&mut self.state.lock().has_failed_sync)
    }

    /// As [`SimDisk::take_failed_sync`], without resetting it.
    pub fn has_failed_sync(&self) -> bool {
        self.state.lock().has_failed_sync
    }

    /// Operations since the last [`SimDisk::set_faults`].
    pub fn ops(&self) -> u64 {
        self.state.lock().ops
    }

    /// Syncs among them.
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// Changes the capacity, in bytes: the sum of the lengths of all files.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity = bytes;
    }

    /// Others fill the disk, except for `room` bytes and what is released. `None`: they fill nothing of it.
    pub fn leave_room(&self, room: Option<u64>) {
        let mut state = self.state.lock();
        let taken = state.taken();
        state.room = room.map(|room| taken + room);
    }

    /// Whether [`File::map`] maps from now on. A new disk maps.
    pub fn set_maps(&self, maps: bool) {
        self.state.lock().maps = maps;
    }

    /// Whether a [`Fault::Kill`] or [`SimDisk::kill_process`] struck since [`SimDisk::incarnation`] returned
    /// `incarnation`.
    pub fn died_since(&self, incarnation: u64) -> bool {
        self.state.lock().incarnation != incarnation
    }

    /// A number that changes with every kill.
    pub fn incarnation(&self) -> u64 {
        self.state.lock().incarnation
    }

    /// The process dies: everything written stays, every operation by handles opened before fails from now on.
    pub fn kill_process(&self) {
        self.state.lock().kill();
    }

    /// The machine dies, and the process with it. Each sector that was written since the last sync gets any one of its
    /// versions. Some power losses keep all writes or none, or all or none of a whole block.
    pub fn lose_power(&self, rng: &mut Rng) {
        let mut state = self.state.lock();
        state.kill();
        for contents in state.files.values_mut() {
            for (sector, durable) in std::mem::take(&mut contents.given_up) {
                contents.put_back(sector, &durable);
            }
            let mode = rng.below(8);
            let mut block = (usize::MAX, false);
            for (sector, versions) in std::mem::take(&mut contents.unsynced) {
                let choice = match mode {
                    0 => 0,
                    1 => versions.len(),
                    2..5 => {
                        if block.0 != sector / BLOCK_SECTORS {
                            block = (sector / BLOCK_SECTORS, rng.one_in(2));
                        }
                        if block.1 { versions.len() } else { 0 }
                    }
                    _ => rng.index(versions.len() + 1),
                };
                if let Some(version) = versions.get(choice) {
                    contents.put_back(sector, version);
                }
            }
            contents.refused = false;
            if mode == 0 || (mode > 1 && rng.one_in(2)) {
                contents.bytes.truncate(contents.durable_len);
            }
            contents.durable_len = contents.bytes.len();
            contents.holes.retain(|block| (block + 1) * DIRECT_ALIGN <= contents.durable_len);
        }
    }

    /// Flips bit `bit` (0 to 7) of the byte at `offset` of `name`, durably: decay. Nothing happens past the end.
    pub fn flip_bit(&self, name: &str, offset: u64, bit: u8) {
        let mut state = self.state.lock();
        let Some(contents) = state.files.get_mut(name) else { return };
        if let Some(byte) = contents.bytes.get_mut(offset as usize) {
            *byte ^= 1 << bit;
        }
    }

    /// Lets reads of the block of [`DIRECT_ALIGN`] bytes with the byte at `offset` of `name` fail until the block is
    /// written, as those of a block that the device has lost. A write of a part of it fails too: the page cache reads
    /// the rest first.
    pub fn spoil(&self, name: &str, offset: u64) {
        let mut state = self.state.lock();
        let Some(contents) = state.files.get_mut(name) else { return };
        contents.unreadable.insert(offset as usize / DIRECT_ALIGN);
    }

    /// All bytes of `name` as a process would read them; empty if there is no such file.
    pub fn contents(&self, name: &str) -> Vec<u8> {
        self.state.lock().files.get(name).map_or_else(Vec::new, |contents| contents.bytes.clone())
    }
}

impl DiskState {
    fn kill(&mut self) {
        self.incarnation += 1;
        self.locked = false;
    }

    /// Counts an operation of a handle of `incarnation`, and decides its outcome.
    fn begin(&mut self, incarnation: u64, kind: OpKind) -> io::Result<Option<Fault>> {
        if incarnation != self.incarnation {
            return Err(io::Error::other("the simulated process is dead"));
        }
        self.ops += 1;
        self.syncs += u64::from(kind == OpKind::Sync);
        let at = |plan: &[(u64, Fault)], op| plan.iter().find(|(at, _)| *at == op).map(|(_, fault)| *fault);
        let in_sync = if kind == OpKind::Sync { at(&self.plan.at_sync, self.syncs) } else { None };
        let planned = at(&self.plan.at, self.ops).or(in_sync);
        let one_in = if kind == OpKind::Read { self.plan.read_errors_one_in } else { self.plan.write_errors_one_in };
        let random = self.rng.one_in(one_in).then_some(Fault::Fail);
        if kind == OpKind::Allocate && self.rng.one_in(self.plan.no_room_one_in) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        match planned.or(random) {
            // A store to memory has no error that a caller could see.
            Some(Fault::Fail) if kind == OpKind::Store => Ok(None),
            Some(Fault::Writeback) if matches!(kind, OpKind::Write | OpKind::Store) => Ok(Some(Fault::Writeback)),
            Some(Fault::Writeback) if kind != OpKind::Sync => Ok(None),
            Some(Fault::Fail | Fault::Writeback) => Err(io::Error::other("a simulated error")),
            Some(Fault::Kill) if matches!(kind, OpKind::Write | OpKind::Store) => Ok(Some(Fault::Kill)),
            Some(Fault::Kill) => {
                self.kill();
                Err(io::Error::other("the simulated process died"))
            }
            None => Ok(None),
        }
    }

    /// Bytes that the files take.
    fn taken(&self) -> u64 {
        self.files.values().map(|contents| (contents.bytes.len() - contents.holes.len() * DIRECT_ALIGN) as u64).sum()
    }

    /// Whether there is room for so many more bytes.
    fn look_for_room(&self, bytes: usize) -> io::Result<()> {
        let lacks_room = |room| bytes > 0 && self.taken() + bytes as u64 > room;
        if self.room.is_some_and(lacks_room) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn grow(&mut self, name: &str, len: usize) -> io::Result<()> {
        let old = self.files[name].bytes.len();
        let used: usize = self.files.values().map(|contents| contents.bytes.len()).sum();
        if (used - old + len) as u64 > self.capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.look_for_room(len.saturating_sub(old))?;
        self.files.get_mut(name).expect("open files exist").bytes.resize(len.max(old), 0);
        Ok(())
    }

    /// Gives space to the holes of a range.
    fn fill_holes(&mut self, name: &str, offset: usize, bytes: usize) -> io::Result<()> {
        let blocks = offset / DIRECT_ALIGN..(offset + bytes).div_ceil(DIRECT_ALIGN);
        let holes: Vec<usize> = self.files[name].holes.range(blocks).copied().collect();
        self.look_for_room(holes.len() * DIRECT_ALIGN)?;
        let contents = self.files.get_mut(name).expect("open files exist");
        contents.holes.retain(|hole| !holes.contains(hole));
        Ok(())
    }
}

impl Disk for SimDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let mut state = self.state.lock();
        state.files.entry(name.to_owned()).or_default();
        Ok(Arc::new(SimFile { state: self.state.clone(), name: name.to_owned(), incarnation: state.incarnation }))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        Ok(self.state.lock().files.contains_key(name))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.state.lock().files.remove(name);
        Ok(())
    }

    fn replace(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        let incarnation = state.incarnation;
        state.begin(incarnation, OpKind::Allocate)?;
        let contents = state.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.files.insert(to.to_owned(), contents);
        Ok(())
    }

    fn lock(&self) -> io::Result<DiskLock> {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.locked, true) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let lock = SimLock { state: self.state.clone(), incarnation: state.incarnation };
        Ok(DiskLock { identity: String::new(), _held: HeldLock::Sim { _lock: lock } })
    }
}

/// Lets go of the disk when dropped, unless its process was killed before.
#[derive(Debug)]
pub(super) struct SimLock {
    state: Arc<Mutex<DiskState>>,
    incarnation: u64,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        if state.incarnation == self.incarnation {
            state.locked = false;
        }
    }
}

/// A handle of one incarnation of the process.
struct SimFile {
    state: Arc<Mutex<DiskState>>,
    name: String,
    incarnation: u64,
}

impl std::fmt::Debug for SimFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimFile")
            .field("name", &self.name)
            .field("incarnation", &self.incarnation)
            .finish_non_exhaustive()
    }
}

/// A range of a file that is mapped.
#[derive(Debug)]
pub(super) struct SimRange {
    file: SimFile,
    offset: u64,
}

impl SimRange {
    /// Writes appended bytes to the page cache, at `at` of the range.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        self.file.put(OpKind::Store, bytes, self.offset + at as u64)
    }

    /// Makes bytes ready to be appended to. Every error that appending may have is an error here.
    pub(super) fn make_ready(&self) -> io::Result<()> {
        self.file.state.lock().begin(self.file.incarnation, OpKind::Ready).map(drop)
    }
}

impl SimFile {
    fn with<T>(&self, with: impl FnOnce(&mut Contents) -> T) -> io::Result<T> {
        let mut state = self.state.lock();
        state.files.get_mut(&self.name).map(with).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Executes an operation, unless it fails or the process is dead. The check and the operation share one lock, so
    /// a thread of a dead process changes nothing.
    fn operate<T>(&self, kind: OpKind, with: impl FnOnce(&mut Contents) -> T) -> io::Result<T> {
        let mut state = self.state.lock();
        state.begin(self.incarnation, kind)?;
        state.files.get_mut(&self.name).map(with).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn put(&self, kind: OpKind, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        let fault = state.begin(self.incarnation, kind)?;
        let end = offset as usize + bytes.len();
        if !state.files.contains_key(&self.name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if end > state.files[&self.name].bytes.len() {
            state.grow(&self.name, end)?;
        }
        state.fill_holes(&self.name, offset as usize, bytes.len())?;
        let sectors = bytes.len() / SECTOR_BYTES;
        let written = match fault {
            None | Some(Fault::Writeback) => bytes.len(),
            Some(Fault::Fail | Fault::Kill) => state.rng.index(sectors + 1) * SECTOR_BYTES,
        };
        let contents = state.files.get_mut(&self.name).expect("looked up above");
        let result = contents.write(&bytes[..written], offset as usize);
        contents.refused |= fault == Some(Fault::Writeback);
        if fault == Some(Fault::Kill) {
            state.kill();
            return Err(io::Error::other("the simulated process died"));
        }
        result
    }
}

impl File for SimFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|contents| contents.bytes.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.operate(OpKind::Read, |contents| contents.read(buffer, offset as usize))?
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_buffered_at(bytes, offset)
    }

    fn write_buffered_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.put(OpKind::Write, bytes, offset)
    }

    fn map(&self, offset: u64, bytes: usize) -> io::Result<Option<Appender>> {
        let len = self.len()?;
        if offset.checked_add(bytes as u64).is_none_or(|end| end > len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let file = SimFile { state: self.state.clone(), name: self.name.clone(), incarnation: self.incarnation };
        Ok(self.state.lock().maps.then(|| Appender::sim(SimRange { file, offset }, bytes)))
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        let begun = state.begin(self.incarnation, OpKind::Sync);
        if state.incarnation != self.incarnation {
            return begun.map(drop);
        }
        let contents = state.files.get_mut(&self.name).ok_or(io::ErrorKind::NotFound)?;
        let result = contents.sync(begun.is_err());
        state.has_failed_sync |= result.is_err();
        result
    }

    fn forget_cached(&self) -> io::Result<()> {
        self.operate(OpKind::Read, |contents| {
            for (sector, durable) in std::mem::take(&mut contents.given_up) {
                contents.put_back(sector, &durable);
            }
        })
    }

    fn allocate(&self, len: u64, _extents: &[u64]) -> io::Result<()> {
        let mut state = self.state.lock();
        state.begin(self.incarnation, OpKind::Allocate)?;
        if !state.files.contains_key(&self.name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.grow(&self.name, len as usize)
    }

    fn reserve(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.begin(self.incarnation, OpKind::Allocate)?;
        state.fill_holes(&self.name, offset as usize, bytes as usize)
    }

    /// Overwrites the range: a reader that still uses it must notice, and nothing else tells that the range has no
    /// space.
    fn release(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        self.operate(OpKind::Allocate, |contents| {
            let end = contents.bytes.len().min((offset + bytes) as usize);
            contents.bytes.get_mut(offset as usize..end).into_iter().for_each(|range| range.fill(RELEASED));
            contents.holes.extend((offset as usize).div_ceil(DIRECT_ALIGN)..end / DIRECT_ALIGN);
            true
        })
    }

    fn device_room(&self) -> Option<DeviceRoom> {
        let state = self.state.lock();
        let bytes = state.room.unwrap_or(state.capacity);
        Some(DeviceRoom { bytes, left: bytes.saturating_sub(state.taken()) })
    }

    fn counters(&self) -> DeviceCounters {
        self.with(|contents| contents.counters).unwrap_or_default()
    }
}

#[cfg(test)]
#[path = "sim_tests.rs"]
mod tests;

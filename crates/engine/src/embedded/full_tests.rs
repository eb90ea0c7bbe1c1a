//! A store on a file system that copies on write, where each write may find no room: nothing is broken by that, and it
//! goes on by itself when there is room.

use super::fault_tests::{Model, everything, options};
use super::*;
use leeward_platform::disk::DiskLock;
use leeward_platform::{Appender, DeviceCounters, File, SimDisk};
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

/// Where data segments begin: the manifest is elsewhere.
const DATA: u64 = 9 * (32 << 10);
/// `ENOSPC`, `EDQUOT` and `EFBIG` of Linux.
const FULL: [i32; 3] = [28, 122, 27];

/// A disk that promises room and does not keep the promise: while `refusal` is set, writes of data get that error.
struct Copying {
    disk: SimDisk,
    refusal: Arc<AtomicI32>,
}

#[derive(Debug)]
struct CopyingFile {
    file: Arc<dyn File>,
    refusal: Arc<AtomicI32>,
}

impl Disk for Copying {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(CopyingFile { file: self.disk.open(name)?, refusal: self.refusal.clone() }))
    }
    fn exists(&self, name: &str) -> io::Result<bool> {
        self.disk.exists(name)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn replace(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.replace(from, to)
    }
    fn lock(&self) -> io::Result<DiskLock> {
        self.disk.lock()
    }
}

impl CopyingFile {
    fn write(&self, offset: u64, write: impl FnOnce(&dyn File) -> io::Result<()>) -> io::Result<()> {
        match self.refusal.load(Ordering::SeqCst) {
            errno if errno != 0 && offset >= DATA => Err(io::Error::from_raw_os_error(errno)),
            _ => write(&*self.file),
        }
    }
}

impl File for CopyingFile {
    fn name(&self) -> &str {
        self.file.name()
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(offset, |file| file.write_at(bytes, offset))
    }
    fn write_buffered_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(offset, |file| file.write_buffered_at(bytes, offset))
    }
    fn map(&self, _: u64, _: usize) -> io::Result<Option<Appender>> {
        Ok(None)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
    fn forget_cached(&self) -> io::Result<()> {
        self.file.forget_cached()
    }
    fn allocate(&self, len: u64, extents: &[u64]) -> io::Result<()> {
        self.file.allocate(len, extents)
    }
    fn reserve(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.file.reserve(offset, bytes)
    }
    fn release(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        self.file.release(offset, bytes)
    }
    fn counters(&self) -> DeviceCounters {
        self.file.counters()
    }
}

/// Puts that were answered with success are in `model`; the others are in `unknown`.
fn put(db: &Db, n: u32, model: &mut Model, unknown: &mut Model) -> Result<()> {
    let (key, value) = (format!("key{:04}", n % 1500).into_bytes(), n.to_be_bytes().repeat(1 + n as usize % 90));
    match db.put(&key, &value) {
        Ok(_) => {
            unknown.remove(&key);
            model.insert(key, value);
            Ok(())
        }
        Err(error) => {
            unknown.insert(key, value);
            Err(error)
        }
    }
}

/// [`put`] when there is room again: until every worker has tried again, a writer may get its error.
fn put_with_room(db: &Db, n: u32, model: &mut Model, unknown: &mut Model) {
    let since = Instant::now();
    while let Err(error) = put(db, n, model, unknown) {
        assert!(matches!(error, Error::NoSpace { .. }) && since.elapsed() < Duration::from_secs(30), "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_write_without_room_ends_nothing() {
    for errno in FULL {
        let disk = Copying { disk: SimDisk::new(1, 1 << 30), refusal: Arc::default() };
        let open = || Db::open_on(&disk, "sim", options(), Arc::new(BootClock)).expect("a store");
        let (db, mut model, mut unknown) = (open(), Model::new(), Model::new());
        for round in 0..3 {
            for n in 0..3000 {
                put_with_room(&db, round * 10_000 + n, &mut model, &mut unknown);
            }
            disk.refusal.store(errno, Ordering::SeqCst);
            let full = Instant::now();
            let mut refused = 0;
            for n in 0..200 {
                if let Err(error) = put(&db, round * 10_000 + 5000 + n, &mut model, &mut unknown) {
                    assert!(matches!(error, Error::NoSpace { .. }), "{errno}: {error}");
                    refused += 1;
                }
            }
            assert!(refused > 0 && full.elapsed() < Duration::from_secs(60));
            disk.refusal.store(0, Ordering::SeqCst);
            put_with_room(&db, round * 10_000 + 9000, &mut model, &mut unknown);
        }
        let check = |db: &Db, when: &str| {
            let found = everything(db).unwrap();
            let lost = model.iter().find(|(key, value)| {
                let is = found.get(*key);
                is != Some(value) && (is.is_none() || is != unknown.get(*key))
            });
            assert!(lost.is_none(), "{errno}, {when}: {lost:?}");
            assert!(db.verify().damaged.is_empty());
        };
        check(&db, "before the end");
        db.close().unwrap();
        check(&open(), "after it");
    }
}

/// A compaction that finds no room gives back what it wrote: there are free segments then, and still too few.
#[test]
fn a_store_that_refuses_writes_says_why_at_any_time() {
    for maps in [false, true] {
        let disk = SimDisk::new(3, 6 << 20);
        disk.set_maps(maps);
        let db = Db::open_on(&disk, "sim", options(), Arc::new(BootClock)).expect("a store");
        let mut rng = Rng::new(3);
        let mut put = || db.put(&rng.u64().to_be_bytes(), &[7; 150]);
        let (mut in_a_row, mut untold) = (0, 0);
        for _ in 0..200_000 {
            match put() {
                Ok(()) => (in_a_row, untold) = (0, 0),
                Err(error) => {
                    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
                    (in_a_row, untold) = (in_a_row + 1, untold + u32::from(db.volume.why_full().is_none()));
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            if in_a_row == 300 {
                break;
            }
        }
        // A writer may get the error of just before a compaction gave some room back.
        assert!(in_a_row == 300 && untold < 30, "{untold} of {in_a_row} untold: {:?}", db.stats());
    }
}

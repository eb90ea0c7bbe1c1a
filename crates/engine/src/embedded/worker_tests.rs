//! Threads that panic, and a flusher that cannot do everything: no writer waits forever, and no acknowledged write is
//! lost.

use super::*;
use crate::embedded::{Db, DbOptions};
use crate::volume::VolumeOptions;
use leeward_platform::disk::DiskLock;
use leeward_platform::{Appender, BootClock, DeviceCounters, Disk, File, SimDisk};
use std::io;
use std::sync::mpsc::channel;

/// Longest time of anything that does not wait forever.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A disk on which each thread panics whose name has this prefix.
#[derive(Clone)]
struct Cursed {
    disk: SimDisk,
    names: Arc<Mutex<Option<&'static str>>>,
}

#[derive(Debug)]
struct CursedFile {
    file: Arc<dyn File>,
    names: Arc<Mutex<Option<&'static str>>>,
}

impl Disk for Cursed {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(CursedFile { file: self.disk.open(name)?, names: self.names.clone() }))
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

impl CursedFile {
    fn meet(&self) -> &dyn File {
        let names = *self.names.lock();
        let thread = std::thread::current();
        assert!(names.is_none_or(|names| !thread.name().unwrap_or_default().starts_with(names)), "the disk is cursed");
        &*self.file
    }
}

impl File for CursedFile {
    fn name(&self) -> &str {
        self.file.name()
    }
    fn len(&self) -> io::Result<u64> {
        self.meet().len()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.meet().read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.meet().write_at(bytes, offset)
    }
    fn write_buffered_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.meet().write_buffered_at(bytes, offset)
    }
    fn map(&self, offset: u64, bytes: usize) -> io::Result<Option<Appender>> {
        self.meet().map(offset, bytes)
    }
    fn sync(&self) -> io::Result<()> {
        self.meet().sync()
    }
    fn forget_cached(&self) -> io::Result<()> {
        self.meet().forget_cached()
    }
    fn allocate(&self, len: u64, extents: &[u64]) -> io::Result<()> {
        self.meet().allocate(len, extents)
    }
    fn reserve(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.meet().reserve(offset, bytes)
    }
    fn release(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        self.meet().release(offset, bytes)
    }
    fn counters(&self) -> DeviceCounters {
        self.file.counters()
    }
}

fn cursed() -> Cursed {
    Cursed { disk: SimDisk::new(1, 1 << 30), names: Arc::default() }
}

fn open(disk: &dyn Disk) -> Db {
    let volume = VolumeOptions { segment_bytes: 32 << 10, memory_budget: 1 << 20, ..VolumeOptions::default() };
    let sync = SyncMode::Every(Duration::from_millis(10));
    let options = DbOptions { volume, l0_bytes: 64 << 10, sync, ..DbOptions::default() };
    Db::open_on(disk, "sim", options, Arc::new(BootClock)).expect("a store")
}

/// Returns the result of `work`, which must not wait forever.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (answer, answers) = channel();
    std::thread::spawn(move || answer.send(work()));
    answers.recv_timeout(TIMEOUT).expect("no writer waits for ever")
}

#[test]
fn a_worker_that_panics_ends_all_writing_and_leaves_no_writer_waiting() {
    for name in ["lw-flush", "lw-l0s", "lw-levels"] {
        let disk = cursed();
        let db = Arc::new(open(&disk));
        *disk.names.lock() = Some(name);
        // Several, so that the last of the waiting writers is woken too.
        let writers: Vec<_> = (0..3u32)
            .map(|writer| {
                let db = db.clone();
                move || {
                    let mut put = (0u32..).map(|n| (n, db.put(&[writer, n].map(u32::to_be_bytes).concat(), &[1; 300])));
                    put.find_map(|(n, answer)| answer.err().map(|error| (n, error))).expect("it is refused some time")
                }
            })
            .collect();
        let refused = in_time(move || {
            let writers: Vec<_> = writers.into_iter().map(std::thread::spawn).collect();
            writers.into_iter().map(|writer| writer.join().expect("it has an answer")).collect::<Vec<_>>()
        });
        for (_, error) in &refused {
            let said = error.to_string();
            assert!(matches!(error, Error::Panicked { .. }), "{said}");
            assert!(said.contains(name) && said.contains("panicked (the disk is cursed)"), "{said}");
        }
        let is_whole = |db: &Db| {
            for (writer, (end, _)) in (0u32..).zip(&refused) {
                let has = |n: u32| db.get(&[writer, n].map(u32::to_be_bytes).concat()).expect("reads go on").is_some();
                assert!((0..*end).all(has), "{name}");
            }
        };
        is_whole(&db);
        assert!(matches!(db.checkpoint("late"), Err(Error::Panicked { .. })));
        assert!(matches!(db.ingest([("a", "b")]), Err(Error::Panicked { .. })));
        let db = Arc::into_inner(db).expect("the writers are gone");
        assert!(matches!(in_time(|| db.close()), Err(Error::Panicked { .. })));
        is_whole(&open(&disk.disk));
    }
}

#[test]
fn a_writer_that_panics_is_the_last() {
    let disk = cursed();
    let db = Arc::new(open(&disk));
    *disk.names.lock() = Some("a writer");
    let writer = {
        let db = db.clone();
        std::thread::Builder::new().name("a writer".into()).spawn(move || db.put(b"key", b"value"))
    };
    assert!(writer.expect("a thread").join().is_err(), "it has to map a tail");
    let said = db.put(b"key", b"value").unwrap_err().to_string();
    assert!(said.contains("thread a writer panicked (the disk is cursed)"), "{said}");
    assert_eq!(db.get(b"key").unwrap(), None);
}

#[test]
fn what_was_written_is_synced_also_where_there_is_no_room_for_more() {
    let disk = SimDisk::new(1, 1 << 30);
    // Nine segments are the volume's own, and three are the log's.
    let volume =
        VolumeOptions { segment_bytes: 32 << 10, capacity_bytes: Some(12 * (32 << 10)), ..VolumeOptions::default() };
    let sync = SyncMode::Every(Duration::from_millis(10));
    let db =
        Db::open_on(&disk, "sim", DbOptions { volume, sync, ..DbOptions::default() }, Arc::new(BootClock)).unwrap();
    let error = (0u32..).find_map(|n| db.put(&n.to_be_bytes(), &[1; 90]).err()).expect("it is full some time");
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    let since = Instant::now();
    while db.region.is_unsynced() {
        assert!(since.elapsed() < TIMEOUT, "synced to {:?} of {:?}", db.region.synced_lsn(), db.region.last_lsn());
        std::thread::sleep(Duration::from_millis(5));
    }
}

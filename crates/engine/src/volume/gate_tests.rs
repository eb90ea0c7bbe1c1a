//! For tests: a file whose syncs are held until the test lets them go on.
//!
//! So a test says "this returned while a sync was held", whatever the speed of the machine.

use leeward_platform::disk::Content;
use leeward_platform::{Appender, DeviceCounters, File};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A test that waits this long has found a thread that waits for a sync.
const HANGS: Duration = Duration::from_secs(20);

/// The file: all goes to `file`.
#[derive(Debug)]
pub(crate) struct Gate {
    file: Arc<dyn File>,
    syncs: Mutex<Syncs>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Syncs {
    /// Syncs that were begun.
    begun: u64,
    /// Syncs that may end; `None`: all.
    may_end: Option<u64>,
}

impl Gate {
    /// An open gate before `file`.
    pub(crate) fn new(file: Arc<dyn File>) -> Arc<Gate> {
        Arc::new(Gate { file, syncs: Mutex::default(), changed: Condvar::new() })
    }

    /// Holds every sync from now on. Returns the number of syncs so far.
    pub(crate) fn close(&self) -> u64 {
        let mut syncs = self.syncs.lock();
        syncs.may_end = Some(syncs.begun);
        syncs.begun
    }

    /// Lets one more sync end.
    pub(crate) fn let_one_end(&self) {
        self.set(|may_end| *may_end = may_end.map(|may_end| may_end + 1));
    }

    /// Holds no sync any more.
    pub(crate) fn open(&self) {
        self.set(|may_end| *may_end = None);
    }

    fn set(&self, to: impl FnOnce(&mut Option<u64>)) {
        to(&mut self.syncs.lock().may_end);
        self.changed.notify_all();
    }

    /// Waits until sync number `number` was begun.
    pub(crate) fn until_begun(&self, number: u64) {
        let mut syncs = self.syncs.lock();
        while syncs.begun < number {
            self.changed.wait(&mut syncs);
        }
    }

    /// Calls `call` on a thread of its own. If that waits for a sync, opens the gate and panics.
    pub(crate) fn must_return<T: Send>(&self, what: &str, call: impl FnOnce() -> T + Send) -> T {
        let began = Instant::now();
        std::thread::scope(|scope| {
            let call = scope.spawn(call);
            while !call.is_finished() && began.elapsed() < HANGS {
                std::thread::yield_now();
            }
            let returned = call.is_finished();
            if !returned {
                self.open();
            }
            let answer = call.join().unwrap_or_else(|panic| {
                // Threads that it holds would keep the test from ending.
                self.open();
                resume_unwind(panic)
            });
            assert!(returned, "{what} waits for a sync");
            answer
        })
    }
}

impl File for Gate {
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
        self.file.write_at(bytes, offset)
    }
    fn write_buffered_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_buffered_at(bytes, offset)
    }
    fn renew(&self, offset: u64, bytes: u64, content: Content) -> io::Result<()> {
        self.file.renew(offset, bytes, content)
    }
    fn map(&self, offset: u64, bytes: usize) -> io::Result<Option<Appender>> {
        self.file.map(offset, bytes)
    }
    fn sync(&self) -> io::Result<()> {
        let mut syncs = self.syncs.lock();
        syncs.begun += 1;
        let number = syncs.begun;
        self.changed.notify_all();
        while syncs.may_end.is_some_and(|may_end| may_end < number) {
            self.changed.wait(&mut syncs);
        }
        drop(syncs);
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

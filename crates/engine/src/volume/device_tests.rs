//! Tests of the device's syncs: an error that the operating system reports once reaches every caller, and waiting
//! callers share a sync. And of what is full, and what is broken.

use super::*;
use leeward_platform::disk::{Fault, FaultPlan};
use leeward_platform::{DeviceCounters, Disk, Rng, SimDisk};
use std::sync::Barrier;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::thread;

/// A file whose syncs block until they may end. It reports a lost write as Linux does: once, to the sync that ends
/// first.
#[derive(Debug, Default)]
struct Slow {
    begun: AtomicU64,
    may_end: AtomicU64,
    has_lost: Mutex<bool>,
    panics: bool,
    /// Error number of every write, of making room, and of a sync; 0 for none.
    refusal: AtomicI32,
}

impl Slow {
    fn refused(&self) -> io::Result<()> {
        match self.refusal.load(Ordering::SeqCst) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

impl File for Slow {
    fn name(&self) -> &str {
        "slow"
    }
    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
        Ok(())
    }
    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        self.refused()
    }
    fn write_buffered_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        self.refused()
    }
    fn renew(&self, _: u64, _: u64, _: Content) -> io::Result<()> {
        self.refused()
    }
    fn map(&self, _: u64, _: usize) -> io::Result<Option<Appender>> {
        self.refused().map(|()| None)
    }
    fn sync(&self) -> io::Result<()> {
        self.refused()?;
        let has_lost = std::mem::take(&mut *self.has_lost.lock());
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        until(|| self.may_end.load(Ordering::SeqCst) >= number);
        assert!(!self.panics, "the file panics");
        if has_lost { Err(io::Error::other("a write was lost")) } else { Ok(()) }
    }
    fn forget_cached(&self) -> io::Result<()> {
        Ok(())
    }
    fn allocate(&self, _: u64, _: &[u64]) -> io::Result<()> {
        self.refused()
    }
    fn reserve(&self, _: u64, _: u64) -> io::Result<()> {
        self.refused()
    }
    fn release(&self, _: u64, _: u64) -> io::Result<bool> {
        Ok(true)
    }
    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}

fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        thread::yield_now();
    }
}

/// A sync is running, and other callers wait for the next or have begun their own; then all may end. Returns the result
/// of each caller, the first one's first, and the number of syncs of the file.
fn sync_beside(file: Slow, others: usize) -> (Vec<thread::Result<Result<Durable>>>, u64, Device) {
    let file = Arc::new(file);
    let device = Device::new(file.clone());
    let begun = || file.begun.load(Ordering::SeqCst);
    let answers = thread::scope(|scope| {
        let first = scope.spawn(|| device.sync());
        until(|| begun() == 1);
        let others: Vec<_> = (0..others).map(|_| scope.spawn(|| device.sync())).collect();
        until(|| device.waiting() as u64 + begun() == 1 + others.len() as u64);
        // The others first, if they have begun their own; the first caller is the last to know.
        file.may_end.store(u64::MAX, Ordering::SeqCst);
        let others: Vec<_> = others.into_iter().map(thread::ScopedJoinHandle::join).collect();
        [first.join()].into_iter().chain(others).collect()
    });
    (answers, begun(), device)
}

#[test]
fn an_error_that_is_reported_once_reaches_every_caller_of_sync() {
    let (answers, syncs, device) = sync_beside(Slow { has_lost: Mutex::new(true), ..Slow::default() }, 3);
    let mut answers = answers.into_iter().map(|answer| answer.expect("no panic").map(drop));
    assert!(matches!(answers.next(), Some(Err(Error::Io { action: "sync", .. }))));
    for answer in answers {
        assert!(matches!(answer, Err(Error::VolumeFailed { .. })), "{answer:?}");
    }
    assert_eq!(syncs, 1, "no caller syncs after that");
    assert!(device.sync().is_err() && device.why_failed().is_some());
}

#[test]
fn waiting_callers_share_the_next_sync() {
    let (answers, syncs, device) = sync_beside(Slow::default(), 5);
    assert!(answers.into_iter().all(|answer| matches!(answer, Ok(Ok(_)))));
    assert_eq!(syncs, 2, "the one under way may have begun too early");
    device.sync().unwrap();
}

#[test]
fn a_sync_that_panics_leaves_no_caller_waiting() {
    let (answers, syncs, device) = sync_beside(Slow { panics: true, ..Slow::default() }, 2);
    let mut answers = answers.into_iter();
    assert!(answers.next().is_some_and(|first| first.is_err()), "the panic goes on");
    assert!(answers.all(|answer| matches!(answer, Ok(Err(Error::Panicked { .. })))));
    assert_eq!(syncs, 1);
    assert!(matches!(device.sync(), Err(Error::Panicked { .. })));
}

/// Each thread writes and syncs. Acknowledged writes survive a power loss, whichever write the device refused.
#[test]
fn nothing_is_answered_that_the_device_has_lost() {
    const WRITERS: usize = 4;
    for op in 1..120 {
        let disk = SimDisk::new(op, 1 << 20);
        let file = disk.open("f").unwrap();
        file.allocate((WRITERS * 4096) as u64, &[4096]).unwrap();
        file.sync().unwrap();
        let (device, start) = (Device::new(file), Barrier::new(WRITERS));
        disk.set_faults(FaultPlan { at: vec![(op, Fault::Writeback)], ..FaultPlan::default() });
        let write = |writer: usize| -> Option<usize> {
            start.wait();
            let mut pages = (0..8).map(|page| writer * 8 + page);
            pages.find(|page| {
                let done = device.write_buffered(*page as u64 * 512, &[1; 512]).and_then(|()| device.sync());
                done.is_err()
            })
        };
        let stopped: Vec<_> = thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let write = &write;
                    scope.spawn(move || write(writer))
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        disk.lose_power(&mut Rng::new(op));
        let contents = disk.contents("f");
        for (writer, stopped) in stopped.into_iter().enumerate() {
            let answered = writer * 8..stopped.unwrap_or(writer * 8 + 8);
            assert!(answered.into_iter().all(|page| contents[page * 512] == 1), "operation {op}, writer {writer}");
        }
    }
}

/// `ENOSPC`, `EDQUOT` and `EFBIG` of Linux.
const FULL: [i32; 3] = [28, 122, 27];
/// `EIO`.
const BROKEN: i32 = 5;

/// Every way to write, or to make room for it.
fn attempts(device: &Device) -> Vec<Result<()>> {
    let begun = device.begin_write(0, Bytes::from_static(&[1])).and_then(|pending| {
        let ended = pending.wait().map(drop);
        ended.map_err(|error| device.not_written(0, error))
    });
    vec![
        device.allocate(1 << 20, 1 << 20),
        device.reserve(0, 4096),
        device.map(0, 4096).map(drop),
        device.renew(0, 4096, Content::Plain),
        device.write(0, &[1; 4096]),
        device.write_buffered(0, &[1]),
        device.write_padded(0, &[1], 4095),
        begun,
    ]
}

#[test]
fn a_device_that_is_full_is_not_broken() {
    for errno in FULL {
        let file = Arc::new(Slow { may_end: AtomicU64::new(u64::MAX), ..Slow::default() });
        let device = Device::new(file.clone());
        file.refusal.store(errno, Ordering::SeqCst);
        for (number, attempt) in attempts(&device).into_iter().enumerate() {
            assert!(matches!(attempt, Err(Error::NoSpace { .. })), "{errno}, {number}: {attempt:?}");
        }
        assert_eq!(device.why_failed(), None);
        file.refusal.store(0, Ordering::SeqCst);
        assert!(attempts(&device).iter().all(Result::is_ok), "there is room again");
        device.sync().unwrap();
        // What a sync has no room for was written before, and is lost.
        file.refusal.store(errno, Ordering::SeqCst);
        assert!(device.sync().is_err() && device.why_failed().is_some());
    }
}

#[test]
fn a_write_that_fails_otherwise_ends_all_writing() {
    let file = Arc::new(Slow::default());
    let device = Device::new(file.clone());
    file.refusal.store(BROKEN, Ordering::SeqCst);
    device.write_buffered(0, &[1]).unwrap_err();
    file.refusal.store(0, Ordering::SeqCst);
    for attempt in attempts(&device) {
        assert!(matches!(attempt, Err(Error::VolumeFailed { .. })), "{attempt:?}");
    }
}

//! Reads by `io_uring`: several in flight from one thread, and none that keeps appends from the file.
//!
//! A thread that waits in `pread` of a direct file holds the lock of the file's inode until the device answers, shared
//! with other readers. A write through the page cache takes that lock alone, as log tails do: it waits for all of them,
//! and they for it. A ring holds the lock while a read is submitted. Four threads that read 8 KiB each beside such a
//! writer read 1.8 times as much; 64 KiB of zeroes take 18 us at the median and 143 us at the 99th percentile, instead
//! of 208 us and 7.9 ms.
//!
//! Nothing is written by rings. A process that is killed does not wait for what its rings have in flight, but for what
//! its threads wait for in `pwrite`. So a write by a ring might reach the device when the next process has the lock of
//! the directory, and has given the place to something else. A late read harms nothing.
//!
//! Each thread has its own ring, made at its first use. [`read`] returns only when the kernel is done with the memory. A
//! kernel or a sandbox without rings is asked once. A shortage of memory or of file descriptors passes: the thread goes
//! on without a ring for a while, and then asks again.
#![expect(unsafe_code, reason = "the kernel is given addresses to write to")]

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// `IORING_ENTER_GETEVENTS`: wait for completions.
const GET_EVENTS: u32 = 1;
/// Most reads at a time.
pub(super) const MOST: usize = 64;
/// Calls without a ring after one could not be had.
const CALLS_WITHOUT: u32 = 256;
/// Time between two looks for completions, if the kernel cannot wait for them at the moment.
const RECHECK: Duration = Duration::from_millis(1);

/// State of this process.
static RINGS: Rings = Rings::new();

/// Whether rings work in this process.
struct Rings {
    refused: AtomicBool,
}

thread_local! {
    static RING: RefCell<Option<IoUring>> = const { RefCell::new(None) };
    /// Calls of this thread that still go without a ring.
    static WITHOUT: Cell<u32> = const { Cell::new(0) };
}

/// A read of a file into memory. The kernel may refuse it if the file is direct and address, length or offset is no
/// multiple of 4096.
pub(super) struct RingRead<'a> {
    memory: &'a mut [u8],
    offset: u64,
    done: usize,
}

impl<'a> RingRead<'a> {
    pub(super) fn new(memory: &'a mut [u8], offset: u64) -> RingRead<'a> {
        RingRead { memory, offset, done: 0 }
    }

    /// The bytes that were read: fewer than the memory has at the end of the file; none after an error, or where there
    /// is no ring.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[..self.done]
    }

    fn entry(&mut self, file: &File) -> squeue::Entry {
        // Of more than the length can say, the first bytes are read.
        let len = u32::try_from(self.memory.len()).unwrap_or(1 << 30);
        opcode::Read::new(types::Fd(file.as_raw_fd()), self.memory.as_mut_ptr(), len).offset(self.offset).build()
    }
}

/// Whether this call of the thread goes without a ring. Each question counts as one of the calls without.
pub(super) fn is_missing() -> bool {
    let without = WITHOUT.get();
    WITHOUT.set(without.saturating_sub(1));
    without > 0 || RINGS.refused.load(Relaxed)
}

/// This thread goes without a ring for a while.
pub(super) fn go_without() {
    WITHOUT.set(CALLS_WITHOUT);
}

impl Rings {
    const fn new() -> Rings {
        Rings { refused: AtomicBool::new(false) }
    }

    /// Opens a ring with `make`, unless rings are known not to work.
    fn open<T>(&self, make: impl FnOnce() -> io::Result<T>) -> Option<T> {
        if self.refused.load(Relaxed) {
            return None;
        }
        make().inspect_err(|error| self.failed(error)).ok()
    }

    /// Notes that a ring could not be opened or used.
    fn failed(&self, error: &io::Error) {
        if is_for_good(error) {
            self.refused.store(true, Relaxed);
        }
    }
}

/// Whether an error means that rings never work here. Otherwise something is short or in the way at the moment.
fn is_for_good(error: &io::Error) -> bool {
    const PASSING: [Errno; 6] = [Errno::NOMEM, Errno::AGAIN, Errno::BUSY, Errno::INTR, Errno::MFILE, Errno::NFILE];
    !error.raw_os_error().is_some_and(|errno| PASSING.iter().any(|passing| passing.raw_os_error() == errno))
}

/// Executes `reads`, at most [`MOST`]. [`RingRead::bytes`] tells how far each got.
pub(super) fn read(file: &File, reads: &mut [RingRead<'_>]) {
    assert!(reads.len() <= MOST, "a ring takes {MOST} reads");
    if is_missing() {
        return;
    }
    // Out of its place: whatever happens, no later call finds a ring with reads of this one.
    let ring = RING.take().or_else(|| RINGS.open(new_ring));
    let Some(mut ring) = ring else { return go_without() };
    match run(&mut ring, file, reads) {
        Ok(()) => drop(RING.replace(Some(ring))),
        Err(error) => {
            RINGS.failed(&error);
            go_without();
        }
    }
}

/// A ring of this thread. Completions come when it waits for them, and interrupt nothing else; kernels before 6.1 cannot
/// do that.
fn new_ring() -> io::Result<IoUring> {
    let deferred = IoUring::builder().dontfork().setup_single_issuer().setup_defer_taskrun().build(MOST as u32);
    let ring = deferred.or_else(|_| IoUring::builder().dontfork().build(MOST as u32))?;
    // Kernels before 5.6 have no reads like these.
    if ring.params().is_feature_rw_cur_pos() { Ok(ring) } else { Err(Errno::NOSYS.into()) }
}

/// [`read`] by `ring`, which is empty. After an error it may hold reads that were not submitted: it is dropped.
fn run(ring: &mut IoUring, file: &File, reads: &mut [RingRead<'_>]) -> io::Result<()> {
    for (i, read) in reads.iter_mut().enumerate() {
        let entry = read.entry(file).user_data(i as u64);
        // SAFETY: `reads` borrows the memory, and below all that was submitted is waited for before the function
        // returns; nothing in between panics. The file is borrowed as well. Unsubmitted entries go with the ring.
        let pushed = unsafe { ring.submission().push(&entry) };
        pushed.map_err(io::Error::other)?;
    }
    let mut complete = 0;
    while complete < reads.len() {
        let submitted = ring.submit_and_wait(reads.len() - complete);
        complete += take_completions(ring, reads);
        match submitted {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                let submitted = reads.len() - ring.submission().len();
                await_all(ring, submitted - complete, reads);
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Waits until `at_work` more reads are complete, and submits none.
fn await_all(ring: &mut IoUring, mut at_work: usize, reads: &mut [RingRead<'_>]) {
    while at_work > 0 {
        // SAFETY: nothing is submitted, and no argument is given.
        let waited = unsafe { ring.submitter().enter::<()>(0, at_work as u32, GET_EVENTS, None) };
        if waited.is_err() {
            std::thread::sleep(RECHECK);
        }
        at_work -= take_completions(ring, reads);
    }
}

/// Notes what is complete; returns the number.
fn take_completions(ring: &mut IoUring, reads: &mut [RingRead<'_>]) -> usize {
    let mut taken = 0;
    for completion in ring.completion() {
        // Only positions among `reads` were pushed, and each completes once.
        if let Some(read) = reads.get_mut(completion.user_data() as usize) {
            read.done = usize::try_from(completion.result()).unwrap_or(0);
        }
        taken += 1;
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_shortage_passes_and_a_refusal_does_not() {
        let rings = Rings::new();
        for passing in [Errno::NOMEM, Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::BUSY] {
            assert_eq!(rings.open::<()>(|| Err(passing.into())), None);
            assert_eq!(rings.open(|| Ok(1)), Some(1), "{passing}: asked again, and there it is");
        }
        assert_eq!(rings.open::<()>(|| Err(Errno::NOSYS.into())), None);
        assert_eq!(rings.open(|| Ok(1)), None, "a kernel without rings is asked once");
        let rings = Rings::new();
        rings.failed(&Errno::PERM.into());
        assert_eq!(rings.open(|| Ok(1)), None, "nor is a sandbox asked twice");
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn a_ring_is_waited_for_until_the_kernel_has_nothing_of_it() {
        // Not in every sandbox; where there are none, there is nothing to wait for.
        let Ok(mut ring) = new_ring() else { return };
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let mut memory = [[1_u8; 4096]; 2];
        let mut reads: Vec<_> = memory.iter_mut().map(|to| RingRead::new(to, 0)).collect();
        for (i, read) in reads.iter_mut().enumerate() {
            let entry = read.entry(&file).user_data(i as u64);
            // SAFETY: the memory and the file are there until both reads are complete: the test waits for that below.
            unsafe { ring.submission().push(&entry) }.unwrap();
        }
        ring.submit().unwrap();
        await_all(&mut ring, 2, &mut reads);
        assert!(reads.iter().all(|read| read.bytes() == [0; 4096]));
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn a_read_tells_how_far_it_got() {
        // Where there are no rings, nothing is read.
        let has_rings = new_ring().is_ok();
        let file = tempfile::tempfile().unwrap();
        let bytes = vec![7; 8192];
        file.write_all_at(&bytes, 4096).unwrap();
        let mut memory = vec![1; 16 << 10];
        let (first, second) = memory.split_at_mut(8192);
        let mut reads = [(first, 8192), (second, 1 << 20)].map(|(to, offset)| RingRead::new(to, offset));
        read(&file, &mut reads);
        assert_eq!(reads[0].bytes(), if has_rings { &bytes[..4096] } else { &[] }, "up to the end of the file");
        assert_eq!(reads[1].bytes(), [0; 0], "nothing is behind it");
        let directory = File::open("/").unwrap();
        let mut reads = [RingRead::new(&mut memory[..4096], 0)];
        read(&directory, &mut reads);
        assert_eq!(reads[0].bytes(), [0; 0], "an error is left to the way without a ring");
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn a_thread_goes_without_a_ring_for_a_while_only() {
        go_without();
        let calls = (0..2 * CALLS_WITHOUT).take_while(|_| is_missing()).count();
        assert!(RINGS.refused.load(Relaxed) || calls == CALLS_WITHOUT as usize);
    }
}

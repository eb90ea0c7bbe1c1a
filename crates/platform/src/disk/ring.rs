//! Several reads in flight from one thread, by `io_uring`: one system call submits them and waits for all.
//!
//! Each thread has its own ring, made at its first use. The kernel writes only into memory that the ring owns, and
//! [`read`] returns after all of these writes. If waiting fails, the memory is leaked, never freed. A kernel or a
//! sandbox without rings is asked once. A shortage of memory or of file descriptors passes: the current reads go
//! another way, and the next reads ask for a ring again.
#![expect(unsafe_code, reason = "the kernel is given addresses to write to")]

use super::{DIRECT_ALIGN, aligned};
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// `IORING_ENTER_GETEVENTS`: wait for completions.
const GET_EVENTS: u32 = 1;
/// Most reads at a time.
pub(super) const MOST_READS: usize = 64;

/// State of this process.
static RINGS: Rings = Rings::new();

/// Whether rings work in this process.
struct Rings {
    refused: AtomicBool,
}

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

struct Ring {
    io: IoUring,
    /// Memory that the kernel reads into.
    memory: Vec<u8>,
}

/// Whether rings are known not to work here.
pub(super) fn is_refused() -> bool {
    RINGS.refused.load(Relaxed)
}

/// From now on there are no rings.
#[cfg(test)]
pub(super) fn refuse() {
    RINGS.refused.store(true, Relaxed);
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

/// Reads each of `wanted`, an aligned offset and length. Calls `see` with the position of each and the bytes read:
/// fewer, or none, at the end of the file or after an error. `false` if nothing was read because there is no ring.
pub(super) fn read(file: &File, wanted: &[(u64, usize)], mut see: impl FnMut(usize, &[u8])) -> bool {
    assert!(wanted.len() <= MOST_READS, "a ring takes {MOST_READS} reads");
    RING.with_borrow_mut(|ring| {
        if ring.is_none() {
            *ring = RINGS.open(|| IoUring::new(MOST_READS as u32)).map(|io| Ring { io, memory: Vec::new() });
        }
        let Some(open) = ring else { return false };
        match open.read(file, wanted) {
            Ok((memory, lens)) => {
                let mut at = 0;
                for (i, ((_, len), got)) in wanted.iter().zip(lens).enumerate() {
                    see(i, &memory[at..at + got.min(*len)]);
                    at += len;
                }
                true
            }
            Err(Failed { error, is_idle }) => {
                match ring.take() {
                    Some(idle) if is_idle => drop(idle),
                    // The kernel may still write to its memory, so it is leaked. A ring that cannot be waited for is
                    // not tried twice.
                    at_work => {
                        std::mem::forget(at_work);
                        RINGS.refused.store(true, Relaxed);
                    }
                }
                RINGS.failed(&error);
                false
            }
        }
    })
}

/// Why a ring did not read.
struct Failed {
    error: io::Error,
    /// The kernel uses no memory of the ring any more.
    is_idle: bool,
}

impl Ring {
    /// Reads all of `wanted`, one after the other in memory; returns also how much of each was read.
    fn read(&mut self, file: &File, wanted: &[(u64, usize)]) -> Result<(&[u8], Vec<usize>), Failed> {
        let total = wanted.iter().map(|(_, len)| len).sum();
        let memory = aligned(&mut self.memory, total);
        let mut rest = &mut *memory;
        for (i, (offset, len)) in wanted.iter().enumerate() {
            debug_assert!(offset.is_multiple_of(DIRECT_ALIGN as u64) && len.is_multiple_of(DIRECT_ALIGN));
            let (part, after) = rest.split_at_mut(*len);
            rest = after;
            let read = opcode::Read::new(types::Fd(file.as_raw_fd()), part.as_mut_ptr(), *len as u32)
                .offset(*offset)
                .build()
                .user_data(i as u64);
            // SAFETY: `part` is memory of this ring, which nothing else uses and which is neither freed nor moved
            // before every read was completed: see `read` above. The file stays open as long, since we wait here.
            let pushed = unsafe { self.io.submission().push(&read) };
            // Nothing was submitted yet.
            pushed.map_err(|full| Failed { error: io::Error::other(full), is_idle: true })?;
        }
        let mut lens = vec![0; wanted.len()];
        let mut done = 0;
        while done < wanted.len() {
            match self.io.submit_and_wait(wanted.len() - done) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    let submitted = wanted.len() - self.io.submission().len();
                    return Err(Failed { error, is_idle: await_all(&mut self.io, submitted, done) });
                }
                _ => {}
            }
            for completion in self.io.completion() {
                // Only positions among `wanted` were pushed, and each completes once.
                if let Some(len) = lens.get_mut(completion.user_data() as usize) {
                    *len = usize::try_from(completion.result()).unwrap_or(0);
                }
                done += 1;
            }
        }
        Ok((memory, lens))
    }
}

/// Waits until `submitted` reads are complete, `done` of them already. Submits none. `false` if it cannot wait.
fn await_all(io: &mut IoUring, submitted: usize, mut done: usize) -> bool {
    while done < submitted {
        // SAFETY: nothing is submitted, and no argument is given.
        let waited = unsafe { io.submitter().enter::<()>(0, (submitted - done) as u32, GET_EVENTS, None) };
        match waited {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return false,
            _ => {}
        }
        done += io.completion().count();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_turns_rings_off_for_the_reads_at_hand_only() {
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
        let Ok(mut io) = IoUring::new(8) else { return };
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let mut memory = [1_u8; 4096];
        for i in 0..2 {
            let read = opcode::Read::new(types::Fd(file.as_raw_fd()), memory.as_mut_ptr(), 4096).build().user_data(i);
            // SAFETY: the memory and the file are there until both reads are complete: the test waits for that below.
            unsafe { io.submission().push(&read) }.unwrap();
        }
        io.submit().unwrap();
        assert!(await_all(&mut io, 2, 0));
        assert_eq!(memory, [0; 4096]);
    }
}

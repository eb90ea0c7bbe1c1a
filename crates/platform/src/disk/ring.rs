//! Several reads in flight from one thread, by `io_uring`: one system call submits them and waits for all.
//!
//! Each thread has a ring of its own, made at its first use. The kernel writes only into memory that the ring owns, and
//! [`read`] returns when it has written all; what it was still to write when waiting failed is leaked, never freed. A
//! kernel or a sandbox that refuses rings is asked once.
#![expect(unsafe_code, reason = "the kernel is given addresses to write to")]

use super::{DIRECT_ALIGN, aligned};
use io_uring::{IoUring, opcode, types};
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Most reads at a time.
pub(super) const MOST_READS: usize = 64;

/// There are no rings in this process.
static REFUSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

struct Ring {
    io: IoUring,
    /// Where the kernel reads to.
    memory: Vec<u8>,
}

/// Whether rings are known not to work here.
pub(super) fn is_refused() -> bool {
    REFUSED.load(Relaxed)
}

/// From now on there are no rings.
#[cfg(test)]
pub(super) fn refuse() {
    REFUSED.store(true, Relaxed);
}

/// Reads at each of `wanted`, an aligned offset and length, and calls `see` with the position of each and the bytes that
/// were read: fewer or none at the end of the file or after an error. `false` if nothing was read because there are no
/// rings.
pub(super) fn read(file: &File, wanted: &[(u64, usize)], mut see: impl FnMut(usize, &[u8])) -> bool {
    assert!(wanted.len() <= MOST_READS, "a ring takes {MOST_READS} reads");
    RING.with_borrow_mut(|ring| {
        if ring.is_none() && !is_refused() {
            match IoUring::new(MOST_READS as u32) {
                Ok(io) => *ring = Some(Ring { io, memory: Vec::new() }),
                Err(_) => REFUSED.store(true, Relaxed),
            }
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
            Err(_) => {
                // The ring may still be at work: what it writes to must outlive it.
                std::mem::forget(ring.take());
                REFUSED.store(true, Relaxed);
                false
            }
        }
    })
}

impl Ring {
    /// All of `wanted`, one after the other in memory, and how much of each was read.
    fn read(&mut self, file: &File, wanted: &[(u64, usize)]) -> io::Result<(&[u8], Vec<usize>)> {
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
            // SAFETY: `part` is memory of this ring, which nobody else uses and which is neither freed nor moved before
            // every read was completed: see `read` above. The file stays open as long, since we wait here.
            unsafe { self.io.submission().push(&read) }.map_err(io::Error::other)?;
        }
        let mut lens = vec![0; wanted.len()];
        let mut done = 0;
        while done < wanted.len() {
            match self.io.submit_and_wait(wanted.len() - done) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for completion in self.io.completion() {
                lens[completion.user_data() as usize] = usize::try_from(completion.result()).unwrap_or(0);
                done += 1;
            }
        }
        Ok((memory, lens))
    }
}

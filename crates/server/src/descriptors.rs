//! File descriptors that are kept for connections of operators, for when the process has no others left.
//!
//! They are open all the time, on nothing. When a connection cannot be accepted for lack of descriptors, one is closed,
//! and the connection gets its number. They are opened again when others are closed. May be called from any thread.

use parking_lot::Mutex;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

#[derive(Debug)]
pub(crate) struct Reserve {
    held: Mutex<Vec<OwnedFd>>,
    wanted: usize,
}

impl Reserve {
    /// Keeps `wanted` descriptors, as far as there are so many now.
    pub(crate) fn of(wanted: usize) -> Reserve {
        let reserve = Reserve { held: Mutex::default(), wanted };
        reserve.refill();
        reserve
    }

    /// Calls `accept`, and once more with one of these descriptors if it fails for lack of them.
    pub(crate) fn accept<T>(&self, mut accept: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        match accept() {
            Err(error) if is_exhaustion(&error) => {
                let spare = self.held.lock().pop().ok_or(error)?;
                drop(spare);
                accept()
            }
            other => other,
        }
    }

    /// Opens again what was closed, as far as the system has descriptors. Returns whether all are open.
    pub(crate) fn refill(&self) -> bool {
        let mut held = self.held.lock();
        while held.len() < self.wanted {
            let Ok(file) = File::open("/dev/null") else { return false };
            held.push(file.into());
        }
        true
    }
}

/// Whether descriptors have run out, in the process or in the system.
fn is_exhaustion(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_given_only_for_lack_of_others_and_taken_back() {
        let reserve = Reserve::of(2);
        let none_left = || io::Error::from(Errno::MFILE);
        let mut tries = 0;
        let mut accept = || {
            tries += 1;
            if tries % 2 == 1 { Err(none_left()) } else { Ok(tries) }
        };
        assert_eq!(reserve.accept(&mut accept).unwrap(), 2);
        assert_eq!(reserve.accept(&mut accept).unwrap(), 4);
        assert_eq!(reserve.held.lock().len(), 0);
        assert_eq!(reserve.accept(&mut accept).unwrap_err().raw_os_error(), none_left().raw_os_error());
        assert!(reserve.refill());
        assert_eq!(reserve.held.lock().len(), 2);
        let waits = reserve.accept(|| Err::<(), _>(io::ErrorKind::WouldBlock.into())).unwrap_err();
        assert_eq!((waits.kind(), reserve.held.lock().len()), (io::ErrorKind::WouldBlock, 2));
    }
}

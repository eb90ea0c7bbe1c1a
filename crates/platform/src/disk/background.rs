//! Device I/O on other threads: a compaction continues while its last segment is written and its next leaves are read.
//!
//! [`Pending`] is the result to come. It owns the memory that is written from or read to, so a caller may drop it at
//! any time. Dropping waits for the end of the I/O, because the range of the file may get another owner afterwards.

use crate::Block;
use crate::cpu::Charge;
use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::mem;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;

/// I/O that was begun.
pub struct Pending {
    state: IoState,
    /// Done to the bytes when they are waited for.
    last: Option<Last>,
}

type Last = Box<dyn FnOnce(&mut Block) + Send>;

#[derive(Debug)]
enum IoState {
    Done(io::Result<Block>),
    Begun(Receiver<io::Result<Block>>),
    Taken,
}

impl Pending {
    /// I/O that has ended.
    pub fn done(result: io::Result<Block>) -> Pending {
        Pending::new(IoState::Done(result))
    }

    fn new(state: IoState) -> Pending {
        Pending { state, last: None }
    }

    /// Does `last` to the bytes that were read, on the thread that waits for them.
    #[must_use]
    pub fn then(mut self, last: impl FnOnce(&mut Block) + Send + 'static) -> Pending {
        debug_assert!(self.last.is_none(), "one step is enough");
        self.last = Some(Box::new(last));
        self
    }

    /// Waits for the end. Returns the bytes that were read; no bytes if it was a write.
    ///
    /// # Errors
    /// Those of the I/O.
    pub fn wait(mut self) -> io::Result<Block> {
        let mut block = self.finish()?;
        if let Some(last) = self.last.take() {
            last(&mut block);
        }
        Ok(block)
    }

    fn finish(&mut self) -> io::Result<Block> {
        match mem::replace(&mut self.state, IoState::Taken) {
            IoState::Done(result) => result,
            IoState::Begun(answer) => answer.recv().unwrap_or_else(|_| Err(io::Error::other("an I/O thread is gone"))),
            IoState::Taken => Ok(Block::default()),
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pending").field(&self.state).finish()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // No caller wants to know whether it failed.
        let _ = self.finish();
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads for I/O of a file, which are started when there is some. They end when this is dropped and their work is
/// done.
#[derive(Debug)]
pub(super) struct Background {
    threads: usize,
    jobs: OnceLock<Sender<Job>>,
}

impl Background {
    pub(super) fn new(threads: usize) -> Background {
        Background { threads, jobs: OnceLock::new() }
    }

    /// Begins `io` on one of the threads, or does it here if none can be started.
    pub(super) fn begin(&self, io: impl FnOnce() -> io::Result<Block> + Send + 'static) -> Pending {
        let started = self.jobs.get().or_else(|| {
            let started = start(self.threads).ok()?;
            Some(self.jobs.get_or_init(|| started))
        });
        let Some(jobs) = started else { return Pending::done(io()) };
        let (answer, pending): (SyncSender<_>, _) = sync_channel(1);
        let charge = Charge::of_this_thread();
        let job = move || {
            // The channel has room. If no caller waits, the I/O was given up.
            let _ = answer.send(charge.run_charged(io));
        };
        match jobs.send(Box::new(job)) {
            Ok(()) => Pending::new(IoState::Begun(pending)),
            Err(_) => Pending::done(Err(io::Error::other("the I/O threads are gone"))),
        }
    }
}

fn start(threads: usize) -> io::Result<Sender<Job>> {
    let (jobs, taken): (Sender<Job>, Receiver<Job>) = channel();
    let taken = Arc::new(Mutex::new(taken));
    for _ in 0..threads {
        let taken = Arc::clone(&taken);
        thread::Builder::new().name("disk".into()).spawn(move || run(&taken))?;
    }
    Ok(jobs)
}

fn run(taken: &Mutex<Receiver<Job>>) {
    loop {
        let job = taken.lock().recv();
        let Ok(job) = job else { return };
        job();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    #[test]
    fn what_was_begun_is_over_when_it_is_waited_for_or_dropped() {
        let background = Background::new(2);
        let over = Arc::new(AtomicBool::new(false));
        let io = {
            let over = Arc::clone(&over);
            move || {
                thread::sleep(Duration::from_millis(20));
                over.store(true, Ordering::SeqCst);
                let mut block = Pool::new(0).take(1);
                block.fill(7);
                Ok(block)
            }
        };
        assert_eq!(background.begin(io.clone()).wait().unwrap()[..], [7]);
        let changed = background.begin(io.clone()).then(|block| block[0] += 1).wait().unwrap();
        assert_eq!(changed[..], [8], "a last step");
        over.store(false, Ordering::SeqCst);
        drop(background.begin(io));
        assert!(over.load(Ordering::SeqCst), "dropping waits");
        let failed = background.begin(|| Err(io::ErrorKind::StorageFull.into())).wait();
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}

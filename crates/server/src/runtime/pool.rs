//! The threads that touch the device: they run the node's jobs and send back the results.

use super::channel::{Doorbell, Event};
use super::cpu_accounting::CpuAccounting;
use super::die_of_panic;
use crate::node::{Job, JobClass};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A fixed number of threads. Foreground jobs go first. If there are several threads, one is kept for them, so a read
/// never waits for a compaction's step. Dropping the pool waits for the running jobs, and drops the queued ones, as a
/// killed process would.
pub(super) struct Pool {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// Most background jobs that run at a time.
    most_background: usize,
}

#[derive(Default)]
struct State {
    foreground: VecDeque<Job>,
    background: VecDeque<Job>,
    /// Background jobs that are running.
    running: usize,
    is_closed: bool,
}

impl Pool {
    /// Starts `threads` threads. Results go to `doorbell`, and CPU time to `cpu_accounting`.
    pub(super) fn start(threads: u32, doorbell: &Doorbell, cpu_accounting: &Arc<CpuAccounting>) -> io::Result<Pool> {
        let most_background = (threads as usize).saturating_sub(1).max(1);
        let queue = Arc::new(Queue { state: Mutex::default(), changed: Condvar::new(), most_background });
        let mut pool = Pool { queue, threads: Vec::new() };
        for number in 1..=threads {
            let (queue, doorbell, cpu_accounting) = (pool.queue.clone(), doorbell.clone(), cpu_accounting.clone());
            let thread = std::thread::Builder::new().name(format!("job-{number}"));
            pool.threads.push(thread.spawn(move || die_of_panic("a job", || queue.run(&doorbell, &cpu_accounting)))?);
        }
        Ok(pool)
    }

    /// Queues jobs.
    pub(super) fn run(&self, jobs: impl ExactSizeIterator<Item = Job>) {
        if jobs.len() == 0 {
            return;
        }
        let several = jobs.len() > 1;
        let mut state = self.queue.state.lock();
        for job in jobs {
            match job.class {
                JobClass::Foreground => state.foreground.push_back(job),
                JobClass::Background => state.background.push_back(job),
            }
        }
        drop(state);
        if several {
            self.queue.changed.notify_all();
        } else {
            self.queue.changed.notify_one();
        }
    }
}

impl Queue {
    fn run(&self, doorbell: &Doorbell, cpu_accounting: &CpuAccounting) {
        while let Some(job) = self.next() {
            let class = job.class;
            let measured = cpu_accounting.measure(job.account);
            doorbell.send(Event::Job(job.run()));
            drop(measured);
            if class == JobClass::Background {
                self.state.lock().running -= 1;
                self.changed.notify_one();
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.foreground.pop_front() {
                return Some(job);
            }
            if state.running < self.most_background
                && let Some(job) = state.background.pop_front()
            {
                state.running += 1;
                return Some(job);
            }
            self.changed.wait(&mut state);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue.state.lock().is_closed = true;
        self.queue.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic in it has ended the process.
            drop(thread.join());
        }
    }
}

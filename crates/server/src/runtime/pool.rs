//! The threads that touch the device: they run the node's jobs and send back the results.

use crate::channel::{Doorbell, Event};
use crate::cpu_accounting::CpuAccounting;
use crate::dying::die_of_panic;
use crate::node::{Job, JobClass};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// How much less of a busy CPU a thread for background jobs gets than one that a client waits for: about a tenth.
const BACKGROUND_PRIORITY: i32 = 10;

/// A fixed number of threads for each class of jobs. So a read never waits for a compaction's step, nor for the CPU while
/// compactions have it. Dropping the pool waits for the running jobs, and drops the queued ones, as a killed process would.
pub(super) struct Pool {
    foreground: Arc<Queue>,
    background: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<JobQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

impl Pool {
    /// Starts `threads` threads for foreground jobs, and one less, but at least one, for background jobs. Results go to
    /// `doorbell`, and CPU time to `cpu_accounting`.
    pub(super) fn start(threads: u32, doorbell: &Doorbell, cpu_accounting: &Arc<CpuAccounting>) -> io::Result<Pool> {
        let mut pool = Pool { foreground: Arc::default(), background: Arc::default(), threads: Vec::new() };
        let mut start = |name: &str, number: u32, class: JobClass| {
            let queue = pool.queue(class).clone();
            let (doorbell, cpu_accounting) = (doorbell.clone(), cpu_accounting.clone());
            let thread = std::thread::Builder::new().name(format!("{name}-{number}")).spawn(move || {
                if class == JobClass::Background {
                    give_way();
                }
                die_of_panic("a job", || queue.run(&doorbell, &cpu_accounting))
            })?;
            pool.threads.push(thread);
            io::Result::Ok(())
        };
        for number in 1..=threads {
            start("job", number, JobClass::Foreground)?;
        }
        for number in 1..threads.max(2) {
            start("background", number, JobClass::Background)?;
        }
        Ok(pool)
    }

    fn queue(&self, class: JobClass) -> &Arc<Queue> {
        match class {
            JobClass::Foreground => &self.foreground,
            JobClass::Background => &self.background,
        }
    }

    /// Queues jobs.
    pub(super) fn run(&self, jobs: impl Iterator<Item = Job>) {
        for job in jobs {
            let queue = self.queue(job.class);
            queue.state.lock().jobs.push_back(job);
            queue.changed.notify_one();
        }
    }
}

/// Lowers the priority of this thread. Linux has one for each thread.
fn give_way() {
    if let Err(error) = rustix::process::setpriority_process(None, BACKGROUND_PRIORITY) {
        tracing::warn!(%error, "a thread for background jobs keeps its priority");
    }
}

impl Queue {
    fn run(&self, doorbell: &Doorbell, cpu_accounting: &CpuAccounting) {
        while let Some(job) = self.next() {
            let measured = cpu_accounting.measure(job.account);
            doorbell.send(Event::Job(job.run()));
            drop(measured);
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            self.changed.wait(&mut state);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for queue in [&self.foreground, &self.background] {
            queue.state.lock().is_closed = true;
            queue.changed.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A panic in it has ended the process.
            drop(thread.join());
        }
    }
}

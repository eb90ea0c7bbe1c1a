//! The threads that touch the device: they run the node's jobs and send back what came of them.

use super::channel::{Doorbell, Event};
use super::die_of_panic;
use crate::node::Job;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A fixed number of threads with one queue. Dropping it waits for the jobs that are running; those still queued are
/// dropped, as a killed process would.
pub(super) struct Pool {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

impl Pool {
    /// Starts `threads` threads, whose results go to `doorbell`.
    pub(super) fn start(threads: u32, doorbell: &Doorbell) -> io::Result<Pool> {
        let queue = Arc::new(Queue::default());
        let mut pool = Pool { queue, threads: Vec::new() };
        for number in 1..=threads {
            let (queue, doorbell) = (pool.queue.clone(), doorbell.clone());
            let thread = std::thread::Builder::new().name(format!("job-{number}"));
            pool.threads.push(thread.spawn(move || die_of_panic("a job", || queue.run(&doorbell)))?);
        }
        Ok(pool)
    }

    /// Queues jobs.
    pub(super) fn run(&self, jobs: impl ExactSizeIterator<Item = Job>) {
        if jobs.len() == 0 {
            return;
        }
        let several = jobs.len() > 1;
        self.queue.state.lock().jobs.extend(jobs);
        if several {
            self.queue.changed.notify_all();
        } else {
            self.queue.changed.notify_one();
        }
    }
}

impl Queue {
    fn run(&self, doorbell: &Doorbell) {
        while let Some(job) = self.next() {
            doorbell.send(Event::Job(job()));
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
        self.queue.state.lock().is_closed = true;
        self.queue.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic in it has ended the process.
            drop(thread.join());
        }
    }
}

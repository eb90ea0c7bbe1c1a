//! The memory of this process, watched while a test does its work. One test at a time may use this in a process.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

pub(crate) const MIB: usize = 1 << 20;

/// Bytes of this process, without the page cache.
pub(crate) fn memory_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("the kernel tells");
    let line = status.lines().find(|line| line.starts_with("RssAnon")).expect("the kernel tells");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number") << 10
}

/// Peak memory of the process since the last call.
#[derive(Default)]
pub(crate) struct Peak(AtomicUsize);

impl Peak {
    /// Peak in bytes; begins anew.
    pub(crate) fn take(&self) -> usize {
        self.0.swap(memory_bytes(), Relaxed).max(memory_bytes())
    }
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Does `work` while the process is measured.
pub(crate) fn watch<T>(work: impl FnOnce(&Peak) -> T) -> T {
    let (done, peak) = (AtomicBool::new(false), Peak::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                peak.0.fetch_max(memory_bytes(), Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        // Also when it panics.
        let _end = End(&done);
        work(&peak)
    })
}

//! Limits the page cache of an engine without direct I/O. Such an engine would use all free memory of the machine as
//! its cache, far beyond its memory limit. While it runs, its parent process drops the engine's tables from the page
//! cache. The CPU time of the parent does not count.

use rustix::fs::{Advice, fadvise};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Pause between two rounds. What the engine reads meanwhile is its share of the page cache.
const PAUSE: Duration = Duration::from_millis(100);
/// Extension of journals, which are only written: dropping their last page would cost a read for the next write.
const JOURNAL: &str = "jnl";

/// Drops the clean pages of the files below `directory` every [`PAUSE`], until `over` is set.
pub(crate) fn keep_empty(directory: &Path, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        // An error is harmless: the engine may have just removed the file or folder.
        let _vanished = drop_pages(directory);
        thread::sleep(PAUSE);
    }
}

fn drop_pages(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            drop_pages(&path)?;
        } else if path.extension().is_none_or(|extension| extension != JOURNAL) {
            fadvise(File::open(path)?, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}

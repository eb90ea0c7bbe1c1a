//! Measures what processes spend while they get no requests. Blocks the calling thread.

use crate::options::BenchError;
use crate::process::{ProcessSpent, memory_bytes, seconds};
use serde::Serialize;
use std::fmt;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// CPU time, written bytes and memory of the idle processes.
#[derive(Clone, Debug, Serialize)]
pub struct IdleReport {
    /// Wall-clock time that was measured.
    pub seconds: f64,
    /// Percent of one core, of all processes together.
    pub percent_of_a_core: f64,
    /// In the order in which they were given.
    pub processes: Vec<IdleProcess>,
}

/// One idle process.
#[derive(Clone, Debug, Serialize)]
pub struct IdleProcess {
    /// Its name: "node 1".
    pub name: String,
    /// User time.
    pub user_seconds: f64,
    /// System time.
    pub system_seconds: f64,
    /// Bytes written to devices, and pages of files made dirty.
    pub written_bytes: Option<u64>,
    /// Resident bytes at the end, without the page cache.
    pub memory_bytes: Option<u64>,
}

/// Watches these processes (name and id) for `time`. The kernel counts in hundredths of a second: use tens of seconds.
///
/// # Errors
/// A process that does not run, or ends meanwhile.
pub fn idle(processes: &[(String, u32)], time: Duration) -> Result<IdleReport, BenchError> {
    let look = || processes.iter().map(|(name, pid)| spent(name, *pid)).collect::<Result<Vec<_>, _>>();
    let (before, started) = (look()?, Instant::now());
    thread::sleep(time);
    let (after, elapsed) = (look()?, started.elapsed().as_secs_f64());
    let of = |before: Option<u64>, after: Option<u64>| Some(after? - before?);
    let memory: Vec<Option<u64>> = processes.iter().map(|(_, pid)| memory_bytes(*pid)).collect();
    let each = processes.iter().zip(&memory).zip(before.iter().zip(&after));
    let processes: Vec<IdleProcess> = each
        .map(|(((name, _), memory), (before, after))| IdleProcess {
            name: name.clone(),
            user_seconds: of(before.user_ticks, after.user_ticks).map_or(0.0, seconds),
            system_seconds: of(before.system_ticks, after.system_ticks).map_or(0.0, seconds),
            written_bytes: of(before.written_bytes, after.written_bytes),
            memory_bytes: *memory,
        })
        .collect();
    let cpu: f64 = processes.iter().map(|process| process.user_seconds + process.system_seconds).sum();
    Ok(IdleReport { seconds: elapsed, percent_of_a_core: 100.0 * cpu / elapsed, processes })
}

fn spent(name: &str, pid: u32) -> Result<ProcessSpent, BenchError> {
    let spent = ProcessSpent::of(pid);
    match spent.user_ticks {
        Some(_) => Ok(spent),
        None => Err(BenchError::Cluster(io::Error::other(format!("{name} (process {pid}) is not in /proc")))),
    }
}

impl fmt::Display for IdleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for IdleProcess { name, user_seconds, system_seconds, written_bytes, memory_bytes } in &self.processes {
            let kib = |bytes: &Option<u64>| bytes.map_or_else(|| "-".into(), |bytes| format!("{} KiB", bytes >> 10));
            let (written, memory) = (kib(written_bytes), kib(memory_bytes));
            write!(f, "{name:<12} {user_seconds:.2} s user, {system_seconds:.2} s system, ")?;
            writeln!(f, "{written} written, {memory} of memory")?;
        }
        let IdleReport { seconds, percent_of_a_core, .. } = self;
        writeln!(f, "idle: {percent_of_a_core:.2} % of one core over {seconds:.0} s")
    }
}

#[cfg(test)]
#[path = "idle_tests.rs"]
mod tests;

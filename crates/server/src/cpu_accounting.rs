//! The CPU time of the node's process by activity: the ledger that its threads fill, and the kernel's figures of other
//! threads.
//!
//! | threads | how they are measured |
//! |---|---|
//! | `node` | the kernel's account, in the proportions of one turn in [`SAMPLED`]; shipped segments are measured apart |
//! | `job-<n>`, `background-<n>`, and `disk` where it works for them | each job, whole |
//! | those of the fabrics | by the kernel's account of the thread, when figures are asked for |
//! | all others | what is left of the process's time is `other` |
//!
//! Measuring costs less than a hundredth of what is measured. Any thread may ask; the figures of one process never fall.

use leeward_format::status::{CpuSpent, CpuStatus};
use leeward_platform::cpu::{Account, Activity, How, Ledger, Measured, process_nanos};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

#[cfg(test)]
#[path = "cpu_accounting_tests.rs"]
mod tests;

/// The event loop measures one turn in so many.
const SAMPLED: u64 = 32;
/// The thread of the event loop.
pub(crate) const SAMPLED_THREAD: &str = "node";
/// Threads that only stand in for network cards, by the beginnings of their names. They carry log records, and also
/// segments that are shipped over TCP, which cannot be told apart.
const CARRIERS: [(&str, Account); 4] = [
    ("fabric-in", Activity::Mirroring.of_backup()),
    ("fabric-", Activity::Mirroring.of_primary()),
    ("rings-in", Activity::Receive.of_node()),
    ("rings-out", Activity::Send.of_node()),
];

/// Accounts that are reported even if they are zero, besides `other`.
const REPORTED: [Account; 11] = [
    Activity::Receive.of_node(),
    Activity::Send.of_node(),
    Activity::Engine.of_primary(),
    Activity::Engine.of_backup(),
    Activity::Mirroring.of_node(),
    Activity::Mirroring.of_primary(),
    Activity::Mirroring.of_backup(),
    Activity::Compaction.of_primary(),
    Activity::Compaction.of_backup(),
    Activity::Shipping.of_primary(),
    Activity::Rewriting.of_backup(),
];

/// The figures of this process.
#[derive(Debug, Default)]
pub(crate) struct CpuAccounting {
    ledger: Arc<Ledger>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    threads: HashMap<String, Thread>,
    other: u64,
}

/// How the kernel's account of a thread is used.
#[derive(Clone, Copy, Debug)]
enum Use {
    /// All of it belongs to this account.
    All(Account),
    /// Samples divide it among accounts.
    Sampled,
    /// The thread measures itself, or cannot be measured.
    Nothing,
}

/// A thread, as it was when it was last looked at.
#[derive(Debug)]
struct Thread {
    what_for: Use,
    nanos: u64,
}

impl CpuAccounting {
    /// Measures this thread, beginning at `account`, until the result is dropped.
    pub(crate) fn measure(&self, account: Account) -> Measured {
        self.ledger.open(account, How::Whole)
    }

    /// Measures turn number `turn` of the event loop, which is this thread, if the turn is in the sample.
    pub(crate) fn sample(&self, turn: u64, account: Account) -> Measured {
        self.ledger.open(account, if turn.is_multiple_of(SAMPLED) { How::Sampled } else { How::Not })
    }

    /// All figures so far.
    pub(crate) fn status(&self) -> CpuStatus {
        let mut known = self.known.lock();
        look_at_threads(Path::new("/proc/self/task"), &mut known.threads, &self.ledger);
        let mut spent: Vec<CpuSpent> =
            REPORTED.into_iter().map(|account| spent(account, self.ledger.nanos(account))).collect();
        let process_ns = process_nanos();
        let sum = spent.iter().map(|spent| spent.nanos).sum();
        known.other = known.other.max(process_ns.saturating_sub(sum));
        spent.push(self::spent(Activity::Other.of_node(), known.other));
        CpuStatus { process_ns, spent }
    }
}

fn spent(account: Account, nanos: u64) -> CpuSpent {
    let Account { activity, role } = account;
    CpuSpent { activity: activity.name().into(), role: role.name().into(), nanos }
}

/// Books the CPU time that the threads in `tasks` have spent since the last call. The time that a thread spent between
/// the last call and its end is lost.
fn look_at_threads(tasks: &Path, threads: &mut HashMap<String, Thread>, ledger: &Ledger) {
    let mut alive = HashMap::new();
    for task in fs::read_dir(tasks).into_iter().flatten().flatten() {
        let id = task.file_name().to_string_lossy().into_owned();
        let stat = fs::read_to_string(task.path().join("schedstat"));
        let Some(now) = stat.ok().and_then(|text| on_cpu(&text)) else { continue };
        let before = threads.remove(&id).filter(|before| before.nanos <= now);
        // It is new, or another thread than the one that had this number.
        let before = before.unwrap_or_else(|| {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            Thread { what_for: use_of(name.trim_end()), nanos: 0 }
        });
        let spent = now - before.nanos;
        let is_booked = match before.what_for {
            Use::All(account) => {
                ledger.add(account, spent);
                true
            }
            Use::Sampled => ledger.spread(spent),
            Use::Nothing => true,
        };
        alive.insert(id, Thread { what_for: before.what_for, nanos: if is_booked { now } else { before.nanos } });
    }
    *threads = alive;
}

fn use_of(name: &str) -> Use {
    if name == SAMPLED_THREAD {
        return Use::Sampled;
    }
    let carrier = CARRIERS.iter().find(|(beginning, _)| name.starts_with(beginning));
    carrier.map_or(Use::Nothing, |(_, account)| Use::All(*account))
}

/// Nanoseconds that a thread was on a CPU.
fn on_cpu(schedstat: &str) -> Option<u64> {
    schedstat.split(' ').next()?.parse().ok()
}

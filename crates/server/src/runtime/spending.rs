//! What the node's process spends its CPU time on: the ledger that its threads fill, and what only the kernel knows of the others.
//!
//! | threads | how they are measured |
//! |---|---|
//! | `node` | one turn in [`SAMPLED`], for all of them |
//! | `job-<n>`, and `disk` where it works for them | each job, whole |
//! | those of the fabrics | by the kernel's account of the thread, when somebody asks |
//! | all others | what is left of the process's time is `other` |
//!
//! Measuring costs less than a hundredth of what is measured. Any thread may ask; the figures of one process never fall.

use crate::node::status::{CpuSpent, CpuStatus};
use leeward_platform::cpu::{Account, Activity, Ledger, Measured, process_nanos};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

#[cfg(test)]
#[path = "spending_tests.rs"]
mod tests;

/// The event loop measures one turn in so many.
const SAMPLED: u64 = 32;
/// Threads that only stand in for network cards, by the beginnings of their names. What they carry besides log records, the
/// segments that are shipped over TCP, cannot be told apart.
const CARRIERS: [(&str, Account); 4] = [
    ("fabric-in", Activity::Mirroring.of_backup()),
    ("fabric-", Activity::Mirroring.of_primary()),
    ("rings-in", Activity::Receive.of_node()),
    ("rings-out", Activity::Send.of_node()),
];

/// Accounts that are told, a zero too, besides `other`.
const TOLD: [Account; 11] = [
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
pub(crate) struct Spending {
    ledger: Arc<Ledger>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    carriers: HashMap<String, Carrier>,
    other: u64,
}

/// A thread, as it was when it was last looked at.
#[derive(Debug)]
struct Carrier {
    account: Option<Account>,
    nanos: u64,
}

impl Spending {
    /// Measures this thread, beginning at `account`, until the answer is dropped.
    pub(super) fn measure(&self, account: Account) -> Measured {
        self.ledger.open(account, 1)
    }

    /// Measures turn number `turn` of a thread with many small ones, if it is one of the sample.
    pub(super) fn sample(&self, turn: u64, account: Account) -> Option<Measured> {
        turn.is_multiple_of(SAMPLED).then(|| self.ledger.open(account, SAMPLED))
    }

    /// All of it so far.
    pub(crate) fn status(&self) -> CpuStatus {
        let mut known = self.known.lock();
        look_at_threads(Path::new("/proc/self/task"), &mut known.carriers, &self.ledger);
        let mut spent: Vec<CpuSpent> =
            TOLD.into_iter().map(|account| spent(account, self.ledger.nanos(account))).collect();
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

/// Books what the carriers among the threads in `tasks` have spent since they were last looked at. One that ended since then takes
/// the rest with it.
fn look_at_threads(tasks: &Path, carriers: &mut HashMap<String, Carrier>, ledger: &Ledger) {
    let mut alive = HashMap::new();
    for task in fs::read_dir(tasks).into_iter().flatten().flatten() {
        let id = task.file_name().to_string_lossy().into_owned();
        let before = carriers.remove(&id);
        if let Some(known) = before.as_ref().filter(|known| known.account.is_none()) {
            alive.insert(id, Carrier { account: None, nanos: known.nanos });
            continue;
        }
        let Some(now) = fs::read_to_string(task.path().join("schedstat")).ok().and_then(|text| on_cpu(&text)) else {
            continue;
        };
        let carrier = match before.filter(|before| before.nanos <= now) {
            Some(before) => before,
            // It is new, or another than the one that had this number.
            None => Carrier {
                account: account_of(&fs::read_to_string(task.path().join("comm")).unwrap_or_default()),
                nanos: 0,
            },
        };
        if let Some(account) = carrier.account {
            ledger.add(account, now - carrier.nanos);
        }
        alive.insert(id, Carrier { account: carrier.account, nanos: now });
    }
    *carriers = alive;
}

fn account_of(name: &str) -> Option<Account> {
    CARRIERS.iter().find(|(beginning, _)| name.starts_with(beginning)).map(|(_, account)| *account)
}

/// Nanoseconds that a thread was on a CPU.
fn on_cpu(schedstat: &str) -> Option<u64> {
    schedstat.split(' ').next()?.parse().ok()
}

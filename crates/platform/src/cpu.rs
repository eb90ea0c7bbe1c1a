//! CPU accounting: accounts by activity and role, and the clock that fills them.
//!
//! A measured thread opens a [`Ledger`]. From then on its time is booked to the account that [`at`] has set last, so
//! code that works only names its account. Without an open ledger, as in the simulator, that changes nothing and reads
//! no clock. No decision depends on the measurements.
//!
//! Reading the clock is a system call of some 200 ns; its cost is measured once and not booked. A thread with many
//! small turns reads the clock in some of them only ([`How::Sampled`]). Its samples are [spread](Ledger::spread) over
//! the CPU time that the kernel reports for the thread. Rare and long work of such a thread is measured [`apart`],
//! because samples would miss most of it.
//!
//! I/O that [another thread does](crate::disk) for a measured thread is charged to the account of the measured thread.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[cfg(test)]
#[path = "cpu_tests.rs"]
mod tests;

/// Readings of the clock that measure the cost of one.
const READINGS: u32 = 64;

/// Kind of work that takes CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Activity {
    /// Waiting for requests, reading and decoding them.
    Receive,
    /// Encoding answers and sending them.
    Send,
    /// Operations: L0, look-ups, scans, the logs of this node.
    Engine,
    /// Log records: sending them to backups, and persisting them at a backup.
    Mirroring,
    /// Merging the inputs of compactions.
    Compaction,
    /// Sending the segments of compactions to backups.
    Shipping,
    /// Shipped segments at a backup: rewriting their pointers, writing and installing them.
    Rewriting,
    /// All else.
    Other,
}

/// The role in which a node spends the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// For the node as a whole.
    Node,
    /// For regions that it serves.
    Primary,
    /// For regions that it holds copies of.
    Backup,
}

/// Where time is booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// What the time is spent on.
    pub activity: Activity,
    /// The role that it is done for.
    pub role: Role,
}

impl Activity {
    /// Every activity.
    pub const ALL: [Activity; 8] = [
        Activity::Receive,
        Activity::Send,
        Activity::Engine,
        Activity::Mirroring,
        Activity::Compaction,
        Activity::Shipping,
        Activity::Rewriting,
        Activity::Other,
    ];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Activity::Receive => "receive",
            Activity::Send => "send",
            Activity::Engine => "engine",
            Activity::Mirroring => "mirroring",
            Activity::Compaction => "compaction",
            Activity::Shipping => "shipping",
            Activity::Rewriting => "rewriting",
            Activity::Other => "other",
        }
    }

    /// For the node as a whole.
    pub const fn of_node(self) -> Account {
        Account { activity: self, role: Role::Node }
    }
    /// For regions that are served.
    pub const fn of_primary(self) -> Account {
        Account { activity: self, role: Role::Primary }
    }
    /// For copies.
    pub const fn of_backup(self) -> Account {
        Account { activity: self, role: Role::Backup }
    }
}

impl Role {
    /// Every role.
    pub const ALL: [Role; 3] = [Role::Node, Role::Primary, Role::Backup];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Node => "node",
            Role::Primary => "primary",
            Role::Backup => "backup",
        }
    }
}

/// How a thread is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// All of its time is booked.
    Whole,
    /// This turn is measured, as a sample of all turns.
    Sampled,
    /// This turn is not measured.
    Not,
}

type Table = [[AtomicU64; Role::ALL.len()]; Activity::ALL.len()];

/// Time spent, by account. Any thread may add and read.
#[derive(Debug)]
pub struct Ledger {
    /// Cost of one reading of the clock, in nanoseconds.
    reading: u64,
    nanos: Table,
    /// Time of samples that are not spread yet.
    sampled: Table,
    /// Time that sampled threads spent [`apart`] since the last [`Ledger::spread`].
    apart: AtomicU64,
}

/// A thread's open ledger.
struct Open {
    ledger: Arc<Ledger>,
    how: How,
    /// The thread is sampled, and this work is measured apart from the samples.
    is_separated: bool,
    account: Account,
    /// The thread's CPU time when the account was set or last booked.
    since: u64,
}

thread_local! {
    static OPEN: RefCell<Option<Open>> = const { RefCell::new(None) };
}

impl Default for Ledger {
    fn default() -> Ledger {
        let readings = (0..READINGS).map(|_| {
            let before = thread_nanos();
            thread_nanos() - before
        });
        let reading = readings.min().unwrap_or(0);
        Ledger { reading, nanos: Table::default(), sampled: Table::default(), apart: AtomicU64::new(0) }
    }
}

impl Ledger {
    /// Nanoseconds of `account` so far, without samples that are not spread yet.
    pub fn nanos(&self, account: Account) -> u64 {
        cell(&self.nanos, account).load(Relaxed)
    }

    /// Books time that was measured elsewhere.
    pub fn add(&self, account: Account, nanos: u64) {
        cell(&self.nanos, account).fetch_add(nanos, Relaxed);
    }

    /// Distributes `nanos` over the accounts in proportion to the samples. `nanos` is all CPU time of the one sampled
    /// thread since the last call; time measured [`apart`] is subtracted. Returns `false` if there were no samples.
    pub fn spread(&self, nanos: u64) -> bool {
        let samples: u64 = self.sampled.iter().flatten().map(|cell| cell.load(Relaxed)).sum();
        if samples == 0 {
            return false;
        }
        let left = nanos.saturating_sub(self.apart.swap(0, Relaxed));
        for (cell, sampled) in self.nanos.iter().flatten().zip(self.sampled.iter().flatten()) {
            let share = u128::from(left) * u128::from(sampled.swap(0, Relaxed)) / u128::from(samples);
            cell.fetch_add(u64::try_from(share).unwrap_or(u64::MAX), Relaxed);
        }
        true
    }

    /// Measures this thread, beginning at `account`, until the returned guard is dropped. A ledger that was open before
    /// is resumed then.
    pub fn open(self: &Arc<Ledger>, account: Account, how: How) -> Measured {
        enter(Open { ledger: Arc::clone(self), how, is_separated: false, account, since: 0 })
    }
}

fn cell(table: &Table, account: Account) -> &AtomicU64 {
    &table[account.activity as usize][account.role as usize]
}

fn enter(mut open: Open) -> Measured {
    let before = OPEN.with_borrow_mut(|current| {
        book(current);
        open.begin();
        current.replace(open)
    });
    Measured { before, _of_this_thread: PhantomData }
}

/// Measures this thread at `account` until the guard is dropped, as a whole, even if the thread is sampled otherwise.
pub fn apart(account: Account) -> Measured {
    let open = OPEN.with_borrow(|current| {
        current.as_ref().map(|open| {
            let is_separated = open.is_separated || open.how != How::Whole;
            Open { ledger: Arc::clone(&open.ledger), how: How::Whole, is_separated, account, since: 0 }
        })
    });
    match open {
        Some(open) => enter(open),
        None => Measured { before: None, _of_this_thread: PhantomData },
    }
}

/// A thread that is measured, until this is dropped.
#[must_use]
pub struct Measured {
    before: Option<Open>,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Measured {
    fn drop(&mut self) {
        OPEN.with_borrow_mut(|current| {
            book(current);
            *current = self.before.take();
            if let Some(open) = current {
                open.begin();
            }
        });
    }
}

/// A thread that is at an account, until this is dropped.
#[must_use]
pub struct At {
    before: Option<Account>,
    _of_this_thread: PhantomData<*const ()>,
}

/// Sets this thread's account until the guard is dropped; then the account before is set again.
pub fn at(account: Account) -> At {
    go(|_| account)
}

/// As [`at`], in the thread's current role.
pub fn at_activity(activity: Activity) -> At {
    go(|before| Account { activity, ..before })
}

fn go(to: impl FnOnce(Account) -> Account) -> At {
    let before = OPEN.with_borrow_mut(|current| {
        book(current);
        current.as_mut().map(|open| {
            let to = to(open.account);
            mem::replace(&mut open.account, to)
        })
    });
    At { before, _of_this_thread: PhantomData }
}

impl Drop for At {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        OPEN.with_borrow_mut(|current| {
            book(current);
            if let Some(open) = current {
                open.account = before;
            }
        });
    }
}

impl Open {
    fn begin(&mut self) {
        if self.how != How::Not {
            self.since = thread_nanos();
        }
    }
}

/// Books the time since the last booking.
fn book(current: &mut Option<Open>) {
    let Some(Open { ledger, how, is_separated, account, since }) = current else { return };
    if *how == How::Not {
        return;
    }
    let now = thread_nanos();
    let spent = (now - mem::replace(since, now)).saturating_sub(ledger.reading);
    let table = if *how == How::Sampled { &ledger.sampled } else { &ledger.nanos };
    cell(table, *account).fetch_add(spent, Relaxed);
    if *is_separated {
        ledger.apart.fetch_add(spent, Relaxed);
    }
}

/// The ledger and account of this thread, for work that it gives to another.
pub(crate) struct Charge(Option<(Arc<Ledger>, Account)>);

impl Charge {
    /// Only a thread that is measured as a whole has a charge: a sampled thread gives no work away.
    pub(crate) fn of_this_thread() -> Charge {
        Charge(OPEN.with_borrow(|open| {
            let open = open.as_ref().filter(|open| open.how == How::Whole);
            open.map(|open| (Arc::clone(&open.ledger), open.account))
        }))
    }

    /// Does `work`, and books its time to the account of the thread that wanted it.
    pub(crate) fn run_charged<T>(self, work: impl FnOnce() -> T) -> T {
        let _measured = self.0.map(|(ledger, account)| ledger.open(account, How::Whole));
        work()
    }
}

/// CPU time of this thread.
fn thread_nanos() -> u64 {
    nanos(rustix::time::ClockId::ThreadCPUTime)
}

/// CPU time of this process, all of its threads together.
pub fn process_nanos() -> u64 {
    nanos(rustix::time::ClockId::ProcessCPUTime)
}

fn nanos(clock: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

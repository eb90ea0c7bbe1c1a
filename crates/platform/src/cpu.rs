//! What a process spends its CPU time on: accounts by activity and role, and the clock that fills them.
//!
//! A thread that is measured opens a [`Ledger`]. From then on its time goes to the account it is [`at`], until it says that it is
//! at another. Code that does the work only says what it is at. Where nothing is measured, as in the simulator, that
//! changes nothing and reads no clock. No decision ever depends on what was measured.
//!
//! To read the clock is a system call of some 200 ns, which is measured once and not booked. A thread with many small turns reads
//! it in some of them only ([`How::Sampled`]); what its samples say is [spread](Ledger::spread) over the time that the kernel
//! knows it has had. What is rare and long there is measured [`apart`], or samples would miss most of it.
//!
//! I/O that a measured thread [has done by another](crate::disk) is charged to the account that the thread was at.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[cfg(test)]
#[path = "cpu_tests.rs"]
mod tests;

/// How often the clock is read to find out what that costs.
const READINGS: u32 = 64;

/// What CPU time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Activity {
    /// Waiting for requests, reading and decoding them.
    Receive,
    /// Encoding answers and sending them.
    Send,
    /// Operations: L0, look-ups, scans, the logs of this node.
    Engine,
    /// Log records on their way to backups, and a backup's keeping of them.
    Mirroring,
    /// Merging.
    Compaction,
    /// What was merged, on its way to backups.
    Shipping,
    /// What was shipped: its pointers, its way to the volume, its installation.
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
    /// What is done.
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

    /// Its name in figures.
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

    /// Its name in figures.
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
    /// Whatever it does.
    Whole,
    /// Now, as a sample of what it does at other times.
    Sampled,
    /// Not now: it is one of those other times.
    Not,
}

type Table = [[AtomicU64; Role::ALL.len()]; Activity::ALL.len()];

/// Time spent, by account. Any thread may add and read.
#[derive(Debug)]
pub struct Ledger {
    /// What it costs to read the clock.
    reading: u64,
    nanos: Table,
    /// Of samples, until they are spread.
    sampled: Table,
    /// What threads that are sampled did apart, until that is spread.
    apart: AtomicU64,
}

/// A thread's open ledger.
struct Open {
    ledger: Arc<Ledger>,
    how: How,
    /// It is sampled, and this is not part of it.
    is_separated: bool,
    account: Account,
    /// The thread's clock when it came to the account.
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
    /// Nanoseconds of `account` so far; without samples that are not spread.
    pub fn nanos(&self, account: Account) -> u64 {
        cell(&self.nanos, account).load(Relaxed)
    }

    /// Books time that was measured otherwise.
    pub fn add(&self, account: Account, nanos: u64) {
        cell(&self.nanos, account).fetch_add(nanos, Relaxed);
    }

    /// Books `nanos`, all that the one thread that is sampled has had since this was last done, as its samples say; answers
    /// whether there were any.
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

    /// Measures this thread until the answer is dropped, beginning at `account`. A ledger that it had open before is taken up
    /// again then.
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

/// Measures this thread at `account` until the answer is dropped, whole, even if it is sampled otherwise.
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

/// This thread is at `account` until the answer is dropped, and then again at what it was at before.
pub fn at(account: Account) -> At {
    go(|_| account)
}

/// As [`at`], in the role that the thread is in.
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

/// What this thread is measured by, for work that it gives to another.
pub(crate) struct Charge(Option<(Arc<Ledger>, Account)>);

impl Charge {
    /// Of a thread that is measured whole: one that is sampled gives no work away.
    pub(crate) fn of_this_thread() -> Charge {
        Charge(OPEN.with_borrow(|open| {
            let open = open.as_ref().filter(|open| open.how == How::Whole);
            open.map(|open| (Arc::clone(&open.ledger), open.account))
        }))
    }

    /// Does `work`, and charges the thread that wanted it.
    pub(crate) fn bear<T>(self, work: impl FnOnce() -> T) -> T {
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

//! One budget of memory for all that a volume's regions hold.
//!
//! ```text
//!  0                                                                                    budget
//!  | levels | tails | mirrors, rings, clients, hash indexes | reads | compactions | L0s of all regions |  cache: the rest  |
//!                                                                    a quarter   frozen from 3/10 on,
//!                                                                    admits new  3/8 make writers wait
//! ```
//! All memory but the cache's is in [`Reservation`]s, each of as many bytes as its owner holds at the moment. The cache
//! shrinks at once when a reservation grows, and uses freed memory. Each purpose has a share of the budget, and a way
//! to stay within it:
//!
//! - *L0s*: beyond their share the largest active ones are asked to freeze, in any region, until the others fit. Near
//!   the limit writers pause; at the limit a region with a frozen L0 waits for its compaction. L0s of two-layer logs
//!   freeze all together, once they have an eighth of the budget: a *round* (the redundant memtable of DEPART 4.2).
//! - *Compactions*: another begins only if its buffers fit, or none is under way. Regions take turns.
//! - *Tails*, *reads*: windows and read-ahead shrink.
//! - *Clients*: a server accepts no more requests, and disconnects the clients that hold most and read nothing.
//! - *Hash indexes*: beyond their share they evict.
//! - *Mirrors*: pages whose bytes are on the volume are freed at once if memory is tight; otherwise they stay, to be
//!   reused.
//!
//! So the sum stays within the budget, with two exceptions: the memory that a snapshot pins, and the minimum for
//! progress (one compaction, and for each region an L0 and the windows of its tails). Any thread may call anything.

use crate::budget::MemoryAccounts;
pub use crate::budget::Purpose;
use crate::cache::Cache;
use bytes::Bytes;
use leeward_format::status::MemoryStatus;
use leeward_platform::Pool;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Weak};

mod buffer;
#[cfg(test)]
mod tests;

pub(crate) use buffer::Buffer;

/// A round ends when its L0s have one part in this many of the budget.
const ROUND_SHARE: u64 = 8;

/// The memory of one volume. Clones are the same.
#[derive(Clone)]
pub struct Memory {
    accounts: Arc<MemoryAccounts>,
    cache: Cache,
    regions: Arc<Regions>,
}

/// State that the regions share.
#[derive(Default)]
struct Regions {
    /// L0s that take writes.
    active: Mutex<Vec<Weak<L0Reservation>>>,
    /// How often L0s were asked to freeze.
    asks: AtomicU64,
    /// Bytes of the L0s of the round.
    round: AtomicU64,
    /// Hash indexes, which share their memory.
    hash_indexes: Arc<AtomicU64>,
    turns: Mutex<Turns>,
}

/// Order in which regions compact if there is no memory for all.
#[derive(Default)]
struct Turns {
    waiting: VecDeque<Waiting>,
    /// Refusals of others in favour of the first region since it last asked.
    passed_over: u32,
}

/// A region that has compactions to execute.
struct Waiting {
    owner: u32,
    /// Lanes that wait, a bit each.
    lanes: u8,
}

/// After so many refusals of others the first waiting region loses its turn: the region may no longer exist.
const MAX_PASSED_OVER: u32 = 64;

impl Memory {
    /// A budget of `budget` bytes.
    pub fn new(budget: u64) -> Memory {
        let accounts = Arc::new(MemoryAccounts::new(budget));
        Memory { cache: Cache::within(Arc::clone(&accounts)), accounts, regions: Arc::default() }
    }

    /// The cache. It uses the memory that reservations leave.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Source of blocks, for large or numerous data.
    pub fn pool(&self) -> &Arc<Pool> {
        self.accounts.pool()
    }

    /// Its current use.
    pub fn status(&self) -> MemoryStatus {
        let of = |purpose| self.accounts.of(purpose);
        let parts = MemoryStatus {
            budget: self.accounts.budget(),
            used: 0,
            cache: self.cache.bytes(),
            l0s: of(Purpose::L0s),
            compactions: of(Purpose::Compactions),
            reads: of(Purpose::Reads),
            tails: of(Purpose::Tails),
            levels: of(Purpose::Levels),
            mirrors: of(Purpose::Mirrors),
            rings: of(Purpose::Rings),
            clients: of(Purpose::Clients),
            hash_indexes: of(Purpose::HashIndexes),
        };
        let reserved = parts.l0s + parts.compactions + parts.reads + parts.tails + parts.levels + parts.mirrors;
        let of_clients = parts.rings + parts.clients + parts.hash_indexes;
        MemoryStatus { used: parts.cache + reserved + of_clients, ..parts }
    }

    /// A reservation for a purpose, of 0 bytes at first.
    pub fn reserve(&self, purpose: Purpose) -> Reservation {
        Reservation {
            accounts: Arc::clone(&self.accounts),
            cache: self.cache.clone(),
            purpose,
            bytes: AtomicU64::new(0),
        }
    }

    /// [`Memory::reserve`] of `bytes` bytes.
    pub fn take(&self, purpose: Purpose, bytes: usize) -> Reservation {
        let reservation = self.reserve(purpose);
        reservation.set(bytes as u64);
        reservation
    }

    /// The number of hash indexes.
    pub(crate) fn hash_indexes(&self) -> &Arc<AtomicU64> {
        &self.regions.hash_indexes
    }

    /// Bytes that a purpose should have at most.
    pub fn share(&self, purpose: Purpose) -> u64 {
        let budget = self.accounts.budget();
        match purpose {
            Purpose::L0s => budget / 10 * 3,
            Purpose::Compactions | Purpose::Mirrors | Purpose::Clients | Purpose::HashIndexes => budget / 4,
            Purpose::Reads | Purpose::Rings => budget / 8,
            Purpose::Tails => budget / 16,
            Purpose::Levels => budget,
        }
    }

    /// Whether a purpose has more than its share.
    pub fn is_short(&self, purpose: Purpose) -> bool {
        self.accounts.of(purpose) > self.share(purpose)
    }

    /// Whether a purpose has more than three quarters of its share: it should do without what it can.
    pub fn is_tight(&self, purpose: Purpose) -> bool {
        self.accounts.of(purpose) > self.share(purpose) / 4 * 3
    }

    /// Size of one of several buffers that a compaction or scan reads into: `most` if the budget is large.
    pub(crate) fn piece(&self, most: usize) -> usize {
        const LEAST: usize = 32 << 10;
        usize::try_from(self.accounts.budget() / 64).unwrap_or(usize::MAX).clamp(LEAST, most.max(LEAST))
    }

    /// Memory for a new active L0.
    pub(crate) fn l0(&self) -> Arc<L0Reservation> {
        let l0 = Arc::new(L0Reservation {
            reservation: self.reserve(Purpose::L0s),
            regions: Arc::clone(&self.regions),
            in_round: AtomicU64::new(NOT_IN_ROUND),
            is_asked: false.into(),
            is_frozen: false.into(),
        });
        let mut active = self.regions.active.lock();
        active.retain(|l0| l0.upgrade().is_some_and(|l0| !l0.is_frozen.load(Relaxed)));
        active.push(Arc::downgrade(&l0));
        l0
    }

    /// Asks all L0s of the round to freeze if it is at its end.
    fn end_round(&self) {
        if self.regions.round.load(Relaxed) < self.accounts.budget() / ROUND_SHARE {
            return;
        }
        let active = self.regions.active.lock();
        for l0 in active.iter().filter_map(Weak::upgrade).filter(|l0| l0.is_in_round()) {
            l0.ask();
            self.regions.asks.fetch_add(1, Release);
        }
    }

    /// Ends a round that is at its end. If L0s have more than their share, asks active ones to freeze, the largest
    /// first, until the others have three quarters of the share at most.
    pub(crate) fn relieve(&self) {
        self.end_round();
        let share = self.share(Purpose::L0s);
        if self.accounts.of(Purpose::L0s) <= share {
            return;
        }
        let active = self.regions.active.lock();
        let mut staying: Vec<Arc<L0Reservation>> =
            active.iter().filter_map(Weak::upgrade).filter(|l0| l0.stays()).collect();
        drop(active);
        let mut bytes: u64 = staying.iter().map(|l0| l0.bytes()).sum();
        if bytes > share / 4 * 3 {
            staying.sort_unstable_by_key(|l0| l0.bytes());
        }
        while bytes > share / 4 * 3
            && let Some(largest) = staying.pop()
        {
            bytes -= largest.bytes().min(bytes);
            largest.ask();
            self.regions.asks.fetch_add(1, Release);
        }
    }

    /// Number of times that L0s were asked to freeze.
    pub(crate) fn asks(&self) -> u64 {
        self.regions.asks.load(Acquire)
    }

    /// How near L0s are to the limit at which writers wait: 0 up to their share, 1 at the limit, more beyond.
    pub fn l0_debt(&self) -> f64 {
        let (used, share) = (self.accounts.of(Purpose::L0s), self.share(Purpose::L0s));
        if used <= share {
            return 0.0;
        }
        (used - share) as f64 / (share / 4).max(1) as f64
    }

    /// Bytes that each L0 may have when L0s are beyond their share.
    pub(crate) fn least_l0_bytes(&self) -> u64 {
        let regions = self.regions.active.lock().len().max(1) as u64;
        (self.share(Purpose::L0s) / 4 / regions).max(LEAST_L0_BYTES)
    }

    /// Memory for a compaction of one lane of `owner`; `None` if it must wait for others. All lanes of an owner, a bit
    /// each, share one turn.
    pub(crate) fn admit(&self, (owner, lane): (u32, u8), bytes: u64) -> Option<Reservation> {
        let mut turns = self.regions.turns.lock();
        let used = self.accounts.of(Purpose::Compactions);
        let fits = used == 0 || used + bytes <= self.share(Purpose::Compactions);
        match turns.waiting.front() {
            Some(first) if first.owner != owner => {
                turns.passed_over += 1;
                if turns.passed_over > MAX_PASSED_OVER {
                    turns.leave_first();
                }
            }
            _ if fits => {
                turns.leave(owner, lane);
                turns.go_behind(owner);
                return Some(self.take(Purpose::Compactions, bytes as usize));
            }
            _ => turns.passed_over = 0,
        }
        match turns.waiting.iter_mut().find(|waiting| waiting.owner == owner) {
            Some(waiting) => waiting.lanes |= lane,
            None => turns.waiting.push_back(Waiting { owner, lanes: lane }),
        }
        None
    }

    /// Whether a compaction of `owner` in this lane waits for memory.
    pub(crate) fn has_waiting(&self, owner: u32, lane: u8) -> bool {
        let turns = self.regions.turns.lock();
        turns.waiting.iter().any(|waiting| waiting.owner == owner && waiting.lanes & lane != 0)
    }

    /// `owner` has nothing to compact in these lanes.
    pub(crate) fn leave(&self, owner: u32, lanes: u8) {
        self.regions.turns.lock().leave(owner, lanes);
    }
}

/// Bytes of an L0 that is worth a compaction.
const LEAST_L0_BYTES: u64 = 16 << 10;

impl Turns {
    fn leave_first(&mut self) {
        self.passed_over = 0;
        self.waiting.pop_front();
    }

    /// If other lanes of `owner` still wait, it keeps its place.
    fn leave(&mut self, owner: u32, lanes: u8) {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.owner == owner) else { return };
        self.waiting[at].lanes &= !lanes;
        match (self.waiting[at].lanes, at) {
            (0, 0) => self.leave_first(),
            (0, at) => drop(self.waiting.remove(at)),
            _ => {}
        }
    }

    /// `owner` had its turn: if it is the first, it goes behind the others.
    fn go_behind(&mut self, owner: u32) {
        if self.waiting.front().is_some_and(|first| first.owner == owner) {
            self.passed_over = 0;
            self.waiting.rotate_left(1);
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status().fmt(f)
    }
}

/// Memory that is reserved until this is dropped.
pub struct Reservation {
    accounts: Arc<MemoryAccounts>,
    cache: Cache,
    purpose: Purpose,
    bytes: AtomicU64,
}

impl Reservation {
    /// Changes the reservation to `bytes`.
    pub fn set(&self, bytes: u64) {
        let before = self.bytes.swap(bytes, Relaxed);
        let (taken, purpose) = (&self.accounts.taken, &self.accounts.by_purpose[self.purpose as usize]);
        if bytes > before {
            taken.fetch_add(bytes - before, Relaxed);
            purpose.fetch_add(bytes - before, Relaxed);
            self.cache.make_room(bytes - before);
        } else if bytes < before {
            taken.fetch_sub(before - bytes, Relaxed);
            purpose.fetch_sub(before - bytes, Relaxed);
        }
    }

    /// Reserved bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// `bytes` with the `memory_bytes` that they take, which stay reserved until the last slice is dropped.
    pub(crate) fn hold(self, bytes: impl AsRef<[u8]> + Send + 'static, memory_bytes: usize) -> Bytes {
        self.set(memory_bytes as u64);
        Bytes::from_owner(ReservedBytes { bytes, _reservation: self })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} bytes for {:?})", self.bytes(), self.purpose)
    }
}

const NOT_IN_ROUND: u64 = u64::MAX;

/// Memory of one L0.
pub(crate) struct L0Reservation {
    reservation: Reservation,
    regions: Arc<Regions>,
    /// Its bytes as far as the round counts them.
    in_round: AtomicU64,
    is_asked: AtomicBool,
    is_frozen: AtomicBool,
}

impl L0Reservation {
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.reservation.bytes()
    }

    pub(crate) fn set(&self, bytes: u64) {
        self.reservation.set(bytes);
        if self.is_in_round() {
            self.count_in_round(bytes);
        }
    }

    /// It freezes together with the others of the round.
    pub(crate) fn join_round(&self) {
        self.count_in_round(self.bytes());
    }

    fn leave_round(&self) {
        self.count_in_round(NOT_IN_ROUND);
    }

    fn is_in_round(&self) -> bool {
        self.in_round.load(Relaxed) != NOT_IN_ROUND
    }

    /// Each change is counted once, whatever another thread does meanwhile, so the sum is right once all L0s are gone.
    fn count_in_round(&self, bytes: u64) {
        let of = |counted: u64| if counted == NOT_IN_ROUND { 0 } else { counted };
        let before = of(self.in_round.swap(bytes, Relaxed));
        self.regions.round.fetch_add(of(bytes).wrapping_sub(before), Relaxed);
    }

    /// Whether it should freeze, because memory is short and it is one of the largest.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(Relaxed)
    }

    /// Asks it to freeze.
    pub(crate) fn ask(&self) {
        self.is_asked.store(true, Relaxed);
        self.leave_round();
    }

    pub(crate) fn freeze(&self) {
        self.is_frozen.store(true, Relaxed);
        self.leave_round();
    }

    /// Whether it takes writes and was not asked to freeze.
    fn stays(&self) -> bool {
        !self.is_frozen.load(Relaxed) && !self.is_asked()
    }
}

impl Drop for L0Reservation {
    fn drop(&mut self) {
        self.leave_round();
    }
}

impl fmt::Debug for L0Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reservation.fmt(f)
    }
}

/// Bytes with the reservation of their memory.
struct ReservedBytes<B> {
    bytes: B,
    _reservation: Reservation,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for ReservedBytes<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

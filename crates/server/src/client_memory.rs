//! One account of memory for all clients of a node: requests, operations under way, results, encoded replies.
//!
//! ```text
//!   sockets -> input -> commands -> operations -> results -> output -> sockets
//!   `----------------------- ClientMemory, a share of memory_budget ---------'
//! ```
//! The limit is the share of [`Purpose::Clients`]. Before memory is taken for a client, the account must not be
//! [full](ClientMemory::is_full); what is taken is charged at once. So the sum exceeds the limit by one step at most: one
//! read of a socket, one value, one page of a scan, one request.
//!
//! - A connection has a [`Charge`], set to what its session holds.
//! - A large value charges the account by itself ([`ClientMemory::hold`]) from when it was read until its last slice is dropped,
//!   wherever it is: in the node, on its way, in a session. A session counts small values only.
//! - The last quarter is for connections that hold little (`LITTLE_BYTES`). For the others the account is full before.
//! - While the account is full nothing is read from a socket, no command is parsed, no operation is submitted, and a region
//!   reads small values only, which operations have paid for. What was begun ends, which gives memory back.
//! - Where nothing is given back, the clients that hold most are disconnected: see [`Stuck`].
//!
//! Used by the event loop's thread, and by threads that run look-ups. No method blocks.

use bytes::Bytes;
use leeward_engine::{Memory, Purpose, Reservation, SMALL_VALUE_BYTES};
use leeward_format::op::{OpResult, ReadResult};
use leeward_platform::Nanos;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Values up to this size are counted by sessions, larger ones by themselves.
pub(crate) const SMALL_BYTES: usize = SMALL_VALUE_BYTES;
/// What an operation under way takes besides its arguments: its notes here and there, and a small answer.
pub(crate) const OPERATION_BYTES: usize = SMALL_BYTES + 512;
/// What a scan under way may answer with, and what its entries take besides keys and values.
pub(crate) const SCAN_OPERATION_BYTES: usize = (1 << 20) + (64 << 10);
/// The reservation follows the account in steps of so many bytes.
const STEP: u64 = 256 << 10;
/// The account of a small node has room for a few of the largest requests.
const LEAST_LIMIT: u64 = 4 << 20;
/// For so long nothing must have been given back by a connection that is disconnected.
const STUCK_AFTER: Nanos = Nanos::from_millis(200);
/// A connection that holds no more than this may take from the last quarter of the account.
pub(crate) const LITTLE_BYTES: u64 = 16 << 10;
/// A connection that holds less than this is never disconnected for it.
const LEAST_STUCK: u64 = 32 << 10;

/// See the module. Clones are the same account.
#[derive(Clone, Debug)]
pub struct ClientMemory(Arc<Account>);

#[derive(Debug)]
struct Account {
    limit: u64,
    used: AtomicU64,
    reservation: Option<Reservation>,
}

impl ClientMemory {
    /// The clients' share of a node's memory.
    pub fn of(memory: &Memory) -> ClientMemory {
        let limit = memory.share(Purpose::Clients).max(LEAST_LIMIT);
        let reservation = Some(memory.reserve(Purpose::Clients));
        ClientMemory(Arc::new(Account { limit, used: AtomicU64::new(0), reservation }))
    }

    /// An account of so many bytes that is part of no budget.
    pub fn with_limit(limit: u64) -> ClientMemory {
        ClientMemory(Arc::new(Account { limit, used: AtomicU64::new(0), reservation: None }))
    }

    /// An account that is never full: for simulations, whose clients keep what they were answered.
    pub fn unlimited() -> ClientMemory {
        ClientMemory::with_limit(u64::MAX)
    }

    /// Nothing more is to be taken.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.used() >= self.0.limit
    }

    /// Nothing more is to be taken by one that holds so many bytes.
    #[inline]
    pub(crate) fn is_full_for(&self, held: u64) -> bool {
        self.used() >= self.limit_for(held)
    }

    /// The last quarter is for those that hold little: clients with one small command do not wait for those that fill the account.
    fn limit_for(&self, held: u64) -> u64 {
        if held <= LITTLE_BYTES { self.0.limit } else { self.0.limit / 4 * 3 }
    }

    /// Those that hold more than little take nothing more.
    #[inline]
    pub(crate) fn is_scarce(&self) -> bool {
        self.is_full_for(u64::MAX)
    }

    /// More is taken than one step each of those that take it explains.
    #[inline]
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.used() >= self.0.limit.saturating_add(self.0.limit / 4)
    }

    /// More than half is taken: who holds much takes no more.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.used() >= self.0.limit / 2
    }

    /// Bytes beyond a half: so many are to be given back where others wait for them.
    pub(crate) fn excess(&self) -> u64 {
        self.used().saturating_sub(self.0.limit / 2)
    }

    /// Bytes that may still be taken.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        self.0.limit.saturating_sub(self.used())
    }

    /// What is taken.
    #[inline]
    pub fn used(&self) -> u64 {
        self.0.used.load(Relaxed)
    }

    /// The most that one request, or the answer to one, may take.
    #[inline]
    pub(crate) fn most_at_once(&self) -> usize {
        usize::try_from(self.0.limit / 2).unwrap_or(usize::MAX)
    }

    /// The most that one connection should hold of results, and as many of replies that are under way: so that one alone does not fill
    /// the account.
    #[inline]
    pub(crate) fn most_of_one(&self) -> usize {
        self.most_at_once() / 4
    }

    /// A charge of nothing.
    pub fn charge(&self) -> Charge {
        Charge { memory: self.clone(), bytes: 0, given_back: 0 }
    }

    /// A charge of so many bytes.
    pub(crate) fn take(&self, bytes: usize) -> Charge {
        let mut charge = self.charge();
        charge.set(bytes);
        charge
    }

    /// A value that charges the account until its last slice is dropped, if it is large.
    pub fn hold(&self, value: Bytes) -> Bytes {
        if value.len() <= SMALL_BYTES {
            return value;
        }
        let charge = self.take(value.len());
        Bytes::from_owner(Charged { value, _charge: charge })
    }

    /// A result whose large value charges the account. The page of a scan rides on its first key.
    pub fn hold_result(&self, mut result: OpResult) -> OpResult {
        match &mut result {
            OpResult::Value(value) | OpResult::Put { old: value, .. } | OpResult::Deleted { old: value, .. } => {
                self.hold_in(value);
            }
            OpResult::Pair(Some(pair)) => self.hold_in(&mut pair.value),
            OpResult::Entries { entries, .. } => self.hold_page(entries),
            OpResult::Stale { result, .. } => self.hold_in_read(result),
            _ => {}
        }
        result
    }

    /// As [`ClientMemory::hold_result`].
    pub(crate) fn hold_read(&self, mut result: ReadResult) -> ReadResult {
        self.hold_in_read(&mut result);
        result
    }

    fn hold_in_read(&self, result: &mut ReadResult) {
        match result {
            ReadResult::Value(value) => self.hold_in(value),
            ReadResult::Pair(Some(pair)) => self.hold_in(&mut pair.value),
            ReadResult::Entries { entries, .. } => self.hold_page(entries),
            ReadResult::Pair(None) => {}
        }
    }

    fn hold_page(&self, entries: &mut [(Bytes, Bytes)]) {
        let bytes: usize = entries.iter().map(|(key, value)| key.len() + value.len() + ENTRY_BYTES).sum();
        if let Some((first, _)) = entries.first_mut().filter(|_| bytes > SMALL_BYTES) {
            let (value, charge) = (std::mem::take(first), self.take(bytes));
            *first = Bytes::from_owner(Charged { value, _charge: charge });
        }
    }

    fn hold_in(&self, value: &mut Option<Bytes>) {
        *value = value.take().map(|value| self.hold(value));
    }

    fn change(&self, before: u64, after: u64) {
        let used = &self.0.used;
        let (old, new) = if after >= before {
            let old = used.fetch_add(after - before, Relaxed);
            (old, old.wrapping_add(after - before))
        } else {
            let old = used.fetch_sub(before - after, Relaxed);
            (old, old.wrapping_sub(before - after))
        };
        if old / STEP != new / STEP
            && let Some(reservation) = &self.0.reservation
        {
            reservation.set(new / STEP * STEP);
        }
    }
}

/// What the pair of an entry takes besides its bytes.
const ENTRY_BYTES: usize = size_of::<(Bytes, Bytes)>();

/// What somebody holds for a client; given back when it is dropped.
#[derive(Debug)]
pub struct Charge {
    memory: ClientMemory,
    bytes: u64,
    /// How often it became less.
    given_back: u64,
}

impl Charge {
    /// It is so many bytes from now on.
    #[inline]
    pub fn set(&mut self, bytes: usize) {
        let (before, after) = (self.bytes, bytes as u64);
        if before != after {
            self.given_back += u64::from(after < before);
            self.bytes = after;
            self.memory.change(before, after);
        }
    }

    /// A step of `more` bytes is not to be taken by who has this, and `taken` besides, which it will be set to.
    #[inline]
    pub(crate) fn lacks_room(&self, taken: usize, more: usize) -> bool {
        let taken = taken as u64;
        self.memory.used() + taken >= self.memory.limit_for(self.bytes + taken + more as u64)
    }

    /// Nothing more is to be taken by who has this.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.memory.is_full_for(self.bytes)
    }

    /// How many bytes it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The account.
    #[inline]
    pub fn memory(&self) -> &ClientMemory {
        &self.memory
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A value with what it charges.
struct Charged {
    value: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.value
    }
}

/// What a result takes that does not charge the account by itself: small values and the result's own place.
pub(crate) fn small_bytes(result: &OpResult) -> usize {
    let of = |value: &Option<Bytes>| value.as_ref().map_or(0, |value| value.len());
    let small = |len: usize| if len <= SMALL_BYTES { len } else { 0 };
    match result {
        OpResult::Value(value)
        | OpResult::Put { old: value, .. }
        | OpResult::Deleted { old: value, .. }
        | OpResult::Stale { result: ReadResult::Value(value), .. } => small(of(value)),
        OpResult::Pair(Some(pair)) | OpResult::Stale { result: ReadResult::Pair(Some(pair)), .. } => {
            small(of(&pair.value))
        }
        OpResult::Entries { entries, .. } | OpResult::Stale { result: ReadResult::Entries { entries, .. }, .. } => {
            entries.iter().map(|(key, value)| key.len() + value.len() + ENTRY_BYTES).sum()
        }
        _ => 0,
    }
}

/// What is known of a connection when the account is full.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    /// What its session has charged, and how often that became less.
    held: (u64, u64),
    /// Its client is to take replies, or to send the end of a request: nobody else can have it go on.
    pub waits_for_client: bool,
}

impl Holder {
    /// What its session has charged.
    pub(crate) fn bytes(&self) -> u64 {
        self.held.0
    }

    /// One with this charge.
    pub fn new(charge: &Charge, waits_for_client: bool) -> Holder {
        Holder { held: (charge.bytes, charge.given_back), waits_for_client }
    }
}

/// Finds the connections that are to end where the account stays full: of those that wait for their clients and have given
/// nothing back for a while, those that hold most.
#[derive(Debug, Default)]
pub struct Stuck {
    /// Since when each connection has given nothing back, and its count then.
    since: BTreeMap<u64, (u64, Nanos)>,
}

impl Stuck {
    /// The account is not full.
    pub fn clear(&mut self) {
        self.since.clear();
    }

    /// The account is full; answers who is to be disconnected, with what it holds: as many as hold `excess` bytes, and no more.
    pub fn look(&mut self, now: Nanos, excess: u64, holders: impl Iterator<Item = (u64, Holder)>) -> Vec<(u64, u64)> {
        let mut since = BTreeMap::new();
        let mut stuck = Vec::new();
        for (id, Holder { held: (bytes, given_back), waits_for_client }) in holders {
            if !waits_for_client || bytes < LEAST_STUCK {
                continue;
            }
            let known = self.since.get(&id).filter(|(count, _)| *count == given_back);
            let (_, at) = *since.entry(id).or_insert(known.copied().unwrap_or((given_back, now)));
            if now - at >= STUCK_AFTER {
                stuck.push((id, bytes));
            }
        }
        self.since = since;
        stuck.sort_unstable_by_key(|(_, bytes)| Reverse(*bytes));
        let mut left = excess;
        stuck.retain(|(_, bytes)| {
            let is_wanted = left > 0;
            left = left.saturating_sub(*bytes);
            is_wanted
        });
        stuck
    }
}

#[cfg(test)]
#[path = "client_memory_tests.rs"]
mod tests;

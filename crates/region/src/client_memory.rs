//! One account of memory for all clients of a node: requests, operations under way, results, encoded replies.
//!
//! ```text
//!   sockets -> input -> commands -> operations -> results -> output -> sockets
//!   `----------------------- ClientMemory, a share of memory_budget ---------'
//! ```
//! The limit is the share of [`Purpose::Clients`]. Memory is taken for a client only while the account is not
//! [full](ClientMemory::is_full), and is charged at once. So the sum exceeds the limit by one step at most: one read of
//! a socket, one value, one page of a scan, or one request.
//!
//! - A connection has a [`Charge`], set to what its session holds.
//! - A large value charges the account by itself ([`ClientMemory::hold`]), from its read until its last slice is
//!   dropped: in the node, on its way, or in a session. A session counts small values only.
//! - The last quarter is for connections that hold little (`LITTLE_BYTES`). The others find the account full earlier.
//! - While the account is full, nothing is read from a socket, no command is parsed, and no operation is submitted. A
//!   region reads only small values, which operations have paid for. Work under way ends, and gives memory back.
//! - While it is scarce, idle connections free the buffers that they keep for later requests.
//! - If no memory is given back, the clients that hold most are disconnected: see [`Stuck`].
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

/// Sessions count values up to this size. Larger values charge the account by themselves.
pub const SMALL_BYTES: usize = SMALL_VALUE_BYTES;
/// Bytes that an operation under way takes besides its arguments: its bookkeeping, and a small answer.
pub const OPERATION_BYTES: usize = SMALL_BYTES + 512;
/// Bytes that a scan under way takes: its answer, and what the entries take besides keys and values.
pub const SCAN_OPERATION_BYTES: usize = (1 << 20) + (64 << 10);
/// The reservation follows the account in steps of this many bytes.
const STEP: u64 = 256 << 10;
/// The least limit. The account of a small node then has room for a few of the largest requests.
const LEAST_LIMIT: u64 = 4 << 20;
/// A connection is disconnected only if it has given nothing back for this long.
const STUCK_AFTER: Nanos = Nanos::from_millis(200);
/// A connection that holds at most this may take from the last quarter of the account. It is disconnected only where many
/// such connections fill the account together.
pub const LITTLE_BYTES: u64 = 16 << 10;

/// Memory that clients of a node take. All clones share one account.
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

    /// An account with this limit in bytes. It is part of no budget.
    pub fn with_limit(limit: u64) -> ClientMemory {
        ClientMemory(Arc::new(Account { limit, used: AtomicU64::new(0), reservation: None }))
    }

    /// An account that is never full: for simulations, whose clients keep all their answers.
    pub fn unlimited() -> ClientMemory {
        ClientMemory::with_limit(u64::MAX)
    }

    /// Whether nothing more may be taken for any connection.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.used() >= self.0.limit
    }

    /// Whether nothing more may be taken for a connection that holds so many bytes.
    #[inline]
    pub fn is_full_for(&self, held: u64) -> bool {
        self.used() >= self.limit_for(held)
    }

    /// The last quarter is for connections that hold little, so that one small command does not wait for large ones.
    fn limit_for(&self, held: u64) -> u64 {
        if held <= LITTLE_BYTES { self.0.limit } else { self.0.limit / 4 * 3 }
    }

    /// Whether only connections that hold little may take more.
    #[inline]
    pub fn is_scarce(&self) -> bool {
        self.is_full_for(u64::MAX)
    }

    /// Whether more is taken than one step of each connection can explain.
    #[inline]
    pub fn is_overdrawn(&self) -> bool {
        self.used() >= self.0.limit.saturating_add(self.0.limit / 4)
    }

    /// Whether more than half is taken. Connections that hold much then take no more.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.used() >= self.0.limit / 2
    }

    /// Bytes beyond half of the limit. The clients that are disconnected together hold about this much.
    pub fn excess(&self) -> u64 {
        self.used().saturating_sub(self.0.limit / 2)
    }

    /// Bytes that may still be taken.
    #[inline]
    pub fn room(&self) -> u64 {
        self.0.limit.saturating_sub(self.used())
    }

    /// Bytes that are taken.
    #[inline]
    pub fn used(&self) -> u64 {
        self.0.used.load(Relaxed)
    }

    /// Most bytes of one request, or of the answer to one.
    #[inline]
    pub fn most_at_once(&self) -> usize {
        usize::try_from(self.0.limit / 2).unwrap_or(usize::MAX)
    }

    /// Most bytes of results that one connection should hold, and also most bytes of its replies under way. So one
    /// connection alone does not fill the account.
    #[inline]
    pub fn most_of_one(&self) -> usize {
        self.most_at_once() / 4
    }

    /// An empty charge.
    pub fn charge(&self) -> Charge {
        Charge { memory: self.clone(), bytes: 0, given_back: 0 }
    }

    /// A charge of so many bytes.
    pub fn take(&self, bytes: usize) -> Charge {
        let mut charge = self.charge();
        charge.set(bytes);
        charge
    }

    /// Returns the value. A large value charges the account until its last slice is dropped.
    pub fn hold(&self, value: Bytes) -> Bytes {
        if value.len() <= SMALL_BYTES {
            return value;
        }
        let charge = self.take(value.len());
        Bytes::from_owner(Charged { value, _charge: charge })
    }

    /// Returns the result. A large value in it charges the account; the page of a scan does so by its first key.
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
    pub fn hold_read(&self, mut result: ReadResult) -> ReadResult {
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

/// Bytes of an entry besides those of its key and value.
const ENTRY_BYTES: usize = size_of::<(Bytes, Bytes)>();

/// Bytes that are held for a client. They are given back when the charge is dropped.
#[derive(Debug)]
pub struct Charge {
    memory: ClientMemory,
    bytes: u64,
    /// How often `bytes` has become less.
    given_back: u64,
}

impl Charge {
    /// Sets the charge to so many bytes.
    #[inline]
    pub fn set(&mut self, bytes: usize) {
        let (before, after) = (self.bytes, bytes as u64);
        if before != after {
            self.given_back += u64::from(after < before);
            self.bytes = after;
            self.memory.change(before, after);
        }
    }

    /// Whether the holder lacks room for a step of `more` bytes. It holds `taken` bytes that are not charged yet.
    #[inline]
    pub fn lacks_room(&self, taken: usize, more: usize) -> bool {
        let taken = taken as u64;
        self.memory.used() + taken >= self.memory.limit_for(self.bytes + taken + more as u64)
    }

    /// Whether nothing more may be taken for the holder.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.memory.is_full_for(self.bytes)
    }

    /// Bytes that are charged.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The account that the bytes are charged to.
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

/// A value with its charge.
struct Charged {
    value: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.value
    }
}

/// Bytes of a result that its session counts: small values, and the entries of a scan.
pub fn small_bytes(result: &OpResult) -> usize {
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

/// What [`Stuck`] needs to know of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    /// Bytes that its session has charged, and how often they became less.
    held: (u64, u64),
    /// Only the client can make it continue: it must take replies, or send the end of a request.
    pub waits_for_client: bool,
}

impl Holder {
    /// Bytes that its session has charged.
    pub fn bytes(&self) -> u64 {
        self.held.0
    }

    /// A holder with this charge.
    pub fn new(charge: &Charge, waits_for_client: bool) -> Holder {
        Holder { held: (charge.bytes, charge.given_back), waits_for_client }
    }
}

/// Finds the connections to disconnect while the account stays full. They wait for their clients, and have given
/// nothing back for a while. Those that hold most come first. Those that hold little are spared if the account would be
/// scarce without them, too: then something else fills it, and gives memory back when it ends.
#[derive(Debug, Default)]
pub struct Stuck {
    /// By connection: how often it had given something back, and since when that is unchanged.
    since: BTreeMap<u64, (u64, Nanos)>,
}

impl Stuck {
    /// Forgets all connections: the account is not full.
    pub fn clear(&mut self) {
        self.since.clear();
    }

    /// Connections to disconnect while the account is full, with their bytes: as many as hold `excess`, and no more.
    pub fn look(&mut self, now: Nanos, excess: u64, holders: impl Iterator<Item = (u64, Holder)>) -> Vec<(u64, u64)> {
        let mut since = BTreeMap::new();
        let mut stuck = Vec::new();
        for (id, Holder { held: (bytes, given_back), waits_for_client }) in holders {
            if !waits_for_client || bytes == 0 {
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
        if stuck.iter().map(|(_, bytes)| bytes).sum::<u64>() < excess {
            stuck.retain(|(_, bytes)| *bytes > LITTLE_BYTES);
        }
        let mut left = excess;
        stuck.retain(|(_, bytes)| {
            let is_wanted = left > 0;
            left = left.saturating_sub(*bytes);
            is_wanted
        });
        stuck
    }
}

/// Bytes of keys and values in a result.
pub fn result_bytes(result: &OpResult) -> usize {
    let len = |value: &Option<Bytes>| value.as_ref().map_or(0, |value| value.len());
    match result {
        OpResult::Value(value) | OpResult::Stale { result: ReadResult::Value(value), .. } => len(value),
        OpResult::Put { old, .. } | OpResult::Deleted { old, .. } => len(old),
        OpResult::Pair(pair) | OpResult::Stale { result: ReadResult::Pair(pair), .. } => {
            pair.as_ref().map_or(0, |pair| len(&pair.value))
        }
        OpResult::Entries { entries, .. } | OpResult::Stale { result: ReadResult::Entries { entries, .. }, .. } => {
            entries.iter().map(|(key, value)| key.len() + value.len()).sum()
        }
        OpResult::Integer(_) | OpResult::Approximation { .. } | OpResult::Error(_) | OpResult::Done => 0,
        OpResult::RangeDeleted { .. } | OpResult::Checkpoint { .. } | OpResult::Digests { .. } => 0,
        OpResult::RangeBounds { bounds, .. } => bounds.iter().map(|bound| bound.len()).sum(),
        OpResult::RangeDigests(_) | OpResult::HashIndex(_) | OpResult::Users(_) => 0,
    }
}

#[cfg(test)]
#[path = "client_memory_tests.rs"]
mod tests;

//! One-sided reads of a region that this node serves: clients read its hash index (HiStore 4.1, 4.2), and backups [its safe
//! LSN](super::safe_lsn_line).
//!
//! ```text
//!  HashIndex asked --> open --> wrote, missed --> waiting --committed--> published --> answers leave
//!                       |
//!                       '--> revoked: bounds or role may change, a range is deleted, nobody asks any more
//! ```
//! Invariants, by the names of the blueprint's rules:
//! - W1: a version is published after its LSN may be acknowledged, and before any answer that shows it leaves. The line of the
//!   safe LSN is hidden meanwhile.
//! - W3: the index may lack any key. Deletes, and pairs that expire or are too long, take the key out.
//! - W4: a pair that was read is published only if it is certainly still the newest.
//! - W5: the index is revoked before the region quiesces for a change of its bounds or its primary, and when a range is
//!   deleted. The next client that asks gets a new one, which is empty.
//! - R2: the board never shows an instant beyond the lease ([`Primary::readable_until`]).
//!
//! An index is opened for the first client that asks, and closed once none has asked for [`UNUSED`]. Belongs to the node's
//! thread.
//!
//! [`Primary::readable_until`]: leeward_replication::primary::Primary::readable_until

use super::Serving;
use crate::request::ReplyTo;
use crate::safe_lsn_lines::{OpenLine, REST, SafeLsnLines, nonce};
use bytes::Bytes;
use leeward_engine::Moment;
use leeward_engine::hash::{HashIndex, HashIndexOf, HashIndexStats, HashMemories, HashMemory, Offer};
use leeward_fabric::{Fabric, ReadableMemory};
use leeward_format::cluster::IndexKind;
use leeward_format::op::{HashIndexAnswer, HashIndexQuestion, HashIndexState, OpResult};
use leeward_format::status::HashIndexStatus;
use leeward_format::{Epoch, Expiry, Incarnation, Lsn};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// An index for which no client has asked for so long is closed, and a line for which no backup has: each write pays for them.
pub(super) const UNUSED: Nanos = Nanos::from_secs(60);
/// When a client may ask again that gets no grant: where the table has no index; and where there is none at the moment.
const AGAIN_MS: u32 = 10_000;
const SOON_MS: u32 = 200;

/// A version that clients may not see yet.
struct Waiting {
    lsn: Lsn,
    key: Bytes,
    /// `None` takes the key out.
    value: Option<Bytes>,
    offer: Offer,
}

struct Open {
    index: HashIndex,
    /// Ascending by LSN, but for pairs that were read.
    waiting: VecDeque<Waiting>,
    /// When a client asked last.
    asked: Nanos,
}

/// The hash index of a region, and who reads it.
pub(super) struct DirectReads {
    /// Has the memory that clients read; `None`: there are no direct reads.
    fabric: Option<Arc<dyn Fabric>>,
    incarnation: Incarnation,
    /// Indexes that were opened so far.
    opened: u64,
    open: Option<Open>,
    not_before: Nanos,
    /// The configuration in which the region quiesced: in it nothing is opened any more.
    pub(super) quiesced_in: Option<Epoch>,
    /// Figures of indexes that are closed.
    past: HashIndexStats,
    /// Where the safe LSN is shown, if a backup wants it.
    pub(super) line: Option<OpenLine>,
    pub(super) lines: Arc<SafeLsnLines>,
}

impl DirectReads {
    pub(super) fn new(
        fabric: Option<Arc<dyn Fabric>>,
        incarnation: Incarnation,
        lines: Arc<SafeLsnLines>,
    ) -> DirectReads {
        let (past, not_before) = (HashIndexStats::default(), Nanos::ZERO);
        let (opened, open, quiesced_in, line) = (0, None, None, None);
        DirectReads { fabric, incarnation, opened, open, not_before, quiesced_in, past, line, lines }
    }

    /// Clients may read the index.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Clients or backups may read something.
    pub(super) fn has_readers(&self) -> bool {
        self.is_open() || self.line.is_some()
    }

    /// The index, while clients may read it.
    pub(super) fn index(&mut self) -> Option<&mut HashIndex> {
        self.open.as_mut().map(|open| &mut open.index)
    }

    /// `key` was written; without a value it was deleted. A pair that expires counts as deleted.
    pub(super) fn wrote(&mut self, lsn: Lsn, key: &Bytes, value: Option<&Bytes>, expires: Option<Expiry>) {
        let Some(open) = &mut self.open else { return };
        let value = value.filter(|_| expires.is_none()).cloned();
        open.waiting.push_back(Waiting { lsn, key: key.clone(), value, offer: Offer::Written });
        if planted(Bug::PublishUncommitted) {
            open.publish(Lsn(u64::MAX));
        }
    }

    /// `value` is the newest value of `key`, which a client had to ask for.
    fn missed(&mut self, lsn: Lsn, key: &Bytes, value: &Bytes, acknowledged: Lsn) {
        let Some(open) = &mut self.open else { return };
        match lsn <= acknowledged {
            true => open.index.put(key, lsn, value, Offer::Missed),
            false => {
                let (key, value) = (key.clone(), Some(value.clone()));
                open.waiting.push_back(Waiting { lsn, key, value, offer: Offer::Missed });
            }
        }
    }

    /// Everything up to `acknowledged` may be seen. The line is to be shown after this.
    pub(super) fn publish(&mut self, acknowledged: Lsn) {
        let Some(open) = &mut self.open else { return };
        let changes = open.waiting.front().is_some_and(|waiting| waiting.lsn <= acknowledged);
        if let Some(line) = self.line.as_mut().filter(|_| changes) {
            line.hide();
        }
        open.publish(acknowledged);
    }

    /// Ends reads of the index.
    fn close_index(&mut self) {
        let Some(open) = self.open.take() else { return };
        open.index.revoke();
        let HashIndexStats { published, evicted, .. } = open.index.stats();
        self.past.published += published;
        self.past.evicted += evicted;
    }
}

impl Open {
    fn publish(&mut self, acknowledged: Lsn) {
        while let Some(Waiting { lsn, key, value, offer }) =
            self.waiting.pop_front_if(|waiting| waiting.lsn <= acknowledged)
        {
            match value {
                Some(value) => self.index.put(&key, lsn, &value, offer),
                None => self.index.remove(&key),
            }
        }
    }
}

impl Serving {
    /// A client asks for the right to read the index.
    pub(super) fn answer_hash_index(&mut self, now: Nanos, to: ReplyTo, question: &HashIndexQuestion) {
        let state = self.hash_index_state(now, question);
        // The clock is that of the moment at which the answer leaves: see `HashIndexAnswer::clock`.
        let answer = HashIndexAnswer { clock: now.0, state };
        self.hold(now, Lsn(0), to, false, OpResult::HashIndex(Box::new(answer)));
    }

    fn hash_index_state(&mut self, now: Nanos, question: &HashIndexQuestion) -> HashIndexState {
        if !self.wants_hash_index() {
            return HashIndexState::None { again_ms: AGAIN_MS };
        }
        let is_leaving = self.direct_reads.quiesced_in == Some(self.primary.config().epoch);
        if !self.is_active() || is_leaving || !self.direct_reads.is_open() && !self.open_hash_index(now) {
            return HashIndexState::None { again_ms: SOON_MS };
        }
        self.extend_direct_reads(now);
        let Some(open) = &mut self.direct_reads.open else { return HashIndexState::None { again_ms: SOON_MS } };
        open.asked = now;
        let (nonce, version) = open.index.version();
        if question.nonce == nonce {
            open.index.note_reads(&question.read);
        }
        if (question.nonce, question.version) == (nonce, version) {
            return HashIndexState::Unchanged;
        }
        let (version, grant) = open.index.grant();
        HashIndexState::Granted { version, grant: Box::new(grant) }
    }

    /// Whether the table has an index, and clients can read this node's memory.
    fn wants_hash_index(&self) -> bool {
        let has_index = self.primary.options().reads.index == IndexKind::Hybrid;
        has_index && self.direct_reads.fabric.is_some() && !self.region.volume().is_failed()
    }

    fn open_hash_index(&mut self, now: Nanos) -> bool {
        let direct = &mut self.direct_reads;
        let Some(fabric) = direct.fabric.clone().filter(|_| now >= direct.not_before) else { return false };
        let config = self.primary.config();
        let of = HashIndexOf {
            region: config.region,
            term: config.term,
            partition: self.primary.options().partition,
            start: config.start.clone(),
            end: config.end.clone(),
        };
        direct.opened += 1;
        let nonce = nonce(direct.incarnation, direct.opened, config.region);
        let memories = Box::new(FabricMemories(fabric));
        match HashIndex::open(of, nonce, self.region.volume().memory(), memories) {
            Ok(Some(index)) => {
                direct.open = Some(Open { index, waiting: VecDeque::new(), asked: now });
                self.fill_index();
                return true;
            }
            Ok(None) => tracing::debug!(region = %self.id(), "the memory budget leaves too little for a hash index"),
            Err(error) => tracing::warn!(region = %self.id(), %error, "no memory for a hash index"),
        }
        self.direct_reads.not_before = now + REST;
        false
    }

    /// Figures of the region's indexes so far.
    pub(crate) fn hash_index_status(&self) -> HashIndexStatus {
        let DirectReads { open, past, .. } = &self.direct_reads;
        let HashIndexStats { records, bytes, published, evicted } =
            open.as_ref().map(|open| open.index.stats()).unwrap_or_default();
        let (published, evicted) = (past.published + published, past.evicted + evicted);
        HashIndexStatus { records, bytes, published, evicted }
    }

    /// Ends reads of the index: those that begin from now on are refused.
    pub(crate) fn close_hash_index(&mut self) {
        self.direct_reads.close_index();
        self.end_without_readers();
    }

    /// Ends all one-sided reads.
    pub(crate) fn close_direct_reads(&mut self) {
        self.direct_reads.line = None;
        self.close_hash_index();
    }

    fn end_without_readers(&mut self) {
        if !self.direct_reads.has_readers() {
            self.primary.readable_ended();
        }
    }

    /// The region quiesces: its bounds or its primary may be others in the next configuration (W5).
    pub(crate) fn stop_direct_reads(&mut self) {
        if !planted(Bug::ProposeUnrevoked) {
            self.direct_reads.quiesced_in = Some(self.primary.config().epoch);
            self.close_direct_reads();
        }
    }

    /// The region stays as it is.
    pub(crate) fn resume_direct_reads(&mut self) {
        self.direct_reads.quiesced_in = None;
    }

    /// Publishes until when clients may read the index, and backups the safe LSN.
    pub(crate) fn extend_direct_reads(&mut self, now: Nanos) {
        if !self.direct_reads.has_readers() {
            return;
        }
        let until = self.primary.readable_until(now);
        if let Some(open) = &self.direct_reads.open {
            open.index.set_readable_until(until.0);
        }
        self.extend_safe_lsn_line(until);
    }

    /// Time has passed: ends reads that are not wanted, or not right, any more. Extends others.
    pub(super) fn maintain_direct_reads(&mut self, now: Nanos) {
        if self.is_safe_lsn_line_over(now) {
            self.direct_reads.line = None;
            self.end_without_readers();
        }
        if self.is_index_over(now) {
            self.close_hash_index();
        }
        self.extend_direct_reads(now);
    }

    /// Moves the index on. Returns whether it is not wanted, or not right, any more.
    fn is_index_over(&mut self, now: Nanos) -> bool {
        let Some(open) = &mut self.direct_reads.open else { return false };
        open.index.step();
        let is_unused = now - open.asked > UNUSED || open.index.is_outgrown();
        let (config, of) = (self.primary.config(), open.index.of());
        let has_other_bounds = (&config.start, &config.end) != (&of.start, &of.end);
        is_unused || has_other_bounds || !self.wants_hash_index()
    }

    /// A read by a request has found the newest version, as of `moment`; `None`: just now.
    pub(super) fn fill_hash_index(&mut self, key: &Bytes, found: &super::decide::Current, moment: Option<Moment>) {
        if !self.direct_reads.is_open() {
            return;
        }
        let Some((value, None)) = &found.pair else { return };
        let is_newest = moment.is_none_or(|moment| self.region.is_unchanged(key, moment)) || planted(Bug::FillStale);
        if is_newest {
            self.direct_reads.missed(found.lsn, key, value, self.answers.acknowledged());
        }
    }
}

/// Memory for indexes on a fabric.
struct FabricMemories(Arc<dyn Fabric>);

impl HashMemories for FabricMemories {
    fn allocate(&self, bytes: usize) -> io::Result<Box<dyn HashMemory>> {
        Ok(Box::new(FabricMemory(self.0.allocate_readable(bytes)?)))
    }
}

struct FabricMemory(ReadableMemory);

impl HashMemory for FabricMemory {
    fn load(&self, offset: usize) -> u64 {
        self.0.load_u64(offset)
    }
    fn store(&self, offset: usize, word: u64) {
        self.0.store_u64(offset, word);
    }
    fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.0.read(offset, bytes);
    }
    fn descriptor(&self) -> Bytes {
        self.0.descriptor().0.into()
    }
    fn revoke(&self) {
        self.0.revoke();
    }
}

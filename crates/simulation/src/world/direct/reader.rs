//! A client that reads hash indexes by one-sided reads (HiStore 4.2), without effects but its posts on the fabric. What it
//! finds in an index, the format's own [`Reader`] decides.
//!
//! ```text
//!  begin --> resume: post a read --> read is done --.         any answer: Found
//!              ^-----------------------------------'         anything else: Request, an `Op::Get`
//!              '- resume: look at the lease --> Found
//! ```
//! It keeps what it was granted, also of primaries that may be deposed, and of bounds that regions may no longer have. It
//! uses any of that, and relies on the lease alone. It is paused anywhere between two reads, and before it looks at the
//! lease. Its clock is its own.
//!
//! - A clock sample counts from when it asked, by its own clock.
//! - It looks at the lease after the last read, with a board that it has read by then.
//! - It has one look-up under way at most. The reads of boards are beside that.

use super::super::{NodeId, server_id};
use crate::DirectReads;
use crate::load::Purpose;
use bytes::Bytes;
use leeward_fabric::{Fabric, LinkEvent, ReadableDescriptor, SimFabric};
use leeward_format::RegionId;
use leeward_format::hash_index::{Board, BytesToRead, ClockSample, Grant, Reader, Reason, Step};
use leeward_format::op::{HashIndexAnswer, HashIndexQuestion, HashIndexState};
use leeward_platform::planted::{Bug, planted};
use leeward_platform::{Nanos, Rng};
use leeward_server::node::{Token, links};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Indexes that it keeps at most. It forgets those that it got first.
const INDEXES: usize = 12;
/// How long it waits for the answer to a question, by its clock, before it asks again.
const QUESTION_TIMEOUT: u64 = 5_000_000_000;
/// When it asks again after an error.
const BACKOFF: u64 = 20_000_000;

/// A clock with an offset, which runs at its own speed.
#[derive(Clone, Copy, Debug)]
struct Clock {
    offset: u64,
    ppm: u64,
}

impl Clock {
    fn at(self, now: Nanos) -> u64 {
        self.offset + (u128::from(now.0) * u128::from(self.ppm) / 1_000_000) as u64
    }
}

/// An index that it may read.
struct Index {
    node: NodeId,
    version: u32,
    /// It has lines that the grant does not have.
    has_grown: bool,
    grant: Arc<Grant>,
    sample: ClockSample,
    board: Option<Board>,
    /// When it read the board last, by its clock.
    board_read: u64,
}

/// A question that was not answered yet, or when the next one may come.
struct Question {
    token: Token,
    nonce: u64,
    asked: u64,
    /// By its clock.
    again: u64,
}

/// What a read that was posted is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadOf {
    Board { nonce: u64 },
    Look { number: u64 },
}

enum Stage {
    /// It reads next.
    ReadNext(Reader<Arc<Grant>, Bytes>),
    Reading(Reader<Arc<Grant>, Bytes>),
    /// It looks at the lease next.
    Found(Bytes),
    /// It asks, or has asked, by a request.
    Requested,
}

/// A look-up of a key.
struct Look {
    number: u64,
    key: Bytes,
    purpose: Purpose,
    /// The index that it reads, and its node, if there is any. Its places are those of this grant, and of no newer one.
    source: Option<(NodeId, Arc<Grant>)>,
    stage: Stage,
}

impl Look {
    /// Of the index that it reads.
    fn nonce(&self) -> u64 {
        self.source.as_ref().map_or(0, |(_, grant)| grant.nonce)
    }
}

/// What is to be done next for the look-up.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing: an event will come.
    Wait,
    /// [`DirectReader::resume`], after a pause.
    Resume { look: u64, pause: Nanos },
    /// A request, under this number of the look-up.
    Request { look: u64, key: Bytes },
    /// It is over.
    Found { key: Bytes, purpose: Purpose, value: Bytes },
}

/// A simulated client that reads hash indexes.
pub(super) struct DirectReader {
    fabric: Arc<SimFabric>,
    clock: Clock,
    /// How often it reads boards, and asks for the time, in nanoseconds of its clock.
    intervals: (u64, u64),
    up: BTreeSet<NodeId>,
    indexes: Vec<Index>,
    questions: BTreeMap<(RegionId, NodeId), Question>,
    reads: BTreeMap<u64, (NodeId, ReadOf)>,
    look: Option<Look>,
    /// The last number of a read or a look-up.
    last: u64,
    pub(super) counts: DirectReads,
}

impl DirectReader {
    /// A client of `nodes` nodes.
    pub(super) fn new(fabric: Arc<SimFabric>, nodes: usize, rng: &mut Rng) -> DirectReader {
        for node in 0..nodes {
            fabric.connect(links::peer(server_id(node)), "");
        }
        let ms = |from: u64, to: u64, rng: &mut Rng| rng.between(from, to) * 1_000_000;
        DirectReader {
            fabric,
            clock: Clock { offset: ms(1, 2_000_000, rng), ppm: rng.between(900_000, 1_100_000) },
            intervals: (ms(20, 250, rng), ms(50, 600, rng)),
            up: BTreeSet::new(),
            indexes: Vec::new(),
            questions: BTreeMap::new(),
            reads: BTreeMap::new(),
            look: None,
            last: 0,
            counts: DirectReads::default(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.look.is_none()
    }

    /// The look-up that is paused before it reads such bytes of a memory of `node`.
    pub(super) fn reads_next(
        &self,
        node: NodeId,
        is_such: impl Fn(&ReadableDescriptor, Range<u64>) -> bool,
    ) -> Option<u64> {
        let look = self.look.as_ref()?;
        let (Stage::ReadNext(machine), Some((at, grant))) = (&look.stage, &look.source) else { return None };
        let BytesToRead { offset, bytes, .. } = machine.place();
        let reads = *at == node && is_such(&memory_at(grant, machine.place()), offset..offset + u64::from(bytes));
        reads.then_some(look.number)
    }

    // ---- a look-up --------------------------------------------------------------------------------------------------

    /// Begins to look for `key`.
    pub(super) fn begin(&mut self, now: Nanos, key: Bytes, purpose: Purpose, rng: &mut Rng) -> Next {
        self.last += 1;
        let fits = |index: &&Index| index.grant.contains(&key) && self.up.contains(&index.node);
        let fitting: Vec<&Index> = self.indexes.iter().filter(fits).collect();
        let index = (!fitting.is_empty()).then(|| fitting[rng.index(fitting.len())]);
        let source = index.map(|index| (index.node, Arc::clone(&index.grant)));
        let stage = Stage::Requested;
        self.look = Some(Look { number: self.last, key: key.clone(), purpose, source: source.clone(), stage });
        let Some((_, grant)) = source else {
            self.counts.ungranted += 1;
            return self.request();
        };
        self.read_board_if_due(now, grant.nonce);
        self.take(Reader::begin(grant, key), rng)
    }

    /// Goes on after a pause.
    pub(super) fn resume(&mut self, now: Nanos, number: u64) -> Next {
        let Some(look) = self.look.as_mut().filter(|look| look.number == number) else { return Next::Wait };
        match std::mem::replace(&mut look.stage, Stage::Requested) {
            Stage::ReadNext(machine) => {
                let (source, place) = (look.source.clone(), machine.place());
                look.stage = Stage::Reading(machine);
                let is_posted = source.is_some_and(|source| self.post(&source, place, ReadOf::Look { number }));
                if is_posted { Next::Wait } else { self.request() }
            }
            Stage::Found(value) => self.check(now, value),
            stage => {
                look.stage = stage;
                Next::Wait
            }
        }
    }

    /// Looks at the lease. That comes last (rule R2).
    fn check(&mut self, now: Nanos, value: Bytes) -> Next {
        let nonce = self.look.as_ref().map_or(0, Look::nonce);
        let clock = self.clock.at(now);
        let is_readable =
            |index: &Index| index.board.is_some_and(|board| index.sample.is_readable(clock, board.readable_until));
        if !self.index(nonce).is_some_and(is_readable) && !planted(Bug::ReadWithoutLease) {
            self.counts.too_old += 1;
            self.read_board_if_due(now, nonce);
            return self.request();
        }
        self.counts.hits += 1;
        let Some(Look { key, purpose, .. }) = self.look.take() else { return Next::Wait };
        Next::Found { key, purpose, value }
    }

    /// Ends the look-up: it was answered by a request, or never will be.
    pub(super) fn end(&mut self, number: u64) -> Option<(Bytes, Purpose)> {
        let look = self.look.take_if(|look| look.number == number)?;
        Some((look.key, look.purpose))
    }

    fn take(&mut self, step: Step<'_, Arc<Grant>, Bytes>, rng: &mut Rng) -> Next {
        let stage = match step {
            Step::Read(machine) => Stage::ReadNext(machine),
            Step::Found { value, .. } => Stage::Found(Bytes::copy_from_slice(value)),
            Step::Ask(reason) => {
                self.counts.asks += 1;
                if reason == Reason::NotGranted {
                    self.want_another();
                }
                return self.request();
            }
        };
        let Some(look) = &mut self.look else { return Next::Wait };
        look.stage = stage;
        Next::Resume { look: look.number, pause: pause(rng) }
    }

    fn request(&mut self) -> Next {
        let Some(look) = &mut self.look else { return Next::Wait };
        look.stage = Stage::Requested;
        Next::Request { look: look.number, key: look.key.clone() }
    }

    // ---- the fabric -------------------------------------------------------------------------------------------------

    /// Something has happened on the link to a node.
    pub(super) fn hear(&mut self, node: NodeId, event: LinkEvent, rng: &mut Rng) -> Next {
        match event {
            LinkEvent::Up => _ = self.up.insert(node),
            LinkEvent::Down => return self.lost(node),
            LinkEvent::ReadDone { op, bytes } => match self.reads.remove(&op) {
                Some((_, ReadOf::Board { nonce })) => {
                    let index = self.indexes.iter_mut().find(|index| index.grant.nonce == nonce);
                    let read = index.zip(Board::read(nonce, &bytes));
                    read.into_iter().for_each(|(index, board)| index.board = Some(board));
                }
                Some((_, ReadOf::Look { number })) => return self.feed(number, &bytes, rng),
                None => {}
            },
            LinkEvent::Refused { op } => match self.reads.remove(&op) {
                Some((_, ReadOf::Board { nonce })) => self.forget(nonce),
                Some((_, ReadOf::Look { number })) => {
                    let look = self.look.as_ref().filter(|look| look.number == number);
                    let Some(nonce) = look.map(Look::nonce) else { return Next::Wait };
                    self.forget(nonce);
                    self.counts.refused += 1;
                    return self.request();
                }
                None => {}
            },
            LinkEvent::Message(_) | LinkEvent::Completed { .. } => unreachable!("it sends and writes nothing"),
        }
        Next::Wait
    }

    fn feed(&mut self, number: u64, bytes: &[u8], rng: &mut Rng) -> Next {
        let Some(look) = self.look.as_mut().filter(|look| look.number == number) else { return Next::Wait };
        match std::mem::replace(&mut look.stage, Stage::Requested) {
            Stage::Reading(machine) => self.take(machine.feed(bytes), rng),
            stage => {
                look.stage = stage;
                Next::Wait
            }
        }
    }

    /// The link is down: nothing that was under way ends.
    fn lost(&mut self, node: NodeId) -> Next {
        self.up.remove(&node);
        let lost: Vec<ReadOf> = self.reads.extract_if(.., |_, (at, _)| *at == node).map(|(_, (_, of))| of).collect();
        match self.look.as_ref().filter(|look| lost.contains(&ReadOf::Look { number: look.number })) {
            Some(_) => self.request(),
            None => Next::Wait,
        }
    }

    /// Posts a read; returns false if it cannot.
    fn post(&mut self, (node, grant): &(NodeId, Arc<Grant>), place: BytesToRead, of: ReadOf) -> bool {
        if !self.up.contains(node) {
            return false;
        }
        let from = memory_at(grant, place);
        self.last += 1;
        self.reads.insert(self.last, (*node, of));
        self.fabric.read(links::peer(server_id(*node)), &from, place.offset, place.bytes, self.last);
        self.fabric.flush();
        true
    }

    fn read_board_if_due(&mut self, now: Nanos, nonce: u64) {
        let (clock, interval) = (self.clock.at(now), self.intervals.0);
        let Some(index) = self.indexes.iter_mut().find(|index| index.grant.nonce == nonce) else { return };
        if index.board.is_none() || clock - index.board_read > interval {
            index.board_read = clock;
            let source = (index.node, Arc::clone(&index.grant));
            self.post(&source, source.1.board, ReadOf::Board { nonce });
        }
    }

    // ---- questions --------------------------------------------------------------------------------------------------

    fn index(&self, nonce: u64) -> Option<&Index> {
        self.indexes.iter().find(|index| index.grant.nonce == nonce)
    }

    fn forget(&mut self, nonce: u64) {
        self.indexes.retain(|index| index.grant.nonce != nonce);
    }

    /// The index that it reads has grown: asks for all of it.
    fn want_another(&mut self) {
        let nonce = self.look.as_ref().map_or(0, Look::nonce);
        if let Some(index) = self.indexes.iter_mut().find(|index| index.grant.nonce == nonce) {
            index.has_grown = true;
        }
    }

    /// The question about the index of `region`, of which `node` is said to be the primary, if it is time to ask; and
    /// its token is then `token`.
    pub(super) fn ask(
        &mut self,
        now: Nanos,
        region: RegionId,
        node: NodeId,
        token: Token,
    ) -> Option<HashIndexQuestion> {
        let clock = self.clock.at(now);
        let is_of = |index: &&Index| (index.grant.region, index.node) == (region, node);
        let index = self.indexes.iter().rev().find(is_of);
        let is_fresh = index.is_some_and(|index| !index.has_grown && clock - index.sample.asked < self.intervals.1);
        let may_not = self.questions.get(&(region, node)).is_some_and(|question| clock < question.again);
        if is_fresh || may_not {
            return None;
        }
        let (nonce, version) = index.map_or((0, 0), |index| (index.grant.nonce, index.version));
        Some(self.question(clock, (region, node), token, (nonce, version)))
    }

    /// Another question about the index of `node` that it got last.
    pub(super) fn ask_again(&mut self, now: Nanos, node: NodeId, token: Token) -> Option<HashIndexQuestion> {
        let index = self.indexes.iter().rev().find(|index| index.node == node)?;
        let (region, nonce, version) = (index.grant.region, index.grant.nonce, index.version);
        let clock = self.clock.at(now);
        Some(self.question(clock, (region, node), token, (nonce, version)))
    }

    fn question(
        &mut self,
        clock: u64,
        (region, node): (RegionId, NodeId),
        token: Token,
        (nonce, version): (u64, u32),
    ) -> HashIndexQuestion {
        let again = clock + QUESTION_TIMEOUT;
        self.questions.insert((region, node), Question { token, nonce, asked: clock, again });
        HashIndexQuestion { region, nonce, version, read: Vec::new() }
    }

    /// A question was answered; `None`: by an error.
    pub(super) fn answered(&mut self, now: Nanos, token: Token, answer: Option<HashIndexAnswer>) {
        let clock = self.clock.at(now);
        let Some((&(_, node), question)) = self.questions.iter_mut().find(|(_, question)| question.token == token)
        else {
            return;
        };
        let Some(HashIndexAnswer { clock: answered, state }) = answer else {
            question.again = clock + BACKOFF;
            return;
        };
        question.again = clock;
        let asked = if planted(Bug::BoundFromAnswer) { clock } else { question.asked };
        let (sample, nonce) = (ClockSample { asked, answered }, question.nonce);
        match state {
            HashIndexState::None { again_ms } => question.again = clock + u64::from(again_ms) * 1_000_000,
            HashIndexState::Unchanged => {
                let index = self.indexes.iter_mut().find(|index| index.grant.nonce == nonce);
                index.into_iter().for_each(|index| (index.sample, index.has_grown) = (sample, false));
            }
            HashIndexState::Granted { version, grant } => {
                let board = self.index(grant.nonce).and_then(|index| index.board);
                self.forget(grant.nonce);
                if self.indexes.len() == INDEXES {
                    self.indexes.remove(0);
                }
                let (nonce, grant) = (grant.nonce, Arc::from(grant));
                self.indexes.push(Index { node, version, has_grown: false, grant, sample, board, board_read: 0 });
                self.read_board_if_due(now, nonce);
            }
        }
    }
}

/// The memory of a place.
fn memory_at(grant: &Grant, place: BytesToRead) -> ReadableDescriptor {
    ReadableDescriptor(grant.memories[usize::from(place.memory)].to_vec())
}

/// How long the client does not run: mostly not at all, sometimes for some writes of a key, and rarely longer than a lease.
fn pause(rng: &mut Rng) -> Nanos {
    let magnitude = match rng.below(64) {
        0 => rng.between(14, 20),
        1..5 => rng.between(10, 17),
        5..20 => 8,
        _ => 0,
    };
    Nanos::from_micros(rng.below(2 << magnitude))
}

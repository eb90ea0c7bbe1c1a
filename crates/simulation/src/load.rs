//! The clients. They use a few shared keys, with histories that are checked for linearizability ([`crate::shared`]). They also
//! use streams of keys that are written once ([`crate::ledger`]), that expire ([`crate::expiring`]), and that words are appended
//! to ([`crate::appended`]).
//!
//! The mix of clients differs from seed to seed ([`ClientMix`]): some only read, some always stay with one node, some
//! give up soon. A client has one operation in flight. One client in three gives request ids to all of its writes, and
//! another one in three to all but plain puts. Such a client repeats a request that was not answered, through any node.
//! All attempts are one operation of the history. The other clients leave retries to the nodes.

use crate::appended::Appended;
use crate::client_mix::ClientMix;
use crate::expiring::Expiring;
use crate::ledger::Ledger;
use crate::shared::{Entry, SharedKeys};
use crate::world::NodeId;
use bytes::Bytes;
use leeward_format::cluster::GroupConfig;
use leeward_format::op::{Op, OpError, OpResult, Read};
use leeward_format::partition::Partition;
use leeward_format::request::{Attempts, Heard, Once, RequestIds, Verdict};
use leeward_format::{Lsn, RegionId};
use leeward_platform::{Nanos, Rng};
use leeward_server::node::Token;
use std::collections::BTreeMap;

impl Pending {
    fn may_be_tried_again(&self) -> bool {
        self.attempts.is_named() && self.tries < MOST_TRIES
    }
}

/// The purpose of an operation, which decides how its answer is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// Part of the history of a shared key.
    Shared(Entry),
    /// Reads a range of shared keys.
    Scan { called: Nanos },
    /// Writes a key of the ledger.
    Fill { number: usize },
    /// Reads a key of the ledger. With `must`, its value must be there.
    Look { number: usize, must: bool },
    /// Writes a key that expires.
    Expire { number: usize },
    /// Reads a key that expires.
    LookExpiring { number: usize, called: Nanos },
    /// Appends a word.
    Append { number: usize },
    /// Reads a key to which words are appended. The words `must` have to be in it.
    LookAppended { key: usize, must: u32 },
}

#[derive(Debug)]
struct Pending {
    token: Token,
    node: NodeId,
    op: Op,
    region: RegionId,
    purpose: Purpose,
    attempts: Attempts,
    /// Attempts so far.
    tries: u32,
}

/// Most attempts of a client at one operation.
const MOST_TRIES: u32 = 4;

/// The writes to which a client gives request ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    None,
    ButPlainPuts,
    All,
}

#[derive(Debug)]
struct Client {
    pending: Option<Pending>,
    /// The operation that it will repeat.
    again: Option<Pending>,
    home: Option<NodeId>,
    reads_only: bool,
    names: Names,
    ids: RequestIds,
    heard: Heard,
}

impl Client {
    fn attempts_at(&mut self, op: &Op) -> Attempts {
        let has_name = match self.names {
            Names::None => false,
            Names::ButPlainPuts => op.writes_data() && !op.is_plain_put(),
            Names::All => op.writes_data(),
        };
        if has_name { Attempts::named(self.ids.next_id()) } else { Attempts::unnamed() }
    }
}

/// An operation for a node.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) token: Token,
    pub(crate) node: NodeId,
    pub(crate) op: Op,
    pub(crate) once: Option<Once>,
}

/// The clients of a run.
#[derive(Debug)]
pub(crate) struct Load {
    client_mix: ClientMix,
    clients: Vec<Client>,
    next_token: u64,
    shared: SharedKeys,
    window: Nanos,
    pub(crate) ledger: Ledger,
    expiring: Expiring,
    appended: Appended,
    failures: Vec<String>,
    pub(crate) answered: u64,
    pub(crate) unknown: u64,
    /// Attempts after the first.
    pub(crate) again: u64,
    /// Reads that backups answered.
    pub(crate) stale: u64,
}

impl Load {
    /// Clients of `nodes` nodes, on a table with this partition. Writes that were acknowledged within the `window` before a loss
    /// may be gone.
    pub(crate) fn new(client_mix: ClientMix, nodes: usize, partition: Partition, window: Nanos, rng: &mut Rng) -> Load {
        let client = |number| Client {
            pending: None,
            again: None,
            home: client_mix.faithful.then(|| rng.index(nodes)),
            reads_only: number < client_mix.readers,
            names: [Names::All, Names::ButPlainPuts, Names::None][number % 3],
            // Not drawn from the generator. All drawn ids are larger than these.
            ids: RequestIds::new(number as u64),
            heard: Heard::default(),
        };
        Load {
            clients: (0..client_mix.clients).map(client).collect(),
            shared: SharedKeys::new(partition, window, &client_mix),
            client_mix,
            next_token: 0,
            window,
            ledger: Ledger::new(window),
            expiring: Expiring::default(),
            appended: Appended::default(),
            failures: Vec::new(),
            answered: 0,
            unknown: 0,
            again: 0,
            stale: 0,
        }
    }

    pub(crate) fn clients(&self) -> usize {
        self.clients.len()
    }

    pub(crate) fn timeout(&self) -> Nanos {
        self.client_mix.timeout
    }

    /// How old a lost acknowledged write may be.
    pub(crate) fn window(&self) -> Nanos {
        self.window
    }

    /// The region of `config` was merged into another one.
    pub(crate) fn merged(&mut self, now: Nanos, config: &GroupConfig) {
        self.shared.merged(now, config);
    }

    /// No client waits for an answer.
    pub(crate) fn is_idle(&self) -> bool {
        self.clients.iter().all(|client| client.pending.is_none())
    }

    /// The newest writes may be gone, also those just before the `deaths` of processes. Clients repeat no operation from before.
    pub(crate) fn newest_lost(&mut self, now: Nanos, deaths: &[Nanos]) {
        self.ledger.power_lost(now, deaths);
        self.expiring.power_lost();
        self.appended.power_lost();
        self.shared.newest_lost(now, deaths);
        for client in &mut self.clients {
            client.pending.iter_mut().for_each(|pending| pending.tries = MOST_TRIES);
            if let Some(again) = client.again.take() {
                self.unknown += 1;
                tracing::debug!(op = ?again.op, "is not asked for again");
            }
        }
    }

    /// The next operation of a client, or another attempt at the last one, for one of the nodes that are `up`. `region_of` is the
    /// region of an operation by the region map of a node.
    pub(crate) fn next(
        &mut self,
        now: Nanos,
        client: usize,
        up: &[NodeId],
        region_of: impl Fn(NodeId, &Op) -> RegionId,
        rng: &mut Rng,
    ) -> Option<Request> {
        if self.clients[client].pending.is_some() || up.is_empty() {
            return None;
        }
        self.next_token += 1;
        let token = Token(self.next_token);
        let mut pending = match self.clients[client].again.take() {
            Some(again) => {
                self.again += 1;
                Pending { token, node: up[rng.index(up.len())], ..again }
            }
            None => {
                let home = self.clients[client].home.filter(|home| up.contains(home));
                let node = home.unwrap_or_else(|| up[rng.index(up.len())]);
                let (op, purpose) = self.choose(now, self.clients[client].reads_only, rng);
                let attempts = self.clients[client].attempts_at(&op);
                Pending { token, node, op, region: RegionId(0), purpose, attempts, tries: 0 }
            }
        };
        let client = &mut self.clients[client];
        (pending.region, pending.tries) = (region_of(pending.node, &pending.op), pending.tries + 1);
        let once = pending.attempts.ask(pending.region, &client.heard);
        let (node, op) = (pending.node, pending.op.clone());
        client.pending = Some(pending);
        Some(Request { token, node, op, once })
    }

    fn choose(&mut self, now: Nanos, reads_only: bool, rng: &mut Rng) -> (Op, Purpose) {
        if reads_only && self.client_mix.at_most_stale_ms.is_some() {
            return self.choose_shared(now, true, rng);
        }
        if rng.one_in(12)
            && let Some((op, number, must)) = self.ledger.read(rng)
        {
            return (op, Purpose::Look { number, must });
        }
        if rng.one_in(16)
            && let Some((op, number)) = self.expiring.read(rng)
        {
            return (op, Purpose::LookExpiring { number, called: now });
        }
        let appends = self.client_mix.appends();
        if appends
            && rng.one_in(24)
            && let Some((op, key, must)) = self.appended.read(rng)
        {
            return (op, Purpose::LookAppended { key, must });
        }
        if appends && !reads_only && rng.one_in(10) {
            let (op, number) = self.appended.write();
            return (op, Purpose::Append { number });
        }
        if !reads_only && rng.one_in(16) {
            let (op, number) = self.expiring.write(now, rng);
            return (op, Purpose::Expire { number });
        }
        if !reads_only && rng.below(100) < self.client_mix.fills {
            let (op, number) = self
                .ledger
                .write(now, rng.between(self.client_mix.fill_bytes.0, self.client_mix.fill_bytes.1) as usize);
            return (op, Purpose::Fill { number });
        }
        self.choose_shared(now, reads_only, rng)
    }

    fn choose_shared(&mut self, now: Nanos, reads_only: bool, rng: &mut Rng) -> (Op, Purpose) {
        let is_stale = reads_only || self.next_token.is_multiple_of(2);
        let scan = if rng.one_in(16) { self.shared.scan(rng) } else { None };
        let (op, purpose) = match scan {
            Some(op) => (op, Purpose::Scan { called: now }),
            None => {
                let (op, entry) = self.shared.choose(now, reads_only, rng);
                (op, Purpose::Shared(entry))
            }
        };
        let op = match self.client_mix.at_most_stale_ms.filter(|_| is_stale) {
            Some(at_most_ms) => Read::stale(op, if rng.one_in(4) { 0 } else { at_most_ms }),
            None => op,
        };
        (op, purpose)
    }

    /// What a direct reader looks up next, perhaps the same as `last` was.
    pub(crate) fn look_up(&mut self, now: Nanos, last: Option<Purpose>, rng: &mut Rng) -> (Bytes, Purpose) {
        if let Some(Purpose::Shared(last)) = last
            && !rng.one_in(4)
            && let Some((key, entry)) = self.shared.look_up_again(now, last)
        {
            return (key, Purpose::Shared(entry));
        }
        if rng.one_in(6)
            && let Some((Op::Get { key }, number, must)) = self.ledger.read(rng)
        {
            return (key, Purpose::Look { number, must });
        }
        if self.client_mix.appends()
            && rng.one_in(8)
            && let Some((Op::Get { key }, number, must)) = self.appended.read(rng)
        {
            return (key, Purpose::LookAppended { key: number, must });
        }
        let (key, entry) = self.shared.look_up(now, rng);
        (key, Purpose::Shared(entry))
    }

    /// What a direct reader has found, directly or by a request. An error says nothing.
    pub(crate) fn looked_up(&mut self, now: Nanos, purpose: Purpose, key: Bytes, result: &OpResult) {
        if !matches!(result, OpResult::Error(_)) {
            self.answered += 1;
            self.done(now, purpose, &Op::Get { key }, result);
        }
    }

    /// An answer arrived, from a node that knows the `committed` LSN of each region. Answers the client that is free again, and
    /// how long it pauses.
    pub(crate) fn answered(
        &mut self,
        now: Nanos,
        token: Token,
        result: OpResult,
        committed: impl Fn(RegionId) -> Option<Lsn>,
        rng: &mut Rng,
    ) -> Option<(usize, Nanos)> {
        let is_for = |client: &Client| client.pending.as_ref().is_some_and(|pending| pending.token == token);
        let client = self.clients.iter().position(is_for)?;
        let mut pending = self.clients[client].pending.take().expect("just seen");
        if let Some(lsn) = committed(pending.region) {
            self.clients[client].heard.note(pending.region, lsn);
        }
        let result = match pending.attempts.answered(&pending.op, result) {
            Verdict::Final(result) => result,
            Verdict::AtOnce if pending.tries < MOST_TRIES => {
                self.clients[client].again = Some(pending);
                return Some((client, Nanos::ZERO));
            }
            Verdict::AtOnce => OpResult::Error(OpError::Forgotten(pending.region)),
            Verdict::Later(_) if pending.attempts.is_doubtful() && pending.may_be_tried_again() => {
                self.clients[client].again = Some(pending);
                return Some((client, Nanos::from_micros(rng.between(0, 60_000))));
            }
            Verdict::Later(error) => pending.attempts.give_up(error),
        };
        if let OpResult::Error(OpError::Invalid(message)) = &result {
            self.failures.push(format!("{:?} was refused: {message}", pending.op));
        }
        let pause = match &result {
            OpResult::Error(OpError::Unknown(_)) => {
                self.lost(pending.purpose);
                rng.between(0, self.client_mix.gap_us)
            }
            OpResult::Error(OpError::AnswerGone { done: true }) => {
                let Purpose::Shared(entry) = pending.purpose else {
                    panic!("{:?} does not ask for what was", pending.op)
                };
                self.shared.answer_gone(now, entry);
                rng.between(0, self.client_mix.gap_us)
            }
            OpResult::Error(_) => {
                self.not_done(pending.purpose);
                rng.between(10_000, 60_000)
            }
            result => {
                self.answered += 1;
                self.stale += u64::from(matches!(result, OpResult::Stale { .. }));
                self.done(now, pending.purpose, &pending.op, result);
                rng.between(0, self.client_mix.gap_us)
            }
        };
        Some((client, Nanos::from_micros(pause)))
    }

    /// An operation took no effect. It counts as a read that was never answered.
    fn not_done(&mut self, purpose: Purpose) {
        match purpose {
            Purpose::Shared(entry) => self.shared.not_done(entry),
            Purpose::Fill { number } => self.ledger.not_done(number),
            Purpose::Append { number } => self.appended.not_done(number),
            Purpose::Look { .. } | Purpose::Expire { .. } => {}
            Purpose::Scan { .. } | Purpose::LookExpiring { .. } | Purpose::LookAppended { .. } => {}
        }
    }

    fn done(&mut self, now: Nanos, purpose: Purpose, op: &Op, result: &OpResult) {
        match (purpose, result) {
            (Purpose::Shared(entry), result) => self.shared.done(now, entry, result),
            (Purpose::Scan { called }, result) => {
                let (Op::Scan(scan) | Op::Stale { read: Read::Scan(scan), .. }) = op else {
                    panic!("{op:?} is no scan")
                };
                self.failures.extend(self.shared.scanned(called, now, scan, result).err());
            }
            (Purpose::Fill { number }, OpResult::Put { done: true, .. }) => self.ledger.acknowledged(now, number),
            (Purpose::Expire { number }, OpResult::Put { done: true, .. }) => self.expiring.acknowledged(now, number),
            (Purpose::LookExpiring { number, called }, OpResult::Value(found)) => {
                self.failures.extend(self.expiring.check(number, (called, now), found.as_ref()).err());
            }
            (Purpose::Append { number }, OpResult::Integer(length)) => {
                self.failures.extend(self.appended.acknowledged(number, *length).err());
            }
            (Purpose::LookAppended { key, must }, OpResult::Value(found)) => {
                self.failures.extend(self.appended.check(key, must, found.as_ref()).err());
            }
            (Purpose::Look { number, must }, OpResult::Value(found)) => {
                self.failures.extend(self.ledger.check_read(number, must, found.as_ref()).err());
            }
            (purpose, result) => panic!("{purpose:?} was answered by {result:?}"),
        }
    }

    /// The outcome of an operation stays unknown.
    fn lost(&mut self, purpose: Purpose) {
        self.unknown += 1;
        if let Purpose::Shared(entry) = purpose {
            self.shared.lost(entry);
        }
    }

    /// A client's wait timed out. Answers whether it was still waiting.
    pub(crate) fn give_up(&mut self, client: usize, token: Token) -> bool {
        let pending = self.clients[client].pending.take_if(|pending| pending.token == token);
        pending.map(|pending| self.unanswered(client, pending)).is_some()
    }

    /// A process died; answers the clients that were waiting for it.
    pub(crate) fn node_died(&mut self, node: NodeId) -> Vec<usize> {
        self.disconnected_from(|at| at == node)
    }

    /// The connections of all clients broke; answers those that were waiting.
    pub(crate) fn disconnected(&mut self) -> Vec<usize> {
        self.disconnected_from(|_| true)
    }

    /// Connections to these nodes broke. Answers the clients that were waiting for one of these nodes.
    fn disconnected_from(&mut self, is_such: impl Fn(NodeId) -> bool) -> Vec<usize> {
        let mut free = Vec::new();
        for client in 0..self.clients.len() {
            if let Some(pending) = self.clients[client].pending.take_if(|pending| is_such(pending.node)) {
                self.unanswered(client, pending);
                free.push(client);
            }
        }
        free
    }

    /// A client does not wait any more for the answer to an attempt.
    fn unanswered(&mut self, client: usize, mut pending: Pending) {
        pending.attempts.lost(&pending.op, String::new());
        match pending.may_be_tried_again() {
            true => self.clients[client].again = Some(pending),
            false => self.lost(pending.purpose),
        }
    }

    /// Judges all answers, and the `content` of the store, which was read at `now`, after all other operations.
    pub(crate) fn check(&self, now: Nanos, mut content: BTreeMap<Bytes, Bytes>) -> Result<(), String> {
        if let Some(failure) = self.failures.first() {
            return Err(format!("{failure} (and {} more like it)", self.failures.len() - 1));
        }
        self.ledger.check(&mut content)?;
        self.expiring.check_content(now, &mut content)?;
        self.appended.check_content(&mut content)?;
        self.shared.check_content(now, &mut content)?;
        match content.first_key_value() {
            Some((key, _)) => Err(format!("{key:?} is there, and no client wrote it")),
            None => Ok(()),
        }
    }
}

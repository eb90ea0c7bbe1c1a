//! The pipelined client: routing, retries and deadlines over several [`Link`]s. It has no thread of its own; its owner
//! drives it by [`Session::poll`].
//!
//! An operation is always in exactly one place: parked (waiting to be tried), on a link (waiting to be sent or
//! answered), or answered in its batch. A batch is done when all of its operations are answered.

mod answers;
mod direct;
mod ringing;
mod routing;

use crate::access::Access;
use crate::address::{Address, RequestPath, Seeds};
use crate::direct::Direct;
use crate::link::{Failed, Hello, Link, Pending, RingOptions};
use crate::options::{Busy, ClientError, ClientOptions, Traffic, has_many_cores};
use crate::ring::Mailbox;
use leeward_format::RegionId;
use leeward_format::op::{Op, OpResult, Read};
use leeward_format::request::{Attempts, Heard, RequestIds};
use leeward_format::routes::RouteCache;
use leeward_format::table::TableName;
use leeward_platform::{Backoff, Rng};
use mio::{Events, Poll, Token, Waker};
use routing::{Asking, primary_address};
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// Bytes asked of the kernel by one read.
const READ_BYTES: usize = 64 << 10;
/// Longest pause between two attempts, as a multiple of [`ClientOptions::retry_pause`].
const LONGEST_PAUSE: u64 = 16;
/// How often deadlines are checked while requests are in flight.
const TICK: Duration = Duration::from_millis(20);
/// Poll token of the waker.
const WAKER: Token = Token(usize::MAX);

/// The pause after `before` others. `drawn` is a random number from 0 to 1: see [`ClientOptions::retry_pause`].
fn pause(first: Duration, before: u32, drawn: f64) -> Duration {
    let pause = Backoff::up_to_times(first.into(), LONGEST_PAUSE).after(before).duration();
    pause + pause.mul_f64(drawn / 2.0)
}

/// Turns the operation into one that any member may answer, with data that is stale by at most `at_most`. An operation
/// that only the primary can answer is unchanged.
pub(crate) fn stale(op: Op, at_most: Duration) -> Op {
    Read::stale(op, u32::try_from(at_most.as_millis()).unwrap_or(u32::MAX))
}

/// Names a batch that was submitted to a [`Session`]. No other batch of the session has the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// A batch that is done.
#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    /// The ticket that [`Session::submit`] returned.
    pub ticket: Ticket,
    /// One result per operation, in the order of the batch.
    pub results: Vec<OpResult>,
}

struct Batch {
    results: Vec<Option<OpResult>>,
    missing: usize,
}

impl Batch {
    /// The batch, which is not missing any result.
    fn done(self, ticket: u64) -> Done {
        Done { ticket: Ticket(ticket), results: self.results.into_iter().flatten().collect() }
    }
}

/// One thread's pipelined connection to the cluster.
///
/// ```no_run
/// use leeward_client::{ClientOptions, Op, Session};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), leeward_client::ClientError> {
/// let mut session = Session::connect(&["127.0.0.1:7479"], ClientOptions::default())?;
/// for key in ["a", "b", "c"] {
///     session.submit(vec![Op::Get { key: key.into() }]).expect("three are not too many");
/// }
/// while session.outstanding() > 0 {
///     for done in session.poll(Duration::from_secs(1))? {
///         println!("{:?}: {:?}", done.ticket, done.results);
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Session {
    options: ClientOptions,
    seeds: Vec<String>,
    access: Access,
    poll: Poll,
    events: Events,
    scratch: Vec<u8>,
    links: FxHashMap<Token, Link>,
    next_token: usize,
    /// Addresses that have failed: not tried again before the instant, and how often.
    backing_off: HashMap<String, (Instant, usize)>,
    routes: RouteCache,
    asking: Asking,
    /// When the links are checked next.
    next_check: Instant,
    batches: FxHashMap<u64, Batch>,
    /// Operations in them.
    under_way: usize,
    next_ticket: u64,
    /// Gives request ids.
    ids: RequestIds,
    /// Commit LSNs that nodes reported.
    heard: Heard,
    rng: Rng,
    /// Operations to try at or after the instant.
    parked: Vec<(Instant, Pending)>,
    done: Vec<Done>,
    last_failure: String,
    /// Traffic of links that are gone.
    past_traffic: Traffic,
    /// Events of the rings' fabrics; `None` without rings.
    mailbox: Option<Arc<Mailbox>>,
    /// What a node lacks that the address asks for.
    lack: Option<ClientError>,
    /// `None` without direct reads.
    direct: Option<Direct>,
    /// A node that allows no direct reads is not spoken with.
    needs_direct: bool,
    has_many_cores: bool,
    /// When the sockets were polled last.
    last_poll: Instant,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("seeds", &self.seeds).field("outstanding", &self.batches.len()).finish()
    }
}

impl Session {
    /// Connects to the first of `seeds` (native [addresses](Address), all of one [`RequestPath`]) that answers and knows where
    /// regions are.
    ///
    /// # Errors
    /// - The address asks for rings, and there are none ([`ClientError::Rings`]); or for direct reads, which the node
    ///   does not allow ([`ClientError::Direct`]).
    /// - No node answers within [`ClientOptions::connect_within`].
    /// - No node that answers knows a region until [`ClientOptions::deadline`], though one is
    ///   [needed](ClientOptions::needs_regions).
    /// - An address is not valid.
    pub fn connect<S: AsRef<str>>(seeds: &[S], options: ClientOptions) -> Result<Session, ClientError> {
        let begun = Instant::now();
        let deadline = begun + options.deadline;
        let connect_until = deadline.min(begun + options.connect_within);
        let parsed = Address::parse_all(seeds)?;
        let access = Access::with(&parsed, options.password.as_ref())?;
        let Seeds { way, addresses, .. } = parsed;
        let poll = Poll::new()?;
        let (mailbox, ring_spin) = match way {
            RequestPath::Tcp => (None, None),
            RequestPath::Rings { spin } | RequestPath::Direct { spin } => {
                (Some(Mailbox::new(Waker::new(poll.registry(), WAKER)?)), spin)
            }
        };
        let options = ClientOptions { ring_spin: ring_spin.unwrap_or(options.ring_spin), ..options };
        let needs_direct = matches!(way, RequestPath::Direct { .. });
        let mut rng = Rng::from_entropy();
        let reads_directly = mailbox.is_some() && (needs_direct || options.direct_reads);
        let direct = reads_directly.then(|| Direct::new(begun, rng.fork()));
        let mut session = Session {
            options,
            seeds: addresses,
            access,
            poll,
            events: Events::with_capacity(64),
            scratch: vec![0; READ_BYTES],
            links: FxHashMap::default(),
            next_token: 0,
            backing_off: HashMap::new(),
            routes: RouteCache::default(),
            asking: Asking::default(),
            next_check: Instant::now(),
            batches: FxHashMap::default(),
            under_way: 0,
            next_ticket: 1,
            ids: RequestIds::new(rng.u64()),
            heard: Heard::default(),
            rng,
            parked: Vec::new(),
            done: Vec::new(),
            last_failure: if seeds.is_empty() { "no address given" } else { "no answer in time" }.into(),
            past_traffic: Traffic::default(),
            mailbox,
            lack: None,
            direct,
            needs_direct,
            has_many_cores: has_many_cores(),
            last_poll: begun,
        };
        session.look_for_routes(connect_until)?;
        if session.mailbox.is_some() {
            session.await_rings(connect_until)?;
        }
        while session.options.needs_regions && session.routes.regions().is_empty() {
            if Instant::now() >= deadline {
                return Err(ClientError::NoRegions { seeds: session.seeds.join(", ") });
            }
            session.look_for_routes(deadline)?;
            if session.routes.regions().is_empty() {
                session.wait(TICK)?;
            }
        }
        Ok(session)
    }

    /// How its connections are made. For Leeward's own tools, which ask single nodes.
    #[doc(hidden)]
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Batches that were submitted and not returned by [`Session::poll`] yet.
    pub fn outstanding(&self) -> usize {
        self.batches.len() + self.done.len()
    }

    /// Bytes moved over this session's connections so far.
    pub fn traffic(&self) -> Traffic {
        let mut total = self.past_traffic;
        for link in self.links.values() {
            total += link.traffic();
        }
        total
    }

    /// Accepts a batch. Its operations go out with the next [`Session::poll`], together with those of other batches to
    /// the same node. Operations on one region are executed in order, unless errors make some of them wait. Only
    /// [direct reads](ClientOptions::direct_reads) take place at once: after earlier writes of their keys, but perhaps
    /// before other operations. A scan that [backups answer](leeward_format::cluster::Scans) shows earlier writes, and
    /// perhaps later ones. They are on the table of [`ClientOptions::table`].
    ///
    /// # Errors
    /// The batch is given back if more than [`ClientOptions::max_outstanding`] operations would be in flight.
    pub fn submit(&mut self, ops: Vec<Op>) -> Result<Ticket, Busy> {
        let table = self.options.table.clone();
        self.submit_in(&table, ops)
    }

    /// As [`Session::submit`], on another table.
    ///
    /// # Errors
    /// As [`Session::submit`].
    pub fn submit_in(&mut self, table: &TableName, ops: Vec<Op>) -> Result<Ticket, Busy> {
        if self.under_way > 0 && self.under_way + ops.len() > self.options.max_outstanding {
            return Err(Busy(ops));
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        if ops.is_empty() {
            self.done.push(Done { ticket: Ticket(ticket), results: Vec::new() });
            return Ok(Ticket(ticket));
        }
        let now = Instant::now();
        let deadline = now + self.options.deadline;
        let mut batch = Batch { results: vec![None; ops.len()], missing: 0 };
        for (slot, op) in ops.into_iter().enumerate() {
            if let Some(value) = self.get_directly(table, &op, now) {
                batch.results[slot] = Some(OpResult::Value(Some(value)));
                continue;
            }
            let op = match self.options.at_most_stale {
                Some(at_most) => stale(op, at_most),
                None if self.is_for_backups(table, &op) => stale(op, Duration::ZERO),
                None => op,
            };
            if let Some(direct) = &mut self.direct {
                direct.submitted(&op);
            }
            batch.missing += 1;
            let (table, attempts) = (table.clone(), self.attempts_at(&op));
            let (pauses, tries, last) = (0, 0, None);
            self.route(Pending { ticket, slot, table, op, deadline, pauses, tries, attempts, last }, now);
        }
        // Routed operations are answered by a later poll.
        if batch.missing == 0 {
            self.done.push(batch.done(ticket));
        } else {
            self.under_way += batch.results.len();
            self.batches.insert(ticket, batch);
        }
        Ok(Ticket(ticket))
    }

    fn attempts_at(&mut self, op: &Op) -> Attempts {
        match op.writes_data() && (self.options.retry_puts || !op.is_plain_put()) {
            true => Attempts::named(self.ids.next_id()),
            false => Attempts::unnamed(),
        }
    }

    /// Sends submitted operations and returns finished batches: at once if there are any, else as soon as there are, or
    /// none after `timeout`. An operation that failed is a result. Only a fault of this process (no more file
    /// descriptors) is an error here.
    ///
    /// # Errors
    /// The operating system refuses to wait.
    pub fn poll(&mut self, timeout: Duration) -> Result<Vec<Done>, ClientError> {
        let until = Instant::now() + timeout;
        loop {
            let now = Instant::now();
            self.tick(now);
            self.flush(now);
            if !self.done.is_empty() {
                self.listen_between_hits(now)?;
                return Ok(std::mem::take(&mut self.done));
            }
            self.wait(self.next_event(now, until).saturating_duration_since(now))?;
            if self.done.is_empty() && Instant::now() >= until {
                return Ok(Vec::new());
            }
        }
    }

    /// Submits one batch and waits for its results. Other batches may be outstanding; their answers are kept.
    ///
    /// # Errors
    /// As [`Session::poll`].
    pub fn execute(&mut self, ops: Vec<Op>) -> Result<Vec<OpResult>, ClientError> {
        let table = self.options.table.clone();
        self.execute_in(&table, ops)
    }

    /// As [`Session::execute`], on another table.
    ///
    /// # Errors
    /// As [`Session::poll`].
    pub fn execute_in(&mut self, table: &TableName, ops: Vec<Op>) -> Result<Vec<OpResult>, ClientError> {
        // Detects connections that broke since the last poll, before anything is sent into them.
        self.wait(Duration::ZERO)?;
        let (mut others, mut ops) = (Vec::new(), ops);
        let ticket = loop {
            match self.submit_in(table, ops) {
                Ok(ticket) => break ticket,
                Err(Busy(refused)) => ops = refused,
            }
            others.append(&mut self.poll(self.options.deadline)?);
        };
        loop {
            let mut done = self.poll(self.options.deadline)?;
            let found = done.iter().position(|done| done.ticket == ticket).map(|at| done.swap_remove(at));
            others.append(&mut done);
            if let Some(found) = found {
                self.done.append(&mut others);
                return Ok(found.results);
            }
        }
    }

    /// Sends `pending` to the primary of its region, or at first to any member if one may answer it. Parks it if no
    /// node can be reached.
    fn route(&mut self, mut pending: Pending, now: Instant) {
        if pending.attempts.is_named() {
            pending.attempts.ask(self.region_of(&pending), &self.heard);
        }
        pending.tries += 1;
        let member = self.any_member(&pending);
        let address = member.or_else(|| primary_address(&self.routes, &pending.table, &pending.op).map(str::to_string));
        let Some(address) = address else {
            return self.park(pending, now);
        };
        match self.link_to(&address, now) {
            Some(token) => self.links.get_mut(&token).expect("link_to answers a link").enqueue(pending),
            None => self.park(pending, now),
        }
    }

    fn region_of(&self, pending: &Pending) -> RegionId {
        pending.op.region_in(&self.routes, &pending.table).map_or(RegionId(0), |route| route.region)
    }

    fn park(&mut self, pending: Pending, now: Instant) {
        self.park_for(pending, Duration::ZERO, now);
    }

    /// [`Session::park`] for `least` at least.
    fn park_for(&mut self, mut pending: Pending, least: Duration, now: Instant) {
        let pause = pause(self.options.retry_pause, pending.pauses, self.rng.f64()).max(least);
        pending.pauses += 1;
        self.parked.push((now + pause, pending));
    }

    /// The link to `address`, made if there is none. `None` while the session backs off from that address.
    fn link_to(&mut self, address: &str, now: Instant) -> Option<Token> {
        if let Some((token, _)) = self.links.iter().find(|(_, link)| link.address == address) {
            return Some(*token);
        }
        let (until, failures) = self.backing_off.get(address).copied().unwrap_or((now, 0));
        if until > now {
            return None;
        }
        let token = Token(self.next_token);
        self.next_token += 1;
        let ring_bytes = self.options.ring_bytes;
        let rings = self.mailbox.clone().map(|mailbox| RingOptions { ring_bytes, mailbox });
        let hello = Hello { client: &self.options.name, known: self.routes.version(), access: &self.access };
        match Link::connect(address, failures, hello, token, self.poll.registry(), rings) {
            Ok(link) => {
                self.links.insert(token, link);
                Some(token)
            }
            Err(ClientError::Address { reason, .. }) => {
                self.rest(address, reason, now);
                None
            }
            Err(error) => {
                self.rest(address, error.to_string(), now);
                None
            }
        }
    }

    fn rest(&mut self, address: &str, reason: String, now: Instant) {
        self.asking.forget(address);
        self.last_failure = format!("{address}: {reason}");
        let (until, failures) = self.backing_off.entry(address.to_string()).or_insert((now, 0));
        *until = now + self.options.retry_pause;
        *failures += 1;
    }

    /// Handles deadlines, retries that are due, and primaries that do not answer.
    fn tick(&mut self, now: Instant) {
        if now >= self.next_check {
            self.next_check = now + TICK;
            self.check_links(now);
            self.refresh_routes(now);
        }
        if self.parked.is_empty() {
            return;
        }
        let late = self.parked.extract_if(.., |(_, pending)| pending.deadline <= now);
        for pending in late.map(|(_, pending)| pending).collect::<Vec<_>>() {
            self.give_up(pending);
        }
        self.ask_routes(now);
        let mut due: Vec<Pending> =
            self.parked.extract_if(.., |(at, _)| *at <= now).map(|(_, pending)| pending).collect();
        due.sort_by_key(|pending| (pending.ticket, pending.slot));
        for pending in due {
            self.route(pending, now);
        }
    }

    /// Handles deadlines of operations on links, and links that do not come up or do not answer.
    fn check_links(&mut self, now: Instant) {
        let timeout = self.options.answer_timeout;
        let stuck = self.links.iter().filter(|(_, link)| link.is_stuck(now, timeout));
        for (token, lacks) in stuck.map(|(token, link)| (*token, link.lacks())).collect::<Vec<_>>() {
            self.fail(token, &lacks);
        }
        let mut failed = Failed::default();
        let mut doubt = false;
        for link in self.links.values_mut() {
            let late = link.expire(now);
            failed.unsent.extend(late.unsent);
            failed.unknown.extend(late.unknown);
            doubt |= link.is_late(now, timeout);
        }
        for mut pending in failed.unknown {
            pending.attempts.lost(&pending.op, String::new());
            self.give_up(pending);
        }
        for pending in failed.unsent {
            self.give_up(pending);
        }
        self.fail_where("it has answered nothing before the deadline", |link| link.is_silent(now, timeout));
        self.leave_deposed(now);
        if doubt {
            self.ask_routes(now);
        }
    }

    fn flush(&mut self, now: Instant) {
        let mut broken = Vec::new();
        for (token, link) in &mut self.links {
            if let Err(error) = link.flush(now) {
                broken.push((*token, error));
            }
        }
        for (token, error) in broken {
            self.fail(token, &error.to_string());
        }
        self.settle_rings();
    }

    /// When [`Session::poll`] must look again although no socket is ready.
    fn next_event(&self, now: Instant, until: Instant) -> Instant {
        let retry = self.parked.iter().map(|(at, _)| *at).min();
        let tick = (!self.batches.is_empty()).then(|| now + TICK);
        [Some(until), retry, tick].into_iter().flatten().min().expect("until is one of them")
    }

    /// Waits for the sockets and handles what they receive.
    fn wait(&mut self, timeout: Duration) -> Result<(), ClientError> {
        match self.mailbox {
            Some(_) => self.wait_with_rings(timeout),
            None => self.poll_sockets(timeout).map(drop),
        }
    }

    /// Waits for the sockets alone; returns whether they received anything.
    fn poll_sockets(&mut self, timeout: Duration) -> Result<bool, ClientError> {
        let polled = self.poll.poll(&mut self.events, Some(timeout));
        if let Some(mailbox) = &self.mailbox {
            mailbox.is_up();
        }
        self.last_poll = Instant::now();
        match polled {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(false),
            result => result?,
        }
        let ready: Vec<(Token, bool, bool)> = self
            .events
            .iter()
            .map(|event| (event.token(), event.is_writable() || event.is_error(), event.is_readable()))
            .collect();
        for (token, writable, readable) in ready {
            let mut replies = Vec::new();
            let Some(link) = self.links.get_mut(&token) else { continue };
            let mut result = if writable { link.writable() } else { Ok(()) };
            if readable && result.is_ok() {
                result = link.readable(&mut self.scratch, &mut replies);
            }
            for reply in replies {
                self.receive(token, reply);
            }
            if let Err(error) = result {
                self.fail(token, &error.to_string());
            }
        }
        Ok(!self.events.is_empty())
    }

    /// Gives up each link for which `is_broken` holds.
    fn fail_where(&mut self, reason: &str, is_broken: impl Fn(&Link) -> bool) {
        let broken = self.links.iter().filter(|(_, link)| is_broken(link)).map(|(token, _)| *token);
        for token in broken.collect::<Vec<_>>() {
            self.fail(token, reason);
        }
    }

    /// Gives up a link. Its operations are retried where a retry cannot execute one twice.
    fn fail(&mut self, token: Token, reason: &str) {
        self.take_last_answers(token);
        let Some(link) = self.links.remove(&token) else { return };
        let now = Instant::now();
        tracing::debug!(address = link.address, reason, "connection given up");
        self.rest(&link.address, reason.to_string(), now);
        let reason = format!("{}: {reason}", link.address);
        self.past_traffic += link.traffic();
        if let Some(direct) = &mut self.direct {
            direct.lost(token, now);
        }
        let failed = link.fail(self.poll.registry());
        for pending in failed.unsent {
            self.park(pending, now);
        }
        for pending in failed.unknown {
            self.lost(pending, &reason, now);
        }
    }
}

//! One connection to one node: frames out, frames in, and the requests without an answer. Never blocks.
//!
//! With [rings](crate::ring), requests and answers go through the rings, as `link/rings.rs` says, and everything else
//! over the connection.
//!
//! Invariant: a request whose last byte was not passed to the kernel, or to TLS, cannot have been executed, because a node acts
//! on whole, checksummed frames only. [`Link::fail`] sorts requests by that.

mod direct;
mod rings;

use crate::access::{Access, auth};
use crate::handshake::odd_reply;
use crate::options::{ClientError, Traffic};
use crate::ring::{answers_value, value};
use leeward_format::RegionId;
use leeward_format::frame::{FrameKind, read_frame, write_frame};
use leeward_format::op::{MAX_MESSAGE_BYTES, Op, OpError, Reply, Request};
use leeward_format::request::Attempts;
use leeward_format::table::TableName;
use leeward_format::user::UserRule;
use leeward_security::tls::Channel;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
pub(crate) use rings::RingOptions;
use rings::Rings;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

/// Most operations of one request.
const REQUEST_OPS: usize = 256;
/// A request takes no more operations when its keys and values reach this size. With the largest record it stays far
/// below [`MAX_MESSAGE_BYTES`].
const REQUEST_BYTES: usize = 1 << 20;
/// A request takes no more operations when the values that they are expected to answer reach this size. What does not fit
/// [`MAX_MESSAGE_BYTES`] has to be asked for again.
const ANSWER_BYTES: usize = MAX_MESSAGE_BYTES / 2;
/// The size of a large value is forgotten by this part with each smaller one.
const FORGOTTEN: usize = 64;

/// One operation on its way.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) ticket: u64,
    /// Position in its batch.
    pub(crate) slot: usize,
    pub(crate) table: TableName,
    pub(crate) op: Op,
    pub(crate) deadline: Instant,
    /// How many pauses it has had.
    pub(crate) pauses: u32,
    /// How many times it was routed.
    pub(crate) tries: u32,
    pub(crate) attempts: Attempts,
    /// The error of the last attempt.
    pub(crate) last: Option<OpError>,
}

struct Flight {
    /// Value of `queued` at the end of its frame.
    end: u64,
    sent: Instant,
    /// Bytes that had come from the node by then.
    received: u64,
    /// In the order of the request; `None` for one that has expired.
    ops: Vec<Option<Pending>>,
}

/// The requests of a link that failed.
#[derive(Default)]
pub(crate) struct Failed {
    /// Certainly not executed.
    pub(crate) unsent: Vec<Pending>,
    /// Executed or not: unknown.
    pub(crate) unknown: Vec<Pending>,
}

/// What a link begins with.
pub(crate) struct Hello<'a> {
    /// Name of the client.
    pub(crate) client: &'a str,
    /// Version of the routes that it knows.
    pub(crate) known: u64,
    pub(crate) access: &'a Access,
}

/// A connection that is up or coming up. Dropped when it fails.
pub(crate) struct Link {
    pub(crate) address: String,
    stream: Channel<TcpStream>,
    connected: bool,
    started: Instant,
    waiting: Vec<Pending>,
    flights: VecDeque<(u64, Flight)>,
    next_id: u64,
    /// Requests with lower ids went to a primary that has a successor.
    deposed_before: u64,
    out: Vec<u8>,
    out_from: usize,
    /// Bytes put into `out` since the start, and how many of them the kernel has accepted.
    queued: u64,
    written: u64,
    received: u64,
    /// Bytes of the largest values that the node has answered lately.
    value_bytes: usize,
    input: Vec<u8>,
    rings: Option<Rings>,
    /// Questions about hash indexes that are not answered: the number of the request, and the region.
    index_questions: Vec<(u64, RegionId)>,
}

impl Link {
    /// Starts to connect to `address`; with rings, if there are options for them. Of a host's addresses it takes another
    /// after each of the `failures` so far.
    pub(crate) fn connect(
        address: &str,
        failures: usize,
        hello: Hello<'_>,
        token: Token,
        registry: &Registry,
        rings: Option<RingOptions>,
    ) -> Result<Link, ClientError> {
        let bad = |reason: String| ClientError::Address { address: address.to_string(), reason };
        let resolved: Vec<_> = address.to_socket_addrs().map_err(|error| bad(error.to_string()))?.collect();
        let turn = failures.checked_rem(resolved.len()).ok_or_else(|| bad("the host has no address".into()))?;
        let socket_address = resolved[turn];
        let mut stream = TcpStream::connect(socket_address)?;
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        let mut link = Link {
            address: address.to_string(),
            stream: hello.access.channel(address, stream)?,
            connected: false,
            started: Instant::now(),
            waiting: Vec::new(),
            flights: VecDeque::new(),
            next_id: 1,
            deposed_before: 0,
            out: Vec::new(),
            out_from: 0,
            queued: 0,
            written: 0,
            received: 0,
            value_bytes: 0,
            input: Vec::new(),
            rings: rings.map(|options| Rings::new(options, token)),
            index_questions: Vec::new(),
        };
        if let Some(credentials) = hello.access.credentials() {
            link.push(&auth(credentials));
        }
        link.push(&Request::Hello { client: hello.client.to_string(), known: hello.known });
        if link.rings.is_some() {
            link.push(&Request::RingOffer);
        }
        Ok(link)
    }

    /// Whether the node has accepted the connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected
    }

    /// Whether it has been coming up for longer than `timeout`.
    pub(crate) fn is_stuck(&self, now: Instant, timeout: Duration) -> bool {
        !self.is_ready() && now.saturating_duration_since(self.started) > timeout
    }

    /// Bytes written to and read from the connection, and through rings, so far.
    pub(crate) fn traffic(&self) -> Traffic {
        let mut traffic = Traffic { sent: self.written, received: self.received };
        traffic += self.ring_traffic();
        traffic
    }

    /// Asks the node for its region map, or for routes.
    pub(crate) fn ask(&mut self, question: Request) {
        if let Some(question) = self.ask_in_ring(question) {
            self.push(&question);
        }
    }

    /// Adds an operation to the next request.
    pub(crate) fn enqueue(&mut self, pending: Pending) {
        self.waiting.push(pending);
    }

    /// When the oldest unanswered request was sent.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.flights.front().map(|(_, flight)| flight.sent)
    }

    /// Whether the oldest unanswered request was sent longer than `timeout` ago.
    pub(crate) fn is_late(&self, now: Instant, timeout: Duration) -> bool {
        self.oldest().is_some_and(|sent| now.saturating_duration_since(sent) > timeout)
    }

    /// Notes that operations without an answer are for a server that is no longer their primary.
    pub(crate) fn depose(&mut self) {
        self.deposed_before = self.next_id;
    }

    /// Whether a request to a primary that has a successor has had no answer for longer than `timeout`.
    pub(crate) fn is_deposed(&self, now: Instant, timeout: Duration) -> bool {
        self.is_late(now, timeout) && self.flights.front().is_some_and(|(id, _)| *id < self.deposed_before)
    }

    /// Whether all operations of the oldest request have expired, and nothing has come from the node since it was sent, for
    /// longer than `timeout`: the connection may be broken although nothing says so.
    pub(crate) fn is_silent(&self, now: Instant, timeout: Duration) -> bool {
        let is_silent =
            |flight: &Flight| flight.ops.iter().all(Option::is_none) && flight.received == self.traffic().received;
        self.is_late(now, timeout) && self.flights.front().is_some_and(|(_, flight)| is_silent(flight))
    }

    /// Operations without an answer, sent or not.
    pub(crate) fn pendings(&self) -> impl Iterator<Item = &Pending> {
        self.flights.iter().flat_map(|(_, flight)| flight.ops.iter().flatten()).chain(&self.waiting)
    }

    /// Removes operations past their deadline. A late answer to them is dropped.
    pub(crate) fn expire(&mut self, now: Instant) -> Failed {
        let mut failed = Failed::default();
        failed.unsent.extend(self.waiting.extract_if(.., |pending| pending.deadline <= now));
        for (_, flight) in &mut self.flights {
            // This includes unwritten ones: their frames stay in `out`, and may still be executed.
            let expired = flight.ops.iter_mut().filter_map(|op| op.take_if(|pending| pending.deadline <= now));
            failed.unknown.extend(expired);
        }
        failed
    }

    /// Turns enqueued operations into requests, and writes as much as the kernel accepts, once the connection is up.
    pub(crate) fn flush(&mut self, now: Instant) -> io::Result<()> {
        if !self.connected {
            return Ok(());
        }
        if self.rings.is_some() {
            self.flush_into_rings(now);
            return self.write();
        }
        while !self.waiting.is_empty() {
            let (mut bytes, mut answer, value_bytes) = (0, 0, self.value_bytes);
            let table = self.waiting[0].table.clone();
            let fits = |pending: &Pending| {
                bytes += op_bytes(&pending.op);
                answer += if answers_value(&pending.op) { value_bytes } else { 0 };
                bytes < REQUEST_BYTES && answer < ANSWER_BYTES && pending.table == table
            };
            let count = self.waiting.iter().take(REQUEST_OPS).take_while(fits_first(fits)).count();
            let request = self.request(count);
            self.push(&request);
            self.move_to_flight(count, self.queued, now);
        }
        self.write()
    }

    /// A request with the first `count` waiting operations.
    fn request(&self, count: usize) -> Request {
        let (id, direct, table, pendings) = (self.next_id, true, self.waiting[0].table.clone(), &self.waiting[..count]);
        let ops = pendings.iter().map(|pending| pending.op.clone()).collect();
        let named = (0..).zip(pendings).filter_map(|(position, pending)| Some((position, pending.attempts.once()?)));
        match named.collect::<Vec<_>>() {
            none if none.is_empty() => Request::Ops { id, direct, table, ops },
            named => Request::Once { id, direct, table, ops, named },
        }
    }

    /// Moves the first `count` waiting operations into flight; `end` as in [`Flight`].
    fn move_to_flight(&mut self, count: usize, end: u64, now: Instant) {
        let received = self.traffic().received;
        let ops = self.waiting.drain(..count).map(Some).collect();
        self.flights.push_back((self.next_id, Flight { end, sent: now, received, ops }));
        self.next_id += 1;
    }

    /// Handles a writable socket: the connection is up, or has failed.
    pub(crate) fn writable(&mut self) -> io::Result<()> {
        if !self.connected {
            if let Some(error) = self.stream.stream().take_error()? {
                return Err(error);
            }
            match self.stream.stream().peer_addr() {
                Ok(_) => self.connected = true,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(()),
                Err(error) => return Err(error),
            }
            self.stream.stream().set_nodelay(true)?;
        }
        self.write()
    }

    /// Reads everything that is available, and adds answers to `replies`.
    pub(crate) fn readable(&mut self, scratch: &mut [u8], replies: &mut Vec<Reply>) -> io::Result<()> {
        let end = self.fill(scratch);
        let mut taken = 0;
        loop {
            let rest = &self.input[taken..];
            // A reply with a scan may be larger than a request, but the node keeps it below the same limit.
            match read_frame(FrameKind::Reply, rest, MAX_MESSAGE_BYTES) {
                Ok(Some((reply, bytes))) => {
                    if let Reply::Results { results, .. } = &reply {
                        self.value_bytes = results
                            .iter()
                            .filter_map(value)
                            .fold(self.value_bytes, |before, value| value.len().max(before - before / FORGOTTEN));
                    }
                    replies.push(reply);
                    taken += bytes;
                }
                Ok(None) => break,
                Err(error) => return Err(odd_reply(error)),
            }
        }
        self.input.drain(..taken);
        end
    }

    /// Takes the operations of request `id`, which was answered. `None` if no such request is in flight.
    pub(crate) fn answered(&mut self, id: u64) -> Option<Vec<Option<Pending>>> {
        let at = self.flights.iter().position(|(flight, _)| *flight == id)?;
        self.answered_over_stream(id);
        self.flights.remove(at).map(|(_, flight)| flight.ops)
    }

    /// Ends the link. Returns its operations.
    pub(crate) fn fail(mut self, registry: &Registry) -> Failed {
        if let Err(error) = registry.deregister(self.stream.stream_mut()) {
            tracing::debug!(%error, address = self.address, "deregister");
        }
        self.rings = None;
        let mut failed = Failed { unsent: self.waiting, unknown: Vec::new() };
        // Before the handshake of TLS is over nothing was sent that the node could read.
        let written = if self.stream.is_established() { self.written } else { 0 };
        for (_, flight) in self.flights {
            if flight.end <= written {
                failed.unknown.extend(flight.ops.into_iter().flatten());
            } else {
                failed.unsent.extend(flight.ops.into_iter().flatten());
            }
        }
        failed
    }

    fn push(&mut self, request: &Request) {
        let before = self.out.len();
        write_frame(FrameKind::Request, request, &mut self.out);
        self.queued += (self.out.len() - before) as u64;
    }

    fn write(&mut self) -> io::Result<()> {
        while self.out_from < self.out.len() {
            match self.stream.write(&self.out[self.out_from..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    self.out_from += bytes;
                    self.written += bytes as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.out_from = 0;
        match self.stream.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }

    /// Reads until the kernel has no more. Returns an error, or the end of the stream, after it has taken the bytes
    /// before it.
    fn fill(&mut self, scratch: &mut [u8]) -> io::Result<()> {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the node closed the connection")),
                Ok(bytes) => {
                    self.received += bytes as u64;
                    self.input.extend_from_slice(&scratch[..bytes]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

fn rule_bytes(rule: &UserRule) -> usize {
    4 + match rule {
        UserRule::AddPassword(hash) => hash.phc().len(),
        UserRule::AddPrefix(prefix) => prefix.len(),
        UserRule::AddGrant(grant) => 80 + grant.prefixes.iter().map(|prefix| prefix.len() + 2).sum::<usize>(),
        _ => 8,
    }
}

/// Always accepts the first element: an operation is sent however large it is.
fn fits_first<'a>(mut fits: impl FnMut(&Pending) -> bool) -> impl FnMut(&&'a Pending) -> bool {
    let mut first = true;
    move |pending| fits(pending) | std::mem::take(&mut first)
}

fn op_bytes(op: &Op) -> usize {
    match op {
        Op::Get { key } | Op::GetPair { key, .. } | Op::Expire { key, .. } | Op::Add { key, .. } => key.len(),
        Op::Stale { .. } | Op::Scan(_) | Op::DeleteRange { .. } | Op::Approximate { .. } | Op::In { .. } => {
            let range = op.range().map_or(0, |(start, end)| start.len() + end.map_or(0, |end| end.len()));
            op.key().map_or(range, |key| key.len())
        }
        Op::Delete { key, when } => key.len() + when.value_bytes(),
        Op::Put { key, value, when, .. } => key.len() + value.len() + when.value_bytes(),
        Op::Append { key, suffix } => key.len() + suffix.len(),
        // Each key with its length, and a number.
        Op::CreateTable { table } => table.splits.iter().map(|key| key.len() + 7).sum(),
        Op::Checkpoint { name, .. } => name.len(),
        Op::RepairSegment { content, .. } => content.len(),
        Op::Count { .. } | Op::AcceptLoss { .. } | Op::AlterTable { .. } | Op::RestoreTree { .. } => 0,
        Op::RequestRegion { .. } | Op::Intend { .. } | Op::DropTable { .. } | Op::ListUsers => 0,
        Op::ChangeUser { change } => change.rules.iter().map(rule_bytes).sum(),
        Op::RemoveUsers { names } => names.iter().flatten().map(|name| name.len() + 1).sum(),
        Op::Digests { .. } | Op::SegmentContent { .. } | Op::RangeBounds { .. } | Op::RebuildIndex { .. } => 0,
        // The nonce, and each line.
        Op::HashIndex(question) => 10 + question.read.len() * 5,
        Op::RangeDigests(asked) => {
            asked.ends.iter().flatten().map(|end| end.len() + 3).sum::<usize>() + asked.start.len()
        }
    }
}

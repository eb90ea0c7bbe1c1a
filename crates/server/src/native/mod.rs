//! Native connections: frames of [`Request`] in, frames of [`Reply`] out, without their socket.
//!
//! A frame comes over the connection's stream, or through a [ring](crate::rings) that belongs to it; its answer goes back the
//! same way ([`ReplyPath`]). The owner of the rings hands in what they hold ([`RingSession::take_from_ring`]), and takes answers for
//! them ([`Session::for_rings`]) and requests about them ([`Session::ring_asks`]).
//!
//! Requests are answered when all of their operations are, in any order, named by the client's id. The operations of one
//! request are submitted together and in order. Before the answers to operations with request ids, the client is told what is
//! committed in their regions. Memory is bounded as for Redis connections: at most [`MAX_OPERATIONS`] operations are in
//! flight, nothing more is read while [`OUTPUT_PAUSE_BYTES`] of replies are unread, and the results of one request fit one
//! frame ([`MAX_MESSAGE_BYTES`]). Bytes that are no frame close the connection, since the start of the next frame is unknown.
//!
//! Belongs to the event loop's thread.

use crate::clients::Client;
use crate::numbered::Numbered;
use crate::places::FULL_NATIVE;
use crate::protocol_session::{ProtocolSession, RingSession};
use crate::quota::{COMMAND_UNITS, OPERATION_UNITS, STEP_UNITS};
use crate::rings::{Ask, ReplyPath};
use crate::session_context::{Context, check_op};
use crate::users::{Answer, Refusal, STRANGERS_BYTES};
use bytes::{Buf, Bytes, BytesMut};
use leeward_format::frame::{FRAME_HEADER_BYTES, FrameKind, frame_bytes, read_frame, version_frame, write_frame};
use leeward_format::merge::Page;
use leeward_format::op::{
    MAX_MESSAGE_BYTES, MAX_OPERATIONS as MOST_DECODED, Op, OpError, OpResult, ReadResult, Reply, Request, Secret,
};
use leeward_format::request::Once;
use leeward_format::table::TableName;
use leeward_format::{Lsn, MAX_KEY_BYTES, RegionId};
use leeward_region::client_memory::result_bytes;
use leeward_region::client_memory::{Charge, Holder, OPERATION_BYTES, SCAN_OPERATION_BYTES};
use leeward_region::request::{Request as Operation, Token};
use std::collections::BTreeSet;
use std::vec::Drain;

mod user;

use user::NativeUser;

/// Most operations of one request, and most of one connection in flight.
pub const MAX_OPERATIONS: usize = MOST_DECODED;
/// Bytes of replies that the client has not taken, from which on nothing more is read from it.
pub const OUTPUT_PAUSE_BYTES: usize = 4 * 1024 * 1024;
/// The same bound while memory is short.
const SHORT_OUTPUT_BYTES: usize = 64 * 1024;
/// Most bytes of a result in a frame, besides its keys and values: an error with its text.
const RESULT_OVERHEAD_BYTES: usize = 192;
/// Most bytes of an entry of a scan in a frame, besides its key and value.
const ENTRY_OVERHEAD_BYTES: usize = 8;

/// Most bytes of the key at which a scan continues: the one that follows the longest key.
const BOUND_BYTES: usize = MAX_KEY_BYTES + 1;

/// A larger buffer for input is freed when the rest fits into this size.
const KEPT_INPUT_BYTES: usize = 16 * 1024;
/// Bytes that a plain write under way takes besides its arguments.
const WRITE_BYTES: usize = 512;

/// State of one connection.
pub struct Session {
    id: u64,
    input: BytesMut,
    output: BytesMut,
    /// Requests that are not answered. An answered one is `None`.
    requests: Numbered<Option<Pending>>,
    /// Operations in flight, in order of submission. An answered one is `None`.
    ops: Numbered<Option<ResultPlace>>,
    /// The client has, or is being sent, the routes of this version of the coordinator's state.
    told: u64,
    stopped: bool,
    /// The last step ended because its quota was used up.
    is_cut: bool,
    /// The largest capacity of the input's buffer since it was made.
    buffer_bytes: usize,
    /// Bytes that unanswered requests take.
    costs: usize,
    charge: Charge,
    frame: Vec<u8>,
    for_rings: Vec<(ReplyPath, Vec<u8>)>,
    ring_asks: Vec<Ask>,
    user: NativeUser,
}

struct Pending {
    id: u64,
    /// `None`: the stream.
    reply_path: Option<ReplyPath>,
    results: Vec<Option<OpResult>>,
    waiting: usize,
    /// Bytes that it takes until it is answered.
    cost: usize,
    bytes: usize,
    /// A result says that another node is the primary: newer routes are sent before the answer.
    is_misrouted: bool,
    /// Regions of operations that are to be executed once: their committed LSNs are sent before the answer.
    named_in: BTreeSet<RegionId>,
}

/// The content of a request.
struct Batch {
    id: u64,
    direct: bool,
    table: TableName,
    ops: Vec<Op>,
    named: Vec<(u32, Once)>,
    /// Bytes of the frame that it came in.
    bytes: usize,
}

/// Where the result of an operation belongs.
struct ResultPlace {
    request: u64,
    position: usize,
    is_write: bool,
    is_reverse: bool,
    /// The user may not read the old value.
    hides_old: bool,
}

impl Session {
    /// A new connection, made known to `CLIENT LIST` under `id`.
    pub fn new(id: u64, address: String, local_address: String, context: &mut Context) -> Session {
        let now = context.now;
        let client =
            Client { address, local_address, connected: now, active: now, command: "NULL", ..Client::default() };
        let user = NativeUser::new(&client.address);
        context.shared.clients.add(id, client);
        Session {
            id,
            input: BytesMut::new(),
            output: BytesMut::new(),
            requests: Numbered::default(),
            ops: Numbered::default(),
            told: 0,
            stopped: false,
            is_cut: false,
            buffer_bytes: 0,
            costs: 0,
            charge: context.shared.memory.charge(),
            frame: Vec::new(),
            for_rings: Vec::new(),
            ring_asks: Vec::new(),
            user,
        }
    }

    fn seen(&self, context: &mut Context) {
        if let Some(client) = context.shared.clients.get_mut(self.id) {
            client.active = context.now;
            client.command = "native";
        }
    }

    /// Has a user come in; requests behind this one wait.
    fn authenticate(&mut self, user: String, password: &Secret, context: &mut Context) {
        if let Some(answer) = self.user.ask(self.id, user, &password.0, context) {
            self.answered(answer, context);
        }
    }

    /// Ends a connection that may not be.
    fn refuse_user(&mut self, refusal: Refusal) {
        self.send(&Reply::Auth { refused: Some(refusal.error()) }, None);
        self.stop();
    }

    /// Whether its operations may touch data.
    fn has_place(&self, context: &mut Context) -> bool {
        context.shared.places.serves(self.id, self.user.identity.is_operator())
    }

    fn show_user(&self, context: &mut Context) {
        if let Some(client) = context.shared.clients.get_mut(self.id)
            && client.user != self.user.identity.name()
        {
            client.user = self.user.identity.name().into();
        }
    }

    /// Takes the next request off the input, if it is complete.
    fn next_request(&mut self, context: &mut Context) -> Option<(Request, usize)> {
        let _stays = self.follow_users(context);
        let most = if self.user.identity.is_stranger() { STRANGERS_BYTES } else { MAX_MESSAGE_BYTES };
        match read_frame::<Request>(FrameKind::Request, &self.input, most) {
            Ok(Some((request, len))) => {
                self.input.advance(len);
                self.shrink();
                Some((request, len))
            }
            Ok(None) => {
                // The rest of a large frame arrives without growing the buffer step by step.
                let whole = frame_bytes(FrameKind::Request, &self.input, most).ok().flatten();
                if let Some(missing) = whole.and_then(|whole| whole.checked_sub(self.input.len())) {
                    self.input.reserve(missing);
                    // Charges the larger buffer before its bytes come.
                    self.settle();
                }
                None
            }
            Err(error) => {
                if error.other_version().is_some() {
                    self.output.extend_from_slice(&version_frame(FrameKind::Reply));
                }
                self.refuse(context, &error.to_string());
                None
            }
        }
    }

    /// Handles a breach of the protocol: the connection ends once earlier requests are answered.
    fn refuse(&mut self, context: &mut Context, reason: &str) {
        // Anyone may send such bytes, so that it could fill the log.
        tracing::debug!(client = self.id, reason, "a native client breaks the protocol; closing its connection");
        context.shared.metrics.protocol_error();
        self.stop();
    }

    fn begin(
        &mut self,
        (request, bytes): (Request, usize),
        reply_path: Option<ReplyPath>,
        context: &mut Context,
        submit: &mut Vec<Operation>,
    ) {
        context.quota.take(COMMAND_UNITS);
        if !self.follow_users(context) {
            return self.refuse_user(Refusal::Unauthenticated);
        }
        let (request, bytes) = match (request, self.user.identity.admitted()) {
            (Request::Auth { user, password }, _) => return self.authenticate(user, &password, context),
            // Each operation gets the error.
            (request @ (Request::Ops { .. } | Request::Once { .. }), _) => (request, bytes),
            (request, Ok(())) => (request, bytes),
            (_, Err(refusal)) => return self.refuse_user(refusal),
        };
        match request {
            Request::Auth { .. } => {}
            Request::Hello { client, known } => {
                if let Some(session) = context.shared.clients.get_mut(self.id) {
                    session.name = client.chars().filter(char::is_ascii_graphic).take(256).collect();
                }
                self.tell_routes(known, reply_path, context);
            }
            Request::Routes { known } => self.tell_routes(known, reply_path, context),
            Request::Map => {
                context.quota.take(STEP_UNITS);
                let map = self.user.visible_map(context);
                self.send(&Reply::Map(map), reply_path);
            }
            Request::Identify => {
                let facts = &context.shared.facts;
                self.send(
                    &Reply::Node { server: facts.server, admin_address: facts.admin_address.clone() },
                    reply_path,
                );
            }
            Request::RingOffer | Request::RingOpen { .. } if !self.has_place(context) => {
                self.send(&Reply::RingRefused { reason: FULL_NATIVE.into() }, reply_path);
            }
            Request::RingOffer => self.ring_asks.push(Ask::Offer),
            Request::RingOpen { address, request_bytes, reply_bytes, reply } => {
                self.ring_asks.push(Ask::Open { address, request_bytes, reply_bytes, reply });
            }
            // Nothing to do: the event loop looks into the ring whenever it reads the stream.
            Request::RingBell => {}
            Request::Ops { id, direct, table, ops } => {
                let batch = Batch { id, direct, table, ops, named: Vec::new(), bytes };
                self.begin_batch(batch, reply_path, context, submit);
            }
            Request::Once { id, direct, table, ops, named } => {
                self.begin_batch(Batch { id, direct, table, ops, named, bytes }, reply_path, context, submit);
            }
        }
    }

    fn begin_batch(
        &mut self,
        batch: Batch,
        reply_path: Option<ReplyPath>,
        context: &mut Context,
        submit: &mut Vec<Operation>,
    ) {
        let Batch { id, direct, table, ops, named, bytes } = batch;
        let is_in_order = named.is_sorted_by(|(a, _), (b, _)| a < b);
        if !is_in_order || named.last().is_some_and(|(last, _)| *last as usize >= ops.len()) {
            return self.refuse(context, "names of operations that are not in the request");
        }
        context.shared.metrics.native_request(ops.len());
        context.quota.take(OPERATION_UNITS * ops.len() as u32);
        let is_permitted = |op: &&Op| self.user.identity.may(&table, &op.need(), context.routes).is_ok();
        let of = |(position, _): &(u32, Once)| {
            ops.get(*position as usize).filter(is_permitted)?.region_in(context.routes, &table)
        };
        let named_in = named.iter().filter_map(of).map(|config| config.region).collect();
        let (waiting, results) = (ops.len(), vec![None; ops.len()]);
        let cost = bytes + cost(&ops);
        self.costs += cost;
        let pending = Pending { id, reply_path, results, waiting, cost, bytes: 0, is_misrouted: false, named_in };
        let request = self.requests.push(Some(pending));
        let mut named = named.into_iter().peekable();
        let has_place = self.has_place(context);
        for (position, op) in ops.into_iter().enumerate() {
            let once = named.next_if(|(at, _)| *at as usize == position).map(|(_, once)| once);
            let hides_old = self.user.hides_old(&table, &op);
            let place =
                ResultPlace { request, position, is_write: op.is_write(), is_reverse: op.is_reverse(), hides_old };
            if let Err(error) = self.user.permit(&table, &op, has_place, context).and_then(|()| check_op(&op)) {
                self.take_result(&place, OpResult::Error(error));
                continue;
            }
            let number = self.ops.push(Some(place));
            let operation = Operation::of_client(Token::new(self.id, number), table.clone(), op, once);
            submit.push(Operation { is_direct: direct, ..operation });
        }
        self.reply_if_complete(request, context);
    }

    /// Sends the routes that have changed since the version `known`, if any have.
    fn tell_routes(&mut self, known: u64, reply_path: Option<ReplyPath>, context: &mut Context) {
        if known < context.routes.version() || self.user.is_limited() {
            context.quota.take(STEP_UNITS);
        }
        self.told = known.max(context.routes.version());
        let routes = self.user.routes_since(known, context);
        self.send(&Reply::Routes(routes), reply_path);
    }

    fn take_result(&mut self, place: &ResultPlace, result: OpResult) {
        let &ResultPlace { request, position, is_write, is_reverse, hides_old } = place;
        let pending = self.requests.get_mut(request).and_then(Option::as_mut);
        let pending = pending.expect("a request is answered after its last operation");
        let room = MAX_MESSAGE_BYTES - FRAME_HEADER_BYTES - pending.results.len() * RESULT_OVERHEAD_BYTES;
        // If the scans of a request have more than fits one answer, the last of them are cut, and resume in the next.
        let cut = |entries, resume| {
            let mut page = Page { entries, resume };
            page.cut(room.saturating_sub(pending.bytes + BOUND_BYTES), ENTRY_OVERHEAD_BYTES, is_reverse);
            let Page { entries, resume } = page;
            let overhead = entries.len() * ENTRY_OVERHEAD_BYTES + resume.as_ref().map_or(0, Bytes::len);
            (overhead, entries, resume)
        };
        let (overhead, result) = match result {
            OpResult::Entries { entries, resume } => {
                let (overhead, entries, resume) = cut(entries, resume);
                (overhead, OpResult::Entries { entries, resume })
            }
            OpResult::Stale { age_ms, lsn, result: ReadResult::Entries { entries, resume } } => {
                let (overhead, entries, resume) = cut(entries, resume);
                (overhead, OpResult::Stale { age_ms, lsn, result: ReadResult::Entries { entries, resume } })
            }
            OpResult::Deleted { done, version, .. } if hides_old => (0, OpResult::Deleted { done, old: None, version }),
            result => (0, result),
        };
        let bytes = result_bytes(&result) + overhead;
        pending.waiting -= 1;
        let result = match result {
            _ if pending.bytes + bytes <= room => result,
            // Unknown, so that no client takes it for "nothing was changed".
            _ if is_write => OpResult::Error(OpError::Unknown("it was executed, but its answer is too long".into())),
            _ if pending.bytes > 0 => OpResult::Error(OpError::Overloaded(RegionId(0))),
            _ => OpResult::Error(OpError::Invalid(format!(
                "the answer would be longer than {MAX_MESSAGE_BYTES} bytes: ask for less"
            ))),
        };
        if !matches!(result, OpResult::Error(_)) {
            pending.bytes += bytes;
        }
        pending.is_misrouted |= matches!(result, OpResult::Error(OpError::NotPrimary { .. }));
        pending.results[position] = Some(result);
    }

    fn reply_if_complete(&mut self, request: u64, context: &Context) {
        let Some(pending) = self.requests.take_if(request, |pending| pending.waiting == 0) else { return };
        self.costs -= pending.cost;
        let Pending { id, reply_path, results, is_misrouted, named_in, .. } = pending;
        let results = Reply::Results { id, results: results.into_iter().flatten().collect() };
        // Routes up to `told` were sent before this answer.
        let has_news = is_misrouted && self.told < context.routes.version();
        if !has_news && named_in.is_empty() {
            return self.send(&results, reply_path);
        }
        // All frames go as one answer, also where the client has one slot for it.
        let mut frames = std::mem::take(&mut self.frame);
        frames.clear();
        if has_news {
            let routes = self.user.routes_since(self.told, context);
            write_frame(FrameKind::Reply, &Reply::Routes(routes), &mut frames);
            self.told = context.routes.version();
        }
        let known = named_in.into_iter().filter_map(|region| Some((region, context.node.committed(region)?)));
        let regions: Vec<(RegionId, Lsn)> = known.collect();
        if !regions.is_empty() {
            write_frame(FrameKind::Reply, &Reply::Heard { regions }, &mut frames);
        }
        write_frame(FrameKind::Reply, &results, &mut frames);
        self.frame = frames;
        self.send_frames(reply_path);
    }

    /// Frees the input's buffer if it is large and little is left in it.
    fn shrink(&mut self) {
        self.buffer_bytes = self.buffer_bytes.max(self.input.capacity());
        if self.input.len() <= KEPT_INPUT_BYTES && self.buffer_bytes > KEPT_INPUT_BYTES {
            self.input = BytesMut::from(&self.input[..]);
            self.buffer_bytes = self.input.capacity();
        }
    }

    /// Charges what is held now.
    fn settle(&mut self) {
        self.buffer_bytes = self.buffer_bytes.max(self.input.capacity());
        let for_rings: usize = self.for_rings.iter().map(|(_, frames)| frames.len()).sum();
        let answers = self.output.capacity() + self.frame.capacity() + for_rings;
        let queues = self.ops.memory_bytes() + self.requests.memory_bytes();
        self.charge.set(self.buffer_bytes + queues + self.costs + answers);
    }

    fn send(&mut self, reply: &Reply, reply_path: Option<ReplyPath>) {
        self.frame.clear();
        write_frame(FrameKind::Reply, reply, &mut self.frame);
        self.send_frames(reply_path);
    }

    fn send_frames(&mut self, reply_path: Option<ReplyPath>) {
        match reply_path {
            Some(reply_path) => self.for_rings.push((reply_path, std::mem::take(&mut self.frame))),
            None => self.output.extend_from_slice(&self.frame),
        }
    }
}

/// Bytes that operations take besides their own until they are answered. Only small answers count: large ones charge
/// the account by themselves.
fn cost(ops: &[Op]) -> usize {
    let of = |op: &Op| {
        let reserved = match op {
            op if op.range().is_some() && !op.is_write() => SCAN_OPERATION_BYTES,
            op if op.is_plain_put() => WRITE_BYTES,
            _ => OPERATION_BYTES,
        };
        size_of::<Op>() + size_of::<Option<OpResult>>() + reserved
    };
    ops.iter().map(of).sum()
}

impl ProtocolSession for Session {
    fn feed(&mut self, bytes: &[u8]) {
        if !self.stopped {
            self.input.extend_from_slice(bytes);
            self.settle();
        }
    }

    fn complete(&mut self, number: u64, result: OpResult, context: &mut Context) {
        let Some(place) = self.ops.take_if(number, |_| true) else { return };
        self.take_result(&place, result);
        self.reply_if_complete(place.request, context);
    }

    fn advance(&mut self, context: &mut Context, submit: &mut Vec<Operation>) {
        let mut active = false;
        while self.wants_input()
            && !context.quota.is_used_up()
            && let Some(request) = self.next_request(context)
        {
            active = true;
            self.begin(request, None, context, submit);
            self.settle();
        }
        self.is_cut = context.quota.is_used_up();
        if active {
            self.seen(context);
        }
        self.settle();
    }

    fn answered(&mut self, answer: Answer, context: &mut Context) {
        let refused = self.user.enter(answer, context);
        self.show_user(context);
        // An operator's place is its own from now on.
        self.has_place(context);
        self.send(&Reply::Auth { refused: refused.clone() }, None);
        if refused.is_some() {
            self.stop();
        }
    }

    fn follow_users(&mut self, context: &mut Context) -> bool {
        if self.user.identity.has_followed(context.users) {
            return true;
        }
        let stays = self.user.follow(context);
        self.show_user(context);
        stays
    }

    fn has_work(&self) -> bool {
        self.is_cut
    }

    fn output(&mut self) -> &mut BytesMut {
        &mut self.output
    }

    fn wants_input(&self) -> bool {
        let most_output = if self.charge.memory().is_short() { SHORT_OUTPUT_BYTES } else { OUTPUT_PAUSE_BYTES };
        let has_room = self.ops.len() < MAX_OPERATIONS && self.output.len() < most_output;
        !self.stopped && !self.user.is_waiting && has_room && !self.charge.is_full()
    }

    fn give_back(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
            self.buffer_bytes = 0;
        }
        if self.output.is_empty() {
            self.output = BytesMut::new();
        }
        self.requests.shrink(0);
        self.ops.shrink(0);
        self.frame = Vec::new();
        self.settle();
    }

    fn holder(&self) -> Holder {
        Holder::new(&self.charge, !self.output.is_empty() || self.ops.is_empty())
    }

    fn turn_away(&mut self) {
        self.send(&Reply::Auth { refused: Some(OpError::Unavailable(FULL_NATIVE.into())) }, None);
    }

    fn stop(&mut self) {
        self.stopped = true;
        self.input = BytesMut::new();
    }

    fn is_finished(&self) -> bool {
        self.stopped && self.requests.is_empty() && self.output.is_empty()
    }

    fn with_rings(&mut self) -> Option<&mut dyn RingSession> {
        Some(self)
    }
}

impl RingSession for Session {
    fn take_from_ring(
        &mut self,
        frame: &[u8],
        reply_path: ReplyPath,
        context: &mut Context,
        submit: &mut Vec<Operation>,
    ) {
        match read_frame::<Request>(FrameKind::Request, frame, MAX_MESSAGE_BYTES) {
            Ok(Some((Request::RingOffer | Request::RingOpen { .. } | Request::RingBell | Request::Auth { .. }, _))) => {
                self.refuse(context, "a message about rings, or a user, in a ring");
            }
            Ok(Some((request, len))) if len == frame.len() => {
                self.begin((request, len), Some(reply_path), context, submit);
                self.settle();
                self.seen(context);
            }
            Ok(_) => self.refuse(context, "a message in a ring that is not one frame"),
            Err(error) => self.refuse(context, &error.to_string()),
        }
    }

    fn for_rings(&mut self) -> Drain<'_, (ReplyPath, Vec<u8>)> {
        self.for_rings.drain(..)
    }

    fn ring_asks(&mut self) -> Drain<'_, Ask> {
        self.ring_asks.drain(..)
    }

    fn has_ring_asks(&self) -> bool {
        !self.ring_asks.is_empty()
    }

    fn send_over_stream(&mut self, frames: &[u8]) {
        self.output.extend_from_slice(frames);
    }

    fn tell(&mut self, reply: &Reply) {
        self.send(reply, None);
    }

    fn refuse_ring(&mut self, context: &mut Context, reason: &str) {
        self.refuse(context, reason);
    }
}

#[cfg(test)]
mod tests;

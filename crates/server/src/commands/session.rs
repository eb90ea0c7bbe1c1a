//! One Redis connection, without its socket: bytes in, operations out, results in, bytes out.
//!
//! ```text
//!  feed ----> input --parse--> commands (in order) --submit--> operations for the node
//!                                  |  ^                               |
//!  output <---encode---(head only)-+  +------- complete --------------+
//! ```
//! Invariants:
//! - A step ends when its quota is used up; the next step continues from there ([`ProtocolSession::has_work`]).
//!   Answers go first, then operations, then new commands, so that a backlog shrinks before it grows.
//! - Replies leave in the order of the commands, encoded for the protocol version spoken when the command came. A read that
//!   the node can answer at once is encoded at once, if no command before it is left.
//! - No command waits for the one before it, so the commands of one step are one batch. But a scan waits for earlier
//!   writes, and a write for earlier scans.
//! - All memory of a session is charged to the account of all clients ([`crate::client_memory`]). While that is full,
//!   no command is parsed and no operation submitted. An operation under way reserves memory for a small answer.
//! - The memory of one connection is bounded besides. It holds at most [`MAX_COMMANDS`] commands, or `TAKEN_BYTES` of
//!   them. The window (see `window.rs`) bounds operations in flight. Results that wait for an earlier reply take little
//!   more than `HELD_BYTES` (see `holdings.rs`). While the client leaves [`OUTPUT_PAUSE_BYTES`] unread, nothing more is
//!   read from it, submitted for it or encoded.

use super::access::Waiting;
use super::holdings::{Holdings, Share};
use super::in_flight::{InFlight, Operation};
use super::input::{Input, KEPT_INPUT_BYTES};
use super::table;
use super::work::{Kind, Work};
use crate::clients::Client;
use crate::numbered::Numbered;
use crate::places::FULL;
use crate::protocol_session::ProtocolSession;
use crate::quota::{COMMAND_UNITS, OPERATION_UNITS, Quota};
use crate::resp::{Parsed, Protocol, Reply};
use crate::session_context::Context;
use crate::users::{Answer, Identity, STRANGERS_BYTES};
use bytes::{Bytes, BytesMut};
use leeward_format::op::{Op, OpResult, Read};
use leeward_format::table::TableName;
use leeward_platform::Nanos;
use leeward_region::client_memory::result_bytes;
use leeward_region::client_memory::{Holder, small_bytes};
use leeward_region::request::{Request, Token};
use std::collections::VecDeque;

/// Most commands of one connection that are parsed but not answered.
pub(super) const MAX_COMMANDS: usize = 4096;
/// Bytes of replies that the client has not taken, from which on nothing more is read from it.
pub(super) const OUTPUT_PAUSE_BYTES: usize = 1024 * 1024;
/// The same bound while memory is short. Both bounds also stop submitting and encoding.
const SHORT_OUTPUT_BYTES: usize = 64 * 1024;
/// A larger reply is encoded into a buffer of its size, since a growing buffer takes twice as much. While memory is
/// short, it waits until the replies before it are sent.
const LARGE_REPLY_BYTES: usize = 64 * 1024;
/// Empty queues free the capacity beyond this many entries.
const KEPT_COMMANDS: usize = 64;

/// State of one connection. Belongs to the event loop's thread.
pub struct Session {
    id: u64,
    pub(super) terms: Terms,
    /// How stale the data of the last answer may be, in milliseconds.
    age_ms: u32,
    input: Input,
    output: BytesMut,
    /// Commands that are not answered, in order.
    commands: Numbered<Command>,
    /// The first command that still has operations to submit.
    next_command: u64,
    /// Numbers of the commands that continue in the next step: entries of their scans are still to be matched.
    unfinished: VecDeque<u64>,
    in_flight: InFlight,
    holdings: Holdings,
    /// The last step ended because its quota was used up.
    is_cut: bool,
    /// No further command is read: after `QUIT`, a protocol error or the end of the stream.
    stopped: bool,
    /// When the client's `MULTI` was refused, unless `EXEC`, `DISCARD` or `RESET` has ended that: see `absent.rs`.
    pub(super) refused_multi: Option<Nanos>,
    pub(super) identity: Identity,
    /// The command, the last of all, that waits for the password thread. No other is read before its answer.
    pub(super) waiting: Option<Waiting>,
}

/// The choices of a client for the commands that follow.
#[derive(Clone, Default)]
pub(super) struct Terms {
    pub(super) protocol: Protocol,
    /// The table that their operations are on.
    pub(super) table: TableName,
    /// Any member may answer reads, as stale as this many milliseconds. `None`: the primaries answer them.
    pub(super) at_most_ms: Option<u32>,
    /// The table is not that of database 0, or was not selected as such. Commands are forwarded to the primaries then, never
    /// redirected: a client goes on in database 0 of the other node.
    pub(super) forwards: bool,
    /// The next command is not redirected.
    pub(super) is_asking: bool,
}

impl Terms {
    /// Makes the operation that the node executes.
    fn apply(&self, op: Op) -> Op {
        match self.at_most_ms {
            Some(at_most_ms) => Read::stale(op, at_most_ms),
            None => op,
        }
    }
}

struct Command {
    /// Position in the table of commands; `None` for an unknown command.
    spec: Option<usize>,
    terms: Terms,
    /// How stale the data that it has read may be, in milliseconds; `None` before it has read any.
    age_ms: Option<u32>,
    begun: Nanos,
    work: Work,
    share: Share,
    /// See [`Input::buffer_from`].
    buffer_from: u64,
}

impl Session {
    /// A new connection, which `CLIENT LIST` shows under `id`.
    pub fn new(id: u64, address: String, local_address: String, context: &mut Context) -> Session {
        let client = Client {
            address,
            local_address,
            connected: context.now,
            active: context.now,
            command: "NULL",
            protocol: Some(Protocol::Resp2),
            table: Some(context.shared.facts.redis_table.clone()),
            ..Client::default()
        };
        let identity = Identity::from(&client.address);
        context.shared.clients.add(id, client);
        let memory = &context.shared.memory;
        Session {
            id,
            terms: Terms { table: context.shared.facts.redis_table.clone(), ..Terms::default() },
            age_ms: 0,
            input: Input::new(),
            output: BytesMut::new(),
            commands: Numbered::default(),
            next_command: 0,
            unfinished: VecDeque::new(),
            in_flight: InFlight::within(memory.most_of_one()),
            holdings: Holdings::of(memory),
            is_cut: false,
            stopped: false,
            refused_multi: None,
            identity,
            waiting: None,
        }
    }

    /// Id of the connection.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Selects the table of later commands.
    pub(super) fn select(&mut self, table: TableName, context: &mut Context) {
        if let Some(client) = context.shared.clients.get_mut(self.id) {
            client.table = Some(table.clone());
        }
        self.terms.table = table;
    }

    fn parse(&mut self, context: &mut Context) {
        let mut name = None;
        let _stays = self.follow_users(context);
        while self.wants_input() {
            let most = match self.identity.is_stranger() {
                true => STRANGERS_BYTES,
                false => context.shared.memory.most_at_once(),
            };
            match self.input.next(most, &mut context.quota) {
                Ok(None) => break,
                Ok(Some(Parsed::Command(args))) => {
                    context.quota.take(COMMAND_UNITS);
                    name = Some(self.begin(&args, context));
                }
                Ok(Some(Parsed::TooLarge { name, reason })) => {
                    self.terms.is_asking = false;
                    let (spec, args) = (table::position(&name), [name]);
                    let reply = match self.after_refused_multi(&args, context.now) {
                        Some(refusal) => refusal,
                        None if spec.is_some() => Reply::err(reason),
                        None => self.absent(&args, context.now).1,
                    };
                    self.push(spec, 0, Work::Ready(reply), context.now);
                }
                Err(error) => {
                    context.shared.metrics.protocol_error();
                    self.push(None, 0, Work::Ready(Reply::err(error)), context.now);
                    self.stop();
                }
            }
        }
        match self.stopped {
            true => self.input.discard(),
            false => self.input.shrink(KEPT_INPUT_BYTES),
        }
        if let Some((name, client)) = name.zip(context.shared.clients.get_mut(self.id)) {
            client.command = name;
            client.active = context.now;
            client.protocol = Some(self.terms.protocol);
        }
    }

    fn begin(&mut self, args: &[Bytes], context: &mut Context) -> &'static str {
        let taken = args.iter().map(Bytes::len).sum();
        self.input.took(taken);
        context.quota.take_bytes(taken);
        // Of this command alone, also if it fails early.
        let was_asking = std::mem::take(&mut self.terms.is_asking);
        let position = table::position(&args[0]);
        if let Some(refusal) = self.after_refused_multi(args, context.now) {
            self.push(position, 0, Work::Ready(refusal), context.now);
            return position.map_or("multi", |position| table::all()[position].name);
        }
        let Some(position) = position else {
            let (name, reply) = self.absent(args, context.now);
            self.push(None, 0, Work::Ready(reply), context.now);
            return name;
        };
        let spec = &table::all()[position];
        let work = spec.start(args, was_asking, self, context);
        // A read must see the writes before it, and replies leave in order.
        let is_next = self.commands.is_empty() && self.terms.at_most_ms.is_none();
        if is_next && let Some(reply) = work.at_once(&self.terms.table, context) {
            context.quota.take(OPERATION_UNITS);
            self.age_ms = 0;
            encode(&reply, (self.terms.protocol, Some(position), context.now), &mut self.output, context);
            return spec.name;
        }
        self.push(Some(position), taken, work, context.now);
        spec.name
    }

    fn push(&mut self, spec: Option<usize>, taken: usize, work: Work, begun: Nanos) {
        let cost = work.bytes();
        let share = self.holdings.begin(taken, cost);
        if cost > KEPT_INPUT_BYTES || self.commands.len().is_multiple_of(KEPT_COMMANDS) {
            self.settle();
        }
        // HELLO was executed by now, so its reply uses the version that it chose.
        let terms = self.terms.clone();
        let buffer_from = self.input.buffer_from();
        self.commands.push(Command { spec, terms, age_ms: None, begun, work, share, buffer_from });
    }

    fn submit(&mut self, quota: &mut Quota, submit: &mut Vec<Request>) {
        let (charged, most_output) = (self.holdings.reserved(), self.most_output());
        let first = self.commands.first();
        self.next_command = self.next_command.max(first);
        while let Some(command) = self.commands.get_mut(self.next_command) {
            let is_first = self.next_command == first;
            while let Some(kind) = command.work.next_kind() {
                let is_full = self.output.len() >= most_output || (self.holdings.has_much() && !is_first);
                let reserved = command.work.next_takes();
                let lacks_memory = self.holdings.lacks_room(charged, reserved);
                if is_full || lacks_memory || self.in_flight.blocks(kind) || quota.is_used_up() {
                    return;
                }
                quota.take(OPERATION_UNITS);
                let (position, op) = command.work.next_op().expect("its kind was told above");
                self.holdings.reserve(reserved);
                let operation = Operation { command: self.next_command, position, kind, reserved };
                let number = self.in_flight.submit(operation);
                let (table, op) = (command.terms.table.clone(), command.terms.apply(op));
                submit.push(Request::of_client(Token::new(self.id, number), table, op, None));
            }
            self.next_command += 1;
        }
    }

    /// Continues commands that an earlier quota cut short.
    fn run_next(&mut self, context: &mut Context) {
        while !context.quota.is_used_up()
            && let Some(number) = self.unfinished.pop_front()
        {
            let Some(Command { work, share, .. }) = self.commands.get_mut(number) else {
                self.in_flight.scan_matched();
                continue;
            };
            work.run_next(context);
            if let Some(bytes) = work.scan_bytes(Kind::Scan) {
                self.holdings.keep(share, bytes);
            }
            if work.is_unfinished() {
                self.unfinished.push_back(number);
                continue;
            }
            self.in_flight.scan_matched();
            if work.next_kind().is_some() {
                self.next_command = self.next_command.min(number);
            }
        }
    }

    /// A value that changes with any effect of a step, except the matching of a scan's entries.
    fn progress(&self) -> (usize, u64, u64, u64) {
        (self.input.len(), self.commands.first(), self.commands.end(), self.in_flight.submitted())
    }

    fn answer(&mut self, context: &mut Context) {
        while self.output.len() < self.most_output()
            && !context.quota.is_used_up()
            && let Some(head) = self.commands.front_mut()
        {
            if let Work::InTurn(reply) = &head.work {
                head.work = Work::Ready(reply(context, &head.terms.table));
            }
            if let Work::Age = &head.work {
                head.work = Work::Ready(Reply::Integer(self.age_ms.into()));
            }
            let Work::Ready(reply) = &head.work else { return };
            let (before, bytes) = (self.output.len(), reply.text_bytes());
            if bytes > LARGE_REPLY_BYTES {
                if before == 0 {
                    self.output = BytesMut::with_capacity(bytes + LARGE_REPLY_BYTES);
                } else if self.holdings.is_short() {
                    return;
                }
            }
            encode(reply, (head.terms.protocol, head.spec, head.begun), &mut self.output, context);
            self.age_ms = head.age_ms.unwrap_or(self.age_ms);
            self.holdings.end(&head.share);
            self.commands.pop_front();
        }
    }

    /// Bytes of unread replies from which on nothing more is done for the client.
    fn most_output(&self) -> usize {
        if self.holdings.is_short() { SHORT_OUTPUT_BYTES } else { OUTPUT_PAUSE_BYTES }
    }

    /// Charges what is held now.
    fn settle(&mut self) {
        let oldest = self.commands.front().map(|command| command.buffer_from);
        let queues = self.commands.memory_bytes() + self.in_flight.memory_bytes();
        self.holdings.settle(self.input.memory_bytes(oldest) + queues + self.output.capacity());
    }
}

/// Encodes the reply to a command, of this position in the table, that came at this time.
fn encode(
    reply: &Reply,
    (protocol, spec, begun): (Protocol, Option<usize>, Nanos),
    output: &mut BytesMut,
    context: &mut Context,
) {
    let before = output.len();
    reply.encode(protocol, output);
    context.quota.take(COMMAND_UNITS);
    context.quota.take_bytes(output.len() - before);
    let nanos = context.now.0.saturating_sub(begun.0);
    context.shared.metrics.command(spec, nanos, matches!(reply, Reply::Error(_)));
}

impl ProtocolSession for Session {
    fn feed(&mut self, bytes: &[u8]) {
        if !self.stopped {
            self.input.feed(bytes);
            self.settle();
        }
    }

    fn complete(&mut self, number: u64, result: OpResult, context: &mut Context) {
        let (result, age_ms) = result.fresh();
        let (bytes, small) = (result_bytes(&result), small_bytes(&result));
        let Some(operation) = self.in_flight.answered(number, bytes) else { return };
        let Operation { command: number, position, kind, reserved } = operation;
        context.quota.take(COMMAND_UNITS);
        self.holdings.release(reserved);
        // A command that was answered early is gone; the results of its other operations are dropped.
        let Some(Command { work, share, age_ms: oldest, .. }) = self.commands.get_mut(number) else { return };
        *oldest = Some(oldest.unwrap_or(0).max(age_ms));
        self.holdings.hold(share, bytes, small);
        work.answered(position, result, context);
        if let Some(bytes) = work.scan_bytes(kind) {
            // A scan may keep only a part of the entries that it has met.
            self.holdings.keep(share, bytes);
        }
        if work.is_unfinished() {
            // Writes that wait for the scan wait for this too.
            self.in_flight.scan_goes_on();
            self.unfinished.push_back(number);
        } else if kind == Kind::Scan && work.next_kind().is_some() {
            // The scan continues: writes that wait for it must wait for its next step too.
            self.next_command = self.next_command.min(number);
        }
    }

    fn advance(&mut self, context: &mut Context, submit: &mut Vec<Request>) {
        // The client has taken the output since the last step.
        if self.output.is_empty() && self.output.capacity() > LARGE_REPLY_BYTES {
            self.output = BytesMut::new();
        }
        self.settle();
        let begun = self.progress();
        let may_be_idle = self.unfinished.is_empty() && !context.quota.is_used_up();
        loop {
            let before = self.progress();
            self.run_next(context);
            self.answer(context);
            self.submit(&mut context.quota, submit);
            self.parse(context);
            // A quota that was used up without progress only served to find that there is nothing to do.
            self.is_cut = context.quota.is_used_up() && !(may_be_idle && begun == self.progress());
            self.settle();
            if context.quota.is_used_up() || before == self.progress() {
                break;
            }
        }
        self.commands.shrink(KEPT_COMMANDS);
        self.in_flight.shrink(KEPT_COMMANDS);
        self.settle();
    }

    fn has_work(&self) -> bool {
        self.is_cut
    }

    fn output(&mut self) -> &mut BytesMut {
        &mut self.output
    }

    fn answered(&mut self, answer: Answer, context: &mut Context) {
        let Some(waiting) = self.waiting.take() else { return };
        let number = self.commands.end() - 1;
        let work = self.end_waiting(waiting, answer, context);
        if let Some(command) = self.commands.get_mut(number) {
            // HELLO may have chosen another version.
            command.terms = self.terms.clone();
            command.work = work;
            self.next_command = self.next_command.min(number);
        }
    }

    fn follow_users(&mut self, context: &mut Context) -> bool {
        if self.identity.has_followed(context.users) {
            return true;
        }
        let stays = self.identity.follow(context.users, &context.shared.gate);
        self.show_user(context);
        stays
    }

    fn wants_input(&self) -> bool {
        let has_room = self.commands.len() < MAX_COMMANDS && self.output.len() < self.most_output();
        !self.stopped && self.waiting.is_none() && has_room && !self.holdings.is_full()
    }

    fn give_back(&mut self) {
        self.input.shrink(0);
        self.commands.shrink(0);
        self.in_flight.shrink(0);
        if self.output.is_empty() {
            self.output = BytesMut::new();
        }
        self.settle();
    }

    fn holder(&self) -> Holder {
        self.holdings.holder(!self.output.is_empty() || self.in_flight.is_empty())
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn turn_away(&mut self) {
        self.output.extend_from_slice(format!("-ERR {FULL}\r\n").as_bytes());
    }

    fn is_finished(&self) -> bool {
        self.stopped && self.commands.is_empty() && self.output.is_empty()
    }
}

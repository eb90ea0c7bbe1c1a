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
//! - Replies leave in the order of the commands, encoded for the protocol version spoken when the command came.
//! - No command waits for the one before it, so what a step reads is one batch; only a scan waits for the writes before it, and
//!   a write for the scans before it.
//! - What it holds is charged to the account of all clients ([`crate::client_memory`]): while that is full, no command is
//!   parsed and no operation submitted. An operation under way reserves what a small answer to it takes.
//! - Memory of one connection is bounded besides: at most [`MAX_COMMANDS`] commands, or [`TAKEN_BYTES`] of them, are held,
//!   the window (see `window.rs`) bounds operations in flight, results that wait for an earlier reply take little more than
//!   [`HELD_BYTES`], and while the client leaves [`OUTPUT_PAUSE_BYTES`] unread nothing more is read from it, submitted for it
//!   or encoded.

use super::window::Window;
use super::work::{Kind, Work, result_bytes};
use super::{Client, Context, table};
use crate::client_memory::{Charge, Holder, small_bytes};
use crate::protocol_session::{ProtocolSession, Submission};
use crate::quota::{COMMAND_UNITS, OPERATION_UNITS, Quota};
use crate::resp::{Parsed, Parser, Protocol, Reply};
use bytes::{Bytes, BytesMut};
use leeward_format::op::{OpResult, Read};
use leeward_format::table::TableName;
use leeward_platform::Nanos;
use std::collections::VecDeque;

/// Most commands of one connection that are parsed but not answered.
pub(super) const MAX_COMMANDS: usize = 4096;
/// Replies that the client has not taken: beyond it, in bytes, nothing more is read from it.
pub(super) const OUTPUT_PAUSE_BYTES: usize = 1024 * 1024;
/// Arguments of commands that are not answered: beyond it, in bytes, no further command is taken.
const TAKEN_BYTES: usize = 32 * 1024 * 1024;
/// Results whose replies wait for earlier ones: beyond it, in bytes, only the first command goes on.
const HELD_BYTES: usize = 16 * 1024 * 1024;

/// Replies that the client has not taken, in bytes, beyond which nothing more is submitted or encoded for it while memory is
/// short.
const SHORT_OUTPUT_BYTES: usize = 64 * 1024;
/// A reply of more bytes is encoded into a buffer of its size, since one that grows takes twice as much; while memory is short
/// it waits until those before it are sent.
const LARGE_REPLY_BYTES: usize = 64 * 1024;
/// An input buffer that is empty, and queues that are, give back what they have beyond this.
const KEPT_INPUT_BYTES: usize = 8 * 1024;
const KEPT_COMMANDS: usize = 64;
/// Input that may be in one buffer with what is left of it.
const BUFFER_BYTES: u64 = 256 * 1024;

/// State of one connection. Belongs to the event loop's thread.
pub struct Session {
    id: u64,
    pub(super) protocol: Protocol,
    pub(super) table: TableName,
    /// Reads may be as stale as that, in milliseconds, from whichever member; `None`: they are the primaries'.
    pub(super) at_most_ms: Option<u32>,
    /// How stale what was answered last may be, in milliseconds.
    age_ms: u32,
    parser: Parser,
    input: BytesMut,
    output: BytesMut,
    /// Commands that are not answered, in order; `first_command` numbers the first.
    commands: VecDeque<Command>,
    first_command: u64,
    /// The first command that still has operations to submit.
    next_command: u64,
    /// Operations in flight, in order of submission; `first_op` numbers the first.
    ops: VecDeque<InFlight>,
    first_op: u64,
    window: Window,
    /// Bytes of the arguments of the commands.
    taken: usize,
    /// Bytes of the results that commands hold.
    held: usize,
    writes_in_flight: usize,
    /// Scans with an operation in flight, or with entries that are still matched against their pattern.
    scans: usize,
    /// Commands, by number, that go on in the next step: their scans have entries that are still to be matched.
    unfinished: VecDeque<u64>,
    /// The last step ended because its quota was used up.
    is_cut: bool,
    /// No further command is read: after `QUIT`, a protocol error or the end of the stream.
    stopped: bool,
    /// A large argument was taken off the input's buffer, which has its memory again once the argument is dropped.
    has_large_input: bool,
    /// Bytes that have come, and how many had when the buffer began that has the oldest of the input.
    fed: u64,
    buffer_from: u64,
    /// What commands take besides the bytes that they came as, what operations under way have reserved, and small results.
    costs: usize,
    reserved: usize,
    kept: usize,
    charge: Charge,
}

struct Command {
    /// Position in the table; `None` for one that is not in it.
    spec: Option<usize>,
    protocol: Protocol,
    /// The table that its operations are on.
    table: TableName,
    at_most_ms: Option<u32>,
    /// How stale what it has read may be, in milliseconds, once it has.
    age_ms: Option<u32>,
    begun: Nanos,
    work: Work,
    /// Bytes of its arguments.
    taken: usize,
    /// Bytes of its results.
    held: usize,
    /// As of the session, of this command.
    fed_from: u64,
    cost: usize,
    kept: usize,
}

struct InFlight {
    command: u64,
    position: usize,
    kind: Kind,
    reserved: usize,
    answered: bool,
}

impl Session {
    /// A new connection, made known to `CLIENT LIST` under `id`.
    pub fn new(id: u64, address: String, local_address: String, context: &mut Context) -> Session {
        let client = Client {
            address,
            local_address,
            connected: context.now,
            active: context.now,
            command: "NULL",
            protocol: Some(Protocol::Resp2),
            table: Some(TableName::default()),
            ..Client::default()
        };
        context.shared.clients.add(id, client);
        Session {
            id,
            protocol: Protocol::Resp2,
            table: TableName::default(),
            at_most_ms: None,
            age_ms: 0,
            parser: Parser::within(context.shared.memory.most_at_once()),
            input: BytesMut::new(),
            output: BytesMut::new(),
            commands: VecDeque::new(),
            first_command: 0,
            next_command: 0,
            ops: VecDeque::new(),
            first_op: 0,
            window: Window::within(context.shared.memory.most_of_one()),
            taken: 0,
            held: 0,
            writes_in_flight: 0,
            scans: 0,
            unfinished: VecDeque::new(),
            is_cut: false,
            stopped: false,
            has_large_input: false,
            fed: 0,
            buffer_from: 0,
            costs: 0,
            reserved: 0,
            kept: 0,
            charge: context.shared.memory.charge(),
        }
    }

    /// Id of the connection.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Later commands are on `table`.
    pub(super) fn select(&mut self, table: TableName, context: &mut Context) {
        if let Some(client) = context.shared.clients.get_mut(self.id) {
            client.table = Some(table.clone());
        }
        self.table = table;
    }

    fn parse(&mut self, context: &mut Context) {
        let mut name = None;
        while self.wants_input() {
            match self.parser.next(&mut self.input, &mut context.quota) {
                Ok(None) => break,
                Ok(Some(Parsed::Command(args))) => {
                    context.quota.take(COMMAND_UNITS);
                    name = Some(self.begin(&args, context));
                }
                Ok(Some(Parsed::TooLarge { name, reason })) => {
                    let spec = table::position(&name);
                    let reply = if spec.is_some() { Reply::err(reason) } else { table::unknown(&[name]) };
                    self.push(spec, 0, Work::Ready(reply), context.now);
                }
                Err(error) => {
                    context.shared.metrics.protocol_error();
                    self.push(None, 0, Work::Ready(Reply::err(error)), context.now);
                    self.stop();
                }
            }
        }
        let is_large = self.has_large_input || self.input.capacity() > KEPT_INPUT_BYTES;
        if self.stopped || self.input.is_empty() && is_large {
            self.input = BytesMut::new();
            self.has_large_input = false;
        }
        if let Some((name, client)) = name.zip(context.shared.clients.get_mut(self.id)) {
            client.command = name;
            client.active = context.now;
            client.protocol = Some(self.protocol);
        }
    }

    fn begin(&mut self, args: &[Bytes], context: &mut Context) -> &'static str {
        let taken = args.iter().map(Bytes::len).sum();
        self.has_large_input |= taken > KEPT_INPUT_BYTES;
        context.quota.take_bytes(taken);
        let Some(position) = table::position(&args[0]) else {
            self.push(None, 0, Work::Ready(table::unknown(args)), context.now);
            return "unknown";
        };
        let spec = &table::all()[position];
        let work = spec.start(args, self, context);
        self.push(Some(position), taken, work, context.now);
        spec.name
    }

    fn push(&mut self, spec: Option<usize>, taken: usize, work: Work, begun: Nanos) {
        self.taken += taken;
        let (fed_from, cost) = (self.buffer_from, work.bytes());
        self.costs += cost;
        if cost > KEPT_INPUT_BYTES || self.commands.len().is_multiple_of(KEPT_COMMANDS) {
            self.settle();
        }
        // HELLO was carried out by now: it answers in the version that it chose.
        let (protocol, table, at_most_ms) = (self.protocol, self.table.clone(), self.at_most_ms);
        let age_ms = None;
        let (held, kept) = (0, 0);
        self.commands.push_back(Command {
            spec,
            protocol,
            table,
            at_most_ms,
            age_ms,
            begun,
            work,
            taken,
            held,
            fed_from,
            cost,
            kept,
        });
    }

    fn submit(&mut self, quota: &mut Quota, submit: &mut Vec<Submission>) {
        self.next_command = self.next_command.max(self.first_command);
        let (before, most_output) = (self.reserved, self.most_output());
        let most_held = HELD_BYTES.min(self.charge.memory().most_of_one());
        while let Some(command) = self.commands.get_mut((self.next_command - self.first_command) as usize) {
            let is_first = self.next_command == self.first_command;
            while let Some(kind) = command.work.next_kind() {
                let blocked = match kind {
                    Kind::Read => false,
                    Kind::Write => self.scans > 0,
                    Kind::Scan => self.writes_in_flight > 0,
                };
                let is_full = self.output.len() >= most_output || (self.held >= most_held && !is_first);
                let reserve = command.work.next_takes();
                let lacks_memory = self.charge.lacks_room(self.reserved - before, reserve);
                if blocked || is_full || lacks_memory || !self.window.is_open() || quota.is_used_up() {
                    return;
                }
                quota.take(OPERATION_UNITS);
                let (position, op) = command.work.next_op().expect("its kind was told above");
                let op = match command.at_most_ms {
                    Some(at_most_ms) => Read::stale(op, at_most_ms),
                    None => op,
                };
                self.reserved += reserve;
                self.window.submitted();
                match kind {
                    Kind::Write => self.writes_in_flight += 1,
                    Kind::Scan => self.scans += 1,
                    Kind::Read => {}
                }
                let number = self.first_op + self.ops.len() as u64;
                submit.push(Submission { number, table: command.table.clone(), op, once: None, direct: false });
                self.ops.push_back(InFlight {
                    command: self.next_command,
                    position,
                    kind,
                    reserved: reserve,
                    answered: false,
                });
            }
            self.next_command += 1;
        }
    }

    /// Goes on with commands that were cut short by an earlier quota.
    fn run_next(&mut self, context: &mut Context) {
        while !context.quota.is_used_up()
            && let Some(command) = self.unfinished.pop_front()
        {
            let at = command.checked_sub(self.first_command);
            let Some(Command { work, kept, .. }) = at.and_then(|at| self.commands.get_mut(at as usize)) else {
                self.scans -= 1;
                continue;
            };
            work.run_next(context);
            if let Some(bytes) = work.scan_bytes(Kind::Scan) {
                self.kept = self.kept - *kept + bytes;
                *kept = bytes;
            }
            if work.is_unfinished() {
                self.unfinished.push_back(command);
                continue;
            }
            self.scans -= 1;
            if work.next_kind().is_some() {
                self.next_command = self.next_command.min(command);
            }
        }
    }

    /// Changes with whatever a step does, but for the matching of a scan's entries.
    fn progress(&self) -> (usize, u64, u64, u64) {
        let (commands, ops) = (self.commands.len() as u64, self.ops.len() as u64);
        (self.input.len(), self.first_command, self.first_command + commands, self.first_op + ops)
    }

    fn answer(&mut self, context: &mut Context) {
        while self.output.len() < self.most_output()
            && !context.quota.is_used_up()
            && let Some(head) = self.commands.front_mut()
        {
            if let Work::InTurn(reply) = &head.work {
                head.work = Work::Ready(reply(context, &head.table));
            }
            if let Work::Age = &head.work {
                head.work = Work::Ready(Reply::Integer(self.age_ms.into()));
            }
            let Work::Ready(reply) = &head.work else { return };
            let (before, bytes) = (self.output.len(), reply.text_bytes());
            if bytes > LARGE_REPLY_BYTES {
                if before == 0 {
                    self.output = BytesMut::with_capacity(bytes + LARGE_REPLY_BYTES);
                } else if self.charge.memory().is_short() {
                    return;
                }
            }
            reply.encode(head.protocol, &mut self.output);
            context.quota.take(COMMAND_UNITS);
            context.quota.take_bytes(self.output.len() - before);
            let nanos = context.now.0.saturating_sub(head.begun.0);
            context.shared.metrics.command(head.spec, nanos, matches!(reply, Reply::Error(_)));
            self.age_ms = head.age_ms.unwrap_or(self.age_ms);
            self.taken -= head.taken;
            self.held -= head.held;
            self.costs -= head.cost;
            self.kept -= head.kept;
            self.commands.pop_front();
            self.first_command += 1;
        }
    }

    /// Replies that may wait for the client, in bytes, before nothing more is done for it.
    fn most_output(&self) -> usize {
        if self.charge.memory().is_short() { SHORT_OUTPUT_BYTES } else { OUTPUT_PAUSE_BYTES }
    }

    /// Charges what is held now.
    fn settle(&mut self) {
        // All that has come since the oldest command did may be in buffers of which it holds slices.
        let oldest = self.commands.front().map_or(self.fed - self.input.len() as u64, |command| command.fed_from);
        let input =
            (self.fed - oldest) as usize + self.input.capacity() - self.input.len() + self.parser.memory_bytes();
        let queues = self.commands.capacity() * size_of::<Command>() + self.ops.capacity() * size_of::<InFlight>();
        self.charge.set(input + queues + self.costs + self.reserved + self.kept + self.output.capacity());
    }

    /// What was grown for many commands is given back once there are none.
    fn shrink(&mut self) {
        if self.commands.is_empty() && self.commands.capacity() > KEPT_COMMANDS {
            self.commands = VecDeque::new();
        }
        if self.ops.is_empty() && self.ops.capacity() > KEPT_COMMANDS {
            self.ops = VecDeque::new();
        }
    }
}

impl ProtocolSession for Session {
    fn feed(&mut self, bytes: &[u8]) {
        if !self.stopped {
            let first = self.fed - self.input.len() as u64;
            self.buffer_from =
                if self.input.is_empty() { first } else { self.buffer_from.max(first.saturating_sub(BUFFER_BYTES)) };
            self.fed += bytes.len() as u64;
            self.input.extend_from_slice(bytes);
            self.settle();
        }
    }

    fn complete(&mut self, number: u64, result: OpResult, context: &mut Context) {
        let Some(in_flight) = number.checked_sub(self.first_op).and_then(|at| self.ops.get_mut(at as usize)) else {
            return;
        };
        if std::mem::replace(&mut in_flight.answered, true) {
            return;
        }
        let (result, age_ms) = result.fresh();
        let (bytes, small) = (result_bytes(&result), small_bytes(&result));
        self.window.answered(bytes);
        context.quota.take(COMMAND_UNITS);
        self.reserved -= in_flight.reserved;
        let (command, position, kind) = (in_flight.command, in_flight.position, in_flight.kind);
        while self.ops.front().is_some_and(|op| op.answered) {
            self.ops.pop_front();
            self.first_op += 1;
        }
        match kind {
            Kind::Write => self.writes_in_flight -= 1,
            Kind::Scan => self.scans -= 1,
            Kind::Read => {}
        }
        // A command that was answered early is gone; the results of its other operations are dropped.
        let Some(at) = command.checked_sub(self.first_command) else { return };
        let Command { work, held, kept, age_ms: oldest, .. } = &mut self.commands[at as usize];
        *kept += small;
        self.kept += small;
        *oldest = Some(oldest.unwrap_or(0).max(age_ms));
        *held += bytes;
        self.held += bytes;
        work.answered(position, result, context);
        if let Some(bytes) = work.scan_bytes(kind) {
            // Of what a scan has met it may hold a part only.
            self.kept = self.kept - *kept + bytes;
            *kept = bytes;
        }
        if work.is_unfinished() {
            // What waits for the scan waits for this too.
            self.scans += 1;
            self.unfinished.push_back(command);
        } else if kind == Kind::Scan && work.next_kind().is_some() {
            // The scan goes on: what waits for it must wait for its next step too.
            self.next_command = self.next_command.min(command);
        }
    }

    fn advance(&mut self, context: &mut Context, submit: &mut Vec<Submission>) {
        // Output was taken since.
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
            // A quota that was used up without any progress was used to see that there is nothing to do.
            self.is_cut = context.quota.is_used_up() && !(may_be_idle && begun == self.progress());
            self.settle();
            if context.quota.is_used_up() || before == self.progress() {
                break;
            }
        }
        self.shrink();
        self.settle();
    }

    fn has_work(&self) -> bool {
        self.is_cut
    }

    fn output(&mut self) -> &mut BytesMut {
        &mut self.output
    }

    fn wants_input(&self) -> bool {
        let has_room =
            self.commands.len() < MAX_COMMANDS && self.taken < TAKEN_BYTES.min(self.charge.memory().most_at_once());
        !self.stopped && has_room && self.output.len() < self.most_output() && !self.charge.is_full()
    }

    fn holder(&self) -> Holder {
        Holder::new(&self.charge, !self.output.is_empty() || self.ops.is_empty())
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn is_finished(&self) -> bool {
        self.stopped && self.commands.is_empty() && self.output.is_empty()
    }
}

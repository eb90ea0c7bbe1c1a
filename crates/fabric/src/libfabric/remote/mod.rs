//! A link's view of its peer's memory: the grants, the operations under way, and their outcomes.
//!
//! The first operation on a memory asks its owner for a grant over the control channel, and operations wait until it
//! comes. From then on the bytes go through libfabric, in parts, each from or to the link's staging memory.
//!
//! # When an operation is complete
//! A provider's completion says that the bytes are placed, but not that the memory is not revoked: closing a
//! registration does not stop operations under way, and some providers cache registrations. So an operation ends with a
//! *look*: a read of the owner's `revoked` word, started after the completion of the last part. The owner sets the word
//! before it takes its copy. If the look does not see it set, the copy was taken later, and has the bytes. One look
//! serves all operations on a memory that are placed by then. On a network card the look also forces earlier bytes out
//! of the bus and into memory.
//!
//! # When the owner looks
//! Some providers do not report incoming data (`Device::tells_when_ready`), so an idle owner polls only now and then.
//! The link rings such an owner: it sends a message over the connection when it has operations, and from time to time
//! while it has them.
//!
//! A [`Remote`] belongs to one connection. It is used under its link's lock, which is taken before the device's. See
//! [`session`] for its begin and end.

mod session;

use super::{
    Context,
    device::End,
    endpoint::{Direction, Initiator},
    ring::{Part, Ring},
};
use crate::{
    LinkEvent, LinkOptions, PeerId,
    memory::MemoryId,
    shm::memory::HEADER,
    stream::{frame::Request, link::LinkState},
    words::{self, WORD},
};
use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

/// Most bytes of one part of an operation.
const PART_BYTES: usize = 256 << 10;
/// Most parts under way on one link.
const MAX_PARTS: usize = 512;
/// How often the owner is rung while there are operations: before its pauses grow (`progress`).
const RING_PAUSE: Duration = Duration::from_millis(5);

/// An operation on a peer's memory.
pub(super) enum Access<'a> {
    /// Writes these bytes.
    Write(&'a [u8]),
    /// Reads this many bytes.
    Read(u32),
}

/// An operation that has not ended.
struct Operation {
    memory: MemoryId,
    offset: u64,
    /// Number given by the caller; `None`: its end is not reported.
    op: Option<u64>,
    len: usize,
    /// Bytes of the parts that were started, and of those that have ended.
    started: usize,
    ended: usize,
    payload: Payload,
}

enum Payload {
    /// The bytes that were not started at once: those from the offset `from` on.
    Write { kept: Vec<u8>, from: usize },
    /// The bytes read.
    Read(Vec<u8>),
}

/// A transfer that the provider was given.
enum Started {
    /// A part of an operation, at this offset in it.
    Part { operation: u64, at: usize, part: Part },
    /// A look whether the memory is revoked, for these operations.
    Look { memory: MemoryId, operations: Vec<u64>, part: Part },
}

enum Import {
    /// The owner was asked. These operations wait.
    Asked {
        waiting: Vec<u64>,
    },
    Granted(Granted),
}

struct Granted {
    key: u64,
    base: u64,
    /// Bytes of the memory, according to its owner.
    len: u64,
    /// Operations that have not ended.
    unfinished: usize,
    /// Operations whose bytes are placed, and that wait for a look.
    placed: Vec<u64>,
    looking: bool,
    /// Seen by a look, or reported by the owner.
    revoked: bool,
}

/// The state of the way to the owner's endpoint.
enum OwnerEndpoint {
    /// Its address is not known.
    Unknown,
    /// Its address is known. The link's thread must open an endpoint towards it.
    Told(Vec<u8>),
    /// The link's thread is opening the endpoint.
    Opening,
    Open(Initiator),
}

/// The memory of one peer, over one connection.
pub(super) struct Remote {
    context: Arc<Context>,
    peer: PeerId,
    /// Number of this connection in this process, which the ends of operations carry; 0 until an endpoint is open.
    connection: u32,
    way: OwnerEndpoint,
    ring: Ring,
    memory: HashMap<MemoryId, Import>,
    operations: HashMap<u64, Operation>,
    next_operation: u64,
    /// Operations with parts to start, in order.
    queue: VecDeque<u64>,
    /// Memories with operations that wait for a look, without a look under way.
    to_look: Vec<MemoryId>,
    /// Bytes of writes that are not started yet.
    waiting_bytes: usize,
    started: HashMap<u32, Started>,
    next_started: u32,
    /// Bytes written and read that were not reported to the owner yet.
    moved: (u64, u64),
    /// When there was last nothing to wait for, or the provider last accepted or ended an operation.
    last_sign: Instant,
    /// When the owner was last rung.
    rung: Option<Instant>,
}

/// Carries `access` out at `offset` of a memory, or lets it wait for the grant. Without `op` its end is not reported.
pub(super) fn post(
    state: &mut LinkState<Remote>,
    options: &LinkOptions,
    memory: MemoryId,
    offset: u64,
    op: Option<u64>,
    access: &Access<'_>,
) {
    if let Entry::Vacant(unknown) = state.extension.memory.entry(memory) {
        unknown.insert(Import::Asked { waiting: Vec::new() });
        state.import(memory, options);
    }
    let LinkState { extension: remote, events, .. } = state;
    if let Some(Import::Granted(granted)) = remote.memory.get(&memory)
        && !granted.admits(offset, access.len())
    {
        events.extend(op.map(|op| LinkEvent::Refused { op }));
        return;
    }
    if let Err(reason) = remote.add(memory, offset, op, access, events) {
        return state.fail(reason);
    } else if remote.waiting_bytes > options.out_buffer_bytes {
        return state.fail(format!("it does not take what is written: over {} bytes wait", options.out_buffer_bytes));
    }
    ring_if_needed(state, options);
}

/// Takes the ends of operations of the connection with this number, or its failure. Ends of an earlier connection are
/// dropped. Delivers nothing itself.
pub(super) fn take_ends(state: &mut LinkState<Remote>, options: &LinkOptions, connection: u32, ends: &[End]) {
    if state.extension.connection != connection {
        return;
    }
    let LinkState { extension, events, .. } = state;
    let taken = ends.iter().try_for_each(|end| extension.take_end(end, events));
    match taken.and_then(|()| extension.start(events)) {
        Ok(()) => ring_if_needed(state, options),
        Err(reason) => state.fail(reason),
    }
}

/// Starts operations that could not be started before.
pub(super) fn start_again(state: &mut LinkState<Remote>) {
    if let Err(reason) = state.extension.start(&mut state.events) {
        state.fail(reason);
    }
}

/// Rings an owner whose provider does not report incoming data, if there are operations.
fn ring_if_needed(state: &mut LinkState<Remote>, options: &LinkOptions) {
    let remote = &mut state.extension;
    let rang = |at: Instant| at.elapsed() < RING_PAUSE;
    if remote.context.device.tells_when_ready() || remote.operations.is_empty() || remote.rung.is_some_and(rang) {
        return;
    }
    remote.rung = Some(Instant::now());
    tell_moved(state, options);
}

/// Reports moved bytes to the owner.
fn tell_moved(state: &mut LinkState<Remote>, options: &LinkOptions) {
    let (written, read) = std::mem::take(&mut state.extension.moved);
    state.note(Request::Moved { written, read }, options);
}

impl Remote {
    /// Stores an operation, and starts as much of it as possible.
    fn add(
        &mut self,
        memory: MemoryId,
        offset: u64,
        op: Option<u64>,
        access: &Access<'_>,
        events: &mut VecDeque<LinkEvent>,
    ) -> Result<(), String> {
        if self.operations.is_empty() {
            self.last_sign = Instant::now();
        }
        let number = self.next_operation;
        self.next_operation += 1;
        let len = access.len();
        let (bytes, payload) = match access {
            Access::Write(bytes) => (*bytes, Payload::Write { kept: Vec::new(), from: 0 }),
            Access::Read(_) => (&[][..], Payload::Read(vec![0; len])),
        };
        self.operations.insert(number, Operation { memory, offset, op, len, started: 0, ended: 0, payload });
        match self.memory.get_mut(&memory) {
            Some(Import::Asked { waiting, .. }) => {
                waiting.push(number);
                self.keep(number, bytes);
            }
            Some(Import::Granted(granted)) => {
                granted.unfinished += 1;
                // It waits for operations that are queued before it.
                if self.queue.is_empty() {
                    self.start_parts(number, bytes)?;
                }
                if self.operations[&number].started < len {
                    self.keep(number, bytes);
                    self.queue.push_back(number);
                }
                if len == 0 {
                    self.place(number);
                    self.start(events)?;
                }
            }
            None => unreachable!("it was asked for before"),
        }
        self.wake_if_needed();
        Ok(())
    }

    /// Wakes the progress thread if it would not run soon enough.
    fn wake_if_needed(&self) {
        if self.waits() || !self.context.device.tells_when_ready() {
            self.context.device.wake();
        }
    }

    /// Keeps the part of a write of `bytes` that could not be started yet.
    fn keep(&mut self, number: u64, bytes: &[u8]) {
        let operation = self.operations.get_mut(&number).expect("it has not ended");
        if let Payload::Write { kept, from } = &mut operation.payload {
            (*kept, *from) = (bytes[operation.started..].to_vec(), operation.started);
            self.waiting_bytes += kept.len();
        }
    }

    /// Whether something could not be started yet.
    pub(super) fn waits(&self) -> bool {
        matches!(self.way, OwnerEndpoint::Open(_)) && (!self.queue.is_empty() || !self.to_look.is_empty())
    }

    /// Starts looks, then parts, as far as there is room. Operations that were not begun before their memory was seen
    /// to be revoked are refused.
    fn start(&mut self, events: &mut VecDeque<LinkEvent>) -> Result<(), String> {
        // In turn, so that none starves. If one fails, the others stay in the list.
        for _ in 0..self.to_look.len() {
            let memory = self.to_look[0];
            if !self.look(memory)? {
                break;
            }
            self.to_look.remove(0);
        }
        while let Some(number) = self.queue.front().copied() {
            let Operation { memory, started: before, .. } = self.operations[&number];
            if before == 0 && self.granted(memory).revoked {
                self.queue.pop_front();
                self.granted(memory).unfinished -= 1;
                self.refuse(number, events);
                continue;
            }
            let operation = self.operations.get_mut(&number).expect("it has not ended");
            let (bytes, from) = match &mut operation.payload {
                Payload::Write { kept, from } => (std::mem::take(kept), *from),
                Payload::Read(_) => (Vec::new(), 0),
            };
            let started = self.start_parts(number, bytes.get(before - from..).unwrap_or_default());
            let operation = self.operations.get_mut(&number).expect("it has not ended");
            let is_started = operation.started == operation.len;
            if let Payload::Write { kept, .. } = &mut operation.payload {
                *kept = if is_started { Vec::new() } else { bytes };
                self.waiting_bytes -= operation.started - before;
            }
            started?;
            if !is_started {
                return Ok(());
            }
            self.queue.pop_front();
        }
        Ok(())
    }

    /// Starts parts of an operation as far as there is room. `bytes` are the bytes of a write that are not started yet.
    fn start_parts(&mut self, number: u64, bytes: &[u8]) -> Result<(), String> {
        if !matches!(self.way, OwnerEndpoint::Open(_)) {
            return Ok(());
        }
        let most = PART_BYTES.min(self.context.device.max_transfer());
        let before = self.operations[&number].started;
        loop {
            let operation = &self.operations[&number];
            let (at, len) = (operation.started, (operation.len - operation.started).min(most));
            if len == 0 || self.started.len() >= MAX_PARTS {
                return Ok(());
            }
            let Some(part) = self.ring.take(len) else { return Ok(()) };
            let direction = match operation.payload {
                Payload::Write { .. } => Direction::Write,
                Payload::Read(_) => Direction::Read,
            };
            let (memory, offset) = (operation.memory, HEADER as u64 + operation.offset + at as u64);
            if direction == Direction::Write {
                words::copy_in(self.staging(), part.range.start, &bytes[at - before..][..len]);
            }
            if !self.transfer(direction, memory, offset, Started::Part { operation: number, at, part })? {
                return Ok(());
            }
            self.operations.get_mut(&number).expect("it has not ended").started += len;
        }
    }

    /// Starts a look for every placed operation on `memory`. Returns false if it cannot be started now.
    fn look(&mut self, memory: MemoryId) -> Result<bool, String> {
        if !matches!(self.way, OwnerEndpoint::Open(_)) {
            return Ok(false);
        }
        let Some(part) = self.ring.take(WORD) else { return Ok(false) };
        // Old bytes must not be taken for an answer.
        words::store(self.staging(), part.range.start, u64::MAX);
        let operations = std::mem::take(&mut self.granted(memory).placed);
        let look = Started::Look { memory, operations, part };
        let looking = self.transfer(Direction::Read, memory, 0, look)?;
        self.granted(memory).looking = looking;
        Ok(looking)
    }

    /// Starts a transfer, `offset` bytes from the beginning of a memory's file. Returns false, and changes nothing, if
    /// the provider does not accept it now.
    fn transfer(
        &mut self,
        direction: Direction,
        memory: MemoryId,
        offset: u64,
        started: Started,
    ) -> Result<bool, String> {
        let (key, base) = {
            let granted = self.granted(memory);
            (granted.key, granted.base)
        };
        let token = u64::from(self.next_started);
        let near = match &started {
            Started::Part { part, .. } | Started::Look { part, .. } => part.range.clone(),
        };
        let taken = self.initiator().transfer(direction, near, (base.wrapping_add(offset), key), token);
        if matches!(taken, Ok(true)) {
            self.last_sign = Instant::now();
            self.started.insert(self.next_started, started);
            self.next_started = self.next_started.wrapping_add(1);
            return Ok(true);
        }
        match started {
            Started::Part { part, .. } => self.ring.give_back(&part),
            Started::Look { operations, part, .. } => {
                self.ring.give_back(&part);
                self.granted(memory).placed = operations;
            }
        }
        taken.map_err(|error| error.to_string())
    }

    /// Takes the end of a transfer, by its token, or the failure of the connection.
    fn take_end(&mut self, end: &End, events: &mut VecDeque<LinkEvent>) -> Result<(), String> {
        let token = end.result.clone()?;
        let started = u32::try_from(token).ok().and_then(|token| self.started.remove(&token));
        let started = started.ok_or_else(|| format!("the provider has ended what was not started: {token}"))?;
        self.last_sign = Instant::now();
        match started {
            Started::Part { operation: number, at, part } => {
                let len = part.range.len();
                let operation = self.operations.get_mut(&number).expect("it has a part that had not ended");
                match &mut operation.payload {
                    Payload::Write { .. } => {
                        self.moved.0 += len as u64;
                        self.context.counters.add_sent(len);
                    }
                    Payload::Read(bytes) => {
                        let staging = self.way.initiator().staging().words();
                        words::copy_out(staging, part.range.start, &mut bytes[at..at + len]);
                        self.moved.1 += len as u64;
                        self.context.counters.add_received(len);
                    }
                }
                operation.ended += len;
                let is_placed = operation.ended == operation.len;
                self.ring.give_back(&part);
                if is_placed {
                    self.place(number);
                }
            }
            Started::Look { memory, operations, part } => {
                let revoked = words::load(self.staging(), part.range.start) != 0;
                self.ring.give_back(&part);
                let granted = self.granted(memory);
                granted.looking = false;
                granted.revoked |= revoked;
                granted.unfinished -= operations.len();
                if !granted.placed.is_empty() {
                    self.to_look.push(memory);
                }
                for number in operations {
                    let operation = self.operations.remove(&number).expect("it ends here");
                    events.extend(operation.event(revoked));
                }
            }
        }
        Ok(())
    }

    /// Refuses an operation of which nothing was started.
    fn refuse(&mut self, number: u64, events: &mut VecDeque<LinkEvent>) {
        let operation = self.operations.remove(&number).expect("it waits");
        if let Payload::Write { kept, .. } = &operation.payload {
            self.waiting_bytes -= kept.len();
        }
        events.extend(operation.event(true));
    }

    /// Notes that all bytes of an operation are placed: it waits for a look.
    fn place(&mut self, number: u64) {
        let memory = self.operations[&number].memory;
        let granted = self.granted(memory);
        granted.placed.push(number);
        if !granted.looking && granted.placed.len() == 1 {
            self.to_look.push(memory);
        }
    }

    fn granted(&mut self, memory: MemoryId) -> &mut Granted {
        match self.memory.get_mut(&memory) {
            Some(Import::Granted(granted)) => granted,
            _ => unreachable!("a memory with operations under way was granted and is kept"),
        }
    }

    fn initiator(&self) -> &Initiator {
        self.way.initiator()
    }

    fn staging(&self) -> &[AtomicU64] {
        self.initiator().staging().words()
    }
}

impl OwnerEndpoint {
    fn initiator(&self) -> &Initiator {
        match self {
            OwnerEndpoint::Open(initiator) => initiator,
            _ => unreachable!("nothing is started before the endpoint is open"),
        }
    }
}

impl Access<'_> {
    fn len(&self) -> usize {
        match self {
            Access::Write(bytes) => bytes.len(),
            Access::Read(len) => *len as usize,
        }
    }
}

impl Granted {
    /// Whether the range is within the memory, and the memory is not revoked. The length in a descriptor is not
    /// trusted.
    fn admits(&self, offset: u64, len: usize) -> bool {
        !self.revoked && usize::try_from(self.len).is_ok_and(|all| words::within(offset, len as u64, all))
    }
}

impl Operation {
    /// The event of its end.
    fn event(self, revoked: bool) -> Option<LinkEvent> {
        let op = self.op?;
        Some(match self.payload {
            _ if revoked => LinkEvent::Refused { op },
            Payload::Write { .. } => LinkEvent::Completed { op },
            Payload::Read(bytes) => LinkEvent::ReadDone { op, bytes },
        })
    }
}

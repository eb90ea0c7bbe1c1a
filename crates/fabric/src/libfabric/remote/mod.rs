//! A link's view of its peer's memory: what was granted, which operations are under way, and what they end with.
//!
//! The first operation on a memory asks its owner for a grant, over the control channel; operations posted until it comes
//! wait. From then on the bytes go through libfabric, in parts, each from or to the link's staging memory.
//!
//! # When an operation is complete
//! A provider's completion says that the bytes are placed. It does not say that the owner still wants them: to close a
//! registration does not stop what is under way, and some providers keep it in a cache. So an operation ends with a *look*: a
//! read of the word by which the owner says that the memory is revoked, started after the completion of the last part. The owner
//! raises the word before it takes its copy; if the look does not see it raised, the copy was taken later, and has the bytes. One
//! look serves all operations on a memory that came to it meanwhile. On a network card the look is also what brings the bytes
//! before it out of the bus and into memory.
//!
//! # When the owner looks
//! Some providers do not report when something has come in (`Device::tells_when_ready`), so that an idle owner looks now and then
//! only. The link rings such an owner, over the connection, when it has something to do, and from time to time while it has.
//!
//! Lives and dies with one connection, under its link's lock, which is taken before the device's. [`session`] is how it begins
//! and ends.

mod session;

use super::{
    Context,
    device::End,
    endpoint::{Direction, Initiator},
    ring::{Part, Ring},
};
use crate::{
    LinkEvent, LinkOptions, PeerId,
    shm::memory::HEADER,
    stream::{frame::Request, link::LinkState},
    words::{self, WORD},
};
use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

/// Most bytes that one part of an operation has.
const PART_BYTES: usize = 256 << 10;
/// Most parts under way on one link.
const MAX_PARTS: usize = 512;
/// How often the owner is rung while there are operations: before its attention fades (`progress`).
const RING_PAUSE: Duration = Duration::from_millis(5);

/// Id and key of a memory.
pub(super) type MemoryId = (u64, u64);

/// An operation on a peer's memory.
pub(super) enum Access<'a> {
    /// Writes these bytes.
    Write(&'a [u8]),
    /// Reads this many bytes.
    Read(u32),
}

/// One that has not ended.
struct Operation {
    memory: MemoryId,
    offset: u64,
    /// Number given by the caller that posted it; `None`: its end is not reported.
    op: Option<u64>,
    len: usize,
    /// Bytes whose parts were started, and whose parts have ended.
    started: usize,
    ended: usize,
    payload: Payload,
}

enum Payload {
    /// The end of what is written, from this offset in it: the part that was not started at once.
    Write { kept: Vec<u8>, from: usize },
    /// What was read.
    Read(Vec<u8>),
}

/// What the provider was given to do.
enum Started {
    /// A part of an operation, this far from its beginning.
    Part { operation: u64, at: usize, part: Part },
    /// A look at whether the memory is revoked, for these operations.
    Look { memory: MemoryId, operations: Vec<u64>, part: Part },
}

enum Import {
    /// Its owner was asked; these operations wait.
    Asked {
        waiting: Vec<u64>,
    },
    Granted(Granted),
}

struct Granted {
    key: u64,
    base: u64,
    /// Bytes of the memory, as its owner says.
    len: u64,
    /// Operations that have not ended.
    unfinished: usize,
    /// Those whose bytes are placed, and that wait for a look.
    placed: Vec<u64>,
    looking: bool,
    /// Seen to be, or told by its owner.
    revoked: bool,
}

/// How the owner's endpoint is reached.
enum Way {
    /// It has not told.
    Unknown,
    /// It is there. The link's thread is to open an endpoint towards it.
    Told(Vec<u8>),
    /// The link's thread does so.
    Opening,
    Open(Initiator),
}

/// The memory of one peer, over one connection.
pub(super) struct Remote {
    context: Arc<Context>,
    peer: PeerId,
    /// Number of this connection in this process, by which what ends finds it; 0 until an endpoint is open.
    connection: u32,
    way: Way,
    ring: Ring,
    memory: HashMap<MemoryId, Import>,
    operations: HashMap<u64, Operation>,
    next_operation: u64,
    /// Operations with parts to start, in order.
    queue: VecDeque<u64>,
    /// Memories with operations that wait for a look, and no look under way.
    to_look: Vec<MemoryId>,
    /// Bytes of writes that were not started.
    waiting_bytes: usize,
    started: HashMap<u32, Started>,
    next_started: u32,
    /// Bytes written and read of which the owner was not told.
    moved: (u64, u64),
    /// When there was last nothing to wait for, or the provider took or ended something.
    last_sign: Instant,
    /// When the owner was rung.
    rung: Option<Instant>,
}

/// Carries `access` out at `offset` of a memory, or has it wait for the grant. Without a number its end is not reported.
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
        state.import(memory.0, memory.1, options);
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

/// Takes what has ended of the connection with this number; delivers nothing itself. What comes too late for its connection is
/// dropped.
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

/// Starts what could not be started before.
pub(super) fn start_again(state: &mut LinkState<Remote>) {
    if let Err(reason) = state.extension.start(&mut state.events) {
        state.fail(reason);
    }
}

/// Tells an owner that hears of nothing by itself that there is something to do.
fn ring_if_needed(state: &mut LinkState<Remote>, options: &LinkOptions) {
    let remote = &mut state.extension;
    let rang = |at: Instant| at.elapsed() < RING_PAUSE;
    if remote.context.device.tells_when_ready() || remote.operations.is_empty() || remote.rung.is_some_and(rang) {
        return;
    }
    remote.rung = Some(Instant::now());
    tell_moved(state, options);
}

/// Tells the owner what was moved of which it was not told.
fn tell_moved(state: &mut LinkState<Remote>, options: &LinkOptions) {
    let (written, read) = std::mem::take(&mut state.extension.moved);
    state.note(Request::Moved { written, read }, options);
}

impl Remote {
    /// Stores an operation, and starts what can be of it.
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
                // Behind others it waits its turn.
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

    /// Has progress made at once where it would not be in time.
    fn wake_if_needed(&self) {
        if self.waits() || !self.context.device.tells_when_ready() {
            self.context.device.wake();
        }
    }

    /// Keeps what of a write of `bytes` could not be started yet.
    fn keep(&mut self, number: u64, bytes: &[u8]) {
        let operation = self.operations.get_mut(&number).expect("it has not ended");
        if let Payload::Write { kept, from } = &mut operation.payload {
            (*kept, *from) = (bytes[operation.started..].to_vec(), operation.started);
            self.waiting_bytes += kept.len();
        }
    }

    /// Whether something is to be started that could not be.
    pub(super) fn waits(&self) -> bool {
        matches!(self.way, Way::Open(_)) && (!self.queue.is_empty() || !self.to_look.is_empty())
    }

    /// Starts looks, then parts, as far as there is room. What was not begun when its memory turned out to be revoked is refused.
    fn start(&mut self, events: &mut VecDeque<LinkEvent>) -> Result<(), String> {
        // In turn, so that none waits for ever; and none is forgotten if one fails.
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

    /// Starts parts of an operation as far as there is room; `bytes` are those of a write that were not started.
    fn start_parts(&mut self, number: u64, bytes: &[u8]) -> Result<(), String> {
        if !matches!(self.way, Way::Open(_)) {
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

    /// Starts a look for every operation on `memory` that is placed. False: not now.
    fn look(&mut self, memory: MemoryId) -> Result<bool, String> {
        if !matches!(self.way, Way::Open(_)) {
            return Ok(false);
        }
        let Some(part) = self.ring.take(WORD) else { return Ok(false) };
        // What was there before must not pass for an answer.
        words::store(self.staging(), part.range.start, u64::MAX);
        let operations = std::mem::take(&mut self.granted(memory).placed);
        let look = Started::Look { memory, operations, part };
        let looking = self.transfer(Direction::Read, memory, 0, look)?;
        self.granted(memory).looking = looking;
        Ok(looking)
    }

    /// Gives the provider something to do, `offset` bytes from the beginning of a memory's file. False, and all as before: not
    /// now.
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

    /// Takes the end of what was started with its token, or of the connection.
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

    /// Ends an operation of which nothing was started.
    fn refuse(&mut self, number: u64, events: &mut VecDeque<LinkEvent>) {
        let operation = self.operations.remove(&number).expect("it waits");
        if let Payload::Write { kept, .. } = &operation.payload {
            self.waiting_bytes -= kept.len();
        }
        events.extend(operation.event(true));
    }

    /// All bytes of an operation are placed: it waits for a look.
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

impl Way {
    fn initiator(&self) -> &Initiator {
        match self {
            Way::Open(initiator) => initiator,
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
    /// Whether there is such a range, and it may be used. A descriptor may say of the length what it likes.
    fn admits(&self, offset: u64, len: usize) -> bool {
        !self.revoked && usize::try_from(self.len).is_ok_and(|all| words::within(offset, len as u64, all))
    }
}

impl Operation {
    /// What tells of its end.
    fn event(self, revoked: bool) -> Option<LinkEvent> {
        let op = self.op?;
        Some(match self.payload {
            _ if revoked => LinkEvent::Refused { op },
            Payload::Write { .. } => LinkEvent::Completed { op },
            Payload::Read(bytes) => LinkEvent::ReadDone { op, bytes },
        })
    }
}

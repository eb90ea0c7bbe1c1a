//! An outgoing link: posts from any thread, and the order in which its events are delivered.
//!
//! Posts go into one buffer, in order, under the link's lock. [`Link::flush`] passes them to the kernel without
//! blocking, and the link's thread (`pump`) sends the rest. While the link is not up, posts are dropped. If the buffer
//! exceeds its limit, because the peer does not drain it, the link fails.
//!
//! Events are queued under the same lock and delivered outside of it, by one thread at a time; other threads leave
//! their events to it. So events of a link have one order, and a sink may post.
//!
//! Urgent messages have a link of their own beside the peer's, which nobody hears of: [`Link::urgent`].

use super::{
    LinkOptions,
    flights::{Extension, Flight, Flights},
    frame::{RemotePlace, Request},
    hello::Connection,
    socket::{Network, Socket, Waker},
};
use crate::{
    LinkEvent, MAX_MESSAGE_BYTES, PeerId, Sink,
    memory::{Counters, MemoryId},
};
use leeward_security::tls::NodeTls;
use parking_lot::{Mutex, MutexGuard};
use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Posts are passed to the kernel before a flush once there are this many bytes of them.
const EARLY_PUSH: usize = 256 << 10;

/// The state that all links of one fabric share.
pub(crate) struct LinksInCommon {
    /// This process.
    pub(crate) me: PeerId,
    pub(crate) network: Network,
    /// How memory is reached, for the hello.
    pub(crate) reach: u32,
    pub(crate) options: LinkOptions,
    pub(crate) sink: Sink,
    pub(crate) counters: Arc<Counters>,
}

impl LinksInCommon {
    /// The certificates for connections that must be encrypted. Over a Unix-domain socket the system says who the peer is,
    /// and descriptors are passed.
    pub(crate) fn tls(&self) -> Option<&NodeTls> {
        self.options.tls.as_deref().filter(|_| self.network == Network::Tcp)
    }
}

/// The status of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    /// Not connected; its thread tries to connect.
    Connecting,
    /// Takes posts.
    Up,
    /// Its thread will take it down, for this reason.
    Failed(String),
    /// Given up; its thread ends.
    Closed,
}

/// The part of a link under its lock.
pub(crate) struct LinkState<X> {
    pub(crate) status: Status,
    pub(crate) address: String,
    socket: Option<Arc<Socket>>,
    out: OutBuffer,
    /// The kernel's buffer is full: the link's thread waits until the socket is writable.
    blocked: bool,
    pub(crate) flights: Flights,
    pub(crate) events: VecDeque<LinkEvent>,
    delivering: bool,
    /// The transport's part of this connection.
    pub(crate) extension: X,
}

/// An outgoing link to one peer.
pub(crate) struct Link<X: Extension> {
    pub(crate) peer: PeerId,
    pub(crate) shared: Arc<LinksInCommon>,
    pub(crate) connection: Connection,
    context: Arc<X::Context>,
    pub(crate) waker: Waker,
    state: Mutex<LinkState<X>>,
    /// Something was posted since the last flush.
    dirty: AtomicBool,
}

impl<X: Extension> Link<X> {
    /// A link to `peer` that is not being connected yet.
    pub(crate) fn new(
        shared: Arc<LinksInCommon>,
        context: Arc<X::Context>,
        peer: PeerId,
        address: &str,
    ) -> io::Result<Link<X>> {
        let state = LinkState {
            status: Status::Connecting,
            address: address.into(),
            socket: None,
            out: OutBuffer::default(),
            blocked: false,
            flights: Flights::default(),
            events: VecDeque::new(),
            delivering: false,
            extension: X::new(&context, peer),
        };
        let (state, dirty) = (Mutex::new(state), AtomicBool::new(false));
        Ok(Link { peer, shared, connection: Connection::Link, context, waker: Waker::new()?, state, dirty })
    }

    /// The state, whatever the status.
    pub(crate) fn state(&self) -> MutexGuard<'_, LinkState<X>> {
        self.state.lock()
    }

    /// Posts through `post`, if the link is up. Returns whether it is.
    pub(crate) fn post(&self, post: impl FnOnce(&mut LinkState<X>, &LinkOptions)) -> bool {
        let mut state = self.state.lock();
        if state.status != Status::Up {
            return false;
        }
        post(&mut state, &self.shared.options);
        if state.out.len() >= EARLY_PUSH {
            self.push(&mut state);
        }
        self.dirty.store(true, Ordering::Release);
        if matches!(state.status, Status::Failed(_)) {
            self.waker.wake();
        }
        true
    }

    /// Passes posts to the kernel, and delivers events.
    pub(crate) fn flush(&self) {
        if self.dirty.swap(false, Ordering::AcqRel) {
            self.push(&mut self.state.lock());
            self.deliver();
        }
    }

    /// Bytes of posts that the kernel has not accepted.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.state.lock().out.len()
    }

    /// Connects to another address from now on.
    pub(crate) fn redirect(&self, address: &str) {
        let mut state = self.state.lock();
        if state.address != address {
            state.address = address.into();
            state.fail("it was given another address".into());
            self.waker.wake();
        }
    }

    /// Ends the link: nothing more is delivered, and its thread ends.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.status = Status::Closed;
        state.events.clear();
        if let Some(socket) = &state.socket {
            socket.shutdown();
        }
        self.waker.wake();
    }

    /// The connection to `address` is made, and the peer has welcomed it. It is ignored if meanwhile the link was given
    /// up or got another address.
    pub(crate) fn up(&self, socket: &Arc<Socket>, address: &str) {
        let mut state = self.state.lock();
        if state.status == Status::Connecting && state.address == address {
            state.status = Status::Up;
            state.socket = Some(Arc::clone(socket));
            state.events.push_back(LinkEvent::Up);
        }
        drop(state);
        self.deliver();
    }

    /// The connection is over, with everything in flight.
    pub(crate) fn down(&self) {
        let mut state = self.state.lock();
        if let Some(socket) = state.socket.take() {
            socket.shutdown();
            state.events.push_back(LinkEvent::Down);
        }
        // The state below belongs to this connection. Mapped memory is unmapped outside of the lock.
        (state.out, state.flights, state.blocked) = (OutBuffer::default(), Flights::default(), false);
        let extension = std::mem::replace(&mut state.extension, X::new(&self.context, self.peer));
        if state.status != Status::Closed {
            state.status = Status::Connecting;
        }
        drop(state);
        drop(extension);
        self.deliver();
    }

    /// Sends as much as the kernel accepts. Errors fail the link.
    fn push(&self, state: &mut LinkState<X>) {
        if !state.blocked {
            self.send_out(state);
            if state.blocked || matches!(state.status, Status::Failed(_)) {
                self.waker.wake();
            }
        }
    }

    /// [`Link::push`] for the link's thread, which found the socket writable.
    pub(crate) fn resume(&self) {
        self.send_out(&mut self.state.lock());
    }

    /// Whether the link's thread must wait until the socket is writable.
    pub(crate) fn is_blocked(&self) -> bool {
        self.state.lock().blocked
    }

    fn send_out(&self, state: &mut LinkState<X>) {
        let Some(socket) = state.socket.clone() else { return };
        state.blocked = false;
        while !state.out.is_empty() {
            match socket.send(state.out.bytes()) {
                Ok(sent) => {
                    self.shared.counters.add_sent(sent);
                    state.out.consume(sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    state.blocked = true;
                    return;
                }
                Err(error) => return state.fail(format!("cannot send: {error}")),
            }
        }
        match socket.send_rest() {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => state.blocked = true,
            Err(error) => state.fail(format!("cannot send: {error}")),
        }
    }

    /// Delivers queued events, unless another thread is doing so, in which case it delivers these too.
    pub(crate) fn deliver(&self) {
        let mut state = self.state.lock();
        if state.delivering {
            return;
        }
        if self.connection == Connection::Urgent {
            // It may come and go while the link to the peer is up.
            return state.events.clear();
        }
        state.delivering = true;
        while let Some(event) = state.events.pop_front().filter(|_| state.status != Status::Closed) {
            MutexGuard::unlocked(&mut state, || (self.shared.sink)(self.peer, event));
        }
        state.delivering = false;
    }
}

impl Link<()> {
    /// The link of urgent messages to `peer`.
    pub(crate) fn urgent(shared: Arc<LinksInCommon>, peer: PeerId, address: &str) -> io::Result<Link<()>> {
        Ok(Link { connection: Connection::Urgent, ..Link::new(shared, Arc::default(), peer, address)? })
    }
}

impl<X: Extension> LinkState<X> {
    /// Marks the link as failed. Its thread will take it down.
    pub(crate) fn fail(&mut self, reason: String) {
        if self.status == Status::Up {
            self.status = Status::Failed(reason);
            if let Some(socket) = &self.socket {
                socket.shutdown();
            }
        }
    }

    /// Posts a control message.
    pub(crate) fn message(&mut self, message: &[u8], options: &LinkOptions) {
        assert!(message.len() <= MAX_MESSAGE_BYTES, "a control message has at most {MAX_MESSAGE_BYTES} bytes");
        self.append(Request::Message(message.len() as u32), message, options);
    }

    /// Posts a write of less than 4 GiB.
    pub(crate) fn write(&mut self, place: RemotePlace, bytes: &[u8], op: u64, options: &LinkOptions) {
        let length = u32::try_from(bytes.len()).expect("the transport refuses longer writes");
        self.flights.push(Flight::Write { op });
        self.append(Request::Write(place, length), bytes, options);
    }

    /// Posts a read.
    pub(crate) fn read(&mut self, place: RemotePlace, len: u32, op: u64, options: &LinkOptions) {
        self.flights.push(Flight::Read { op, want: len as usize, bytes: Vec::new() });
        self.append(Request::Read(place, len), &[], options);
    }

    /// Posts a request that is only acknowledged.
    pub(crate) fn note(&mut self, request: Request, options: &LinkOptions) {
        self.flights.push(Flight::Note);
        self.append(request, &[], options);
    }

    /// Posts a ping.
    pub(crate) fn ping(&mut self, options: &LinkOptions) {
        self.note(Request::Ping, options);
    }

    /// Asks how a memory is reached.
    pub(crate) fn import(&mut self, memory: MemoryId, options: &LinkOptions) {
        self.flights.push(Flight::Import { memory, bytes: Vec::new() });
        self.append(Request::Import(memory), &[], options);
    }

    fn append(&mut self, request: Request, payload: &[u8], options: &LinkOptions) {
        let limit = options.out_buffer_bytes;
        if self.out.len() + payload.len() > limit {
            return self.fail(format!("it does not take what is sent: over {limit} bytes wait"));
        }
        request.encode(&mut self.out.bytes);
        self.out.bytes.extend_from_slice(payload);
    }
}

/// Bytes posted and not sent.
#[derive(Default)]
struct OutBuffer {
    bytes: Vec<u8>,
    sent: usize,
}

/// A drained buffer that has grown beyond this is shrunk.
const KEEP_BYTES: usize = 4 << 20;

impl OutBuffer {
    fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }
    fn consume(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.is_empty() {
            self.bytes.clear();
            self.bytes.shrink_to(KEEP_BYTES);
            self.sent = 0;
        } else if self.sent >= self.bytes.len() / 2 && self.sent >= EARLY_PUSH {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

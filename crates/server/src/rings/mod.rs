//! Request and reply rings over the fabric, the server's side (Tebis 3.4, Anthus 3.4).
//!
//! ```text
//!   client's process                                        server's process
//!   +--------------------------+   requests, one-sided    +---------------------------+
//!   | takes place in both rings| -----------------------> | request ring  | sleep no. |  polled by the event loop
//!   | polls its reply slots    |   replies, one-sided     |                           |
//!   |  reply ring    | awake   | <----------------------- |  slot chosen by client    |
//!   +--------------------------+                          +---------------------------+
//!            '---------------- TCP connection: hello, handshake, bells ------'
//! ```
//! **Memory.** The request ring is in the server's memory, the reply ring in the client's. The client tracks the space
//! of both, so the server neither allocates nor synchronises. Rings belong to a connection to the native port. Over it
//! the client asks for rings, learns their fabric and its own peer number there, and passes its descriptor. The rings
//! end with the connection, and the connection ends when a link of the fabric goes down. So the rings of a client that
//! dies are freed, whichever breaks first. Their memory is deregistered then, and the random key of its descriptor is
//! never valid again.
//!
//! **One remote write per message, one per answer.** No flag follows: [`leeward_format::ring`] says why a message is
//! taken only when all of its bytes are there. A write is never posted over bytes of an earlier write that is not
//! completed, since those may land late. An answer into such a place waits.
//!
//! **Answers that do not fit.** The client guesses the size of the slot. The server keeps a larger answer and sends its
//! size, and the client fetches it into another slot. The operation is not executed again. An answer that no slot
//! can hold, or that there is no room to keep, goes over the connection.
//!
//! **Sleep.** A word at the end of the client's reply ring says whether the server is awake. If it is not, the client
//! sends [`Request::RingBell`](leeward_format::op::Request::RingBell) after a message. Before it sleeps, the server
//! writes that word, waits for the completion, and looks once more ([`Effect::Look`]). A client writes a new number
//! behind the request ring, waits for the completion, and looks once more. After an answer was completed, the server
//! looks for a number that it has not rung for. Either way the side that comes second sees the other.
//!
//! **Trust.** Clients are not trusted. The server copies what a client writes before it examines it, and checks lengths
//! and places against the rings. Bytes that no correct client writes end the connection. A client can stop its own
//! ring, but no other: its number on the fabric cannot be guessed and admits one connection, and control messages are
//! not accepted. The memory that it makes the server hold is bounded, counts in the budget, and is freed with its
//! connection when it makes no progress.
//!
//! Belongs to the event loop's thread; only [`Mailbox`] is touched by the fabric's. No clock, thread or socket: tests drive it
//! over a simulated fabric.

mod answers;
mod mailbox;
mod ring;
#[cfg(test)]
mod tests;

pub use mailbox::Mailbox;
pub use ring::{Received, ReplyPath};

use bytes::Bytes;
use leeward_engine::Reservation;
use leeward_fabric::{Descriptor, Fabric, LinkEvent, PeerId};
use leeward_format::frame::DecodeError;
use leeward_format::op::Reply;
use leeward_format::ring::{CLIENT_ADDRESS, CONTROL_BYTES, MIN_RING_BYTES, UNIT_BYTES};
use leeward_platform::{Nanos, Rng};
use ring::{Keys, Ring};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Clients' numbers on the fabric have this bit, which no server's has. The rest of them is random.
const CLIENT_BIT: u32 = 1 << 31;
/// Answers that clients do not have yet are counted in steps of this many bytes, not each time.
const COUNTED_BYTES: usize = 64 << 10;
/// How long both sides may take until they have their links.
const OPENING: Nanos = Nanos::from_secs(10);
/// Longest address and descriptor that a client may give, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// A request of a client about rings, over its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Which rings there are.
    Offer,
    /// To get rings: see [`leeward_format::op::Request::RingOpen`].
    Open {
        /// Where its fabric listens.
        address: String,
        /// Bytes of the request ring.
        request_bytes: u32,
        /// Bytes of the reply ring.
        reply_bytes: u32,
        /// Descriptor of the reply ring.
        reply: Bytes,
    },
}

/// Work for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send this over its stream.
    Tell(u64, Reply),
    /// Look into its ring.
    Look(u64),
    /// All answers to its client have arrived, after [`Rings::is_answering`] said that some were on their way.
    Quiet(u64),
    /// Its rings can no longer be used: end it.
    Lost(u64),
}

/// Limits on the rings of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLimits {
    /// Most clients.
    pub clients: usize,
    /// Most bytes of one request ring, and of one reply ring. The latter bounds the answers that are under way to it.
    pub each_bytes: usize,
    /// Most bytes of all request rings.
    pub total_bytes: usize,
}

/// The fabric of the rings.
pub struct RingFabric {
    /// Its registered memory holds the request rings.
    pub fabric: Arc<dyn Fabric>,
    /// Its name in the handshake: `shm`, `tcp`, `libfabric:` with a provider.
    pub name: String,
    /// Where clients find it.
    pub address: String,
    /// This node's number on it.
    pub node: PeerId,
}

/// The rings of all clients of a node.
pub struct Rings {
    fabric: Arc<dyn Fabric>,
    name: String,
    address: String,
    node: PeerId,
    mailbox: Arc<Mailbox>,
    limits: RingLimits,
    reservation: Reservation,
    taken_bytes: usize,
    /// Bytes of answers that clients do not have yet.
    held_bytes: usize,
    keys: Rng,
    /// By connection. Ordered, so that equal events lead to equal effects.
    offered: BTreeMap<u64, PeerId>,
    rings: BTreeMap<u64, Ring>,
    connection_of: FxHashMap<PeerId, u64>,
    /// Something was posted and not flushed yet.
    is_posted: bool,
}

/// Why a client gets no ring, for its operator.
type Refusal = String;

impl Rings {
    /// No rings yet. Events of `on` come by `mailbox`, `reservation` counts their memory, `keys` makes their secrets.
    pub fn new(
        on: RingFabric,
        mailbox: Arc<Mailbox>,
        limits: RingLimits,
        reservation: Reservation,
        keys: Rng,
    ) -> Rings {
        let RingFabric { fabric, name, address, node } = on;
        Rings {
            fabric,
            name,
            address,
            node,
            mailbox,
            limits,
            reservation,
            taken_bytes: 0,
            held_bytes: 0,
            keys,
            offered: BTreeMap::new(),
            rings: BTreeMap::new(),
            connection_of: FxHashMap::default(),
            is_posted: false,
        }
    }

    /// The fabric, on which clients also read memory.
    pub fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::clone(&self.fabric)
    }

    /// Whether `connection` has a ring that can be used.
    pub fn is_open(&self, connection: u64) -> bool {
        self.rings.get(&connection).is_some_and(|ring| ring.is_open)
    }

    /// Connections with a message in their ring, which may be incomplete.
    pub fn waiting(&self) -> impl Iterator<Item = u64> {
        self.rings.iter().filter(|(_, ring)| ring.is_open && ring.has_something()).map(|(connection, _)| *connection)
    }

    /// The answer to a request about rings of `connection`, whose client comes from `from`; `None`: it comes later, as
    /// [`Effect::Tell`].
    pub fn ask(&mut self, connection: u64, from: IpAddr, ask: &Ask, now: Nanos) -> Option<Reply> {
        let answer = match ask {
            Ask::Offer => self.offer(connection).map(Some),
            Ask::Open { address, request_bytes, reply_bytes, reply } => {
                let sizes = (*request_bytes as usize, *reply_bytes as usize);
                self.open(connection, from, address, sizes, reply, now).map(|()| None)
            }
        };
        answer.unwrap_or_else(|reason| Some(Reply::RingRefused { reason }))
    }

    fn offer(&mut self, connection: u64) -> Result<Reply, Refusal> {
        if self.rings.contains_key(&connection) {
            return Err("this connection has a ring".into());
        }
        let client = match self.offered.get(&connection) {
            Some(client) => *client,
            None => self.new_client(connection)?,
        };
        Ok(Reply::RingOffer {
            fabric: self.name.clone(),
            node: self.node.0,
            client: client.0,
            address: self.address.clone(),
            most_bytes: self.limits.each_bytes as u32,
        })
    }

    /// A number on the fabric for the client of `connection`, under which the fabric admits it.
    fn new_client(&mut self, connection: u64) -> Result<PeerId, Refusal> {
        let most = self.limits.clients;
        if self.connection_of.len() >= most {
            return Err(format!(
                "{most} clients have rings, and no more can: connect over TCP (leeward://), or raise the limit on open files (ulimit -Hn)"
            ));
        }
        let client = loop {
            let client = PeerId(self.keys.u64() as u32 | CLIENT_BIT);
            if !self.connection_of.contains_key(&client) {
                break client;
            }
        };
        self.offered.insert(connection, client);
        self.connection_of.insert(client, connection);
        self.fabric.admit(client);
        Ok(client)
    }

    fn open(
        &mut self,
        connection: u64,
        from: IpAddr,
        address: &str,
        (request_bytes, reply_bytes): (usize, usize),
        reply: &Bytes,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let peer = self.offered.get(&connection).copied().ok_or("no ring was offered")?;
        check_size("request ring", request_bytes, self.limits.each_bytes)?;
        check_size("reply ring", reply_bytes, self.limits.each_bytes)?;
        if self.taken_bytes + request_bytes > self.limits.total_bytes {
            let (taken, total) = (self.taken_bytes, self.limits.total_bytes);
            return Err(format!(
                "request rings have {taken} of {total} bytes, an eighth of memory_budget, and this one needs {request_bytes}: \
                 connect over TCP (leeward://), ask for less, or raise memory_budget"
            ));
        }
        let address = self.address_of(address, from)?;
        if reply.len() > MAX_NAME_BYTES {
            return Err("a descriptor that is none".into());
        }
        let memory = self.fabric.allocate(request_bytes + CONTROL_BYTES);
        let memory = memory.map_err(|error| format!("the node has no memory for a ring: {error}"))?;
        self.offered.remove(&connection);
        self.taken_bytes += request_bytes;
        self.count();
        let keys = Keys { request: self.keys.u64(), reply: self.keys.u64() };
        let reply = (Descriptor(reply.to_vec()), reply_bytes);
        self.rings.insert(connection, Ring::new(peer, memory, request_bytes, reply, keys, now));
        self.fabric.connect(peer, &address);
        Ok(())
    }

    /// Where the fabric connects to a client that claims to listen at `address`: only to the host that the client comes from.
    /// Otherwise a client could make this node connect to other hosts.
    fn address_of(&self, address: &str, from: IpAddr) -> Result<String, Refusal> {
        if address.len() > MAX_NAME_BYTES {
            return Err("an address that is none".into());
        }
        if self.name == "shm" {
            return if address.starts_with(CLIENT_ADDRESS) {
                Ok(address.into())
            } else {
                Err("not a client's address of shared memory".into())
            };
        }
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let port = port.ok_or("an address without a port")?;
        Ok(std::net::SocketAddr::new(from, port).to_string())
    }

    /// Takes up to `most` messages out of the ring of `connection`. Hands requests to `take`, which returns whether it
    /// takes more.
    ///
    /// # Errors
    /// The ring contains something that no correct client writes.
    pub fn receive(
        &mut self,
        connection: u64,
        most: usize,
        buffer: &mut Vec<u8>,
        take: impl FnMut(ReplyPath, &[u8]) -> bool,
    ) -> Result<Received, DecodeError> {
        let Some(ring) = self.rings.get_mut(&connection).filter(|ring| ring.is_open) else {
            return Ok(Received::default());
        };
        let before = ring.held_bytes();
        let received = ring.receive(&*self.fabric, most, buffer, take);
        let after = ring.held_bytes();
        self.hold(before, after);
        let received = received?;
        self.is_posted |= received.has_posted;
        Ok(received)
    }

    /// The answers that one client does not have yet took `before` bytes, and now take `after`.
    fn hold(&mut self, before: usize, after: usize) {
        let steps = self.held_bytes / COUNTED_BYTES;
        self.held_bytes = self.held_bytes - before + after;
        if self.held_bytes / COUNTED_BYTES != steps {
            self.count();
        }
    }

    fn count(&self) {
        self.reservation.set((self.taken_bytes + self.held_bytes / COUNTED_BYTES * COUNTED_BYTES) as u64);
    }

    /// Answers `reply_path` of `connection` with `frames`. Returns the frames if they must go over the stream.
    ///
    /// # Errors
    /// No client can have this reply path.
    pub fn answer(
        &mut self,
        connection: u64,
        reply_path: ReplyPath,
        frames: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, DecodeError> {
        let Some(ring) = self.rings.get_mut(&connection) else { return Ok(None) };
        self.is_posted = true;
        let before = ring.held_bytes();
        let answered = ring.answer(&*self.fabric, reply_path, frames);
        let after = ring.held_bytes();
        self.hold(before, after);
        answered
    }

    /// Whether answers are on their way to the client of `connection`. If so, [`Effect::Quiet`] comes when all have
    /// arrived, or [`Effect::Lost`].
    pub fn is_answering(&mut self, connection: u64) -> bool {
        self.rings.get_mut(&connection).is_some_and(Ring::is_answering)
    }

    /// Connections whose clients have taken none of their answers for `timeout`.
    pub fn stalled(&mut self, now: Nanos, timeout: Nanos) -> Vec<u64> {
        let stalled = self.rings.iter_mut().filter_map(|(id, ring)| ring.is_stalled(now, timeout).then_some(*id));
        stalled.collect()
    }

    /// Lets the client of `connection` know that it need not ring while this node is awake.
    pub fn stay_awake_for(&mut self, connection: u64) {
        if let Some(ring) = self.rings.get_mut(&connection) {
            self.is_posted |= ring.set_awake(&*self.fabric, true);
        }
    }

    /// Lets all clients know that they must ring. Messages that they wrote before they know come as [`Effect::Look`].
    pub fn fall_asleep(&mut self) {
        for ring in self.rings.values_mut() {
            self.is_posted |= ring.set_awake(&*self.fabric, false);
        }
    }

    /// Flushes what was posted, and handles the events of the fabric. Repeats this only while an event makes it post
    /// more: events that come meanwhile wake the event loop again.
    pub fn settle(&mut self, effects: &mut Vec<Effect>) {
        loop {
            if std::mem::take(&mut self.is_posted) {
                self.mailbox.suppress_wake();
                self.fabric.flush();
            }
            for (peer, event) in self.mailbox.take() {
                self.hear(peer, event, effects);
            }
            if !self.is_posted {
                return;
            }
        }
    }

    fn hear(&mut self, peer: PeerId, event: LinkEvent, effects: &mut Vec<Effect>) {
        let Some(&connection) = self.connection_of.get(&peer) else { return };
        let Some(ring) = self.rings.get_mut(&connection) else { return };
        match event {
            LinkEvent::Up if !ring.is_open => effects.push(Effect::Tell(connection, ring.opened())),
            // A link that was lost may have lost answers.
            LinkEvent::Up | LinkEvent::Down | LinkEvent::Refused { .. } => effects.push(Effect::Lost(connection)),
            LinkEvent::Completed { op } => {
                let before = ring.held_bytes();
                self.is_posted |= ring.completed(&*self.fabric, op, connection, effects);
                let after = ring.held_bytes();
                self.hold(before, after);
            }
            // The mailbox takes none of these.
            LinkEvent::Message(_) | LinkEvent::ReadDone { .. } => {}
        }
    }

    /// Gives up rings that take too long to open.
    pub fn check_opening(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        let is_late = |ring: &Ring| !ring.is_open && now - ring.since > OPENING;
        let late: Vec<u64> = self.rings.iter().filter(|(_, ring)| is_late(ring)).map(|(id, _)| *id).collect();
        for connection in late {
            self.remove(connection);
            let reason = "the node's fabric cannot connect to the client".to_string();
            effects.push(Effect::Tell(connection, Reply::RingRefused { reason }));
        }
    }

    /// Frees the ring of `connection`, which has ended.
    pub fn remove(&mut self, connection: u64) {
        let offered = self.offered.remove(&connection);
        let ring = self.rings.remove(&connection);
        let Some(peer) = offered.or_else(|| ring.as_ref().map(|ring| ring.peer)) else { return };
        self.connection_of.remove(&peer);
        // Ends the link of the client, and half a write on it that may hold the ring's memory, which is dropped here.
        self.fabric.disconnect(peer);
        if let Some(ring) = ring {
            self.taken_bytes -= ring.request_bytes();
            self.held_bytes -= ring.held_bytes();
            self.count();
        }
    }

    /// Clients with a ring, and bytes of their request rings.
    pub fn figures(&self) -> (usize, usize) {
        (self.rings.len(), self.taken_bytes)
    }
}

fn check_size(what: &str, bytes: usize, most: usize) -> Result<(), Refusal> {
    let is_whole = bytes.is_multiple_of(2 * UNIT_BYTES);
    match (MIN_RING_BYTES..=most).contains(&bytes) && is_whole {
        true => Ok(()),
        false => Err(format!(
            "a {what} of {bytes} bytes: it must have from {MIN_RING_BYTES} to {most}, a multiple of {}",
            2 * UNIT_BYTES
        )),
    }
}

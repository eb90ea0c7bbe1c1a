//! Registered memory that a peer writes and reads without its owner's threads, and an ordered control channel.
//!
//! This file is the whole interface; the transports behind it are [`TcpFabric`] (a receiver thread stands in for the
//! NIC), [`ShmFabric`] (processes of one host, truly one-sided), [`LibfabricFabric`] (network cards, and what stands in for
//! them) and [`SimFabric`] (deterministic, for simulations).
//! The bytes mean nothing to this crate.
//!
//! # What every transport guarantees
//!
//! - **Completion.** [`LinkEvent::Completed`] means that the bytes are in the remote memory and visible to its owner's
//!   [`Memory::load_u64`] and [`Memory::read`]. No application thread of the owner took part.
//! - **No order** between two plain writes, between the bytes of one write, or between a write and a control message.
//!   Bytes become visible in any order, so a flag is a second write, posted after the first one's completion, and
//!   records carry checksums. One exception: an aligned 8-byte write is never seen half.
//! - **Control messages** of one link arrive in the order they were sent, each once, until the link goes down.
//! - **Down is final for what was posted.** The outcome of an operation in flight at [`LinkEvent::Down`] is unknown
//!   and it gets no other event. Its bytes may land until the next [`LinkEvent::Up`] of the same link, never after it.
//!   An application that takes its events from a queue may post when the link is lost, or even up again, before it
//!   sees `Down`. What it posts then is dropped or goes over the next connection; so whatever spans more than one
//!   message or write carries the number of the session that began with its `Up`.
//! - **Revocation.** Once [`Memory::revoke`] has returned, the memory's bytes change no more, and whatever was
//!   completed to a peer is among them.
//! - Events of one link are delivered one at a time, in order. A [`Sink`] is called by the transport's threads or from
//!   inside [`Fabric::flush`], with no lock held: it may call back into the fabric, but it must not block, since it
//!   stands where a NIC's interrupt would.
//! - Links have one direction. `connect` makes mine, over which I write a peer's memory and send it messages; what the
//!   peer sends me comes over its own.

#![deny(unsafe_code)]

mod libfabric;
mod memory;
mod shm;
mod sim;
mod sparse;
mod stream;
mod tcp;
mod words;

pub use libfabric::{LibfabricFabric, Provider, UnknownProvider};
pub use shm::ShmFabric;
pub use sim::{SimFabric, SimNetwork, SimOptions};
pub use stream::{Admission, LinkOptions};
pub use tcp::TcpFabric;

use std::{fmt, io, ops::Range, sync::Arc};

/// What registered memory is taken and given back by, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// Longest control message, in bytes: 32 MiB.
pub const MAX_MESSAGE_BYTES: usize = 32 << 20;

/// A process on the fabric, as its operator numbered it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerId({})", self.0)
    }
}

/// Names one registered memory to the peers it is sent to. Opaque: only the transport that made it reads it. It
/// holds a random key, so a descriptor of an earlier incarnation of the owner is refused.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Descriptor(pub Vec<u8>);

/// What happened on the link to, or from, one peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkEvent {
    /// My link to the peer is up: what is posted from now on is carried.
    Up,
    /// My link to the peer is lost, with everything in flight. It is being connected again unless it was disconnected.
    Down,
    /// A control message that the peer sent over its own link to me.
    Message(Vec<u8>),
    /// A write's bytes are in the peer's memory.
    Completed {
        /// The number it was posted with.
        op: u64,
    },
    /// A read's bytes.
    ReadDone {
        /// The number it was posted with.
        op: u64,
        /// As many bytes as were asked for.
        bytes: Vec<u8>,
    },
    /// The descriptor is unknown or revoked, or the range is outside of the memory. Some bytes of a write may have
    /// landed if the memory was revoked meanwhile.
    Refused {
        /// The number it was posted with.
        op: u64,
    },
}

/// Takes every event of a fabric, with the peer that it concerns. Must not block.
pub type Sink = Arc<dyn Fn(PeerId, LinkEvent) + Send + Sync>;

/// Bytes that went over the wire (or were copied into or out of another process's memory) since the fabric was
/// made, framing included: the base of network amplification.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct FabricCounters {
    /// Bytes sent to peers.
    pub bytes_sent: u64,
    /// Bytes received from peers.
    pub bytes_received: u64,
}

/// Memory that peers write and read. Zeroed when allocated; deregistered when dropped. The owner's threads may use it
/// while peers do: every access is a copy, as untorn as the aligned 8-byte words it consists of. The system is asked for
/// memory page by page, when something is written there first.
///
/// Offsets and lengths are bytes. A range outside of the memory is a bug of the caller and panics.
pub trait Memory: Send + Sync {
    /// What a peer needs to write or read this memory.
    fn descriptor(&self) -> Descriptor;
    /// Bytes of the memory.
    fn len(&self) -> usize;
    /// Whether the memory has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies `bytes.len()` bytes from `offset` out of the memory, where something was written: to look at a page that was
    /// never written may take it.
    fn read(&self, offset: usize, bytes: &mut [u8]);
    /// [`Memory::read`] where perhaps nothing was written, which takes no page. It costs questions to the system.
    fn read_sparse(&self, offset: usize, bytes: &mut [u8]) {
        self.read(offset, bytes);
    }
    /// Copies `bytes` into the memory at `offset`.
    fn write(&self, offset: usize, bytes: &[u8]);
    /// The little-endian word at `offset` (a multiple of 8), with acquire ordering: bytes whose write was completed
    /// before the word's write was posted are seen by later reads.
    fn load_u64(&self, offset: usize) -> u64;
    /// Stores the little-endian word at `offset` (a multiple of 8), with release ordering.
    fn store_u64(&self, offset: usize, value: u64);
    /// Gives back the pages ([`PAGE_BYTES`]) that lie whole in `range`: they read as zeroes, and take memory again when they are
    /// written again. No peer may write to them meanwhile, nor the owner.
    fn release(&self, range: Range<usize>);
    /// Ends remote access: once this returns, no peer's write changes what the owner reads, and peers are refused.
    fn revoke(&self);
}

/// One process's attachment to a network of peers. Calls come from any thread and never block on the network; results
/// arrive at the [`Sink`] given when the fabric was made. Dropping the fabric ends its threads and every link.
pub trait Fabric: Send + Sync {
    /// Where it listens: what peers of this host pass as `address` to [`Fabric::connect`].
    fn local_address(&self) -> String;
    /// Registers `len` zeroed bytes.
    ///
    /// # Errors
    /// The system has no memory or no descriptors left.
    fn allocate(&self, len: usize) -> io::Result<Arc<dyn Memory>>;
    /// Starts to connect to `peer` and keeps trying, with a short pause, until [`Fabric::disconnect`];
    /// [`LinkEvent::Up`] tells of success. For a peer that has a link with the same address nothing is done; with
    /// another address the link goes down (if it was up) and is connected there.
    fn connect(&self, peer: PeerId, address: &str);
    /// Where only [admitted peers](Admission::Sessions) may connect, `peer` is admitted from now on, until
    /// [`Fabric::disconnect`].
    fn admit(&self, peer: PeerId);
    /// Gives the link up. No `Down` is delivered, nor any other event of the link, beyond what is being delivered just now. Where
    /// only [admitted peers](Admission::Sessions) may connect, the peer is no longer admitted, and its connection ends.
    fn disconnect(&self, peer: PeerId);
    /// Sends `message` (at most [`MAX_MESSAGE_BYTES`], else it panics); dropped if the link is not up.
    fn send(&self, peer: PeerId, message: &[u8]);
    /// Writes `bytes` (less than 4 GiB) to `offset` of the peer's memory `to`; `op` comes back in the event. Dropped if the link
    /// is not up.
    fn write(&self, peer: PeerId, to: &Descriptor, offset: u64, bytes: &[u8], op: u64);
    /// Reads `len` bytes at `offset` of the peer's memory `from`; `op` comes back in the event. Dropped if the link is
    /// not up.
    fn read(&self, peer: PeerId, from: &Descriptor, offset: u64, len: u32, op: u64);
    /// Pushes out what was posted: until then a transport may hold it back.
    fn flush(&self);
    /// Bytes that were posted to `peer` and wait to be sent, where the transport knows: a link that has too many goes down.
    fn queued_bytes(&self, peer: PeerId) -> usize;
    /// What went over the wire so far.
    fn counters(&self) -> FabricCounters;
}

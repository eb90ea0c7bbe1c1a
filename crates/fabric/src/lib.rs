//! Registered memory that a peer writes and reads without its owner's threads, and an ordered control channel.
//!
//! This file is the whole interface. The transports behind it are [`TcpFabric`] (a receiver thread stands in for the
//! NIC), [`ShmFabric`] (processes of one host, truly one-sided), [`LibfabricFabric`] (network cards, or a software
//! provider in place of one) and [`SimFabric`] (deterministic, for simulations). The crate never interprets the bytes.
//!
//! # What every transport guarantees
//!
//! - **Completion.** [`LinkEvent::Completed`] means that the bytes are in the remote memory and visible to its owner's
//!   [`Memory::load_u64`] and [`Memory::read`]. No application thread of the owner took part.
//! - **No order** between two plain writes, between the bytes of one write, or between a write and a control message.
//!   Bytes become visible in any order. So a flag must be a second write, posted after the first one's completion, and
//!   records carry checksums. One exception: an aligned 8-byte write is never seen half.
//! - **Control messages** of one link arrive in the order they were sent, each once, until the link goes down.
//! - **Down is final for what was posted.** The outcome of an operation in flight at [`LinkEvent::Down`] is unknown and
//!   it gets no other event. Its bytes may land until the next [`LinkEvent::Up`] of the same link, never after it. An
//!   application that takes its events from a queue may post after the link is lost, or even up again, but before it
//!   sees `Down`. Such posts are dropped or go over the next connection. So an exchange of more than one message or
//!   write carries the number of the session that began with its `Up`.
//! - **Revocation.** Once [`Memory::revoke`] has returned, the memory's bytes no longer change, and they include every
//!   write whose completion a peer has seen.
//! - Events of one link are delivered one at a time, in order. A [`Sink`] is called by the transport's threads or from
//!   inside [`Fabric::flush`], with no lock held: it may call back into the fabric, but it must not block, because it
//!   runs in place of a NIC's interrupt.
//! - Links have one direction. `connect` makes the link of this process, over which it writes a peer's memory and sends
//!   messages to the peer. The peer's messages come over the peer's own link.

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

/// Unit in which registered memory is allocated and given back, in bytes.
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

/// Names one registered memory to peers. It is opaque: only the transport that made it reads it. It holds a random key,
/// so a descriptor of an earlier incarnation of the owner is refused.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Descriptor(pub Vec<u8>);

/// An event of the link to, or from, one peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkEvent {
    /// The link to the peer is up: posts from now on are carried.
    Up,
    /// The link to the peer is lost, with everything in flight. It is connected again, unless [`Fabric::disconnect`]
    /// was called.
    Down,
    /// A control message that the peer sent over its own link to this process.
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

/// Receives every event of a fabric, with its peer. Must not block.
pub type Sink = Arc<dyn Fn(PeerId, LinkEvent) + Send + Sync>;

/// Bytes that went over the wire (or were copied into or out of another process's memory) since the fabric was made,
/// framing included. Network amplification is computed from them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct FabricCounters {
    /// Bytes sent to peers.
    pub bytes_sent: u64,
    /// Bytes received from peers.
    pub bytes_received: u64,
}

/// Memory that peers write and read. Zeroed when allocated; deregistered when dropped. The owner's threads may use it
/// while peers do: every access is a copy, and only its aligned 8-byte words are atomic. A page occupies memory once it
/// is written for the first time.
///
/// Offsets and lengths are bytes. A range outside of the memory is a bug of the caller and panics.
pub trait Memory: Send + Sync {
    /// The descriptor by which peers write and read this memory.
    fn descriptor(&self) -> Descriptor;
    /// Bytes of the memory.
    fn len(&self) -> usize;
    /// Whether the memory has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies `bytes.len()` bytes from `offset` out of the memory. To read a page that was never written may allocate
    /// it.
    fn read(&self, offset: usize, bytes: &mut [u8]);
    /// [`Memory::read`] of a range that may never have been written: allocates no page, but costs system calls.
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
    /// Gives back the pages ([`PAGE_BYTES`]) that are wholly in `range`. They read as zeroes, and occupy memory again
    /// when they are written again. Neither peers nor the owner may write to them meanwhile.
    fn release(&self, range: Range<usize>);
    /// Ends remote access: once this returns, no peer's write changes what the owner reads, and peers are refused.
    fn revoke(&self);
}

/// One process's attachment to a network of peers. Calls come from any thread and never block on the network; results
/// arrive at the [`Sink`] given when the fabric was made. Dropping the fabric ends its threads and every link.
pub trait Fabric: Send + Sync {
    /// The address at which it listens, which peers of this host pass to [`Fabric::connect`].
    fn local_address(&self) -> String;
    /// Registers `len` zeroed bytes.
    ///
    /// # Errors
    /// The system has no memory or no descriptors left.
    fn allocate(&self, len: usize) -> io::Result<Arc<dyn Memory>>;
    /// Starts to connect to `peer` and keeps trying, with a short pause, until [`Fabric::disconnect`];
    /// [`LinkEvent::Up`] tells of success. If the peer has a link with the same address, nothing is done. If the
    /// address differs, the link goes down (if it was up) and is connected to the new address.
    fn connect(&self, peer: PeerId, address: &str);
    /// Admits `peer` until [`Fabric::disconnect`]. Only needed if [admitted peers](Admission::Sessions) alone may
    /// connect.
    fn admit(&self, peer: PeerId);
    /// Gives the link up. No `Down` or other event of the link is delivered after one that is being delivered now. If
    /// only [admitted peers](Admission::Sessions) may connect, the peer is no longer admitted, and its connection ends.
    fn disconnect(&self, peer: PeerId);
    /// Sends `message` (at most [`MAX_MESSAGE_BYTES`], else it panics); dropped if the link is not up.
    fn send(&self, peer: PeerId, message: &[u8]);
    /// Writes `bytes` (less than 4 GiB) to `offset` of the peer's memory `to`; `op` comes back in the event. Dropped if
    /// the link is not up.
    fn write(&self, peer: PeerId, to: &Descriptor, offset: u64, bytes: &[u8], op: u64);
    /// Reads `len` bytes at `offset` of the peer's memory `from`; `op` comes back in the event. Dropped if the link is
    /// not up.
    fn read(&self, peer: PeerId, from: &Descriptor, offset: u64, len: u32, op: u64);
    /// Sends everything that was posted. A transport may hold posts back until then.
    fn flush(&self);
    /// Bytes that were posted to `peer` and wait to be sent, as far as the transport knows (else 0). A link with too
    /// many goes down.
    fn queued_bytes(&self, peer: PeerId) -> usize;
    /// Bytes over the wire so far.
    fn counters(&self) -> FabricCounters;
}

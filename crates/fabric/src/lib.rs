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
//! - **Control messages** of one link arrive in the order they were sent, each once, until the link goes down. Urgent
//!   ones ([`Fabric::send_urgent`]) have no order, and do not wait for what was posted before.
//! - **Down is final for what was posted.** The outcome of an operation in flight at [`LinkEvent::Down`] is unknown and
//!   it gets no other event. Its bytes may land until the next [`LinkEvent::Up`] of the same link, never after it. An
//!   application that takes its events from a queue may post after the link is lost, or even up again, but before it
//!   sees `Down`. Such posts are dropped or go over the next connection. So an exchange of more than one message or
//!   write carries the number of the session that began with its `Up`.
//! - **Revocation.** Once [`Memory::revoke`] has returned, the memory's bytes no longer change, and they include every
//!   write whose completion a peer has seen.
//! - **Reads are of words.** An aligned 8-byte word is never read half: it has been in the memory at some time during the
//!   read. The words of a longer read may be of different times, in any order. So what is longer than a word carries a
//!   checksum. (One exception: libfabric's tcp provider may tear the words of a read of more than one word.)
//! - **Readable memory** ([`ReadableMemory`]) is written by its owner alone. Its descriptor is a type of its own, which
//!   [`Fabric::write`] does not take. A peer that forges one is refused, and no byte changes.
//! - **Readers need a lease.** A revocation makes peers' later reads fail, but it does not wait for reads that are under
//!   way. A process that has the memory mapped ([`Fabric::read_now`]) may copy old bytes for some time after, and also
//!   after the owner has died. A reader that must not use old bytes checks a lease after its last read.
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

/// Longest control message, in bytes: 64 MiB.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

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

/// Names one [`ReadableMemory`] to peers, which may only read it. Opaque like a [`Descriptor`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReadableDescriptor(pub Vec<u8>);

/// The descriptor of a memory that peers may read, whether or not they may write it.
pub trait Readable {
    /// The bytes of the descriptor.
    fn descriptor_bytes(&self) -> &[u8];
}

impl Readable for Descriptor {
    fn descriptor_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Readable for ReadableDescriptor {
    fn descriptor_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The outcome of [`Fabric::read_now`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum ReadNow {
    /// The bytes are in the buffer.
    Copied,
    /// The descriptor cannot be decoded, the memory is revoked or dropped, or the range is outside of it. The buffer may
    /// hold some of its bytes.
    Refused,
    /// The memory is not mapped in this process. The buffer is unchanged: post a [`Fabric::read`].
    NotMapped,
}

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
    /// The descriptor is unknown or revoked or does not allow it, or the range is outside of the memory. Some bytes of a
    /// write may have landed if the memory was revoked meanwhile.
    Refused {
        /// The number it was posted with.
        op: u64,
    },
}

/// Receives every event of a fabric, with its peer. Must not block.
pub type Sink = Arc<dyn Fn(PeerId, LinkEvent) + Send + Sync>;

/// Bytes that went over the wire (or were copied into or out of another process's memory) since the fabric was made,
/// framing included. Network amplification is computed from them. A process that reads readable memory over shared
/// memory cannot tell its owner how much: the reader counts these bytes, and the owner does not.
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

/// Memory that peers read and only its owner writes. Zeroed when allocated; deregistered when its last handle is
/// dropped. Clones are handles to the same memory. Any thread may use it while peers read.
///
/// Peers see a write's words in any order. A peer that has read a word of [`ReadableMemory::store_u64`] finds, in its
/// later reads, all that was written before that word. Offsets and lengths are bytes. A range outside of the memory is a
/// bug of the caller and panics. Pages occupy memory once they are written or read, until the memory is dropped.
#[derive(Clone)]
pub struct ReadableMemory {
    memory: Arc<dyn Memory>,
}

impl ReadableMemory {
    /// `memory` must be registered with permission to read only.
    pub(crate) fn new(memory: Arc<dyn Memory>) -> ReadableMemory {
        ReadableMemory { memory }
    }
    /// The descriptor by which peers read this memory.
    pub fn descriptor(&self) -> ReadableDescriptor {
        ReadableDescriptor(self.memory.descriptor().0)
    }
    /// Bytes of the memory.
    pub fn len(&self) -> usize {
        self.memory.len()
    }
    /// Whether the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }
    /// Copies `bytes.len()` bytes from `offset` out of the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.memory.read(offset, bytes);
    }
    /// Copies `bytes` into the memory at `offset`.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.memory.write(offset, bytes);
    }
    /// The little-endian word at `offset` (a multiple of 8), with acquire ordering.
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.memory.load_u64(offset)
    }
    /// Stores the little-endian word at `offset` (a multiple of 8), with release ordering.
    pub fn store_u64(&self, offset: usize, value: u64) {
        self.memory.store_u64(offset, value);
    }
    /// Ends remote access: peers' reads from now on are refused. Reads under way are not waited for, and peers that
    /// have the memory mapped may copy its bytes for some time, later ones included: see the crate's contract. The
    /// owner may go on to use it.
    pub fn revoke(&self) {
        self.memory.revoke();
    }
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
    /// Registers `len` zeroed bytes that peers may read, and that only this process may write.
    ///
    /// # Errors
    /// The system has no memory or no descriptors left.
    fn allocate_readable(&self, len: usize) -> io::Result<ReadableMemory>;
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
    /// Sends a small message that is not to wait behind what was posted before: over a connection of its own to the peer,
    /// or over the link while there is no such connection. Dropped if the link is not up. It has no order with any other
    /// post, may be lost while the link stays up, and may arrive after [`LinkEvent::Down`] at the peer's side. It never
    /// arrives after the `Up` of a later link of this process, or of another with the same number.
    fn send_urgent(&self, peer: PeerId, message: &[u8]);
    /// Writes `bytes` (less than 4 GiB) to `offset` of the peer's memory `to`; `op` comes back in the event. Dropped if
    /// the link is not up.
    fn write(&self, peer: PeerId, to: &Descriptor, offset: u64, bytes: &[u8], op: u64);
    /// Reads `len` bytes at `offset` of the peer's memory `from`; `op` comes back in the event. Dropped if the link is
    /// not up.
    fn read(&self, peer: PeerId, from: &dyn Readable, offset: u64, len: u32, op: u64);
    /// Whether [`Fabric::read_now`] ever copies anything on this transport.
    fn maps_memory(&self) -> bool {
        false
    }
    /// Copies `bytes.len()` bytes at `offset` of the peer's memory `from` in this thread, if this process has the
    /// memory mapped. That is so over shared memory from the end of the first [`Fabric::read`] of this memory until the
    /// link is down or the memory is revoked; on other transports never.
    ///
    /// It waits neither for the network nor for a thread of the owner, and allocates nothing. Reads of one thread are
    /// in order: a read sees at least what the writers of an earlier read's words had seen. It copies the bytes that
    /// are there also if the owner is stopped, or has died and the link is not down yet.
    fn read_now(&self, _peer: PeerId, _from: &ReadableDescriptor, _offset: u64, _bytes: &mut [u8]) -> ReadNow {
        ReadNow::NotMapped
    }
    /// Sends everything that was posted. A transport may hold posts back until then.
    fn flush(&self);
    /// Bytes that were posted to `peer` and wait to be sent, as far as the transport knows (else 0). A link with too
    /// many goes down.
    fn queued_bytes(&self, peer: PeerId) -> usize;
    /// Bytes over the wire so far.
    fn counters(&self) -> FabricCounters;
}

//! A simulated network: the fabric's contract at its least convenient, by seed.
//!
//! A [`SimNetwork`] is shared by all nodes of one simulation, which drives it. Events happen only in
//! [`SimNetwork::step`] and [`SimNetwork::advance`], which move the simulated clock and call the sinks. Equal seeds and
//! equal calls give equal events. Use it from one thread.
//!
//! - Every operation takes its own random time, so operations overtake each other, and operations and control messages
//!   overtake each other.
//! - With [`SimOptions::bytes_per_second`] a link has a queue: a write that is posted behind others leaves late.
//! - A longer write lands in pieces at different times, cut at 8-byte words; a read is copied in pieces likewise.
//! - When a link goes down, or the posting process dies, any subset of the pieces in flight still lands, and any prefix
//!   of the messages arrives, until the link is up again.
//! - Nothing passes a cut. It waits for [`SimNetwork::heal`], or is lost when the link notices the cut.
//! - Writes land in the memory of a node even while the simulation has paused its application. A killed node's memory
//!   is gone, but for what peers may still read if the simulation says so ([`SimNetwork::kill_slowly`]).
//! - With [`SimOptions::maps_memory`] nodes read the memory of others at once after a first posted read, as over shared
//!   memory: cuts do not keep them from it, and the memory of a node that is killed slowly stays mapped until the link is down.
//! - With [`SimOptions::store_gap`] an owner's stores to readable memory land one at a time ([`stores`]).

mod faults;
mod mapped;
mod stores;
mod world;

use crate::{
    Descriptor, Fabric, FabricCounters, MAX_MESSAGE_BYTES, Memory, PeerId, ReadNow, Readable, ReadableDescriptor,
    ReadableMemory, Sink,
    memory::{Counters, Handle, HeapMemory, Permission, Registry, Transport},
};
use leeward_platform::Nanos;
use parking_lot::Mutex;
use std::{io, ops::Range, sync::Arc};
use stores::{StoredMemory, Stores};
use world::{Node, Post, World};

/// Options of the simulated network, in simulated time.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Least time for bytes to reach a peer, one way.
    pub min_delay: Nanos,
    /// Most time for bytes to reach a peer, one way, on a link that is not slowed.
    pub max_delay: Nanos,
    /// Least time until a link notices that it is cut or its peer dead.
    pub min_detect: Nanos,
    /// Most time until a link notices.
    pub max_detect: Nanos,
    /// Pause before a link is connected again.
    pub retry_pause: Nanos,
    /// Usual time between two stores of an owner to its readable memory. Zero: peers see all of them at once.
    pub store_gap: Nanos,
    /// Nodes map the memory that they read: [`Fabric::read_now`].
    pub maps_memory: bool,
    /// Bytes a second that a link carries in one direction; 0: any number at once. What is posted on a link waits for what was
    /// posted before. Urgent messages do not, and have no order with anything else.
    pub bytes_per_second: u64,
}

impl Default for SimOptions {
    /// 5 to 200 us of delay, links down within 0.2 to 2 s, retries after 50 ms. Memory is mapped.
    fn default() -> SimOptions {
        SimOptions {
            min_delay: Nanos::from_micros(5),
            max_delay: Nanos::from_micros(200),
            min_detect: Nanos::from_millis(200),
            max_detect: Nanos::from_secs(2),
            retry_pause: Nanos::from_millis(50),
            store_gap: Nanos::ZERO,
            maps_memory: true,
            bytes_per_second: 0,
        }
    }
}

/// The network of one simulated cluster. A handle: clones are the same network.
#[derive(Clone)]
pub struct SimNetwork {
    world: Arc<Mutex<World>>,
}

impl SimNetwork {
    /// A network without nodes at time zero.
    pub fn new(seed: u64, options: SimOptions) -> SimNetwork {
        SimNetwork { world: Arc::new(Mutex::new(World::new(seed, options))) }
    }

    /// Starts a new incarnation of node `peer`. An earlier incarnation is killed if it still runs. `sink` is called
    /// only inside [`SimNetwork::step`].
    pub fn node(&self, peer: PeerId, sink: Sink) -> Arc<SimFabric> {
        let mut world = self.world.lock();
        world.kill(peer, Nanos::ZERO);
        let registry = Arc::new(Registry::new(world.rng.fork()));
        let counters = Arc::new(Counters::default());
        let node = Node {
            incarnation: world.number(),
            sink,
            registry: Arc::clone(&registry),
            counters: Arc::clone(&counters),
            stores: Stores::default(),
        };
        let incarnation = node.incarnation;
        world.nodes.insert(peer, node);
        Arc::new(SimFabric { world: Arc::clone(&self.world), me: peer, incarnation, registry, counters })
    }

    /// Kills the process of node `peer`: its memory is gone, its operations in flight may land in part, and links to it
    /// go down after a while.
    pub fn kill(&self, peer: PeerId) {
        self.world.lock().kill(peer, Nanos::ZERO);
    }

    /// Kills the process of node `peer`, whose readable memory stays readable for a `while_`: to peers that have only
    /// read, whose links stay up for that long. The caller still has the memory.
    pub fn kill_slowly(&self, peer: PeerId, while_: Nanos) {
        self.world.lock().kill(peer, while_);
    }

    /// Whether stores of node `peer` to its readable memory have not landed yet.
    pub fn has_stores(&self, peer: PeerId) -> bool {
        self.world.lock().nodes.get(&peer).is_some_and(|node| !node.stores.is_empty())
    }

    /// Whether such a store is to these bytes of a memory.
    pub fn has_stores_to(&self, peer: PeerId, memory: &ReadableDescriptor, bytes: Range<u64>) -> bool {
        let handle = Handle::to_read(memory, Transport::Sim);
        let world = self.world.lock();
        world.nodes.get(&peer).zip(handle).is_some_and(|(node, handle)| node.stores.are_to(handle, bytes))
    }

    /// Lands all stores of node `peer` but the last `left`, which wait for a `while_`: the owner stops there.
    pub fn hold_stores(&self, peer: PeerId, left: usize, while_: Nanos) {
        let mut world = self.world.lock();
        let until = world.now + while_;
        if let Some(node) = world.nodes.get_mut(&peer) {
            node.stores.land_all_but(left);
            node.stores.held_until = until;
        }
    }

    /// The present simulated instant.
    pub fn now(&self) -> Nanos {
        self.world.lock().now
    }

    /// Time of the next event; `None` if there is none without further calls.
    pub fn next_event_time(&self) -> Option<Nanos> {
        self.world.lock().next_event_time()
    }

    /// Moves the clock to the next event and executes it. Returns false if there is none.
    pub fn step(&self) -> bool {
        let Some(outcome) = self.world.lock().step() else { return false };
        if let Some((sink, peer, event)) = outcome {
            sink(peer, event);
        }
        true
    }

    /// Executes every event until `to`, in order, and moves the clock there.
    pub fn advance(&self, to: Nanos) {
        while self.next_event_time().is_some_and(|time| time <= to) {
            self.step();
        }
        let mut world = self.world.lock();
        world.now = world.now.max(to);
    }

    /// Cuts the direction from `from` to `to`.
    pub fn cut(&self, from: PeerId, to: PeerId) {
        self.world.lock().cut(from, to);
    }

    /// Cuts both directions between nodes in different groups. Nodes in no group keep all their links.
    pub fn partition(&self, groups: &[&[PeerId]]) {
        let mut world = self.world.lock();
        for (i, group) in groups.iter().enumerate() {
            for (j, other) in groups.iter().enumerate() {
                for (a, b) in group.iter().flat_map(|a| other.iter().map(move |b| (*a, *b))).filter(|_| i != j) {
                    world.cut(a, b);
                }
            }
        }
    }

    /// Heals every cut.
    pub fn heal(&self) {
        self.world.lock().heal();
    }

    /// From now on everything from `from` to `to` takes `extra` longer; zero ends this.
    pub fn slow(&self, from: PeerId, to: PeerId, extra: Nanos) {
        self.world.lock().slow.insert((from, to), extra);
    }

    /// A digest of everything that happened so far: equal for equal seeds and calls.
    pub fn digest(&self) -> u64 {
        self.world.lock().digest
    }
}

/// One incarnation of one node on a [`SimNetwork`]. Posts are sent at [`Fabric::flush`], unless the node was killed.
/// Addresses are ignored: a peer is found by its number. No peer uses another's number, so all are admitted.
pub struct SimFabric {
    world: Arc<Mutex<World>>,
    me: PeerId,
    incarnation: u64,
    registry: Arc<Registry<HeapMemory>>,
    counters: Arc<Counters>,
}

impl SimFabric {
    /// Runs `act` unless this incarnation has ended.
    fn alive(&self, act: impl FnOnce(&mut World)) {
        let mut world = self.world.lock();
        if world.nodes.get(&self.me).is_some_and(|node| node.incarnation == self.incarnation) {
            act(&mut world);
        }
    }
}

impl Fabric for SimFabric {
    fn local_address(&self) -> String {
        format!("sim:{}", self.me)
    }
    fn allocate(&self, len: usize) -> io::Result<Arc<dyn Memory>> {
        Ok(HeapMemory::register(&self.registry, Transport::Sim, Permission::ReadWrite, len))
    }
    fn allocate_readable(&self, len: usize) -> io::Result<ReadableMemory> {
        let memory = HeapMemory::register(&self.registry, Transport::Sim, Permission::ReadOnly, len);
        if self.world.lock().options.store_gap == Nanos::ZERO {
            return Ok(ReadableMemory::new(memory));
        }
        let stored = StoredMemory::new(Arc::clone(&self.world), (self.me, self.incarnation), memory);
        Ok(ReadableMemory::new(Arc::new(stored)))
    }
    fn connect(&self, peer: PeerId, _address: &str) {
        self.alive(|world| world.connect(self.me, peer));
    }
    fn admit(&self, _peer: PeerId) {}
    fn disconnect(&self, peer: PeerId) {
        self.alive(|world| world.disconnect(self.me, peer));
    }
    fn send(&self, peer: PeerId, message: &[u8]) {
        assert!(message.len() <= MAX_MESSAGE_BYTES, "a control message has at most {MAX_MESSAGE_BYTES} bytes");
        self.alive(|world| world.post(self.me, peer, Post::Message(message.to_vec())));
    }
    fn send_urgent(&self, peer: PeerId, message: &[u8]) {
        assert!(message.len() <= MAX_MESSAGE_BYTES, "a control message has at most {MAX_MESSAGE_BYTES} bytes");
        self.alive(|world| world.post(self.me, peer, Post::Urgent(message.to_vec())));
    }
    fn write(&self, peer: PeerId, to: &Descriptor, offset: u64, bytes: &[u8], op: u64) {
        let post = Post::Write { to: Handle::to_write(to, Transport::Sim), offset, bytes: bytes.to_vec(), op };
        self.alive(|world| world.post(self.me, peer, post));
    }
    fn read(&self, peer: PeerId, from: &dyn Readable, offset: u64, len: u32, op: u64) {
        let post = Post::Read { from: Handle::to_read(from, Transport::Sim), offset, len, op };
        self.alive(|world| world.post(self.me, peer, post));
    }
    fn maps_memory(&self) -> bool {
        self.world.lock().options.maps_memory
    }
    fn read_now(&self, peer: PeerId, from: &ReadableDescriptor, offset: u64, bytes: &mut [u8]) -> ReadNow {
        let mut outcome = ReadNow::NotMapped;
        let handle = Handle::to_read(from, Transport::Sim);
        self.alive(|world| outcome = world.read_now((self.me, peer), handle, offset, bytes));
        outcome
    }
    fn flush(&self) {
        self.alive(|world| world.flush(self.me));
    }
    fn queued_bytes(&self, peer: PeerId) -> usize {
        self.world.lock().queued_bytes((self.me, peer))
    }
    fn counters(&self) -> FabricCounters {
        self.counters.snapshot()
    }
}

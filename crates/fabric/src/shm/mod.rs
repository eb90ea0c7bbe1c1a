//! Shared memory between processes of one host: truly one-sided.
//!
//! Registered memory is an anonymous file. A peer gets it from its owner once, over the control channel (a Unix-domain
//! socket), and maps it. After that a write is a copy in the caller's thread: no thread of the owner takes part, and
//! its process may even be stopped. The write completes as soon as the copy is done; the next flush delivers the
//! completion. When a peer's process ends, its socket closes at once, and the link goes down. A killed process leaves
//! nothing behind, except the file of a socket that was bound to a path.
//!
//! Memory that peers may only read is sealed by its owner, so that the kernel refuses a peer's mapping that can write.
//! Once it is mapped, any thread copies out of it without a link's lock ([`readable`]).

mod imports;
#[expect(unsafe_code, reason = "mapping memory is what no safe code can do")]
pub(crate) mod mapping;
pub(crate) mod memory;
mod readable;

use crate::{
    Descriptor, Fabric, FabricCounters, LinkEvent, LinkOptions, Memory, PeerId, ReadNow, Readable, ReadableDescriptor,
    ReadableMemory, Sink,
    memory::{Counters, Handle, MemoryId, Permission, Registry, Transport},
    stream::{
        Carrier, StreamFabric, hello,
        socket::Network,
        target::{Export, Owner, Owners},
    },
    words,
};
use imports::{Imports, Operation};
use leeward_platform::Rng;
use memory::FileMemory;
use readable::Readables;
use std::{io, sync::Arc};
use tracing::warn;

/// The state that the links of one fabric share.
struct Context {
    counters: Arc<Counters>,
    readables: Arc<Readables>,
}

/// A process's attachment to peers on the same host, all of the same user.
pub struct ShmFabric {
    stream: StreamFabric<Imports>,
    registry: Arc<Registry<FileMemory<()>>>,
    readables: Arc<Readables>,
}

impl ShmFabric {
    /// Listens as `me` at `address`: "@name" in the abstract namespace, which leaves nothing behind, or the path of a
    /// socket, whose directory limits which users may connect.
    ///
    /// # Errors
    /// The address is malformed or taken, or there are no threads or descriptors left.
    pub fn bind(me: PeerId, address: &str, options: LinkOptions, sink: Sink) -> io::Result<Arc<ShmFabric>> {
        let registry = Arc::new(Registry::new(Rng::from_entropy()));
        let found = Arc::clone(&registry);
        let owners: Owners = Box::new(move || Box::new(FileOwner(Arc::clone(&found))));
        let (counters, readables) = (Arc::new(Counters::default()), Arc::new(Readables::default()));
        let carrier = Carrier {
            network: Network::Unix,
            reach: hello::REACH_BY_LINK,
            context: Arc::new(Context { counters: Arc::clone(&counters), readables: Arc::clone(&readables) }),
            counters,
            owners,
        };
        let stream = StreamFabric::bind(me, address, options, sink, carrier)?;
        Ok(Arc::new(ShmFabric { stream, registry, readables }))
    }

    fn register(&self, permission: Permission, len: usize) -> io::Result<Arc<dyn Memory>> {
        Ok(FileMemory::register(&self.registry, self.stream.counters(), (permission, len), |_| Ok(()))?)
    }

    fn post(&self, peer: PeerId, handle: Option<Handle>, (offset, len): (u64, u64), op: u64, what: &Operation<'_>) {
        let Some(link) = self.stream.link(peer) else { return };
        let handle =
            handle.filter(|handle| words::within(offset, len, usize::try_from(handle.len).unwrap_or(usize::MAX)));
        link.post(|state, options| match handle {
            Some(handle) => imports::post(state, options, handle, offset, op, what),
            None => state.events.push_back(LinkEvent::Refused { op }),
        });
    }
}

impl Fabric for ShmFabric {
    fn local_address(&self) -> String {
        self.stream.local_address()
    }
    fn allocate(&self, len: usize) -> io::Result<Arc<dyn Memory>> {
        self.register(Permission::ReadWrite, len)
    }
    fn allocate_readable(&self, len: usize) -> io::Result<ReadableMemory> {
        self.register(Permission::ReadOnly, len).map(ReadableMemory::new)
    }
    fn connect(&self, peer: PeerId, address: &str) {
        self.stream.connect(peer, address);
    }
    fn admit(&self, peer: PeerId) {
        self.stream.admit(peer);
    }
    fn disconnect(&self, peer: PeerId) {
        self.stream.disconnect(peer);
    }
    fn send(&self, peer: PeerId, message: &[u8]) {
        self.stream.send(peer, message);
    }
    fn send_urgent(&self, peer: PeerId, message: &[u8]) {
        self.stream.send_urgent(peer, message);
    }
    fn write(&self, peer: PeerId, to: &Descriptor, offset: u64, bytes: &[u8], op: u64) {
        let handle = Handle::to_write(to, Transport::Shm);
        self.post(peer, handle, (offset, bytes.len() as u64), op, &Operation::Write(bytes));
    }
    fn read(&self, peer: PeerId, from: &dyn Readable, offset: u64, len: u32, op: u64) {
        let handle = Handle::to_read(from, Transport::Shm);
        self.post(peer, handle, (offset, u64::from(len)), op, &Operation::Read(len));
    }
    fn maps_memory(&self) -> bool {
        true
    }
    fn read_now(&self, peer: PeerId, from: &ReadableDescriptor, offset: u64, bytes: &mut [u8]) -> ReadNow {
        let Some(Handle { id, key, .. }) = Handle::to_read(from, Transport::Shm) else { return ReadNow::Refused };
        let Some(memory) = self.readables.find((peer, id, key)) else { return ReadNow::NotMapped };
        if !memory.read(offset, bytes) {
            return ReadNow::Refused;
        }
        self.stream.counters().add_received(bytes.len());
        ReadNow::Copied
    }
    fn flush(&self) {
        self.stream.flush();
    }
    fn queued_bytes(&self, peer: PeerId) -> usize {
        self.stream.queued_bytes(peer)
    }
    fn counters(&self) -> FabricCounters {
        let mut counters = self.stream.counters().snapshot();
        for memory in self.registry.all() {
            let (written, read) = memory.moved();
            counters.bytes_received += written;
            counters.bytes_sent += read;
        }
        counters
    }
}

/// An owner whose memories are files.
struct FileOwner(Arc<Registry<FileMemory<()>>>);

impl Owner for FileOwner {
    fn export(&mut self, wanted: MemoryId) -> io::Result<Option<Export>> {
        let memory = self.0.find(wanted.id, wanted.key).filter(|memory| memory.permission() == wanted.permission);
        let Some(memory) = memory else { return Ok(None) };
        let file = memory.file().inspect_err(|error| warn!(%error, "cannot pass memory to a peer"))?;
        Ok(file.map(Export::File))
    }
}

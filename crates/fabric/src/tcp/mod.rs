//! TCP: a receiver thread per connected peer stands in for the NIC.
//!
//! It writes and reads registered memory on the heap, and acknowledges, whatever the application's threads do. It calls
//! the application only through the sink, which must not block. Posts are coalesced until the flush, which makes TCP 17
//! times as fast, as measured.

use crate::{
    Descriptor, Fabric, FabricCounters, LinkEvent, LinkOptions, Memory, PeerId, Readable, ReadableMemory, Sink,
    memory::{Framed, Handle, HeapMemory, Permission, Registry, Transport},
    stream::{
        Carrier, StreamFabric,
        frame::RemotePlace,
        hello,
        link::LinkState,
        socket::Network,
        target::{Owner, Owners},
    },
    words,
};
use leeward_platform::Rng;
use std::{io, sync::Arc};

/// A process's attachment over TCP. Its threads execute the requests of peers.
pub struct TcpFabric {
    stream: StreamFabric<()>,
    registry: Arc<Registry<HeapMemory>>,
}

impl TcpFabric {
    /// Listens at `address`, "host:port" with port 0 for any, as `me`.
    ///
    /// # Errors
    /// The address is malformed or taken, or there are no threads or descriptors left.
    pub fn bind(me: PeerId, address: &str, options: LinkOptions, sink: Sink) -> io::Result<Arc<TcpFabric>> {
        let registry = Arc::new(Registry::new(Rng::from_entropy()));
        let found = Arc::clone(&registry);
        let owners: Owners = Box::new(move || Box::new(HeapOwner(Arc::clone(&found))));
        let carrier = Carrier {
            network: Network::Tcp,
            reach: hello::REACH_BY_LINK,
            counters: Arc::default(),
            context: Arc::default(),
            owners,
        };
        let stream = StreamFabric::bind(me, address, options, sink, carrier)?;
        Ok(Arc::new(TcpFabric { stream, registry }))
    }

    /// Posts through `post` if there is a handle and the range is valid; otherwise refuses at once.
    fn post(
        &self,
        peer: PeerId,
        handle: Option<Handle>,
        (offset, len): (u64, u64),
        op: u64,
        post: impl FnOnce(&mut LinkState<()>, RemotePlace, &LinkOptions),
    ) {
        let Some(link) = self.stream.link(peer) else { return };
        let handle = handle
            .filter(|handle| words::within(offset, len, usize::try_from(handle.len).unwrap_or(usize::MAX)))
            .filter(|_| len <= u64::from(u32::MAX));
        link.post(|state, options| match handle {
            Some(Handle { id, key, .. }) => post(state, RemotePlace { id, key, offset }, options),
            None => state.events.push_back(LinkEvent::Refused { op }),
        });
    }
}

impl Fabric for TcpFabric {
    fn local_address(&self) -> String {
        self.stream.local_address()
    }
    fn allocate(&self, len: usize) -> io::Result<Arc<dyn Memory>> {
        Ok(HeapMemory::register(&self.registry, Transport::Tcp, Permission::ReadWrite, len))
    }
    fn allocate_readable(&self, len: usize) -> io::Result<ReadableMemory> {
        let memory = HeapMemory::register(&self.registry, Transport::Tcp, Permission::ReadOnly, len);
        Ok(ReadableMemory::new(memory))
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
        let handle = Handle::to_write(to, Transport::Tcp);
        self.post(peer, handle, (offset, bytes.len() as u64), op, |state, place, options| {
            state.write(place, bytes, op, options);
        });
    }
    fn read(&self, peer: PeerId, from: &dyn Readable, offset: u64, len: u32, op: u64) {
        let handle = Handle::to_read(from, Transport::Tcp);
        self.post(peer, handle, (offset, u64::from(len)), op, |state, place, options| {
            state.read(place, len, op, options);
        });
    }
    fn flush(&self) {
        self.stream.flush();
    }
    fn queued_bytes(&self, peer: PeerId) -> usize {
        self.stream.queued_bytes(peer)
    }
    fn counters(&self) -> FabricCounters {
        self.stream.counters().snapshot()
    }
}

/// An owner whose memories are on the heap.
struct HeapOwner(Arc<Registry<HeapMemory>>);

impl Owner for HeapOwner {
    fn framed(&self, id: u64, key: u64) -> Option<Arc<dyn Framed>> {
        Some(self.0.find(id, key)?)
    }
}

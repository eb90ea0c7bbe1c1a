//! libfabric: network cards that write and read memory by themselves (verbs, EFA). The same code also runs with
//! libfabric's own tcp and shm providers, on machines without such a card.
//!
//! The library is opened at run time. It is not needed to build, nor in a process that does not use this fabric.
//!
//! ```text
//!   writer                                                                       owner
//!   link ──── TCP: hello, control messages, pings, grants, revocations ────────> connection
//!   endpoint ──── libfabric: writes, reads, looks at the memory's header ──────> endpoint ──> memory
//! ```
//! - **A connection is TCP's** (`stream`), with its hello, its pings and its `Down`. Control messages go over it.
//! - **Bytes go by libfabric**, between two endpoints that writer and owner have opened for this connection. When the
//!   connection ends, both are closed, the owner's before the peer's next link is up ([`owner`]). So nothing of an
//!   earlier connection lands after that.
//! - **Memory is shared memory's** (`shm::memory`), registered with the provider. Before it uses the memory, a peer
//!   asks for a grant, which the owner gives only for a descriptor of this incarnation. After that the owner takes no
//!   part. What peers may only read is registered for remote reads only, so the provider refuses writes to it.
//! - **A write is complete when a look has followed it** ([`remote`]): a read of the memory's header that finds it not
//!   revoked. So a revocation needs no answer of a peer, and does not rely on the provider to stop operations that are
//!   under way.
//! - **A single word goes over the connection** if the provider is itself a stream (tcp), which may move the halves of a
//!   word one after the other. The thread of the connection writes or reads it.
//! - One thread ([`progress`]) drives all endpoints of a process.
//! - Each link takes memory at both ends: staging memory at the writer's (4 MiB, if used), and an endpoint at each end,
//!   whose size depends on the provider (tcp 80 MiB, shm 16 MiB).
//!
//! A provider may set handlers of signals when the library is opened. A process that handles signals sets its own
//! handlers before [`LibfabricFabric::bind`].

#[expect(unsafe_code, reason = "libfabric is a C library")]
mod device;
#[expect(unsafe_code, reason = "libfabric is a C library")]
mod endpoint;
mod grant;
#[expect(unsafe_code, reason = "it is opened at run time")]
mod library;
mod owner;
mod progress;
mod remote;
mod ring;
mod sys;
mod version;

use crate::{
    Descriptor, Fabric, FabricCounters, LinkEvent, LinkOptions, Memory, PeerId, Readable, ReadableMemory, Sink,
    memory::{Counters, Handle, Permission, Registry, Transport},
    shm::{
        mapping::create,
        memory::{FileMemory, HEADER},
    },
    stream::{Carrier, StreamFabric, frame::RemotePlace, hello, socket::Network, target::Owners},
    words::{self, WORD},
};
use device::Device;
use endpoint::Registration;
use leeward_platform::Rng;
use owner::{Granter, Reach};
use parking_lot::Mutex;
use remote::{Access, Remote};
use std::{
    collections::HashMap,
    fmt, io,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

/// The libfabric provider that carries the bytes. All processes of a cluster need the same one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Provider {
    /// The first available one of EFA, verbs and tcp.
    #[default]
    Automatic,
    /// InfiniBand and RoCE cards; the listening address is that of the card's interface.
    Verbs,
    /// AWS's Elastic Fabric Adapter.
    Efa,
    /// Sockets.
    Tcp,
    /// Memory shared between the processes of one host.
    Shm,
}

impl Provider {
    /// All of them, with their names in settings.
    pub const ALL: [(Provider, &'static str); 5] = [
        (Provider::Automatic, "auto"),
        (Provider::Verbs, "verbs"),
        (Provider::Efa, "efa"),
        (Provider::Tcp, "tcp"),
        (Provider::Shm, "shm"),
    ];

    /// libfabric's names of the candidates, best first, and whether each uses host addresses.
    fn candidates(self) -> &'static [(&'static str, bool)] {
        const EFA: (&str, bool) = ("efa", false);
        const VERBS: (&str, bool) = ("verbs;ofi_rxm", true);
        // 1.17 also has a provider `net`, which later versions call tcp. It connects sooner, but its descriptors do not
        // report incoming data.
        const TCP: (&str, bool) = ("tcp", true);
        match self {
            Provider::Automatic => &[EFA, VERBS, TCP],
            Provider::Verbs => &[VERBS],
            Provider::Efa => &[EFA],
            Provider::Tcp => &[TCP],
            Provider::Shm => &[("shm", false)],
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name) = Provider::ALL.iter().find(|(provider, _)| provider == self).expect("all are there");
        f.write_str(name)
    }
}

/// There is no provider of this name. The text lists the known names.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no libfabric provider that is known here: it must be auto, verbs, efa, tcp or shm")]
pub struct UnknownProvider(String);

impl FromStr for Provider {
    type Err = UnknownProvider;

    fn from_str(text: &str) -> Result<Provider, UnknownProvider> {
        let found = Provider::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(provider, _)| *provider).ok_or_else(|| UnknownProvider(text.into()))
    }
}

/// The state that the threads and links of one fabric share.
struct Context {
    device: Arc<Device>,
    counters: Arc<Counters>,
    /// How many memories were revoked or dropped.
    revocations: Arc<AtomicU64>,
    /// A memory without bytes that every peer may read (`owner`).
    probe_memory: Arc<Registration>,
    next_connection: AtomicU32,
    /// The peers of connections, by the connections' numbers.
    peers: Mutex<HashMap<u32, PeerId>>,
    stopped: AtomicBool,
}

impl Context {
    /// A number for one end of a connection, which the events of its endpoint carry.
    fn next_connection(&self) -> u32 {
        self.next_connection.fetch_add(1, Ordering::Relaxed)
    }
}

/// A process's attachment over libfabric. One thread of its own makes progress; TCP connections have theirs.
pub struct LibfabricFabric {
    stream: StreamFabric<Remote>,
    registry: Arc<Registry<FileMemory<Reach>>>,
    context: Arc<Context>,
    progress: Option<JoinHandle<()>>,
}

impl LibfabricFabric {
    /// Listens at `address`, "host:port" with port 0 for any, as `me`. `provider` carries the bytes, over the interface
    /// with this address if it uses host addresses.
    ///
    /// # Errors
    /// libfabric is not installed, or offers no such provider; the address is malformed or taken; there are no threads
    /// or descriptors left.
    pub fn bind(
        me: PeerId,
        address: &str,
        provider: Provider,
        options: LinkOptions,
        sink: Sink,
    ) -> io::Result<Arc<LibfabricFabric>> {
        // For an address of all interfaces, the provider chooses one.
        let host = address.rsplit_once(':').map(|(host, _)| host.trim_matches(['[', ']']));
        let host = host.filter(|host| !["0.0.0.0", "::", ""].contains(host));
        let device = Device::open(provider, host)?;
        let (_, probe_memory) = create(HEADER, Permission::ReadOnly)?;
        let probe_memory = Registration::for_peers(&device, Arc::new(probe_memory), Permission::ReadOnly)?;
        let context = Arc::new(Context {
            probe_memory: Arc::new(probe_memory),
            device,
            counters: Arc::default(),
            revocations: Arc::default(),
            next_connection: AtomicU32::new(1),
            peers: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let registry = Arc::new(Registry::new(Rng::from_entropy()));
        let (shared, found) = (Arc::clone(&context), Arc::clone(&registry));
        let owners: Owners = Box::new(move || Box::new(Granter::new(Arc::clone(&shared), Arc::clone(&found))));
        let carrier = Carrier {
            network: Network::Tcp,
            reach: match context.device.shares_memory() {
                true => hello::reach_by_shm(context.device.library.version.number()),
                false => hello::reach_by(context.device.name()),
            },
            counters: Arc::clone(&context.counters),
            context: Arc::clone(&context),
            owners,
        };
        let stream = StreamFabric::bind(me, address, options, sink, carrier)?;
        let (driven, links) = (Arc::clone(&context), Arc::clone(stream.links()));
        let run = move || progress::run(&driven, &links);
        let progress = Some(thread::Builder::new().name("fabric-progress".into()).spawn(run)?);
        Ok(Arc::new(LibfabricFabric { stream, registry, context, progress }))
    }

    /// The version of libfabric.
    pub fn version(&self) -> String {
        self.context.device.library.version.to_string()
    }

    /// libfabric's name of the provider that carries the bytes.
    pub fn provider_name(&self) -> &str {
        self.context.device.name()
    }

    /// Whether a range is within one word that the provider might not move atomically.
    fn goes_by_connection(&self, offset: u64, len: u64) -> bool {
        let word = WORD as u64;
        self.context.device.tears_words() && (1..=word - offset % word).contains(&len)
    }

    fn register(&self, permission: Permission, len: usize) -> io::Result<Arc<dyn Memory>> {
        let Context { device, counters, revocations, .. } = &*self.context;
        Ok(FileMemory::register(&self.registry, counters, (permission, len), |mapping| {
            let registration = Registration::for_peers(device, Arc::clone(mapping), permission)?;
            Ok(Reach::new(registration, device, revocations))
        })?)
    }

    fn post(&self, peer: PeerId, handle: Option<Handle>, (offset, len): (u64, u64), op: u64, access: &Access<'_>) {
        let Some(link) = self.stream.link(peer) else { return };
        let handle =
            handle.filter(|handle| words::within(offset, len, usize::try_from(handle.len).unwrap_or(usize::MAX)));
        link.post(|state, options| match handle {
            Some(Handle { id, key, .. }) if self.goes_by_connection(offset, len) => match access {
                Access::Write(bytes) => state.write(RemotePlace { id, key, offset }, bytes, op, options),
                Access::Read(len) => state.read(RemotePlace { id, key, offset }, *len, op, options),
            },
            Some(handle) => remote::post(state, options, handle.memory(), offset, Some(op), access),
            None => state.events.push_back(LinkEvent::Refused { op }),
        });
    }
}

impl Fabric for LibfabricFabric {
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
        let handle = Handle::to_write(to, Transport::Libfabric);
        self.post(peer, handle, (offset, bytes.len() as u64), op, &Access::Write(bytes));
    }
    fn read(&self, peer: PeerId, from: &dyn Readable, offset: u64, len: u32, op: u64) {
        let handle = Handle::to_read(from, Transport::Libfabric);
        self.post(peer, handle, (offset, u64::from(len)), op, &Access::Read(len));
    }
    fn flush(&self) {
        self.stream.flush();
    }
    fn queued_bytes(&self, peer: PeerId) -> usize {
        self.stream.queued_bytes(peer)
    }
    fn counters(&self) -> FabricCounters {
        self.context.counters.snapshot()
    }
}

impl Drop for LibfabricFabric {
    fn drop(&mut self) {
        self.context.stopped.store(true, Ordering::Release);
        self.context.device.wake();
        // The last handle may be dropped inside a sink, by this thread. A thread that panicked has reported it already.
        if let Some(thread) = self.progress.take().filter(|thread| thread.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

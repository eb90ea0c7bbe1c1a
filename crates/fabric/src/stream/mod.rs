//! Links over byte streams, the common part of TCP, shared memory and libfabric.
//!
//! [`StreamFabric`] is the interface. Each link to a peer has a thread ([`pump`]) that connects and reads answers. Each
//! connection from a peer has one ([`incoming`]) that carries out requests. One thread accepts. The wire format is in
//! [`frame`] and [`hello`]. The two ends of a connection, [`flights`] and [`target`], are state machines over bytes, so
//! that they can be tested with hostile bytes and without a socket.

pub(crate) mod flights;
pub(crate) mod frame;
pub(crate) mod hello;
mod incoming;
pub(crate) mod link;
mod pump;
pub(crate) mod socket;
pub(crate) mod target;

use crate::{PeerId, Sink, memory::Counters};
use flights::Extension;
use incoming::Incoming;
use leeward_security::tls::NodeTls;
use link::{Link, Shared};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use socket::{Listener, Network};
use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};
use target::Owners;
use tracing::error;

/// The peers that may connect, and what they may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// Any peer, for everything. A peer that connects again ends its older connection.
    #[default]
    AnyPeer,
    /// Only peers that were [admitted](crate::Fabric::admit), to write and read memory. The connection of a peer that
    /// sends a control message is closed. A second connection in a peer's name is refused, so no process can end the
    /// connection of another. [`crate::Fabric::disconnect`] ends the connection that the peer has.
    Sessions,
}

/// Options of links over byte streams. The defaults suit one machine or one data centre.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// Pause between a lost or failed connection and the next attempt. Default 100 ms.
    pub retry_pause: Duration,
    /// How long a peer may take to accept and to complete the handshake. Default 2 s.
    pub hello_timeout: Duration,
    /// Time without traffic after which a link asks whether the peer is alive (not over shared memory). Default 1 s.
    pub ping_interval: Duration,
    /// Time without any answer after which a link with outstanding requests goes down (not over shared memory). This is
    /// noticed up to two ping intervals later. A connection from a peer ends after four times as long without a byte.
    /// Default 5 s.
    pub peer_timeout: Duration,
    /// Most bytes posted but not yet accepted by the kernel; a link with more goes down. Default 64 MiB.
    pub out_buffer_bytes: usize,
    /// Which peers may connect. Default any.
    pub admission: Admission,
    /// Encrypts links over TCP. Then each side proves that it is the server with the number of its peer id. Default none.
    pub tls: Option<Arc<NodeTls>>,
    /// Prefix of the names of its threads. Default `fabric`.
    pub threads: &'static str,
}

impl Default for LinkOptions {
    fn default() -> LinkOptions {
        LinkOptions {
            retry_pause: Duration::from_millis(100),
            hello_timeout: Duration::from_secs(2),
            ping_interval: Duration::from_secs(1),
            peer_timeout: Duration::from_secs(5),
            out_buffer_bytes: 64 << 20,
            admission: Admission::AnyPeer,
            tls: None,
            threads: "fabric",
        }
    }
}

/// A transport's part of a [`StreamFabric`].
pub(crate) struct Carrier<X: Extension> {
    /// The kind of addresses.
    pub(crate) network: Network,
    /// How memory is reached, for the hello: both ends must agree.
    pub(crate) reach: u32,
    /// Counters of bytes.
    pub(crate) counters: Arc<Counters>,
    /// The state that the links' extensions share.
    pub(crate) context: Arc<X::Context>,
    /// Makes the owner of each connection, which finds memory for requests.
    pub(crate) owners: Owners,
}

/// The outgoing links of one process.
pub(crate) type Links<X> = RwLock<FxHashMap<PeerId, Arc<Link<X>>>>;

/// The links from and to one process. Dropping it ends its threads and waits for them.
pub(crate) struct StreamFabric<X: Extension> {
    shared: Arc<Shared>,
    context: Arc<X::Context>,
    links: Arc<Links<X>>,
    incoming: Arc<Incoming>,
    address: String,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<X: Extension> StreamFabric<X> {
    /// Listens at `address` as `me`.
    pub(crate) fn bind(
        me: PeerId,
        address: &str,
        options: LinkOptions,
        sink: Sink,
        carrier: Carrier<X>,
    ) -> io::Result<StreamFabric<X>> {
        let Carrier { network, reach, counters, context, owners } = carrier;
        let listener = Listener::bind(network, address)?;
        let address = listener.address.clone();
        let shared = Arc::new(Shared { me, network, reach, options, sink, counters });
        let incoming = Arc::new(Incoming::new(Arc::clone(&shared), owners)?);
        let accepting = Arc::clone(&incoming);
        let accept = move || accepting.accept(&listener);
        let name = format!("{}-accept", shared.options.threads);
        let thread = thread::Builder::new().name(name).spawn(accept)?;
        let links = Arc::default();
        Ok(StreamFabric { shared, context, links, incoming, address, threads: Mutex::new(vec![thread]) })
    }

    /// See [`crate::Fabric::local_address`].
    pub(crate) fn local_address(&self) -> String {
        self.address.clone()
    }

    /// Bytes that went over the sockets.
    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.shared.counters
    }

    /// See [`crate::Fabric::connect`].
    pub(crate) fn connect(&self, peer: PeerId, address: &str) {
        let mut links = self.links.write();
        if let Some(link) = links.get(&peer) {
            return link.redirect(address);
        }
        let spawn = || {
            let link = Arc::new(Link::new(Arc::clone(&self.shared), Arc::clone(&self.context), peer, address)?);
            let pumped = Arc::clone(&link);
            let name = format!("{}-out-{peer}", self.shared.options.threads);
            let thread = thread::Builder::new().name(name).spawn(move || pump::run(&*pumped))?;
            Ok::<_, io::Error>((link, thread))
        };
        match spawn() {
            Ok((link, thread)) => {
                links.insert(peer, link);
                let mut threads = self.threads.lock();
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            Err(error) => error!(%peer, %error, "cannot start a fabric link"),
        }
    }

    /// See [`crate::Fabric::disconnect`].
    pub(crate) fn disconnect(&self, peer: PeerId) {
        if let Some(link) = self.links.write().remove(&peer) {
            link.close();
        }
        if self.shared.options.admission == Admission::Sessions {
            self.incoming.expel_peer(peer);
        }
    }

    /// See [`crate::Fabric::admit`].
    pub(crate) fn admit(&self, peer: PeerId) {
        self.incoming.admit_peer(peer);
    }

    /// The link to `peer`, if [`StreamFabric::connect`] was called for it.
    pub(crate) fn link(&self, peer: PeerId) -> Option<Arc<Link<X>>> {
        self.links.read().get(&peer).map(Arc::clone)
    }

    /// The links, for a thread of the transport.
    pub(crate) fn links(&self) -> &Arc<Links<X>> {
        &self.links
    }

    /// See [`crate::Fabric::send`].
    pub(crate) fn send(&self, peer: PeerId, message: &[u8]) {
        if let Some(link) = self.link(peer) {
            link.post(|state, options| state.message(message, options));
        }
    }

    /// See [`crate::Fabric::queued_bytes`].
    pub(crate) fn queued_bytes(&self, peer: PeerId) -> usize {
        self.link(peer).map_or(0, |link| link.queued_bytes())
    }

    /// See [`crate::Fabric::flush`].
    pub(crate) fn flush(&self) {
        let links: Vec<_> = self.links.read().values().map(Arc::clone).collect();
        for link in links {
            link.flush();
        }
    }
}

impl<X: Extension> Drop for StreamFabric<X> {
    fn drop(&mut self) {
        for link in self.links.read().values() {
            link.close();
        }
        for thread in self.threads.get_mut().drain(..).chain(self.incoming.stop()) {
            // The last handle may be dropped inside a sink, by such a thread. A thread that panicked has reported it
            // already.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

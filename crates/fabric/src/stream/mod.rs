//! Links over byte streams, the common part of TCP, shared memory and libfabric.
//!
//! [`StreamFabric`] is the interface. Each link to a peer has a thread ([`pump`]) that connects and reads answers. Each
//! connection from a peer has one ([`incoming`]) that executes requests. A link with urgent messages has a second
//! connection for them, with its two threads, from the first such message on. One thread accepts. The wire format is in
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
use link::{Link, LinksInCommon};
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
    shared: Arc<LinksInCommon>,
    context: Arc<X::Context>,
    links: Arc<Links<X>>,
    /// The connections for urgent messages. Locked after `links`.
    urgent: RwLock<FxHashMap<PeerId, Arc<Link<()>>>>,
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
        let shared = Arc::new(LinksInCommon { me, network, reach, options, sink, counters });
        let incoming = Arc::new(Incoming::new(Arc::clone(&shared), owners)?);
        let accepting = Arc::clone(&incoming);
        let accept = move || accepting.accept(&listener);
        let name = format!("{}-accept", shared.options.threads);
        let thread = thread::Builder::new().name(name).spawn(accept)?;
        let (links, urgent, threads) = (Arc::default(), RwLock::default(), Mutex::new(vec![thread]));
        Ok(StreamFabric { shared, context, links, urgent, incoming, address, threads })
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
            link.redirect(address);
            if let Some(urgent) = self.urgent.read().get(&peer) {
                urgent.redirect(address);
            }
            return;
        }
        let link = Link::new(Arc::clone(&self.shared), Arc::clone(&self.context), peer, address);
        match link.and_then(|link| self.spawn(link)) {
            Ok(link) => drop(links.insert(peer, link)),
            Err(error) => error!(%peer, %error, "cannot start a fabric link"),
        }
    }

    /// Starts the thread of a link.
    fn spawn<Y: Extension>(&self, link: Link<Y>) -> io::Result<Arc<Link<Y>>> {
        let link = Arc::new(link);
        let pumped = Arc::clone(&link);
        let name = format!("{}-out-{}", self.shared.options.threads, link.peer);
        let thread = thread::Builder::new().name(name).spawn(move || pump::run(&*pumped))?;
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(link)
    }

    /// See [`crate::Fabric::disconnect`].
    pub(crate) fn disconnect(&self, peer: PeerId) {
        let mut links = self.links.write();
        if let Some(link) = links.remove(&peer) {
            link.close();
        }
        if let Some(urgent) = self.urgent.write().remove(&peer) {
            urgent.close();
        }
        drop(links);
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

    /// See [`crate::Fabric::send_urgent`].
    pub(crate) fn send_urgent(&self, peer: PeerId, message: &[u8]) {
        let links = self.links.read();
        let Some(link) = links.get(&peer) else { return };
        let is_up = link.state().status == link::Status::Up;
        let urgent = if is_up { self.urgent_link(link) } else { None };
        if !urgent.is_some_and(|urgent| urgent.post(|state, options| state.message(message, options))) {
            link.post(|state, options| state.message(message, options));
        }
    }

    /// The link of urgent messages beside `link`. It is connected from now on, if it was not wanted before. The caller has
    /// the lock of the links, so that nobody gives `link` up meanwhile.
    fn urgent_link(&self, link: &Link<X>) -> Option<Arc<Link<()>>> {
        let peer = link.peer;
        if let Some(urgent) = self.urgent.read().get(&peer) {
            return Some(Arc::clone(urgent));
        }
        let address = link.state().address.clone();
        let started = Link::urgent(Arc::clone(&self.shared), peer, &address).and_then(|urgent| self.spawn(urgent));
        let started =
            started.inspect_err(|error| error!(%peer, %error, "cannot start a link of urgent messages")).ok()?;
        let mut all = self.urgent.write();
        if let Some(earlier) = all.get(&peer) {
            started.close();
            return Some(Arc::clone(earlier));
        }
        all.insert(peer, Arc::clone(&started));
        Some(started)
    }

    /// See [`crate::Fabric::queued_bytes`].
    pub(crate) fn queued_bytes(&self, peer: PeerId) -> usize {
        self.link(peer).map_or(0, |link| link.queued_bytes())
    }

    /// See [`crate::Fabric::flush`].
    pub(crate) fn flush(&self) {
        let urgent: Vec<_> = self.urgent.read().values().map(Arc::clone).collect();
        for link in urgent {
            link.flush();
        }
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
        for link in self.urgent.read().values() {
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

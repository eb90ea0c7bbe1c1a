//! Connections from peers: one thread accepts, and a thread for each connection stands in for the NIC of this process.
//!
//! A peer has one connection at a time, and beside it one for urgent messages. When it connects again, both older
//! connections are ended and waited for before the new one is welcomed. So bytes and messages of the older connections
//! never land after the peer's new link is up. If peers must be admitted, the newer connection is refused instead, and
//! there are none for urgent messages.
//!
//! Until a connection has said hello, and with TLS shown its certificate, it has one of the few places of
//! [`Unidentified`] ones. So strangers never take the places of peers.

use super::{
    Admission, hello,
    hello::Connection as For,
    link::LinksInCommon,
    socket::{Listener, Network, Socket, Waker},
    target::{Outlet, Owners, Target, TargetError},
};
use crate::{LinkEvent, PeerId};
use leeward_platform::Unidentified;
use parking_lot::{Condvar, Mutex};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    net::IpAddr,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tracing::{debug, info, warn};

/// Requests received at a time.
const RECEIVE_BYTES: usize = 256 << 10;
/// Most connections of peers at a time. Further ones are closed.
const MAX_CONNECTIONS: usize = 1024;
/// How often the log says at most that unidentified connections are closed for others.
const DISPLACED_WARNING: Duration = Duration::from_secs(60);
/// How often the log says the same about refused connections, and how many such reasons are known.
const REFUSED_AGAIN: Duration = Duration::from_secs(600);
const MOST_REFUSED: usize = 64;
/// Pause after a failed accept, for example because descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// From where a connection came, and why it was refused.
type Refusal = (Option<IpAddr>, String);

/// Why connections were refused, and when the log said so; the last one first.
#[derive(Default)]
struct Refusals(VecDeque<(Refusal, Instant)>);

impl Refusals {
    /// Whether the log is to say this now.
    fn is_news(&mut self, reason: Refusal, now: Instant) -> bool {
        self.0.retain(|(_, at)| now.duration_since(*at) < REFUSED_AGAIN);
        let is_news = self.0.iter().all(|(known, _)| *known != reason);
        if is_news {
            self.0.push_front((reason, now));
            self.0.truncate(MOST_REFUSED);
        }
        is_news
    }
}

/// All incoming connections.
pub(crate) struct Incoming {
    shared: Arc<LinksInCommon>,
    owners: Owners,
    waker: Waker,
    stopped: AtomicBool,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    open: Vec<Arc<Connection>>,
    /// Those that are of no peer yet.
    unidentified: Unidentified<Arc<Connection>>,
    /// When the log last said that one of them was closed for another.
    displaced: Option<Instant>,
    refusals: Refusals,
    of_peer: HashMap<(PeerId, For), Arc<Connection>>,
    /// Peers that may connect, with [`Admission::Sessions`].
    admitted: HashSet<PeerId>,
    threads: Vec<JoinHandle<()>>,
}

/// One connection.
struct Connection {
    socket: Socket,
    /// Bytes received from now on are ignored.
    stopped: AtomicBool,
    /// Its thread no longer touches memory.
    finished: Mutex<bool>,
    on_finished: Condvar,
}

impl Connection {
    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.socket.shutdown();
    }
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
    fn await_finished(&self) {
        let mut finished = self.finished.lock();
        while !*finished {
            self.on_finished.wait(&mut finished);
        }
    }
}

/// Marks a connection as finished, also when its thread panics.
struct Finish<'a>(&'a Incoming, &'a Arc<Connection>);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let Finish(incoming, connection) = self;
        *connection.finished.lock() = true;
        connection.on_finished.notify_all();
        let mut table = incoming.table.lock();
        table.open.retain(|other| !Arc::ptr_eq(other, connection));
        table.unidentified.leave(|other| Arc::ptr_eq(other, connection));
        table.of_peer.retain(|_, other| !Arc::ptr_eq(other, connection));
    }
}

impl Incoming {
    /// No connections yet.
    pub(crate) fn new(shared: Arc<LinksInCommon>, owners: Owners) -> io::Result<Incoming> {
        let stopped = AtomicBool::new(false);
        Ok(Incoming { shared, owners, waker: Waker::new()?, stopped, table: Mutex::default() })
    }

    /// Ends all connections, and returns the threads, which are about to finish.
    pub(crate) fn stop(&self) -> Vec<JoinHandle<()>> {
        self.stopped.store(true, Ordering::Release);
        self.waker.wake();
        let mut table = self.table.lock();
        for connection in &table.open {
            connection.stop();
        }
        std::mem::take(&mut table.threads)
    }

    /// Admits `peer`.
    pub(crate) fn admit_peer(&self, peer: PeerId) {
        self.table.lock().admitted.insert(peer);
    }

    /// No longer admits `peer`, and ends its connection.
    pub(crate) fn expel_peer(&self, peer: PeerId) {
        let mut table = self.table.lock();
        table.admitted.remove(&peer);
        if let Some(connection) = table.of_peer.get(&(peer, For::Link)) {
            connection.stop();
        }
    }

    /// Accepts until stopped.
    pub(crate) fn accept(self: &Arc<Incoming>, listener: &Listener) {
        while !self.stopped.load(Ordering::Acquire) {
            match listener.accept(&self.waker) {
                Ok(socket) => self.admit(socket),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    warn!(%error, "the fabric cannot accept a connection");
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn admit(self: &Arc<Incoming>, socket: Socket) {
        let from = socket.peer_ip();
        let connection = Arc::new(Connection {
            socket: match self.shared.tls() {
                Some(tls) => socket.encrypted(tls.accept_node()),
                None => socket,
            },
            stopped: AtomicBool::new(false),
            finished: Mutex::new(false),
            on_finished: Condvar::new(),
        });
        let (incoming, served) = (Arc::clone(self), Arc::clone(&connection));
        let serve = move || {
            let _finish = Finish(&incoming, &served);
            incoming.serve(&served);
        };
        let mut table = self.table.lock();
        table.threads.retain(|thread| !thread.is_finished());
        if self.stopped.load(Ordering::Acquire) {
            return;
        }
        match thread::Builder::new().name(format!("{}-in", self.shared.options.threads)).spawn(serve) {
            Ok(thread) => {
                table.open.push(Arc::clone(&connection));
                table.threads.push(thread);
            }
            Err(error) => return warn!(%error, "the fabric cannot serve a connection"),
        }
        let Some(displaced) = table.unidentified.enter(connection, from) else { return };
        displaced.stop();
        let is_news = table.displaced.is_none_or(|last| last.elapsed() >= DISPLACED_WARNING);
        if is_news {
            table.displaced = Some(Instant::now());
        }
        drop(table);
        if is_news {
            warn!(?from, "many connections to the fabric do not say hello: the first are closed when more come");
        }
        // It was waiting for its socket. So there are never more threads than places.
        displaced.await_finished();
    }

    fn serve(&self, connection: &Arc<Connection>) {
        let (peer, from) = match self.shake_hands(connection) {
            Ok(shook_hands) => shook_hands,
            Err(error) if connection.is_stopped() => return debug!("the fabric closed a connection: {error}"),
            Err(error) => return self.report_refused(connection, &error),
        };
        info!(%peer, %from, "fabric peer connected");
        match self.execute(connection, peer) {
            Ok(()) => info!(%peer, %from, "fabric peer disconnected"),
            Err(_) if connection.is_stopped() => debug!(%peer, %from, "fabric peer connected anew"),
            Err(TargetError::Io(error)) => info!(%peer, %from, %error, "fabric peer lost"),
            Err(error @ TargetError::Frame(_)) => warn!(%peer, %from, %error, "fabric peer hung up on"),
        }
    }

    /// Logs why a connection was refused: once, and not again for each attempt of the same process.
    fn report_refused(&self, connection: &Connection, error: &io::Error) {
        let reason = (connection.socket.peer_ip(), error.to_string());
        if !self.table.lock().refusals.is_news(reason, Instant::now()) {
            return debug!("the fabric refused a connection: {error}");
        }
        let from = connection.socket.peer().unwrap_or_else(|_| "a peer that is gone".into());
        warn!("the fabric refused a connection from {from}: {error}");
    }

    /// Takes the peer's hello, ends its older connection and welcomes it.
    fn shake_hands(&self, connection: &Arc<Connection>) -> io::Result<(PeerId, String)> {
        let LinksInCommon { me, network, reach, options, counters, .. } = &*self.shared;
        let from = connection.socket.peer()?;
        let told = |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        connection.socket.set_timeouts(Some(options.hello_timeout), Some(options.hello_timeout))?;
        let deadline = Instant::now() + options.hello_timeout;
        let (mut bytes, mut have) = ([0; hello::HELLO], 0);
        while have < bytes.len() {
            match connection.socket.recv_once(&mut bytes[have..], &mut VecDeque::new(), true) {
                Ok(0) => return Err(told(&"it hung up before it said hello")),
                Ok(received) => have += received,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(told(&format!("no hello: {error}"))),
            }
            if Instant::now() >= deadline {
                return Err(told(&"it takes too long to say hello"));
            }
        }
        counters.add_received(hello::HELLO);
        let (peer, what_for) = match hello::check_hello(*me, *reach, &bytes) {
            Ok((peer, what_for)) if connection.socket.is_of(peer.0) => (peer, what_for),
            Ok((peer, _)) => {
                return Err(told(&format!("it says that it is server {peer}, but its certificate is another's")));
            }
            Err((error, reply)) => {
                if let Some(reply) = reply {
                    connection.socket.send_all(&reply, None)?;
                }
                return Err(told(&error));
            }
        };
        for older in self.enter((peer, what_for), connection).map_err(|reason| told(&reason))? {
            older.stop();
            older.await_finished();
        }
        let idle = (*network == Network::Tcp).then_some(options.peer_timeout * 4);
        connection.socket.set_timeouts(idle, Some(options.peer_timeout * 4))?;
        connection.socket.send_all(&hello::welcome(*me, *reach), None)?;
        counters.add_sent(hello::HELLO);
        Ok((peer, from))
    }

    /// Makes `connection` the connection of `peer` for this. Returns the older ones that end with that, or why the peer may
    /// not connect.
    fn enter(
        &self,
        (peer, what_for): (PeerId, For),
        connection: &Arc<Connection>,
    ) -> Result<Vec<Arc<Connection>>, &'static str> {
        let mut table = self.table.lock();
        if connection.is_stopped() {
            return Err("it said hello too late, and has given its place to another");
        }
        if table.of_peer.len() >= MAX_CONNECTIONS && !table.of_peer.contains_key(&(peer, what_for)) {
            return Err("the fabric has as many connections of peers as it takes");
        }
        if self.shared.options.admission == Admission::Sessions {
            if !table.admitted.contains(&peer) {
                return Err("it is not admitted");
            }
            if table.of_peer.contains_key(&(peer, For::Link)) || what_for == For::Urgent {
                return Err("the peer that it names has a connection already");
            }
        }
        table.unidentified.leave(|other| Arc::ptr_eq(other, connection));
        // A process that has begun anew has nothing to say by an urgent message of the one before.
        let ended = if what_for == For::Link { table.of_peer.remove(&(peer, For::Urgent)) } else { None };
        let older = table.of_peer.insert((peer, what_for), Arc::clone(connection));
        Ok(ended.into_iter().chain(older).collect())
    }

    /// Executes requests until the connection ends.
    fn execute(&self, connection: &Connection, peer: PeerId) -> Result<(), TargetError> {
        let mut target = Target::new(self.shared.options.admission);
        let mut owner = (self.owners)();
        let mut outlet = SocketOutlet { shared: &self.shared, socket: &connection.socket, peer };
        let mut buffer = vec![0; RECEIVE_BYTES];
        loop {
            // Peers need not send descriptors: any that came are closed at once.
            let received = connection.socket.recv(&mut buffer, &mut VecDeque::new(), true)?;
            if connection.is_stopped() {
                return Err(io::Error::from(io::ErrorKind::ConnectionAborted).into());
            }
            if received == 0 {
                return Ok(());
            }
            self.shared.counters.add_received(received);
            target.feed(&buffer[..received], &mut *owner, &mut outlet)?;
        }
    }
}

/// Messages go to the sink, answers back over the socket.
struct SocketOutlet<'a> {
    shared: &'a LinksInCommon,
    socket: &'a Socket,
    peer: PeerId,
}

impl Outlet for SocketOutlet<'_> {
    fn message(&mut self, bytes: Vec<u8>) {
        (self.shared.sink)(self.peer, LinkEvent::Message(bytes));
    }
    fn answer(&mut self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.socket.send_all(bytes, fd)?;
        self.shared.counters.add_sent(bytes.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_logged_once_and_not_for_each_attempt() {
        let mut refusals = Refusals::default();
        let from = |host: u8| Some(IpAddr::from([10, 0, 0, host]));
        let now = Instant::now();
        let said = |refusals: &mut Refusals, host, why: &str, at| refusals.is_news((from(host), why.into()), at);
        assert!(said(&mut refusals, 1, "another version", now));
        assert!(!(0..500).any(|n| said(&mut refusals, 1, "another version", now + Duration::from_millis(n))));
        assert!(said(&mut refusals, 1, "another peer", now) && said(&mut refusals, 2, "another version", now));
        assert!(said(&mut refusals, 1, "another version", now + REFUSED_AGAIN), "after a while it is said again");
        for n in 0..200 {
            assert!(said(&mut refusals, 3, &n.to_string(), now));
        }
        assert!(refusals.0.len() <= MOST_REFUSED);
    }
}

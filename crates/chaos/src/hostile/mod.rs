//! Hostile clients, as faults. They send requests without pause, never read answers, send the largest requests, try
//! passwords, and send bytes that no port understands. They write only a few keys of their own ([`PREFIX`]), which are
//! deleted at the end. So they touch no key that is judged.
//!
//! The module [`bytes`] has what they send. A strike has [`THREADS`] threads, which end when the strike is dropped: every wait
//! has a bound. A node may refuse or close any of these connections; that is not judged.

mod bytes;

use crate::cluster::certificates::channel;
use crate::faults::kind::FaultKind;
use bytes::Script;
use leeward_platform::Rng;
use leeward_security::tls::{Channel, ClientTls};
use rustix::net::sockopt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Prefix of the keys of hostile clients. No other client uses such keys. They belong to the last region.
pub(crate) const PREFIX: &str = "~hostile/";
/// The nice value of hostile threads.
const LEAST_PRIORITY: i32 = 19;
/// Threads of a strike.
const THREADS: usize = 8;
/// Connections of a strike: of a flood, of a hoard, and of giants.
const FLOODING: usize = 64;
const HOARDING: usize = 128;
const GIANTS: usize = 8;
/// Most requests for the large value on one connection of a hoard.
const HOARDED: usize = 128;
/// Receive buffer of a connection of a hoard.
const HOARDER_BUFFER_BYTES: usize = 4 << 10;
/// Most bytes of giants that a thread writes. A disk has room for those of all threads.
const GIANT_BYTES: usize = 16 << 20;
/// Pause after a piece of garbage.
const GARBAGE_PAUSE: Duration = Duration::from_millis(2);
/// Longest wait for a connection, and for anything else.
const CONNECT_WITHIN: Duration = Duration::from_millis(300);
const WAIT: Duration = Duration::from_millis(100);
/// How long the keys may take to be deleted.
const CLEAN_WITHIN: Duration = Duration::from_secs(2);

/// Addresses that hostile clients connect to.
#[derive(Clone, Debug)]
pub(crate) struct Targets {
    /// Redis ports of the servers.
    pub(crate) resp: Vec<SocketAddr>,
    /// Every port that accepts bytes: Redis, native, fabric, admin, and the embedded coordinator's.
    pub(crate) all: Vec<SocketAddr>,
    /// For TLS at the Redis ports, if there is any.
    pub(crate) tls: Option<ClientTls>,
}

/// A strike. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Hostile {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    targets: Targets,
}

impl Hostile {
    /// Begins a strike of a kind of hostile client.
    pub(crate) fn begin(kind: FaultKind, targets: &Targets, entropy: u64) -> Hostile {
        let connections = match kind {
            FaultKind::Flood | FaultKind::Guesses => FLOODING,
            FaultKind::Hoard => HOARDING,
            _ => GIANTS,
        };
        Hostile::with_connections(kind, targets, entropy, connections)
    }

    /// As [`Hostile::begin`], with this many connections at a time. Garbage always uses one connection per thread.
    pub(crate) fn with_connections(kind: FaultKind, targets: &Targets, entropy: u64, connections: usize) -> Hostile {
        let is_over = Arc::new(AtomicBool::new(false));
        let begin = |number: usize| {
            let rng = Rng::new(entropy.wrapping_add(number as u64));
            let connections = (connections + THREADS - 1 - number) / THREADS;
            let (targets, is_over) = (targets.clone(), is_over.clone());
            let mut client = Client { targets, number, connections, script: Script::new(rng), is_over };
            thread::spawn(move || {
                lower_priority();
                match kind {
                    FaultKind::Flood => client.flood(Script::flood),
                    FaultKind::Guesses => client.flood(Script::guess),
                    FaultKind::Hoard => client.hoard(),
                    FaultKind::Giants => client.giants(),
                    _ => client.garbage(),
                }
            })
        };
        let threads = (0..THREADS).map(begin).collect();
        Hostile { is_over, threads, targets: targets.clone() }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // A thread that panicked has printed its message.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        clean(&self.targets);
    }
}

/// Gives the calling thread the lowest priority: real hostile clients would have processors of their own.
fn lower_priority() {
    // If the system refuses, the run is only harder.
    rustix::process::setpriority_process(None, LEAST_PRIORITY).unwrap_or_default();
}

/// Deletes the keys through the first server that does it. If none does, the next strike overwrites them.
fn clean(targets: &Targets) {
    let until = Instant::now() + CLEAN_WITHIN;
    for server in targets.resp.iter().cycle() {
        if Instant::now() > until {
            return;
        }
        let Some(mut stream) = targets.connect(*server) else { continue };
        let mut answer = [0; 16];
        let is_asked = stream.write_all(&bytes::delete_all()).is_ok();
        let deadline = stream.stream().set_read_timeout(Some(CLEAN_WITHIN));
        if is_asked && deadline.is_ok() && stream.read(&mut answer).is_ok_and(|read| read > 0) && answer[0] == b':' {
            return;
        }
    }
}

impl Targets {
    /// A connection to a Redis port, which is ready for commands. The handshake of TLS is over.
    fn connect(&self, address: SocketAddr) -> Option<Channel<TcpStream>> {
        let mut channel = channel(self.tls.as_ref(), address, connect(address)?).ok()?;
        channel.establish().ok()?;
        Some(channel)
    }
}

fn connect(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, CONNECT_WITHIN).ok()?;
    stream.set_read_timeout(Some(WAIT)).ok()?;
    stream.set_write_timeout(Some(WAIT)).ok()?;
    Some(stream)
}

/// One thread of a strike.
struct Client {
    targets: Targets,
    number: usize,
    /// Connections that it has at a time.
    connections: usize,
    script: Script,
    is_over: Arc<AtomicBool>,
}

impl Client {
    fn is_wanted(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst)
    }

    /// Connections to the servers in turn, as many as they accept.
    fn connect(&self) -> Vec<Channel<TcpStream>> {
        let servers = &self.targets.resp;
        let server = |next: usize| servers[(self.number + next) % servers.len()];
        (0..self.connections)
            .filter(|_| self.is_wanted())
            .filter_map(|next| self.targets.connect(server(next)))
            .collect()
    }

    /// Commands without pause. Answers that have arrived are read, so that the node stays busy and is not blocked.
    fn flood(&mut self, commands: impl Fn(&mut Script) -> Vec<u8>) {
        let mut sink = vec![0; 64 << 10];
        while self.is_wanted() {
            let mut connections = self.connect();
            while self.is_wanted() && !connections.is_empty() {
                connections.retain_mut(|stream| exchange(stream, &commands(&mut self.script), &mut sink));
            }
            thread::sleep(WAIT / 4);
        }
    }

    /// Repeated requests for a large value; no answer is read.
    fn hoard(&mut self) {
        if let Some(mut stream) = self.targets.resp.first().and_then(|server| self.targets.connect(*server)) {
            // If it cannot be written now, the value of an earlier strike may be there.
            let mut answer = [0; 64];
            drop(stream.write_all(&bytes::large_value()).and_then(|()| stream.read(&mut answer)));
        }
        let (mut asking, mut silent) = (self.connect(), Vec::new());
        // A small buffer: the kernel does not store unread answers for the client.
        let is_small = |stream: &TcpStream| sockopt::set_socket_recv_buffer_size(stream, HOARDER_BUFFER_BYTES).is_ok();
        asking.retain(|channel| channel.stream().set_nonblocking(true).is_ok() && is_small(channel.stream()));
        let request = bytes::large_read();
        for _ in 0..HOARDED {
            let takes_it =
                |stream: &mut Channel<TcpStream>| stream.write(&request).is_ok_and(|sent| sent == request.len());
            // A node may stop reading. The connection stays open for the outstanding answers.
            silent.extend(asking.extract_if(.., |stream| !takes_it(stream)));
        }
        while self.is_wanted() {
            thread::sleep(WAIT);
        }
    }

    /// The largest allowed requests and larger ones, on each connection in turn. Answers that have arrived are read.
    fn giants(&mut self) {
        let (mut left, mut sink) = (GIANT_BYTES, vec![0; 1 << 20]);
        while self.is_wanted() {
            let mut connections = self.connect();
            while self.is_wanted() && !connections.is_empty() {
                connections.retain_mut(|stream| {
                    let giant = self.script.giant(left > 0);
                    left = left.saturating_sub(giant.len());
                    !self.is_over.load(Ordering::SeqCst) && exchange(stream, &giant, &mut sink)
                });
            }
            thread::sleep(WAIT);
        }
    }

    /// Random and slightly wrong bytes to every port in turn.
    fn garbage(&mut self) {
        let mut sink = [0; 4 << 10];
        for next in self.number.. {
            if !self.is_wanted() {
                return;
            }
            let address = self.targets.all[next % self.targets.all.len()];
            if let Some(mut stream) = connect(address)
                && stream.write_all(&self.script.garbage()).is_ok()
                && next.is_multiple_of(3)
            {
                // The node may answer or close the connection. Every third time the client waits for that.
                drop(stream.read(&mut sink));
            }
            thread::sleep(GARBAGE_PAUSE);
        }
    }
}

/// Sends `bytes`, and reads some of what has arrived. Answers whether the connection can be used again.
fn exchange(stream: &mut Channel<TcpStream>, bytes: &[u8], sink: &mut [u8]) -> bool {
    let is_sent = stream.write_all(bytes).is_ok();
    let is_open = stream.stream().set_nonblocking(true).is_ok() && !is_ended(stream, sink);
    is_sent && is_open && stream.stream().set_nonblocking(false).is_ok()
}

/// Reads some of what has arrived. Answers whether the other side has ended the connection.
fn is_ended(stream: &mut Channel<TcpStream>, sink: &mut [u8]) -> bool {
    match stream.read(sink) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

//! Hostile clients, as faults: they ask without pause, never read, send what is largest, and send what no port understands. What they write
//! are keys of their own ([`PREFIX`]), few, and deleted at the end, so that nothing that is judged is touched.
//!
//! - [`bytes`]: what they send. Each strike has a few threads here, one for each of [`THREADS`], which end when the strike is dropped: every
//!   wait has a bound. A node may refuse or close whatever it likes; only that is not judged.

mod bytes;

use crate::faults::kind::FaultKind;
use bytes::Script;
use leeward_platform::Rng;
use rustix::net::sockopt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What the keys of hostile clients begin with: no other client uses such keys. They belong to the last region.
pub(crate) const PREFIX: &str = "~hostile/";
/// The nice value of those that do not matter.
const LEAST_PRIORITY: i32 = 19;
/// Threads of a strike.
const THREADS: usize = 8;
/// Connections of a strike of chaos: of floods, of those that never read, and of giants.
const FLOODING: usize = 64;
const HOARDING: usize = 128;
const GIANTS: usize = 8;
/// Requests for the large value that one of those connections sends at most.
const HOARDED: usize = 128;
/// Receive buffer of one of those connections.
const HOARDER_BUFFER_BYTES: usize = 4 << 10;
/// Bytes that a thread sends at most of giants: a disk has room for those of all.
const GIANT_BYTES: usize = 16 << 20;
/// Pause after a piece of garbage.
const GARBAGE_PAUSE: Duration = Duration::from_millis(2);
/// How long a connection may take, and how long anything else may.
const CONNECT_WITHIN: Duration = Duration::from_millis(300);
const WAIT: Duration = Duration::from_millis(100);
/// How long the keys may take to be deleted.
const CLEAN_WITHIN: Duration = Duration::from_secs(2);

/// Where hostile clients connect to.
#[derive(Clone, Debug)]
pub(crate) struct Targets {
    /// Redis ports of the servers.
    pub(crate) resp: Vec<SocketAddr>,
    /// Every port that takes bytes: those too, native, fabric, admin, and the embedded coordinator's.
    pub(crate) all: Vec<SocketAddr>,
}

/// A strike. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Hostile {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    resp: Vec<SocketAddr>,
}

impl Hostile {
    /// Begins a strike of one of the kinds that are hostile clients.
    pub(crate) fn begin(kind: FaultKind, targets: &Targets, dice: u64) -> Hostile {
        let connections = match kind {
            FaultKind::Flood => FLOODING,
            FaultKind::Hoard => HOARDING,
            _ => GIANTS,
        };
        Hostile::with_connections(kind, targets, dice, connections)
    }

    /// As [`Hostile::begin`], with so many connections at a time. Garbage comes by one of each thread, however many there are.
    pub(crate) fn with_connections(kind: FaultKind, targets: &Targets, dice: u64, connections: usize) -> Hostile {
        let is_over = Arc::new(AtomicBool::new(false));
        let begin = |number: usize| {
            let rng = Rng::new(dice.wrapping_add(number as u64));
            let connections = (connections + THREADS - 1 - number) / THREADS;
            let (targets, is_over) = (targets.clone(), is_over.clone());
            let mut client = Client { targets, number, connections, script: Script::new(rng), is_over };
            thread::spawn(move || {
                give_way();
                match kind {
                    FaultKind::Flood => client.flood(),
                    FaultKind::Hoard => client.hoard(),
                    FaultKind::Giants => client.giants(),
                    _ => client.garbage(),
                }
            })
        };
        let threads = (0..THREADS).map(begin).collect();
        Hostile { is_over, threads, resp: targets.resp.clone() }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // One that panicked has said so.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        clean(&self.resp);
    }
}

/// The thread that asks has least claim to the processors: hostile clients would have their own.
fn give_way() {
    // Where the system refuses, the run is harder.
    rustix::process::setpriority_process(None, LEAST_PRIORITY).unwrap_or_default();
}

/// Deletes the keys, by way of the first server that does it; where none does they stay, and are overwritten by the next strike.
fn clean(servers: &[SocketAddr]) {
    let until = Instant::now() + CLEAN_WITHIN;
    for server in servers.iter().cycle() {
        if Instant::now() > until {
            return;
        }
        let Some(mut stream) = connect(*server) else { continue };
        let mut answer = [0; 16];
        let is_asked = stream.write_all(&bytes::delete_all()).is_ok();
        let deadline = stream.set_read_timeout(Some(CLEAN_WITHIN));
        if is_asked && deadline.is_ok() && stream.read(&mut answer).is_ok_and(|read| read > 0) && answer[0] == b':' {
            return;
        }
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
    /// How many it has at a time.
    connections: usize,
    script: Script,
    is_over: Arc<AtomicBool>,
}

impl Client {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst)
    }

    /// Connections to the servers in turn, as many as can be had.
    fn connect(&self) -> Vec<TcpStream> {
        let servers = &self.targets.resp;
        let server = |next: usize| servers[(self.number + next) % servers.len()];
        (0..self.connections).filter(|_| self.goes_on()).filter_map(|next| connect(server(next))).collect()
    }

    /// Commands without pause; answers are read as far as they have come, so that the node is kept busy and not blocked.
    fn flood(&mut self) {
        let mut sink = vec![0; 64 << 10];
        while self.goes_on() {
            let mut connections = self.connect();
            while self.goes_on() && !connections.is_empty() {
                connections.retain_mut(|stream| exchange(stream, &self.script.flood(), &mut sink));
            }
            thread::sleep(WAIT / 4);
        }
    }

    /// A large value is asked for again and again, and no answer is read.
    fn hoard(&mut self) {
        if let Some(mut stream) = self.targets.resp.first().and_then(|server| connect(*server)) {
            // Where it cannot be written now, that of an earlier strike is there, or nothing.
            let mut answer = [0; 64];
            drop(stream.write_all(&bytes::large_value()).and_then(|()| stream.read(&mut answer)));
        }
        let (mut asking, mut silent) = (self.connect(), Vec::new());
        // The kernel does not keep for the client what it does not read.
        let is_small = |stream: &TcpStream| sockopt::set_socket_recv_buffer_size(stream, HOARDER_BUFFER_BYTES).is_ok();
        asking.retain(|stream| stream.set_nonblocking(true).is_ok() && is_small(stream));
        let request = bytes::large_read();
        for _ in 0..HOARDED {
            let takes_it = |stream: &mut TcpStream| stream.write(&request).is_ok_and(|sent| sent == request.len());
            // A node that takes no more is right. The connection stays open, for what is owed to it.
            silent.extend(asking.extract_if(.., |stream| !takes_it(stream)));
        }
        while self.goes_on() {
            thread::sleep(WAIT);
        }
    }

    /// What is as large as can be, and larger, by each connection in turn; of the answers as much is read as has come.
    fn giants(&mut self) {
        let (mut left, mut sink) = (GIANT_BYTES, vec![0; 1 << 20]);
        while self.goes_on() {
            let mut connections = self.connect();
            while self.goes_on() && !connections.is_empty() {
                connections.retain_mut(|stream| {
                    let giant = self.script.giant(left > 0);
                    left = left.saturating_sub(giant.len());
                    !self.is_over.load(Ordering::SeqCst) && exchange(stream, &giant, &mut sink)
                });
            }
            thread::sleep(WAIT);
        }
    }

    /// Bytes that mean nothing, or nearly something, to every port in turn.
    fn garbage(&mut self) {
        let mut sink = [0; 4 << 10];
        for next in self.number.. {
            if !self.goes_on() {
                return;
            }
            let address = self.targets.all[next % self.targets.all.len()];
            if let Some(mut stream) = connect(address)
                && stream.write_all(&self.script.garbage()).is_ok()
                && next.is_multiple_of(3)
            {
                // It may be answered or closed; sometimes one waits for that.
                drop(stream.read(&mut sink));
            }
            thread::sleep(GARBAGE_PAUSE);
        }
    }
}

/// Sends something, and reads some of what has come; whether the connection is good for more.
fn exchange(stream: &mut TcpStream, bytes: &[u8], sink: &mut [u8]) -> bool {
    let is_sent = stream.write_all(bytes).is_ok();
    let is_open = stream.set_nonblocking(true).is_ok() && !is_ended(stream, sink);
    is_sent && is_open && stream.set_nonblocking(false).is_ok()
}

/// Reads what has come, some of it at a time; whether the other side has ended the connection.
fn is_ended(stream: &mut TcpStream, sink: &mut [u8]) -> bool {
    match stream.read(sink) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

//! The sockets that clients connect to, and which of them may have connections that wait to be accepted. When file
//! descriptors run out, connections are accepted with those of a [`Reserve`].

use super::connection::Kind;
use crate::descriptors::Reserve;
use crate::places::RESERVED_FILES;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Poll token of the listener for Redis clients. The listener for native clients has the next one.
const FIRST_LISTENER: usize = 1;
/// How often the log says at most that file descriptors have run out.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Connections that a turn accepts of each listener.
const ACCEPTED: usize = 64;

/// The listeners. The one for Redis clients is closed when the drain begins.
pub(super) struct Acceptor {
    listeners: [Listener; 2],
    reserve: Reserve,
    /// A descriptor of the reserve was given, and not all are there again.
    lacks_files: bool,
    /// When the log last said so.
    warned: Option<Instant>,
    /// A listener may have connections that were not accepted, for lack of descriptors.
    is_short: bool,
}

struct Listener {
    kind: Kind,
    socket: Option<TcpListener>,
    /// It may have more connections than a turn accepts.
    has_more: bool,
}

/// A connection that was accepted.
pub(super) struct Accepted {
    pub(super) kind: Kind,
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
}

impl Acceptor {
    /// Registers the listeners for Redis clients and for native ones.
    pub(super) fn new(resp: TcpListener, native: TcpListener, registry: &Registry) -> io::Result<Acceptor> {
        let mut listeners = [(Kind::Resp, resp), (Kind::Native, native)].map(|(kind, socket)| Listener {
            kind,
            socket: Some(socket),
            has_more: false,
        });
        for (number, socket) in listeners.iter_mut().filter_map(|listener| listener.socket.as_mut()).enumerate() {
            registry.register(socket, Token(FIRST_LISTENER + number), Interest::READABLE)?;
        }
        Ok(Acceptor {
            listeners,
            reserve: Reserve::of(RESERVED_FILES),
            lacks_files: false,
            warned: None,
            is_short: false,
        })
    }

    /// Handles an event of the poll. Returns whether `token` is that of a listener.
    pub(super) fn told(&mut self, token: Token) -> bool {
        let listener = token.0.checked_sub(FIRST_LISTENER).and_then(|number| self.listeners.get_mut(number));
        listener.map(|listener| listener.has_more = true).is_some()
    }

    /// Whether the next turn has connections to accept.
    pub(super) fn has_more(&self) -> bool {
        self.listeners.iter().any(|listener| listener.has_more)
    }

    /// Whether file descriptors have run out.
    pub(super) fn lacks_files(&self) -> bool {
        self.lacks_files
    }

    /// A descriptor was closed: the reserve has it first.
    pub(super) fn refill(&mut self) {
        if self.lacks_files {
            self.lacks_files = !self.reserve.refill();
        }
    }

    /// A tick: there may be descriptors again.
    pub(super) fn tick(&mut self) {
        self.refill();
        if std::mem::take(&mut self.is_short) {
            self.listeners.iter_mut().for_each(|listener| listener.has_more = true);
        }
    }

    /// Accepts no more connections of this kind.
    pub(super) fn close(&mut self, kind: Kind) {
        self.listeners.iter_mut().filter(|listener| listener.kind == kind).for_each(|listener| listener.socket = None);
    }

    /// Accepts as many connections as a turn takes.
    pub(super) fn accept(&mut self) -> Vec<Accepted> {
        let mut accepted = Vec::new();
        for number in 0..self.listeners.len() {
            if self.listeners[number].has_more {
                self.listeners[number].has_more = self.accept_of(number, &mut accepted);
            }
        }
        accepted
    }

    /// Accepts connections of a listener. Returns whether it may have more.
    fn accept_of(&mut self, number: usize, accepted: &mut Vec<Accepted>) -> bool {
        let Listener { kind, socket: Some(socket), .. } = &self.listeners[number] else { return false };
        for _ in 0..ACCEPTED {
            let mut tries = 0;
            let attempt = self.reserve.accept(|| {
                tries += 1;
                socket.accept()
            });
            self.lacks_files |= tries > 1;
            if tries > 1 && self.warned.is_none_or(|warned| warned.elapsed() >= WARNING_INTERVAL) {
                self.warned = Some(Instant::now());
                tracing::warn!(
                    "file descriptors have run out: new clients are refused, and operators let in. Raise the process's \
                     limit (ulimit -n, or systemd's LimitNOFILE), or lower max_connections"
                );
            }
            match attempt {
                Ok((stream, address)) => {
                    accepted.push(Accepted { kind: *kind, stream, address });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The client gave up while it was queued.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::debug!(%error, "connections wait: none can be accepted");
                    self.is_short = true;
                    return false;
                }
            }
        }
        true
    }
}

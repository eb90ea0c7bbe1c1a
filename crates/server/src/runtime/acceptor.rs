//! The sockets that clients connect to, and which of them may have connections that wait to be accepted.

use super::connection::Kind;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

/// Poll token of the listener for Redis clients. The listener for native clients has the next one.
const FIRST_LISTENER: usize = 1;
/// Connections that a turn accepts of each listener.
const ACCEPTED: usize = 64;

/// The listeners. The one for Redis clients is closed when the drain begins.
pub(super) struct Acceptor {
    listeners: [Listener; 2],
    /// A listener may have connections that were not accepted, for lack of descriptors.
    is_short: bool,
    /// The log says that connections cannot be accepted, and none was accepted since.
    is_blocked: bool,
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
        Ok(Acceptor { listeners, is_short: false, is_blocked: false })
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

    /// A tick: there may be descriptors again.
    pub(super) fn tick(&mut self) {
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
            match socket.accept() {
                Ok((stream, address)) => {
                    self.is_blocked = false;
                    accepted.push(Accepted { kind: *kind, stream, address });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The client gave up while it was queued.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if !std::mem::replace(&mut self.is_blocked, true) {
                        tracing::warn!(%error, "connections wait: none can be accepted (out of file descriptors?)");
                    }
                    self.is_short = true;
                    return false;
                }
            }
        }
        true
    }
}

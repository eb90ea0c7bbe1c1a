//! A client's socket and its protocol session: moves bytes between the two without ever blocking.

use crate::metrics::Dropped;
use crate::node::Token;
use crate::protocol_session::ProtocolSession;
use crate::quota::STEP_UNITS;
use crate::session_context::Context;
use bytes::{Buf, BytesMut};
use leeward_format::op::OpResult;
use leeward_platform::{BootClock, Clock, Nanos};
use leeward_region::request::{ReplyTo, Request};
use leeward_security::tls::{Channel, NodeTls};
use mio::net::TcpStream;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;

/// Most unread bytes that are read and dropped when a connection ends, so that no reset destroys its last reply.
const DRAINED_BYTES: usize = 1024 * 1024;

/// Bytes of the reply buffer that a connection keeps between replies.
const KEPT_OUTPUT_BYTES: usize = 16 * 1024;

/// First byte of a client's first message in TLS.
const TLS_HANDSHAKE: u8 = 22;

/// Bytes that a record of TLS has at least beside its content, and units of work for one: some 400 ns.
const RECORD_OVERHEAD_BYTES: usize = 22;
const RECORD_UNITS: u32 = 4;

/// How long a handshake of TLS may take.
const HANDSHAKE_TIMEOUT: Nanos = Nanos::from_secs(10);

/// Which protocol a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// RESP.
    Resp,
    /// The native one.
    Native,
}

/// One client connection.
pub(super) struct Connection {
    pub(super) kind: Kind,
    channel: Channel<TcpStream>,
    pub(super) protocol_session: Box<dyn ProtocolSession>,
    /// The socket may have bytes that were not read.
    is_readable: bool,
    /// The peer sends no more: the end follows the bytes that are left, without another event.
    is_closed_by_peer: bool,
    /// The socket took all bytes that it was last offered.
    is_writable: bool,
    /// When it last took bytes, or had none to take.
    progress: Nanos,
    opened: Nanos,
    /// The client is gone: the connection is to be removed.
    pub(super) is_dead: bool,
    /// Number of the newest operation that was submitted.
    newest: u64,
    /// Operations of a long request that the node does not have yet. Nothing is read before it has them.
    pub(super) unsubmitted: VecDeque<Request>,
    /// Nothing was read yet.
    is_new: bool,
    /// When the last bytes of a Redis client had come: the session, which may answer at once, gets no earlier time with them.
    heard: Nanos,
}

impl Connection {
    pub(super) fn new(
        kind: Kind,
        channel: Channel<TcpStream>,
        protocol_session: Box<dyn ProtocolSession>,
        now: Nanos,
    ) -> Connection {
        Connection {
            kind,
            channel,
            protocol_session,
            is_readable: false,
            is_closed_by_peer: false,
            is_writable: true,
            progress: now,
            opened: now,
            is_dead: false,
            newest: 0,
            unsubmitted: VecDeque::new(),
            is_new: true,
            heard: now,
        }
    }

    pub(super) fn socket(&mut self) -> &mut TcpStream {
        self.channel.stream_mut()
    }

    /// Whether its session accepts input.
    pub(super) fn takes_input(&self) -> bool {
        !self.is_dead && self.unsubmitted.is_empty() && self.protocol_session.wants_input()
    }

    /// Whether there is work that waits for nothing.
    pub(super) fn has_work(&self) -> bool {
        !self.is_dead && (self.protocol_session.has_work() || !self.unsubmitted.is_empty())
    }

    /// Whether there may be bytes to read.
    pub(super) fn is_readable(&self) -> bool {
        self.is_readable
    }

    /// Notes that there may be bytes to read; `is_last`: the peer sends no more.
    pub(super) fn became_readable(&mut self, is_last: bool) {
        self.is_readable = true;
        self.is_closed_by_peer |= is_last;
    }

    /// Notes that the socket takes bytes again.
    pub(super) fn became_writable(&mut self) {
        self.is_writable = true;
    }

    /// An operation is about to be submitted.
    pub(super) fn submits(&mut self, request: &Request) {
        if let ReplyTo::Client(token) = request.to {
            self.newest += token.distance_from(self.newest);
        }
    }

    /// Hands the result of the operation `token` to the session.
    pub(super) fn complete(&mut self, token: Token, result: OpResult, context: &mut Context) {
        // Far fewer operations are in flight than the low bits can tell apart, and none is newer than the newest.
        let age = token.distance_to(self.newest);
        self.protocol_session.complete(self.newest - age, result, context);
    }

    /// Reads once, if nothing is left of an earlier read. Lets the session act on it as far as the quota allows.
    pub(super) fn read(&mut self, buffer: &mut [u8], context: &mut Context, submit: &mut Vec<Request>) {
        if !self.has_work() && self.is_readable && self.takes_input() && self.speaks_tls_if_it_must() {
            if !self.channel.is_established() {
                // A signature takes as long as a step.
                context.quota.take(STEP_UNITS);
            }
            let read = self.channel.read(buffer);
            if let Some(received) = self.channel.take_received() {
                let overhead = received.saturating_sub(*read.as_ref().unwrap_or(&0));
                context.quota.take((overhead / RECORD_OVERHEAD_BYTES) as u32 * RECORD_UNITS);
            }
            match read {
                Ok(0) => {
                    // What came before the end is executed first. If that takes longer, the end is read again.
                    self.protocol_session.advance(context, submit);
                    if !self.has_work() && self.protocol_session.wants_input() {
                        self.is_readable = false;
                        self.protocol_session.stop();
                    }
                }
                Ok(len) => {
                    if self.kind == Kind::Resp {
                        self.heard = BootClock.now();
                    }
                    // A short read has emptied the socket: more bytes raise an event.
                    self.is_readable = len == buffer.len() || self.is_closed_by_peer || self.channel.is_encrypted();
                    context.quota.take_bytes(len);
                    self.protocol_session.feed(&buffer[..len]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_readable = false,
                // It is read again.
                Err(error) if error.kind() == ErrorKind::Interrupted => return,
                Err(error) => {
                    self.is_dead = true;
                    if error.kind() == ErrorKind::InvalidData {
                        tracing::debug!(peer = ?self.channel.stream().peer_addr().ok(), "TLS with a client failed: {error}");
                    }
                }
            }
        }
        context.now = context.now.max(self.heard);
        self.protocol_session.advance(context, submit);
    }

    /// Refuses a client that begins without TLS at a port that needs it, in words that its protocol has.
    fn speaks_tls_if_it_must(&mut self) -> bool {
        if !self.is_new || !self.channel.is_encrypted() {
            return true;
        }
        let mut first = [TLS_HANDSHAKE];
        match self.channel.stream().peek(&mut first) {
            Ok(0) | Err(_) => return true,
            Ok(_) => self.is_new = false,
        }
        if first[0] == TLS_HANDSHAKE {
            return true;
        }
        let text: &[u8] = match self.kind {
            Kind::Resp => b"-ERR this port speaks TLS only, for instance: redis-cli --tls --cacert ca.crt\r\n",
            Kind::Native => b"",
        };
        // It is closed in any case.
        drop(self.channel.stream_mut().write(text));
        self.end();
        false
    }

    /// Lets the session work and sends its output, until the quota is used up, the socket takes no more, or nothing is
    /// left. It repeats this, since output that was not taken may have held the session back, and no event says when
    /// that is over. Returns why the server gave the connection up, if it did.
    pub(super) fn advance(
        &mut self,
        most_output: usize,
        context: &mut Context,
        submit: &mut Vec<Request>,
    ) -> Option<Dropped> {
        context.now = context.now.max(self.heard);
        loop {
            self.protocol_session.advance(context, submit);
            let unsent = self.protocol_session.output().len();
            let dropped = self.write(context.now, most_output);
            if dropped.is_some() || self.is_dead || self.protocol_session.output().len() == unsent || self.has_work() {
                return dropped;
            }
        }
    }

    /// Sends the output. Returns why the server gave the connection up, if it did.
    fn write(&mut self, now: Nanos, most_output: usize) -> Option<Dropped> {
        while self.is_writable && !self.is_dead && !self.protocol_session.output().is_empty() {
            match self.channel.write(self.protocol_session.output()) {
                Ok(len) => {
                    self.protocol_session.output().advance(len);
                    self.progress = now;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => self.is_dead = true,
            }
        }
        while self.is_writable && !self.is_dead && self.channel.has_unsent() {
            match self.channel.flush() {
                Ok(()) => self.progress = now,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                Err(_) => self.is_dead = true,
            }
        }
        let has_left = self.channel.has_unsent();
        let unsent = self.protocol_session.output();
        if unsent.is_empty() && !has_left {
            self.progress = now;
            if unsent.capacity() > KEPT_OUTPUT_BYTES {
                *unsent = BytesMut::new();
            }
        } else if unsent.len() > most_output && !self.is_dead {
            self.is_dead = true;
            return Some(Dropped::OutputLimit);
        }
        None
    }

    /// Gives up a client that takes no replies for `timeout`, or does not come to the end of its handshake.
    pub(super) fn check_stall(&mut self, now: Nanos, timeout: Nanos) -> Option<Dropped> {
        let has_unsent = !self.protocol_session.output().is_empty() || self.channel.has_unsent();
        let is_late = !self.channel.is_established() && now - self.opened > HANDSHAKE_TIMEOUT;
        let is_stalled = has_unsent && now - self.progress > timeout;
        self.is_dead |= is_late || is_stalled;
        if is_late { Some(Dropped::Handshake) } else { is_stalled.then_some(Dropped::Stalled) }
    }

    /// Whether all requests are answered, all answers are sent over the socket, and no more are taken.
    pub(super) fn is_finished(&self) -> bool {
        self.protocol_session.is_finished() && !self.channel.has_unsent() && !self.is_dead
    }

    /// Tells the client that there are too many, as far as its socket takes that at once, and closes the connection.
    pub(super) fn turn_away(&mut self, now: Nanos) {
        self.protocol_session.turn_away();
        self.write(now, usize::MAX);
        self.end();
    }

    /// Closes a connection that is finished.
    pub(super) fn end(&mut self) {
        self.is_dead = true;
        // The client may be gone already: then nothing can be sent.
        if self.channel.is_established() {
            drop(self.channel.send_end());
        }
        drop(self.channel.stream().shutdown(Shutdown::Write));
        let mut scratch = [0; 4096];
        let mut drained = 0;
        while drained < DRAINED_BYTES {
            match self.channel.stream_mut().read(&mut scratch) {
                Ok(len) if len > 0 => drained += len,
                _ => break,
            }
        }
    }
}

/// What clients connect with: TLS, if the node has certificates.
pub(super) fn channel(tls: Option<&NodeTls>, stream: TcpStream) -> Channel<TcpStream> {
    Channel::over(stream, tls.map(NodeTls::accept_client))
}

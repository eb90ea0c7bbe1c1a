//! A client's socket and its protocol session: moves bytes between the two without ever blocking.

use crate::commands::Context;
use crate::metrics::Dropped;
use crate::node::Token;
use crate::protocol_session::{ProtocolSession, Submission};
use bytes::{Buf, BytesMut};
use leeward_format::op::OpResult;
use leeward_platform::Nanos;
use mio::net::TcpStream;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;

/// Most unread bytes that are read and dropped when a connection ends, so that no reset destroys its last reply.
const DRAINED_BYTES: usize = 1024 * 1024;

/// Bytes of the reply buffer that a connection keeps between replies.
const KEPT_OUTPUT_BYTES: usize = 16 * 1024;

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
    pub(super) stream: TcpStream,
    pub(super) protocol_session: Box<dyn ProtocolSession>,
    /// The socket may have bytes that were not read.
    is_readable: bool,
    /// The peer sends no more: the end follows the bytes that are left, without another event.
    is_closed_by_peer: bool,
    /// The socket took all bytes that it was last offered.
    is_writable: bool,
    /// When it last took bytes, or had none to take.
    progress: Nanos,
    /// The client is gone: the connection is to be removed.
    pub(super) is_dead: bool,
    /// Number of the newest operation that was submitted.
    newest: u64,
    /// Operations of a long request that the node does not have yet. Nothing is read before it has them.
    pub(super) unsubmitted: VecDeque<Submission>,
}

impl Connection {
    pub(super) fn new(
        kind: Kind,
        stream: TcpStream,
        protocol_session: Box<dyn ProtocolSession>,
        now: Nanos,
    ) -> Connection {
        Connection {
            kind,
            stream,
            protocol_session,
            is_readable: false,
            is_closed_by_peer: false,
            is_writable: true,
            progress: now,
            is_dead: false,
            newest: 0,
            unsubmitted: VecDeque::new(),
        }
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

    /// The token of operation `number`, which is about to be submitted, on the connection `id`.
    pub(super) fn token(&mut self, id: u64, number: u64) -> Token {
        self.newest = self.newest.max(number);
        Token::new(id, number)
    }

    /// Hands the result of the operation `token` to the session.
    pub(super) fn complete(&mut self, token: Token, result: OpResult, context: &mut Context) {
        // Far fewer operations are in flight than the low bits can tell apart, and none is newer than the newest.
        let age = token.distance_to(self.newest);
        self.protocol_session.complete(self.newest - age, result, context);
    }

    /// Reads once, if nothing is left of an earlier read. Lets the session act on it as far as the quota allows.
    pub(super) fn read(&mut self, buffer: &mut [u8], context: &mut Context, submit: &mut Vec<Submission>) {
        if !self.has_work() && self.is_readable && self.takes_input() {
            match self.stream.read(buffer) {
                Ok(0) => {
                    self.is_readable = false;
                    self.protocol_session.stop();
                }
                Ok(len) => {
                    // A short read has emptied the socket: more bytes raise an event.
                    self.is_readable = len == buffer.len() || self.is_closed_by_peer;
                    context.quota.take_bytes(len);
                    self.protocol_session.feed(&buffer[..len]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_readable = false,
                // It is read again.
                Err(error) if error.kind() == ErrorKind::Interrupted => return,
                Err(_) => self.is_dead = true,
            }
        }
        self.protocol_session.advance(context, submit);
    }

    /// Lets the session work and sends its output, until the quota is used up, the socket takes no more, or nothing is
    /// left. It repeats this, since output that was not taken may have held the session back, and no event says when
    /// that is over. Returns why the server gave the connection up, if it did.
    pub(super) fn advance(
        &mut self,
        most_output: usize,
        context: &mut Context,
        submit: &mut Vec<Submission>,
    ) -> Option<Dropped> {
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
            match self.stream.write(self.protocol_session.output()) {
                Ok(len) => {
                    self.protocol_session.output().advance(len);
                    self.progress = now;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => self.is_dead = true,
            }
        }
        let unsent = self.protocol_session.output();
        if unsent.is_empty() {
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

    /// Gives up a client that takes no replies for `timeout`.
    pub(super) fn check_stall(&mut self, now: Nanos, timeout: Nanos) -> Option<Dropped> {
        let is_stalled = !self.protocol_session.output().is_empty() && now - self.progress > timeout;
        self.is_dead |= is_stalled;
        is_stalled.then_some(Dropped::Stalled)
    }

    /// Whether all requests are answered, all answers are sent over the socket, and no more are taken.
    pub(super) fn is_finished(&self) -> bool {
        self.protocol_session.is_finished() && !self.is_dead
    }

    /// Closes a connection that is finished.
    pub(super) fn end(&mut self) {
        self.is_dead = true;
        // The client may be gone already: then nothing can be sent.
        drop(self.stream.shutdown(Shutdown::Write));
        let mut scratch = [0; 4096];
        let mut drained = 0;
        while drained < DRAINED_BYTES {
            match self.stream.read(&mut scratch) {
                Ok(len) if len > 0 => drained += len,
                _ => break,
            }
        }
    }
}

/// Refuses a client beyond the limit, with a message if its protocol has one.
pub(super) fn refuse(kind: Kind, mut stream: &TcpStream) -> io::Result<()> {
    match kind {
        Kind::Resp => stream.write_all(b"-ERR max number of clients reached\r\n"),
        Kind::Native => Ok(()),
    }
}

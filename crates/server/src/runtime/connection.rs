//! A client's socket and its conversation: moves bytes between the two without ever blocking.

use crate::commands::Context;
use crate::conversation::{Conversation, Submission};
use crate::metrics::Dropped;
use crate::node::Token;
use bytes::{Buf, BytesMut};
use leeward_format::op::OpResult;
use leeward_platform::Nanos;
use mio::net::TcpStream;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;

/// Most unread bytes thrown away when a connection ends, so that its last reply is not lost to a reset.
const DRAINED_BYTES: usize = 1024 * 1024;

/// Memory for replies that a connection keeps between them, in bytes.
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
    pub(super) conversation: Box<dyn Conversation>,
    /// The socket may have bytes that were not read.
    is_readable: bool,
    /// The peer sends no more: after the bytes that are left comes the end, without another event.
    is_closed_by_peer: bool,
    /// The socket took the last bytes that it was offered.
    is_writable: bool,
    /// When it last took bytes, or had none to take.
    progress: Nanos,
    /// Nobody is there any more: to be removed.
    pub(super) is_dead: bool,
    /// Number of the newest operation that was submitted.
    newest: u64,
    /// Operations of a long request which the node was not given yet; nothing is read before it has them.
    pub(super) unsubmitted: VecDeque<Submission>,
}

impl Connection {
    pub(super) fn new(kind: Kind, stream: TcpStream, conversation: Box<dyn Conversation>, now: Nanos) -> Connection {
        Connection {
            kind,
            stream,
            conversation,
            is_readable: false,
            is_closed_by_peer: false,
            is_writable: true,
            progress: now,
            is_dead: false,
            newest: 0,
            unsubmitted: VecDeque::new(),
        }
    }

    /// Its conversation takes input.
    pub(super) fn takes_input(&self) -> bool {
        !self.is_dead && self.unsubmitted.is_empty() && self.conversation.wants_input()
    }

    /// There is something to do that waits for nothing.
    pub(super) fn has_work(&self) -> bool {
        !self.is_dead && (self.conversation.has_work() || !self.unsubmitted.is_empty())
    }

    /// There may be bytes to read.
    pub(super) fn is_readable(&self) -> bool {
        self.is_readable
    }

    /// There may be bytes to read; `is_last` when the peer sends no more.
    pub(super) fn became_readable(&mut self, is_last: bool) {
        self.is_readable = true;
        self.is_closed_by_peer |= is_last;
    }

    /// The socket takes bytes again.
    pub(super) fn became_writable(&mut self) {
        self.is_writable = true;
    }

    /// The token of operation `number`, which is about to be submitted, on the connection `id`.
    pub(super) fn token(&mut self, id: u64, number: u64) -> Token {
        self.newest = self.newest.max(number);
        Token::new(id, number)
    }

    /// The operation of `token` was answered.
    pub(super) fn complete(&mut self, token: Token, result: OpResult, context: &mut Context) {
        // Far fewer operations are in flight than the low bits tell apart, and none is newer than the newest.
        let age = token.distance_to(self.newest);
        self.conversation.complete(self.newest - age, result, context);
    }

    /// Reads once, if nothing is left of what was read before, and lets the conversation act on it as far as the quota goes.
    pub(super) fn read(&mut self, buffer: &mut [u8], context: &mut Context, submit: &mut Vec<Submission>) {
        if !self.has_work() && self.is_readable && self.takes_input() {
            match self.stream.read(buffer) {
                Ok(0) => {
                    self.is_readable = false;
                    self.conversation.stop();
                }
                Ok(len) => {
                    // A short read has emptied the socket; more will raise an event.
                    self.is_readable = len == buffer.len() || self.is_closed_by_peer;
                    context.quota.take_bytes(len);
                    self.conversation.feed(&buffer[..len]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_readable = false,
                // It is read again.
                Err(error) if error.kind() == ErrorKind::Interrupted => return,
                Err(_) => self.is_dead = true,
            }
        }
        self.conversation.advance(context, submit);
    }

    /// Lets the conversation do what it can and sends what it says, until the quota is used up, the socket takes no more or nothing
    /// is left: output that was taken may be what held the conversation back, and no event tells of that. Answers why the
    /// server gave the connection up, if it did.
    pub(super) fn advance(
        &mut self,
        most_output: usize,
        context: &mut Context,
        submit: &mut Vec<Submission>,
    ) -> Option<Dropped> {
        loop {
            self.conversation.advance(context, submit);
            let unsent = self.conversation.output().len();
            let dropped = self.write(context.now, most_output);
            if dropped.is_some() || self.is_dead || self.conversation.output().len() == unsent || self.has_work() {
                return dropped;
            }
        }
    }

    /// Sends what there is; answers why the server gave the connection up, if it did.
    fn write(&mut self, now: Nanos, most_output: usize) -> Option<Dropped> {
        while self.is_writable && !self.is_dead && !self.conversation.output().is_empty() {
            match self.stream.write(self.conversation.output()) {
                Ok(len) => {
                    self.conversation.output().advance(len);
                    self.progress = now;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => self.is_dead = true,
            }
        }
        let unsent = self.conversation.output();
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

    /// Gives up a client that takes no replies for `patience`.
    pub(super) fn check_stall(&mut self, now: Nanos, patience: Nanos) -> Option<Dropped> {
        let is_stalled = !self.conversation.output().is_empty() && now - self.progress > patience;
        self.is_dead |= is_stalled;
        is_stalled.then_some(Dropped::Stalled)
    }

    /// All that was asked is answered and sent over the socket, and nothing more is taken: it may be ended.
    pub(super) fn is_finished(&self) -> bool {
        self.conversation.is_finished() && !self.is_dead
    }

    /// Closes a connection that is finished.
    pub(super) fn end(&mut self) {
        self.is_dead = true;
        // The client may be gone already; then there is nothing to tell it.
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

/// Tells a client that is one too many, in the only protocol that has words for it.
pub(super) fn refuse(kind: Kind, mut stream: &TcpStream) -> io::Result<()> {
    match kind {
        Kind::Resp => stream.write_all(b"-ERR max number of clients reached\r\n"),
        Kind::Native => Ok(()),
    }
}

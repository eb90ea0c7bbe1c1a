//! One TCP connection that does not block, encrypted or not: bytes in and out, and the frames of the embedded coordinator in them. The host and
//! every client use it, each from its own thread.
//!
//! Invariant: the input holds at most one incomplete frame and one read of bytes, whatever the peer sends. The reader must take
//! each frame before it reads more, and must refuse long frames.

use leeward_format::DecodeError;
use leeward_format::coordinator::MAX_COORDINATOR_BYTES;
use leeward_format::frame::{FrameKind, read_frame, write_frame};
use leeward_security::tls::{Channel, Session};
use mio::net::TcpStream;
use mio::{Interest, Poll, Token};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

const READ_BYTES: usize = 64 * 1024;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("the peer closed the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the peer sent bytes that are not of this protocol: {0}{advice}", advice = advice(.0))]
    Hostile(#[from] DecodeError),
    #[error("the peer broke the protocol: {0}")]
    Protocol(&'static str),
    #[error("the peer takes too long to read what it is sent")]
    Slow,
    #[error("it closed the connection before it took the session on: {0}")]
    Unwelcome(String),
    #[error("{0}. The whole tree is read anew")]
    Outdated(String),
    #[error("no answer in time")]
    Silent,
    #[error("{0}")]
    Refused(String),
}

impl Broken {
    /// Whether the peer closed the connection, or refused to read on.
    pub(super) fn is_close(&self) -> bool {
        use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        let is_lost = |kind| matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof);
        matches!(self, Broken::Closed) || matches!(self, Broken::Io(error) if is_lost(error.kind()))
    }
}

/// Advice about bytes that are not of this protocol, if there is any.
fn advice(error: &DecodeError) -> &'static str {
    match error.other_version() {
        Some(_) => "; run the version of Leeward that the others run",
        None => "",
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: Channel<TcpStream>,
    input: Vec<u8>,
    /// Bytes at the front of `input` whose frames were taken already.
    taken: usize,
    output: Vec<u8>,
    /// Bytes at the front of `output` that were written already.
    written: usize,
}

impl Connection {
    /// A connection over `stream`, encrypted if there is a session of TLS.
    pub(super) fn new(stream: TcpStream, session: Option<Session>) -> Connection {
        let stream = Channel::over(stream, session);
        Connection { stream, input: Vec::new(), taken: 0, output: Vec::new(), written: 0 }
    }

    /// Begins to connect to `address`. `poll` reports with `token` when there is work.
    pub(super) fn begin(
        address: SocketAddr,
        session: Option<Session>,
        poll: &Poll,
        token: Token,
    ) -> io::Result<Connection> {
        let mut stream = TcpStream::connect(address)?;
        poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        stream.set_nodelay(true)?;
        Ok(Connection::new(stream, session))
    }

    /// The server whose certificate the peer has shown; none without TLS.
    pub(super) fn peer_server(&self) -> Option<u32> {
        self.stream.peer_server()
    }

    /// Reads once. Returns `false` when there is nothing to read for now.
    pub(super) fn fill(&mut self) -> Result<bool, Broken> {
        self.input.drain(..self.taken);
        self.taken = 0;
        let before = self.input.len();
        self.input.resize(before + READ_BYTES, 0);
        let result = self.stream.read(&mut self.input[before..]);
        self.input.truncate(before + *result.as_ref().unwrap_or(&0));
        match result {
            Ok(0) => Err(Broken::Closed),
            Ok(_) => Ok(true),
            // The socket may also not be connected yet.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Bytes that were read and not taken yet.
    pub(super) fn unread(&self) -> &[u8] {
        &self.input[self.taken..]
    }

    /// Takes `bytes` of the unread bytes.
    pub(super) fn take(&mut self, bytes: usize) {
        self.taken += bytes;
    }

    /// The next complete frame.
    pub(super) fn next<T: DeserializeOwned>(&mut self, kind: FrameKind) -> Result<Option<T>, Broken> {
        let frame = read_frame(kind, self.unread(), MAX_COORDINATOR_BYTES)?;
        Ok(frame.map(|(body, bytes)| {
            self.taken += bytes;
            body
        }))
    }

    /// Appends a frame to the output.
    pub(super) fn queue<T: Serialize>(&mut self, kind: FrameKind, body: &T) {
        write_frame(kind, body, &mut self.output);
    }

    /// Appends an encoded frame to the output.
    pub(super) fn queue_bytes(&mut self, frame: &[u8]) {
        self.output.extend_from_slice(frame);
    }

    /// Writes as much as the socket accepts now.
    pub(super) fn flush(&mut self) -> Result<(), Broken> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return Err(Broken::Closed),
                Ok(bytes) => self.written += bytes,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        match self.stream.flush() {
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                return Err(error.into());
            }
            _ => {}
        }
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
        } else if self.written > READ_BYTES {
            self.output.drain(..self.written);
            self.written = 0;
        }
        Ok(())
    }

    /// Bytes that wait to be written; what TLS has encrypted counts as one.
    pub(super) fn backlog(&self) -> usize {
        self.output.len() - self.written + usize::from(self.stream.has_unsent())
    }
}

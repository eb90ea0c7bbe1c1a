//! A byte stream that is plain or encrypted, for code that reads and writes sockets. It behaves as the socket under it: it
//! blocks if that blocks, and else answers `WouldBlock`.
//!
//! With TLS, writes first go into a bounded buffer. [`Channel::flush`] sends what the socket did not take at once, and
//! [`Channel::has_unsent`] says whether something is left. The handshake needs no call of its own: reads and writes do it.
//! So a side must read for the handshake to go on. Until it is over, writes fill the buffer and no more: then they answer
//! `WouldBlock`, also over a socket that blocks. Over such a socket [`Channel::establish`] comes first.
//!
//! A read that has taken bytes from the socket which are only TLS's own answers `Interrupted`. So a caller with a deadline looks
//! at it, however slowly the peer sends.
//!
//! A [`Session`] is the same without the stream, for code that must reach its socket while another thread is in a call.
//!
//! Invariant: a stream that ends without TLS's closing message is an error, not an end, unless it is plain. An attacker cannot cut
//! it unnoticed. One thread at a time.

use crate::certificates::{server_name, server_of_name};
use rustls::Connection;
use rustls::pki_types::ServerName;
use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};

/// Most bytes of a handshake. Chains of certificates take a few KiB.
const MOST_HANDSHAKE_BYTES: usize = 64 << 10;
/// Bytes that one read takes from a socket: several records of TLS, which have up to 16 KiB.
const READ_BYTES: usize = 128 << 10;

thread_local! {
    /// What was just read from a socket. Connections keep only what they could not pass on.
    static RECEIVED: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// The state of an encrypted connection.
#[derive(Debug)]
pub struct Session {
    tls: Connection,
    /// Bytes that were read from the stream and are not decrypted.
    unread: Vec<u8>,
    /// Bytes that were read from the stream since [`Session::take_received`].
    received: usize,
    /// Bytes that the handshake has taken.
    handshake: usize,
    /// Why nothing more can be read.
    broken: Option<(ErrorKind, String)>,
}

impl Session {
    /// At most `buffered` bytes wait in TLS's own buffers for a socket that takes no more.
    pub(super) fn new(mut tls: Connection, buffered: usize) -> Session {
        tls.set_buffer_limit(Some(buffered));
        Session { tls, unread: Vec::new(), received: 0, handshake: 0, broken: None }
    }

    /// Does the handshake, over a stream that blocks.
    ///
    /// # Errors
    /// Those of the stream. [`ErrorKind::InvalidData`]: the peer is refused, or speaks no TLS.
    pub fn establish(&mut self, stream: &mut (impl Read + Write)) -> io::Result<()> {
        while self.tls.is_handshaking() {
            self.tls.complete_io(stream).map_err(explained)?;
        }
        Ok(())
    }

    /// How many bytes were read from the stream since this was last called.
    pub fn take_received(&mut self) -> usize {
        std::mem::take(&mut self.received)
    }

    /// The server whose certificate the peer has shown. Never before the session is established.
    pub fn peer_server(&self) -> Option<u32> {
        let certificates = self.tls.peer_certificates().filter(|_| self.is_established());
        let certificate = webpki::EndEntityCert::try_from(certificates?.first()?).ok()?;
        certificate.valid_dns_names().find_map(server_of_name)
    }

    /// Whether the two sides have agreed on keys and checked certificates.
    pub fn is_established(&self) -> bool {
        !self.tls.is_handshaking()
    }

    /// Whether there are bytes that the stream has not taken.
    pub fn has_unsent(&self) -> bool {
        self.tls.wants_write()
    }

    /// Whether the peer has shown a certificate with the name of `server`. Never before the session is established.
    pub fn proves(&self, server: u32) -> bool {
        let certificates = self.tls.peer_certificates().filter(|_| self.is_established());
        let Some(certificate) = certificates.and_then(<[_]>::first) else { return false };
        let name = ServerName::try_from(server_name(server)).expect("it is a host's name");
        webpki::EndEntityCert::try_from(certificate)
            .is_ok_and(|certificate| certificate.verify_is_valid_for_subject_name(&name).is_ok())
    }

    /// Reads from `stream` and decrypts: as much as one read of the stream gives and `bytes` has room for.
    ///
    /// # Errors
    /// Those of the stream. [`ErrorKind::InvalidData`]: the peer is refused, or speaks no TLS. [`ErrorKind::Interrupted`]: all
    /// that came was TLS's own.
    pub fn read(&mut self, stream: &mut (impl Read + Write), bytes: &mut [u8]) -> io::Result<usize> {
        if let Some((kind, text)) = &self.broken {
            return match self.tls.reader().read(bytes) {
                Ok(len @ 1..) => Ok(len),
                _ => Err(io::Error::new(*kind, text.clone())),
            };
        }
        if !self.unread.is_empty() {
            let unread = std::mem::take(&mut self.unread);
            if let Some(done) = self.decrypt(&unread, stream, bytes) {
                return done;
            }
        }
        RECEIVED.with_borrow_mut(|received| {
            // An earlier read may have decrypted more than it could pass on.
            match self.tls.reader().read(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => return other.map_err(explained),
            }
            let len = stream.read(received)?;
            self.received += len;
            if len == 0 {
                self.tls.read_tls(&mut io::empty())?;
                return match self.tls.is_handshaking() {
                    true => Err(io::Error::new(
                        ErrorKind::UnexpectedEof,
                        "it closed the connection before TLS was agreed on",
                    )),
                    false => self.tls.reader().read(bytes).map_err(explained),
                };
            }
            if let Some(done) = self.decrypt(&received[..len], stream, bytes) {
                return done;
            }
            if self.tls.is_handshaking() {
                self.handshake += len;
                if self.handshake > MOST_HANDSHAKE_BYTES {
                    return Err(self.breaks(io::Error::new(ErrorKind::InvalidData, "the handshake of TLS is too long")));
                }
            }
            Err(ErrorKind::Interrupted.into())
        })
    }

    /// Notes an error, which all later reads meet too.
    fn breaks(&mut self, error: io::Error) -> io::Error {
        let error = explained(error);
        self.broken = Some((error.kind(), error.to_string()));
        error
    }

    /// Decrypts what was received into `bytes`. `None`: there is nothing for the caller yet.
    fn decrypt(&mut self, mut received: &[u8], stream: &mut impl Write, bytes: &mut [u8]) -> Option<io::Result<usize>> {
        let mut filled = 0;
        loop {
            match self.tls.reader().read(&mut bytes[filled..]) {
                Ok(0) if filled < bytes.len() => return Some(Ok(filled)),
                Ok(len) => filled += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Some(Err(self.breaks(error))),
            }
            if received.is_empty() || filled == bytes.len() {
                self.unread.extend_from_slice(received);
                return (filled > 0 || bytes.is_empty()).then_some(Ok(filled));
            }
            let processed = self.tls.read_tls(&mut received).map(|_| self.tls.process_new_packets());
            // The answer of a handshake, or the reason why the peer is refused.
            let sent = self.try_send(stream);
            let refused = match processed {
                Ok(Ok(_)) => sent.err(),
                Ok(Err(error)) => Some(io::Error::new(ErrorKind::InvalidData, error)),
                Err(error) => Some(error),
            };
            if let Some(error) = refused {
                let error = self.breaks(error);
                // What came before is passed on. The next call meets the error.
                filled += self.tls.reader().read(&mut bytes[filled..]).unwrap_or(0);
                return Some(if filled > 0 { Ok(filled) } else { Err(error) });
            }
        }
    }

    /// Encrypts as much of `bytes` as there is room for, and sends what `stream` takes.
    ///
    /// # Errors
    /// Those of the stream; `WouldBlock` if nothing of `bytes` was accepted.
    pub fn write(&mut self, stream: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
        self.try_send(stream)?;
        let accepted = self.tls.writer().write(bytes)?;
        if accepted == 0 && !bytes.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        // The bytes are accepted. If the stream fails now, the next call meets its error.
        drop(self.try_send(stream));
        Ok(accepted)
    }

    /// Sends what is left.
    ///
    /// # Errors
    /// Those of the stream; `WouldBlock` if it does not take all.
    pub fn flush(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(stream) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// As [`Session::flush`], where it is no matter if the stream takes no more.
    fn try_send(&mut self, stream: &mut impl Write) -> io::Result<()> {
        match self.flush(stream) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }
}

/// A plain or encrypted stream over `S`.
#[derive(Debug)]
pub struct Channel<S> {
    stream: S,
    session: Option<Box<Session>>,
}

impl<S> Channel<S> {
    /// The stream as it is.
    pub fn plain(stream: S) -> Channel<S> {
        Channel { stream, session: None }
    }

    /// The stream, encrypted by a session that has not begun yet.
    pub fn encrypted(stream: S, session: Session) -> Channel<S> {
        Channel { stream, session: Some(Box::new(session)) }
    }

    /// The stream, encrypted if there is a session.
    pub fn over(stream: S, session: Option<Session>) -> Channel<S> {
        match session {
            Some(session) => Channel::encrypted(stream, session),
            None => Channel::plain(stream),
        }
    }

    /// The stream below.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// The stream below, to register it with a poll. Reading or writing it breaks the channel.
    pub fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Whether it is encrypted. A short read from an encrypted channel does not mean that the socket is empty.
    pub fn is_encrypted(&self) -> bool {
        self.session.is_some()
    }

    /// As [`Session::is_established`]; always, if it is plain.
    pub fn is_established(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.is_established())
    }

    /// As [`Session::has_unsent`]; never, if it is plain.
    pub fn has_unsent(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.has_unsent())
    }

    /// As [`Session::take_received`]; `None`, if it is plain.
    pub fn take_received(&mut self) -> Option<usize> {
        self.session.as_mut().map(|session| session.take_received())
    }

    /// As [`Session::peer_server`]; none, if it is plain.
    pub fn peer_server(&self) -> Option<u32> {
        self.session.as_ref().and_then(|session| session.peer_server())
    }

    /// As [`Session::proves`]; never, if it is plain.
    pub fn proves(&self, server: u32) -> bool {
        self.session.as_ref().is_some_and(|session| session.proves(server))
    }
}

impl<S: Read + Write> Channel<S> {
    /// Does the handshake of TLS, if there is TLS, over a stream that blocks.
    ///
    /// # Errors
    /// Those of [`Session::establish`].
    pub fn establish(&mut self) -> io::Result<()> {
        self.session.as_mut().map_or(Ok(()), |session| session.establish(&mut self.stream))
    }

    /// Says that no more bytes follow. The stream below stays open.
    ///
    /// # Errors
    /// As of a write.
    pub fn send_end(&mut self) -> io::Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        session.tls.send_close_notify();
        session.flush(&mut self.stream)
    }
}

impl<S: Read + Write> Read for Channel<S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match &mut self.session {
            Some(session) => session.read(&mut self.stream, bytes),
            None => self.stream.read(bytes),
        }
    }
}

impl<S: Read + Write> Write for Channel<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.session {
            Some(session) => session.write(&mut self.stream, bytes),
            None => self.stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.session {
            Some(session) => session.flush(&mut self.stream),
            None => self.stream.flush(),
        }
    }
}

/// An error of rustls in words for people.
fn explained(error: io::Error) -> io::Error {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match (of_tls, error.kind()) {
        (Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)), _) => {
            io::Error::new(ErrorKind::InvalidData, "it speaks no TLS")
        }
        (None, ErrorKind::UnexpectedEof) => {
            io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection without TLS's closing message")
        }
        _ => error,
    }
}

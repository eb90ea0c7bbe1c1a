//! How many admin connections may be open, and for how long without an answer. The admin port must answer when it is needed,
//! even if a client forgot to close its connections or sends a request byte by byte.
//!
//! Beyond [`MOST_SESSIONS`] connections, new ones wait in the kernel's queue. A connection is closed if the node sent it
//! nothing for the timeout, since it was accepted or since the last byte of an answer: its request did not come, came too
//! slowly, or the client does not read its answer. A whole answer takes the node far less. File descriptors for all
//! connections are kept ([`Reserve`]), so the port answers also when the process has no others. Used on the admin
//! thread.

use crate::descriptors::Reserve;
use axum::serve::Listener;
use leeward_security::tls::NodeTls;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// Most connections at a time.
pub(crate) const MOST_SESSIONS: usize = 64;

/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The listener, with its limits.
pub(super) struct ConnectionLimit {
    listener: TcpListener,
    tls: Option<Arc<NodeTls>>,
    places: Arc<Semaphore>,
    reserve: Arc<Reserve>,
    timeout: Duration,
}

impl ConnectionLimit {
    /// Accepts from `listener`, with TLS if there are certificates.
    pub(super) fn new(listener: TcpListener, tls: Option<Arc<NodeTls>>, timeout: Duration) -> ConnectionLimit {
        let (places, reserve) = (Arc::new(Semaphore::new(MOST_SESSIONS)), Arc::new(Reserve::of(MOST_SESSIONS)));
        ConnectionLimit { listener, tls, places, reserve, timeout }
    }

    async fn accept_next(&self) -> (TcpStream, SocketAddr) {
        loop {
            let accepted = poll_fn(|context| match self.reserve.accept(|| accept_now(&self.listener, context)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
                other => Poll::Ready(other),
            });
            match accepted.await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::debug!(%error, "the admin port cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl Listener for ConnectionLimit {
    type Io = AdminSession;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (AdminSession, SocketAddr) {
        let place = self.places.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (stream, address) = self.accept_next().await;
        let deadline = Box::pin(sleep(self.timeout));
        let stream = match &self.tls {
            None => Stream::Plain(stream),
            Some(tls) => Stream::Handshake(Box::new(TlsAcceptor::from(tls.for_clients()).accept(stream))),
        };
        let session =
            AdminSession { stream, timeout: self.timeout, deadline, _file: File(self.reserve.clone()), _place: place };
        (session, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that waits to be accepted; [`io::ErrorKind::WouldBlock`]: there is none.
fn accept_now(listener: &TcpListener, context: &mut Context<'_>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener.poll_accept(context) {
        Poll::Ready(accepted) => accepted,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// When it is dropped, a descriptor was closed: the reserve has it first.
struct File(Arc<Reserve>);

impl Drop for File {
    fn drop(&mut self) {
        self.0.refill();
    }
}

/// A plain or encrypted stream.
enum Stream {
    Plain(TcpStream),
    /// The first read or write of the session drives it, so that a client that is slow holds up no other.
    Handshake(Box<Accept<TcpStream>>),
    Encrypted(Box<TlsStream<TcpStream>>),
}

trait Duplex: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Duplex for S {}

impl Stream {
    /// The stream, once both sides have agreed on keys.
    fn poll_established(&mut self, context: &mut Context<'_>) -> Poll<io::Result<&mut dyn Duplex>> {
        if let Stream::Handshake(accept) = self {
            *self = Stream::Encrypted(Box::new(ready!(Pin::new(accept.as_mut()).poll(context))?));
        }
        Poll::Ready(match self {
            Stream::Plain(stream) => Ok(stream),
            Stream::Encrypted(stream) => Ok(stream.as_mut()),
            Stream::Handshake(_) => unreachable!("it has ended above"),
        })
    }

    /// Does `work` with the stream once it is established.
    fn poll_with<T>(
        &mut self,
        context: &mut Context<'_>,
        work: impl FnOnce(Pin<&mut dyn Duplex>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match self.poll_established(context) {
            Poll::Ready(Ok(stream)) => work(Pin::new(stream), context),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// A connection that ends when nothing was sent to it for too long.
pub(super) struct AdminSession {
    stream: Stream,
    timeout: Duration,
    deadline: Pin<Box<Sleep>>,
    /// Dropped after the stream.
    _file: File,
    _place: OwnedSemaphorePermit,
}

impl AdminSession {
    /// Fails an outcome that is still pending once the deadline has passed.
    fn or_late<T>(&mut self, outcome: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_pending() && self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        outcome
    }
}

impl AsyncRead for AdminSession {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let session = self.get_mut();
        let outcome = session.stream.poll_with(context, |stream, context| stream.poll_read(context, buffer));
        session.or_late(outcome, context)
    }
}

impl AsyncWrite for AdminSession {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let session = self.get_mut();
        let outcome = session.stream.poll_with(context, |stream, context| stream.poll_write(context, bytes));
        if let Poll::Ready(Ok(1..)) = outcome {
            session.deadline.as_mut().reset(Instant::now() + session.timeout);
        }
        session.or_late(outcome, context)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let session = self.get_mut();
        let outcome = session.stream.poll_with(context, |stream, context| stream.poll_flush(context));
        session.or_late(outcome, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let session = self.get_mut();
        let outcome = session.stream.poll_with(context, |stream, context| stream.poll_shutdown(context));
        session.or_late(outcome, context)
    }
}

#[cfg(test)]
#[path = "connection_limit_tests.rs"]
mod tests;

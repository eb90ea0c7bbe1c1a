//! How many admin connections may be open, and for how long without an answer. The admin port must answer when it is needed,
//! even if a client forgot to close its connections or sends a request byte by byte.
//!
//! Beyond [`MOST_SESSIONS`] connections, new ones wait in the kernel's queue. A connection is closed if the node sent it
//! nothing for the timeout, since it was accepted or since the last byte of an answer: its request did not come, came too
//! slowly, or the client does not read its answer. A whole answer takes the node far less. Used on the admin thread.

use axum::serve::Listener;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Most connections at a time.
pub(super) const MOST_SESSIONS: usize = 64;

/// The listener, with its limits.
pub(super) struct ConnectionLimit {
    listener: TcpListener,
    places: Arc<Semaphore>,
    timeout: Duration,
}

impl ConnectionLimit {
    pub(super) fn new(listener: TcpListener, timeout: Duration) -> ConnectionLimit {
        ConnectionLimit { listener, places: Arc::new(Semaphore::new(MOST_SESSIONS)), timeout }
    }
}

impl Listener for ConnectionLimit {
    type Io = AdminSession;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (AdminSession, SocketAddr) {
        let place = self.places.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let deadline = Box::pin(sleep(self.timeout));
        (AdminSession { stream, timeout: self.timeout, deadline, _place: place }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when nothing was sent to it for too long.
pub(super) struct AdminSession {
    stream: TcpStream,
    timeout: Duration,
    deadline: Pin<Box<Sleep>>,
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
        let outcome = Pin::new(&mut session.stream).poll_read(context, buffer);
        session.or_late(outcome, context)
    }
}

impl AsyncWrite for AdminSession {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let session = self.get_mut();
        let outcome = Pin::new(&mut session.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(1..)) = outcome {
            session.deadline.as_mut().reset(Instant::now() + session.timeout);
        }
        session.or_late(outcome, context)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let session = self.get_mut();
        let outcome = Pin::new(&mut session.stream).poll_flush(context);
        session.or_late(outcome, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let session = self.get_mut();
        let outcome = Pin::new(&mut session.stream).poll_shutdown(context);
        session.or_late(outcome, context)
    }
}

#[cfg(test)]
#[path = "connection_limit_tests.rs"]
mod tests;

//! How many operators may be connected, and for how long without getting anything: the admin port must answer when it
//! is needed, whoever forgot to close a connection or sends a request byte by byte.
//!
//! Beyond [`MOST_GUESTS`] connections, new ones wait in the kernel's queue. A connection that was sent nothing for the
//! patience it was given, since it was accepted or since the last byte of an answer, is closed: its request did not
//! come, came too slowly, or its answer is not taken. A whole answer takes the node far less. Used on the admin thread.

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
pub(super) const MOST_GUESTS: usize = 64;

/// The listener, with its limits.
pub(super) struct Door {
    listener: TcpListener,
    places: Arc<Semaphore>,
    patience: Duration,
}

impl Door {
    pub(super) fn new(listener: TcpListener, patience: Duration) -> Door {
        Door { listener, places: Arc::new(Semaphore::new(MOST_GUESTS)), patience }
    }
}

impl Listener for Door {
    type Io = Guest;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guest, SocketAddr) {
        let place = self.places.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let deadline = Box::pin(sleep(self.patience));
        (Guest { stream, patience: self.patience, deadline, _place: place }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when it was sent nothing for too long.
pub(super) struct Guest {
    stream: TcpStream,
    patience: Duration,
    deadline: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Guest {
    /// What could not be done now fails once the deadline has passed.
    fn or_late<T>(&mut self, outcome: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_pending() && self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        outcome
    }
}

impl AsyncRead for Guest {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let guest = self.get_mut();
        let outcome = Pin::new(&mut guest.stream).poll_read(context, buffer);
        guest.or_late(outcome, context)
    }
}

impl AsyncWrite for Guest {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let guest = self.get_mut();
        let outcome = Pin::new(&mut guest.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(1..)) = outcome {
            guest.deadline.as_mut().reset(Instant::now() + guest.patience);
        }
        guest.or_late(outcome, context)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let guest = self.get_mut();
        let outcome = Pin::new(&mut guest.stream).poll_flush(context);
        guest.or_late(outcome, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let guest = self.get_mut();
        let outcome = Pin::new(&mut guest.stream).poll_shutdown(context);
        guest.or_late(outcome, context)
    }
}

#[cfg(test)]
#[path = "door_tests.rs"]
mod tests;

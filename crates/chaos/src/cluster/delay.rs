//! A proxy that delays the connections between two hosts. It forwards each piece some time after it arrived.
//!
//! One thread accepts connections. Each direction of a connection has a thread that receives and one that sends. They end when
//! either side closes, or when the proxy is dropped, which closes all connections.

use crate::error::ChaosError;
use parking_lot::Mutex;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

#[cfg(test)]
#[path = "delay_tests.rs"]
mod tests;

/// Most bytes that are forwarded as one piece.
const PIECE_BYTES: usize = 64 << 10;
/// How often the accepting thread checks whether the proxy was dropped.
const LOOK: Duration = Duration::from_millis(20);
/// How long the far end may take to accept.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// A proxy that forwards each piece late.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<ProxyState>,
}

#[derive(Debug)]
struct ProxyState {
    to: SocketAddr,
    delay: Duration,
    is_over: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Listens at `listen` (port 0: any), and forwards to `to`.
    ///
    /// # Errors
    /// It cannot listen there.
    pub(crate) fn start(listen: SocketAddr, to: SocketAddr, delay: Duration) -> Result<Proxy, ChaosError> {
        let fault = |source| ChaosError::Io { what: format!("cannot listen at {listen}"), source };
        let listener = TcpListener::bind(listen).map_err(fault)?;
        listener.set_nonblocking(true).map_err(fault)?;
        let address = listener.local_addr().map_err(fault)?;
        let shared = Arc::new(ProxyState { to, delay, is_over: AtomicBool::new(false), connections: Mutex::default() });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, &accepting));
        Ok(Proxy { address, shared })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        for connection in self.shared.connections.lock().drain(..) {
            // An error means that it is closed already.
            drop(connection.shutdown(Shutdown::Both));
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<ProxyState>) {
    while !shared.is_over.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((near, _)) => {
                let shared = Arc::clone(shared);
                thread::spawn(move || {
                    // If the far end does not accept, the near end sees a closed connection.
                    drop(connect(&near, &shared));
                    drop(near.shutdown(Shutdown::Both));
                });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(LOOK),
            Err(_) => return,
        }
    }
}

fn connect(near: &TcpStream, shared: &Arc<ProxyState>) -> std::io::Result<()> {
    near.set_nonblocking(false)?;
    let far = TcpStream::connect_timeout(&shared.to, CONNECT_WITHIN)?;
    for stream in [near, &far] {
        stream.set_nodelay(true)?;
        shared.connections.lock().push(stream.try_clone()?);
    }
    if shared.is_over.load(Ordering::SeqCst) {
        return Ok(());
    }
    thread::scope(|scope| {
        for (from, to) in [(near, &far), (&far, near)] {
            let (sender, receiver) = channel();
            scope.spawn(move || receive(from, &sender, shared.delay));
            scope.spawn(move || send(to, &receiver));
        }
    });
    Ok(())
}

fn receive(mut from: &TcpStream, pieces: &Sender<(Instant, Vec<u8>)>, delay: Duration) {
    let mut buffer = vec![0; PIECE_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if pieces.send((Instant::now() + delay, buffer[..count].to_vec())).is_err() {
            return;
        }
    }
}

/// Sends each piece when it is due. When the sender closes, both directions end.
fn send(mut to: &TcpStream, pieces: &Receiver<(Instant, Vec<u8>)>) {
    for (due, piece) in pieces {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Both));
}

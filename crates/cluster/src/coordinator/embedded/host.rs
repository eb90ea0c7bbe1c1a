//! The host of the tree: it starts, serves its own process, and stops. [`super::service`] is its thread.
//!
//! A [`Host`] may be used from any thread. Dropping it stops the service without ending any session, exactly as if its process
//! had died. A host on the same directory continues from there.

use super::log::{HostError, Log};
use super::service::{Command, Limits, Service};
use crate::Tree;
use leeward_format::coordinator::{CoordinatorError, CoordinatorOp};
use leeward_platform::Rng;
use leeward_platform::disk::private;
use leeward_security::tls::NodeTls;
use mio::net::TcpListener;
use mio::{Poll, Waker};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;

/// The directory and the address of a host.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Directory of the log; one host at a time.
    pub directory: PathBuf,
    /// Address to listen at. Port 0 stands for any free port.
    pub listen: SocketAddr,
    /// With it, only processes with a certificate of the same authority may connect. Without it requests are not
    /// authenticated, so the address should be loopback.
    pub tls: Option<Arc<NodeTls>>,
}

/// A running coordinator.
#[derive(Debug)]
pub struct Host {
    address: SocketAddr,
    commands: Sender<Command>,
    waker: Arc<Waker>,
    failure: Arc<Mutex<Option<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    /// Reads the log, listens, and serves from a thread of its own. Sessions that the log knows get a fresh timeout.
    ///
    /// # Errors
    /// The address is in use, the directory is in use or cannot be written, or the log is damaged.
    pub fn start(options: HostOptions) -> Result<Host, HostError> {
        let (log, mut tree) = Log::open(&options.directory)?;
        tree.draw_sessions_from(Rng::from_entropy().u64());
        if let Some(warning) = private::warning(&options.directory) {
            tracing::warn!("{warning}");
        }
        Host::serve((options.listen, options.tls), log, tree, Limits::default())
    }

    /// Listens, and serves `tree` from a thread of its own.
    pub(super) fn serve(
        (listen, tls): (SocketAddr, Option<Arc<NodeTls>>),
        log: Log,
        tree: Tree,
        limits: Limits,
    ) -> Result<Host, HostError> {
        let io = |what, source| HostError::Io { what, path: listen.to_string(), source };
        let mut listener = TcpListener::bind(listen).map_err(|source| io("listen at", source))?;
        let address = listener.local_addr().map_err(|source| io("listen at", source))?;
        let poll = Poll::new().map_err(|source| io("poll", source))?;
        poll.registry()
            .register(&mut listener, super::service::LISTENER, mio::Interest::READABLE)
            .map_err(|source| io("poll", source))?;
        let waker = Waker::new(poll.registry(), super::service::WAKER).map_err(|source| io("poll", source))?;
        let (commands, receiver) = channel();
        let failure = Arc::new(Mutex::new(None));
        let service = Service::new(poll, (listener, tls, limits), receiver, tree, log, failure.clone());
        let thread = std::thread::Builder::new()
            .name("coordinator".into())
            .spawn(move || service.run())
            .map_err(|source| io("start a thread for", source))?;
        Ok(Host { address, commands, waker: Arc::new(waker), failure, thread: Some(thread) })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Does `op` as the host itself, which has no session, and returns the version of its last change. Blocks until the change is
    /// durable.
    ///
    /// # Errors
    /// The comparison failed, the operation breaks a limit, or the log cannot be written ([`Host::failure`]): then it
    /// may have been done.
    pub fn apply(&self, op: CoordinatorOp) -> Result<u64, CoordinatorError> {
        let (answer, answered) = sync_channel(1);
        self.tell(Command::Apply { op, answer });
        answered.recv().unwrap_or(Err(CoordinatorError::Disconnected))
    }

    /// Why the coordinator does not serve now: its log cannot be written. It goes on by itself when it can.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    fn tell(&self, command: Command) {
        // If the thread is gone, the answer's channel is closed, which the caller sees.
        if self.commands.send(command).is_ok() {
            self.waker.wake().expect("an eventfd takes a write of one");
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed when it happened.
            drop(thread.join());
        }
    }
}

//! The start of a process's session with an ensemble.

use super::address::{Credentials, Ensemble};
use super::link::ZooKeeperLink;
use crate::coordinator::client::{Client, Context};
use crate::{Coordinator, CoordinatorError, CoordinatorEvent, CoordinatorOp};
use leeward_platform::{BootClock, Clock, Nanos};
use leeward_security::tls::NodeTls;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// The ensemble, the user that Leeward is there, and how fast the death of this process must be noticed.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The address of the ensemble, and the cluster's path there.
    pub ensemble: Ensemble,
    /// The user to whom everything belongs. Without one, everything that is made belongs to everyone.
    pub credentials: Option<Credentials>,
    /// Silence after which the session expires. The ensemble grants 2 to 20 times its `tickTime`, unless it is configured
    /// otherwise.
    pub session_timeout: Nanos,
    /// With it connections are encrypted, so the ensemble's ports must be secure ones. A server's certificate must have the
    /// host by which the ensemble's address names it; this process shows its own.
    pub tls: Option<Arc<NodeTls>>,
}

impl ClientOptions {
    /// `ensemble`, without credentials and with a session timeout of four seconds: the shortest that ZooKeeper grants by default.
    pub fn new(ensemble: Ensemble) -> ClientOptions {
        ClientOptions { ensemble, credentials: None, session_timeout: Nanos::from_secs(4), tls: None }
    }
}

/// Begins a session, and keeps it or a later one up until the client is dropped. Events go to `sink`, from the client's thread;
/// `sink` must not block.
///
/// # Errors
/// The machine refuses a thread or descriptors. Unreachable servers are no error: they may start later.
pub fn connect(options: ClientOptions, sink: impl FnMut(CoordinatorEvent) + Send + 'static) -> io::Result<Client> {
    if options.credentials.is_none() {
        tracing::warn!(
            ensemble = %options.ensemble,
            "everyone who reaches ZooKeeper can read and change the region map: set zookeeper_auth_file to a file with \
             user:password"
        );
    }
    Client::start(ZooKeeperLink::new(options, Context::new(sink)?)?)
}

/// Does `op` in a session of its own, for a caller that is not a process of a cluster. Waits up to `within`.
///
/// # Errors
/// The operation was refused, or no server accepted it in time: [`CoordinatorError::Refused`] with the reason. The operation may
/// be done nonetheless.
pub fn apply_once(options: ClientOptions, op: CoordinatorOp, within: Duration) -> Result<u64, CoordinatorError> {
    let refused = |why: String| Err(CoordinatorError::Refused(why));
    let (sender, events) = channel();
    let client = match connect(options, move |event| drop(sender.send(event))) {
        Ok(client) => client,
        Err(error) => return refused(error.to_string()),
    };
    let clock = BootClock;
    let deadline = clock.now() + Nanos::from(within);
    while let Ok(event) = events.recv_timeout(deadline.since(clock.now()).duration()) {
        match event {
            // Repeated after a lost connection. The caller accepts the error that an earlier attempt, if done, leads to.
            CoordinatorEvent::Synced { .. } => client.submit(0, op.clone()),
            CoordinatorEvent::Reply { result: Err(CoordinatorError::Disconnected), .. } => {}
            CoordinatorEvent::Reply { result, .. } => return result,
            _ => {}
        }
    }
    let outage = client.outage().map_or("it does not answer".into(), |outage| {
        format!("{} cannot be reached: {}", outage.address, outage.reason)
    });
    refused(outage)
}

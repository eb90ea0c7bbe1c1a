//! How a process gets its session with an ensemble.

use super::address::{Credentials, Ensemble};
use super::link::ZooKeeperLink;
use crate::client::{Client, Context};
use crate::{Coordinator, CoordinatorError, CoordinatorEvent, CoordinatorOp};
use leeward_platform::{BootClock, Clock, Nanos};
use std::io;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Which ensemble, who Leeward is there, and how fast this process's death must be noticed.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Where it is, and the cluster's path there.
    pub ensemble: Ensemble,
    /// The user to whom everything belongs; without, everything that is made belongs to everybody.
    pub credentials: Option<Credentials>,
    /// Silence after which the session expires. The ensemble grants 2 to 20 times its `tickTime`, unless it is set up to
    /// grant others.
    pub session_timeout: Nanos,
}

impl ClientOptions {
    /// `ensemble`, without credentials and with a session timeout of four seconds: the shortest that ZooKeeper grants where
    /// nothing else is set.
    pub fn new(ensemble: Ensemble) -> ClientOptions {
        ClientOptions { ensemble, credentials: None, session_timeout: Nanos::from_secs(4) }
    }
}

/// Begins a session, and goes on with it or another until the client is dropped. Events go to `sink`, from the client's
/// thread; it must not block.
///
/// # Errors
/// The machine refuses a thread or descriptors. Servers that cannot be reached are no error: they may come.
pub fn connect(options: ClientOptions, sink: impl FnMut(CoordinatorEvent) + Send + 'static) -> io::Result<Client> {
    if options.credentials.is_none() {
        tracing::warn!(
            ensemble = %options.ensemble,
            "everybody who reaches ZooKeeper can read and change who serves what: set zookeeper_auth_file to a file with \
             user:password"
        );
    }
    Client::start(ZooKeeperLink::new(options, Context::new(sink)?)?)
}

/// Does `op` in a session of its own, for whoever is not a process of a cluster. Waits up to `within`.
///
/// # Errors
/// The operation was refused; or no server took it in time: [`CoordinatorError::Refused`] with the reason. It may be done none
/// the less.
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
            // Again after a connection that was lost: whoever asks for this takes what was done before for an answer.
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

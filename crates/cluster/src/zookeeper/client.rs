//! A process's session with an ensemble, as the others of its threads see it.

use super::address::{Credentials, Ensemble};
use super::link::{Link, WAKER};
use crate::mailbox::{Mailbox, Running, Stop};
use crate::{Coordinator, CoordinatorEvent, CoordinatorOp, Outage};
use leeward_platform::Nanos;
use mio::Poll;
use std::io;
use std::sync::Arc;

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

/// The session. Dropping it ends it at once; [`Client::abandon`] does not.
#[derive(Debug)]
pub struct Client(Running);

impl Client {
    /// Begins to connect, and goes on until dropped. Events go to `sink`, from the client's thread; it must not block.
    ///
    /// # Errors
    /// The machine refuses a thread or descriptors. Servers that cannot be reached are no error: they may come.
    pub fn start(options: ClientOptions, sink: impl FnMut(CoordinatorEvent) + Send + 'static) -> io::Result<Client> {
        if options.credentials.is_none() {
            tracing::warn!(
                ensemble = %options.ensemble,
                "whoever reaches ZooKeeper can read and change who serves what: set zookeeper_auth_file to a file with user:password"
            );
        }
        let poll = Poll::new()?;
        let mailbox = Arc::new(Mailbox::new(&poll, WAKER)?);
        let link = Link::new(options, poll, mailbox.clone(), Box::new(sink));
        Ok(Client(Running::start(mailbox, move || link.run())?))
    }

    /// Stops without ending the session, as if the process had been killed.
    pub fn abandon(mut self) {
        self.0.stop(Stop::Abandon);
    }
}

impl Coordinator for Client {
    fn submit(&self, id: u64, op: CoordinatorOp) {
        self.0.mailbox().submit(id, op);
    }

    fn outage(&self) -> Option<Outage> {
        self.0.mailbox().outage()
    }
}

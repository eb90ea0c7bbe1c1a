//! A process's connection to an embedded coordinator: the state of its thread.
//!
//! Invariants:
//! - `Up`, the tree, `Synced`, changes and replies come in the order in which the host sent them.
//! - Every submitted operation gets exactly one `Reply`. It is [`CoordinatorError::Disconnected`] if the connection was lost
//!   first.
//! - `Down` comes as soon as heartbeats are unanswered for a third of the session timeout. So a process learns that it is cut off
//!   well before the others conclude that it died.

use crate::coordinator::client::{Client, Context, Link, RETRY, SOCKET, heartbeat_interval, silence_timeout};
use crate::coordinator::connection::{Broken, Connection};
use crate::{CoordinatorError, CoordinatorEvent, Outage, SessionId};
use leeward_format::coordinator::{CoordinatorReply, CoordinatorRequest, MAX_COORDINATOR_BYTES};
use leeward_format::frame::FrameKind;
use leeward_platform::Nanos;
use leeward_security::certificates::COORDINATOR_NAME;
use leeward_security::tls::NodeTls;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

const REQUEST: FrameKind = FrameKind::CoordinatorRequest;
/// Maximum bytes of a request besides its operation.
const REQUEST_OVERHEAD_BYTES: usize = 64;

/// The address of the coordinator, and how fast it must notice this process's death.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The address at which the host listens.
    pub address: SocketAddr,
    /// Silence after which the session expires. The host grants 100 ms to 60 s.
    pub session_timeout: Nanos,
    /// With it the connection is encrypted: the host must be [`COORDINATOR_NAME`], and this process shows its certificate.
    pub tls: Option<Arc<NodeTls>>,
}

impl ClientOptions {
    /// Options for the host at `address`, with the default session timeout of one second.
    pub fn new(address: SocketAddr) -> ClientOptions {
        ClientOptions { address, session_timeout: Nanos::from_secs(1), tls: None }
    }
}

/// Begins to connect, and reconnects until the client is dropped. Events go to `sink`, from the client's thread; `sink` must not
/// block.
///
/// # Errors
/// The machine refuses a thread or descriptors. An unreachable host is no error: it may start later.
pub fn connect(options: ClientOptions, sink: impl FnMut(CoordinatorEvent) + Send + 'static) -> io::Result<Client> {
    Client::start(EmbeddedLink {
        timeout: options.session_timeout,
        options,
        context: Context::new(sink)?,
        session: None,
        state: SessionState::Idle { retry: Nanos::ZERO },
        pending: BTreeSet::new(),
    })
}

enum SessionState {
    /// No connection until `retry`.
    Idle { retry: Nanos },
    /// Connecting, or waiting to be attached.
    Attaching { connection: Connection, since: Nanos },
    /// The session is up. `confirmed`: when the newest answered heartbeat was sent. `sent`: when the newest heartbeat was sent.
    Up { connection: Connection, confirmed: Nanos, sent: Nanos },
}

/// The state that the thread owns.
struct EmbeddedLink {
    options: ClientOptions,
    context: Context,
    session: Option<SessionId>,
    timeout: Nanos,
    state: SessionState,
    /// Operations that were sent but not answered.
    pending: BTreeSet<u64>,
}

impl Link for EmbeddedLink {
    fn context(&mut self) -> &mut Context {
        &mut self.context
    }

    fn next_deadline(&self) -> Nanos {
        match &self.state {
            SessionState::Idle { retry } => *retry,
            SessionState::Attaching { since, .. } => *since + self.timeout,
            SessionState::Up { confirmed, sent, .. } => {
                (*sent + heartbeat_interval(self.timeout)).min(*confirmed + silence_timeout(self.timeout))
            }
        }
    }

    fn work(&mut self) {
        if let Err(broken) = self.receive() {
            self.lose(&broken);
        }
        if let Err(broken) = self.send() {
            self.lose(&broken);
        }
        self.keep_time();
    }

    fn leave(&mut self) {
        if let SessionState::Up { connection, .. } = &mut self.state {
            connection.queue(REQUEST, &CoordinatorRequest::Leave);
        }
    }

    fn is_leaving(&mut self) -> bool {
        let SessionState::Up { connection, .. } = &mut self.state else { return false };
        connection.flush().is_ok() && connection.backlog() > 0
    }
}

impl EmbeddedLink {
    /// Does the work that is due by the clock.
    fn keep_time(&mut self) {
        let now = self.context.now();
        let (interval, timeout) = (heartbeat_interval(self.timeout), silence_timeout(self.timeout));
        match &mut self.state {
            SessionState::Idle { retry } if *retry <= now => self.connect(now),
            SessionState::Attaching { since, .. } if *since + self.timeout <= now => self.lose(&Broken::Silent),
            SessionState::Up { confirmed, .. } if *confirmed + timeout <= now => self.lose(&Broken::Silent),
            SessionState::Up { connection, sent, .. } if *sent + interval <= now => {
                *sent = now;
                connection.queue(REQUEST, &CoordinatorRequest::Heartbeat { nonce: now.0 });
                if let Err(broken) = connection.flush() {
                    self.lose(&broken);
                }
            }
            _ => {}
        }
    }

    fn connect(&mut self, now: Nanos) {
        let named = |tls: &Arc<NodeTls>| tls.connect_service(COORDINATOR_NAME).expect("it is a host's name");
        let session = self.options.tls.as_ref().map(named);
        match Connection::begin(self.options.address, session, &self.context.poll, SOCKET) {
            Ok(mut connection) => {
                let timeout_ms = u32::try_from(self.options.session_timeout.as_millis()).unwrap_or(u32::MAX);
                // The request waits in the connection until the socket is connected.
                connection.queue(REQUEST, &CoordinatorRequest::Attach { session: self.session, timeout_ms });
                self.state = SessionState::Attaching { connection, since: now };
            }
            Err(error) => self.lose(&error.into()),
        }
    }

    /// The connection is over: reports what is lost with it.
    fn lose(&mut self, broken: &Broken) {
        let now = self.context.now();
        let before = std::mem::replace(&mut self.state, SessionState::Idle { retry: now + RETRY });
        self.note_outage(now, &before, broken);
        if let SessionState::Up { .. } = before {
            (self.context.sink)(CoordinatorEvent::Down);
        }
        for id in std::mem::take(&mut self.pending) {
            self.context.disconnected(id);
        }
    }

    /// Records why there is no session, for callers that ask: the time of the first failure, and the reason of the last one.
    fn note_outage(&self, now: Nanos, before: &SessionState, broken: &Broken) {
        let since = match before {
            SessionState::Up { confirmed, .. } => *confirmed,
            SessionState::Attaching { since, .. } => *since,
            SessionState::Idle { .. } => now,
        };
        self.context.mailbox.note_outage(Outage {
            address: self.options.address.to_string(),
            since,
            reason: broken.to_string(),
        });
    }

    /// Handles everything that the host has sent.
    fn receive(&mut self) -> Result<(), Broken> {
        loop {
            let connection = match &mut self.state {
                SessionState::Idle { .. } => return Ok(()),
                SessionState::Attaching { connection, .. } | SessionState::Up { connection, .. } => connection,
            };
            match connection.next(FrameKind::CoordinatorReply)? {
                Some(reply) => self.take(reply)?,
                None => match connection.fill() {
                    Ok(true) => {}
                    Ok(false) => return Ok(()),
                    Err(broken) => return Err(broken),
                },
            }
        }
    }

    fn take(&mut self, reply: CoordinatorReply) -> Result<(), Broken> {
        let event = match (reply, &mut self.state) {
            (CoordinatorReply::Attached { session, timeout_ms }, SessionState::Attaching { .. }) => {
                return self.attached(session, timeout_ms);
            }
            (CoordinatorReply::Unknown, SessionState::Attaching { .. }) => {
                self.session = None;
                (self.context.sink)(CoordinatorEvent::Expired);
                return Err(Broken::Protocol("the session has expired"));
            }
            (CoordinatorReply::Changed(change), SessionState::Up { .. }) => CoordinatorEvent::Changed(vec![change]),
            (CoordinatorReply::Synced { version }, SessionState::Up { .. }) => CoordinatorEvent::Synced { version },
            (CoordinatorReply::Heartbeat { nonce }, SessionState::Up { confirmed, sent, .. }) => {
                // Never later than the newest heartbeat sent, whatever the peer answers.
                *confirmed = Nanos(nonce).min(*sent).max(*confirmed);
                return Ok(());
            }
            (CoordinatorReply::Done { id, result }, SessionState::Up { .. }) => {
                if !self.pending.remove(&id) {
                    return Err(Broken::Protocol("an answer to a question that was not asked"));
                }
                CoordinatorEvent::Reply { id, result }
            }
            _ => return Err(Broken::Protocol("a message out of turn")),
        };
        (self.context.sink)(event);
        Ok(())
    }

    fn attached(&mut self, session: SessionId, timeout_ms: u32) -> Result<(), Broken> {
        let before = std::mem::replace(&mut self.state, SessionState::Idle { retry: Nanos::ZERO });
        let SessionState::Attaching { connection, since, .. } = before else {
            return Err(Broken::Protocol("attached twice"));
        };
        self.state = SessionState::Up { connection, confirmed: since, sent: since };
        self.session = Some(session);
        self.timeout = Nanos::from_millis(timeout_ms.max(1).into());
        self.context.mailbox.end_outage();
        (self.context.sink)(CoordinatorEvent::Up { session });
        Ok(())
    }

    /// Sends submitted operations, or answers them at once while no session is up.
    fn send(&mut self) -> Result<(), Broken> {
        let ops = self.context.mailbox.take_ops();
        match &mut self.state {
            SessionState::Up { connection, .. } => {
                for (id, op) in ops {
                    if op.bytes() > MAX_COORDINATOR_BYTES - REQUEST_OVERHEAD_BYTES {
                        let result =
                            Err(CoordinatorError::Refused(format!("an operation of {} bytes is too long", op.bytes())));
                        (self.context.sink)(CoordinatorEvent::Reply { id, result });
                        continue;
                    }
                    self.pending.insert(id);
                    connection.queue(REQUEST, &CoordinatorRequest::Submit { id, op });
                }
                connection.flush()
            }
            SessionState::Attaching { .. } | SessionState::Idle { .. } => {
                for (id, _) in ops {
                    self.context.disconnected(id);
                }
                match &mut self.state {
                    SessionState::Attaching { connection, .. } => connection.flush(),
                    _ => Ok(()),
                }
            }
        }
    }
}

//! The thread of a client. It finds a server of the ensemble, keeps time, and continues the session on another server when one
//! fails.
//!
//! Invariants:
//! - Every submitted operation gets exactly one `Reply`.
//! - `Down` comes as soon as the server is lost, or has left everything unanswered for a third of the session's timeout. The time
//!   counts by this process's own clock from when the request was sent. The ensemble of the server ends the session two thirds of
//!   the timeout later at the earliest.
//! - A server that is cut off from its leader answers until it notices, which takes `syncLimit` x `tickTime`. `Down` comes that
//!   late. So it comes before the end of the session only where that is shorter.
//! - Only the ensemble decides that a session is over.
//! - A server is asked to have seen what this client saw, so that no server that is behind continues a session. Where servers
//!   only close at once, for long, the client asks for what they have: the ensemble was emptied or put back, or lacked a quorum.
//!   A server must then have a change committed before the tree is read. So an older tree is that of an ensemble that forgot, and
//!   never that of a server that is cut off. The reader of the tree judges it.

use super::client::ClientOptions;
use super::plan::ClusterRoot;
use super::protocol_session::{End, ProtocolSession};
use super::request_limit::RequestLimit;
use super::servers::{Host, Servers, Unknown};
use crate::coordinator::client::{Context, Link, SOCKET, heartbeat_interval, silence_timeout};
use crate::coordinator::connection::{Broken, Connection};
use crate::{CoordinatorEvent, Outage};
use leeward_format::zookeeper::{Access, Connect, LENGTH_BYTES, read_packet};
use leeward_platform::{Nanos, Rng};
use std::io;
use std::net::ToSocketAddrs;

/// Shortest pause after a refusal, which only an operator can resolve.
const RETRY_REFUSED: Nanos = Nanos::from_secs(1);
/// Session timeouts for which servers close before they greet, until they are not asked any more to have seen as much as this
/// client. A server that is only behind catches up sooner.
const BEHIND_TIMEOUTS: u64 = 2;

enum LinkState {
    /// No connection until `retry`.
    Idle { retry: Nanos },
    /// No server's address is known yet.
    Resolving,
    /// Connected to a server.
    Talking(Box<Talk>),
}

struct Talk {
    connection: Connection,
    protocol_session: ProtocolSession,
    server: String,
    since: Nanos,
    /// How long the server may take to continue the session, or to begin one.
    silence_timeout: Nanos,
    pinged: Nanos,
}

/// The state that the thread owns.
pub(super) struct ZooKeeperLink {
    options: ClientOptions,
    context: Context,
    /// The session to continue, and the newest change seen; 0 until a tree was read with whatever the servers have.
    session: Connect,
    timeout: Nanos,
    state: LinkState,
    servers: Servers,
    /// How long a request may be.
    limit: RequestLimit,
    /// What the operator should know of the session's timeout.
    concern: Option<String>,
    /// The refusal that was logged.
    refusal: Option<String>,
    /// Since when servers have closed before they greeted.
    unwelcome_since: Option<Nanos>,
}

impl Link for ZooKeeperLink {
    fn context(&mut self) -> &mut Context {
        &mut self.context
    }

    fn next_deadline(&self) -> Nanos {
        match &self.state {
            LinkState::Idle { retry } => *retry,
            LinkState::Resolving => Nanos::MAX,
            LinkState::Talking(talk) => self.missed_at(talk).min(talk.pinged + heartbeat_interval(self.timeout)),
        }
    }

    fn work(&mut self) {
        let heard = self.receive();
        self.heed(heard);
        self.submit();
        self.keep_time();
        let sent = self.send();
        self.heed(sent);
    }

    fn leave(&mut self) {
        let now = self.context.now();
        if let LinkState::Talking(talk) = &mut self.state
            && talk.protocol_session.connected().is_some()
        {
            talk.protocol_session.leave(now);
        }
    }

    /// The socket stays open until the request is answered: closing it earlier may lose the request.
    fn is_leaving(&mut self) -> bool {
        let LinkState::Talking(talk) = &self.state else { return false };
        talk.protocol_session.connected().is_some() && self.send().is_ok() && self.receive().is_ok()
    }
}

impl ZooKeeperLink {
    /// # Errors
    /// The machine refuses a thread.
    pub(super) fn new(options: ClientOptions, context: Context) -> io::Result<ZooKeeperLink> {
        let resolve = |(host, port): &Host| Ok((host.as_str(), *port).to_socket_addrs()?.collect());
        let waker = context.mailbox.clone();
        let servers = Servers::new(options.ensemble.hosts(), Rng::from_entropy(), resolve, move || waker.wake())?;
        let timeout_ms = i32::try_from(options.session_timeout.as_millis()).unwrap_or(i32::MAX);
        Ok(ZooKeeperLink {
            timeout: options.session_timeout,
            options,
            context,
            session: Connect { timeout_ms, ..Connect::default() },
            state: LinkState::Idle { retry: Nanos::ZERO },
            servers,
            limit: RequestLimit::default(),
            concern: None,
            refusal: None,
            unwelcome_since: None,
        })
    }

    /// The instant at which the server counts as lost if nothing arrives.
    fn missed_at(&self, talk: &Talk) -> Nanos {
        let is_greeted = talk.protocol_session.connected().is_some();
        talk.protocol_session.alive() + if is_greeted { silence_timeout(self.timeout) } else { talk.silence_timeout }
    }

    /// Does the work that is due by the clock.
    fn keep_time(&mut self) {
        let now = self.context.now();
        let is_lost = match &self.state {
            LinkState::Idle { retry } if *retry <= now => return self.connect(now),
            LinkState::Idle { .. } => return,
            LinkState::Resolving => return self.resolved(now),
            LinkState::Talking(talk) => self.missed_at(talk) <= now,
        };
        if is_lost {
            return self.end(End::Broken(Broken::Silent));
        }
        if let LinkState::Talking(talk) = &mut self.state
            && talk.pinged + heartbeat_interval(self.timeout) <= now
        {
            talk.pinged = now;
            let put_off = talk.protocol_session.why_put_off();
            self.context.mailbox.note_concern(put_off.or_else(|| self.concern.clone()));
            if talk.protocol_session.connected().is_some() {
                talk.protocol_session.ping(now);
            }
        }
    }

    /// Tries the next server.
    fn connect(&mut self, now: Nanos) {
        let Some(server) = self.servers.next() else {
            self.state = LinkState::Resolving;
            return;
        };
        let session = self.options.tls.as_ref().map(|tls| tls.connect_service(server.host()));
        let session = session.transpose().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error));
        let begun = session.and_then(|session| Connection::begin(server.address, session, &self.context.poll, SOCKET));
        match begun {
            Ok(connection) => {
                let access = if self.options.credentials.is_some() { Access::Creator } else { Access::Anyone };
                let place = ClusterRoot { root: self.options.ensemble.root().to_owned(), access };
                let digest = self.options.credentials.as_ref().map(|credentials| credentials.digest());
                self.limit.connected();
                let protocol_session = ProtocolSession::new(now, place, digest, &self.session, self.limit);
                let silence_timeout = self.servers.silence_timeout(self.timeout, self.session.session == 0);
                let server = server.name;
                let talk = Talk { connection, protocol_session, server, since: now, silence_timeout, pinged: now };
                self.state = LinkState::Talking(Box::new(talk));
            }
            Err(error) => self.fail(now, now, &server.name, &error.into()),
        }
    }

    /// Continues once the names were looked up.
    fn resolved(&mut self, now: Nanos) {
        match self.servers.found() {
            None => {}
            Some(Ok(())) => self.connect(now),
            Some(Err(Unknown { name, error })) => {
                let why = Broken::Refused(format!("its address is not known: {error}"));
                self.fail(now, now, &name, &why);
            }
        }
    }

    /// Records why there is no session, for callers that ask, and when to try again.
    fn fail(&mut self, now: Nanos, since: Nanos, server: &str, broken: &Broken) {
        let pause = self.servers.failed(self.timeout);
        let least = if let Broken::Refused(_) = broken { RETRY_REFUSED } else { Nanos::ZERO };
        self.state = LinkState::Idle { retry: now + pause.max(least) };
        let reason = format!("{server}: {broken}");
        if let Broken::Refused(why) = broken
            && self.refusal.as_ref() != Some(why)
        {
            tracing::error!(server, "{why}");
            self.refusal = Some(why.clone());
        }
        self.context.mailbox.note_outage(Outage { address: self.options.ensemble.to_string(), since, reason });
    }

    fn heed(&mut self, outcome: Result<(), End>) {
        self.tell();
        if let Err(end) = outcome {
            self.end(end);
        }
    }

    /// The connection is over: reports what is lost with it.
    fn end(&mut self, end: End) {
        let now = self.context.now();
        let LinkState::Talking(talk) = std::mem::replace(&mut self.state, LinkState::Idle { retry: now }) else {
            return;
        };
        let Talk { protocol_session, server, since, .. } = *talk;
        let is_greeted = protocol_session.connected().is_some();
        let since = if protocol_session.is_up() { protocol_session.heard() } else { since };
        if protocol_session.is_up() || self.session.last_zxid != 0 {
            self.session.last_zxid = protocol_session.last_zxid();
        }
        self.limit = protocol_session.limit;
        if let End::Broken(broken) = &end
            && broken.is_close()
        {
            self.limit.closed(now, protocol_session.longest_unanswered());
        }
        protocol_session.lose().into_iter().for_each(&mut self.context.sink);
        let has_expired = matches!(end, End::Expired) && self.session.session != 0;
        let broken = match end {
            End::Left => return,
            End::Expired if has_expired => {
                self.session = Connect { session: 0, password: Default::default(), ..self.session };
                self.timeout = self.options.session_timeout;
                self.servers.served();
                Broken::Protocol("the session has expired")
            }
            End::Expired => Broken::Protocol("it gives no session"),
            End::Broken(broken) if broken.is_close() && !is_greeted => self.unwelcome(now),
            End::Broken(broken) => broken,
        };
        if let Broken::Outdated(why) = &broken {
            tracing::warn!(server, "{why}. The whole tree is read anew");
        }
        self.fail(now, since, &server, &broken);
        if has_expired {
            (self.context.sink)(CoordinatorEvent::Expired);
        }
    }

    /// The server closed the connection before it answered. It never says why: these are the reasons.
    fn unwelcome(&mut self, now: Nanos) -> Broken {
        let since = *self.unwelcome_since.get_or_insert(now);
        if self.session.last_zxid != 0 && now >= since + Nanos(self.timeout.0 * BEHIND_TIMEOUTS) {
            tracing::warn!(
                "every ZooKeeper server closes the connection at once, perhaps because none has seen as much of the tree as \
                 this node, which now asks for what they have"
            );
            self.session.last_zxid = 0;
        }
        let older = match self.session.last_zxid {
            0 => "",
            _ => ", or has seen less of the tree than this client",
        };
        let port = match self.options.tls {
            None => "its port is a secure one, for which this node needs tls_ca, tls_certificate and tls_key",
            Some(_) => "its port is not a secure one (secureClientPort), while this node has a certificate",
        };
        Broken::Unwelcome(format!(
            "it has no quorum{older}; or this host has as many connections there as its maxClientCnxns allows; or {port}"
        ))
    }

    /// Handles everything that the server has sent.
    fn receive(&mut self) -> Result<(), End> {
        loop {
            let LinkState::Talking(talk) = &mut self.state else { return Ok(()) };
            let Talk { connection, protocol_session, .. } = &mut **talk;
            let now = self.context.now();
            if let Some(packet) = read_packet(connection.unread()).map_err(Broken::from)? {
                let is_greeting = protocol_session.connected().is_none();
                let was_up = protocol_session.is_up();
                protocol_session.take(now, packet)?;
                let bytes = LENGTH_BYTES + packet.len();
                connection.take(bytes);
                let is_up = protocol_session.is_up();
                if is_greeting {
                    self.greeted();
                }
                if is_up && !was_up {
                    self.refusal = None;
                    self.servers.served();
                    self.context.mailbox.end_outage();
                }
                self.tell();
                continue;
            }
            match connection.fill() {
                Ok(true) => protocol_session.receive(now),
                Ok(false) => return Ok(()),
                Err(broken) => return Err(broken.into()),
            }
        }
    }

    /// A server accepted the session.
    fn greeted(&mut self) {
        let LinkState::Talking(talk) = &self.state else { return };
        let Some(connected) = talk.protocol_session.connected().cloned() else { return };
        self.unwelcome_since = None;
        let timeout = Nanos::from_millis(connected.timeout_ms.unsigned_abs().into());
        if self.session.session != connected.session {
            self.tell_timeout(timeout);
        }
        self.timeout = timeout;
        self.session.session = connected.session;
        self.session.password = connected.password;
    }

    /// Tells the operator of a session timeout that is not the one that was asked for.
    fn tell_timeout(&mut self, granted: Nanos) {
        let asked = self.options.session_timeout;
        let (asked_ms, granted_ms) = (asked.as_millis(), granted.as_millis());
        let longer = (granted > asked).then(|| {
            format!(
                "ZooKeeper grants a session timeout of {granted_ms} ms, not {asked_ms}: a dead node is noticed that late. \
                 Lower minSessionTimeout of its servers, which is twice their tickTime where it is not set, or set \
                 session_timeout_ms to what is granted"
            )
        });
        match &longer {
            Some(why) => tracing::warn!("{why}"),
            None if granted < asked => tracing::info!(
                asked_ms,
                granted_ms,
                "ZooKeeper grants a shorter session timeout: its maxSessionTimeout, or 20 times its tickTime"
            ),
            None => {}
        }
        self.concern = longer;
        self.context.mailbox.note_concern(self.concern.clone());
    }

    /// Delivers events to the sink.
    fn tell(&mut self) {
        if let LinkState::Talking(talk) = &mut self.state {
            talk.protocol_session.events.drain(..).for_each(&mut self.context.sink);
        }
    }

    /// Sends submitted operations, or answers them at once while no session is up.
    fn submit(&mut self) {
        let now = self.context.now();
        for (id, op) in self.context.mailbox.take_ops() {
            match &mut self.state {
                LinkState::Talking(talk) => talk.protocol_session.submit(now, id, op),
                LinkState::Idle { .. } | LinkState::Resolving => self.context.disconnected(id),
            }
        }
        self.tell();
    }

    /// Writes the output, as far as the socket accepts it.
    fn send(&mut self) -> Result<(), End> {
        if let LinkState::Talking(talk) = &mut self.state {
            talk.connection.queue_bytes(&std::mem::take(&mut talk.protocol_session.output));
            talk.connection.flush()?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;

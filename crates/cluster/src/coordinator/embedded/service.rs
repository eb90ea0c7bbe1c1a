//! The host's thread: one loop that reads requests, applies them, makes them durable together, and then tells the clients.
//!
//! Invariants:
//! - No client is told of anything before it is durable: effects are gathered in order, and `commit` releases them.
//! - Every peer is told the same changes in the same order, and an operation's changes before its answer.
//! - A session uses one connection. Pending requests of an older connection of the session are ignored. So after `Synced` a
//!   process knows that none of its earlier requests is still on its way.
//! - If the log fails, the loop drops everything, because the content of the log is then unknown, and begins again with
//!   what the log holds: [`super::outage`].

use super::log::Log;
use crate::coordinator::connection::{Broken, Connection};
use crate::{Deadlines, Tree};
use leeward_format::coordinator::{
    Change, CoordinatorError, CoordinatorOp, CoordinatorReply, CoordinatorRequest, LogEntry, SessionId,
};
use leeward_format::frame::{FrameKind, version_frame, write_frame};
use leeward_platform::{BootClock, Clock, Nanos, Unidentified, unidentified};
use leeward_security::tls::NodeTls;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

pub(super) const LISTENER: Token = Token(0);
pub(super) const WAKER: Token = Token(1);
const FIRST_PEER: usize = 2;
const REPLY: FrameKind = FrameKind::CoordinatorReply;

/// Connections that are accepted before the others get their turn. So each of those without a session gets some turns,
/// however many come at once.
const ACCEPTS_PER_TURN: usize = unidentified::PLACES / 4;
/// Bytes, besides its first snapshot, that may wait for a peer that does not read.
const MAX_BACKLOG_BYTES: usize = 16 * 1024 * 1024;
/// Bytes of changes that are gathered before they are made durable.
const MAX_BATCH_BYTES: usize = 16 * 1024 * 1024;
/// Reads from one peer before the others get their turn.
const READS_PER_TURN: usize = 16;
/// Session timeouts that are granted, in milliseconds.
const TIMEOUT_MS: std::ops::RangeInclusive<u32> = 100..=60_000;
/// How often the log says at most that connections without a session are closed for others.
const DISPLACED_WARNING: Nanos = Nanos::from_secs(60);
/// If the loop was late by more than this, the deadlines of sessions are postponed.
const LATE: Nanos = Nanos::from_millis(20);

/// Limits on the connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most connections with a session at a time.
    pub(super) peers: usize,
    /// A connection that has not attached after this long is closed.
    pub(super) attach_within: Nanos,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { peers: 1024, attach_within: Nanos::from_secs(5) }
    }
}

/// A request of the host's own process to the thread.
#[derive(Debug)]
pub(super) enum Command {
    Apply { op: CoordinatorOp, answer: SyncSender<Result<u64, CoordinatorError>> },
    Stop,
}

/// An effect that is told once the batch is durable.
enum Effect {
    Broadcast(Change),
    Send(usize, CoordinatorReply),
    Answer(SyncSender<Result<u64, CoordinatorError>>, Result<u64, CoordinatorError>),
}

struct Peer {
    connection: Connection,
    address: String,
    since: Nanos,
    session: Option<SessionId>,
    /// Backlog that does not count: the first snapshot.
    allowance: usize,
}

pub(super) struct Service {
    pub(super) poll: Poll,
    pub(super) listener: TcpListener,
    tls: Option<Arc<NodeTls>>,
    limits: Limits,
    pub(super) commands: Receiver<Command>,
    pub(super) clock: BootClock,
    tree: Tree,
    pub(super) log: Log,
    /// Why it does not serve now.
    pub(super) failure: Arc<Mutex<Option<String>>>,
    deadlines: Deadlines,
    peers: BTreeMap<usize, Peer>,
    next_peer: usize,
    /// Those without a session yet.
    unidentified: Unidentified<usize>,
    /// When the log last said that one of them was closed for another.
    displaced: Option<Nanos>,
    /// More connections may wait than were accepted in this turn.
    accepts_more: bool,
    /// The connection of each attached session.
    attached: BTreeMap<SessionId, usize>,
    entries: Vec<LogEntry>,
    entry_bytes: usize,
    effects: Vec<Effect>,
    /// Peers that may have more to read than their turn allowed.
    unread: BTreeSet<usize>,
}

impl Service {
    /// Serves those who connect to the listener; with certificates, only those who have one.
    pub(super) fn new(
        poll: Poll,
        (listener, tls, limits): (TcpListener, Option<Arc<NodeTls>>, Limits),
        commands: Receiver<Command>,
        tree: Tree,
        log: Log,
        failure: Arc<Mutex<Option<String>>>,
    ) -> Service {
        let mut service = Service {
            poll,
            listener,
            tls,
            limits,
            commands,
            clock: BootClock,
            tree: Tree::new(),
            log,
            failure,
            deadlines: Deadlines::default(),
            peers: BTreeMap::new(),
            next_peer: FIRST_PEER,
            unidentified: Unidentified::default(),
            displaced: None,
            accepts_more: false,
            attached: BTreeMap::new(),
            entries: Vec::new(),
            entry_bytes: 0,
            effects: Vec::new(),
            unread: BTreeSet::new(),
        };
        service.begin(tree);
        service
    }

    /// Begins with `tree`, without any connection. Its sessions get a fresh timeout.
    pub(super) fn begin(&mut self, tree: Tree) {
        let now = self.clock.now();
        self.deadlines = Deadlines::default();
        for (session, timeout_ms) in tree.sessions() {
            self.deadlines.open(now, session, Nanos::from_millis(timeout_ms.into()));
        }
        self.tree = tree;
    }

    /// Closes all connections, and forgets what is not durable. No caller gets an answer.
    pub(super) fn drop_all(&mut self) {
        self.peers.clear();
        self.unidentified = Unidentified::default();
        self.attached.clear();
        self.unread.clear();
        self.entries.clear();
        self.effects.clear();
        self.entry_bytes = 0;
    }

    /// Serves until told to stop.
    pub(super) fn run(mut self) {
        while let Err(error) = self.serve_all() {
            if self.recover(&error) {
                return;
            }
        }
    }

    /// Serves until told to stop, or until the log fails.
    fn serve_all(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        let mut listening_since = self.clock.now();
        loop {
            let is_idle = self.unread.is_empty() && !self.accepts_more;
            let wait = if is_idle { self.wait(listening_since) } else { Nanos::ZERO };
            // Rounded up: a thread that wakes before the deadline would only have to wake again.
            let timeout = wait.duration() + std::time::Duration::from_micros(999);
            if let Err(error) = self.poll.poll(&mut events, Some(timeout))
                && error.kind() != ErrorKind::Interrupted
            {
                return Err(error);
            }
            let now = self.clock.now();
            // Time in which this thread could not listen, because of its own disk or a sleeping machine.
            let late = now.since(listening_since).since(wait);
            if late > LATE {
                self.deadlines.excuse(late);
            }
            listening_since = now;
            let mut ready: BTreeSet<usize> = std::mem::take(&mut self.unread);
            ready.extend(events.iter().map(|event| event.token().0).filter(|token| *token >= FIRST_PEER));
            self.accept(now)?;
            for peer in ready {
                self.serve(now, peer)?;
            }
            if self.obey()? {
                return Ok(());
            }
            self.expire(now);
            self.commit()?;
            self.log.compact_if_due(&self.tree)?;
        }
    }

    /// How long there is no work unless a message arrives.
    fn wait(&self, now: Nanos) -> Nanos {
        let within = self.limits.attach_within;
        let waiting = self.peers.values().filter(|peer| peer.session.is_none()).map(|peer| peer.since + within);
        let next = waiting.chain(self.deadlines.next()).min();
        next.map_or(Nanos::from_secs(1), |next| next.since(now))
    }

    /// Accepts the waiting connections. Called every turn, so that a connection that was refused for lack of descriptors is not
    /// forgotten.
    fn accept(&mut self, now: Nanos) -> io::Result<()> {
        self.accepts_more = false;
        for _ in 0..ACCEPTS_PER_TURN {
            let (mut stream, address) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    // The peer is gone already, or descriptors are short: the other peers are still served.
                    tracing::warn!(%error, "the coordinator cannot accept a connection");
                    return Ok(());
                }
            };
            let token = self.next_peer;
            self.next_peer += 1;
            self.poll.registry().register(&mut stream, Token(token), Interest::READABLE | Interest::WRITABLE)?;
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a connection is slower than it could be");
            }
            let connection = Connection::new(stream, self.tls.as_ref().map(|tls| tls.accept_node()));
            let peer = Peer { connection, address: address.to_string(), since: now, session: None, allowance: 0 };
            self.peers.insert(token, peer);
            if let Some(displaced) = self.unidentified.enter(token, Some(address.ip())) {
                self.displace(now, displaced);
            }
        }
        self.accepts_more = true;
        Ok(())
    }

    /// Closes a connection without a session, since more come than there are places.
    fn displace(&mut self, now: Nanos, token: usize) {
        if self.displaced.is_none_or(|last| now.since(last) >= DISPLACED_WARNING) {
            self.displaced = Some(now);
            tracing::warn!("many connections to the coordinator do not attach: the first are closed when more come");
        }
        self.peers.remove(&token);
    }

    /// Reads the requests of a peer, and writes the output that waits for it.
    fn serve(&mut self, now: Nanos, token: usize) -> io::Result<()> {
        let mut reads = 0;
        let outcome = loop {
            let Some(peer) = self.peers.get_mut(&token) else { return Ok(()) };
            match peer.connection.next(FrameKind::CoordinatorRequest) {
                Ok(Some(request)) => {
                    if let Err(broken) = self.take(now, token, request)? {
                        break Err(broken);
                    }
                    if self.entry_bytes >= MAX_BATCH_BYTES {
                        self.commit()?;
                    }
                    continue;
                }
                Ok(None) => {}
                Err(broken) => break Err(broken),
            }
            if reads == READS_PER_TURN {
                self.unread.insert(token);
                break Ok(());
            }
            reads += 1;
            match peer.connection.fill() {
                Ok(true) => {}
                Ok(false) => break peer.connection.flush(),
                Err(broken) => break Err(broken),
            }
        };
        if let Err(broken) = outcome {
            if let (Broken::Hostile(error), Some(peer)) = (&broken, self.peers.get_mut(&token))
                && error.other_version().is_some()
            {
                peer.connection.queue_bytes(&version_frame(REPLY));
                // A failure to send it does not matter: the connection is closed anyway.
                peer.connection.flush().ok();
            }
            self.drop_peer(token, &broken);
        }
        Ok(())
    }

    /// Handles a request of a peer. The outer error ends the service, and the inner error ends the connection.
    fn take(&mut self, now: Nanos, token: usize, request: CoordinatorRequest) -> io::Result<Result<(), Broken>> {
        let session = self.peers.get(&token).and_then(|peer| peer.session);
        let Some(session) = session else {
            return match request {
                CoordinatorRequest::Attach { session, timeout_ms } => self.attach(now, token, session, timeout_ms),
                _ => Ok(Err(Broken::Protocol("the first request must be to attach"))),
            };
        };
        if self.attached.get(&session) != Some(&token) {
            return Ok(Err(Broken::Protocol("the session is over, or goes on through another connection")));
        }
        self.deadlines.heard(now, session);
        match request {
            CoordinatorRequest::Attach { .. } => return Ok(Err(Broken::Protocol("attached already"))),
            CoordinatorRequest::Heartbeat { nonce } => {
                self.effects.push(Effect::Send(token, CoordinatorReply::Heartbeat { nonce }));
            }
            CoordinatorRequest::Submit { id, op } => {
                let result = self.apply(Some(session), op);
                self.effects.push(Effect::Send(token, CoordinatorReply::Done { id, result }));
            }
            CoordinatorRequest::Leave => {
                tracing::info!(session = session.0, "a session left");
                self.close(session);
            }
        }
        Ok(Ok(()))
    }

    /// Begins or continues a session, and tells the whole tree.
    fn attach(
        &mut self,
        now: Nanos,
        token: usize,
        session: Option<SessionId>,
        timeout_ms: u32,
    ) -> io::Result<Result<(), Broken>> {
        let peer = self.peers.get(&token);
        if self.tls.is_some() && peer.is_none_or(|peer| peer.connection.peer_server().is_none()) {
            return Ok(Err(Broken::Protocol("its certificate is not that of a server")));
        }
        let is_new = session.is_none_or(|session| !self.attached.contains_key(&session));
        if is_new && self.peers.values().filter(|peer| peer.session.is_some()).count() >= self.limits.peers {
            return Ok(Err(Broken::Protocol("as many sessions are attached as the coordinator takes")));
        }
        // The tree that is told must be durable, and hold everything that was told to others before.
        self.commit()?;
        let session = match session {
            Some(session) if self.tree.timeout_ms(session).is_some() => session,
            Some(_) => {
                if let Some(peer) = self.peers.get_mut(&token) {
                    peer.connection.queue(REPLY, &CoordinatorReply::Unknown);
                    return Ok(peer.connection.flush().and(Err(Broken::Protocol("its session has expired"))));
                }
                return Ok(Ok(()));
            }
            None => {
                let timeout_ms = timeout_ms.clamp(*TIMEOUT_MS.start(), *TIMEOUT_MS.end());
                let Ok(session) = self.tree.open(timeout_ms) else {
                    return Ok(Err(Broken::Protocol("too many sessions are open")));
                };
                self.entries.push(LogEntry::Opened { session, timeout_ms });
                self.commit()?;
                session
            }
        };
        let timeout_ms = self.tree.timeout_ms(session).expect("the session is open");
        self.deadlines.open(now, session, Nanos::from_millis(timeout_ms.into()));
        if let Some(older) = self.attached.insert(session, token) {
            self.drop_peer(older, &Broken::Protocol("its session goes on through another connection"));
        }
        let Some(peer) = self.peers.get_mut(&token) else { return Ok(Ok(())) };
        tracing::debug!(session = session.0, address = peer.address, "a session attached");
        peer.session = Some(session);
        self.unidentified.leave(|other| *other == token);
        peer.connection.queue(REPLY, &CoordinatorReply::Attached { session, timeout_ms });
        for change in self.tree.changes() {
            peer.connection.queue(REPLY, &CoordinatorReply::Changed(change));
        }
        peer.connection.queue(REPLY, &CoordinatorReply::Synced { version: self.tree.version() });
        peer.allowance = peer.connection.backlog();
        Ok(peer.connection.flush())
    }

    /// Applies `op` and gathers its effects.
    fn apply(&mut self, session: Option<SessionId>, op: CoordinatorOp) -> Result<u64, CoordinatorError> {
        let applied = self.tree.apply(session, &op)?;
        self.entry_bytes += op.bytes();
        self.entries.push(LogEntry::Applied { session, op });
        self.effects.extend(applied.changes.into_iter().map(Effect::Broadcast));
        Ok(applied.version)
    }

    /// Ends a session.
    fn close(&mut self, session: SessionId) {
        let changes = self.tree.close(session);
        self.entries.push(LogEntry::Closed { session });
        self.effects.extend(changes.into_iter().map(Effect::Broadcast));
        self.deadlines.close(session);
        self.attached.remove(&session);
    }

    /// Handles the requests of the host's own process. Returns whether the service is to stop.
    fn obey(&mut self) -> io::Result<bool> {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Apply { op, answer } => {
                    let result = self.apply(None, op);
                    self.effects.push(Effect::Answer(answer, result));
                }
                Command::Stop => {
                    self.commit()?;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Ends sessions that were silent for too long, and connections that never attached.
    fn expire(&mut self, now: Nanos) {
        if !self.unread.is_empty() {
            return; // The heartbeat of a silent session may be among the unread bytes.
        }
        for session in self.deadlines.expired(now) {
            tracing::info!(session = session.0, "a session expired");
            let connection = self.attached.get(&session).copied();
            self.close(session);
            if let Some(token) = connection {
                self.drop_peer(token, &Broken::Protocol("its session has expired"));
            }
        }
        let within = self.limits.attach_within;
        let idle = self.peers.iter().filter(|(_, peer)| peer.session.is_none() && peer.since + within <= now);
        let idle: Vec<usize> = idle.map(|(token, _)| *token).collect();
        for token in idle {
            self.drop_peer(token, &Broken::Protocol("it did not attach"));
        }
    }

    /// Makes the gathered effects durable, then tells them.
    fn commit(&mut self) -> io::Result<()> {
        if !self.entries.is_empty() {
            self.log.append(std::mem::take(&mut self.entries))?;
            self.entry_bytes = 0;
        }
        let mut touched = BTreeSet::new();
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Broadcast(change) => {
                    let mut frame = Vec::new();
                    write_frame(REPLY, &CoordinatorReply::Changed(change), &mut frame);
                    for (token, peer) in self.peers.iter_mut().filter(|(_, peer)| peer.session.is_some()) {
                        peer.connection.queue_bytes(&frame);
                        touched.insert(*token);
                    }
                }
                Effect::Send(token, reply) => {
                    if let Some(peer) = self.peers.get_mut(&token) {
                        peer.connection.queue(REPLY, &reply);
                        touched.insert(token);
                    }
                }
                // The caller may have gone away.
                Effect::Answer(answer, result) => drop(answer.send(result)),
            }
        }
        for token in touched {
            let Some(peer) = self.peers.get_mut(&token) else { continue };
            let mut outcome = peer.connection.flush();
            if peer.connection.backlog() > MAX_BACKLOG_BYTES + peer.allowance {
                outcome = Err(Broken::Slow);
            }
            if let Err(broken) = outcome {
                self.drop_peer(token, &broken);
            }
        }
        Ok(())
    }

    /// Closes a connection. Its session stays until it attaches through another connection or expires.
    fn drop_peer(&mut self, token: usize, broken: &Broken) {
        let Some(peer) = self.peers.remove(&token) else { return };
        self.unidentified.leave(|other| *other == token);
        match broken {
            Broken::Io(error) if error.kind() == ErrorKind::InvalidData => {
                tracing::info!(address = peer.address, reason = %broken, "the coordinator refuses a connection");
            }
            Broken::Closed | Broken::Io(_) => {
                tracing::debug!(address = peer.address, reason = %broken, "the coordinator lost a connection");
            }
            _ => {
                tracing::warn!(address = peer.address, reason = %broken, "the coordinator closes a connection");
            }
        }
        if let Some(session) = peer.session
            && self.attached.get(&session) == Some(&token)
        {
            self.attached.remove(&session);
        }
    }
}

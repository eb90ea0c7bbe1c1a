//! The thread that owns the node and every client socket.
//!
//! One turn: take what other threads sent, read the sockets that have something, submit their operations, end the node's
//! batch once, hand its jobs to the pool, encode and send replies. So all commands that arrive together, of one
//! connection or of many, share one mirror write a backup and one flush. Nothing here waits but the poll, and nothing
//! takes as long as a client likes: see `turn.rs`.
//!
//! Sockets are registered edge-triggered, for reading and writing, once. Which of them are read when is in the book of
//! `ready_list.rs`: a connection that has unread bytes but whose session accepts none (back-pressure) is left alone until its
//! output moves; one that has more than its share of a turn is read again in the next turn, without a poll that sleeps.

use super::channel::Events;
use super::connection::{Connection, Kind, refuse};
use super::cpu_accounting::CpuAccounting;
use super::pool::Pool;
use super::ready_list::{Before, ReadyList};
use super::ringing::Ringing;
use super::shortage::Shortage;
use super::turn::Backlog;
use crate::commands::{Context, Shared};
use crate::metrics::{Dropped, Metrics};
use crate::node::{Input, Node, Outbox};
use crate::protocol_session::Submission;
use crate::quota::Quota;
use crate::{commands, native};
use leeward_format::UnixMs;
use leeward_platform::cpu::{self, Activity};
use leeward_platform::{BootClock, Clock, Nanos};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Poll};
use socket2::SockRef;
use std::collections::{BTreeSet, HashMap};
use std::io::{self, ErrorKind};
use std::sync::Arc;

/// Poll token of the waker.
pub(super) const WAKER: mio::Token = mio::Token(0);
/// Poll token of the listener for Redis clients.
const RESP: mio::Token = mio::Token(1);
/// Poll token of the listener for native clients.
const NATIVE: mio::Token = mio::Token(2);
/// Ids of connections begin here; each is its socket's poll token too, and never used twice.
const FIRST_CONNECTION: u64 = 3;
/// How often the node hears that time passes.
pub(super) const TICK: Nanos = Nanos::from_millis(50);
/// How long a node answers after the others have taken over.
const LINGER: Nanos = Nanos::from_millis(300);
/// How long its clients may take to be answered after that.
const DRAIN: Nanos = Nanos::from_secs(2);
/// How often connections are searched for stalled ones.
const STALL_CHECK: Nanos = Nanos::from_secs(1);
/// How often a socket may tell of bells that are left in it.
const MOST_LEFT: u32 = 64;
/// Connections that are accepted in a turn.
const ACCEPTED: usize = 64;
/// Bytes of replies that the kernel takes and cannot send yet: what it keeps for all clients that do not read comes out of
/// what all sockets of the machine share, those between nodes as well.
const UNSENT_BYTES: u32 = 128 << 10;
/// Bytes taken from a socket at once.
const READ_BYTES: usize = 256 * 1024;

/// What clients may do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) connections: usize,
    pub(super) output_bytes: usize,
    pub(super) stall: Nanos,
}

/// What the event loop is made of.
pub(super) struct Parts {
    pub(super) poll: Poll,
    pub(super) events: Events,
    pub(super) resp: TcpListener,
    pub(super) native: TcpListener,
    pub(super) node: Node,
    pub(super) pool: Pool,
    pub(super) shared: Shared,
    pub(super) ringing: Ringing,
    pub(super) cpu_accounting: Arc<CpuAccounting>,
    pub(super) limits: Limits,
}

/// The state of the thread.
pub(super) struct EventLoop {
    poll: Poll,
    pub(super) events: Events,
    pub(super) ringing: Ringing,
    /// Listeners. The one for Redis clients is closed when the drain begins.
    listeners: [(Kind, Option<TcpListener>); 2],
    /// A listener may have connections that were not accepted, for lack of descriptors.
    accept_again: bool,
    /// Listeners that have more connections than are accepted in a turn.
    unaccepted: [bool; 2],
    /// The log says that connections cannot be accepted, and none was accepted since.
    is_accepting_blocked: bool,
    pub(super) node: Node,
    pool: Pool,
    pub(super) shared: Shared,
    cpu_accounting: Arc<CpuAccounting>,
    pub(super) limits: Limits,
    pub(super) clock: BootClock,
    pub(super) connections: HashMap<u64, Connection>,
    next_connection: u64,
    pub(super) ready_list: ReadyList,
    pub(super) shortage: Shortage,
    /// Connections whose output or state may have changed in this turn.
    pub(super) touched: BTreeSet<u64>,
    pub(super) submissions: Vec<Submission>,
    pub(super) outbox: Outbox,
    pub(super) buffer: Vec<u8>,
    /// Units of work that were done since the clock was read last.
    pub(super) units_done: u32,
    /// What did not fit in the turns so far.
    pub(super) backlog: Backlog,
    next_tick: Nanos,
    next_stall_check: Nanos,
    /// Until when the other nodes may take over.
    pub(super) departs_by: Option<Nanos>,
    /// Since when they have taken over.
    departed_at: Option<Nanos>,
    /// Since when Redis clients are drained: what was begun for them is answered, and no more is read.
    drain_at: Option<Nanos>,
    pub(super) is_stopping: bool,
}

impl EventLoop {
    pub(super) fn new(mut parts: Parts) -> io::Result<EventLoop> {
        let registry = parts.poll.registry();
        registry.register(&mut parts.resp, RESP, Interest::READABLE)?;
        registry.register(&mut parts.native, NATIVE, Interest::READABLE)?;
        Ok(EventLoop {
            poll: parts.poll,
            events: parts.events,
            ready_list: ReadyList::new(parts.ringing.spin, MOST_LEFT),
            ringing: parts.ringing,
            shortage: Shortage::default(),
            listeners: [(Kind::Resp, Some(parts.resp)), (Kind::Native, Some(parts.native))],
            accept_again: false,
            unaccepted: [false; 2],
            is_accepting_blocked: false,
            node: parts.node,
            pool: parts.pool,
            shared: parts.shared,
            cpu_accounting: parts.cpu_accounting,
            limits: parts.limits,
            clock: BootClock,
            connections: HashMap::new(),
            next_connection: FIRST_CONNECTION,
            touched: BTreeSet::new(),
            submissions: Vec::new(),
            outbox: Outbox::default(),
            buffer: vec![0; READ_BYTES],
            units_done: 0,
            backlog: Backlog::default(),
            next_tick: Nanos::ZERO,
            next_stall_check: Nanos::ZERO,
            departs_by: None,
            departed_at: None,
            drain_at: None,
            is_stopping: false,
        })
    }

    /// Turns until it is told to stop.
    ///
    /// # Errors
    /// The poll itself fails, which only a bug or a machine without memory causes.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut ready = mio::Events::with_capacity(1024);
        let cpu_accounting = self.cpu_accounting.clone();
        let mut turns = 0;
        while !self.is_stopping {
            turns += 1;
            let _sampled = cpu_accounting.sample(turns, Activity::Receive.of_node());
            let wait = self.prepare();
            match self.poll.poll(&mut ready, Some(wait.duration())) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                other => other?,
            }
            let now = self.clock.now();
            self.node.set_wall(now, UnixMs(self.clock.unix_ms()));
            for event in &ready {
                match event.token() {
                    WAKER => {}
                    RESP => self.unaccepted[0] = true,
                    NATIVE => self.unaccepted[1] = true,
                    mio::Token(id) => self.socket_event(id as u64, event),
                }
            }
            self.take_events();
            self.take_passed_on();
            self.accept_some(now);
            self.read_rings(now);
            self.read_clients(now);
            self.take_events();
            self.pass_time(now);
            let at_engine = cpu::at(Activity::Engine.of_primary());
            // Read anew: leases are judged by it, and this thread may have been stopped since the turn began.
            let now = self.clock.now();
            self.node.finish_batch(now, &mut self.outbox);
            self.pool.run(std::mem::take(&mut self.outbox.jobs).into_iter());
            drop(at_engine);
            self.answer_clients(now);
        }
        Ok(())
    }

    /// Does what comes before a turn; answers how long its poll may sleep.
    fn prepare(&mut self) -> Nanos {
        let now = self.clock.now();
        let operators = self.answer_operators(now);
        // What is left of the last turn must not wait for the poll.
        let is_busy = self.backlog.is_any() || !self.touched.is_empty() || self.unaccepted.contains(&true);
        match self.ready_list.before(now, is_busy) {
            Before::FallAsleep => self.fall_asleep(),
            Before::Nothing => {}
            Before::Spin => self.spin(now),
            Before::Sleep => return self.next_tick.min(operators.unwrap_or(Nanos::MAX)) - now,
        }
        Nanos::ZERO
    }

    fn socket_event(&mut self, id: u64, event: &mio::event::Event) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if event.is_writable() {
            connection.became_writable();
            self.touched.insert(id);
        }
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            let is_last = event.is_read_closed() || event.is_error();
            connection.became_readable(is_last);
            self.ready_list.told(id, self.ringing.hears(id), is_last);
        }
    }

    /// Stops the node that is to depart once two things are done. First, the other nodes have taken over, and all of them
    /// know that; until then this node answers requests for the regions that it had. Second, Redis clients, which do not
    /// retry by themselves, have the answers to what was begun for them. If the other nodes take too long, it stops without
    /// them.
    fn depart(&mut self, now: Nanos) {
        let Some(by) = self.departs_by else { return };
        self.departed_at = self.node.has_departed().then(|| self.departed_at.unwrap_or(now));
        if self.drain_at.is_none() && (now > by || self.departed_at.is_some_and(|at| now - at >= LINGER)) {
            self.drain_connections(now);
        }
        let is_done = |at| {
            let are_gone = self.connections.values().all(|connection| connection.kind != Kind::Resp);
            now - at >= DRAIN || are_gone && (now > by || self.node.is_idle())
        };
        self.is_stopping |= self.drain_at.is_some_and(is_done);
    }

    /// Reads no more from Redis clients, accepts no more of them, and ends their connections when what was begun is answered.
    fn drain_connections(&mut self, now: Nanos) {
        self.drain_at = Some(now);
        for (_, listener) in self.listeners.iter_mut().filter(|(kind, _)| *kind == Kind::Resp) {
            *listener = None;
        }
        for (id, connection) in self.connections.iter_mut().filter(|(_, connection)| connection.kind == Kind::Resp) {
            connection.protocol_session.stop();
            self.touched.insert(*id);
        }
    }

    fn pass_time(&mut self, now: Nanos) {
        if now < self.next_tick {
            return;
        }
        let _at = cpu::at(Activity::Other.of_node());
        self.next_tick = now + TICK;
        self.node.handle(now, Input::Tick);
        self.depart(now);
        self.pass_time_for_rings(now);
        self.end_stuck(now);
        if self.accept_again {
            self.accept_again = false;
            self.unaccepted = [true; 2];
        }
        if now >= self.next_stall_check {
            self.next_stall_check = now + STALL_CHECK;
            for (id, connection) in &mut self.connections {
                if let Some(why) = connection.check_stall(now, self.limits.stall) {
                    report_dropped(*id, why, &self.shared.metrics);
                    self.touched.insert(*id);
                }
            }
            for id in self.ringing.stalled(now, self.limits.stall) {
                let connection = self.connections.get_mut(&id).filter(|connection| !connection.is_dead);
                if let Some(connection) = connection {
                    connection.is_dead = true;
                    report_dropped(id, Dropped::Stalled, &self.shared.metrics);
                    self.touched.insert(id);
                }
            }
        }
    }

    /// Accepts connections, as many as a turn takes.
    fn accept_some(&mut self, now: Nanos) {
        for number in 0..self.listeners.len() {
            if self.unaccepted[number] {
                self.unaccepted[number] = self.accept(number, now);
            }
        }
    }

    /// Accepts some connections of a listener; answers whether it may have more.
    fn accept(&mut self, listener: usize, now: Nanos) -> bool {
        for _ in 0..ACCEPTED {
            let (kind, Some(listener)) = &self.listeners[listener] else { return false };
            match listener.accept() {
                Ok((stream, address)) => {
                    let kind = *kind;
                    self.is_accepting_blocked = false;
                    if let Err(error) = self.admit(kind, stream, address.to_string(), now) {
                        tracing::warn!(%address, %error, "a connection could not be taken");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The client gave up while it was queued.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if !std::mem::replace(&mut self.is_accepting_blocked, true) {
                        tracing::warn!(%error, "connections wait: none can be accepted (out of file descriptors?)");
                    }
                    self.accept_again = true;
                    return false;
                }
            }
        }
        true
    }

    fn admit(&mut self, kind: Kind, mut stream: TcpStream, address: String, now: Nanos) -> io::Result<()> {
        if self.connections.len() >= self.limits.connections {
            self.shared.metrics.refused();
            return refuse(kind, &stream);
        }
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES)?;
        let local = stream.local_addr()?.to_string();
        let id = self.next_connection;
        self.next_connection += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, mio::Token(id as usize), interest)?;
        let quota = Quota::default();
        let mut context =
            Context { now, routes: self.node.routes(), figures: &self.node, shared: &mut self.shared, quota };
        let protocol_session: Box<dyn crate::protocol_session::ProtocolSession> = match kind {
            Kind::Resp => Box::new(commands::Session::new(id, address, local, &mut context)),
            Kind::Native => Box::new(native::Session::new(id, address, local, &mut context)),
        };
        self.connections.insert(id, Connection::new(kind, stream, protocol_session, now));
        connections(&self.shared.metrics, kind).opened();
        Ok(())
    }

    pub(super) fn remove(&mut self, id: u64) {
        if let Some(mut connection) = self.connections.remove(&id) {
            self.ready_list.remove(id);
            self.ringing.remove(id, &self.shared.metrics);
            self.shared.clients.remove(id);
            connections(&self.shared.metrics, connection.kind).closed();
            // Closing the socket deregisters it too; this only keeps the poll tidy.
            drop(self.poll.registry().deregister(&mut connection.stream));
        }
    }
}

fn connections(metrics: &Metrics, kind: Kind) -> &crate::metrics::Connections {
    match kind {
        Kind::Resp => metrics.resp_connections(),
        Kind::Native => metrics.native_connections(),
    }
}

pub(super) fn report_dropped(id: u64, why: Dropped, metrics: &Metrics) {
    metrics.dropped(why);
    tracing::warn!(client = id, ?why, "a client that does not read its replies was disconnected");
}

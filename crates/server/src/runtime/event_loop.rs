//! The thread that owns the node and every client socket.
//!
//! One turn: take events of other threads, read the sockets that have bytes, submit their operations, end the node's
//! batch once, hand its jobs to the pool, encode and send replies. So all commands that arrive together, of one
//! connection or of many, share one mirror write per backup and one flush. Only the poll waits, and `turn.rs` bounds
//! the time that a client can take.
//!
//! Sockets are registered once, edge-triggered, for reading and writing. `ready_list.rs` decides which are read when. A
//! connection whose session accepts nothing (back-pressure) is left alone until its output moves, even if it has unread
//! bytes. One that has more than its share of a turn is read again in the next turn, without a poll that sleeps.

use super::acceptor::{Accepted, Acceptor};
use super::connection::{Connection, Kind, channel};
use super::connections::{Connections, Limits, report_dropped};
use super::departure::Departure;
use super::driver::Driver;
use super::gathering::Gathering;
use super::ready_list::{Before, ReadyList};
use super::ringing::Ringing;
use super::shortage::Shortage;
use super::turn::Backlog;
use super::visitors::Visitors;
use crate::channel::Events;
use crate::cpu_accounting::CpuAccounting;
use crate::figures::Heartbeat;
use crate::metrics::{self, Dropped, Metrics};
use crate::node::Input;
use crate::protocol_session::ProtocolSession;
use crate::quota::Quota;
use crate::{commands, native};
use leeward_format::UnixMs;
use leeward_platform::cpu::{self, Activity};
use leeward_platform::{BootClock, Clock, Nanos};
use leeward_region::request::Request;
use leeward_security::tls::NodeTls;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Poll};
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

/// Poll token of the waker.
pub(super) const WAKER: mio::Token = mio::Token(0);
/// How often the node gets a tick.
pub(super) const TICK: Nanos = Nanos::from_millis(50);
/// How often connections are searched for stalled ones.
const STALL_CHECK: Nanos = Nanos::from_secs(1);
/// How many events of a socket may leave bells unread in it.
const MOST_DEFERRED: u32 = 64;
/// Most unsent bytes that the kernel takes of one socket. The bytes that it keeps for clients that do not read come out
/// of the memory of all sockets of the machine, also of those between nodes.
const UNSENT_BYTES: u32 = 128 << 10;
/// A client that has sent nothing for this long is probed. If it is gone, its connection ends after as long again.
const KEEPALIVE: Duration = Duration::from_secs(300);
/// Bytes that one read takes from a socket.
const READ_BYTES: usize = 256 * 1024;

/// The parts that an event loop is made of.
pub(super) struct EventLoopParts {
    pub(super) poll: Poll,
    pub(super) events: Events,
    pub(super) resp: TcpListener,
    pub(super) native: TcpListener,
    pub(super) tls: Option<Arc<NodeTls>>,
    pub(super) driver: Driver,
    pub(super) visitors: Visitors,
    pub(super) ringing: Ringing,
    pub(super) limits: Limits,
    pub(super) heartbeat: Arc<Heartbeat>,
}

/// The state of the thread.
pub(super) struct EventLoop {
    poll: Poll,
    pub(super) events: Events,
    pub(super) ringing: Ringing,
    acceptor: Acceptor,
    /// Certificates, if clients must use TLS.
    tls: Option<Arc<NodeTls>>,
    pub(super) driver: Driver,
    pub(super) visitors: Visitors,
    pub(super) connections: Connections,
    pub(super) ready_list: ReadyList,
    pub(super) shortage: Shortage,
    pub(super) submissions: Vec<Request>,
    pub(super) buffer: Vec<u8>,
    /// Work that did not fit in the turns so far.
    pub(super) backlog: Backlog,
    pub(super) gathering: Gathering,
    heartbeat: Arc<Heartbeat>,
    next_tick: Nanos,
    next_stall_check: Nanos,
    pub(super) departure: Departure,
}

impl EventLoop {
    pub(super) fn new(parts: EventLoopParts) -> io::Result<EventLoop> {
        Ok(EventLoop {
            acceptor: Acceptor::new(parts.resp, parts.native, parts.poll.registry())?,
            tls: parts.tls,
            poll: parts.poll,
            events: parts.events,
            ready_list: ReadyList::new(parts.ringing.spin, MOST_DEFERRED),
            ringing: parts.ringing,
            shortage: Shortage::default(),
            driver: parts.driver,
            visitors: parts.visitors,
            connections: Connections::within(parts.limits),
            submissions: Vec::new(),
            buffer: vec![0; READ_BYTES],
            backlog: Backlog::default(),
            gathering: Gathering::default(),
            heartbeat: parts.heartbeat,
            next_tick: Nanos::ZERO,
            next_stall_check: Nanos::ZERO,
            departure: Departure::default(),
        })
    }

    /// Runs turns until it is told to stop.
    ///
    /// # Errors
    /// The poll itself fails, which only a bug or lack of memory causes.
    pub(super) fn run(mut self, cpu_accounting: &CpuAccounting) -> io::Result<()> {
        let mut ready = mio::Events::with_capacity(1024);
        let mut turns = 0;
        let mut now = BootClock.now();
        while !self.departure.is_over() {
            turns += 1;
            let _sampled = cpu_accounting.sample(turns, Activity::Receive.of_node());
            let wait = self.prepare(now);
            match self.poll.poll(&mut ready, Some(wait.duration())) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                other => other?,
            }
            now = BootClock.now();
            self.heartbeat.beat(now);
            self.driver.node.set_wall(now, UnixMs(BootClock.unix_ms()));
            for event in &ready {
                if event.token() != WAKER && !self.acceptor.told(event.token()) {
                    self.socket_event(event);
                }
            }
            self.take_events();
            self.follow_users(now);
            self.take_forwarded();
            self.accept_some(now);
            self.read_rings(now);
            self.read_clients(now);
            self.take_events();
            self.pass_time(now);
            let at_engine = cpu::at(Activity::Engine.of_primary());
            // Read anew: leases are checked against it, and this thread may have been stopped since the turn began.
            now = BootClock.now();
            self.driver.finish_batch(now);
            drop(at_engine);
            self.answer_clients(now);
            self.ask_passwords();
        }
        Ok(())
    }

    /// Does the work before a turn. Returns how long the poll of the turn may sleep. `now` is when the last turn began to answer: some
    /// milliseconds ago at most.
    fn prepare(&mut self, now: Nanos) -> Nanos {
        let operators = self.gathering.advance(now, &self.driver.node);
        // Work that is left of the last turn must not wait for the poll.
        let has_left = self.backlog.is_any() || self.driver.has_replies() || self.connections.has_touched();
        let is_busy = has_left || self.acceptor.has_more();
        match self.ready_list.before(now, is_busy) {
            Before::FallAsleep => self.fall_asleep(),
            Before::Nothing => {}
            Before::Spin => self.spin(now),
            Before::Sleep => return self.next_tick.min(operators.unwrap_or(Nanos::MAX)).since(now),
        }
        Nanos::ZERO
    }

    fn socket_event(&mut self, event: &mio::event::Event) {
        let id = event.token().0 as u64;
        let Some(connection) = self.connections.get_mut(id) else { return };
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            let is_last = event.is_read_closed() || event.is_error();
            connection.became_readable(is_last);
            self.ready_list.told(id, self.ringing.hears(id), is_last);
        }
        if event.is_writable() {
            connection.became_writable();
            self.connections.touch(id);
        }
    }

    /// Drains Redis clients, and ends the loop, if the departure has come so far.
    fn depart(&mut self, now: Nanos) {
        if self.departure.is_drain_due(now, &self.driver.node) {
            self.acceptor.close(Kind::Resp);
            self.connections.stop(Kind::Resp);
        }
        self.departure.end_if_drained(now, &self.driver.node, || self.connections.has(Kind::Resp));
    }

    fn pass_time(&mut self, now: Nanos) {
        if now < self.next_tick {
            return;
        }
        let _at = cpu::at(Activity::Other.of_node());
        self.next_tick = now + TICK;
        self.driver.handle(now, Input::Tick);
        self.depart(now);
        self.pass_time_for_rings(now);
        self.end_stuck(now);
        self.acceptor.tick();
        self.driver.shared.places.lacks_files = self.acceptor.lacks_files();
        if now >= self.next_stall_check {
            self.next_stall_check = now + STALL_CHECK;
            self.connections.give_up_stalled(now, self.driver.metrics());
            for id in self.ringing.stalled(now, self.connections.limits().stall) {
                if self.connections.give_up(id) {
                    report_dropped(id, Dropped::Stalled, self.driver.metrics());
                }
            }
        }
    }

    /// Accepts as many connections as a turn takes.
    fn accept_some(&mut self, now: Nanos) {
        for accepted in self.acceptor.accept() {
            let address = accepted.address;
            if let Err(error) = self.admit(accepted, now) {
                tracing::warn!(%address, %error, "a connection could not be taken");
            }
        }
    }

    fn admit(&mut self, accepted: Accepted, now: Nanos) -> io::Result<()> {
        let Accepted { kind, mut stream, address } = accepted;
        prepare(&stream)?;
        let from = address.ip();
        let (address, local) = (address.to_string(), stream.local_addr()?.to_string());
        let id = self.connections.new_id();
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, mio::Token(id as usize), interest)?;
        let mut context = self.driver.context(now, Quota::default());
        let protocol_session: Box<dyn ProtocolSession> = match kind {
            Kind::Resp => Box::new(commands::Session::new(id, address, local, &mut context)),
            Kind::Native => Box::new(native::Session::new(id, address, local, &mut context)),
        };
        let channel = channel(self.tls.as_deref(), stream);
        self.connections.add(id, Connection::new(kind, channel, protocol_session, now));
        connections(self.driver.metrics(), kind).opened();
        self.driver.shared.places.lacks_files = self.acceptor.lacks_files();
        if let Some(displaced) = self.driver.shared.places.enter(id, Some(from)) {
            self.turn_away(displaced, now);
        }
        Ok(())
    }

    /// Closes a connection that has given its place to another.
    fn turn_away(&mut self, id: u64, now: Nanos) {
        self.driver.metrics().refused();
        if let Some(connection) = self.connections.get_mut(id) {
            connection.turn_away(now);
        }
        self.close(id);
    }

    pub(super) fn remove(&mut self, id: u64) {
        if self.connections.contains(id) {
            self.driver.shared.places.leave(id);
        }
        self.close(id);
    }

    /// Forgets a connection that has no place any more.
    fn close(&mut self, id: u64) {
        if let Some(mut connection) = self.connections.remove(id) {
            self.ready_list.remove(id);
            self.ringing.remove(id, self.driver.metrics());
            self.driver.shared.clients.remove(id);
            connections(self.driver.metrics(), connection.kind).closed();
            // Closing the socket deregisters it too. This only keeps the poll tidy.
            drop(self.poll.registry().deregister(connection.socket()));
            drop(connection);
            self.acceptor.refill();
        }
    }
}

/// Sets the options of a client's socket.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_notsent_lowat(UNSENT_BYTES)?;
    let probes = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3).with_retries(3);
    socket.set_tcp_keepalive(&probes)
}

fn connections(metrics: &Metrics, kind: Kind) -> &metrics::Connections {
    match kind {
        Kind::Resp => metrics.resp_connections(),
        Kind::Native => metrics.native_connections(),
    }
}

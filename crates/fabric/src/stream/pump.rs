//! The thread of an outgoing link. It connects, says hello, reads answers, sends the rest of flushes, and notices that
//! the peer is gone. Then it begins again after a pause, until the link is closed.

use super::{
    flights::Extension,
    hello,
    link::{Link, LinkState, Status},
    socket::{Network, Ready, Socket, wait},
};
use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::{debug, info, warn};

/// Answers received at a time.
const RECEIVE_BYTES: usize = 64 << 10;
/// Most file descriptors that may have come ahead of their answers.
const MAX_LOOSE_FDS: usize = 64;

/// Runs `link` until it is closed.
pub(crate) fn run<X: Extension>(link: &Link<X>) {
    let mut last_error = String::new();
    loop {
        let (status, address) = {
            let state = link.state();
            (state.status.clone(), state.address.clone())
        };
        if status == Status::Closed {
            return;
        }
        match open(link, &address) {
            Ok(socket) => {
                let socket = Arc::new(socket);
                last_error.clear();
                link.up(&socket, &address);
                info!(peer = %link.peer, %address, "fabric link is up");
                link.post(X::begin);
                link.flush();
                let reason = Pump::new(link, &socket).run();
                info!(peer = %link.peer, %address, %reason, "fabric link is down");
                link.down();
            }
            Err(error) => report(link, &address, &error, &mut last_error),
        }
        pause(link);
    }
}

/// Logs why a peer cannot be connected, once for each reason: as a warning if an operator must act.
fn report<X: Extension>(link: &Link<X>, address: &str, error: &io::Error, last: &mut String) {
    let text = error.to_string();
    if text == *last {
        return;
    }
    if error.kind() == io::ErrorKind::InvalidData {
        warn!(peer = %link.peer, %address, "cannot connect the fabric: {text}");
    } else {
        debug!(peer = %link.peer, %address, "cannot connect the fabric yet: {text}");
    }
    *last = text;
}

fn pause<X: Extension>(link: &Link<X>) {
    let until = Instant::now() + link.shared.options.retry_pause;
    while link.state().status != Status::Closed {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || wait(None, false, &link.waker, Some(left)).is_err() {
            return;
        }
    }
}

/// Connects and says hello.
fn open<X: Extension>(link: &Link<X>, address: &str) -> io::Result<Socket> {
    let shared = &link.shared;
    let timeout = shared.options.hello_timeout;
    let closed = || link.state().status == Status::Closed;
    let socket = Socket::connect(shared.network, address, timeout, &link.waker, &closed)?;
    socket.peer()?;
    let socket = match shared.tls() {
        Some(tls) => socket.encrypted(tls.connect_node(link.peer.0)),
        None => socket,
    };
    socket.set_timeouts(None, Some(timeout))?;
    socket.send_all(&hello::hello(shared.me, link.peer, shared.reach, link.connection), None)?;
    shared.counters.add_sent(hello::HELLO);
    let deadline = Instant::now() + timeout;
    let (mut reply, mut have, mut fds) = ([0; hello::HELLO], 0, VecDeque::new());
    while have < reply.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || closed() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer our hello"));
        }
        if !wait(Some(socket.as_fd()), false, &link.waker, Some(left))?.readable {
            continue;
        }
        match socket.recv(&mut reply[have..], &mut fds, false) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "it hung up on our hello")),
            Ok(received) => have += received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    shared.counters.add_received(hello::HELLO);
    hello::check_reply(link.peer, shared.reach, &reply)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(socket)
}

/// One connection, from its begin to its end.
struct Pump<'a, X: Extension> {
    link: &'a Link<X>,
    socket: &'a Socket,
    buffer: Vec<u8>,
    fds: VecDeque<OwnedFd>,
    /// Since when an answer is due: the time of the last answer, or of the first look at a waiting request.
    waiting_since: Option<Instant>,
    /// When [`Extension::on_ping_interval`] was last called.
    attended: Instant,
}

impl<'a, X: Extension> Pump<'a, X> {
    fn new(link: &'a Link<X>, socket: &'a Socket) -> Pump<'a, X> {
        let (buffer, fds) = (vec![0; RECEIVE_BYTES], VecDeque::new());
        Pump { link, socket, buffer, fds, waiting_since: None, attended: Instant::now() }
    }

    /// Runs until the connection ends, and returns the reason.
    fn run(mut self) -> String {
        let options = &self.link.shared.options;
        // When a process of this host dies, its socket closes. The memory of a stopped process can still be written.
        let pings = self.link.shared.network == Network::Tcp;
        let timeout = pings.then_some(options.ping_interval);
        loop {
            match &self.link.state().status {
                Status::Up => {}
                Status::Failed(reason) => return reason.clone(),
                Status::Closed | Status::Connecting => return "it is not wanted there any more".into(),
            }
            let ready = match wait(Some(self.socket.as_fd()), self.link.is_blocked(), &self.link.waker, timeout) {
                Ok(ready) => ready,
                Err(error) => return format!("cannot wait for it: {error}"),
            };
            if ready.writable {
                self.link.resume();
            }
            if ready.readable
                && let Err(reason) = self.receive()
            {
                return reason;
            }
            X::settle(self.link);
            if self.attended.elapsed() >= options.ping_interval {
                self.attended = Instant::now();
                self.link.post(X::on_ping_interval);
                self.link.flush();
            }
            if pings && let Err(reason) = self.check_alive(ready, options.peer_timeout) {
                return reason;
            }
        }
    }

    /// Takes all available answers.
    fn receive(&mut self) -> Result<(), String> {
        loop {
            let received = match self.socket.recv(&mut self.buffer, &mut self.fds, false) {
                Ok(0) => return Err("it closed the connection".into()),
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.to_string()),
            };
            self.link.shared.counters.add_received(received);
            let mut state = self.link.state();
            match &state.status {
                Status::Up => {}
                // After a failure the extension may be inconsistent, and must not be used again.
                Status::Failed(reason) => return Err(reason.clone()),
                // Another link may be up already: the requests that wait for these answers must not complete.
                Status::Closed | Status::Connecting => return Err("it is not wanted there any more".into()),
            }
            let lane = &mut *state;
            let fed = lane.flights.feed(&self.buffer[..received], &mut self.fds, &mut lane.extension, &mut lane.events);
            if let Err(error) = fed {
                let reason = format!("bad answer: {error}");
                // Before another thread has the lock.
                state.fail(reason.clone());
                return Err(reason);
            }
            self.waiting_since = (!state.flights.is_empty()).then(Instant::now);
            drop(state);
            self.link.deliver();
            if self.fds.len() > MAX_LOOSE_FDS {
                return Err("it sends file descriptors that were not asked for".into());
            }
            if received < self.buffer.len() && !self.socket.is_encrypted() {
                return Ok(());
            }
        }
    }

    /// Pings a silent peer, and ends the connection of one that owes an answer for too long.
    fn check_alive(&mut self, ready: Ready, limit: Duration) -> Result<(), String> {
        if ready.readable {
            return Ok(());
        }
        if self.link.state().flights.is_empty() {
            self.waiting_since = None;
            self.link.post(LinkState::ping);
            self.link.flush();
            return Ok(());
        }
        let silence = self.waiting_since.get_or_insert_with(Instant::now).elapsed();
        if silence < limit { Ok(()) } else { Err(format!("no answer for {:.1} s", silence.as_secs_f64())) }
    }
}

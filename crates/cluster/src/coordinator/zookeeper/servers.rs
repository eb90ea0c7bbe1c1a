//! The servers of an ensemble: their addresses, the next one to try, the time for each attempt, and the pause after a failed
//! attempt.
//!
//! Invariants:
//! - A server that was tried has its next turn after all others.
//! - A separate thread looks up names, and may take any time. An address of a name counts until another is found for the name.
//! - In a first round all addresses together have a third of the session's timeout, and the pauses between them a ninth. The
//!   silence of a server is noticed after a third. So a session outlives a server that falls silent, and the silence of all
//!   others but one.
//! - A round in which no server served doubles the time for each server in the next round, and the pauses.
//!
//! One thread at a time.

use crate::coordinator::client::{RETRY, silence_timeout};
use leeward_platform::{Backoff, Nanos, Rng};
use leeward_security::tls::host_of;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Longest pause, if a third of the session's timeout is longer.
const LONGEST_PAUSE: Nanos = Nanos::from_secs(5);

/// A host's name or IP address, and its port.
pub(super) type Host = (String, u16);

/// A server to be tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// Its name in the ensemble's address.
    pub(super) name: String,
    pub(super) address: SocketAddr,
}

impl Server {
    /// The host by which the ensemble's address names it: a name or an IP address.
    pub(super) fn host(&self) -> &str {
        host_of(&self.name)
    }
}

/// A name without an address, and why.
#[derive(Debug)]
pub(super) struct Unknown {
    pub(super) name: String,
    pub(super) error: io::Error,
}

/// The result of the look-up of each host.
type Resolved = Vec<io::Result<Vec<SocketAddr>>>;

/// The thread that looks up names. It ends after this is dropped.
#[derive(Debug)]
struct Resolver {
    ask: Sender<()>,
    found: Receiver<Resolved>,
    is_asked: bool,
}

#[derive(Debug)]
pub(super) struct Servers {
    hosts: Vec<Host>,
    resolver: Resolver,
    /// Known addresses, each with its host's index: the next first.
    turns: VecDeque<(usize, SocketAddr)>,
    rng: Rng,
    /// Failed attempts since a server last served.
    failures: u32,
}

impl Servers {
    /// The servers of `hosts`. `resolve` looks up one host, and `wake` is called when all were looked up. The thread that is
    /// started here calls both. It ends after the last look-up that was begun.
    ///
    /// # Errors
    /// The machine refuses a thread.
    pub(super) fn new(
        hosts: &[Host],
        rng: Rng,
        resolve: impl Fn(&Host) -> io::Result<Vec<SocketAddr>> + Send + 'static,
        wake: impl Fn() + Send + 'static,
    ) -> io::Result<Servers> {
        let (ask, asked) = channel();
        let (sender, found) = channel();
        let all = hosts.to_vec();
        let run = move || {
            while asked.recv().is_ok() && sender.send(all.iter().map(&resolve).collect()).is_ok() {
                wake();
            }
        };
        std::thread::Builder::new().name("coordinator-names".into()).spawn(run)?;
        let resolver = Resolver { ask, found, is_asked: false };
        Ok(Servers { hosts: hosts.to_vec(), resolver, turns: VecDeque::new(), rng, failures: 0 })
    }

    /// The next server to try; `None` while no address is known. Each round begins with another look-up of the names.
    pub(super) fn next(&mut self) -> Option<Server> {
        let _ = self.found();
        if self.failures.is_multiple_of(self.addresses()) && !self.resolver.is_asked {
            self.resolver.is_asked = self.resolver.ask.send(()).is_ok();
        }
        let (host, address) = self.turns.pop_front()?;
        self.turns.push_back((host, address));
        Some(Server { name: self.name(host), address })
    }

    /// Handles the results of a look-up, if one is finished. Returns whether any address is known by then, or a name that has
    /// none.
    pub(super) fn found(&mut self) -> Option<Result<(), Unknown>> {
        let found = self.resolver.found.try_recv().ok()?;
        self.resolver.is_asked = false;
        let mut unknown = None;
        let mut new = Vec::new();
        for (host, found) in found.into_iter().enumerate() {
            match found {
                Ok(addresses) if !addresses.is_empty() => {
                    self.turns.retain(|(of, address)| *of != host || addresses.contains(address));
                    for address in addresses {
                        if !self.turns.contains(&(host, address)) && !new.contains(&(host, address)) {
                            new.push((host, address));
                        }
                    }
                }
                Ok(_) => unknown = Some((host, io::ErrorKind::NotFound.into())),
                Err(error) => unknown = Some((host, error)),
            }
        }
        // The order differs from client to client. Addresses that were not tried yet come first.
        self.rng.shuffle(&mut new);
        new.into_iter().for_each(|turn| self.turns.push_front(turn));
        Some(match unknown {
            Some((host, error)) if self.turns.is_empty() => Err(Unknown { name: self.name(host), error }),
            _ => Ok(()),
        })
    }

    fn name(&self, host: usize) -> String {
        let (name, port) = &self.hosts[host];
        format!("{name}:{port}")
    }

    fn addresses(&self) -> u32 {
        self.turns.len().max(1) as u32
    }

    /// The share of each address in the time of a round, for a session with that timeout.
    fn share(&self, timeout: Nanos) -> Nanos {
        Nanos(silence_timeout(timeout).0 / u64::from(self.addresses()))
    }

    /// `first`, doubled for each failed round, and `most` at most.
    fn doubled(&self, first: Nanos, most: Nanos) -> Nanos {
        Backoff { first, most }.after(self.failures / self.addresses())
    }

    /// How long the next server may take to continue a session of that timeout, or to begin one.
    pub(super) fn silence_timeout(&self, timeout: Nanos, is_new: bool) -> Nanos {
        let most = if is_new { timeout } else { silence_timeout(timeout) };
        self.doubled(self.share(timeout), most)
    }

    /// An attempt failed. Returns the pause before the next, for a session of that timeout. Clients that failed at the same time
    /// get different pauses.
    pub(super) fn failed(&mut self, timeout: Nanos) -> Nanos {
        self.failures += 1;
        let first = RETRY.min(Nanos(self.share(timeout).0 / 3));
        let most = self.doubled(first, silence_timeout(timeout).min(LONGEST_PAUSE));
        Nanos(self.rng.between(most.0 / 2, most.0))
    }

    /// A server serves the session.
    pub(super) fn served(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
#[path = "servers_tests.rs"]
mod tests;

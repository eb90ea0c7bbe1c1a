//! The servers of an ensemble: where they are, whose turn it is, how long each is given, and how long the pause is after one
//! that failed.
//!
//! Invariants: whoever was tried has his next turn after all others. Names are looked up by a thread of its own, which may
//! take as long as it likes: what was found at a name counts until something else is found there. In a first round all
//! addresses have a third of the session's timeout together, and a ninth is lost between them: so a session outlives a server
//! that falls silent, which is noticed after a third, and the silence of all others but one. A round in which nobody served
//! doubles what each is given in the next, and the pauses. One thread at a time.

use crate::client::{RETRY, patience};
use leeward_platform::{Nanos, Rng};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Longest pause, where a third of the session's timeout is longer.
const LONGEST_PAUSE: Nanos = Nanos::from_secs(5);
/// Rounds after which nothing is doubled any more.
const MOST_DOUBLED: usize = 16;

/// A host's name or IP address, and its port.
pub(super) type Host = (String, u16);

/// A server to be tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// As it is called in the ensemble's address.
    pub(super) name: String,
    pub(super) address: SocketAddr,
}

/// A name at which nothing is found, and why.
#[derive(Debug)]
pub(super) struct Unknown {
    pub(super) name: String,
    pub(super) error: io::Error,
}

/// What was found for each host.
type Found = Vec<io::Result<Vec<SocketAddr>>>;

/// The thread that looks names up, for as long as this lives.
#[derive(Debug)]
struct Resolver {
    ask: Sender<()>,
    found: Receiver<Found>,
    is_asked: bool,
}

/// The servers.
#[derive(Debug)]
pub(super) struct Servers {
    hosts: Vec<Host>,
    resolver: Resolver,
    /// Known addresses, each with its host's index: the next first.
    turns: VecDeque<(usize, SocketAddr)>,
    rng: Rng,
    /// Attempts that failed since one served.
    failures: usize,
}

impl Servers {
    /// Those of `hosts`. `resolve` looks one up, `wake` is called when all were; both by the thread that is started here,
    /// which ends after the last look-up that was begun.
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

    /// The one whose turn it is; `None` while no address is known. Each round begins with another look at the names.
    pub(super) fn next(&mut self) -> Option<Server> {
        let _ = self.found();
        if self.failures.is_multiple_of(self.addresses()) && !self.resolver.is_asked {
            self.resolver.is_asked = self.resolver.ask.send(()).is_ok();
        }
        let (host, address) = self.turns.pop_front()?;
        self.turns.push_back((host, address));
        Some(Server { name: self.name(host), address })
    }

    /// Takes in what was found at the names, if they were looked up; answers whether any address is known by then, or
    /// which name is to blame.
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
        // In an order that differs from client to client; those that nobody tried come first.
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

    fn addresses(&self) -> usize {
        self.turns.len().max(1)
    }

    /// The part of a session's timeout that each address has of a round.
    fn share(&self, timeout: Nanos) -> Nanos {
        Nanos(patience(timeout).0 / self.addresses() as u64)
    }

    /// `span`, doubled for each round that failed.
    fn doubled(&self, span: Nanos) -> Nanos {
        let rounds = (self.failures / self.addresses()).min(MOST_DOUBLED);
        Nanos(span.0.saturating_mul(1 << rounds))
    }

    /// How long the next server may take to go on with a session of that timeout, or to begin one.
    pub(super) fn patience(&self, timeout: Nanos, is_new: bool) -> Nanos {
        let most = if is_new { timeout } else { patience(timeout) };
        self.doubled(self.share(timeout)).min(most)
    }

    /// An attempt failed: answers how long to wait before the next, for a session of that timeout. Clients that failed at
    /// the same time wait for different times.
    pub(super) fn failed(&mut self, timeout: Nanos) -> Nanos {
        self.failures += 1;
        let first = RETRY.min(Nanos(self.share(timeout).0 / 3));
        let most = self.doubled(first).min(patience(timeout)).min(LONGEST_PAUSE);
        Nanos(self.rng.between(most.0 / 2, most.0))
    }

    /// A server does what it is there for.
    pub(super) fn served(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
#[path = "servers_tests.rs"]
mod tests;

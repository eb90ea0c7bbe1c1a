//! Which ports the nodes of a cluster on this machine use, and whether they are free.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(test)]
#[path = "ports_tests.rs"]
mod tests;

/// Default port of node 1 for Redis clients.
pub const DEFAULT_BASE: u16 = 7379;
/// Ports from the base port to the end of the coordinator's.
const SPAN: u16 = 401;
/// The range that [`Ports::free`] searches: below the ports that the system gives to outgoing connections.
const FREE_FROM: u16 = 20_000;
const FREE_TO: u16 = 32_000;

/// The ports of a cluster: those of node i (from 1) are i - 1 above the first of their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    base: u16,
}

/// A port that cannot be used, most often because another process uses it.
#[derive(Debug, thiserror::Error)]
#[error(
    "port {port}, for {what}, cannot be used: {source}. Is another cluster running? Stop it, or choose another \
     --base-port"
)]
pub struct PortInUse {
    port: u16,
    what: String,
    source: io::Error,
}

impl Ports {
    /// The ports from `base` on.
    pub fn new(base: u16) -> Ports {
        Ports { base }
    }

    /// Ports that are free now; `None` if there are none.
    pub fn free(nodes: u32) -> Option<Ports> {
        // Processes, or threads of one process, that search at the same time start at different places.
        static LOOKED: AtomicU32 = AtomicU32::new(0);
        let places = u32::from((FREE_TO - FREE_FROM) / SPAN);
        let first = std::process::id().wrapping_add(LOOKED.fetch_add(7, Ordering::Relaxed)) % places;
        let candidates = (0..places).map(|place| FREE_FROM + ((first + place) % places) as u16 * SPAN);
        candidates
            .map(Ports::new)
            .find(|ports| ports.check_nodes(nodes).and_then(|()| ports.check_coordinator()).is_ok())
    }

    /// The first port.
    pub fn base(self) -> u16 {
        self.base
    }

    /// The address at which a node listens for Redis clients.
    pub fn resp(self, node: u32) -> SocketAddr {
        self.at(node - 1)
    }

    /// The address for native clients.
    pub fn native(self, node: u32) -> SocketAddr {
        self.at(node + 99)
    }

    /// The address for operators (HTTP).
    pub fn admin(self, node: u32) -> SocketAddr {
        self.at(node + 199)
    }

    /// The address for its peers.
    pub fn fabric(self, node: u32) -> SocketAddr {
        self.at(node + 299)
    }

    /// The address of the coordinator.
    pub fn coordinator(self) -> SocketAddr {
        self.at(400)
    }

    /// Tries every port of the nodes.
    ///
    /// # Errors
    /// The first port that cannot be listened on.
    pub fn check_nodes(self, nodes: u32) -> Result<(), PortInUse> {
        for node in 1..=nodes {
            check(self.resp(node), || format!("Redis clients of node {node}"))?;
            check(self.native(node), || format!("native clients of node {node}"))?;
            check(self.admin(node), || format!("operators of node {node}"))?;
            check(self.fabric(node), || format!("peers of node {node}"))?;
        }
        Ok(())
    }

    /// Tries the coordinator's port.
    ///
    /// # Errors
    /// The port cannot be listened on.
    pub fn check_coordinator(self) -> Result<(), PortInUse> {
        check(self.coordinator(), || "the coordinator".into())
    }

    fn at(self, offset: u32) -> SocketAddr {
        let port = u32::from(self.base) + offset;
        SocketAddr::from((Ipv4Addr::LOCALHOST, u16::try_from(port).expect("the base port leaves room")))
    }
}

fn check(address: SocketAddr, what: impl Fn() -> String) -> Result<(), PortInUse> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(()),
        Err(source) => Err(PortInUse { port: address.port(), what: what(), source }),
    }
}

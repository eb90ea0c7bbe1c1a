//! Claims what a cluster needs, or names what is in use: the directory and port of the coordinator, the ports of the nodes, and
//! their data directories.
//!
//! A cluster whose supervisor was just killed still holds some of these for a moment: its nodes notice the end of their
//! supervisor and stop by themselves. So the claim is retried for [`FREED_WITHIN`] before it fails.

use super::{DevError, Plan};
use leeward_cluster::embedded::{Host, HostError, HostOptions};
use leeward_platform::{Disk, RealDisk};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;

/// How long orphaned nodes may take to end.
const FREED_WITHIN: Duration = Duration::from_millis(1500);
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Starts the coordinator of `plan`, if it hosts one, once all that the plan needs is free.
pub(super) fn claim(plan: &Plan) -> Result<Option<Host>, DevError> {
    let deadline = Instant::now() + FREED_WITHIN;
    loop {
        match try_claim(plan) {
            Err(DevError::Port(_) | DevError::InUse(_) | DevError::Host(HostError::Locked { .. }))
                if Instant::now() < deadline =>
            {
                thread::sleep(PAUSE);
            }
            claimed => return claimed,
        }
    }
}

fn try_claim(plan: &Plan) -> Result<Option<Host>, DevError> {
    let host = if plan.hosts_coordinator() { Some(start_host(plan)?) } else { None };
    plan.ports.check_nodes(plan.nodes)?;
    for path in (1..=plan.nodes).map(|node| plan.node_directory(node)) {
        let locked = RealDisk::open(&path).and_then(|disk| disk.lock());
        match locked {
            Ok(lock) => drop(lock),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(DevError::InUse(path)),
            Err(source) => return Err(DevError::File(path, source)),
        }
    }
    Ok(host)
}

fn start_host(plan: &Plan) -> Result<Host, DevError> {
    let listen = plan.ports.coordinator();
    match Host::start(HostOptions {
        directory: plan.directory.join("coordinator"),
        listen,
        tls: plan.coordinator_tls()?,
    }) {
        Err(error @ HostError::Io { .. }) => {
            // If the port is the reason, its error says more.
            plan.ports.check_coordinator()?;
            Err(error.into())
        }
        host => Ok(host?),
    }
}

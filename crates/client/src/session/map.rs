//! A session's region map: whom it asks for it, when it takes another, and whom the map says is responsible.
//!
//! Belongs to the session's thread, like all of it.

use super::{Session, TICK};
use crate::link::Link;
use crate::options::ClientError;
use leeward_format::cluster::RegionMap;
use leeward_format::op::Op;
use mio::Token;
use std::sync::Arc;
use std::time::Instant;

impl Session {
    /// Asks a node for its region map now. An older map than the one already known is not taken.
    ///
    /// # Errors
    /// No node answers within [`crate::ClientOptions::deadline`].
    pub fn fetch_map(&mut self) -> Result<Arc<RegionMap>, ClientError> {
        self.fetch_map_until(Instant::now() + self.options.deadline)
    }

    pub(super) fn fetch_map_until(&mut self, deadline: Instant) -> Result<Arc<RegionMap>, ClientError> {
        let before = self.maps_received;
        self.map_asked = None;
        while self.maps_received == before {
            let now = Instant::now();
            if now >= deadline {
                let reason = self.last_failure.clone();
                return Err(ClientError::Unreachable { seeds: self.seeds.join(", "), reason });
            }
            self.ask_map(now);
            self.flush(now);
            self.wait(TICK.min(deadline - now))?;
        }
        Ok(Arc::clone(&self.map))
    }

    /// Takes a newer map: what waited for a primary is tried at once, and a server that lost its office while it
    /// owes answers is given up.
    pub(super) fn adopt_map(&mut self, map: RegionMap, now: Instant) {
        self.maps_received += 1;
        if map.version <= self.map.version && !self.map.regions.is_empty() {
            return;
        }
        self.map = Arc::new(map);
        for (at, _) in &mut self.parked {
            *at = now;
        }
        let map = Arc::clone(&self.map);
        let deposed: Vec<Token> = (self.links.iter())
            .filter(|(_, link)| link.oldest().is_some_and(|sent| now - sent > self.options.patience))
            .filter(|(_, link)| link.pendings().any(|p| primary_address(&map, &p.table, &p.op) != Some(&link.address)))
            .map(|(token, _)| *token)
            .collect();
        for token in deposed {
            self.fail(token, "it does not answer and is not the primary any more");
        }
    }

    /// Asks some node for the region map, unless one was asked a moment ago: a node that is connected and owes no
    /// old answer, else the next address of the seeds and of the servers that the map names.
    pub(super) fn ask_map(&mut self, now: Instant) {
        let pause = self.options.retry_pause * 4;
        if self.map_asked.is_some_and(|asked| now - asked < pause) {
            return;
        }
        self.map_asked = Some(now);
        let patience = self.options.patience;
        let healthy = |link: &&mut Link| link.is_connected() && link.oldest().is_none_or(|sent| now - sent < patience);
        let healthy: Vec<&mut Link> = self.links.values_mut().filter(healthy).collect();
        self.next_seed = self.next_seed.wrapping_add(1);
        let count = healthy.len();
        if let Some(link) = healthy.into_iter().nth(self.next_seed.checked_rem(count).unwrap_or(0)) {
            link.ask_map();
            return;
        }
        let mut addresses: Vec<String> = self.seeds.clone();
        addresses.extend(self.map.servers.iter().map(|server| server.native_address.clone()));
        if let Some(address) = addresses.get(self.next_seed.checked_rem(addresses.len()).unwrap_or(0)).cloned() {
            // A new connection's first answer is the map.
            self.link_to(&address, now);
        }
    }
}

/// Native address of the node that `op` goes to: the primary of its region. What no region is asked for goes to any node, and
/// so does an operation on a table that the map does not know: a node knows better, or says that there is none.
pub(super) fn primary_address<'a>(map: &'a RegionMap, table: &str, op: &Op) -> Option<&'a str> {
    let is_for_any = op.is_for_any_node();
    let server = match op.region_in(map, table) {
        Some(region) => map.server(region.primary?.server),
        None if is_for_any || map.table(table).is_none() => map.servers.first(),
        None => None,
    }?;
    Some(&server.native_address)
}

//! The connections of clients by id, and the ids of those to be looked at.

use super::connection::{Connection, Kind};
use crate::metrics::{Dropped, Metrics};
use crate::protocol_session::RingSession;
use leeward_platform::Nanos;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// Ids of connections begin after the other poll tokens. An id is its socket's poll token, and is never used twice.
const FIRST_CONNECTION: u64 = 3;

/// Limits on what clients may do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) output_bytes: usize,
    pub(super) stall: Nanos,
}

/// All connections.
pub(super) struct Connections {
    limits: Limits,
    open: FxHashMap<u64, Connection>,
    next_id: u64,
    /// Connections whose output or state may have changed in this turn.
    touched: BTreeSet<u64>,
}

impl Connections {
    /// No connections.
    pub(super) fn within(limits: Limits) -> Connections {
        Connections { limits, open: FxHashMap::default(), next_id: FIRST_CONNECTION, touched: BTreeSet::new() }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// An id for a connection that is to be added.
    pub(super) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    pub(super) fn add(&mut self, id: u64, connection: Connection) {
        self.open.insert(id, connection);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Connection> {
        self.open.remove(&id)
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.open.contains_key(&id)
    }

    pub(super) fn get(&self, id: u64) -> Option<&Connection> {
        self.open.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Connection> {
        self.open.get_mut(&id)
    }

    /// The session of a connection, if its client may have a ring.
    pub(super) fn with_rings(&mut self, id: u64) -> Option<&mut dyn RingSession> {
        self.get_mut(id)?.protocol_session.with_rings()
    }

    /// All connections.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = (u64, &mut Connection)> {
        self.open.iter_mut().map(|(id, connection)| (*id, connection))
    }

    /// The connections whose clients are there, as far as is known.
    pub(super) fn alive(&self) -> impl Iterator<Item = (u64, &Connection)> {
        self.open.iter().filter(|(_, connection)| !connection.is_dead).map(|(id, connection)| (*id, connection))
    }

    /// Notes that the output or state of `id` may have changed.
    pub(super) fn touch(&mut self, id: u64) {
        self.touched.insert(id);
    }

    /// As [`Connections::touch`], for several.
    pub(super) fn touch_all(&mut self, ids: impl IntoIterator<Item = u64>) {
        self.touched.extend(ids);
    }

    /// Whether any connection is touched.
    pub(super) fn has_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Removes and returns the ids that are touched.
    pub(super) fn take_touched(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.touched)
    }

    /// Marks connection `id` for removal. Returns whether that is new.
    pub(super) fn give_up(&mut self, id: u64) -> bool {
        let is_new = self.get_mut(id).is_some_and(|connection| !std::mem::replace(&mut connection.is_dead, true));
        if is_new {
            self.touch(id);
        }
        is_new
    }

    /// Gives up connections whose clients take no replies.
    pub(super) fn give_up_stalled(&mut self, now: Nanos, metrics: &Metrics) {
        for (id, connection) in &mut self.open {
            if let Some(why) = connection.check_stall(now, self.limits.stall) {
                report_dropped(*id, why, metrics);
                self.touched.insert(*id);
            }
        }
    }

    /// Reads no more from connections of this kind, and ends them when their requests are answered.
    pub(super) fn stop(&mut self, kind: Kind) {
        for (id, connection) in self.open.iter_mut().filter(|(_, connection)| connection.kind == kind) {
            connection.protocol_session.stop();
            self.touched.insert(*id);
        }
    }

    /// Whether there is a connection of this kind.
    pub(super) fn has(&self, kind: Kind) -> bool {
        self.open.values().any(|connection| connection.kind == kind)
    }
}

pub(super) fn report_dropped(id: u64, why: Dropped, metrics: &Metrics) {
    metrics.dropped(why);
    match why {
        // Anyone may begin one, so that it could fill the log.
        Dropped::Handshake => tracing::debug!(client = id, "a client did not end its TLS handshake in time"),
        _ => tracing::warn!(client = id, ?why, "a client that does not read its replies was disconnected"),
    }
}

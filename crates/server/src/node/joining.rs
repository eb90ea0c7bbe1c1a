//! How many regions bring a copy on one server in sync at a time: as many as it answers soon. When a server comes up, or takes
//! over from another, a thousand regions turn to it at once; each would wait for all before it, until it lost its patience.
//!
//! A region whose turn has not come loses patience only with a server that answers none of the others either. Writes wait for a
//! counted peer, and nobody for a learner: learners leave half of the places to the others.

use leeward_format::ServerId;
use leeward_platform::Nanos;
use std::collections::BTreeMap;

/// Sessions with one server that are not in sync, at most.
const MOST: usize = 32;

/// See the module.
#[derive(Default)]
pub(super) struct Joining {
    servers: BTreeMap<ServerId, Server>,
}

#[derive(Default)]
struct Server {
    sessions: usize,
    heard: Nanos,
}

impl Joining {
    /// Counts a session that begins with a server, whose peer is counted or a learner.
    ///
    /// # Errors
    /// It must wait; the server answered last at that time.
    pub(super) fn admit(&mut self, server: ServerId, is_counted: bool) -> Result<(), Nanos> {
        let server = self.servers.entry(server).or_default();
        if server.sessions >= if is_counted { MOST } else { MOST / 2 } {
            return Err(server.heard);
        }
        server.sessions += 1;
        Ok(())
    }

    /// A server has answered in a session.
    pub(super) fn heard(&mut self, now: Nanos, server: ServerId) {
        self.servers.entry(server).or_default().heard = now;
    }

    /// The sessions of a region that are not in sync were those with `before`, and are those with `after`.
    pub(super) fn change(&mut self, before: &[ServerId], after: &[ServerId]) {
        for server in after {
            self.servers.entry(*server).or_default().sessions += 1;
        }
        for server in before {
            self.servers.get_mut(server).expect("it was counted").sessions -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_so_many_sessions_at_a_time() {
        let (mut joining, server, now) = (Joining::default(), ServerId(2), Nanos::from_secs(3));
        (0..MOST / 2).for_each(|_| joining.admit(server, false).unwrap());
        joining.heard(now, server);
        assert_eq!(joining.admit(server, false), Err(now), "learners leave places to others");
        (0..MOST / 2).for_each(|_| joining.admit(server, true).unwrap());
        assert_eq!(joining.admit(server, true), Err(now));
        assert_eq!(joining.admit(ServerId(3), true), Ok(()));
        joining.change(&[server, ServerId(3)], &[ServerId(3)]);
        assert_eq!(joining.admit(server, false), Err(now));
        assert_eq!(joining.admit(server, true), Ok(()));
    }
}

//! How many regions bring a copy on one server in sync at a time: as many as the server answers soon. When a server comes up,
//! or replaces another, a thousand regions turn to it at once. Without a limit each would wait for all before it, until it
//! timed out.
//!
//! A region whose turn has not come times out only if the server answers none of the other regions either. Writes wait for a
//! counted peer, but not for a learner, so learners leave half of the places to counted peers.
//!
//! Learners are sent what they lack at a limited rate ([`super::catch_up`]), and a session holds all of its base
//! until that was sent. So no learner begins on a server while those that have begun lack as many bytes as the rate sends in a
//! second. Together they would be in sync no sooner, and the bases that they held meanwhile would not shrink with compactions
//! and trims. A base is pinned between compactions only. A learner that waits for its base leaves room for another, so that the
//! rate is used.

use leeward_format::ServerId;
use leeward_platform::Nanos;
use leeward_region::effects::Session;
use std::collections::BTreeMap;

/// Sessions with one server that are not in sync, at most.
const MOST: usize = 32;

/// The regions that bring a copy in sync or wait for that, by server.
pub(crate) struct Admission {
    /// Bytes that are sent to learners in a second; 0: no limit.
    rate: u64,
    servers: BTreeMap<ServerId, Server>,
}

#[derive(Default)]
struct Server {
    sessions: usize,
    /// Sum over the sessions.
    lacked: u64,
    heard: Nanos,
}

impl Admission {
    /// No session has begun.
    pub(crate) fn new(rate: u64) -> Admission {
        Admission { rate, servers: BTreeMap::new() }
    }

    /// Counts a session that begins with a server, whose peer is counted or a learner. [`Admission::change`] says later what it
    /// lacks.
    ///
    /// # Errors
    /// The session must wait. The time is that of the server's last answer, or now where this node makes the session wait for
    /// the rate.
    pub(crate) fn admit(&mut self, now: Nanos, server: ServerId, is_counted: bool) -> Result<(), Nanos> {
        let server = self.servers.entry(server).or_default();
        if server.sessions >= if is_counted { MOST } else { MOST / 2 } {
            return Err(server.heard);
        }
        if !is_counted && self.rate > 0 && server.lacked >= self.rate {
            return Err(now);
        }
        server.sessions += 1;
        Ok(())
    }

    /// A server has answered in a session.
    pub(crate) fn heard(&mut self, now: Nanos, server: ServerId) {
        self.servers.entry(server).or_default().heard = now;
    }

    /// The sessions of a region that are not in sync were `before`, and are `after`.
    pub(crate) fn change(&mut self, before: &[Session], after: &[Session]) {
        for session in after {
            let lacked = self.counted(session);
            let server = self.servers.entry(session.server).or_default();
            (server.sessions, server.lacked) = (server.sessions + 1, server.lacked + lacked);
        }
        for session in before {
            let lacked = self.counted(session);
            let server = self.servers.get_mut(&session.server).expect("it was counted");
            (server.sessions, server.lacked) = (server.sessions - 1, server.lacked - lacked);
        }
    }

    /// The bytes that count of those that a session lacks.
    fn counted(&self, session: &Session) -> u64 {
        if session.is_based { session.lacked } else { session.lacked.min(self.rate / 2) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ServerId = ServerId(2);
    const OTHER: ServerId = ServerId(3);
    const NOW: Nanos = Nanos::from_secs(7);

    fn session(server: ServerId, lacked: u64) -> Session {
        Session { server, lacked, is_based: true }
    }

    fn begun(server: ServerId) -> Session {
        Session::begun(server)
    }

    #[test]
    fn a_server_has_so_many_sessions_at_a_time() {
        let (mut joining, heard) = (Admission::new(0), Nanos::from_secs(3));
        (0..MOST / 2).for_each(|_| joining.admit(NOW, SERVER, false).unwrap());
        joining.heard(heard, SERVER);
        assert_eq!(joining.admit(NOW, SERVER, false), Err(heard), "learners leave places to others");
        (0..MOST / 2).for_each(|_| joining.admit(NOW, SERVER, true).unwrap());
        assert_eq!(joining.admit(NOW, SERVER, true), Err(heard));
        assert_eq!(joining.admit(NOW, OTHER, true), Ok(()));
        joining.change(&[session(SERVER, 0), session(OTHER, 0)], &[session(OTHER, 0)]);
        assert_eq!(joining.admit(NOW, SERVER, false), Err(heard));
        assert_eq!(joining.admit(NOW, SERVER, true), Ok(()));
    }

    #[test]
    fn a_learner_waits_while_others_of_its_server_lack_what_goes_in_a_second() {
        let mut joining = Admission::new(1_000);
        joining.admit(NOW, SERVER, false).unwrap();
        joining.change(&[begun(SERVER)], &[session(SERVER, 9_000)]);
        assert_eq!(joining.admit(NOW, SERVER, false), Err(NOW), "its server is not to blame");
        // Neither does a member that counts wait for the rate, nor a learner elsewhere.
        joining.admit(NOW, SERVER, true).unwrap();
        joining.admit(NOW, OTHER, false).unwrap();
        // The last second of one is the first of the next: the rate is used.
        joining.change(&[session(SERVER, 9_000)], &[session(SERVER, 999)]);
        joining.admit(NOW, SERVER, false).unwrap();
        joining.change(&[begun(SERVER)], &[session(SERVER, 500)]);
        assert_eq!(joining.admit(NOW, SERVER, false), Err(NOW));
        joining.change(&[session(SERVER, 999)], &[]);
        joining.admit(NOW, SERVER, false).unwrap();
    }

    #[test]
    fn learners_that_wait_for_their_bases_leave_room_for_another() {
        let mut joining = Admission::new(1_000);
        for _ in 0..2 {
            joining.admit(NOW, SERVER, false).unwrap();
            joining.change(&[begun(SERVER)], &[Session { lacked: 9_000, ..begun(SERVER) }]);
        }
        assert_eq!(joining.admit(NOW, SERVER, false), Err(NOW));
        joining.change(&[Session { lacked: 9_000, ..begun(SERVER) }], &[session(SERVER, 0)]);
        joining.admit(NOW, SERVER, false).unwrap();
    }

    #[test]
    fn without_a_rate_learners_do_not_wait_for_what_others_lack() {
        let mut joining = Admission::new(0);
        joining.change(&[], &[session(SERVER, u64::MAX / 2)]);
        joining.admit(NOW, SERVER, false).unwrap();
    }
}

//! When sessions expire: a pure table of deadlines.
//!
//! Invariant: a session expires only after a whole timeout in which the coordinator was able to listen and received nothing. Used
//! by the embedded host's thread and by the simulator, each with its own clock.

use leeward_format::coordinator::SessionId;
use leeward_platform::Nanos;
use std::collections::BTreeMap;

/// Deadlines of all sessions.
#[derive(Clone, Debug, Default)]
pub struct Deadlines {
    sessions: BTreeMap<SessionId, (Nanos, Nanos)>,
}

impl Deadlines {
    /// `session` was active at `now` and expires after `timeout` of silence.
    pub fn open(&mut self, now: Nanos, session: SessionId, timeout: Nanos) {
        self.sessions.insert(session, (now + timeout, timeout));
    }
    /// `session` was active at `now`. Nothing happens if it is over.
    pub fn heard(&mut self, now: Nanos, session: SessionId) {
        if let Some((deadline, timeout)) = self.sessions.get_mut(&session) {
            *deadline = now + *timeout;
        }
    }
    /// `session` is over.
    pub fn close(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }
    /// Postpones every deadline by `span`, in which the coordinator itself could not listen.
    pub fn excuse(&mut self, span: Nanos) {
        for (deadline, _) in self.sessions.values_mut() {
            *deadline += span;
        }
    }
    /// Sessions whose deadline has passed, ascending. They stay until [`Deadlines::close`].
    pub fn expired(&self, now: Nanos) -> Vec<SessionId> {
        self.sessions.iter().filter(|(_, (deadline, _))| *deadline <= now).map(|(session, _)| *session).collect()
    }
    /// The next instant at which a session may expire.
    pub fn next(&self) -> Option<Nanos> {
        self.sessions.values().map(|(deadline, _)| *deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_expires_a_session_and_a_message_or_an_excuse_postpones_it() {
        let ms = Nanos::from_millis;
        let mut deadlines = Deadlines::default();
        let (quiet, busy) = (SessionId(1), SessionId(2));
        deadlines.open(ms(0), quiet, ms(1000));
        deadlines.open(ms(0), busy, ms(1000));
        deadlines.heard(ms(600), busy);
        assert_eq!(deadlines.next(), Some(ms(1000)));
        assert!(deadlines.expired(ms(999)).is_empty());
        assert_eq!(deadlines.expired(ms(1000)), [quiet]);
        deadlines.excuse(ms(300));
        assert!(deadlines.expired(ms(1299)).is_empty());
        assert_eq!(deadlines.expired(ms(1900)), [quiet, busy]);
        deadlines.close(quiet);
        deadlines.heard(ms(1500), quiet);
        assert_eq!(deadlines.expired(ms(5000)), [busy]);
    }
}

//! A server that stops in order says so first, and takes it back when it is there again; its places are kept meanwhile.

use super::{Agent, ProposalId, Purpose};
use crate::CoordinatorOp;
use leeward_format::ServerId;
use leeward_format::cluster::{ClusterPath, Intent};
use leeward_platform::Nanos;

impl Agent {
    /// Its process is about to end, and is to come back: asks all groups to go on without this server; answers nothing to wait for if
    /// that is known.
    ///
    /// # Errors
    /// The coordinator cannot be reached.
    pub fn depart(&mut self, now: Nanos) -> Result<Option<ProposalId>, String> {
        self.is_departing = true;
        match self.view.intent(self.me.member.server) {
            Some(_) => Ok(None),
            None => self.intend(now, self.me.member.server, Some(Intent::Restart)).map(Some),
        }
    }

    /// A server that has come back is no longer away.
    pub(super) fn come_back(&mut self) {
        let path = ClusterPath::Intent(self.me.member.server);
        let is_away = self.view.intent(self.me.member.server) == Some(Intent::Restart);
        if is_away && !self.is_departing && self.is_registered() && self.is_free(&path) {
            let op = CoordinatorOp::Delete { path: path.to_string(), version: self.view.version_of(&path) };
            self.submit(path, op, Purpose::Plain);
        }
    }

    /// Whether groups may be filled up: not while a server is about to come back, for a while.
    pub(super) fn may_fill(&mut self, now: Nanos) -> bool {
        let restarting = self.view.intents().filter(|(_, intent)| *intent == Intent::Restart);
        let restarting: Vec<ServerId> = restarting.map(|(server, _)| server).collect();
        self.restarting.retain(|server, _| restarting.contains(server));
        for server in restarting {
            self.restarting.entry(server).or_insert(now);
        }
        self.restarting.values().all(|since| now.since(*since) >= self.options.restart_patience)
    }
}

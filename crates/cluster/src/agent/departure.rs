//! A server that stops in order announces that first, and cancels that when it is back. Its places are kept in the meantime.

use super::{Agent, Purpose};
use crate::CoordinatorOp;
use leeward_format::ServerId;
use leeward_format::cluster::{ClusterPath, Intent, encode_value};
use leeward_platform::Nanos;

impl Agent {
    /// The process of this server is about to restart. Asks all groups to continue without the server, until all have heard of
    /// it.
    pub fn depart(&mut self, now: Nanos) {
        self.is_departing = true;
        self.advance(now);
    }

    /// Announces that this server is about to stop, or that it is back.
    pub(super) fn tell_departure(&mut self) {
        let path = ClusterPath::Intent(self.me.member.server);
        let intent = self.view.intent(self.me.member.server);
        if !self.is_free(&path) {
            return;
        }
        let text = path.to_string();
        let op = match (self.is_departing, intent) {
            (true, None) => {
                CoordinatorOp::Create { path: text, value: encode_value(&Intent::Restart), ephemeral: false }
            }
            (false, Some(Intent::Restart)) if self.is_registered() => {
                CoordinatorOp::Delete { path: text, version: self.view.version_of(&path) }
            }
            _ => return,
        };
        self.submit(path, op, Purpose::Plain);
    }

    /// Whether the places of restarting servers are kept. They are kept for a while.
    pub(super) fn keeps_places(&mut self, now: Nanos) -> bool {
        let restarting = self.view.intents().filter(|(_, intent)| *intent == Intent::Restart);
        let restarting: Vec<ServerId> = restarting.map(|(server, _)| server).collect();
        self.restarting.retain(|server, _| restarting.contains(server));
        for server in restarting {
            self.restarting.entry(server).or_insert(now);
        }
        self.restarting.values().any(|since| now.since(*since) < self.options.restart_timeout)
    }
}

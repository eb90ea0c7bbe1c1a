//! Settings that are to be the same on all nodes ([`crate::settings::SHARED`]). Each process tells its own at the beginning
//! of each of its links, before anything else that goes over the link. What differs is in the log and in the status.
//!
//! Nothing is refused: a setting is changed by a restart of one node after the other, and differs meanwhile. But clients
//! are sent to another node only while that has the same `redis_table` ([`PeerSettings::agrees`]).
//!
//! Invariant: what a process has told counts for that process alone, not for another of the same server.
//! Belongs to the node's thread.

use super::NodeControl;
use crate::node::links::Links;
use leeward_format::cluster::Member;
use leeward_format::control::Control;
use leeward_format::{Incarnation, ServerId};
use std::collections::BTreeMap;

/// Names of settings, and their values as in the file of settings.
pub(crate) type Settings = BTreeMap<String, String>;

/// The settings of this node, and of the others as far as they have told.
#[derive(Debug, Default)]
pub(crate) struct PeerSettings {
    own: Settings,
    of: BTreeMap<ServerId, (Incarnation, Settings)>,
}

impl PeerSettings {
    /// A node with these settings. If there are none, the node tells none, and agrees with every other.
    pub(crate) fn new(own: Settings) -> PeerSettings {
        PeerSettings { own, of: BTreeMap::new() }
    }

    /// A process of `from` has told its settings.
    pub(in crate::node) fn hear(&mut self, from: ServerId, incarnation: Incarnation, settings: Settings) {
        let differences = self.compare(from, &settings);
        let before = self.of.insert(from, (incarnation, settings));
        let known = before.map_or(Vec::new(), |(_, before)| self.compare(from, &before));
        for difference in differences.iter().filter(|one| !known.contains(one)) {
            tracing::warn!("{difference}: set it to the same value on all nodes");
        }
    }

    /// Whether `member` certainly has the same value of a setting as this node.
    pub(crate) fn agrees(&self, member: &Member, name: &str) -> bool {
        let Some(own) = self.own.get(name) else { return true };
        let told = self.of.get(&member.server).filter(|(incarnation, _)| *incarnation == member.incarnation);
        told.is_some_and(|(_, settings)| settings.get(name) == Some(own))
    }

    /// How the settings of live members differ from those of this node: a sentence each.
    pub(crate) fn differences<'a>(&self, live: impl Iterator<Item = &'a Member>) -> Vec<String> {
        let told = live.filter_map(|member| {
            let (incarnation, settings) = self.of.get(&member.server)?;
            (*incarnation == member.incarnation).then(|| self.compare(member.server, settings))
        });
        told.flatten().collect()
    }

    /// Settings that only one of both knows are left out: it is of another version.
    fn compare(&self, server: ServerId, theirs: &Settings) -> Vec<String> {
        let differs = |(name, own): (&String, &String)| {
            let their = theirs.get(name).filter(|their| *their != own)?;
            Some(format!("{name} is {own} here and {their} on server {server}"))
        };
        self.own.iter().filter_map(differs).collect()
    }
}

impl NodeControl {
    pub(in crate::node) fn tell_settings(&self, links: &Links, to: ServerId) {
        let settings = self.settings.own.clone();
        if !settings.is_empty() {
            links.send(to, &Control::Settings { incarnation: self.me().incarnation, settings });
        }
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;

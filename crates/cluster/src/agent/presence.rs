//! The paths that this server holds as long as its process lives: its own, and the master's. An orderly stop is
//! announced first, so that the places of the server are kept. The next process cancels the announcement.

use super::{Agent, Incompatible, Purpose};
use crate::TreeRefusal;
use crate::view::create;
use bytes::Bytes;
use leeward_format::cluster::{ClusterPath, Intent, Member, encode_value};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};

/// Why a server is not part of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotJoined {
    /// It has no session with the coordinator, or has not received the whole tree yet.
    NoSession,
    /// It is about to register.
    Registering,
    /// Another process has its number: a process with another volume, or with a copy of this one, or its own last process
    /// before the machine started anew. This server must not remove it. It registers when the session of that process ends.
    DuplicateId {
        /// The member that holds the number.
        holder: Member,
        /// The address of that process for native clients.
        address: String,
        /// It has the volume of this server, or a copy of it.
        is_copy: bool,
    },
    /// The coordinator refuses its registration, with this reason.
    Refused(String),
    /// It has given up its primary roles: see [`Agent::step_aside`].
    SteppedAside,
    /// The coordinator's tree lacks something of what this server knows.
    Refuses(TreeRefusal),
    /// It and the cluster are incompatible.
    Incompatible(Incompatible),
}

impl Agent {
    /// Whether this server is registered, as far as this agent knows.
    pub fn is_registered(&self) -> bool {
        self.view.is_live(self.me.member)
    }
    /// Why this server is not part of the cluster now; `None` if it is.
    pub fn not_joined(&self) -> Option<NotJoined> {
        let me = self.me.member;
        match self.view.server(me.server) {
            Some(info) if self.view.is_synced() && info.member != me && !info.is_replaced_by(&self.me) => {
                let (holder, address) = (info.member, info.native_address.clone());
                Some(NotJoined::DuplicateId { holder, address, is_copy: holder.has_volume_of(&me) })
            }
            _ if self.has_stepped_aside => Some(NotJoined::SteppedAside),
            _ if let Some(refusal) = self.view.refusal() => Some(NotJoined::Refuses(refusal.clone())),
            _ if !self.view.is_synced() => Some(NotJoined::NoSession),
            info => match self.incompatible() {
                Some(incompatible) => Some(NotJoined::Incompatible(incompatible)),
                None if info.is_some_and(|info| info.member == me) => None,
                None => Some(self.refusal.clone().map_or(NotJoined::Registering, NotJoined::Refused)),
            },
        }
    }

    /// Gives up every primary role of this server, until a call with `false`. In the meantime the server does not register, so
    /// that the master replaces it wherever it is a member. For a server whose volume failed while other servers have its data.
    pub fn step_aside(&mut self, now: Nanos, has_stepped_aside: bool) {
        self.has_stepped_aside = has_stepped_aside;
        self.advance(now);
    }

    /// Whether this server has given up its primary roles.
    pub fn has_stepped_aside(&self) -> bool {
        self.has_stepped_aside
    }

    /// Holds the server's own path. Writes it anew once an operator has restored the tree.
    pub(super) fn register(&mut self) {
        let path = ClusterPath::Server(self.me.member.server);
        if !self.has_stepped_aside && self.view.is_to_register_anew(self.me.member) && self.is_free(&path) {
            let op = self.view.put_op(path.clone(), encode_value(&self.registration()));
            return self.submit(path, op, Purpose::Plain);
        }
        let holder = self.view.server(self.me.member.server);
        let is_evicted = |of: &Member| planted(Bug::EvictOriginal) && of.is_earlier_than(&self.me.member);
        let is_over = holder.is_some_and(|holder| holder.is_replaced_by(&self.me) || is_evicted(&holder.member));
        let holder = holder.map(|holder| holder.member);
        match self.has_stepped_aside {
            false => self.hold(path, holder, is_over, |agent| encode_value(&agent.registration())),
            true => self.release_path(path, holder),
        }
    }

    /// Removes an ephemeral path of this incarnation.
    pub(super) fn release_path(&mut self, path: ClusterPath, holder: Option<Member>) {
        if holder == Some(self.me.member) && self.is_free(&path) {
            let op = self.view.remove_op(&path);
            self.submit(path, op, Purpose::Plain);
        }
    }

    /// Holds the master's path if no server does. Only a registered server campaigns.
    pub(super) fn campaign(&mut self) {
        if self.has_stepped_aside {
            return self.release_path(ClusterPath::Master, self.view.master());
        }
        if self.is_registered() && self.view.master().is_none_or(|master| master.server == self.me.member.server) {
            let master = self.view.master();
            // An earlier process of this server held both paths, and lost both with its session.
            let is_over = master.is_some_and(|master| master.is_earlier_than(&self.me.member));
            self.hold(ClusterPath::Master, master, is_over, |agent| encode_value(&agent.me.member));
        }
    }

    /// Makes an ephemeral path that no process holds. The path of a process that `is_over` is removed first. Any other stays: it
    /// vanishes with the session of its process.
    fn hold(&mut self, path: ClusterPath, holder: Option<Member>, is_over: bool, value: impl FnOnce(&Agent) -> Bytes) {
        if !self.is_free(&path) {
            return;
        }
        let op = match holder {
            None => create(path.clone(), value(self), true),
            Some(_) if is_over => self.view.remove_op(&path),
            Some(_) => return,
        };
        self.submit(path, op, Purpose::Plain);
    }

    /// Announces that the process of this server is about to restart, so that all groups continue without it.
    pub fn depart(&mut self, now: Nanos) {
        self.is_departing = true;
        self.advance(now);
    }

    /// Announces that this server is about to stop, or that it is back.
    pub(super) fn announce_departure(&mut self) {
        let path = ClusterPath::Intent(self.me.member.server);
        let intent = self.view.intent(self.me.member.server);
        if !self.is_free(&path) {
            return;
        }
        let op = match (self.is_departing, intent) {
            (true, None) => create(path.clone(), encode_value(&Intent::Restart), false),
            (false, Some(Intent::Restart)) if self.is_registered() => self.view.remove_op(&path),
            _ => return,
        };
        self.submit(path, op, Purpose::Plain);
    }
}

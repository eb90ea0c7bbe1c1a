//! Which commands of a client in cluster mode are redirected, and where to: `MOVED`, `CROSSSLOT`.
//!
//! A connection is in cluster mode while it uses database 0, if that is a table that is partitioned by Redis hash slots.
//! A client follows `MOVED` on a connection of its own to the other node, and that begins in database 0. So commands on
//! a table that was selected by name, or as database 1, are always forwarded ([`super::connection::select`]). In cluster
//! mode a command on keys of one slot is
//!
//! ```text
//! executed here    this node is the primary, or a backup that may answer the read
//! redirected          another live node has been the primary for REDIRECT_AFTER, as far as this node can tell
//! forwarded           in all other cases: the primary has just changed, there is none, its node may have another table
//!                     as database 0, or this node does not hear the coordinator, which would tell it of another
//! ```
//! Two nodes learn of a new primary at different moments. If both redirected at once, each could send the client to the
//! other, and clients follow only a few redirections. So what has just changed is forwarded, which waits for a primary
//! where there is none.
//!
//! All of it belongs to the event loop's thread.

use super::session::Session;
use super::work::Work;
use super::{Context, Facts};
use crate::node::PeerSettings;
use crate::resp::Reply;
use bytes::Bytes;
use leeward_cluster::Routes;
use leeward_format::ServerId;
use leeward_format::cluster::{GroupConfig, Member, Reads, ServerInfo};
use leeward_format::partition::Partition;
use leeward_format::routing::Routing;
use leeward_format::slot::slot_of;

/// The keys of a command that is in one slot.
struct Keys {
    first: Bytes,
    slot: u16,
    has_writes: bool,
}

/// What a command on several keys has in common.
enum Slots {
    /// It has no keys.
    None,
    One(Keys),
    Several,
}

impl Session {
    /// Whether the connection is in cluster mode.
    pub(super) fn is_in_cluster_mode(&self, routes: &Routes) -> bool {
        !self.terms.forwards && self.has_slots(&self.terms.table, routes)
    }

    /// Whether the table is partitioned by slots, as far as the user may know.
    pub(super) fn has_slots(&self, table: &str, routes: &Routes) -> bool {
        routes.partition(table).is_some_and(Partition::is_slots) && self.identity.knows(table)
    }

    /// The mode that clients are told.
    pub(super) fn mode(&self, routes: &Routes) -> &'static str {
        if self.is_in_cluster_mode(routes) { "cluster" } else { "standalone" }
    }

    /// Tells whether a command on all keys of the node is about those of a region too. Clients in cluster mode ask each
    /// master, and put the answers together.
    pub(super) fn is_of_node<'a>(&self, context: &Context<'a>) -> impl Fn(&GroupConfig) -> bool + use<'a> {
        let (all, me) = (Masters::of(context), context.shared.facts.server);
        let has_all = !self.is_in_cluster_mode(context.routes);
        move |group| has_all || all.master_of(group) == me
    }

    /// The work, or the redirection in its place. `was_asking`: the command before it was `ASKING`, so it is not
    /// redirected.
    pub(super) fn redirected(&self, work: Work, was_asking: bool, context: &mut Context) -> Work {
        if !self.is_in_cluster_mode(context.routes) {
            return work;
        }
        let keys = match slots_of(&work) {
            Slots::None => return work,
            Slots::One(keys) => keys,
            Slots::Several => {
                return Work::Ready(Reply::Error("CROSSSLOT Keys in request don't hash to the same slot".into()));
            }
        };
        let (routes, masters, shared) = (context.routes, Masters::of(context), &mut *context.shared);
        let Some(group) = routes.region_of(&self.terms.table, &keys.first) else { return work };
        let Some((primary, info)) = masters.live_primary(group) else { return work };
        let is_here = primary.server == shared.facts.server
            || !keys.has_writes && self.may_answer_here(group, routes, &shared.facts);
        let stays = is_here || was_asking || !context.is_synced;
        if stays || !shared.redirects.is_settled(group.region, group.term, context.now) {
            return work;
        }
        match endpoint(info) {
            Some((host, port)) => Work::Ready(Reply::Error(format!("MOVED {} {host}:{port}", keys.slot))),
            None => work,
        }
    }

    /// Whether this node, as a backup, may answer the connection's reads of the region.
    fn may_answer_here(&self, group: &GroupConfig, routes: &Routes, facts: &Facts) -> bool {
        let allows = |table: &str| routes.table(table).is_some_and(|table| table.reads.stale != Reads::Primary);
        self.terms.at_most_ms.is_some()
            && group.backups.iter().any(|backup| backup.server == facts.server)
            && allows(&self.terms.table)
    }
}

fn slots_of(work: &Work) -> Slots {
    let mut found: Option<Keys> = None;
    let same = work.check(|op| {
        let Some(key) = op.key() else { return Ok(()) };
        let slot = slot_of(key);
        let keys = found.get_or_insert_with(|| Keys { first: key.clone(), slot, has_writes: false });
        keys.has_writes |= op.is_write();
        if keys.slot == slot { Ok(()) } else { Err(()) }
    });
    match (same, found) {
        (Err(()), _) => Slots::Several,
        (Ok(()), Some(keys)) => Slots::One(keys),
        (Ok(()), None) => Slots::None,
    }
}

/// Where clients in cluster mode may be sent.
#[derive(Clone, Copy)]
pub(super) struct Masters<'a> {
    routes: &'a Routes,
    peer_settings: &'a PeerSettings,
    me: ServerId,
}

impl<'a> Masters<'a> {
    pub(super) fn of(context: &Context<'a>) -> Masters<'a> {
        Masters { routes: context.routes, peer_settings: context.peer_settings, me: context.shared.facts.server }
    }

    /// The entry of a member if clients may be sent there: its process is live, and certainly has the same table as its
    /// database 0, in which a client begins there.
    pub(super) fn open_to_clients(self, member: Member) -> Option<&'a ServerInfo> {
        let has_same_table = member.server == self.me || self.peer_settings.agrees(&member, "redis_table");
        live(member, self.routes).filter(|_| has_same_table)
    }

    /// The primary of a region, if clients may be sent there.
    fn live_primary(self, group: &GroupConfig) -> Option<(Member, &'a ServerInfo)> {
        let primary = group.primary?;
        self.open_to_clients(primary).map(|info| (primary, info))
    }

    /// The server that clients are told to be the master of a region's slots: its primary, or this node if clients cannot be
    /// sent to the primary. This node then forwards what it gets, once there is one.
    pub(super) fn master_of(self, group: &GroupConfig) -> ServerId {
        self.live_primary(group).map_or(self.me, |(primary, _)| primary.server)
    }
}

/// The entry of a member whose process is live.
pub(super) fn live(member: Member, routes: &Routes) -> Option<&ServerInfo> {
    routes.server(member.server).filter(|info| info.member == member)
}

/// Host and port of a server for Redis clients, the host of an IPv6 address without brackets, as Redis writes it.
pub(super) fn endpoint(info: &ServerInfo) -> Option<(&str, u16)> {
    let (host, port) = info.resp_address.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((bare, port.parse().ok()?))
}

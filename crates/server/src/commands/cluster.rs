//! `CLUSTER`: the nodes and slots of a table that is partitioned by Redis hash slots, for clients in cluster mode.
//!
//! In Redis Cluster a node is a master or a replica, never both. Here a server is a master if it is the primary of any
//! region of the table. Only the other servers are shown as replicas. A region whose primary is not live is shown with
//! this node, which forwards what it gets once there is a primary: so all slots always have a master.
//!
//! All of it belongs to the event loop's thread.

use super::redirect::{Masters, endpoint, live};
use super::session::Session;
use super::work::Work;
use super::{Context, table};
use crate::resp::Reply;
use bytes::Bytes;
use leeward_format::ServerId;
use leeward_format::cluster::ServerInfo;
use leeward_format::partition::{Partition, slot_at};
use leeward_format::routing::Routing;
use leeward_format::slot::{SLOTS, slot_of};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Units of the quota for a region of the table, however many of them are one range of the answer.
const REGION_UNITS: u32 = 8;

/// Successive slots with the same master and replicas.
struct Range {
    first: u16,
    last: u16,
    master: ServerId,
    backups: Vec<ServerId>,
    /// Whether the master is the primary, and not a node that waits for one.
    has_primary: bool,
}

/// The slots of a table, and the servers by their role.
struct Topology<'a> {
    me: ServerId,
    is_encrypted: bool,
    ranges: Vec<Range>,
    servers: BTreeMap<ServerId, Server<'a>>,
    /// The last change of any of the regions.
    epoch: u32,
    version: u64,
}

struct Server<'a> {
    id: String,
    host: &'a str,
    port: u16,
    /// First and last slots of its ranges. A server that has any is a master.
    slots: Vec<(u16, u16)>,
    /// Of a replica.
    master: Option<ServerId>,
}

/// `ASKING`. The next command takes it back ([`Session::begin`]), whether or not it succeeds.
pub(super) fn asking(session: &mut Session) -> Work {
    session.terms.is_asking = true;
    Work::Ready(Reply::OK)
}

/// `CLUSTER SLOTS | SHARDS | NODES | INFO | MYID | KEYSLOT key`
pub(super) fn cluster(args: &[Bytes], session: &Session, context: &mut Context) -> Work {
    if !session.is_in_cluster_mode(context.routes) {
        return Work::Ready(match session.terms.forwards || context.knows_tables() {
            true => Reply::err("This instance has cluster support disabled"),
            false => down(),
        });
    }
    let subcommand = args[1].to_ascii_lowercase();
    let make: fn(&Topology) -> Reply = match (&subcommand[..], &args[2..]) {
        (b"keyslot", [key]) => return Work::Ready(Reply::Integer(slot_of(key).into())),
        (b"slots", []) => |topology| topology.slots(),
        (b"shards", []) => |topology| topology.shards(),
        (b"nodes", []) => |topology| topology.nodes(),
        (b"info", []) => |topology| topology.info(),
        (b"myid", []) => return Work::Ready(my_id(context)),
        (b"keyslot" | b"slots" | b"shards" | b"nodes" | b"info" | b"myid", _) => {
            let name = String::from_utf8_lossy(&subcommand).into_owned();
            return Work::Ready(Reply::err(format_args!("wrong number of arguments for 'cluster|{name}' command")));
        }
        _ => return table::unknown_subcommand("CLUSTER", &args[1]),
    };
    let tokens = context.routes.partition(&session.terms.table).and_then(Partition::tokens).unwrap_or(0);
    context.quota.take(REGION_UNITS * tokens);
    Work::Ready(Topology::of(session, context).map_or_else(down, |topology| make(&topology)))
}

/// The id of this node.
fn my_id(context: &Context) -> Reply {
    let me = context.routes.server(context.shared.facts.server).and_then(Server::of);
    me.map_or_else(down, |server| Reply::text(server.id))
}

/// The reply of a node that cannot name a master for each slot.
fn down() -> Reply {
    Reply::Error(
        "CLUSTERDOWN this node has not joined the cluster, or not all regions of the table are known to it yet; try again"
            .into(),
    )
}

impl<'a> Topology<'a> {
    /// `None`: this node is not live in the cluster, or does not have all regions of the table, or their bounds are none
    /// that such a table has.
    fn of(session: &Session, context: &Context<'a>) -> Option<Topology<'a>> {
        let (routes, facts) = (context.routes, &context.shared.facts);
        let (name, me, masters) = (&session.terms.table, facts.server, Masters::of(context));
        let tokens = routes.partition(name)?.tokens()?;
        if routes.regions_of(name).count() as u32 != tokens {
            return None;
        }
        let (mut ranges, mut epoch) = (Vec::<Range>::new(), 0);
        for group in routes.regions_of(name) {
            epoch = epoch.max(group.epoch.0);
            let master = masters.master_of(group);
            let backups = group.backups.iter().filter(|backup| masters.open_to_clients(**backup).is_some());
            let (first, behind) = (slot_at(Some(&group.start)), slot_at(group.end.as_deref()));
            let last = behind.checked_sub(1).filter(|last| first <= *last)?;
            let range = Range {
                first,
                last,
                master,
                backups: backups.map(|backup| backup.server).filter(|backup| *backup != master).collect(),
                has_primary: group.primary.is_some_and(|primary| live(primary, routes).is_some()),
            };
            match ranges.last_mut() {
                Some(before) if before.continues_with(&range) => before.last = range.last,
                _ => ranges.push(range),
            }
        }
        let mut servers: BTreeMap<ServerId, Server> =
            routes.servers().filter_map(|info| Some((info.member.server, Server::of(info)?))).collect();
        for range in &ranges {
            servers.get_mut(&range.master)?.slots.push((range.first, range.last));
        }
        for range in &mut ranges {
            range.backups.retain(|backup| servers.get(backup).is_some_and(|server| server.slots.is_empty()));
            for backup in &range.backups {
                let server = servers.get_mut(backup).expect("it was found above");
                server.master.get_or_insert(range.master);
            }
        }
        let (is_encrypted, version) = (facts.is_encrypted, routes.version());
        servers.contains_key(&me).then_some(Topology { me, is_encrypted, ranges, servers, epoch, version })
    }

    fn server(&self, id: ServerId) -> &Server<'a> {
        &self.servers[&id]
    }

    /// The servers that have slots.
    fn masters(&self) -> impl Iterator<Item = (&ServerId, &Server<'a>)> {
        self.servers.iter().filter(|(_, server)| !server.slots.is_empty())
    }

    /// Each range: first and last slot, master, replicas.
    fn slots(&self) -> Reply {
        let node = |id: ServerId| {
            let Server { host, port, id, .. } = self.server(id);
            Reply::Array(vec![
                Reply::text(*host),
                Reply::Integer((*port).into()),
                Reply::text(id),
                Reply::Map(Vec::new()),
            ])
        };
        let range = |range: &Range| {
            let bounds = [range.first, range.last].map(|slot| Reply::Integer(slot.into()));
            let nodes = std::iter::once(range.master).chain(range.backups.iter().copied()).map(node);
            Reply::Array(bounds.into_iter().chain(nodes).collect())
        };
        Reply::Array(self.ranges.iter().map(range).collect())
    }

    /// Each master with its slots and its replicas.
    fn shards(&self) -> Reply {
        let pair = |key: &str, value: Reply| (Reply::text(key), value);
        let port_name = if self.is_encrypted { "tls-port" } else { "port" };
        let node = |server: &Server| {
            Reply::Map(vec![
                pair("id", Reply::text(&server.id)),
                pair(port_name, Reply::Integer(server.port.into())),
                pair("ip", Reply::text(server.host)),
                pair("endpoint", Reply::text(server.host)),
                pair("role", Reply::text(if server.master.is_none() { "master" } else { "replica" })),
                pair("replication-offset", Reply::Integer(0)),
                pair("health", Reply::text("online")),
            ])
        };
        let shard = |(id, master): (&ServerId, &Server)| {
            let bounds = master.slots.iter().flat_map(|(first, last)| [*first, *last]);
            let replicas = self.servers.values().filter(|server| server.master == Some(*id));
            let nodes = std::iter::once(node(master)).chain(replicas.map(node));
            Reply::Map(vec![
                pair("slots", Reply::Array(bounds.map(|slot| Reply::Integer(slot.into())).collect())),
                pair("nodes", Reply::Array(nodes.collect())),
            ])
        };
        Reply::Array(self.masters().map(shard).collect())
    }

    /// A line for each live server, as in the file of a node of Redis Cluster. There is no cluster bus, so its port is 0.
    fn nodes(&self) -> Reply {
        let mut text = String::new();
        for (id, server) in &self.servers {
            let myself = if *id == self.me { "myself," } else { "" };
            let (role, master) = match server.master {
                None => ("master", "-"),
                Some(master) => ("slave", &self.server(master).id[..]),
            };
            let Server { id: name, host, port, .. } = server;
            write!(text, "{name} {host}:{port}@0 {myself}{role} {master} 0 0 {} connected", self.epoch)
                .expect("writing to a string cannot fail");
            for (first, last) in &server.slots {
                let written = if first == last { write!(text, " {first}") } else { write!(text, " {first}-{last}") };
                written.expect("writing to a string cannot fail");
            }
            text.push('\n');
        }
        Reply::Verbatim(text)
    }

    fn info(&self) -> Reply {
        let served = self.ranges.iter().filter(|range| range.has_primary);
        let ok: u32 = served.map(|range| u32::from(range.last - range.first) + 1).sum();
        let state = if ok == u32::from(SLOTS) { "ok" } else { "fail" };
        let lines = [
            ("cluster_state", state.to_owned()),
            ("cluster_slots_assigned", SLOTS.to_string()),
            ("cluster_slots_ok", ok.to_string()),
            ("cluster_slots_pfail", "0".to_owned()),
            ("cluster_slots_fail", (u32::from(SLOTS) - ok).to_string()),
            ("cluster_known_nodes", self.servers.len().to_string()),
            ("cluster_size", self.masters().count().to_string()),
            ("cluster_current_epoch", self.version.to_string()),
            ("cluster_my_epoch", self.epoch.to_string()),
        ];
        Reply::Verbatim(lines.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect())
    }
}

impl Range {
    /// Whether `next` begins behind it, and differs in nothing else.
    fn continues_with(&self, next: &Range) -> bool {
        self.last + 1 == next.first
            && (self.master, self.has_primary) == (next.master, next.has_primary)
            && self.backups == next.backups
    }
}

impl<'a> Server<'a> {
    /// `None`: its address is none that a client can connect to.
    fn of(info: &'a ServerInfo) -> Option<Server<'a>> {
        let (host, port) = endpoint(info)?;
        // As long as ids of Redis, and the same after a restart.
        let id = format!("{:024x}{}", info.member.server.0, info.member.volume);
        Some(Server { id, host, port, slots: Vec::new(), master: None })
    }
}

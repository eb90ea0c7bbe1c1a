//! The connected clients, as `CLIENT LIST` and `INFO clients` show them.

use crate::resp::Protocol;
use leeward_format::table::TableName;
use leeward_format::user::DEFAULT_USER;
use leeward_platform::Nanos;
use std::collections::BTreeMap;
use std::fmt::Write;

/// One connection.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// Address of the peer.
    pub address: String,
    /// Address it connected to.
    pub local_address: String,
    /// When it connected.
    pub connected: Nanos,
    /// When it last sent a command.
    pub active: Nanos,
    /// Name given by `CLIENT SETNAME`, or by a native client's hello.
    pub name: String,
    /// Name of its library (`CLIENT SETINFO`).
    pub library: String,
    /// Version of its library.
    pub library_version: String,
    /// Its last command, `NULL` before the first.
    pub command: &'static str,
    /// RESP version; `None` for the native protocol.
    pub protocol: Option<Protocol>,
    /// The table that it has selected; `None` for the native protocol, in which each request names one.
    pub table: Option<TableName>,
    /// Its user; empty for `default`.
    pub user: String,
}

/// All connections of a node, by id.
#[derive(Debug, Default)]
pub struct Clients {
    by_id: BTreeMap<u64, Client>,
}

impl Clients {
    /// Adds a connection.
    pub fn add(&mut self, id: u64, client: Client) {
        self.by_id.insert(id, client);
    }

    /// Removes a connection.
    pub fn remove(&mut self, id: u64) {
        self.by_id.remove(&id);
    }

    /// The connection `id`, to be changed; `None` if it was removed.
    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Client> {
        self.by_id.get_mut(&id)
    }

    /// The connection `id`.
    pub(crate) fn get(&self, id: u64) -> Option<&Client> {
        self.by_id.get(&id)
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether no client is connected.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The line of `CLIENT INFO` for connection `id`, in Redis's format, without most fields that have no meaning here. Those of
    /// buffers are 0: redis-py 5 does not read a line that lacks them.
    pub(crate) fn line(&self, id: u64, now: Nanos) -> String {
        let mut out = String::new();
        let Some(client) = self.by_id.get(&id) else { return out };
        let seconds = |since: Nanos| now.0.saturating_sub(since.0) / 1_000_000_000;
        let protocol = match client.protocol {
            Some(Protocol::Resp2) => "2",
            Some(Protocol::Resp3) => "3",
            None => "native",
        };
        write!(
            out,
            "id={id} addr={} laddr={} name={} age={} idle={} flags=N db=0 sub=0 psub=0 multi=-1 qbuf=0 qbuf-free=0 \
             argv-mem=0 obl=0 oll=0 omem=0 tot-mem=0 cmd={} user={} resp={protocol} lib-name={} lib-ver={}",
            client.address,
            client.local_address,
            client.name,
            seconds(client.connected),
            seconds(client.active),
            client.command,
            if client.user.is_empty() { DEFAULT_USER } else { &client.user },
            client.library,
            client.library_version,
        )
        .expect("writing to a string cannot fail");
        if let Some(table) = &client.table {
            write!(out, " table={table}").expect("writing to a string cannot fail");
        }
        out
    }

    /// Ids of all connections, oldest first.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.by_id.keys().copied()
    }
}

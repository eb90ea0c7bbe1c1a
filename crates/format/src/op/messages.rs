//! The messages between native clients and nodes: one message a frame. Plain data.

use super::{Op, OpError, OpResult};
use crate::bounded::at_most;
use crate::cluster::RegionMap;
use crate::request::Once;
use crate::routes::RoutesUpdate;
use crate::table::TableName;
use crate::{Lsn, RegionId, ServerId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most operations of one request. A frame with more is not decoded: in memory an operation takes a hundred times its
/// encoded bytes.
pub const MAX_OPERATIONS: usize = 16_384;

/// Native client to node: operations to be executed as one batch, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// First message of a connection. Answered by [`Reply::Routes`].
    Hello {
        /// Name for `CLIENT LIST` and logs.
        client: String,
        /// Version of the coordinator's state whose routes the client knows; 0: none.
        known: u64,
    },
    /// Operations, answered by [`Reply::Results`] with the same id.
    Ops {
        /// Chosen by the client, echoed.
        id: u64,
        /// Answer [`OpError::NotPrimary`](super::OpError::NotPrimary) for keys whose primary is another server, instead
        /// of forwarding.
        direct: bool,
        /// The table that they are on.
        table: TableName,
        /// The batch: at most [`MAX_OPERATIONS`].
        #[serde(deserialize_with = "at_most::<MAX_OPERATIONS, _, _>")]
        ops: Vec<Op>,
    },
    /// Ask for the whole region map, as operators see it. Answered by [`Reply::Map`].
    Map,
    /// Ask the node for its identity, which the map does not show while the node is not part of the cluster. Answered
    /// by [`Reply::Node`].
    Identify,
    /// Ask whether requests may go through rings. Answered by [`Reply::RingOffer`] or [`Reply::RingRefused`].
    RingOffer,
    /// Open the rings that were offered. Answered by [`Reply::RingOpen`], once the node can write into the client's
    /// memory, or by [`Reply::RingRefused`].
    RingOpen {
        /// Where the client's fabric listens.
        address: String,
        /// Bytes of the request ring.
        request_bytes: u32,
        /// Bytes of the reply ring; [`CONTROL_BYTES`](crate::ring::CONTROL_BYTES) follow it.
        reply_bytes: u32,
        /// Descriptor of the memory that the reply ring is in.
        reply: Bytes,
    },
    /// Wake the node: the request ring has a message. Not answered.
    RingBell,
    /// Ask where regions are. Answered by [`Reply::Routes`].
    Routes {
        /// As in [`Request::Hello`].
        known: u64,
    },
    /// As [`Request::Ops`], with request ids for some of the operations, each of which is executed once, however
    /// often it is sent. Answered by [`Reply::Heard`], about those operations' regions that the node knows, and
    /// [`Reply::Results`].
    Once {
        /// Chosen by the client, echoed.
        id: u64,
        /// As in [`Request::Ops`].
        direct: bool,
        /// The table that they are on.
        table: TableName,
        /// The batch: at most [`MAX_OPERATIONS`].
        #[serde(deserialize_with = "at_most::<MAX_OPERATIONS, _, _>")]
        ops: Vec<Op>,
        /// Positions in the batch, ascending, and the request ids there.
        #[serde(deserialize_with = "at_most::<MAX_OPERATIONS, _, _>")]
        named: Vec<(u32, Once)>,
    },
    /// The user of the connection from now on. Answered by [`Reply::Auth`]; requests behind it wait for that.
    Auth {
        /// Name of the user.
        user: String,
        /// In plain text, but not shown by `Debug`.
        password: Secret,
    },
}

/// Bytes that no `Debug` shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(pub Bytes);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Node to native client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Tables, regions and servers as this node knows them.
    Map(RegionMap),
    /// Answers in the order of the operations.
    Results {
        /// Id of the request.
        id: u64,
        /// One for each operation.
        results: Vec<OpResult>,
    },
    /// The identity of the node.
    Node {
        /// As its operator numbered it.
        server: ServerId,
        /// Where operators reach it.
        admin_address: String,
    },
    /// Requests may go through rings.
    RingOffer {
        /// The fabric that the rings are on: `shm`, `tcp`.
        fabric: String,
        /// The node's number on it.
        node: u32,
        /// The client's number on it.
        client: u32,
        /// Where the node's fabric listens.
        address: String,
        /// Most bytes of a request ring.
        most_bytes: u32,
    },
    /// There is no ring for this client; requests may go over the connection.
    RingRefused {
        /// The reason, as text.
        reason: String,
    },
    /// The rings are open. They end with the connection.
    RingOpen {
        /// Descriptor of the memory that the request ring is in; [`CONTROL_BYTES`](crate::ring::CONTROL_BYTES) follow
        /// it.
        request: Bytes,
        /// Key of the messages in the request ring.
        request_key: u64,
        /// Key of the messages in the reply ring.
        reply_key: u64,
    },
    /// Wake a client that went to sleep with this number: its reply ring has a message.
    RingBell {
        /// The number, from the control word behind the request ring.
        sleep: u64,
    },
    /// Routes that the client does not know yet. Also sent before results with
    /// [`OpError::NotPrimary`](super::OpError::NotPrimary).
    Routes(RoutesUpdate),
    /// Regions and their commit LSNs, as far as this node knows them.
    Heard {
        /// Regions of the operations of a [`Request::Once`]. Sent before its results.
        regions: Vec<(RegionId, Lsn)>,
    },
    /// The answer to [`Request::Auth`]. Also sent when a request needs a user and there is none, or the user was removed:
    /// then the connection ends.
    Auth {
        /// Why the user is not let in; `None`: it is.
        refused: Option<OpError>,
    },
}

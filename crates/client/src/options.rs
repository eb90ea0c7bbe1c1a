//! Options and errors of the client. Plain data; any thread.

use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::table::TableName;
use std::time::Duration;

/// How a client behaves. The defaults suit an application on the same network as the cluster.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Name that the nodes show in their lists and logs.
    pub name: String,
    /// The table that operations are on.
    pub table: TableName,
    /// How long an operation may take, retries included.
    pub deadline: Duration,
    /// How long connecting may take until some node has answered. Nothing listening at any address is no reason to
    /// wait for a whole deadline.
    pub connect_within: Duration,
    /// Whether connecting waits until there is a region. Not for whoever makes the first table.
    pub needs_regions: bool,
    /// Pause before the first retry of an operation; it doubles from there up to 16 times as long. Each is longer by a part of up to
    /// a half, drawn at random, so that clients that were refused together do not come back together.
    pub retry_pause: Duration,
    /// Operations of a session, or of a [`Client`](crate::Client) with all of its threads, that may be under way at a time: beyond it
    /// [`Session::submit`](crate::Session::submit) answers [`Busy`], and calls of a [`Client`](crate::Client) wait. A batch may be larger if it
    /// is alone.
    pub max_outstanding: usize,
    /// Whether a put that always takes place, and answers nothing of what was there, has a request id too. Then one whose answer is
    /// lost is asked for again, and carried out once. Without, it costs less, and such a put answers [`OpError::Unknown`]. All
    /// other writes have request ids.
    pub retry_puts: bool,
    /// Bytes of the request ring and of the reply ring of each connection, with [`Way::Rings`](crate::Way::Rings): a multiple of
    /// 64, at least 4 KiB. A node gives less where its own limit is lower. What is larger than half a ring goes over TCP.
    pub ring_bytes: usize,
    /// How long a call looks for answers in rings before it sleeps. While it looks, the node need not wake it. By default 100 us with
    /// four cores or more, and with fewer 0: whom it waits for may want its core. An address may say another.
    pub ring_spin: Duration,
    /// Reads (of keys and pairs, and scans) may be answered by any member in sync, of tables whose [options](leeward_format::cluster::Reads)
    /// allow it, and then by what is stale for at most so long: they go to one after the other, and to the primary if that one cannot.
    /// `None`: to the primary, always.
    pub at_most_stale: Option<Duration>,
    /// An unanswered request this old makes the client ask other nodes whether its primary still is one.
    pub patience: Duration,
}

/// With fewer cores, whoever spins may keep from its core whom it waits for.
pub(crate) fn has_many_cores() -> bool {
    const MANY_CORES: usize = 4;
    std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= MANY_CORES)
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            name: "leeward-client".into(),
            table: TableName::default(),
            deadline: Duration::from_secs(30),
            connect_within: Duration::from_secs(2),
            needs_regions: true,
            retry_pause: Duration::from_millis(5),
            max_outstanding: 4096,
            retry_puts: false,
            ring_bytes: 256 << 10,
            ring_spin: if has_many_cores() { Duration::from_micros(100) } else { Duration::ZERO },
            at_most_stale: None,
            patience: Duration::from_secs(1),
        }
    }
}

/// Bytes moved over connections to nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that the kernel took.
    pub sent: u64,
    /// Bytes that came.
    pub received: u64,
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.sent += other.sent;
        self.received += other.received;
    }
}

/// A batch that was not taken, since [as many operations as may be](ClientOptions::max_outstanding) are under way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many operations are under way: poll first")]
pub struct Busy(
    /// The batch.
    pub Vec<Op>,
);

/// Why a call of the client failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No node answered in time. Nothing was changed.
    #[error("no node answers at {seeds} ({reason})")]
    Unreachable {
        /// Addresses that were tried.
        seeds: String,
        /// What the last attempt met.
        reason: String,
    },
    /// A node answered, but until the deadline it knew no region: it has not found its coordinator, or none was created.
    #[error("{seeds}: a node answers, but it knows no region; /readyz of its admin port says why")]
    NoRegions {
        /// Addresses that were tried.
        seeds: String,
    },
    /// A node answers, but requests cannot go through rings.
    #[error("no rings to {address}: {reason}; leeward://{address} connects over TCP")]
    Rings {
        /// The node's.
        address: String,
        /// Why, and what to do.
        reason: String,
    },
    /// As [many operations as may be](ClientOptions::max_outstanding) were under way until the deadline. Nothing was changed.
    #[error("too many operations are under way, within the whole deadline")]
    Busy,
    /// An address is not of the form `host:port`, or its host is unknown.
    #[error("address {address:?}: {reason}")]
    Address {
        /// The address.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The operating system refused a resource of the client's own.
    #[error("client: {0}")]
    Io(#[from] std::io::Error),
    /// The cluster's answer; the variant says what to do.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The node answered something that does not belong to the operation: client and node are of different versions.
    #[error("answer {0:?} does not belong to the operation: client and node are of different versions")]
    Mismatch(Box<OpResult>),
}

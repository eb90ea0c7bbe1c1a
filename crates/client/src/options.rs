//! Options and errors of the client. Plain data; any thread.

use leeward_format::ErrorKind;
use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::table::TableName;
use leeward_security::passwords::Password;
use leeward_security::tls::TlsError;
use std::time::Duration;

/// Options of a client. The defaults suit an application on the same network as the cluster.
///
/// ```
/// use leeward_client::{ClientOptions, TableName};
/// use std::time::Duration;
///
/// let options = ClientOptions {
///     name: "orders".into(),
///     deadline: Duration::from_secs(5),
///     retry_puts: true,
///     ..ClientOptions::default()
/// };
/// assert_eq!(options.table, TableName::default());
/// ```
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Name of the client in the lists and logs of nodes.
    pub name: String,
    /// The table that operations are on.
    pub table: TableName,
    /// How long an operation may take, retries included. 30 s by default.
    pub deadline: Duration,
    /// How long connecting may take until some node has answered. 2 s by default, shorter than
    /// [`ClientOptions::deadline`]: if nothing listens at any address, the caller should learn it soon.
    pub connect_within: Duration,
    /// Whether connecting waits until there is a region, as it does by default. A client that creates the first table
    /// must not wait.
    pub needs_regions: bool,
    /// Pause before the first retry of an operation, 5 ms by default. It doubles with each retry, up to 16 times as
    /// long. Each pause is longer by a random part of up to a half, so that clients that were refused together do not
    /// come back together.
    pub retry_pause: Duration,
    /// Most operations in flight, 4096 by default, of a session, or of a [`Client`](crate::Client) with all of its
    /// threads. Beyond it [`Session::submit`](crate::Session::submit) returns [`Busy`], and calls of a
    /// [`Client`](crate::Client) wait. A batch may be larger if it is alone.
    pub max_outstanding: usize,
    /// Whether a put without a condition, which does not return the old value, has a request id too. With an id, a put
    /// whose answer is lost is retried, and executed once. Without, it costs less, and such a put returns
    /// [`OpError::Unknown`]. All other writes have request ids. `false` by default.
    pub retry_puts: bool,
    /// Bytes of the request ring and of the reply ring of each connection, with [`RequestPath::Rings`](crate::RequestPath): a
    /// multiple of 64, at least 4 KiB, by default 256 KiB. A node grants less if its own limit is lower. Messages
    /// larger than half a ring go over TCP.
    pub ring_bytes: usize,
    /// How long a call spins on its rings for answers before it sleeps. While it spins, the node need not wake it. The
    /// default is 100 us with four cores or more, and 0 with fewer, where the node may need the core. An address may
    /// override it.
    pub ring_spin: Duration,
    /// Whether a get of a key may be answered by one-sided reads of the primary's hash index, in tables that have one:
    /// the client copies the value out of the node's memory, and no thread of the node takes part. The answer is the
    /// same. Used where requests go through rings in memory that is shared with the node. `true` by default. An address
    /// `leeward+direct://` turns it on.
    pub direct_reads: bool,
    /// Lets any member in sync answer reads of keys and pairs, and scans, with data that is stale by at most this much,
    /// in tables whose [options](crate::TableOptions::reads) allow it. Reads go to the members in turn, and to the
    /// primary if a member cannot answer. `None`, the default: reads always go to the primary.
    pub at_most_stale: Option<Duration>,
    /// The password of the user that the addresses name (`leeward+tls://USER@host:port`). `None`, the default: it is in the
    /// file that they name, or in the variable `LEEWARD_PASSWORD` of the environment.
    pub password: Option<Password>,
    /// When a request is unanswered for this long, by default 1 s, the client asks other nodes for newer routes.
    pub answer_timeout: Duration,
}

/// Whether there are enough cores to spin. With fewer, a spinning thread could take the core of the thread that it
/// waits for.
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
            direct_reads: true,
            at_most_stale: None,
            password: None,
            answer_timeout: Duration::from_secs(1),
        }
    }
}

/// Bytes moved over connections to nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes passed to the kernel, or written into rings.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.sent += other.sent;
        self.received += other.received;
    }
}

/// A batch was not accepted, because [as many operations as allowed](ClientOptions::max_outstanding) are in flight.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many operations are in flight: poll first")]
pub struct Busy(
    /// The batch, unchanged, so that it can be submitted again.
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
        /// Why the last attempt failed.
        reason: String,
    },
    /// A node answered, but knew no region until the deadline: it has not found its coordinator, or no table was
    /// created.
    #[error("{seeds}: a node answers, but it knows no region; /readyz of its admin port says why")]
    NoRegions {
        /// Addresses that were tried.
        seeds: String,
    },
    /// A node answers, but requests cannot go through rings.
    #[error("no rings to {address}: {reason}; leeward://{address} connects over TCP")]
    Rings {
        /// The address of the node.
        address: String,
        /// Why, and what to do.
        reason: String,
    },
    /// A node has rings, but its memory cannot be read directly.
    #[error("no direct reads from {address}: {reason}; leeward+ring://{address} connects without them")]
    Direct {
        /// The address of the node.
        address: String,
        /// Why.
        reason: String,
    },
    /// As [many operations as allowed](ClientOptions::max_outstanding) were in flight until the deadline. Nothing was
    /// changed.
    #[error("too many operations were in flight until the deadline")]
    Busy,
    /// An address is not of the form `host:port`, or its host is unknown.
    #[error("address {address:?}: {reason}")]
    Address {
        /// The text, or its `host:port`, without a password.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no password for the user, or the file that has it cannot be used.
    #[error("password of {user}: {reason}")]
    Password {
        /// The user, or the file.
        user: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The certificates of authorities cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The operating system refused a resource to the client.
    #[error("client: {0}")]
    Io(#[from] std::io::Error),
    /// The cluster's answer; the variant says what to do.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The answer of the node does not belong to the operation: client and node have different versions.
    #[error("answer {0:?} does not belong to the operation: client and node have different versions")]
    Mismatch(Box<OpResult>),
}

/// Where no node answers, or every one is busy, a caller asks again no sooner.
const NO_ANSWER_PAUSE: Duration = Duration::from_millis(100);

impl ClientError {
    /// What the caller does about it. The client itself has tried again until the deadline where that helps.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ClientError::Op(error) => error.kind(),
            ClientError::Unreachable { .. } | ClientError::Busy => ErrorKind::RetryLater { after: NO_ANSWER_PAUSE },
            ClientError::Address { .. } | ClientError::Password { .. } | ClientError::Tls(_) => ErrorKind::Refused,
            ClientError::Rings { .. } | ClientError::Direct { .. } => ErrorKind::Refused,
            ClientError::NoRegions { .. } | ClientError::Io(_) | ClientError::Mismatch(_) => ErrorKind::Operator,
        }
    }
}

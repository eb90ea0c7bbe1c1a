//! Operations on their way to a region and back: where the answer goes, who sees to it that a write is executed once, and how long
//! the operation waits already. Plain data.
//!
//! Invariant: each operation is answered once, or handed on.

use leeward_engine::Moment;
use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::request::{Attempts, Once};
use leeward_format::table::TableName;
use leeward_format::{RegionId, ServerId};
use leeward_platform::Nanos;

/// Names one submitted operation. The runtime chooses it, and never reuses it before the operation is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// Low bits of a [`Token`] that hold the operation's number on its connection; the others are the connection's id.
const NUMBER_BITS: u32 = 24;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

impl Token {
    /// The token of operation `number` on a connection.
    pub fn new(connection: u64, number: u64) -> Token {
        Token(connection << NUMBER_BITS | number & NUMBER_MASK)
    }

    /// The connection that the operation came from.
    pub fn connection(self) -> u64 {
        self.0 >> NUMBER_BITS
    }

    /// How many operations of its connection came before it, from number `newest` on.
    pub fn distance_from(self, newest: u64) -> u64 {
        self.0.wrapping_sub(newest) & NUMBER_MASK
    }

    /// How many operations of its connection came after it, up to number `newest`. A connection has fewer operations under way
    /// than the low bits can tell apart.
    pub fn distance_to(self, newest: u64) -> u64 {
        newest.wrapping_sub(self.0) & NUMBER_MASK
    }
}

/// Where an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyTo {
    /// A client of this node.
    Client(Token),
    /// A node that forwarded the operation.
    Peer(ServerId, u64),
}

/// An answer, on its way out of the node.
pub type Answer = (ReplyTo, OpResult);

/// Which side has given a write its request id, and sees to it that the write is executed once.
#[derive(Clone, Copy, Debug)]
pub enum Naming {
    /// No side: it has no request id.
    Unnamed,
    /// The caller of this node: a client, or a node that forwards.
    Caller(Once),
    /// This node.
    Here(Attempts),
}

/// An operation that no node has begun; but if it has a request id, an earlier attempt may have been. The one form that an
/// operation has from a session, or another node, to its region.
#[derive(Debug)]
pub struct Request {
    /// Where the answer goes.
    pub to: ReplyTo,
    /// Whose keys it names.
    pub table: TableName,
    /// What is to be done.
    pub op: Op,
    /// When it came to this node. The node sets it for an operation of a client.
    pub since: Nanos,
    /// Who sees to it that it is executed once.
    pub naming: Naming,
    /// Its client wants to be told if another node is the primary: the operation is not forwarded.
    pub is_direct: bool,
}

impl Request {
    /// An operation of a client, with the request id that the client gave, if it did. Any node may forward it.
    pub fn of_client(token: Token, table: TableName, op: Op, once: Option<Once>) -> Request {
        Request::new(Nanos::ZERO, ReplyTo::Client(token), table, op, once)
    }

    /// With the request id of the caller, if it has one. Any node may forward it.
    pub fn new(since: Nanos, to: ReplyTo, table: TableName, op: Op, once: Option<Once>) -> Request {
        Request { to, table, op, since, naming: once.map_or(Naming::Unnamed, Naming::Caller), is_direct: false }
    }

    /// As an operation on a region that is served here.
    pub(crate) fn pending(self, now: Nanos) -> Pending {
        let once = match self.naming {
            Naming::Unnamed => None,
            Naming::Caller(once) => Some(once),
            Naming::Here(attempts) => attempts.once(),
        };
        let names_region = matches!(self.op, Op::In { .. });
        Pending { to: self.to, op: self.op.plain(), names_region, once, since: now, read_at: None }
    }

    /// Whether a server that it was sent to before may have executed it.
    pub fn is_doubtful(&self) -> bool {
        matches!(self.naming, Naming::Here(attempts) if attempts.is_doubtful())
    }

    /// Its answer if there is no time for another attempt, and the last one failed with `error`.
    pub fn give_up(self, error: OpError) -> Answer {
        let result = match self.naming {
            Naming::Here(attempts) => attempts.give_up(error),
            _ => OpResult::Error(error),
        };
        (self.to, result)
    }
}

/// An operation that has come to the region and was not executed yet.
pub struct Pending {
    pub(crate) to: ReplyTo,
    /// Without the region, if it named this one.
    pub(crate) op: Op,
    pub(crate) names_region: bool,
    /// The request's id, if the operation is to be executed once.
    pub(crate) once: Option<Once>,
    pub(crate) since: Nanos,
    /// The position of the writes when the device was asked, if it was. The answer may fill the hash index.
    pub(crate) read_at: Option<Moment>,
}

impl Pending {
    /// The operation in the form in which it came to `region`.
    pub(crate) fn into_request(self, region: RegionId, table: TableName) -> Request {
        let Pending { to, op, names_region, once, since, read_at: _ } = self;
        let op = if names_region { op.within(region) } else { op };
        Request::new(since, to, table, op, once)
    }
}

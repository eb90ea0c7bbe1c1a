//! The operations of the native protocol and their results. Nodes translate RESP commands into them, and forward them
//! to each other.
//!
//! The operations of one batch are on one table, which the batch names. Every operation names keys of one region; a
//! command that spans regions (MGET, KRANGE) becomes several operations. If keys are partitioned by hash, an operation
//! on a range also names the region ([`Op::In`]).

use crate::cluster::{Intent, RegionRequest};
use crate::routing::{Route, Routing};
use crate::table::{NewTable, TableChange, TableName};
use crate::user::{UserChange, UserName, UserShown};
use crate::{Expiry, Lsn, RegionId, SegmentId, ServerId, UnixMs};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::time::Duration;

mod check;
mod error;
mod hash_index;
mod messages;
mod parts;
mod range_digest;
mod ranged;
mod stale;
pub use check::check_range;
pub use error::OpError;
pub use hash_index::{HashIndexAnswer, HashIndexQuestion, HashIndexState};
pub use messages::{MAX_OPERATIONS, Reply, Request, Secret};
pub use parts::{Pair, SegmentDigest};
pub use range_digest::{
    DIGEST_AHEAD_MS, DigestInstant, MOST_RANGES, PIECE_BYTES, RangeAnswer, RangeDigest, RangeHasher, RangeQuestion,
};
pub use ranged::{RangeOp, ScanRange};
pub use stale::{Read, ReadResult};

/// Longest frame of requests or replies, in bytes: room for a batch that holds the largest record.
pub const MAX_MESSAGE_BYTES: usize = 8 * 1024 * 1024;

/// The condition of a write. It is decided by the newest value, committed or not, and the write follows atomically.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// Whether or not the key exists.
    #[default]
    Always,
    /// Only if the key does not exist.
    Absent,
    /// Only if the key exists.
    Present,
    /// Only if the key exists and has this value.
    Value(Bytes),
    /// Only if the key does not exist or has another value.
    NotValue(Bytes),
    /// Only if the key exists and was put last by the write with this LSN.
    Version(Lsn),
}

impl Condition {
    /// Whether it holds for a key with this version and value; `None` if the key does not exist.
    pub fn holds(&self, current: Option<(Lsn, &[u8])>) -> bool {
        match (self, current) {
            (Condition::Always, _) => true,
            (Condition::Absent, current) => current.is_none(),
            (Condition::Present, current) => current.is_some(),
            (Condition::Value(wanted), current) => current.is_some_and(|(_, value)| value == wanted),
            (Condition::NotValue(unwanted), current) => current.is_none_or(|(_, value)| value != unwanted),
            (Condition::Version(wanted), current) => current.is_some_and(|(version, _)| version == *wanted),
        }
    }

    /// Bytes of the value that it names.
    pub fn value_bytes(&self) -> usize {
        match self {
            Condition::Value(value) | Condition::NotValue(value) => value.len(),
            _ => 0,
        }
    }
}

/// How a pair is put.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// Condition.
    pub when: Condition,
    /// When it expires.
    pub lifetime: Lifetime,
}

/// The outcome of a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The condition held, and the write was executed.
    pub done: bool,
    /// The version of the pair now: that of this put, or of the pair that exists instead. `None`: there is no pair.
    pub version: Option<Lsn>,
}

/// When a written pair expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lifetime {
    /// Never.
    #[default]
    Forever,
    /// At this instant.
    Until(Expiry),
    /// This many milliseconds after the write, by the primary's clock; 0: at once.
    For(u64),
    /// At the expiry of the pair that it replaces; never, if there was none.
    AsBefore,
}

impl Lifetime {
    /// The expiry of a pair that is written now in place of one with the expiry `before`.
    pub fn expiry(self, before: Option<Expiry>, now: UnixMs) -> Option<Expiry> {
        match self {
            Lifetime::Forever => None,
            Lifetime::Until(expiry) => Some(expiry),
            Lifetime::For(ms) => Some(Expiry::after(now, Duration::from_millis(ms))),
            Lifetime::AsBefore => before,
        }
    }
}

/// The condition of a change of expiry. A pair without expiry counts as one that expires last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpireIf {
    /// Only if the pair has an expiry (true), or only if it has none (false).
    pub expires: Option<bool>,
    /// Only if the new expiry is later (true) or earlier (false) than the old one.
    pub later: Option<bool>,
}

impl ExpireIf {
    /// Whether it holds for a change from `before` to `after`.
    pub fn holds(self, before: Option<Expiry>, after: Option<Expiry>) -> bool {
        let last = |expiry: Option<Expiry>| expiry.map_or(u64::MAX, Expiry::ms);
        let is_wanted = self.expires.is_none_or(|expires| expires == before.is_some());
        is_wanted
            && match self.later {
                None => true,
                Some(true) => last(after) > last(before),
                Some(false) => last(after) < last(before),
            }
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Reads the value of a key. Answers [`OpResult::Value`].
    Get {
        /// 1 to [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES) bytes.
        key: Bytes,
    },
    /// Sets a key. Answers [`OpResult::Put`].
    Put {
        /// 1 to [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES) bytes.
        key: Bytes,
        /// Its new value.
        value: Bytes,
        /// Condition.
        when: Condition,
        /// Answer the value before the put.
        want_old: bool,
        /// When the pair expires.
        lifetime: Lifetime,
    },
    /// Removes a key. Answers [`OpResult::Deleted`].
    Delete {
        /// 1 to [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES) bytes.
        key: Bytes,
        /// Condition.
        when: Condition,
    },
    /// Adds to the decimal integer at a key (a missing key counts as 0), and keeps the expiry. Answers
    /// [`OpResult::Integer`].
    Add {
        /// 1 to [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES) bytes.
        key: Bytes,
        /// The number to add.
        delta: i64,
    },
    /// Appends to the value at a key (a missing key counts as empty), and keeps the expiry. Answers
    /// [`OpResult::Integer`], the new length.
    Append {
        /// 1 to [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES) bytes.
        key: Bytes,
        /// The bytes to append.
        suffix: Bytes,
    },
    /// Reads entries in key order, as of one instant. Answers [`OpResult::Entries`]. Stops at the end of the region
    /// that holds the bound it starts from; the answer says where to continue.
    Scan(ScanRange),
    /// Estimated number of keys of one region. Answers [`OpResult::Integer`].
    Count {
        /// [`OpError::Invalid`] if it has ended.
        region: RegionId,
    },
    /// For operators: the region continues without the volumes of a server that it waits for, and data that only they
    /// hold is lost. Any node executes it. Answers [`OpResult::Done`], or [`OpError::Invalid`] if the region does
    /// not wait for that server.
    AcceptLoss {
        /// Other regions still wait for those volumes.
        region: RegionId,
        /// The server whose volumes are given up.
        server: ServerId,
    },
    /// For operators: makes a table with its regions, atomically. Any node executes it. Answers [`OpResult::Done`]
    /// once the regions are configured, before they are served; or [`OpError::Invalid`] if the table exists already, or
    /// its options or regions are not valid.
    CreateTable {
        /// Options with the name, and first keys of regions.
        table: Box<NewTable>,
    },
    /// Reads version and expiry of a key, and its value. Answers [`OpResult::Pair`].
    GetPair {
        /// 1 to [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES) bytes.
        key: Bytes,
        /// Answer the value as well.
        want_value: bool,
    },
    /// Changes the expiry of a pair: puts its value anew, or deletes it if the new expiry has passed already. Answers
    /// [`OpResult::Put`], with `done` false if there is no such key.
    Expire {
        /// 1 to [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES) bytes.
        key: Bytes,
        /// When the pair expires from now on.
        lifetime: Lifetime,
        /// Condition.
        when: ExpireIf,
        /// Answer the value.
        want_old: bool,
    },
    /// Atomically removes every key from `start` to `end`, exclusive, in the region that holds the start. Answers
    /// [`OpResult::RangeDeleted`], which says where to continue; [`OpError::Invalid`] for an empty or reversed range.
    DeleteRange {
        /// First key; empty for no bound.
        start: Bytes,
        /// Key after the last; `None` for no bound.
        end: Option<Bytes>,
    },
    /// Estimates how many pairs a range has. Answers [`OpResult::Approximation`]. Stops at the end of the region that
    /// holds the start; the answer says where to continue.
    Approximate {
        /// First key, inclusive.
        start: Bytes,
        /// Key after the last, exclusive; `None` for no bound.
        end: Option<Bytes>,
    },
    /// For operators: the region's primary copies the region, as of one instant, to a store of its own. Answers
    /// [`OpResult::Checkpoint`] at once; repeat it until `left` is 0. [`OpError::Invalid`] if that name is taken.
    Checkpoint {
        /// [`OpError::Invalid`] if it has ended.
        region: RegionId,
        /// Name of the checkpoint: 1 to 64 letters, digits, `-`, `_` and `.`.
        name: String,
    },
    /// For operators: changes options of a table while it serves. Any node executes it. Answers [`OpResult::Done`]
    /// once the coordinator has recorded it, before the table's regions follow; or [`OpError::Invalid`] if there is no
    /// such table, or the options are not valid.
    AlterTable {
        /// Options that it leaves out stay as they are.
        change: Box<TableChange>,
    },
    /// For operators: the digests of the receiving node's segments of a region, whether or not it is the primary.
    /// Answers [`OpResult::Digests`].
    Digests {
        /// [`OpError::Invalid`] if the node has no copy of it.
        region: RegionId,
        /// The last segment of the answer before.
        after: Option<SegmentId>,
    },
    /// For operators: the content of a segment at the receiving node, in the form that is the same on all replicas.
    /// Answers [`OpResult::Value`].
    SegmentContent {
        /// [`OpError::Invalid`] if the node has no copy of it.
        region: RegionId,
        /// Id from [`OpResult::Digests`].
        segment: SegmentId,
    },
    /// For operators: the receiving node writes a damaged segment anew. Answers [`OpResult::Done`], also if it is
    /// sound, or [`OpError::Invalid`] if the content is not that of the segment.
    RepairSegment {
        /// [`OpError::Invalid`] if the node has no copy of it.
        region: RegionId,
        /// The same id as at the node that the content is from.
        segment: SegmentId,
        /// The answer of another node to [`Op::SegmentContent`].
        content: Bytes,
    },
    /// For operators: records a request in the region's desired state. Its primary then executes the request. Any
    /// node can record it. Answers [`OpResult::Done`] once it is recorded, or [`OpError::Invalid`] if it cannot be.
    RequestRegion {
        /// The request is kept in its configuration.
        region: RegionId,
        /// Kept until it is executed or cancelled.
        request: RegionRequest,
    },
    /// For operators: requests that a server leaves every group, or that it may stay. Any node executes it. Answers
    /// [`OpResult::Done`] once it is recorded, or [`OpError::Invalid`] if too few servers would be left.
    Intend {
        /// It need not be the receiving node's.
        server: ServerId,
        /// The intent; `None`: the server may stay.
        intent: Option<Intent>,
    },
    /// For operators: drops a table. Any node executes it. Answers [`OpResult::Done`] once the table no longer
    /// exists, before its regions are removed; or [`OpError::Invalid`] if there is no such table, or it is the default
    /// one.
    DropTable {
        /// Any table but the default one.
        table: TableName,
    },
    /// A read that a backup may answer with [`OpResult::Stale`], if the answer is not staler than allowed. Any other
    /// answer, of a backup or of the primary, is like that to the operation inside, and is not stale.
    Stale {
        /// Most staleness in milliseconds; 0: none. A backup asks the primary for its safe LSN then, and answers as of
        /// it, without [`OpResult::Stale`].
        at_most_ms: u32,
        /// The primary answers it as if it had been sent by itself.
        read: Read,
    },
    /// An operation on a range of keys for one region, as is needed if keys are partitioned by hash. The answer is
    /// about the region's part of the range alone. If the table is split by keys, its `resume` may be in the next region.
    In {
        /// The range is cut to its bounds.
        region: RegionId,
        /// Its range may reach beyond the region.
        op: RangeOp,
    },
    /// For operators: the region's primary names an instant for digests of ranges. Answers [`OpResult::RangeBounds`],
    /// or [`OpError::NotPrimary`] at any other node.
    RangeBounds {
        /// Only its primary answers.
        region: RegionId,
        /// Answer the keys between the ranges as well.
        want_bounds: bool,
    },
    /// For operators: the digests of ranges in the receiving node's copy of a region, whether or not it is the primary.
    /// Answers [`OpResult::RangeDigests`].
    RangeDigests(Box<RangeQuestion>),
    /// For operators: the region's primary has a backup that builds its own index give up that index and take the
    /// primary's. Answers [`OpResult::Done`] before that is done; [`OpError::NotPrimary`] at any other node; and
    /// [`OpError::Invalid`] if that is no such backup, or another copy of the region is not in sync. The request ends
    /// with the first attempt, and with the primary's process or role.
    RebuildIndex {
        /// Only its primary accepts the request.
        region: RegionId,
        /// The backup's server.
        server: ServerId,
    },
    /// Asks the region's primary for the right to read its hash index. Answers [`OpResult::HashIndex`], or
    /// [`OpError::NotPrimary`] at any other node.
    HashIndex(Box<HashIndexQuestion>),
    /// For operators: the users as the receiving node knows them. Answers [`OpResult::Users`].
    ListUsers,
    /// For operators: makes or changes a user. Any node executes it. Answers [`OpResult::Done`] once the coordinator
    /// has recorded it; [`OpError::Invalid`] if it is not possible, or would lock everybody out.
    ChangeUser {
        /// [`UserChange::presence`] says whether the user must exist.
        change: Box<UserChange>,
    },
    /// For operators: removes users, those that there are. Any node executes it. Answers [`OpResult::Done`] once the
    /// coordinator has recorded it; [`OpError::Invalid`] if that would lock everybody out.
    RemoveUsers {
        /// The users; `None`: all, so that everybody is let in again.
        #[serde(deserialize_with = "crate::bounded::optional::<{ parts::MAX_REMOVED }, _, _>")]
        names: Option<Vec<UserName>>,
    },
    /// For operators: adds to the coordinator's tree, which lost its data or was put back to an older state, what the
    /// receiving node knows and the tree lacks. Answers [`OpResult::Done`] once the coordinator has recorded it;
    /// [`OpError::Invalid`] if something else is in its place.
    RestoreTree {
        /// Every node has added what it knows. If the receiving node refuses the tree still, or a region that was
        /// restored from a copy waits for it, all nodes compare the tree anew with what they know, and those that find
        /// nothing lacking take part in the cluster again.
        confirms: bool,
    },
}

impl Op {
    /// Whether the operation can be executed twice without harm, whatever other clients do in between. If so, a
    /// client may repeat it when its outcome is unknown. No write of data is repeatable, not even a plain put: another
    /// client may see the first put, write, and lose its write to the second put. Such writes need a [request
    /// id](crate::request).
    pub fn is_repeatable(&self) -> bool {
        match self {
            Op::Get { .. } | Op::GetPair { .. } | Op::Scan(_) | Op::Count { .. } | Op::Approximate { .. } => true,
            Op::Checkpoint { .. } | Op::AlterTable { .. } => true,
            Op::Digests { .. } | Op::SegmentContent { .. } | Op::RepairSegment { .. } => true,
            Op::RangeBounds { .. } | Op::RangeDigests(_) | Op::RebuildIndex { .. } | Op::HashIndex(_) => true,
            // Without a key, the second request would split a result of the first. A merged region no longer exists.
            Op::RequestRegion { request, .. } => {
                !matches!(request, RegionRequest::Split { at: None } | RegionRequest::Merge { .. })
            }
            Op::Intend { .. } | Op::ListUsers | Op::ChangeUser { .. } | Op::RemoveUsers { .. } => true,
            Op::DropTable { .. } => false,
            Op::Stale { .. } => true,
            Op::RestoreTree { .. } => true,
            Op::AcceptLoss { .. } | Op::CreateTable { .. } => false,
            Op::Put { .. } | Op::Delete { .. } | Op::DeleteRange { .. } => false,
            Op::Add { .. } | Op::Append { .. } | Op::Expire { .. } => false,
            Op::In { op, .. } => !matches!(op, RangeOp::DeleteRange { .. }),
        }
    }
    /// Whether it may write pairs, and so can have a [request id](crate::request).
    pub fn writes_data(&self) -> bool {
        let is_of_pair = matches!(self, Op::Put { .. } | Op::Add { .. } | Op::Append { .. } | Op::Expire { .. });
        is_of_pair
            || matches!(
                self,
                Op::Delete { .. } | Op::DeleteRange { .. } | Op::In { op: RangeOp::DeleteRange { .. }, .. }
            )
    }
    /// Whether it is a put that does not depend on the pair before, and does not return it.
    pub fn is_plain_put(&self) -> bool {
        matches!(self, Op::Put { when: Condition::Always, want_old: false, lifetime, .. } if *lifetime != Lifetime::AsBefore)
    }
    /// Its key, if it is about one key.
    pub fn key(&self) -> Option<&Bytes> {
        match self {
            Op::Get { key }
            | Op::Put { key, .. }
            | Op::Delete { key, .. }
            | Op::GetPair { key, .. }
            | Op::Expire { key, .. }
            | Op::Add { key, .. }
            | Op::Append { key, .. }
            | Op::Stale { read: Read::Get { key } | Read::GetPair { key, .. }, .. } => Some(key),
            Op::Stale { read: Read::Scan(_) | Read::ScanIn { .. }, .. } => None,
            Op::Scan(_) | Op::DeleteRange { .. } | Op::Count { .. } | Op::Approximate { .. } => None,
            Op::AcceptLoss { .. } | Op::CreateTable { .. } | Op::AlterTable { .. } | Op::Checkpoint { .. } => None,
            Op::Digests { .. } | Op::SegmentContent { .. } | Op::RepairSegment { .. } => None,
            Op::RangeBounds { .. } | Op::RangeDigests(_) | Op::RebuildIndex { .. } | Op::HashIndex(_) => None,
            Op::RequestRegion { .. } | Op::Intend { .. } | Op::DropTable { .. } | Op::In { .. } => None,
            Op::ListUsers | Op::ChangeUser { .. } | Op::RemoveUsers { .. } | Op::RestoreTree { .. } => None,
        }
    }
    /// Whether it is an operator's request that any node passes on to the coordinator.
    pub fn is_for_any_node(&self) -> bool {
        let is_of_table = matches!(self, Op::CreateTable { .. } | Op::AlterTable { .. } | Op::DropTable { .. });
        let is_of_users = matches!(self, Op::ListUsers | Op::ChangeUser { .. } | Op::RemoveUsers { .. });
        is_of_table
            || is_of_users
            || matches!(self, Op::AcceptLoss { .. } | Op::RequestRegion { .. } | Op::Intend { .. })
    }
    /// The region that it goes to, on `table`: that of its key, or of the bound that a scan starts from. `Count`,
    /// `Checkpoint` and `HashIndex` go to the region that they name, whatever the table. `None`: there is no such region, or any node
    /// will do, or it [lacks a region](Op::lacks_region).
    pub fn region_in<'a, R: Routing>(&self, routes: &'a R, table: &str) -> Option<&'a R::Region> {
        match self {
            op if op.lacks_region(routes, table) => None,
            Op::Count { region } | Op::Checkpoint { region, .. } => routes.region(*region),
            Op::HashIndex(question) => routes.region(question.region),
            Op::In { region, .. } | Op::Stale { read: Read::ScanIn { region, .. }, .. } => {
                routes.region(*region).filter(|route| Route::table(*route) == table)
            }
            op => match op.range() {
                // The end is exclusive.
                Some((_, end)) if op.is_reverse() => routes.region_below(table, end.map(|end| &end[..])),
                Some((start, _)) => routes.region_of(table, start),
                None => routes.region_of(table, op.key()?),
            },
        }
    }
    /// Whether it may change the store.
    pub fn is_write(&self) -> bool {
        let is_read = matches!(self, Op::Get { .. } | Op::GetPair { .. } | Op::Scan(_) | Op::Count { .. })
            || matches!(self, Op::ListUsers);
        let is_of_segments = matches!(self, Op::Digests { .. } | Op::SegmentContent { .. });
        let is_asked = is_of_segments
            || matches!(self, Op::RangeBounds { .. } | Op::RangeDigests(_) | Op::Stale { .. } | Op::HashIndex(_));
        if let Op::In { op, .. } = self {
            return matches!(op, RangeOp::DeleteRange { .. });
        }
        !is_read && !is_asked && !matches!(self, Op::Approximate { .. } | Op::Checkpoint { .. })
    }
}

/// The answer to one [`Op`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpResult {
    /// The value, or `None` if the key does not exist.
    Value(Option<Bytes>),
    /// A put was decided.
    Put {
        /// The condition held, and the value was set.
        done: bool,
        /// The value before, if it was asked for and there was one.
        old: Option<Bytes>,
        /// LSN of this put if it was done; otherwise that of the existing pair, if any.
        version: Option<Lsn>,
    },
    /// A delete was decided.
    Deleted {
        /// There was such a key, the condition held, and it was removed.
        done: bool,
        /// The value that was removed.
        old: Option<Bytes>,
        /// LSN of the pair, if it still exists.
        version: Option<Lsn>,
    },
    /// Answer of [`Op::Add`], [`Op::Append`] and [`Op::Count`].
    Integer(i64),
    /// Entries of a scan, in its order.
    Entries {
        /// Keys with values, which are empty if only keys were asked for.
        entries: Vec<(Bytes, Bytes)>,
        /// Where to continue: the new `start` of a forward scan, the new `end` of a reverse one. `None`: it is
        /// complete.
        resume: Option<Bytes>,
    },
    /// It was not executed, or its outcome is unknown.
    Error(OpError),
    /// It was executed, without a result.
    Done,
    /// The pair of a key, or `None` if the key does not exist.
    Pair(Option<Pair>),
    /// The region's keys of a range were removed.
    RangeDeleted {
        /// Where to continue: the first key of the next region. `None`: it is complete.
        resume: Option<Bytes>,
    },
    /// The estimated content of a range.
    Approximation {
        /// Pairs.
        pairs: u64,
        /// Bytes of their keys and values.
        bytes: u64,
        /// Where to continue: the new `start`. `None`: it is complete.
        resume: Option<Bytes>,
    },
    /// How far a checkpoint is.
    Checkpoint {
        /// Segments that are not copied yet; 0: it is complete and durable.
        left: u64,
        /// Its directory on the primary's machine.
        path: String,
        /// Last LSN in it, once a segment was copied.
        last: Lsn,
    },
    /// A node's segments of a region.
    Digests {
        /// Complete segments, by id.
        segments: Vec<SegmentDigest>,
        /// There may be more segments after the last one.
        has_more: bool,
    },
    /// The answer of a backup to [`Op::Stale`]: what the primary would have answered at some instant not earlier than
    /// `age_ms` before the call.
    Stale {
        /// How long before the read a write may have been acknowledged that the answer does not show, in milliseconds,
        /// rounded up.
        age_ms: u32,
        /// The answer shows the region as of this LSN.
        lsn: Lsn,
        /// In the form of the read's own answer.
        result: ReadResult,
    },
    /// An instant for digests of ranges.
    RangeBounds {
        /// Goes into each [`RangeQuestion`] about the ranges.
        at: DigestInstant,
        /// Keys between ranges, ascending, if they were asked for: at most [`MOST_RANGES`] less one. The first range
        /// begins with the first key, and the last one has no end.
        #[serde(deserialize_with = "crate::bounded::at_most::<MAX_OPERATIONS, _, _>")]
        bounds: Vec<Bytes>,
    },
    /// Digests of ranges.
    RangeDigests(RangeAnswer),
    /// Whether the region's hash index may be read.
    HashIndex(Box<HashIndexAnswer>),
    /// Users, by name.
    Users(Vec<UserShown>),
}

//! What a client asks of the store and what it answers: the operations of the native protocol, which the RESP
//! commands are translated into and which nodes forward to each other.
//!
//! The operations of one batch are on one table, which the batch names. Every operation names keys of one region; what
//! spans regions (MGET, KRANGE) is several operations. Where each region has some of every range of keys, an operation on a range
//! names the region too ([`Op::In`]).

use crate::cluster::{Intent, RegionRequest};
use crate::manifest::SegmentKind;
use crate::routing::{Route, Routing};
use crate::table::{NewTable, TableChange, TableName};
use crate::{Epoch, Expiry, Lsn, MAX_KEY_BYTES, RegionId, SegmentId, ServerId, UnixMs};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::time::Duration;

mod messages;
mod ranged;
mod stale;
pub use messages::{MAX_OPERATIONS, Reply, Request};
pub use ranged::{RangeOp, ScanRange};
pub use stale::{Read, ReadResult};

/// Longest frame of requests or replies, in bytes: room for a batch that holds the largest record.
pub const MAX_MESSAGE_BYTES: usize = 8 * 1024 * 1024;

/// When a write takes place. It is decided on the newest value, committed or not, and the write follows at once: nothing
/// comes between.
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
    /// Whether it holds for a key with this version and value; `None` is a key that does not exist.
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

/// What a conditional write came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The condition held, and it was carried out.
    pub done: bool,
    /// The version of the pair now: of this put, or of the one that is there instead. `None`: there is none.
    pub version: Option<Lsn>,
}

/// When a pair expires that is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lifetime {
    /// Never.
    #[default]
    Forever,
    /// At this instant.
    Until(Expiry),
    /// So many milliseconds after the write, by the primary's clock; 0: at once.
    For(u64),
    /// When the pair before it would have; never, if there was none.
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

/// When the expiry of a pair is changed; a pair that never expires counts as one that expires after all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpireIf {
    /// Only if the pair has an expiry (true), or only if it has none (false).
    pub expires: Option<bool>,
    /// Only if it expires later (true) or earlier (false) than before.
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

/// An error for what is no range of keys from `start` up to, and without, `end`.
///
/// # Errors
/// It is empty or reversed, or a bound is longer than a key.
pub fn check_range(start: &[u8], end: Option<&[u8]>) -> Result<(), OpError> {
    let shown = |bound: &[u8]| bound[..bound.len().min(64)].escape_ascii().to_string();
    if let Some(end) = end.filter(|end| *end <= start) {
        let detail = format!("empty or reversed range: from \"{}\" to \"{}\"", shown(start), shown(end));
        return Err(OpError::Invalid(detail));
    }
    let longest = start.len().max(end.map_or(0, <[u8]>::len));
    if longest > MAX_KEY_BYTES {
        let detail = format!("a bound is {longest} bytes long, the limit is {MAX_KEY_BYTES}");
        return Err(OpError::Invalid(detail));
    }
    Ok(())
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// The value of a key. Answers [`OpResult::Value`].
    Get {
        /// The key.
        key: Bytes,
    },
    /// Sets a key. Answers [`OpResult::Put`].
    Put {
        /// The key.
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
        /// The key.
        key: Bytes,
        /// Condition.
        when: Condition,
    },
    /// Adds to the decimal integer at a key (a missing key counts as 0), which expires as before. Answers
    /// [`OpResult::Integer`].
    Add {
        /// The key.
        key: Bytes,
        /// What to add.
        delta: i64,
    },
    /// Appends to the value at a key (a missing key counts as empty), which expires as before. Answers
    /// [`OpResult::Integer`], the new length.
    Append {
        /// The key.
        key: Bytes,
        /// What to append.
        suffix: Bytes,
    },
    /// Entries in key order, as of one instant. Answers [`OpResult::Entries`]. Stops at the end of the region that
    /// holds the bound it starts from; the answer says where to continue.
    Scan(ScanRange),
    /// Estimated number of keys of one region. Answers [`OpResult::Integer`].
    Count {
        /// The region.
        region: RegionId,
    },
    /// An operator's: the region continues without the volumes of a server that it waits for, and what only they hold is
    /// lost. Any node carries it out. Answers [`OpResult::Done`], or [`OpError::Invalid`] if the region does not wait for
    /// that server.
    AcceptLoss {
        /// The region.
        region: RegionId,
        /// The server whose volumes are given up.
        server: ServerId,
    },
    /// An operator's: makes a table with its regions, whole or not at all. Any node carries it out. Answers
    /// [`OpResult::Done`] once the regions are configured, before they are served; or [`OpError::Invalid`] if there is
    /// such a table already, or what is asked for cannot be.
    CreateTable {
        /// The table.
        table: Box<NewTable>,
    },
    /// Version and expiry of a key, and its value. Answers [`OpResult::Pair`].
    GetPair {
        /// The key.
        key: Bytes,
        /// Answer the value as well.
        want_value: bool,
    },
    /// Changes when a pair expires: puts its value anew, or deletes it if the new instant has come already. Answers
    /// [`OpResult::Put`]; not done if there is no such key.
    Expire {
        /// The key.
        key: Bytes,
        /// When the pair expires from now on.
        lifetime: Lifetime,
        /// Condition.
        when: ExpireIf,
        /// Answer the value.
        want_old: bool,
    },
    /// Removes every key from a start up to, and without, an end, in the region that holds the start, atomically. Answers
    /// [`OpResult::RangeDeleted`], which says where to continue; [`OpError::Invalid`] for an empty or reversed range.
    DeleteRange {
        /// First key; empty for no bound.
        start: Bytes,
        /// Key after the last; `None` for no bound.
        end: Option<Bytes>,
    },
    /// About how many pairs a range has. Answers [`OpResult::Approximation`]. Stops at the end of the region that holds
    /// the start; the answer says where to continue.
    Approximate {
        /// First key, inclusive.
        start: Bytes,
        /// Key after the last, exclusive; `None` for no bound.
        end: Option<Bytes>,
    },
    /// An operator's: the region's primary copies it, as of one instant, to a store of its own. Answers [`OpResult::Checkpoint`]
    /// at once; to be asked again until nothing is left. [`OpError::Invalid`] if there is one of that name.
    Checkpoint {
        /// The region.
        region: RegionId,
        /// Name of the checkpoint: 1 to 64 letters, digits, `-`, `_` and `.`.
        name: String,
    },
    /// An operator's: changes options of a table while it serves. Any node carries it out. Answers [`OpResult::Done`] once the
    /// coordinator has it, before the table's regions follow; or [`OpError::Invalid`] if there is no such table, or what is
    /// asked for cannot be.
    AlterTable {
        /// What changes.
        change: Box<TableChange>,
    },
    /// An operator's: what the asked node has of a region, whichever node serves that region. Answers [`OpResult::Digests`].
    Digests {
        /// The region.
        region: RegionId,
        /// The last segment that was answered before.
        after: Option<SegmentId>,
    },
    /// An operator's: a segment of the asked node, as all replicas know it. Answers [`OpResult::Value`].
    SegmentContent {
        /// The region.
        region: RegionId,
        /// The segment.
        segment: SegmentId,
    },
    /// An operator's: has the asked node write a damaged segment anew. Answers [`OpResult::Done`], also if it is sound, or
    /// [`OpError::Invalid`] if the content is not that of the segment.
    RepairSegment {
        /// The region.
        region: RegionId,
        /// The segment.
        segment: SegmentId,
        /// What another node answered to [`Op::SegmentContent`].
        content: Bytes,
    },
    /// An operator's: records a request in the region's desired state; its primary then carries the request out. Any node can
    /// record it. Answers [`OpResult::Done`] once it is recorded, or [`OpError::Invalid`] if it cannot be.
    RequestRegion {
        /// The region.
        region: RegionId,
        /// The request.
        request: RegionRequest,
    },
    /// An operator's: says that a server is to leave every group, or may stay. Any node carries it out. Answers
    /// [`OpResult::Done`] once it is recorded, or [`OpError::Invalid`] if too few servers would be left.
    Intend {
        /// The server.
        server: ServerId,
        /// What is to become of it; `None`: it may stay.
        intent: Option<Intent>,
    },
    /// An operator's: there is to be no such table any more. Any node carries it out. Answers [`OpResult::Done`] once there is
    /// none, before its regions are removed; or [`OpError::Invalid`] if there is no such table, or it is the default one.
    DropTable {
        /// The table.
        table: TableName,
    },
    /// A read that any member of the region may answer, with [`OpResult::Stale`], if the answer is not staler than allowed. If no
    /// asked member does, the primary answers it as the operation inside: then nothing is staler than the call.
    Stale {
        /// In milliseconds; 0: the primary alone can answer.
        at_most_ms: u32,
        /// What is read.
        read: Read,
    },
    /// An operation on a range of keys, for the region with this number: the only way where keys are partitioned by hash. What is
    /// answered is about the region's part of the range alone, and never says to continue in another one.
    In {
        /// The region.
        region: RegionId,
        /// What it is to do.
        op: RangeOp,
    },
}

impl Op {
    /// The operation can be carried out twice without harm, whatever other clients do in between: a client may ask for it again
    /// when its outcome is unknown. No write of data is repeatable, not even a plain put: another client may see the first put,
    /// write, and lose its write to the second put. Such writes need a [request id](crate::request).
    pub fn is_repeatable(&self) -> bool {
        match self {
            Op::Get { .. } | Op::GetPair { .. } | Op::Scan(_) | Op::Count { .. } | Op::Approximate { .. } => true,
            Op::Checkpoint { .. } | Op::AlterTable { .. } => true,
            Op::Digests { .. } | Op::SegmentContent { .. } | Op::RepairSegment { .. } => true,
            // Without a key, the second request would split a result of the first; a merged region is not there any more.
            Op::RequestRegion { request, .. } => {
                !matches!(request, RegionRequest::Split { at: None } | RegionRequest::Merge { .. })
            }
            Op::Intend { .. } => true,
            Op::DropTable { .. } => false,
            Op::Stale { .. } => true,
            Op::AcceptLoss { .. } | Op::CreateTable { .. } => false,
            Op::Put { .. } | Op::Delete { .. } | Op::DeleteRange { .. } => false,
            Op::Add { .. } | Op::Append { .. } | Op::Expire { .. } => false,
            Op::In { op, .. } => !matches!(op, RangeOp::DeleteRange { .. }),
        }
    }
    /// It writes pairs, or may: it can have a [request id](crate::request).
    pub fn writes_data(&self) -> bool {
        let is_of_pair = matches!(self, Op::Put { .. } | Op::Add { .. } | Op::Append { .. } | Op::Expire { .. });
        is_of_pair
            || matches!(
                self,
                Op::Delete { .. } | Op::DeleteRange { .. } | Op::In { op: RangeOp::DeleteRange { .. }, .. }
            )
    }
    /// It sets a pair whatever was there, and answers nothing of that.
    pub fn is_plain_put(&self) -> bool {
        matches!(self, Op::Put { when: Condition::Always, want_old: false, lifetime, .. } if *lifetime != Lifetime::AsBefore)
    }
    /// The key that it is about, if it is about one.
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
            Op::Stale { read: Read::Scan(_), .. } => None,
            Op::Scan(_) | Op::DeleteRange { .. } | Op::Count { .. } | Op::Approximate { .. } => None,
            Op::AcceptLoss { .. } | Op::CreateTable { .. } | Op::AlterTable { .. } | Op::Checkpoint { .. } => None,
            Op::Digests { .. } | Op::SegmentContent { .. } | Op::RepairSegment { .. } => None,
            Op::RequestRegion { .. } | Op::Intend { .. } | Op::DropTable { .. } | Op::In { .. } => None,
        }
    }
    /// An operator's request that any node passes on to the coordinator.
    pub fn is_for_any_node(&self) -> bool {
        let is_of_table = matches!(self, Op::CreateTable { .. } | Op::AlterTable { .. } | Op::DropTable { .. });
        is_of_table || matches!(self, Op::AcceptLoss { .. } | Op::RequestRegion { .. } | Op::Intend { .. })
    }
    /// The region that it goes to, on `table`: that of its key, or of the bound that a scan starts from. An operation that
    /// names a region goes there whatever the table. `None`: there is no such region, or any node will do, or it
    /// [lacks a region](Op::lacks_region).
    pub fn region_in<'a, R: Routing>(&self, routes: &'a R, table: &str) -> Option<&'a R::Region> {
        match self {
            op if op.lacks_region(routes, table) => None,
            Op::Count { region } | Op::Checkpoint { region, .. } => routes.region(*region),
            Op::In { region, .. } => routes.region(*region).filter(|route| Route::table(*route) == table),
            op => match op.range() {
                // The end is exclusive.
                Some((_, end)) if op.is_reverse() => routes.region_below(table, end.map(|end| &end[..])),
                Some((start, _)) => routes.region_of(table, start),
                None => routes.region_of(table, op.key()?),
            },
        }
    }
    /// The operation may change the store.
    pub fn is_write(&self) -> bool {
        let is_read = matches!(self, Op::Get { .. } | Op::GetPair { .. } | Op::Scan(_) | Op::Count { .. });
        let is_asked = matches!(self, Op::Digests { .. } | Op::SegmentContent { .. } | Op::Stale { .. });
        if let Op::In { op, .. } = self {
            return matches!(op, RangeOp::DeleteRange { .. });
        }
        !is_read && !is_asked && !matches!(self, Op::Approximate { .. } | Op::Checkpoint { .. })
    }
}

/// The answer to one [`Op`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpResult {
    /// The value, or `None` where the key does not exist.
    Value(Option<Bytes>),
    /// A put was decided.
    Put {
        /// The condition held and the value was set.
        done: bool,
        /// The value before, if it was asked for and there was one.
        old: Option<Bytes>,
        /// LSN of this put if it was done, and otherwise that of the last one, if the key exists.
        version: Option<Lsn>,
    },
    /// A delete was decided.
    Deleted {
        /// There was such a key, the condition held, and it was removed.
        done: bool,
        /// The value that was removed.
        old: Option<Bytes>,
        /// LSN of the last put of a key that exists still.
        version: Option<Lsn>,
    },
    /// A number.
    Integer(i64),
    /// Entries of a scan, in its order.
    Entries {
        /// Keys with values (empty where only keys were asked for).
        entries: Vec<(Bytes, Bytes)>,
        /// Where to continue: the new `start` of a forward scan, the new `end` of a reverse one. `None`: it is complete.
        resume: Option<Bytes>,
    },
    /// It was not carried out, or its outcome is unknown.
    Error(OpError),
    /// It was carried out, and there is nothing to say of it.
    Done,
    /// What a key has, or `None` where it does not exist.
    Pair(Option<Pair>),
    /// The keys of a range were removed, as far as they are the region's.
    RangeDeleted {
        /// The start of what is left of the range: the next region's first key. `None`: it is complete.
        resume: Option<Bytes>,
    },
    /// About what a range holds.
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
        /// Last LSN in it, once something was copied.
        last: Lsn,
    },
    /// What a node has of a region.
    Digests {
        /// Complete segments, by id.
        segments: Vec<SegmentDigest>,
        /// There may be more behind the last one.
        has_more: bool,
    },
    /// What a backup answers to [`Op::Stale`]: what the primary would have answered at some instant since the call less the age.
    Stale {
        /// How long before it was read the newest write can have been acknowledged that it does not show, in
        /// milliseconds, rounded up.
        age_ms: u32,
        /// The answer is the region as of this LSN.
        lsn: Lsn,
        /// What was read.
        result: ReadResult,
    },
}

/// What a replica has of a segment. Replicas of a region have the same digest of each segment that none of them built for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentDigest {
    /// Its identity.
    pub id: SegmentId,
    /// What it holds.
    pub kind: SegmentKind,
    /// Bytes of it that count.
    pub bytes: u32,
    /// CRC-32C of it, its pointers as logical addressing has them; 0 if it is damaged.
    pub crc: u32,
    /// What is wrong with it there.
    pub damage: Option<String>,
}

/// What a key has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// LSN of the put: another put of the key has a higher one.
    pub version: Lsn,
    /// When it expires, if it does.
    pub expires: Option<Expiry>,
    /// What time it was by the primary's clock.
    pub now: UnixMs,
    /// The value, if it was asked for.
    pub value: Option<Bytes>,
}

/// Why an operation has no result, sorted by what the caller must do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum OpError {
    /// Bad input: do not retry. Nothing was changed.
    #[error("{0}")]
    Invalid(String),
    /// The region has no serving primary yet: retry after a moment. Nothing was changed.
    #[error("region {0} is recovering")]
    Recovering(RegionId),
    /// Too few replicas are in sync: retry later. Nothing was changed.
    #[error("region {region} has {in_sync} replicas in sync, {needed} are needed to write")]
    NotEnoughReplicas {
        /// The region.
        region: RegionId,
        /// Members in sync, the primary included.
        in_sync: u32,
        /// `min_in_sync` of its table.
        needed: u32,
    },
    /// The write may or may not have been carried out: the connection to the primary broke, or the node lost the primary role,
    /// before it answered. Only an operation that [is repeatable](Op::is_repeatable), or has a request id, may be retried.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// This server does not serve that key: refresh the region map. Nothing was changed.
    #[error("not the primary of region {region} at epoch {epoch}")]
    NotPrimary {
        /// The region.
        region: RegionId,
        /// Epoch that the answering server knows.
        epoch: Epoch,
    },
    /// The node cannot serve: its volume met an error. An operator must act.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// A write with a request id was asked for too long after its first attempt for the region to know whether that was carried
    /// out. Nothing was changed by this attempt. If no other can have been carried out, ask again with what is committed now.
    #[error("region {0} does not remember requests that are so old")]
    Forgotten(RegionId),
    /// Too many operations wait already: retry after a moment, with less at once. Nothing was changed.
    #[error("too many operations wait in region {0}")]
    Overloaded(RegionId),
    /// A write with a request id was decided by an earlier attempt, and the value that it found is not known any more. Do
    /// not retry.
    #[error("it {} by an earlier attempt, and the value that there was is not known any more", if *.done { "was carried out" } else { "was refused" })]
    AnswerGone {
        /// It was carried out; otherwise its condition did not hold.
        done: bool,
    },
}

impl OpError {
    /// Nothing was changed, and it may be otherwise after a moment.
    pub fn is_passing(&self) -> bool {
        match self {
            OpError::Recovering(_) | OpError::NotPrimary { .. } => true,
            OpError::NotEnoughReplicas { .. } | OpError::Overloaded(_) => true,
            OpError::Invalid(_) | OpError::Unknown(_) | OpError::Unavailable(_) => false,
            OpError::Forgotten(_) | OpError::AnswerGone { .. } => false,
        }
    }
}

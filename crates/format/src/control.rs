//! Node to node messages, over the fabric's ordered control channel: leases, forwarded operations, and the session of a
//! primary with one backup about one region.
//!
//! Bulk data never travels here. One-sided writes put records and segments into the backup's registered memory. A
//! message only announces them, and is sent after the writes have completed: the fabric and this channel have no common
//! order. Each message is one [`crate::frame`] of kind `Control`. Several frames may travel as one message of the
//! fabric, if all are operations or answers to such.

use crate::cluster::{Member, TableOptions};
use crate::frame::FRAME_HEADER_BYTES;
use crate::load::ServerLoad;
use crate::manifest::{Base, InstallEdit, Shipped};
use crate::op::{Op, OpResult};
use crate::request::Once;
use crate::safe_lsn::SafeLsnLineGrant;
use crate::table::TableName;
use crate::{Epoch, Incarnation, LogKind, Lsn, RegionId, SegmentId, SegmentNo, UnixMs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Longest control frame, in bytes: a base lists every segment of a region, with about 32 bytes for each.
pub const MAX_CONTROL_BYTES: usize = 64 * 1024 * 1024;

/// Mirror buffers a log: one fills while the other is being persisted.
pub const MIRROR_BUFFERS: u64 = 2;

/// Every message from one node to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// A primary asks a backup for a lease grant: not to join a newer term of these regions for a while.
    LeaseRequest {
        /// The sender's clock when it asked, in nanoseconds: on its side the lease begins here.
        sent: u64,
        /// How long the lease is to last, in nanoseconds: a setting of the sender. The receiver keeps out of newer terms
        /// for so long after it has answered.
        lasts: u64,
        /// Regions and the terms in which the sender is their primary.
        regions: Vec<(RegionId, Epoch)>,
        /// The receiver's clock in its last lease grant. The safe LSNs hold as of this instant. `None`: there was no
        /// grant.
        heard: Option<u64>,
        /// Safe LSNs of regions whose reads every member in sync may answer. They cover every write that was
        /// acknowledged by then.
        safe_lsns: Vec<SafeLsnOf>,
    },
    /// The lease grant.
    LeaseGrant {
        /// Copied from the request.
        sent: u64,
        /// How long the receiver of the request keeps out of newer terms, in nanoseconds. The primary relies on this,
        /// not on a setting of its own.
        lasts: u64,
        /// Regions granted.
        regions: Vec<(RegionId, Epoch)>,
        /// The sender's clock when it granted, in nanoseconds. Only the sender uses it.
        now: u64,
    },
    /// An operation that the sender forwards to the primary of its region; or a read that a backup may answer, to one.
    Forward {
        /// Chosen by the sender, echoed in the answer. No other process of the server uses the same id, because an
        /// answer may arrive after the sending process has ended.
        id: u64,
        /// The table of the operation.
        table: TableName,
        /// As the client sent it. A read that is for a backup is an [`Op::Stale`].
        op: Op,
        /// Its request id, if it is to be executed once.
        once: Option<Once>,
        /// Epoch of the region's configuration that the sender knows. A receiver that knows only an older one learns
        /// the newer first.
        epoch: Epoch,
    },
    /// Answer to [`Control::Forward`].
    Forwarded {
        /// Copied from the request.
        id: u64,
        /// For the client; an [`OpResult::Error`] if the operation failed.
        result: OpResult,
        /// For an operation that is to be executed once: its region, and the commit LSN there, as far as the sender
        /// knows.
        committed: Option<(RegionId, Lsn)>,
    },
    /// A primary to one of its backups or learners.
    ToBackup {
        /// The sender is its primary in `term`.
        region: RegionId,
        /// Epoch at which the sender became primary.
        term: Epoch,
        /// The attempt to bring this backup in sync. The backup ignores messages of earlier attempts.
        session: u64,
        /// In the order of the session.
        body: ToBackup,
    },
    /// A backup to its primary.
    ToPrimary {
        /// The sender is a backup or learner of it.
        region: RegionId,
        /// Term of the primary that the backup answers.
        term: Epoch,
        /// Copied from the messages that it answers.
        session: u64,
        /// Ignored if the session is over.
        body: ToPrimary,
    },
    /// The sender's load, sent to the master every few seconds. No answer.
    Load(ServerLoad),
    /// The sender has handed over the primary role of these regions, which it had in these terms. It no longer relies
    /// on the lease grants in them. No answer.
    Released {
        /// Regions and terms.
        regions: Vec<(RegionId, Epoch)>,
    },
    /// A backup asks the primary for its safe LSN of a region, for reads that have come before.
    SafeLsnQuestion {
        /// Chosen by the sender, echoed in the answer. No other process of the server uses the same id.
        id: u64,
        /// The sender is a backup of it.
        region: RegionId,
        /// The sender can read a [`crate::safe_lsn`] line in the primary's memory, and has no good one.
        wants_line: bool,
    },
    /// The answer, which the primary takes after the question has come.
    SafeLsnAnswer {
        /// Copied from the question.
        id: u64,
        /// The sender's wall time, by which pairs expire.
        now: UnixMs,
        /// `None`: the sender may not name one, because it is not the primary, or does not hold its lease.
        safe_lsn: Option<SafeLsnOf>,
        /// Where the sender shows its safe LSNs from now on, for reads that come later.
        line: Option<SafeLsnLineGrant>,
    },
    /// No lease is granted as a [`Control::LeaseRequest`] asks for it.
    LeaseRefused {
        /// Why, and what to do. For the log.
        reason: String,
    },
    /// The first message of each link: settings of the sender that are to be the same on all nodes. No answer.
    Settings {
        /// The process that has these settings.
        incarnation: Incarnation,
        /// Names and values, as in the sender's file of settings. A name that the receiver does not know is ignored.
        settings: BTreeMap<String, String>,
    },
}

/// The subject of a message, by which a receiver decides which of several to handle first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A request for a lease, a grant, or a refusal.
    Lease,
    /// An operation of a client, or its answer.
    Operation,
    /// Everything else, including a frame that does not decode.
    Other,
}

impl Control {
    /// The subject of the message in `frame`, by the first byte of its body. Nothing is checked.
    pub fn subject(frame: &[u8]) -> Subject {
        match frame.get(FRAME_HEADER_BYTES) {
            Some(0 | 1 | 10) => Subject::Lease,
            Some(2 | 3) => Subject::Operation,
            _ => Subject::Other,
        }
    }
}

/// A region's safe LSN, published by a primary that holds its lease: every write that was acknowledged before an
/// instant has this LSN or a lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SafeLsnOf {
    /// LSNs of other regions cannot be compared with `lsn`.
    pub region: RegionId,
    /// Epoch of the primary's configuration of the region: the safe LSN is about the keys of that configuration.
    pub epoch: Epoch,
    /// Every acknowledged write has this LSN or a lower one, and all records up to it may be shown to readers.
    pub lsn: Lsn,
}

/// The messages of a primary to a backup, in the order of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToBackup {
    /// Join this term: wait until the last lease grant has expired, persist what the old buffers hold, give them up,
    /// and offer new ones. Answered by [`ToPrimary::Opened`].
    Open {
        /// Options of the region's table.
        options: TableOptions,
    },
    /// The segments that the backup must have when it is in sync. Answered by [`ToPrimary::Missing`].
    Base(Base),
    /// A new log segment begins in mirror buffer `index % MIRROR_BUFFERS`; the log map gets its entry.
    OpenTail {
        /// A log that is appended to: recovery or large.
        #[serde(deserialize_with = "LogKind::deserialize_appended")]
        log: LogKind,
        /// Ordinal of the segment among those of its log in this term.
        index: u64,
        /// The backup's copy of the segment has the same.
        id: SegmentId,
        /// Its number on the primary's volume.
        segment: SegmentNo,
    },
    /// A full log segment is complete in its mirror buffer: persist it. Answered by [`ToPrimary::Flushed`].
    Flush {
        /// As in [`ToBackup::OpenTail`].
        #[serde(deserialize_with = "LogKind::deserialize_appended")]
        log: LogKind,
        /// Ordinal of the segment.
        index: u64,
        /// As in [`ToBackup::OpenTail`].
        id: SegmentId,
        /// Its length in bytes, header included.
        bytes: u32,
        /// Last LSN in it.
        last_lsn: Lsn,
    },
    /// A segment is complete in a ship slot: unpack, translate and persist it. Answered by [`ToPrimary::Stored`].
    Ship {
        /// Index among the slots that [`ToPrimary::Opened`] offered.
        slot: u32,
        /// What the bytes in the slot are, and how they are compressed.
        shipped: Shipped,
        /// Bytes in the slot.
        bytes: u32,
    },
    /// Every missing segment was shipped: make the base the region's state. Answered by [`ToPrimary::BaseInstalled`].
    InstallBase,
    /// A compaction is complete: install it atomically. Answered by [`ToPrimary::Installed`].
    Install(InstallEdit),
    /// The primary gave up a compaction: free these segments of it, which were shipped.
    Discard(Vec<SegmentId>),
    /// Everything up to this LSN is committed: a backup that builds its own index may compact it. Answered later by
    /// [`ToPrimary::Applied`].
    Committed(Lsn),
    /// As [`ToBackup::Base`], but the backup keeps nothing of an index that it has built: it takes that of the base.
    BaseAnew(Base),
    /// The backup is to become the primary: it compacts the L0s of the index that it builds, so that there is little
    /// to replay. Answered later by [`ToPrimary::Primed`].
    Prime,
}

/// The messages of a backup to its primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToPrimary {
    /// The term is joined.
    Opened {
        /// The backup that answers.
        member: Member,
        /// Fabric descriptors of the mirror buffers: `log.index() * MIRROR_BUFFERS + index % MIRROR_BUFFERS`.
        buffers: Vec<Vec<u8>>,
        /// Fabric descriptors of the ship slots.
        slots: Vec<Vec<u8>>,
        /// Term of the last primary that its copy was in sync with, and the copy's last LSN, now that no older term can
        /// add to it; `None` for a damaged copy.
        reach: Option<(Epoch, Lsn)>,
    },
    /// Segments of the base that it lacks.
    Missing(Vec<SegmentId>),
    /// A mirror buffer's segment is durable; the buffer may be written again.
    Flushed {
        /// Copied from [`ToBackup::Flush`].
        #[serde(deserialize_with = "LogKind::deserialize_appended")]
        log: LogKind,
        /// Ordinal of the segment.
        index: u64,
    },
    /// A shipped segment is on its volume; the slot may be written again.
    Stored {
        /// Copied from [`ToBackup::Ship`].
        slot: u32,
        /// Bytes of index that were rewritten.
        rewritten: u64,
    },
    /// The base is the region's state.
    BaseInstalled,
    /// A compaction is installed.
    Installed,
    /// Everything up to this LSN is in the index that it builds.
    Applied(Lsn),
    /// The backup cannot continue, for this reason: its volume failed, or the messages do not fit its state. The
    /// primary begins another session, or removes the backup.
    Failed(String),
    /// Little is left to replay if the backup becomes the primary now.
    Primed,
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;

//! Node to node messages, over the fabric's ordered control channel: leases, forwarded operations, and the
//! conversation of a primary with one backup about one region.
//!
//! The bulk never travels here: records and segments are written into the backup's registered memory by one-sided
//! writes, and a message only says that they are there, sent after their completion (no order is assumed between
//! the fabric and this channel). Each message is one [`crate::frame`] of kind `Control`.

use crate::cluster::{Member, TableOptions};
use crate::frame::FRAME_HEADER_BYTES;
use crate::load::ServerLoad;
use crate::manifest::{Base, InstallEdit, Shipped};
use crate::op::{Op, OpResult};
use crate::request::Once;
use crate::table::TableName;
use crate::{Epoch, LogKind, Lsn, RegionId, SegmentId, SegmentNo};
use serde::{Deserialize, Serialize};

/// Longest control frame, in bytes: a base lists every segment of a region, 2 MiB each, about 32 bytes apiece.
pub const MAX_CONTROL_BYTES: usize = 64 * 1024 * 1024;

/// Mirror buffers a log: one fills while the other is being persisted (DESIGN "Mirroring").
pub const MIRROR_BUFFERS: u64 = 2;

/// Everything a node says to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// A primary asks a backup to promise, for a while, not to join a newer term of these regions.
    LeaseRequest {
        /// The asker's clock when it asked, in nanoseconds: the lease runs from here on its side.
        sent: u64,
        /// Regions and the terms in which the asker is their primary.
        regions: Vec<(RegionId, Epoch)>,
        /// The receiver's clock, as its last promise to the asker told it, from which what is attested counts; `None`: there was none.
        heard: Option<u64>,
        /// Of regions that every member in sync may answer reads of: what was acknowledged in them by then, at least.
        attested: Vec<Attested>,
    },
    /// The promise.
    LeaseGrant {
        /// Copied from the request.
        sent: u64,
        /// Regions granted.
        regions: Vec<(RegionId, Epoch)>,
        /// The granter's clock when it granted, in nanoseconds. Only the granter makes anything of it.
        now: u64,
    },
    /// An operation for a region whose primary the receiver is.
    Forward {
        /// Chosen by the sender, echoed; no other process of its server uses it: the answer may come when the sender is gone.
        id: u64,
        /// The table that it is on.
        table: TableName,
        /// The operation.
        op: Op,
        /// How it is asked for, if it is to be carried out once.
        once: Option<Once>,
        /// Of the region's configuration that the sender knows: a receiver that knows only an older one learns of it first.
        epoch: Epoch,
    },
    /// Its answer.
    Forwarded {
        /// Copied from the request.
        id: u64,
        /// The answer.
        result: OpResult,
        /// Of what is to be carried out once: its region, and what is committed there, as far as the sender knows.
        committed: Option<(RegionId, Lsn)>,
    },
    /// A primary to one of its backups or learners.
    ToBackup {
        /// The region.
        region: RegionId,
        /// Epoch at which the sender took office.
        term: Epoch,
        /// The attempt to bring this backup in sync; messages of earlier attempts are void.
        session: u64,
        /// The message.
        body: ToBackup,
    },
    /// A backup to its primary.
    ToPrimary {
        /// The region.
        region: RegionId,
        /// Term of the primary that is answered.
        term: Epoch,
        /// Copied from the messages that are answered.
        session: u64,
        /// The message.
        body: ToPrimary,
    },
    /// What the sender has to do, to the master, every few seconds. No answer.
    Load(ServerLoad),
    /// The sender was the primary of these regions in these terms, and is no more: it has handed them over. It relies no longer on
    /// the leases that it was granted in them. No answer.
    Released {
        /// Regions and terms.
        regions: Vec<(RegionId, Epoch)>,
    },
}

/// What a message is about, for those who decide which of several is looked at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A lease is asked for or granted.
    Lease,
    /// An operation of a client, or its answer.
    Operation,
    /// All else, a frame that makes no sense too.
    Other,
}

impl Control {
    /// What the message in `frame` is about, by its first byte: nothing is checked.
    pub fn subject(frame: &[u8]) -> Subject {
        match frame.get(FRAME_HEADER_BYTES) {
            Some(0 | 1) => Subject::Lease,
            Some(2 | 3) => Subject::Operation,
            _ => Subject::Other,
        }
    }
}

/// What a primary vouches for that holds its lease: whatever anybody acknowledged before an instant is in the region up to an LSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attested {
    /// The region.
    pub region: RegionId,
    /// Of its configuration, by which the primary serves it: it is about the keys of that.
    pub epoch: Epoch,
    /// All that was acknowledged has this LSN or a lower one, and all up to it may be shown.
    pub lsn: Lsn,
}

/// What a primary tells a backup, in the order of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToBackup {
    /// Join this term: let the last lease run out, persist what earlier buffers hold, give up those buffers, offer
    /// new ones. Answered by [`ToPrimary::Opened`].
    Open {
        /// Options of the region's table.
        options: TableOptions,
    },
    /// The segments that the backup must end up with. Answered by [`ToPrimary::Missing`].
    Base(Base),
    /// A new log segment begins in mirror buffer `index % MIRROR_BUFFERS`; the log map gets its entry.
    OpenTail {
        /// The log.
        #[serde(deserialize_with = "LogKind::deserialize_appended")]
        log: LogKind,
        /// Ordinal of the segment among those of its log in this term.
        index: u64,
        /// Its identity.
        id: SegmentId,
        /// Its number on the primary's volume.
        segment: SegmentNo,
    },
    /// A full log segment lies complete in its mirror buffer: persist it. Answered by [`ToPrimary::Flushed`].
    Flush {
        /// The log.
        #[serde(deserialize_with = "LogKind::deserialize_appended")]
        log: LogKind,
        /// Ordinal of the segment.
        index: u64,
        /// Its identity.
        id: SegmentId,
        /// Its length in bytes, header included.
        bytes: u32,
        /// Last LSN in it.
        last_lsn: Lsn,
    },
    /// A segment lies complete in a ship slot: unpack, translate and persist it. Answered by [`ToPrimary::Stored`].
    Ship {
        /// The slot.
        slot: u32,
        /// What it is.
        shipped: Shipped,
        /// Bytes in the slot.
        bytes: u32,
    },
    /// Every missing segment was shipped: make the base the region's state. Answered by [`ToPrimary::BaseInstalled`].
    InstallBase,
    /// A compaction is complete: install it atomically. Answered by [`ToPrimary::Installed`].
    Install(InstallEdit),
    /// A compaction was given up: free these segments of it, which were shipped.
    Discard(Vec<SegmentId>),
    /// Everything up to here is committed: a backup that builds its own index may compact it. Answered by
    /// [`ToPrimary::Applied`] in its time.
    Committed(Lsn),
}

/// What a backup answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToPrimary {
    /// The term is joined.
    Opened {
        /// Who answers.
        member: Member,
        /// Fabric descriptors of the mirror buffers: `log.index() * MIRROR_BUFFERS + index % MIRROR_BUFFERS`.
        buffers: Vec<Vec<u8>>,
        /// Fabric descriptors of the ship slots.
        slots: Vec<Vec<u8>>,
        /// Term of the last primary that its copy was in sync with, and last LSN of it, now that no older term can add to it; `None` of
        /// a damaged copy.
        reach: Option<(Epoch, Lsn)>,
    },
    /// Segments of the base that it lacks.
    Missing(Vec<SegmentId>),
    /// A mirror buffer's segment is durable; the buffer may be written again.
    Flushed {
        /// The log.
        #[serde(deserialize_with = "LogKind::deserialize_appended")]
        log: LogKind,
        /// Ordinal of the segment.
        index: u64,
    },
    /// A shipped segment is on its volume; the slot may be written again.
    Stored {
        /// The slot.
        slot: u32,
        /// Bytes of index that were rewritten.
        rewritten: u64,
    },
    /// The base is the region's state.
    BaseInstalled,
    /// A compaction is installed.
    Installed,
    /// Everything up to here is in the index that it builds.
    Applied(Lsn),
    /// It cannot go on (its volume failed, or the messages make no sense to it): begin again or do without it.
    Failed(String),
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;

//! Jobs: closures that touch the device, and their results. The runtime runs them on its pool, the simulation at times of its
//! choice. The node itself never waits for a device.

use crate::dedup::{OfNode, Requests};
use crate::request::{ReplyTo, Request};
use bytes::Bytes;
use leeward_engine::compaction::{Compaction, CompactionDone, Step};
use leeward_engine::region::Piece;
use leeward_engine::version::Version;
use leeward_engine::{Error, Export, Lookup, Moment, Region, Replica, ScanEntry, Unopened};
use leeward_format::cluster::GroupConfig;
use leeward_format::op::{OpResult, ReadResult};
use leeward_format::packed::Codec;
use leeward_format::request::RequestId;
use leeward_format::{Epoch, LogKind, Lsn, RegionId, SegmentId, ServerId};
use leeward_platform::Disk;
use leeward_platform::cpu::{self, Account, Activity};
use leeward_replication::backup::{Done, Mounted, Undone};
use leeward_replication::clock::ClockReading;
use leeward_replication::ship::Parcel;
use std::collections::VecDeque;
use std::sync::Arc;

/// Work that touches the device.
pub struct Job {
    /// How soon it should run.
    pub class: JobClass,
    /// The account of its CPU time.
    pub account: Account,
    work: Box<dyn FnOnce() -> JobDone + Send>,
}

/// How soon a job should run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobClass {
    /// A client or a primary waits for it: it has threads of its own, and the CPU before background jobs.
    Foreground,
    /// Compactions and the reading of bases: they are long, and no client or primary waits for them.
    Background,
}

impl Job {
    /// A job that is about a region.
    pub fn new(
        class: JobClass,
        account: Account,
        region: RegionId,
        work: impl FnOnce() -> Outcome + Send + 'static,
    ) -> Job {
        Job { class, account, work: Box::new(move || JobDone { region, account, outcome: work() }) }
    }

    /// Runs the job. That takes as long as the device does.
    pub fn run(self) -> JobDone {
        (self.work)()
    }
}

/// A job's result, and the region that it was for.
pub struct JobDone {
    /// What the job was about.
    pub region: RegionId,
    /// The job's own: what follows from it is accounted likewise.
    pub account: Account,
    /// What has come of it.
    pub outcome: Outcome,
}

/// The result of a job, by what it was for.
pub enum Outcome {
    /// The role of this node in the region.
    Role(RoleDone),
    /// Logs, levels and bases of a served region.
    Upkeep(UpkeepDone),
    /// A split or a merge.
    Reshape(ReshapeDone),
    /// A region was split off another. The job is the new region's.
    SplitOff(Box<SplitOff>),
    /// The volume was told what a copy belongs to, if it has the copy.
    Identified(Result<bool, Error>),
    /// What was written to the volume is durable; up to these LSNs in these regions.
    Synced(Vec<(RegionId, Result<Lsn, Error>)>),
    /// Operations on a served region.
    Operation(OperationDone),
    /// A question about segments was answered.
    Proved {
        /// Where the answer goes.
        to: ReplyTo,
        /// Of the copy on this node.
        result: OpResult,
    },
    /// A read that any member may answer was executed on a backup's copy.
    ReadAtBackup {
        /// As it was begun.
        read: Box<BackupRead>,
        /// What it has found.
        result: Result<ReadResult, Error>,
    },
}

/// The result of a job that changes this node's role in a region, or its copy.
pub enum RoleDone {
    /// A copy was opened for serving.
    Promoted(Result<Opened, PromotionFailed>),
    /// A region whose primary role was lost is a copy again.
    Retired(Result<Box<Replica>, Error>),
    /// A piece of a backup's work is done, or failed.
    Followed {
        /// The copy, if there is one.
        replica: Option<Box<Replica>>,
        /// What was done.
        result: Result<Done, Undone>,
    },
    /// A compaction of a copy that builds its own index ended.
    Built(Result<Box<CompactionDone>, Error>),
    /// A copy that the cluster no longer needs was destroyed.
    Destroyed(Result<(), Error>),
}

/// A region that was opened for serving.
pub struct Opened {
    pub(crate) region: Arc<Region>,
    /// Requests that the replay has found. There may be many, so the job collects them.
    pub(crate) requests: Requests,
}

impl Opened {
    pub(crate) fn new(region: Arc<Region>, of_node: Arc<OfNode>) -> Opened {
        let requests = Requests::new(region.id(), region.take_requests(), of_node);
        Opened { region, requests }
    }
}

/// Why a promotion failed, and what there is to try again with. If that is all that there was before, nothing has changed.
pub struct PromotionFailed {
    pub(crate) unopened: Unopened,
    pub(crate) mounted: Option<Arc<Mounted>>,
}

/// The result of a step of a compaction.
pub enum Stepped {
    /// A segment is built: what goes to backups, if it goes to any.
    Segment(Option<Parcel>),
    /// It is complete.
    Finished(Box<CompactionDone>),
}

impl Stepped {
    /// Packs what a step has built, if it goes `over` a wire.
    pub(crate) fn of(step: Step, over: Option<Codec>) -> Stepped {
        let _at = cpu::at(Activity::Shipping.of_primary());
        match step {
            Step::Finished(done) => Stepped::Finished(done),
            Step::Segment(built) => Stepped::Segment(
                over.map(|codec| Parcel::pack((built.id, built.kind, built.segment.no()), built.bytes, codec)),
            ),
        }
    }
}

/// The result of a job of the upkeep.
pub enum UpkeepDone {
    /// A compaction built a segment, or is complete.
    Stepped {
        /// To be continued, unless it is complete.
        compaction: Box<Compaction>,
        /// What it has built.
        step: Result<Stepped, Error>,
    },
    /// A compaction was installed at the primary.
    Installed {
        /// What it has done.
        done: Arc<CompactionDone>,
        /// Whether it is installed.
        result: Result<(), Error>,
    },
    /// A sealed tail is durable at the primary.
    Flushed {
        /// Of the two that are appended to.
        log: LogKind,
        /// The tail's index.
        index: u64,
        /// Whether it is durable.
        result: Result<(), Error>,
    },
    /// The next tails are allocated.
    Prepared(Result<(), Error>),
    /// The tails are durable up to where they were.
    Synced(Result<Lsn, Error>),
    /// A segment of a pinned base was read.
    Loaded {
        /// Where the learner runs.
        server: ServerId,
        /// In which it lacks that.
        session: u64,
        /// As it goes over the wire.
        result: Result<Parcel, Error>,
    },
    /// The first pairs that the region has and that are another region's, if any.
    LookedForForeign(Result<Option<Piece>, Error>),
    /// Pairs for a hash index were read.
    ReadForIndex(Box<IndexPiece>),
}

/// The result of a job for operations.
pub enum OperationDone {
    /// Keys were looked up on the device.
    LookedUp {
        /// What was found, each for the operation with that ticket.
        answers: Vec<(u64, Result<Lookup, Error>)>,
        /// Keys whose values memory had no room for.
        unread: Option<Lookups>,
    },
    /// A scan ended.
    Scanned {
        /// The operation's.
        ticket: u64,
        /// As of which LSN it has read.
        at: Lsn,
        /// What it has found.
        result: OpResult,
    },
    /// A segment of a checkpoint was copied.
    Exported(Exported),
}

/// Keys that must be read from the device: one job for all, which has several reads in flight.
pub struct Lookups {
    pub(crate) version: Arc<Version>,
    /// Ticket of the operation, its key, and the LSN as of which it reads.
    pub(crate) keys: Vec<(u64, Bytes, Lsn)>,
}

/// A job has copied a segment, or has failed to; `left` are not copied yet.
pub struct Exported {
    pub(crate) name: String,
    pub(crate) left: Result<usize, Error>,
    pub(crate) export: Option<Box<(Export, Box<dyn Disk>)>>,
}

/// The result of a job for a split or a merge.
pub enum ReshapeDone {
    /// The key at which to split the region into this child, if there is one.
    SplitKey(RegionId, Result<Option<Vec<u8>>, Error>),
    /// A child was split off the region, or why not.
    ParentSplit(Result<(), String>),
    /// Whether a region is small enough to be merged into this neighbour.
    Measured(RegionId, Result<bool, Error>),
    /// Pairs of a merge source were read.
    Gathered(Result<Gathered, Error>),
}

/// Pairs that were read of a region.
#[derive(Debug)]
pub struct Gathered {
    /// Each with the request that wrote it, if that is known.
    pub pairs: VecDeque<(ScanEntry, Option<RequestId>)>,
    /// What they count for.
    pub bytes: u64,
    /// The key of the next pair, if there are more.
    pub resume: Option<Bytes>,
}

/// A region that was split off, and an id above those of all segments that it shares.
pub type Child = (Opened, SegmentId);
/// Why a split failed, and the copy of the child that the volume has, if any.
pub type SplitFailed = (Error, Option<Box<Replica>>);

/// The result of a job that splits a region.
pub struct SplitOff {
    /// The region that was split, and the term of its primary.
    pub(crate) parent: (RegionId, Epoch),
    /// The configuration that the child is to have.
    pub(crate) config: GroupConfig,
    pub(crate) result: Result<Child, SplitFailed>,
}

/// A part of the walk that fills a hash index.
pub struct IndexPiece {
    /// The index for which it is read.
    pub(crate) nonce: u64,
    pub(crate) from: Bytes,
    /// How many pieces before this one, one after the other, were read in vain.
    pub(crate) in_vain: u32,
    pub(crate) as_of: Moment,
    /// Its pairs, and where the next piece begins, if there is one.
    pub(crate) read: Result<(Vec<ScanEntry>, Option<Bytes>), Error>,
}

/// A read that a backup has begun, and can answer as of an instant.
pub struct BackupRead {
    /// The operation as one for the primary.
    pub request: Request,
    /// As of which LSN it reads.
    pub lsn: Lsn,
    /// The reading of the clock from which its age counts, and most staleness in milliseconds. `None`: the instant was after the
    /// call.
    pub bound: Option<(ClockReading, u32)>,
}

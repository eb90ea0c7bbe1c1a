//! Jobs: closures that touch the device, and their results. The runtime runs them on its pool, the simulation at times of its
//! choice. The node itself never waits for a device.

use super::merge::Gathered;
use super::requests::{OfNode, Requests};
use super::serving::{Lookups, ReplyTo};
use super::split::SplitOff;
use super::stale::StaleRead;
use leeward_engine::compaction::{Compaction, CompactionDone, Step};
use leeward_engine::region::Piece;
use leeward_engine::version::Lookup;
use leeward_engine::{Error, Export, Region, Replica, Unopened};
use leeward_format::op::{OpResult, ReadResult};
use leeward_format::packed::Codec;
use leeward_format::{LogKind, Lsn, RegionId, ServerId};
use leeward_platform::Disk;
use leeward_platform::cpu::{self, Account, Activity};
use leeward_replication::backup::{Done, Mounted, Undone};
use leeward_replication::ship::Parcel;
use std::sync::Arc;

/// Work that touches the device.
pub struct Job {
    /// How soon it should run.
    pub class: JobClass,
    /// What its CPU time is spent on.
    pub account: Account,
    work: Box<dyn FnOnce() -> JobDone + Send>,
}

/// How soon a job should run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobClass {
    /// A client or a primary waits for it: before all background jobs, and never behind one if there are two threads.
    Foreground,
    /// Compactions and the reading of bases: they are long, and no client or primary waits for them.
    Background,
}

impl Job {
    pub(super) fn new(
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
    pub(super) region: RegionId,
    /// The job's own: what follows from it is accounted likewise.
    pub(crate) account: Account,
    pub(super) outcome: Outcome,
}

/// What a compaction has come to.
pub(super) enum Stepped {
    /// A segment is built: what goes to backups, if it goes to any.
    Segment(Option<Parcel>),
    /// It is complete.
    Finished(Box<CompactionDone>),
}

impl Stepped {
    /// Packs what a step has built, if it goes `over` a wire.
    pub(super) fn of(step: Step, over: Option<Codec>) -> Stepped {
        let _at = cpu::at(Activity::Shipping.of_primary());
        match step {
            Step::Finished(done) => Stepped::Finished(done),
            Step::Segment(built) => Stepped::Segment(
                over.map(|codec| Parcel::pack((built.id, built.kind, built.segment.no()), built.bytes, codec)),
            ),
        }
    }
}

/// A region that was opened for serving.
pub(super) struct Opened {
    pub(super) region: Arc<Region>,
    /// Requests that the replay has found. There may be many, so the job collects them.
    pub(super) requests: Requests,
}

impl Opened {
    pub(super) fn new(region: Arc<Region>, of_node: Arc<OfNode>) -> Opened {
        let requests = Requests::new(region.id(), region.take_requests(), of_node);
        Opened { region, requests }
    }
}

/// Why a promotion failed, and what there is to try again with. If that is all that there was before, nothing has changed.
pub(super) struct PromotionFailed {
    pub(super) unopened: Unopened,
    pub(super) mounted: Option<Arc<Mounted>>,
}

/// The result of a job.
pub(super) enum Outcome {
    /// A copy was opened for serving.
    Promoted(Result<Opened, PromotionFailed>),
    /// A region whose primary role was lost is a copy again.
    Retired(Result<Box<Replica>, Error>),
    /// A piece of a backup's work is done, or failed.
    Followed { replica: Option<Box<Replica>>, result: Result<Done, Undone> },
    /// A compaction of a copy that builds its own index ended.
    Built(Result<Box<CompactionDone>, Error>),
    /// A copy that the cluster no longer needs was destroyed.
    Destroyed(Result<(), Error>),
    /// A compaction built a segment, or is complete.
    Stepped { compaction: Box<Compaction>, step: Result<Stepped, Error> },
    /// A compaction was installed at the primary.
    Installed { done: Arc<CompactionDone>, result: Result<(), Error> },
    /// A sealed tail is durable at the primary.
    Flushed { log: LogKind, index: u64, result: Result<(), Error> },
    /// The next tails are allocated.
    Prepared(Result<(), Error>),
    /// The tails are durable up to where they were.
    Synced(Result<Lsn, Error>),
    /// A segment of a pinned base was read.
    Loaded { server: ServerId, session: u64, result: Result<Parcel, Error> },
    /// A segment of a checkpoint was copied; `left` are not copied yet.
    Exported { name: String, left: Result<usize, Error>, export: Option<Box<(Export, Box<dyn Disk>)>> },
    /// The key at which to split the region into this child, if there is one.
    SplitKey(RegionId, Result<Option<Vec<u8>>, Error>),
    /// A region was split off another. The job is the new region's.
    SplitOff(Box<SplitOff>),
    /// The same result, as its parent gets it.
    ParentSplit(Result<(), String>),
    /// Whether a region is small enough to be merged into this neighbour.
    Measured(RegionId, Result<bool, Error>),
    /// Pairs of a merge source were read.
    Gathered(Result<Gathered, Error>),
    /// The first pairs that a region has and that are another region's, if any.
    LookedForForeign(Result<Option<Piece>, Error>),
    /// Keys were looked up on the device, each for the operation with that ticket.
    /// `unread`: keys whose values memory had no room for.
    LookedUp { answers: Vec<(u64, Result<Lookup, Error>)>, unread: Option<Lookups> },
    /// A question about segments was answered.
    Proved { to: ReplyTo, result: OpResult },
    /// A read that any member may answer was carried out on a backup's copy.
    ReadStale { read: Box<StaleRead>, result: Result<ReadResult, Error> },
    /// A scan ended, for operation `ticket`.
    Scanned { ticket: u64, at: Lsn, result: OpResult },
}

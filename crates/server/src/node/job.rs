//! Jobs: closures that touch the device, and what they answer. The runtime runs them on its pool, the simulator when it
//! pleases; the node itself never waits for a device.

use super::division::Divided;
use super::merging::Gathered;
use super::requests::{OfNode, Requests};
use super::serving::{Lookups, ReplyTo};
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
    /// Compactions and the reading of bases: long, and nobody waits.
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

    /// Does it; takes as long as the device does.
    pub fn run(self) -> JobDone {
        (self.work)()
    }
}

/// What a job answers: which region it was for, and what came of it.
pub struct JobDone {
    pub(super) region: RegionId,
    /// That of the job: what follows from it is of the same kind.
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
    /// Those that its replay has found: there may be many, so that the job makes them.
    pub(super) requests: Requests,
}

impl Opened {
    pub(super) fn new(region: Arc<Region>, of_node: Arc<OfNode>) -> Opened {
        let requests = Requests::new(region.id(), region.take_requests(), of_node);
        Opened { region, requests }
    }
}

/// Why an office could not be taken, and what there is to try again: nothing has changed if that is all there was.
pub(super) struct NotAssumed {
    pub(super) unopened: Unopened,
    pub(super) mounted: Option<Arc<Mounted>>,
}

/// What came of a job.
pub(super) enum Outcome {
    /// A copy was opened for serving.
    Assumed(Result<Opened, NotAssumed>),
    /// A region that lost its office is a copy again.
    Retired(Result<Box<Replica>, Error>),
    /// A piece of a backup's work.
    Followed { replica: Option<Box<Replica>>, result: Result<Done, Undone> },
    /// A compaction of a copy that builds its own index ended.
    Built(Result<Box<CompactionDone>, Error>),
    /// A copy that nobody needs was destroyed.
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
    /// A segment of a checkpoint was copied; so many are left.
    Exported { name: String, left: Result<usize, Error>, export: Option<Box<(Export, Box<dyn Disk>)>> },
    /// A key was looked for that halves the region.
    Halved(RegionId, Result<Option<Vec<u8>>, Error>),
    /// Another region was made of what a region has; the job is the new one's.
    Divided(Box<Divided>),
    /// The same, as the region is told that was divided.
    Parted(Result<(), String>),
    /// It was looked whether a region is small enough to become part of this neighbour.
    Measured(RegionId, Result<bool, Error>),
    /// Pairs of a region that becomes part of its neighbour were read.
    Gathered(Result<Gathered, Error>),
    /// What the region has that is another's was looked for.
    LookedForForeign(Result<Option<Piece>, Error>),
    /// Keys were looked up on the device, each for the operation with that ticket.
    /// `unread` are those whose values memory had no room for.
    LookedUp { answers: Vec<(u64, Result<Lookup, Error>)>, unread: Option<Lookups> },
    /// A question about segments was answered.
    Proved { to: ReplyTo, result: OpResult },
    /// A read that any member may answer was carried out, of a backup's copy.
    ReadStale { read: Box<StaleRead>, result: Result<ReadResult, Error> },
    /// A scan ended, for operation `ticket`.
    Scanned { ticket: u64, at: Lsn, result: OpResult },
}

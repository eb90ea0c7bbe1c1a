//! Jobs: closures that touch the device, and their results. The runtime runs them on its pool, the simulation at times of its
//! choice. The node itself never waits for a device.

use super::region::RoleDone;
use super::requests::stale::BackupRead;
use super::reshape::ReshapeDone;
use super::reshape::split::SplitOff;
use super::serving::execute::OperationDone;
use super::serving::{ReplyTo, UpkeepDone};
use leeward_engine::Error;
use leeward_format::op::{OpResult, ReadResult};
use leeward_format::{Lsn, RegionId};
use leeward_platform::cpu::Account;

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
    pub(crate) fn new(
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
    pub(crate) region: RegionId,
    /// The job's own: what follows from it is accounted likewise.
    pub(crate) account: Account,
    pub(crate) outcome: Outcome,
}

/// The result of a job, by what it was for.
pub(crate) enum Outcome {
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
    Proved { to: ReplyTo, result: OpResult },
    /// A read that any member may answer was executed on a backup's copy.
    ReadAtBackup { read: Box<BackupRead>, result: Result<ReadResult, Error> },
}

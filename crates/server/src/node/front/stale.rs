//! Reads that a backup answers, and how stale an answer can be, for tables that [every member answers reads of](Reads::Any).
//!
//! ```text
//!   backup                                    primary
//!     h  --- lease grant, my clock says h ------>  r       Its lease is valid at t, which it reads after r: so until t no other
//!     |                                            |       node acknowledged anything. It has acknowledged up to LSN c itself.
//!     |  <-- you said h; the safe LSN is c ------- t
//!     |
//!     n  a read as of c, once the copy has it: at most n - h old
//! ```
//! The answer of a backup was the region's state at some instant since h. Each write that any primary acknowledged before h was
//! acknowledged before t, and is therefore within c:
//! - If the primary of this term acknowledged it, c was read later and includes it.
//! - Primaries of earlier terms had handed all their writes over before this one began to serve.
//! - A primary of a later term cannot have begun: it must wait until the lease grants behind this lease have ended.
//!
//! Nothing beyond c was acknowledged before h. So the writes up to c are all that were acknowledged before h, and some that
//! were under way then: a state that a reader at h, or a little later, could have seen.
//!
//! h and n come from one clock. So it does not matter how far the clocks of two machines are apart, or how long messages take.
//! A message that took long, or lay in the queue of a stopped node, makes answers older, and the answers say so. The age allows
//! for a slow clock, and adds the time for which the clock may have been stopped ([`leeward_replication::clock`]). After a stop
//! that is long enough to end leases, nothing counts that the backup heard before.
//!
//! Invariants:
//! - A primary publishes only a safe LSN that it could read and answer at that moment. It is open, does not quiesce, and holds
//!   its lease at an instant that it read from its clock after it heard h.
//! - A safe LSN is about the keys of one configuration. It counts only for keys that belong to the region by the same
//!   configuration: other keys may be another region's by now.
//! - It counts in the session in which the backup heard it, while the copy is in sync and the configuration is of that
//!   session's term. Then the records up to c are the same on both.
//! - A read sees the state at exactly c: a later state may lack what a split gave to another region.
//! - The age of an answer is taken after its operation has come, from the clock that is read at the end of the turn.

use super::forward::Travel;
use super::{Front, Reach};
use leeward_engine::{Error, Region};
use leeward_format::cluster::GroupConfig;
use leeward_format::control::SafeLsnOf;
use leeward_format::op::{OpResult, ReadResult};
use leeward_format::{Lsn, ServerId, UnixMs};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_platform::planted::{Bug, planted};
use leeward_region::input::Input as RegionInput;
use leeward_region::job::{BackupRead, JobClass, Outcome};
use leeward_region::request::Request;
use leeward_region::serving::copy_reads;
use leeward_region::serving::execute::key_bounds;
use leeward_replication::clock::ClockReading;

/// The reads of backups' copies at a node.
#[derive(Default)]
pub(in crate::node) struct BackupReads {
    /// Those that ended and are not answered yet.
    ended: Vec<(Box<BackupRead>, Result<ReadResult, Error>)>,
    stale: u64,
    fresh: u64,
}

impl BackupReads {
    /// A read has ended.
    pub(in crate::node) fn ended(&mut self, read: Box<BackupRead>, result: Result<ReadResult, Error>) {
        self.ended.push((read, result));
    }
}

impl Front {
    /// A primary publishes safe LSNs of regions.
    pub(in crate::node) fn hear_safe_lsns(
        &self,
        reach: &mut Reach,
        from: ServerId,
        heard: u64,
        safe_lsns: &[SafeLsnOf],
    ) {
        let (now, heard) = (reach.now(), Nanos(heard));
        // A reading from another process of this server means nothing here.
        if !(reach.control.valid_since()..=now).contains(&heard) {
            return;
        }
        let heard = if planted(Bug::AgeFromArrival) { now } else { heard };
        // If it took longer than a lease to come, the next one is sooner of use.
        let Some(heard) = reach.control.reading(heard) else { return };
        for &safe_lsn in safe_lsns {
            reach.give(safe_lsn.region, RegionInput::SafeLsn(from, heard, safe_lsn));
        }
    }

    /// A read that a backup made has ended.
    pub(in crate::node) fn read_ended(&mut self, read: Box<BackupRead>, result: Result<ReadResult, Error>) {
        self.backup_reads.ended(read, result);
    }

    /// How many reads this node has answered as a backup as of an instant before their call, and as of one after it.
    pub(in crate::node) fn reads_answered(&self) -> (u64, u64) {
        (self.backup_reads.stale, self.backup_reads.fresh)
    }

    /// A read that any member may answer. This node answers it if it is a member that can, and routes it otherwise.
    pub(super) fn read_at_backup(&mut self, reach: &mut Reach, at_most_ms: u32, request: Request, travel: Travel) {
        let is_scan = request.op.key().is_none();
        let table = reach.control.view().table(&request.table);
        let Some(at_most_ms) = table.and_then(|table| table.reads.at_most(at_most_ms, is_scan)) else {
            return self.route(reach, request, travel);
        };
        // A scan is cut at the bounds of the region that the routes name for it.
        let may_be_cut = is_scan && reach.control.routes().is_ambiguous();
        let config = request.op.region_in(reach.control.routes(), &request.table).filter(|_| !may_be_cut);
        let Some(config) = config.cloned() else { return self.route(reach, request, travel) };
        if at_most_ms == 0 {
            return self.read_fresh(reach, &config, request, travel);
        }
        let machine = reach.shard.machine(config.region);
        match machine.and_then(|machine| machine.readable(&config)) {
            Some((copy, known)) if reach.control.age_ms(known.heard) <= u64::from(at_most_ms) => {
                let (state, bound) = ((&*copy, known.lsn, reach.shard.resources.wall.now()), (known.heard, at_most_ms));
                self.begin_read(reach, state, &config, (request, travel), Some(bound));
            }
            _ => self.route(reach, request, travel),
        }
    }

    /// Begins a read of a copy as of exactly `lsn`, and of a wall time; or routes it if that cannot be.
    pub(super) fn begin_read(
        &mut self,
        reach: &mut Reach,
        (copy, lsn, wall): (&Region, Lsn, UnixMs),
        config: &GroupConfig,
        (request, travel): (Request, Travel),
        bound: Option<(ClockReading, u32)>,
    ) {
        let snapshot = copy.snapshot(lsn, wall);
        let partition = reach.control.view().table(&request.table).map(|table| table.partition);
        let clients = reach.shard.resources.clients.clone();
        // A compaction since may have merged a trim, which deletes keys that another region has by now.
        let is_as_of_it = snapshot.lsn() == lsn && !clients.is_full();
        let Some(partition) = partition.filter(|_| is_as_of_it) else {
            return self.route(reach, request, travel);
        };
        let read = Box::new(BackupRead { request, lsn, bound });
        let bounds = key_bounds(config, partition);
        match copy_reads::in_memory(&snapshot, &read.request.op) {
            Some(result) => {
                let result = result.map(|result| clients.hold_read(result));
                self.backup_reads.ended(read, result);
            }
            None => {
                reach.shard.spawn(JobClass::Foreground, config.region, Activity::Engine.of_backup(), move || {
                    let result = copy_reads::from_device(&snapshot, &read.request.op, bounds);
                    let result = result.map(|result| clients.hold_read(result));
                    Outcome::ReadAtBackup { read, result }
                });
            }
        }
    }

    /// Answers the reads that ended in this turn. A read that has become too old meanwhile, or failed, goes to the primary.
    pub(in crate::node) fn answer_reads(&mut self, reach: &mut Reach) {
        for (read, result) in std::mem::take(&mut self.backup_reads.ended) {
            match (result, read.bound) {
                (Ok(result), None) => {
                    self.backup_reads.fresh += 1;
                    reach.shard.answer(read.request.to, result.result());
                }
                (Ok(result), Some((heard, at_most_ms))) => {
                    let age = reach.control.age_ms(heard);
                    if age > u64::from(at_most_ms) || heard.boot() < reach.control.valid_since() {
                        self.again.push(read.request);
                        continue;
                    }
                    self.backup_reads.stale += 1;
                    let age_ms = u32::try_from(age).expect("it is below a bound");
                    reach.shard.answer(read.request.to, OpResult::Stale { age_ms, lsn: read.lsn, result });
                }
                (Err(error), _) => {
                    tracing::warn!(%error, "a read of a backup failed");
                    self.again.push(read.request);
                }
            }
        }
    }
}

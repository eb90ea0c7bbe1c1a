//! The pieces of a backup's work, which touch its device. Each runs in a job with exclusive access to the replica.

use super::mounted::Mounted;
use leeward_engine::{Error, Replica, Volume};
use leeward_fabric::Fabric;
use leeward_format::cluster::TableOptions;
use leeward_format::manifest::{Base, InstallEdit, Shipped};
use leeward_format::{Epoch, LogKind, Lsn, RegionId, SegmentId, SegmentNo, ServerId};
use leeward_platform::cpu::{self, Account, Activity};
use leeward_platform::planted::{Bug, planted};
use std::sync::Arc;

/// A piece of work; each variant but `Leave`, `Follow`, `Unfollow` and `SaveTails` is a message of
/// [`leeward_format::control::ToBackup`].
#[derive(Debug)]
pub enum Work {
    /// Give up the buffers of the old primary, and persist what they hold.
    Leave,
    /// Persist what the old buffers hold, and offer new ones. Creates a copy if there is none.
    Join {
        /// Options of the region's table.
        options: TableOptions,
    },
    /// Compare a base with the copy.
    BeginBase {
        /// Segment numbers in it are those of the primary's volume.
        base: Base,
        /// Give up the index that the copy has built.
        anew: bool,
    },
    /// Enter a new tail in the log map.
    OpenTail {
        /// A log that is appended to: recovery or large.
        log: LogKind,
        /// Among the tails of its log in this term, from 0.
        index: u64,
        /// The same on every replica.
        id: SegmentId,
        /// Its number on the primary's volume.
        segment: SegmentNo,
    },
    /// Persist a full tail.
    Flush {
        /// A log that is appended to: recovery or large.
        log: LogKind,
        /// As in [`Work::OpenTail`].
        index: u64,
        /// The same on every replica.
        id: SegmentId,
        /// In bytes, header included.
        bytes: u32,
        /// Last LSN in it.
        last_lsn: Lsn,
    },
    /// Translate and persist a shipped segment.
    Store {
        /// Ship slot that has the bytes.
        slot: u32,
        /// Its identity, kind and encoding.
        shipped: Shipped,
        /// Bytes in the slot, compressed or not.
        bytes: u32,
    },
    /// Make the base the state of the copy.
    InstallBase,
    /// Install a compaction.
    Install(InstallEdit),
    /// Free segments of a compaction that was given up.
    Discard(Vec<SegmentId>),
    /// Note that everything up to this LSN is committed.
    Commit(Lsn),
    /// Index the records: the copy builds the index, or can answer reads.
    Follow {
        /// This server.
        builder: ServerId,
    },
    /// Stop indexing the records.
    Unfollow,
    /// Persist what the mirror buffers hold.
    SaveTails {
        /// The caller makes them durable afterwards.
        durably: bool,
    },
}

/// Why a piece of work failed.
#[derive(Debug)]
pub struct Undone {
    /// The reason, for logs and for the primary.
    pub reason: String,
    /// The device had no room: the work may be done later.
    pub lacks_room: bool,
}

impl From<Error> for Undone {
    fn from(error: Error) -> Undone {
        Undone { reason: error.to_string(), lacks_room: matches!(error, Error::NoSpace { .. }) }
    }
}

impl From<String> for Undone {
    fn from(reason: String) -> Undone {
        Undone { reason, lacks_room: false }
    }
}

/// The result of a piece of work.
#[derive(Debug)]
pub enum Done {
    /// The content of the buffers is part of the copy.
    Left,
    /// New memory, and how far the copy reaches without it.
    Joined(Mounted, Option<(Epoch, Lsn)>),
    /// Segments of the base that are missing here.
    Compared(Vec<SegmentId>),
    /// A tail is durable.
    Flushed {
        /// Copied from [`Work::Flush`].
        log: LogKind,
        /// Copied from [`Work::Flush`].
        index: u64,
    },
    /// A shipped segment is on the volume.
    Stored {
        /// The slot, free again.
        slot: u32,
        /// Bytes of the segment, if it is a leaf or index segment; otherwise 0.
        index_bytes: u64,
        /// Bytes rewritten.
        rewritten: u64,
    },
    /// The base is installed.
    BaseInstalled {
        /// The copy has yet to begin to build its index.
        builds_index: bool,
    },
    /// A compaction is installed.
    Installed,
    /// Nothing to answer.
    Quiet,
}

impl Work {
    /// The account that its CPU time is charged to.
    pub fn account(&self) -> Account {
        match self {
            Work::Leave
            | Work::Join { .. }
            | Work::OpenTail { .. }
            | Work::Flush { .. }
            | Work::Commit(_)
            | Work::Follow { .. }
            | Work::Unfollow
            | Work::SaveTails { .. } => Activity::Mirroring.of_backup(),
            Work::BeginBase { .. } | Work::Store { .. } | Work::InstallBase | Work::Install(_) | Work::Discard(_) => {
                Activity::Rewriting.of_backup()
            }
        }
    }

    /// Does the work on the `copy` of `region`, if the volume has one. `mounted` is the memory of the work's session;
    /// for [`Work::Join`], that of the session before.
    ///
    /// # Errors
    /// The volume or the memory failed, or the message does not fit the copy: the session must end.
    pub fn run(
        self,
        volume: &Arc<Volume>,
        region: RegionId,
        copy: &mut Option<Box<Replica>>,
        mounted: Option<&Mounted>,
        fabric: &dyn Fabric,
    ) -> Result<Done, Undone> {
        let memory = || mounted.ok_or_else(|| "a message before the term was joined".to_owned());
        let failed = Undone::from;
        if copy.is_none()
            && let Work::Join { options } = &self
        {
            *copy = Some(Box::new(Replica::create(volume, region, options.clone()).map_err(failed)?));
        }
        let replica = copy.as_deref_mut().ok_or_else(|| "a message before there was a copy".to_owned())?;
        match self {
            Work::Leave => leave(replica, mounted).map(|()| Done::Left).map_err(failed),
            Work::Join { .. } => {
                leave(replica, mounted).map_err(failed)?;
                replica.abandon();
                let mounted = Mounted::allocate(fabric, volume.segment_bytes(), volume.memory());
                Ok(Done::Joined(mounted?, replica.reach()))
            }
            Work::BeginBase { base, anew: false } => replica.begin_base(&base).map(Done::Compared).map_err(failed),
            Work::BeginBase { base, anew: true } => replica.begin_base_anew(&base).map(Done::Compared).map_err(failed),
            Work::OpenTail { log, index, id, segment } => {
                memory()?.open_tail(log, index, id);
                replica.open_tail(log, id, segment).map(|()| Done::Quiet).map_err(failed)
            }
            Work::Flush { log, index, id, bytes, last_lsn } => {
                memory()?.flush(replica, (log, index), id, (bytes, last_lsn)).map_err(failed)?;
                Ok(Done::Flushed { log, index })
            }
            Work::Store { slot, shipped, bytes } => {
                let store = |content: &mut [u8]| replica.store(&shipped, content).map_err(Undone::from);
                let stored = memory()?.take_slot(slot, bytes, store)?;
                let index_bytes = if shipped.kind.is_index() { u64::from(bytes) } else { 0 };
                Ok(Done::Stored { slot, index_bytes, rewritten: stored.bytes_rewritten })
            }
            Work::InstallBase => {
                replica.install_base().map_err(failed)?;
                Ok(Done::BaseInstalled { builds_index: replica.options().backups.builds_index() })
            }
            Work::Install(edit) => install(&edit, replica, memory()?).map(|()| Done::Installed).map_err(failed),
            Work::Discard(ids) => {
                replica.discard(&ids);
                Ok(Done::Quiet)
            }
            Work::Commit(lsn) => {
                replica.set_committed(lsn);
                Ok(Done::Quiet)
            }
            Work::Follow { builder } => replica.follow(builder).map(|()| Done::Quiet).map_err(failed),
            Work::Unfollow => {
                replica.unfollow();
                Ok(Done::Quiet)
            }
            Work::SaveTails { durably } => {
                memory()?.save(replica, durably).map_err(failed)?;
                replica.run_next().map(|()| Done::Quiet).map_err(failed)
            }
        }
    }
}

/// Revokes `mounted`, and makes its content part of the copy.
fn leave(replica: &mut Replica, mounted: Option<&Mounted>) -> Result<(), Error> {
    mounted.map_or(Ok(()), |old| replica.adopt_tails(old.give_up(replica)?))
}

/// Installs a compaction, after the log records that its leaves point to are persisted.
fn install(edit: &InstallEdit, replica: &mut Replica, mounted: &Mounted) -> Result<(), Error> {
    // A copy that answers reads must first have every record that the compaction covers.
    let must_save = !edit.logs.is_empty() || replica.reading().is_some();
    if must_save && !planted(Bug::InstallBeforeLogDurable) {
        let _at = cpu::at_activity(Activity::Mirroring);
        mounted.save(replica, false)?;
    }
    replica.install(edit)
}

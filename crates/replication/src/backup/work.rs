//! The pieces of a backup's work: what touches its device. Each runs in a job that holds the replica for itself.

use crate::mirror::buffer_of;
use leeward_engine::{Error, Replica};
use leeward_fabric::{Fabric, Memory};
use leeward_format::cluster::Member;
use leeward_format::control::{MIRROR_BUFFERS, ToPrimary};
use leeward_format::manifest::{Base, InstallEdit, Shipped};
use leeward_format::record::{RecordSeed, read_record};
use leeward_format::segment::{LOG_HEADER_BYTES, LogHeader};
use leeward_format::{LogKind, Lsn, RegionId, SegmentId, SegmentNo};
use leeward_platform::planted::{Bug, planted};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Ship slots that a backup offers: one is written while the other is stored.
const SLOTS: usize = 2;

/// The registered memory that a primary writes into.
pub struct Mounted {
    buffers: Vec<Arc<dyn Memory>>,
    slots: Vec<Arc<dyn Memory>>,
    open: Mutex<BTreeMap<SegmentId, OpenTail>>,
}

/// A tail that is being mirrored.
struct OpenTail {
    log: LogKind,
    /// Which of the buffers.
    buffer: usize,
    /// Bytes that are on the volume.
    saved: usize,
}

impl std::fmt::Debug for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mounted({} buffers, {} slots)", self.buffers.len(), self.slots.len())
    }
}

impl Mounted {
    fn allocate(fabric: &dyn Fabric, segment_bytes: usize) -> io::Result<Mounted> {
        let allocate =
            |count: usize| (0..count).map(|_| fabric.allocate(segment_bytes)).collect::<io::Result<Vec<_>>>();
        let buffers = allocate(LogKind::APPENDED.len() * MIRROR_BUFFERS as usize)?;
        Ok(Mounted { buffers, slots: allocate(SLOTS)?, open: Mutex::default() })
    }

    /// Gives the memory up, so that no old primary writes into it, and answers what the mirror buffers hold. A
    /// transport that cannot revoke lets the old primary write into memory that nobody looks at any more.
    pub fn give_up(&self) -> Vec<Vec<u8>> {
        self.slots.iter().chain(&self.buffers).for_each(|memory| memory.revoke());
        self.contents()
    }

    fn contents(&self) -> Vec<Vec<u8>> {
        self.buffers.iter().map(|buffer| read(buffer.as_ref(), buffer.len())).collect()
    }

    /// Persists the valid records of every open tail, and makes them durable. Looks only at what came since the last
    /// time: a quiet region costs a glance at a header.
    fn save(&self, replica: &mut Replica) -> Result<(), Error> {
        let mut has_saved = false;
        for (id, tail) in &mut *self.open.lock() {
            let buffer = self.buffers[tail.buffer].as_ref();
            let mut glance = [0; LOG_HEADER_BYTES];
            let room = buffer.len() - tail.saved;
            buffer.read(tail.saved, &mut glance[..room.min(LOG_HEADER_BYTES)]);
            if glance == [0; LOG_HEADER_BYTES] {
                continue;
            }
            let mut content = vec![0; room];
            buffer.read(tail.saved, &mut content);
            let valid = valid_bytes(replica.region(), *id, tail.log, &content, tail.saved == 0);
            if valid > 0 {
                replica.persist_tail(tail.log, *id, tail.saved as u32, &content[..valid])?;
                tail.saved += valid;
                has_saved = true;
            }
        }
        if has_saved { replica.sync() } else { Ok(()) }
    }

    pub(super) fn opened(&self, member: Member) -> ToPrimary {
        let descriptors =
            |memory: &[Arc<dyn Memory>]| memory.iter().map(|memory| memory.descriptor().0.clone()).collect();
        ToPrimary::Opened { member, buffers: descriptors(&self.buffers), slots: descriptors(&self.slots) }
    }
}

fn read(memory: &dyn Memory, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    memory.read(0, &mut copy);
    copy
}

/// A piece of work; each variant but [`Work::SaveTails`] is a message of [`leeward_format::control::ToBackup`].
#[derive(Debug)]
pub enum Work {
    /// Persist what the old buffers hold, offer new ones.
    Join,
    /// Compare a base with what is here.
    BeginBase(Base),
    /// Enter a new tail in the log map.
    OpenTail {
        /// Its log.
        log: LogKind,
        /// Its ordinal.
        index: u64,
        /// Its identity.
        id: SegmentId,
        /// Its number on the primary's volume.
        segment: SegmentNo,
    },
    /// Persist a full tail.
    Flush {
        /// Its log.
        log: LogKind,
        /// Its ordinal.
        index: u64,
        /// Its identity.
        id: SegmentId,
        /// Its length.
        bytes: u32,
        /// Last LSN in it.
        last_lsn: Lsn,
    },
    /// Translate and persist a shipped segment.
    Store {
        /// Slot in which it lies.
        slot: u32,
        /// What it is.
        shipped: Shipped,
        /// Its length.
        bytes: u32,
    },
    /// Make the base the region's state.
    InstallBase,
    /// Install a compaction.
    Install(InstallEdit),
    /// Free segments of a compaction that was given up.
    Discard(Vec<SegmentId>),
    /// Persist what the mirror buffers hold.
    SaveTails,
}

/// What came of it.
#[derive(Debug)]
pub enum Done {
    /// New memory is mounted.
    Joined(Mounted),
    /// Segments of the base that are missing here.
    Compared(Vec<SegmentId>),
    /// A tail is durable.
    Flushed {
        /// Its log.
        log: LogKind,
        /// Its ordinal.
        index: u64,
    },
    /// A shipped segment is on the volume.
    Stored {
        /// The slot, free again.
        slot: u32,
        /// Its bytes, if it is a leaf or index segment.
        index_bytes: u64,
        /// Bytes rewritten.
        rewritten: u64,
    },
    /// The base is installed.
    BaseInstalled,
    /// A compaction is installed.
    Installed,
    /// Nothing to answer.
    Quiet,
}

impl Work {
    /// Does the work. `mounted` is the memory of the office that the work belongs to, or of the one before for
    /// [`Work::Join`].
    ///
    /// # Errors
    /// The volume or the memory failed, or the message cannot be followed: the session must end.
    pub fn run(
        self,
        replica: &mut Replica,
        mounted: Option<&Mounted>,
        fabric: &dyn Fabric,
        segment_bytes: usize,
    ) -> Result<Done, String> {
        let memory = || mounted.ok_or_else(|| "a message before the term was joined".to_owned());
        let failed = |error: Error| error.to_string();
        match self {
            Work::Join => {
                if let Some(old) = mounted {
                    replica.adopt_tails(&old.give_up()).map_err(failed)?;
                }
                replica.abandon();
                Mounted::allocate(fabric, segment_bytes).map(Done::Joined).map_err(|error| error.to_string())
            }
            Work::BeginBase(base) => replica.begin_base(&base).map(Done::Compared).map_err(failed),
            Work::OpenTail { log, index, id, segment } => {
                let tail = OpenTail { log, buffer: buffer_of(log, index), saved: 0 };
                memory()?.open.lock().insert(id, tail);
                replica.open_tail(log, id, segment).map(|()| Done::Quiet).map_err(failed)
            }
            Work::Flush { log, index, id, bytes, last_lsn } => {
                let buffer = &memory()?.buffers[buffer_of(log, index)];
                let content = read(buffer.as_ref(), (bytes as usize).min(buffer.len()));
                replica.persist_tail(log, id, 0, &content).map_err(failed)?;
                replica.seal_tail(log, id, bytes, last_lsn).map_err(failed)?;
                memory()?.open.lock().remove(&id);
                Ok(Done::Flushed { log, index })
            }
            Work::Store { slot, shipped, bytes } => {
                let slots = &memory()?.slots;
                let source = slots.get(slot as usize).ok_or_else(|| format!("no ship slot {slot}"))?;
                let content = read(source.as_ref(), (bytes as usize).min(source.len()));
                let stored = replica.store(&shipped, &content).map_err(failed)?;
                let index_bytes = if shipped.kind.is_index() { u64::from(bytes) } else { 0 };
                Ok(Done::Stored { slot, index_bytes, rewritten: stored.bytes_rewritten })
            }
            Work::InstallBase => replica.install_base().map(|()| Done::BaseInstalled).map_err(failed),
            Work::Install(edit) => {
                if !edit.logs.is_empty() && !planted(Bug::InstallBeforeLogDurable) {
                    memory()?.save(replica).map_err(failed)?;
                }
                replica.install(&edit).map(|()| Done::Installed).map_err(failed)
            }
            Work::Discard(ids) => {
                replica.discard(&ids);
                Ok(Done::Quiet)
            }
            Work::SaveTails => memory()?.save(replica).map(|()| Done::Quiet).map_err(failed),
        }
    }
}

/// Length of the valid records of log segment `id` at the start of `content`, which begins with the segment's header
/// if `has_header`.
fn valid_bytes(region: RegionId, id: SegmentId, log: LogKind, content: &[u8], has_header: bool) -> usize {
    let mut end = 0;
    if has_header {
        let header = LogHeader::decode(content).ok();
        if header.is_none_or(|header| header.id != id || header.region != region) {
            return 0;
        }
        end = LOG_HEADER_BYTES;
    }
    let seed = RecordSeed::new(region, log, id);
    while let Ok(Some(record)) = read_record(seed, &content[end..]) {
        end += record.bytes();
    }
    end
}

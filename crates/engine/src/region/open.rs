//! Recovery: from the state on the device to a region that serves.
//!
//! The valid prefix of both logs is replayed into L0s, in one pass. Everything beyond it is durably cut off both logs,
//! before anything new is written.

use super::{Region, Requests, View, Writer};
use crate::compaction::Picker;
use crate::error::{Error, Result};
use crate::log::{Ends, LogReader, LogSegment, LogSegments, Overlays, Prefix, Replay, Replayed, Tails};
use crate::memtable::{Loader, MemTable};
use crate::reads::Reads;
use crate::tree::Level;
use crate::version::Version;
use crate::volume::{Durability, Owner, Segment, SegmentIds, Volume};
use arc_swap::ArcSwap;
use leeward_format::cluster::Addressing;
use leeward_format::manifest::{Change, RegionState};
use leeward_format::node::Entry;
use leeward_format::range::RangeTombstone;
use leeward_format::record::{FLAG_BATCH_CONTINUES, Record, RecordKind};
use leeward_format::request::{REQUEST_ID_BYTES, RequestId};
use leeward_format::{Epoch, LogKind, Lsn, Pointer, SegmentId, SegmentName, SegmentNo, Stamp};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

impl Region {
    /// Makes the beginning of `term` durable in a copy with `state`, and cuts its logs. `recovered` is its replay;
    /// `added` are segments that it names and the volume does not know yet. Returns the ids for the term's segments.
    /// After an error nothing has changed.
    pub(crate) fn begin_term(
        volume: &Volume,
        owner: &Owner,
        state: &mut RegionState,
        term: Epoch,
        (added, recovered): (&[(SegmentId, Arc<Segment>)], &Recovered),
    ) -> Result<SegmentIds> {
        let ids = segment_ids(term, state);
        let known = volume.copied_region(owner)?;
        cut(state, &recovered.ends);
        // Inherited records are committed once the members of the term have them. Another term may begin before that,
        // and cut them.
        state.term = term;
        state.terms.begin(term, recovered.prefix.last);
        // Replayed records may be in the page cache only; from here on they are relied on. For a region that never held
        // anything, the first sync of a record is soon enough.
        let is_new = state.segments.is_empty() && recovered.prefix.last == Lsn(0);
        let durability = if is_new { Durability::Lazy } else { Durability::Synced };
        if state.says_more_than(&known) {
            volume.sync()?;
        }
        volume.commit(owner, vec![Change::Region(Box::new(state.clone()))], added, durability)?;
        Ok(ids)
    }

    /// Opens a copy with `state` to serve in the term that [was begun](Region::begin_term).
    pub(crate) fn open(
        volume: Arc<Volume>,
        owner: Owner,
        state: RegionState,
        recovered: Recovered,
        ids: SegmentIds,
    ) -> Result<Arc<Region>> {
        let region = Region::assemble(volume, owner, state, recovered.l0s, recovered.prefix.last, (ids, None))?;
        *region.requests.lock() = recovered.requests;
        Ok(region)
    }

    /// A region with `state`, and with `l0s` made of its logs up to `last`, which are durable. A two-layer log has an
    /// ordering degree.
    pub(super) fn assemble(
        volume: Arc<Volume>,
        owner: Owner,
        state: RegionState,
        l0s: Vec<Arc<MemTable>>,
        last: Lsn,
        (ids, ordering_degree): (SegmentIds, Option<u8>),
    ) -> Result<Arc<Region>> {
        let tails = Arc::new(Tails::new());
        let held = volume.segments(owner.region);
        let reader = value_reader(&volume, &state, &held, &tails);
        let view = open_view(&volume, held, &state, reader.clone(), l0s)?;
        let frozen = view.version.frozen().len();
        if ordering_degree.is_some() {
            view.version.active().join_round();
        }
        let picker = Picker::new(&state.options, ordering_degree, ids.clone());
        let region = Arc::new(Region {
            volume,
            owner,
            term: state.term,
            options: state.options,
            parent: OnceLock::new(),
            ids,
            writer: Mutex::new(Writer { next: last.next(), current: [None, None], next_index: [0; 2] }),
            tails,
            reader,
            prepared: Mutex::new([None, None]),
            preparing: Mutex::new(()),
            allowed: [AtomicU64::new(1), AtomicU64::new(1)],
            view: ArcSwap::from_pointee(view),
            // All replayed records are durable.
            frozen_logs: Mutex::new(VecDeque::from(vec![Vec::new(); frozen])),
            picker: Mutex::new(picker),
            accounts: Mutex::default(),
            inherited_below: AtomicU64::new(0),
            shared_bytes: AtomicU64::new(0),
            seen_sharing: AtomicU64::new(0),
            compactions: Mutex::default(),
            installing: Mutex::new(()),
            requests: Mutex::default(),
            last: AtomicU64::new(last.0),
            commit: AtomicU64::new(state.replay_from.0.saturating_sub(1)),
            synced: AtomicU64::new(last.0),
            user_bytes_written: AtomicU64::new(0),
            commits_written: AtomicBool::new(false),
            is_two_layer: ordering_degree.is_some(),
        });
        region.count_garbage()?;
        Ok(region)
    }
}

/// A reader of the logs that leaves of `state` point to.
pub(super) fn value_reader(
    volume: &Arc<Volume>,
    state: &RegionState,
    held: &HashMap<SegmentId, Arc<Segment>>,
    tails: &Arc<Tails>,
) -> Arc<LogReader> {
    let mut segments = LogSegments::default();
    for log in [LogKind::Large, LogKind::Medium] {
        for segment in state.log_segments(log) {
            let found = LogSegment::new(log, segment.id, &held[&segment.id], segment.is_run());
            segments.add(segment.name(state.options.addressing), found);
        }
    }
    Arc::new(LogReader::new(volume.clone(), tails.clone(), segments))
}

/// Ids for the segments that the primary of `term` makes, in order, without those whose names are taken.
fn segment_ids(term: Epoch, state: &RegionState) -> SegmentIds {
    let most = SegmentId::MOST_OF_TERM;
    ids_from(state, (0, most), move |number| SegmentId::made_by(term, number))
}

/// The ids that `make` returns for the numbers from `first` on. Ids whose names, with logical addressing, segments of
/// `state` have are skipped. An error once the `most` ids of a term are used.
pub(super) fn ids_from(
    state: &RegionState,
    (first, most): (u64, u64),
    make: impl Fn(u64) -> Option<SegmentId> + Send + Sync + 'static,
) -> SegmentIds {
    let (region, term) = (state.region, state.term);
    let taken: HashSet<SegmentName> = state.needed_segments().map(|segment| segment.id.name()).collect();
    let next = AtomicU64::new(first);
    Arc::new(move || {
        loop {
            let Some(id) = make(next.fetch_add(1, Ordering::Relaxed)) else {
                return Err(Error::Invalid(format!(
                    "region {region}: this copy has made all {most} segments of term {term}; begin another: give the region \
                     another primary, or restart the server of its primary"
                )));
            };
            if !taken.contains(&id.name()) {
                return Ok(id);
            }
        }
    })
}

pub(super) fn open_view(
    volume: &Arc<Volume>,
    held: HashMap<SegmentId, Arc<Segment>>,
    state: &RegionState,
    reader: Arc<LogReader>,
    mut l0s: Vec<Arc<MemTable>>,
) -> Result<View> {
    let reads = Reads::new(volume.clone(), state.region, state.options.addressing, reader);
    let addressing = state.options.addressing;
    let by_name: HashMap<SegmentName, (SegmentId, Arc<Segment>)> =
        held.into_iter().map(|(id, segment)| (addressing.name(id, segment.no()), (id, segment))).collect();
    let open = |level| Level::open(&reads, level, &|name| by_name.get(&name).cloned()).map(Arc::new);
    let levels = state.levels.iter().map(open).collect::<Result<Vec<_>>>()?;
    let active = l0s.pop().expect("a replay makes at least one L0");
    l0s.reverse();
    let version = Arc::new(Version::new(reads, active, l0s, levels));
    Ok(View { version, floor: Lsn(state.replay_from.0.saturating_sub(1)), ingests: 0 })
}

/// Result of a replay.
pub(crate) struct Recovered {
    /// Oldest first, at least one.
    pub(crate) l0s: Vec<Arc<MemTable>>,
    /// The replayed prefix.
    pub(crate) prefix: Prefix,
    /// End of the prefix in each segment.
    pub(crate) ends: Ends,
    /// The writes with a request id.
    pub(crate) requests: Requests,
}

/// Replays the logs of `state`, with `overlays`, as far as they are valid.
pub(crate) fn recover(volume: &Volume, state: &RegionState, overlays: &Overlays) -> Result<Recovered> {
    let mut replay = Replay::new(volume, state, overlays);
    let requests = Requests::since(Lsn(state.replay_from.0.saturating_sub(1)));
    let mut intake = Intake { volume, state, full: Vec::new(), last: Intake::begin(volume), requests };
    let mut batch = Vec::new();
    while let Some(found) = replay.next()? {
        let continues = found.record.flags & FLAG_BATCH_CONTINUES != 0;
        if continues || !batch.is_empty() {
            batch.push(HeldRecord::of(&found));
        } else {
            intake.take(&found);
        }
        if !continues {
            batch.drain(..).for_each(|held| intake.take(&held.replayed()));
        }
    }
    let (prefix, ends) = replay.finish();
    let Intake { full: mut l0s, last, requests, .. } = intake;
    l0s.push(Arc::new(last.finish()));
    Ok(Recovered { l0s, prefix, ends, requests })
}

/// A record of a batch that is not known to be complete.
struct HeldRecord {
    at: (LogKind, SegmentId, SegmentNo, u32),
    stamp: Stamp,
    kind: RecordKind,
    flags: u8,
    request: Option<RequestId>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl HeldRecord {
    fn of(found: &Replayed<'_>) -> HeldRecord {
        let Record { stamp, kind, flags, request, key, value } = found.record;
        let at = (found.log, found.id, found.no, found.offset);
        HeldRecord { at, stamp, kind, flags, request, key: key.to_vec(), value: value.to_vec() }
    }

    fn replayed(&self) -> Replayed<'_> {
        let (log, id, no, offset) = self.at;
        let HeldRecord { stamp, kind, flags, request, key, value, .. } = self;
        let record = Record { stamp: *stamp, kind: *kind, flags: *flags, request: *request, key, value };
        Replayed { log, id, no, offset, record }
    }
}

/// Collects the records of a replay.
struct Intake<'a> {
    volume: &'a Volume,
    state: &'a RegionState,
    full: Vec<Arc<MemTable>>,
    last: Loader,
    requests: Requests,
}

impl Intake<'_> {
    fn begin(volume: &Volume) -> Loader {
        Loader::new(MemTable::within(volume.memory()))
    }

    /// Takes a record into the last L0, and begins another if it is full.
    fn take(&mut self, found: &Replayed<'_>) {
        if let Some(entry) = entry_of(self.last.table(), found, self.state.options.addressing) {
            self.last.insert(found.record.key, found.record.stamp, entry);
        }
        self.requests.note(&found.record);
        self.last.table().add_log_bytes(found.record.bytes() as u64);
        if !self.last.has_room(self.state.options.l0_bytes) {
            let full = std::mem::replace(&mut self.last, Intake::begin(self.volume)).finish();
            full.freeze();
            self.full.push(Arc::new(full));
        }
    }
}

/// Inserts a record into an L0.
pub(super) fn insert(l0: &MemTable, found: &Replayed<'_>, addressing: Addressing) {
    if let Some(entry) = entry_of(l0, found, addressing) {
        l0.insert(found.record.key, found.record.stamp, entry);
    }
}

/// The entry of a record. What else the record says goes into the L0 at once.
fn entry_of<'a>(l0: &MemTable, found: &Replayed<'a>, addressing: Addressing) -> Option<Entry<'a>> {
    let record = &found.record;
    match (record.kind, found.log) {
        (RecordKind::DeleteRange, _) => {
            l0.insert_range(RangeTombstone::new(record.key, record.value, record.stamp.lsn));
            None
        }
        (RecordKind::Ingest | RecordKind::Refused, _) => None,
        (RecordKind::Delete, _) => Some(Entry::Tombstone),
        (RecordKind::Put, LogKind::Recovery | LogKind::Medium) => Some(Entry::InPlace(record.value)),
        (RecordKind::Put, LogKind::Large) => {
            let segment = addressing.name(found.id, found.no);
            if record.request.is_some() {
                l0.add_unreferenced(segment, REQUEST_ID_BYTES as u32);
            }
            let pointer = Pointer::new(segment, found.offset);
            Some(Entry::InLog { pointer, value_bytes: record.value.len() as u32 })
        }
    }
}

/// Ends the log segments where the valid prefix ends, and removes those beyond it.
pub(crate) fn cut(state: &mut RegionState, ends: &Ends) {
    let replay_from = state.replay_from;
    state.segments.retain(|id, segment| {
        if let Some(end) = ends.get(id) {
            (segment.bytes, segment.last_lsn) = (Some(end.bytes), end.last_lsn);
            return true;
        }
        segment.kind.is_index() || (segment.bytes.is_some() && segment.last_lsn < replay_from)
    });
}

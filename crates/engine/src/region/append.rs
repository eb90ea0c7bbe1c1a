//! The write path: a batch goes into the tails and the L0, all of it or nothing.
//!
//! Everything that can refuse the batch is looked at before anything is changed. No allocation per record; a value in
//! place is copied twice, into its tail and into the L0's arena.

use super::{MAX_FROZEN_L0S, Region, View, Writer};
use crate::error::Error;
use crate::log::Tail;
use crate::memtable::MemTable;
use leeward_format::leaf_segment::max_pair_bytes;
use leeward_format::manifest::LogExtent;
use leeward_format::node::Entry;
use leeward_format::record::{FLAG_BATCH_CONTINUES, Record, RecordKind, record_bytes};
use leeward_format::segment::LOG_HEADER_BYTES;
use leeward_format::{LogKind, Lsn, MAX_KEY_BYTES, MAX_VALUE_BYTES, MIN_KEY_BYTES, Pointer};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One write.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The key, 1 byte to [`MAX_KEY_BYTES`].
    pub key: &'a [u8],
    /// Its new value, up to [`MAX_VALUE_BYTES`]; `None` deletes it.
    pub value: Option<&'a [u8]>,
}

/// LSNs of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Of its first write.
    pub first: Lsn,
    /// Of its last write.
    pub last: Lsn,
}

/// Why a batch was not appended. Nothing of it was.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// The log's next tail may not open yet: its predecessors are not flushed everywhere. Retry after that.
    #[error("the {0:?} log waits for a flush")]
    TailBusy(LogKind),
    /// The L0 is full and as many as may be are frozen. Retry after a compaction was installed.
    #[error("the L0 waits for a compaction")]
    L0Full,
    /// A fault.
    #[error(transparent)]
    Engine(#[from] Error),
}

/// What a batch needs of one log.
#[derive(Clone, Copy, Debug, Default)]
struct Need {
    bytes: usize,
    /// Position in the batch of its first record of this log.
    first: Option<u64>,
}

impl Region {
    /// Appends a batch, all of it or nothing: to the tails and the L0, in memory only. Replay takes all of a batch or
    /// nothing of it. What a batch puts into one log lies in one segment, which limits its size. Seals and opens tails
    /// and freezes the L0 as needed; touches the device only if [`Region::prepare_tails`] was not called ahead. For the
    /// writer.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append(&self, writes: &[Write<'_>]) -> Result<Appended, AppendError> {
        let needs = self.check_batch(writes)?;
        self.volume.check()?;
        let mut writer = self.writer.lock();
        let batch_bytes = needs[0].bytes + needs[1].bytes;
        let freeze = self.must_freeze(batch_bytes as u64)?;
        for log in LogKind::ALL {
            self.check_tail(&writer, log, needs[log.index()].bytes)?;
        }
        if freeze {
            self.freeze();
        }
        for log in LogKind::ALL {
            self.make_room(&mut writer, log, needs[log.index()]);
        }
        let appended = Appended { first: writer.next, last: Lsn(writer.next.0 + writes.len() as u64 - 1) };
        self.insert(&writer, writes);
        writer.next = appended.last.next();
        self.last.store(appended.last.0, Ordering::Release);
        let user_bytes: usize = writes.iter().map(|write| write.key.len() + write.value.map_or(0, <[u8]>::len)).sum();
        self.user_bytes_written.fetch_add(user_bytes as u64, Ordering::Relaxed);
        Ok(appended)
    }

    /// Largest key and value together that a write may have on this volume, in bytes: less than the limits only where
    /// segments are small.
    pub fn max_pair_bytes(&self, is_large: bool) -> usize {
        let segment_bytes = self.volume.segment_bytes();
        let in_log = segment_bytes - LOG_HEADER_BYTES - record_bytes(0, 0);
        if is_large { in_log } else { in_log.min(max_pair_bytes(segment_bytes)) }
    }

    fn log_of(&self, write: &Write<'_>) -> LogKind {
        match write.value {
            Some(value) if self.options.placement.is_large(write.key.len(), value.len()) => LogKind::Large,
            _ => LogKind::Recovery,
        }
    }

    fn check_batch(&self, writes: &[Write<'_>]) -> Result<[Need; 2], Error> {
        let mut needs = [Need::default(); 2];
        for (position, write) in writes.iter().enumerate() {
            let (key, value) = (write.key.len(), write.value.map_or(0, <[u8]>::len));
            if !(MIN_KEY_BYTES..=MAX_KEY_BYTES).contains(&key) {
                let detail = format!("key of {key} bytes: must be {MIN_KEY_BYTES} to {MAX_KEY_BYTES}");
                return Err(Error::Invalid(detail));
            }
            if value > MAX_VALUE_BYTES {
                return Err(Error::Invalid(format!("value of {value} bytes: must be at most {MAX_VALUE_BYTES}")));
            }
            let log = self.log_of(write);
            let most = self.max_pair_bytes(log == LogKind::Large);
            if key + value > most {
                let detail =
                    format!("key and value of {} bytes: at most {most} fit this volume's segments", key + value);
                return Err(Error::Invalid(detail));
            }
            let need = &mut needs[log.index()];
            need.bytes += record_bytes(key, value);
            need.first.get_or_insert(position as u64);
        }
        let most = self.volume.segment_bytes() - LOG_HEADER_BYTES;
        match needs.iter().map(|need| need.bytes).max() {
            _ if writes.is_empty() => Err(Error::Invalid("an empty batch".into())),
            Some(bytes) if bytes > most => {
                Err(Error::Invalid(format!("batch of {bytes} bytes in one log: must be at most {most}")))
            }
            _ => Ok(needs),
        }
    }

    /// Whether the L0 must freeze before it takes `bytes` more.
    fn must_freeze(&self, bytes: u64) -> Result<bool, AppendError> {
        let view = self.view.load();
        let active = view.version.active();
        if active.is_empty() || active.bytes() + bytes <= self.options.l0_bytes {
            return Ok(false);
        }
        if view.version.frozen().len() >= MAX_FROZEN_L0S {
            return Err(AppendError::L0Full);
        }
        Ok(true)
    }

    fn freeze(&self) {
        let mut frozen_logs = self.frozen_logs.lock();
        let view = self.view.load();
        // Levels refer to the large log only; this L0 to those of its tails that hold records since the L0 before.
        let before = view.version.frozen().first().map_or(view.floor, |l0| l0.last_lsn());
        let tails = self.tails.of(LogKind::Large);
        let referenced = tails.iter().filter(|tail| tail.last_lsn() > before);
        let extent = |tail: &Arc<Tail>| LogExtent { log: tail.log(), id: tail.id(), bytes: tail.filled() };
        frozen_logs.push_back(referenced.map(extent).collect());
        let version = Arc::new(view.version.freeze(Arc::new(MemTable::new())));
        self.view.store(Arc::new(View { version, floor: view.floor }));
    }

    /// An error if `log` cannot take `bytes` more now. Afterwards [`Region::make_room`] cannot fail.
    fn check_tail(&self, writer: &Writer, log: LogKind, bytes: usize) -> Result<(), AppendError> {
        let current = &writer.current[log.index()];
        if bytes == 0 || current.as_ref().is_some_and(|tail| tail.has_room(bytes)) {
            return Ok(());
        }
        if writer.next_index[log.index()] > self.allowed[log.index()].load(Ordering::Acquire) {
            return Err(AppendError::TailBusy(log));
        }
        Ok(self.prepare_tail(log)?)
    }

    fn make_room(&self, writer: &mut Writer, log: LogKind, need: Need) {
        let Some(first) = need.first else { return };
        let first = Lsn(writer.next.0 + first);
        let index = log.index();
        if let Some(tail) = &writer.current[index] {
            if tail.has_room(need.bytes) {
                return;
            }
            tail.seal();
        }
        let prepared = self.prepared.lock()[index].take().expect("the caller prepared a tail");
        let segment_bytes = self.volume.segment_bytes();
        if log == LogKind::Large {
            self.reader.add(prepared.segment.no(), prepared.id);
        }
        let ordinal = writer.next_index[index];
        let tail = Tail::new(self.id(), log, ordinal, prepared.id, prepared.segment, segment_bytes, first);
        let tail = Arc::new(tail);
        writer.next_index[index] += 1;
        writer.current[index] = Some(tail.clone());
        self.tails.push(&tail);
    }

    fn insert(&self, writer: &Writer, writes: &[Write<'_>]) {
        let view = self.view.load();
        let l0 = view.version.active();
        for (position, write) in writes.iter().enumerate() {
            let log = self.log_of(write);
            let tail = writer.current[log.index()].as_ref().expect("room was made in this log");
            let lsn = Lsn(writer.next.0 + position as u64);
            let kind = if write.value.is_some() { RecordKind::Put } else { RecordKind::Delete };
            let flags = if position + 1 < writes.len() { FLAG_BATCH_CONTINUES } else { 0 };
            let value = write.value.unwrap_or_default();
            let offset = tail.append(&Record { lsn, kind, flags, key: write.key, value });
            let entry = match (kind, log) {
                (RecordKind::Delete, _) => Entry::Tombstone,
                (RecordKind::Put, LogKind::Recovery) => Entry::InPlace(value),
                (RecordKind::Put, LogKind::Large) => {
                    Entry::InLog { pointer: Pointer::new(tail.segment(), offset), value_bytes: value.len() as u32 }
                }
            };
            l0.insert(write.key, lsn, entry);
        }
    }
}

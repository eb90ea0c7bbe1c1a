//! The host's log: one file of checksummed frames, the first a snapshot of the tree, each other one batch of changes.
//!
//! ```text
//! coordinator.log        | LogBatch 41: Snapshot | LogBatch 42: Opened, Applied | LogBatch 43: Closed | ...
//! coordinator.log.new    the next file while a compaction writes it; renamed over the log once it is durable
//! coordinator.lock       held by the process that uses the directory
//! ```
//! Invariants: a batch is one frame, and is durable before the next is written, so only the last can be torn. Batches are
//! numbered without a gap. An incomplete batch at the end of the file was never acknowledged and is cut off. Anything wrong
//! before a whole batch is damage, and an error. Used by the host's thread only.

use crate::Tree;
use leeward_format::DecodeError;
use leeward_format::coordinator::{LogBatch, LogEntry, MAX_LOG_BATCH_BYTES};
use leeward_format::frame::{FrameKind, frame_bytes, read_frame, write_frame};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The log in its directory.
pub(super) const LOG_FILE: &str = "coordinator.log";

const KIND: FrameKind = FrameKind::CoordinatorLog;
/// A log is not compacted while it is shorter than this.
const MIN_COMPACTION_BYTES: u64 = 1024 * 1024;

/// Why a host cannot start.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The operating system refuses an operation.
    #[error("coordinator: cannot {what} {path}: {source}{}", advice(source))]
    Io {
        /// The operation.
        what: &'static str,
        /// The file or address.
        path: String,
        /// The refusal.
        source: io::Error,
    },
    /// Another process uses the directory.
    #[error("coordinator: {path} is in use by another process: stop it, or choose another directory")]
    Locked {
        /// The lock.
        path: PathBuf,
    },
    /// Another version of Leeward wrote the log.
    #[error(
        "coordinator: {path} was written by another version of Leeward (frame format {found}, this program reads format \
         {known}). Nothing was changed. Use the version that wrote it, or give this one another directory"
    )]
    OtherVersion {
        /// The log.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The format that this program reads.
        known: u32,
    },
    /// The log has invalid content before its end.
    #[error(
        "coordinator: {path} is damaged at byte {offset}: {detail}. Nothing was changed. Restore the file from a copy; \
         or move it away to begin with an empty coordinator, which assigns each region to the best copy that the \
         servers then find on their volumes"
    )]
    Damaged {
        /// The log.
        path: PathBuf,
        /// Where the first bad batch begins.
        offset: u64,
        /// What is wrong.
        detail: String,
    },
}

/// Advice about an error of the operating system that says too little.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            ". A file is where a directory should be: name another directory, or move the file away"
        }
        io::ErrorKind::IsADirectory => ". It should be a file: move the directory away, or use another one",
        _ => "",
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HostError {
    let path = path.display().to_string();
    move |source| HostError::Io { what, path, source }
}

/// The log, open for appending.
#[derive(Debug)]
pub(super) struct Log {
    directory: PathBuf,
    file: File,
    /// Number of the next batch.
    sequence: u64,
    bytes: u64,
    snapshot_bytes: u64,
    _lock: File,
}

impl Log {
    /// Opens the log in `directory`, making both if they are missing, and returns the tree that it holds.
    pub(super) fn open(directory: &Path) -> Result<(Log, Tree), HostError> {
        std::fs::create_dir_all(directory).map_err(failed("create", directory))?;
        let lock = lock(directory)?;
        let path = directory.join(LOG_FILE);
        if !path.try_exists().map_err(failed("look for", &path))? {
            let tree = Tree::new();
            let (file, bytes) = write_new(directory, 1, &tree).map_err(failed("create", &path))?;
            let log = Log { directory: directory.into(), file, sequence: 2, bytes, snapshot_bytes: bytes, _lock: lock };
            return Ok((log, tree));
        }
        let content = std::fs::read(&path).map_err(failed("read", &path))?;
        // If a batch of this version follows, the log is a damaged log of this version.
        if let Err(DecodeError::Version { found, known, .. }) = frame_bytes(KIND, &content, MAX_LOG_BATCH_BYTES)
            && find_batch(&content, 1, 0).is_none()
        {
            return Err(HostError::OtherVersion { path, found, known });
        }
        let replayed = replay(&content).map_err(|(offset, detail)| HostError::Damaged {
            path: path.clone(),
            offset: offset as u64,
            detail,
        })?;
        let file = OpenOptions::new().append(true).open(&path).map_err(failed("open", &path))?;
        if replayed.bytes < content.len() {
            tracing::warn!(path = %path.display(), offset = replayed.bytes, bytes = content.len() - replayed.bytes,
                "the coordinator's log ends in a batch that was never completed or acknowledged: it is cut off");
            file.set_len(replayed.bytes as u64).map_err(failed("truncate", &path))?;
            file.sync_all().map_err(failed("sync", &path))?;
        }
        let log = Log {
            directory: directory.into(),
            file,
            sequence: replayed.sequence,
            bytes: replayed.bytes as u64,
            snapshot_bytes: replayed.snapshot_bytes as u64,
            _lock: lock,
        };
        Ok((log, replayed.tree))
    }

    /// Appends one batch and makes it durable. After an error the log must not be used: its content is unknown.
    pub(super) fn append(&mut self, entries: Vec<LogEntry>) -> io::Result<()> {
        let mut frame = Vec::new();
        write_frame(KIND, &LogBatch { sequence: self.sequence, entries }, &mut frame);
        self.file.write_all(&frame)?;
        self.file.sync_data()?;
        self.sequence += 1;
        self.bytes += frame.len() as u64;
        Ok(())
    }

    /// Begins a new file with a snapshot of `tree` once the old one is mostly history. After an error the log must
    /// not be used.
    pub(super) fn compact_if_due(&mut self, tree: &Tree) -> io::Result<()> {
        if self.bytes < MIN_COMPACTION_BYTES.max(self.snapshot_bytes * 2) {
            return Ok(());
        }
        let (file, bytes) = write_new(&self.directory, self.sequence, tree)?;
        self.file = file;
        self.sequence += 1;
        self.bytes = bytes;
        self.snapshot_bytes = bytes;
        Ok(())
    }

    /// From now on the device is full.
    #[cfg(test)]
    pub(super) fn fill_disk(&mut self) {
        self.file = OpenOptions::new().write(true).open("/dev/full").expect("every Linux has it");
    }
}

fn lock(directory: &Path) -> Result<File, HostError> {
    let path = directory.join("coordinator.lock");
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(HostError::Locked { path }),
        Err(TryLockError::Error(error)) => Err(failed("lock", &path)(error)),
    }
}

/// Writes a log that holds only a snapshot, and replaces the log by it in one step.
fn write_new(directory: &Path, sequence: u64, tree: &Tree) -> io::Result<(File, u64)> {
    let new = directory.join("coordinator.log.new");
    let mut frame = Vec::new();
    write_frame(KIND, &LogBatch { sequence, entries: vec![LogEntry::Snapshot(tree.snapshot())] }, &mut frame);
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(&new)?;
    file.write_all(&frame)?;
    file.sync_all()?;
    std::fs::rename(&new, directory.join(LOG_FILE))?;
    File::open(directory)?.sync_all()?;
    Ok((file, frame.len() as u64))
}

struct Replayed {
    tree: Tree,
    sequence: u64,
    bytes: usize,
    snapshot_bytes: usize,
}

/// Replays every batch of `content`. The error says where a bad batch begins, and what is wrong with it.
fn replay(content: &[u8]) -> Result<Replayed, (usize, String)> {
    let mut replayed = Replayed { tree: Tree::new(), sequence: 0, bytes: 0, snapshot_bytes: 0 };
    while replayed.bytes < content.len() {
        let offset = replayed.bytes;
        let why = match read_frame::<LogBatch>(KIND, &content[offset..], MAX_LOG_BATCH_BYTES) {
            Ok(Some((batch, bytes))) => {
                replayed.take(batch).map_err(|detail| (offset, detail))?;
                replayed.bytes += bytes;
                if offset == 0 {
                    replayed.snapshot_bytes = bytes;
                }
                continue;
            }
            Ok(None) => "the batch is incomplete".to_owned(),
            Err(error) => error.to_string(),
        };
        if offset == 0 {
            return Err((0, why));
        }
        if let Some(later) = find_batch(content, offset + 1, replayed.sequence) {
            return Err((offset, format!("{why}, and a whole batch follows at byte {later}")));
        }
        break;
    }
    if replayed.bytes == 0 {
        return Err((0, "the file is empty".into()));
    }
    Ok(replayed)
}

impl Replayed {
    fn take(&mut self, batch: LogBatch) -> Result<(), String> {
        let first = self.bytes == 0;
        if !first && batch.sequence != self.sequence {
            return Err(format!("batch {} where {} is due", batch.sequence, self.sequence));
        }
        if batch.entries.is_empty() {
            return Err("a batch holds nothing".into());
        }
        self.sequence = batch.sequence + 1;
        for (index, entry) in batch.entries.into_iter().enumerate() {
            if matches!(entry, LogEntry::Snapshot(_)) != (first && index == 0) {
                return Err("a snapshot is the first entry of a log, and nowhere else".into());
            }
            self.tree.replay(entry)?;
        }
        Ok(())
    }
}

/// Where a whole batch of number `sequence` or later begins, at `from` or after.
fn find_batch(content: &[u8], from: usize, sequence: u64) -> Option<usize> {
    (from..content.len()).find(|offset| {
        let frame = read_frame::<LogBatch>(KIND, &content[*offset..], MAX_LOG_BATCH_BYTES);
        matches!(frame, Ok(Some((batch, _))) if batch.sequence >= sequence)
    })
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;

//! The host's log: one file of checksummed frames, the first a snapshot of the tree, each other one batch of changes.
//!
//! ```text
//! coordinator.log        | LogBatch 41: Snapshot | LogBatch 42: Opened, Applied | LogBatch 43: Closed | 0 0 0 ...
//! coordinator.log.new    the next file while a compaction writes it; renamed over the log once it is durable
//! coordinator.lock       held by the process that uses the directory
//! ```
//! Invariants: a batch is one frame, and is durable before the next is written, so only the last can be torn. Batches are
//! numbered without a gap. An incomplete batch after the last was never acknowledged and is overwritten with zeroes.
//! Anything wrong before a whole batch is damage, and an error. Used by the host's thread only.
//!
//! The zeroes after the last batch are room for more, which is written over. So on a full device nodes may start again,
//! which is how they get to delete something. On btrfs the file is written in place, or each batch would need room for
//! the block that the one before it ends in. A sync of a batch changes no length, so it writes no metadata.
//!
//! After a failed append the content of the file is unknown: the batch may be there in part, or in the page cache only.
//! [`Log::reopen`] ends that. It takes what can be read, and writes it to a new file before anything relies on it.

use crate::Tree;
use leeward_format::DecodeError;
use leeward_format::coordinator::{LogBatch, LogEntry, MAX_LOG_BATCH_BYTES};
use leeward_format::frame::{FrameKind, frame_bytes, read_frame, write_frame};
use leeward_platform::disk::{is_full, private, write_in_place};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The log in its directory.
pub(super) const LOG_FILE: &str = "coordinator.log";
/// The next log while it is written.
pub(super) const NEW_FILE: &str = "coordinator.log.new";

const KIND: FrameKind = FrameKind::CoordinatorLog;
/// A log is not compacted while it is shorter than this.
const MIN_COMPACTION_BYTES: u64 = 1024 * 1024;
/// Room after the last batch, when some is made.
const ROOM_BYTES: u64 = 1024 * 1024;
/// More is made while there is less than this.
const LEAST_ROOM_BYTES: u64 = ROOM_BYTES / 2;

/// Why a host cannot start.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The operating system refuses an operation.
    #[error("coordinator: cannot {what} {path}: {source}{}", advice(source))]
    Io {
        /// "listen at", "open" and the like: the verb of the message.
        what: &'static str,
        /// The file or address.
        path: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// Another process uses the directory.
    #[error("coordinator: {path} is in use by another process: stop it, or choose another directory")]
    Locked {
        /// `coordinator.lock` in the directory of the log.
        path: PathBuf,
    },
    /// Another version of Leeward wrote the log.
    #[error(
        "coordinator: {path} was written by another version of Leeward (frame format {found}, this program reads format \
         {known}). Nothing was changed. Use the version that wrote it, or give this one another directory"
    )]
    OtherVersion {
        /// Path of `coordinator.log`.
        path: PathBuf,
        /// Frame format that the file has.
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
        /// Path of `coordinator.log`.
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
    /// It is not compacted while it is shorter than this, because there was no room for that.
    compact_beyond: u64,
    /// The file is zeroes from the last batch up to here.
    room: u64,
    _lock: File,
}

impl Log {
    /// Opens the log in `directory`, making both if they are missing, and returns the tree that it holds.
    pub(super) fn open(directory: &Path) -> Result<(Log, Tree), HostError> {
        private::create_directory(directory).map_err(failed("create", directory))?;
        let lock = lock(directory)?;
        let path = directory.join(LOG_FILE);
        if !path.try_exists().map_err(failed("look for", &path))? {
            let tree = Tree::new();
            let (file, bytes) = write_new(directory, 1, &tree).map_err(failed("create", &path))?;
            let mut log = Log::of(directory, file, lock);
            log.begin(1, bytes);
            return Ok((log, tree));
        }
        let (replayed, torn_bytes) = read(&path)?;
        let file = OpenOptions::new().write(true).open(&path).map_err(failed("open", &path))?;
        if torn_bytes > 0 {
            tracing::warn!(path = %path.display(), offset = replayed.bytes, bytes = torn_bytes,
                "the coordinator's log ends in a batch that was never completed or acknowledged: it is cut off");
            file.write_all_at(&vec![0; torn_bytes], replayed.bytes as u64).map_err(failed("write", &path))?;
            file.sync_all().map_err(failed("sync", &path))?;
        }
        let mut log = Log {
            sequence: replayed.sequence,
            bytes: replayed.bytes as u64,
            snapshot_bytes: replayed.snapshot_bytes as u64,
            ..Log::of(directory, file, lock)
        };
        log.make_room();
        Ok((log, replayed.tree))
    }

    fn of(directory: &Path, file: File, lock: File) -> Log {
        let directory = directory.into();
        Log { directory, file, sequence: 0, bytes: 0, snapshot_bytes: 0, compact_beyond: 0, room: 0, _lock: lock }
    }

    /// After an error: reads the log again, writes what it holds to a new file in its place, and returns the tree. The
    /// batch that failed counts if it can be read.
    ///
    /// # Errors
    /// Nothing was changed, or the file was replaced; the log must still not be used.
    pub(super) fn reopen(&mut self) -> Result<Tree, HostError> {
        let path = self.directory.join(LOG_FILE);
        let (replayed, _) = read(&path)?;
        let (file, bytes) =
            write_new(&self.directory, replayed.sequence, &replayed.tree).map_err(failed("write", &path))?;
        self.file = file;
        self.begin(replayed.sequence, bytes);
        Ok(replayed.tree)
    }

    /// The file has one batch, a snapshot with this number.
    fn begin(&mut self, sequence: u64, bytes: u64) {
        (self.sequence, self.compact_beyond) = (sequence + 1, 0);
        (self.bytes, self.snapshot_bytes) = (bytes, bytes);
        self.room = 0;
        self.make_room();
    }

    /// Keeps room after the last batch. Without any the log goes on as long as the device has some.
    fn make_room(&mut self) {
        if self.room >= self.bytes + LEAST_ROOM_BYTES {
            return;
        }
        let from = self.bytes.max(self.file.metadata().map_or(0, |file| file.len()));
        let wanted = self.bytes + ROOM_BYTES;
        let zeroes = vec![0; wanted.saturating_sub(from) as usize];
        if let Err(error) = self.file.write_all_at(&zeroes, from) {
            // What was written of them is room too, and is found by the next call.
            tracing::debug!(%error, "the coordinator's log has little room");
            return;
        }
        self.room = wanted.max(from);
    }

    /// Appends one batch and makes it durable. After an error the log must not be used before [`Log::reopen`]: its
    /// content is unknown.
    pub(super) fn append(&mut self, entries: Vec<LogEntry>) -> io::Result<()> {
        let mut frame = Vec::new();
        write_frame(KIND, &LogBatch { sequence: self.sequence, entries }, &mut frame);
        self.file.write_all_at(&frame, self.bytes)?;
        self.file.sync_data()?;
        self.sequence += 1;
        self.bytes += frame.len() as u64;
        self.make_room();
        Ok(())
    }

    /// Begins a new file with a snapshot of `tree` once the old one is mostly history. If there is no room for it, the
    /// old one goes on. After an error the log must not be used before [`Log::reopen`].
    pub(super) fn compact_if_due(&mut self, tree: &Tree) -> io::Result<()> {
        if self.bytes < MIN_COMPACTION_BYTES.max(self.snapshot_bytes * 2).max(self.compact_beyond) {
            return Ok(());
        }
        let (file, bytes) = match prepare_new(&self.directory, self.sequence, tree) {
            Err(error) if is_full(&error) => {
                tracing::warn!(%error, "the coordinator's log is not compacted: there is no room for a second one");
                self.compact_beyond = self.bytes + MIN_COMPACTION_BYTES;
                return Ok(());
            }
            prepared => prepared?,
        };
        put_in_place(&self.directory)?;
        self.file = file;
        self.begin(self.sequence, bytes);
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
        private::options().create(true).truncate(false).write(true).open(&path).map_err(failed("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(HostError::Locked { path }),
        Err(TryLockError::Error(error)) => Err(failed("lock", &path)(error)),
    }
}

/// Writes a log that holds only a snapshot, and replaces the log by it in one step.
fn write_new(directory: &Path, sequence: u64, tree: &Tree) -> io::Result<(File, u64)> {
    let prepared = prepare_new(directory, sequence, tree)?;
    put_in_place(directory)?;
    Ok(prepared)
}

/// Writes such a log beside the log, durably. After an error there is none, and the log is what it was.
fn prepare_new(directory: &Path, sequence: u64, tree: &Tree) -> io::Result<(File, u64)> {
    let new = directory.join(NEW_FILE);
    let mut frame = Vec::new();
    write_frame(KIND, &LogBatch { sequence, entries: vec![LogEntry::Snapshot(tree.snapshot())] }, &mut frame);
    let file = private::options().create(true).write(true).truncate(true).open(&new)?;
    match write_in_place(&file).and_then(|()| file.write_all_at(&frame, 0)).and_then(|()| file.sync_all()) {
        Ok(()) => Ok((file, frame.len() as u64)),
        Err(error) => {
            // A part of it would only take room.
            drop(std::fs::remove_file(&new));
            Err(error)
        }
    }
}

fn put_in_place(directory: &Path) -> io::Result<()> {
    std::fs::rename(directory.join(NEW_FILE), directory.join(LOG_FILE))?;
    File::open(directory)?.sync_all()
}

/// What the log at `path` holds, and the bytes of a torn batch after it.
fn read(path: &Path) -> Result<(Replayed, usize), HostError> {
    let content = std::fs::read(path).map_err(failed("read", path))?;
    // If a batch of this version follows, the log is a damaged log of this version.
    if let Err(DecodeError::Version { found, known, .. }) = frame_bytes(KIND, &content, MAX_LOG_BATCH_BYTES)
        && find_batch(&content, 1, 0).is_none()
    {
        return Err(HostError::OtherVersion { path: path.into(), found, known });
    }
    let damaged = |(offset, detail)| HostError::Damaged { path: path.into(), offset: offset as u64, detail };
    let replayed = replay(&content).map_err(damaged)?;
    let torn_bytes = content[replayed.bytes..].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    Ok((replayed, torn_bytes))
}

struct Replayed {
    tree: Tree,
    sequence: u64,
    bytes: usize,
    snapshot_bytes: usize,
}

/// Replays every batch of `content`, up to the zeroes after the last. The error says where a bad batch begins, and what
/// is wrong with it.
fn replay(content: &[u8]) -> Result<Replayed, (usize, String)> {
    let mut replayed = Replayed { tree: Tree::new(), sequence: 0, bytes: 0, snapshot_bytes: 0 };
    while content[replayed.bytes..].iter().any(|byte| *byte != 0) {
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

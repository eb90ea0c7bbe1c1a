//! The volume's file, with the rule that a failed write ends all writing.
//!
//! **Full is not failed.** A write for which there is no room ([`is_full`]) has changed nothing that counts: its error is
//! [`Error::NoSpace`], and writing continues. That is so where room was not promised before: on a file system that copies
//! on write. Only a sync without room has lost what was written before. A caller whose memory is ahead of the file by
//! then says so itself ([`Device::fail`]).
//!
//! **One sync at a time.** An operating system reports a write that failed in the background once: the first sync that
//! ends after it fails, and the next one succeeds, although the data is still lost. So no two syncs run at the same
//! time, and all threads know the failure of one sync before the next begins. A caller that arrives during a sync waits
//! for the next one, which all waiting callers share (group commit): the running sync may have begun before the
//! caller's last write.
//!
//! Any thread may call anything.

use super::encryption::Sealer;
use crate::error::{Error, Result};
use bytes::Bytes;
use leeward_platform::disk::{Content, Pending, Read, is_full};
use leeward_platform::{Appender, Block, File};
use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
use std::thread;

/// The file, and whether it can still be trusted with writes.
#[derive(Debug)]
pub(crate) struct Device {
    file: Arc<dyn File>,
    /// Encrypts the manifest's entries, if the volume is encrypted.
    sealer: Option<Sealer>,
    failed: OnceLock<Error>,
    syncs: Mutex<Syncs>,
    /// Signals the end of a sync.
    synced: Condvar,
}

/// The syncs so far, numbered from 1.
#[derive(Debug, Default)]
struct Syncs {
    is_running: bool,
    /// Number of the last sync that was begun.
    begun: u64,
    /// Number of the last sync that succeeded.
    done: u64,
    /// Callers that wait for a sync.
    waiting: usize,
}

/// Proof that everything written before is durable. Only a successful sync makes one.
#[derive(Debug)]
pub(crate) struct Durable(());

impl Device {
    pub(crate) fn new(file: Arc<dyn File>) -> Device {
        Device { file, sealer: None, failed: OnceLock::new(), syncs: Mutex::default(), synced: Condvar::new() }
    }

    /// One of an encrypted volume, whose `file` encrypts everything but the manifest.
    pub(super) fn encrypted(file: Arc<dyn File>, sealer: Sealer) -> Device {
        Device { sealer: Some(sealer), ..Device::new(file) }
    }

    pub(crate) fn sealer(&self) -> Option<&Sealer> {
        self.sealer.as_ref()
    }

    pub(crate) fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// The reason why writes are refused, if they are.
    pub(crate) fn why_failed(&self) -> Option<&str> {
        match self.failed.get()? {
            Error::VolumeFailed { reason, .. } | Error::Panicked { reason, .. } => Some(reason),
            _ => unreachable!("there are two reasons to take no writes"),
        }
    }

    /// Refuses writes from now on, because the contents of the device are unknown.
    pub(crate) fn fail(&self, reason: &str) {
        self.refuse(Error::VolumeFailed { file: self.file.name().to_owned(), reason: reason.to_owned() });
    }

    /// This thread has panicked: refuses writes from now on, because the state in memory is unknown. Returns the error
    /// that writers get, which is that of the first failure.
    pub(crate) fn panicked(&self, panic: &(dyn Any + Send)) -> Error {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let thread = thread::current();
        let name = thread.name().unwrap_or("without a name");
        let reason = format!("thread {name} panicked ({})", text.unwrap_or("it did not say why"));
        let error = Error::Panicked { file: self.file.name().to_owned(), reason };
        self.refuse(error.clone());
        self.failed.get().cloned().unwrap_or(error)
    }

    fn refuse(&self, error: Error) {
        if self.failed.set(error).is_ok() {
            tracing::error!(file = self.file.name(), reason = self.why_failed(), "the volume takes no more writes");
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.file.read_at(buffer, offset).map_err(|error| self.error("read", offset, error))
    }

    pub(crate) fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        let offset = reads.first().map_or(0, |read| read.offset);
        self.file.read_many(reads).map_err(|error| self.error("read", offset, error))
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check()?;
        self.file.write_at(bytes, offset).map_err(|error| self.not_written(offset, error))
    }

    /// See [`File::begin_read`].
    pub(crate) fn begin_read(&self, offset: u64, buffer: Block) -> Pending {
        self.file.begin_read(buffer, offset)
    }

    /// See [`File::begin_write`]; the caller waits for it and reports a failure to [`Device::not_written`].
    pub(crate) fn begin_write(&self, offset: u64, bytes: Bytes) -> Result<Pending> {
        self.check()?;
        Ok(self.file.begin_write(bytes, offset))
    }

    pub(crate) fn write_buffered(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check()?;
        self.file.write_buffered_at(bytes, offset).map_err(|error| self.not_written(offset, error))
    }

    /// See [`File::write_padded_at`].
    pub(crate) fn write_padded(&self, offset: u64, bytes: &[u8], padding: usize) -> Result<()> {
        self.check()?;
        self.file.write_padded_at(bytes, padding, offset).map_err(|error| self.not_written(offset, error))
    }

    /// See [`File::renew`].
    pub(super) fn renew(&self, offset: u64, bytes: u64, content: Content) -> Result<()> {
        self.check()?;
        self.file.renew(offset, bytes, content).map_err(|error| self.not_written(offset, error))
    }

    /// See [`File::map`]. The range holds nothing yet, so a failure does not concern written data: writing continues.
    pub(crate) fn map(&self, offset: u64, bytes: usize) -> Result<Option<Appender>> {
        self.check()?;
        self.file.map(offset, bytes).map_err(|error| self.no_space("map", offset, error))
    }

    /// Makes everything durable that will be read from now on. The sync does that for the writes of an earlier process.
    /// Data that the device has lost is in the page cache only, where no sync finds it: it is dropped from there.
    pub(super) fn settle(&self) -> Result<()> {
        self.sync()?;
        self.file.forget_cached().map_err(|error| self.error("read", 0, error))
    }

    /// Makes everything written before durable. Never succeeds after a sync that has failed.
    pub(crate) fn sync(&self) -> Result<Durable> {
        let mut syncs = self.syncs.lock();
        let wanted = syncs.begun + 1;
        loop {
            self.check()?;
            if syncs.done >= wanted {
                return Ok(Durable(()));
            }
            if !syncs.is_running {
                break;
            }
            syncs.waiting += 1;
            self.synced.wait(&mut syncs);
            syncs.waiting -= 1;
        }
        let number = syncs.begun + 1;
        (syncs.is_running, syncs.begun) = (true, number);
        drop(syncs);
        let result = self.sync_file();
        let mut syncs = self.syncs.lock();
        syncs.is_running = false;
        if matches!(result, Ok(Ok(()))) {
            syncs.done = number;
        }
        if syncs.waiting > 0 {
            self.synced.notify_all();
        }
        drop(syncs);
        match result {
            Ok(synced) => synced.map(|()| Durable(())),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Syncs the file. When it returns, all threads know of a failure.
    fn sync_file(&self) -> thread::Result<Result<()>> {
        let synced = catch_unwind(AssertUnwindSafe(|| self.file.sync()));
        let synced = synced.inspect_err(|panic| drop(self.panicked(&**panic)))?;
        Ok(synced.map_err(|error| self.failed("sync", 0, error)))
    }

    /// Callers that wait for a sync.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.syncs.lock().waiting
    }

    /// Grows the file to `len` bytes, in segments of `segment_bytes`. A failure does not concern written data: writing
    /// continues.
    pub(crate) fn allocate(&self, len: u64, segment_bytes: u64) -> Result<()> {
        self.check()?;
        self.file.allocate(len, &[segment_bytes]).map_err(|error| self.no_space("grow", len, error))
    }

    /// Allocates the space of a range again. Errors as [`Device::allocate`].
    pub(crate) fn reserve(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check()?;
        self.file.reserve(offset, bytes).map_err(|error| self.no_space("reserve", offset, error))
    }

    /// See [`File::release`].
    pub(crate) fn release(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.check()?;
        self.file.release(offset, bytes).map_err(|error| self.error("release", offset, error))
    }

    fn no_space(&self, action: &'static str, offset: u64, error: io::Error) -> Error {
        match is_full(&error) {
            true => Error::NoSpace { file: self.file.name().to_owned(), detail: error.to_string() },
            false => self.error(action, offset, error),
        }
    }

    /// A write was not executed, or in part: refuses writes from now on, unless there was only no room for it.
    pub(super) fn not_written(&self, offset: u64, error: io::Error) -> Error {
        match is_full(&error) {
            true => self.no_space("write", offset, error),
            false => self.failed("write", offset, error),
        }
    }

    pub(crate) fn error(&self, action: &'static str, offset: u64, error: io::Error) -> Error {
        let (file, offset) = (self.file.name().to_owned(), self.file.place(offset));
        Error::Io { file, action, offset, source: Arc::new(error) }
    }

    /// A write failed: refuses writes from now on.
    pub(super) fn failed(&self, action: &'static str, offset: u64, error: io::Error) -> Error {
        let error = self.error(action, offset, error);
        self.fail(&error.to_string());
        error
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;

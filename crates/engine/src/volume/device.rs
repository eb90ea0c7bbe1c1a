//! The volume's file, with the rule that a failed write ends all writing.

use crate::error::{Error, Result};
use bytes::Bytes;
use leeward_platform::disk::{Pending, Read};
use leeward_platform::{Appender, Block, File};
use std::any::Any;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;

/// The file, and whether it can still be trusted with writes.
#[derive(Debug)]
pub(crate) struct Device {
    file: Arc<dyn File>,
    failed: OnceLock<Error>,
}

impl Device {
    pub(crate) fn new(file: Arc<dyn File>) -> Device {
        Device { file, failed: OnceLock::new() }
    }

    pub(crate) fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// Why nothing is written any more.
    pub(crate) fn why_failed(&self) -> Option<&str> {
        match self.failed.get()? {
            Error::VolumeFailed { reason, .. } | Error::Panicked { reason, .. } => Some(reason),
            _ => unreachable!("there are two reasons to take no writes"),
        }
    }

    /// Nothing is written from now on, since nobody knows what the device holds.
    pub(crate) fn fail(&self, reason: &str) {
        self.refuse(Error::VolumeFailed { file: self.file.name().to_owned(), reason: reason.to_owned() });
    }

    /// This thread has panicked: nothing is written from now on, since nobody knows what memory holds. Answers what writers are
    /// told, which is of the first failure.
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
        self.file.write_at(bytes, offset).map_err(|error| self.failed("write", offset, error))
    }

    /// See [`File::begin_read`].
    pub(crate) fn begin_read(&self, offset: u64, buffer: Block) -> Pending {
        self.file.begin_read(buffer, offset)
    }

    /// See [`File::begin_write`]; whoever waits for it tells [`Device::failed`].
    pub(crate) fn begin_write(&self, offset: u64, bytes: Bytes) -> Result<Pending> {
        self.check()?;
        Ok(self.file.begin_write(bytes, offset))
    }

    pub(crate) fn write_buffered(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check()?;
        self.file.write_buffered_at(bytes, offset).map_err(|error| self.failed("write", offset, error))
    }

    /// See [`File::map`]. Of a range that holds nothing yet: a failure says nothing about what is written.
    pub(crate) fn map(&self, offset: u64, bytes: usize) -> Result<Option<Appender>> {
        self.check()?;
        self.file.map(offset, bytes).map_err(|error| self.no_space("map", offset, error))
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.check()?;
        self.file.sync().map_err(|error| self.failed("sync", 0, error))
    }

    /// Grows the file to `len` bytes. A failure says nothing about what is written: writing goes on.
    pub(crate) fn allocate(&self, len: u64) -> Result<()> {
        self.file.allocate(len).map_err(|error| self.no_space("grow", len, error))
    }

    /// Takes the space of a range once more. As [`Device::allocate`].
    pub(crate) fn reserve(&self, offset: u64, bytes: u64) -> Result<()> {
        self.file.reserve(offset, bytes).map_err(|error| self.no_space("reserve", offset, error))
    }

    /// See [`File::release`].
    pub(crate) fn release(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.file.release(offset, bytes).map_err(|error| self.error("release", offset, error))
    }

    fn no_space(&self, action: &'static str, offset: u64, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::NoSpace { file: self.file.name().to_owned(), detail: error.to_string() }
            }
            _ => self.error(action, offset, error),
        }
    }

    pub(crate) fn error(&self, action: &'static str, offset: u64, error: io::Error) -> Error {
        Error::Io { file: self.file.name().to_owned(), action, offset, source: Arc::new(error) }
    }

    /// A write failed: nothing is written from now on.
    pub(super) fn failed(&self, action: &'static str, offset: u64, error: io::Error) -> Error {
        let error = self.error(action, offset, error);
        self.fail(&error.to_string());
        error
    }
}

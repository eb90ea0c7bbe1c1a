//! Errors of the engine, sorted by what the caller must do.

use leeward_format::{DecodeError, Epoch, ErrorKind, RegionId};
use std::io;
use std::sync::Arc;

/// Result of every call of the engine that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A fault. The variant says what the caller must do, [`Error::kind`] in fewer words. Bugs are assertions, and panic.
///
/// | error | kind | what to do |
/// |---|---|---|
/// | [`Invalid`](Error::Invalid) | [`Refused`](ErrorKind::Refused) | correct the call |
/// | [`NoSpace`](Error::NoSpace) | [`Operator`](ErrorKind::Operator) | make room, then try again; reads continue |
/// | [`Key`](Error::Key) | the same | give the key that the message names |
/// | [`Locked`](Error::Locked) | the same | close the other store, or drop its snapshots |
/// | [`Io`](Error::Io), [`VolumeFailed`](Error::VolumeFailed) | the same | check the device, open the store again |
/// | [`Panicked`](Error::Panicked) | the same | report the bug, open the store again |
/// | [`Damaged`](Error::Damaged) | the same | restore a copy: an exported checkpoint, or a backup of the directory |
/// | [`NotAVolume`](Error::NotAVolume) | the same | use another directory |
/// | [`OtherVersion`](Error::OtherVersion) | the same | use the version that made it, or another directory |
///
/// After any error of a write except the first two, the outcome of that write is unknown until the store is opened
/// again. On a file system that copies on write (btrfs with copies, ZFS) [`NoSpace`](Error::NoSpace) may leave it unknown
/// as well: room for a write cannot be made sure of before.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Bad input: nothing was written; do not retry.
    #[error("{0}")]
    Invalid(String),
    /// The volume or its device is full: nothing was lost, writes can continue when there is room.
    #[error("{file}: no space: {detail}")]
    NoSpace {
        /// The volume's file.
        file: String,
        /// The limit that was met.
        detail: String,
    },
    /// An operation on a file failed.
    #[error("{file}: {action} at offset {offset}: {source}")]
    Io {
        /// Its path, for messages: the volume's file or a directory.
        file: String,
        /// The failed operation.
        action: &'static str,
        /// Offset in the file, in bytes.
        offset: u64,
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
    /// An earlier write or sync failed, so it is unknown what the device holds: the volume takes no more writes.
    #[error("{file}: takes no writes since an earlier failure ({reason}); check the device, then restart the node")]
    VolumeFailed {
        /// The volume's file.
        file: String,
        /// Text of the first failure.
        reason: String,
    },
    /// A thread panicked while it changed the store, which is a bug. The state in memory is in doubt, the state on the
    /// device is not: the volume takes no more writes until it is opened again.
    #[error("{file}: takes no writes since {reason}, which is a bug; open it again")]
    Panicked {
        /// The volume's file.
        file: String,
        /// The thread, and its panic message.
        reason: String,
    },
    /// Durable bytes are not the bytes that were written.
    #[error("{file}: damaged at offset {offset}: {detail}; {advice}")]
    Damaged {
        /// Path of the volume's file.
        file: String,
        /// Offset in the file, in bytes.
        offset: u64,
        /// What is wrong with the bytes there.
        detail: String,
        /// What to do.
        advice: &'static str,
    },
    /// The file is no volume. Nothing was changed.
    #[error(
        "{file}: not a Leeward volume; nothing was changed. Give Leeward another directory, or move the file away if it \
         does not belong there"
    )]
    NotAVolume {
        /// Path of what should be a volume.
        file: String,
    },
    /// Another version of Leeward made the volume. Nothing was changed.
    #[error(
        "{file}: made by another version of Leeward (volume format {found}, this program reads format {known}); nothing \
         was changed. Use the version that made it, or give this one another directory"
    )]
    OtherVersion {
        /// Path of the volume's file.
        file: String,
        /// Volume format that the file has.
        found: u32,
        /// The format that this program reads.
        known: u32,
    },
    /// The volume is encrypted, and its key is missing or wrong. Nothing was changed.
    #[error("{file}: encrypted: {detail}; nothing was changed")]
    Key {
        /// Path of the volume's file.
        file: String,
        /// The key that is needed.
        detail: String,
    },
    /// Another process uses the data directory, or this one does: a closed store stays in use while a snapshot of it
    /// exists.
    #[error("{0}: in use by another process, or by a store or a snapshot of this one")]
    Locked(String),
    /// This object no longer represents the region: another one was opened since.
    #[doc(hidden)]
    #[error("region {0}: superseded on this volume")]
    Superseded(RegionId),
    /// The region's copy has seen a term as new as this one.
    #[doc(hidden)]
    #[error("region {region}: term {term} is not newer than {seen}")]
    StaleTerm {
        /// The one whose copy refuses the term.
        region: RegionId,
        /// The term asked for.
        term: Epoch,
        /// The term that the copy knows.
        seen: Epoch,
    },
    /// A peer's message does not fit the copy's state: begin its synchronisation again.
    #[doc(hidden)]
    #[error("region {region}: {detail}")]
    Protocol {
        /// The one whose copy the message is for.
        region: RegionId,
        /// What part of the message does not fit.
        detail: String,
    },
}

/// What to do about damage that a replica can repair.
pub const RESTORE: &str =
    "restore the volume from a backup, or remove its directory so that the node is rebuilt from the other replicas";

impl Error {
    /// What the caller does about it. After an error of a kind other than [`ErrorKind::Refused`] the outcome of a write may
    /// be unknown: see above.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Invalid(_) => ErrorKind::Refused,
            Error::Superseded(_) | Error::StaleTerm { .. } | Error::Protocol { .. } => ErrorKind::RetryNow,
            Error::NoSpace { .. } | Error::Key { .. } | Error::Locked(_) => ErrorKind::Operator,
            Error::Io { .. } | Error::VolumeFailed { .. } | Error::Panicked { .. } => ErrorKind::Operator,
            Error::Damaged { .. } | Error::NotAVolume { .. } | Error::OtherVersion { .. } => ErrorKind::Operator,
        }
    }

    /// Whether the device has lost what is there: its other sectors may be sound, and a write may mend this one.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self, Error::Io { source, .. } if leeward_platform::disk::is_unreadable(source))
    }

    /// Whether data that was written is not there any more, or cannot be read.
    pub fn is_damage(&self) -> bool {
        self.is_unreadable() || matches!(self, Error::Damaged { .. })
    }

    /// Bytes from a peer cannot be decoded.
    pub(crate) fn protocol(region: RegionId, detail: impl Into<String>) -> Error {
        Error::Protocol { region, detail: detail.into() }
    }

    /// Decoding failed at `offset` of `file`.
    pub(crate) fn damaged(file: &str, offset: u64, error: &DecodeError) -> Error {
        Error::Damaged { file: file.into(), offset, detail: error.to_string(), advice: RESTORE }
    }
}

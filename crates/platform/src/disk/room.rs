//! Room on the device for ranges of a file, which is made sure of before anything is written there.
//!
//! Where the file system has `fallocate` for the file, that does it. It is asked, because no name or number tells: ext4
//! has it, but not for a file of ext2 or ext3, which have the same magic number, and a FUSE file system has it or has it
//! not. Everywhere else zeroes are written, in each block that has none of the caller's bytes.
//!
//! What is promised so holds where a file system writes a block again in its place. One that copies on write needs room
//! for each write, and may refuse it. So does btrfs, except for files that are made with its mark against that, as all of
//! a [`RealDisk`](super::RealDisk) are.
//!
//! A limit on the size of files (`RLIMIT_FSIZE`) counts as the end of the room. Only writes beyond it are refused by the
//! system, also within a file that is longer, and each is a SIGXFSZ; so the limit is asked here, before.
//!
//! Any thread; two threads never make room for the same range.

use super::direct::retry;
use super::extents::has_space;
use super::real::Handles;
use rustix::fs::{FallocateFlags, FsWord, IFlags, fallocate, fstatfs, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io;
use std::sync::OnceLock;

/// Most bytes of zeroes that are written at once.
const PIECE_BYTES: usize = 64 << 10;
/// The smallest block of a file system. Zeroes among bytes may be a hole of that size.
const LEAST_BLOCK: usize = 1 << 10;

const BTRFS: FsWord = 0x9123_683e;

static ZEROES: [u8; PIECE_BYTES] = [0; PIECE_BYTES];

/// On btrfs, makes a new file one whose blocks are written again in their place: else each write needs room, which
/// nothing promises. Where it cannot be so, as with a mount that refuses it, the file is like any other there.
///
/// # Errors
/// Those of `fstatfs`.
pub fn write_in_place(file: &File) -> io::Result<()> {
    if fstatfs(file)?.f_type == BTRFS {
        let _ = ioctl_getflags(file).and_then(|flags| ioctl_setflags(file, flags | IFlags::NOCOW));
    }
    Ok(())
}

/// How room for ranges of one file is made.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Whether there is `fallocate` for the file, once it was asked.
    has_fallocate: OnceLock<bool>,
    /// `fallocate` finds no room for anything, as XFS on a full device.
    #[cfg(test)]
    is_refused: bool,
}

impl Room {
    /// Where `fallocate` is not asked, because there is none.
    #[cfg(test)]
    pub(super) fn without_fallocate() -> Room {
        Room { has_fallocate: OnceLock::from(false), is_refused: false }
    }

    /// Whether the file system makes room without writing.
    pub(super) fn has_fallocate(&self, file: &File) -> io::Result<bool> {
        if let Some(has) = self.has_fallocate.get() {
            return Ok(*has);
        }
        // The first block of a file is in use, or is its first to be.
        match self.call(file, FallocateFlags::KEEP_SIZE, 0, LEAST_BLOCK as u64) {
            // XFS looks for room before it finds that it needs none.
            Err(error) if super::is_full(&error) => Ok(true),
            asked => asked,
        }
    }

    /// Lengthens a file of `old` bytes to `len`, with room for what is added: for each of `extents` by itself, again and
    /// again, because some file systems give back only what they were asked for at once.
    ///
    /// # Errors
    /// The file has its old length.
    pub(super) fn grow(&self, handles: &Handles, old: u64, len: u64, extents: &[u64]) -> io::Result<()> {
        assert!(extents.iter().any(|bytes| *bytes > 0), "it grows by something");
        let grown = within_limit(len).and_then(|()| {
            let mut at = old;
            for extent in extents.iter().cycle() {
                if at == len {
                    break;
                }
                let end = (at + extent).min(len);
                if !self.call(&handles.buffered, FallocateFlags::empty(), at, end - at)? {
                    write_zeroes(handles, at, end - at)?;
                }
                at = end;
            }
            Ok(())
        });
        if grown.is_err() {
            handles.buffered.set_len(old)?;
        }
        grown
    }

    /// Makes room for a range of the file, whose bytes stay as they are.
    pub(super) fn reserve(&self, handles: &Handles, offset: u64, bytes: u64) -> io::Result<()> {
        within_limit(offset + bytes)?;
        match self.call(&handles.buffered, FallocateFlags::KEEP_SIZE, offset, bytes) {
            Ok(true) => Ok(()),
            Ok(false) => fill_holes(handles, offset, bytes),
            // XFS looks for room for the range before it finds that the range has room.
            Err(error) if super::is_full(&error) => match has_space(&handles.buffered, offset, bytes) {
                Ok(true) => Ok(()),
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Gives the room of a range back; `false` where the file system cannot.
    pub(super) fn release(&self, file: &File, offset: u64, bytes: u64) -> io::Result<bool> {
        self.call(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes)
    }

    /// `false` where there is no such call for the file.
    fn call(&self, file: &File, flags: FallocateFlags, offset: u64, bytes: u64) -> io::Result<bool> {
        if self.has_fallocate.get() == Some(&false) {
            return Ok(false);
        }
        #[cfg(test)]
        if self.is_refused {
            return Err(Errno::NOSPC.into());
        }
        let done = match retry(|| Ok(fallocate(file, flags, offset, bytes)?)) {
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::OPNOTSUPP | Errno::NOSYS)) => Ok(false),
            done => done.map(|()| true),
        };
        // Holes are a matter of their own.
        if !flags.contains(FallocateFlags::PUNCH_HOLE) {
            let has = !matches!(done, Ok(false));
            return if *self.has_fallocate.get_or_init(|| has) { done } else { Ok(false) };
        }
        done
    }
}

/// An error if this process may not write up to byte `end` of a file.
fn within_limit(end: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if end > limit => Err(Errno::FBIG.into()),
        _ => Ok(()),
    }
}

fn write_zeroes(handles: &Handles, offset: u64, bytes: u64) -> io::Result<()> {
    let end = offset + bytes;
    let mut at = offset;
    while at < end {
        let piece = (end - at).min(PIECE_BYTES as u64);
        handles.write_at(&ZEROES[..piece as usize], at)?;
        at += piece;
    }
    Ok(())
}

/// Writes zeroes where there are zeroes, because those may be holes.
fn fill_holes(handles: &Handles, offset: u64, bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    let end = offset + bytes;
    let mut at = offset;
    while at < end {
        let piece = &mut buffer[..(end - at).min(PIECE_BYTES as u64) as usize];
        handles.read_at(piece, at)?;
        let mut zeroes = 0;
        for block in piece.chunks(LEAST_BLOCK) {
            if block.iter().all(|byte| *byte == 0) {
                zeroes += block.len() as u64;
            } else {
                write_zeroes(handles, at, zeroes)?;
                at += zeroes + block.len() as u64;
                zeroes = 0;
            }
        }
        write_zeroes(handles, at, zeroes)?;
        at += zeroes;
    }
    Ok(())
}

#[cfg(test)]
#[path = "room_tests.rs"]
mod tests;

//! Rewrites an encrypted volume with a new data key: to another file, which then takes the place of the first.
//!
//! Until then the volume is as it was, whatever crashes; afterwards nothing of it is left that the old data key can read.
//! The contents stay the same byte for byte, and so does the volume's id. No process may use the volume. One thread.

use super::file::EncryptedFile;
use super::{Encryption, create_parts, open_parts};
use crate::error::{Error, Result};
use crate::volume::VOLUME_NAME;
use crate::volume::device::Device;
use crate::volume::manifest::Manifest;
use crate::volume::open::{file_len, read_superblock, reserved_bytes};
use leeward_format::superblock::SUPERBLOCK_COPY_OFFSET;
use leeward_platform::disk::Content;
use leeward_platform::{Block, Disk, File};
use std::io;
use std::sync::Arc;

/// Name of the new file, while it is written.
const NEW_NAME: &str = "volume.new";

/// Rewrites the volume of `disk`, which the caller has locked. The new data key is encrypted with the operator's current
/// key. Needs as much room as the volume takes. Calls `progress` with the number of rewritten segments and of all.
///
/// # Errors
/// [`Error::Invalid`] if it is not encrypted, [`Error::Key`], and those of reading and writing. The volume is unchanged.
pub fn rekey(disk: &dyn Disk, encryption: &Arc<Encryption>, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let of_disk = |action| move |error| Error::Io { file: NEW_NAME.into(), action, offset: 0, source: Arc::new(error) };
    let file = disk.open(VOLUME_NAME).map_err(of_disk("open"))?;
    let raw = Arc::new(Device::new(Arc::clone(&file)));
    raw.settle()?;
    let superblock = read_superblock(&raw, 0)?.filter(|superblock| superblock.is_encrypted());
    let superblock =
        superblock.ok_or_else(|| Error::Invalid(format!("{}: the volume is not encrypted", file.name())))?;
    let (old, old_file) = open_parts(&raw, &superblock, encryption)?;
    let (manifest, _) = Manifest::read(Arc::clone(&old), &superblock)?;

    disk.remove(NEW_NAME).map_err(of_disk("remove"))?;
    let new_raw = Device::new(disk.open(NEW_NAME).map_err(of_disk("open"))?);
    let len = file_len(&old)?;
    let segment_bytes = u64::from(superblock.segment_bytes);
    new_raw.allocate(reserved_bytes(&superblock), segment_bytes)?;
    let (new, new_file) = create_parts(&new_raw, &superblock, encryption)?;
    new.allocate(len, segment_bytes)?;
    copy(&old_file, &new_file, progress).map_err(|error| new_raw.error("rewrite", 0, error))?;
    manifest.copy(&new)?;
    for offset in [0, SUPERBLOCK_COPY_OFFSET] {
        new.write_buffered(offset, &superblock.encode())?;
    }
    new.sync()?;
    disk.replace(NEW_NAME, VOLUME_NAME).map_err(of_disk("rename"))
}

/// Copies all bytes of data segments that have a use.
fn copy(old: &EncryptedFile, new: &EncryptedFile, progress: &mut dyn FnMut(u64, u64)) -> io::Result<()> {
    let segments = old.segments()?;
    for segment in 0..segments {
        for (offset, bytes, content) in old.ranges(segment)? {
            new.renew(offset, bytes as u64, content)?;
            if content == Content::Plain {
                let mut block = Block::bare(bytes);
                old.read_at(&mut block, offset)?;
                new.write_at(&block, offset)?;
            }
        }
        progress(u64::from(segment) + 1, segments.into());
    }
    Ok(())
}

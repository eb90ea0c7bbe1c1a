//! Whether a range of a file has space on the device, by the kernel's map of the file's extents (`FIEMAP`). It counts
//! what is allocated and not yet written, which no read and no seek tells from a hole.
//!
//! Any thread. The file is only looked at.
#![expect(unsafe_code, reason = "the kernel writes extents into memory of a size that it is told")]

use rustix::ioctl::{self, Updater};
use std::fs::File;
use std::io;

const FIEMAP: ioctl::Opcode = ioctl::opcode::read_write::<Head>(b'f', 11);
/// Extents that are asked for at a time.
const AT_ONCE: usize = 32;
/// `FIEMAP_EXTENT_SHARED`: a write needs space of its own.
const SHARED: u32 = 0x2000;

/// `struct fiemap` without its extents.
#[repr(C)]
#[derive(Default)]
struct Head {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

#[repr(C)]
#[derive(Default)]
struct Map {
    head: Head,
    extents: [Extent; AT_ONCE],
}

/// Whether every byte of a range has space that a write can use.
///
/// # Errors
/// The file system has no such map, for example.
pub(super) fn has_space(file: &File, offset: u64, bytes: u64) -> io::Result<bool> {
    let end = offset + bytes;
    let mut at = offset;
    while at < end {
        let head = Head { start: at, length: end - at, extent_count: AT_ONCE as u32, ..Head::default() };
        let mut map = Map { head, ..Map::default() };
        // SAFETY: the kernel writes `extent_count` extents at most behind the head, and `Map` has that many there.
        unsafe { ioctl::ioctl(file, Updater::<FIEMAP, Map>::new(&mut map)) }?;
        let found = &map.extents[..(map.head.mapped_extents as usize).min(AT_ONCE)];
        if found.is_empty() {
            return Ok(false);
        }
        for extent in found {
            if extent.logical > at || extent.flags & SHARED != 0 {
                return Ok(false);
            }
            at = at.max(extent.logical.saturating_add(extent.length));
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, fallocate};
    use std::os::unix::fs::FileExt;

    #[test]
    fn holes_are_told_from_what_is_only_allocated() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 << 20).unwrap();
        let Ok(is_there) = has_space(&file, 0, 8 << 20) else { return eprintln!("no map of extents here") };
        assert!(!is_there, "all of it is a hole");
        fallocate(&file, FallocateFlags::KEEP_SIZE, 1 << 20, 1 << 20).unwrap();
        assert!(has_space(&file, 1 << 20, 1 << 20).unwrap());
        assert!(!has_space(&file, (1 << 20) - 4096, 1 << 20).unwrap(), "a block before it is a hole");
        assert!(!has_space(&file, (1 << 20) + 4096, 1 << 20).unwrap(), "a block behind it is a hole");
        // More extents than are asked for at a time, with and without bytes by turns.
        for at in (0..100).map(|block| (1 << 20) + block * 8192) {
            file.write_all_at(&[1; 4096], at).unwrap();
        }
        file.sync_all().unwrap();
        assert!(has_space(&file, 1 << 20, 1 << 20).unwrap());
        fallocate(&file, FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE, (1 << 20) + 90 * 8192, 4096).unwrap();
        assert!(!has_space(&file, 1 << 20, 1 << 20).unwrap());
    }
}

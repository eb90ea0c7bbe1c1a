//! Tests of room for ranges, with and without `fallocate`.

use super::super::{Disk, RealDisk, is_full};
use super::*;
use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;

const EXTENT: u64 = 256 << 10;

/// An empty file without a view past the page cache.
fn handles(dir: &tempfile::TempDir) -> Handles {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(dir.path().join("f")).unwrap();
    Handles::of(file, None)
}

fn allocated(handles: &Handles) -> u64 {
    handles.buffered.sync_all().unwrap();
    handles.buffered.metadata().unwrap().blocks() * 512
}

#[test]
fn without_fallocate_zeroes_make_the_room() {
    let dir = tempfile::tempdir().unwrap();
    let (handles, room) = (handles(&dir), Room::without_fallocate());
    room.grow(&handles, 0, EXTENT + 4096, &[EXTENT]).unwrap();
    assert_eq!(handles.buffered.metadata().unwrap().len(), EXTENT + 4096);
    assert!(allocated(&handles) >= EXTENT + 4096, "each block is there");
    assert!(!room.has_fallocate(&handles.buffered).unwrap());
    assert!(!room.release(&handles.buffered, 0, EXTENT).unwrap(), "and nothing is given back");
}

#[test]
fn without_fallocate_holes_are_filled_and_bytes_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (handles, room) = (handles(&dir), Room::without_fallocate());
    // As an earlier version left the zones of a manifest: longer, and without room.
    handles.buffered.set_len(EXTENT).unwrap();
    handles.write_at(b"bytes", 10_000).unwrap();
    handles.write_at(&[7; 3000], 100_000).unwrap();
    assert!(allocated(&handles) < EXTENT);
    room.reserve(&handles, 0, EXTENT).unwrap();
    assert!(allocated(&handles) >= EXTENT);
    let mut wanted = vec![0; EXTENT as usize];
    wanted[10_000..10_005].copy_from_slice(b"bytes");
    wanted[100_000..103_000].fill(7);
    let mut found = vec![1; EXTENT as usize];
    handles.read_at(&mut found, 0).unwrap();
    assert!(found == wanted, "no byte has changed");
}

/// XFS refuses room for what has room when nothing more is free.
#[test]
fn what_has_room_is_not_refused_because_the_device_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let (handles, room) = (handles(&dir), Room { is_refused: true, ..Room::default() });
    Room::default().grow(&handles, 0, EXTENT, &[EXTENT]).unwrap();
    if has_space(&handles.buffered, 0, EXTENT).is_err() {
        return eprintln!("no map of extents here");
    }
    room.reserve(&handles, 0, EXTENT).unwrap();
    handles.buffered.set_len(2 * EXTENT).unwrap();
    assert!(is_full(&room.reserve(&handles, EXTENT, EXTENT).unwrap_err()), "a hole has none");
    assert!(is_full(&room.grow(&handles, 2 * EXTENT, 3 * EXTENT, &[EXTENT]).unwrap_err()));
}

#[test]
fn the_file_system_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let (handles, room) = (handles(&dir), Room::default());
    let has = room.has_fallocate(&handles.buffered).unwrap();
    assert_eq!(handles.buffered.metadata().unwrap().len(), 0, "asking does not lengthen it");
    room.grow(&handles, 0, 3 * EXTENT, &[EXTENT]).unwrap();
    assert!(allocated(&handles) >= 3 * EXTENT);
    assert_eq!(room.release(&handles.buffered, EXTENT, EXTENT).unwrap(), has);
    room.reserve(&handles, EXTENT, EXTENT).unwrap();
    assert!(allocated(&handles) >= 3 * EXTENT);
}

/// Alone in its process, whose limit it lowers: a child of the test below.
#[test]
fn child_of_the_limit_on_the_size_of_files() {
    let Some(dir) = std::env::var_os("LEEWARD_TEST_LIMITED") else { return };
    let limit = rustix::process::Rlimit { current: Some(EXTENT), maximum: Some(EXTENT) };
    rustix::process::setrlimit(Resource::Fsize, limit).unwrap();
    let file = RealDisk::open(dir).unwrap().open("volume").unwrap();
    file.allocate(EXTENT, &[EXTENT]).unwrap();
    for error in [file.allocate(EXTENT + 1, &[EXTENT]).unwrap_err(), file.reserve(EXTENT - 1, 2).unwrap_err()] {
        assert!(is_full(&error), "{error}");
    }
    assert_eq!(file.len().unwrap(), EXTENT);
    file.write_at(&[1; 4096], EXTENT - 4096).unwrap();
    file.sync().unwrap();
    println!("alive");
}

/// A write beyond the limit is a signal that ends the process. None is tried.
#[test]
fn a_limit_on_the_size_of_files_is_the_end_of_the_room() {
    let dir = tempfile::tempdir().unwrap();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "disk::room::tests::child_of_the_limit_on_the_size_of_files", "--nocapture"])
        .env("LEEWARD_TEST_LIMITED", dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("alive"), "{:?}: {said}", child.status);
}

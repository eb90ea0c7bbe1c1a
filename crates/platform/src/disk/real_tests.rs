//! Tests of the real disk, on whatever file system the temporary directory is.

use super::*;
use crate::disk::ring;

fn disk() -> (tempfile::TempDir, RealDisk) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let disk = RealDisk::open(dir.path().join("data")).expect("a directory can be made");
    (dir, disk)
}

#[test]
fn both_ways_of_writing_are_read_back_whole() {
    let (_dir, disk) = disk();
    let file = disk.open("volume").unwrap();
    file.allocate(1 << 20, &[4096]).unwrap();
    assert_eq!(file.len().unwrap(), 1 << 20);
    let big: Vec<u8> = (0..600_000u32).map(|at| (at % 251) as u8).collect();
    file.write_at(&big[..524_288], 8192).unwrap();
    file.write_buffered_at(&big[..777], 100).unwrap();
    file.write_buffered_at(&[9; 10], 8192 + 4000).unwrap();
    file.sync().unwrap();
    let mut back = vec![0; 524_288];
    file.read_at(&mut back, 8192).unwrap();
    assert_eq!(back[..4000], big[..4000]);
    assert_eq!(back[4000..4010], [9; 10]);
    assert_eq!(back[4010..], big[4010..524_288]);
    let mut back = vec![0; 777];
    file.read_at(&mut back, 100).unwrap();
    assert_eq!(back, big[..777]);
    assert!(file.counters().bytes_written >= 524_288 + 777);
    assert!(file.counters().bytes_read >= 524_288 + 777);
}

#[test]
fn reading_past_the_end_is_an_error() {
    let (_dir, disk) = disk();
    let file = disk.open("short").unwrap();
    assert!(file.is_empty().unwrap());
    file.write_buffered_at(b"hello", 0).unwrap();
    let mut back = [0; 5];
    file.read_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"hello");
    let error = file.read_at(&mut [0; 6], 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn several_reads_are_those_of_one_after_the_other() {
    let (_dir, disk) = disk();
    let file = disk.open("volume").unwrap();
    let written: Vec<u8> = (0..2_000_000u32).map(|at| (at % 253) as u8).collect();
    file.write_buffered_at(&written, 0).unwrap();
    // More reads than a ring takes, of every length and alignment, also across the end of the file.
    let places: Vec<(usize, usize)> = (0..200).map(|i| (i * 7919 % 1_900_000, i * i % 40_000)).collect();
    for ways in 0..2 {
        let mut buffers: Vec<Vec<u8>> = places.iter().map(|(_, bytes)| vec![0; *bytes]).collect();
        let mut reads: Vec<Read<'_>> = places
            .iter()
            .zip(&mut buffers)
            .map(|((offset, _), buffer)| Read { offset: *offset as u64, buffer })
            .collect();
        file.read_many(&mut reads).unwrap();
        for ((offset, bytes), buffer) in places.iter().zip(&buffers) {
            assert_eq!(buffer[..], written[*offset..offset + bytes]);
        }
        let mut beyond = [0; 10];
        let mut good = [0; 10];
        let mut reads =
            [Read { offset: 0, buffer: &mut good }, Read { offset: written.len() as u64 - 5, buffer: &mut beyond }];
        assert_eq!(file.read_many(&mut reads).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        if ways == 0 {
            // As in a sandbox without rings.
            ring::go_without();
        }
    }
}

#[test]
fn one_lock_at_a_time() {
    let (_dir, disk) = disk();
    let held = disk.lock().unwrap();
    assert_eq!(disk.lock().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop(held);
    disk.lock().unwrap();
}

#[test]
fn files_come_and_go() {
    let (_dir, disk) = disk();
    assert!(!disk.exists("a").unwrap());
    disk.remove("a").unwrap();
    disk.open("a").unwrap();
    assert!(disk.exists("a").unwrap());
    disk.remove("a").unwrap();
    assert!(!disk.exists("a").unwrap());
}

#[test]
fn a_reader_needs_no_file_to_write_to_makes_none_and_writes_none() {
    let (dir, disk) = disk();
    assert_eq!(disk.open_to_read("volume").unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(disk.lock_to_read().unwrap().is_none(), "nobody has it");
    assert_eq!(fs::read_dir(dir.path().join("data")).unwrap().count(), 0, "nothing was made");
    let written = disk.open("volume").unwrap();
    let block = vec![7; DIRECT_ALIGN];
    written.write_at(&block, 0).unwrap();
    let read = disk.open_to_read("volume").unwrap();
    let mut back = vec![0; DIRECT_ALIGN];
    read.read_at(&mut back, 0).unwrap();
    assert_eq!(back, block);
    assert!(read.write_at(&block, 0).is_err() && read.write_buffered_at(&block, 0).is_err());
    assert!(read.allocate(1 << 20, &[1 << 20]).is_err());
    // Readers keep out writers, and not each other.
    drop(disk.lock().unwrap());
    let readers = [disk.lock_to_read().unwrap(), disk.lock_to_read().unwrap()];
    assert!(readers.iter().all(Option::is_some));
    assert_eq!(disk.lock().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop(readers);
    let _writer = disk.lock().unwrap();
    assert_eq!(disk.lock_to_read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

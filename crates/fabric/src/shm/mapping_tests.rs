//! What the kernel refuses to a process that was passed a file for reading.

use super::*;
use rustix::mm::MprotectFlags;
use std::{
    fs::File,
    os::{fd::AsRawFd, unix::fs::FileExt},
};

const BYTES: usize = 3 * PAGE_BYTES;

fn refused<T>(what: io::Result<T>, expected: Errno) {
    assert_eq!(what.err().and_then(|error| error.raw_os_error()), Some(expected.raw_os_error()));
}

#[test]
fn no_process_but_the_owner_can_write_a_file_that_is_passed_for_reading() {
    let (file, owner) = create(BYTES, Permission::ReadOnly).expect("there is memory");
    owner.words()[0].store(7, Ordering::Relaxed);
    let passed = file.try_clone().expect("a descriptor is left");
    let again = File::options().read(true).write(true).open(format!("/proc/self/fd/{}", passed.as_raw_fd()));
    for file in [passed, again.expect("its own user may open it again").into()] {
        refused(Mapping::new(&file, BYTES).map(drop), Errno::PERM);
        refused(Span::map(&file, PAGE_BYTES, ProtFlags::WRITE).map(drop), Errno::PERM);
        refused(release(&file, 0..PAGE_BYTES), Errno::PERM);
        refused(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).map_err(io::Error::from), Errno::PERM);
        let file = File::from(file);
        refused(file.write_at(&[1; 8], 0), Errno::PERM);
        for len in [0, PAGE_BYTES, 4 * PAGE_BYTES] {
            refused(file.set_len(len as u64), Errno::PERM);
        }
    }
    assert_eq!(owner.words()[0].load(Ordering::Relaxed), 7);
}

#[test]
fn a_mapping_for_reading_cannot_be_made_writable() {
    let (file, owner) = create(BYTES, Permission::ReadOnly).expect("there is memory");
    let reader = ReadMapping::new(&file, BYTES).expect("it can be mapped");
    // SAFETY: the protection of a whole mapping is changed, or rather not: nothing is stored through it.
    let changed =
        unsafe { rustix::mm::mprotect(reader.0.start.as_ptr(), BYTES, MprotectFlags::READ | MprotectFlags::WRITE) };
    refused(changed.map_err(io::Error::from), Errno::ACCESS);
    owner.words()[1].store(5, Ordering::Relaxed);
    assert_eq!(reader.word(1), 5);
    let mut bytes = [9; 20];
    reader.copy_out(4, &mut bytes);
    let mut expected = [0; 20];
    expected[4] = 5;
    assert_eq!(bytes, expected);
}

#[test]
fn a_reader_refuses_a_file_that_others_can_write_or_whose_size_is_another() {
    let (file, _owner) = create(BYTES, Permission::ReadWrite).expect("there is memory");
    refused_as_invalid(ReadMapping::new(&file, BYTES));
    let (file, _owner) = create(BYTES, Permission::ReadOnly).expect("there is memory");
    for bytes in [0, 1, 8, BYTES - 8, BYTES + 8, usize::MAX - 7] {
        refused_as_invalid(ReadMapping::new(&file, bytes));
    }
    assert!(ReadMapping::new(&file, BYTES).is_ok());
}

fn refused_as_invalid(mapped: io::Result<ReadMapping>) {
    assert_eq!(mapped.err().expect("it is refused").kind(), io::ErrorKind::InvalidData);
}

#[test]
fn a_mapping_outlives_its_owner_and_its_file() {
    let (file, owner) = create(BYTES, Permission::ReadOnly).expect("there is memory");
    let reader = ReadMapping::new(&file, BYTES).expect("it can be mapped");
    owner.words()[0].store(7, Ordering::Relaxed);
    drop((file, owner));
    let mut bytes = vec![1; BYTES];
    reader.copy_out(0, &mut bytes);
    assert!(bytes[0] == 7 && bytes[1..].iter().all(|byte| *byte == 0));
}

//! Revocation against writers that do not stop, and invalid files.

use super::*;
use leeward_platform::Rng;
use std::{fs, os::fd::AsFd, sync::atomic::AtomicBool, thread};

fn owner(len: usize) -> Arc<FileMemory<()>> {
    owner_with(Permission::ReadWrite, len)
}

fn owner_with(permission: Permission, len: usize) -> Arc<FileMemory<()>> {
    let registry = Arc::new(Registry::new(Rng::new(1)));
    FileMemory::register(&registry, &Arc::default(), (permission, len), |_| Ok(())).expect("there is memory")
}

#[test]
fn what_was_completed_is_kept_and_nothing_changes_after_a_revocation() {
    for _ in 0..100 {
        let owner = owner(4096);
        let file = owner.file().unwrap().unwrap();
        let peer = PeerMemory::map(&file, owner.handle).unwrap();
        let (completed, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                // Goes on after the revocation, as if the peer never looked before it copied.
                let (_, data) = peer.mapping.words().split_at(HEADER / WORD);
                for round in 1u64.. {
                    if peer.write(8, &round.to_le_bytes()) {
                        completed.store(round, Ordering::Release);
                    } else {
                        words::copy_in(data, 8, &u64::MAX.to_le_bytes());
                    }
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            while completed.load(Ordering::Acquire) < 50 {
                std::hint::spin_loop();
            }
            owner.revoke();
            let settled = owner.load_u64(8);
            stop.store(true, Ordering::Relaxed);
            for _ in 0..100 {
                assert_eq!(owner.load_u64(8), settled);
            }
            assert!(settled >= completed.load(Ordering::Acquire), "a completed write was lost");
        });
        assert!(owner.load_u64(8) >= completed.load(Ordering::Acquire), "a completed write was lost");
    }
}

#[test]
fn files_of_another_size_or_without_seals_are_refused() {
    let owner = owner(100);
    let file = owner.file().unwrap().unwrap();
    assert!(PeerMemory::map(&file, owner.handle).is_ok());
    for len in [0, 96, 105, 1 << 20, u64::MAX - 7, u64::MAX] {
        assert!(PeerMemory::map(&file, Handle { len, ..owner.handle }).is_err(), "{len}");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("plain");
    fs::write(&path, vec![0; 104 + HEADER]).unwrap();
    let plain = fs::File::options().read(true).write(true).open(path).unwrap();
    assert!(PeerMemory::map(&plain.into(), owner.handle).is_err(), "a file that could be cut under its users");
}

#[test]
fn a_peer_cannot_resize_the_file() {
    let owner = owner(100);
    let file = owner.file().unwrap().unwrap();
    for len in [0, HEADER as u64, 1 << 20] {
        assert!(rustix::fs::ftruncate(file.as_fd(), len).is_err());
    }
}

#[test]
fn an_owner_that_drops_its_memory_is_seen_by_peers() {
    let owner = owner(8);
    let file = owner.file().unwrap().unwrap();
    let peer = PeerMemory::map(&file, owner.handle).unwrap();
    assert!(peer.write(0, &[1; 8]) && peer.read(0, 8).is_some());
    assert_eq!(owner.moved(), (8, 8));
    let counters = Arc::clone(&owner.counters);
    drop(owner);
    assert!(peer.is_revoked() && !peer.write(0, &[1; 8]) && peer.read(0, 8).is_none());
    assert_eq!(counters.snapshot(), crate::FabricCounters { bytes_sent: 8, bytes_received: 8 });
}

#[test]
fn revoked_memory_is_not_passed_on() {
    let owner = owner(8);
    owner.revoke();
    assert!(owner.file().unwrap().is_none());
    let owner = owner_with(Permission::ReadOnly, 8);
    owner.revoke();
    assert!(owner.file().unwrap().is_none());
}

#[test]
fn what_peers_may_only_read_is_not_written_for_them_and_not_mapped_for_writing() {
    let owner = owner_with(Permission::ReadOnly, 100);
    owner.write(0, &[7; 100]);
    for (offset, bytes) in [(0, &[][..]), (0, &[1; 8]), (3, &[1; 97])] {
        assert!(owner.admits(offset, bytes.len() as u64) && !owner.remote_write(offset, bytes));
    }
    let file = owner.file().unwrap().unwrap();
    let error = PeerMemory::map(&file, owner.handle).err().expect("the kernel refuses");
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::PERM.raw_os_error()));
    let mut bytes = [0; 100];
    assert!(owner.remote_read(0, &mut bytes) && bytes == [7; 100]);
    owner.revoke();
    assert!(!owner.admits(0, 1) && !owner.remote_read(0, &mut bytes));
}

#[test]
fn an_owner_goes_on_with_what_it_revoked_for_readers() {
    let owner = owner_with(Permission::ReadOnly, 16);
    owner.write(0, &[7; 16]);
    owner.revoke();
    owner.revoke();
    owner.store_u64(8, 9);
    assert_eq!((owner.load_u64(0), owner.load_u64(8)), (u64::from_le_bytes([7; 8]), 9));
}

#[test]
fn a_process_with_too_many_files_is_told_what_to_do() {
    use rustix::io::Errno;
    let told = explained(Errno::MFILE.into()).to_string();
    assert!(told.starts_with("Too many open files") && told.contains("ulimit -Hn"), "{told}");
    assert_eq!(explained(Errno::NOMEM.into()).raw_os_error(), Some(Errno::NOMEM.raw_os_error()));
}

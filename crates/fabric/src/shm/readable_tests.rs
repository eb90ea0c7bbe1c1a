//! Which mapping readers find while connections come and go, and reads under a revocation.

use super::*;
use crate::{
    Memory,
    memory::{Permission, Registry},
    shm::memory::FileMemory,
};
use leeward_platform::Rng;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

const LEN: usize = 100;
const PLACE: RemotePlace = (PeerId(3), 1, 2);

fn owner() -> (Arc<FileMemory<()>>, Handle) {
    let registry = Arc::new(Registry::new(Rng::new(1)));
    let owner = FileMemory::register(&registry, &Arc::default(), (Permission::ReadOnly, LEN), |_| Ok(()));
    let owner = owner.expect("there is memory");
    let handle = Handle::to_write(&owner.descriptor(), crate::memory::Transport::Shm);
    assert_eq!(handle, None, "its descriptor does not allow to write");
    let handle = Handle::to_read(&owner.descriptor(), crate::memory::Transport::Shm).expect("it is its descriptor");
    (owner, handle)
}

fn mapped(owner: &FileMemory<()>, handle: Handle) -> PeerReadable {
    let file = owner.file().expect("a descriptor is left").expect("it is not revoked");
    PeerReadable::map(&file, handle).expect("it can be mapped")
}

#[test]
fn reads_are_of_the_memory_and_of_nothing_else() {
    let (owner, handle) = owner();
    owner.write(0, &[7; LEN]);
    let peer = mapped(&owner, handle);
    for (offset, len) in [(0, LEN), (1, 7), (93, 7), (100, 0)] {
        assert_eq!(peer.read_new(offset, len as u32), Some(vec![7; len]), "{len} at {offset}");
    }
    let mut buffer = [1; LEN + 1];
    for (offset, len) in [(0, LEN + 1), (100, 1), (101, 0), (u64::MAX, 1), (u64::MAX - 7, 8), (1 << 40, 0)] {
        assert_eq!(peer.read_new(offset, len as u32), None, "{len} at {offset}");
        assert!(!peer.read(offset, &mut buffer[..len]));
    }
    assert_eq!((peer.read_new(0, u32::MAX), buffer), (None, [1; LEN + 1]), "and nothing was copied");
    let file = owner.file().expect("a descriptor is left").expect("it is not revoked");
    for len in [0, 96, 105, 1 << 20, u64::MAX - 7, u64::MAX] {
        assert!(PeerReadable::map(&file, Handle { len, ..handle }).is_err(), "{len}");
    }
}

#[test]
fn what_is_revoked_or_dropped_is_refused_and_stays_mapped() {
    let (first, handle) = owner();
    let peer = mapped(&first, handle);
    first.revoke();
    first.write(0, &[7; LEN]);
    assert!(peer.is_revoked() && peer.read_new(0, 8).is_none());
    let (second, handle) = owner();
    let peer = mapped(&second, handle);
    assert!(peer.read(0, &mut [0; 8]));
    drop(second);
    assert!(peer.is_revoked() && !peer.read(0, &mut [0; 8]));
}

#[test]
fn a_later_connection_keeps_what_an_earlier_one_gives_up() {
    let (owner, handle) = owner();
    let table = Arc::new(Readables::default());
    assert!(table.find(PLACE).is_none());
    let first = table.list(PLACE, mapped(&owner, handle));
    let second = table.list(PLACE, mapped(&owner, handle));
    let found = |of: &Listed| table.find(PLACE).is_some_and(|found| Arc::ptr_eq(&found, &of.memory));
    assert!(found(&second));
    drop(first);
    assert!(found(&second), "the earlier connection ended after the later one had begun");
    let held = table.find(PLACE).expect("it is listed");
    drop(second);
    assert!(table.find(PLACE).is_none());
    assert!(held.read(0, &mut [0; LEN]), "a reader that had found it still reads");
}

/// An owner writes pairs of words, whole words each, and revokes. No read that succeeds has half of a word, and none
/// succeeds once a reader knows of the revocation.
#[test]
fn reads_race_with_the_owner_and_end_with_its_revocation() {
    for _ in 0..20 {
        let (owner, handle) = owner();
        let peer = mapped(&owner, handle);
        let (revoked, began) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut copied = 0;
                loop {
                    let knows = revoked.load(Ordering::Acquire);
                    let mut bytes = [0; 64];
                    if !peer.read(8, &mut bytes) {
                        break;
                    }
                    assert!(!knows, "a read after the revocation");
                    for word in bytes.as_chunks::<8>().0 {
                        assert_eq!(*word, [word[0]; 8], "half of a word");
                    }
                    copied += 1;
                    began.store(copied > 20, Ordering::Release);
                }
            });
            for round in (0..=u8::MAX).cycle() {
                owner.write(8, &[round; 64]);
                if began.load(Ordering::Acquire) {
                    break;
                }
            }
            owner.revoke();
            revoked.store(true, Ordering::Release);
        });
    }
}

//! Moments during a split or an insert in which a reader may run. Small enough for Miri.

use super::*;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

/// Entries of the key that sorts as `n`, with the LSN `n + 1`.
fn put(tree: &BLink, n: u16) {
    tree.insert(&n.to_be_bytes(), Lsn(u64::from(n) + 1).into(), Entry::Tombstone);
}

fn keys_from(found: Option<FoundEntry<'_>>) -> Vec<u16> {
    let found = std::iter::successors(found, |found| found.next());
    found.map(|found| u16::from_be_bytes(found.key().try_into().expect("two bytes"))).collect()
}

/// A split links the new node before the old one counts fewer slots. Story of a bug: a reader that came to the old
/// node's end continued at the beginning of the new one, whose entries it had seen already.
#[test]
fn the_end_of_a_leaf_that_is_being_split_leads_to_none_of_its_own_entries() {
    let tree = BLink::new(Pool::new(0));
    let keys = 0..SLOTS as u16;
    keys.clone().for_each(|n| put(&tree, n));
    let leaf = tree.node(tree.root.load(Relaxed));
    let slots: [At; SLOTS] = array::from_fn(|slot| leaf.slots[slot].load(Relaxed));
    let upper = &slots[SLOTS / 2..];
    let right = tree.new_node(&mut tree.writer.lock(), 0, upper, Scale::unknown(), NOWHERE);
    leaf.next.store(right, Release);
    assert_eq!(keys_from(tree.seek(&[], Lsn(u64::MAX))), keys.collect::<Vec<_>>());
}

/// Story of a bug: a reader was on an entry that was moved to the right, where there were more entries by then than it
/// had counted. It skipped the entries that follow. And because a moved entry appears twice for a moment, the entry
/// could follow itself.
#[test]
fn what_follows_an_entry_that_is_being_moved_is_found() {
    for _ in 0..if cfg!(miri) { 3 } else { 3000 } {
        let (tree, ready, is_over) = (BLink::new(Pool::new(0)), Barrier::new(2), AtomicBool::new(false));
        let (here, next) = (SLOTS as u16, SLOTS as u16 + 1);
        put(&tree, here);
        put(&tree, next);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let first = tree.seek(&[], Lsn(u64::MAX)).expect("there are two");
                ready.wait();
                // The entry is moved meanwhile, so the reader searches its leaf for it.
                while !is_over.load(Relaxed) {
                    assert_eq!(keys_from(first.next()), [next]);
                }
            });
            ready.wait();
            (2..SLOTS as u16).rev().for_each(|n| put(&tree, n));
            is_over.store(true, Relaxed);
        });
    }
}

//! Each block belongs to one owner, and unused memory returns to the system.

use super::*;
use crate::Rng;
use std::sync::mpsc::sync_channel;
use std::thread;

#[test]
fn blocks_are_of_one_owner_each() {
    let pool = Pool::new(64 << 10);
    let mut rng = Rng::new(1);
    let mut blocks: Vec<(u8, Block)> = Vec::new();
    let rounds = if cfg!(miri) { 200 } else { 20_000u32 };
    for round in 0..rounds {
        if blocks.len() > 50 || (!blocks.is_empty() && rng.one_in(3)) {
            let (byte, block) = blocks.swap_remove(rng.index(blocks.len()));
            assert_eq!(*block, vec![byte; block.len()][..]);
        } else {
            let most = match rng.index(200) {
                0 => 3 << 20,
                1..10 => 500_000,
                _ => 40_000,
            };
            let bytes = rng.index(most);
            let mut block = pool.take(bytes);
            assert!(block.len() == bytes && block.memory_bytes() >= bytes);
            assert!(
                block.memory_bytes() < bytes + bytes / 4 + 2 * PAGE_BYTES,
                "{block:?} of {} bytes",
                block.memory_bytes()
            );
            assert_eq!(block.memory_bytes(), Pool::memory_bytes(bytes));
            assert!(block.start().addr().get().is_multiple_of(PAGE_BYTES));
            block.fill(round as u8);
            blocks.push((round as u8, block));
        }
        assert!(pool.idle_bytes() <= 64 << 10, "{pool:?}");
    }
    assert!(pool.idle_bytes() > 0);
}

#[test]
fn a_block_goes_back_from_any_thread_and_outlives_its_pool() {
    let pool = Pool::new(1 << 20);
    let block = pool.take(8000);
    let start = block.start().addr();
    thread::spawn(move || drop(block)).join().expect("it only drops");
    assert_eq!(pool.idle_bytes(), 8192);
    let (again, copy) = (pool.take(5000), pool.copy(&[7; 100]));
    assert_eq!((again.start().addr(), pool.idle_bytes()), (start, 0));
    drop((pool, again));
    assert_eq!(&copy[..], [7; 100]);
}

/// Some threads fill blocks, of all size classes and beyond. Others read them, two at a time, and give them back.
#[test]
fn threads_pass_blocks_on_to_each_other() {
    let pool = Pool::new(32 << 10);
    let rounds = if cfg!(miri) { 40 } else { 5000u32 };
    thread::scope(|scope| {
        for n in 0..2 {
            let (pool, (blocks, taken)) = (&pool, sync_channel::<(u8, Bytes)>(4));
            scope.spawn(move || {
                let mut rng = Rng::new(n);
                for round in 0..rounds {
                    let most = (3 * PAGE_BYTES) << rng.index(5);
                    let mut block = pool.take(1 + rng.index(most));
                    block.fill(round as u8);
                    blocks.send((round as u8, block.into())).expect("it is read to the end");
                }
            });
            scope.spawn(move || {
                for (byte, block) in taken {
                    let shared = block.clone();
                    let other = thread::spawn(move || shared[shared.len() - 1]);
                    assert_eq!(block, vec![byte; block.len()]);
                    drop(block);
                    assert_eq!(other.join().expect("it only reads"), byte);
                }
            });
        }
    });
    assert!((1..=32 << 10).contains(&pool.idle_bytes()), "{pool:?}");
}

#[test]
fn what_a_pool_may_not_keep_has_no_pages() {
    let pool = Pool::new(0);
    let mut blocks: Vec<Block> = (0..100).map(|_| pool.take(8192)).collect();
    blocks.iter_mut().for_each(|block| block.fill(1));
    drop(blocks);
    assert_eq!(pool.idle_bytes(), 0);
    let again = pool.take(8192);
    assert!(again.iter().all(|byte| *byte == 0), "its pages are new");
}

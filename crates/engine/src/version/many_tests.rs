//! Look-ups of many keys that have room for some of their values.

use super::*;
use crate::version::tests::model::Store;
use leeward_format::UnixMs;
use std::sync::atomic::Ordering::Relaxed;

/// More than [`SMALL_VALUE_BYTES`].
const LARGE_BYTES: usize = 3_000;

/// A leaf with such a value is a jumbo leaf.
const JUMBO_BYTES: usize = 20_000;

/// 40 keys, half of them with values of `large_bytes`. Some are in the L0 and some in a level; in place, and in a log
/// that memory has half of.
fn store(memory_budget: u64, large_bytes: usize) -> (Store, Vec<Vec<u8>>) {
    let mut store = Store::new(memory_budget, 1 << 20);
    let keys: Vec<Vec<u8>> = (0..40u32).map(|n| n.to_be_bytes().to_vec()).collect();
    for (n, key) in keys.iter().enumerate() {
        match n % 4 {
            0 => store.write(key, Some(&[n as u8; 10])),
            1 => store.write(key, Some(&vec![n as u8; large_bytes])),
            2 => store.write_to_log(key, &[n as u8; 250]),
            _ => store.write_to_log(key, &vec![n as u8; large_bytes]),
        }
        if n == 20 {
            store.freeze();
            store.settle();
        }
    }
    (store, keys)
}

#[test]
fn small_values_need_no_room_and_large_ones_wait_for_it() {
    for (memory_budget, bytes) in [(1 << 20, LARGE_BYTES), (0, LARGE_BYTES), (0, JUMBO_BYTES)] {
        let (store, keys) = store(memory_budget, bytes);
        let wanted: Vec<(&[u8], Lsn)> = keys.iter().map(|key| (&key[..], Lsn(u64::MAX))).collect();
        for (room, most_large) in [(0, 0), (1, 1), (bytes, 1), (3 * bytes + bytes / 2, 3), (usize::MAX, 20)] {
            let found = store.version.get_many_within(&wanted, &UnixMs::default, room).expect("a sound disk");
            let mut large = 0;
            for (n, found) in found.into_iter().enumerate() {
                match found {
                    Lookup::Found { value, .. } => {
                        assert!(value.iter().all(|byte| *byte == n as u8));
                        large += usize::from(value.len() == bytes);
                    }
                    found => assert!(found == Lookup::NotInMemory && n % 2 == 1, "key {n} with room {room}: {found:?}"),
                }
            }
            assert_eq!(large, most_large, "of {bytes} bytes with room {room}");
        }
    }
}

/// As a server asks: again and again for what was refused, with hardly any room.
#[test]
fn each_request_reads_one_jumbo_leaf_if_there_is_any_room() {
    let (store, keys) = store(0, JUMBO_BYTES);
    // Those of the level, in place.
    let mut left: Vec<(&[u8], Lsn)> = (1..20).step_by(4).map(|n| (&keys[n][..], Lsn(u64::MAX))).collect();
    let mut look_up = |room| {
        let (before, read) = (left.len(), store.volume.counters().bytes_read);
        let found = store.version.get_many_within(&left, &UnixMs::default, room).expect("a sound disk");
        let mut found = found.into_iter();
        left.retain(|_| found.next() == Some(Lookup::NotInMemory));
        (before - left.len(), store.volume.counters().bytes_read - read)
    };
    let (found, index_bytes) = look_up(0);
    assert_eq!(found, 0);
    let (found, bytes) = look_up(1);
    assert!(found == 1 && bytes < index_bytes + 2 * JUMBO_BYTES as u64, "{bytes} bytes read, {index_bytes} of indexes");
    assert_eq!([1, 1, 1, 1, 0].map(|_| look_up(1).0), [1, 1, 1, 1, 0]);
}

#[test]
fn only_the_first_key_that_needs_room_may_take_more_than_there_is() {
    let mut room = Room::new(5000);
    assert!(room.take(3, SMALL_VALUE_BYTES) && room.take(7, 9000) && room.take(7, 9000));
    assert!(!room.take(3, 3000) && room.take(3, SMALL_VALUE_BYTES));
    room.passed += 100;
    assert!(!room.take(7, 3000), "another key");
    let mut room = Room::new(5000);
    assert!(room.take(0, 2500) && room.take(1, 2500) && !room.take(1, 2500) && room.take(0, 2500));
    assert!(!Room::new(0).take(0, 3000));
}

/// A hundred values of 100 kB, of which memory has half, in a budget of 4 MiB.
#[test]
fn large_values_are_read_some_at_a_time_and_are_memory_of_the_budget() {
    const BYTES: usize = 100_000;
    let mut store = Store::new(4 << 20, 1 << 20);
    let keys: Vec<Vec<u8>> = (0..100u32).map(|n| n.to_be_bytes().to_vec()).collect();
    keys.iter().for_each(|key| store.write_to_log(key, &[key[3]; BYTES]));
    let wanted: Vec<(&[u8], Lsn)> = keys.iter().map(|key| (&key[..], Lsn(u64::MAX))).collect();
    let found = store.version.get_many(&wanted, &UnixMs::default).expect("a sound disk");
    for (n, found) in found.into_iter().enumerate() {
        assert_eq!(found.into_value().as_deref(), Some(&[n as u8; BYTES][..]));
    }
    let (most, beyond) = (&store.log.most_wanted, &store.log.most_beyond);
    let piece = store.volume.memory().piece(MOST_BYTES).max(BYTES) as u64;
    assert!((1..=piece).contains(&most.load(Relaxed)), "{} bytes at once", most.load(Relaxed));
    assert_eq!(beyond.load(Relaxed), 0, "bytes that are not reserved");
    assert_eq!(store.volume.memory().status().reads, 0, "the values are the caller's");
}

//! Look-ups of many keys that have room for some of their values.

use super::*;
use crate::version::tests::model::Store;
use leeward_format::UnixMs;

/// More than [`SMALL_VALUE_BYTES`].
const LARGE_BYTES: usize = 3_000;

#[test]
fn small_values_need_no_room_and_large_ones_wait_for_it() {
    let mut store = Store::new(1 << 20, 64 << 10);
    let keys: Vec<Vec<u8>> = (0..40u32).map(|n| n.to_be_bytes().to_vec()).collect();
    for (n, key) in keys.iter().enumerate() {
        // Some in L0 and some in levels; in place, and in a log that memory has half of.
        match n % 4 {
            0 => store.write(key, Some(&[n as u8; 10])),
            1 => store.write(key, Some(&[n as u8; LARGE_BYTES])),
            2 => store.write_to_log(key, &[n as u8; 250]),
            _ => store.write_to_log(key, &[n as u8; LARGE_BYTES]),
        }
        if n == 20 {
            store.freeze();
            store.settle();
        }
    }
    let at = Lsn(u64::MAX);
    let wanted: Vec<(&[u8], Lsn)> = keys.iter().map(|key| (&key[..], at)).collect();
    for (room, most_large) in [(0, 0), (1, 1), (LARGE_BYTES, 1), (3 * LARGE_BYTES + 1, 3), (usize::MAX, 20)] {
        let found = store.version.get_many_within(&wanted, &UnixMs::default, room).expect("a sound disk");
        let mut large = 0;
        for (n, found) in found.into_iter().enumerate() {
            match found {
                Lookup::Found { value, .. } => {
                    assert!(value.iter().all(|byte| *byte == n as u8));
                    large += usize::from(value.len() == LARGE_BYTES);
                }
                found => assert!(found == Lookup::NotInMemory && n % 2 == 1, "key {n} with room {room}: {found:?}"),
            }
        }
        assert_eq!(large, most_large, "with room {room}");
    }
}

//! Reservations, turns, and which L0s are asked to freeze.

use super::*;
use leeward_format::{Lsn, filter};

const MIB: u64 = 1 << 20;

#[test]
fn the_cache_gives_way_to_reservations_and_comes_back() {
    let memory = Memory::new(4 * MIB);
    let fill = || {
        for n in 0..100_000u64 {
            let key = n.to_be_bytes();
            memory.cache().insert_record(0, &key, filter::hash(&key), (Lsn(1).into(), Some(&[1; 100])), 1, || true);
        }
    };
    fill();
    assert!(memory.status().cache > 3 * MIB, "{memory:?}");
    let reservation = memory.take(Purpose::Reads, 3 << 20);
    assert!(memory.status().used <= 4 * MIB && memory.status().reads == 3 * MIB, "{memory:?}");
    fill();
    assert!(memory.status().used <= 4 * MIB + MIB / 8, "{memory:?}");
    drop(reservation);
    fill();
    assert!(memory.status().cache > 3 * MIB && memory.status().reads == 0, "{memory:?}");
}

#[test]
fn the_largest_l0s_are_asked_to_freeze_until_the_others_fit() {
    let memory = Memory::new(16 * MIB);
    let l0s: Vec<_> = (1..=8u64).map(|size| (size, memory.l0())).collect();
    let asked = |unit: u64| -> Vec<u64> {
        l0s.iter().for_each(|(size, l0)| l0.set(size * unit));
        memory.relieve();
        l0s.iter().filter(|(_, l0)| l0.is_asked()).map(|(size, _)| *size).collect()
    };
    assert!(asked(MIB / 8).is_empty(), "36 eighths of a MiB are not more than three tenths of 16");
    assert_eq!(asked(MIB / 7), [7, 8], "of 36 sevenths 25 may stay");
    assert_eq!(asked(MIB / 7), [7, 8], "those that were asked are on their way");
    l0s[7].1.freeze();
    let busy = memory.l0();
    busy.set(2 * MIB);
    memory.relieve();
    assert!(busy.is_asked() && !l0s[5].1.is_asked());
}

#[test]
fn l0s_of_a_round_freeze_together_and_the_next_round_begins_at_nothing() {
    let memory = Memory::new(16 * MIB);
    let other = memory.l0();
    other.set(MIB);
    for _ in 0..3 {
        let l0s: Vec<_> = (0..20).map(|_| memory.l0()).collect();
        l0s.iter().for_each(|l0| l0.join_round());
        l0s.iter().for_each(|l0| l0.set(MIB / 11));
        memory.relieve();
        assert!(l0s.iter().all(|l0| !l0.is_asked()), "20 elevenths of a MiB are less than an eighth of 16");
        l0s[3].set(MIB / 2);
        let asks = memory.asks();
        memory.relieve();
        assert!(l0s.iter().all(|l0| l0.is_asked()) && !other.is_asked());
        assert_eq!(memory.asks(), asks + 20);
        // They take writes until they freeze.
        l0s[0].set(MIB);
        l0s[1].freeze();
        memory.relieve();
        assert_eq!(memory.asks(), asks + 20);
        drop(l0s);
        assert_eq!(memory.regions.round.load(Relaxed), 0);
    }
}

#[test]
fn compactions_that_do_not_fit_take_turns() {
    let memory = Memory::new(4 * MIB);
    let first = memory.admit((1, 1), 10 * MIB).expect("one is always under way");
    assert!(memory.admit((2, 1), MIB / 2).is_none());
    assert!(memory.has_waiting(2, 1) && !memory.has_waiting(2, 2) && !memory.has_waiting(1, 1));
    assert!(memory.admit((3, 1), MIB / 2).is_none());
    drop(first);
    assert!(memory.admit((1, 1), MIB / 2).is_none(), "others were here before");
    assert!(memory.admit((3, 1), MIB / 2).is_none());
    let second = memory.admit((2, 1), MIB / 2).expect("its turn");
    memory.leave(3, 1);
    let third = memory.admit((1, 1), MIB / 2).expect("no other region waits, and there is room for two");
    assert!(memory.admit((4, 1), 1).is_none());
    drop((second, third));
    let mut asks = 0..=MAX_PASSED_OVER + 1;
    assert!(asks.any(|_| memory.admit((5, 1), 1).is_some()), "a region that does not ask again loses its turn");
}

#[test]
fn a_lane_without_work_does_not_cost_the_others_their_turn() {
    const L0S: u8 = 1;
    const LEVELS: u8 = 2;
    let memory = Memory::new(4 * MIB);
    let first = memory.admit((1, L0S), 10 * MIB).expect("one is always under way");
    assert!(memory.admit((2, L0S), MIB / 2).is_none());
    assert!(memory.admit((3, L0S), MIB / 2).is_none());
    memory.leave(2, LEVELS);
    drop(first);
    assert!(memory.admit((3, L0S), MIB / 2).is_none(), "the L0s of the second were here before");
    assert!(memory.admit((2, LEVELS), MIB / 4).is_some(), "its lanes have one turn together");
    assert!(memory.admit((2, L0S), MIB / 4).is_none(), "it had its turn");
    assert!(memory.admit((3, L0S), MIB / 2).is_some());
    assert!(memory.admit((2, L0S), MIB / 2).is_some(), "it was kept in the queue");
}

//! The account is the sum of its charges, and the connections that hold most and give nothing back are found.

use super::*;
use leeward_format::Lsn;

#[test]
fn what_is_charged_is_given_back_with_the_last_slice() {
    let memory = ClientMemory::with_limit(10_000);
    let mut charge = memory.charge();
    charge.set(4_000);
    let value = memory.hold(Bytes::from(vec![1; 6_000]));
    assert_eq!(memory.used(), 10_000);
    assert!(memory.is_full() && memory.room() == 0);
    let slice = value.slice(10..20);
    drop(value);
    assert_eq!(memory.used(), 10_000, "a slice keeps all of it");
    drop(slice);
    assert_eq!(memory.used(), 4_000);
    drop(charge);
    assert_eq!(memory.used(), 0);
}

#[test]
fn small_values_are_counted_by_their_sessions_and_large_ones_by_themselves() {
    let memory = ClientMemory::with_limit(1 << 20);
    let value = |len: usize| OpResult::Value(Some(Bytes::from(vec![1; len])));
    let small = memory.hold_result(value(SMALL_BYTES));
    assert_eq!((memory.used(), small_bytes(&small)), (0, SMALL_BYTES));
    let large = memory.hold_result(value(SMALL_BYTES + 1));
    assert_eq!((memory.used(), small_bytes(&large)), (SMALL_BYTES as u64 + 1, 0));
    let old = Some(Bytes::from(vec![1; 5_000]));
    let put = memory.hold_result(OpResult::Put { done: true, old, version: Some(Lsn(1)) });
    assert_eq!(memory.used(), SMALL_BYTES as u64 + 5_001);
    drop((large, put));
    let entries = vec![(Bytes::from("a"), Bytes::new()); 1_000];
    let page = memory.hold_result(OpResult::Entries { entries, resume: None });
    assert_eq!(memory.used(), 1_000 * (1 + ENTRY_BYTES) as u64, "entries of one byte take more than one");
    drop(page);
    assert_eq!(memory.used(), 0);
}

#[test]
fn the_budget_hears_of_it() {
    let budget = Memory::new(64 << 20);
    let memory = ClientMemory::of(&budget);
    assert_eq!(memory.room(), 16 << 20, "a quarter");
    let charge = memory.take(1 << 20);
    assert_eq!(budget.status().clients, 1 << 20);
    drop(charge);
    assert_eq!(budget.status().clients, 0);
}

#[test]
fn those_that_hold_most_and_give_nothing_back_are_found_and_nobody_else() {
    let memory = ClientMemory::with_limit(1);
    let mut charges: Vec<Charge> = [40_000, 90_000, 100_000, 1_000].map(|bytes| memory.take(bytes)).into();
    let mut stuck = Stuck::default();
    let mut look = |at: u64, excess: u64, charges: &[Charge]| {
        // The third connection waits for the node.
        let holders = charges.iter().zip(0..).map(|(charge, id)| (id, Holder::new(charge, id != 2)));
        stuck.look(Nanos::from_millis(at), excess, holders)
    };
    assert_eq!(look(0, 1, &charges), []);
    assert_eq!(look(199, 1, &charges), [], "it may still be that they go on");
    assert_eq!(look(200, 90_000, &charges), [(1, 90_000)]);
    charges[1].set(80_000);
    charges[1].set(90_000);
    assert_eq!(look(250, 90_000, &charges), [(0, 40_000)], "the larger one has given something back");
    assert_eq!(look(450, 90_001, &charges), [(1, 90_000), (0, 40_000)]);
    assert_eq!(look(451, 0, &charges), []);
}

#[test]
fn those_that_hold_little_are_spared_unless_they_fill_the_account_together() {
    let memory = ClientMemory::with_limit(1);
    let charges: Vec<Charge> = [15_000, 16_000, 14_000].map(|bytes| memory.take(bytes)).into();
    let mut stuck = Stuck::default();
    let mut look = |at: u64, excess: u64| {
        let holders = charges.iter().zip(0..).map(|(charge, id)| (id, Holder::new(charge, true)));
        stuck.look(Nanos::from_millis(at), excess, holders)
    };
    assert_eq!(look(0, 30_000), []);
    assert_eq!(look(200, 45_001), [], "something else fills the account");
    assert_eq!(look(200, 30_000), [(1, 16_000), (0, 15_000)]);
    assert_eq!(look(200, 45_000), [(1, 16_000), (0, 15_000), (2, 14_000)]);
}

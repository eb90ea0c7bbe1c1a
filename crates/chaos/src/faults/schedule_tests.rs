//! A seed repeats its rounds, and no kind is left out.

use super::*;
use crate::faults::kind::{Class, Need};

#[test]
fn a_seed_gives_the_same_rounds_and_another_gives_others() {
    let rounds = |seed| {
        let mut schedule = Schedule::new(seed, FaultKind::ALL.to_vec());
        (0..50).map(|_| schedule.next_round()).collect::<Vec<_>>()
    };
    assert_eq!(rounds(7), rounds(7));
    assert_ne!(rounds(7), rounds(8));
}

#[test]
fn every_kind_of_a_deck_strikes_before_any_strikes_three_times() {
    let of_class =
        |is_hostile: bool| FaultKind::ALL.into_iter().filter(move |kind| (kind.class() == Class::Client) == is_hostile);
    for (seed, is_hostile) in (0..50).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut schedule = Schedule::new(seed, FaultKind::ALL.to_vec());
        let mut struck = Vec::new();
        while !of_class(is_hostile).all(|kind| struck.contains(&kind)) {
            let round = schedule.next_round();
            assert!((1..=2).contains(&round.faults.len()));
            assert!(round.faults.len() == 2 || round.between.is_zero());
            let classes: Vec<Class> = round.faults.iter().map(|fault| fault.kind.class()).collect();
            assert!(classes.len() == 1 || classes[0] != classes[1], "{round:?}");
            struck.extend(round.faults.iter().map(|fault| fault.kind));
        }
        let most = of_class(is_hostile).map(|kind| struck.iter().filter(|other| **other == kind).count()).max();
        assert!(most <= Some(2), "seed {seed}: {struck:?}");
    }
}

#[test]
fn one_kind_alone_will_do() {
    let mut schedule = Schedule::new(1, vec![FaultKind::Kill]);
    for _ in 0..20 {
        assert!(schedule.next_round().faults.iter().all(|fault| fault.kind == FaultKind::Kill));
    }
}

#[test]
fn each_kind_of_hostile_client_strikes_within_eight_rounds() {
    let of_runs: Vec<FaultKind> = FaultKind::ALL.into_iter().filter(|kind| kind.need() != Need::Stress).collect();
    for seed in 0..50 {
        let mut schedule = Schedule::new(seed, of_runs.clone());
        let struck: Vec<FaultKind> =
            (0..8).flat_map(|_| schedule.next_round().faults).map(|fault| fault.kind).collect();
        let hostile: Vec<FaultKind> = of_runs.iter().copied().filter(|kind| kind.class() == Class::Client).collect();
        assert!(hostile.len() == 4 && hostile.iter().all(|kind| struck.contains(kind)), "seed {seed}");
    }
}

#[test]
fn hostile_clients_alone_will_do() {
    let mut schedule = Schedule::new(1, vec![FaultKind::Flood, FaultKind::Hoard]);
    assert!((0..20).all(|_| schedule.next_round().faults.len() == 1));
}

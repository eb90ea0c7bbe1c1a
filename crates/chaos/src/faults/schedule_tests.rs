//! Seeds repeat, and nothing is left out.

use super::*;
use crate::faults::kind::Class;

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
fn every_kind_strikes_before_any_strikes_three_times() {
    for seed in 0..50 {
        let mut schedule = Schedule::new(seed, FaultKind::ALL.to_vec());
        let mut struck = Vec::new();
        while !FaultKind::ALL.iter().all(|kind| struck.contains(kind)) {
            let round = schedule.next_round();
            assert!((1..=2).contains(&round.faults.len()));
            assert!(round.faults.len() == 2 || round.between.is_zero());
            let classes: Vec<Class> = round.faults.iter().map(|fault| fault.kind.class()).collect();
            assert!(classes.len() == 1 || classes[0] != classes[1], "{round:?}");
            struck.extend(round.faults.iter().map(|fault| fault.kind));
        }
        let most = FaultKind::ALL.iter().map(|kind| struck.iter().filter(|other| *other == kind).count()).max();
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

//! Histories that a register could have, and some that it could not.

use super::*;
use proptest::prelude::*;
use std::ops::Range;

const MAX_STATES: usize = 100_000;

fn is_fine(operations: &[Operation]) -> bool {
    match check(operations, MAX_STATES) {
        Verdict::Linearizable => true,
        Verdict::Violation => false,
        Verdict::Undecided => panic!("given up"),
    }
}

fn op(called: u64, answered: u64, action: Action) -> Operation {
    Operation { called, answered, action }
}

#[test]
fn overlapping_operations_may_be_ordered_either_way() {
    let write = op(1, 5, Action::Write(7));
    assert!(is_fine(&[write, op(2, 3, Action::Read(None))]));
    assert!(is_fine(&[write, op(2, 3, Action::Read(Some(7)))]));
    assert!(!is_fine(&[write, op(2, 3, Action::Read(Some(7))), op(4, 4, Action::Read(None))]));
}

#[test]
fn an_acknowledged_write_must_be_seen() {
    assert!(!is_fine(&[op(1, 2, Action::Write(7)), op(3, 4, Action::Read(None))]));
    assert!(is_fine(&[op(1, u64::MAX, Action::Write(7)), op(3, 4, Action::Read(None))]));
}

#[test]
fn an_unknown_write_may_come_late_but_not_twice() {
    let history = |last| {
        let unknown = op(1, u64::MAX, Action::Add(1, None));
        let second = op(2, 3, Action::Add(1, Some(1)));
        [unknown, second, op(4, 5, Action::Read(Some(1))), op(6, 7, Action::Read(Some(last)))]
    };
    assert!(is_fine(&history(1)));
    assert!(is_fine(&history(2)));
    assert!(!is_fine(&history(3)));
}

#[test]
fn conditional_writes_are_judged_by_their_answers() {
    let absent = |at, done| op(at, at + 1, Action::WriteIfAbsent(at as i64, Some(done)));
    assert!(is_fine(&[absent(1, true), absent(3, false), op(5, 6, Action::Read(Some(1)))]));
    assert!(!is_fine(&[absent(1, true), absent(3, true)]));
    assert!(is_fine(&[absent(1, true), op(3, 4, Action::Delete(Some(true))), absent(5, true)]));
}

#[test]
fn swaps_and_overwrites_are_judged_by_their_answers() {
    let swap = |at, old| op(at, at + 1, Action::Swap(at as i64, Some(old)));
    assert!(is_fine(&[swap(1, None), swap(3, Some(1)), op(5, 6, Action::Read(Some(3)))]));
    assert!(!is_fine(&[swap(1, None), swap(3, None)]));
    let present = |at, done| op(at, at + 1, Action::WriteIfPresent(at as i64, Some(done)));
    assert!(is_fine(&[present(1, false), swap(3, None), present(5, true)]));
    assert!(!is_fine(&[present(1, true)]));
}

#[test]
fn planted_violations_are_found() {
    let write = |at, value| op(at, at + 1, Action::Write(value));
    let read = |at, value| op(at, at + 1, Action::Read(value));
    let cas = |at, new, old, done| op(at, at + 1, Action::WriteIfValue(new, old, Some(done)));
    let take = |at, old| op(at, at + 1, Action::Take(Some(old)));
    assert!(is_fine(&[write(1, 1), write(3, 2), read(5, Some(2)), take(7, Some(2)), read(9, None)]));
    assert!(!is_fine(&[write(1, 1), write(3, 2), read(5, Some(1))]), "a stale read");
    assert!(!is_fine(&[write(1, 1), read(3, Some(1)), read(5, None)]), "a lost write");
    assert!(!is_fine(&[write(1, 1), take(3, Some(1)), read(5, Some(1))]), "a delete that came back");
    assert!(!is_fine(&[write(1, 1), take(3, Some(1)), take(5, Some(1))]), "taken twice");
    assert!(!is_fine(&[write(1, 1), cas(3, 2, 1, true), cas(5, 3, 1, true)]), "compared and set twice");
    assert!(!is_fine(&[write(1, 1), cas(3, 2, 1, false)]), "refused without a reason");
    assert!(!is_fine(&[write(1, 1), read(3, Some(7))]), "a value that no client wrote");
    let unknown = op(3, UNANSWERED, Action::WriteIfValue(2, 1, None));
    assert!(is_fine(&[write(1, 1), unknown, read(5, Some(1)), read(7, Some(2))]), "it may come late");
    assert!(!is_fine(&[write(1, 1), unknown, read(5, Some(2)), write(7, 3), read(9, Some(2))]), "it may come once");
}

#[test]
fn an_unknown_outcome_may_be_what_another_one_needs() {
    let unknown = |at, action| op(at, UNANSWERED, action);
    let chain = [
        unknown(1, Action::Write(1)),
        unknown(2, Action::WriteIfValue(2, 1, None)),
        unknown(3, Action::WriteIfValue(3, 2, None)),
    ];
    let with = |last: Operation| chain.into_iter().chain([last]).collect::<Vec<_>>();
    assert!(is_fine(&with(op(5, 6, Action::Read(Some(3))))));
    assert!(is_fine(&with(op(5, 6, Action::Take(Some(Some(2)))))));
    assert!(!is_fine(&with(op(2, 2, Action::Read(Some(3))))), "the last link was not called yet");
}

/// A possible history: a register, overlapping operations, and some that get no answer.
fn possible(seed: u64, operations: u64, unanswered_in: u64) -> Vec<Operation> {
    let mut state = seed | 1;
    let mut below = |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    let mut value = None;
    let mut history = Vec::new();
    for number in 0..operations {
        // It takes effect at 100 times its number; calls and answers overlap those of some others.
        let (called, answered) = (number * 100 - below(400).min(number * 100), number * 100 + below(400));
        let new = number as i64;
        let action = match below(10) {
            0..4 => Action::Read(value),
            4 => Action::Take(Some(value)),
            5 => Action::WriteIfAbsent(new, Some(value.is_none())),
            6 | 7 => {
                let old = value.filter(|_| below(2) == 0).unwrap_or(new - 3);
                Action::WriteIfValue(new, old, Some(value == Some(old)))
            }
            _ => Action::Swap(new, Some(value)),
        };
        let happened = below(unanswered_in) != 0;
        let took_effect = happened || below(2) == 0;
        if took_effect {
            value = action.apply(value).expect("it was answered so");
        }
        match action.unanswered() {
            _ if happened => history.push(op(called, answered, action)),
            Some(action) => history.push(op(called, UNANSWERED, action)),
            None => {}
        }
    }
    history
}

#[test]
fn long_histories_with_many_unknown_outcomes_are_decided() {
    for seed in 1..20 {
        let mut history = possible(seed * 7919, 5_000, 20);
        assert!(is_fine(&history), "seed {seed}");
        // Give the last read of a value the answer of a much earlier read.
        let is_read = |operation: &Operation| matches!(operation.action, Action::Read(Some(_)));
        let old = history.iter().copied().filter(is_read).nth(100).expect("there are reads").action;
        let last = history.iter_mut().rfind(|operation| is_read(operation)).expect("there are reads");
        last.action = old;
        assert!(!is_fine(&history), "seed {seed}");
    }
}

/// Tries every order, without any shortcut.
fn by_force(left: &[Operation], value: Option<i64>) -> bool {
    if left.iter().all(|operation| operation.answered == UNANSWERED) {
        return true;
    }
    let first_answer = left.iter().map(|operation| operation.answered).min().unwrap_or(UNANSWERED);
    (0..left.len()).any(|at| {
        let mut rest = left.to_vec();
        let operation = rest.remove(at);
        let comes_first = operation.called <= first_answer;
        comes_first && operation.action.apply(value).is_some_and(|value| by_force(&rest, value))
    })
}

/// Few values, so that many histories are possible and many are nearly so.
fn small_operations(values: Range<i64>) -> impl Strategy<Value = Vec<Operation>> {
    let value = || values.clone();
    let maybe = || proptest::option::of(value());
    let action = prop_oneof![
        maybe().prop_map(Action::Read),
        value().prop_map(Action::Write),
        (value(), proptest::option::of(maybe())).prop_map(|(new, old)| Action::Swap(new, old)),
        (value(), any::<Option<bool>>()).prop_map(|(new, done)| Action::WriteIfAbsent(new, done)),
        (value(), any::<Option<bool>>()).prop_map(|(new, done)| Action::WriteIfPresent(new, done)),
        (value(), value(), any::<Option<bool>>()).prop_map(|(new, old, done)| Action::WriteIfValue(new, old, done)),
        (1..3_i64, maybe()).prop_map(|(delta, sum)| Action::Add(delta, sum)),
        any::<Option<bool>>().prop_map(Action::Delete),
        proptest::option::of(maybe()).prop_map(Action::Take),
    ];
    let operation = (0..12_u64, 0..6_u64, action, 0..3_u8).prop_map(|(called, took, action, unknown)| {
        let answered = if unknown == 0 { UNANSWERED } else { called + took };
        Operation { called, answered, action }
    });
    proptest::collection::vec(operation, 1..7)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn the_verdict_is_that_of_brute_force(operations in prop_oneof![small_operations(0..3), small_operations(0..10)]) {
        // A read that was not answered says nothing.
        let operations: Vec<Operation> = operations
            .into_iter()
            .filter(|operation| operation.answered != UNANSWERED || !matches!(operation.action, Action::Read(_)))
            .collect();
        prop_assert_eq!(is_fine(&operations), by_force(&operations, None));
    }
}

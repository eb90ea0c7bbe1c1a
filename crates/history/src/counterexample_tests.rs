//! Long histories with one contradiction.

use super::*;
use crate::Action;

fn op(called: u64, answered: u64, action: Action) -> Operation {
    Operation { called, answered, action }
}

/// Writes and reads one after the other, and a few writes with unknown outcomes.
fn sound(count: u64) -> Vec<Operation> {
    let mut history = Vec::new();
    for at in 0..count {
        let value = at as i64;
        history.push(op(at * 10, at * 10 + 4, Action::Write(value)));
        history.push(op(at * 10 + 5, at * 10 + 8, Action::Read(Some(value))));
        if at % 50 == 0 {
            history.push(op(at * 10 + 6, UNANSWERED, Action::Write(-1 - value)));
        }
    }
    history
}

#[test]
fn a_stale_read_is_shown_with_the_two_writes_that_it_contradicts() {
    let mut history = sound(400);
    let stale = history.iter().position(|operation| operation.action == Action::Read(Some(300))).expect("it is there");
    history[stale].action = Action::Read(Some(298));
    let shown = counterexample(&history, 50_000);
    assert!(shown.iter().any(|operation| operation.action == Action::Read(Some(298))), "{shown:?}");
    assert!(shown.iter().any(|operation| operation.action == Action::Write(298)), "{shown:?}");
    assert!(shown.len() <= 4, "{shown:?}");
    assert_eq!(check(&shown, 50_000), Verdict::Violation);
}

#[test]
fn a_lost_write_is_shown_with_the_read_that_misses_it() {
    let mut history = vec![op(1, 2, Action::Write(1))];
    history.extend((2..200).map(|at| op(at * 10, at * 10 + 1, Action::Read(Some(1)))));
    history.push(op(5_000, 5_001, Action::Read(None)));
    let shown = counterexample(&history, 50_000);
    // The write's own answer, or that of a read, proves that the write took effect.
    assert!(shown.len() <= 3 && shown.contains(&op(5_000, 5_001, Action::Read(None))), "{shown:?}");
    assert_eq!(check(&shown, 50_000), Verdict::Violation);
}

#[test]
fn puts_whose_answers_do_not_matter_are_not_shown() {
    let mut history = Vec::new();
    for at in 1..200 {
        history.push(op(at * 10, at * 10 + 1, Action::Write(at as i64)));
        history.push(op(at * 10 + 2, at * 10 + 3, Action::WriteIfValue(-(at as i64), at as i64, Some(true))));
    }
    history.push(op(5_000, 5_001, Action::Read(Some(-42))));
    let shown = counterexample(&history, 50_000);
    assert!(shown.len() <= 5, "{shown:?}");
    assert!(shown.contains(&op(5_000, 5_001, Action::Read(Some(-42)))), "{shown:?}");
    assert!(shown.is_sorted_by_key(|operation| operation.called));
}

#[test]
fn what_is_no_violation_stays_as_it_is() {
    let history = sound(10);
    assert_eq!(counterexample(&history, 50_000), history);
}

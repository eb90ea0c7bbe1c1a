//! The counterexample in a history that no register could have: the few answers that contradict each other.
//!
//! First, cut the history at the earliest answer with which it is a violation. Then forget answers, in chunks that get
//! smaller, as long as the rest is still a violation. Forgetting an answer, or leaving out a read, never makes a
//! possible history impossible. So the rest is a violation by itself. Pure; any thread.

use crate::action::{Operation, UNANSWERED};
use crate::check::{Verdict, check};

#[cfg(test)]
#[path = "counterexample_tests.rs"]
mod tests;

/// The answers of `operations` that contradict each other, and the unanswered puts of values that they name, by call. All of
/// `operations` if no contradiction is found within `max_states` states.
pub fn counterexample(operations: &[Operation], max_states: usize) -> Vec<Operation> {
    let is_bad = |operations: &[Operation]| check(operations, max_states) == Verdict::Violation;
    let mut kept = operations.to_vec();
    if !is_bad(&kept) {
        return kept;
    }
    let mut answers: Vec<u64> = kept.iter().map(|operation| operation.answered).collect();
    answers.retain(|at| *at != UNANSWERED);
    answers.sort_unstable();
    let last = answers.partition_point(|at| !is_bad(&before(operations, *at)));
    if let Some(at) = answers.get(last) {
        kept = before(operations, *at);
    }
    let mut chunk = kept.len().next_power_of_two() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < kept.len() {
            let fewer = without_answers(&kept, at..(at + chunk).min(kept.len()));
            if fewer != kept && is_bad(&fewer) {
                // If operations were removed, the next chunk is at the same place.
                at += if fewer.len() == kept.len() { chunk } else { 0 };
                kept = fewer;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
    shown(kept)
}

/// The answered operations, the puts of values that they name, the puts of values that these name, and so on; by call.
fn shown(kept: Vec<Operation>) -> Vec<Operation> {
    let (mut shown, mut others): (Vec<_>, Vec<_>) =
        kept.into_iter().partition(|operation| operation.answered != UNANSWERED);
    loop {
        let is_named = |put: Option<i64>| put.is_some() && shown.iter().any(|other| other.action.names() == put);
        let (named, rest): (Vec<_>, Vec<_>) = others.into_iter().partition(|other| is_named(other.action.put()));
        others = rest;
        if named.is_empty() {
            shown.sort_by_key(|operation| operation.called);
            return shown;
        }
        shown.extend(named);
    }
}

/// The history as known at time `at`: later calls are left out, later answers are forgotten.
fn before(operations: &[Operation], at: u64) -> Vec<Operation> {
    let called = operations.iter().filter(|operation| operation.called <= at);
    called
        .filter_map(|operation| if operation.answered <= at { Some(*operation) } else { forgotten(operation) })
        .collect()
}

/// `operations` with the answers of a range forgotten.
fn without_answers(operations: &[Operation], range: std::ops::Range<usize>) -> Vec<Operation> {
    let each = operations.iter().enumerate();
    each.filter_map(|(at, operation)| if range.contains(&at) { forgotten(operation) } else { Some(*operation) })
        .collect()
}

fn forgotten(operation: &Operation) -> Option<Operation> {
    operation.action.unanswered().map(|action| Operation { answered: UNANSWERED, action, ..*operation })
}

//! The linearizability checker: is there an order of a key's operations, each somewhere between its call and its
//! answer, in which a single register would have given these answers?
//!
//! The search is Wing and Gong's with the memory of Lowe: states (operations done, value) are visited once. An operation
//! whose outcome is unknown may take effect at any time after its call, or never.

use std::collections::HashSet;

/// Most operations on one key that a load makes; it goes on to another key after that.
pub(crate) const MAX_OPS: usize = 120;
/// Most of these whose outcome nobody knows: each may have happened at any time, or never.
pub(crate) const MAX_UNKNOWN: usize = 10;
/// States after which a search is given up.
const MAX_STATES: usize = 300_000;

/// What an operation does to a register, and what it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// It read this value.
    Read(Option<i64>),
    /// It set this value.
    Write(i64),
    /// It set this value, and answered the one before; `None`: it was not answered.
    Swap(i64, Option<Option<i64>>),
    /// It set this value if there was none, and answered whether it did; `None`: it was not answered.
    WriteIfAbsent(i64, Option<bool>),
    /// It set this value if there was one, and answered whether it did; `None`: it was not answered.
    WriteIfPresent(i64, Option<bool>),
    /// It set the first value if there was the second, and answered whether it did; `None`: it was not answered.
    WriteIfValue(i64, i64, Option<bool>),
    /// It added this much, and answered the sum; `None`: it was not answered.
    Add(i64, Option<i64>),
    /// It removed the value, and answered whether there was one; `None`: it was not answered, or does not tell.
    Delete(Option<bool>),
}

/// One operation on one key, times in any unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    /// When it was called.
    pub(crate) called: u64,
    /// When it was answered; `u64::MAX` if its outcome is unknown.
    pub(crate) answered: u64,
    /// What it was.
    pub(crate) action: Action,
}

impl Action {
    /// The value that it puts, which no other does.
    pub(crate) fn put(self) -> Option<i64> {
        match self {
            Action::Write(new)
            | Action::Swap(new, _)
            | Action::WriteIfAbsent(new, _)
            | Action::WriteIfPresent(new, _)
            | Action::WriteIfValue(new, _, _) => Some(new),
            Action::Read(_) | Action::Add(..) | Action::Delete(_) => None,
        }
    }

    /// The same, as if it had not been answered; `None` for a read, which then says nothing.
    fn unanswered(self) -> Option<Action> {
        match self {
            Action::Read(_) => None,
            Action::Write(new) => Some(Action::Write(new)),
            Action::Swap(new, _) => Some(Action::Swap(new, None)),
            Action::WriteIfAbsent(new, _) => Some(Action::WriteIfAbsent(new, None)),
            Action::WriteIfPresent(new, _) => Some(Action::WriteIfPresent(new, None)),
            Action::WriteIfValue(new, old, _) => Some(Action::WriteIfValue(new, old, None)),
            Action::Add(delta, _) => Some(Action::Add(delta, None)),
            Action::Delete(_) => Some(Action::Delete(None)),
        }
    }

    /// The value after it, if it may happen to a register of `value`.
    fn apply(self, value: Option<i64>) -> Option<Option<i64>> {
        match self {
            Action::Read(read) => (read == value).then_some(value),
            Action::Write(new) => Some(Some(new)),
            Action::Swap(new, old) => old.is_none_or(|old| old == value).then_some(Some(new)),
            Action::WriteIfAbsent(new, done) => {
                let does = value.is_none();
                done.is_none_or(|done| done == does).then_some(if does { Some(new) } else { value })
            }
            Action::WriteIfPresent(new, done) => {
                let does = value.is_some();
                done.is_none_or(|done| done == does).then_some(if does { Some(new) } else { value })
            }
            Action::WriteIfValue(new, old, done) => {
                let does = value == Some(old);
                done.is_none_or(|done| done == does).then_some(if does { Some(new) } else { value })
            }
            Action::Add(delta, answered) => {
                let sum = value.unwrap_or(0) + delta;
                answered.is_none_or(|answered| answered == sum).then_some(Some(sum))
            }
            Action::Delete(existed) => existed.is_none_or(|existed| existed == value.is_some()).then_some(None),
        }
    }
}

/// Checks the operations on one key, which began without a value, where a power loss at `lost` took some of the writes
/// acknowledged since `safe`, and only the newest ones: first up to the loss, then what is `left` by what was safe.
///
/// # Errors
/// No order explains the answers; the text lists them.
pub(crate) fn check_with_loss(
    operations: &[Operation],
    (safe, lost): (u64, u64),
    left: Operation,
) -> Result<(), String> {
    let unanswered = |operation: &Operation| {
        operation.action.unanswered().map(|action| Operation { answered: u64::MAX, action, ..*operation })
    };
    let before = operations.iter().filter_map(|operation| match operation.answered < lost {
        true => Some(*operation),
        false => unanswered(operation),
    });
    check(&before.collect::<Vec<_>>()).map_err(|failure| format!("before the power was lost: {failure}"))?;
    let after = operations.iter().filter_map(|operation| match operation.answered {
        answered if answered < safe => Some(*operation),
        // It is still there only together with all before it: its answer holds.
        answered if answered < lost && !matches!(operation.action, Action::Read(_)) => {
            Some(Operation { answered: u64::MAX, ..*operation })
        }
        _ => unanswered(operation),
    });
    check(&after.chain([left]).collect::<Vec<_>>()).map_err(|failure| format!("after the power was lost: {failure}"))
}

/// Checks the operations on one key, which began without a value.
///
/// # Errors
/// No order explains the answers; the text lists them. A search that takes too long is given up, and taken for right.
pub(crate) fn check(operations: &[Operation]) -> Result<(), String> {
    assert!(operations.len() <= 128, "the set of operations is a 128-bit word");
    let mut operations = operations.to_vec();
    operations.sort_by_key(|operation| operation.called);
    let must: u128 = bits(operations.iter().map(|operation| operation.answered != u64::MAX));
    // The one with the earliest answer is tried first, and those without an answer last.
    let mut order: Vec<usize> = (0..operations.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(operations[*index].answered));
    let mut seen: HashSet<(u128, Option<i64>)> = HashSet::new();
    let mut open = vec![(0_u128, None)];
    while let Some((done, value)) = open.pop() {
        if done & must == must || seen.len() > MAX_STATES {
            return Ok(());
        }
        let waiting = |index: &usize| done >> index & 1 == 0;
        let first_answer = order.iter().copied().rfind(waiting).map_or(u64::MAX, |index| operations[index].answered);
        for index in order.iter().copied().filter(waiting) {
            if operations[index].called <= first_answer
                && let Some(next) = operations[index].action.apply(value)
                && seen.insert((done | 1 << index, next))
            {
                open.push((done | 1 << index, next));
            }
        }
    }
    Err(format!("no order explains these answers:\n{}", table(&operations)))
}

fn bits(flags: impl Iterator<Item = bool>) -> u128 {
    flags.enumerate().fold(0, |word, (index, flag)| word | u128::from(flag) << index)
}

fn table(operations: &[Operation]) -> String {
    let line = |operation: &Operation| {
        let answered = match operation.answered {
            u64::MAX => "never".to_owned(),
            at => at.to_string(),
        };
        format!("  {:>12} .. {:>12}  {:?}\n", operation.called, answered, operation.action)
    };
    operations.iter().map(line).collect()
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;

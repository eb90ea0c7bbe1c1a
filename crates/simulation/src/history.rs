//! The linearizability checker: is there an order of a key's operations, each somewhere between its call and its
//! answer, in which a single register would have given these answers?
//!
//! The search is Wing and Gong's with the memory of Lowe: states (operations done, value) are visited once. An operation
//! whose outcome is unknown may take effect at any time after its call, or never.

use std::collections::HashSet;

/// Most operations on one key that are checked; a load goes on to another key after that.
pub const MAX_OPS: usize = 120;

/// What an operation does to a register, and what it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It read this value.
    Read(Option<i64>),
    /// It set this value.
    Write(i64),
    /// It set this value if there was none, and answered whether it did; `None`: it was not answered.
    WriteIfAbsent(i64, Option<bool>),
    /// It added this much, and answered the sum; `None`: it was not answered.
    Add(i64, Option<i64>),
    /// It removed the value, and answered whether there was one; `None`: it was not answered.
    Delete(Option<bool>),
}

/// One operation on one key, times in any unit.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// When it was called.
    pub called: u64,
    /// When it was answered; `u64::MAX` if its outcome is unknown.
    pub answered: u64,
    /// What it was.
    pub action: Action,
}

impl Action {
    /// The value after it, if it may happen to a register of `value`.
    fn apply(self, value: Option<i64>) -> Option<Option<i64>> {
        match self {
            Action::Read(read) => (read == value).then_some(value),
            Action::Write(new) => Some(Some(new)),
            Action::WriteIfAbsent(new, done) => {
                let does = value.is_none();
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

/// Checks the operations on one key, which began without a value.
///
/// # Errors
/// No order explains the answers; the text lists them.
pub fn check(operations: &[Operation]) -> Result<(), String> {
    assert!(operations.len() <= 128, "the set of operations is a 128-bit word");
    let mut operations = operations.to_vec();
    operations.sort_by_key(|operation| operation.called);
    let must: u128 = bits(operations.iter().map(|operation| operation.answered != u64::MAX));
    let mut seen: HashSet<(u128, Option<i64>)> = HashSet::new();
    let mut open = vec![(0_u128, None)];
    while let Some((done, value)) = open.pop() {
        if done & must == must {
            return Ok(());
        }
        let waiting = |index: &usize| done >> index & 1 == 0;
        let first_answer = (0..operations.len()).filter(waiting).map(|index| operations[index].answered).min();
        let first_answer = first_answer.unwrap_or(u64::MAX);
        for index in (0..operations.len()).filter(waiting) {
            if operations[index].called > first_answer {
                break;
            }
            if let Some(next) = operations[index].action.apply(value)
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
mod tests {
    use super::*;

    fn op(called: u64, answered: u64, action: Action) -> Operation {
        Operation { called, answered, action }
    }

    #[test]
    fn overlapping_operations_may_be_ordered_either_way() {
        let write = op(1, 5, Action::Write(7));
        assert!(check(&[write, op(2, 3, Action::Read(None))]).is_ok());
        assert!(check(&[write, op(2, 3, Action::Read(Some(7)))]).is_ok());
        assert!(check(&[write, op(2, 3, Action::Read(Some(7))), op(4, 4, Action::Read(None))]).is_err());
    }

    #[test]
    fn an_acknowledged_write_must_be_seen() {
        assert!(check(&[op(1, 2, Action::Write(7)), op(3, 4, Action::Read(None))]).is_err());
        assert!(check(&[op(1, u64::MAX, Action::Write(7)), op(3, 4, Action::Read(None))]).is_ok());
    }

    #[test]
    fn an_unknown_write_may_come_late_but_not_twice() {
        let history = |last| {
            let unknown = op(1, u64::MAX, Action::Add(1, None));
            let second = op(2, 3, Action::Add(1, Some(1)));
            [unknown, second, op(4, 5, Action::Read(Some(1))), op(6, 7, Action::Read(Some(last)))]
        };
        assert!(check(&history(1)).is_ok());
        assert!(check(&history(2)).is_ok());
        assert!(check(&history(3)).is_err());
    }

    #[test]
    fn conditional_writes_are_judged_by_their_answers() {
        let absent = |at, done| op(at, at + 1, Action::WriteIfAbsent(at as i64, Some(done)));
        assert!(check(&[absent(1, true), absent(3, false), op(5, 6, Action::Read(Some(1)))]).is_ok());
        assert!(check(&[absent(1, true), absent(3, true)]).is_err());
        assert!(check(&[absent(1, true), op(3, 4, Action::Delete(Some(true))), absent(5, true)]).is_ok());
    }
}

//! Operations on a register: what each does, when, and its answer. Plain data.

use std::fmt;

/// [`Operation::answered`] of an operation with an unknown outcome.
pub const UNANSWERED: u64 = u64::MAX;

/// The effect of an operation on a register, and its answer. Values are numbers. Each put should have a unique value,
/// so that a read tells which put it saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
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
    /// It removed the value, and answered which one; `None`: it was not answered.
    Take(Option<Option<i64>>),
}

/// One operation on one key, times in any unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Time of the call.
    pub called: u64,
    /// Time of the answer; [`UNANSWERED`] if the outcome is unknown. The operation may then have taken effect at any
    /// time after its call, or never. Its action may still have an answer: the one that it gave if it took effect.
    pub answered: u64,
    /// The action, with its answer.
    pub action: Action,
}

impl Action {
    /// The value that it puts, which is unique.
    pub fn put(self) -> Option<i64> {
        match self {
            Action::Write(new)
            | Action::Swap(new, _)
            | Action::WriteIfAbsent(new, _)
            | Action::WriteIfPresent(new, _)
            | Action::WriteIfValue(new, _, _) => Some(new),
            Action::Read(_) | Action::Add(..) | Action::Delete(_) | Action::Take(_) => None,
        }
    }

    /// The value that its condition or its answer names. The value that it puts is not one of them.
    pub fn names(self) -> Option<i64> {
        match self {
            Action::WriteIfValue(_, old, _) => Some(old),
            _ => self.finds(),
        }
    }

    /// The value that it found in the register, by its answer.
    pub(crate) fn finds(self) -> Option<i64> {
        match self {
            Action::Read(value) | Action::Swap(_, Some(value)) | Action::Take(Some(value)) => value,
            Action::WriteIfValue(_, old, Some(true)) => Some(old),
            _ => None,
        }
    }

    /// The same action without its answer; `None` for a read, which says nothing without one.
    pub fn unanswered(self) -> Option<Action> {
        match self {
            Action::Read(_) => None,
            Action::Write(new) => Some(Action::Write(new)),
            Action::Swap(new, _) => Some(Action::Swap(new, None)),
            Action::WriteIfAbsent(new, _) => Some(Action::WriteIfAbsent(new, None)),
            Action::WriteIfPresent(new, _) => Some(Action::WriteIfPresent(new, None)),
            Action::WriteIfValue(new, old, _) => Some(Action::WriteIfValue(new, old, None)),
            Action::Add(delta, _) => Some(Action::Add(delta, None)),
            Action::Delete(_) => Some(Action::Delete(None)),
            Action::Take(_) => Some(Action::Take(None)),
        }
    }

    /// The value after it, if its answer is possible on a register with this `value`.
    pub(crate) fn apply(self, value: Option<i64>) -> Option<Option<i64>> {
        let conditional = |does: bool, done: Option<bool>, new: i64| {
            done.is_none_or(|done| done == does).then_some(if does { Some(new) } else { value })
        };
        match self {
            Action::Read(read) => (read == value).then_some(value),
            Action::Write(new) => Some(Some(new)),
            Action::Swap(new, old) => old.is_none_or(|old| old == value).then_some(Some(new)),
            Action::WriteIfAbsent(new, done) => conditional(value.is_none(), done, new),
            Action::WriteIfPresent(new, done) => conditional(value.is_some(), done, new),
            Action::WriteIfValue(new, old, done) => conditional(value == Some(old), done, new),
            Action::Add(delta, answered) => {
                let sum = value.unwrap_or(0) + delta;
                answered.is_none_or(|answered| answered == sum).then_some(Some(sum))
            }
            Action::Delete(existed) => existed.is_none_or(|existed| existed == value.is_some()).then_some(None),
            Action::Take(old) => old.is_none_or(|old| old == value).then_some(None),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.answered {
            UNANSWERED => write!(f, "{:>12} .. {:>12}  {:?}", self.called, "never", self.action),
            at => write!(f, "{:>12} .. {at:>12}  {:?}", self.called, self.action),
        }
    }
}

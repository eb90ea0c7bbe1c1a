//! The search: Wing and Gong's algorithm with Lowe's cache of visited states. A state is the set of operations that
//! took effect, and the value. The search visits each state once. Pure; any thread.
//!
//! **Long histories.** Operations that must take effect do so nearly in the order of their calls. So a state stores how
//! many operations at the front have all taken effect, and one bit for each later one. The search goes forward, and
//! backtracks only as far as operations overlap.
//!
//! **Unknown outcomes.** An operation without an answer may take effect at any time after its call, or never. The
//! search tries it only where it is needed: right before an operation that would be impossible, or would have another
//! effect, without it. That loses nothing. In an order that explains the answers, move the operation later, past every
//! operation that does not depend on it. It then meets an operation that needs it, or one that hides its effect, and in
//! the second case it can be left out. Of several such operations with the same effect (deletes; writes of values that
//! no operation names) the search tries only the first, since all of them have been called. It skips a state that
//! differs from a visited one only in having used more of them. So unknown outcomes cost almost nothing, as long as
//! values differ.
//!
//! **Operations that changed nothing**, such as reads, take effect as soon as they can. In any order that explains the answers,
//! such an operation may move forward to where its answer is right, without an effect on any other.
//!
//! **Values that only one operation puts** never come back once they are overwritten. So the search overwrites no such
//! value before every operation that found it has taken effect. Little is left to search where most answers name a
//! value.

use crate::action::{Action, Operation, UNANSWERED};
use std::collections::{HashMap, HashSet};

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order that explains the answers.
    Linearizable,
    /// There is no such order.
    Violation,
    /// The search gave up after `max_states` states.
    Undecided,
}

/// Checks the operations on one key, which has no value at first. Gives up after `max_states` states, of about 100
/// bytes each.
pub fn check(operations: &[Operation], max_states: usize) -> Verdict {
    let history = History::new(operations);
    if history.is_out_of_thin_air() {
        return Verdict::Violation;
    }
    let mut seen = Seen::default();
    let mut open = vec![Linearization::default()];
    let mut next = Vec::new();
    while let Some(state) = open.pop() {
        if state.place.base == history.must.len() {
            return Verdict::Linearizable;
        }
        if seen.states > max_states {
            return Verdict::Undecided;
        }
        history.expand(&state, &mut next);
        open.extend(next.drain(..).filter(|state| seen.is_new(state)));
    }
    Verdict::Violation
}

/// The operations that took effect, and the resulting value.
#[derive(Clone, Debug, Default)]
struct Linearization {
    place: Progress,
    /// Operations without an answer that took effect, ascending.
    used: Vec<usize>,
}

/// The states that were visited.
#[derive(Default)]
struct Seen {
    /// By place: the minimal sets of unanswered operations that lead there.
    used: HashMap<Progress, Vec<Vec<usize>>>,
    states: usize,
}

impl Seen {
    /// Adds a state. Answers false if an equal one is known that used a subset of its unanswered operations.
    fn is_new(&mut self, state: &Linearization) -> bool {
        let least = self.used.entry(state.place.clone()).or_default();
        if least.iter().any(|used| is_subset(used, &state.used)) {
            return false;
        }
        least.retain(|used| !is_subset(&state.used, used));
        least.push(state.used.clone());
        self.states += 1;
        true
    }
}

/// Whether all of `few` are among `many`. Both ascend.
fn is_subset(few: &[usize], many: &[usize]) -> bool {
    let mut many = many.iter();
    few.len() <= many.len() && few.iter().all(|one| many.any(|other| other == one))
}

/// Which of the answered operations took effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Progress {
    /// All operations before this one took effect.
    base: usize,
    /// The later ones that took effect: bit `i` is `base + i`. No zero word at the end.
    ahead: Vec<u64>,
    value: Option<i64>,
    /// If the last operation was an unanswered one: the value before it. The next operation must need its effect.
    owed: Option<Option<i64>>,
}

/// The operations on one key, answered and unanswered, each sorted by call.
struct History {
    /// Answered, so they took effect.
    must: Vec<Operation>,
    /// Unanswered, so they may have taken effect.
    may: Vec<May>,
    /// By value that at most one operation puts: the operations of `must` that found it.
    found_by: HashMap<i64, Vec<usize>>,
    /// All values that are put; `None` if they cannot be known.
    puts: Option<HashSet<i64>>,
}

struct May {
    operation: Operation,
    /// Operations of one class have the same effect, so only the first unused one is tried. `None`: no other is like it.
    class: Option<Class>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Removes,
    Writes,
    WritesIfAbsent,
    WritesIfPresent,
}

impl History {
    fn new(operations: &[Operation]) -> History {
        let mut sorted = operations.to_vec();
        sorted.sort_by_key(|operation| operation.called);
        let (must, may): (Vec<_>, Vec<_>) = sorted.into_iter().partition(|operation| operation.answered != UNANSWERED);
        let named: HashSet<i64> = must.iter().chain(&may).filter_map(|operation| operation.action.names()).collect();
        // With sums any value may be named.
        let has_sums = must.iter().chain(&may).any(|operation| matches!(operation.action, Action::Add(..)));
        let class = |action: Action| match action {
            // Its answer, if it takes effect at all, is known.
            _ if action.unanswered() != Some(action) => None,
            Action::Delete(_) | Action::Take(_) => Some(Class::Removes),
            _ if has_sums || action.put().is_some_and(|new| named.contains(&new)) => None,
            Action::Write(_) | Action::Swap(..) => Some(Class::Writes),
            Action::WriteIfAbsent(..) => Some(Class::WritesIfAbsent),
            Action::WriteIfPresent(..) => Some(Class::WritesIfPresent),
            Action::Read(_) | Action::WriteIfValue(..) | Action::Add(..) => None,
        };
        let changes = may.into_iter().filter(|operation| !matches!(operation.action, Action::Read(_)));
        let may: Vec<May> = changes.map(|operation| May { operation, class: class(operation.action) }).collect();
        let mut found_by = HashMap::<i64, Vec<usize>>::new();
        let mut puts = HashSet::new();
        if !has_sums {
            for (index, operation) in must.iter().enumerate() {
                operation.action.finds().into_iter().for_each(|value| found_by.entry(value).or_default().push(index));
            }
            for value in must.iter().chain(may.iter().map(|may| &may.operation)).filter_map(|one| one.action.put()) {
                if !puts.insert(value) {
                    found_by.remove(&value);
                }
            }
        }
        History { must, may, found_by, puts: (!has_sums).then_some(puts) }
    }

    /// Whether an operation found a value that no operation puts.
    fn is_out_of_thin_air(&self) -> bool {
        self.puts.as_ref().is_some_and(|puts| self.found_by.keys().any(|value| !puts.contains(value)))
    }

    /// Whether `value` may replace the value at `place`, by the operation `by` of `must` or by one of `may`. It may if the old
    /// value can come back, or if no remaining operation found it.
    fn may_replace(&self, place: &Progress, by: Option<usize>, value: Option<i64>) -> bool {
        let Some(found_by) = place.value.filter(|_| place.value != value).and_then(|old| self.found_by.get(&old))
        else {
            return true;
        };
        found_by.iter().all(|index| Some(*index) == by || place.is_done(*index))
    }

    /// Adds the states that may follow `state`. The last one is tried first.
    fn expand(&self, state: &Linearization, next: &mut Vec<Linearization>) {
        let place = &state.place;
        let (ready, first_answer) = self.ready(place);
        let is_due = |index: &usize| {
            let action = self.must[*index].action;
            changes_nothing(action) && action.apply(place.value).is_some() && place.permits(action)
        };
        if let Some(index) = ready.iter().copied().find(is_due) {
            return next.push(state.with_answered(index, place.value));
        }
        let mut tried: Vec<Class> = Vec::new();
        for (index, May { operation, class }) in self.may.iter().enumerate() {
            if operation.called > first_answer {
                break;
            }
            let is_used = state.used.binary_search(&index).is_ok();
            if is_used || class.is_some_and(|class| tried.contains(&class)) {
                continue;
            }
            tried.extend(*class);
            let Some(value) = operation.action.apply(place.value).filter(|value| *value != place.value) else {
                continue;
            };
            if place.permits(operation.action)
                && self.may_replace(place, None, value)
                && self.is_needed(&ready, first_answer, place.value, value)
            {
                next.push(state.with_unanswered(index, value));
            }
        }
        // The one with the earliest answer is tried first.
        for index in ready {
            let action = self.must[index].action;
            if let Some(value) = action.apply(place.value)
                && place.permits(action)
                && self.may_replace(place, Some(index), value)
            {
                next.push(state.with_answered(index, value));
            }
        }
    }

    /// The answered operations that may take effect next, latest answer first; and the earliest answer of all that have not yet.
    fn ready(&self, place: &Progress) -> (Vec<usize>, u64) {
        let mut first_answer = u64::MAX;
        let mut ready = Vec::new();
        for (index, operation) in self.must.iter().enumerate().skip(place.base) {
            if operation.called > first_answer {
                break;
            }
            if !place.is_done(index) {
                first_answer = first_answer.min(operation.answered);
                ready.push(index);
            }
        }
        ready.retain(|index| self.must[*index].called <= first_answer);
        ready.sort_by_key(|index| std::cmp::Reverse(self.must[*index].answered));
        (ready, first_answer)
    }

    /// Whether some operation of `ready` needs a change from `before` to `after`.
    fn is_needed(&self, ready: &[usize], first_answer: u64, before: Option<i64>, after: Option<i64>) -> bool {
        let musts = ready.iter().map(|index| self.must[*index].action);
        let mays = self.may.iter().map(|may| may.operation);
        let mut mays = mays.take_while(|operation| operation.called <= first_answer).map(|operation| operation.action);
        musts.into_iter().any(|action| needs(action, before, after)) || mays.any(|action| needs(action, before, after))
    }
}

/// Whether the answer says that the operation changed nothing.
fn changes_nothing(action: Action) -> bool {
    match action {
        Action::Read(_) | Action::Delete(Some(false)) | Action::Take(Some(None)) => true,
        Action::WriteIfAbsent(_, done) | Action::WriteIfPresent(_, done) | Action::WriteIfValue(_, _, done) => {
            done == Some(false)
        }
        _ => false,
    }
}

/// Whether `action` is possible after a change from `before` to `after`, and the change can neither follow it nor be left out.
fn needs(action: Action, before: Option<i64>, after: Option<i64>) -> bool {
    let Some(with) = action.apply(after) else { return false };
    match action.apply(before) {
        None => true,
        // The result would be the same without the change.
        Some(without) if without == with => false,
        // It changes nothing in either case, so the change may as well follow it.
        Some(without) => !(without == before && with == after),
    }
}

impl Linearization {
    fn with_unanswered(&self, index: usize, value: Option<i64>) -> Linearization {
        let mut state = self.clone();
        let at = state.used.partition_point(|used| *used < index);
        state.used.insert(at, index);
        (state.place.owed, state.place.value) = (Some(self.place.value), value);
        state
    }

    fn with_answered(&self, index: usize, value: Option<i64>) -> Linearization {
        let mut state = self.clone();
        (state.place.owed, state.place.value) = (None, value);
        state.place.done(index);
        state
    }
}

impl Progress {
    fn is_done(&self, index: usize) -> bool {
        let Some(bit) = index.checked_sub(self.base) else { return true };
        self.ahead.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    /// Whether `action` may be the next one.
    fn permits(&self, action: Action) -> bool {
        self.owed.is_none_or(|before| needs(action, before, self.value))
    }

    /// Notes an operation, and advances the base over all that took effect.
    fn done(&mut self, index: usize) {
        let bit = index - self.base;
        if self.ahead.len() <= bit / 64 {
            self.ahead.resize(bit / 64 + 1, 0);
        }
        self.ahead[bit / 64] |= 1 << (bit % 64);
        let full = self.ahead.iter().take_while(|word| **word == u64::MAX).count();
        self.ahead.drain(..full);
        self.base += full * 64;
        let ones = self.ahead.first().map_or(0, |word| word.trailing_ones());
        if ones > 0 {
            for at in 0..self.ahead.len() {
                let above = self.ahead.get(at + 1).map_or(0, |word| word << (64 - ones));
                self.ahead[at] = self.ahead[at] >> ones | above;
            }
            self.base += ones as usize;
        }
        while self.ahead.last() == Some(&0) {
            self.ahead.pop();
        }
    }
}

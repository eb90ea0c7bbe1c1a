//! The client library as a [`Store`], with its own retries. It says when an outcome is unknown. Belongs to one thread.

use crate::clients::{DEADLINE, Outcome, Store};
use crate::workload::{number_of, value};
use bytes::Bytes;
use leeward_client::{ClientOptions, Condition, Lifetime, Op, OpError, OpResult, ScanRange, Session};
use leeward_format::Lsn;
use leeward_format::table::TableName;
use leeward_history::Action;

/// A client by the native protocol.
#[derive(Debug)]
pub(crate) struct Native {
    addresses: Vec<String>,
    options: ClientOptions,
    session: Option<Session>,
    /// The last put that was answered: where, its version and its value.
    version: Option<(Bytes, Lsn, i64)>,
    /// Reads are scans.
    scans: bool,
}

impl Native {
    /// A client of this name, of a table. With `retry_puts` it retries plain puts too.
    pub(crate) fn new(addresses: Vec<String>, name: String, table: TableName, retry_puts: bool) -> Native {
        let options = ClientOptions { name, table, deadline: DEADLINE, retry_puts, ..ClientOptions::default() };
        Native { addresses, options, session: None, version: None, scans: false }
    }

    /// Its reads are scans.
    pub(crate) fn with_scans(self) -> Native {
        Native { scans: true, ..self }
    }

    fn op(&self, key: &Bytes, action: Action) -> Op {
        let put = |new: i64, when, want_old| Op::Put {
            key: key.clone(),
            value: value(new),
            when,
            want_old,
            lifetime: Lifetime::Forever,
        };
        match action {
            Action::Read(_) if self.scans => {
                let end = Some([&key[..], &[0]].concat().into());
                Op::Scan(ScanRange { start: key.clone(), end, reverse: false, limit: 1, keys_only: false })
            }
            Action::Read(_) => Op::Get { key: key.clone() },
            Action::Write(new) => put(new, Condition::Always, false),
            Action::Swap(new, _) => put(new, Condition::Always, true),
            Action::WriteIfAbsent(new, _) => put(new, Condition::Absent, false),
            Action::WriteIfPresent(new, _) => put(new, Condition::Present, false),
            Action::WriteIfValue(new, old, _) => match &self.version {
                Some((at, version, known)) if at == key && *known == old => {
                    put(new, Condition::Version(*version), false)
                }
                _ => put(new, Condition::Value(value(old)), false),
            },
            Action::Delete(_) | Action::Take(_) => Op::Delete { key: key.clone(), when: Condition::Always },
            Action::Add(delta, _) => Op::Add { key: key.clone(), delta },
        }
    }

    fn ask(&mut self, op: Op) -> Option<OpResult> {
        if self.session.is_none() {
            self.session = Session::connect(&self.addresses, self.options.clone()).ok();
        }
        let executed = self.session.as_mut()?.execute(vec![op]);
        match executed {
            Ok(mut results) => results.pop(),
            // This process has no file descriptors left, or the like. The outcome of the request is unknown.
            Err(error) => {
                self.session = None;
                Some(OpResult::Error(OpError::Unknown(error.to_string())))
            }
        }
    }
}

impl Store for Native {
    fn direct_reads(&self) -> u64 {
        self.session.as_ref().map_or(0, |session| session.direct_stats().hits)
    }

    fn execute(&mut self, key: &Bytes, action: Action) -> Outcome {
        let op = self.op(key, action);
        let Some(result) = self.ask(op) else { return Outcome::NotDone };
        if let (Some(new), OpResult::Put { done: true, version: Some(version), .. }) = (action.put(), &result) {
            self.version = Some((key.clone(), *version, new));
        }
        outcome(action, &result)
    }
}

/// The outcome that an answer states.
fn outcome(action: Action, result: &OpResult) -> Outcome {
    let number = |value: &Option<Bytes>| value.as_deref().map(number_of);
    let answered = match (action, result) {
        // It took effect; nothing else is known.
        (Action::Swap(new, _), OpResult::Error(OpError::AnswerGone { done: true })) => Action::Write(new),
        (Action::Take(_), OpResult::Deleted { done: true, old: None, .. }) => Action::Delete(Some(true)),
        (_, OpResult::Error(OpError::Unknown(_))) => return Outcome::Unknown,
        (_, OpResult::Error(OpError::Invalid(why))) => return Outcome::Wrong(why.clone()),
        (_, OpResult::Error(_)) => return Outcome::NotDone,
        (Action::Read(_), OpResult::Value(found)) => Action::Read(number(found)),
        (Action::Read(_), OpResult::Entries { entries, resume: None }) => {
            Action::Read(entries.first().map(|(_, value)| number_of(value)))
        }
        (Action::Write(new), OpResult::Put { done: true, .. }) => Action::Write(new),
        (Action::Swap(new, _), OpResult::Put { done: true, old, .. }) => Action::Swap(new, Some(number(old))),
        (Action::WriteIfAbsent(new, _), OpResult::Put { done, .. }) => Action::WriteIfAbsent(new, Some(*done)),
        (Action::WriteIfPresent(new, _), OpResult::Put { done, .. }) => Action::WriteIfPresent(new, Some(*done)),
        (Action::WriteIfValue(new, old, _), OpResult::Put { done, .. }) => Action::WriteIfValue(new, old, Some(*done)),
        (Action::Take(_), OpResult::Deleted { done, old, .. }) if *done == old.is_some() => {
            Action::Take(Some(number(old)))
        }
        (_, other) => return Outcome::Wrong(format!("{other:?}")),
    };
    Outcome::Answered(answered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_for_what_they_say() {
        let old = Some(value(4));
        let put = |done, old| OpResult::Put { done, old, version: None };
        assert_eq!(
            outcome(Action::Read(None), &OpResult::Value(old.clone())),
            Outcome::Answered(Action::Read(Some(4)))
        );
        let entries = vec![("key".into(), value(4))];
        let scanned = OpResult::Entries { entries, resume: None };
        assert_eq!(outcome(Action::Read(None), &scanned), Outcome::Answered(Action::Read(Some(4))));
        assert_eq!(
            outcome(Action::Swap(5, None), &put(true, old.clone())),
            Outcome::Answered(Action::Swap(5, Some(Some(4))))
        );
        let refused = outcome(Action::WriteIfValue(5, 4, None), &put(false, None));
        assert_eq!(refused, Outcome::Answered(Action::WriteIfValue(5, 4, Some(false))));
        let taken = OpResult::Deleted { done: true, old, version: None };
        assert_eq!(outcome(Action::Take(None), &taken), Outcome::Answered(Action::Take(Some(Some(4)))));
        let removed = OpResult::Deleted { done: true, old: None, version: None };
        assert_eq!(outcome(Action::Take(None), &removed), Outcome::Answered(Action::Delete(Some(true))));
        let swapped = OpResult::Error(OpError::AnswerGone { done: true });
        assert_eq!(outcome(Action::Swap(5, None), &swapped), Outcome::Answered(Action::Write(5)));
        let error = |error| outcome(Action::Write(1), &OpResult::Error(error));
        assert_eq!(error(OpError::Unknown(String::new())), Outcome::Unknown);
        assert_eq!(error(OpError::Unavailable(String::new())), Outcome::NotDone);
        assert_eq!(error(OpError::Invalid("bad".into())), Outcome::Wrong("bad".into()));
        assert!(matches!(outcome(Action::Write(1), &put(false, None)), Outcome::Wrong(_)));
    }
}

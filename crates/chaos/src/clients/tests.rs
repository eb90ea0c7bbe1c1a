//! Clients of a register in memory: what they note is what happened.

use super::*;
use leeward_history::{Verdict, check};
use parking_lot::Mutex;

/// A store that is one map, refuses now and then, and now and then does not say what it did.
struct Fake<'a> {
    content: &'a Mutex<HashMap<Bytes, i64>>,
    rng: Rng,
    /// Reads see what was there before the last change, now and then.
    is_stale: bool,
}

impl Store for Fake<'_> {
    fn execute(&mut self, key: &Bytes, action: Action) -> Outcome {
        if self.rng.one_in(10) {
            return Outcome::NotDone;
        }
        let mut content = self.content.lock();
        let value = content.get(key).copied();
        let (after, answered) = match action {
            Action::Read(_) if self.is_stale && self.rng.one_in(20) => (value, Action::Read(Some(1))),
            Action::Read(_) => (value, Action::Read(value)),
            Action::Take(_) => (None, Action::Take(Some(value))),
            Action::WriteIfAbsent(new, _) => (value.or(Some(new)), Action::WriteIfAbsent(new, Some(value.is_none()))),
            Action::WriteIfPresent(new, _) => (value.map(|_| new), Action::WriteIfPresent(new, Some(value.is_some()))),
            Action::WriteIfValue(new, old, _) => {
                let does = value == Some(old);
                (if does { Some(new) } else { value }, Action::WriteIfValue(new, old, Some(does)))
            }
            Action::Swap(new, _) => (Some(new), Action::Swap(new, Some(value))),
            other => (other.put(), other),
        };
        match after {
            Some(after) => drop(content.insert(key.clone(), after)),
            None => drop(content.remove(key)),
        }
        if self.rng.one_in(10) { Outcome::Unknown } else { Outcome::Answered(answered) }
    }
}

fn run(is_stale: bool) -> Log {
    let (shared, content) = (ClientRun::new(), Mutex::default());
    let mut log = Log::default();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..6)
            .map(|client| {
                let (shared, content) = (&shared, &content);
                scope.spawn(move || {
                    let mut store = Fake { content, rng: Rng::new(client), is_stale };
                    work(shared, client as usize % 2, &mut store, client % 3 == 0, Rng::new(100 + client))
                })
            })
            .collect();
        thread::sleep(Duration::from_secs(2));
        shared.end();
        clients.into_iter().for_each(|client| log.merge(client.join().expect("no panic")));
    });
    log
}

#[test]
fn a_register_is_found_linearizable() {
    let log = run(false);
    assert!(log.successes.len() > 200 && log.refused > 20 && log.unknown > 20, "{}", log.successes.len());
    assert!(log.wrong.is_empty(), "{:?}", log.wrong);
    assert!(log.histories.values().all(|history| check(history, 1_000_000) == Verdict::Linearizable));
}

#[test]
fn stale_reads_are_found() {
    let log = run(true);
    assert!(log.histories.values().any(|history| check(history, 1_000_000) == Verdict::Violation));
}

//! Passwords that wait to be checked, and what failed tries cost, as a state machine: `(now, event) -> what to do`. The
//! password thread (`runtime/passwords.rs`) drives it.
//!
//! - A success is remembered, by a mark that only this process can make ([`MemoryKey`]), so that a client that connects
//!   again costs no hash. It counts only while the user has the password.
//! - After [`FREE_TRIES`] failed tries, an address is *suspect*, and so is a user for addresses from which it has never come
//!   in. Answers to their failed tries are delayed, the longer the more there were. Few of their tries may wait. So
//!   others hardly wait for them.
//! - Everything is bounded: what waits, what is remembered, and the tables of failures.
//!
//! Invariant: each question is answered once: the reply of each that was taken is given back once.

use super::{Answer, Question, Work};
use leeward_format::user::{PasswordId, UserName, Users};
use leeward_platform::Nanos;
use leeward_security::passwords::MemoryKey;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;

/// Failed tries without consequences.
pub(crate) const FREE_TRIES: u32 = 3;
/// Most questions that wait, of those that are not suspect, and of those that are.
pub(crate) const MOST_WAITING: usize = 4096;
const MOST_SUSPECT: usize = 64;
/// Most suspect questions that wait of one address, or about one user.
const MOST_OF_ONE: usize = 2;
/// After so many other questions, a suspect one is taken.
const TURNS: u32 = 4;
/// The delay of the first failure that is slowed, which doubles with each other one; and the longest.
const FIRST_DELAY: Nanos = Nanos::from_millis(100);
const LONGEST_DELAY: Nanos = Nanos::from_secs(5);
/// Failures are forgotten after this time without another.
const FORGOTTEN_AFTER: Nanos = Nanos::from_secs(600);
/// Most addresses and users whose failures are counted, and most passwords and pairs of user and address that are
/// remembered.
const MOST_REMEMBERED: usize = 4096;

/// What failures are counted by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// An address; of IPv6 its network of 64 bits, since a client may have all addresses of one.
    Address(IpAddr),
    User(String),
}

fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
    }
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Nanos,
}

/// See the module.
pub(crate) struct Checks<R> {
    key: MemoryKey,
    waiting: VecDeque<(Question, R)>,
    suspect: VecDeque<(Question, R)>,
    /// Questions taken since the last suspect one.
    turns: u32,
    failures: BTreeMap<Subject, Failures>,
    /// Failed tries whose answers are delayed. They count as waiting.
    delayed: Vec<Delayed<R>>,
    /// Passwords that were right, by their marks.
    known: Recent<[u8; 32], PasswordId>,
    /// Users that came in, each from this address.
    good: Recent<(String, IpAddr), ()>,
}

/// A failed try whose answer is delayed.
struct Delayed<R> {
    due: Nanos,
    user: Option<String>,
    from: Option<IpAddr>,
    reply: R,
}

/// The newest [`MOST_REMEMBERED`] entries of a map.
struct Recent<K, V> {
    map: HashMap<K, V>,
    /// Its keys, oldest first.
    order: VecDeque<K>,
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    fn new() -> Recent<K, V> {
        Recent { map: HashMap::new(), order: VecDeque::new() }
    }

    fn insert(&mut self, key: K, value: V) {
        if self.map.insert(key.clone(), value).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > MOST_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.map.remove(&oldest);
        }
    }
}

/// What becomes of a question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken<R> {
    /// It waits for its turn.
    Waits,
    /// The password is known already.
    Known(UserName, PasswordId, R),
    /// There is no room.
    Busy(R),
}

impl<R> Checks<R> {
    pub(crate) fn new(key: MemoryKey) -> Checks<R> {
        Checks {
            key,
            waiting: VecDeque::new(),
            suspect: VecDeque::new(),
            turns: 0,
            failures: BTreeMap::new(),
            delayed: Vec::new(),
            known: Recent::new(),
            good: Recent::new(),
        }
    }

    /// Takes a question; `reply` is for its answer.
    pub(crate) fn take(&mut self, now: Nanos, users: &Users, question: Question, reply: R) -> Taken<R> {
        if let Work::Check { user, password } = &question.work {
            let known = self.known.map.get(&self.key.mark(user, password));
            let admitted = known.zip(users.get(user)).filter(|(id, user)| user.admits(Some(**id)));
            if let Some((id, user)) = admitted {
                return Taken::Known(user.name.clone(), *id, reply);
            }
        }
        if self.is_suspect(now, &question) {
            return self.take_suspect(now, question, reply);
        }
        if self.waiting.len() >= MOST_WAITING {
            return Taken::Busy(reply);
        }
        self.waiting.push_back((question, reply));
        Taken::Waits
    }

    fn take_suspect(&mut self, now: Nanos, question: Question, reply: R) -> Taken<R> {
        let (user, from) = (user_of(&question), question.from.map(network));
        let alike = |other: Option<&str>, other_from: Option<IpAddr>| {
            from.is_some() && other_from.map(network) == from || user.is_some() && other == user
        };
        let waiting = self.suspect.iter().map(|(other, _)| (user_of(other), other.from));
        let delayed = self.delayed.iter().filter(|delayed| delayed.due > now);
        let all = waiting.chain(delayed.map(|delayed| (delayed.user.as_deref(), delayed.from)));
        let (mut count, mut of_one) = (0, 0);
        for (user, from) in all {
            count += 1;
            of_one += usize::from(alike(user, from));
        }
        if of_one >= MOST_OF_ONE || count >= MOST_SUSPECT {
            return Taken::Busy(reply);
        }
        self.suspect.push_back((question, reply));
        Taken::Waits
    }

    /// The next question whose answer takes time. The replies that are due go to `answered`: of failed tries whose delay is
    /// over, and of questions that cannot wait any more, because they have become suspect.
    pub(crate) fn next(&mut self, now: Nanos, answered: &mut Vec<(R, Answer)>) -> Option<(Question, R)> {
        let due = self.delayed.extract_if(.., |delayed| delayed.due <= now);
        answered.extend(due.map(|delayed| (delayed.reply, Answer::Refused)));
        while self.turns < TURNS || self.suspect.is_empty() {
            let Some((question, reply)) = self.waiting.pop_front() else { break };
            if !self.is_suspect(now, &question) {
                self.turns += 1;
                return Some((question, reply));
            }
            if let Taken::Busy(reply) = self.take_suspect(now, question, reply) {
                answered.push((reply, Answer::Busy));
            }
        }
        self.turns = 0;
        self.suspect.pop_front().or_else(|| self.waiting.pop_front())
    }

    /// The password of `user` was right.
    pub(crate) fn succeeded(&mut self, question: &Question, password: Option<PasswordId>) {
        let Work::Check { user, password: tried } = &question.work else { return };
        if let Some(from) = question.from.map(network) {
            self.good.insert((user.clone(), from), ());
        }
        if let Some(id) = password {
            self.known.insert(self.key.mark(user, tried), id);
        }
    }

    /// When the next delayed answer is due.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.delayed.iter().map(|delayed| delayed.due).min()
    }

    /// The password was wrong, or there is no such user. Returns the reply, unless it is delayed: then [`Checks::next`]
    /// returns it.
    pub(crate) fn failed(&mut self, now: Nanos, question: &Question, reply: R) -> Option<R> {
        let mut most = 0;
        for subject in subjects(question) {
            self.forget(now, &subject);
            let failures = self.failures.entry(subject).or_insert(Failures { count: 0, last: now });
            failures.count = failures.count.saturating_add(1);
            failures.last = now;
            most = most.max(failures.count);
        }
        let Some(more) = most.checked_sub(FREE_TRIES + 1) else { return Some(reply) };
        let due = now + Nanos(FIRST_DELAY.0 << more.min(16)).min(LONGEST_DELAY);
        let user = user_of(question).map(str::to_owned);
        self.delayed.push(Delayed { due, user, from: question.from, reply });
        None
    }

    /// Makes room for `subject` in the table of failures.
    fn forget(&mut self, now: Nanos, subject: &Subject) {
        if self.failures.get(subject).is_some_and(|failures| now.since(failures.last) > FORGOTTEN_AFTER) {
            self.failures.remove(subject);
        }
        if self.failures.contains_key(subject) || self.failures.len() < MOST_REMEMBERED {
            return;
        }
        self.failures.retain(|_, failures| now.since(failures.last) <= FORGOTTEN_AFTER);
        // Those with the fewest failures go, so that a flood of names does not clear an address that guesses.
        let least = self.failures.iter().min_by_key(|(_, failures)| (failures.count, failures.last));
        if let Some(least) =
            least.filter(|_| self.failures.len() >= MOST_REMEMBERED).map(|(subject, _)| subject.clone())
        {
            self.failures.remove(&least);
        }
    }

    fn is_suspect(&self, now: Nanos, question: &Question) -> bool {
        let pair = user_of(question).zip(question.from.map(network));
        let is_good = pair.is_some_and(|(user, from)| self.good.map.contains_key(&(user.to_owned(), from)));
        subjects(question).any(|subject| {
            let failures = self.failures.get(&subject);
            let is_slowed = failures
                .is_some_and(|failures| failures.count > FREE_TRIES && now.since(failures.last) <= FORGOTTEN_AFTER);
            is_slowed && !(is_good && matches!(subject, Subject::User(_)))
        })
    }
}

fn user_of(question: &Question) -> Option<&str> {
    match &question.work {
        Work::Check { user, .. } => Some(user),
        Work::Rules { .. } => None,
    }
}

/// What a failure of the question is counted by: nothing for a change of a user, which only an admin can ask for. A name
/// that no user can have is not counted.
fn subjects(question: &Question) -> impl Iterator<Item = Subject> {
    let user = user_of(question);
    let address = question.from.filter(|_| user.is_some()).map(|from| Subject::Address(network(from)));
    let user = user.filter(|user| user.parse::<UserName>().is_ok()).map(|user| Subject::User(user.into()));
    address.into_iter().chain(user)
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;

//! Passwords that wait to be checked, and what failed tries cost, as a state machine: `(now, event) -> what to do`. The
//! password thread (`passwords.rs`) drives it.
//!
//! - A user and a password are a *pair*. All tries of one pair that wait together are one group, and one check answers
//!   them. So thousands of clients of a user that connect at the same time cost one check.
//! - A success is remembered, by a mark that only this process can make ([`MemoryKey`]), so that a client that connects
//!   again costs no check. It counts only while the user has the password.
//! - A failed try is answered as soon as it is checked. After [`FREE_TRIES`] of them, an address is *suspect*, and so is a
//!   user for addresses from which it has never come in. Then the next check is delayed, the longer the more have failed.
//!   A try whose check is more than [`SUSPECT_TIMEOUT`] away is refused at once, and told when to come again. Few groups of
//!   suspect tries may wait. So others hardly wait for them.
//! - Everything is bounded: what waits, what is remembered, and the tables of failures.
//!
//! Invariants: each question is answered once: the reply of each that was taken is given back once. A pair is in one group
//! at most, so no pair that is known waits: a success ends its group, and [`Checks::take`] looks at what is known first.

use super::{Answer, Question, Work};
use leeward_format::user::{PasswordId, UserName, Users};
use leeward_platform::Nanos;
use leeward_security::passwords::MemoryKey;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;

/// Failed tries without consequences.
pub(crate) const FREE_TRIES: u32 = 3;
/// Most groups that wait, of those that are not suspect, and of those that are.
pub(crate) const MOST_WAITING: usize = 4096;
const MOST_SUSPECT: usize = 64;
/// Most suspect groups that wait of one address, or about one user.
const MOST_OF_ONE: usize = 2;
/// Most tries in all groups: as many as a node may have connections.
const MOST_TRIES: usize = 100_000;
/// Most networks of a group by which it is decided whether, and how long, it is suspect.
const MOST_NETWORKS: usize = 64;
/// After so many other groups, a suspect one is taken.
const TURNS: u32 = 4;
/// The delay of the check after the first failure that has one, which doubles with each other one; and the longest.
const FIRST_DELAY: Nanos = Nanos::from_millis(100);
const LONGEST_DELAY: Nanos = Nanos::from_secs(5);
/// How long a suspect try waits for its check. Clients take an answer that comes later for a node that does not answer.
const SUSPECT_TIMEOUT: Nanos = Nanos::from_millis(500);
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

impl Failures {
    fn are_forgotten(self, now: Nanos) -> bool {
        now.since(self.last) > FORGOTTEN_AFTER
    }

    /// When the next check may begin; `None` if it is not slowed.
    fn slow_until(self, now: Nanos) -> Option<Nanos> {
        let more = self.count.checked_sub(FREE_TRIES + 1).filter(|_| !self.are_forgotten(now))?;
        Some(self.last + Nanos(FIRST_DELAY.0 << more.min(16)).min(LONGEST_DELAY))
    }
}

/// What is answered together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// A user and a password, by their mark.
    Pair([u8; 32]),
    /// A change of a user, by its number.
    Change(u64),
}

/// The tries that wait, the passwords that were right, and what failed. `R` is who waits for an answer.
pub(crate) struct Checks<R> {
    key: MemoryKey,
    /// Groups that wait, and the one that is being checked.
    groups: HashMap<Key, Group<R>>,
    waiting: VecDeque<Key>,
    suspect: VecDeque<Key>,
    /// Tries in all groups.
    tries: usize,
    changes: u64,
    /// Groups taken since the last suspect one.
    turns: u32,
    failures: BTreeMap<Subject, Failures>,
    /// Passwords that were right, by their marks.
    known: Recent<[u8; 32], PasswordId>,
    /// Users that came in, each from this address.
    good: Recent<(String, IpAddr), ()>,
}

struct Group<R> {
    /// `None` while it is being checked.
    work: Option<Work>,
    /// The user whose password this is to be.
    user: Option<String>,
    tries: Vec<Try<R>>,
    /// The networks of its first tries.
    networks: BTreeSet<Option<IpAddr>>,
}

/// A question without what it asks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Try<R> {
    /// The address of the client.
    pub(crate) from: Option<IpAddr>,
    /// Since when it waits, or is suspect.
    since: Nanos,
    /// For the answer.
    pub(crate) reply: R,
}

/// What the password thread is to do. [`Checks::finish`] or [`Checks::repeat`] takes it back.
#[derive(Debug)]
pub(crate) struct Task {
    key: Key,
    pub(crate) work: Work,
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
    /// It is answered at once.
    Answered(R, Answer),
}

impl<R> Group<R> {
    fn new(work: Work, user: Option<String>) -> Group<R> {
        Group { work: Some(work), user, tries: Vec::new(), networks: BTreeSet::new() }
    }

    fn add(&mut self, one: Try<R>) {
        if self.networks.len() < MOST_NETWORKS {
            self.networks.insert(one.from.map(network));
        }
        self.tries.push(one);
    }

    /// Removes the tries for which `is_over` holds.
    fn remove(&mut self, is_over: impl Fn(&Try<R>) -> bool) -> Vec<Try<R>> {
        let (over, left) = std::mem::take(&mut self.tries).into_iter().partition(is_over);
        self.networks.clear();
        let left: Vec<Try<R>> = left;
        left.into_iter().for_each(|one| self.add(one));
        over
    }

    /// Whether they are of the same user, or of one address.
    fn is_like(&self, other: &Group<R>) -> bool {
        let is_of_user = self.user.is_some() && self.user == other.user;
        is_of_user || self.networks.iter().any(|from| from.is_some() && other.networks.contains(from))
    }
}

impl<R> Checks<R> {
    pub(crate) fn new(key: MemoryKey) -> Checks<R> {
        Checks {
            key,
            groups: HashMap::new(),
            waiting: VecDeque::new(),
            suspect: VecDeque::new(),
            tries: 0,
            changes: 0,
            turns: 0,
            failures: BTreeMap::new(),
            known: Recent::new(),
            good: Recent::new(),
        }
    }

    /// Takes a question; `reply` is for its answer.
    pub(crate) fn take(&mut self, now: Nanos, users: &Users, question: Question, reply: R) -> Taken<R> {
        let Question { from, work, .. } = question;
        let (key, user) = match &work {
            Work::Check { user, password } => {
                let mark = self.key.mark(user, password);
                let known = self.known.map.get(&mark).zip(users.get(user));
                if let Some((id, user)) = known.filter(|(id, user)| user.admits(Some(**id))) {
                    return Taken::Answered(reply, Answer::Admitted(user.name.clone(), Some(*id)));
                }
                (Key::Pair(mark), Some(user.clone()))
            }
            Work::Rules { .. } => {
                self.changes += 1;
                (Key::Change(self.changes), None)
            }
        };
        if self.tries >= MOST_TRIES {
            return Taken::Answered(reply, Answer::Busy);
        }
        let one = Try { from, since: now, reply };
        if let Some(group) = self.groups.get_mut(&key) {
            group.add(one);
            self.tries += 1;
            return Taken::Waits;
        }
        let mut group = Group::new(work, user);
        group.networks.insert(from.map(network));
        let until = self.slow_until(now, &group);
        let refused = match until {
            Some(until) => self.refuse_suspect(now, until, &group),
            None => (self.waiting.len() >= MOST_WAITING).then_some(Answer::Busy),
        };
        if let Some(answer) = refused {
            return Taken::Answered(one.reply, answer);
        }
        group.add(one);
        self.tries += 1;
        self.groups.insert(key, group);
        if until.is_some() { &mut self.suspect } else { &mut self.waiting }.push_back(key);
        Taken::Waits
    }

    /// Why a suspect group, whose check may begin at `until`, may not wait; `None` if it may.
    fn refuse_suspect(&self, now: Nanos, until: Nanos, group: &Group<R>) -> Option<Answer> {
        if until > now + SUSPECT_TIMEOUT {
            return Some(Answer::TooSoon(until - now));
        }
        let alike = self.suspect.iter().filter(|key| self.groups[key].is_like(group)).count();
        (alike >= MOST_OF_ONE || self.suspect.len() >= MOST_SUSPECT).then_some(Answer::Busy)
    }

    /// The next task. Tries that cannot wait any longer go to `answered`.
    pub(crate) fn next(&mut self, now: Nanos, answered: &mut Vec<(R, Answer)>) -> Option<Task> {
        self.give_up(now, answered);
        while self.turns < TURNS || self.ready_suspect(now).is_none() {
            let Some(key) = self.waiting.pop_front() else { break };
            let group = self.groups.get(&key).expect("a group that waits is there");
            let Some(until) = self.slow_until(now, group) else {
                self.turns += 1;
                return Some(self.begin(key));
            };
            // Others have failed since it came.
            match self.refuse_suspect(now, until, group) {
                None => {
                    let group = self.groups.get_mut(&key).expect("it was found above");
                    group.tries.iter_mut().for_each(|one| one.since = now);
                    self.suspect.push_back(key);
                }
                Some(answer) => {
                    let tries = self.end(key).tries;
                    answered.extend(tries.into_iter().map(|one| (one.reply, answer.clone())));
                }
            }
        }
        self.turns = 0;
        let position = self.ready_suspect(now)?;
        let key = self.suspect.remove(position).expect("it was found");
        Some(self.begin(key))
    }

    /// The first suspect group whose check may begin.
    fn ready_suspect(&self, now: Nanos) -> Option<usize> {
        self.suspect.iter().position(|key| self.slow_until(now, &self.groups[key]).is_none_or(|until| until <= now))
    }

    fn begin(&mut self, key: Key) -> Task {
        let group = self.groups.get_mut(&key).expect("a group that waits is there");
        Task { key, work: group.work.take().expect("it is not being checked") }
    }

    fn end(&mut self, key: Key) -> Group<R> {
        let group = self.groups.remove(&key).expect("a group ends once");
        self.tries -= group.tries.len();
        group
    }

    /// Answers the suspect tries whose time is over.
    fn give_up(&mut self, now: Nanos, answered: &mut Vec<(R, Answer)>) {
        for key in std::mem::take(&mut self.suspect) {
            if let Some(until) = self.slow_until(now, &self.groups[&key]) {
                let answer = if until > now { Answer::TooSoon(until - now) } else { Answer::Busy };
                let group = self.groups.get_mut(&key).expect("a group that waits is there");
                let over = group.remove(|one| one.since + SUSPECT_TIMEOUT <= now);
                self.tries -= over.len();
                answered.extend(over.into_iter().map(|one| (one.reply, answer.clone())));
            }
            match self.groups[&key].tries.is_empty() {
                true => drop(self.end(key)),
                false => self.suspect.push_back(key),
            }
        }
    }

    /// The check of `task` has ended with `answer`, which is that of all tries that it returns.
    pub(crate) fn finish(&mut self, now: Nanos, task: &Task, answer: &Answer) -> Vec<Try<R>> {
        let group = self.end(task.key);
        let networks = || group.tries.iter().map(|one| one.from.map(network)).collect::<BTreeSet<_>>();
        match (answer, task.key) {
            (Answer::Admitted(_, password), Key::Pair(mark)) => {
                for from in networks().into_iter().flatten() {
                    self.good.insert((group.user.clone().unwrap_or_default(), from), ());
                }
                if let Some(id) = password {
                    self.known.insert(mark, *id);
                }
            }
            // One guess: it counts once for each address, and once for the user.
            (Answer::Refused, _) => {
                let of = |from| subjects(group.user.as_deref(), from);
                let all: BTreeSet<Subject> = networks().into_iter().flat_map(of).collect();
                all.into_iter().for_each(|subject| self.count_failure(now, subject));
            }
            _ => {}
        }
        group.tries
    }

    /// The users have changed while `task` was checked: it is checked again.
    pub(crate) fn repeat(&mut self, task: Task) {
        let group = self.groups.get_mut(&task.key).expect("it was being checked");
        group.work = Some(task.work);
        self.waiting.push_front(task.key);
    }

    /// When [`Checks::next`] has something to do again; `None`: when a question comes. Call it after `next` has returned
    /// nothing.
    pub(crate) fn next_due(&self, now: Nanos) -> Option<Nanos> {
        let due = |key: &Key| {
            let group = &self.groups[key];
            let timeout = group.tries.iter().map(|one| one.since + SUSPECT_TIMEOUT).min();
            self.slow_until(now, group).into_iter().chain(timeout).min()
        };
        self.suspect.iter().filter_map(due).min()
    }

    fn count_failure(&mut self, now: Nanos, subject: Subject) {
        self.forget(now, &subject);
        let failures = self.failures.entry(subject).or_insert(Failures { count: 0, last: now });
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
    }

    /// Makes room for `subject` in the table of failures.
    fn forget(&mut self, now: Nanos, subject: &Subject) {
        if self.failures.get(subject).is_some_and(|failures| failures.are_forgotten(now)) {
            self.failures.remove(subject);
        }
        if self.failures.contains_key(subject) || self.failures.len() < MOST_REMEMBERED {
            return;
        }
        self.failures.retain(|_, failures| !failures.are_forgotten(now));
        // Those with the fewest failures go, so that a flood of names does not clear an address that guesses.
        let least = self.failures.iter().min_by_key(|(_, failures)| (failures.count, failures.last));
        if let Some(least) =
            least.filter(|_| self.failures.len() >= MOST_REMEMBERED).map(|(subject, _)| subject.clone())
        {
            self.failures.remove(&least);
        }
    }

    /// When a suspect group may be checked: as soon as one of its tries may. `None`: one of them is not suspect.
    fn slow_until(&self, now: Nanos, group: &Group<R>) -> Option<Nanos> {
        let mut first = None;
        for from in &group.networks {
            let until = self.try_slow_until(now, group.user.as_deref(), *from)?;
            first = Some(first.map_or(until, |first: Nanos| first.min(until)));
        }
        first
    }

    fn try_slow_until(&self, now: Nanos, user: Option<&str>, from: Option<IpAddr>) -> Option<Nanos> {
        let pair = user.zip(from);
        let is_good = || pair.is_some_and(|(user, from)| self.good.map.contains_key(&(user.to_owned(), from)));
        let until = |subject| {
            let until = self.failures.get(&subject)?.slow_until(now)?;
            (!matches!(subject, Subject::User(_)) || !is_good()).then_some(until)
        };
        subjects(user, from).filter_map(until).max()
    }
}

/// What a failure is counted by: nothing for a change of a user, which only an admin can ask for. A name that no user can
/// have is not counted.
fn subjects(user: Option<&str>, from: Option<IpAddr>) -> impl Iterator<Item = Subject> {
    let address = from.filter(|_| user.is_some()).map(Subject::Address);
    let user = user.filter(|user| user.parse::<UserName>().is_ok()).map(|user| Subject::User(user.into()));
    address.into_iter().chain(user)
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;

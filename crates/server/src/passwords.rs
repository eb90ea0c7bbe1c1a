//! The thread that checks and hashes passwords. It has the lowest priority: each check takes some 20 ms of CPU time.
//!
//! [`Checks`] decides what waits, for how long, and what is refused at once. An answer goes to the caller by the function
//! that it gave, on this thread, or at once on the caller's. Dropping the handle ends the thread. Questions that wait then
//! get no answer.

use crate::dying::die_of_panic;
use crate::metrics::Metrics;
use crate::users::checks::{Checks, Taken, Task};
use crate::users::{Answer, Audit, Draft, Question, Work, audit};
use arc_swap::ArcSwap;
use leeward_format::user::{MAX_PASSWORD_BYTES, PasswordHash, PasswordId, User, UserRule, Users};
use leeward_platform::{BootClock, Clock};
use leeward_security::passwords::{self, MemoryKey, Password};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Takes the answer to a question.
pub(crate) type Reply = Box<dyn FnOnce(Answer) + Send>;

/// The lowest priority that a thread may have.
const LOWEST_PRIORITY: i32 = 19;

/// Asks the thread. Any thread may.
#[derive(Clone)]
pub(crate) struct Passwords(Arc<PasswordQueue>);

/// The running thread.
pub(crate) struct PasswordThread {
    passwords: Passwords,
    thread: Option<JoinHandle<()>>,
}

struct PasswordQueue {
    state: Mutex<QueuedChecks>,
    changed: Condvar,
    /// Users as the event loop knows them.
    users: ArcSwap<Users>,
    audit: Audit,
    metrics: Arc<Metrics>,
}

struct QueuedChecks {
    checks: Checks<Reply>,
    is_closed: bool,
}

impl PasswordThread {
    pub(crate) fn start(audit: Audit, metrics: Arc<Metrics>) -> io::Result<PasswordThread> {
        let checks = Checks::new(MemoryKey::generate());
        let passwords = Passwords(Arc::new(PasswordQueue {
            state: Mutex::new(QueuedChecks { checks, is_closed: false }),
            changed: Condvar::new(),
            users: ArcSwap::default(),
            audit,
            metrics,
        }));
        let shared = passwords.0.clone();
        let thread = std::thread::Builder::new().name("passwords".into());
        let thread = thread.spawn(move || die_of_panic("the password thread", || shared.run()))?;
        Ok(PasswordThread { passwords, thread: Some(thread) })
    }

    pub(crate) fn passwords(&self) -> &Passwords {
        &self.passwords
    }
}

impl Drop for PasswordThread {
    fn drop(&mut self) {
        self.passwords.0.state.lock().is_closed = true;
        self.passwords.0.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Passwords {
    /// Asks. The answer may come before this returns.
    pub(crate) fn ask(&self, question: Question, reply: Reply) {
        let users = self.0.users.load();
        let taken = self.0.state.lock().checks.take(BootClock.now(), &users, question, reply);
        match taken {
            Taken::Waits => drop(self.0.changed.notify_one()),
            Taken::Answered(reply, answer) => reply(answer),
        }
    }

    /// The users as they are now.
    pub(crate) fn users(&self) -> Arc<Users> {
        self.0.users.load_full()
    }

    /// These are the users from now on.
    pub(crate) fn set_users(&self, users: Arc<Users>) {
        self.0.users.store(users);
    }
}

impl PasswordQueue {
    fn run(&self) {
        if let Err(error) = rustix::process::setpriority_process(None, LOWEST_PRIORITY) {
            tracing::warn!(%error, "the password thread keeps its priority");
        }
        while let Some(task) = self.next() {
            let users = self.users.load_full();
            let answer = answer(&users, &task.work);
            let mut state = self.state.lock();
            if answer == Answer::Refused && self.users.load().revision != users.revision {
                // It may be the password that the user has by now.
                state.checks.repeat(task);
                continue;
            }
            let tries = state.checks.finish(BootClock.now(), &task, &answer);
            drop(state);
            self.metrics.password_checked();
            for one in tries {
                if answer == Answer::Refused {
                    self.note_failed_try(&task.work, one.from);
                }
                (one.reply)(answer.clone());
            }
        }
    }

    /// The next task, once there is one; `None` when the thread is to end. Gives answers that are due meanwhile.
    fn next(&self) -> Option<Task> {
        let mut answered = Vec::new();
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return None;
            }
            let now = BootClock.now();
            let next = state.checks.next(now, &mut answered);
            if next.is_some() || !answered.is_empty() {
                drop(state);
                answered.drain(..).for_each(|(reply, answer): (Reply, Answer)| reply(answer));
                if next.is_some() {
                    return next;
                }
                state = self.state.lock();
                continue;
            }
            match state.checks.next_due(now) {
                Some(due) => drop(self.changed.wait_for(&mut state, due.since(now).duration())),
                None => self.changed.wait(&mut state),
            }
        }
    }

    fn note_failed_try(&self, work: &Work, from: Option<IpAddr>) {
        if let Work::Check { user, .. } = work {
            let shown: String = user.chars().filter(|char| !char.is_control()).take(64).collect();
            self.audit.note(audit::Kind::FailedTry, &shown, from, "wrong user or password".into());
        }
    }
}

fn answer(users: &Users, work: &Work) -> Answer {
    match work {
        Work::Check { user, password } => check(users, user, password),
        Work::Rules { user, rules } => resolve(user.as_deref().map(|user| &**user), rules),
    }
}

/// Takes the same time whether there is no such user, it is disabled, or the password is wrong.
fn check(users: &Users, name: &str, password: &Password) -> Answer {
    if password.bytes().len() > MAX_PASSWORD_BYTES {
        return Answer::Refused;
    }
    let user = users.get(name).filter(|user| user.is_enabled);
    if let Some(user) = user.filter(|user| !user.needs_password) {
        return Answer::Admitted(user.name.clone(), None);
    }
    let hashes = user.map_or(&[][..], |user| &user.passwords);
    if let Some((user, id)) = user.zip(find(hashes, password)) {
        return Answer::Admitted(user.name.clone(), Some(id));
    }
    for _ in hashes.len()..users.most_passwords().max(1) {
        passwords::verify_nothing(password);
    }
    Answer::Refused
}

fn find(hashes: &[PasswordHash], password: &Password) -> Option<PasswordId> {
    hashes.iter().find(|hash| passwords::verify(password, hash.phc())).map(PasswordHash::id)
}

/// The rules of a change, with hashes in place of passwords. A password that the user has already is not hashed again.
fn resolve(user: Option<&User>, drafts: &[Draft]) -> Answer {
    let hashes = user.map_or(&[][..], |user| &user.passwords);
    let mut rules = Vec::new();
    for draft in drafts {
        match draft {
            Draft::Rule(rule) => rules.push(rule.clone()),
            Draft::Add(password) => {
                let has = find(hashes, password).and_then(|id| hashes.iter().find(|hash| hash.id() == id));
                let hash = has.cloned().unwrap_or_else(|| PasswordHash::new(passwords::hash(password)));
                rules.push(UserRule::AddPassword(hash));
            }
            Draft::Remove(password) => match find(hashes, password) {
                Some(id) => rules.push(UserRule::RemovePassword(id)),
                None => return Answer::NoSuchPassword,
            },
        }
    }
    Answer::Rules(rules)
}

//! Who is connected, and what it may do.
//!
//! | file | holds |
//! |---|---|
//! | `identity` | the user of a connection: what it may do now, and whether it may stay |
//! | `checks` | passwords that wait to be checked, and what failed tries cost; without threads and time |
//! | `acl_log` | what was refused lately, for `ACL LOG` |
//! | `audit` | what operators asked for, changes of users, and failed tries: a log of its own |
//!
//! A session asks its `Identity` before each command and each operation. A password is checked on another thread
//! (`passwords.rs`): the session puts a `Question` into the `Gate`, waits, and gets an `Answer`.
//!
//! Invariants: users that are not known yet let nobody in; one decision,
//! [`CompiledUser::may`](leeward_format::user::CompiledUser::may), is behind each operation of each protocol. All but `audit` and
//! `checks` belongs to the event loop's thread.

mod acl_log;
pub(crate) mod audit;
pub(crate) mod checks;
pub(crate) mod identity;

pub(crate) use acl_log::{AclLog, Reason, Refused};
pub(crate) use audit::Audit;
pub(crate) use identity::{Identity, Refusal};

use leeward_format::user::{CompiledUser, PasswordId, UserName, UserRule};
use leeward_platform::Nanos;
use leeward_security::passwords::Password;
use std::net::IpAddr;
use std::sync::Arc;

/// Most bytes of a command, and of a native frame, of a connection that must say who it is first.
pub(crate) const STRANGERS_BYTES: usize = 64 << 10;

/// What the password thread is asked.
#[derive(Debug)]
pub(crate) enum Work {
    /// Whether this is a password of the user.
    Check {
        /// Its name, as the client gave it.
        user: String,
        password: Password,
    },
    /// The rules of a change that names passwords.
    Rules {
        /// The user as it is.
        user: Option<Arc<CompiledUser>>,
        /// The rules, in order.
        rules: Vec<Draft>,
    },
}

/// A rule of a change, before its password is hashed or found.
#[derive(Debug)]
pub(crate) enum Draft {
    /// A rule without a password.
    Rule(UserRule),
    /// `>password`
    Add(Password),
    /// `<password`
    Remove(Password),
}

impl Draft {
    /// The rule, if it has no password.
    pub(crate) fn plain(&self) -> Option<UserRule> {
        match self {
            Draft::Rule(rule) => Some(rule.clone()),
            Draft::Add(_) | Draft::Remove(_) => None,
        }
    }
}

/// What the password thread answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is a password of the user: the one of this id; `None`: the user needs none.
    Admitted(UserName, Option<PasswordId>),
    /// There is no such user, it is disabled, or the password is wrong.
    Refused,
    /// Too many tries wait.
    Busy,
    /// Too many tries have failed: the next one is checked after this time.
    TooSoon(Nanos),
    /// The rules of a change.
    Rules(Vec<UserRule>),
    /// A password that is to be removed is none of the user.
    NoSuchPassword,
}

impl Answer {
    /// Why the password was not checked, as a sentence; `None` if it was.
    pub(crate) fn unchecked(&self) -> Option<String> {
        match self {
            Answer::Busy => Some("too many tries to authenticate wait: try again later".into()),
            Answer::TooSoon(wait) => Some(format!(
                "too many tries to authenticate have failed from this address or for this user: the next password is \
                 checked in {} s, try again then",
                wait.0.div_ceil(1_000_000_000)
            )),
            Answer::Admitted(..) | Answer::Refused | Answer::Rules(_) | Answer::NoSuchPassword => None,
        }
    }
}

/// A question of a connection.
#[derive(Debug)]
pub(crate) struct Question {
    /// The connection that waits for the answer.
    pub(crate) connection: u64,
    /// The address of the client.
    pub(crate) from: Option<IpAddr>,
    pub(crate) work: Work,
}

/// What all sessions share about users, besides the users themselves.
pub(crate) struct Gate {
    /// While there are no users, only clients of this machine are let in.
    pub(crate) is_protected: bool,
    /// Questions that the password thread does not have yet.
    pub(crate) questions: Vec<Question>,
    pub(crate) log: AclLog,
    pub(crate) audit: Audit,
}

impl Gate {
    pub(crate) fn new(is_protected: bool, audit: Audit) -> Gate {
        Gate { is_protected, questions: Vec::new(), log: AclLog::default(), audit }
    }
}

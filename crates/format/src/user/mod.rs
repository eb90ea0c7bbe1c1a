//! Users: their names, passwords and rights. Plain data; any thread.
//!
//! | file | holds |
//! |---|---|
//! | `grant` | rights, and the tables and keys that they are for |
//! | `need` | what each operation needs |
//! | `compiled` | a user with its grants in order, and whether it has what an operation needs |
//! | `change` | changes of a user, and what an operator is told of one |
//! | `users` | all users of a cluster, and the changes that would lock everybody out |
//!
//! Invariants: a [`UserName`] and [`Rights`] are valid even if they were decoded; a [`User`] passes [`User::check`]
//! before it is used. No `Debug` shows a hash of a password.

mod change;
mod compiled;
mod grant;
mod need;
mod users;

pub use change::{MAX_RULES, Presence, UserChange, UserRule, UserShown};
pub use compiled::CompiledUser;
pub use grant::{Grant, Keys, Rights, after_prefix};
pub use need::{Denied, Need, Scope};
pub use users::Users;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// The user of connections that name none.
pub const DEFAULT_USER: &str = "default";
/// Longest name, in bytes.
pub const MAX_USER_NAME_BYTES: usize = 64;
/// Most passwords of a user.
pub const MAX_PASSWORDS: usize = 8;
/// Most grants of a user.
pub const MAX_GRANTS: usize = 64;
/// Most prefixes of all grants of a user together.
pub const MAX_PREFIXES: usize = 256;
/// Longest hash of a password, in bytes.
pub const MAX_HASH_BYTES: usize = 256;
/// Longest password, in bytes.
pub const MAX_PASSWORD_BYTES: usize = 512;

/// Name of a user, cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserName(Arc<str>);

impl Default for UserName {
    fn default() -> Self {
        UserName(DEFAULT_USER.into())
    }
}

impl Deref for UserName {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for UserName {
    type Err = String;
    fn from_str(name: &str) -> Result<UserName, String> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.@+".contains(&byte);
        let begins = name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
        if begins && name.len() <= MAX_USER_NAME_BYTES && name.bytes().all(fits) {
            return Ok(UserName(name.into()));
        }
        let shown: String = name.chars().take(MAX_USER_NAME_BYTES + 1).collect();
        Err(format!(
            "{shown:?} is no name of a user: it has 1 to {MAX_USER_NAME_BYTES} of the characters A-Z, a-z, 0-9, _, -, \
             ., @ and +, and begins with a letter or a digit"
        ))
    }
}

impl Serialize for UserName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for UserName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UserName, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// The hash of a password, as a PHC string of argon2id: it names the algorithm, its costs and a salt.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PasswordHash(String);

/// Names a password among those of its user, and tells nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PasswordId(pub u64);

impl PasswordHash {
    /// A PHC string, whose costs the caller has checked.
    pub fn new(phc: String) -> PasswordHash {
        PasswordHash(phc)
    }

    /// The PHC string.
    pub fn phc(&self) -> &str {
        &self.0
    }

    /// Its id. The hash has a random salt, so two hashes of one password have different ids.
    pub fn id(&self) -> PasswordId {
        PasswordId(xxh3_64(self.0.as_bytes()))
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PasswordHash({})", self.id())
    }
}

impl fmt::Display for PasswordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for PasswordId {
    type Err = String;
    fn from_str(text: &str) -> Result<PasswordId, String> {
        let id = (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok()).flatten();
        id.map(PasswordId).ok_or_else(|| "an id of a password has 16 hexadecimal digits".into())
    }
}

/// One user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Unique in the cluster.
    pub name: UserName,
    /// Whether it may connect.
    pub is_enabled: bool,
    /// Whether it needs one of its passwords. Without, any password will do (`nopass` of Redis).
    pub needs_password: bool,
    /// At most [`MAX_PASSWORDS`], oldest first.
    pub passwords: Vec<PasswordHash>,
    /// At most [`MAX_GRANTS`]. The first is of all tables, and perhaps without rights: it is the one that rules of
    /// Redis outside of parentheses change.
    pub grants: Vec<Grant>,
}

impl User {
    /// A user that is disabled and has neither passwords nor rights.
    pub fn new(name: UserName) -> User {
        User { name, is_enabled: false, needs_password: true, passwords: Vec::new(), grants: vec![Grant::default()] }
    }

    /// The user that connections have while no user is defined: it may do everything.
    pub fn anyone() -> User {
        User {
            is_enabled: true,
            needs_password: false,
            grants: vec![Grant::everything()],
            ..User::new(UserName::default())
        }
    }

    /// Checks its limits.
    ///
    /// # Errors
    /// The reason, with the allowed values.
    pub fn check(&self) -> Result<(), String> {
        let User { name, is_enabled: _, needs_password: _, passwords, grants } = self;
        if passwords.len() > MAX_PASSWORDS {
            return Err(format!("user {name} has {} passwords: it may have {MAX_PASSWORDS}", passwords.len()));
        }
        let is_hash = |hash: &PasswordHash| hash.0.len() <= MAX_HASH_BYTES && hash.0.starts_with("$argon2id$");
        if !passwords.iter().all(is_hash) {
            return Err(format!("user {name}: a password's hash is no PHC string of argon2id"));
        }
        if grants.is_empty() || grants.len() > MAX_GRANTS {
            return Err(format!("user {name} has {} grants: it must have 1 to {MAX_GRANTS}", grants.len()));
        }
        if grants.first().is_some_and(|first| first.table.is_some()) {
            return Err(format!("user {name}: the first grant must be of all tables"));
        }
        let prefixes: usize = grants.iter().map(|grant| grant.prefixes.len()).sum();
        if prefixes > MAX_PREFIXES {
            return Err(format!("user {name} has {prefixes} prefixes: it may have {MAX_PREFIXES}"));
        }
        grants.iter().try_for_each(|grant| grant.check().map_err(|reason| format!("user {name}: {reason}")))
    }

    /// Whether it can always come in to repair things: it is enabled, has a password, and is admin of all tables.
    pub fn is_keeper(&self) -> bool {
        let is_admin = |grant: &Grant| grant.table.is_none() && grant.rights.contains(Rights::ADMIN);
        self.is_enabled && self.needs_password && !self.passwords.is_empty() && self.grants.iter().any(is_admin)
    }

    /// Whether it may connect with the password of this id; `None`: without one.
    pub fn admits(&self, password: Option<PasswordId>) -> bool {
        let has = |id: PasswordId| self.passwords.iter().any(|hash| hash.id() == id);
        self.is_enabled && (!self.needs_password || password.is_some_and(has))
    }
}

#[cfg(test)]
mod tests;

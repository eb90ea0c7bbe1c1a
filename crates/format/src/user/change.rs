//! Changes of a user. A change is a list of rules, which are applied to the user as it is then: so two operators that
//! change one user at the same time lose nothing of each other.

use super::{Grant, MAX_PASSWORDS, PasswordHash, PasswordId, Rights, User, UserName};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Most rules of one change.
pub const MAX_RULES: usize = 512;

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserRule {
    /// Whether the user may connect.
    Enable(bool),
    /// Adds a password, which it needs from now on.
    AddPassword(PasswordHash),
    /// Removes a password, if the user has it.
    RemovePassword(PasswordId),
    /// Removes all passwords. It needs one from now on.
    ResetPasswords,
    /// Removes all passwords. Any password will do from now on.
    NoPassword,
    /// Adds rights to the first grant.
    AddRights(Rights),
    /// Takes rights from the first grant.
    RemoveRights(Rights),
    /// Adds a prefix to the first grant.
    AddPrefix(Bytes),
    /// Takes all prefixes from the first grant.
    ResetPrefixes,
    /// Adds another grant.
    AddGrant(Grant),
    /// Removes all grants but the first.
    ClearGrants,
    /// Takes everything: the user is as new.
    Reset,
}

/// Whether the user must be there before the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Presence {
    /// It may be.
    Any,
    /// It must not: it is made.
    New,
    /// It must.
    Known,
}

/// A change of a user, or a new one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserChange {
    /// The user to change or to make.
    pub name: UserName,
    /// Whether it must be there.
    pub presence: Presence,
    /// At most [`MAX_RULES`], in order.
    #[serde(deserialize_with = "crate::bounded::at_most::<MAX_RULES, _, _>")]
    pub rules: Vec<UserRule>,
}

impl UserChange {
    /// The user after the change. Applied to its own result, it returns the same.
    ///
    /// # Errors
    /// The reason: the user is (not) there, or would break a limit.
    pub fn apply(&self, user: Option<&User>) -> Result<User, String> {
        if self.rules.len() > MAX_RULES {
            return Err(format!("{} rules in one change: at most {MAX_RULES}", self.rules.len()));
        }
        let mut changed = match (user, self.presence) {
            (None, Presence::Known) => return Err(format!("there is no user {}", self.name)),
            (Some(user), Presence::New) => {
                // Another attempt at this change may have made it.
                let made = UserChange { presence: Presence::Any, ..self.clone() }.apply(None)?;
                return if made == *user { Ok(made) } else { Err(format!("there is a user {} already", self.name)) };
            }
            (user, _) => user.cloned().unwrap_or_else(|| User::new(self.name.clone())),
        };
        self.rules.iter().for_each(|rule| changed.follow(rule));
        changed.check().map(|()| changed)
    }
}

impl User {
    fn follow(&mut self, rule: &UserRule) {
        match rule {
            UserRule::Enable(is_enabled) => self.is_enabled = *is_enabled,
            UserRule::AddPassword(hash) => {
                self.needs_password = true;
                if !self.passwords.contains(hash) && self.passwords.len() <= MAX_PASSWORDS {
                    self.passwords.push(hash.clone());
                }
            }
            UserRule::RemovePassword(id) => self.passwords.retain(|hash| hash.id() != *id),
            UserRule::ResetPasswords => (self.passwords, self.needs_password) = (Vec::new(), true),
            UserRule::NoPassword => (self.passwords, self.needs_password) = (Vec::new(), false),
            UserRule::AddGrant(grant) => {
                if !self.grants.iter().skip(1).any(|own| own == grant) {
                    self.grants.push(grant.clone());
                }
            }
            UserRule::ClearGrants => self.grants.truncate(1),
            UserRule::Reset => *self = User::new(self.name.clone()),
            of_first => {
                let Some(first) = self.grants.first_mut() else { return };
                match of_first {
                    UserRule::AddRights(rights) => first.rights = first.rights.and(*rights),
                    UserRule::RemoveRights(rights) => first.rights = first.rights.without(*rights),
                    UserRule::ResetPrefixes => first.prefixes.clear(),
                    UserRule::AddPrefix(prefix) if !first.prefixes.contains(prefix) => {
                        first.prefixes.push(prefix.clone());
                    }
                    _ => {}
                }
            }
        }
    }

    /// What an operator is told of it.
    pub fn shown(&self) -> UserShown {
        UserShown {
            name: self.name.clone(),
            is_enabled: self.is_enabled,
            needs_password: self.needs_password,
            passwords: self.passwords.iter().map(PasswordHash::id).collect(),
            grants: self.grants.clone(),
        }
    }
}

/// What an operator is told of a user: everything but the hashes of its passwords.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserShown {
    /// See [`User::name`].
    pub name: UserName,
    /// See [`User::is_enabled`].
    pub is_enabled: bool,
    /// See [`User::needs_password`].
    pub needs_password: bool,
    /// Ids of its passwords, oldest first.
    pub passwords: Vec<PasswordId>,
    /// See [`User::grants`]. Each user has one at least; none: the coordinator's value of this user cannot be read.
    pub grants: Vec<Grant>,
}

impl UserShown {
    /// Whether the coordinator's value of the user can be read. If not, it may not connect, and can only be removed.
    pub fn is_readable(&self) -> bool {
        !self.grants.is_empty()
    }
}

//! All users of a cluster, as a process knows them.

use super::{CompiledUser, User, UserChange, UserName, UserShown};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All users of a cluster. Whether anybody may connect follows from it, so a user that cannot be read still counts
/// as one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// Differs whenever anything else does.
    pub revision: u64,
    /// Whether the coordinator was asked. Before that, nobody is let in.
    pub is_known: bool,
    by_name: BTreeMap<UserName, Arc<CompiledUser>>,
    /// Users whose values cannot be decoded: they may not connect.
    unreadable: BTreeSet<UserName>,
}

impl Users {
    /// It is known that there is none.
    pub fn none() -> Users {
        Users { is_known: true, ..Users::default() }
    }

    /// Whether there is none: then every client may do everything.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty() && self.unreadable.is_empty()
    }

    /// `None` also for a text that is no name, and for a user that cannot be read.
    pub fn get(&self, name: &str) -> Option<&Arc<CompiledUser>> {
        let name: UserName = name.parse().ok()?;
        self.by_name.get(&name)
    }

    /// All users that can be read, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<CompiledUser>> {
        self.by_name.values()
    }

    /// How many passwords the user with the most has.
    pub fn most_passwords(&self) -> usize {
        self.iter().map(|user| user.passwords.len()).max().unwrap_or(0)
    }

    /// Adds or changes a user.
    pub fn put(&mut self, user: User) {
        self.unreadable.remove(&user.name);
        self.by_name.insert(user.name.clone(), Arc::new(user.into()));
    }

    /// Removes a user.
    pub fn remove(&mut self, name: &UserName) {
        self.unreadable.remove(name);
        self.by_name.remove(name);
    }

    /// Removes all users but those that `is_there` says are there.
    pub fn retain(&mut self, is_there: impl Fn(&UserName) -> bool) {
        self.unreadable.retain(|name| is_there(name));
        self.by_name.retain(|name, _| is_there(name));
    }

    /// There is a user that cannot be read.
    pub fn lose(&mut self, name: UserName) {
        self.by_name.remove(&name);
        self.unreadable.insert(name);
    }

    /// The user that `change` makes, if the change leaves somebody who can change users.
    ///
    /// # Errors
    /// The change is not possible, or would lock everybody out.
    pub fn changed(&self, change: &UserChange) -> Result<User, String> {
        let user = change.apply(self.by_name.get(&change.name).map(|user| &***user))?;
        let others = self.iter().filter(|other| other.name != user.name);
        if user.is_keeper() || others.into_iter().any(|other| other.is_keeper()) {
            return Ok(user);
        }
        Err(match self.is_empty() {
            true => "the first user must be enabled, have a password, and be admin of all tables: from then on nobody \
                     is let in without a user"
                .into(),
            false => locked_out(),
        })
    }

    /// Checks that these users can be removed: one stays that can change users. To remove all is possible too, but is
    /// asked for by another name.
    ///
    /// # Errors
    /// It would lock everybody out.
    pub fn check_removal(&self, names: &[UserName]) -> Result<(), String> {
        let is_one_of_them = |name: &UserName| names.contains(name);
        let removes_any = self.by_name.keys().chain(&self.unreadable).any(is_one_of_them);
        let keepers = self.iter().filter(|user| user.is_keeper()).filter(|user| !is_one_of_them(&user.name));
        if removes_any && keepers.count() == 0 {
            return Err(locked_out());
        }
        Ok(())
    }

    /// What an operator is told of all users, by name. Of one that cannot be read only the name is known: it has no grants.
    pub fn shown(&self) -> Vec<UserShown> {
        let unreadable = |name: &UserName| UserShown { grants: Vec::new(), ..User::new(name.clone()).shown() };
        let readable = self.iter().map(|user| user.shown());
        let mut all: Vec<UserShown> = readable.chain(self.unreadable.iter().map(unreadable)).collect();
        all.sort_by(|left, right| left.name.cmp(&right.name));
        all
    }

    /// The names of all users, also of those that cannot be read.
    pub fn names(&self) -> impl Iterator<Item = &UserName> {
        self.by_name.keys().chain(&self.unreadable)
    }
}

fn locked_out() -> String {
    "nobody would be left who is enabled, has a password and is admin of all tables: nobody could change users any more. \
     To remove all users, and let everybody in again, use `leeward user remove --all`"
        .into()
}

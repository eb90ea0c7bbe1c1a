//! A user whose grants are sorted by table and prefix, so that a check takes the same few comparisons however many grants
//! there are. [`CompiledUser::may`] is the one decision about operations of all protocols.
//!
//! Invariant: it gives what its grants give, one by one. Made once for each change of a user; shared by all connections.

use super::need::{Denied, Need, Scope};
use super::{Keys, Rights, User};
use crate::RegionId;
use crate::table::TableName;
use bytes::Bytes;
use std::ops::Deref;

/// A user, ready for checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledUser {
    user: User,
    /// By grants of all tables.
    everywhere: Given,
    /// By grants of one table, by its name.
    tables: Vec<(TableName, Given)>,
    /// Rights that any grant has, even of no keys.
    anywhere: Rights,
}

/// What grants of the same table give together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Given {
    /// Rights that do not look at keys.
    keyless: Rights,
    read: Prefixes,
    write: Prefixes,
}

/// Beginnings of keys, in order. None begins with another, so the only one that a key can begin with is the last that is not
/// behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Prefixes(Vec<Bytes>);

impl Prefixes {
    fn of(mut prefixes: Vec<Bytes>) -> Prefixes {
        prefixes.sort_unstable();
        // A prefix is behind those that it begins with, and nothing else comes between.
        prefixes.dedup_by(|later, kept| later.starts_with(kept));
        Prefixes(prefixes)
    }

    #[inline]
    fn hold(&self, keys: &Keys) -> bool {
        let first: &[u8] = match keys {
            Keys::None => return !self.0.is_empty(),
            Keys::One(key) | Keys::Range(key, _) => key,
        };
        let behind = self.0.partition_point(|prefix| **prefix <= *first);
        behind.checked_sub(1).and_then(|last| self.0.get(last)).is_some_and(|prefix| keys.are_within(prefix))
    }
}

impl Given {
    fn by(user: &User, table: Option<&TableName>) -> Given {
        let grants = || user.grants.iter().filter(move |grant| grant.table.as_ref() == table);
        let prefixes = |right| {
            let some = grants().filter(|grant| grant.rights.contains(right)).flat_map(|grant| &grant.prefixes);
            Prefixes::of(some.cloned().collect())
        };
        Given {
            keyless: grants().fold(Rights::NONE, |rights, grant| rights.and(grant.rights)).keyless(),
            read: prefixes(Rights::READ),
            write: prefixes(Rights::WRITE),
        }
    }

    /// Those of `rights` that it gives on these keys.
    #[inline]
    fn of(&self, rights: Rights, keys: &Keys) -> Rights {
        let mut given = rights.common(self.keyless);
        for (right, prefixes) in [(Rights::READ, &self.read), (Rights::WRITE, &self.write)] {
            if rights.contains(right) && prefixes.hold(keys) {
                given = given.and(right);
            }
        }
        given
    }

    fn is_nothing(&self) -> bool {
        self.keyless.is_empty() && self.read.0.is_empty() && self.write.0.is_empty()
    }
}

impl From<User> for CompiledUser {
    fn from(user: User) -> CompiledUser {
        let mut names: Vec<TableName> = user.grants.iter().filter_map(|grant| grant.table.clone()).collect();
        names.sort_unstable();
        names.dedup();
        let of = |name: TableName| {
            let given = Given::by(&user, Some(&name));
            (name, given)
        };
        CompiledUser {
            everywhere: Given::by(&user, None),
            tables: names.into_iter().map(of).collect(),
            anywhere: user.grants.iter().fold(Rights::NONE, |rights, grant| rights.and(grant.rights)),
            user,
        }
    }
}

impl Deref for CompiledUser {
    type Target = User;
    fn deref(&self) -> &User {
        &self.user
    }
}

impl CompiledUser {
    /// Whether the user has what an operation on `table` needs. `table_of` says which table a region belongs to.
    ///
    /// # Errors
    /// It has not. Nothing in that depends on whether a table, a region or a key exists.
    #[inline]
    pub fn may<'r>(
        &self,
        table: &str,
        need: &Need,
        table_of: impl FnOnce(RegionId) -> Option<&'r str>,
    ) -> Result<(), Denied> {
        match need.scope {
            Scope::Selected => self.has(need, Some(table)),
            Scope::Named(name) => self.has(need, Some(name)),
            Scope::Of(region) => self.has(need, table_of(region)),
            Scope::All => self.has(need, None),
        }
    }

    /// Whether the user has these rights on all tables.
    ///
    /// # Errors
    /// It has not.
    pub fn has_everywhere(&self, rights: Rights) -> Result<(), Denied> {
        self.has(&Need::everywhere(rights), None)
    }

    /// Whether the user may know of a table: it has any right there.
    pub fn knows(&self, table: &str) -> bool {
        !self.everywhere.is_nothing() || self.own(table).is_some_and(|own| !own.is_nothing())
    }

    /// Whether the user may read this key.
    pub fn reads(&self, table: &str, key: &[u8]) -> bool {
        !self.given(Rights::READ, Some(table), &Keys::One(key)).is_empty()
    }

    /// Whether the user may read all keys of a table.
    pub fn reads_all_of(&self, table: &str) -> bool {
        !self.given(Rights::READ, Some(table), &Keys::ALL).is_empty()
    }

    /// Whether the user may see the whole of a table, or of all: reads or writes all its keys, or operates it.
    pub fn sees_all_of(&self, table: Option<&str>) -> bool {
        !self.given(Rights::ALL, table, &Keys::ALL).is_empty()
    }

    /// Beginnings of the keys in a table that the user may read or write.
    pub fn prefixes_in(&self, table: &str) -> impl Iterator<Item = &Bytes> {
        [Some(&self.everywhere), self.own(table)]
            .into_iter()
            .flatten()
            .flat_map(|given| given.read.0.iter().chain(&given.write.0))
    }

    /// What grants of this table alone give.
    #[inline]
    fn own(&self, table: &str) -> Option<&Given> {
        let at = self.tables.binary_search_by(|(name, _)| (**name).cmp(table)).ok()?;
        self.tables.get(at).map(|(_, given)| given)
    }

    /// Those of `rights` that the user has on these keys of the table; `None`: of all tables.
    #[inline]
    fn given(&self, rights: Rights, table: Option<&str>, keys: &Keys) -> Rights {
        let given = self.everywhere.of(rights, keys);
        if given == rights {
            return given;
        }
        let own = table.and_then(|table| self.own(table));
        own.map_or(given, |own| given.and(own.of(rights, keys)))
    }

    #[inline]
    fn has(&self, need: &Need, table: Option<&str>) -> Result<(), Denied> {
        let lacks = need.rights.without(self.given(need.rights, table, &need.keys));
        if lacks.is_empty() || !self.given(need.instead, table, &need.keys).is_empty() {
            return Ok(());
        }
        Err(if self.anywhere.contains(lacks) { Denied::Place } else { Denied::Right })
    }
}

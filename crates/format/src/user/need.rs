//! What each operation needs, and whether a user has it. [`User::may`] is the one decision about operations of all
//! protocols.

use super::{Grant, Keys, Rights, User};
use crate::RegionId;
use crate::op::{Condition, Op, RangeOp, Read};

/// The table that rights are needed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// The one that the operation is on.
    Selected,
    /// This one.
    Named(&'a str),
    /// The one that this region belongs to; all tables if there is no such region.
    Of(RegionId),
    /// All tables.
    All,
}

/// The rights that something needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need<'a> {
    /// All of these.
    pub rights: Rights,
    /// Or one of these.
    pub instead: Rights,
    /// On which table.
    pub scope: Scope<'a>,
    /// On which keys.
    pub keys: Keys<'a>,
}

/// Which right is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The user has it on no table and no key.
    Right,
    /// The user has it, but not on this table or these keys.
    Place,
}

impl<'a> Need<'a> {
    const fn of(rights: Rights, scope: Scope<'a>, keys: Keys<'a>) -> Need<'a> {
        Need { rights, instead: Rights::NONE, scope, keys }
    }

    /// Rights on all tables.
    pub const fn everywhere(rights: Rights) -> Need<'static> {
        Need::of(rights, Scope::All, Keys::ALL)
    }

    const fn on(rights: Rights, keys: Keys<'a>) -> Need<'a> {
        Need::of(rights, Scope::Selected, keys)
    }

    /// With more rights.
    #[must_use]
    pub const fn also(self, rights: Rights) -> Need<'a> {
        Need { rights: self.rights.and(rights), ..self }
    }
}

/// A condition that tells something of the value needs the right to read it.
fn of_condition(when: &Condition) -> Rights {
    match when {
        Condition::Always | Condition::Absent | Condition::Present => Rights::NONE,
        Condition::Value(_) | Condition::NotValue(_) | Condition::Version(_) => Rights::READ,
    }
}

fn of_old(want_old: bool) -> Rights {
    if want_old { Rights::READ } else { Rights::NONE }
}

impl Op {
    /// What it needs. As in Redis 7, a write that answers what it depends on needs the right to read as well. (A
    /// [`Op::Delete`] answers the old value, which is left out for a user that may not read it.)
    pub fn need(&self) -> Need<'_> {
        const OPERATE: Rights = Rights::OPERATE;
        let (read, write) = (Rights::READ, Rights::WRITE);
        let of = |region: &RegionId| Scope::Of(*region);
        match self {
            Op::Get { key } | Op::GetPair { key, .. } => Need::on(read, Keys::One(key)),
            Op::Put { key, when, want_old, .. } => {
                Need::on(write.and(of_condition(when)).and(of_old(*want_old)), Keys::One(key))
            }
            Op::Delete { key, when } => Need::on(write.and(of_condition(when)), Keys::One(key)),
            Op::Add { key, .. } => Need::on(read.and(write), Keys::One(key)),
            Op::Append { key, .. } => Need::on(write, Keys::One(key)),
            Op::Expire { key, want_old, .. } => Need::on(write.and(of_old(*want_old)), Keys::One(key)),
            Op::Scan(range) => Need::on(read, range_of(&range.start, range.end.as_ref())),
            Op::Approximate { start, end } => Need::on(read, range_of(start, end.as_ref())),
            Op::DeleteRange { start, end } => Need::on(write, range_of(start, end.as_ref())),
            Op::In { op, .. } => match op {
                RangeOp::Scan(range) => Need::on(read, range_of(&range.start, range.end.as_ref())),
                RangeOp::Approximate { start, end } => Need::on(read, range_of(start, end.as_ref())),
                RangeOp::DeleteRange { start, end } => Need::on(write, range_of(start, end.as_ref())),
            },
            Op::Stale { read: asked, .. } => match asked {
                Read::Get { key } | Read::GetPair { key, .. } => Need::on(read, Keys::One(key)),
                Read::Scan(range) | Read::ScanIn { range, .. } => {
                    Need::on(read, range_of(&range.start, range.end.as_ref()))
                }
            },
            Op::Count { region } => Need { instead: OPERATE, ..Need::of(read, of(region), Keys::ALL) },
            Op::CreateTable { table } => Need::of(Rights::ADMIN, Scope::Named(&table.options.name), Keys::None),
            Op::AlterTable { change } => Need::of(Rights::ADMIN, Scope::Named(&change.name), Keys::None),
            Op::DropTable { table } => Need::of(Rights::ADMIN, Scope::Named(table), Keys::None),
            Op::ListUsers | Op::ChangeUser { .. } | Op::RemoveUsers { .. } => Need::everywhere(Rights::ADMIN),
            Op::AcceptLoss { region, .. }
            | Op::Checkpoint { region, .. }
            | Op::Digests { region, .. }
            | Op::RequestRegion { region, .. }
            | Op::RebuildIndex { region, .. }
            | Op::RangeBounds { region, want_bounds: false } => Need::of(OPERATE, of(region), Keys::None),
            Op::Intend { .. } => Need::everywhere(OPERATE),
            // These show keys and values, or take them.
            Op::SegmentContent { region, .. } | Op::RangeBounds { region, want_bounds: true } => {
                Need::of(OPERATE.and(read), of(region), Keys::ALL)
            }
            Op::RepairSegment { region, .. } => Need::of(OPERATE.and(write), of(region), Keys::ALL),
            Op::RangeDigests(question) => Need::of(OPERATE.and(read), of(&question.region), Keys::ALL),
            Op::HashIndex(question) => Need::of(read, of(&question.region), Keys::ALL),
        }
    }
}

fn range_of<'a>(start: &'a [u8], end: Option<&'a bytes::Bytes>) -> Keys<'a> {
    Keys::Range(start, end.map(|end| &end[..]))
}

impl User {
    /// Whether the user may have `op` carried out on `table`. `table_of` says which table a region belongs to.
    ///
    /// # Errors
    /// It may not. Nothing in that depends on whether a table, a region or a key exists.
    pub fn may<'r>(
        &self,
        table: &str,
        op: &Op,
        also: Rights,
        table_of: impl FnOnce(RegionId) -> Option<&'r str>,
    ) -> Result<(), Denied> {
        let need = op.need().also(also);
        let table = match need.scope {
            Scope::Selected => Some(table),
            Scope::Named(name) => Some(name),
            Scope::Of(region) => table_of(region),
            Scope::All => None,
        };
        self.has(&need, table)
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
        let is_some = |grant: &Grant| !grant.rights.without(Rights::READ.and(Rights::WRITE)).is_empty();
        let any = |grant: &Grant| is_some(grant) || !grant.rights.is_empty() && !grant.prefixes.is_empty();
        self.grants.iter().any(|grant| grant.is_of(Some(table)) && any(grant))
    }

    /// Whether the user may read this key.
    pub fn reads(&self, table: &str, key: &[u8]) -> bool {
        self.has(&Need::on(Rights::READ, Keys::One(key)), Some(table)).is_ok()
    }

    /// Whether the user may read all keys of a table.
    pub fn reads_all_of(&self, table: &str) -> bool {
        self.has(&Need::on(Rights::READ, Keys::ALL), Some(table)).is_ok()
    }

    /// Whether the user may see the whole of a table, or of all: reads or writes all its keys, or operates it.
    pub fn sees_all_of(&self, table: Option<&str>) -> bool {
        let gives = |right| self.grants.iter().any(|grant| grant.gives(right, table, &Keys::ALL));
        [Rights::READ, Rights::WRITE, Rights::ADMIN, Rights::OPERATE].into_iter().any(gives)
    }

    /// Beginnings of the keys in a table that the user may read or write.
    pub fn prefixes_in(&self, table: &str) -> impl Iterator<Item = &bytes::Bytes> {
        let is_of = move |grant: &&Grant| grant.is_of(Some(table)) && grant.rights.is_of_keys();
        self.grants.iter().filter(is_of).flat_map(|grant| &grant.prefixes)
    }

    fn has(&self, need: &Need, table: Option<&str>) -> Result<(), Denied> {
        let gives = |right| self.grants.iter().any(|grant| grant.gives(right, table, &need.keys));
        if need.instead.each().any(|(right, _)| gives(right)) {
            return Ok(());
        }
        for (right, _) in need.rights.each() {
            if !gives(right) {
                let is_anywhere = self.grants.iter().any(|grant| grant.rights.contains(right));
                return Err(if is_anywhere { Denied::Place } else { Denied::Right });
            }
        }
        Ok(())
    }
}

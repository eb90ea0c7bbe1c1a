//! What each operation needs. [`CompiledUser::may`](super::CompiledUser::may) decides whether a user has it.

use super::{Keys, Rights};
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
            Op::ListUsers | Op::ChangeUser { .. } | Op::RemoveUsers { .. } | Op::RestoreTree { .. } => {
                Need::everywhere(Rights::ADMIN)
            }
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

//! Carries out an operator's wish that is one operation on one path: other options of a table, another primary or place for a
//! region, a server that is to leave, a table that is to be no more.
//!
//! Invariant: a wish says what is to be, so carrying it out twice does no harm: after a lost connection, or when somebody else was
//! faster, it is asked for again, until the view shows what was wished for.

use super::{Agent, Answer, Outcome, ProposalId, Purpose};
use crate::bootstrap::give;
use crate::wishes::{may_leave, wished};
use crate::{CoordinatorOp, View};
use bytes::Bytes;
use leeward_format::cluster::{ClusterPath, GroupConfig, Intent, Plan, RegionWish, encode_value};
use leeward_format::table::{DEFAULT_TABLE, TableChange, TableName, unknown_table};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;

/// Attempts that may come too late for the version that they were made for.
const MOST_ATTEMPTS: u32 = 16;

/// What is wished for.
#[derive(Clone, Debug)]
enum Wish {
    /// Options of a table.
    Table(TableChange),
    /// What is to become of a region.
    Region(RegionId, RegionWish),
    /// That a region become two, and where it ended when that was wished for.
    Split(RegionId, RegionWish, Option<Bytes>),
    /// That a region, which was there when that was wished for, become part of a neighbour.
    Merge(RegionId, RegionWish),
    /// What is to become of a server; `None`: nothing.
    Intent(ServerId, Option<Intent>),
    /// There is to be no such table: the one whose options were made at this version.
    Drop(TableName, u64),
}

impl Wish {
    fn path(&self) -> ClusterPath {
        match self {
            Wish::Table(change) => ClusterPath::Table(change.name.to_string()),
            Wish::Region(region, _) | Wish::Split(region, ..) | Wish::Merge(region, _) => ClusterPath::Region(*region),
            Wish::Intent(server, _) => ClusterPath::Intent(*server),
            Wish::Drop(name, _) => ClusterPath::Table(name.to_string()),
        }
    }

    /// The epoch of the group that changes; of what concerns many, the highest.
    fn epoch(&self, view: &View) -> Epoch {
        match self {
            Wish::Region(region, _) | Wish::Split(region, ..) | Wish::Merge(region, _) => view.region(*region),
            Wish::Table(_) | Wish::Intent(..) | Wish::Drop(..) => view.regions().max_by_key(|config| config.epoch),
        }
        .map_or(Epoch(0), |config| config.epoch)
    }

    /// The operation that makes it so; `None`: it is so.
    fn next(&self, view: &View) -> Result<Option<CoordinatorOp>, String> {
        let path = self.path();
        let (text, version) = (path.to_string(), view.version_of(&path));
        let set = |value, version| CoordinatorOp::Set { path: text.clone(), value, version };
        Ok(match self {
            Wish::Table(change) => {
                let options = view.table(&change.name).ok_or_else(|| unknown_table(&change.name))?;
                let wanted = Some(change.apply(options)?).filter(|wanted| wanted != options);
                wanted.zip(version).map(|(wanted, version)| set(encode_value(&wanted), version))
            }
            // It was divided since.
            Wish::Split(region, _, end) if view.region(*region).is_some_and(|config| config.end != *end) => None,
            // It is part of the neighbour since, or the table was dropped.
            Wish::Merge(region, _) if view.region(*region).is_none() => None,
            Wish::Region(region, wish) | Wish::Split(region, wish, _) | Wish::Merge(region, wish) => {
                let next = wished(view, *region, wish)?.zip(version);
                next.map(|(next, version)| planned(view, &next, set(encode_value(&next), version)))
            }
            Wish::Intent(server, intent) if view.intent(*server) == *intent => None,
            Wish::Intent(server, Some(intent)) => {
                if *intent == Intent::Leave {
                    may_leave(view, *server)?;
                }
                let value = encode_value(intent);
                Some(match version {
                    Some(version) => set(value, version),
                    None => CoordinatorOp::Create { path: text, value, ephemeral: false },
                })
            }
            Wish::Intent(_, None) => Some(CoordinatorOp::Delete { path: text, version }),
            Wish::Drop(name, meant) if version.is_some_and(|version| version != *meant) => {
                return Err(format!(
                    "table {name} was changed meanwhile: look at it, and drop it again if it is meant"
                ));
            }
            Wish::Drop(..) => version.map(|_| CoordinatorOp::Delete { path: text, version }),
        })
    }
}

/// `set`, which writes `next` down; and gives its number to the region that `next` plans, if that is new.
pub(super) fn planned(view: &View, next: &GroupConfig, set: CoordinatorOp) -> CoordinatorOp {
    let child = |config: &GroupConfig| config.wishes.plan.as_ref().and_then(Plan::child);
    match child(next).filter(|new| view.region(next.region).and_then(child) != Some(*new)) {
        // In this order: a number that is given and stands for nothing is that of a region that is no more.
        Some(new) => CoordinatorOp::All(vec![set, give(view, &[new])]),
        None => set,
    }
}

/// A wish that is being carried out.
#[derive(Debug)]
pub(super) struct Alteration {
    id: ProposalId,
    wish: Wish,
    /// Attempts that the coordinator answered with no.
    failed: u32,
    /// Why the coordinator will not have it.
    pub(super) refusal: Option<String>,
}

impl Agent {
    /// Changes options of a table, for the operator; each primary of the table follows as soon as it hears of it. Its
    /// [`Outcome`] is never [`Outcome::Rejected`].
    ///
    /// # Errors
    /// There is no such table, what is asked for cannot be, or the coordinator cannot be reached.
    pub fn alter_table(&mut self, now: Nanos, change: TableChange) -> Result<ProposalId, String> {
        self.wish(now, Wish::Table(change))
    }

    /// Writes a wish of a region into its configuration, for the operator; its primary brings it about. Its [`Outcome`], which says
    /// that it is written, is never [`Outcome::Rejected`].
    ///
    /// # Errors
    /// It cannot be, or the coordinator cannot be reached.
    pub fn wish_of_region(&mut self, now: Nanos, region: RegionId, wish: RegionWish) -> Result<ProposalId, String> {
        let config = self.view.region(region);
        self.wish(
            now,
            match (&wish, config) {
                (RegionWish::Split { .. }, Some(config)) => Wish::Split(region, wish, config.end.clone()),
                (RegionWish::Merge { .. }, Some(_)) => Wish::Merge(region, wish),
                _ => Wish::Region(region, wish),
            },
        )
    }

    /// Says what is to become of a server, or that it is to stay; every primary lets it go as soon as enough others are in sync. Its
    /// [`Outcome`] is never [`Outcome::Rejected`].
    ///
    /// # Errors
    /// Too few others would be left, or the coordinator cannot be reached.
    pub fn intend(&mut self, now: Nanos, server: ServerId, intent: Option<Intent>) -> Result<ProposalId, String> {
        self.wish(now, Wish::Intent(server, intent))
    }

    /// Drops a table, for the operator: it is no more as soon as that is answered, and its regions are removed after that. Its
    /// [`Outcome`] is never [`Outcome::Rejected`].
    ///
    /// # Errors
    /// There is no such table, it is the default one, or the coordinator cannot be reached.
    pub fn drop_table(&mut self, now: Nanos, name: &TableName) -> Result<ProposalId, String> {
        if **name == *DEFAULT_TABLE {
            return Err(format!("table {name} cannot be dropped: operations that name no table go there"));
        }
        self.can_change()?;
        let version = self.view.version_of(&ClusterPath::Table(name.to_string()));
        self.wish(now, Wish::Drop(name.clone(), version.ok_or_else(|| unknown_table(name))?))
    }

    fn wish(&mut self, now: Nanos, wish: Wish) -> Result<ProposalId, String> {
        self.can_change()?;
        if wish.next(&self.view)?.is_some() {
            self.pace.admit(now, &wish.path(), wish.epoch(&self.view))?;
        }
        let id = self.new_proposal();
        self.alterations.push_back(Alteration { id, wish, failed: 0, refusal: None });
        self.advance(now);
        Ok(id)
    }

    /// Sends the wishes whose paths are free.
    pub(super) fn carry_alterations(&mut self) {
        for alteration in std::mem::take(&mut self.alterations) {
            let path = alteration.wish.path();
            let refusal = match (&alteration.refusal, alteration.wish.next(&self.view)) {
                (Some(reason), _) => Some(reason.clone()),
                (None, Err(reason)) => Some(reason),
                (None, Ok(None)) => {
                    self.outcomes.push((alteration.id, Outcome::Accepted));
                    continue;
                }
                (None, Ok(Some(_))) if alteration.failed >= MOST_ATTEMPTS => {
                    Some(format!("{MOST_ATTEMPTS} attempts failed: others change {path} all the time"))
                }
                (None, Ok(Some(op))) if self.is_free(&path) => {
                    self.submit(path, op, Purpose::Alteration(Box::new(alteration)));
                    continue;
                }
                (None, Ok(Some(_))) => None,
            };
            match refusal {
                Some(reason) => self.outcomes.push((alteration.id, Outcome::Refused(reason))),
                None => self.alterations.push_back(alteration),
            }
        }
    }

    /// A change was answered, and the view holds whatever the answer is about; or its answer was lost.
    pub(super) fn settle_alteration(&mut self, mut alteration: Alteration, answer: Option<Answer>) {
        if let Some(Answer { done: true, .. }) = answer {
            tracing::info!(wish = ?alteration.wish, "an operator's wish is written down");
            return self.outcomes.push((alteration.id, Outcome::Accepted));
        }
        alteration.failed += u32::from(answer.is_some());
        self.alterations.push_front(alteration);
    }
}

#[cfg(test)]
#[path = "alteration_tests.rs"]
mod tests;

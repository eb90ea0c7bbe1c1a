//! Executes the requests of an operator that are one operation on one path. Such a request changes the options of a table,
//! asks for another primary or place of a region, has a server leave, or drops a table.
//!
//! Invariant: a request names a desired state, so executing it twice does no harm. After a lost connection, or after another
//! process was faster, the agent repeats the operation until the view shows the desired state.

use super::{Agent, Answer, Outcome, ProposalId, Purpose};
use crate::view::{may_leave, requested};
use crate::{CoordinatorOp, View};
use bytes::Bytes;
use leeward_format::cluster::{ClusterPath, Intent, RegionRequest, encode_value};
use leeward_format::table::{DEFAULT_TABLE, TableChange, TableName, unknown_table};
use leeward_format::user::{UserChange, UserName};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;

/// Attempts that may fail because the version has changed in the meantime.
const MOST_ATTEMPTS: u32 = 16;

/// A request of an operator.
#[derive(Clone, Debug)]
enum OperatorRequest {
    /// Options of a table.
    Table(TableChange),
    /// A new desired state of a region.
    Region(RegionId, RegionRequest),
    /// The split of a region, and where the region ended when the operator asked for it.
    Split(RegionId, RegionRequest, Option<Bytes>),
    /// The merge of a region, which was there when the operator asked for it, into a neighbour.
    Merge(RegionId, RegionRequest),
    /// The intent for a server; `None`: it stays.
    Intent(ServerId, Option<Intent>),
    /// The drop of a table: the one whose options have this version.
    Drop(TableName, u64),
    /// A new or changed user.
    User(Box<UserChange>),
    /// Users to be removed; `None`: all.
    RemoveUsers(Option<Vec<UserName>>),
}

impl OperatorRequest {
    fn path(&self) -> ClusterPath {
        match self {
            OperatorRequest::Table(change) => ClusterPath::Table(change.name.to_string()),
            OperatorRequest::Region(region, _)
            | OperatorRequest::Split(region, ..)
            | OperatorRequest::Merge(region, _) => ClusterPath::Region(*region),
            OperatorRequest::Intent(server, _) => ClusterPath::Intent(*server),
            OperatorRequest::Drop(name, _) => ClusterPath::Table(name.to_string()),
            OperatorRequest::User(_) | OperatorRequest::RemoveUsers(_) => ClusterPath::Users,
        }
    }

    /// What must not be changed too often.
    fn paced(&self) -> ClusterPath {
        match self {
            OperatorRequest::User(change) => ClusterPath::User(change.name.clone()),
            other => other.path(),
        }
    }

    /// The epoch of the group that changes. For a request that concerns many groups, the highest.
    fn epoch(&self, view: &View) -> Epoch {
        match self {
            OperatorRequest::Region(region, _)
            | OperatorRequest::Split(region, ..)
            | OperatorRequest::Merge(region, _) => view.region(*region),
            OperatorRequest::Table(_) | OperatorRequest::Intent(..) | OperatorRequest::Drop(..) => {
                view.regions().max_by_key(|config| config.epoch)
            }
            OperatorRequest::User(_) | OperatorRequest::RemoveUsers(_) => None,
        }
        .map_or(Epoch(0), |config| config.epoch)
    }

    /// The operation that executes the request; `None`: it is done.
    fn next(&self, view: &View) -> Result<Option<CoordinatorOp>, String> {
        let path = self.path();
        let version = view.version_of(&path);
        Ok(match self {
            OperatorRequest::Table(change) => {
                let options = view.table(&change.name).ok_or_else(|| unknown_table(&change.name))?;
                let wanted = Some(change.apply(options)?).filter(|wanted| wanted != options);
                wanted.map(|wanted| view.put_op(path, encode_value(&wanted)))
            }
            // The region was split since.
            OperatorRequest::Split(region, _, end) if view.region(*region).is_some_and(|config| config.end != *end) => {
                None
            }
            // The region was merged since, or the table was dropped.
            OperatorRequest::Merge(region, _) if view.region(*region).is_none() => None,
            OperatorRequest::Region(region, request)
            | OperatorRequest::Split(region, request, _)
            | OperatorRequest::Merge(region, request) => {
                requested(view, *region, request)?.map(|next| view.request_op(&next))
            }
            OperatorRequest::Intent(server, intent) if view.intent(*server) == *intent => None,
            OperatorRequest::Intent(server, Some(intent)) => {
                if *intent == Intent::Leave {
                    may_leave(view, *server)?;
                }
                Some(view.put_op(path, encode_value(intent)))
            }
            OperatorRequest::Intent(_, None) => Some(view.remove_op(&path)),
            OperatorRequest::Drop(name, meant) if version.is_some_and(|version| version != *meant) => {
                return Err(format!(
                    "table {name} was changed meanwhile: look at it, and drop it again if it is meant"
                ));
            }
            OperatorRequest::Drop(..) => version.map(|_| view.remove_op(&path)),
            OperatorRequest::User(change) => {
                let user = view.users().changed(change)?;
                let is_new = view.users().get(&user.name).is_none_or(|known| ***known != user);
                is_new.then(|| {
                    let path = ClusterPath::User(user.name.clone());
                    of_users(view, vec![view.put_op(path, encode_value(&user))], |name| *name == user.name)
                })
            }
            OperatorRequest::RemoveUsers(names) => {
                if let Some(names) = names {
                    view.users().check_removal(names)?;
                }
                let wanted = |name: &&UserName| names.as_ref().is_none_or(|names| names.contains(name));
                let gone: Vec<&UserName> = view.users().names().filter(wanted).collect();
                let paths = gone.iter().map(|name| ClusterPath::User((*name).clone()));
                let there = paths.filter(|path| view.version_of(path).is_some());
                let ops = there.map(|path| view.remove_op(&path)).collect();
                (!gone.is_empty()).then(|| of_users(view, ops, |name| gone.contains(&name)))
            }
        })
    }
}

/// Changes of users, and the count of such changes. Every change compares that count, so each is decided by all users as
/// they are then. After the coordinator has lost its data, all other users that are known are written as well.
fn of_users(view: &View, mut ops: Vec<CoordinatorOp>, is_changed: impl Fn(&UserName) -> bool) -> CoordinatorOp {
    for user in view.users().iter().filter(|user| !is_changed(&user.name)) {
        let path = ClusterPath::User(user.name.clone());
        if view.version_of(&path).is_none() {
            ops.push(view.put_op(path, encode_value(&***user)));
        }
    }
    ops.push(view.put_op(ClusterPath::Users, encode_value(&(view.user_changes() + 1))));
    CoordinatorOp::All(ops)
}

/// A request that is being executed.
#[derive(Debug)]
pub(super) struct Alteration {
    id: ProposalId,
    request: OperatorRequest,
    /// Attempts that the coordinator rejected.
    failed: u32,
    /// Why the coordinator refuses it.
    pub(super) refusal: Option<String>,
}

impl Agent {
    /// Changes options of a table, for the operator. Each primary of the table follows as soon as it sees the change. The
    /// [`Outcome`] is never [`Outcome::Rejected`].
    ///
    /// # Errors
    /// There is no such table, the change is impossible, or the coordinator cannot be reached.
    pub fn alter_table(&mut self, now: Nanos, change: TableChange) -> Result<ProposalId, String> {
        self.request(now, OperatorRequest::Table(change))
    }

    /// Writes a new desired state of a region into its configuration, for the operator. The primary of the region executes it.
    /// The [`Outcome`], which only says that it is written, is never [`Outcome::Rejected`].
    ///
    /// # Errors
    /// The request is impossible, or the coordinator cannot be reached.
    pub fn request_for_region(
        &mut self,
        now: Nanos,
        region: RegionId,
        request: RegionRequest,
    ) -> Result<ProposalId, String> {
        let config = self.view.region(region);
        self.request(
            now,
            match (&request, config) {
                (RegionRequest::Split { .. }, Some(config)) => {
                    OperatorRequest::Split(region, request, config.end.clone())
                }
                (RegionRequest::Merge { .. }, Some(_)) => OperatorRequest::Merge(region, request),
                _ => OperatorRequest::Region(region, request),
            },
        )
    }

    /// Sets the intent for a server, or has it stay. Every primary releases a leaving server as soon as enough other members are
    /// in sync. The [`Outcome`] is never [`Outcome::Rejected`].
    ///
    /// # Errors
    /// Too few other servers would be left, or the coordinator cannot be reached.
    pub fn intend(&mut self, now: Nanos, server: ServerId, intent: Option<Intent>) -> Result<ProposalId, String> {
        self.request(now, OperatorRequest::Intent(server, intent))
    }

    /// Drops a table, for the operator. The table is gone as soon as the operation is answered, and its regions are removed after
    /// that. The [`Outcome`] is never [`Outcome::Rejected`].
    ///
    /// # Errors
    /// There is no such table, it is the default one, or the coordinator cannot be reached.
    pub fn drop_table(&mut self, now: Nanos, name: &TableName) -> Result<ProposalId, String> {
        if **name == *DEFAULT_TABLE {
            return Err(format!("table {name} cannot be dropped: operations that name no table go there"));
        }
        self.can_change()?;
        let version = self.view.version_of(&ClusterPath::Table(name.to_string()));
        self.request(now, OperatorRequest::Drop(name.clone(), version.ok_or_else(|| unknown_table(name))?))
    }

    /// Makes or changes a user, for the operator. Each node follows as soon as it sees the change. The [`Outcome`] is never
    /// [`Outcome::Rejected`].
    ///
    /// # Errors
    /// The change is impossible, it would lock everybody out, or the coordinator cannot be reached.
    pub fn change_user(&mut self, now: Nanos, change: UserChange) -> Result<ProposalId, String> {
        self.request(now, OperatorRequest::User(Box::new(change)))
    }

    /// Removes users, for the operator: those of `names` that there are, or all. The [`Outcome`] is never
    /// [`Outcome::Rejected`].
    ///
    /// # Errors
    /// Nobody would be left who can change users, or the coordinator cannot be reached.
    pub fn remove_users(&mut self, now: Nanos, names: Option<Vec<UserName>>) -> Result<ProposalId, String> {
        self.request(now, OperatorRequest::RemoveUsers(names))
    }

    fn request(&mut self, now: Nanos, request: OperatorRequest) -> Result<ProposalId, String> {
        self.can_change()?;
        if request.next(&self.view)?.is_some() {
            self.requests.pace.admit(now, &request.paced(), request.epoch(&self.view))?;
        }
        let id = self.requests.new_id();
        self.requests.alterations.push_back(Alteration { id, request, failed: 0, refusal: None });
        self.advance(now);
        Ok(id)
    }

    /// Sends the requests whose paths are free.
    pub(super) fn carry_alterations(&mut self) {
        for alteration in std::mem::take(&mut self.requests.alterations) {
            let path = alteration.request.path();
            let refusal = match (&alteration.refusal, alteration.request.next(&self.view)) {
                (Some(reason), _) => Some(reason.clone()),
                (None, Err(reason)) => Some(reason),
                (None, Ok(None)) => {
                    self.requests.end(alteration.id, Outcome::Accepted);
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
                Some(reason) => self.requests.end(alteration.id, Outcome::Refused(reason)),
                None => self.requests.alterations.push_back(alteration),
            }
        }
    }

    /// Handles the answer to a request, once the view holds the state that it is about; `None`: the answer was lost.
    pub(super) fn settle_alteration(&mut self, mut alteration: Alteration, answer: Option<Answer>) {
        if let Some(Answer { done: true, .. }) = answer {
            tracing::info!(request = ?alteration.request, "an operator's request is recorded");
            return self.requests.end(alteration.id, Outcome::Accepted);
        }
        alteration.failed += u32::from(answer.is_some());
        self.requests.alterations.push_front(alteration);
    }
}

#[cfg(test)]
#[path = "alteration_tests.rs"]
mod tests;

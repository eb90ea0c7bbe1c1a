//! What a native connection may do, and what it is shown of the cluster. Belongs to the event loop's thread.
//!
//! A user that may not see a whole table is shown the parts of it that it may read or write: regions outside of its prefixes
//! are left out, and no key outside of them is shown as a region's first. What it may not see and what is not there look the
//! same.

use crate::places::FULL_NATIVE;
use crate::session_context::Context;
use crate::users::audit::Kind;
use crate::users::identity::{is_of_operators, operators_request};
use crate::users::{Answer, Identity, Question, Refusal, Work};
use leeward_format::cluster::{RegionMap, ServerInfo};
use leeward_format::op::{Op, OpError};
use leeward_format::routes::RoutesUpdate;
use leeward_format::routing::Routing;
use leeward_format::user::{CompiledUser, DEFAULT_USER, Denied, Need, UserName};
use leeward_security::passwords::Password;
use std::collections::BTreeSet;

/// Who a native connection is, and what it may see.
pub(super) struct NativeUser {
    pub(super) identity: Identity,
    /// The password thread is asked.
    pub(super) is_waiting: bool,
    /// Tables of which the client has, or had, the right to read the memory of an index.
    indexed: BTreeSet<String>,
}

impl NativeUser {
    pub(super) fn new(address: &str) -> NativeUser {
        NativeUser { identity: Identity::from(address), is_waiting: false, indexed: BTreeSet::new() }
    }

    /// Follows the users as they are now. `false`: the connection must end, because its user is gone, or may not read any
    /// more what it can read without a request.
    pub(super) fn follow(&mut self, context: &Context) -> bool {
        if !self.identity.follow(context.users, &context.shared.gate) {
            return false;
        }
        self.may_read_indexed()
    }

    /// Whether it may still read what it can read without a request.
    fn may_read_indexed(&self) -> bool {
        let may_read = |table: &String| {
            self.identity.serves().is_ok() && self.identity.user().is_none_or(|user| user.reads_all_of(table))
        };
        self.indexed.iter().all(may_read)
    }

    /// Asks whether this is the user. Returns the answer if it is known at once.
    pub(super) fn ask(
        &mut self,
        connection: u64,
        user: String,
        password: &[u8],
        context: &mut Context,
    ) -> Option<Answer> {
        if !context.users.is_known {
            return Some(Answer::Busy);
        }
        if context.users.is_empty() {
            return Some(match user == DEFAULT_USER && self.identity.admitted().is_ok() {
                true => Answer::Admitted(UserName::default(), None),
                false => Answer::Refused,
            });
        }
        let work = Work::Check { user, password: Password::new(password) };
        context.shared.gate.questions.push(Question { connection, from: self.identity.address(), work });
        self.is_waiting = true;
        None
    }

    /// Handles the answer. Returns why the user is not let in.
    pub(super) fn enter(&mut self, answer: Answer, context: &Context) -> Option<OpError> {
        self.is_waiting = false;
        if !context.users.is_known {
            return Some(OpError::Unavailable("the node does not know the users yet: try again later".into()));
        }
        if let Some(reason) = answer.unchecked() {
            return Some(OpError::Unavailable(reason));
        }
        let is_in = match answer {
            Answer::Admitted(_, None) if context.users.is_empty() => true,
            Answer::Admitted(name, password) => self.identity.become_user(name, password, context.users),
            _ => false,
        };
        if is_in && !self.may_read_indexed() {
            let reason = "this connection reads an index directly that the user may not read: use another connection";
            return Some(OpError::NotPermitted(reason.into()));
        }
        let wrong = || OpError::Unauthenticated("the user is unknown or disabled, or the password is wrong".into());
        (!is_in).then(wrong)
    }

    /// Whether an operation may be executed. `has_place`: it may touch data, if its user may.
    ///
    /// # Errors
    /// Why not. The error does not depend on what there is.
    pub(super) fn permit(&mut self, table: &str, op: &Op, has_place: bool, context: &Context) -> Result<(), OpError> {
        self.identity.serves().map_err(Refusal::error)?;
        let need = op.need();
        let is_operators = is_of_operators(&need);
        let request = || is_operators.then(|| operators_request(op)).flatten();
        let note = |kind, what| {
            let address = self.identity.address();
            context.shared.gate.audit.note(kind, self.identity.name(), address, what);
        };
        match self.identity.may(table, &need, context.routes) {
            Ok(()) if !has_place && !is_operators => Err(OpError::Unavailable(FULL_NATIVE.into())),
            Ok(()) => {
                if let Some(what) = request() {
                    note(Kind::Request, what);
                }
                if let Op::HashIndex(question) = op
                    && let Some(config) = context.routes.region(question.region)
                    && !self.indexed.contains(&config.table)
                {
                    self.indexed.insert(config.table.clone());
                }
                Ok(())
            }
            Err(denied) => {
                if let Some(what) = request() {
                    note(Kind::Denied, what);
                }
                Err(OpError::NotPermitted(refusal(self.identity.name(), &need, denied)))
            }
        }
    }

    /// Whether the old value is to be left out of the answer.
    pub(super) fn hides_old(&self, table: &str, op: &Op) -> bool {
        match (op, self.identity.user()) {
            (Op::Delete { key, .. }, Some(user)) => !user.reads(table, key),
            _ => false,
        }
    }

    /// The user, if it may not see everything.
    fn limited(&self) -> Option<&CompiledUser> {
        self.identity.user().map(|user| &**user).filter(|user| !user.sees_all_of(None))
    }

    /// Whether the user may not see everything, so that what it is told is made anew each time.
    pub(super) fn is_limited(&self) -> bool {
        self.limited().is_some()
    }

    /// What is new to a client that knows the version `known`, as far as its user may see it.
    pub(super) fn routes_since(&self, known: u64, context: &Context) -> RoutesUpdate {
        match self.limited() {
            None => context.routes.update_since(known),
            Some(user) => RoutesUpdate::everything(&visible(user, context.routes.region_map())),
        }
    }

    /// The region map, as far as the user may see it.
    pub(super) fn visible_map(&self, context: &Context) -> RegionMap {
        let map = context.routes.region_map();
        match self.limited() {
            None => map,
            Some(user) => visible(user, map),
        }
    }
}

/// Text of the error for an operation that needs a right that its user lacks.
fn refusal(user: &str, need: &Need, denied: Denied) -> String {
    let rights = need.rights;
    match denied {
        Denied::Right => format!("it needs the rights {rights}, and user {user} lacks one of them"),
        Denied::Place => format!("user {user} lacks one of the rights {rights} on this table, or on these keys of it"),
    }
}

/// The part of the map that a user may see.
fn visible(user: &CompiledUser, map: RegionMap) -> RegionMap {
    let RegionMap { version, mut tables, regions, servers } = map;
    tables.retain(|table| user.knows(&table.name));
    let mut shown = Vec::new();
    for mut region in regions {
        let Some(table) = tables.iter().find(|table| table.name == region.table) else { continue };
        // Tokens are no keys.
        if table.partition.is_hash() || user.sees_all_of(Some(&region.table)) {
            shown.push(region);
            continue;
        }
        let (start, end) = (region.start.clone(), region.end.clone());
        let parts = user.prefixes_in(&table.name).filter_map(|prefix| {
            let last = leeward_format::user::after_prefix(prefix);
            let begins = start.clone().max(prefix.clone());
            let ends = match (&end, &last) {
                (Some(end), Some(last)) => Some(end.min(last).clone()),
                (end, last) => end.clone().or_else(|| last.clone()),
            };
            ends.as_ref().is_none_or(|ends| begins < *ends).then_some((begins, ends))
        });
        // From the first key that the user may touch to the last.
        let whole = parts.reduce(|(begins, ends), (other_begins, other_ends)| {
            let ends = ends.zip(other_ends).map(|(ends, other)| ends.max(other));
            (begins.min(other_begins), ends)
        });
        if let Some((begins, ends)) = whole {
            (region.start, region.end) = (begins, ends);
            region.desired = leeward_format::cluster::DesiredState::default();
            shown.push(region);
        }
    }
    let servers = servers.into_iter().map(|info| {
        let nowhere = ServerInfo::of(info.member);
        ServerInfo { native_address: info.native_address, ..nowhere }
    });
    RegionMap { version, tables, regions: shown, servers: servers.collect() }
}

#[cfg(test)]
#[path = "user_tests.rs"]
mod tests;

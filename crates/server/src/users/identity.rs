//! The user of one connection. Belongs to the event loop's thread.
//!
//! Invariant: what it answers is by the users as the node knows them now, because [`Identity::follow`] comes before each
//! command. A connection whose user was removed or disabled, or whose password was removed, is out.

use super::Gate;
use leeward_cluster::Routes;
use leeward_format::RegionId;
use leeward_format::op::{Op, OpError};
use leeward_format::routing::Routing;
use leeward_format::user::{CompiledUser, DEFAULT_USER, Denied, Need, PasswordId, Rights, UserName, Users};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Why a connection may do nothing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It must say who it is.
    Unauthenticated,
    /// Users are not known yet.
    Unknown,
    /// There are no users, and the client is on another machine.
    Protected,
}

impl Refusal {
    /// The error for operations and native clients.
    pub(crate) fn error(self) -> OpError {
        match self {
            Refusal::Unauthenticated => OpError::Unauthenticated(
                "this cluster has users: name one, as in leeward+tls://USER@host:port, and its password".into(),
            ),
            Refusal::Unknown => OpError::Recovering(RegionId(0)),
            Refusal::Protected => OpError::NotPermitted(PROTECTED.into()),
        }
    }
}

/// What a client of another machine is told while there are no users.
pub(crate) const PROTECTED: &str = "this cluster has no users, so clients of other machines are refused. Make the first \
     user on the machine of a node: `leeward user add NAME --generate --grant all`. Or set insecure_listen = true if the \
     network is closed to others, which lets everybody do everything";

/// Who a connection is.
#[derive(Clone, Debug)]
enum Standing {
    Refused(Refusal),
    /// There are no users.
    Anyone,
    User(Arc<CompiledUser>),
}

/// Who a connection says it is, and what follows from that.
#[derive(Debug)]
pub(crate) struct Identity {
    address: Option<IpAddr>,
    /// The user that it has named, and the password with which.
    claim: Option<(UserName, Option<PasswordId>)>,
    standing: Standing,
    /// Of the users by which `standing` was decided.
    revision: Option<u64>,
}

impl Identity {
    /// A connection from `address`, as text, that has not said who it is.
    pub(crate) fn from(address: &str) -> Identity {
        let address = address.parse::<SocketAddr>().ok().map(|address| address.ip().to_canonical());
        Identity { address, claim: None, standing: Standing::Refused(Refusal::Unknown), revision: None }
    }

    /// The address of the client.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    fn is_local(&self) -> bool {
        // Tests have sessions without a socket.
        self.address.is_none_or(|address| address.is_loopback())
    }

    /// Whether it has followed these users.
    #[inline]
    pub(crate) fn has_followed(&self, users: &Users) -> bool {
        self.revision == Some(users.revision)
    }

    /// Follows the users as they are now. `false`: the connection must end.
    #[must_use]
    pub(crate) fn follow(&mut self, users: &Users, gate: &Gate) -> bool {
        if self.has_followed(users) {
            return true;
        }
        self.revision = Some(users.revision);
        if let Some((name, password)) = &self.claim {
            let user = users.get(name).filter(|user| user.admits(*password));
            match user {
                Some(user) => self.standing = Standing::User(user.clone()),
                // All users were removed: it is one of anyone.
                None if users.is_empty() && users.is_known => {
                    self.claim = None;
                    self.standing = self.unnamed(users, gate);
                }
                None => {
                    self.standing = Standing::Refused(Refusal::Unauthenticated);
                    return false;
                }
            }
        } else {
            self.standing = self.unnamed(users, gate);
        }
        true
    }

    /// The standing of a connection that has named no user.
    fn unnamed(&self, users: &Users, gate: &Gate) -> Standing {
        if !users.is_known {
            return Standing::Refused(Refusal::Unknown);
        }
        if users.is_empty() && gate.is_protected && !self.is_local() {
            return Standing::Refused(Refusal::Protected);
        }
        if users.is_empty() {
            return Standing::Anyone;
        }
        match users.get(DEFAULT_USER).filter(|user| user.admits(None)) {
            Some(user) => Standing::User(user.clone()),
            None => Standing::Refused(Refusal::Unauthenticated),
        }
    }

    /// The password thread has found that this is the user. `false`: the user was removed meanwhile.
    pub(crate) fn become_user(&mut self, name: UserName, password: Option<PasswordId>, users: &Users) -> bool {
        let Some(user) = users.get(&name).filter(|user| user.admits(password)) else { return false };
        self.standing = Standing::User(user.clone());
        self.claim = Some((name, password));
        self.revision = Some(users.revision);
        true
    }

    /// The connection is as new.
    pub(crate) fn forget(&mut self) {
        (self.claim, self.revision) = (None, None);
        self.standing = Standing::Refused(Refusal::Unknown);
    }

    /// The user's name; `default` without one.
    pub(crate) fn name(&self) -> &str {
        match &self.standing {
            Standing::User(user) => &user.name,
            _ => DEFAULT_USER,
        }
    }

    /// Whether it has named a user that may operate, or change users, everywhere. Its place is kept for it.
    pub(crate) fn is_operator(&self) -> bool {
        let may = |user: &Arc<CompiledUser>| {
            [Rights::ADMIN, Rights::OPERATE].into_iter().any(|right| user.has_everywhere(right).is_ok())
        };
        self.claim.is_some() && self.user().is_some_and(may)
    }

    /// The user, if there is one.
    pub(crate) fn user(&self) -> Option<&Arc<CompiledUser>> {
        match &self.standing {
            Standing::User(user) => Some(user),
            _ => None,
        }
    }

    /// Whether commands that touch no data may be executed.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn admitted(&self) -> Result<(), Refusal> {
        match self.standing {
            // Without its coordinator a node has no data to serve, and an operator must find out why.
            Standing::Refused(Refusal::Unknown) if self.is_local() => Ok(()),
            Standing::Refused(refusal) => Err(refusal),
            Standing::Anyone | Standing::User(_) => Ok(()),
        }
    }

    /// Whether operations may be executed at all.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn serves(&self) -> Result<(), Refusal> {
        match self.standing {
            Standing::Refused(refusal) => Err(refusal),
            Standing::Anyone | Standing::User(_) => Ok(()),
        }
    }

    /// Whether it must say who it is before it gets anything.
    #[inline]
    pub(crate) fn is_stranger(&self) -> bool {
        matches!(self.standing, Standing::Refused(Refusal::Unauthenticated | Refusal::Protected))
    }

    /// Whether an operation on the table, that needs this, may be executed. Call only while the connection is
    /// [served](Identity::serves).
    ///
    /// # Errors
    /// The user lacks a right.
    #[inline]
    pub(crate) fn may(&self, table: &str, need: &Need, routes: &Routes) -> Result<(), Denied> {
        match &self.standing {
            Standing::Anyone => Ok(()),
            Standing::User(user) => user.may(table, need, table_in(routes)),
            Standing::Refused(_) => Err(Denied::Right),
        }
    }

    /// Whether the rights are there on all tables. A connection without a user, but admitted, has them.
    ///
    /// # Errors
    /// The user lacks a right.
    pub(crate) fn has_everywhere(&self, rights: Rights) -> Result<(), Denied> {
        self.user().map_or(Ok(()), |user| user.has_everywhere(rights))
    }

    /// Whether the user may know of the table.
    pub(crate) fn knows(&self, table: &str) -> bool {
        self.user().is_none_or(|user| user.knows(table))
    }
}

/// Says which table a region belongs to.
pub(crate) fn table_in<'r>(routes: &'r Routes) -> impl FnOnce(RegionId) -> Option<&'r str> {
    |region| routes.region(region).map(|config| &config.table[..])
}

/// Text for the audit log: what an operator asks to be changed; `None` for operations that only read, or that touch
/// pairs.
pub(crate) fn operators_request(op: &Op) -> Option<String> {
    if op.writes_data() || !op.is_write() && !matches!(op, Op::Checkpoint { .. }) {
        return None;
    }
    Some(match op {
        Op::CreateTable { table } => format!("create table {}", table.options.name),
        Op::RepairSegment { region, segment, .. } => format!("repair segment {segment:?} of region {region}"),
        Op::ChangeUser { change } => format!("change user {}", change.name),
        other => format!("{other:?}"),
    })
}

/// The rights that make a request one of operators.
pub(crate) fn is_of_operators(need: &Need) -> bool {
    [Rights::ADMIN, Rights::OPERATE].into_iter().any(|right| need.rights.contains(right))
}

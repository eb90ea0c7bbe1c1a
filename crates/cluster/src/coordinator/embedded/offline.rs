//! A change of a user in the log of a host that does not run, for an operator that has lost the password of the last admin.
//!
//! An operator that may write the log may do everything anyway, so nothing is asked but that. The log's lock keeps a running
//! host out.
//! Invariant: the change is one batch of the log, as if a node had asked for it; the cluster has users at every moment. Any
//! thread.

use super::log::{HostError, LOG_FILE, Log};
use crate::Tree;
use bytes::Bytes;
use leeward_format::cluster::{ClusterPath, decode_value, encode_value};
use leeward_format::coordinator::{CoordinatorOp, LogEntry};
use leeward_format::user::{Grant, PasswordHash, Presence, UserChange, UserName, UserRule};
use std::path::{Path, PathBuf};

/// Why no user was changed.
#[derive(Debug, thiserror::Error)]
pub enum ResetError {
    /// There is no log.
    #[error(
        "{0}: there is no such file. Name the directory of an embedded coordinator, such as leeward-data/coordinator. A \
         cluster on ZooKeeper has none: docs/users.md says what to do there"
    )]
    Missing(PathBuf),
    /// It cannot be told whether there is one.
    #[error("coordinator: cannot read {0}: {1}. Run this as the system user that the coordinator runs as")]
    Unreadable(PathBuf, #[source] std::io::Error),
    /// The log cannot be used.
    #[error(transparent)]
    Log(#[from] HostError),
    /// The user would break a limit.
    #[error("{0}")]
    Refused(String),
    /// The log cannot be written.
    #[error("coordinator: cannot write to {0}: {1}. Nothing is certain before the coordinator has been started again")]
    Write(PathBuf, #[source] std::io::Error),
}

/// Makes `name` anew, as a user that is enabled, may do everything, and has this password, whether or not it is there, in
/// the log in `directory`, whose host must not run. Other users stay as they are. Nodes follow when the host runs again.
///
/// # Errors
/// There is no log, its host runs, or it cannot be read or written.
pub fn reset_admin(directory: &Path, name: &UserName, hash: PasswordHash) -> Result<(), ResetError> {
    let path = directory.join(LOG_FILE);
    match path.try_exists() {
        Ok(true) => {}
        Ok(false) => return Err(ResetError::Missing(path)),
        Err(error) => return Err(ResetError::Unreadable(path, error)),
    }
    let (mut log, mut tree) = Log::open(directory)?;
    let op = reset(&tree, name, hash)?;
    tree.apply(None, &op).map_err(|error| ResetError::Refused(error.to_string()))?;
    log.append(vec![LogEntry::Applied { session: None, op }]).map_err(|error| ResetError::Write(path, error))
}

/// The change, with the number of changes last: nodes follow a change when they have seen that.
fn reset(tree: &Tree, name: &UserName, hash: PasswordHash) -> Result<CoordinatorOp, ResetError> {
    let path = ClusterPath::User(name.clone());
    let rules = vec![UserRule::Enable(true), UserRule::AddPassword(hash), UserRule::AddGrant(Grant::everything())];
    let change = UserChange { name: name.clone(), presence: Presence::Any, rules };
    // It is made anew: then it does not matter how many grants it had, or whether it can be read.
    let user = change.apply(None).map_err(ResetError::Refused)?;
    let changes = tree.get(&ClusterPath::Users.to_string());
    let changes = changes.and_then(|(_, value)| decode_value::<u64>("number of changes of users", value).ok());
    Ok(CoordinatorOp::All(vec![
        put(tree, &path, encode_value(&user)),
        put(tree, &ClusterPath::Users, encode_value(&(changes.unwrap_or(0) + 1))),
    ]))
}

fn put(tree: &Tree, path: &ClusterPath, value: Bytes) -> CoordinatorOp {
    let path = path.to_string();
    match tree.get(&path) {
        Some((version, _)) => CoordinatorOp::Set { path, value, version },
        None => CoordinatorOp::Create { path, value, ephemeral: false },
    }
}

#[cfg(test)]
#[path = "offline_tests.rs"]
mod tests;

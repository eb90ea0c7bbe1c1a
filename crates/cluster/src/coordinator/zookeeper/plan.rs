//! Turns an operation into one request of ZooKeeper, which does all of it or nothing, and interprets a refusal of the request.
//!
//! Invariant: an operation compares the change that made a path's value. ZooKeeper compares how often the value was replaced
//! since the path was made, so a path that was removed and made again could pass for the earlier one. For this reason each
//! creation of a path also replaces the value of the path above it, and each comparison of a path also compares the path above
//! it. If only the path above differs, another path was made beside the compared one. Then the operation is planned anew on the
//! newer state ([`Verdict::Again`]).
//!
//! It follows that only paths without a value have others beneath them. No plan makes a path beneath a value, since the value
//! would be lost. Pure; one thread at a time.

use super::address::check_path;
use super::mirror::{Mirror, Unreported};
use crate::{CoordinatorError, CoordinatorOp};
use bytes::Bytes;
use leeward_format::coordinator::{MAX_ALL_OPS, MAX_NODE_BYTES, MAX_PATH_BYTES};
use leeward_format::zookeeper::{Access, MAX_REQUEST_BYTES, Request, Step, error, write_request};
use std::collections::{BTreeMap, BTreeSet};

/// The steps of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The steps, with absolute paths.
    pub(super) steps: Vec<Step>,
    /// The path of each step, relative to the cluster's path; `None` for a step that guards others.
    subjects: Vec<Option<String>>,
    /// Bytes of the request.
    pub(super) bytes: usize,
}

impl Plan {
    /// Checks that the known tree shows what this plan did by the change `zxid`: everything that was reported by then is read.
    ///
    /// # Errors
    /// The server has not reported a change. It does so before its answer, unless the user may not read the path.
    pub(super) fn check_reported(&self, mirror: &Mirror, zxid: u64) -> Result<(), Unreported> {
        let is_shown = |path: &str| mirror.get(path).is_none_or(|known| known.version >= zxid);
        let unshown = self.subjects.iter().flatten().find(|path| mirror.told() < zxid || !is_shown(path));
        unshown.map_or(Ok(()), |path| Err(Unreported::Change(path.clone())))
    }
}

/// The meaning of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Another path changed beside the requested one: plan the operation again, once the change is known.
    Again,
    /// This is the answer.
    Failed(CoordinatorError),
}

/// The cluster's path, and the access rights of all paths.
#[derive(Clone, Debug)]
pub(super) struct ClusterRoot {
    /// The cluster's path.
    pub(super) root: String,
    /// The access rights of new paths.
    pub(super) access: Access,
}

/// What a plan does with a path above the paths of its operation.
#[derive(Default)]
struct Above {
    is_compared: bool,
    is_changed: bool,
}

impl ClusterRoot {
    /// The request for `op`, based on the known tree.
    ///
    /// # Errors
    /// The operation fails on the known tree, or it breaks a limit.
    pub(super) fn plan(&self, mirror: &Mirror, op: &CoordinatorOp) -> Result<Plan, CoordinatorError> {
        let ops = match op {
            CoordinatorOp::All(ops) => &ops[..],
            one => std::slice::from_ref(one),
        };
        if ops.len() > MAX_ALL_OPS {
            return refuse(format!("{} operations in one, at most {MAX_ALL_OPS}", ops.len()));
        }
        let mut above: BTreeMap<String, Above> = BTreeMap::new();
        let mut asked = Vec::with_capacity(ops.len());
        let mut made = BTreeSet::new();
        for op in ops {
            let (path, step) = self.step(mirror, op, &mut above)?;
            if let Step::Create { .. } = step {
                made.insert(path);
            }
            asked.push((Some(path.to_owned()), step));
        }
        for (path, _) in above.iter().filter(|(_, above)| above.is_changed) {
            if let Some(value) = ancestors(path).find(|path| made.contains(path) || mirror.version(path).is_some()) {
                let is_empty = mirror.get(value).is_some_and(|known| known.value_bytes == Some(0));
                let why = if is_empty { self.made_by_hand(value) } else { String::new() };
                return refuse(format!("nothing can be made beneath {value}, which has a value{why}"));
            }
        }
        let mut all = self.guards(mirror, above);
        all.append(&mut asked);
        let (subjects, steps): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        let mut bytes = Vec::new();
        write_request(0, &Request::Multi(&steps), &mut bytes);
        if bytes.len() > MAX_REQUEST_BYTES {
            return refuse(format!(
                "an operation of {} bytes, ZooKeeper takes at most {MAX_REQUEST_BYTES} at once",
                bytes.len()
            ));
        }
        Ok(Plan { steps, subjects, bytes: bytes.len() })
    }

    /// What to do about a path with an empty value where others belong beneath it.
    fn made_by_hand(&self, path: &str) -> String {
        format!(
            ", an empty one: it was made by hand, it seems. Leeward makes all paths beneath {root} itself: remove this one \
             (`delete {root}{path}` of zkCli.sh)",
            root = self.root
        )
    }

    /// The step for `op`, after a check that it can be done.
    fn step<'a>(
        &self,
        mirror: &Mirror,
        op: &'a CoordinatorOp,
        above: &mut BTreeMap<String, Above>,
    ) -> Result<(&'a str, Step), CoordinatorError> {
        let whole = |path: &str| format!("{}{path}", self.root);
        match op {
            CoordinatorOp::Create { path, value, ephemeral } => {
                check(path, Some(value))?;
                above.entry(parent(path).to_owned()).or_default().is_changed = true;
                let (value, ephemeral) = (Some(value.clone()), *ephemeral);
                Ok((path, Step::Create { path: whole(path), value, ephemeral, access: self.access }))
            }
            CoordinatorOp::Set { path, value, version } => {
                check(path, Some(value))?;
                let version = compare(mirror, path, *version)?;
                above.entry(parent(path).to_owned()).or_default().is_compared = true;
                Ok((path, Step::Set { path: whole(path), value: Some(value.clone()), version: Some(version) }))
            }
            CoordinatorOp::Delete { path, version } => {
                check(path, None)?;
                let version = version.map(|version| compare(mirror, path, version)).transpose()?;
                if mirror.get(path).is_some() && mirror.version(path).is_none() {
                    return Err(CoordinatorError::Missing);
                }
                above.entry(parent(path).to_owned()).or_default().is_compared |= version.is_some();
                Ok((path, Step::Delete { path: whole(path), version }))
            }
            CoordinatorOp::All(_) => refuse("operations do not nest".into()),
        }
    }

    /// The steps that guard the others, see the top of this file, and the steps that make missing paths.
    fn guards(&self, mirror: &Mirror, above: BTreeMap<String, Above>) -> Vec<(Option<String>, Step)> {
        let mut missing = BTreeSet::new();
        let mut steps = Vec::new();
        for (path, Above { is_compared, is_changed }) in above {
            let whole = format!("{}{path}", self.root);
            match mirror.get(&path) {
                Some(known) if is_changed => {
                    let version = is_compared.then_some(known.changes);
                    steps.push((None, Step::Set { path: whole, value: None, version }));
                }
                Some(known) if is_compared => {
                    steps.push((None, Step::Check { path: whole, version: known.changes }));
                }
                Some(_) => {}
                None => {
                    let unknown = ancestors(&path).take_while(|path| mirror.get(path).is_none());
                    missing.extend(unknown.map(str::to_owned));
                }
            }
        }
        // Ascending, so each path comes after the path above it.
        for path in missing {
            let path = format!("{}{path}", self.root);
            steps.push((None, Step::Create { path, value: None, ephemeral: false, access: self.access }));
        }
        steps
    }

    /// The meaning of a refusal of the step `index` of `plan` with `code`. `mirror` knows of everything that was done before the
    /// refusal.
    pub(super) fn judge(&self, mirror: &Mirror, plan: &Plan, index: usize, code: i32) -> Verdict {
        let Some(Some(path)) = plan.subjects.get(index) else {
            return match code {
                error::BAD_VERSION | error::NODE_EXISTS | error::NO_NODE => Verdict::Again,
                _ => Verdict::Failed(CoordinatorError::Refused(self.explain(code, None))),
            };
        };
        // If the path was removed in the meantime, the mirror was told of that.
        let version = mirror.version(path).unwrap_or(mirror.told());
        Verdict::Failed(match code {
            error::NODE_EXISTS if mirror.get(path).is_some() && mirror.version(path).is_none() => {
                CoordinatorError::Refused(format!("{path} cannot be made: there are paths beneath it, or were"))
            }
            error::NODE_EXISTS => CoordinatorError::Exists { version },
            error::BAD_VERSION => CoordinatorError::Stale { version },
            error::NO_NODE => CoordinatorError::Missing,
            _ => CoordinatorError::Refused(self.explain(code, Some(path))),
        })
    }

    /// The text for an error of ZooKeeper about the part of the cluster's own path that ends with `part`.
    pub(super) fn explain_part(&self, code: i32, part: &str) -> String {
        let above = match parent(part) {
            "" => "/",
            above => above,
        };
        match (code, self.access) {
            (error::NO_AUTH, Access::Creator) => format!(
                "ZooKeeper refuses to make {part}: {above} belongs to another user, or the password is wrong. Let this \
                 user make paths in {above}, check the file that zookeeper_auth_file names, or take another path"
            ),
            (error::NO_AUTH, Access::Anyone) => format!(
                "ZooKeeper refuses to make {part}: {above} belongs to a user. Set zookeeper_auth_file to a file with its \
                 user:password, or take another path"
            ),
            (code, _) => self.explain(code, None),
        }
    }

    /// The text for an error of ZooKeeper.
    pub(super) fn explain(&self, code: i32, path: Option<&str>) -> String {
        let at = format!("{}{}", self.root, path.unwrap_or_default());
        match (code, self.access) {
            (error::NO_AUTH, Access::Creator) => format!(
                "ZooKeeper refuses access to {at}: it belongs to another user, or the password is wrong. Check the file \
                 that zookeeper_auth_file names, or take another path"
            ),
            (error::NO_AUTH, Access::Anyone) => format!(
                "ZooKeeper refuses access to {at}: it belongs to a user. Set zookeeper_auth_file to a file with its \
                 user:password, or take another path"
            ),
            (error::AUTH_FAILED, _) => {
                "ZooKeeper does not take user and password: its scheme digest is switched off".into()
            }
            (error::CLOSED_REQUIRES_AUTHENTICATION, Access::Creator) => {
                "ZooKeeper takes only clients that authenticate otherwise than by user and password, by SASL perhaps, \
                 which Leeward does not speak. Set sessionRequireClientSASLAuth=false, or \
                 enforce.auth.schemes to a list with digest, on all its servers"
                    .into()
            }
            (error::CLOSED_REQUIRES_AUTHENTICATION, Access::Anyone) => {
                "ZooKeeper takes only clients that authenticate. Set zookeeper_auth_file to a file with user:password, and \
                 on all servers of the ensemble enforce.auth.schemes to a list with digest, and \
                 sessionRequireClientSASLAuth=false: Leeward does not speak SASL"
                    .into()
            }
            (error::QUOTA_EXCEEDED, _) => format!(
                "ZooKeeper refuses a change of {at}: the quota of a path is exceeded, and enforceQuota is set. Look for it \
                 with `listquota` of zkCli.sh on {root} and the paths above it, and raise it (`setquota`) or remove it \
                 (`delquota`)",
                root = self.root
            ),
            (error::EPHEMERAL_ON_LOCAL_SESSION, _) => format!(
                "ZooKeeper does not make {at}, which is ephemeral: the session is known to one server only. Set \
                 localSessionsEnabled=false on all servers of the ensemble"
            ),
            (error::SESSION_EXPIRED, _) => {
                "the leader of ZooKeeper does not know the session: it is over, or known to one server only. If this \
                 comes again, set localSessionsEnabled=false on all servers of the ensemble"
                    .into()
            }
            (error::THROTTLED, _) => {
                "ZooKeeper is overloaded: the request waited longer there than throttledOpWaitTime. It is repeated".into()
            }
            (error::UNIMPLEMENTED, _) => "the server is older than ZooKeeper 3.6, which is needed".into(),
            (error::NO_CHILDREN_FOR_EPHEMERALS, _) => format!("{at} cannot be made: what is above it is ephemeral"),
            (error::NOT_EMPTY, _) => format!("{at} cannot be removed: there are paths beneath it"),
            (code, _) => format!("ZooKeeper answers with error {code} at {at}"),
        }
    }
}

/// How often the value of `path` was replaced, if its version is still `version`.
fn compare(mirror: &Mirror, path: &str, version: u64) -> Result<i32, CoordinatorError> {
    match mirror.version(path) {
        None => Err(CoordinatorError::Missing),
        Some(known) if known != version => Err(CoordinatorError::Stale { version: known }),
        Some(_) => Ok(mirror.get(path).expect("it has a version").changes),
    }
}

/// The path directly above `path`.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// `path` and the paths above it, upwards; without the cluster's own path.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| Some(parent(path))).take_while(|path| !path.is_empty())
}

fn check(path: &str, value: Option<&Bytes>) -> Result<(), CoordinatorError> {
    if let Err(why) = check_path(path, MAX_PATH_BYTES) {
        return refuse(format!("{path:?} is not a path: it {why}"));
    }
    match value.map_or(0, Bytes::len) {
        0..=MAX_NODE_BYTES => Ok(()),
        bytes => refuse(format!("a value of {bytes} bytes, at most {MAX_NODE_BYTES}")),
    }
}

fn refuse<T>(why: String) -> Result<T, CoordinatorError> {
    Err(CoordinatorError::Refused(why))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

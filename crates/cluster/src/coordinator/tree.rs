//! The coordinator's state: paths with versions, sessions, and the paths that vanish with them.
//!
//! A pure state machine: the same calls in the same order give the same tree and the same changes, so a log of the calls that
//! succeeded restores it. It knows no clock: [`crate::Deadlines`] decides which sessions expire.
//!
//! Invariants: every change gets the next number of one counter; an ephemeral path's owner is an open session; no path is
//! beneath another; the tree's bytes stay within [`MAX_TREE_BYTES`]. One thread at a time.

use bytes::Bytes;
use leeward_format::coordinator::{
    Change, CoordinatorError, CoordinatorOp, LogEntry, MAX_ALL_OPS, MAX_NODE_BYTES, MAX_PATH_BYTES, NodeSnapshot,
    SessionId, TreeSnapshot,
};
use std::collections::BTreeMap;

/// Most bytes that all paths and values hold together.
pub(super) const MAX_TREE_BYTES: usize = 64 * 1024 * 1024;
/// Most sessions at a time.
pub(super) const MAX_SESSIONS: usize = 4096;
/// The cost of a path besides its bytes, so that the number of empty paths is bounded too.
const NODE_OVERHEAD_BYTES: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    version: u64,
    value: Bytes,
    owner: Option<SessionId>,
}

/// The effect of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Number of its last change.
    pub version: u64,
    /// Its changes, in order. Watchers must be told of them before the caller gets its answer.
    pub changes: Vec<Change>,
}

/// The tree with its sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    version: u64,
    next_session: u64,
    sessions: BTreeMap<SessionId, u32>,
    nodes: BTreeMap<String, Node>,
    bytes: usize,
}

impl Tree {
    /// An empty tree.
    pub fn new() -> Tree {
        Tree::default()
    }

    /// Sessions that begin from here on have the numbers after `drawn`, a random number. A process that hosts a tree in an older
    /// state draws others than the one before it, so that no process goes on with a session of another one.
    pub fn draw_sessions_from(&mut self, drawn: u64) {
        // Room for as many as a coordinator ever gives.
        self.next_session = drawn >> 1;
    }

    /// Begins a session that expires after `timeout_ms` milliseconds of silence.
    ///
    /// # Errors
    /// There are too many sessions.
    pub fn open(&mut self, timeout_ms: u32) -> Result<SessionId, CoordinatorError> {
        if self.sessions.len() >= MAX_SESSIONS {
            return Err(CoordinatorError::Refused(format!("{MAX_SESSIONS} sessions are open already")));
        }
        let session = SessionId(self.next_session + 1);
        self.next_session = session.0;
        self.sessions.insert(session, timeout_ms);
        Ok(session)
    }

    /// Ends a session, on request or by expiry. Its ephemeral paths vanish. Nothing happens if the session is over.
    pub fn close(&mut self, session: SessionId) -> Vec<Change> {
        self.sessions.remove(&session);
        let owned = self.nodes.iter().filter(|(_, node)| node.owner == Some(session));
        let paths: Vec<String> = owned.map(|(path, _)| path.clone()).collect();
        paths.into_iter().map(|path| self.remove(path)).collect()
    }

    /// Timeout of `session` in milliseconds; `None` if it is over.
    pub fn timeout_ms(&self, session: SessionId) -> Option<u32> {
        self.sessions.get(&session).copied()
    }

    /// Open sessions, ascending, with their timeouts in milliseconds.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, u32)> + '_ {
        self.sessions.iter().map(|(session, timeout)| (*session, *timeout))
    }

    /// Number of the last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Value and version of `path`.
    pub fn get(&self, path: &str) -> Option<(u64, &Bytes)> {
        self.nodes.get(path).map(|node| (node.version, &node.value))
    }

    /// The whole tree as changes, ascending by path. A process is told these when it attaches.
    pub fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        self.nodes.iter().map(|(path, node)| Change {
            path: path.clone(),
            version: node.version,
            value: Some(node.value.clone()),
        })
    }

    /// Does `op` for `session`, or for the coordinator's host itself, completely or not at all.
    ///
    /// # Errors
    /// The comparison failed, the operation breaks a limit, or the session is over.
    pub fn apply(&mut self, session: Option<SessionId>, op: &CoordinatorOp) -> Result<Applied, CoordinatorError> {
        if session.is_some_and(|session| !self.sessions.contains_key(&session)) {
            return Err(CoordinatorError::Refused("the session is over".into()));
        }
        let CoordinatorOp::All(ops) = op else {
            let change = self.apply_one(session, op)?;
            return Ok(Applied { version: change.version, changes: vec![change] });
        };
        if ops.len() > MAX_ALL_OPS {
            return Err(CoordinatorError::Refused(format!("{} operations in one, at most {MAX_ALL_OPS}", ops.len())));
        }
        // The old nodes that the operation touches are kept aside, so that a refusal leaves no trace.
        let version = self.version;
        let mut undo: Vec<(String, Option<Node>)> = Vec::new();
        let mut changes = Vec::with_capacity(ops.len());
        for one in ops {
            let before = path_of(one).map(|path| (path.to_owned(), self.nodes.get(path).cloned()));
            match self.apply_one(session, one) {
                Ok(change) => {
                    changes.push(change);
                    undo.extend(before);
                }
                Err(error) => {
                    for (path, node) in undo.into_iter().rev() {
                        self.put_back(path, node);
                    }
                    self.version = version;
                    return Err(error);
                }
            }
        }
        Ok(Applied { version: self.version, changes })
    }

    fn apply_one(&mut self, session: Option<SessionId>, op: &CoordinatorOp) -> Result<Change, CoordinatorError> {
        match op {
            CoordinatorOp::Create { path, value, ephemeral } => {
                if let Some(node) = self.nodes.get(path) {
                    return Err(CoordinatorError::Exists { version: node.version });
                }
                if *ephemeral && session.is_none() {
                    return Err(CoordinatorError::Refused("an ephemeral path needs a session".into()));
                }
                self.check(path, value, 0)?;
                self.check_place(path)?;
                Ok(self.put(path.clone(), value.clone(), session.filter(|_| *ephemeral)))
            }
            CoordinatorOp::Set { path, value, version } => {
                let node = self.nodes.get(path).ok_or(CoordinatorError::Missing)?;
                if node.version != *version {
                    return Err(CoordinatorError::Stale { version: node.version });
                }
                let owner = node.owner;
                self.check(path, value, cost(path, &node.value))?;
                Ok(self.put(path.clone(), value.clone(), owner))
            }
            CoordinatorOp::Delete { path, version } => {
                let node = self.nodes.get(path).ok_or(CoordinatorError::Missing)?;
                if version.is_some_and(|version| version != node.version) {
                    return Err(CoordinatorError::Stale { version: node.version });
                }
                Ok(self.remove(path.clone()))
            }
            CoordinatorOp::All(_) => Err(CoordinatorError::Refused("operations do not nest".into())),
        }
    }

    /// Refuses an operation that would break a limit. `freed` bytes are removed in exchange.
    fn check(&self, path: &str, value: &Bytes, freed: usize) -> Result<(), CoordinatorError> {
        let refuse = |why: String| Err(CoordinatorError::Refused(why));
        if path.len() > MAX_PATH_BYTES || !path.starts_with('/') || path.ends_with('/') {
            return refuse(format!(
                "not a path: it must begin with a slash, not end with one, and have at most {MAX_PATH_BYTES} bytes"
            ));
        }
        if value.len() > MAX_NODE_BYTES {
            return refuse(format!("a value of {} bytes, at most {MAX_NODE_BYTES}", value.len()));
        }
        if self.bytes - freed + cost(path, value) > MAX_TREE_BYTES {
            return refuse(format!("the coordinator is full: it holds at most {MAX_TREE_BYTES} bytes"));
        }
        Ok(())
    }

    /// Refuses to make `path` beneath a path with a value, or above other paths.
    fn check_place(&self, path: &str) -> Result<(), CoordinatorError> {
        let refuse = |why: String| Err(CoordinatorError::Refused(why));
        let mut above = path.match_indices('/').map(|(end, _)| &path[..end]);
        if let Some(value) = above.find(|path| self.nodes.contains_key(*path)) {
            return refuse(format!("nothing can be made beneath {value}, which has a value"));
        }
        let beneath = format!("{path}/");
        match self.nodes.range(beneath.clone()..).next() {
            Some((other, _)) if other.starts_with(&beneath) => {
                refuse(format!("{path} cannot be made: there are paths beneath it"))
            }
            _ => Ok(()),
        }
    }

    fn put(&mut self, path: String, value: Bytes, owner: Option<SessionId>) -> Change {
        self.version += 1;
        let node = Node { version: self.version, value: value.clone(), owner };
        self.put_back(path.clone(), Some(node));
        Change { path, version: self.version, value: Some(value) }
    }

    fn remove(&mut self, path: String) -> Change {
        self.version += 1;
        self.put_back(path.clone(), None);
        Change { path, version: self.version, value: None }
    }

    fn put_back(&mut self, path: String, node: Option<Node>) {
        if let Some(old) = self.nodes.get(&path) {
            self.bytes -= cost(&path, &old.value);
        }
        match node {
            Some(node) => {
                self.bytes += cost(&path, &node.value);
                self.nodes.insert(path, node);
            }
            None => {
                self.nodes.remove(&path);
            }
        }
    }

    /// The whole state, for storage.
    pub fn snapshot(&self) -> TreeSnapshot {
        TreeSnapshot {
            version: self.version,
            next_session: self.next_session,
            sessions: self.sessions().collect(),
            nodes: self
                .nodes
                .iter()
                .map(|(path, node)| NodeSnapshot {
                    path: path.clone(),
                    version: node.version,
                    value: node.value.clone(),
                    owner: node.owner,
                })
                .collect(),
        }
    }

    /// The tree that `snapshot` was taken of.
    pub fn restore(snapshot: TreeSnapshot) -> Tree {
        let mut tree = Tree {
            version: snapshot.version,
            next_session: snapshot.next_session,
            sessions: snapshot.sessions.into_iter().collect(),
            ..Tree::default()
        };
        for NodeSnapshot { path, version, value, owner } in snapshot.nodes {
            tree.put_back(path, Some(Node { version, value, owner }));
        }
        tree
    }

    /// Repeats an entry of the log.
    ///
    /// # Errors
    /// The entry does not fit this tree: the log is damaged.
    pub fn replay(&mut self, entry: LogEntry) -> Result<(), String> {
        match entry {
            LogEntry::Snapshot(snapshot) => *self = Tree::restore(snapshot),
            LogEntry::Opened { session, timeout_ms } => {
                let (before, is_open) = (session.0.checked_sub(1), self.timeout_ms(session).is_some());
                let Some(before) = before.filter(|_| !is_open) else {
                    return Err(format!("session {} begins twice", session.0));
                };
                self.next_session = before;
                self.open(timeout_ms).map_err(|error| error.to_string())?;
            }
            LogEntry::Applied { session, op } => {
                self.apply(session, &op).map_err(|error| format!("an operation that succeeded once fails: {error}"))?;
            }
            LogEntry::Closed { session } => {
                if self.timeout_ms(session).is_none() {
                    return Err(format!("session {} ends without having begun", session.0));
                }
                self.close(session);
            }
        }
        Ok(())
    }
}

fn cost(path: &str, value: &Bytes) -> usize {
    NODE_OVERHEAD_BYTES + path.len() + value.len()
}

fn path_of(op: &CoordinatorOp) -> Option<&str> {
    match op {
        CoordinatorOp::Create { path, .. } | CoordinatorOp::Set { path, .. } | CoordinatorOp::Delete { path, .. } => {
            Some(path)
        }
        CoordinatorOp::All(_) => None,
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;

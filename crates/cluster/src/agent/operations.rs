//! The operations that an agent has asked of the coordinator, until each is settled. They are found by path, by the number of the
//! operation, and, once answered, by the version that the view must reach first.
//!
//! A path is paused for a while after an operation on it failed for a reason that the tree does not show.
//!
//! Invariant: at most one operation a path.

use super::{Answer, Purpose};
use crate::CoordinatorOp;
use leeward_format::cluster::ClusterPath;
use leeward_platform::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// An operation that is not settled yet.
#[derive(Debug)]
pub(super) struct Outstanding {
    id: u64,
    pub(super) purpose: Purpose,
    /// The answer. Once the view has reached its version, the operation is settled.
    pub(super) answer: Option<Answer>,
}

/// The operations that an agent has asked of the coordinator.
#[derive(Debug, Default)]
pub(super) struct Operations {
    by_path: BTreeMap<ClusterPath, Outstanding>,
    paths: BTreeMap<u64, ClusterPath>,
    /// Version of the answer and number of the operation.
    answered: BTreeSet<(u64, u64)>,
    /// Paused paths. A pause ends at this instant, or when the path changes.
    paused: BTreeMap<ClusterPath, Nanos>,
    /// Operations that were not handed to the coordinator yet.
    new: Vec<(u64, CoordinatorOp)>,
    /// The number of the last operation.
    last: u64,
}

impl Operations {
    /// Adds an operation.
    pub(super) fn submit(&mut self, path: ClusterPath, op: CoordinatorOp, purpose: Purpose) {
        self.last += 1;
        let id = self.last;
        self.new.push((id, op));
        self.paths.insert(id, path.clone());
        let before = self.by_path.insert(path, Outstanding { id, purpose, answer: None });
        assert!(before.is_none(), "at most one operation a path is outstanding");
    }

    /// Operations that were added since the last call, in order.
    pub(super) fn take_new(&mut self) -> Vec<(u64, CoordinatorOp)> {
        std::mem::take(&mut self.new)
    }

    /// The connection is gone: no answer will come. [`Operations::take_any`] returns what was not settled.
    pub(super) fn disconnected(&mut self) {
        self.new.clear();
        self.paused.clear();
    }

    /// Pauses `path` until then, or until it changes.
    pub(super) fn pause(&mut self, path: ClusterPath, until: Nanos) {
        self.paused.insert(path, until);
    }

    /// Ends the pause of `path`, which has changed.
    pub(super) fn resume(&mut self, path: &ClusterPath) {
        self.paused.remove(path);
    }

    /// Removes and returns the paths whose pause is over.
    pub(super) fn take_resumed(&mut self, now: Nanos) -> Vec<ClusterPath> {
        self.paused.extract_if(.., |_, until| *until <= now).map(|(path, _)| path).collect()
    }

    /// Whether an operation on `path` may be added.
    pub(super) fn is_free(&self, path: &ClusterPath) -> bool {
        !self.has(path) && !self.paused.contains_key(path)
    }

    /// Whether an operation on `path` is not settled.
    pub(super) fn has(&self, path: &ClusterPath) -> bool {
        self.by_path.contains_key(path)
    }

    /// The purposes of the operations that are not settled.
    pub(super) fn purposes(&self) -> impl Iterator<Item = &Purpose> {
        self.by_path.values().map(|outstanding| &outstanding.purpose)
    }

    /// Operation `id`, if it is not settled.
    pub(super) fn get_mut(&mut self, id: u64) -> Option<(&ClusterPath, &mut Purpose)> {
        let path = self.paths.get(&id)?;
        self.by_path.get_mut(path).map(|outstanding| (path, &mut outstanding.purpose))
    }

    /// Operation `id` has this answer. It is settled once the view has reached the version of the answer.
    pub(super) fn answer(&mut self, id: u64, answer: Answer) {
        let path = self.paths.get(&id).expect("it is not settled");
        self.by_path.get_mut(path).expect("each number has its path").answer = Some(answer);
        self.answered.insert((answer.version, id));
    }

    /// Removes operation `id` and returns it.
    pub(super) fn take(&mut self, id: u64) -> (ClusterPath, Outstanding) {
        let path = self.paths.remove(&id).expect("it is not settled");
        let outstanding = self.by_path.remove(&path).expect("each number has its path");
        if let Some(answer) = outstanding.answer {
            self.answered.remove(&(answer.version, id));
        }
        (path, outstanding)
    }

    /// Removes and returns an operation whose answer has at most this `version`.
    pub(super) fn take_answered(&mut self, version: u64) -> Option<(ClusterPath, Outstanding)> {
        let (_, id) = *self.answered.first().filter(|(answered, _)| *answered <= version)?;
        Some(self.take(id))
    }

    /// Removes and returns any operation.
    pub(super) fn take_any(&mut self) -> Option<(ClusterPath, Outstanding)> {
        let id = self.by_path.first_key_value()?.1.id;
        Some(self.take(id))
    }
}

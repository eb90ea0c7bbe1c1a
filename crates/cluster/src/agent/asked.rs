//! The operations that an agent has asked of the coordinator, until each is settled. They are found by path, by the number of the
//! operation, and, once answered, by the version that the view must reach first.
//!
//! Invariant: at most one operation a path.

use super::{Answer, Purpose};
use leeward_format::cluster::ClusterPath;
use std::collections::{BTreeMap, BTreeSet};

/// An operation that is not settled yet.
#[derive(Debug)]
pub(super) struct Outstanding {
    id: u64,
    pub(super) purpose: Purpose,
    /// The answer. Once the view has reached its version, the operation is settled.
    pub(super) answer: Option<Answer>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Asked {
    by_path: BTreeMap<ClusterPath, Outstanding>,
    paths: BTreeMap<u64, ClusterPath>,
    /// Version of the answer and number of the operation.
    answered: BTreeSet<(u64, u64)>,
}

impl Asked {
    /// Adds operation `id`, which is being submitted.
    pub(super) fn insert(&mut self, path: ClusterPath, id: u64, purpose: Purpose) {
        self.paths.insert(id, path.clone());
        let before = self.by_path.insert(path, Outstanding { id, purpose, answer: None });
        assert!(before.is_none(), "at most one operation a path is outstanding");
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

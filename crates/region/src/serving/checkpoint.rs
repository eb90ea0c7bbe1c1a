//! Checkpoints of regions that this node serves: copies on volumes of their own, in its directory of checkpoints. Each job
//! copies one segment, at the priority of compactions. A client asks for a checkpoint again until it is complete, so no
//! connection has to last that long. If the region gets another primary meanwhile, the checkpoint begins anew there.

use super::Serving;
use crate::effects::{CheckpointPlace, Checkpoints};
use crate::job::{Exported, OperationDone, Outcome};
use crate::request::ReplyTo;
use leeward_engine::{Error, Export};
use leeward_format::Lsn;
use leeward_format::op::{OpError, OpResult};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest name of a checkpoint, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// The checkpoints of a region.
pub(super) struct Exports {
    open: Option<Checkpoints>,
    /// Those that were asked for, by name.
    by_name: BTreeMap<String, Exporting>,
}

impl Exports {
    pub(super) fn new(open: Option<Checkpoints>) -> Exports {
        Exports { open, by_name: BTreeMap::new() }
    }

    /// None was asked for lately.
    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

/// A checkpoint that is being made, or was.
#[derive(Debug)]
struct Exporting {
    path: String,
    last: Lsn,
    /// Segments that are not copied yet, or why the checkpoint failed.
    left: Result<u64, Error>,
    /// When `left` was set.
    at: Nanos,
}

impl Exporting {
    fn is_known(&self, now: Nanos) -> bool {
        !matches!(self.left, Ok(0)) || now - self.at < KNOWN
    }
}

/// How long a complete checkpoint is remembered, for every client that asks. Later the name counts as a new request.
const KNOWN: Nanos = Nanos::from_secs(30);

/// Refuses an operation whose checkpoint has a bad name.
fn check_name(name: &str) -> Result<(), OpError> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_letter) && !name.starts_with('.');
    let invalid = || {
        let shown: String = name.chars().take(MAX_NAME_BYTES).collect();
        OpError::Invalid(format!(
            "checkpoint {shown:?}: a name has 1 to {MAX_NAME_BYTES} letters, digits, -, _ and ., and does not begin with ."
        ))
    };
    is_name.then_some(()).ok_or_else(invalid)
}

fn outcome(exported: Exported) -> Outcome {
    Outcome::Operation(OperationDone::Exported(exported))
}

impl Serving {
    /// Begins the checkpoint `name`, or answers how far it has come.
    pub(crate) fn checkpoint(&mut self, now: Nanos, to: ReplyTo, name: &str) {
        self.exports.by_name.retain(|_, exporting| exporting.is_known(now));
        let Some(exporting) = self.exports.by_name.get(name) else {
            let begun = self.begin_export(now, name);
            return match begun {
                Ok(path) => self.answers.reply(to, OpResult::Checkpoint { left: 1, path, last: Lsn(0) }),
                Err(error) => self.answers.reply(to, OpResult::Error(error)),
            };
        };
        let (path, last) = (exporting.path.clone(), exporting.last);
        match &exporting.left {
            // Its last write must be committed, so that no failover undoes it.
            Ok(0) => self.hold(now, last, to, false, OpResult::Checkpoint { left: 0, path, last }),
            Ok(left) => self.answers.reply(to, OpResult::Checkpoint { left: *left, path, last }),
            Err(error) => {
                let error = match error {
                    Error::Invalid(why) => OpError::Invalid(why.clone()),
                    error => OpError::Unavailable(format!("checkpoint {path}: {error}")),
                };
                // Another attempt may do better.
                self.exports.by_name.remove(name);
                self.answers.reply(to, OpResult::Error(error));
            }
        }
    }

    fn begin_export(&mut self, now: Nanos, name: &str) -> Result<String, OpError> {
        check_name(name)?;
        let Some(open) = &self.exports.open else {
            return Err(OpError::Invalid("this node keeps no checkpoints".into()));
        };
        let cannot = |error| OpError::Unavailable(format!("checkpoint {name} cannot be made: {error}"));
        let CheckpointPlace { disk, path, volume } = open(name, self.id()).map_err(cannot)?;
        let pinned = Arc::new(self.pin());
        let last = pinned.base.last_lsn;
        self.exports.by_name.insert(name.into(), Exporting { path: path.clone(), last, left: Ok(1), at: now });
        let (id, at, name) = (self.id(), path.clone(), name.to_owned());
        self.spawn_in_background(Activity::Engine.of_primary(), move || {
            match Export::begin(pinned, id, volume, &*disk, &at) {
                Ok(export) => outcome(Exported { name, left: Ok(1), export: Some(Box::new((export, disk))) }),
                Err(error) => outcome(Exported { name, left: Err(error), export: None }),
            }
        });
        Ok(path)
    }

    /// A job has copied a segment, or has failed to.
    pub(super) fn exported(&mut self, now: Nanos, exported: Exported) {
        let Exported { name, left, export } = exported;
        let Some(exporting) = self.exports.by_name.get_mut(&name) else { return };
        (exporting.left, exporting.at) = (left.map(|left| left as u64), now);
        let Some(mut export) = export.filter(|_| !matches!(exporting.left, Ok(0))) else { return };
        let at = exporting.path.clone();
        self.spawn_in_background(Activity::Engine.of_primary(), move || match export.0.step() {
            Ok(left) => outcome(Exported { name, left: Ok(left), export: Some(export) }),
            Err(error) => {
                let (copy, disk) = *export;
                copy.give_up(&*disk, &at);
                outcome(Exported { name, left: Err(error), export: None })
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_checkpoint_is_forgotten_so_that_the_name_is_a_new_request() {
        let at = Nanos::from_secs(100);
        let mut exporting = Exporting { path: String::new(), last: Lsn(7), left: Ok(1), at };
        assert!(exporting.is_known(at + Nanos::from_secs(900)), "it goes on");
        exporting.left = Ok(0);
        assert!(exporting.is_known(at + Nanos::from_secs(29)));
        assert!(!exporting.is_known(at + KNOWN));
    }
}

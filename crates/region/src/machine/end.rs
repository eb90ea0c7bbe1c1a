//! The end of a copy: its region has ended, or the cluster does not need it here.

use super::{Holding, RegionMachine};
use crate::effects::Step;
use crate::job::{JobClass, Outcome, RoleDone};
use leeward_engine::{Error, Replica};
use leeward_platform::cpu::Activity;

impl RegionMachine {
    /// Whether no work on the copy is under way or waits.
    pub fn is_idle(&self) -> bool {
        matches!(self.holding, Holding::Copy(_)) && self.work.is_none() && self.backup.is_idle() && !self.is_building
    }

    /// Whether the volume has a copy.
    pub fn has_copy(&self) -> bool {
        matches!(self.holding, Holding::Copy(Some(_)))
    }

    /// The region has ended.
    pub(crate) fn end(&mut self, step: &mut Step<'_>) {
        (self.config, self.candidate) = (None, None);
        if matches!(self.holding, Holding::Serving(_)) {
            self.step_down(step);
        }
    }

    /// Stops following a primary, and destroys the copy. A session that begins meanwhile starts with an empty copy.
    pub(crate) fn destroy(&mut self, step: &mut Step<'_>) {
        let Holding::Copy(Some(copy)) = std::mem::replace(&mut self.holding, Holding::Working) else {
            unreachable!("only an idle copy is destroyed");
        };
        drop(self.backup.retire());
        (self.building, self.candidate) = (None, None);
        step.spawn(JobClass::Foreground, Activity::Engine.of_backup(), move || {
            Outcome::Role(RoleDone::Destroyed(destroy(*copy)))
        });
    }

    /// The copy was destroyed, or could not be.
    pub(crate) fn destroyed(&mut self, result: Result<(), Error>) {
        self.holding = match result {
            Ok(()) => Holding::Copy(None),
            Err(error) => {
                tracing::error!(region = %self.id, %error, "an unneeded copy cannot be destroyed");
                Holding::Broken(error.to_string())
            }
        };
    }
}

fn destroy(mut copy: Replica) -> Result<(), Error> {
    copy.abandon();
    copy.destroy()
}

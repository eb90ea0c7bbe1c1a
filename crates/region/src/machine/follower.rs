//! A copy that follows a primary: what the primary says to it, and the jobs that change it.
//!
//! Invariant: one job at a time has the copy. Belongs to the node's thread.

use super::{Holding, RegionMachine};
use crate::effects::{Effect, Step};
use crate::job::{JobClass, Outcome, RoleDone};
use crate::serving::reshape::quiesce::PRIMED_BYTES;
use leeward_engine::compaction::{Compaction, CompactionDone};
use leeward_engine::{Error, Region};
use leeward_format::control::{Control, ToBackup};
use leeward_platform::cpu::Activity;
use leeward_replication::backup::{BackupAction, PrimarySession};
use std::sync::Arc;

impl RegionMachine {
    /// A primary's message.
    pub(crate) fn hear_primary(&mut self, session: PrimarySession, body: ToBackup, step: &mut Step<'_>) {
        let superseded = match &self.holding {
            Holding::Serving(serving) => serving.term() < session.term,
            Holding::Promoting { term, .. } => *term >= session.term,
            _ => false,
        };
        match &self.holding {
            Holding::Serving(_) if superseded => self.step_down(step),
            Holding::Serving(_) => return,
            Holding::Promoting { .. } if superseded => return,
            _ => {}
        }
        if self.config.as_ref().is_some_and(|config| config.term > session.term) {
            return;
        }
        self.last_ended = self.last_ended.max(session.term);
        self.backup.message(step.now, session, body, step.facts.grants());
        if self.backup.is_priming() {
            self.build(step);
        }
        self.act_as_backup(step);
    }

    /// Saves what is in the mirror buffers.
    pub(super) fn save(&mut self, is_round: bool, step: &mut Step<'_>) {
        self.backup.save_tails(is_round);
        self.act_as_backup(step);
    }

    /// A primary has released its leases: a copy that waited for them to end goes on.
    pub(crate) fn leases_released(&mut self, step: &mut Step<'_>) {
        self.backup.join_when_allowed(step.now, step.facts.grants());
        self.act_as_backup(step);
        self.reconcile(step);
    }

    pub(crate) fn act_as_backup(&mut self, step: &mut Step<'_>) {
        for action in self.backup.take_actions() {
            match action {
                BackupAction::Start(work) => self.work = Some(work),
                BackupAction::Send(to, body) if to.primary == self.node.me.server => self.hear_itself(to.term, body),
                BackupAction::Send(to, body) => {
                    let message = Control::ToPrimary { region: self.id, term: to.term, session: to.session, body };
                    step.send(to.primary, message);
                }
            }
        }
        self.run_work(step);
    }

    fn run_work(&mut self, step: &mut Step<'_>) {
        if self.work.is_none() || !matches!(self.holding, Holding::Copy(_)) {
            return;
        }
        let Holding::Copy(mut replica) = std::mem::replace(&mut self.holding, Holding::Working) else {
            unreachable!("just seen");
        };
        let work = self.work.take().expect("just seen");
        step.ask(Effect::GaveWork);
        let (mounted, fabric) = (self.backup.mounted().cloned(), self.node.fabric.clone());
        let (id, volume) = (self.id, self.node.volume.clone());
        step.spawn(JobClass::Foreground, work.account(), move || {
            let result = work.run(&volume, id, &mut replica, mounted.as_deref(), fabric.as_ref());
            Outcome::Role(RoleDone::Followed { replica, result })
        });
    }

    /// Starts a compaction of the index that the copy builds, if one is due and none is under way. A pending child is in no
    /// configuration yet, and is not compacted: which of its garbage is inherited is not known.
    pub(crate) fn build(&mut self, step: &mut Step<'_>) {
        let (region, now) = (self.building.clone(), self.node.wall.now());
        let must_prime = region.as_ref().is_some_and(|region| region.promotion_bytes() > PRIMED_BYTES);
        let is_to_come = region.is_none() && !self.backup.is_settled();
        if self.backup.is_priming() && !must_prime && !is_to_come {
            self.backup.primed();
        }
        let Some(region) = region.filter(|_| !self.is_building && self.config.is_some()) else { return };
        let next = if self.backup.is_priming() { Region::next_compaction_of_all } else { Region::next_compaction };
        let Some(compaction) = next(&region, now) else { return };
        self.is_building = true;
        let build = move || Outcome::Role(RoleDone::Built(compact(&region, compaction)));
        step.spawn(JobClass::Background, Activity::Compaction.of_backup(), build);
    }

    pub(super) fn built(&mut self, result: Result<Box<CompactionDone>, Error>) {
        self.is_building = false;
        match result {
            Ok(done) => self.compacted.add(&done),
            // The copy was taken away from the index meanwhile.
            Err(Error::Superseded(_)) => {}
            Err(error) => tracing::warn!(region = %self.id, %error, "a compaction of the backup failed"),
        }
        self.backup.save_tails(false);
    }

    /// The copy builds its own index in `building` from now on.
    pub(super) fn set_building(&mut self, building: Option<Arc<Region>>) {
        let is_same = match (&self.building, &building) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            _ => false,
        };
        self.building = building;
        if !is_same {
            self.set_inherited_below();
        }
    }

    /// Tells the index that this copy builds which segments it has from a split.
    pub(crate) fn set_inherited_below(&self) {
        if let (Some(region), Some(config)) = (&self.building, &self.config) {
            region.set_inherited_below(config.inherited_below);
        }
    }
}

/// Executes a compaction of a copy that builds its own index.
fn compact(region: &Region, compaction: Compaction) -> Result<Box<CompactionDone>, Error> {
    let done = compaction.finish()?;
    region.install(&done)?;
    Ok(Box::new(done))
}

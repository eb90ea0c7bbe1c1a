//! A region that is split off another: from the job that makes it until it is active.

use super::{Holding, RegionMachine};
use crate::effects::{Effect, Step};
use crate::job::{JobClass, Opened, Outcome, SplitFailed, SplitOff};
use crate::serving::Serving;
use crate::serving::reshape::split::PendingChild;
use leeward_engine::{Region, Replica, Volume};
use leeward_format::cluster::GroupConfig;
use leeward_format::{Epoch, RegionId, SegmentId};
use leeward_platform::cpu::Activity;
use leeward_replication::primary::Primary;
use std::sync::Arc;

impl RegionMachine {
    /// A job splits this region off its parent, which has a primary of that term.
    pub(super) fn create_child(
        &mut self,
        (parent, parent_term): (Arc<Region>, Epoch),
        config: GroupConfig,
        step: &mut Step<'_>,
    ) {
        let before = std::mem::replace(&mut self.holding, Holding::Working);
        drop((before, self.backup.retire()));
        (self.work, self.building, self.candidate) = (None, None, None);
        let (volume, id, requests) = (self.node.volume.clone(), self.id, self.node.requests.clone());
        tracing::info!(region = %parent.id(), into = %id, at = ?config.start, "is being split");
        step.spawn(JobClass::Foreground, Activity::Engine.of_primary(), move || {
            let made = split(&parent, &volume, id, config.term);
            let result = made.map(|(region, below)| (Opened::new(region, requests), below));
            Outcome::SplitOff(Box::new(SplitOff { parent: (parent.id(), parent_term), config, result }))
        });
    }

    /// The job of [`RegionMachine::create_child`] has ended.
    pub(super) fn created_child(&mut self, split: SplitOff, step: &mut Step<'_>) {
        let parent = split.parent.0;
        let result = self.become_child(split, step);
        self.act_as_backup(step);
        self.reconcile(step);
        step.ask(Effect::ChildMade { parent, result });
    }

    fn become_child(&mut self, split: SplitOff, step: &mut Step<'_>) -> Result<(), String> {
        let SplitOff { parent: (parent, term), config, result } = split;
        let (opened, below) = match result {
            Ok(made) => made,
            Err((error, copy)) => {
                self.holding = Holding::Copy(copy);
                return Err(error.to_string());
            }
        };
        let (now, linked) = (step.now, step.facts.linked());
        let options = step.table_of(&config).unwrap_or_else(|| opened.region.options().clone());
        let primary = Primary::pending_child(now, config, options, (self.node.timing, self.node.ops.clone()), &linked);
        let mut serving = Serving::new(now, &self.node, opened, primary);
        serving.be_pending(PendingChild { parent, term, below });
        self.holding = Holding::Serving(Box::new(serving));
        self.act_as_primary(step);
        Ok(())
    }

    /// The child of this region is in sync with every member.
    pub(super) fn propose_split(&mut self, (child, below): (RegionId, SegmentId), step: &mut Step<'_>) {
        if let Some(serving) = self.serving() {
            serving.propose_split(step.now, child, below);
            self.act_as_primary(step);
        }
    }

    /// The coordinator has decided about the split that the primary of `term` has proposed.
    pub(super) fn split_ended(&mut self, term: Epoch, is_accepted: bool, step: &mut Step<'_>) {
        let now = step.now;
        if let Some(serving) = self.serving().filter(|serving| serving.term() == term) {
            serving.split_ended(now, is_accepted, step);
        }
    }

    /// The coordinator has a configuration of this region. If the region is a pending child here, it becomes active.
    pub(crate) fn activate_child(&mut self, config: &GroupConfig) {
        let pending_child =
            self.serving().filter(|serving| serving.pending_child().is_some() && serving.term() == config.term);
        if let Some(serving) = pending_child {
            tracing::info!(region = %config.region, term = %config.term, "was split off");
            serving.activate();
        }
    }

    /// What is known of the region as a pending child, if it is one.
    pub fn pending_child(&self) -> Option<PendingChild> {
        match &self.holding {
            Holding::Serving(serving) => serving.pending_child(),
            _ => None,
        }
    }
}

fn split(
    parent: &Region,
    volume: &Arc<Volume>,
    child: RegionId,
    term: Epoch,
) -> Result<(Arc<Region>, SegmentId), SplitFailed> {
    let split = parent.split(child).and_then(|(copy, below)| Ok((copy.serve(term)?, below)));
    // The volume may have a copy of the child, from before or from this attempt.
    split.map_err(|error| (error, Replica::open(volume, child).ok().flatten().map(Box::new)))
}

//! From a copy to a region that is served: the node that the configuration names primary finds out whether another member has a
//! longer copy, waits for the lease grants to others to end, and has a job open its copy.
//!
//! Belongs to the node's thread.

use super::primary::propose;
use super::{Holding, RegionMachine};
use crate::effects::{ProposedChange, Step};
use crate::job::{JobClass, Opened, Outcome, PromotionFailed, RoleDone};
use crate::serving::Serving;
use leeward_engine::{Error, Region, Replica, Unopened};
use leeward_format::Epoch;
use leeward_format::cluster::{CopyFound, GroupConfig};
use leeward_format::control::{Control, ToBackup, ToPrimary};
use leeward_platform::Nanos;
use leeward_platform::cpu::Activity;
use leeward_replication::backup::PrimarySession;
use leeward_replication::candidate::{self, Candidate, Verdict};
use leeward_replication::primary::Primary;
use std::sync::Arc;

/// How long after a promotion without room the node tries again, and for how long before it steps aside for another.
const OUT_OF_SPACE_PAUSE: Nanos = Nanos::from_millis(500);
const OUT_OF_SPACE_TIMEOUT: Nanos = Nanos::from_secs(3);

impl RegionMachine {
    /// Becomes the primary of `config`, if no other member can have a longer copy.
    pub(super) fn campaign(&mut self, config: &GroupConfig, step: &mut Step<'_>) {
        if config.recovery_quorum == 0 || self.is_longest(config, step) {
            self.promote(config, step);
        }
    }

    /// There was no room for the promotion to primary of `term`.
    pub(super) fn note_out_of_space(&mut self, now: Nanos, term: Epoch) {
        if self.config.as_ref().is_some_and(|config| config.term == term) {
            let since = self.out_of_space.map_or(now, |(since, _)| since);
            self.out_of_space = Some((since, now + OUT_OF_SPACE_PAUSE));
        }
    }

    /// This node should serve the region, and cannot, or not soon.
    pub fn is_out_of_order(&self, now: Nanos) -> bool {
        let is_out_of_space = self.out_of_space.is_some_and(|(since, _)| now - since >= OUT_OF_SPACE_TIMEOUT);
        is_out_of_space || matches!(self.holding, Holding::Broken(_))
    }

    /// Whether this copy is known to be the longest. Asks the other members, and hands the primary role to one with a longer
    /// copy.
    fn is_longest(&mut self, config: &GroupConfig, step: &mut Step<'_>) -> bool {
        let now = step.now;
        let Some(options) = step.table_of(config) else { return false };
        let known = self.candidate.take().filter(|candidate| candidate.term() == config.term);
        let mut candidate = known.unwrap_or_else(|| Candidate::new(now, config.clone()));
        candidate.reconfigure(config);
        let (me, term, session) = (self.node.me.server, config.term, candidate::SESSION);
        let open = ToBackup::Open { options };
        for server in candidate.ask(now, |server| server == me || step.facts.can_succeed(server)) {
            let body = open.clone();
            match server == me {
                true => {
                    self.backup.message(now, PrimarySession { primary: me, term, session }, body, step.facts.grants())
                }
                false => step.send(server, Control::ToBackup { region: self.id, term, session, body }),
            }
        }
        let verdict = candidate.verdict(now);
        self.candidate = Some(candidate);
        match verdict {
            Verdict::Serve => return true,
            Verdict::HandOver(target) => {
                tracing::info!(region = %self.id, %term, to = %target.server, "hands the primary role over");
                propose(config.clone(), ProposedChange::Replace(config.handed_to(target)), step);
            }
            Verdict::Open => {}
        }
        self.act_as_backup(step);
        false
    }

    fn promote(&mut self, config: &GroupConfig, step: &mut Step<'_>) {
        let now = step.now;
        let is_blocked =
            step.facts.grants().blocked_until(now, self.id, config.term).is_some() || !self.backup.is_idle();
        if is_blocked || self.out_of_space.is_some_and(|(_, until)| now < until) {
            return;
        }
        let Some(options) = step.table_of(config) else { return };
        let Holding::Copy(copy) =
            std::mem::replace(&mut self.holding, Holding::Promoting { term: config.term, since: now })
        else {
            unreachable!("only a copy that no job has is promoted");
        };
        let mounted = self.backup.retire();
        (self.work, self.building, self.reading, self.candidate) = (None, None, None, None);
        let (id, term, volume, requests) = (self.id, config.term, self.node.volume.clone(), self.node.requests.clone());
        step.spawn(JobClass::Foreground, Activity::Engine.of_primary(), move || {
            let open = || -> Result<Arc<Region>, Unopened> {
                let copy = match copy {
                    Some(copy) => *copy,
                    None => Replica::create(&volume, id, options).map_err(|error| Unopened { copy: None, error })?,
                };
                match mounted.as_ref().map_or(Ok(Vec::new()), |mounted| mounted.give_up(&copy)) {
                    Ok(buffers) => copy.promote(buffers, term),
                    Err(error) => Err(Unopened { copy: Some(Box::new(copy)), error }),
                }
            };
            let opened = open().map(|region| Opened::new(region, requests));
            Outcome::Role(RoleDone::Promoted(opened.map_err(|unopened| PromotionFailed { unopened, mounted })))
        });
    }

    pub(super) fn promoted(&mut self, result: Result<Opened, PromotionFailed>, step: &mut Step<'_>) {
        let now = step.now;
        let Holding::Promoting { term, since } = self.holding else {
            unreachable!("only one job promotes a copy");
        };
        let result = result.inspect(|_| self.out_of_space = None);
        match (result, &self.config) {
            (Ok(opened), Some(config)) => {
                let options = step.table_of(config).unwrap_or_else(|| opened.region.options().clone());
                let mut config = config.clone();
                if config.term != term {
                    // Another term began meanwhile, so the region retires at once.
                    (config.backups, config.learners, config.term) = (Vec::new(), Vec::new(), term);
                }
                let primary =
                    Primary::new(now, config, options, (self.node.timing, self.node.ops.clone()), &step.facts.linked());
                self.holding = Holding::Serving(Box::new(Serving::new(since, &self.node, opened, primary)));
                self.act_as_primary(step);
            }
            (
                Err(PromotionFailed { unopened: Unopened { error: error @ Error::NoSpace { .. }, copy }, mounted }),
                _,
            ) => {
                tracing::warn!(region = %self.id, %error, "cannot be opened for serving, and will be tried again");
                self.note_out_of_space(now, term);
                self.backup.reinstate(mounted);
                self.holding = Holding::Copy(copy);
            }
            (Err(PromotionFailed { unopened: Unopened { error, copy }, .. }), _) => {
                tracing::error!(region = %self.id, %error, "cannot be opened for serving");
                if error.is_damage() {
                    let term = copy.map_or(term, |copy| copy.position().0);
                    let found = super::identity::found(&self.node.volume, self.id, (term, CopyFound::DAMAGED));
                    self.register(found, step);
                }
                self.holding = Holding::Broken(error.to_string());
            }
            // The region no longer exists.
            (Ok(opened), None) => self.reopen(opened.region, step),
        }
    }

    /// A member has joined the term in which this node is a candidate.
    pub(super) fn hear_candidate(&mut self, term: Epoch, body: &ToPrimary) {
        let candidate = self.candidate.as_mut().filter(|candidate| candidate.term() == term);
        if let (Some(candidate), ToPrimary::Opened { member, reach, .. }) = (candidate, body) {
            candidate.opened(*member, *reach);
        }
    }

    /// This node itself has joined that term, or cannot.
    pub(super) fn hear_itself(&mut self, term: Epoch, body: ToPrimary) {
        self.hear_candidate(term, &body);
        if let ToPrimary::Failed(reason) = body {
            let is_over = self.config.as_ref().is_none_or(|config| config.term != term);
            if is_over || self.out_of_space.is_some() {
                // The node hears another primary by now, or the candidate asks again.
                return;
            }
            tracing::error!(region = %self.id, reason, "cannot open its copy for a promotion");
            self.holding = Holding::Broken(reason);
        }
    }
}

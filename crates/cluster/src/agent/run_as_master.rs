//! The work of an agent while its server is the master.

use super::{Agent, Purpose};
use crate::CoordinatorOp;
use crate::bootstrap::chunk;
use crate::master::{Assign, Policy};
use crate::work_queue::{Decided, WorkQueue};
use leeward_format::RegionId;
use leeward_format::cluster::ClusterPath;
use leeward_platform::Nanos;
use std::collections::BTreeSet;

/// The pause before the master looks again at a region that has no term left.
const NO_TERM_PAUSE: Nanos = Nanos::from_secs(60);

impl Agent {
    /// Makes the decisions of the master, if this server is the master.
    pub(super) fn run_as_master(&mut self, now: Nanos) {
        if !self.is_master() {
            self.master_since = None;
            self.work_queue = WorkQueue::default();
            self.leftovers.clear();
            self.reported.clear();
            self.restarting.clear();
            return;
        }
        let since = *self.master_since.get_or_insert_with(|| {
            tracing::info!(server = self.me.member.server.0, "this server is the master now");
            now
        });
        let enough = self.view.servers().count() >= self.options.expected_servers as usize;
        let assign = match now.since(since) >= self.options.assign_grace {
            _ if enough => Assign::Any,
            true => Assign::Fresh,
            false => Assign::No,
        };
        let policy = Policy { assign, keeps: self.keeps_places(now) };
        let (asked, paused) = (&self.asked, &self.paused);
        let is_free = |region| {
            let path = ClusterPath::Region(region);
            !asked.has(&path) && !paused.contains_key(&path)
        };
        let Decided { next, looked_at } = self.work_queue.decide(&self.view, policy, is_free);
        for config in next {
            let path = ClusterPath::Region(config.region);
            if !config.term.can_be_term() {
                tracing::error!(
                    region = config.region.0,
                    term = config.term.0,
                    "no primary can begin in so high a term"
                );
                self.paused.insert(path, now + NO_TERM_PAUSE);
                continue;
            }
            tracing::info!(region = config.region.0, epoch = config.epoch.0, term = config.term.0,
                primary = ?config.primary, backups = ?config.backups, learners = ?config.learners,
                "the master proposes a configuration");
            let op = self.replace(&config);
            self.submit(path, op, Purpose::Plain);
        }
        self.clear_away(&looked_at);
        self.tell_of_waiting(looked_at);
    }

    /// Removes leftover regions of tables that were dropped or never completed, as many at once as a coordinator accepts. The
    /// regions that were just looked at show which are left over.
    fn clear_away(&mut self, looked_at: &BTreeSet<RegionId>) {
        for region in looked_at {
            match self.view.is_leftover(*region) {
                true => self.leftovers.insert(*region),
                false => self.leftovers.remove(region),
            };
        }
        let Some(first) = self.leftovers.first().copied() else { return };
        let path = ClusterPath::Region(first);
        if !self.is_free(&path) || self.asked.purposes().any(|purpose| matches!(purpose, Purpose::Clearing)) {
            return;
        }
        let mut ops: Vec<CoordinatorOp> = self.leftovers.iter().map(|region| self.remove(*region)).collect();
        ops.truncate(chunk(&ops));
        tracing::info!(regions = ops.len(), first = first.0, "the master removes leftover regions of tables");
        self.submit(path, CoordinatorOp::All(ops), Purpose::Clearing);
    }

    /// Tells the operator which volumes these regions wait for, if that has changed.
    fn tell_of_waiting(&mut self, looked_at: BTreeSet<RegionId>) {
        for region in looked_at {
            let missing_volumes =
                self.view.region(region).map(|config| self.missing_volumes(config)).unwrap_or_default();
            if missing_volumes.is_empty() {
                self.reported.remove(&region);
                continue;
            }
            if self.reported.get(&region) == Some(&missing_volumes) {
                continue;
            }
            for one in &missing_volumes {
                match one.found {
                    Some(_) => tracing::error!("{}", one.explain(region)),
                    None => tracing::warn!("{}", one.explain(region)),
                }
            }
            self.reported.insert(region, missing_volumes);
        }
    }
}

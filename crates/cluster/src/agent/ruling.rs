//! What an agent does while its server is the master.

use super::{Agent, Purpose};
use crate::CoordinatorOp;
use crate::bootstrap::chunk;
use crate::docket::{Decided, Docket};
use crate::master::{Assign, Policy};
use leeward_format::RegionId;
use leeward_format::cluster::ClusterPath;
use leeward_platform::Nanos;
use std::collections::BTreeSet;

/// How long a region is left alone that has no term left.
const NO_TERM_PAUSE: Nanos = Nanos::from_secs(60);

impl Agent {
    /// Decides as master, if this server is.
    pub(super) fn rule(&mut self, now: Nanos) {
        if !self.is_master() {
            self.master_since = None;
            self.docket = Docket::default();
            self.leftovers.clear();
            self.told.clear();
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
        let Decided { next, looked_at } = self.docket.decide(&self.view, policy, is_free);
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

    /// Removes what is left of tables that were dropped, or never made to their end, as much of it at once as a coordinator takes;
    /// some of it is among what was just looked at.
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
        tracing::info!(regions = ops.len(), first = first.0, "the master removes what is left of tables");
        self.submit(path, CoordinatorOp::All(ops), Purpose::Clearing);
    }

    /// Tells the operator which of these regions wait for whom, if that has changed.
    fn tell_of_waiting(&mut self, looked_at: BTreeSet<RegionId>) {
        for region in looked_at {
            let awaited = self.view.region(region).map(|config| self.awaited(config)).unwrap_or_default();
            if awaited.is_empty() {
                self.told.remove(&region);
                continue;
            }
            if self.told.get(&region) == Some(&awaited) {
                continue;
            }
            for one in &awaited {
                match one.found {
                    Some(_) => tracing::error!("{}", one.explain(region)),
                    None => tracing::warn!("{}", one.explain(region)),
                }
            }
            self.told.insert(region, awaited);
        }
    }
}

//! The work of an agent while its server is the master: it submits what the [`Master`](crate::master::Master) decides.

use super::{Agent, Purpose};
use crate::CoordinatorOp;
use crate::coordinator::chunk;
use leeward_format::cluster::{ClusterPath, GroupConfig};
use leeward_format::load::ServerLoad;
use leeward_format::{RegionId, ServerId};
use leeward_platform::Nanos;

/// The pause before the master looks again at a region that has no term left.
const NO_TERM_PAUSE: Nanos = Nanos::from_secs(60);

impl Agent {
    /// The master to which this server is to report its load, if there is one.
    pub fn reports_load_to(&self) -> Option<ServerId> {
        self.view.master().filter(|_| self.view.is_synced()).map(|master| master.server)
    }

    /// Whether this server is the master and evens out the load of servers.
    pub fn balances(&self) -> bool {
        self.is_master() && self.options.balance.is_some()
    }

    /// Records the load that a server reports. An agent that is not the master ignores the report.
    pub fn record_load(&mut self, now: Nanos, from: ServerId, load: &ServerLoad) {
        let Some(member) = self.view.server(from).map(|info| info.member).filter(|_| self.is_master()) else { return };
        self.master.hear(now, &self.view, member, load, &self.options);
    }

    /// Makes the decisions of the master, if this server is the master.
    pub(super) fn run_as_master(&mut self, now: Nanos) {
        if !self.is_master() {
            return self.master.step_down();
        }
        let operations = &self.operations;
        let is_free = |region| operations.is_free(&ClusterPath::Region(region));
        for config in self.master.decide(now, &self.view, &self.options, is_free) {
            self.propose_as_master(now, &config);
        }
        self.clear_away();
        let operations = &self.operations;
        let is_under_way = |region| operations.has(&ClusterPath::Region(region));
        let (operations, view) = (&self.operations, &self.view);
        let is_free = |region| operations.is_free(&ClusterPath::Region(region)) && !view.is_contradicted(region);
        for config in self.master.balance(now, &self.view, &self.options, is_free, is_under_way) {
            let op = self.view.request_op(&config);
            self.submit(ClusterPath::Region(config.region), op, Purpose::Plain);
        }
    }

    fn propose_as_master(&mut self, now: Nanos, config: &GroupConfig) {
        let GroupConfig { region: RegionId(region), term, .. } = *config;
        let path = ClusterPath::Region(config.region);
        if !term.can_be_term() {
            tracing::error!(region, term = term.0, "no primary can begin in so high a term");
            return self.operations.pause(path, now + NO_TERM_PAUSE);
        }
        tracing::info!(region, epoch = config.epoch.0, term = term.0, primary = ?config.primary,
            backups = ?config.backups, learners = ?config.learners, "the master proposes a configuration");
        let op = self.view.replace_op(config);
        self.submit(path, op, Purpose::Plain);
    }

    /// Removes leftover regions of tables, as many at once as a coordinator accepts.
    fn clear_away(&mut self) {
        let Some(first) = self.master.leftovers().first().copied() else { return };
        let path = ClusterPath::Region(first);
        if !self.is_free(&path) || self.operations.purposes().any(|purpose| matches!(purpose, Purpose::Clearing)) {
            return;
        }
        let remove = |region: &RegionId| self.view.remove_op(&ClusterPath::Region(*region));
        let mut ops: Vec<CoordinatorOp> = self.master.leftovers().iter().map(remove).collect();
        ops.truncate(chunk(&ops));
        tracing::info!(regions = ops.len(), first = first.0, "the master removes leftover regions of tables");
        self.submit(path, CoordinatorOp::All(ops), Purpose::Clearing);
    }
}

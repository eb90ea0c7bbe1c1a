//! The master: the one server that decides about all replica groups. It reads a view and returns configurations; the agent
//! proposes them, each by compare-and-set. So a decision on old knowledge changes nothing, and two masters do no harm.
//!
//! ```text
//!  changes of the view --> WorkQueue --> decide, a region at a time ---------> configurations to propose
//!  load reports ---------> Balancing --> planner, over the whole cluster ----> desired states to write
//! ```
//! - `decide` has the rules of a failover: which member may become primary, and which volumes a region waits for until
//!   then.
//! - `planner` evens out bytes and work. `balancing` decides when it runs, and leaves regions alone that an operator
//!   has a request for.
//! - `rooms` says which servers are full: `decide` and `planner` give them nothing if others have room, and `relief` has
//!   them hand over their primary roles.
//! - `spread` says how close the copies of a region are: `decide` and `planner` keep them apart.
//! - `missing_volumes` and `bootstrap`: what a region needs in order to continue, and what a new table begins with.
//!
//! Invariants: a server that is not the master knows nothing here: [`Master::step_down`] forgets all. A region that is not in the
//! work queue needs nothing. No thread, clock or socket; one thread at a time.

mod balancing;
mod bootstrap;
mod decide;
mod missing_volumes;
mod planner;
mod relief;
mod rooms;
mod spread;
mod work_queue;

pub use balancing::Balance;
pub use bootstrap::bootstrap_op;
pub(crate) use bootstrap::{region_ops, table_ops};
pub(crate) use missing_volumes::missing_in;
pub use missing_volumes::{MissingVolume, ServerCopy, missing_volumes};

use crate::view::{Changed, View};
use balancing::Balancing;
use decide::{Assign, Policy};
use leeward_format::cluster::{Contradiction, GroupConfig, Intent, Member};
use leeward_format::load::ServerLoad;
use leeward_format::{RegionId, ServerId};
use leeward_platform::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use work_queue::{Decided, WorkQueue};

/// How a master works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterOptions {
    /// With this many live servers, regions are assigned at once.
    pub expected_servers: u32,
    /// With fewer, a master waits this long before it assigns regions to the servers that are there.
    pub assign_grace: Nanos,
    /// The places of a restarting server stay empty for so long.
    pub restart_timeout: Nanos,
    /// The pause before an operation is repeated that failed for a reason that the tree does not show.
    pub retry_pause: Nanos,
    /// When a master balances the load of servers; `None`: never. Full servers hand over their primary roles in any case.
    pub balance: Option<Balance>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        ClusterOptions {
            expected_servers: 3,
            assign_grace: Nanos::from_secs(2),
            restart_timeout: Nanos::from_secs(300),
            retry_pause: Nanos::from_millis(200),
            balance: Some(Balance::default()),
        }
    }
}

/// What a server knows and remembers while it is the master.
#[derive(Debug, Default)]
pub(crate) struct Master {
    since: Option<Nanos>,
    /// The regions that it has yet to look at.
    work_queue: WorkQueue,
    /// Leftover regions of tables that it knows of.
    leftovers: BTreeSet<RegionId>,
    /// Restarting servers, and since when it has known of each.
    restarting: BTreeMap<ServerId, Nanos>,
    /// The volumes that regions wait for, as last reported to the operator.
    reported: BTreeMap<RegionId, Vec<MissingVolume>>,
    /// The regions about which nothing is decided, as last reported to the operator.
    contradicted: BTreeMap<RegionId, Contradiction>,
    /// The regions that wait for a restoration to end.
    unconfirmed: BTreeSet<RegionId>,
    /// The server for which all decisions wait, as last reported to the operator.
    unheard: Option<ServerId>,
    balancing: Balancing,
}

impl Master {
    /// Takes note of a change of the view.
    pub(crate) fn changed(&mut self, changed: &Changed) {
        self.work_queue.changed(changed);
        self.balancing.changed(&changed.regions);
    }

    /// An operation on the region has ended, or may be asked for again: the region is due.
    pub(crate) fn put_back(&mut self, region: RegionId) {
        self.work_queue.put_back(region);
    }

    /// Handles the loss of the connection. If this server is still the master afterwards, it looks at everything anew.
    pub(crate) fn disconnected(&mut self) {
        self.since = None;
        self.work_queue = WorkQueue::default();
    }

    /// Forgets everything: this server is not the master.
    pub(crate) fn step_down(&mut self) {
        *self = Master::default();
    }

    /// The configurations to propose now, at most one a region. For a region that is not `is_free` an operation is under way, or
    /// is not to be repeated yet: [`Master::put_back`] says when that is over.
    pub(crate) fn decide(
        &mut self,
        now: Nanos,
        view: &View,
        options: &ClusterOptions,
        is_free: impl Fn(RegionId) -> bool,
    ) -> Vec<Arc<GroupConfig>> {
        let since = *self.since.get_or_insert_with(|| {
            let server = view.master().map(|master| master.server.0);
            tracing::info!(server, "this server is the master now");
            now
        });
        let unheard = view.unheard();
        if std::mem::replace(&mut self.unheard, unheard) != unheard {
            match unheard {
                Some(ServerId(server)) => tracing::warn!(
                    server,
                    "nothing is decided until this server has registered \
                    since the coordinator's tree was restored, or its session has ended"
                ),
                None => tracing::info!("all servers have registered since the coordinator's tree was restored"),
            }
        }
        if unheard.is_some() {
            return Vec::new();
        }
        let enough = view.servers().count() >= options.expected_servers as usize;
        let assign = match now.since(since) >= options.assign_grace {
            _ if enough => Assign::Any,
            true => Assign::Fresh,
            false => Assign::No,
        };
        self.note_restarts(now, view);
        let policy = Policy { assign, keeps: self.keeps_places(now, options) };
        let rooms = self.balancing.rooms();
        let Decided { next, looked_at } = self.work_queue.decide(view, rooms, policy, is_free);
        for region in looked_at {
            match view.is_leftover(region) {
                true => self.leftovers.insert(region),
                false => self.leftovers.remove(&region),
            };
            self.log_missing_volumes(view, region);
            self.log_contradiction(view, region);
            self.log_unconfirmed(view, region);
        }
        next
    }

    /// Tells the operator of a region about which nothing is decided, if that has changed.
    fn log_contradiction(&mut self, view: &View, region: RegionId) {
        let config = view.region(region);
        let now = config.and_then(|config| view.contradiction(config));
        let before = match now {
            None => self.contradicted.remove(&region),
            Some(now) => self.contradicted.insert(region, now),
        };
        if let Some((config, now)) = config.zip(now.filter(|now| before != Some(*now))) {
            tracing::error!("{}", now.explain(config));
        }
    }

    /// Tells the operator that regions wait for a restoration to end: of many, the first.
    fn log_unconfirmed(&mut self, view: &View, region: RegionId) {
        let waiting = view.region(region).filter(|config| view.is_unconfirmed(config));
        match waiting.and_then(GroupConfig::explain_restored) {
            None => drop(self.unconfirmed.remove(&region)),
            Some(explained) => {
                if self.unconfirmed.is_empty() {
                    tracing::warn!("{explained}");
                }
                self.unconfirmed.insert(region);
            }
        }
    }

    /// Leftover regions, which are to be removed: their tables were dropped or never completed.
    pub(crate) fn leftovers(&self) -> &BTreeSet<RegionId> {
        &self.leftovers
    }

    /// The configurations to write now so that full servers serve nothing, and servers carry a like load; see
    /// [`Master::decide`]. A request that was written has no effect while it `is_under_way`.
    pub(crate) fn balance(
        &mut self,
        now: Nanos,
        view: &View,
        options: &ClusterOptions,
        is_free: impl Fn(RegionId) -> bool,
        is_under_way: impl Fn(RegionId) -> bool,
    ) -> Vec<GroupConfig> {
        let evens_out = options.balance.is_some() && !self.keeps_places(now, options);
        let timing = options.balance.unwrap_or_default();
        self.balancing.balance(now, view, &timing, evens_out, is_free, is_under_way)
    }

    /// Records the load that a live server reports.
    pub(crate) fn hear(
        &mut self,
        now: Nanos,
        view: &View,
        member: Member,
        load: &ServerLoad,
        options: &ClusterOptions,
    ) {
        let split_ops = options.balance.map_or(0, |timing| timing.split_ops);
        self.balancing.hear(now, view, member, load, split_ops);
        if self.balancing.rooms().has_full() {
            self.work_queue.put_back_learners();
        }
    }

    fn note_restarts(&mut self, now: Nanos, view: &View) {
        let restarting = view.intents().filter(|(_, intent)| *intent == Intent::Restart);
        let restarting: Vec<ServerId> = restarting.map(|(server, _)| server).collect();
        self.restarting.retain(|server, _| restarting.contains(server));
        for server in restarting {
            self.restarting.entry(server).or_insert(now);
        }
    }

    /// Whether the places of restarting servers are kept, and no load moves: at most for `restart_timeout`.
    fn keeps_places(&self, now: Nanos, options: &ClusterOptions) -> bool {
        self.restarting.values().any(|since| now.since(*since) < options.restart_timeout)
    }

    /// Logs for the operator which volumes the region waits for, if that has changed.
    fn log_missing_volumes(&mut self, view: &View, region: RegionId) {
        let missing = view.region(region).map(|config| missing_in(view, config)).unwrap_or_default();
        let before = match missing.is_empty() {
            true => self.reported.remove(&region),
            false => self.reported.insert(region, missing.clone()),
        };
        for one in missing.iter().filter(|_| before.as_ref() != Some(&missing)) {
            match one.found {
                Some(_) => tracing::error!("{}", one.explain(region)),
                None => tracing::warn!("{}", one.explain(region)),
            }
        }
    }
}

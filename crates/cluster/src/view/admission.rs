//! Whether a tree that the coordinator told as a whole may take the place of the tree that is shown.
//!
//! A coordinator that was put back to an older state, or lost its data, forgets. Servers do not: each compares the tree with what
//! it knows, that is the tree that it showed before, and what its volume's copies say that they belong to. A tree is refused if
//! it lacks any of that:
//!
//! | the tree | refused as |
//! |---|---|
//! | says nothing of the cluster, or is of another one and was not restored | [`Lost`](TreeRefusal::Lost), [`Other`](TreeRefusal::Other) |
//! | has an older configuration of a region, or another one of the same epoch | [`Older`](TreeRefusal::Older) |
//! | does not know of a region, or lacks one that did not end; or has one that has ended | [`Unknown`](TreeRefusal::Unknown), [`Ended`](TreeRefusal::Ended) |
//! | has given the region's number to another table | [`OtherTable`](TreeRefusal::OtherTable) |
//!
//! Invariants:
//! - A tree in which something is older was put back. It may catch up by changes of servers that know less, and would then look
//!   newer. So it stays refused until an operator has restored it, which raises its generation.
//! - A server that knows nothing takes any tree. If the coordinator has lost its data, the tree that such a server begins has an
//!   identity of its own. So a tree of another cluster is taken once an operator has restored it, if it has all regions that
//!   this process knows: as of the same tables, which have random identities, and no older.
//! - The registrations of a tree that was put back are of its time, until their sessions end. So each server registers anew once an
//!   operator has restored the tree, whether it takes that or refuses it. Until all have, nothing is decided: see `View::unheard`.
//!
//! Pure; one thread at a time.

use super::claims::{Claim, Left};
use super::{Changed, Content, View, create};
use crate::CoordinatorOp;
use leeward_format::cluster::{ClusterPath, CopyIdentity, GroupConfig, Member, ServerInfo, TableOptions, encode_value};
use leeward_format::routing::Routing;
use leeward_format::{ClusterId, Epoch, RegionId, ServerId, TableId};
use leeward_platform::planted::{Bug, planted};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A copy that a server's volume held when the server started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldCopy {
    /// What it belongs to.
    pub identity: CopyIdentity,
    /// Options of its table, as the copy was made with.
    pub options: TableOptions,
    /// Term of the last primary that it was in sync with.
    pub term: Epoch,
}

/// Why a coordinator's tree is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeRefusal {
    /// It has no identity.
    #[error("it knows nothing of cluster {known}: it lost its data, or is the coordinator of another cluster")]
    Lost {
        /// The cluster that this server belongs to.
        known: ClusterId,
    },
    /// It is of another cluster.
    #[error("it is of cluster {found}, and this server belongs to cluster {known}")]
    Other {
        /// The cluster of the tree.
        found: ClusterId,
        /// The cluster that this server belongs to.
        known: ClusterId,
    },
    /// It has an older configuration of a region, or another one of the same epoch.
    #[error("its configuration of region {region} is of epoch {found}, and this server knows {}: it was put back to an older state",
        if found == known { "another of that epoch".to_owned() } else { format!("epoch {known}") })]
    Older {
        /// The tree and this server both know it.
        region: RegionId,
        /// The epoch in the tree.
        found: Epoch,
        /// The epoch that this server knows.
        known: Epoch,
    },
    /// It never gave the number of a region of which this server has a copy or a configuration.
    #[error("it does not know of region {region} of table {table}: it was put back to an older state")]
    Unknown {
        /// The tree has no region of this number.
        region: RegionId,
        /// Name of its table, as this server knows it.
        table: String,
    },
    /// It has a region that has ended.
    #[error("it has region {region} of table {table}, which has ended: it was put back to an older state")]
    Ended {
        /// The tree has it, but this server knows that it ended.
        region: RegionId,
        /// Name of its table in the tree.
        table: String,
    },
    /// It has given the number of a region to another table.
    #[error(
        "its region {region} is of table {found}, and this server has a region {region} of table {known}, which is another"
    )]
    OtherTable {
        /// The tree and this server both have one of this number.
        region: RegionId,
        /// The name of the table in the tree.
        found: String,
        /// The name of the table that this server knows.
        known: String,
    },
    /// It was put back to an older state, and changed since.
    #[error("it was put back to an older state before, and was not restored since")]
    NotRestored,
}

impl TreeRefusal {
    /// Whether the tree is an older state of the cluster's own.
    fn was_put_back(&self) -> bool {
        !matches!(self, TreeRefusal::Lost { .. } | TreeRefusal::Other { .. })
    }
}

impl View {
    /// The view of a server whose volume holds these copies.
    pub(crate) fn of_server(held: BTreeMap<RegionId, HeldCopy>) -> View {
        View { held, ..View::default() }
    }

    /// Why the tree that the coordinator tells is not shown; `None` if it is shown, or none is told.
    pub fn refusal(&self) -> Option<&TreeRefusal> {
        self.refusal.as_ref().filter(|_| self.is_aside_whole)
    }

    /// Whether this server is to register anew in the tree that is shown, because that was restored since it registered.
    pub(crate) fn is_to_register_anew(&self, me: Member) -> bool {
        self.is_live(me) && self.current.is_unheard(me.server)
    }

    /// The cluster that this process belongs to, as far as it knows.
    pub fn cluster(&self) -> Option<ClusterId> {
        let shown = self.identity().map(|identity| identity.cluster);
        let held = self.held.values().map(|copy| copy.identity.cluster);
        shown.or_else(|| held.filter(|cluster| *cluster != ClusterId(0)).max())
    }

    /// The operation that registers `me` in the tree that the coordinator tells; `None` if another process has its number, or if
    /// it is registered there as it is since the tree was restored last, and not `anew`.
    pub(crate) fn register_op(&self, me: &ServerInfo, anew: bool) -> Option<CoordinatorOp> {
        let tree = self.told();
        let path = ClusterPath::Server(me.member.server);
        match tree.routes.server(me.member.server) {
            None => Some(create(path, encode_value(me), true)),
            Some(found) if found.member == me.member => {
                let is_wanted = anew || found != me || tree.is_unheard(me.member.server);
                is_wanted.then(|| tree.put_op(path, encode_value(me)))
            }
            Some(found) if found.is_replaced_by(me) => {
                Some(CoordinatorOp::Delete { path: path.to_string(), version: tree.version_of(&path) })
            }
            Some(_) => None,
        }
    }

    /// Shows the tree aside if it may take the place of the one that is shown. A view without a tree aside is in sync again.
    pub(super) fn admit(&mut self) {
        if let Some(aside) = &self.aside {
            let found = self.lacks_anything(aside);
            let generation = aside.identity.map(|(_, identity)| identity.generation);
            let is_restored = generation > self.generation().max(self.put_back_generation);
            let was_put_back = self.refusal.as_ref().is_some_and(TreeRefusal::was_put_back);
            let refusal = found.or_else(|| (was_put_back && !is_restored).then_some(TreeRefusal::NotRestored));
            if refusal.is_some() && !planted(Bug::TakeAnyTree) {
                if !was_put_back && refusal.as_ref().is_some_and(TreeRefusal::was_put_back) {
                    self.put_back_generation = generation;
                }
                if self.refusal != refusal {
                    self.changed.servers = true;
                }
                self.refusal = refusal;
                return self.know_users_of_refused();
            }
        }
        self.refusal = None;
        self.is_aside_whole = false;
        if let Some(content) = self.aside.take() {
            self.changed.add(Changed::between(&self.current, &content));
            self.current = content;
        }
        // A caller that looked in the meantime did not know which servers are there.
        self.changed.servers = true;
        self.synced = true;
        self.current.has_new_users = true;
        self.show_users();
    }

    /// A process that never knew users knows those of a tree that it refuses: an operator must be let in to restore it.
    fn know_users_of_refused(&mut self) {
        if let Some(aside) = self.aside.as_ref().filter(|_| !self.users.is_known) {
            let mut users = aside.users.clone();
            (users.is_known, users.revision) = (true, self.users.revision + 1);
            self.users = Arc::new(users);
        }
    }

    fn generation(&self) -> Option<u32> {
        self.identity().map(|identity| identity.generation)
    }

    /// Whether this process knows that the region of `config`, which another tree has, has ended. Numbers are given before the
    /// regions are made, where a table takes several operations.
    pub(super) fn knows_ended(&self, config: &GroupConfig) -> bool {
        self.has_ended(config.region) && self.maker(&config.table).is_none()
    }

    /// The tree that the coordinator tells, whether it is shown or not.
    pub(super) fn told(&self) -> &Content {
        self.aside.as_ref().unwrap_or(&self.current)
    }

    /// What `tree` lacks of what this process knows.
    fn lacks_anything(&self, tree: &Content) -> Option<TreeRefusal> {
        let found = tree.identity.map(|(_, identity)| identity);
        let generation = found.map(|found| found.generation);
        match (self.cluster(), found) {
            (Some(known), None) => return Some(TreeRefusal::Lost { known }),
            (Some(known), Some(found)) if found.cluster != known => {
                let is_restored = found.generation > 0 && generation > self.generation();
                let has_all = is_restored && self.lacks_region(tree).is_none();
                return (!has_all).then_some(TreeRefusal::Other { found: found.cluster, known });
            }
            _ => {}
        }
        if generation < self.generation() {
            return Some(TreeRefusal::NotRestored);
        }
        self.lacks_region(tree)
    }

    /// What `tree` lacks of the regions that this process knows.
    fn lacks_region(&self, tree: &Content) -> Option<TreeRefusal> {
        let known = self.regions().find_map(|config| tree.lacks_config(config));
        let held = || self.held.iter().find_map(|(region, copy)| tree.lacks_copy(*region, copy));
        let ended = || {
            let ended = tree.routes.regions().find(|config| self.knows_ended(config));
            ended.map(|config| TreeRefusal::Ended { region: config.region, table: config.table.clone() })
        };
        known.or_else(held).or_else(ended)
    }
}

impl Content {
    /// Whether it has given the number of a region.
    pub(super) fn has_given(&self, region: RegionId) -> bool {
        self.numbers.as_ref().is_some_and(|(_, numbers)| numbers.has(region))
    }

    /// Whether a server registered before the tree was restored last, and not since.
    pub(super) fn is_unheard(&self, server: ServerId) -> bool {
        let restored = self.identity.filter(|(_, identity)| identity.generation > 0).map(|(version, _)| version);
        self.routes.versioned_servers().get(&server).is_some_and(|(version, _)| Some(*version) < restored)
    }

    /// What it lacks of a configuration that is known.
    fn lacks_config(&self, known: &GroupConfig) -> Option<TreeRefusal> {
        let is_older =
            |found: &GroupConfig| found.epoch < known.epoch || found.epoch == known.epoch && *found != *known;
        self.lacks(&Claim::of(known), known.table_id, known.epoch, is_older)
    }

    /// What it lacks of what a copy belongs to.
    fn lacks_copy(&self, region: RegionId, copy: &HeldCopy) -> Option<TreeRefusal> {
        let CopyIdentity { cluster, table_id, epoch, .. } = copy.identity;
        let epoch = epoch.max(copy.term);
        let is_known = cluster != ClusterId(0);
        is_known
            .then(|| self.lacks(&Claim::of_copy(region, copy), table_id, epoch, |found| found.epoch < epoch))
            .flatten()
    }

    /// What it lacks of a region of a table that is `known` as of an epoch.
    fn lacks(
        &self,
        claim: &Claim<'_>,
        table_id: TableId,
        known: Epoch,
        is_older: impl FnOnce(&GroupConfig) -> bool,
    ) -> Option<TreeRefusal> {
        let Claim { region, table, .. } = *claim;
        match self.routes.region(region) {
            None if self.plans(region) || self.has_given(region) && !self.is_missing(claim) => None,
            None => Some(TreeRefusal::Unknown { region, table: table.to_owned() }),
            Some(found) if found.table_id.is_other_than(table_id) => {
                Some(TreeRefusal::OtherTable { region, found: found.table.clone(), known: table.to_owned() })
            }
            Some(found) if is_older(found) => Some(TreeRefusal::Older { region, found: found.epoch, known }),
            Some(_) => None,
        }
    }

    /// Whether a region that is not there, and whose number was given, did not end: its table is there with other regions, and
    /// none of them has got its keys.
    fn is_missing(&self, claim: &Claim<'_>) -> bool {
        let has_table = self.routes.table(claim.table).is_some() && self.regions_of(claim).next().is_some();
        has_table && claim.left(self.claims()) != Left::Nothing
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;

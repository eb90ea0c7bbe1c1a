//! The key ranges of regions. At every moment the regions together hold every key exactly once. In the end each region holds only
//! keys of its own range.
//!
//! Splits and merges take milliseconds, so faults would seldom hit one by chance. Some faults are therefore aimed at them.

use super::{Event, NodeId, World, node_of};
use crate::CONTEXT;
use bytes::Bytes;
use leeward_format::cluster::{GroupConfig, RegionRequest};
use leeward_format::op::Op;
use leeward_format::status::PlanStatus;
use leeward_format::{Epoch, RegionId};
use leeward_platform::Nanos;
use leeward_server::node::Node;
use std::collections::{BTreeMap, BTreeSet};

/// The regions so far, and what was wrong with them.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    /// The first time that the regions did not hold every key once.
    pub(super) failure: Option<String>,
    /// The regions that exist now. While the tree is being restored: those of before.
    regions: BTreeMap<RegionId, GroupConfig>,
    /// The regions of the tree, whatever it has forgotten.
    in_tree: BTreeMap<RegionId, GroupConfig>,
    /// Regions that were split off from others.
    pub(super) splits: u64,
    /// Regions that were merged into others.
    pub(super) merges: u64,
    /// First keys of all regions that ever existed, except the first region.
    first_keys: BTreeSet<Bytes>,
    /// Merges that began: by node, the two regions and the epochs of their configurations.
    merging: BTreeMap<NodeId, (RegionId, RegionId, (Epoch, Epoch))>,
    merges_begun: u64,
    /// Attempts to split off a region: the child region, and the term that it was to begin with.
    attempts: BTreeSet<(RegionId, Epoch)>,
    /// Attempts that are in progress on each node.
    trying: BTreeMap<NodeId, Vec<(RegionId, Epoch)>>,
}

/// Whether `configs`, sorted by first key, hold every key once.
fn is_cover(configs: &[GroupConfig]) -> bool {
    let is_next = |pair: &[GroupConfig]| pair[0].end.as_ref() == Some(&pair[1].start);
    let ends = configs.first().zip(configs.last());
    ends.is_none_or(|(first, last)| first.start.is_empty() && last.end.is_none()) && configs.windows(2).all(is_next)
}

impl World {
    fn by_first_key(&self) -> Vec<GroupConfig> {
        let mut configs = self.configs();
        configs.sort_by(|left, right| left.start.cmp(&right.start));
        configs
    }

    /// The coordinator's tree has changed.
    pub(super) fn look_at_bounds(&mut self) {
        let configs = self.by_first_key();
        if !is_cover(&configs) {
            let bounds: Vec<_> = configs.iter().map(|config| (config.region, &config.start, &config.end)).collect();
            let failure = format!("at {} ms the regions do not hold every key once: {bounds:?}", self.now.as_millis());
            self.bounds.failure.get_or_insert(failure);
        }
        let now: BTreeMap<RegionId, GroupConfig> =
            configs.iter().map(|config| (config.region, config.clone())).collect();
        let before = std::mem::replace(&mut self.bounds.regions, now);
        if !before.is_empty() {
            let is_new = |config: &&GroupConfig| !before.contains_key(&config.region);
            let children: Vec<_> = self.bounds.regions.values().filter(is_new).map(|child| &child.start).collect();
            self.bounds.splits += children.len() as u64;
            let parents = children.iter().flat_map(|start| before.values().filter(|config| config.contains(start)));
            let had = |parent: &&GroupConfig| {
                let mut backups = parent.backups.iter().map(|backup| node_of(backup.server));
                backups.any(|node| self.has_pieces(node, parent.region))
            };
            self.with_pieces.1 += parents.filter(had).count() as u64;
        }
        self.bounds.first_keys.extend(configs.into_iter().skip(1).map(|config| config.start));
    }

    /// An operation was executed on the coordinator's tree. A region that it removed was merged into another one.
    pub(super) fn note_merges(&mut self) {
        let before = self.note_regions();
        for (_, merged) in before.iter().filter(|(region, _)| !self.bounds.in_tree.contains_key(region)) {
            self.bounds.merges += 1;
            self.load.merged(self.now, merged);
        }
    }

    /// Takes note of the regions of the tree. Returns those that it had before.
    pub(super) fn note_regions(&mut self) -> BTreeMap<RegionId, GroupConfig> {
        let now = self.configs().into_iter().map(|config| (config.region, config)).collect();
        std::mem::replace(&mut self.bounds.in_tree, now)
    }

    /// First keys of all regions that ever existed except the first, ascending. The keys between two of them have one history.
    pub(super) fn first_keys(&self) -> Vec<Bytes> {
        self.bounds.first_keys.iter().cloned().collect()
    }

    /// The operator requests the merge of two neighbours. The connections of all clients break when it begins.
    pub(super) fn request_merge(&mut self, number: usize) {
        let configs = self.by_first_key();
        if configs.len() < 2 {
            return;
        }
        let at = number % (configs.len() - 1);
        let (left, right) = (configs[at].region, configs[at + 1].region);
        let (region, into) = if (number / 2).is_multiple_of(2) { (right, left) } else { (left, right) };
        self.operate(Op::RequestRegion { region, request: RegionRequest::Merge { into } });
        self.break_connections();
    }

    /// A node has handled its inputs. If it has begun a split or a merge, one of the processes may die before that ends, or just
    /// after.
    pub(super) fn aim(&mut self, node: NodeId) {
        let merging = self.machines[node].node.as_ref().and_then(Node::merging);
        let before = match merging {
            Some(merging) => self.bounds.merging.insert(node, merging),
            None => self.bounds.merging.remove(&node),
        };
        if merging.is_some() && merging != before {
            self.bounds.merges_begun += 1;
            self.may_end(node, self.bounds.merges_begun);
        }
        let trying: Vec<_> = self.machines[node].node.iter().flat_map(|node| node.pending_children()).collect();
        let before = self.bounds.trying.insert(node, trying.clone()).unwrap_or_default();
        for (region, term) in trying.into_iter().filter(|one| !before.contains(one)) {
            if !self.bounds.attempts.insert((region, term)) {
                let failure =
                    format!("at {} ms region {region} is split off in term {term} again", self.now.as_millis());
                self.bounds.failure.get_or_insert(failure);
            }
            self.may_end(node, self.bounds.attempts.len() as u64);
        }
    }

    /// At every second attempt, the process of this node or of another one dies a moment later.
    fn may_end(&mut self, node: NodeId, attempts: u64) {
        let may_die = self.faults_continue() && self.scenario.may_die();
        if may_die && attempts.is_multiple_of(2) {
            let at = self.now + Nanos::from_micros(self.rng.below(15_000));
            let victim = if attempts.is_multiple_of(3) { self.rng.index(self.scenario.nodes) } else { node };
            self.push(at, Event::Die { node: victim });
        }
    }

    /// The connections of all clients break, and answers in flight are lost. Clients that use request ids repeat their
    /// requests within a second. By then the region of the request may be merged into another.
    fn break_connections(&mut self) {
        if self.faults_continue() {
            for client in self.load.disconnected() {
                let again = self.now + Nanos::from_millis(self.rng.below(1_000));
                self.push(again, Event::Client { client });
            }
        }
    }

    /// The process of a node dies.
    pub(super) fn die(&mut self, node: NodeId) {
        if self.may_crash(&[node], false) {
            self.crash(node, false);
            CONTEXT.set((self.now, None));
            let at = self.now + Nanos::from_millis(self.rng.between(50, 2_000));
            self.push(at, Event::Restart { node });
        }
    }

    /// Every planned split or merge is done, with three exceptions: a region that no key halves, a merge that would copy too
    /// much, and one whose pairs a far member does not make durable while the source may be paused.
    pub(super) fn is_split(&self) -> bool {
        let regions = self.region_statuses().into_iter();
        let plans: BTreeMap<RegionId, PlanStatus> =
            regions.filter_map(|region| Some((region.region, region.plan?))).collect();
        let waits_for =
            |plan: &PlanStatus, why: &str| plan.waits_for.as_ref().is_some_and(|found| found.starts_with(why));
        let is_hopeless = |plan: &PlanStatus| match plan.into {
            Some(_) if waits_for(plan, "copying it took too long") => self.scenario.far().is_some(),
            Some(_) => waits_for(plan, "it has more than"),
            None => plan.at.is_none() && waits_for(plan, "no key halves it"),
        };
        let planned = self.configs().iter().filter(|config| config.desired.plan.is_some()).count();
        planned == plans.len() && plans.values().all(is_hopeless)
    }

    /// Every region that is served holds only keys of its own range.
    pub(super) fn is_trimmed(&self) -> bool {
        self.running().flat_map(|node| node.with_foreign()).next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_overlaps_are_no_cover() {
        let region = |start: &'static str, end: Option<&'static str>| GroupConfig {
            start: start.into(),
            end: end.map(Into::into),
            ..GroupConfig::unassigned(RegionId(1), "t")
        };
        assert!(is_cover(&[]) && is_cover(&[region("", None)]));
        assert!(is_cover(&[region("", Some("b")), region("b", Some("c")), region("c", None)]));
        assert!(!is_cover(&[region("", Some("b")), region("c", None)]));
        assert!(!is_cover(&[region("", None), region("b", None)]));
        assert!(!is_cover(&[region("a", None)]) && !is_cover(&[region("", Some("b"))]));
    }
}

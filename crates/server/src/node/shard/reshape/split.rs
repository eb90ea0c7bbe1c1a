//! A region is split in two while it is served. No byte is copied.
//!
//! ```text
//!  parent:  a plan --a key, a fresh epoch--> Quiesced ------------------------------> Proposed ---> Active
//!  child:                                       | split, opened | in sync with all |    activated: it opens
//! ```
//! The parent's primary quiesces ([`leeward_region::serving::reshape::quiesce`]), and has the engine split its region. It
//! brings every member in sync with the child by the sessions that any region has. The members find all of the child on their
//! volumes. Then one operation of the coordinator makes the child's configuration and cuts the parent's.
//!
//! Invariants:
//! - Until that operation is done the child is in no configuration. It answers nothing, and no node relies on it. Any event in
//!   between ends the attempt, and the parent goes on as it was.
//! - The parent's primary proposes the split only once every counted member of the parent has installed the child.
//! - Each attempt begins in an epoch of the parent in which no other began, so every child has a term of its own.
//! - A pending child exists as long as its parent is quiesced for it, or the proposal is under way.
//! - A node quiesces one region at a time for a split, and only if it knows of nothing that would be in the way then.

use crate::node::shard::{NodeFacts, Shard};
use leeward_format::{Epoch, RegionId, SegmentId};
use leeward_region::effects::Facts;
use leeward_region::input::Input as RegionInput;
use leeward_region::serving::reshape::split::{PendingChild, SplitStep};

impl Shard {
    /// What keeps a region from quiescing for its plan, besides what its primary sees.
    pub(in crate::node) fn plan_obstacle(&mut self, facts: NodeFacts, parent: RegionId) -> Option<&'static str> {
        let serving = self.serving(parent)?;
        if let Some((into, _)) = serving.primary().merging() {
            return self.merge_obstacle(facts, parent, into);
        }
        let (child, _) = serving.primary().planned()?;
        let term = serving.primary().config().epoch.next();
        let is_in_use = self.machine(child).is_some_and(|machine| !machine.is_idle());
        if is_in_use || facts.grants().blocked_until(facts.control.now(), child, term).is_some() {
            return Some("the copy of the new region on its server is in use");
        }
        self.is_another_reshaped(parent).then_some("its server splits or merges another region first")
    }

    /// Advances the split of a region that is quiesced for it. To be called after each turn of that region.
    pub(in crate::node) fn advance_split(&mut self, facts: NodeFacts, parent: RegionId) {
        let (now, is_synced) = (facts.control.now(), facts.control.view().is_synced());
        let Some(next) = self.serving(parent).and_then(|serving| serving.next_split_step(now, is_synced)) else {
            return;
        };
        let why = match next {
            SplitStep::Begin(child) => return self.begin_split(facts, parent, child),
            SplitStep::Propose(child) => return self.propose_split(facts, parent, child),
            SplitStep::Late(child) => match self.serving(child) {
                Some(child) => child.why_late(),
                None => "splitting the primary's copy took too long".into(),
            },
            SplitStep::Fail(why) => why,
        };
        self.serving(parent).expect("just seen").fail_split(now, why);
        self.idle.touch(parent);
    }

    fn begin_split(&mut self, facts: NodeFacts, parent: RegionId, child: RegionId) {
        let now = facts.control.now();
        let is_idle = self.machine_or_new(child).is_idle();
        let (lease, grants) = (self.resources.timing.lease, facts.grants());
        let Some(serving) = self.serving(parent) else { return };
        let (_, right) = serving.halves(child, SegmentId(0));
        if !is_idle || grants.blocked_until(now, child, right.term).is_some() {
            return serving.fail_split(now, format!("the copy of region {child} on this server is in use"));
        }
        let parent = (serving.begin_split(now, lease), serving.term());
        self.give(facts, child, RegionInput::MakeChild { parent, config: Box::new(right) });
    }

    /// Proposes the split, if the child is in sync with every member.
    fn propose_split(&mut self, facts: NodeFacts, parent: RegionId, child: RegionId) {
        let Some(below) = self.serving(child).and_then(|serving| serving.ready_child(facts.control.now())) else {
            return;
        };
        self.give(facts, parent, RegionInput::ChildReady { child: (child, below) });
    }

    /// Pending children of this node, each with the term that it is to begin with.
    pub(in crate::node) fn pending_children(&self) -> impl Iterator<Item = (RegionId, Epoch)> {
        self.served().filter(|serving| serving.pending_child().is_some()).map(|serving| (serving.id(), serving.term()))
    }

    /// Gives up pending children whose parent is no longer quiesced for them.
    ///
    /// Answers which were given up: where the plan was cancelled, the copy of the child is of no use any more.
    pub(in crate::node) fn end_pending_children(&mut self, facts: NodeFacts) -> Vec<RegionId> {
        // A pending child is never idle, so these include all of them.
        let looked_at = self.idle.looked_at().iter();
        let pending = looked_at.filter_map(|child| Some((*child, self.machine(*child)?.pending_child()?)));
        let mut given_up = Vec::new();
        for (child, PendingChild { parent, term, .. }) in pending.collect::<Vec<_>>() {
            let parent = self.serving(parent);
            let is_wanted = parent.is_some_and(|serving| serving.term() == term && serving.waits_for_child(child));
            if !is_wanted && !facts.control.has_proposed_child(child) {
                self.give(facts, child, RegionInput::ChildNotWanted);
                given_up.push(child);
            }
        }
        given_up
    }
}

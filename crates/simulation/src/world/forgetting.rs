//! The coordinator forgets: its data is lost, or put back to an older state, while the nodes go on, or all die with it. Then the
//! operator has it restored from what all nodes know, as often as a node refuses it.
//!
//! It strikes only where no node is cut off from the coordinator, no disk loses what it had, and each region's primary runs:
//! what only an absent node knows cannot be known.

use super::{Event, World, node_of};
use crate::CONTEXT;
use leeward_format::RegionId;
use leeward_format::cluster::GroupConfig;
use leeward_format::coordinator::TreeSnapshot;
use leeward_format::op::{Op, OpResult};
use leeward_format::status::NodeStatus;
use leeward_platform::Nanos;
use leeward_server::node::{Node, Token};
use std::collections::BTreeSet;

/// How often the tree is saved, and how often the operator looks at the nodes.
const LOOK: Nanos = Nanos::from_millis(200);
/// By then every node knows that its connection to the coordinator was lost.
const NOTICED: Nanos = Nanos::from_secs(1);
/// After this time without an answer the operator begins anew.
const ANSWER_TIMEOUT: Nanos = Nanos::from_secs(3);

/// What the coordinator is put back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forget {
    /// Nothing is left.
    Everything,
    /// The state of so long ago.
    Newer(Nanos),
}

/// The saved states of the tree, and how far the operator has come with its restoration.
#[derive(Debug, Default)]
pub(super) struct Forgetting {
    saved: Vec<(Nanos, TreeSnapshot)>,
    /// Regions that some server has stored: they were served.
    stored: BTreeSet<RegionId>,
    /// The tree has forgotten something, and not all nodes run and take part in the cluster again.
    pub(super) is_restoring: bool,
    forgot_at: Nanos,
    asked: Vec<Token>,
    asked_at: Nanos,
    confirms: bool,
    /// The operator has begun to have the tree restored, and it was not confirmed since: what was interrupted is repeated.
    is_begun: bool,
}

impl World {
    /// Begins to save states of the tree, if this seed has the coordinator forget something.
    pub(super) fn begin_forgetting(&mut self) {
        let forgets = self.scenario.forgets.clone();
        for (at, forget) in &forgets {
            self.push(*at, Event::Forget { forget: *forget });
        }
        if !forgets.is_empty() {
            self.push(Nanos::from_millis(50), Event::LookAtTree);
        }
    }

    /// The coordinator's process is replaced by one with an older state, or with none.
    pub(super) fn forget(&mut self, forget: Forget) {
        if !self.faults_continue() || !self.primaries_run() || forget == Forget::Everything && !self.is_all_stored() {
            return;
        }
        let saved = match forget {
            Forget::Everything => None,
            Forget::Newer(age) => {
                let before = Nanos(self.now.0.saturating_sub(age.0));
                let saved = &self.forgetting.saved;
                let at = saved.iter().rposition(|(at, _)| *at <= before).unwrap_or(0);
                saved.get(at).map(|(_, snapshot)| snapshot.clone())
            }
        };
        CONTEXT.set((self.now, None));
        tracing::info!(?forget, version = saved.as_ref().map(|saved| saved.version), "the coordinator forgets");
        let mut sent = Vec::new();
        self.stop_intruder();
        self.host.forget(self.now, saved, &mut sent);
        self.send(sent);
        self.note_regions();
        // What was asked before counts for nothing.
        let Forgetting { is_restoring, forgot_at, asked, confirms, .. } = &mut self.forgetting;
        (*is_restoring, *forgot_at, *confirms) = (true, self.now, false);
        asked.clear();
        self.fault_state.struck += 1;
        if self.now.as_millis().is_multiple_of(3) {
            // What is known then is what copies belong to.
            for node in self.nodes().filter(|node| self.machines[*node].node.is_some()).collect::<Vec<_>>() {
                self.crash(node, false);
                self.push(self.now + LOOK, Event::Restart { node });
            }
        }
    }

    /// Whether each region's primary runs. What only an absent one knows, as the only member that was left, is lost with the
    /// coordinator's memory of it.
    fn primaries_run(&self) -> bool {
        let configs = self.configs();
        let mut primaries = configs.iter().filter_map(|config| config.primary);
        primaries.all(|primary| self.is_alive(primary) && !self.machines[node_of(primary.server)].paused)
    }

    /// Whether some server has stored each region for certain. What nobody has stored cannot be known.
    fn is_all_stored(&self) -> bool {
        self.configs().iter().all(|config| self.forgetting.stored.contains(&config.region))
    }

    fn note_stored(&mut self) {
        let is_served = |config: &GroupConfig| self.running().any(|node| node.is_serving(config.region, config.term));
        let served: Vec<RegionId> =
            self.configs().iter().filter(|config| is_served(config)).map(|config| config.region).collect();
        self.forgetting.stored.extend(served);
    }

    /// Saves the tree; or the operator looks whether it is to be restored, and takes the next step.
    pub(super) fn look_at_tree(&mut self) {
        self.push(self.now + LOOK, Event::LookAtTree);
        self.note_stored();
        if !self.forgetting.is_restoring {
            self.forgetting.saved.push((self.now, self.host.tree.snapshot()));
            return;
        }
        let running = self.machines.iter().map(|machine| machine.node.as_ref().filter(|_| !machine.paused));
        let statuses: Vec<Option<NodeStatus>> = running.map(|node| node.map(Node::status)).collect();
        let all_run = statuses.iter().all(Option::is_some);
        let mut reasons = statuses.iter().flatten().filter_map(|status| status.not_joined.as_deref());
        let is_refused = reasons.any(|why| why.contains("refuses what the coordinator says"));
        let are_joined =
            statuses.iter().all(|status| status.as_ref().is_some_and(|s| s.not_joined.is_none() && s.coordinator_up));
        let is_noticed = self.now.since(self.forgetting.forgot_at) > NOTICED;
        if all_run && are_joined && is_noticed && !self.forgetting.is_begun {
            self.forgetting.is_restoring = false;
            return;
        }
        if self.is_answered() && all_run && (is_refused || self.forgetting.is_begun) {
            self.restore();
        }
    }

    /// Whether nothing that the operator asked is left to be answered. Where all of it succeeded, the next step is to confirm.
    fn is_answered(&mut self) -> bool {
        let is_late = self.now.since(self.forgetting.asked_at) > ANSWER_TIMEOUT;
        let answers = &self.questions;
        let is_open = |token: &Token| answers.get(token).is_some_and(Option::is_none);
        if self.forgetting.asked.iter().any(is_open) && !is_late {
            return false;
        }
        let asked = std::mem::take(&mut self.forgetting.asked);
        let was_asked = !asked.is_empty();
        let answers: Vec<Option<OpResult>> = asked.iter().map(|token| self.questions.remove(token).flatten()).collect();
        let are_done = answers.iter().all(|answer| matches!(answer, Some(OpResult::Done)));
        for answer in answers.iter().filter(|answer| !matches!(answer, Some(OpResult::Done))) {
            tracing::info!(?answer, "the restoration does not succeed yet");
        }
        let is_done = was_asked && are_done;
        self.forgetting.is_begun &= !(is_done && self.forgetting.confirms);
        self.forgetting.confirms = is_done && !self.forgetting.confirms;
        true
    }

    /// Asks each node to add what it knows; once all have done so, each to confirm.
    fn restore(&mut self) {
        let confirms = self.forgetting.confirms;
        (self.forgetting.asked_at, self.forgetting.is_begun) = (self.now, true);
        for node in self.nodes() {
            let token = self.question(node, Op::RestoreTree { confirms });
            self.forgetting.asked.push(token);
        }
    }
}

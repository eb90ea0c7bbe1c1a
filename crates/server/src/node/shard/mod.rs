//! A set of regions on this node, and what they share: which of them are idle, when they save, how two of them act together.
//!
//! ```text
//!   Node, front --calls--> Shard --(region, Input)--> RegionMachine
//!        ^                   |  <------ Effects ---------'
//!        '-- executes what goes beyond the shard; facts of control and links come with each call
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `idle` | regions in which nothing is under way |
//! | `saving` | when written bytes become durable |
//! | `reshape` | splits and merges: two regions that act together |
//! | `lease_wants` | the leases that its primaries need, and those that its copies may grant |
//! | `load` | what clients do with its regions |
//! | `proof`, `ranges` | questions of a tool that compares replicas |
//!
//! A shard knows of the cluster and of links what [`NodeFacts`] say. It changes neither. An effect that concerns the shard alone
//! is executed at once, and any other is left to the node, in its order.
//!
//! Belongs to the node's thread.

mod idle;
mod lease_wants;
mod load;
mod proof;
mod ranges;
mod reshape;
mod saving;

use crate::node::control::NodeControl;
use crate::node::control::replica_gc::CopyUse;
use crate::node::links::Links;
use crate::node::parts::NodeTiming;
use idle::IdleRegions;
use leeward_engine::{Replica, Volume};
use leeward_format::cluster::TableOptions;
use leeward_format::op::OpResult;
use leeward_format::{ClusterId, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Account;
use leeward_region::effects::{Effect, Effects, Facts, NodeResources};
use leeward_region::input::Input as RegionInput;
use leeward_region::job::{Job, JobClass, Outcome};
use leeward_region::machine::RegionMachine;
use leeward_region::request::ReplyTo;
use leeward_region::serving::Serving;
use leeward_replication::lease::{Grants, SchedulingGap};
use load::LoadMeter;
use reshape::Reshaping;
use saving::TailSaver;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What control and links know, of which a region sees what [`Facts`] ask.
#[derive(Clone, Copy)]
pub(super) struct NodeFacts<'a> {
    pub(super) control: &'a NodeControl,
    pub(super) links: &'a Links,
}

impl Facts for NodeFacts<'_> {
    fn cluster(&self) -> Option<ClusterId> {
        self.control.view().cluster()
    }
    fn table(&self, name: &str) -> Option<&TableOptions> {
        self.control.view().table(name)
    }
    fn grants(&self) -> &Grants {
        self.control.grants()
    }
    fn linked(&self) -> Vec<ServerId> {
        self.links.up().collect()
    }
    fn can_succeed(&self, server: ServerId) -> bool {
        self.links.is_up(server) && self.control.view().server(server).is_some()
    }
}

/// The regions of a node.
pub(super) struct Shard {
    pub(super) machines: BTreeMap<RegionId, RegionMachine>,
    pub(super) idle: IdleRegions,
    reshaping: Reshaping,
    tail_saver: TailSaver,
    load_meter: LoadMeter,
    pub(super) resources: Arc<NodeResources>,
    /// What regions have asked for that goes beyond the shard, and all answers.
    pub(super) effects: Effects,
    pub(super) jobs: Vec<Job>,
    /// Regions whose copy was given work in this turn.
    given_work: BTreeSet<RegionId>,
}

impl Shard {
    /// The regions of the copies that the volume holds.
    pub(super) fn new(
        copies: Vec<Replica>,
        resources: Arc<NodeResources>,
        timing: &NodeTiming,
        gap: SchedulingGap,
    ) -> Shard {
        let copies = copies.into_iter().map(Box::new);
        let new = |copy: Box<Replica>| RegionMachine::new(copy.region(), Some(copy), Arc::clone(&resources));
        Shard {
            machines: copies.map(|copy| (copy.region(), new(copy))).collect(),
            idle: IdleRegions::new(gap),
            reshaping: Reshaping::default(),
            tail_saver: TailSaver::new(timing.flush_interval),
            load_meter: LoadMeter::default(),
            resources,
            effects: Effects::default(),
            jobs: Vec::new(),
            given_work: BTreeSet::new(),
        }
    }

    /// What the node has of a region that may be unneeded.
    pub(super) fn copy_use(&self, region: RegionId) -> Option<CopyUse> {
        let machine = self.machine(region)?;
        Some(CopyUse { is_idle: machine.is_idle(), has_copy: machine.has_copy() })
    }

    fn volume(&self) -> &Volume {
        &self.resources.volume
    }

    pub(super) fn machine(&self, region: RegionId) -> Option<&RegionMachine> {
        self.machines.get(&region)
    }

    /// The machine of a region of which this node may have nothing yet.
    pub(super) fn machine_or_new(&mut self, region: RegionId) -> &mut RegionMachine {
        let new = || RegionMachine::new(region, None, Arc::clone(&self.resources));
        self.machines.entry(region).or_insert_with(new)
    }

    pub(super) fn serving(&mut self, region: RegionId) -> Option<&mut Serving> {
        self.machines.get_mut(&region).and_then(RegionMachine::serving)
    }

    /// The regions that are served here, also those that are not open.
    pub(super) fn served(&self) -> impl Iterator<Item = &Serving> {
        self.machines.values().filter_map(RegionMachine::served)
    }

    /// A region that is served here, and open.
    pub(super) fn open(&self, region: RegionId) -> Option<&Serving> {
        self.machine(region)?.served().filter(|serving| serving.is_open())
    }

    /// Has a region handle an input. Answers whether this node has anything of the region.
    pub(super) fn give(&mut self, facts: NodeFacts, region: RegionId, input: RegionInput) -> bool {
        let Some(machine) = self.machines.get_mut(&region) else { return false };
        let before = self.effects.asked.len();
        machine.handle(facts.control.now(), input, &facts, &mut self.effects);
        self.execute_own_effects(before);
        true
    }

    /// Has each region handle an input.
    pub(super) fn give_each(&mut self, facts: NodeFacts, input: impl Fn() -> RegionInput) {
        let before = self.effects.asked.len();
        for machine in self.machines.values_mut() {
            machine.handle(facts.control.now(), input(), &facts, &mut self.effects);
        }
        self.execute_own_effects(before);
    }

    fn execute_own_effects(&mut self, from: usize) {
        let Shard { effects, jobs, idle, reshaping, given_work, .. } = self;
        let is_own = |(_, effect): &mut (RegionId, Effect)| {
            matches!(effect, Effect::Spawn(_) | Effect::WantsTurn | Effect::IsReshaped | Effect::GaveWork)
        };
        for (region, effect) in effects.asked.extract_if(from.., is_own) {
            match effect {
                Effect::Spawn(job) => jobs.push(job),
                Effect::WantsTurn => idle.touch(region),
                Effect::IsReshaped => reshaping.began(region),
                Effect::GaveWork => drop(given_work.insert(region)),
                _ => unreachable!("none of its own"),
            }
        }
    }

    pub(super) fn answer(&mut self, to: ReplyTo, result: OpResult) {
        self.effects.answers.push((to, result));
    }

    /// Adds a job about a region that the region did not ask for.
    pub(super) fn spawn(
        &mut self,
        class: JobClass,
        region: RegionId,
        account: Account,
        work: impl FnOnce() -> Outcome + Send + 'static,
    ) {
        self.jobs.push(Job::new(class, account, region, work));
    }

    /// Removes the machine of a region of which this node has nothing. Answers whether it was removed.
    pub(super) fn forget(&mut self, now: Nanos, region: RegionId) -> bool {
        let me = self.resources.me.server;
        let is_member =
            |machine: &RegionMachine| machine.config().is_some_and(|c| c.members().any(|member| member.server == me));
        let is_empty = |machine: &RegionMachine| machine.is_idle() && !machine.has_copy() && !machine.has_waiting();
        let is_forgotten = self.machine(region).is_some_and(|machine| is_empty(machine) && !is_member(machine));
        if is_forgotten {
            self.machines.remove(&region);
            self.wake(now, region);
        }
        is_forgotten
    }

    /// Whether a region that this node is to serve is out of order.
    pub(super) fn has_broken(&self, now: Nanos) -> bool {
        let is_mine = |machine: &&RegionMachine| self.is_mine(machine);
        // A broken region is never idle.
        let mut active = self.idle.looked_at().iter().filter_map(|region| self.machine(*region)).filter(is_mine);
        active.any(|machine| machine.is_out_of_order(now))
    }

    /// Whether this node is the primary of a machine's region.
    pub(super) fn is_mine(&self, machine: &RegionMachine) -> bool {
        machine.config().is_some_and(|config| config.primary == Some(self.resources.me))
    }
}

//! Does what regions ask for, in the order in which they ask, and tells them what they need to know of the node.
//!
//! Belongs to the node's thread.

use crate::node::links;
use crate::node::membership::Proposer;
use crate::node::{Context, Node};
use leeward_format::cluster::TableOptions;
use leeward_format::{ClusterId, Epoch, RegionId, ServerId};
use leeward_platform::cpu::{self, Account, Activity};
use leeward_region::effects::{Effect, Facts, Proposal, ProposedChange};
use leeward_region::input::Input as RegionInput;
use leeward_region::job::{Job, JobClass, Outcome, ReshapeDone};
use leeward_replication::lease::Grants;

impl Facts for Context {
    fn cluster(&self) -> Option<ClusterId> {
        self.agent.view().cluster()
    }
    fn table(&self, name: &str) -> Option<&TableOptions> {
        self.agent.view().table(name)
    }
    fn grants(&self) -> &Grants {
        &self.grants
    }
    fn linked(&self) -> Vec<ServerId> {
        self.links.up().collect()
    }
    fn can_succeed(&self, server: ServerId) -> bool {
        self.links.is_up(server) && self.agent.view().server(server).is_some()
    }
}

impl Node {
    /// Has a region handle an input, and does what it asks for. Answers whether this node has anything of the region.
    pub(super) fn give(&mut self, region: RegionId, input: RegionInput) -> bool {
        let Some(machine) = self.machines.get_mut(&region) else { return false };
        machine.handle(self.context.clock.now, input, &self.context, &mut self.effects);
        self.execute_effects();
        true
    }

    /// Has each region handle an input.
    pub(super) fn give_each(&mut self, input: impl Fn() -> RegionInput) {
        for machine in self.machines.values_mut() {
            machine.handle(self.context.clock.now, input(), &self.context, &mut self.effects);
        }
        self.execute_effects();
    }

    fn execute_effects(&mut self) {
        if self.effects.asked.is_empty() {
            return;
        }
        let mut asked = std::mem::take(&mut self.effects.asked);
        for (region, effect) in asked.drain(..) {
            self.execute_effect(region, effect);
        }
        self.effects.asked = asked;
    }

    fn execute_effect(&mut self, region: RegionId, effect: Effect) {
        let context = &mut self.context;
        match effect {
            Effect::RouteAgain(request) => context.again.push(request),
            Effect::Send { to, message } => context.links.send(to, &message),
            Effect::SendUrgent { to, message } => context.links.send_urgent(to, &message),
            Effect::Mirror { to, buffer, offset, tail, range, op } => {
                let _at = cpu::at(Activity::Mirroring.of_primary());
                context.links.fabric().write(links::peer(to), &buffer, offset, &tail.bytes()[range], op);
            }
            Effect::WriteSegment { to, slot, bytes, op } => {
                let _apart = cpu::apart(Activity::Shipping.of_primary());
                context.links.write_segment(to, slot, bytes, op);
            }
            Effect::WantSegment(wanted) => context.syncing.catch_up.want(wanted),
            Effect::AskLease { server, term } => context.ask_lease(server, vec![(region, term)]),
            Effect::AskPlaces { term, servers } => self.give_places(region, term, servers),
            Effect::CountSessions { before, after } => context.syncing.admission.change(&before, &after),
            Effect::Propose(proposal) => context.propose(*proposal),
            Effect::Spawn(job) => context.jobs.push(job),
            Effect::WantsTurn => self.idle.touch(region),
            Effect::IsReshaped => self.reshaping.began(region),
            Effect::ChildMade { parent, result } => {
                self.idle.touch_each([parent, region]);
                self.give(parent, RegionInput::JobDone(Outcome::Reshape(ReshapeDone::ParentSplit(result))));
            }
            Effect::GaveWork => drop(context.given_work.insert(region)),
            Effect::Register(copy) => {
                if context.agent.says_damaged(region) != copy.is_damaged() {
                    context.agent.update_copy(context.clock.now, copy);
                }
            }
        }
    }

    fn give_places(&mut self, region: RegionId, term: Epoch, servers: Vec<(ServerId, bool)>) {
        let (now, admission) = (self.context.clock.now, &mut self.context.syncing.admission);
        let admit = |(server, is_counted)| (server, admission.admit(now, server, is_counted));
        let places = servers.into_iter().map(admit).collect();
        self.give(region, RegionInput::Places { term, places });
    }
}

impl Context {
    /// Adds a job about a region that the region did not ask for.
    pub(super) fn spawn(
        &mut self,
        region: RegionId,
        account: Account,
        work: impl FnOnce() -> Outcome + Send + 'static,
    ) {
        self.jobs.push(Job::new(JobClass::Foreground, account, region, work));
    }

    /// Adds such a job for which no client and no primary waits.
    pub(super) fn spawn_in_background(
        &mut self,
        region: RegionId,
        account: Account,
        work: impl FnOnce() -> Outcome + Send + 'static,
    ) {
        self.jobs.push(Job::new(JobClass::Background, account, region, work));
    }

    fn propose(&mut self, Proposal { old, change }: Proposal) {
        let now = self.clock.now;
        let (region, term) = (old.region, old.term);
        let (proposal, proposer) = match change {
            ProposedChange::Replace(new) => (self.agent.propose(now, old, new), Proposer::Primary(region)),
            ProposedChange::Split { left, right } => {
                let proposer = Proposer::Split { parent: region, term, child: right.region };
                (self.agent.split(now, old, left, right), proposer)
            }
            ProposedChange::Merge { wider, source } => {
                let proposer = Proposer::Merge { source: (source.region, source.term), target: (region, term) };
                (self.agent.merge(now, old, wider, source), proposer)
            }
        };
        self.proposals.insert(proposal, proposer);
    }
}

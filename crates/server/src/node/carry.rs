//! Carries between the parts of a node what one asks of another, in the order in which it was asked. What a region asks for in
//! answer to an effect is executed before the rest.

use super::{Front, Node, NodeFacts, Reach, RegionInput, Shard};
use crate::node::links;
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::cpu::{self, Activity};
use leeward_region::effects::Effect;
use leeward_region::job::{Outcome, ReshapeDone};

impl Node {
    /// Has a region handle an input, and does what it asks for. Answers whether this node has anything of the region.
    pub(super) fn give(&mut self, region: RegionId, input: RegionInput) -> bool {
        self.with_facts(|shard, facts| shard.give(facts, region, input))
    }

    /// Has the shard do something, and does what its regions ask for.
    pub(super) fn with_facts<T>(&mut self, act: impl FnOnce(&mut Shard, NodeFacts) -> T) -> T {
        let result = act(&mut self.shard, NodeFacts { control: &self.control, links: &self.links });
        self.execute_effects();
        result
    }

    /// Has the front do something, and does what regions ask for meanwhile.
    pub(super) fn with_front<T>(&mut self, act: impl FnOnce(&mut Front, &mut Reach) -> T) -> T {
        let Node { control, shard, front, links } = self;
        let result = act(front, &mut Reach { control, shard, links });
        self.execute_effects();
        result
    }

    pub(super) fn execute_effects(&mut self) {
        if self.shard.effects.asked.is_empty() {
            return;
        }
        let mut asked = std::mem::take(&mut self.shard.effects.asked);
        for (region, effect) in asked.drain(..) {
            self.execute_effect(region, effect);
        }
        self.shard.effects.asked = asked;
    }

    fn execute_effect(&mut self, region: RegionId, effect: Effect) {
        let Node { control, shard, front, links } = self;
        match effect {
            Effect::RouteAgain(request) => front.put_back(request),
            Effect::Send { to, message } => links.send(to, &message),
            Effect::SendUrgent { to, message } => links.send_urgent(to, &message),
            Effect::Mirror { to, buffer, offset, tail, range, op } => {
                let _at = cpu::at(Activity::Mirroring.of_primary());
                links.fabric().write(links::peer(to), &buffer, offset, &tail.bytes()[range], op);
            }
            Effect::WriteSegment { to, slot, bytes, op } => {
                let _apart = cpu::apart(Activity::Shipping.of_primary());
                links.write_segment(to, slot, bytes, op);
            }
            Effect::WantSegment(wanted) => control.catch_up.want(wanted),
            Effect::AskLease { server, term } => control.ask_lease(links, server, region, term),
            Effect::AskPlaces { term, servers } => self.give_places(region, term, servers),
            Effect::CountSessions { before, after } => control.admission.change(&before, &after),
            Effect::Propose(proposal) => control.propose(*proposal),
            Effect::ChildMade { parent, result } => {
                shard.idle.touch_each([parent, region]);
                self.give(parent, RegionInput::JobDone(Outcome::Reshape(ReshapeDone::ParentSplit(result))));
            }
            Effect::Register(copy) => control.register(copy),
            Effect::Spawn(_) | Effect::WantsTurn | Effect::IsReshaped | Effect::GaveWork => {
                unreachable!("the shard executes it")
            }
        }
    }

    fn give_places(&mut self, region: RegionId, term: Epoch, servers: Vec<(ServerId, bool)>) {
        let (now, admission) = (self.control.now(), &mut self.control.admission);
        let admit = |(server, is_counted)| (server, admission.admit(now, server, is_counted));
        let places = servers.into_iter().map(admit).collect();
        self.give(region, RegionInput::Places { term, places });
    }
}

//! Faults of a simulated network: killed nodes, cuts, links that go down, and the loss of operations and messages in
//! flight.

use super::mapped::Mapped;
use super::world::{Delivery, Event, Kind, Node, Pair, Remains, World};
use crate::{LinkEvent, PeerId};
use leeward_platform::Nanos;

impl World {
    /// Ends the incarnation of `peer`, if one runs. What peers may read stays readable for a while, over links that have
    /// only read.
    pub(super) fn kill(&mut self, peer: PeerId, while_: Nanos) {
        // Handles to its memory may outlive it in the simulation, but nothing else finds the memory any more.
        let Some(Node { incarnation, registry, .. }) = self.nodes.remove(&peer) else { return };
        if while_ > Nanos::ZERO {
            let (memories, until) = (registry.readable(), self.now + while_);
            self.remains.insert(incarnation, Remains { memories, until });
        }
        let pairs: Vec<Pair> = self.links.keys().copied().filter(|(from, to)| *from == peer || *to == peer).collect();
        for pair in pairs {
            if pair.0 == peer {
                self.abandon(pair);
            } else if self.link(pair).up {
                if while_ > Nanos::ZERO {
                    self.link(pair).mapped.owner_dies();
                }
                let (at, generation) = (self.detection(), self.link(pair).generation);
                let later = if self.link(pair).has_sent { Nanos::ZERO } else { while_ };
                self.schedule(at + later, Event::Lost(pair, generation));
            }
        }
    }

    /// Gives a link up.
    pub(super) fn disconnect(&mut self, from: PeerId, to: PeerId) {
        if self.links.contains_key(&(from, to)) {
            self.abandon((from, to));
        }
    }

    /// Cuts the direction from `from` to `to` until [`World::heal`].
    pub(super) fn cut(&mut self, from: PeerId, to: PeerId) {
        if from == to || !self.cuts.insert((from, to)) {
            return;
        }
        // A link needs both directions: one for its requests, one for the answers.
        for pair in [(from, to), (to, from)] {
            if self.links.get(&pair).is_some_and(|link| link.up && link.suspect.is_none()) {
                let (at, token) = (self.detection(), self.number());
                self.link(pair).suspect = Some(token);
                self.schedule(at, Event::Suspect(pair, token));
            }
        }
    }

    /// Heals every cut. Held events travel on, in their order.
    pub(super) fn heal(&mut self) {
        self.cuts.clear();
        for link in self.links.values_mut() {
            link.suspect = None;
        }
        for (direction, events) in std::mem::take(&mut self.held) {
            for event in events {
                self.travel(direction, event);
            }
        }
    }

    /// Takes a link down. It is tried again after a pause.
    pub(super) fn take_down(&mut self, pair: Pair) -> Option<Delivery> {
        self.strand(pair);
        let generation = self.link(pair).generation;
        let at = self.now + self.options.retry_pause;
        self.schedule(at, Event::Attempt(pair, generation));
        self.deliver(pair.0, pair.1, LinkEvent::Down)
    }

    /// Gives a link up, without an event.
    fn abandon(&mut self, pair: Pair) {
        self.strand(pair);
        self.link(pair).wanted = false;
    }

    /// Ends a connection. Any part of the operations and messages in flight may still arrive, but no completion is
    /// reported.
    fn strand(&mut self, pair: Pair) {
        let direction_cut = self.cuts.contains(&pair);
        let link = self.link(pair);
        (link.up, link.suspect) = (false, None);
        link.generation += 1;
        link.drop_posted();
        link.mapped = Mapped::default();
        let messages = link.messages.len();
        let numbers: Vec<u64> = link.operations.keys().copied().collect();
        // Everything at a cut is lost, and so are messages after a lost one.
        let kept = if direction_cut { 0 } else { self.rng.index(messages + 1) };
        self.link(pair).messages.truncate(kept);
        let urgent = self.link(pair).urgent.len();
        if urgent > 0 {
            let kept = if direction_cut { 0 } else { self.rng.index(urgent + 1) };
            self.link(pair).urgent.truncate(kept);
        }
        for number in numbers {
            let lost: Vec<bool> = (0..4).map(|_| direction_cut || self.rng.one_in(2)).collect();
            let Some(operation) = self.link(pair).operations.get_mut(&number) else { continue };
            operation.orphan = true;
            for (piece, lost) in operation.pieces.iter_mut().zip(lost) {
                if lost {
                    *piece = None;
                }
            }
            if operation.kind == Kind::Read || operation.pieces.iter().all(Option::is_none) {
                self.forget(pair, number);
            }
        }
    }

    /// When a fault of this moment is noticed.
    fn detection(&mut self) -> Nanos {
        let delay = self.rng.between(self.options.min_detect.0, self.options.max_detect.0);
        self.now + Nanos(delay)
    }
}

//! Operations on their way to the region that has their keys, on this node or on another.
//!
//! | file | holds |
//! |---|---|
//! | `forward`, `in_flight`, `fair_queue` | operations that another node executes, and how many may be with it at a time |
//! | `answers` | what becomes of the answers of other nodes, and answers to them |
//! | `waiting` | operations on regions that this node is about to serve |
//! | `stale` | reads that a backup answers, as of an instant before their call |
//! | `fresh`, `safe_lsn_lines` | such reads as of an instant after it |
//!
//! It routes by the map that control has, executes in the shard, and sends over the links ([`Reach`]).
//!
//! Invariant: each operation is answered once. Belongs to the node's thread.

mod answers;
mod fair_queue;
pub(super) mod forward;
pub(super) mod fresh;
mod in_flight;
mod safe_lsn_lines;
mod stale;
mod waiting;

use crate::node::control::NodeControl;
use crate::node::links::Links;
use crate::node::shard::{NodeFacts, Shard};
use forward::{Forwarding, Travel};
use fresh::FreshReads;
use leeward_format::cluster::Member;
use leeward_format::control::Control;
use leeward_format::op::{Op, OpError};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_region::client_memory::ClientMemory;
use leeward_region::input::Input as RegionInput;
use leeward_region::request::{ReplyTo, Request};
use leeward_region::serving::Serving;
use stale::BackupReads;

/// What operations reach from the front.
pub(super) struct Reach<'a> {
    pub(super) control: &'a NodeControl,
    pub(super) shard: &'a mut Shard,
    pub(super) links: &'a mut Links,
}

impl Reach<'_> {
    fn now(&self) -> Nanos {
        self.control.now()
    }

    /// Has a region of the shard handle an input.
    fn give(&mut self, region: RegionId, input: RegionInput) {
        self.shard.give(NodeFacts { control: self.control, links: self.links }, region, input);
    }

    /// The region of an operation, the epoch of its configuration, and its primary.
    pub(super) fn region_of(&self, op: &Op, table: &str) -> Option<(RegionId, Epoch, Option<Member>)> {
        let config = op.region_in(self.control.routes(), table)?;
        Some((config.region, config.epoch, config.primary))
    }
}

/// The operations that a node has not given to a region yet.
pub(super) struct Front {
    forwarding: Forwarding,
    backup_reads: BackupReads,
    fresh: FreshReads,
    /// Operations to route again once the region map has changed, or at the next tick.
    again: Vec<Request>,
}

impl Front {
    /// No operation has come. `me` is this process: no other one is the same member.
    pub(super) fn new(me: Member, memory: ClientMemory) -> Front {
        Front {
            forwarding: Forwarding::new(me, memory),
            backup_reads: BackupReads::default(),
            fresh: FreshReads::default(),
            again: Vec::new(),
        }
    }

    /// Whether no operation waits for another node's answer.
    pub(super) fn is_idle(&self) -> bool {
        self.forwarding.is_empty() && self.fresh.is_empty()
    }

    /// An operation on the pairs of a table has come.
    pub(super) fn submit(&mut self, reach: &mut Reach, request: Request, travel: Travel) {
        match request {
            Request { since, to, table, op: Op::Stale { at_most_ms, read }, naming, is_direct } => {
                let request = Request { since, to, table, op: read.op(), naming, is_direct };
                self.read_at_backup(reach, at_most_ms, request, travel);
            }
            request if reach.is_for_backups(&request, travel) => self.read_at_backup(reach, 0, request, travel),
            request => self.route(reach, request, travel),
        }
    }

    pub(super) fn route(&mut self, reach: &mut Reach, mut request: Request, travel: Travel) {
        let to = request.to;
        if request.op.lacks_region(reach.control.routes(), &request.table) {
            let error = Op::region_missing(&request.table);
            return self.refuse(reach, request, error);
        }
        let Some((region, epoch, primary)) = reach.region_of(&request.op, &request.table) else {
            let error = match to {
                // The node that forwarded it knows the table; this node soon will too.
                ReplyTo::Peer(..) => OpError::NotPrimary { region: RegionId(0), epoch: Epoch(0) },
                ReplyTo::Client(_) => reach.control.no_region(&request.table, &request.op),
            };
            return self.refuse(reach, request, error);
        };
        let is_about_to_serve = reach.is_about_to_serve((epoch, primary), travel);
        if is_about_to_serve || reach.shard.open(region).is_some() {
            request = self.forward_to_self(reach, region, request);
        }
        let now = reach.now();
        if let Some(machine) = reach.shard.machines.get_mut(&region) {
            reach.shard.idle.touch(region);
            if machine.served().is_some_and(Serving::is_open) {
                return machine.execute(now, request);
            }
            if is_about_to_serve {
                if let Some(request) = machine.wait(now, epoch, request) {
                    self.refuse(reach, request, OpError::Overloaded(region));
                }
                return;
            }
        }
        let error = match primary {
            Some(primary) if primary.server == reach.control.me().server => reach.control.not_serving(region),
            Some(_) if travel != Travel::Any => OpError::NotPrimary { region, epoch },
            Some(primary) if reach.links.is_up(primary.server) => {
                if self.forwarding.in_flight.must_wait(primary.server) {
                    return self.forwarding.in_flight.wait(primary.server, request);
                }
                let (table, op) = (request.table.clone(), request.op.clone());
                let (id, once) = self.forwarding.send(request, region, primary.server);
                let message = Control::Forward { id, table, op, once, epoch };
                return reach.links.send_in_batch(primary.server, &message);
            }
            _ => reach.control.not_serving(region),
        };
        self.refuse(reach, request, error);
    }

    /// Has an operation routed again that was put back.
    pub(super) fn put_back(&mut self, request: Request) {
        self.again.push(request);
    }

    /// Routes operations again that were put back.
    pub(super) fn route_again(&mut self, reach: &mut Reach) {
        for request in std::mem::take(&mut self.again) {
            self.route(reach, request, Travel::Any);
        }
    }

    /// Resumes the operations that wait for `region`. Answers whether any was executed here.
    pub(super) fn wake_waiters(&mut self, reach: &mut Reach, region: RegionId) -> bool {
        let (now, me) = (reach.now(), reach.control.me());
        let Some(machine) = reach.shard.machines.get_mut(&region).filter(|machine| machine.has_waiting()) else {
            return false;
        };
        if machine.served().is_some_and(Serving::is_open) {
            machine.take_waiting().for_each(|request| machine.execute(now, request));
            return true;
        }
        if !waiting::stays(machine, me) {
            machine.take_waiting().for_each(|request| self.route(reach, request, Travel::Any));
        }
        false
    }

    /// A tick: takes back, and gives up, what waits for too long.
    pub(super) fn tick(&mut self, reach: &mut Reach) {
        for next in self.forwarding.take_from_backups(reach.now()) {
            self.next(reach, next);
        }
        reach.shard.effects.answers.extend(self.forwarding.expire(reach.now()));
        self.refuse_waiting(reach);
    }

    /// How many operations this node has sent to others.
    pub(super) fn forwarded_total(&self) -> u64 {
        self.forwarding.total
    }

    /// This node's clock may have stopped until now.
    pub(super) fn doubt_clock(&mut self) {
        self.fresh.doubt_clock();
    }

    /// A server refuses that its memory is mapped.
    pub(super) fn map_refused(&mut self, now: Nanos, server: ServerId) {
        self.fresh.map_refused(now, server);
    }
}

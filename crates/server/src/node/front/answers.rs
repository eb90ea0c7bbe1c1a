//! What becomes of the answers of other nodes, and the answers that go to them.

use super::forward::{Next, Travel};
use super::{Front, Reach};
use crate::node::links::TIMEOUT;
use leeward_format::cluster::GroupConfig;
use leeward_format::control::Control;
use leeward_format::op::{OpError, OpResult};
use leeward_format::request::Once;
use leeward_format::routing::Routing;
use leeward_format::{Lsn, RegionId, ServerId};
use leeward_region::request::{Naming, ReplyTo, Request};
use std::sync::Arc;

impl Front {
    /// The highest LSN that is known to be committed in a region which another node serves.
    pub(in crate::node) fn heard_committed(&self, region: RegionId) -> Option<Lsn> {
        self.forwarding.heard.get(region)
    }

    fn committed(&self, reach: &Reach, region: RegionId) -> Option<(RegionId, Lsn)> {
        let served = reach.shard.open(region).map(|serving| serving.region().commit());
        Some((region, served.or_else(|| self.heard_committed(region))?))
    }

    /// A node has forwarded an operation. If it is to be executed once, the answer says what is committed.
    pub(in crate::node) fn note_caller(
        &mut self,
        reach: &Reach,
        caller: (ServerId, u64),
        request: &Request,
        once: Option<Once>,
    ) {
        let named_in = once.and_then(|_| Some(reach.region_of(&request.op, &request.table)?.0));
        self.forwarding.note_caller(caller, named_in);
    }

    /// Answers an operation that another node forwarded, or that this one sent to itself.
    pub(in crate::node) fn answer_peer(&mut self, reach: &mut Reach, server: ServerId, id: u64, result: OpResult) {
        if server == reach.control.me().server {
            let region = self.forwarding.sent.get(&id).map(|forwarded| forwarded.region);
            let committed = region.and_then(|region| self.committed(reach, region));
            self.forwarding.hear(committed);
            return self.answered(reach, server, id, result);
        }
        let region = self.forwarding.asked_once.remove(&(server, id));
        let committed = region.and_then(|region| self.committed(reach, region));
        reach.links.answer(reach.control.now(), server, Control::Forwarded { id, result, committed });
    }

    /// The answer to a forwarded operation has come, with what its node says is committed.
    pub(in crate::node) fn forwarded(
        &mut self,
        reach: &mut Reach,
        (server, id): (ServerId, u64),
        result: OpResult,
        committed: Option<(RegionId, Lsn)>,
    ) {
        self.forwarding.hear(committed);
        let result = reach.shard.resources.clients.hold_result(result);
        self.answered(reach, server, id, result);
    }

    fn answered(&mut self, reach: &mut Reach, server: ServerId, id: u64, result: OpResult) {
        if let Some(next) = self.forwarding.answered(reach.now(), server, id, result) {
            self.next(reach, next);
        }
    }

    pub(super) fn next(&mut self, reach: &mut Reach, next: Next) {
        match next {
            Next::AtOnce(request) => self.route(reach, request, Travel::Any),
            Next::Again(request) => self.again.push(request),
            Next::ToPrimary { request, region, backup } => {
                self.fresh.rest(reach.now(), region, backup);
                self.route(reach, request, Travel::Any);
            }
            Next::Answer(answer) => reach.shard.effects.answers.push(answer),
        }
    }

    /// The link to a server went down: it may or may not have executed what it has not answered.
    pub(in crate::node) fn link_lost(&mut self, reach: &mut Reach, server: ServerId) {
        for next in self.forwarding.lost(reach.now(), server) {
            self.next(reach, next);
        }
    }

    /// Configurations have changed.
    pub(in crate::node) fn map_changed(&mut self, reach: &mut Reach) {
        let routes = reach.control.routes();
        // A primary that has handed its role over is still alive: it answers what it has executed, and forwards all else.
        // The new primary may not remember requests that old.
        let is_lost = |config: &&Arc<GroupConfig>| config.released_term().is_none();
        let primary_of = |region| Some(routes.region(region).filter(is_lost)?.primary?.server);
        let deposed = self.forwarding.deposed(reach.now(), reach.control.me().server, primary_of);
        deposed.into_iter().for_each(|next| self.next(reach, next));
    }

    /// Sends operations that waited until others were answered.
    pub(in crate::node) fn forward_waiting(&mut self, reach: &mut Reach) {
        for server in self.forwarding.in_flight.ready() {
            let mut waiting = self.forwarding.in_flight.take(server);
            while let Some(request) = self.forwarding.in_flight.next(server, &mut waiting) {
                self.route(reach, request, Travel::Any);
            }
            self.forwarding.in_flight.put_back(server, waiting);
        }
    }

    /// Gives up operations that have waited for too long. No node has begun them.
    pub(super) fn refuse_waiting(&mut self, reach: &mut Reach) {
        let now = reach.now();
        for request in self.forwarding.in_flight.late(|request| now - request.since >= TIMEOUT) {
            let region = reach.region_of(&request.op, &request.table).map_or(RegionId(0), |(region, ..)| region);
            reach.shard.effects.answers.push(request.give_up(OpError::Overloaded(region)));
        }
    }

    /// There is no server now that an operation can go to.
    pub(super) fn refuse(&mut self, reach: &mut Reach, request: Request, error: OpError) {
        let answer = match request.is_doubtful() && reach.now() - request.since < TIMEOUT {
            true => Next::Again(request),
            false => Next::Answer(request.give_up(error)),
        };
        self.next(reach, answer);
    }

    /// For an operation on a region that is served here. If this node gave the request id, it sends the operation to itself.
    pub(super) fn forward_to_self(&mut self, reach: &Reach, region: RegionId, request: Request) -> Request {
        let Naming::Here(_) = request.naming else { return request };
        let me = reach.control.me().server;
        let (since, table, op) = (request.since, request.table.clone(), request.op.clone());
        let committed = self.committed(reach, region);
        self.forwarding.hear(committed);
        let (id, once) = self.forwarding.send(request, region, me);
        Request::new(since, ReplyTo::Peer(me, id), table, op, once)
    }
}

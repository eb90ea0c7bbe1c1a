//! Operations on their way to the region that has their keys, on this node or on another.
//!
//! | file | holds |
//! |---|---|
//! | `forward`, `in_flight`, `fair_queue` | operations that another node executes, and how many may be with it at a time |
//! | `waiting` | operations on regions that this node is about to serve |
//! | `dedup` | writes that are executed once |
//! | `stale` | reads that a backup answers, as of an instant before their call |
//! | `fresh`, `safe_lsn_lines` | such reads as of an instant after it |
//! | `proof` | questions about segments, by a tool that compares replicas |
//! | `ranges` | such questions about ranges of keys |
//! | `wait_queue` | the queue in which operations wait for one thing |
//!
//! Invariant: each operation is answered once. Belongs to the node's thread.

mod at_once;
mod fair_queue;
pub(crate) mod forward;
pub(crate) mod fresh;
mod in_flight;
mod proof;
mod ranges;
mod safe_lsn_lines;
pub(crate) mod stale;
pub(crate) mod waiting;

use crate::node::Node;
use forward::Way;
use leeward_format::cluster::Member;
use leeward_format::control::Control;
use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::{Epoch, RegionId};
use leeward_platform::Nanos;
use leeward_region::machine::RegionMachine;
use leeward_region::request::{Naming, ReplyTo, Request};
use leeward_region::serving::Serving;

/// Refuses what no region could hold, and what cannot be executed once.
fn check(op: &Op, naming: Naming) -> Result<(), OpError> {
    if !matches!(naming, Naming::Unnamed) && !op.writes_data() {
        return Err(OpError::Invalid("only a write of pairs has a request id".into()));
    }
    op.check()
}

impl Node {
    pub(crate) fn submit(&mut self, now: Nanos, request: Request, way: Way) {
        let Request { since, to, table, op, naming } = request;
        match (check(&op, naming), op) {
            (Ok(()), Op::AcceptLoss { region, server }) => self.accept_loss(now, to, region, server),
            (Ok(()), Op::RestoreTree { confirms }) => {
                let asked = self.context.agent.restore_tree(now, confirms);
                self.request(to, asked);
            }
            (Ok(()), Op::CreateTable { table }) => self.create_table(now, to, *table),
            (Ok(()), op @ (Op::Digests { .. } | Op::SegmentContent { .. } | Op::RepairSegment { .. })) => {
                self.prove(to, op)
            }
            (Ok(()), Op::RangeBounds { region, want_bounds }) => self.range_bounds(to, region, want_bounds),
            (Ok(()), Op::RangeDigests(question)) => self.range_digests(to, *question),
            (Ok(()), Op::RebuildIndex { region, server }) => self.rebuild_index(to, region, server),
            (Ok(()), Op::AlterTable { change }) => self.alter_table(now, to, *change),
            (Ok(()), Op::RequestRegion { region, request }) => {
                let asked = self.context.agent.request_for_region(now, region, request);
                self.request(to, asked);
            }
            (Ok(()), Op::DropTable { table }) => {
                let asked = self.context.agent.drop_table(now, &table);
                self.request(to, asked);
            }
            (Ok(()), Op::Intend { server, intent }) => {
                let asked = self.context.agent.intend(now, server, intent);
                self.request(to, asked);
            }
            (Ok(()), Op::ListUsers) => {
                self.effects.answers.push((to, OpResult::Users(self.users().shown())));
            }
            (Ok(()), Op::ChangeUser { change }) => {
                let asked = self.context.agent.change_user(now, *change);
                self.request(to, asked);
            }
            (Ok(()), Op::RemoveUsers { names }) => {
                let asked = self.context.agent.remove_users(now, names);
                self.request(to, asked);
            }
            (Ok(()), Op::Stale { at_most_ms, read }) => {
                self.read_at_backup(now, at_most_ms, Request { since, to, table, op: read.op(), naming }, way);
            }
            (Ok(()), op) => {
                let request = Request { since, to, table, op, naming };
                match self.is_for_backups(&request, way) {
                    true => self.read_at_backup(now, 0, request, way),
                    false => self.route(now, request, way),
                }
            }
            (Err(error), _) => self.effects.answers.push((to, OpResult::Error(error))),
        }
    }

    pub(crate) fn route(&mut self, now: Nanos, mut request: Request, way: Way) {
        let to = request.to;
        if request.op.lacks_region(self.routes(), &request.table) {
            let error = Op::region_missing(&request.table);
            return self.refuse(now, request, error);
        }
        let Some((region, epoch, primary)) = self.region_of(&request.op, &request.table) else {
            let error = match to {
                // The node that forwarded it knows the table; this node soon will too.
                ReplyTo::Peer(..) => OpError::NotPrimary { region: RegionId(0), epoch: Epoch(0) },
                ReplyTo::Client(_) => self.no_region(&request.table, &request.op),
            };
            return self.refuse(now, request, error);
        };
        let is_about_to_serve = self.is_about_to_serve((epoch, primary), way);
        let is_open = |machine: &RegionMachine| machine.served().is_some_and(Serving::is_open);
        if is_about_to_serve || self.machines.get(&region).is_some_and(is_open) {
            request = self.forward_to_self(region, request);
        }
        if let Some(machine) = self.machines.get_mut(&region) {
            self.idle.touch(region);
            if machine.served().is_some_and(Serving::is_open) {
                return machine.execute(now, request);
            }
            if is_about_to_serve {
                if let Some(request) = machine.wait(now, epoch, request) {
                    self.refuse(now, request, OpError::Overloaded(region));
                }
                return;
            }
        }
        let error = match primary {
            Some(primary) if primary.server == self.context.me.server => self.not_serving(region),
            Some(_) if way != Way::Any => OpError::NotPrimary { region, epoch },
            Some(primary) if self.context.links.is_up(primary.server) => {
                if self.forwarding.in_flight.must_wait(primary.server) {
                    return self.forwarding.in_flight.wait(primary.server, request);
                }
                let (table, op) = (request.table.clone(), request.op.clone());
                let (id, once) = self.forwarding.send(request, region, primary.server);
                let message = Control::Forward { id, table, op, once, epoch };
                return self.context.links.send_in_batch(primary.server, &message);
            }
            _ => self.not_serving(region),
        };
        self.refuse(now, request, error);
    }

    /// The region of an operation, the epoch of its configuration, and its primary.
    pub(crate) fn region_of(&self, op: &Op, table: &str) -> Option<(RegionId, Epoch, Option<Member>)> {
        let config = op.region_in(self.routes(), table)?;
        Some((config.region, config.epoch, config.primary))
    }

    /// Routes operations again that were put back.
    pub(crate) fn route_again(&mut self, now: Nanos) {
        for request in std::mem::take(&mut self.context.again) {
            self.route(now, request, Way::Any);
        }
    }
}

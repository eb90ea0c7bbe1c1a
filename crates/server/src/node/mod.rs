//! The node: one region server as a single-threaded state machine.
//!
//! Everything that happens to a server comes as an [`Input`]; after a handful of them [`Node::finish_batch`] ends the
//! turn: what was appended is mirrored in one write a backup, what is committed is answered, and what touches the device
//! leaves as jobs. There is no thread, clock, socket or file in here: the runtime drives it in production and the
//! simulator in tests, over the same traits.
//!
//! - `parts`: what it is made of, what happens to it. - `slot`: one region here, whatever this node is to it.
//! - `serving`: a region that it is the primary of; `execute`: operations on it, `decide`: what they come to.
//! - `export`: checkpoints of regions that it serves.
//! - `requests`: writes that are carried out once. - `forward`: operations for other nodes' regions. - `waiting`: those for regions that it is about to serve.
//! - `stand_still`: how a region comes to rest, so that its office is handed over, it is divided or taken in. - `division`, `merging`: the latter two. - `trim`: what they leave.
//! - `rest`: regions that are passed by when time passes. - `wishes`: who should leave. - `leases`: promises, asked for and given. - `stale`: reads that a backup answers.
//! - `load`: what it has to do, as the master is told; `samples`: which keys are in use. - `job`: what touches the device. - `joining`: how many copies are brought in sync at a time.
//! - `membership`: what it makes of the cluster's configuration. - [`link`]: the other servers. - `messages`: what comes from them. - `pins`: bases that are held for them.
//! - [`status`]: what it says of itself, filled in by `report`; `presence`: why it is not part of the cluster.
//! - `wall`: what time it is for pairs that expire.
//!
//! Invariants: an input is never lost; every submitted operation gets exactly one answer; no method blocks.

mod catch_up;
pub(crate) mod decide;
mod division;
mod doubt;
mod execute;
mod export;
mod fair_queue;
mod forward;
mod in_flight;
mod job;
mod joining;
mod leases;
pub mod link;
mod load;
mod membership;
mod merging;
mod messages;
mod parts;
mod pins;
mod presence;
mod proof;
mod report;
mod requests;
mod rest;
mod samples;
mod serving;
mod slot;
mod stale;
mod stand_still;
pub mod status;
mod surplus;
mod trim;
mod waiting;
mod wall;
mod wishes;

use crate::client_memory::ClientMemory;
use catch_up::{CatchUp, Wanted};
pub use export::{CheckpointPlace, Checkpoints};
use forward::{Forwarding, Naming, Unrouted, Way};
use job::Outcome;
pub use job::{Job, JobClass, JobDone};
use joining::Joining;
use leases::Promises;
use leeward_cluster::{Agent, Coordinator, ProposalId, Routes};
use leeward_engine::{Error, Purpose, Replica, Volume};
use leeward_fabric::Fabric;
use leeward_format::cluster::{CopyFound, GroupConfig, Member, TableOptions};
use leeward_format::control::{Control, MAX_CONTROL_BYTES};
use leeward_format::frame::{FrameKind, write_frame};
use leeward_format::op::{Op, OpError, OpResult, ReadResult};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::cpu::{self, Activity};
use leeward_replication::Timing;
use leeward_replication::clock::ClockWatch;
use leeward_replication::lease::Grants;
use leeward_replication::primary::Ops;
use link::Link;
use load::LoadReports;
use membership::Proposer;
use merging::Merging;
pub use parts::{Input, NodeParts, NodeTiming, Outbox};
use presence::Presence;
use rest::Rest;
use serving::{Answer, ReplyTo};
use slot::{Holding, Slot};
use stale::StaleRead;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use surplus::Surplus;
use wall::Wall;

/// Names one submitted operation; chosen by the runtime, never twice while it is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// Low bits of a [`Token`] that hold the operation's number on its connection; the others are the connection's id.
const NUMBER_BITS: u32 = 24;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

impl Token {
    /// Of operation `number` on a connection.
    pub(crate) fn new(connection: u64, number: u64) -> Token {
        Token(connection << NUMBER_BITS | number & NUMBER_MASK)
    }

    /// The connection that it was made for.
    pub(crate) fn connection(self) -> u64 {
        self.0 >> NUMBER_BITS
    }

    /// How many operations of its connection came after it, up to the one with number `newest`: fewer are under way than the low
    /// bits tell apart.
    pub(crate) fn distance_to(self, newest: u64) -> u64 {
        newest.wrapping_sub(self.0) & NUMBER_MASK
    }
}

/// How many members of a region are in sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InSync {
    /// The term of its primary.
    pub term: Epoch,
    /// Members in sync, the primary included.
    pub in_sync: u32,
    /// How many a write needs: `min_in_sync` of the table.
    pub needed: u32,
}

/// How often it is looked at how much has come over the fabric, while little does; otherwise at each tick.
const QUIET_LOOK: Nanos = Nanos::from_millis(200);

/// What the regions of a node share.
struct Context {
    me: Member,
    volume: Arc<Volume>,
    clients: ClientMemory,
    fabric: Arc<dyn Fabric>,
    agent: Agent,
    links: BTreeMap<ServerId, Link>,
    grants: Grants,
    ops: Ops,
    joining: Joining,
    catch_up: CatchUp,
    timing: Timing,
    /// What was counted by its clock before counts no more: when the process began, or the clock may have stood still.
    clock_since: Nanos,
    now: Nanos,
    wall: Wall,
    jobs: Vec<Job>,
    /// Proposals under way.
    proposals: BTreeMap<ProposalId, Proposer>,
    checkpoints: Option<Checkpoints>,
    /// Operations to be routed again once the map has changed, or at the next tick.
    again: Vec<Unrouted>,
    /// Requests that the regions remember, all together.
    requests: Arc<requests::OfNode>,
    merge_bytes: u64,
    frame: Vec<u8>,
}

impl Context {
    fn send(&mut self, to: ServerId, message: &Control) {
        self.frame.clear();
        write_frame(FrameKind::Control, message, &mut self.frame);
        self.fabric.send(link::peer(to), &self.frame);
    }
    fn table_options(&self, table: &str) -> Option<TableOptions> {
        self.agent.view().table(table).cloned()
    }
    fn is_linked(&self, server: ServerId) -> bool {
        self.links.get(&server).is_some_and(|link| link.up)
    }
    /// It can be reached, and is registered, so that it can be given an office.
    fn can_succeed(&self, server: ServerId) -> bool {
        self.is_linked(server) && self.agent.view().server(server).is_some()
    }
    fn links_up(&self) -> Vec<ServerId> {
        self.links.iter().filter(|(_, link)| link.up).map(|(server, _)| *server).collect()
    }
    fn propose(&mut self, old: &GroupConfig, new: GroupConfig) {
        let proposal = self.agent.propose(self.now, old.clone(), new);
        self.proposals.insert(proposal, Proposer::Primary(old.region));
    }
}

/// See the module.
pub struct Node {
    context: Context,
    coordinator: Arc<dyn Coordinator>,
    slots: BTreeMap<RegionId, Slot>,
    forwarding: Forwarding,
    /// The region that came to rest last for a plan.
    dividing: Option<RegionId>,
    /// One that is being taken in by its neighbour.
    merging: Option<Merging>,
    flush_interval: Nanos,
    surplus_after: Nanos,
    loads: LoadReports,
    tails_saved: Nanos,
    /// Bytes that had come over the fabric then.
    received_at_save: u64,
    /// Bytes that had come when that was looked at last, and when it is to be looked at again.
    received: u64,
    look_at_received: Nanos,
    answers: Vec<Answer>,
    /// Reads of backups' copies that are not answered yet, and how many were.
    stale: Vec<(Box<StaleRead>, Result<ReadResult, Error>)>,
    stale_reads: u64,
    /// Regions to which something has happened in this turn.
    touched: BTreeSet<RegionId>,
    /// Something has happened that may concern every region.
    look_at_all: bool,
    rest: Rest,
    promises: Promises,
    clock_watch: ClockWatch,
    /// What the coordinator said last is not followed yet.
    has_heard_coordinator: bool,
    presence: Presence,
    surplus: Surplus,
    /// It has been registered in this life, so that its number on the fabric is its own.
    has_joined: bool,
    /// Why it serves nobody, if another process has its number.
    twin: Option<String>,
}

impl Node {
    /// A node that has heard of nobody yet.
    pub fn new(now: Nanos, parts: NodeParts) -> Node {
        let mut info = parts.info;
        info.copies = parts.copies.iter().map(copy_found).collect();
        let me = info.member;
        let clients = parts.clients.clone();
        let context = Context {
            me,
            volume: parts.volume,
            clients: parts.clients,
            fabric: parts.fabric,
            agent: Agent::new(info, parts.cluster),
            links: BTreeMap::new(),
            grants: Grants::default(),
            ops: Ops::default(),
            joining: Joining::new(parts.timing.catch_up_bytes),
            catch_up: CatchUp::new(parts.timing.catch_up_bytes),
            timing: parts.timing.replication,
            clock_since: now,
            now,
            wall: Wall::default(),
            jobs: Vec::new(),
            proposals: BTreeMap::new(),
            checkpoints: parts.checkpoints,
            again: Vec::new(),
            requests: Arc::default(),
            merge_bytes: parts.timing.merge_bytes,
            frame: Vec::new(),
        };
        let copies = parts.copies.into_iter().map(Box::new);
        let slots = copies.map(|copy| (copy.region(), Slot::new(copy.region(), Some(copy), &context))).collect();
        Node {
            context,
            coordinator: parts.coordinator,
            slots,
            forwarding: Forwarding::new(me, clients),
            dividing: None,
            merging: None,
            flush_interval: parts.timing.flush_interval,
            surplus_after: parts.timing.surplus_after,
            loads: LoadReports::new(parts.timing.load_interval),
            tails_saved: Nanos::ZERO,
            received_at_save: 0,
            received: 0,
            look_at_received: Nanos::ZERO,
            answers: Vec::new(),
            stale: Vec::new(),
            stale_reads: 0,
            touched: BTreeSet::new(),
            look_at_all: true,
            rest: Rest::default(),
            promises: Promises::new(now),
            clock_watch: ClockWatch::default(),
            has_heard_coordinator: false,
            presence: Presence::new(now),
            surplus: Surplus::default(),
            has_joined: false,
            twin: None,
        }
    }

    /// Takes an input. Its consequences are complete after [`Node::finish_batch`].
    pub fn handle(&mut self, now: Nanos, input: Input) {
        self.context.now = now;
        // Whatever else comes is routed, and cut at bounds, by one configuration.
        if !matches!(input, Input::Coordinator(_)) {
            self.follow_coordinator(now);
        }
        match input {
            Input::Tick => self.tick(now),
            Input::Submit { token, table, op, once, direct } => {
                let unrouted = Unrouted::new(now, ReplyTo::Client(token), table, op, once);
                self.submit(now, unrouted, if direct { Way::Direct } else { Way::Any });
            }
            Input::Link(from, event) => self.link_event(now, from, event),
            Input::Coordinator(event) => {
                self.context.agent.hear(now, event);
                self.has_heard_coordinator = true;
            }
            Input::Job(done) => {
                if matches!(done.outcome, Outcome::Installed { .. }) {
                    // Other regions may have waited for the memory of its compaction.
                    self.touched.extend(self.rest.restless(self.slots.keys()));
                }
                self.touched.insert(done.region);
                self.job_done(now, done.region, done.outcome);
            }
        }
    }

    /// Follows what the coordinator has said since the last time, all of it at once.
    fn follow_coordinator(&mut self, now: Nanos) {
        if std::mem::take(&mut self.has_heard_coordinator) {
            self.context.agent.tick(now);
            self.follow_cluster(now);
        }
    }

    fn job_done(&mut self, now: Nanos, region: RegionId, outcome: Outcome) {
        match outcome {
            Outcome::Proved { to, result } => return self.answers.push((to, result)),
            Outcome::ReadStale { read, result } => return self.stale.push((read, result)),
            Outcome::Divided(divided) => return self.divided(now, region, *divided),
            _ => {}
        }
        let slot = self.slots.get_mut(&region).expect("a slot is given up when no job has its copy");
        let is_destroyed = matches!(outcome, Outcome::Destroyed(_));
        slot.job_done(now, outcome, &mut self.context, &mut self.answers);
        if is_destroyed {
            self.forget(region);
        }
    }

    /// Ends a turn: mirrors, flushes the fabric, collects answers and jobs.
    pub fn finish_batch(&mut self, now: Nanos, out: &mut Outbox) {
        self.context.now = now;
        self.follow_coordinator(now);
        for region in self.wake_touched(now) {
            self.end_turn_of(now, region);
            if self.call_in(now, region) {
                self.end_turn_of(now, region);
            }
        }
        self.merge(now);
        self.forward_waiting(now);
        self.context.send_waiting();
        self.answer_stale(now);
        self.let_rest(now);
        while !self.answers.is_empty() {
            for (to, result) in std::mem::take(&mut self.answers) {
                match to {
                    ReplyTo::Client(token) => out.replies.push((token, result)),
                    ReplyTo::Peer(server, id) => self.answer_peer(now, server, id, result),
                }
            }
        }
        self.catch_up(now);
        for (id, op) in self.context.agent.take_ops() {
            self.coordinator.submit(id, op);
        }
        let _at = cpu::at(Activity::Mirroring.of_primary());
        self.context.fabric.flush();
        out.jobs.append(&mut self.context.jobs);
    }

    /// Ends a turn of a region that is served here.
    fn end_turn_of(&mut self, now: Nanos, region: RegionId) {
        let (obstacle, is_alone) = (self.plan_obstacle(now, region), self.is_still_alone(now, region));
        let Some(slot) = self.slots.get_mut(&region) else { return };
        let Some(serving) = slot.serving() else { return };
        serving.is_alone = is_alone;
        serving.resume(now);
        serving.turn(now, &mut self.context.ops, self.flush_interval, &mut self.answers);
        if serving.come_to_rest(now, self.context.agent.view().is_synced(), obstacle) {
            serving.turn(now, &mut self.context.ops, self.flush_interval, &mut self.answers);
        }
        if serving.is_being_reshaped() {
            self.dividing = Some(region);
        }
        if serving.is_restless(now) {
            self.touched.insert(region);
        }
        slot.act_as_primary(&mut self.context);
        self.advance_division(now, region);
    }

    /// Reads what learners lack, as fast as it may be.
    fn catch_up(&mut self, now: Nanos) {
        while let Some(Wanted { region, server, session, id, .. }) = self.context.catch_up.next(now) {
            let Some(slot) = self.slots.get_mut(&region) else { continue };
            if let Some(serving) = slot.serving() {
                serving.load(server, session, id);
                slot.act_as_primary(&mut self.context);
            }
        }
    }

    // ---- time ----------------------------------------------------------------------------------------------------

    fn tick(&mut self, now: Nanos) {
        self.context.agent.tick(now);
        self.follow_cluster(now);
        self.look_for_absence(now);
        self.look_at_promises(now);
        self.save_tails(now);
        for region in self.end_rests(now) {
            self.look_at(now, region);
        }
        self.clear_surplus(now);
        self.end_unborn(now);
        self.withdraw_if_broken(now);
        self.ask_for_leases(now);
        self.report_load(now);
        self.answers.extend(self.forwarding.expire(now));
        self.refuse_waiting(now);
        self.context.expire_unsent();
        self.route_again(now);
    }

    /// Time passes for a region that is not at rest.
    fn look_at(&mut self, now: Nanos, region: RegionId) {
        let Some(slot) = self.slots.get_mut(&region) else { return };
        if let Some(serving) = slot.serving() {
            if serving.is_moving() && !serving.joint.is_taking_in {
                serving.primary.durable(serving.region.commit().min(serving.region.synced_lsn()));
            }
            serving.primary.tick(now, serving.region.commit());
            serving.expire(now, &mut self.answers);
            slot.act_as_primary(&mut self.context);
        }
        slot.backup.join_when_allowed(now, &self.context.grants);
        slot.build(&mut self.context);
        slot.act_as_backup(&mut self.context);
        slot.reconcile(now, &mut self.context, &mut self.answers);
        slot.follow_wishes(&self.context);
        slot.waiting.expire(now, slot.id, &mut self.answers);
    }

    /// Has copies save what is in their mirror buffers, if it is time to.
    fn save_tails(&mut self, now: Nanos) {
        let Some(durably) = self.is_time_to_save(now) else { return };
        for slot in self.slots.values_mut() {
            slot.backup.save_tails(durably);
            slot.act_as_backup(&mut self.context);
            if !slot.backup.is_idle() {
                self.touched.insert(slot.id);
            }
        }
    }

    fn route_again(&mut self, now: Nanos) {
        for unrouted in std::mem::take(&mut self.context.again) {
            self.route(now, unrouted, Way::Any);
        }
    }

    /// Whether backups should save what is in their mirror buffers, and if so whether durably: in time, and before more has come
    /// in than mirrors may have of the memory.
    fn is_time_to_save(&mut self, now: Nanos) -> Option<bool> {
        let durably = now - self.tails_saved >= self.flush_interval;
        if !durably && now < self.look_at_received {
            return None;
        }
        // To count what came into so many pieces of memory is not for nothing.
        let (received, share) =
            (self.context.fabric.counters().bytes_received, self.context.volume.memory().share(Purpose::Mirrors));
        let before = std::mem::replace(&mut self.received, received);
        if received.saturating_sub(before) <= share / 64 {
            self.look_at_received = now + QUIET_LOOK;
        }
        if durably {
            self.tails_saved = now;
        } else if received.saturating_sub(self.received_at_save) <= share / 4 {
            return None;
        }
        self.received_at_save = received;
        Some(durably)
    }

    // ---- operations ----------------------------------------------------------------------------------------------

    fn submit(&mut self, now: Nanos, unrouted: Unrouted, way: Way) {
        let Unrouted { since, to, table, op, naming } = unrouted;
        match (execute::check(&op, !matches!(naming, Naming::Unnamed)), op) {
            (Ok(()), Op::AcceptLoss { region, server }) => self.accept_loss(now, to, region, server),
            (Ok(()), Op::CreateTable { table }) => self.create_table(now, to, *table),
            (Ok(()), op @ (Op::Digests { .. } | Op::SegmentContent { .. } | Op::RepairSegment { .. })) => {
                self.prove(to, op)
            }
            (Ok(()), Op::AlterTable { change }) => self.alter_table(now, to, *change),
            (Ok(()), Op::Wish { region, wish }) => {
                let asked = self.context.agent.wish_of_region(now, region, wish);
                self.wish(to, asked);
            }
            (Ok(()), Op::DropTable { table }) => {
                let asked = self.context.agent.drop_table(now, &table);
                self.wish(to, asked);
            }
            (Ok(()), Op::Intend { server, intent }) => {
                let asked = self.context.agent.intend(now, server, intent);
                self.wish(to, asked);
            }
            (Ok(()), Op::Stale { at_most_ms, read }) => {
                self.read_stale(now, at_most_ms, Unrouted { since, to, table, op: read.op(), naming }, way);
            }
            (Ok(()), op) => self.route(now, Unrouted { since, to, table, op, naming }, way),
            (Err(error), _) => self.answers.push((to, OpResult::Error(error))),
        }
    }

    fn route(&mut self, now: Nanos, mut unrouted: Unrouted, way: Way) {
        let to = unrouted.to;
        if unrouted.op.lacks_region(self.routes(), &unrouted.table) {
            let error = Op::region_missing(&unrouted.table);
            return self.refuse(now, unrouted, error);
        }
        let Some((region, epoch, primary)) = self.region_of(&unrouted.op, &unrouted.table) else {
            let error = match to {
                // Who forwarded it knows the table, and this node will.
                ReplyTo::Peer(..) => OpError::NotPrimary { region: RegionId(0), epoch: Epoch(0) },
                ReplyTo::Client(_) => self.no_region(&unrouted.table, &unrouted.op),
            };
            return self.refuse(now, unrouted, error);
        };
        let is_about_to_serve = self.is_about_to_serve((epoch, primary), way);
        let is_open = |slot: &mut Slot| slot.serving().is_some_and(|serving| serving.open);
        if is_about_to_serve || self.slots.get_mut(&region).is_some_and(is_open) {
            unrouted = self.bring_home(region, unrouted);
        }
        if let Some(slot) = self.slots.get_mut(&region) {
            self.touched.insert(region);
            if let Some(serving) = slot.serving().filter(|serving| serving.open) {
                return serving.execute(now, unrouted.pending(now));
            }
            if is_about_to_serve {
                if let Some(unrouted) = slot.waiting.enter(now, epoch, unrouted) {
                    self.refuse(now, unrouted, OpError::Overloaded(region));
                }
                return;
            }
        }
        let error = match primary {
            Some(primary) if primary.server == self.context.me.server => self.not_serving(region),
            Some(_) if way != Way::Any => OpError::NotPrimary { region, epoch },
            Some(primary) if self.context.is_linked(primary.server) => {
                if self.forwarding.in_flight.must_wait(primary.server) {
                    return self.forwarding.in_flight.wait(primary.server, unrouted);
                }
                let (table, op) = (unrouted.table.clone(), unrouted.op.clone());
                let (id, once) = self.forwarding.send(unrouted, region, primary.server);
                return self.context.send(primary.server, &Control::Forward { id, table, op, once, epoch });
            }
            _ => self.not_serving(region),
        };
        self.refuse(now, unrouted, error);
    }

    /// The region that an operation goes to, the epoch of its configuration and its primary.
    fn region_of(&self, op: &Op, table: &str) -> Option<(RegionId, Epoch, Option<Member>)> {
        let config = op.region_in(self.routes(), table)?;
        Some((config.region, config.epoch, config.primary))
    }

    /// Tables, regions and servers as this node knows them.
    pub fn routes(&self) -> &Routes {
        self.context.agent.view().routes()
    }

    /// Who this is.
    pub fn member(&self) -> Member {
        self.context.me
    }

    /// Members of a region that is served here, as its primary counts them now.
    pub fn in_sync(&self, region: RegionId) -> Option<InSync> {
        let Holding::Serving(serving) = &self.slots.get(&region)?.holding else { return None };
        let (in_sync, needed) = serving.primary.in_sync();
        serving.open.then_some(InSync { term: serving.term, in_sync, needed })
    }

    /// Whether it serves `region` in `term`.
    pub fn is_serving(&self, region: RegionId, term: Epoch) -> bool {
        let holding = self.slots.get(&region).map(|slot| &slot.holding);
        matches!(holding, Some(Holding::Serving(serving)) if serving.open && serving.term == term)
    }
}

fn copy_found(copy: &Replica) -> CopyFound {
    let (term, lsn) = copy.position();
    CopyFound { region: copy.region(), term, lsn }
}

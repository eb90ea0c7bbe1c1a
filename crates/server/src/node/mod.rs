//! The node: one region server as a single-threaded state machine.
//!
//! Every event reaches the node as an [`Input`]. After a handful of them [`Node::finish_batch`] ends the turn: it mirrors what
//! was appended in one write per backup, answers what is committed, and hands device work out as jobs. The node has no thread,
//! clock, socket or file. The runtime drives it in production and the simulator in tests, over the same traits.
//!
//! - `parts`: what a node is built from, and its inputs. `slot`: one region on this node, in any role. `job`: device work.
//! - `serving`: a region whose primary is here. `execute`: operations on it. `decide`: their results. `export`: its checkpoints.
//! - `requests`: writes that are carried out once. `forward`: operations on regions of other nodes. `waiting`: operations on
//!   regions that this node is about to serve. `stale`: reads that a backup answers.
//! - `quiesce`: quiesces a region before a transfer, a split or a merge. `split`, `merge`: these two. `trim`: what they leave.
//! - `idle`: regions that a tick skips. `desired`: members that should leave. `leases`: lease grants, requested and given.
//! - `load`: load reports for the master. `samples`: which keys are in use. `joining`: how many copies sync at a time.
//! - [`link`]: links to the other servers. `messages`: what comes over them. `pins`: bases that are held for other servers.
//! - `membership`: follows the cluster's configuration. `presence`: why the node is not part of the cluster.
//! - `report`: the node's figures. `wall`: the time by which pairs expire.
//!
//! Invariants: no input is lost; every submitted operation gets exactly one answer; no method blocks.

mod catch_up;
pub(crate) mod decide;
mod desired;
mod doubt;
mod execute;
mod export;
mod fair_queue;
mod for_memory;
mod forward;
mod idle;
mod in_flight;
mod job;
mod joining;
mod leases;
pub mod link;
mod load;
mod membership;
mod merge;
mod messages;
mod parts;
mod pins;
mod presence;
mod proof;
mod quiesce;
mod replica_gc;
mod report;
mod requests;
mod samples;
mod serving;
mod slot;
mod split;
mod stale;
mod trim;
mod waiting;
mod wall;

use crate::client_memory::ClientMemory;
use catch_up::{CatchUp, Wanted};
pub use export::{CheckpointPlace, Checkpoints};
use forward::{Forwarding, Naming, Unrouted, Way};
use idle::IdleRegions;
use job::Outcome;
pub use job::{Job, JobClass, JobDone};
use joining::Joining;
use leases::LeaseGrants;
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
use merge::RegionMerge;
pub use parts::{Input, NodeParts, NodeTiming, Outbox};
use presence::Presence;
use replica_gc::ReplicaGc;
use serving::{Answer, ReplyTo};
use slot::{Holding, Slot};
use stale::StaleRead;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wall::Wall;

/// Names one submitted operation. The runtime chooses it, and never reuses it before the operation is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// Low bits of a [`Token`] that hold the operation's number on its connection; the others are the connection's id.
const NUMBER_BITS: u32 = 24;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

impl Token {
    /// The token of operation `number` on a connection.
    pub(crate) fn new(connection: u64, number: u64) -> Token {
        Token(connection << NUMBER_BITS | number & NUMBER_MASK)
    }

    /// The connection that the operation came from.
    pub(crate) fn connection(self) -> u64 {
        self.0 >> NUMBER_BITS
    }

    /// How many operations of its connection came after it, up to number `newest`. A connection has fewer operations under way
    /// than the low bits can tell apart.
    pub(crate) fn distance_to(self, newest: u64) -> u64 {
        newest.wrapping_sub(self.0) & NUMBER_MASK
    }
}

/// How many members of a region are in sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InSync {
    /// The term of the region's primary.
    pub term: Epoch,
    /// Members in sync, the primary included.
    pub in_sync: u32,
    /// Members in sync that a write needs: `min_in_sync` of the table.
    pub needed: u32,
}

/// How often the node checks how many bytes the fabric has received, while these are few; otherwise it checks at each tick.
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
    /// Times from before this are invalid: the process started then, or the clock may have stopped until then.
    clock_since: Nanos,
    now: Nanos,
    wall: Wall,
    jobs: Vec<Job>,
    /// Proposals that are under way.
    proposals: BTreeMap<ProposalId, Proposer>,
    checkpoints: Option<Checkpoints>,
    /// Operations to route again once the region map has changed, or at the next tick.
    again: Vec<Unrouted>,
    /// How many requests all regions remember together.
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
    /// Whether `server` is linked and registered, so that it can become a primary.
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
    /// The region that last quiesced for a plan.
    splitting: Option<RegionId>,
    /// The merge of two regions that is under way.
    merging: Option<RegionMerge>,
    flush_interval: Nanos,
    replica_gc_after: Nanos,
    loads: LoadReports,
    tails_saved: Nanos,
    /// Bytes that the fabric had received at `tails_saved`.
    received_at_save: u64,
    /// Bytes that the fabric had received at the last check, and when to check again.
    received: u64,
    look_at_received: Nanos,
    answers: Vec<Answer>,
    /// Reads of backups' copies that are not answered yet; and how many were answered.
    stale: Vec<(Box<StaleRead>, Result<ReadResult, Error>)>,
    stale_reads: u64,
    /// Regions that had an event in this turn.
    touched: BTreeSet<RegionId>,
    /// An event of this turn may concern every region.
    look_at_all: bool,
    idle: IdleRegions,
    lease_grants: LeaseGrants,
    clock_watch: ClockWatch,
    /// The node has not yet followed the coordinator's last event.
    has_heard_coordinator: bool,
    presence: Presence,
    replica_gc: ReplicaGc,
    /// It has been registered in this incarnation, so its number on the fabric is its own.
    has_joined: bool,
    /// Why it serves no operation, if another process has its number.
    duplicate_id: Option<String>,
}

impl Node {
    /// A node that knows no other node yet.
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
            splitting: None,
            merging: None,
            flush_interval: parts.timing.flush_interval,
            replica_gc_after: parts.timing.replica_gc_after,
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
            idle: IdleRegions::default(),
            lease_grants: LeaseGrants::new(now),
            clock_watch: ClockWatch::default(),
            has_heard_coordinator: false,
            presence: Presence::new(now),
            replica_gc: ReplicaGc::default(),
            has_joined: false,
            duplicate_id: None,
        }
    }

    /// Handles an input. Its effects are complete after [`Node::finish_batch`].
    pub fn handle(&mut self, now: Nanos, input: Input) {
        self.context.now = now;
        // One configuration routes all the other inputs, and cuts their ranges at region bounds.
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
                    self.touched.extend(self.idle.active(self.slots.keys()));
                }
                self.touched.insert(done.region);
                self.job_done(now, done.region, done.outcome);
            }
        }
    }

    /// Follows all that the coordinator has said since the last call.
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
            Outcome::SplitOff(split) => return self.split(now, region, *split),
            _ => {}
        }
        let slot = self.slots.get_mut(&region).expect("a slot is removed only when no job has its copy");
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
            if self.wake_waiters(now, region) {
                self.end_turn_of(now, region);
            }
        }
        self.merge(now);
        self.forward_waiting(now);
        self.context.send_waiting();
        self.answer_stale(now);
        self.let_idle(now);
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
        let (obstacle, is_alone) = (self.plan_obstacle(now, region), self.is_sole_server(now, region));
        let Some(slot) = self.slots.get_mut(&region) else { return };
        let Some(serving) = slot.serving() else { return };
        serving.is_alone = is_alone;
        serving.resume(now);
        serving.turn(now, &mut self.context.ops, self.flush_interval, &mut self.answers);
        if serving.quiesce(now, self.context.agent.view().is_synced(), obstacle) {
            serving.turn(now, &mut self.context.ops, self.flush_interval, &mut self.answers);
        }
        if serving.is_being_reshaped() {
            self.splitting = Some(region);
        }
        if serving.wants_turn(now) {
            self.touched.insert(region);
        }
        slot.act_as_primary(&mut self.context);
        self.advance_split(now, region);
    }

    /// Reads what learners lack, as fast as the catch-up rate allows.
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
        self.look_for_not_joined(now);
        self.look_at_lease_grants(now);
        self.save_tails(now);
        for region in self.regions_to_look_at(now) {
            self.look_at(now, region);
        }
        self.collect_replica_garbage(now);
        self.end_pending_child(now);
        self.step_aside_if_broken(now);
        self.ask_for_leases(now);
        self.report_load(now);
        self.answers.extend(self.forwarding.expire(now));
        self.refuse_waiting(now);
        self.context.expire_unsent();
        self.route_again(now);
    }

    /// A tick for a region that is not idle.
    fn look_at(&mut self, now: Nanos, region: RegionId) {
        let Some(slot) = self.slots.get_mut(&region) else { return };
        if let Some(serving) = slot.serving() {
            if serving.is_active() && !serving.merge_state.is_merge_target {
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
        slot.follow_desired(&self.context);
        slot.waiting.expire(now, slot.id, &mut self.answers);
    }

    /// Makes copies save what is in their mirror buffers, if it is time to.
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

    /// Whether backups should save what is in their mirror buffers now, and if so whether durably. They save at each flush
    /// interval, and before the buffered bytes exceed the mirrors' share of the memory.
    fn is_time_to_save(&mut self, now: Nanos) -> Option<bool> {
        let durably = now - self.tails_saved >= self.flush_interval;
        if !durably && now < self.look_at_received {
            return None;
        }
        // Counting the received bytes is not free: they lie in many buffers.
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
                // The node that forwarded it knows the table; this node soon will too.
                ReplyTo::Peer(..) => OpError::NotPrimary { region: RegionId(0), epoch: Epoch(0) },
                ReplyTo::Client(_) => self.no_region(&unrouted.table, &unrouted.op),
            };
            return self.refuse(now, unrouted, error);
        };
        let is_about_to_serve = self.is_about_to_serve((epoch, primary), way);
        let is_open = |slot: &mut Slot| slot.serving().is_some_and(|serving| serving.open);
        if is_about_to_serve || self.slots.get_mut(&region).is_some_and(is_open) {
            unrouted = self.forward_to_self(region, unrouted);
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

    /// The region of an operation, the epoch of its configuration, and its primary.
    fn region_of(&self, op: &Op, table: &str) -> Option<(RegionId, Epoch, Option<Member>)> {
        let config = op.region_in(self.routes(), table)?;
        Some((config.region, config.epoch, config.primary))
    }

    /// Tables, regions and servers as this node knows them.
    pub fn routes(&self) -> &Routes {
        self.context.agent.view().routes()
    }

    /// This node as a member of groups.
    pub fn member(&self) -> Member {
        self.context.me
    }

    /// How many members of a region are in sync, as its primary here counts them now.
    pub fn in_sync(&self, region: RegionId) -> Option<InSync> {
        let Holding::Serving(serving) = &self.slots.get(&region)?.holding else { return None };
        let (in_sync, needed) = serving.primary.in_sync();
        serving.open.then_some(InSync { term: serving.term, in_sync, needed })
    }

    /// Whether this node serves `region` in `term`.
    pub fn is_serving(&self, region: RegionId, term: Epoch) -> bool {
        let holding = self.slots.get(&region).map(|slot| &slot.holding);
        matches!(holding, Some(Holding::Serving(serving)) if serving.open && serving.term == term)
    }
}

fn copy_found(copy: &Replica) -> CopyFound {
    let (term, lsn) = copy.position();
    CopyFound { region: copy.region(), term, lsn }
}

//! The node: one region server as a single-threaded state machine.
//!
//! Every event reaches the node as an [`Input`]. After a handful of them [`Node::finish_batch`] ends the turn: it mirrors what
//! was appended in one write per backup, answers what is committed, and hands device work out as jobs. The node has no thread,
//! clock, socket or file. The runtime drives it in production and the simulator in tests, over the same traits.
//!
//! | room | holds |
//! |---|---|
//! | `requests` | operations on their way to the region that has their keys, here or on another node |
//! | `region` | one region on this node, in any role, and how the role changes |
//! | `serving` | a region whose primary is here: operations, waiting, answers, upkeep |
//! | `reshape` | transfers, splits, merges, and what they leave |
//! | [`peers`] | the other servers: links, messages, lease grants, how fast copies sync |
//! | `membership` | the cluster's configuration, as this node follows it |
//! | `effects` | does what regions ask for, and tells them what they need to know |
//! | `parts`, `job` | what a node is built from, and its inputs; device work |
//! | `clock`, `report` | the two clocks that a node compares; its figures |
//!
//! Invariants: no input is lost; every submitted operation gets exactly one answer; no method blocks.

mod clock;
mod effects;
mod idle;
pub mod links;
mod membership;
mod parts;
pub mod peers;
mod report;
mod requests;
mod reshape;
mod saving;

use clock::NodeClock;
use idle::IdleRegions;
use leeward_cluster::{Agent, Coordinator, ProposalId, Routes};
use leeward_engine::{Replica, Volume};
use leeward_format::cluster::Member;
use leeward_format::user::Users;
use leeward_format::{Epoch, RegionId};
use leeward_platform::Nanos;
use leeward_platform::cpu::{self, Activity};
use leeward_region::client_memory::ClientMemory;
pub use leeward_region::effects::{CheckpointPlace, Checkpoints};
use leeward_region::effects::{Effects, NodeResources, WantedSegment};
use leeward_region::input::{Input as RegionInput, Turn};
pub use leeward_region::job::{Job, JobClass, JobDone};
use leeward_region::job::{Outcome, RoleDone, UpkeepDone};
use leeward_region::machine::RegionMachine;
pub use leeward_region::request::Token;
use leeward_region::request::{ReplyTo, Request};
use leeward_region::safe_lsn_lines::SafeLsnLines;
use leeward_region::serving::Serving;
use leeward_replication::Timing;
use leeward_replication::lease::Grants;
use leeward_replication::primary::Ops;
use links::Links;
use membership::Proposer;
use membership::load::LoadReports;
use membership::presence::Presence;
use membership::replica_gc::ReplicaGc;
pub use parts::{Input, NodeParts, NodeTiming, Outbox};
use peers::admission::Admission;
use peers::catch_up::CatchUp;
use peers::leases::LeaseGrants;
pub(crate) use peers::settings::PeerSettings;
use requests::forward::{Forwarding, Way};
use requests::fresh::FreshReads;
use requests::stale::BackupReads;
use reshape::Reshaping;
use saving::TailSaver;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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

/// How copies on other servers are brought in sync.
struct Syncing {
    admission: Admission,
    catch_up: CatchUp,
}

/// The state of a node besides that of its regions.
struct Context {
    me: Member,
    volume: Arc<Volume>,
    clients: ClientMemory,
    resources: Arc<NodeResources>,
    agent: Agent,
    links: Links,
    grants: Grants,
    syncing: Syncing,
    timing: Timing,
    clock: NodeClock,
    peer_settings: PeerSettings,
    jobs: Vec<Job>,
    /// Regions whose copy was given work in this turn.
    given_work: BTreeSet<RegionId>,
    /// Proposals that are under way.
    proposals: BTreeMap<ProposalId, Proposer>,
    /// Operations to route again once the region map has changed, or at the next tick.
    again: Vec<Request>,
}

/// A region server, without threads, clocks and sockets.
pub struct Node {
    context: Context,
    coordinator: Arc<dyn Coordinator>,
    machines: BTreeMap<RegionId, RegionMachine>,
    forwarding: Forwarding,
    reshaping: Reshaping,
    tail_saver: TailSaver,
    loads: LoadReports,
    /// What regions have asked for in this turn, and all answers.
    effects: Effects,
    backup_reads: BackupReads,
    fresh: FreshReads,
    idle: IdleRegions,
    lease_grants: LeaseGrants,
    /// The node has not yet followed the coordinator's last event.
    has_heard_coordinator: bool,
    presence: Presence,
    replica_gc: ReplicaGc,
}

impl Node {
    /// A node that knows no other node yet.
    pub fn new(now: Nanos, parts: NodeParts) -> Node {
        let mut info = parts.info;
        info.copies = parts.copies.iter().map(leeward_region::machine::copy_found).collect();
        let me = info.member;
        let (clients, timing) = (parts.clients.clone(), parts.timing);
        let clock = NodeClock::new(now);
        let resources = Arc::new(NodeResources {
            me,
            volume: Arc::clone(&parts.volume),
            clients: parts.clients.clone(),
            fabric: Arc::clone(&parts.fabric),
            readable: parts.readable,
            safe_lsn_lines: Arc::new(SafeLsnLines::new(Arc::clone(&parts.fabric), me.incarnation)),
            timing: timing.replication,
            wall: clock.wall.clone(),
            ops: Ops::default(),
            requests: Arc::default(),
            checkpoints: parts.checkpoints,
            merge_bytes: timing.merge_bytes,
        });
        let context = Context {
            me,
            volume: parts.volume,
            clients: parts.clients,
            agent: Agent::new(info, parts.cluster).holding(membership::held(&parts.copies)),
            links: Links::new(parts.fabric, timing.bulk_bytes),
            grants: Grants::after_start(now, parts.copies.iter().map(Replica::region)),
            resources: Arc::clone(&resources),
            syncing: Syncing {
                admission: Admission::new(timing.catch_up_bytes),
                catch_up: CatchUp::new(timing.catch_up_bytes),
            },
            timing: timing.replication,
            clock,
            peer_settings: PeerSettings::new(parts.settings),
            jobs: Vec::new(),
            given_work: BTreeSet::new(),
            proposals: BTreeMap::new(),
            again: Vec::new(),
        };
        let copies = parts.copies.into_iter().map(Box::new);
        let new = |copy: Box<Replica>| RegionMachine::new(copy.region(), Some(copy), Arc::clone(&resources));
        let machines = copies.map(|copy| (copy.region(), new(copy))).collect();
        Node {
            context,
            coordinator: parts.coordinator,
            machines,
            forwarding: Forwarding::new(me, clients),
            reshaping: Reshaping::default(),
            tail_saver: TailSaver::new(timing.flush_interval),
            loads: LoadReports::new(timing.load_interval),
            effects: Effects::default(),
            backup_reads: BackupReads::default(),
            fresh: FreshReads::default(),
            idle: IdleRegions::default(),
            lease_grants: LeaseGrants::new(now),
            has_heard_coordinator: false,
            presence: Presence::new(now),
            replica_gc: ReplicaGc::new(timing.replica_gc_after),
        }
    }

    /// Handles an input. Its effects are complete after [`Node::finish_batch`].
    pub fn handle(&mut self, now: Nanos, input: Input) {
        self.context.clock.now = now;
        // One configuration routes all the other inputs, and cuts their ranges at region bounds.
        if !matches!(input, Input::Coordinator(_)) {
            self.follow_coordinator(now);
        }
        match input {
            Input::Tick => self.tick(now),
            Input::Submit { token, table, op, once, direct } => {
                let request = Request::new(now, ReplyTo::Client(token), table, op, once);
                self.submit(now, request, if direct { Way::Direct } else { Way::Any });
            }
            Input::Link(from, event) => self.link_event(now, from, event),
            Input::Coordinator(event) => {
                self.context.agent.hear(now, event);
                self.has_heard_coordinator = true;
            }
            Input::Job(done) => {
                if matches!(done.outcome, Outcome::Upkeep(UpkeepDone::Installed { .. })) {
                    // Other regions may have waited for the memory of its compaction.
                    self.idle.touch_active(self.machines.keys());
                }
                self.idle.touch(done.region);
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
            Outcome::Proved { to, result } => return self.effects.answers.push((to, result)),
            Outcome::ReadAtBackup { read, result } => return self.backup_reads.ended(read, result),
            Outcome::Synced(regions) => return self.synced(now, regions),
            _ => {}
        }
        let is_destroyed = matches!(outcome, Outcome::Role(RoleDone::Destroyed(_)));
        // A job that only told the volume something does not have the copy.
        let has_copy = !matches!(outcome, Outcome::Identified(_));
        let is_here = self.give(region, RegionInput::JobDone(outcome));
        assert!(is_here || !has_copy, "a region is forgotten only when no job has its copy");
        if is_destroyed {
            self.forget(region);
        }
    }

    /// Ends a turn: mirrors, flushes the fabric, collects answers and jobs.
    pub fn finish_batch(&mut self, now: Nanos, out: &mut Outbox) {
        self.context.clock.now = now;
        self.follow_coordinator(now);
        for region in self.wake_touched(now) {
            self.end_turn_of(now, region);
            if self.wake_waiters(now, region) {
                self.end_turn_of(now, region);
            }
        }
        self.merge(now);
        self.forward_waiting(now);
        self.context.links.send_waiting();
        self.context.links.send_segments();
        self.answer_questions(now);
        self.advance_fresh(now);
        self.answer_reads(now);
        self.let_idle(now);
        self.give_answers(now, out);
        self.catch_up(now);
        for (id, op) in self.context.agent.take_ops() {
            self.coordinator.submit(id, op);
        }
        self.context.links.send_batches();
        let _at = cpu::at(Activity::Mirroring.of_primary());
        self.context.links.fabric().flush();
        out.jobs.append(&mut self.context.jobs);
    }

    /// Gives all answers to clients and other nodes, and those that come meanwhile.
    fn give_answers(&mut self, now: Nanos, out: &mut Outbox) {
        let mut given = Vec::new();
        while !self.effects.answers.is_empty() {
            std::mem::swap(&mut given, &mut self.effects.answers);
            for (to, result) in given.drain(..) {
                match to {
                    ReplyTo::Client(token) => out.replies.push_back((token, result)),
                    ReplyTo::Peer(server, id) => self.answer_peer(now, server, id, result),
                }
            }
        }
        // Of the two buffers the one that is larger serves again.
        if given.capacity() > self.effects.answers.capacity() {
            self.effects.answers = given;
        }
    }

    /// Ends a turn of a region that is served here.
    fn end_turn_of(&mut self, now: Nanos, region: RegionId) {
        let (obstacle, is_alone) = (self.plan_obstacle(now, region), self.is_sole_server(now, region));
        let is_synced = self.context.agent.view().is_synced();
        self.give(region, RegionInput::EndOfTurn(Turn { is_synced, is_alone, obstacle }));
        self.advance_split(now, region);
    }

    /// Reads what learners lack, as fast as the catch-up rate and their links allow.
    fn catch_up(&mut self, now: Nanos) {
        if !self.context.syncing.catch_up.is_wanted() {
            return;
        }
        let full = self.context.links.full();
        while let Some(WantedSegment { region, server, session, id, .. }) =
            self.context.syncing.catch_up.next(now, &full)
        {
            self.give(region, RegionInput::MayRead { server, session, id });
        }
    }

    // ---- time ----------------------------------------------------------------------------------------------------

    fn tick(&mut self, now: Nanos) {
        self.context.agent.tick(now);
        self.follow_cluster(now);
        self.look_for_not_joined(now);
        self.look_at_lease_grants(now);
        self.save_tails(now);
        self.look_at_active(now);
        self.collect_replica_garbage(now);
        self.end_pending_child(now);
        self.step_aside_if_broken(now);
        self.ask_for_leases(now);
        self.report_load(now);
        for next in self.forwarding.take_from_backups(now) {
            self.next(now, next);
        }
        self.effects.answers.extend(self.forwarding.expire(now));
        self.refuse_waiting(now);
        self.context.links.expire_unsent(now);
        self.route_again(now);
    }

    /// A tick for a region that is not idle.
    fn look_at(&mut self, region: RegionId) {
        let departing = self.departing_from(region);
        self.give(region, RegionInput::Tick { departing });
    }

    /// The regions that are served here, also those that are not open.
    fn served(&self) -> impl Iterator<Item = &Serving> {
        self.machines.values().filter_map(RegionMachine::served)
    }

    /// Tables, regions and servers as this node knows them.
    pub fn routes(&self) -> &Routes {
        self.context.agent.view().routes()
    }

    /// Whether this node hears the coordinator. Otherwise what it knows of the cluster may be old.
    pub fn is_synced(&self) -> bool {
        self.context.agent.view().is_synced()
    }

    /// Users as this node knows them.
    pub fn users(&self) -> &Arc<Users> {
        self.context.agent.view().users()
    }

    /// What the other nodes have told of settings that are to be the same on all.
    pub(crate) fn peer_settings(&self) -> &PeerSettings {
        &self.context.peer_settings
    }

    /// This node as a member of groups.
    pub fn member(&self) -> Member {
        self.context.me
    }

    /// How many members of a region are in sync, as its primary here counts them now.
    pub fn in_sync(&self, region: RegionId) -> Option<InSync> {
        let serving = self.machines.get(&region)?.served()?;
        let (in_sync, needed) = serving.primary().in_sync();
        serving.is_open().then_some(InSync { term: serving.term(), in_sync, needed })
    }

    /// Whether this node serves `region` in `term`.
    pub fn is_serving(&self, region: RegionId, term: Epoch) -> bool {
        let serving = self.machines.get(&region).and_then(RegionMachine::served);
        serving.is_some_and(|serving| serving.is_open() && serving.term() == term)
    }
}

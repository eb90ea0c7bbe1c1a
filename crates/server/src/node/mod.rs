//! The node: one region server as a single-threaded state machine.
//!
//! Every event reaches the node as an [`Input`]. After a handful of them [`Node::finish_batch`] ends the turn: it mirrors what
//! was appended, answers what is committed, and hands device work out as jobs. The node has no thread,
//! clock, socket or file. The runtime drives it in production and the simulator in tests, over the same traits.
//!
//! ```text
//!              Node: gives each input to the part that it concerns, and carries between parts what one asks of another
//!   front     operations on their way to the region that has their keys, here or on another node
//!   shard     the regions on this node: who is idle, splits and merges, saving
//!   control   the cluster as this node knows it: agent, leases, admission, presence, load
//!   links     the fabric, and the links to other nodes
//! ```
//! Each part sees those below it alone: the front executes in the shard, the shard sees facts of control, all but the shard send
//! over the links. What goes up comes back as a value: an effect of a region, an answer, a list of regions.
//!
//! | file | holds |
//! |---|---|
//! | `carry` | executes what regions ask for beyond their shard |
//! | `news` | what changes in the cluster or on a link, and whom it concerns |
//! | `messages` | what comes over the links |
//! | `parts`, `report` | what a node is built from, and its inputs; its figures |
//!
//! Invariants: no input is lost; every submitted operation gets exactly one answer; no input waits for a device or a peer.

mod carry;
mod control;
mod front;
pub mod links;
mod messages;
mod news;
mod parts;
mod report;
mod shard;

pub(crate) use control::settings::PeerSettings;
use control::{ControlParts, NodeControl};
use front::forward::Travel;
use front::{Front, Reach};
use leeward_cluster::{Agent, ProposalId, Routes};
use leeward_engine::Replica;
use leeward_format::cluster::Member;
use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::user::Users;
use leeward_format::{Epoch, Lsn, RegionId, UnixMs};
use leeward_platform::Nanos;
use leeward_platform::cpu::{self, Activity};
pub use leeward_region::effects::{CheckpointPlace, Checkpoints};
use leeward_region::effects::{NodeResources, Wall, WantedSegment};
use leeward_region::input::{Input as RegionInput, Turn};
pub use leeward_region::job::{Job, JobClass, JobDone};
use leeward_region::job::{Outcome, RoleDone, UpkeepDone};
pub use leeward_region::request::Token;
use leeward_region::request::{Naming, ReplyTo, Request};
use leeward_region::safe_lsn_lines::SafeLsnLines;
use leeward_replication::primary::Ops;
use links::Links;
pub use parts::{Input, NodeParts, NodeTiming, Outbox};
use shard::{NodeFacts, Shard};
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

/// A region server, without threads, clocks and sockets.
pub struct Node {
    control: NodeControl,
    shard: Shard,
    front: Front,
    links: Links,
}

impl Node {
    /// A node that knows no other node yet.
    pub fn new(now: Nanos, parts: NodeParts) -> Node {
        let mut info = parts.info;
        info.copies = parts.copies.iter().map(leeward_region::machine::copy_found).collect();
        let (me, timing) = (info.member, parts.timing);
        let resources = Arc::new(NodeResources {
            me,
            volume: parts.volume,
            clients: parts.clients.clone(),
            fabric: Arc::clone(&parts.fabric),
            readable: parts.readable,
            safe_lsn_lines: Arc::new(SafeLsnLines::new(Arc::clone(&parts.fabric), me.incarnation)),
            timing: timing.replication,
            wall: Wall::default(),
            ops: Ops::default(),
            requests: Arc::default(),
            checkpoints: parts.checkpoints,
            merge_bytes: timing.merge_bytes,
        });
        let agent = Agent::new(info, parts.cluster).holding(control::held(&parts.copies));
        let (coordinator, settings) = (parts.coordinator, parts.settings);
        let regions = parts.copies.iter().map(Replica::region).collect();
        let control_parts = ControlParts { agent, coordinator, regions, settings, timing };
        let control = NodeControl::new(now, Arc::clone(&resources), control_parts);
        let gap = control.scheduling_gap();
        Node {
            control,
            shard: Shard::new(parts.copies, resources, &timing, gap),
            front: Front::new(me, parts.clients),
            links: Links::new(parts.fabric, timing.bulk_bytes),
        }
    }

    /// Handles an input. Its effects are complete after [`Node::finish_batch`].
    pub fn handle(&mut self, now: Nanos, input: Input) {
        self.control.set_now(now);
        // All other inputs are routed by the newest configuration, and ranges are cut at its bounds.
        if !matches!(input, Input::Coordinator(_)) {
            self.follow_coordinator();
        }
        match input {
            Input::Tick => self.tick(now),
            Input::Submit(mut request) => {
                request.since = now;
                let travel = if request.is_direct { Travel::Direct } else { Travel::Any };
                self.submit(request, travel);
            }
            Input::Link(from, event) => self.link_event(from, event),
            Input::Coordinator(event) => self.control.hear(event),
            Input::Job(done) => {
                if matches!(done.outcome, Outcome::Upkeep(UpkeepDone::Installed { .. })) {
                    // Other regions may have waited for the memory of its compaction.
                    self.shard.touch_active();
                }
                self.shard.idle.touch(done.region);
                self.job_done(done.region, done.outcome);
            }
        }
    }

    /// Follows all that the coordinator has said since the last call.
    fn follow_coordinator(&mut self) {
        if self.control.take_news() {
            self.follow_cluster();
        }
    }

    /// Refuses what no region could hold, answers what concerns the cluster or copies here, and routes all else.
    fn submit(&mut self, request: Request, travel: Travel) {
        let Request { since, to, table, op, naming, is_direct } = request;
        match (check(&op, naming), op) {
            (Err(error), _) => self.shard.answer(to, OpResult::Error(error)),
            (Ok(()), op @ (Op::Digests { .. } | Op::SegmentContent { .. } | Op::RepairSegment { .. })) => {
                self.shard.prove(to, op);
            }
            (Ok(()), Op::RangeBounds { region, want_bounds }) => self.shard.range_bounds(to, region, want_bounds),
            (Ok(()), Op::RangeDigests(question)) => {
                self.with_facts(|shard, facts| shard.range_digests(facts, to, *question));
            }
            (Ok(()), Op::RebuildIndex { region, server }) => self.shard.rebuild_index(to, region, server),
            (Ok(()), Op::ListUsers) => self.shard.answer(to, OpResult::Users(self.users().shown())),
            (Ok(()), Op::AcceptLoss { region, server }) => {
                self.ask_cluster(to, |agent, now| agent.accept_loss(now, region, server));
            }
            (Ok(()), Op::RestoreTree { confirms }) => {
                self.ask_cluster(to, |agent, now| agent.restore_tree(now, confirms));
            }
            (Ok(()), Op::CreateTable { table }) => self.ask_cluster(to, |agent, now| agent.create_table(now, *table)),
            (Ok(()), Op::AlterTable { change }) => self.ask_cluster(to, |agent, now| agent.alter_table(now, *change)),
            (Ok(()), Op::DropTable { table }) => self.ask_cluster(to, |agent, now| agent.drop_table(now, &table)),
            (Ok(()), Op::RequestRegion { region, request }) => {
                self.ask_cluster(to, |agent, now| agent.request_for_region(now, region, request));
            }
            (Ok(()), Op::Intend { server, intent }) => {
                self.ask_cluster(to, |agent, now| agent.intend(now, server, intent));
            }
            (Ok(()), Op::ChangeUser { change }) => self.ask_cluster(to, |agent, now| agent.change_user(now, *change)),
            (Ok(()), Op::RemoveUsers { names }) => self.ask_cluster(to, |agent, now| agent.remove_users(now, names)),
            (Ok(()), op) => {
                let request = Request { since, to, table, op, naming, is_direct };
                self.with_front(|front, reach| front.submit(reach, request, travel));
            }
        }
    }

    /// Asks the coordinator for what an operator wants.
    fn ask_cluster(&mut self, to: ReplyTo, ask: impl FnOnce(&mut Agent, Nanos) -> Result<ProposalId, String>) {
        if let Err(why) = self.control.ask(to, ask) {
            self.shard.answer(to, OpResult::Error(OpError::Invalid(why)));
        }
    }

    fn job_done(&mut self, region: RegionId, outcome: Outcome) {
        match outcome {
            Outcome::Proved { to, result } => return self.shard.answer(to, result),
            Outcome::ReadAtBackup { read, result } => return self.front.read_ended(read, result),
            Outcome::Synced(regions) => return self.with_facts(|shard, facts| shard.synced(facts, regions)),
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
        self.control.set_now(now);
        self.follow_coordinator();
        for region in self.shard.wake_touched(now) {
            self.end_turn_of(region);
            if self.with_front(|front, reach| front.wake_waiters(reach, region)) {
                self.end_turn_of(region);
            }
        }
        self.merge(now);
        self.with_front(|front, reach| {
            front.forward_waiting(reach);
            reach.links.send_waiting();
            reach.links.send_segments();
            front.answer_questions(reach);
            front.advance_fresh(reach);
            front.answer_reads(reach);
        });
        self.shard.let_idle(now);
        self.give_answers(out);
        self.catch_up(now);
        self.control.submit_ops();
        self.links.send_batches();
        let _at = cpu::at(Activity::Mirroring.of_primary());
        self.links.fabric().flush();
        out.jobs.append(&mut self.shard.jobs);
    }

    /// Gives all answers to clients and other nodes, and those that come meanwhile.
    fn give_answers(&mut self, out: &mut Outbox) {
        let mut given = Vec::new();
        while !self.shard.effects.answers.is_empty() {
            std::mem::swap(&mut given, &mut self.shard.effects.answers);
            for (to, result) in given.drain(..) {
                match to {
                    ReplyTo::Client(token) => out.replies.push_back((token, result)),
                    ReplyTo::Peer(server, id) => {
                        self.with_front(|front, reach| front.answer_peer(reach, server, id, result));
                    }
                }
            }
        }
        // Of the two buffers the one that is larger serves again.
        if given.capacity() > self.shard.effects.answers.capacity() {
            self.shard.effects.answers = given;
        }
    }

    /// Ends the turn of a region that had an event in it.
    fn end_turn_of(&mut self, region: RegionId) {
        let turn = self.with_facts(|shard, facts| Turn {
            obstacle: shard.plan_obstacle(facts, region),
            is_alone: shard.is_sole_server(facts.control.now(), region),
            is_synced: facts.control.view().is_synced(),
        });
        self.give(region, RegionInput::EndOfTurn(turn));
        self.with_facts(|shard, facts| shard.advance_split(facts, region));
    }

    /// Advances the merge that is under way, or begins one, if there is one to begin.
    fn merge(&mut self, now: Nanos) {
        self.shard.begin_merge(now);
        while let Some(acted) = self.with_facts(Shard::advance_merge) {
            for region in acted {
                self.shard.wake(now, region);
                self.shard.idle.touch(region);
                self.end_turn_of(region);
            }
        }
    }

    /// Reads what learners lack, as fast as the catch-up rate and their links allow.
    fn catch_up(&mut self, now: Nanos) {
        if !self.control.catch_up.is_wanted() {
            return;
        }
        let full = self.links.full();
        while let Some(WantedSegment { region, server, session, id, .. }) = self.control.catch_up.next(now, &full) {
            self.give(region, RegionInput::MayRead { server, session, id });
        }
    }

    fn tick(&mut self, now: Nanos) {
        self.control.tick();
        self.follow_cluster();
        self.control.look_for_not_joined();
        let are_leases_late = self.control.look_at_lease_grants();
        self.shard.note_scheduling_gap(self.control.scheduling_gap());
        if are_leases_late {
            self.shard.wake_all(now);
        }
        self.with_facts(Shard::save_tails);
        self.with_facts(Shard::look_at_active);
        self.collect_replica_garbage();
        for child in self.with_facts(Shard::end_pending_children) {
            self.look_for_replica_garbage(child);
        }
        self.step_aside_if_broken();
        if self.control.leases_are_due() {
            self.control.ask_for_leases(&self.links, self.shard.lease_wants(now));
        }
        if let Some(master) = self.control.load_is_due() {
            self.control.report_load(&self.links, master, self.shard.load(now));
        }
        self.with_front(Front::tick);
        self.links.expire_unsent(now);
        self.with_front(Front::route_again);
    }

    /// Sets the wall time, which decides which pairs have expired, to `wall`. Both clocks were read at once. The caller does
    /// this in each turn, before it handles anything.
    pub fn set_wall(&mut self, now: Nanos, wall: UnixMs) {
        if self.control.set_wall(now, wall) {
            self.shard.note_scheduling_gap(self.control.scheduling_gap());
            self.front.doubt_clock();
            self.with_facts(|shard, facts| shard.give_each(facts, || RegionInput::ClockDoubted));
            self.shard.wake_all(now);
        }
    }

    /// The process is about to end. Asks the other nodes to take over what this node has.
    pub fn depart(&mut self, now: Nanos) {
        self.control.depart(now);
    }

    // ---- what may be asked of a node -------------------------------------------------------------------------------

    /// The answer to a read of a key, if memory has it and nothing must be waited for. `heard` is a reading of the clock since
    /// the request came.
    pub fn read_at_once(&self, heard: Nanos, table: &str, op: &Op) -> Option<OpResult> {
        // What the coordinator has said may change who serves the region.
        if self.control.has_news() {
            return None;
        }
        let region = op.region_in(self.routes(), table)?.region;
        self.shard.machine(region)?.served()?.read_at_once(heard, op)
    }

    /// Tables, regions and servers as this node knows them.
    pub fn routes(&self) -> &Routes {
        self.control.routes()
    }

    /// Whether this node hears the coordinator. Otherwise what it knows of the cluster may be old.
    pub fn is_synced(&self) -> bool {
        self.control.view().is_synced()
    }

    /// Users as this node knows them.
    pub fn users(&self) -> &Arc<Users> {
        self.control.view().users()
    }

    /// What the other nodes have told of settings that are to be the same on all.
    pub(crate) fn peer_settings(&self) -> &PeerSettings {
        &self.control.settings
    }

    /// This node as a member of groups.
    pub fn member(&self) -> Member {
        self.control.me()
    }

    /// Whether the nodes that stay can take over no more of what this node has.
    pub fn has_departed(&self) -> bool {
        self.control.has_departed()
    }

    /// Whether no operation waits here, neither for another node's answer nor for a region that this node is about to serve.
    pub fn is_idle(&self) -> bool {
        self.front.is_idle() && self.shard.machines.values().all(|machine| !machine.has_waiting())
    }

    /// The highest LSN that is known to be committed in a region. A caller whose write is to be executed once needs it:
    /// [`leeward_format::request::Once::since`].
    pub fn committed(&self, region: RegionId) -> Option<Lsn> {
        match self.shard.open(region) {
            Some(serving) => Some(serving.region().commit()),
            None => self.front.heard_committed(region),
        }
    }

    /// How many members of a region are in sync, as its primary here counts them now.
    pub fn in_sync(&self, region: RegionId) -> Option<InSync> {
        let serving = self.shard.open(region)?;
        let (in_sync, needed) = serving.primary().in_sync();
        Some(InSync { term: serving.term(), in_sync, needed })
    }

    /// Whether this node serves `region` in `term`.
    pub fn is_serving(&self, region: RegionId, term: Epoch) -> bool {
        self.shard.open(region).is_some_and(|serving| serving.term() == term)
    }

    /// The merge that is under way here: source, target, and the epochs of their configurations when it began.
    pub fn merging(&self) -> Option<(RegionId, RegionId, (Epoch, Epoch))> {
        self.shard.merging()
    }

    /// Pending children of this node, each with the term that it is to begin with.
    pub fn pending_children(&self) -> impl Iterator<Item = (RegionId, Epoch)> {
        self.shard.pending_children()
    }

    /// Regions here whose primary has proposed a transfer, a split or a merge, and does not know the outcome.
    pub fn undecided(&self) -> impl Iterator<Item = RegionId> {
        self.shard.undecided()
    }

    /// Regions that this node serves and that have pairs of other regions. Reads the device: for tests that check a node, not
    /// for the node itself.
    pub fn with_foreign(&self) -> Vec<RegionId> {
        self.shard.with_foreign()
    }
}

/// Refuses what no region could hold, and what cannot be executed once.
fn check(op: &Op, naming: Naming) -> Result<(), OpError> {
    if !matches!(naming, Naming::Unnamed) && !op.writes_data() {
        return Err(OpError::Invalid("only a write of pairs has a request id".into()));
    }
    op.check()
}

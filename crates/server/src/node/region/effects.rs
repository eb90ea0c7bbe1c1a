//! What a region asks of its node, and what it needs to know of it.
//!
//! A region sees no other region, no agent and no link. It handles an input, and says what is to be done: the node does it when
//! the region has returned, in the order in which it was said. What a region needs to know meanwhile it asks of [`Facts`].
//!
//! Invariant: nothing that the node does for an effect changes what [`Facts`] say while the same input is handled.

use crate::client_memory::ClientMemory;
use crate::node::clock::Wall;
use crate::node::job::{Job, JobClass, Outcome};
use crate::node::peers::admission::Session;
use crate::node::peers::catch_up::Wanted;
use crate::node::requests::dedup;
use crate::node::requests::forward::Unrouted;
use crate::node::serving::Answer;
use crate::node::serving::checkpoint::Checkpoints;
use crate::node::serving::safe_lsn_line::SafeLsnLines;
use bytes::Bytes;
use leeward_engine::{Tail, Volume};
use leeward_fabric::{Descriptor, Fabric};
use leeward_format::cluster::{CopyFound, GroupConfig, Member, TableOptions};
use leeward_format::control::Control;
use leeward_format::{ClusterId, Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::cpu::Account;
use leeward_replication::Timing;
use leeward_replication::lease::Grants;
use leeward_replication::primary::Ops;
use std::ops::Range;
use std::sync::Arc;

/// What every region of a node is made with. It does not change while the node runs.
pub(crate) struct NodeResources {
    /// The node as a member of groups.
    pub(crate) me: Member,
    pub(crate) volume: Arc<Volume>,
    /// The account of its clients' memory.
    pub(crate) clients: ClientMemory,
    pub(crate) fabric: Arc<dyn Fabric>,
    /// Has the memory that clients read, if they can read any.
    pub(crate) readable: Option<Arc<dyn Fabric>>,
    /// Has the memory that backups read.
    pub(crate) safe_lsn_lines: Arc<SafeLsnLines>,
    pub(crate) timing: Timing,
    pub(crate) wall: Wall,
    /// Names the writes of its primaries.
    pub(crate) ops: Ops,
    /// How many requests all regions remember together.
    pub(crate) requests: Arc<dedup::OfNode>,
    /// Where checkpoints go; `None`: the node makes none.
    pub(crate) checkpoints: Option<Checkpoints>,
    /// Most bytes of pairs that a merge copies; 0: no region is merged.
    pub(crate) merge_bytes: u64,
}

/// What a region needs to know of its node and of the cluster while it handles an input.
pub(crate) trait Facts {
    /// The cluster that the node belongs to, if that is known.
    fn cluster(&self) -> Option<ClusterId>;
    /// The options of a table.
    fn table(&self, name: &str) -> Option<&TableOptions>;
    /// The lease grants that this node has given as a backup.
    fn grants(&self) -> &Grants;
    /// Servers whose link is up.
    fn linked(&self) -> Vec<ServerId>;
    /// Whether the link to `server` is up and the coordinator knows it, so that it can become a primary.
    fn can_succeed(&self, server: ServerId) -> bool;
}

/// Something that a region asks of its node.
pub(crate) enum Effect {
    /// Route an operation again that was not executed.
    RouteAgain(Unrouted),
    /// Send a message.
    Send { to: ServerId, message: Control },
    /// Send a message about leases, which waits for no other.
    SendUrgent { to: ServerId, message: Control },
    /// Write a part of a tail into a mirror buffer.
    Mirror { to: ServerId, buffer: Descriptor, offset: u64, tail: Arc<Tail>, range: Range<usize>, op: u64 },
    /// Write a segment into a ship slot, when the link has room.
    WriteSegment { to: ServerId, slot: Descriptor, bytes: Bytes, op: u64 },
    /// A learner lacks this segment: say when it may be read.
    WantSegment(Wanted),
    /// Ask a server for a lease grant to the primary of this term.
    AskLease { server: ServerId, term: Epoch },
    /// Say for each of these servers whether a session with it may begin in this term. With each: whether it counts.
    AskPlaces { term: Epoch, servers: Vec<(ServerId, bool)> },
    /// The sessions that are not in sync were `before`, and are `after`.
    CountSessions { before: Vec<Session>, after: Vec<Session> },
    /// Propose a change to the coordinator.
    Propose(Box<Proposal>),
    /// Run a job.
    Spawn(Job),
    /// The copy was given work. It is an event, unless a tick has looked at the region.
    GaveWork,
    /// Tell the cluster whether this copy is damaged, if it was told otherwise.
    Register(CopyFound),
}

/// A change that a region proposes.
pub(crate) struct Proposal {
    /// The region's configuration, which is to be replaced.
    pub(crate) old: GroupConfig,
    pub(crate) change: ProposedChange,
}

/// What the coordinator is to do, all or nothing.
pub(crate) enum ProposedChange {
    /// Replace the configuration.
    Replace(GroupConfig),
    /// Split the region.
    Split { left: GroupConfig, right: GroupConfig },
    /// Make another region, the merge source, a part of this one.
    Merge { wider: GroupConfig, source: GroupConfig },
}

/// What regions have asked for, in order, and their answers.
#[derive(Default)]
pub(crate) struct Effects {
    pub(crate) answers: Vec<Answer>,
    /// Each with the region that asks.
    pub(crate) asked: Vec<(RegionId, Effect)>,
}

/// The handling of one input by a region.
pub(crate) struct Step<'a> {
    pub(crate) region: RegionId,
    pub(crate) now: Nanos,
    pub(crate) facts: &'a dyn Facts,
    pub(crate) effects: &'a mut Effects,
}

impl Step<'_> {
    pub(crate) fn ask(&mut self, effect: Effect) {
        self.effects.asked.push((self.region, effect));
    }

    pub(crate) fn send(&mut self, to: ServerId, message: Control) {
        self.ask(Effect::Send { to, message });
    }

    /// Adds a job of the region.
    pub(crate) fn spawn(&mut self, account: Account, work: impl FnOnce() -> Outcome + Send + 'static) {
        self.ask(Effect::Spawn(Job::new(JobClass::Foreground, account, self.region, work)));
    }

    /// Adds a job of the region for which no client and no primary waits.
    pub(crate) fn spawn_in_background(&mut self, account: Account, work: impl FnOnce() -> Outcome + Send + 'static) {
        self.ask(Effect::Spawn(Job::new(JobClass::Background, account, self.region, work)));
    }

    /// The options of the table of `config`.
    pub(crate) fn table_of(&self, config: &GroupConfig) -> Option<TableOptions> {
        self.facts.table(&config.table).cloned()
    }
}

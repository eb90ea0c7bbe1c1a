//! What a region asks of its node, and what it needs to know of it.
//!
//! A region sees no other region, no agent and no link. It handles an input, and says what is to be done: the node does it when
//! the region has returned, in the order in which it was said. What a region needs to know meanwhile it asks of [`Facts`].
//!
//! Invariant: nothing that the node does for an effect changes what [`Facts`] say while the same input is handled.

use crate::client_memory::ClientMemory;
use crate::dedup;
use crate::job::{Job, JobClass, Outcome};
use crate::request::{Answer, Request};
use crate::safe_lsn_lines::SafeLsnLines;
use bytes::Bytes;
use leeward_engine::{Tail, Volume};
use leeward_fabric::{Descriptor, Fabric};
use leeward_format::cluster::{CopyFound, GroupConfig, Member, TableOptions};
use leeward_format::control::Control;
use leeward_format::{ClusterId, Epoch, RegionId, SegmentId, ServerId, UnixMs, VolumeId};
use leeward_platform::cpu::Account;
use leeward_platform::{Disk, Nanos};
use leeward_replication::Timing;
use leeward_replication::lease::Grants;
use leeward_replication::primary::Ops;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The wall time. The runtime sets it, and the regions that the node serves share it. It may go back.
#[derive(Clone, Debug, Default)]
pub struct Wall(Arc<AtomicU64>);

impl Wall {
    /// Sets it.
    pub fn set(&self, now: UnixMs) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    /// The wall time as of this turn.
    pub fn now(&self) -> UnixMs {
        UnixMs(self.0.load(Ordering::Relaxed))
    }
}

/// Where a checkpoint goes.
pub struct CheckpointPlace {
    /// An empty directory.
    pub disk: Box<dyn Disk>,
    /// Path of that directory, for the operator.
    pub path: String,
    /// Id of the volume there, drawn at random.
    pub volume: VolumeId,
}

/// Opens the place for the checkpoint of that name of a region.
pub type Checkpoints = Arc<dyn Fn(&str, RegionId) -> io::Result<CheckpointPlace> + Send + Sync>;

/// A session of a primary that is not in sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Where the member runs.
    pub server: ServerId,
    /// Bytes that are still to be sent at the rate of learners, at most; 0 for a counted peer.
    pub lacked: u64,
    /// Its base is pinned.
    pub is_based: bool,
}

impl Session {
    /// One that begins. What it lacks is said later.
    pub fn begun(server: ServerId) -> Session {
        Session { server, lacked: 0, is_based: false }
    }
}

/// A segment of a base that a learner lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedSegment {
    /// That brings the learner in sync.
    pub region: RegionId,
    /// Where the learner runs.
    pub server: ServerId,
    /// The session in which it is lacked.
    pub session: u64,
    /// As the base names it.
    pub id: SegmentId,
    /// How many the catch-up rate pays for.
    pub bytes: u64,
}

/// What every region of a node is made with. It does not change while the node runs.
pub struct NodeResources {
    /// The node as a member of groups.
    pub me: Member,
    /// Where its copies are.
    pub volume: Arc<Volume>,
    /// The account of its clients' memory.
    pub clients: ClientMemory,
    /// What the backups' memory is written by.
    pub fabric: Arc<dyn Fabric>,
    /// Has the memory that clients read, if they can read any.
    pub readable: Option<Arc<dyn Fabric>>,
    /// Has the memory that backups read.
    pub safe_lsn_lines: Arc<SafeLsnLines>,
    /// Of its replica groups.
    pub timing: Timing,
    /// By which pairs expire.
    pub wall: Wall,
    /// Names the writes of its primaries.
    pub ops: Ops,
    /// How many requests all regions remember together.
    pub requests: Arc<dedup::OfNode>,
    /// Where checkpoints go; `None`: the node makes none.
    pub checkpoints: Option<Checkpoints>,
    /// Most bytes of pairs that a merge copies; 0: no region is merged.
    pub merge_bytes: u64,
}

/// What a region needs to know of its node and of the cluster while it handles an input.
pub trait Facts {
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
pub enum Effect {
    /// Route an operation again that was not executed.
    RouteAgain(Request),
    /// Send a message.
    Send {
        /// Another server.
        to: ServerId,
        /// What is sent.
        message: Control,
    },
    /// Send a message about leases, which waits for no other.
    SendUrgent {
        /// Another server.
        to: ServerId,
        /// What is sent.
        message: Control,
    },
    /// Write a part of a tail into a mirror buffer.
    Mirror {
        /// The backup's server.
        to: ServerId,
        /// The mirror buffer.
        buffer: Descriptor,
        /// Where in it.
        offset: u64,
        /// What is written: this tail,
        tail: Arc<Tail>,
        /// these bytes of it.
        range: Range<usize>,
        /// Names the write: [`Input::WriteEnded`](crate::input::Input::WriteEnded) follows.
        op: u64,
    },
    /// Write a segment into a ship slot, when the link has room.
    WriteSegment {
        /// The member's server.
        to: ServerId,
        /// The ship slot.
        slot: Descriptor,
        /// The segment, as it goes over the wire.
        bytes: Bytes,
        /// Names the write.
        op: u64,
    },
    /// A learner lacks this segment: say when it may be read.
    WantSegment(WantedSegment),
    /// Ask a server for a lease grant to the primary of this term.
    AskLease {
        /// The server that is asked.
        server: ServerId,
        /// The primary's term.
        term: Epoch,
    },
    /// Say whether sessions may begin: [`Input::Places`](crate::input::Input::Places) follows.
    AskPlaces {
        /// The primary's term.
        term: Epoch,
        /// With which servers, and whether each counts as a member.
        servers: Vec<(ServerId, bool)>,
    },
    /// The sessions that are not in sync were `before`, and are `after`.
    CountSessions {
        /// What was said last.
        before: Vec<Session>,
        /// What is so now.
        after: Vec<Session>,
    },
    /// Propose a change to the coordinator.
    Propose(Box<Proposal>),
    /// Run a job.
    Spawn(Job),
    /// The copy was given work. It is an event, unless a tick has looked at the region.
    GaveWork,
    /// The region waits for something that comes soon with time alone: give it the next turn too.
    WantsTurn,
    /// The region is being split or merged, or quiesces for that.
    IsReshaped,
    /// A child was split off this region's parent, or why not: tell the parent.
    ChildMade {
        /// The region that was split.
        parent: RegionId,
        /// It is a pending child now.
        result: Result<(), String>,
    },
    /// Tell the cluster whether this copy is damaged, if it was told otherwise.
    Register(CopyFound),
}

/// A change that a region proposes.
pub struct Proposal {
    /// The region's configuration, which is to be replaced.
    pub old: GroupConfig,
    /// What is to be done instead.
    pub change: ProposedChange,
}

/// What the coordinator is to do, all or nothing.
pub enum ProposedChange {
    /// Replace the configuration.
    Replace(GroupConfig),
    /// Split the region.
    Split {
        /// What is left of this region.
        left: GroupConfig,
        /// The half that becomes a region of its own.
        right: GroupConfig,
    },
    /// Make another region, the merge source, a part of this one.
    Merge {
        /// This region, with the keys of both.
        wider: GroupConfig,
        /// The configuration of the other, which is to be removed.
        source: GroupConfig,
    },
}

/// What regions have asked for, in order, and their answers.
#[derive(Default)]
pub struct Effects {
    /// Answers, on their way out of the node.
    pub answers: Vec<Answer>,
    /// Each with the region that asks.
    pub asked: Vec<(RegionId, Effect)>,
}

/// The handling of one input by a region.
pub struct Step<'a> {
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
    pub(crate) fn spawn(&mut self, class: JobClass, account: Account, work: impl FnOnce() -> Outcome + Send + 'static) {
        self.ask(Effect::Spawn(Job::new(class, account, self.region, work)));
    }

    /// The options of the table of `config`.
    pub(crate) fn table_of(&self, config: &GroupConfig) -> Option<TableOptions> {
        self.facts.table(&config.table).cloned()
    }
}

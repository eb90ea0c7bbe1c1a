//! What a region is told: everything that happens to it is one of these. Operations are not: they come by the million, ask for
//! nothing at once, and have [a method](crate::machine::RegionMachine::execute) of their own.
//!
//! What concerns the primary of a term, and comes for a region that is not served here in that term, changes nothing.

use crate::job::Outcome;
use leeward_engine::Region;
use leeward_format::cluster::{GroupConfig, Intent};
use leeward_format::control::{SafeLsnOf, ToBackup, ToPrimary};
use leeward_format::{Epoch, SegmentId, ServerId};
use leeward_platform::Nanos;
use leeward_replication::backup::PrimarySession;
use leeward_replication::clock::ClockReading;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An event for a region.
pub enum Input {
    /// Time has passed. With it come the members that should leave the group now.
    Tick {
        /// Why each of them should.
        departing: BTreeMap<ServerId, Intent>,
    },
    /// A turn of the node ends: the region makes new records durable enough, sends them, and answers.
    EndOfTurn(Turn),
    /// The coordinator has a configuration that is newer than the one known here.
    Configuration(Arc<GroupConfig>),
    /// The coordinator has decided about a proposal of the primary.
    Proposed {
        /// The configuration was made.
        is_accepted: bool,
    },
    /// The coordinator has decided about the split that the primary of this term has proposed.
    SplitProposed {
        /// The primary's term.
        term: Epoch,
        /// The region was split.
        is_accepted: bool,
    },
    /// The region no longer exists.
    Ended,
    /// The cluster does not need the copy here. It is idle.
    NotNeeded,
    /// A job of the region has ended.
    JobDone(Outcome),
    /// The link to a server came up, or went down.
    Link {
        /// At its other end.
        server: ServerId,
        /// It is up now.
        is_up: bool,
    },
    /// A one-sided write of the primary has ended.
    WriteEnded {
        /// Where it was written.
        server: ServerId,
        /// As [`Effect::Mirror`](crate::effects::Effect::Mirror) named it.
        op: u64,
        /// The server has given up the memory.
        is_refused: bool,
    },
    /// A primary speaks to the copy here.
    FromPrimary(PrimarySession, ToBackup),
    /// A member speaks to the primary of a term.
    FromMember {
        /// The member's server.
        server: ServerId,
        /// The primary's term.
        term: Epoch,
        /// In which it speaks.
        session: u64,
        /// What it says.
        body: ToPrimary,
    },
    /// The node has places for sessions, or not, of those for which the primary of `term` has asked. An error says when the server
    /// was heard last.
    Places {
        /// The primary's term.
        term: Epoch,
        /// By server.
        places: Vec<(ServerId, Result<(), Nanos>)>,
    },
    /// A segment that a learner lacks may be read now.
    MayRead {
        /// Where the learner runs.
        server: ServerId,
        /// In which it lacks that.
        session: u64,
        /// Of the base that is pinned for it.
        id: SegmentId,
    },
    /// A member has granted the primary of `term` a lease.
    LeaseGranted {
        /// The member's server.
        server: ServerId,
        /// The primary's term.
        term: Epoch,
        /// When it was asked for, by this node's clock, and how long it lasts from then.
        lease: (Nanos, Nanos),
    },
    /// Lease grants of this node have ended early: a copy that waited for that goes on.
    LeaseReleased,
    /// A primary has published a safe LSN, as of this reading of this node's clock.
    SafeLsn(ServerId, ClockReading, SafeLsnOf),
    /// Reads wait for the copy to have what it was sent: it takes that, or begins to answer reads if it should.
    ReadsWait,
    /// Whether the copy should go on to answer reads may have changed.
    LookAfterReads,
    /// The copy saves what is in its mirror buffers; `is_round`: because it is its time, not for want of memory.
    Save {
        /// What is saved settles with the next sync.
        is_round: bool,
    },
    /// This node's clock may have stopped: leases and ages that count from before are invalid.
    ClockDoubted,
    /// The region is to take the keys of another one, and is to be marked in its configuration first.
    HoldMore,
    /// This region is to be split off `parent`.
    MakeChild {
        /// The region that is split, and the term of its primary.
        parent: (Arc<Region>, Epoch),
        /// The configuration that this region is to have.
        config: Box<GroupConfig>,
    },
    /// The child is in sync with every member: the split is to be proposed.
    ChildReady {
        /// The child's region and an id above those of all segments that both share.
        child: (leeward_format::RegionId, SegmentId),
    },
    /// The parent does not wait for this pending child any more.
    ChildNotWanted,
}

/// What a region must know at the end of a turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// This node hears the coordinator.
    pub is_synced: bool,
    /// No other node can serve any key of the region, whatever the outcome of the proposal under way.
    pub is_alone: bool,
    /// What keeps the region from a split or a merge, besides what it sees itself.
    pub obstacle: Option<&'static str>,
}

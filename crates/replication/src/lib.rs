//! Replication of a region: the primary's and the backup's side of one replica group, as state machines.
//!
//! Each takes an event and the time, and returns a list of actions. This crate has no thread, clock, socket or file.
//! [`server`](../leeward_server/index.html) executes the actions, in production over real devices and in the
//! simulator over simulated ones.
//!
//! - [`mirror`]: the log tails of one backup, written one-sided in LSN order (Tebis 3.2, Anthus 3.1).
//! - [`ship`]: segments on their way to one backup (Tebis 3.3), of a compaction or to bring it in sync.
//! - [`peer`]: one backup as its primary sees it: a session from the first contact to being in sync.
//! - [`primary`]: the group as its primary sees it: commit, membership, leases.
//! - [`backup`]: a backup's own side.
//! - [`lease`]: the lease that backups grant their primary.
//! - [`candidate`]: the election before a primary of a table with a quorum serves.
//! - [`clock`]: detects that the clock by which leases are counted was stopped.
//!
//! The crate never knows how a primary was chosen, nor what a key means.
#![forbid(unsafe_code)]

pub mod backup;
pub mod candidate;
pub mod clock;
pub mod lease;
pub mod mirror;
pub mod peer;
pub mod primary;
pub mod ship;
pub mod tail;
mod unposted;

use leeward_platform::Nanos;
use std::ops::RangeInclusive;

/// Leases are renewed this often at least, however long they last: what counts of them for readers of memory is short.
const RENEWAL: Nanos = Nanos::from_millis(150);

/// Timing of the replica groups of one node. It may be different on each node: a lease lasts as long as its holder asked
/// for, and the duration travels with the request and with the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long the lease grants last that this node asks for as a primary: [`Timing::LEASES`]. The backup counts from
    /// when it answers. The holder counts from when it asked, less a margin: see [`Timing::margin_of`].
    pub lease: Nanos,
    /// How often leases are renewed.
    pub lease_interval: Nanos,
    /// A member is proposed for removal after its link has been down for this long.
    pub link_timeout: Nanos,
    /// A member in sync that has not renewed its lease grant for this long is proposed for removal, if writes wait for
    /// it and enough members are left without it. Less than `lease`, so that reads do not stop meanwhile.
    pub lease_grant_timeout: Nanos,
    /// A member that owes an answer for this long is proposed for removal. More than `lease`, because a backup that
    /// joins a new term first lets its last lease grant expire.
    pub answer_timeout: Nanos,
    /// How often a primary publishes the LSN up to which its volume is durable ([`Floor`]), if that has advanced. An
    /// older copy of the volume, put back in its place, is recognized by this.
    ///
    /// [`Floor`]: leeward_format::cluster::Floor
    pub floor_interval: Nanos,
}

impl Timing {
    /// How long a lease may last: from 100 ms to a minute. A backup refuses any other request.
    pub const LEASES: RangeInclusive<Nanos> = Nanos::from_millis(100)..=Nanos::from_millis(60_000);
    /// Of a longer lease, only so much counts for clients and backups that read the primary's memory without asking it.
    /// A new process cannot know which leases an earlier one has granted, so it waits for so long after its start.
    pub const READABLE: Nanos = Nanos::from_millis(600);

    /// The timing of a node that asks for leases of this length, with the other values as they fit to it.
    pub fn of_lease(lease: Nanos) -> Timing {
        Timing {
            lease,
            lease_interval: Nanos(lease.0 / 4).min(RENEWAL),
            link_timeout: Nanos::from_millis(200),
            // Two renewals and a look at the time.
            lease_grant_timeout: Nanos(lease.0 / 2) + Nanos::from_millis(50),
            answer_timeout: Nanos::from_millis(2_000).max(lease + lease),
            floor_interval: Nanos::from_secs(600),
        }
    }
    /// For how long after its request the holder of a grant that lasts for `lasts` relies on it.
    pub const fn relied_on(lasts: Nanos) -> Nanos {
        Nanos(lasts.0 - Timing::margin_of(lasts).0)
    }
    /// The margin of a lease: a fifth of it. A holder's clock at 0.9 times the speed of time and a granter's at 1.1
    /// need 1 - 0.9/1.1 (18 %). Where clocks are accurate, the margin covers a stop of the holder's machine that its
    /// clocks do not show.
    pub const fn margin_of(lease: Nanos) -> Nanos {
        Nanos(lease.0 / 5)
    }
    /// Half a lease: a member that has not renewed its lease grant for this long may be about to let it expire.
    pub fn renewal_timeout(&self) -> Nanos {
        Nanos(self.lease.0 / 2)
    }
    /// A node that has not looked at the time for so long was stopped, as far as the silence of others counts.
    pub fn scheduling_gap(&self) -> Nanos {
        Nanos(self.lease.0 / 4)
    }
}

impl Default for Timing {
    fn default() -> Self {
        Timing::of_lease(Nanos::from_millis(600))
    }
}

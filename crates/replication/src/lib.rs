//! Replication of a region: the primary's and the backup's side of one replica group, as state machines.
//!
//! Each takes an event and the time, and returns a list of actions. This crate has no thread, clock, socket or file.
//! [`server`](../leeward_server/index.html) carries the actions out, in production over real devices and in the
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
mod unposted;

use leeward_platform::Nanos;

/// Timing of a replica group. It must be the same on every node of a cluster: a lease that is granted for less time
/// than its holder relies on is unsafe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a backup's lease grant lasts. The backup counts from when it answers.
    pub lease: Nanos,
    /// How much earlier the holder stops relying on the grant. The holder counts from when it asked. The margin exceeds
    /// what clocks may differ by: see [`Timing::margin_of`].
    pub lease_margin: Nanos,
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
    /// The margin of a lease: a fifth of it. A holder's clock at 0.9 times the speed of time and a granter's at 1.1
    /// need 1 - 0.9/1.1 (18 %). Where clocks are accurate, the margin covers a stop of the holder's machine that its
    /// clocks do not show.
    pub const fn margin_of(lease: Nanos) -> Nanos {
        Nanos(lease.0 / 5)
    }
    /// Two renewal intervals: a member that has not renewed its lease grant for this long may be about to let it
    /// expire.
    pub fn renewal_timeout(&self) -> Nanos {
        self.lease_interval + self.lease_interval
    }
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            lease: Nanos::from_millis(600),
            lease_margin: Timing::margin_of(Nanos::from_millis(600)),
            lease_interval: Nanos::from_millis(150),
            link_timeout: Nanos::from_millis(200),
            lease_grant_timeout: Nanos::from_millis(350),
            answer_timeout: Nanos::from_millis(2_000),
            floor_interval: Nanos::from_secs(600),
        }
    }
}

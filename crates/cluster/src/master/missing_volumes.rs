//! The volumes that a region waits for when no member in sync is left: volumes that may hold acknowledged writes which no other
//! has.
//!
//! - The last primary's volume is always one of them. It has every write that the group acknowledged under that primary, since
//!   the primary writes its log before it answers.
//! - So are the volumes of [`GroupConfig::prior_members`], until the primary has made durable what it took over from them.
//! - The region also waits for a backup that is merely not there yet. After a power failure its copy may reach further than the
//!   primary's.
//! - It does not wait for a backup whose server is back with another volume, or was started again and found its copy damaged.
//!   The old copy is gone, and the guarantees hold without it. Only if the primary's volume itself was given up, every backup's
//!   volume is needed.
//!
//! A primary that needs a quorum of others before it serves ([`GroupConfig::recovery_quorum`]) waits for them, or for every
//! volume.
//!
//! A volume is known by its id, which a copy of the volume has too. So a volume that is back must also hold what its
//! configuration says that it held, the [`Floor`](leeward_format::cluster::Floor). Otherwise it is a copy of an older state, and
//! the region waits as if another volume were there. The same goes for a copy that is damaged, since nothing says how far it
//! reached.
//!
//! Pure functions of a configuration and the live servers; any thread.

use crate::View;
use leeward_format::cluster::{CopyFound, GroupConfig, Member, PriorMember, ServerInfo};
use leeward_format::{Epoch, Lsn, RegionId, ServerId, VolumeId};
use leeward_platform::{Bug, planted};
use std::collections::BTreeSet;

/// A volume without which a region cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingVolume {
    /// The member whose volume it is.
    pub member: Member,
    /// The other volume that its server is back with, or the same volume in an older state or with a damaged copy; `None` if
    /// the server is not there.
    pub found: Option<VolumeId>,
    /// The copy on that volume is damaged.
    pub is_damaged: bool,
}

/// Term and last LSN of a copy that does not exist.
pub(super) const NO_COPY: (Epoch, Lsn) = (Epoch(0), Lsn(0));

/// The process that runs as a server, and the copy of a region that its volume held when it started, if that is not damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerCopy {
    /// Its incarnation is that of the running process.
    pub member: Member,
    /// Term and last LSN of its copy, or [`CopyFound::DAMAGED`]; zero if it had none.
    pub copy: (Epoch, Lsn),
}

impl ServerCopy {
    /// What a live server reports of itself and the region of `config`. A copy of another table's region of that number is none.
    pub fn of(info: &ServerInfo, config: &GroupConfig) -> ServerCopy {
        let copy = info.copy_of(config.region).filter(|copy| !copy.is_of_other_table(config));
        ServerCopy { member: info.member, copy: copy.map_or(NO_COPY, |copy| (copy.term, copy.lsn)) }
    }

    /// Whether its copy is damaged, as far as the server has said.
    pub(super) fn is_damaged(&self) -> bool {
        self.copy.1 == CopyFound::DAMAGED
    }
}

impl MissingVolume {
    /// What `region` waits for and what the operator can do, in one sentence.
    pub fn explain(&self, region: RegionId) -> String {
        let Member { server, volume, .. } = self.member;
        let give_up = format!("`leeward accept-loss --region {region} --server {server}`");
        match self.found {
            Some(found) if found == volume && self.is_damaged => format!(
                "region {region} waits for volume {volume} of server {server}, which is back with a damaged copy of the region, \
                 so that acknowledged writes may be missing (the log of server {server} says where): start it again, in case \
                 its device could only not be read for a moment; or stop it, put an undamaged copy of its data directory back \
                 and start it again; or, if there is none, give up what only it held with {give_up}"
            ),
            Some(found) if found == volume => format!(
                "region {region} waits for volume {volume} of server {server}, which is back with a copy of it that is of an older \
                 state, so that acknowledged writes are missing: stop it, put the newest data directory back and start it \
                 again; or, if that is lost for good, give up what only it held with {give_up}"
            ),
            Some(found) => format!(
                "region {region} waits for volume {volume} of server {server}, which is back with another volume, {found}: \
                 stop it, put its old data directory back and start it again; or, if that is lost for good, give up what \
                 only it held with {give_up}"
            ),
            None => format!(
                "region {region} waits for server {server} with volume {volume}, which is not in the cluster: start it; \
                 or, if its data directory is lost for good, give up what only it held with {give_up}"
            ),
        }
    }
}

/// The volumes that the region of `config` waits for. `live` returns the process that runs as a server. There are none if the
/// region has a live primary, if a member can become primary now, or if the region never had a primary.
pub fn missing_volumes(config: &GroupConfig, live: impl Fn(ServerId) -> Option<ServerCopy>) -> Vec<MissingVolume> {
    let lives =
        |member: &Member| live(member.server).is_some_and(|found| found.member == *member && !found.is_damaged());
    let must_all_be_back = config.recovery_quorum > 0 && config.in_sync().any(|member| lives(&member));
    let kept_running =
        config.candidates().filter(|member| lives(member) && config.kept_running(*member)).map(|member| member.server);
    let kept_running = kept_running.collect::<BTreeSet<ServerId>>().len();
    let is_enough = if must_all_be_back {
        kept_running >= config.recovery_quorum as usize
    } else {
        config.in_sync().any(|m| lives(&m))
    };
    if is_enough {
        return Vec::new();
    }
    let mut missing: Vec<MissingVolume> = Vec::new();
    let mut look_for = |member: Member, is_needed_if_replaced: bool| {
        let found = live(member.server);
        let is_back = found.is_some_and(|found| is_back(config, &found, &member));
        let is_known = missing.iter().any(|other| other.member.has_volume_of(&member));
        // The copy of a process that runs on may be sound again soon, and may be all that has the last writes.
        let is_replaced = found.is_some_and(|found| found.member != member);
        if is_back || is_known || (is_replaced && !is_needed_if_replaced) {
            return;
        }
        let is_damaged = found.is_some_and(|found| found.is_damaged());
        missing.push(MissingVolume { member, found: found.map(|found| found.member.volume), is_damaged });
    };
    config.primary.into_iter().for_each(|primary| look_for(primary, true));
    let is_needed = must_all_be_back || config.primary.is_none();
    config.backups.iter().for_each(|backup| look_for(*backup, is_needed));
    config.prior_members.iter().for_each(|PriorMember { member, .. }| look_for(*member, true));
    missing
}

/// The volumes that the region of `config` waits for, as far as the view shows.
pub(crate) fn missing_in(view: &View, config: &GroupConfig) -> Vec<MissingVolume> {
    missing_volumes(config, |server| view.server(server).map(|info| ServerCopy::of(info, config)))
}

/// Whether the live server `found` has the files that `member` of `config` had, and not older ones.
pub(super) fn is_back(config: &GroupConfig, found: &ServerCopy, member: &Member) -> bool {
    if planted(Bug::TakeReplacedVolume) {
        return found.member.server == member.server;
    }
    // A member that has run since has more than it found when it started.
    let is_whole = !found.is_damaged() && (found.member == *member || config.is_reached_by(member, found.copy));
    found.member.has_volume_of(member) && (is_whole || planted(Bug::TakeOlderVolume))
}

#[cfg(test)]
#[path = "missing_volumes_tests.rs"]
mod tests;

//! What a region waits for that nobody in sync is left of: volumes that may hold acknowledged writes which no other does.
//!
//! The last primary's volume is always among them: it has every write that the group acknowledged under it, since the
//! primary writes its log before it answers. So are those of [`GroupConfig::former`], until the primary has made durable
//! what it took over from them. A backup that is merely not there yet is awaited as well, since its copy may reach further
//! than the primary's after a loss of power; but one whose server is back with another volume is not: its old copy is
//! gone, and without it nothing is lost that was promised. Only if the primary's volume itself was given up is every
//! backup's volume needed.
//!
//! A primary that must hear of others before it serves ([`GroupConfig::must_hear`]) waits for them, or for every volume.
//!
//! A volume is known by its id, which a copy of it has as well. So one that is back must also hold what its configuration says that
//! it held, the [`Floor`](leeward_format::cluster::Floor): else it is a copy of an older state, and is awaited as if another were there.
//!
//! Pure functions of a configuration and the live servers; any thread.

use leeward_format::cluster::{Former, GroupConfig, Member, ServerInfo};
use leeward_format::{Epoch, Lsn, RegionId, ServerId, VolumeId};
use leeward_platform::{Bug, planted};
use std::collections::BTreeSet;

/// A volume that a region cannot go on without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The member whose volume it is.
    pub member: Member,
    /// The other volume that its server is back with, or the same in an older state; `None` if the server is not there.
    pub found: Option<VolumeId>,
}

/// Who runs as a server, and what its volume held of a region when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Who.
    pub member: Member,
    /// Term and last LSN of its copy; nothing if it had none.
    pub copy: (Epoch, Lsn),
}

impl Found {
    /// What a live server says of itself and `region`.
    pub fn of(info: &ServerInfo, region: RegionId) -> Found {
        let copy = info.copies.iter().find(|copy| copy.region == region);
        Found { member: info.member, copy: copy.map_or((Epoch(0), Lsn(0)), |copy| (copy.term, copy.lsn)) }
    }
}

impl Awaited {
    /// What `region` waits for and what its operator can do, in one sentence.
    pub fn explain(&self, region: RegionId) -> String {
        let Member { server, volume, .. } = self.member;
        let give_up = format!("`leeward accept-loss --region {region} --server {server}`");
        match self.found {
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

/// The volumes that the region of `config` waits for, where `live` answers who runs as a server; none if it has a live
/// primary or somebody can take office now, or if it never had a primary.
pub fn awaited(config: &GroupConfig, live: impl Fn(ServerId) -> Option<Found>) -> Vec<Awaited> {
    let lives = |member: &Member| live(member.server).is_some_and(|found| found.member == *member);
    let must_all_be_back = config.must_hear > 0 && config.in_sync().any(|member| lives(&member));
    let lived_on = config.heirs().filter(|heir| lives(heir) && config.lived_on(*heir)).map(|heir| heir.server);
    let lived_on = lived_on.collect::<BTreeSet<ServerId>>().len();
    let is_enough =
        if must_all_be_back { lived_on >= config.must_hear as usize } else { config.in_sync().any(|m| lives(&m)) };
    if is_enough {
        return Vec::new();
    }
    let mut missing: Vec<Awaited> = Vec::new();
    let mut look_for = |member: Member, is_needed_if_replaced: bool| {
        let found = live(member.server);
        let is_back = found.is_some_and(|found| is_back(config, &found, &member));
        let is_known = missing.iter().any(|other| other.member.has_volume_of(&member));
        if is_back || is_known || (found.is_some() && !is_needed_if_replaced) {
            return;
        }
        missing.push(Awaited { member, found: found.map(|found| found.member.volume) });
    };
    config.primary.into_iter().for_each(|primary| look_for(primary, true));
    let is_needed = must_all_be_back || config.primary.is_none();
    config.backups.iter().for_each(|backup| look_for(*backup, is_needed));
    config.former.iter().for_each(|Former { member, .. }| look_for(*member, true));
    missing
}

/// Whether the live server `found` has the files that `member` of `config` had, no older ones.
pub(crate) fn is_back(config: &GroupConfig, found: &Found, member: &Member) -> bool {
    if planted(Bug::TakeReplacedVolume) {
        return found.member.server == member.server;
    }
    // Who has lived on has more than it found when it started.
    let is_whole = found.member == *member || config.is_reached_by(member, found.copy);
    found.member.has_volume_of(member) && (is_whole || planted(Bug::TakeOlderVolume))
}

#[cfg(test)]
#[path = "awaited_tests.rs"]
mod tests;

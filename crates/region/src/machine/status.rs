//! What a region is doing, in figures.

use super::{Holding, RegionMachine};
use crate::serving::Serving;
use bytes::Bytes;
use leeward_format::cluster::Plan;
use leeward_format::manifest::{LevelState, PIECES, level_at};
use leeward_format::partition::Partition;
use leeward_format::status::{LevelStatus, LogStatus, PeerStatus, PlanStatus, RegionStatus, Role};
use leeward_replication::peer::{Peer, PeerState};

impl RegionMachine {
    /// The figures of the region. `partition`: how the keys of its table are partitioned.
    pub fn status(&self, partition: Partition) -> RegionStatus {
        let me = &self.node.me;
        let mut status = RegionStatus { region: self.id, ..RegionStatus::default() };
        if let Some(config) = &self.config {
            status.table.clone_from(&config.table);
            let text = |bound: &Bytes| partition.bound_text(bound, |key| String::from_utf8_lossy(key).into_owned());
            (status.start, status.end) = (text(&config.start), config.end.as_ref().map(text));
            (status.epoch, status.term) = (config.epoch, config.term);
            status.role = match me {
                me if config.primary.as_ref() == Some(me) => Role::Primary,
                me if config.backups.contains(me) => Role::Backup,
                me if config.learners.contains(me) => Role::Learner,
                _ => Role::None,
            };
        }
        let counters = self.backup.counters();
        status.counters.index_bytes_received = counters.index_bytes_received;
        status.counters.index_bytes_rewritten = counters.index_bytes_rewritten;
        status.counters.installs = counters.installs;
        let built = &self.compacted;
        status.counters.compactions = built.installed;
        status.counters.compaction_bytes_read = built.bytes_read + built.value_bytes_read;
        status.counters.compaction_bytes_written = built.bytes_written;
        status.counters.run_merges = built.run_merges;
        status.counters.piece_merges = built.piece_merges;
        status.counters.index_bytes_read = status.counters.compaction_bytes_read;
        let state = match &self.holding {
            Holding::Serving(serving) => {
                serving.describe(&mut status);
                match serving.is_open() {
                    true => "serving",
                    false if serving.reshape().is_pending_child() => "being split off",
                    false => "recovering",
                }
            }
            Holding::Promoting { .. } => "recovering",
            Holding::Retiring(_) | Holding::Reopening => "stepping down",
            Holding::Broken(reason) => &format!("broken: {reason}"),
            Holding::Copy(_) if self.out_of_space.is_some() => "waiting for room on its device",
            Holding::Copy(_) | Holding::Working if self.backup.is_in_sync() => "in sync",
            Holding::Copy(_) | Holding::Working if self.backup.primary_session().is_some() => "syncing",
            Holding::Copy(_) | Holding::Working => "no session",
        };
        status.state = state.to_owned();
        if let Holding::Copy(Some(copy)) = &self.holding {
            status.last_lsn = copy.position().1;
        }
        if let Some(region) = &self.building {
            let stats = region.stats();
            (status.last_lsn, status.commit_lsn, status.l0_bytes) =
                (region.last_lsn(), region.commit(), stats.l0_bytes);
            status.levels = levels(&stats.levels);
        }
        status
    }
}

/// The figures of each level; all runs of L1 count as one level.
fn levels(positions: &[LevelState]) -> Vec<LevelStatus> {
    let mut levels: Vec<LevelStatus> = Vec::new();
    for (position, state) in positions.iter().enumerate() {
        let level = level_at(position) as u32;
        if levels.last().is_none_or(|last| last.level != level) {
            levels.push(LevelStatus { level, ..LevelStatus::default() });
        }
        if let Some(last) = levels.last_mut() {
            last.leaf_segments += u64::from(state.leaf_segments);
            last.bytes += state.bytes;
            last.runs += u64::from(state.root.is_some());
            last.pieces += u64::from(state.root.is_some() && position < PIECES);
        }
    }
    levels
}

impl Serving {
    fn describe(&self, status: &mut RegionStatus) {
        let stats = self.region().stats();
        status.last_lsn = self.region().last_lsn();
        status.commit_lsn = self.region().commit();
        let space = self.region().space();
        status.bytes = space.bytes - space.shared_bytes;
        (status.l0_bytes, status.promotion_bytes) = (stats.l0_bytes, self.region().promotion_bytes());
        status.levels = levels(&stats.levels);
        status.logs = LogStatus {
            large_bytes: stats.large_log.space_bytes,
            large_live_bytes: stats.large_log.live_bytes,
            medium_bytes: stats.medium_log_bytes,
            relocated_bytes: stats.compactions.relocated_bytes,
            value_bytes_read: stats.compactions.value_bytes_read,
        };
        status.hash_index = self.hash_index_status();
        status.recovery_ms = self.opening().1.as_millis();
        status.peers = self.primary().peers().map(peer_status).collect();
        status.plan = self.primary().config().desired.plan.as_ref().map(|plan| PlanStatus {
            child: plan.child(),
            at: match plan {
                Plan::Split { at, .. } => at.as_ref().map(|key| String::from_utf8_lossy(key).into_owned()),
                Plan::Merge { .. } => None,
            },
            into: plan.neighbour(),
            waits_for: self.reshape().waits_for(),
        });
        let received = status.counters;
        status.counters = self.counters();
        status.counters.compactions += received.compactions;
        status.counters.compaction_bytes_read += received.compaction_bytes_read;
        status.counters.compaction_bytes_written += received.compaction_bytes_written;
        status.counters.run_merges = received.run_merges;
        status.counters.piece_merges = received.piece_merges;
        status.counters.index_bytes_read = received.index_bytes_read;
        status.counters.index_bytes_received = received.index_bytes_received;
        status.counters.index_bytes_rewritten = received.index_bytes_rewritten;
        status.counters.installs = received.installs;
    }
}

fn peer_status(peer: &Peer) -> PeerStatus {
    let state = match peer.state() {
        PeerState::Away if peer.is_linked() => "refused",
        PeerState::Away => "away",
        PeerState::Opening => "joining",
        PeerState::Basing | PeerState::Syncing => "syncing",
        PeerState::InSync => "in sync",
    };
    let (lacked, left) = peer.progress();
    PeerStatus {
        server: peer.member.server,
        state: state.to_owned(),
        member: peer.counted,
        lag_bytes: peer.mirror().map_or(0, leeward_replication::mirror::Mirror::lag_bytes),
        segments_to_ship: peer.segments_to_ship(),
        segments_lacked: lacked,
        segments_sent: lacked - left,
    }
}

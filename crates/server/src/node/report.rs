//! Fills in the figures of a [`NodeStatus`] from the parts of a node.

use crate::node::Node;
use crate::node::region::{Holding, Slot};
use crate::node::serving::Serving;
use bytes::Bytes;
use leeward_engine::{CacheContents, MemoryStats};
use leeward_format::RegionId;
use leeward_format::cluster::Plan;
use leeward_format::manifest::{LevelState, PIECES, level_at};
use leeward_format::partition::Partition;
use leeward_format::routing::Routing;
use leeward_format::status::{
    CacheStatus, DeviceStatus, LevelStatus, LogStatus, MemoryStatus, NetworkStatus, NodeStatus, PeerStatus, PlanStatus,
    RegionStatus, Role,
};
use leeward_replication::peer::{Peer, PeerState};
use std::ops::Bound;

impl Node {
    /// All figures, with regions by table and first key. It takes microseconds for each region.
    pub fn status(&self) -> NodeStatus {
        let mut regions: Vec<RegionStatus> = self.region_statuses(None).collect();
        regions.sort_by(|left, right| (&left.table, &left.start).cmp(&(&right.table, &right.start)));
        NodeStatus { regions, ..self.own_status() }
    }

    /// The figures of regions, by number, of those after `after`.
    pub(crate) fn region_statuses(&self, after: Option<RegionId>) -> impl Iterator<Item = RegionStatus> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.slots.range((after, Bound::Unbounded)).map(|(_, slot)| self.status_of(slot))
    }

    /// The figures, without those of regions.
    pub(crate) fn own_status(&self) -> NodeStatus {
        let context = &self.context;
        let (device, network, cache) = (context.volume.counters(), context.fabric.counters(), context.volume.cache());
        let outage = self.coordinator.outage();
        let not_joined = context.agent.not_joined();
        NodeStatus {
            server: context.me.server,
            volume: context.me.volume,
            incarnation: context.me.incarnation,
            pid: Some(std::process::id()),
            is_master: context.agent.is_master(),
            coordinator_up: context.agent.view().is_synced(),
            coordinator_concern: self.coordinator.concern(),
            not_joined: not_joined
                .map(|not_joined| self.presence.describe(context.clock.now, &not_joined, outage.as_ref())),
            intent: context.agent.view().intent(context.me.server).map(|intent| intent.to_string()),
            balances: context.agent.balances(),
            volume_failure: context.volume.failure().map(str::to_owned),
            volume_full: context.volume.why_full(),
            gets_no_roles: self.loads.why_full(context.clock.now),
            settings_differ: context.peer_settings.differences(self.routes().servers().map(|info| &info.member)),
            device: Some(DeviceStatus {
                bytes_read: device.bytes_read,
                bytes_written: device.bytes_written,
                segment_bytes_used: context.volume.usage().0,
                capacity_bytes: context.volume.capacity(),
            }),
            network: Some(NetworkStatus { bytes_sent: network.bytes_sent, bytes_received: network.bytes_received }),
            cache: CacheStatus { hits: cache.hits(), misses: cache.misses(), ..cache_contents(cache.contents()) },
            memory: memory_status(&context.volume.memory().stats()),
            regions: Vec::new(),
            forwarded: self.forwarding.total,
            missed_wakeups: self.missed_wakeups(),
            stale_reads: self.backup_reads.stale(),
            fresh_reads: self.fresh_reads(),
            safe_lsn_questions: self.safe_lsn_questions(),
            cpu: None,
        }
    }
}

impl Node {
    fn status_of(&self, slot: &Slot) -> RegionStatus {
        let partition = slot.config.as_ref().and_then(|config| self.routes().partition(&config.table));
        slot.status(&self.context.me, partition.unwrap_or_default())
    }
}

impl Slot {
    fn status(&self, me: &leeward_format::cluster::Member, partition: Partition) -> RegionStatus {
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

fn cache_contents(contents: CacheContents) -> CacheStatus {
    let CacheContents { indexes, objects, records } = contents;
    CacheStatus { index_bytes: indexes, object_bytes: objects, record_bytes: records, ..CacheStatus::default() }
}

fn memory_status(stats: &MemoryStats) -> MemoryStatus {
    let &MemoryStats { budget, cache, l0s, compactions, reads, tails, levels, mirrors, rings, clients, hash_indexes } =
        stats;
    let used = stats.used();
    MemoryStatus { budget, used, cache, l0s, compactions, reads, tails, levels, mirrors, rings, clients, hash_indexes }
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

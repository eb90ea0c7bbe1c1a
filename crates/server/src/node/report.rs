//! Fills in the figures of a [`NodeStatus`] from the parts of a node.

use crate::node::Node;
use leeward_engine::{CacheContents, MemoryStats};
use leeward_format::RegionId;
use leeward_format::routing::Routing;
use leeward_format::status::{CacheStatus, DeviceStatus, MemoryStatus, NetworkStatus, NodeStatus, RegionStatus};
use leeward_region::machine::RegionMachine;
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
        self.machines.range((after, Bound::Unbounded)).map(|(_, machine)| self.status_of(machine))
    }

    /// The figures, without those of regions.
    pub(crate) fn own_status(&self) -> NodeStatus {
        let context = &self.context;
        let (device, network, cache) =
            (context.volume.counters(), context.links.fabric().counters(), context.volume.cache());
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
    fn status_of(&self, machine: &RegionMachine) -> RegionStatus {
        let partition = machine.config().and_then(|config| self.routes().partition(&config.table));
        machine.status(partition.unwrap_or_default())
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

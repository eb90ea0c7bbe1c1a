//! Fills in the figures of a [`NodeStatus`] from the parts of a node.

use crate::node::Node;
use leeward_engine::CacheContents;
use leeward_format::RegionId;
use leeward_format::routing::Routing;
use leeward_format::status::{CacheStatus, DeviceStatus, NetworkStatus, NodeStatus, RegionStatus};
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
        self.shard.machines.range((after, Bound::Unbounded)).map(|(_, machine)| self.status_of(machine))
    }

    /// The figures, without those of regions.
    pub(crate) fn own_status(&self) -> NodeStatus {
        let volume = &self.shard.resources.volume;
        let (device, network, cache) = (volume.counters(), self.links.fabric().counters(), volume.cache());
        let (stale_reads, fresh_reads) = self.front.reads_answered();
        let known = self.control.view();
        NodeStatus {
            server: self.member().server,
            volume: self.member().volume,
            incarnation: self.member().incarnation,
            pid: Some(std::process::id()),
            is_master: self.control.is_master(),
            coordinator_up: known.is_synced(),
            coordinator_concern: self.control.coordinator_concern(),
            not_joined: self.control.why_not_joined(),
            intent: known.intent(self.member().server).map(|intent| intent.to_string()),
            balances: self.control.balances(),
            volume_failure: volume.failure().map(str::to_owned),
            volume_full: volume.why_full(),
            gets_no_roles: self.control.why_no_roles(),
            settings_differ: self.peer_settings().differences(self.routes().servers().map(|info| &info.member)),
            device: Some(DeviceStatus {
                bytes_read: device.bytes_read,
                bytes_written: device.bytes_written,
                segment_bytes_used: volume.usage().0,
                capacity_bytes: volume.capacity(),
            }),
            network: Some(NetworkStatus { bytes_sent: network.bytes_sent, bytes_received: network.bytes_received }),
            cache: CacheStatus { hits: cache.hits(), misses: cache.misses(), ..cache_contents(cache.contents()) },
            memory: volume.memory().status(),
            regions: Vec::new(),
            forwarded: self.front.forwarded_total(),
            missed_wakeups: self.missed_wakeups(),
            stale_reads,
            fresh_reads,
            safe_lsn_questions: self.safe_lsn_questions(),
            cpu: None,
        }
    }
}

impl Node {
    /// How often an idle region had work to do although it had no event. Each time is a bug, and the work was done
    /// late.
    pub fn missed_wakeups(&self) -> u64 {
        self.shard.idle.missed_wakeups()
    }

    /// How many reads this node has answered as a backup as of an instant after their call.
    pub fn fresh_reads(&self) -> u64 {
        self.front.reads_answered().1
    }

    /// How many questions for a safe LSN this node has sent to primaries.
    pub fn safe_lsn_questions(&self) -> u64 {
        self.front.safe_lsn_questions()
    }

    fn status_of(&self, machine: &RegionMachine) -> RegionStatus {
        let partition = machine.config().and_then(|config| self.routes().partition(&config.table));
        machine.status(partition.unwrap_or_default())
    }
}

fn cache_contents(contents: CacheContents) -> CacheStatus {
    let CacheContents { indexes, objects, records } = contents;
    CacheStatus { index_bytes: indexes, object_bytes: objects, record_bytes: records, ..CacheStatus::default() }
}

//! The counters of a node, in Prometheus's text format.
//!
//! The event loop's thread counts commands and connections here as they happen. The node counts everything about regions,
//! device and fabric; these figures come as a [`NodeStatus`] at each scrape and are summed by role. So an operator can see
//! that a backup merges nothing and reads nothing from its device for its index. Every role is always present: an absent
//! series cannot be told from a zero.

use leeward_format::status::{CacheStatus, CpuSpent, CpuStatus, MemoryStatus, NodeStatus, RegionStatus, Role};
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;

type Seconds = Counter<f64, AtomicU64>;

/// Upper bounds of the latency buckets, in seconds: 20 us to 10 s.
const LATENCY_SECONDS: [f64; 18] = [
    0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
    10.0,
];

/// What a command does with the store, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Reads of single keys.
    Read,
    /// Writes.
    Write,
    /// Reads of ranges.
    Scan,
    /// No access to the store.
    Other,
}

impl Class {
    /// Label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Class::Read => "read",
            Class::Write => "write",
            Class::Scan => "scan",
            Class::Other => "other",
        }
    }
}

const CLASSES: [Class; 4] = [Class::Read, Class::Write, Class::Scan, Class::Other];

fn new_histogram() -> Histogram {
    Histogram::new(LATENCY_SECONDS)
}

/// Why the server closed a connection by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Its bytes were no request.
    Protocol,
    /// It left its replies unread for too long.
    Stalled,
    /// It did not come to the end of its TLS handshake in time.
    Handshake,
    /// It left more replies unread than may be held.
    OutputLimit,
    /// The memory for clients was full, and this connection held most of it without giving any back.
    Memory,
}

/// The label of each [`Dropped`], in their order.
const REASONS: [&str; 5] = ["protocol", "stalled", "handshake", "output-limit", "memory"];

/// Sums over all commands and connections, for `INFO stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Commands answered.
    pub commands: u64,
    /// Of these, those answered by an error.
    pub failed: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Connections refused because there were too many.
    pub refused: u64,
}

/// Counters of one process.
pub struct Metrics {
    /// The commands' names and classes.
    table: Vec<(&'static str, Class)>,
    /// By position in the table of commands; the last counts those that are not in it.
    commands: Vec<CommandCounters>,
    latency_by_class: Family<ClassLabel, Histogram, fn() -> Histogram>,
    /// The same histograms, by class, without the look-up.
    latency: [Histogram; 4],
    native_requests: Counter,
    native_operations: Counter,
    ring_requests: Counter,
    ring_bells: Counter,
    ring_clients: Gauge,
    lease_lateness: Histogram,
    resp_connections: Connections,
    native_connections: Connections,
    refused: Counter,
    password_checks: Counter,
    /// By [`Dropped`].
    dropped: [Counter; REASONS.len()],
}

#[derive(Default)]
struct CommandCounters {
    calls: Counter,
    failed: Counter,
    nanos: Counter,
}

/// Connections of one protocol.
#[derive(Default)]
pub(crate) struct Connections {
    accepted: Counter,
    open: Gauge,
}

impl Connections {
    pub(crate) fn opened(&self) {
        self.accepted.inc();
        self.open.inc();
    }
    pub(crate) fn closed(&self) {
        self.open.dec();
    }
}

impl Metrics {
    /// Counters for commands of these names and classes, in this order, and for all others together.
    pub fn new(table: Vec<(&'static str, Class)>) -> Metrics {
        let latency_by_class = Family::new_with_constructor(new_histogram as fn() -> Histogram);
        let latency = CLASSES.map(|class| {
            let label = ClassLabel { class: class.label() };
            Histogram::clone(&latency_by_class.get_or_create(&label))
        });
        Metrics {
            commands: (0..=table.len()).map(|_| CommandCounters::default()).collect(),
            table,
            latency_by_class,
            latency,
            native_requests: Counter::default(),
            native_operations: Counter::default(),
            ring_requests: Counter::default(),
            ring_bells: Counter::default(),
            ring_clients: Gauge::default(),
            lease_lateness: new_histogram(),
            resp_connections: Connections::default(),
            native_connections: Connections::default(),
            refused: Counter::default(),
            password_checks: Counter::default(),
            dropped: Default::default(),
        }
    }
}

impl Metrics {
    /// Counts a Redis command that was answered `nanos` after it came. `position`: its place in the table.
    pub fn command(&self, position: Option<usize>, nanos: u64, failed: bool) {
        let class = position.map_or(Class::Other, |position| self.table[position].1);
        let counters = &self.commands[position.unwrap_or(self.commands.len() - 1)];
        counters.calls.inc();
        counters.nanos.inc_by(nanos);
        if failed {
            counters.failed.inc();
        }
        self.latency[class as usize].observe(nanos as f64 / 1e9);
    }

    /// Counts a native request of `operations`.
    pub fn native_request(&self, operations: usize) {
        self.native_requests.inc();
        self.native_operations.inc_by(operations as u64);
    }

    /// Counts messages that were taken from a ring.
    pub(crate) fn ring_requests(&self, messages: usize) {
        self.ring_requests.inc_by(messages as u64);
    }

    /// Counts a bell that was sent to a sleeping client.
    pub(crate) fn ring_bell(&self) {
        self.ring_bells.inc();
    }

    /// Sets the number of clients with rings.
    pub(crate) fn ring_clients(&self, clients: usize) {
        self.ring_clients.set(clients as i64);
    }

    /// Counts a lease request or grant of another node that was handled so many seconds after its arrival.
    pub(crate) fn lease_message(&self, seconds: f64) {
        self.lease_lateness.observe(seconds);
    }

    /// Counts a connection whose bytes were no request.
    pub fn protocol_error(&self) {
        self.dropped(Dropped::Protocol);
    }

    /// Counts a connection that the server closed by itself.
    pub fn dropped(&self, why: Dropped) {
        self.dropped[why as usize].inc();
    }

    /// Counts a connection that was closed because there were too many.
    pub fn refused(&self) {
        self.refused.inc();
    }

    /// Counts a check of a password, or a change of a user, that took the password thread its time.
    pub(crate) fn password_checked(&self) {
        self.password_checks.inc();
    }

    /// Connections of Redis clients.
    pub(crate) fn resp_connections(&self) -> &Connections {
        &self.resp_connections
    }

    /// Connections of native clients.
    pub(crate) fn native_connections(&self) -> &Connections {
        &self.native_connections
    }

    /// Sums over all commands and connections.
    pub fn totals(&self) -> Totals {
        Totals {
            commands: self.commands.iter().map(|command| command.calls.get()).sum(),
            failed: self.commands.iter().map(|command| command.failed.get()).sum(),
            connections: self.resp_connections.accepted.get() + self.native_connections.accepted.get(),
            refused: self.refused.get(),
        }
    }

    /// Name, calls, nanoseconds and failures of every command that was called.
    pub(crate) fn each_command(&self, mut each: impl FnMut(&str, u64, u64, u64)) {
        for ((name, _), counters) in self.table.iter().zip(&self.commands) {
            if counters.calls.get() > 0 {
                each(name, counters.calls.get(), counters.nanos.get(), counters.failed.get());
            }
        }
    }

    /// All metrics, with the node's own figures, in Prometheus's (OpenMetrics) text format.
    pub fn encode(&self, status: &NodeStatus) -> String {
        let mut registry = Registry::with_prefix("leeward");
        self.register_clients(&mut registry);
        register_node(&mut registry, status);
        register_regions(&mut registry, status);
        let mut text = String::new();
        encode(&mut text, &registry).expect("writing to a string cannot fail");
        text
    }

    fn register_clients(&self, registry: &mut Registry) {
        let calls = Family::<Command, Counter>::default();
        let failed = Family::<Command, Counter>::default();
        let names = self.table.iter().map(|(name, _)| *name).chain(["unknown"]);
        for (command, counters) in names.zip(&self.commands).filter(|(_, counters)| counters.calls.get() > 0) {
            calls.get_or_create(&Command { command }).inc_by(counters.calls.get());
            failed.get_or_create(&Command { command }).inc_by(counters.failed.get());
        }
        registry.register("commands", "Redis commands answered", calls);
        registry.register("commands_failed", "Redis commands answered by an error", failed);
        let help = "Time from reading a command to its reply";
        registry.register_with_unit("command", help, Unit::Seconds, self.latency_by_class.clone());
        registry.register("native_requests", "Requests of native clients", self.native_requests.clone());
        registry.register("native_operations", "Operations in them", self.native_operations.clone());
        let taken = "Messages taken from request rings of native clients";
        registry.register("ring_requests", taken, self.ring_requests.clone());
        registry.register("ring_bells", "Bells sent to sleeping ring clients", self.ring_bells.clone());
        registry.register("ring_clients", "Native clients with rings", self.ring_clients.clone());
        let late = "Time from the arrival of a lease request or grant until it was handled";
        registry.register_with_unit("lease_lateness", late, Unit::Seconds, self.lease_lateness.clone());
        let open = Family::<ProtocolLabel, Gauge>::default();
        let accepted = Family::<ProtocolLabel, Counter>::default();
        for (protocol, connections) in [("resp", &self.resp_connections), ("native", &self.native_connections)] {
            open.get_or_create(&ProtocolLabel { protocol }).set(connections.open.get());
            accepted.get_or_create(&ProtocolLabel { protocol }).inc_by(connections.accepted.get());
        }
        registry.register("connections", "Open client connections", open);
        registry.register("connections_accepted", "Client connections accepted", accepted);
        registry.register(
            "connections_refused",
            "Client connections closed because there were too many",
            self.refused.clone(),
        );
        let checks = "Checks of passwords, some 20 ms each; one answers all that ask the same at the same time";
        registry.register("password_checks", checks, self.password_checks.clone());
        let dropped = Family::<Reason, Counter>::default();
        for (reason, counter) in REASONS.into_iter().zip(&self.dropped) {
            dropped.get_or_create(&Reason { reason }).inc_by(counter.get());
        }
        registry.register("connections_dropped", "Client connections closed by the server", dropped);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Command {
    command: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabel {
    class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProtocolLabel {
    protocol: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleLabel {
    role: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleReason {
    role: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SpentLabel {
    activity: String,
    role: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRegion {
    region: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Peer {
    region: u32,
    peer: u32,
}

fn register_node(registry: &mut Registry, status: &NodeStatus) {
    let counter = |registry: &mut Registry, name: &str, help: &str, value: u64| {
        let counter: Counter = Counter::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    };
    let gauge = |registry: &mut Registry, name: &str, help: &str, value: u64| {
        let gauge: Gauge = Gauge::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    };
    let (device, network) = (status.device.unwrap_or_default(), status.network.unwrap_or_default());
    counter(registry, "device_read_bytes", "Bytes read from the volume", device.bytes_read);
    counter(registry, "device_written_bytes", "Bytes written to the volume", device.bytes_written);
    gauge(registry, "segments_used_bytes", "Bytes of the volume's segments in use", device.segment_bytes_used);
    counter(registry, "fabric_sent_bytes", "Bytes sent over the fabric", network.bytes_sent);
    counter(registry, "fabric_received_bytes", "Bytes received over the fabric", network.bytes_received);
    counter(registry, "cache_hits", "Look-ups answered by the cache", status.cache.hits);
    counter(
        registry,
        "cache_misses",
        "Reads of leaves, indexes and values that went to the device",
        status.cache.misses,
    );
    gauge(registry, "memory_budget_bytes", "Bytes of memory that regions may use", status.memory.budget);
    register_memory(registry, &status.memory);
    register_cache(registry, &status.cache);
    register_cpu(registry, status.cpu.as_ref());
    counter(registry, "forwarded", "Operations forwarded to another node", status.forwarded);
    counter(
        registry,
        "missed_wakeups",
        "Idle regions that had work to do although no event had woken them",
        status.missed_wakeups,
    );
    counter(registry, "stale_reads", "Reads answered as a backup, which may be stale", status.stale_reads);
    counter(registry, "fresh_reads", "Reads answered as a backup, none of them stale", status.fresh_reads);
    counter(
        registry,
        "safe_lsn_questions",
        "Questions to primaries for a safe LSN, for reads as a backup that are not stale",
        status.safe_lsn_questions,
    );
    gauge(registry, "is_master", "This node is the master", status.is_master.into());
    gauge(registry, "coordinator_up", "The session with the coordinator is alive", status.coordinator_up.into());
    gauge(registry, "volume_failed", "The volume takes no writes any more", status.volume_failure.is_some().into());
    gauge(registry, "volume_full", "The volume is full", status.volume_full.is_some().into());
    let differ = status.settings_differ.len() as u64;
    gauge(registry, "settings_differ", "Settings that differ from those of another node, for each such node", differ);
    gauge(registry, "cluster_member", "This node is part of the cluster", status.not_joined.is_none().into());
    if let Some(capacity) = device.capacity_bytes {
        gauge(registry, "volume_capacity_bytes", "Bytes that the volume may reach", capacity);
    }
}

fn register_cpu(registry: &mut Registry, cpu: Option<&CpuStatus>) {
    let family = Family::<SpentLabel, Seconds>::default();
    for CpuSpent { activity, role, nanos } in cpu.into_iter().flat_map(|cpu| &cpu.spent) {
        let label = SpentLabel { activity: activity.clone(), role: role.clone() };
        family.get_or_create(&label).inc_by(*nanos as f64 / 1e9);
    }
    registry.register_with_unit("cpu", "CPU time of the process, by activity and role", Unit::Seconds, family);
}

/// Registers a gauge of bytes with one label, whose values and bytes are `parts`.
fn register_bytes(
    registry: &mut Registry,
    (name, help): (&str, &str),
    label: &'static str,
    parts: &[(&'static str, u64)],
) {
    let family = Family::<[(&'static str, &'static str); 1], Gauge>::default();
    for (value, bytes) in parts {
        family.get_or_create(&[(label, *value)]).set(i64::try_from(*bytes).unwrap_or(i64::MAX));
    }
    registry.register(name, help, family);
}

fn register_cache(registry: &mut Registry, cache: &CacheStatus) {
    let &CacheStatus { hits: _, misses: _, index_bytes, object_bytes, record_bytes } = cache;
    let parts = [("indexes", index_bytes), ("objects", object_bytes), ("records", record_bytes)];
    register_bytes(registry, ("cache_bytes", "Memory of the cache, by what it holds"), "contents", &parts);
}

fn register_memory(registry: &mut Registry, memory: &MemoryStatus) {
    let &MemoryStatus {
        budget: _,
        used: _,
        cache,
        l0s,
        compactions,
        reads,
        tails,
        levels,
        mirrors,
        rings,
        clients,
        hash_indexes,
    } = memory;
    let by_purpose = [
        ("cache", cache),
        ("l0s", l0s),
        ("compactions", compactions),
        ("reads", reads),
        ("tails", tails),
        ("levels", levels),
        ("mirrors", mirrors),
        ("rings", rings),
        ("clients", clients),
        ("hash-indexes", hash_indexes),
    ];
    register_bytes(registry, ("memory_bytes", "Bytes of memory in use, by purpose"), "purpose", &by_purpose);
}

fn register_regions(registry: &mut Registry, status: &NodeStatus) {
    let by_role = |registry: &mut Registry, name: &str, help: &str, value: fn(&RegionStatus) -> u64| {
        let family = Family::<RoleLabel, Counter>::default();
        for role in Role::ALL {
            let sum = status.regions.iter().filter(|region| region.role == role).map(value).sum();
            family.get_or_create(&RoleLabel { role: role.name() }).inc_by(sum);
        }
        registry.register(name, help, family);
    };
    by_role(registry, "compactions", "Compactions finished", |r| r.counters.compactions);
    by_role(registry, "compaction_read_bytes", "Bytes that compactions read from the device", |r| {
        r.counters.compaction_bytes_read
    });
    by_role(registry, "compaction_written_bytes", "Bytes that compactions wrote", |r| {
        r.counters.compaction_bytes_written
    });
    by_role(registry, "run_merges", "Merges of all sorted runs of a two-layer log that ended", |r| {
        r.counters.run_merges
    });
    by_role(registry, "piece_merges", "Merges of pieces of a two-layer log into a sorted run", |r| {
        r.counters.piece_merges
    });
    by_role(registry, "user_bytes", "Bytes of keys and values written by clients", |r| r.counters.user_bytes);
    by_role(registry, "index_shipped_bytes", "Bytes of index sent to backups", |r| r.counters.index_bytes_shipped);
    by_role(registry, "run_shipped_bytes", "Bytes of sorted runs sent to backups", |r| r.counters.run_bytes_shipped);
    by_role(registry, "index_received_bytes", "Bytes of index received", |r| r.counters.index_bytes_received);
    by_role(registry, "index_rewritten_bytes", "Bytes of received index with pointers translated", |r| {
        r.counters.index_bytes_rewritten
    });
    by_role(registry, "index_read_bytes", "Bytes that a backup read from its device for its index", |r| {
        r.counters.index_bytes_read
    });
    by_role(registry, "sync_shipped_bytes", "Bytes sent to bring a backup in sync", |r| r.counters.sync_bytes_shipped);
    by_role(registry, "installs", "Shipped compactions installed", |r| r.counters.installs);
    by_role(registry, "splits", "Regions that were split off", |r| r.counters.splits);
    by_role(registry, "splits_failed", "Attempts to split a region that were given up", |r| r.counters.splits_failed);
    by_role(registry, "merges", "Neighbours that were merged into regions", |r| r.counters.merges);
    by_role(registry, "merges_failed", "Attempts to merge a region into its neighbour that were given up", |r| {
        r.counters.merges_failed
    });
    by_role(registry, "trims", "Ranges deleted after a split, because they belong to another region", |r| {
        r.counters.trims
    });
    by_role(registry, "relocated_bytes", "Bytes of values moved out of segments that were mostly garbage", |r| {
        r.logs.relocated_bytes
    });
    by_role(registry, "value_read_bytes", "Bytes that compactions read from logs to move values", |r| {
        r.logs.value_bytes_read
    });
    by_role(registry, "hash_index_published", "Pairs that were put into hash indexes", |r| r.hash_index.published);
    by_role(registry, "hash_index_evicted", "Pairs that were evicted from hash indexes", |r| r.hash_index.evicted);
    register_logs(registry, status);
    register_states(registry, status);
}

fn register_logs(registry: &mut Registry, status: &NodeStatus) {
    let sum = |value: fn(&RegionStatus) -> u64| {
        let gauge: Gauge = Gauge::default();
        gauge.set(status.regions.iter().map(value).sum::<u64>() as i64);
        gauge
    };
    registry.register("large_log_bytes", "Bytes that the large log takes of the volume", sum(|r| r.logs.large_bytes));
    let live = sum(|r| r.logs.large_live_bytes);
    registry.register("large_log_live_bytes", "Bytes of the large log that leaves point to", live);
    let medium = sum(|r| r.logs.medium_bytes);
    registry.register("medium_log_bytes", "Bytes that runs of medium values take of the volume", medium);
    registry.register("hash_index_records", "Pairs in hash indexes", sum(|r| r.hash_index.records));
}

fn register_states(registry: &mut Registry, status: &NodeStatus) {
    let regions = Family::<RoleLabel, Gauge>::default();
    let stalls = Family::<RoleReason, Seconds>::default();
    let (runs, l0s) = (Family::<RoleLabel, Gauge>::default(), Family::<RoleLabel, Gauge>::default());
    let recovering: Gauge = Gauge::default();
    for role in Role::ALL {
        let with_role = || status.regions.iter().filter(|region| region.role == role);
        let label = RoleLabel { role: role.name() };
        runs.get_or_create(&label).set(with_role().map(RegionStatus::runs).sum::<u64>() as i64);
        l0s.get_or_create(&label).set(with_role().map(|region| region.l0_bytes).sum::<u64>() as i64);
        regions.get_or_create(&RoleLabel { role: role.name() }).set(with_role().count() as i64);
        let l0_full: u64 = with_role().map(|region| region.counters.stall_l0_full_ns).sum();
        let tail: u64 = with_role().map(|region| region.counters.stall_tail_ns).sum();
        let slowed: u64 = with_role().map(|region| region.counters.stall_slowed_ns).sum();
        for (reason, nanos) in [("l0-full", l0_full), ("log-tail", tail), ("slowed", slowed)] {
            stalls.get_or_create(&RoleReason { role: role.name(), reason }).inc_by(nanos as f64 / 1e9);
        }
    }
    recovering.set(status.regions.iter().filter(|region| region.state == "recovering").count() as i64);
    registry.register("regions", "Regions of this node", regions);
    registry.register("sorted_runs", "Sorted runs of all copies, each level below L1 one of them", runs);
    registry.register("l0_bytes", "Memory of the L0s", l0s);
    registry.register("regions_recovering", "Regions whose primary on this node does not serve yet", recovering);
    registry.register_with_unit("write_stall", "Time during which writes waited", Unit::Seconds, stalls);
    let promotion = Family::<OfRegion, Gauge>::default();
    for region in status.regions.iter().filter(|region| region.role == Role::Primary) {
        let label = OfRegion { region: region.region.0 };
        promotion.get_or_create(&label).set(region.promotion_bytes as i64);
    }
    registry.register(
        "promotion_bytes",
        "What a backup would have to replay to take over from here, in bytes of L0s of small values",
        promotion,
    );
    let (lacked, sent) = (Family::<Peer, Gauge>::default(), Family::<Peer, Gauge>::default());
    let lag = Family::<Peer, Gauge>::default();
    let to_ship = Family::<Peer, Gauge>::default();
    for region in &status.regions {
        for peer in &region.peers {
            let label = Peer { region: region.region.0, peer: peer.server.0 };
            lag.get_or_create(&label).set(peer.lag_bytes as i64);
            to_ship.get_or_create(&label).set(peer.segments_to_ship as i64);
            lacked.get_or_create(&label).set(peer.segments_lacked as i64);
            sent.get_or_create(&label).set(peer.segments_sent as i64);
        }
    }
    registry.register("replication_lag_bytes", "Log bytes that a peer has not confirmed", lag);
    registry.register("replication_catch_up_segments", "Segments that a peer lacked when its session began", lacked);
    registry.register("replication_catch_up_sent", "Of those, the ones that were sent", sent);
    registry.register("replication_segments_to_ship", "Segments still to be sent to a peer", to_ship);
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;

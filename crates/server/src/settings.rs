//! Every setting of a node, with its range and its explanation. [`crate::NodeConfig`] checks numbers against the
//! ranges. `leeward config --explain` and docs/configuration.md show this list. No threads.

use leeward_format::MAX_SEGMENT_BYTES;
use leeward_format::ring::{MAX_RING_BYTES, MIN_RING_BYTES};
use leeward_format::superblock::MIN_SEGMENT_BYTES;
use std::fmt::{self, Display};
use std::ops::RangeInclusive;

/// One setting. Texts are Markdown.
#[derive(Debug)]
pub struct Setting {
    /// Its name in the file.
    pub name: &'static str,
    /// Its value if it is not given.
    pub default: &'static str,
    /// Its allowed values.
    pub allowed: Allowed,
    /// What it does, for `leeward config --explain` and the documents.
    pub explanation: &'static str,
}

/// The allowed values of a setting.
#[derive(Debug)]
pub enum Allowed {
    /// A number in this range, in the setting's own unit.
    Number(RangeInclusive<u64>),
    /// A number of bytes, and another condition.
    Bytes(RangeInclusive<u64>, &'static str),
    /// Something else.
    Text(&'static str),
}

impl Allowed {
    /// The range, if the setting is a number.
    pub fn range(&self) -> Option<&RangeInclusive<u64>> {
        match self {
            Allowed::Number(range) | Allowed::Bytes(range, _) => Some(range),
            Allowed::Text(_) => None,
        }
    }
}

impl Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Allowed::Number(range) => write!(f, "{} to {}", grouped(*range.start()), grouped(*range.end())),
            Allowed::Bytes(range, more) => write!(f, "{} to {}{more}", size(*range.start()), size(*range.end())),
            Allowed::Text(text) => f.write_str(text),
        }
    }
}

/// The number with a comma before each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits"));
    groups.collect::<Vec<_>>().join(",")
}

/// A size in the largest unit of which it is a multiple.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes == 0 {
        return "0".into();
    }
    let unit = (bytes.trailing_zeros() / 10).min(5);
    format!("{} {}", bytes >> (10 * unit), UNITS[unit as usize])
}

/// The setting called `name`.
pub fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

const fn number(
    name: &'static str,
    default: &'static str,
    range: RangeInclusive<u64>,
    explanation: &'static str,
) -> Setting {
    Setting { name, default, allowed: Allowed::Number(range), explanation }
}

const fn bytes(
    name: &'static str,
    default: &'static str,
    (range, more): (RangeInclusive<u64>, &'static str),
    explanation: &'static str,
) -> Setting {
    Setting { name, default, allowed: Allowed::Bytes(range, more), explanation }
}

const fn text(name: &'static str, default: &'static str, allowed: &'static str, explanation: &'static str) -> Setting {
    Setting { name, default, allowed: Allowed::Text(allowed), explanation }
}

/// Settings that are to be the same on all nodes. Each node compares its own with those of the others.
pub const SHARED: &[&str] =
    &["balance", "split_ops", "split_cooldown_seconds", "merge_bytes", "segment_bytes", "redis_table"];

/// All settings, in the order of the page.
pub const SETTINGS: &[Setting] = &[
    number("server_id", "1", 1..=10_000, "number of the server, unique in the cluster"),
    text("data_dir", "`leeward-data/node-<id>`", "a directory", "where its volume is; one process at a time"),
    text(
        "location",
        "none",
        "`LABEL=VALUE`, up to 8 of them with commas between",
        "where it stands, from coarse to fine, as `zone=a,rack=7,host=h3`: the copies of a region are kept in \
         [different places](operations.md#copies-in-different-places) as far as the servers allow. The same labels in the same \
         order on all nodes",
    ),
    text(
        "coordinator",
        "`127.0.0.1:7779`",
        "an address, or `zk://host[:port],host[:port],.../path`",
        "address of the embedded coordinator, which only `leeward dev` runs, or the cluster's path at \
         [ZooKeeper](zookeeper.md); `--coordinator` on the command line",
    ),
    text(
        "zookeeper_auth_file",
        "none",
        "a file",
        "one line, `user:password`: [only this user](zookeeper.md#who-may-read-and-change-it) then has access to what \
         Leeward writes at ZooKeeper. Never on the command line, which every user of the machine can read",
    ),
    number(
        "expected_servers",
        "3",
        1..=1_000,
        "with this many live servers a master assigns regions at once; with fewer it waits two seconds first",
    ),
    text(
        "balance",
        "`true`",
        "`true`, `false`",
        "whether this node, as the master, [balances](reconfiguration.md#balance) copies and primary roles. The same on all \
         nodes",
    ),
    number(
        "split_ops",
        "10,000",
        0..=1_000_000_000,
        "load, in operations a second, at which the master may [split](reconfiguration.md#split) a region that has most \
         of its server's load; each KiB written counts as one more operation; 0: never for load. The size at which a \
         region is split is an [option of each table](tables.md#options). The same on all nodes",
    ),
    number(
        "split_cooldown_seconds",
        "60",
        1..=86_400,
        "for this long after a split, the master splits neither half again; two neighbours must have had little load for \
         ten times as long before it [merges](reconfiguration.md#merged) them. The same on all nodes",
    ),
    bytes(
        "merge_bytes",
        "4 MiB",
        (0..=64 << 20, ""),
        "most bytes of keys and values that a region may have to be [merged into its neighbour](reconfiguration.md#merged), \
         which copies them while operations on them wait; 0: no merges. The same on all nodes",
    ),
    text("resp_listen", "`127.0.0.1:<7378 + server_id>`", "an IP address and a port", "address for Redis clients"),
    text("native_listen", "`127.0.0.1:<7478 + server_id>`", "an IP address and a port", "address for native clients"),
    text(
        "admin_listen",
        "`127.0.0.1:<7578 + server_id>`",
        "an IP address and a port",
        "address for operators: `/`, `/status`, `/metrics`, `/livez`, `/readyz`",
    ),
    text(
        "fabric_listen",
        "`127.0.0.1:<7678 + server_id>`",
        "an IP address and a port, or a socket",
        "address for the other nodes; with `fabric = \"shm\"` a socket's path, or `@name`",
    ),
    text(
        "fabric",
        "`tcp`",
        "`tcp`, `shm`, `libfabric`, `libfabric:verbs`, `libfabric:efa`, `libfabric:tcp`, `libfabric:shm`",
        "how nodes reach each other's memory, all nodes alike; `shm` and `libfabric:shm` only between processes of \
         one host (the latter from libfabric 1.17 on, and never two nodes in one process: it crashes there); \
         [libfabric](operations.md#libfabric) must be installed; without a provider's name it uses the first that \
         is available of EFA, verbs and its own TCP",
    ),
    text(
        "advertise_host",
        "the address listened on",
        "a host name or IP address, without a port",
        "the host under which clients and other nodes reach this node, which the node tells them. Needed where it \
         listens on `0.0.0.0` or `[::]`, which are no addresses to connect to",
    ),
    text(
        "insecure_listen",
        "`false`",
        "`true`, `false`",
        "without TLS: listen on addresses that are not loopback. While there are no [users](users.md): let clients of other \
         machines in, each of which can do everything",
    ),
    text(
        "audit_log",
        "none",
        "a file",
        "[audit log](users.md#audit-log), as lines of JSON: operators' requests, changes of users, failed tries. The file may \
         be renamed at any time. They are also in the node's own log, as `leeward::audit`",
    ),
    text(
        "core_dumps",
        "`false`",
        "`true`, `false`",
        "with TLS keys, encryption keys or [users](users.md): let the system write core files of the node, and debuggers of \
         its user look into it. [Without](security.md#what-a-process-shows) neither sees secrets",
    ),
    text(
        "tls_ca",
        "none",
        "a file",
        "[TLS](security.md): certificates, in PEM, of the authorities that sign the certificates of nodes. With it, \
         everything that goes over TCP is encrypted: clients, operators, other nodes and the coordinator",
    ),
    text("tls_certificate", "none", "a file", "the node's certificate, in PEM, and those between it and the authority"),
    text("tls_key", "none", "a file", "the key of that certificate, in PEM"),
    text(
        "insecure_fabric",
        "`false`",
        "`true`, `false`",
        "with TLS: use `libfabric`, or rings over a network, although [they are not encrypted](security.md#what-is-not-encrypted)",
    ),
    text(
        "rings",
        "`shm`",
        "`shm`, `tcp`, `libfabric`, `libfabric:` with a provider, `off`",
        "the fabric for the rings of native clients: `shm` for clients on this host, the others for clients anywhere; \
         clients need [libfabric](operations.md#libfabric) installed as well",
    ),
    bytes(
        "ring_bytes",
        "256 KiB",
        (MIN_RING_BYTES as u64..=MAX_RING_BYTES as u64, ", a multiple of 64"),
        "most bytes of one client's request ring. All rings together get an eighth of `memory_budget`",
    ),
    number(
        "ring_spin_us",
        "100 with four cores or more, else 0",
        0..=100_000,
        "how long after the last request the node spins on its rings before it sleeps, in microseconds. With 0, clients \
         wake it for each request",
    ),
    bytes(
        "capacity_bytes",
        "as far as the device allows",
        (64 << 20..=1 << 50, ""),
        "size that the volume may reach; when it is full, the node refuses writes, takes deletes and serves reads",
    ),
    bytes(
        "memory_budget",
        "128 MiB",
        (16 << 20..=1 << 40, ""),
        "memory for [what its regions hold](operations.md#memory): L0s, buffers, windows of logs; the cache gets the \
         remainder. At least 64 KiB for each region",
    ),
    bytes(
        "segment_bytes",
        "2 MiB",
        (MIN_SEGMENT_BYTES as u64..=MAX_SEGMENT_BYTES as u64, ", a power of two"),
        "segment size of a new volume; a volume keeps its own. The same on all nodes",
    ),
    text(
        "encryption_key_file",
        "none",
        "a file",
        "[keys that the volume is encrypted with](security.md#encryption-at-rest): lines of a name and 64 hexadecimal \
         digits, the last one is the current key. Only a new volume becomes encrypted",
    ),
    text(
        "encryption_key_command",
        "none",
        "a list: a program and its arguments",
        "instead of the file: the node runs it when it starts, and it prints such lines. Its arguments are no place for \
         secrets, since every user of the machine can read them",
    ),
    number(
        "job_threads",
        "2",
        1..=64,
        "threads for flushes and reads from the device; one less, but at least one, of low priority, for compactions",
    ),
    number(
        "max_connections",
        "10,000",
        1..=100_000,
        "client connections of both protocols together; [operators](operations.md#more-clients-than-places) have some besides",
    ),
    bytes(
        "client_output_bytes",
        "256 MiB",
        (1 << 20..=4 << 30, ""),
        "replies that one client may leave unread; beyond that, it is disconnected",
    ),
    number(
        "client_stall_seconds",
        "60",
        1..=86_400,
        "how long a client may read no byte of its replies before it is disconnected",
    ),
    text(
        "redis_table",
        "`default`",
        "a table's name",
        "the table of database 0, which Redis clients begin with. The same on all nodes, before any client in [cluster \
         mode](resp.md#cluster-mode) connects: a client follows a redirection to the other node's database 0, so a node \
         where that is another table would accept its writes there",
    ),
    number(
        "catch_up_mib_per_second",
        "128",
        0..=1_000_000,
        "MiB a second that this node reads and sends to build learners of the regions that it serves; 0: no limit. A \
         member that writes wait for is brought in sync without this limit. \
         `leeward_replication_catch_up_sent` of `leeward_replication_catch_up_segments`, and the status page, show \
         the progress",
    ),
    number(
        "flush_interval_ms",
        "1,000",
        10..=60_000,
        "how long written bytes may stay in the page cache before they are made durable: a power loss of all replicas \
         at once can lose this much. `kill -9` loses nothing",
    ),
    number(
        "session_timeout_ms",
        "1,000",
        200..=60_000,
        "silence after which the coordinator declares the node dead; [ZooKeeper](zookeeper.md#timeouts) grants 2 \
         to 20 times its `tickTime`, which by default is 4 s at least",
    ),
    number(
        "lease_ms",
        "600",
        100..=60_000,
        "how long the lease grants last that this node gets as a primary: for this long after it was cut off, no other node \
         serves its regions. It may differ between nodes, and each lease lasts as long as its holder asks for",
    ),
];

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;

//! The arguments of subcommands, and the text of their `--help`.

use clap::{Args, Subcommand};
use leeward_bench::{Distribution, Mix, Workload, duration};
use leeward_format::SegmentNo;
use leeward_format::cluster::{Addressing, BackupMode, CompactionMode, Placement, Posting, TableOptions};
use leeward_format::packed::{Codec, Compression};
use leeward_format::table::{DEFAULT_TABLE, TableName};
use leeward_operate::dev::{DEFAULT_BASE, Fabric, default_table};
use std::path::PathBuf;
use std::time::Duration;

mod connect;
mod consistency;
mod operators;
mod pairs;
mod replication;
mod table;
pub(crate) use connect::{Connect, InTable};
use consistency::ConsistencyArgs;
pub(crate) use operators::{AcceptLossArgs, CheckpointArgs, IngestArgs, RestoreCoordinatorArgs};
pub(crate) use pairs::{ConditionArgs, CountArgs, DelArgs, GetArgs, PutArgs, ScanArgs};
pub(crate) use replication::ReplicationArgs;
pub(crate) use table::{
    AlterTableArgs, CreateTableArgs, DescribeTableArgs, DropTableArgs, TableCommand, TableCommands,
};

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward dev                                  three nodes, data in ./leeward-data
  leeward dev --nodes 1                        a single-node store
  leeward dev --restart                        restart nodes that die
  leeward dev --tls --encrypt                  encrypt connections, and volumes
  leeward dev --data /tmp/x --base-port 9379   a second cluster beside the first

Node i (from 1) listens for Redis clients on the base port + i - 1, for native clients 100 above, for operators 200
above, for its peers 300 above. The coordinator listens 400 above the base port. Ctrl-C stops all nodes. They also stop
when this process dies. A node that dies stays dead unless --restart is given: kill one and watch.")]
pub(crate) struct DevArgs {
    /// Number of nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub(crate) nodes: u32,
    /// Directory for the data and logs of all nodes
    #[arg(long, default_value = "leeward-data", value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// Restart a node that dies, after a second
    #[arg(long)]
    pub(crate) restart: bool,
    /// First keys of the second and later regions, ascending, when the cluster is created. The default spreads words,
    /// and the records of the benchmark, over the nodes [default: i,user06,user12]
    #[arg(long, value_delimiter = ',', value_name = "KEYS")]
    pub(crate) split_at: Option<Vec<String>>,
    /// How nodes write each other's memory
    #[arg(long, value_enum, default_value = "shm")]
    pub(crate) fabric: Fabric,
    /// Encrypt all connections, with certificates that are made in the data directory
    #[arg(long)]
    pub(crate) tls: bool,
    /// Encrypt the volumes of a new cluster, with a key that is made in the data directory
    #[arg(long)]
    pub(crate) encrypt: bool,
    /// Use ZooKeeper instead of a coordinator in this process: zk://host,host:port,.../path
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) coordinator: Option<String>,
    /// First port
    #[arg(long, default_value_t = DEFAULT_BASE, value_name = "PORT",
        value_parser = clap::value_parser!(u16).range(1..=65_000))]
    pub(crate) base_port: u16,
    /// A setting for every node, as in its TOML file (docs/configuration.md): --set memory_budget=134217728
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    pub(crate) settings: Vec<(String, String)>,
    // Last, because its heading would be that of the options after it, too.
    #[command(flatten)]
    pub(crate) table: TableArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward serve --config node.toml
  leeward config --explain > node.toml
  leeward serve --config node.toml --set tls_ca=ca.crt --set tls_certificate=server-2.crt --set tls_key=server-2.key
  leeward serve --set server_id=2 --set data_dir=/srv/leeward --coordinator zk://zk1,zk2,zk3/leeward
  leeward serve --config node.toml --insecure-listen --set resp_listen=0.0.0.0:7380 --set advertise_host=10.0.0.2

A node needs a coordinator: the one that `leeward dev` hosts, or ZooKeeper (docs/zookeeper.md). A --set overrides the file.
SIGTERM stops it in order, Ctrl-C at once; SIGHUP does nothing.
`leeward config --explain` lists every setting and its range. The node refuses unknown names and values out of range.")]
pub(crate) struct ServeArgs {
    /// TOML file with the node's settings
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// A setting, which overrides the file; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    pub(crate) settings: Vec<(String, String)>,
    /// Address of the coordinator: HOST:PORT, or zk://host,host:port,.../path
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) coordinator: Option<String>,
    /// Listen on addresses that other machines can reach without TLS, and let them in while there are no users
    #[arg(long)]
    pub(crate) insecure_listen: bool,
    /// Stop when the standard input ends: a supervisor holds the other end
    #[arg(long, hide = true)]
    pub(crate) stop_with_stdin: bool,
}

/// Options of a table that is created, alone or as the first of a cluster.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options of the table that is created")]
pub(crate) struct TableArgs {
    /// Where values are kept. `hybrid`: pairs of 1000 bytes and more in the large log, of 100 and more in sorted runs until
    /// they reach the last level, smaller ones in leaves. `separated`: all in the large log. `in-place`: all in leaves. A
    /// size in bytes: pairs of that size and more in the large log. Two sizes (`100,1000`): `hybrid` with these bounds
    /// [default: hybrid]
    #[arg(long, value_parser = placement, value_name = "PLACEMENT")]
    pub(crate) placement: Option<Placement>,
    /// Size at which an L0 freezes, in KiB; a smaller L0 means more levels [default: 4096]
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u64).range(64..=1_048_576))]
    pub(crate) l0_kib: Option<u64>,
    /// How much larger each level is than the one above [default: 8]
    #[arg(long, value_name = "FACTOR", value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(crate) growth_factor: Option<u32>,
    /// Number of sorted runs at which L1 is merged into L2, 1 to 6. With 1, each L0 is merged with L1 itself. More runs mean
    /// less writing and more work for each read [default: 4]
    #[arg(long, value_name = "RUNS", value_parser = clap::value_parser!(u32).range(1..=6))]
    pub(crate) l1_runs: Option<u32>,
    /// How much of a level one compaction takes: `partial` (a few segments) or `whole-level` (as in the papers) [default:
    /// partial]
    #[arg(long, value_name = "MODE", value_parser = compaction)]
    pub(crate) compaction: Option<CompactionMode>,
    /// Percent of the large log that may be garbage before it is collected; a lower limit means more writing [default: 10]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=90))]
    pub(crate) garbage_percent: Option<u32>,
    /// MiB that garbage collection may read and write per region and second, while the large log is below
    /// --max-space-percent; 0: no limit [default: 0]
    #[arg(long, value_name = "MIB")]
    pub(crate) garbage_mib_per_second: Option<u32>,
    /// Space that the large log may take, in percent of its live data; beyond that, writers wait [default: 130]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(105..=1_000))]
    pub(crate) max_space_percent: Option<u32>,
    /// How leaves are compressed: `none`, `lz4` (little work) or `zstd` (fewer bytes) [default: none]
    #[arg(long, value_name = "CODEC")]
    pub(crate) compression: Option<Codec>,
    /// How leaves of the last level are compressed, which holds most of the data [default: as the others]
    #[arg(long, value_name = "CODEC")]
    pub(crate) last_level_compression: Option<Codec>,
    /// How backups keep their copies: `send-index` (the primary ships the index that it builds), `build-index` (each backup
    /// builds its own, the baseline of the papers) or `two-layer-log` (a backup sorts less, and reads there cost more). The
    /// last has at most 20 sorted runs a copy, or as many as `two-layer-log:RUNS` says, 1 to 31 [default: send-index]
    #[arg(long, value_name = "MODE")]
    pub(crate) backups: Option<BackupMode>,
    /// What pointers hold: `physical` (places on a volume, which a backup rewrites, as in the papers) or `logical` (names
    /// that are the same on every replica) [default: logical]
    #[arg(long, value_name = "ADDRESSING")]
    pub(crate) addressing: Option<Addressing>,
    /// How the primary compresses the segments that it ships to backups: `none`, `lz4` or `zstd` [default: none]
    #[arg(long, value_name = "CODEC")]
    pub(crate) wire: Option<Codec>,
    /// How records are posted to backups: `coalesced` (all new records as one write per log) or `per-record` (one write per
    /// record, in the order of LSNs, as in the papers) [default: coalesced]
    #[arg(long, value_name = "HOW")]
    pub(crate) posting: Option<Posting>,
    #[command(flatten)]
    pub(crate) consistency: ConsistencyArgs,
    /// Size at which a region is split, such as 8GiB or 512MiB; 0: never, not for its load either [default: 8GiB]
    #[arg(long, value_name = "SIZE", value_parser = table::size)]
    pub(crate) split_bytes: Option<u64>,
}

impl TableArgs {
    /// Whether any option was given.
    pub(crate) fn is_any(&self) -> bool {
        let collection = [self.garbage_percent, self.garbage_mib_per_second, self.max_space_percent];
        let numbers = [self.growth_factor, self.l1_runs].into_iter().chain(collection);
        let codecs = [self.compression, self.last_level_compression, self.wire];
        self.placement.is_some()
            || self.l0_kib.is_some()
            || self.compaction.is_some()
            || self.backups.is_some()
            || self.addressing.is_some()
            || self.posting.is_some()
            || self.split_bytes.is_some()
            || self.consistency.is_any()
            || numbers.into_iter().any(|number| number.is_some())
            || codecs.iter().any(Option::is_some)
    }

    /// Options of the default table for a cluster of `nodes`.
    pub(crate) fn options(&self, nodes: u32) -> TableOptions {
        self.over(default_table(nodes))
    }

    /// `base` with the options that were given.
    pub(crate) fn over(&self, base: TableOptions) -> TableOptions {
        TableOptions {
            placement: self.placement.unwrap_or(base.placement),
            l0_bytes: self.l0_kib.map_or(base.l0_bytes, |kib| kib << 10),
            growth_factor: self.growth_factor.unwrap_or(base.growth_factor),
            l1_runs: self.l1_runs.unwrap_or(base.l1_runs),
            compaction: self.compaction.unwrap_or(base.compaction),
            garbage_percent: self.garbage_percent.unwrap_or(base.garbage_percent),
            garbage_mib_per_second: self.garbage_mib_per_second.unwrap_or(base.garbage_mib_per_second),
            max_space_percent: self.max_space_percent.unwrap_or(base.max_space_percent),
            compression: Compression {
                upper: self.compression.unwrap_or(base.compression.upper),
                last: self.last_level_compression.or(self.compression).unwrap_or(base.compression.last),
            },
            backups: self.backups.unwrap_or(base.backups),
            addressing: self.addressing.unwrap_or(base.addressing),
            wire: self.wire.unwrap_or(base.wire),
            posting: self.posting.unwrap_or(base.posting),
            split_bytes: self.split_bytes.unwrap_or(base.split_bytes),
            ..self.consistency.over(base)
        }
    }
}

/// Parses the value of `--compaction`.
fn compaction(text: &str) -> Result<CompactionMode, String> {
    let all = [CompactionMode::Partial, CompactionMode::WholeLevel];
    let found = all.into_iter().find(|mode| mode.to_string() == text);
    found.ok_or_else(|| "it is partial or whole-level".into())
}

/// Formats a table's compression with the names that its options have on the command line.
pub(crate) fn compression_text(compression: Compression) -> String {
    let Compression { upper, last } = compression;
    if upper == last { upper.to_string() } else { format!("{upper}, last level {last}") }
}

/// Formats a placement as [`placement`] parses it.
pub(crate) fn placement_text(placement: Placement) -> String {
    match placement {
        Placement::HYBRID => "hybrid".into(),
        Placement::SEPARATED => "separated".into(),
        Placement::IN_PLACE => "in-place".into(),
        Placement { medium_from, large_from } if medium_from == large_from => large_from.to_string(),
        Placement { medium_from, large_from } => format!("{medium_from},{large_from}"),
    }
}

fn placement(text: &str) -> Result<Placement, String> {
    match text {
        "hybrid" => Ok(Placement::HYBRID),
        "separated" => Ok(Placement::SEPARATED),
        "in-place" => Ok(Placement::IN_PLACE),
        sizes => {
            let (medium, large) = sizes.split_once(',').unwrap_or((sizes, sizes));
            match (medium.parse(), large.parse()) {
                (Ok(medium_from), Ok(large_from)) if medium_from <= large_from => {
                    Ok(Placement { medium_from, large_from })
                }
                _ => {
                    Err("it is `hybrid`, `separated`, `in-place`, a size in bytes, such as 1000, or two that ascend, \
                          such as 100,1000"
                        .to_owned())
                }
            }
        }
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward status
  leeward status --connect 10.0.0.1:7479
  leeward status --watch                       what moves, every two seconds, until Ctrl-C
  leeward status --table orders                only the regions of one table
  leeward status --admin 127.0.0.1:7580 --json")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
    /// Ask only these nodes, by their admin addresses
    #[arg(long, value_delimiter = ',', value_name = "ADDRS", conflicts_with = "connect")]
    pub(crate) admin: Vec<String>,
    /// Print everything as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show only the regions of this table; with `--json` their configurations
    #[arg(long, value_name = "NAME", conflicts_with_all = ["admin", "watch"])]
    pub(crate) table: Option<TableName>,
    /// Show repeatedly, as text, what each server has, and the regions with a pending request or with members being
    /// built
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", conflicts_with_all = ["json", "admin"],
        value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) watch: Option<u32>,
}

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Benchmark {
    /// YCSB: Load and A to F, with the pair sizes of the Tebis and Anthus papers
    Ycsb(Box<YcsbArgs>),
    /// How backups get their index, and what it costs: the experiments of the Tebis, Anthus, DEPART and HiStore papers
    Replication(ReplicationArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward bench ycsb --workload a --mix sd --records 1000000 --ops 1000000
  leeward bench ycsb --dev 3 --workload load,a,b,c,d,e,f --mix sd --records 1000000 --ops 1000000 --verify
  leeward bench ycsb --dev 3 --workload load,a --kill-primary-every 5 --kills 10 --verify
  leeward bench ycsb --dev 1 --workload load,a --kill-primary-every 5 --kills 3 --verify --json result.json
  leeward bench ycsb --workload b,c --distribution zipfian:0.9
  leeward bench ycsb --dev 1 --rings --workload c --threads 1 --depth 1     through rings in shared memory
  leeward bench ycsb --connect leeward+ring://127.0.0.1:7479 --workload c   the same, of the running nodes

Workloads: load inserts; a 50 % reads, 50 % updates; b 95-5; c reads; d 95 % reads of the latest, 5 % inserts; e 95 %
scans, 5 % inserts; f 50 % reads, 50 % read-modify-writes; u updates (not of YCSB). Missing records are loaded first.
Mixes (key and value together; keys have 24 B): s 33 B, m 123 B, l 1023 B; sd 60-20-20 %, md 20-60-20 %, ld 20-20-60 %,
s40 40-30-30 %, s80 80-10-10 %.
Exit code 1: there were errors or lost writes.")]
pub(crate) struct YcsbArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
    /// Start a cluster of this many nodes for the run, instead of connecting to one
    #[arg(long, value_name = "NODES", conflicts_with = "connect",
        value_parser = clap::value_parser!(u32).range(1..=32))]
    pub(crate) dev: Option<u32>,
    /// With --dev: use rings for requests and answers, as with addresses leeward+ring://
    #[arg(long, requires = "dev")]
    pub(crate) rings: bool,
    /// With --dev: encrypt everything
    #[arg(long, requires = "dev")]
    pub(crate) tls: bool,
    /// The table to measure
    #[arg(long = "table", value_name = "NAME", default_value = DEFAULT_TABLE, conflicts_with = "dev")]
    pub(crate) table_name: TableName,
    /// With --dev: directory for the data, which must be new or empty [default: a temporary one]
    #[arg(long, value_name = "DIR", requires = "dev")]
    pub(crate) data: Option<PathBuf>,
    /// With --dev: how nodes write each other's memory
    #[arg(long, value_enum, default_value = "shm", requires = "dev")]
    pub(crate) fabric: Fabric,
    /// With --dev: number of regions, all of the same size [default: two per node]
    #[arg(long, requires = "dev", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) regions: Option<u32>,
    /// With --dev: a setting for every node, as in its TOML file
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting, requires = "dev")]
    pub(crate) settings: Vec<(String, String)>,
    /// Phases, in order
    #[arg(long, value_delimiter = ',', default_value = "load,a", value_name = "NAMES")]
    pub(crate) workload: Vec<Workload>,
    /// Sizes of the pairs
    #[arg(long, default_value = "sd")]
    pub(crate) mix: Mix,
    /// Records that load inserts
    #[arg(long, default_value_t = 100_000)]
    pub(crate) records: u64,
    /// Operations of each phase after load
    #[arg(long, default_value_t = 100_000)]
    pub(crate) ops: u64,
    /// Which records operations name: `zipfian` (theta 0.99), `zipfian:THETA` with another theta above 0 and below 1, such
    /// as zipfian:0.9, `uniform` or `latest` (theta 0.99) [default: as the workload says]
    #[arg(long, value_name = "NAME")]
    pub(crate) distribution: Option<Distribution>,
    /// Client threads
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
    /// Operations that each thread keeps in flight; a scan of a table that is partitioned by hash counts as one for each
    /// region that it asks
    #[arg(long, default_value_t = 32, value_name = "OPS")]
    pub(crate) depth: usize,
    /// Operations per second, over all threads; latency then counts from the time at which an operation was due
    #[arg(long, value_name = "OPS")]
    pub(crate) target_rate: Option<f64>,
    /// Remember every acknowledged write and read all of them back at the end
    #[arg(long)]
    pub(crate) verify: bool,
    /// With --dev: at this interval, kill -9 the primary of most regions and restart it, in the phases after load
    #[arg(long, value_name = "SECONDS", value_parser = duration, requires = "dev")]
    pub(crate) kill_primary_every: Option<Duration>,
    /// Make this many kills; the first phase after load continues until they are made
    #[arg(long, requires = "kill_primary_every")]
    pub(crate) kills: Option<u32>,
    /// Seconds during which an operation is retried before it counts as an error
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = duration)]
    pub(crate) deadline: Duration,
    /// Give puts request ids, as --kill-primary-every does
    #[arg(long)]
    pub(crate) retry_puts: bool,
    /// Write the results to this file as JSON; its names are stable
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    // Last, because its heading would be that of the options after it, too.
    #[command(flatten)]
    pub(crate) table: TableArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward inspect leeward-data/node-1                          superblock, manifest, regions, levels
  leeward inspect leeward-data/node-1 --region 1               each segment of a region
  leeward inspect leeward-data/node-1 --segment 12 --entries   one segment, with its records or entries
  leeward inspect leeward-data/node-1 --manifest               each entry of the manifest
Nothing is written. If a node runs on the volume, it changes meanwhile, and the parts of a page may not fit together.
docs/formats describes every structure.")]
pub(crate) struct InspectArgs {
    /// Data directory of a node, or of an embedded store
    pub(crate) directory: PathBuf,
    /// List the segments of this region
    #[arg(long)]
    pub(crate) region: Option<u32>,
    /// Show the structures of the segment with this number
    #[arg(long, value_name = "NUMBER", conflicts_with = "region")]
    pub(crate) segment: Option<SegmentNo>,
    /// With --segment: show each entry and record too
    #[arg(long, requires = "segment")]
    pub(crate) entries: bool,
    /// Show the entries of the manifest
    #[arg(long, conflicts_with_all = ["region", "segment"])]
    pub(crate) manifest: bool,
    #[command(flatten)]
    pub(crate) keys: Keys,
}

/// The keys of an encrypted volume.
#[derive(Args, Debug)]
pub(crate) struct Keys {
    /// Keys of an encrypted volume: the file that the node has as encryption_key_file
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  leeward rekey leeward-data/node-1 --key-file keys
Stop the node first. The volume is written to a second file, volume.new, which then takes its place: this needs as much
room again. The new data key is encrypted with the last key of the file. A crash leaves the volume as it was. To rewrite
a node without stopping it, have another server take its copies, and begin with an empty directory.")]
pub(crate) struct RekeyArgs {
    /// Data directory of a node, or of an embedded store
    pub(crate) directory: PathBuf,
    /// The keys: the file that the node has as encryption_key_file
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward verify leeward-data/node-1                     one volume, from its file; no process may use it
  leeward verify --replicas                              a running cluster: are the replicas of each region the same?
  leeward verify --replicas --table orders --repair
  leeward verify --replicas --ranges                     also by ranges of the keys, in every region
Only --repair writes. Exit code 1: there is damage, or a difference, or something is not compared.")]
pub(crate) struct VerifyArgs {
    /// Data directory of a node, or of an embedded store
    #[arg(required_unless_present = "replicas", conflicts_with = "replicas")]
    pub(crate) directory: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) keys: Keys,
    /// Compare the replicas of a running cluster: segment by segment, and by ranges of keys where backups build their own
    /// index
    #[arg(long)]
    pub(crate) replicas: bool,
    /// Rewrite segments that are damaged on one replica from another replica. Have backups whose own indexes are at fault
    /// take the primary's, one backup of a region at a time
    #[arg(long, requires = "replicas")]
    pub(crate) repair: bool,
    /// Compare ranges of keys in every region
    #[arg(long, requires = "replicas")]
    pub(crate) ranges: bool,
    /// Only regions of this table
    #[arg(long, requires = "replicas")]
    pub(crate) table: Option<TableName>,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// `NAME=VALUE`.
pub(crate) fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.trim().into(), value.trim().into())),
        _ => Err("expected NAME=VALUE, such as memory_budget=134217728".into()),
    }
}

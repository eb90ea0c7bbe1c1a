//! `cargo xtask measure routes`: how long a client takes to start when it must learn where many regions are, and how many bytes it
//! reads.
//!
//! The node is a real one, in this process, and clients reach it over loopback. The coordinator's data is artificial:
//! its regions are on servers that do not exist, so that no region is opened, and the path of the master is claimed by
//! another server, so that no master changes anything.

use clap::Args;
use leeward_bench::Failure;
use leeward_bench::starter::temporary;
use leeward_bench::{check_json, write_json};
use leeward_client::{ClientError, ClientOptions, Session, TableOptions};
use leeward_cluster::embedded::{Host, HostOptions};
use leeward_cluster::{CoordinatorError, CoordinatorOp};
use leeward_format::cluster::{ClusterPath, GroupConfig, Member, ServerInfo, encode_value};
use leeward_format::{Epoch, Incarnation, RegionId, ServerId, VolumeId};
use leeward_platform::Rng;
use leeward_server::config::{Coordination, CoordinatorAt, Identity, Network};
use leeward_server::{NodeConfig, Server};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Number of the first server that does not exist.
const FIRST_ABSENT: u32 = 1001;
/// Most bytes of operations in one request to the coordinator.
const CHUNK_BYTES: usize = 1 << 20;
/// How long the node may take until it knows all regions.
const KNOWN_WITHIN: Duration = Duration::from_secs(60);
/// Pause between two checks of that.
const LOOK: Duration = Duration::from_millis(50);
/// Any free port of loopback.
const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Options of the measurement.
#[derive(Args, Debug)]
pub(super) struct RoutesArgs {
    /// Number of regions
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=30_000))]
    regions: u32,
    /// Bytes of their first keys
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(8..=4096))]
    key_bytes: u32,
    /// Members of each region
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=32))]
    members: u32,
    /// Number of clients that start, one after the other
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The result of the measurement.
#[derive(Clone, Debug, Serialize)]
struct Report {
    regions: u32,
    key_bytes: u32,
    members: u32,
    clients: u32,
    /// Bytes that a client reads until it knows where regions are.
    told_bytes: u64,
    /// Time from the call to connect to its return, the median of all clients.
    median_ms: f64,
    /// The same, the longest of any client.
    longest_ms: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { regions, key_bytes, members, clients, told_bytes, median_ms, longest_ms } = self;
        writeln!(f, "{regions} regions with first keys of {key_bytes} bytes, {members} members each")?;
        writeln!(f, "a client that starts reads {} KiB", told_bytes.div_ceil(1 << 10))?;
        writeln!(f, "and takes {median_ms:.1} ms, the median of {clients}; {longest_ms:.1} ms at most")
    }
}

pub(super) fn run(args: &RoutesArgs, data: Option<&Path>) -> Result<bool, Failure> {
    check_json(args.json.as_deref())?;
    let directory = temporary(data)?;
    let host =
        Host::start(HostOptions { directory: directory.path().join("coordinator"), listen: ANYWHERE, tls: None })?;
    fill(&host, args)?;
    let node = start(&host, directory.path())?;
    let addresses = [node.info().native_address.clone()];
    wait_until_known(&addresses, args.regions)?;
    let mut took = Vec::new();
    let mut told_bytes = 0;
    for _ in 0..args.clients {
        let started = Instant::now();
        let session = Session::connect(&addresses, ClientOptions::default())?;
        took.push(started.elapsed());
        told_bytes = session.traffic().received;
    }
    took.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let report = Report {
        regions: args.regions,
        key_bytes: args.key_bytes,
        members: args.members,
        clients: args.clients,
        told_bytes,
        median_ms: ms(took[took.len() / 2]),
        longest_ms: ms(took[took.len() - 1]),
    };
    print!("{report}");
    write_json(args.json.as_deref(), &report)?;
    node.stop();
    Ok(true)
}

/// A member on a server that does not exist.
fn absent(number: u32) -> Member {
    Member { server: ServerId(FIRST_ABSENT + number), volume: VolumeId(number.into()), incarnation: Incarnation(1) }
}

/// Fills the coordinator with a table of so many regions.
fn fill(host: &Host, args: &RoutesArgs) -> Result<(), CoordinatorError> {
    let mut ops = Vec::new();
    let mut create = |path: ClusterPath, value| {
        ops.push(CoordinatorOp::Create { path: path.to_string(), value, ephemeral: false });
    };
    for number in 0..args.members {
        let info = ServerInfo {
            // The discard port: no process listens on it.
            fabric_address: "127.0.0.1:9".into(),
            native_address: format!("127.0.0.1:{}", 10_000 + number),
            ..ServerInfo::of(absent(number))
        };
        create(ClusterPath::Server(info.member.server), encode_value(&info));
    }
    create(ClusterPath::Master, encode_value(&absent(0)));
    let table = TableOptions { replicas: args.members, min_in_sync: 1, ..TableOptions::default() };
    create(ClusterPath::Table(table.name.clone()), encode_value(&table));
    for (config, number) in regions(args, &table.name).into_iter().zip(1..) {
        create(ClusterPath::Region(RegionId(number)), encode_value(&config));
    }
    let mut rest = &ops[..];
    while !rest.is_empty() {
        let mut room = CHUNK_BYTES;
        let fits = |op: &&CoordinatorOp| room.checked_sub(op.bytes()).inspect(|left| room = *left).is_some();
        let (chunk, others) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        host.apply(CoordinatorOp::All(chunk.to_vec()))?;
        rest = others;
    }
    Ok(())
}

/// Configurations of regions with random first keys.
fn regions(args: &RoutesArgs, table: &str) -> Vec<GroupConfig> {
    let mut random = Rng::new(1);
    let mut starts = BTreeSet::from([Vec::new()]);
    while starts.len() < args.regions as usize {
        starts.insert((0..args.key_bytes).map(|_| random.u64() as u8).collect());
    }
    let starts: Vec<bytes::Bytes> = starts.into_iter().map(Into::into).collect();
    let config = |number: u32| {
        let mut members = (0..args.members).map(|member| absent((number + member) % args.members));
        GroupConfig {
            start: starts[number as usize].clone(),
            end: starts.get(number as usize + 1).cloned(),
            epoch: Epoch(20),
            term: Epoch(20),
            primary: members.next(),
            backups: members.collect(),
            ..GroupConfig::unassigned(RegionId(number + 1), table)
        }
    };
    (0..args.regions).map(config).collect()
}

fn start(host: &Host, directory: &Path) -> Result<Server, leeward_server::StartError> {
    let coordinator = CoordinatorAt::Embedded(host.address());
    leeward_server::start(&NodeConfig {
        identity: Identity { data_dir: Some(directory.join("node")), ..Identity::default() },
        network: Network::on(ANYWHERE),
        coordination: Coordination { coordinator, ..Coordination::default() },
        ..NodeConfig::default()
    })
}

/// Waits until the node knows all regions.
fn wait_until_known(addresses: &[String], regions: u32) -> Result<(), ClientError> {
    let deadline = Instant::now() + KNOWN_WITHIN;
    let mut session = Session::connect(addresses, ClientOptions::default())?;
    while session.fetch_map()?.regions.len() < regions as usize {
        if Instant::now() > deadline {
            return Err(ClientError::NoRegions { seeds: addresses.join(", ") });
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

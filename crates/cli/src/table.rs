//! `leeward table`: creates, changes, drops and shows tables.

use crate::args::{
    AlterTableArgs, Connect, CreateTableArgs, DescribeTableArgs, DropTableArgs, TableCommand, compression_text,
    placement_text,
};
use crate::status::bound_text;
use crate::text::{bytes, table};
use crate::{Outcome, data, show};
use leeward_client::{Client, ClientError, GroupConfig, Op, OpResult, RegionMap, ServerInfo, TableOptions};
use leeward_format::RegionId;
use leeward_format::cluster::Acknowledge;
use leeward_format::op::RangeOp;
use leeward_format::partition::Partition;
use leeward_format::status::Role;
use leeward_format::table::{DEFAULT_TABLE, unknown_table};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::thread;
use std::time::{Duration, Instant};

/// Time limit until the regions of a new table are served, or those of a dropped table are removed; and the extra time
/// for each region.
const DONE_WITHIN: Duration = Duration::from_secs(30);
const EACH_WITHIN: Duration = Duration::from_millis(30);
/// Pause between two checks of that.
const LOOK: Duration = Duration::from_millis(50);
/// How long a node may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn run(command: &TableCommand) -> Outcome {
    match command {
        TableCommand::Create(args) => create(args),
        TableCommand::Alter(args) => alter(args),
        TableCommand::Drop(args) => drop_table(args),
        TableCommand::List(args) => list(&args.connect),
        TableCommand::Describe(args) => describe(args),
    }
}

fn create(args: &CreateTableArgs) -> Outcome {
    let client = data::connect_to_new(args.connect())?;
    let map = client.region_map()?;
    let replicas = map.table(DEFAULT_TABLE).map_or(TableOptions::default().replicas, |table| table.replicas);
    let table = args.new_table(replicas)?;
    table.check()?;
    let regions = table.starts().len();
    client.create_table(table)?;
    let map = wait_until_served(&client, args.name(), regions)?;
    println!("table {} is created and served: {} regions", args.name(), map.regions_of(args.name()).len());
    Ok(true)
}

fn alter(args: &AlterTableArgs) -> Outcome {
    let Some(change) = args.change() else {
        return Err("nothing to change: give an option; `leeward table alter --help` lists them".into());
    };
    data::connect(&args.connect)?.alter_table(change)?;
    println!(
        "table {} is changed; its regions follow: `leeward table describe {}` shows the progress",
        args.name, args.name
    );
    Ok(true)
}

fn drop_table(args: &DropTableArgs) -> Outcome {
    let client = data::connect(&args.connect)?;
    let name = &args.name;
    let left = |map: &RegionMap| map.regions_of(name).len();
    let regions = left(&client.region_map()?);
    client.drop_table(name.clone())?;
    let deadline = deadline(regions);
    loop {
        match left(&client.region_map()?) {
            0 => break,
            left if Instant::now() > deadline => {
                return Err(format!("table {name} is dropped, but {left} of its regions are not removed yet").into());
            }
            _ => thread::sleep(LOOK),
        }
    }
    println!("table {name} is dropped: {regions} regions");
    Ok(true)
}

/// The time by which an operation on so many regions must be done.
fn deadline(regions: usize) -> Instant {
    Instant::now() + DONE_WITHIN + EACH_WITHIN * u32::try_from(regions).unwrap_or(u32::MAX)
}

/// Waits until every region of a table answers and has enough members in sync for writes, and until every live node that can be
/// reached knows the table.
fn wait_until_served(client: &Client, name: &str, regions: usize) -> Result<RegionMap, Box<dyn std::error::Error>> {
    let deadline = deadline(regions);
    loop {
        let map = client.region_map()?;
        if is_served(client, &map, name)? {
            return Ok(map);
        }
        if Instant::now() > deadline {
            let needed = map.table(name).map_or(1, |table| table.min_in_sync as usize);
            let why = match map.servers.len() {
                few if few < needed => {
                    format!("a write needs {needed} copies in sync, and only {few} servers run: start more")
                }
                _ => "not served in time".into(),
            };
            let see = format!("see `leeward table describe {name}` and `leeward status`");
            return Err(format!("table {name} is created, but {why}; {see}").into());
        }
        thread::sleep(LOOK);
    }
}

fn is_served(client: &Client, map: &RegionMap, name: &str) -> Result<bool, ClientError> {
    let (regions, Some(options)) = (map.regions_of(name), map.table(name)) else { return Ok(false) };
    if regions.is_empty() || !regions.iter().all(|group| options.takes_writes(group)) {
        return Ok(false);
    }
    let counts = regions.iter().map(|group| Op::Count { region: group.region }).collect();
    let is_answered = |result: &OpResult| matches!(result, OpResult::Integer(_));
    // A node that cannot be reached is not waited for.
    let knows = |address: &str| {
        let node = client.access().shake_hands(address, "leeward-cli", TIMEOUT);
        node.map_or(true, |node| {
            node.map.regions_of(name).iter().filter(|group| group.primary.is_some()).count() == regions.len()
        })
    };
    Ok(client.execute(counts)?.iter().all(is_answered)
        && map.servers.iter().all(|server| knows(&server.native_address)))
}

fn list(connect: &Connect) -> Outcome {
    let map = data::connect(connect)?.region_map()?;
    show(&table_of_tables(&map, map.tables.iter()))?;
    Ok(true)
}

fn describe(args: &DescribeTableArgs) -> Outcome {
    let client = data::connect(&args.connect)?;
    let map = client.region_map()?;
    let Some(options) = map.table(&args.name) else { return Err(unknown_table(&args.name).into()) };
    let contents = contents(&client.table(args.name.clone()), &map, &args.name)?;
    let known = || contents.values().filter_map(|content| content.approximate);
    let (pairs, size) = known().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    let total = match known().count() == contents.len() {
        true => format!("about {pairs} pairs, {} of keys and values", bytes(size)),
        false => format!("about {pairs} pairs, {} of keys and values in the regions that answer", bytes(size)),
    };
    let tables = table_of_tables(&map, std::iter::once(options));
    show(&format!("{tables}\n{total}\n\n{}", table_of_regions(&map, &options.name, &contents)))?;
    Ok(true)
}

/// The content of a region, as far as its primary reports it.
#[derive(Default)]
struct Content {
    /// Pairs, and bytes of keys and values.
    approximate: Option<(u64, u64)>,
    /// Bytes of each level, from L1 on.
    levels: Vec<u64>,
}

/// Asks the primaries what the regions of a table hold.
fn contents(client: &Client, map: &RegionMap, name: &str) -> Result<BTreeMap<RegionId, Content>, ClientError> {
    let groups = map.regions_of(name);
    let approximate = |group: &GroupConfig| RangeOp::Approximate { start: "".into(), end: None }.within(group.region);
    let answers = client.execute(groups.iter().map(approximate).collect())?;
    let mut contents = BTreeMap::<RegionId, Content>::new();
    for (group, answer) in groups.iter().zip(answers) {
        let content = contents.entry(group.region).or_default();
        if let OpResult::Approximation { pairs, bytes, .. } = answer {
            content.approximate = Some((pairs, bytes));
        }
    }
    let status = |server: &ServerInfo| client.access().status(&server.admin_address, TIMEOUT).ok();
    let statuses = map.servers.iter().filter_map(status);
    for region in statuses.flat_map(|status| status.regions) {
        if let Some(content) = contents.get_mut(&region.region).filter(|_| region.role == Role::Primary) {
            content.levels = region.levels.iter().map(|level| level.bytes).collect();
        }
    }
    Ok(contents)
}

fn table_of_tables<'a>(map: &RegionMap, tables: impl Iterator<Item = &'a TableOptions>) -> String {
    let row = |options: &TableOptions| {
        vec![
            options.name.clone(),
            options.partition.to_string(),
            map.regions_of(&options.name).len().to_string(),
            placement_text(options.placement),
            options.replicas.to_string(),
            options.min_in_sync.to_string(),
            bytes(options.l0_bytes),
            options.growth_factor.to_string(),
            options.l1_runs.to_string(),
            options.compaction.to_string(),
            match options.garbage_mib_per_second {
                0 => format!("{} %", options.garbage_percent),
                most => format!("{} %, {most} MiB/s", options.garbage_percent),
            },
            format!("{} %", options.max_space_percent),
            compression_text(options.compression),
            options.backups.to_string(),
            options.addressing.to_string(),
            options.wire.to_string(),
            acknowledge_text(options),
            options.posting.to_string(),
            options.split_beyond().map_or_else(|| "never".into(), bytes),
            options.reads.stale.to_string(),
            options.reads.index.to_string(),
            options.reads.scans.to_string(),
        ]
    };
    let head = [
        "table",
        "partition",
        "regions",
        "placement",
        "replicas",
        "min in sync",
        "L0",
        "growth",
        "L1 runs",
        "compaction",
        "garbage",
        "max space",
        "compression",
        "backups",
        "addressing",
        "wire",
        "acknowledge",
        "posting",
        "split from",
        "reads",
        "index",
        "scans",
    ];
    table(&head, tables.map(row).collect())
}

/// When writes are acknowledged, as text.
pub(crate) fn acknowledge_text(options: &TableOptions) -> String {
    let mut text = options.acknowledge.to_string();
    if let Some(quorum) = options.quorum {
        write!(text, " of {quorum}").expect("writing to memory");
    }
    if options.acknowledge == Acknowledge::LastFlush {
        write!(text, ", {} at most", bytes(options.max_unacked_bytes)).expect("writing to memory");
    }
    text
}

fn table_of_regions(map: &RegionMap, name: &str, contents: &BTreeMap<RegionId, Content>) -> String {
    let row = |group: &GroupConfig| {
        let numbers = |members: &[leeward_format::cluster::Member]| {
            let numbers: Vec<String> = members.iter().map(|member| member.server.to_string()).collect();
            if numbers.is_empty() { "-".into() } else { numbers.join(",") }
        };
        let end = group.end.as_ref().map_or_else(|| "last".into(), |end| bound_text(map, group, end));
        let start = if group.start.is_empty() { "first".into() } else { bound_text(map, group, &group.start) };
        let primary = group.primary.map_or_else(|| "-".into(), |primary| primary.server.to_string());
        let content = contents.get(&group.region);
        let approximate = content.and_then(|content| content.approximate);
        let (pairs, size) =
            approximate.map_or_else(|| ("-".into(), "-".into()), |(pairs, size)| (pairs.to_string(), bytes(size)));
        let levels: Vec<String> =
            content.map_or(&[][..], |content| &content.levels).iter().map(|l| bytes(*l)).collect();
        let levels = if levels.is_empty() { "-".into() } else { levels.join(" ") };
        let (backups, learners) = (numbers(&group.backups), numbers(&group.learners));
        vec![group.region.to_string(), start, end, primary, backups, learners, pairs, size, levels]
    };
    let first = match map.table(name).map(|table| table.partition) {
        Some(Partition::Hash { .. }) => "first token",
        Some(Partition::Slots { .. }) => "first slot",
        Some(Partition::Range) | None => "first key",
    };
    let head = ["region", first, "up to", "primary", "in sync", "building", "about pairs", "bytes", "levels"];
    table(&head, map.regions_of(name).iter().map(row).collect())
}

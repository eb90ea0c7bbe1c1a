//! `leeward table`: makes tables and tells of those there are.

use crate::args::{Connect, CreateTableArgs, DescribeTableArgs, TableCommand, compression_text, placement_text};
use crate::text::{bytes, table};
use crate::{Outcome, data, show};
use leeward_client::{Client, ClientError, GroupConfig, Op, OpResult, RegionMap, TableOptions, introduce};
use leeward_format::table::{DEFAULT_TABLE, unknown_table};
use std::thread;
use std::time::{Duration, Instant};

/// How long a new table's regions may take until they are served.
const SERVED_WITHIN: Duration = Duration::from_secs(30);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long a node may take to tell what it knows.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn run(command: &TableCommand) -> Outcome {
    match command {
        TableCommand::Create(args) => create(args),
        TableCommand::List(args) => list(&args.connect),
        TableCommand::Describe(args) => describe(args),
    }
}

fn create(args: &CreateTableArgs) -> Outcome {
    let client = data::connect(args.connect())?;
    let map = client.region_map()?;
    let replicas = map.table(DEFAULT_TABLE).map_or(TableOptions::default().replicas, |table| table.replicas);
    let table = args.new_table(replicas);
    table.check()?;
    client.create_table(table)?;
    let map = wait_until_served(&client, args.name())?;
    println!("table {} is made and served: {} regions", args.name(), map.regions_of(args.name()).len());
    Ok(true)
}

/// Waits until every region of a table answers, and has the members in sync that writes need, and until every live node
/// that can be reached knows the table.
fn wait_until_served(client: &Client, name: &str) -> Result<RegionMap, Box<dyn std::error::Error>> {
    let deadline = Instant::now() + SERVED_WITHIN;
    loop {
        let map = client.region_map()?;
        if is_served(client, &map, name)? {
            return Ok((*map).clone());
        }
        if Instant::now() > deadline {
            return Err(format!(
                "table {name} is made, but after {SERVED_WITHIN:?} it is not served; see `leeward table describe {name}` \
                 and `leeward status`"
            )
            .into());
        }
        thread::sleep(LOOK);
    }
}

fn is_served(client: &Client, map: &RegionMap, name: &str) -> Result<bool, ClientError> {
    let (regions, Some(options)) = (map.regions_of(name), map.table(name)) else { return Ok(false) };
    let is_writable = |group: &GroupConfig| group.in_sync().count() >= options.min_in_sync as usize;
    if regions.is_empty() || !regions.iter().all(is_writable) {
        return Ok(false);
    }
    let counts = regions.iter().map(|group| Op::Count { region: group.region }).collect();
    let is_answered = |result: &OpResult| matches!(result, OpResult::Integer(_));
    // A node that cannot be reached is not waited for.
    let knows = |address: &str| {
        let node = introduce(address, "leeward-cli", PATIENCE);
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
    let map = data::connect(&args.connect)?.region_map()?;
    let Some(options) = map.table(&args.name) else { return Err(unknown_table(&args.name).into()) };
    show(&format!("{}\n{}", table_of_tables(&map, std::iter::once(options)), table_of_regions(&map, &options.name)))?;
    Ok(true)
}

fn table_of_tables<'a>(map: &RegionMap, tables: impl Iterator<Item = &'a TableOptions>) -> String {
    let row = |options: &TableOptions| {
        vec![
            options.name.clone(),
            map.regions_of(&options.name).len().to_string(),
            placement_text(options.placement),
            options.replicas.to_string(),
            options.min_in_sync.to_string(),
            bytes(options.l0_bytes),
            options.growth_factor.to_string(),
            options.l1_runs.to_string(),
            options.compaction.to_string(),
            format!("{} %", options.garbage_percent),
            format!("{} %", options.max_space_percent),
            compression_text(options.compression),
        ]
    };
    let head = [
        "table",
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
    ];
    table(&head, tables.map(row).collect())
}

fn table_of_regions(map: &RegionMap, name: &str) -> String {
    let row = |group: &GroupConfig| {
        let numbers = |members: &[leeward_format::cluster::Member]| {
            let numbers: Vec<String> = members.iter().map(|member| member.server.to_string()).collect();
            if numbers.is_empty() { "-".into() } else { numbers.join(",") }
        };
        let end = group.end.as_ref().map_or_else(|| "last".into(), |end| end.escape_ascii().to_string());
        let start = if group.start.is_empty() { "first".into() } else { group.start.escape_ascii().to_string() };
        let primary = group.primary.map_or_else(|| "-".into(), |primary| primary.server.to_string());
        vec![group.region.to_string(), start, end, primary, numbers(&group.backups), numbers(&group.learners)]
    };
    let head = ["region", "first key", "up to", "primary", "in sync", "building"];
    table(&head, map.regions_of(name).iter().map(row).collect())
}

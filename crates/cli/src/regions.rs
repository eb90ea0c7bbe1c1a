//! `leeward regions`: the regions of the cluster, or of one table, who has them, and how far each is.

use crate::args::Connect;
use crate::status::{PATIENCE, at_once, find, region_table};
use crate::{Outcome, show};
use clap::Args;
use leeward_bench::{NodeStatus, fetch_status};
use leeward_client::RegionMap;
use leeward_format::table::TableName;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward regions
  leeward regions --table orders --json")]
pub(crate) struct RegionsArgs {
    #[command(flatten)]
    connect: Connect,
    /// Only those of this table
    #[arg(long, value_name = "NAME")]
    table: Option<TableName>,
    /// Print their configurations as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &RegionsArgs) -> Outcome {
    let mut map = find(&args.connect.connect)?.map;
    if let Some(table) = &args.table {
        if map.table(table).is_none() {
            return Err(format!("there is no table {table}; `leeward table list` shows which there are").into());
        }
        map.regions.retain(|group| group.table == **table);
    }
    if args.json {
        show(&(serde_json::to_string_pretty(&map.regions)? + "\n"))?;
        return Ok(true);
    }
    let nodes = primaries(&map);
    show(&match map.regions.is_empty() {
        true => "no node knows of a region\n".into(),
        false => region_table(&map, &nodes.iter().collect::<Vec<_>>()),
    })?;
    Ok(true)
}

/// What the nodes say that answer.
fn primaries(map: &RegionMap) -> Vec<NodeStatus> {
    let addresses = map.servers.iter().map(|info| info.admin_address.clone()).collect();
    at_once(addresses, |address: String| fetch_status(&address, PATIENCE).ok()).into_iter().flatten().collect()
}

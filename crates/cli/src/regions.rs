//! `leeward regions`: the regions of the cluster or of one table, with their members, state and lag.

use crate::args::Connect;
use crate::status::{Overview, region_table};
use crate::{Outcome, show};
use clap::Args;
use leeward_format::table::TableName;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward regions
  leeward regions --table orders --json")]
pub(crate) struct RegionsArgs {
    #[command(flatten)]
    connect: Connect,
    /// Only regions of this table
    #[arg(long, value_name = "NAME")]
    table: Option<TableName>,
    /// Print their configurations as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &RegionsArgs) -> Outcome {
    let overview = Overview::of(&args.connect.connect)?;
    let mut map = overview.map().into_owned();
    if let Some(table) = &args.table {
        if map.table(table).is_none() {
            return Err(format!("there is no table {table}; `leeward table list` shows all tables").into());
        }
        map.regions.retain(|group| group.table == **table);
    }
    if args.json {
        show(&(serde_json::to_string_pretty(&map.regions)? + "\n"))?;
        return Ok(true);
    }
    show(&region_table(&map, &overview.nodes()))?;
    Ok(true)
}

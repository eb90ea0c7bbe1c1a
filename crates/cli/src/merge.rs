//! `leeward merge`: a small region becomes part of its neighbour while both serve.

use crate::args::Connect;
use crate::moves::Wait;
use crate::{Outcome, data};
use clap::Args;
use leeward_client::{GroupConfig, RegionMap};
use leeward_format::RegionId;
use leeward_format::cluster::RegionWish;

#[derive(Args, Debug)]
#[command(after_help = "\
The primary of the region comes to the server of the neighbour's, and has copied what the region holds, at most `merge_bytes`:
operations on its keys wait meanwhile, for some tens of milliseconds, and none fails. Only tables that are divided by keys, not
those that are partitioned by hash.

Examples:
  leeward merge --region 4 --into 3        region 3 has the keys of both; there is no region 4 any more
  leeward merge --region 4 --cancel        it stays one, if it has not come to that")]
pub(crate) struct MergeArgs {
    #[command(flatten)]
    connect: Connect,
    /// The region, the smaller one of the two
    #[arg(long)]
    region: u32,
    /// Its neighbour: the region whose keys come before or after it
    #[arg(long, value_name = "REGION", required_unless_present = "cancel", conflicts_with = "cancel")]
    into: Option<u32>,
    /// Let it stay one
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    wait: Wait,
}

pub(crate) fn merge(args: &MergeArgs) -> Outcome {
    let client = data::connect(&args.connect)?;
    let region = RegionId(args.region);
    let Some(into) = args.into.map(RegionId) else {
        client.wish(region, RegionWish::Whole)?;
        println!("region {region} stays as it is");
        return Ok(true);
    };
    client.wish(region, RegionWish::Merge { into })?;
    let find = |map: &RegionMap, region| map.regions.iter().find(|group| group.region == region).cloned();
    let is_planned =
        |group: &GroupConfig| group.wishes.plan.as_ref().is_some_and(|plan| plan.neighbour() == Some(into));
    let progress = |map: &RegionMap| match find(map, region).filter(is_planned).zip(find(map, into)) {
        Some((group, other)) if group.primary != other.primary => {
            format!("is to become part of region {into}: its primary comes to the server of that one's first")
        }
        Some(_) => format!("is to become part of region {into}; `leeward status` says what it waits for"),
        None => "is not to become part of another".into(),
    };
    let is_waited_for = |map: &RegionMap| find(map, region).as_ref().is_some_and(is_planned);
    let is_gone = |map: &RegionMap| find(map, region).is_none();
    args.wait.until_planned(&client, &format!("region {region}"), is_waited_for, is_gone, progress)?;
    if args.wait.no_wait {
        return Ok(true);
    }
    let map = client.region_map()?;
    if find(&map, region).is_some() {
        return Err(format!("region {region} did not become part of region {into}: somebody took that back").into());
    }
    println!("region {region} is part of region {into}");
    Ok(true)
}

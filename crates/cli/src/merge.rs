//! `leeward merge`: a small region is merged into its neighbour while both serve.

use crate::args::Connect;
use crate::moves::Wait;
use crate::{Outcome, data};
use clap::Args;
use leeward_client::{GroupConfig, RegionMap};
use leeward_format::RegionId;
use leeward_format::cluster::RegionRequest;

#[derive(Args, Debug)]
#[command(after_help = "\
First the primary of the region moves to the server of the neighbour's primary. Then it copies the region's data, at most
`merge_bytes`, into the neighbour. Operations on the region's keys wait meanwhile, for some tens of milliseconds, and none fails.
Tables that are partitioned by hash or slots have no merges.

Examples:
  leeward merge --region 4 --into 3        region 3 gets the keys of both; region 4 is removed
  leeward merge --region 4 --cancel        drop the request, if the merge has not happened yet")]
pub(crate) struct MergeArgs {
    #[command(flatten)]
    connect: Connect,
    /// The region to merge, the smaller one of the two
    #[arg(long)]
    region: u32,
    /// Its neighbour: the region whose keys come before or after it
    #[arg(long, value_name = "REGION", required_unless_present = "cancel", conflicts_with = "cancel")]
    into: Option<u32>,
    /// Drop the request
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    wait: Wait,
}

pub(crate) fn merge(args: &MergeArgs) -> Outcome {
    let client = data::connect(&args.connect)?;
    let region = RegionId(args.region);
    let Some(into) = args.into.map(RegionId) else {
        client.request(region, RegionRequest::KeepBounds)?;
        println!("region {region} stays as it is");
        return Ok(true);
    };
    client.request(region, RegionRequest::Merge { into })?;
    let find = |map: &RegionMap, region| map.regions.iter().find(|group| group.region == region).cloned();
    let is_planned =
        |group: &GroupConfig| group.desired.plan.as_ref().is_some_and(|plan| plan.neighbour() == Some(into));
    let progress = |map: &RegionMap| match find(map, region).filter(is_planned).zip(find(map, into)) {
        Some((group, other)) if group.primary != other.primary => {
            format!(
                "is to be merged into region {into}; its primary moves to the server of that region's primary first"
            )
        }
        Some(_) => format!("is to be merged into region {into}; `leeward status` shows what the merge waits for"),
        None => "is not to be merged".into(),
    };
    let is_waited_for = |map: &RegionMap| find(map, region).as_ref().is_some_and(is_planned);
    let is_gone = |map: &RegionMap| find(map, region).is_none();
    args.wait.until_planned(&client, &format!("region {region}"), is_waited_for, is_gone, progress)?;
    if args.wait.no_wait {
        return Ok(true);
    }
    let map = client.region_map()?;
    if find(&map, region).is_some() {
        return Err(format!("region {region} was not merged into region {into}: the request was cancelled").into());
    }
    println!("region {region} was merged into region {into}");
    Ok(true)
}

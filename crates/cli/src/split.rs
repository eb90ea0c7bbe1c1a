//! `leeward split`: a region becomes two while it serves.

use crate::args::Connect;
use crate::moves::Wait;
use crate::{Outcome, data};
use clap::Args;
use leeward_client::{GroupConfig, RegionMap};
use leeward_format::RegionId;
use leeward_format::cluster::{Plan, RegionRequest};

#[derive(Args, Debug)]
#[command(after_help = "\
The region becomes two regions with the same members and the same primary. No data is copied. Operations wait for some
milliseconds, and none fails. Afterwards both regions can be moved and split like any other.

Examples:
  leeward split --region 3                 at the key that halves its data
  leeward split --region 3 --at user500    the new region begins with this key
  leeward split --region 3 --cancel        drop the request, if the split has not happened yet")]
pub(crate) struct SplitArgs {
    #[command(flatten)]
    connect: Connect,
    /// The region
    #[arg(long)]
    region: u32,
    /// First key of the new region [default: one that halves the region]
    #[arg(long, value_name = "KEY", conflicts_with = "cancel")]
    at: Option<String>,
    /// Drop the request
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    wait: Wait,
}

/// Number of the new region of a planned split, if one is planned.
fn planned(map: &RegionMap, region: RegionId) -> Option<RegionId> {
    let group = map.regions.iter().find(|group| group.region == region)?;
    group.desired.plan.as_ref().and_then(Plan::child)
}

pub(crate) fn split(args: &SplitArgs) -> Outcome {
    let client = data::connect(&args.connect)?;
    let region = RegionId(args.region);
    if args.cancel {
        client.request(region, RegionRequest::KeepBounds)?;
        println!("region {region} stays as it is");
        return Ok(true);
    }
    let ends = |map: &RegionMap| map.regions.iter().find(|group| group.region == region).map(|group| group.end.clone());
    let before = ends(&client.region_map()?);
    client.request(region, RegionRequest::Split { at: args.at.clone().map(Into::into) })?;
    let is_planned = |map: &RegionMap| planned(map, region).is_some();
    let is_split = |map: &RegionMap| {
        let table = map.regions.iter().find(|group| group.region == region).map(|group| &group.table);
        let begins = |group: &GroupConfig| {
            Some(&group.table) == table && args.at.as_ref().is_some_and(|at| group.start == at.as_bytes())
        };
        ends(map) != before || map.regions.iter().any(begins)
    };
    let progress = |map: &RegionMap| match planned(map, region) {
        Some(child) => {
            format!("is being split; the new region is {child}; `leeward status` shows what the split waits for")
        }
        None => "is not being split".into(),
    };
    args.wait.until_planned(&client, &format!("region {region}"), is_planned, is_split, progress)?;
    if args.wait.no_wait {
        return Ok(true);
    }
    let map = client.region_map()?;
    let end = ends(&map);
    let second = map.regions.iter().find(|group| Some(Some(&group.start)) == end.as_ref().map(Option::as_ref));
    match second.filter(|_| end != before || args.at.is_some()) {
        Some(second) => {
            println!("region {region} ends at {}, where region {} begins", second.start.escape_ascii(), second.region)
        }
        None => return Err(format!("region {region} was not split: the request was cancelled").into()),
    }
    Ok(true)
}

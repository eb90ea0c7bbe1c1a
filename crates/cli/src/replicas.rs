//! `leeward verify --replicas`: compares the replicas of each region while they serve, and repairs segments that are damaged
//! on one replica from another.

use crate::Outcome;
use crate::args::VerifyArgs;
use crate::data;
use crate::text::bytes;
use leeward_bench::replicas::{Fault, findings, repair_segment, replicas};
use leeward_client::{GroupConfig, RegionMap};

pub(crate) fn verify(args: &VerifyArgs) -> Outcome {
    let map = data::connect(&args.connect)?.region_map()?;
    if args.table.as_ref().is_some_and(|table| map.table(table).is_none()) {
        return Err(leeward_format::table::unknown_table(args.table.as_deref().unwrap_or_default()).into());
    }
    let is_asked = |group: &&GroupConfig| args.table.as_ref().is_none_or(|table| group.table == **table);
    let mut is_sound = true;
    for group in map.regions.iter().filter(is_asked) {
        is_sound &= verify_region(&map, group, args.repair)?;
    }
    Ok(is_sound)
}

fn verify_region(map: &RegionMap, group: &GroupConfig, repair: bool) -> Result<bool, Box<dyn std::error::Error>> {
    let region = group.region;
    let replicas = replicas(map, group, |server| {
        println!("region {region}: server {server} is not registered, so its replica is not checked")
    });
    let findings = findings(&replicas, region)?;
    let (segments, size) = findings.equal;
    println!(
        "region {region} of table {}: {} replicas; {segments} segments of {} are the same on all that have them, {} are on one \
         replica only; {} faults",
        group.table,
        replicas.len(),
        bytes(size),
        findings.alone,
        findings.faults.len()
    );
    let mut is_sound = true;
    for Fault { id, what, damaged, whole } in findings.faults {
        println!("  segment {id}: {what}");
        match damaged.zip(whole).filter(|_| repair) {
            Some((damaged, whole)) => {
                let at = |server| replicas.iter().find(|replica| replica.server == server).expect("it was asked");
                repair_segment(at(damaged), at(whole), region, id)?;
                println!("    rewritten on server {damaged} from server {whole}");
            }
            None => is_sound = false,
        }
    }
    Ok(is_sound)
}

//! `leeward verify --replicas`: compares the replicas of each region while they serve, segment by segment, and where backups
//! build their own index also range by range of the keys. Repairs segments that are damaged on one replica from another, and
//! has a backup whose own index is at fault take the primary's. What is not compared is no success. A region whose primary or
//! members change meanwhile is verified again.

use crate::Outcome;
use crate::args::VerifyArgs;
use crate::data;
use crate::text::bytes;
use leeward_client::{Access, GroupConfig, RegionMap, ServerId};
use leeward_operate::replicas::ranges::{compare_ranges, rebuild_index};
use leeward_operate::replicas::segments::{SegmentFault, compare_segments, repair_segment};
use leeward_operate::replicas::{Replica, builds_index, replicas};

/// Changes of a region while it is verified, after which it is not verified again.
const MOST_CHANGES: usize = 5;

pub(crate) fn verify(args: &VerifyArgs) -> Outcome {
    let client = data::connect(&args.connect)?;
    let (map, access) = (client.region_map()?, client.access());
    if args.table.as_ref().is_some_and(|table| map.table(table).is_none()) {
        return Err(leeward_format::table::unknown_table(args.table.as_deref().unwrap_or_default()).into());
    }
    let is_asked = |group: &&GroupConfig| args.table.as_ref().is_none_or(|table| group.table == **table);
    let mut is_sound = true;
    for group in map.regions.iter().filter(is_asked) {
        is_sound &= verify_group(access, &map, group, args)?;
    }
    Ok(is_sound)
}

/// Whether all replicas of a region were compared and are the same. If not all could be compared, and the region's primary or
/// members are no longer those of `group`, it is verified again: for instance the primary was moved to another member
/// meanwhile, and the former primary names no state to compare. What was found to be at fault stays so.
fn verify_group(access: &Access, map: &RegionMap, group: &GroupConfig, args: &VerifyArgs) -> Outcome {
    let (mut group, mut has_faults) = (group.clone(), false);
    let mut is_compared = verify_region(access, map, &group, args, &mut has_faults);
    for _ in 0..MOST_CHANGES {
        if has_faults || matches!(is_compared, Ok(true)) {
            break;
        }
        let client = data::connect(&args.connect)?;
        let map = client.region_map()?;
        let newer = map.regions.iter().find(|newer| newer.region == group.region);
        let Some(newer) = newer.filter(|newer| **newer != group) else { break };
        println!("region {}: its primary or members changed meanwhile; it is verified again", group.region);
        is_compared = verify_region(client.access(), &map, newer, args, &mut has_faults);
        group = newer.clone();
    }
    Ok(is_compared? && !has_faults)
}

/// Verifies a region as it is in `map`. Returns whether all of it was compared, and notes whether it has faults that are left.
fn verify_region(
    access: &Access,
    map: &RegionMap,
    group: &GroupConfig,
    args: &VerifyArgs,
    has_faults: &mut bool,
) -> Outcome {
    let region = group.region;
    let mut is_compared = true;
    let replicas = replicas(access, map, group, |server| {
        is_compared = false;
        println!("region {region}: server {server} is not registered, so its replica is not compared");
    });
    let findings = compare_segments(&replicas, region)?;
    let (segments, of_bytes) = findings.equal;
    println!(
        "region {region} of table {}: {} replicas; {segments} segments of {} are the same on all that have them, {} are on \
         one replica only; {} faults",
        group.table,
        replicas.len(),
        bytes(of_bytes),
        findings.alone,
        findings.faults.len()
    );
    let mut damaged_index = None;
    for SegmentFault { id, what, damaged, whole } in findings.faults {
        println!("  segment {id}: {what}");
        match damaged.zip(whole).filter(|_| args.repair) {
            Some((damaged, whole)) => {
                repair_segment(at(&replicas, damaged), at(&replicas, whole), region, id)?;
                println!("    rewritten on server {damaged} from server {whole}");
            }
            None => {
                *has_faults = true;
                damaged_index = damaged.filter(|_| whole.is_none()).or(damaged_index);
            }
        }
    }
    if args.ranges || builds_index(map, group) {
        let repair = args.repair && builds_index(map, group);
        is_compared &= verify_ranges(&replicas, group, repair, damaged_index, has_faults)?;
    }
    Ok(is_compared)
}

fn at<'a, 'b>(replicas: &'a [Replica<'b>], server: ServerId) -> &'a Replica<'b> {
    replicas.iter().find(|replica| replica.server == server).expect("it was asked")
}

/// Compares ranges of keys. With `repair`, one backup at fault has its index rebuilt: that of a range, or `damaged_index`,
/// which has a damaged segment that no other replica has. Returns and notes what [`verify_region`] does.
fn verify_ranges(
    replicas: &[Replica<'_>],
    group: &GroupConfig,
    repair: bool,
    damaged_index: Option<ServerId>,
    has_faults: &mut bool,
) -> Outcome {
    let (region, primary) = (group.region, group.primary.map(|primary| primary.server));
    let found = compare_ranges(replicas, primary, region)?;
    let ((ranges, pairs), faults) = (found.equal, found.faults.len());
    println!(
        "  {ranges} ranges of keys with {pairs} pairs are the same on all replicas; {faults} differ or cannot be read"
    );
    if let Some((ranges, why)) = &found.not_compared {
        println!("  {ranges} ranges are not compared: {why}");
    }
    for fault in &found.faults {
        println!("  {fault}");
    }
    let is_compared = found.not_compared.is_none();
    *has_faults |= faults > 0;
    let of_segments = damaged_index.filter(|server| Some(*server) != primary && is_compared && faults == 0);
    let Some(primary) = primary.filter(|_| repair && (faults > 0 || of_segments.is_some())) else {
        return Ok(is_compared);
    };
    let may_be_right = found.faults.iter().all(|fault| fault.server != primary);
    let of_ranges = found.faults.iter().find(|fault| fault.can_rebuild).map(|fault| fault.server);
    // One at a time: meanwhile it is not in sync.
    match of_ranges.or(of_segments).filter(|_| may_be_right) {
        Some(server) => {
            rebuild_index(at(replicas, primary), region, server)?;
            println!(
                "    server {server} takes the primary's index in place of its own: verify again when it is in sync"
            );
        }
        None => println!("    nothing is repaired: it is not known that the primary's copy is right"),
    }
    Ok(is_compared)
}

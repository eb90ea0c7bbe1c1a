//! Compares the replicas of each region while they serve, and repairs what is damaged on one of them from another.
//!
//! [`segments`] compares what the replicas have of the same segments. [`ranges`] compares the pairs in ranges of keys: where
//! backups build indexes of their own, no other replica has their segments.
//!
//! Plain functions; any thread.

pub mod ranges;
pub mod segments;

use leeward_client::{Access, GroupConfig, Op, OpResult, RegionMap};
use leeward_format::ServerId;
use ranges::compare_ranges;
use segments::compare_segments;
use std::time::Duration;

/// How long a node may take for a few segments.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A replica, and the address of its server.
#[derive(Clone, Copy, Debug)]
pub struct Replica<'a> {
    /// How to connect to it.
    pub access: &'a Access,
    /// In sync in its region's group.
    pub server: ServerId,
    /// Its native address.
    pub address: &'a str,
}

/// Every fault in any region of a cluster, one line each.
///
/// # Errors
/// A replica does not answer.
pub fn compare(access: &Access, map: &RegionMap) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for group in &map.regions {
        let region = group.region;
        let replicas = replicas(access, map, group, |server| {
            wrong.push(format!("region {region}: server {server} is not registered"))
        });
        let faults = compare_segments(&replicas, region)?.faults;
        wrong.extend(faults.into_iter().map(|fault| format!("region {region}: segment {}: {}", fault.id, fault.what)));
        if builds_index(map, group) {
            let found = compare_ranges(&replicas, group.primary.map(|primary| primary.server), region)?;
            wrong.extend(found.faults.iter().map(|fault| format!("region {region}: {fault}")));
            let not_compared = found.not_compared.into_iter();
            wrong.extend(
                not_compared.map(|(ranges, why)| format!("region {region}: {ranges} ranges were not compared: {why}")),
            );
        }
    }
    Ok(wrong)
}

/// Whether the backups of a group build indexes of their own.
pub fn builds_index(map: &RegionMap, group: &GroupConfig) -> bool {
    map.table(&group.table).is_some_and(|options| options.backups.builds_index())
}

/// The members of a group that can be asked. Calls `missing` for the others.
pub fn replicas<'a>(
    access: &'a Access,
    map: &'a RegionMap,
    group: &GroupConfig,
    mut missing: impl FnMut(ServerId),
) -> Vec<Replica<'a>> {
    let mut replicas = Vec::new();
    for member in group.in_sync() {
        match map.server(member.server) {
            Some(info) => replicas.push(Replica { access, server: member.server, address: &info.native_address }),
            None => missing(member.server),
        }
    }
    replicas
}

fn ask(replica: &Replica<'_>, op: Op) -> Result<OpResult, String> {
    let answer = replica.access.ask_node(replica.address, "leeward-verify", op, TIMEOUT);
    answer.map_err(|error| format!("server {} at {}: {error}", replica.server, replica.address))
}

fn unexpected_answer(replica: &Replica<'_>, answer: &OpResult) -> String {
    let why = match answer {
        OpResult::Error(error) => error.to_string(),
        other => format!("it answers {other:?}"),
    };
    format!("server {}: {why}", replica.server)
}

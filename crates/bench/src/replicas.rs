//! Compares the replicas of each region while they serve, and repairs segments that are damaged on one replica from another.
//!
//! The content of a segment never changes, so nodes can be asked one after the other: a segment that several replicas have
//! must be the same on all of them. A segment that only one replica has is still open, or was just made or given up, or was
//! built by a backup itself: those are compared by ranges of keys ([`crate::ranges`]). Plain functions; any thread.

use crate::ranges::range_findings;
use leeward_client::{Access, GroupConfig, Op, OpResult, RegionMap};
use leeward_format::op::SegmentDigest;
use leeward_format::{RegionId, SegmentId, ServerId};
use std::collections::BTreeMap;
use std::time::Duration;

#[cfg(test)]
#[path = "replicas_tests.rs"]
mod tests;

/// How long a node may take for a few segments.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A replica, and the address of its server.
#[derive(Clone, Copy, Debug)]
pub struct Replica<'a> {
    /// How to connect to it.
    pub access: &'a Access,
    /// The server.
    pub server: ServerId,
    /// Its native address.
    pub address: &'a str,
}

/// A segment that is damaged, or differs between replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The segment.
    pub id: SegmentId,
    /// Description of the fault.
    pub what: String,
    /// The server with the damaged copy. `None`: the copies differ, and none of them is damaged.
    pub damaged: Option<ServerId>,
    /// A server with a whole copy, if a copy is damaged.
    pub whole: Option<ServerId>,
}

/// The result for one region.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Segments that several replicas have, all of them the same, and their bytes.
    pub equal: (u64, u64),
    /// Segments that one replica has.
    pub alone: u64,
    /// Segments that are damaged or differ.
    pub faults: Vec<Fault>,
}

/// Every fault in any region of a cluster, one line each.
pub(crate) fn compare(access: &Access, map: &RegionMap) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for group in &map.regions {
        let region = group.region;
        let replicas = replicas(access, map, group, |server| {
            wrong.push(format!("region {region}: server {server} is not registered"))
        });
        let faults = findings(&replicas, region)?.faults;
        wrong.extend(faults.into_iter().map(|fault| format!("region {region}: segment {}: {}", fault.id, fault.what)));
        if builds_index(map, group) {
            let found = range_findings(&replicas, group.primary.map(|primary| primary.server), region)?;
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

/// Asks each replica of a region for all of its segments, and compares them.
///
/// # Errors
/// A replica does not answer.
pub fn findings(replicas: &[Replica<'_>], region: RegionId) -> Result<Findings, String> {
    let mut all = BTreeMap::<SegmentId, Vec<(ServerId, SegmentDigest)>>::new();
    for replica in replicas {
        for digest in digests(replica, region)? {
            all.entry(digest.id).or_default().push((replica.server, digest));
        }
    }
    Ok(judge(&all))
}

/// The digests of all complete segments that a node has of a region.
fn digests(replica: &Replica<'_>, region: RegionId) -> Result<Vec<SegmentDigest>, String> {
    let mut all: Vec<SegmentDigest> = Vec::new();
    loop {
        let after = all.last().map(|digest| digest.id);
        match ask(replica, Op::Digests { region, after })? {
            OpResult::Digests { segments, has_more } => {
                all.extend(segments);
                if !has_more {
                    return Ok(all);
                }
            }
            other => return Err(unexpected_answer(replica, &other)),
        }
    }
}

/// Replaces a segment of one replica by that of another.
///
/// # Errors
/// One of them refuses, or does not answer.
pub fn repair_segment(
    damaged: &Replica<'_>,
    whole: &Replica<'_>,
    region: RegionId,
    segment: SegmentId,
) -> Result<(), String> {
    let content = match ask(whole, Op::SegmentContent { region, segment })? {
        OpResult::Value(Some(content)) => content,
        other => return Err(unexpected_answer(whole, &other)),
    };
    match ask(damaged, Op::RepairSegment { region, segment, content })? {
        OpResult::Done => Ok(()),
        other => Err(unexpected_answer(damaged, &other)),
    }
}

pub(crate) fn ask(replica: &Replica<'_>, op: Op) -> Result<OpResult, String> {
    let answer = replica.access.ask_node(replica.address, "leeward-verify", op, TIMEOUT);
    answer.map_err(|error| format!("server {} at {}: {error}", replica.server, replica.address))
}

pub(crate) fn unexpected_answer(replica: &Replica<'_>, answer: &OpResult) -> String {
    let why = match answer {
        OpResult::Error(error) => error.to_string(),
        other => format!("it answers {other:?}"),
    };
    format!("server {}: {why}", replica.server)
}

/// Compares the digests of each segment.
fn judge(all: &BTreeMap<SegmentId, Vec<(ServerId, SegmentDigest)>>) -> Findings {
    let mut findings = Findings::default();
    for (id, digests) in all {
        let (whole, damaged): (Vec<_>, Vec<_>) = digests.iter().partition(|(_, digest)| digest.damage.is_none());
        for (server, digest) in &damaged {
            let damage = digest.damage.as_deref().unwrap_or_default();
            let what = format!("{} damaged on server {server}: {damage}", digest.kind);
            let whole = whole.first().map(|(from, _)| *from);
            findings.faults.push(Fault { id: *id, what, damaged: Some(*server), whole });
        }
        let same = |(_, digest): &&(ServerId, SegmentDigest)| {
            let first = &whole[0].1;
            (digest.kind, digest.bytes, digest.crc) == (first.kind, first.bytes, first.crc)
        };
        match &whole[..] {
            [] => {}
            [_] if damaged.is_empty() => findings.alone += 1,
            [_] => {}
            [first, ..] if whole.iter().all(same) => {
                findings.equal = (findings.equal.0 + 1, findings.equal.1 + u64::from(first.1.bytes));
            }
            _ => {
                let one = |(server, digest): &&(ServerId, SegmentDigest)| {
                    format!("{} bytes with CRC {:08x} on server {server}", digest.bytes, digest.crc)
                };
                let what = format!("differs, without damage: {}", whole.iter().map(one).collect::<Vec<_>>().join(", "));
                findings.faults.push(Fault { id: *id, what, damaged: None, whole: None });
            }
        }
    }
    findings
}

//! Compares segments, and repairs those that are damaged on one replica from another.
//!
//! The content of a segment never changes, so nodes can be asked one after the other: a segment that several replicas have
//! must be the same on all of them. A segment that only one replica has is still open, or was just made or given up, or was
//! built by a backup itself: those are compared by [ranges of keys](super::ranges). Plain functions; any thread.

use super::{Replica, ask, unexpected_answer};
use leeward_client::{Op, OpResult};
use leeward_format::op::SegmentDigest;
use leeward_format::{RegionId, SegmentId, ServerId};
use std::collections::BTreeMap;

#[cfg(test)]
#[path = "segments_tests.rs"]
mod tests;

/// A segment that is damaged, or differs between replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFault {
    /// The same in all copies that were compared.
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
pub struct SegmentFindings {
    /// Segments that several replicas have, all of them the same, and their bytes.
    pub equal: (u64, u64),
    /// Segments that one replica has.
    pub alone: u64,
    /// Segments that are damaged or differ.
    pub faults: Vec<SegmentFault>,
}

/// Asks each replica of a region for all of its segments, and compares them.
///
/// # Errors
/// A replica does not answer.
pub fn compare_segments(replicas: &[Replica<'_>], region: RegionId) -> Result<SegmentFindings, String> {
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

/// Compares the digests of each segment.
fn judge(all: &BTreeMap<SegmentId, Vec<(ServerId, SegmentDigest)>>) -> SegmentFindings {
    let mut findings = SegmentFindings::default();
    for (id, digests) in all {
        let (whole, damaged): (Vec<_>, Vec<_>) = digests.iter().partition(|(_, digest)| digest.damage.is_none());
        for (server, digest) in &damaged {
            let damage = digest.damage.as_deref().unwrap_or_default();
            let what = format!("{} damaged on server {server}: {damage}", digest.kind);
            let whole = whole.first().map(|(from, _)| *from);
            findings.faults.push(SegmentFault { id: *id, what, damaged: Some(*server), whole });
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
                findings.faults.push(SegmentFault { id: *id, what, damaged: None, whole: None });
            }
        }
    }
    findings
}

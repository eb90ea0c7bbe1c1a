//! Answers what this node has of a region, for a tool that compares replicas, and repairs damaged segments. It does so in any
//! role of the node in the region, and while the region is served. Each question is a background job that reads a few segments.

use super::Shard;
use leeward_engine::{Error, Volume};
use leeward_format::RegionId;
use leeward_format::op::{Op, OpError, OpResult};
use leeward_platform::cpu::Activity;
use leeward_region::job::{JobClass, Outcome};
use leeward_region::request::ReplyTo;
use std::sync::Arc;

/// Most segments in the answer to one question.
const MOST: usize = 8;

impl Shard {
    /// Answers a question about segments on this node, or writes a segment again.
    pub(in crate::node) fn prove(&mut self, to: ReplyTo, op: Op) {
        let (Op::Digests { region, .. } | Op::SegmentContent { region, .. } | Op::RepairSegment { region, .. }) = op
        else {
            unreachable!("an operation on segments")
        };
        if !self.machines.contains_key(&region) {
            let error = OpError::Invalid(format!("this node has no copy of region {region}"));
            return self.answer(to, OpResult::Error(error));
        }
        let volume = Arc::clone(&self.resources.volume);
        self.spawn(JobClass::Background, region, Activity::Other.of_node(), move || {
            let result = execute(&volume, region, op);
            Outcome::Proved {
                to,
                result: result.unwrap_or_else(|error| OpResult::Error(OpError::Invalid(error.to_string()))),
            }
        });
    }
}

fn execute(volume: &Volume, region: RegionId, op: Op) -> Result<OpResult, Error> {
    Ok(match op {
        Op::Digests { after, .. } => {
            let segments = volume.digests(region, after, MOST)?;
            let has_more = segments.len() == MOST;
            OpResult::Digests { segments, has_more }
        }
        Op::SegmentContent { segment, .. } => OpResult::Value(Some(volume.content(region, segment)?.into())),
        Op::RepairSegment { segment, content, .. } => {
            volume.repair(region, segment, &content)?;
            OpResult::Done
        }
        _ => unreachable!("an operation on segments"),
    })
}

//! What this node has of a region, told to whoever compares replicas, and the repair of a damaged segment: whatever the node is to
//! the region, and while it serves. Each question is a job in the background that reads a few segments.

use super::Node;
use super::job::Outcome;
use super::serving::ReplyTo;
use leeward_engine::{Error, Volume};
use leeward_format::RegionId;
use leeward_format::op::{Op, OpError, OpResult};
use leeward_platform::cpu::Activity;

/// Segments that one question is answered with, at most.
const MOST: usize = 8;

impl Node {
    /// Answers a question about what is here, or writes a segment anew.
    pub(super) fn prove(&mut self, to: ReplyTo, op: Op) {
        let (Op::Digests { region, .. } | Op::SegmentContent { region, .. } | Op::RepairSegment { region, .. }) = op
        else {
            unreachable!("an operation on segments")
        };
        if !self.slots.contains_key(&region) {
            let error = OpError::Invalid(format!("this node has no copy of region {region}"));
            return self.answers.push((to, OpResult::Error(error)));
        }
        let volume = self.context.volume.clone();
        self.context.spawn_in_background(region, Activity::Other.of_node(), move || {
            let result = carry_out(&volume, region, op);
            Outcome::Proved {
                to,
                result: result.unwrap_or_else(|error| OpResult::Error(OpError::Invalid(error.to_string()))),
            }
        });
    }
}

fn carry_out(volume: &Volume, region: RegionId, op: Op) -> Result<OpResult, Error> {
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

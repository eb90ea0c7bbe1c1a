//! Why an operation of the native protocol has no result. Plain data.

use crate::{Epoch, RegionId};
use serde::{Deserialize, Serialize};

/// Why an operation has no result, sorted by what the caller must do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum OpError {
    /// Bad input: do not retry. Nothing was changed.
    #[error("{0}")]
    Invalid(String),
    /// The region has no serving primary yet: retry after a moment. Nothing was changed.
    #[error("region {0} is recovering")]
    Recovering(RegionId),
    /// Too few replicas are in sync: retry later. Nothing was changed.
    #[error("region {region} has {in_sync} replicas in sync, {needed} are needed to write")]
    NotEnoughReplicas {
        /// The region that was to be written.
        region: RegionId,
        /// Members in sync, the primary included.
        in_sync: u32,
        /// `min_in_sync` of its table.
        needed: u32,
    },
    /// The write may or may not have been carried out: the connection to the primary broke, or the node lost the
    /// primary role, before it answered. Only an operation that [is repeatable](super::Op::is_repeatable), or has a request
    /// id, may be retried.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// This server is not the primary of that key's region: refresh the routes. Nothing was changed.
    #[error("not the primary of region {region} at epoch {epoch}")]
    NotPrimary {
        /// The region that the operation was for.
        region: RegionId,
        /// Epoch of the region's configuration that the answering server knows.
        epoch: Epoch,
    },
    /// The node cannot serve: its volume met an error. An operator must act.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// A write with a request id was sent too long after its first attempt: the region no longer knows whether that was
    /// carried out. This attempt changed nothing. If no earlier attempt can have been carried out, retry with a newer
    /// commit LSN.
    #[error("region {0} does not remember requests that are so old")]
    Forgotten(RegionId),
    /// Too many operations wait already; or, in no region, the answers to one request are too long together. Retry after a
    /// moment, with less at once. Nothing was changed.
    #[error("{}", overload(*.0))]
    Overloaded(RegionId),
    /// A write with a request id was decided by an earlier attempt, whose full answer is no longer known. Do not retry.
    #[error("it {} by an earlier attempt, and the value that there was is not known any more", if *.done { "was carried out" } else { "was refused" })]
    AnswerGone {
        /// The write was carried out; otherwise its condition did not hold.
        done: bool,
    },
    /// The connection must name a user and its password first: do not retry. Nothing was changed.
    #[error("{0}")]
    Unauthenticated(String),
    /// The user lacks a right: do not retry. Nothing was changed, and the error does not depend on what there is.
    #[error("not permitted: {0}")]
    NotPermitted(String),
}

impl OpError {
    /// Whether the cause is temporary and nothing was changed: retry after a moment.
    pub fn is_passing(&self) -> bool {
        match self {
            OpError::Recovering(_) | OpError::NotPrimary { .. } => true,
            OpError::NotEnoughReplicas { .. } | OpError::Overloaded(_) => true,
            OpError::Invalid(_) | OpError::Unknown(_) | OpError::Unavailable(_) => false,
            OpError::Forgotten(_) | OpError::AnswerGone { .. } => false,
            OpError::Unauthenticated(_) | OpError::NotPermitted(_) => false,
        }
    }
}

fn overload(region: RegionId) -> String {
    match region {
        RegionId(0) => "the answers to one request are too long together: ask for less at once".to_owned(),
        region => format!("too many operations wait in region {region}"),
    }
}

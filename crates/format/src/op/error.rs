//! Why an operation of the native protocol has no result. Plain data.

use crate::{Epoch, ErrorKind, RegionId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A region that is recovering, or has too many operations, is asked again no sooner.
const SOON: Duration = Duration::from_millis(10);
/// A region that lacks replicas is asked again no sooner: one must be brought in sync first.
const REPLICAS_LACK: Duration = Duration::from_millis(50);

/// Why an operation has no result; its [kind](OpError::kind) says what the caller does.
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
    /// The write may or may not have been executed: the connection to the primary broke, or the node lost the
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
    /// executed. This attempt changed nothing. If no earlier attempt can have been executed, retry with a newer commit
    /// LSN.
    #[error("region {0} no longer knows whether an earlier attempt at this request was executed; this one was not")]
    Forgotten(RegionId),
    /// Too many operations wait already; or, in no region, the answers to one request are too long together. Retry after a
    /// moment, with less at once. Nothing was changed.
    #[error("{}", overload(*.0))]
    Overloaded(RegionId),
    /// A write with a request id was decided by an earlier attempt, whose full answer is no longer known. Do not retry.
    #[error("it was {} by an earlier attempt, and the value that there was is no longer known", if *.done { "executed" } else { "refused" })]
    AnswerGone {
        /// The write was executed; otherwise its condition did not hold.
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
    /// What the caller does about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            OpError::Recovering(_) | OpError::Overloaded(_) => ErrorKind::RetryLater { after: SOON },
            OpError::NotEnoughReplicas { .. } => ErrorKind::RetryLater { after: REPLICAS_LACK },
            OpError::NotPrimary { .. } => ErrorKind::AskElsewhere,
            OpError::Forgotten(_) => ErrorKind::RetryNow,
            OpError::Unknown(_) | OpError::AnswerGone { .. } => ErrorKind::Unknown,
            OpError::Invalid(_) | OpError::Unauthenticated(_) | OpError::NotPermitted(_) => ErrorKind::Refused,
            OpError::Unavailable(_) => ErrorKind::Operator,
        }
    }
}

fn overload(region: RegionId) -> String {
    match region {
        RegionId(0) => "the answers to one request are too long together: ask for less at once".to_owned(),
        region => format!("too many operations wait in region {region}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_says_what_the_caller_does() {
        let region = RegionId(3);
        let text = || "why".to_owned();
        let later = |ms| ErrorKind::RetryLater { after: Duration::from_millis(ms) };
        let cases = [
            (OpError::Invalid(text()), ErrorKind::Refused),
            (OpError::Recovering(region), later(10)),
            (OpError::NotEnoughReplicas { region, in_sync: 1, needed: 2 }, later(50)),
            (OpError::Unknown(text()), ErrorKind::Unknown),
            (OpError::NotPrimary { region, epoch: Epoch(2) }, ErrorKind::AskElsewhere),
            (OpError::Unavailable(text()), ErrorKind::Operator),
            (OpError::Forgotten(region), ErrorKind::RetryNow),
            (OpError::Overloaded(region), later(10)),
            (OpError::AnswerGone { done: true }, ErrorKind::Unknown),
            (OpError::Unauthenticated(text()), ErrorKind::Refused),
            (OpError::NotPermitted(text()), ErrorKind::Refused),
        ];
        for (error, kind) in cases {
            assert_eq!(error.kind(), kind, "{error}");
            let is_passing = matches!(kind, ErrorKind::RetryLater { .. } | ErrorKind::AskElsewhere);
            assert_eq!(
                (kind.is_passing(), kind.pause() > Duration::ZERO),
                (is_passing, kind == later(10) || kind == later(50))
            );
        }
    }
}

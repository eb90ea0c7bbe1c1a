//! Histories of shared keys, judged: as they are, and where a loss of power may have taken the newest writes.

use leeward_history::{Action, Operation, UNANSWERED, Verdict};

/// Most operations on one key. After that the clients use another key.
pub(crate) const MAX_OPS: usize = 120;
/// Most operations on one key with an unknown outcome. Each may have taken effect at any time, or never.
pub(crate) const MAX_UNKNOWN: usize = 10;
/// States after which the search gives up.
const MAX_STATES: usize = 300_000;

/// Checks the operations on one key that began without a value, where a power loss at `lost` took some of the newest writes
/// acknowledged since `safe`. First checks the history up to the loss. Then checks the value that is `left` against the safe
/// writes.
///
/// # Errors
/// No order explains the answers; the text lists them.
pub(crate) fn check_with_loss(
    operations: &[Operation],
    (safe, lost): (u64, u64),
    left: Operation,
) -> Result<(), String> {
    let unanswered = |operation: &Operation| {
        operation.action.unanswered().map(|action| Operation { answered: UNANSWERED, action, ..*operation })
    };
    let before = operations.iter().filter_map(|operation| match operation.answered < lost {
        true => Some(*operation),
        false => unanswered(operation),
    });
    check(&before.collect::<Vec<_>>()).map_err(|failure| format!("before the power was lost: {failure}"))?;
    let after = operations.iter().filter_map(|operation| match operation.answered {
        answered if answered < safe => Some(*operation),
        // A write survives only together with all writes before it, so its answer still holds.
        answered if answered < lost && !matches!(operation.action, Action::Read(_)) => {
            Some(Operation { answered: UNANSWERED, ..*operation })
        }
        _ => unanswered(operation),
    });
    check(&after.chain([left]).collect::<Vec<_>>()).map_err(|failure| format!("after the power was lost: {failure}"))
}

/// Checks the operations on one key that began without a value.
///
/// # Errors
/// No order explains the answers; the text lists them. A search that takes too long gives up, and counts as a success.
pub(crate) fn check(operations: &[Operation]) -> Result<(), String> {
    match leeward_history::check(operations, MAX_STATES) {
        Verdict::Linearizable | Verdict::Undecided => Ok(()),
        Verdict::Violation => {
            let mut operations = operations.to_vec();
            operations.sort_by_key(|operation| operation.called);
            let lines: String = operations.iter().map(|operation| format!("  {operation}\n")).collect();
            Err(format!("no order explains these answers:\n{lines}"))
        }
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;

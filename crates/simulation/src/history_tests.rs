//! Histories that a loss of power could leave, and some that it could not.

use super::*;

fn op(called: u64, answered: u64, action: Action) -> Operation {
    Operation { called, answered, action }
}

#[test]
fn a_power_loss_may_undo_the_newest_writes_only() {
    let write = |at, value| op(at, at + 1, Action::Write(value));
    let history = [write(1, 1), write(3, 2), write(5, 3), op(6, 7, Action::Read(Some(3)))];
    let left = |value| check_with_loss(&history, (5, 10), op(20, 21, Action::Read(value)));
    assert!(left(Some(3)).is_ok() && left(Some(1)).is_err() && left(None).is_err());
    assert!(check_with_loss(&history, (3, 10), op(20, 21, Action::Read(Some(1)))).is_ok());
    let stale = [write(1, 1), write(3, 2), op(5, 6, Action::Read(Some(1)))];
    let left = op(20, 21, Action::Read(Some(2)));
    assert!(check_with_loss(&stale, (0, 10), left).unwrap_err().contains("before the power was lost"));
}

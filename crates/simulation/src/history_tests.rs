//! Histories that a register could have, and some that it could not.

use super::*;

fn op(called: u64, answered: u64, action: Action) -> Operation {
    Operation { called, answered, action }
}

#[test]
fn overlapping_operations_may_be_ordered_either_way() {
    let write = op(1, 5, Action::Write(7));
    assert!(check(&[write, op(2, 3, Action::Read(None))]).is_ok());
    assert!(check(&[write, op(2, 3, Action::Read(Some(7)))]).is_ok());
    assert!(check(&[write, op(2, 3, Action::Read(Some(7))), op(4, 4, Action::Read(None))]).is_err());
}

#[test]
fn an_acknowledged_write_must_be_seen() {
    assert!(check(&[op(1, 2, Action::Write(7)), op(3, 4, Action::Read(None))]).is_err());
    assert!(check(&[op(1, u64::MAX, Action::Write(7)), op(3, 4, Action::Read(None))]).is_ok());
}

#[test]
fn an_unknown_write_may_come_late_but_not_twice() {
    let history = |last| {
        let unknown = op(1, u64::MAX, Action::Add(1, None));
        let second = op(2, 3, Action::Add(1, Some(1)));
        [unknown, second, op(4, 5, Action::Read(Some(1))), op(6, 7, Action::Read(Some(last)))]
    };
    assert!(check(&history(1)).is_ok());
    assert!(check(&history(2)).is_ok());
    assert!(check(&history(3)).is_err());
}

#[test]
fn conditional_writes_are_judged_by_their_answers() {
    let absent = |at, done| op(at, at + 1, Action::WriteIfAbsent(at as i64, Some(done)));
    assert!(check(&[absent(1, true), absent(3, false), op(5, 6, Action::Read(Some(1)))]).is_ok());
    assert!(check(&[absent(1, true), absent(3, true)]).is_err());
    assert!(check(&[absent(1, true), op(3, 4, Action::Delete(Some(true))), absent(5, true)]).is_ok());
}

#[test]
fn swaps_and_overwrites_are_judged_by_their_answers() {
    let swap = |at, old| op(at, at + 1, Action::Swap(at as i64, Some(old)));
    assert!(check(&[swap(1, None), swap(3, Some(1)), op(5, 6, Action::Read(Some(3)))]).is_ok());
    assert!(check(&[swap(1, None), swap(3, None)]).is_err());
    let present = |at, done| op(at, at + 1, Action::WriteIfPresent(at as i64, Some(done)));
    assert!(check(&[present(1, false), swap(3, None), present(5, true)]).is_ok());
    assert!(check(&[present(1, true)]).is_err());
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

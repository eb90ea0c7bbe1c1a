//! Lost writes and impossible answers are reported.

use super::*;
use leeward_history::UNANSWERED;

#[test]
fn lost_and_undead_writes_are_told_apart() {
    let filling = |number, outcome| Filling { region: 0, number, outcome };
    let fillings = [
        filling(1, Outcome::Answered(Action::Write(1))),
        filling(2, Outcome::Answered(Action::Write(2))),
        filling(3, Outcome::Unknown),
        filling(4, Outcome::NotDone),
        filling(5, Outcome::NotDone),
    ];
    let mut report = Report::default();
    judge_fillings(&fillings, &[Some(1), None, None, None, Some(5)], &mut report);
    assert_eq!((report.lost_writes, report.violations), (1, 1));
    assert!(report.findings[0].contains("fill") && report.findings[0].contains("-2"), "{:?}", report.findings);
}

#[test]
fn a_violation_is_shown_by_its_counterexample() {
    let key = SharedKey { region: 0, slot: 0, generation: 0 };
    let op = |called, answered, action| Operation { called, answered, action };
    let mut history: Vec<Operation> = (1..100).map(|at| op(at * 10, at * 10 + 5, Action::Write(at as i64))).collect();
    history.push(op(2, UNANSWERED, Action::Take(None)));
    history.push(op(5_000, 5_001, Action::Read(Some(42))));
    let mut log = Log::default();
    log.histories.insert(key, history);
    let mut report = Report::default();
    judge_histories(&log, &mut report);
    assert_eq!(report.violations, 1);
    let shown = &report.findings[0];
    assert!(shown.contains("Read(Some(42))") && shown.contains("Write(42)") && shown.lines().count() < 6, "{shown}");
}

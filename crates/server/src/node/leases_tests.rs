//! Who has promised what, and who has not.

use super::*;

const ONE: ServerId = ServerId(1);
const TWO: ServerId = ServerId(2);

fn regions(numbers: &[u32]) -> Vec<(RegionId, Epoch)> {
    numbers.iter().map(|number| (RegionId(*number), Epoch(7))).collect()
}

fn ms(millis: u64) -> Nanos {
    Nanos::from_millis(millis)
}

/// Both servers are asked for their promises, at 100 ms.
fn asked() -> Promises {
    let mut promises = Promises::new(ms(100));
    promises.ask(ms(100), &[(ONE, regions(&[3, 5, 8])), (TWO, regions(&[3]))].into());
    promises
}

#[test]
fn promises_that_an_answer_lacks_are_known() {
    let mut promises = asked();
    assert!(promises.answered(ONE, ms(100), &regions(&[3, 5, 8])).is_empty());
    assert_eq!(promises.answered(ONE, ms(100), &regions(&[5])), [RegionId(3), RegionId(8)]);
    assert_eq!(promises.answered(ONE, ms(100), &[(RegionId(5), Epoch(6))]).len(), 3, "another term is another promise");
    assert!(promises.answered(ONE, ms(90), &regions(&[5])).is_empty(), "it was asked for others then");
    assert!(promises.answered(ServerId(3), ms(100), &regions(&[5])).is_empty());
}

#[test]
fn promises_are_missed_where_each_answer_comes_after_the_next_question() {
    let mut promises = asked();
    promises.ask(ms(250), &[(ONE, regions(&[3, 4, 8]))].into());
    assert!(promises.answered(ONE, ms(100), &regions(&[3, 5, 8])).is_empty(), "4 was not asked for then");
    assert_eq!(promises.answered(ONE, ms(100), &regions(&[5, 8])), [RegionId(3)]);
    promises
        .ask(ms(400), &[(ONE, vec![(RegionId(3), Epoch(7)), (RegionId(4), Epoch(7)), (RegionId(8), Epoch(9))])].into());
    assert_eq!(promises.answered(ONE, ms(250), &regions(&[3, 8])), [RegionId(4)], "and 8 not in this term");
}

#[test]
fn a_server_that_does_not_answer_is_late() {
    let timing = Timing::default();
    let mut promises = asked();
    let mut late_at = None;
    for now in (100..1000).step_by(50) {
        if promises.look(ms(now), &timing) {
            late_at = Some(now);
            break;
        }
        if now % 150 == 100 {
            promises.ask(ms(now), &[(ONE, regions(&[3])), (TWO, regions(&[3]))].into());
            promises.answered(ONE, ms(now), &regions(&[3]));
        }
    }
    assert_eq!(late_at, Some(450));
    // Who is not asked any more owes nothing.
    promises.ask(ms(450), &[(ONE, regions(&[3]))].into());
    promises.answered(ONE, ms(450), &regions(&[3]));
    assert!(!promises.look(ms(500), &timing));
}

#[test]
fn who_stood_still_waits_for_answers_anew() {
    let timing = Timing::default();
    let mut promises = asked();
    assert!(!promises.look(ms(5_000), &timing));
    assert!(!promises.look(ms(5_150), &timing));
    assert!(!promises.look(ms(5_300), &timing));
    assert!(promises.look(ms(5_350), &timing));
}

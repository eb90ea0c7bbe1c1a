//! Tests of how connections take turns.

use super::*;

/// Serves `line` to its end, or `most` times; each service of `id` takes `cost(id)` and leaves more to do if `has_more(id)`.
fn serve(
    shares: &mut Shares,
    line: &mut Line,
    most: usize,
    cost: impl Fn(u64) -> u64,
    has_more: impl Fn(u64) -> bool,
) -> Vec<u64> {
    let mut served = Vec::new();
    while served.len() < most
        && let Some(id) = shares.next(line)
    {
        served.push(id);
        shares.spent(id, cost(id));
        if has_more(id) {
            shares.join(line, id);
        }
    }
    served
}

#[test]
fn those_with_a_backlog_take_turns() {
    let mut shares = Shares::default();
    let mut line = shares.line_up(BTreeSet::from([1, 2, 3]));
    assert_eq!(serve(&mut shares, &mut line, 7, |_| 10, |_| true), [1, 2, 3, 1, 2, 3, 1]);
    assert_eq!(line.left().collect::<BTreeSet<u64>>(), BTreeSet::from([1, 2, 3]), "no connection is lost");
}

#[test]
fn who_takes_longer_is_served_less_often() {
    let mut shares = Shares::default();
    let mut line = shares.line_up(BTreeSet::from([1, 2]));
    let served = serve(&mut shares, &mut line, 110, |id| if id == 1 { 100 } else { 10 }, |_| true);
    assert_eq!(served.iter().filter(|id| **id == 1).count(), 10);
}

#[test]
fn a_short_command_goes_before_a_thousand_backlogs() {
    let mut shares = Shares::default();
    let serve_all_once = |shares: &mut Shares| {
        let mut line = shares.line_up((1..=1000).chain([2000]).collect());
        let served = serve(shares, &mut line, 2000, |id| if id == 2000 { 10 } else { 300 }, |_| false);
        assert_eq!(served.len(), 1001);
        served.iter().position(|id| *id == 2000)
    };
    serve_all_once(&mut shares);
    for _ in 0..10 {
        assert_eq!(serve_all_once(&mut shares), Some(0), "it has used less than all of them");
    }
}

#[test]
fn a_pause_is_no_claim_to_what_others_were_given() {
    let mut shares = Shares::default();
    let mut line = shares.line_up(BTreeSet::from([1]));
    serve(&mut shares, &mut line, 100, |_| 10, |_| true);
    // 2 was not there so far: it does not get the next hundred turns.
    let mut line = shares.line_up(BTreeSet::from([1, 2]));
    let served = serve(&mut shares, &mut line, 10, |_| 10, |_| true);
    assert_eq!(served.iter().filter(|id| **id == 1).count(), 5, "{served:?}");
}

#[test]
fn those_that_are_gone_are_forgotten() {
    let mut shares = Shares::default();
    for id in 0..100_000 {
        let mut line = shares.line_up(BTreeSet::from([id]));
        serve(&mut shares, &mut line, 3, |_| 10, |_| true);
    }
    assert!(shares.used.len() <= LEAST_NOTED + 1, "{}", shares.used.len());
}

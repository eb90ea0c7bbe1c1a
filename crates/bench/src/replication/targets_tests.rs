//! Ratios and verdicts.

use super::super::cells::tests::sample;
use super::*;

fn of(samples: &[Sample], figure: Figure, over: Option<&str>) -> Verdict {
    let verdicts = verdicts(samples);
    let found = verdicts.into_iter().find(|verdict| verdict.figure == figure && verdict.over == over);
    found.expect("both sides are there")
}

#[test]
fn a_ratio_is_of_medians_and_its_range_of_rounds() {
    let samples: Vec<Sample> = [(1, 20.0, 10.0), (2, 30.0, 10.0), (3, 22.0, 20.0)]
        .into_iter()
        .flat_map(|(round, send, build)| {
            [sample("send-index", round, "load", send), sample("build-index", round, "load", build)]
        })
        .collect();
    let verdict = of(&samples, Figure::Throughput, Some("build-index"));
    assert_eq!((verdict.ratio, verdict.range, verdict.met), (2.2, [1.1, 3.0], true));
}

#[test]
fn a_target_that_is_missed_says_by_how_much() {
    let samples = [sample("send-index", 1, "load", 13.0), sample("build-index-reduced-l0", 1, "load", 10.0)];
    let verdict = of(&samples, Figure::Throughput, Some("build-index-reduced-l0"));
    assert!(!verdict.met);
    assert!((verdict.missed_by() - 2.0 / 1.3).abs() < 1e-9, "{}", verdict.missed_by());
}

#[test]
fn backups_that_read_nothing_meet_that_and_others_do_not() {
    let mut samples = [sample("send-index", 1, "load", 13.0)];
    assert!(of(&samples, Figure::BackupIndexRead, None).met);
    samples[0].phase.backups.index_bytes_read = 1;
    assert!(!of(&samples, Figure::BackupIndexRead, None).met);
}

#[test]
fn what_was_not_run_has_no_verdict() {
    assert!(verdicts(&[sample("build-index", 1, "load", 13.0)]).is_empty());
}

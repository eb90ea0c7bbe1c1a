//! Ratios and verdicts.

use super::super::cells::tests::sample;
use super::super::experiments::FIVE;
use super::super::plan::{Scope, Setup};
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

fn two_layer(variant: &'static str, replicas: u32, kops: f64) -> Sample {
    let mut sample = sample(variant, 1, "load", kops);
    sample.setup = Setup { shape: FIVE, ..Setup::new(variant, Mix::SD, replicas, GROWTH_FACTOR) };
    sample
}

#[test]
fn a_gain_must_rise_with_the_number_of_replicas() {
    let samples = |gain_of_five: f64| {
        [
            two_layer("two-layer-20", 3, 12.0),
            two_layer("build-index-depart", 3, 10.0),
            two_layer("two-layer-20", 5, 10.0 * gain_of_five),
            two_layer("build-index-depart", 5, 10.0),
        ]
    };
    for (gain_of_five, rises) in [(1.5, true), (1.1, false)] {
        let verdicts = verdicts(&samples(gain_of_five));
        let rise =
            verdicts.iter().find(|verdict| verdict.mix.contains("5 replicas over that with 3")).expect("it rises");
        assert!((rise.ratio - gain_of_five / 1.2).abs() < 1e-9 && rise.met == rises, "{rise:?}");
        let of_five = verdicts.iter().find(|verdict| verdict.replicas == 5 && verdict.mix == "sd").expect("a verdict");
        assert_eq!((of_five.bound, of_five.met), (AtLeast(1.4), gain_of_five > 1.4));
    }
}

#[test]
fn every_target_is_of_a_row_that_is_run() {
    let setups = Scope::default().setups().concat();
    for target in targets() {
        let is_run = |replicas: &u32| {
            let row = row(target, target.mixes[0], *replicas);
            [Some(target.of), target.over].into_iter().flatten().all(|variant| setups.contains(&row.setup(variant)))
        };
        assert!(target.replicas().iter().any(is_run), "{} over {:?}", target.of, target.over);
        assert!(target.workloads.iter().all(|workload| target.shape.work.has(workload)), "{}", target.of);
    }
}

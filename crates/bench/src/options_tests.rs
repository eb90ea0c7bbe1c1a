//! Invalid options.

use super::*;

#[test]
fn options_that_make_no_sense_are_refused_with_the_reason() {
    let second = Some(Duration::from_secs(1));
    let good = Options::default();
    good.check(false).expect("the defaults are good");
    let killing = Options { kill_primary_every: second, kills: Some(3), ..good.clone() };
    killing.check(true).expect("with a cluster of its own");
    let bad = [
        (Options { workloads: Vec::new(), ..good.clone() }, "--workload"),
        (Options { records: 0, ..good.clone() }, "--records"),
        (Options { threads: 0, ..good.clone() }, "--threads"),
        (Options { threads: 100_000, ..good.clone() }, "--threads"),
        (Options { depth: 0, ..good.clone() }, "--depth"),
        (Options { target_rate: Some(0.0), ..good.clone() }, "--target-rate"),
        (Options { target_rate: Some(f64::NAN), ..good.clone() }, "--target-rate"),
        (killing.clone(), "--dev"),
        (Options { kills: Some(1), ..good.clone() }, "--kill-primary-every"),
    ];
    for (options, what) in bad {
        let error = options.check(false).expect_err(what).to_string();
        assert!(error.contains(what), "{error}");
    }
    let load_only = Options { workloads: vec![Workload::Load], ..killing.clone() };
    assert!(load_only.check(true).expect_err("nothing to kill in").to_string().contains("load"));
    let never = Options { kill_primary_every: Some(Duration::ZERO), ..killing };
    assert!(never.check(true).is_err());
}

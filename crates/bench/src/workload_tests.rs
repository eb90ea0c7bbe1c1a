//! Shares of the workloads, and what they choose.

use super::*;
use std::collections::HashMap;

#[test]
fn workloads_have_the_shares_of_ycsb() {
    let shares = |workload: Workload| {
        let mut counts: HashMap<Kind, u32> = HashMap::new();
        (0..100).for_each(|draw| *counts.entry(workload.kind(draw)).or_default() += 1);
        counts
    };
    let expected: [(Workload, &[(Kind, u32)]); 7] = [
        (Workload::Load, &[(Kind::Insert, 100)]),
        (Workload::A, &[(Kind::Read, 50), (Kind::Update, 50)]),
        (Workload::B, &[(Kind::Read, 95), (Kind::Update, 5)]),
        (Workload::C, &[(Kind::Read, 100)]),
        (Workload::D, &[(Kind::Read, 95), (Kind::Insert, 5)]),
        (Workload::E, &[(Kind::Scan, 95), (Kind::Insert, 5)]),
        (Workload::F, &[(Kind::Read, 50), (Kind::ReadModifyWrite, 50)]),
    ];
    for (workload, expected) in expected {
        assert_eq!(shares(workload), expected.iter().copied().collect(), "{workload}");
    }
}

#[test]
fn names_of_workloads_are_read_back() {
    for workload in Workload::ALL {
        assert_eq!(workload.to_string().parse(), Ok(workload));
    }
    assert!("g".parse::<Workload>().expect_err("no such workload").contains("load, a, b"));
}

#[test]
fn workloads_choose_as_they_are_told() {
    let hottest = |workload: Workload, distribution: Option<&str>| {
        let chosen: Option<Distribution> = distribution.map(|text| text.parse().expect("a distribution"));
        let mut chooser = workload.chooser(chosen, 1000);
        let mut rng = fastrand::Rng::with_seed(1);
        let mut counts = vec![0u32; 1000];
        (0..50_000).for_each(|_| counts[chooser.next(1000, &mut rng) as usize] += 1);
        f64::from(*counts.iter().max().expect("there are records")) / 50_000.0
    };
    // What is due to the hottest of 1000 ranks, and a little more: others may be of the same record.
    for (distribution, due) in [("zipfian", 0.129), ("zipfian:0.99", 0.129), ("zipfian:0.9", 0.092)] {
        let found = hottest(Workload::C, Some(distribution));
        assert!((due * 0.95..due * 1.15).contains(&found), "{distribution}: {found} where {due} is due");
    }
    assert_eq!(hottest(Workload::C, None), hottest(Workload::C, Some("zipfian:0.99")));
    assert_eq!(hottest(Workload::D, None), hottest(Workload::D, Some("latest")));
    assert_eq!(hottest(Workload::E, Some("zipfian:0.5")), hottest(Workload::A, Some("zipfian:0.5")));
    assert!(hottest(Workload::C, Some("uniform")) < 0.002);
    let load = Workload::Load.chooser(Some("zipfian:0.5".parse().expect("a distribution")), 1000);
    assert!(matches!(load, Chooser::Uniform), "it reads nothing");
}

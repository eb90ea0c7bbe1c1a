//! Statistics of the generators: the shares that theory gives, within what chance allows.

use super::{Chooser, THETA, Zipfian, zeta};
use std::collections::HashMap;

const DRAWS: u64 = 400_000;

fn share(count: u64) -> f64 {
    count as f64 / DRAWS as f64
}

#[test]
fn zipfian_ranks_have_the_shares_of_the_law() {
    let items = 10_000;
    let zipfian = Zipfian::new(items, THETA);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut counts = vec![0u64; items as usize];
    for _ in 0..DRAWS {
        counts[zipfian.next(&mut rng) as usize] += 1;
    }
    let total = zeta(0, items, THETA);
    for rank in [0usize, 1] {
        let expected = 1.0 / ((rank + 1) as f64).powf(THETA) / total;
        let found = share(counts[rank]);
        assert!((found / expected - 1.0).abs() < 0.03, "rank {rank}: {found} where {expected} is due");
    }
    // The approximation of Gray et al. is exact for ranks 0 and 1; beyond it is judged by cumulative shares.
    for top in [10u64, 100, 1000] {
        let expected = zeta(0, top, THETA) / total;
        let found = share(counts[..top as usize].iter().sum());
        assert!((found / expected - 1.0).abs() < 0.05, "top {top}: {found} where {expected} is due");
    }
    assert!(counts[9_000..].iter().sum::<u64>() > 0, "the tail is reached");
}

/// The hottest item is the first rank.
#[test]
fn the_hottest_item_is_as_hot_as_theta_says() {
    let items = 1000;
    let mut before = 0.0;
    for theta in [0.01, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999] {
        let expected = 1.0 / zeta(0, items, theta);
        let zipfian = Zipfian::new(items, theta);
        let mut rng = fastrand::Rng::with_seed(6);
        let mut counts = vec![0u64; items as usize];
        for _ in 0..DRAWS {
            counts[zipfian.next(&mut rng) as usize] += 1;
        }
        // Five standard deviations.
        let chance = 5.0 * (expected * (1.0 - expected) / DRAWS as f64).sqrt();
        let found = share(counts[0]);
        assert!((found - expected).abs() < chance, "{theta}: {found} where {expected} is due");
        assert!(found > before, "{theta}: {found}, and {before} with less skew");
        before = found;
    }
}

#[test]
fn growing_is_the_same_as_starting_larger() {
    let mut grown = Zipfian::new(1, THETA);
    for items in [1, 2, 3, 1000] {
        grown.grow(items);
        let fresh = Zipfian::new(items, THETA);
        assert!((grown.zeta - fresh.zeta).abs() < 1e-9);
        let (mut a, mut b) = (fastrand::Rng::with_seed(7), fastrand::Rng::with_seed(7));
        for _ in 0..1000 {
            let rank = grown.next(&mut a);
            assert!(rank < items);
            assert_eq!(rank, fresh.next(&mut b));
        }
    }
    grown.grow(10);
    assert_eq!(grown.items, 1000, "it never shrinks");
}

#[test]
fn the_scrambled_hot_records_are_spread() {
    let records = 100_000;
    let mut chooser = Chooser::Zipfian(Zipfian::new(records, THETA));
    let mut rng = fastrand::Rng::with_seed(2);
    let mut counts: HashMap<u64, u64> = HashMap::new();
    for _ in 0..DRAWS {
        *counts.entry(chooser.next(records, &mut rng)).or_default() += 1;
    }
    let mut hottest: Vec<(u64, u64)> = counts.into_iter().map(|(record, count)| (count, record)).collect();
    hottest.sort_unstable_by(|a, b| b.cmp(a));
    let top: u64 = hottest[..1000].iter().map(|(count, _)| count).sum();
    assert!(share(top) > 0.55, "1 % of the records take most of the draws: {}", share(top));
    let low = hottest[..100].iter().filter(|(_, record)| *record < records / 2).count();
    assert!((30..70).contains(&low), "{low} of the 100 hottest are in the lower half");
}

/// If the hash were taken modulo the number of existing records, every insert would make another record the hottest.
#[test]
fn the_hottest_records_stay_when_others_are_inserted() {
    let records = 1000;
    let hottest = |more: u64| {
        let mut chooser = Chooser::Zipfian(Zipfian::new(records, THETA));
        let mut rng = fastrand::Rng::with_seed(5);
        (0..1000).map(|_| chooser.next(records + more, &mut rng)).collect::<Vec<_>>()
    };
    assert_eq!(hottest(0), hottest(17));
    assert!(hottest(0).iter().all(|record| *record < records));
}

#[test]
fn latest_prefers_the_newest_and_follows_inserts() {
    let mut chooser = Chooser::Latest(Zipfian::new(1000, THETA));
    let mut rng = fastrand::Rng::with_seed(3);
    for records in [1000, 1001, 5000] {
        let draws: Vec<u64> = (0..20_000).map(|_| chooser.next(records, &mut rng)).collect();
        assert!(draws.iter().all(|record| *record < records));
        let newest = draws.iter().filter(|record| **record == records - 1).count();
        let tenth = draws.iter().filter(|record| **record >= records - records / 10).count();
        assert!(newest > 1000, "the newest of {records} is the hottest: {newest}");
        assert!(tenth > 12_000, "the newest tenth of {records} takes most: {tenth}");
    }
    assert_eq!(chooser.next(1, &mut rng), 0, "one record is all there is");
}

#[test]
fn uniform_is_uniform() {
    let mut rng = fastrand::Rng::with_seed(4);
    let mut counts = [0u64; 10];
    for _ in 0..DRAWS {
        counts[Chooser::Uniform.next(10, &mut rng) as usize] += 1;
    }
    for count in counts {
        assert!((share(count) - 0.1).abs() < 0.005, "{counts:?}");
    }
}

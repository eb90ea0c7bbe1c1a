//! Which record an operation names: uniform, zipfian (scrambled, as in YCSB) or latest. Each generator belongs to one
//! worker thread; randomness comes from its caller.
//!
//! The zipfian sampler is that of Gray et al., "Quickly Generating Billion-Record Synthetic Databases" (SIGMOD'94),
//! which YCSB uses. The zeta constant is computed for the number of records there is, not for YCSB's fixed 10 billion,
//! so with a theta of 0.99 the skew is that of the papers' `zipfian 0.99`.

use crate::keys::mix64;

#[cfg(test)]
#[path = "generators_tests.rs"]
mod tests;

/// The skew (theta) of YCSB and of the papers.
pub(crate) const THETA: f64 = 0.99;

/// Ranks 0, 1, 2, ... with probability proportional to 1 / (rank + 1)^theta.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    zeta: f64,
    zeta_two: f64,
}

impl Zipfian {
    /// Over `items` ranks, of which there is at least one. Takes time linear in `items`.
    pub fn new(items: u64, theta: f64) -> Zipfian {
        assert!(items > 0, "a distribution needs something to choose from");
        Zipfian { items, theta, zeta: zeta(0, items, theta), zeta_two: zeta(0, 2, theta) }
    }

    /// Extends the distribution to `items` ranks. Takes time linear in what is added.
    pub fn grow(&mut self, items: u64) {
        if items > self.items {
            self.zeta += zeta(self.items, items, self.theta);
            self.items = items;
        }
    }

    /// A rank below the number of items.
    pub fn next(&self, rng: &mut fastrand::Rng) -> u64 {
        let alpha = 1.0 / (1.0 - self.theta);
        let u = rng.f64();
        let uz = u * self.zeta;
        if uz < 1.0 || self.items == 1 {
            return 0;
        }
        if uz < self.zeta_two {
            return 1;
        }
        let items = self.items as f64;
        let eta = (1.0 - (2.0 / items).powf(1.0 - self.theta)) / (1.0 - self.zeta_two / self.zeta);
        let rank = items * (eta * u - eta + 1.0).powf(alpha);
        (rank as u64).min(self.items - 1)
    }
}

fn zeta(from: u64, to: u64, theta: f64) -> f64 {
    (from..to).map(|rank| 1.0 / ((rank + 1) as f64).powf(theta)).sum()
}

/// Chooses among the records that exist.
#[derive(Clone, Debug)]
pub enum Chooser {
    /// Every record alike.
    Uniform,
    /// A few hot records, spread over the key space by a hash. They are among the records that existed when the chooser
    /// was made, and stay the hot ones when others are inserted, as in YCSB.
    Zipfian(Zipfian),
    /// The newest records are the hottest.
    Latest(Zipfian),
}

impl Chooser {
    /// A record below `records`, the number of records that exist now.
    pub fn next(&mut self, records: u64, rng: &mut fastrand::Rng) -> u64 {
        match self {
            Chooser::Uniform => rng.u64(..records),
            Chooser::Zipfian(ranks) => mix64(ranks.next(rng)) % ranks.items.min(records),
            Chooser::Latest(ranks) => {
                ranks.grow(records);
                records - 1 - ranks.next(rng).min(records - 1)
            }
        }
    }
}

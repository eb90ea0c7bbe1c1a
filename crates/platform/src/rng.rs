//! Seeded randomness: the same seed gives the same run, so a simulation can be replayed.

/// A small seeded generator. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(fastrand::Rng);

impl Rng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(fastrand::Rng::with_seed(seed))
    }
    /// A generator seeded by the operating system.
    pub fn from_entropy() -> Rng {
        Rng(fastrand::Rng::new())
    }
    /// Any number.
    pub fn u64(&mut self) -> u64 {
        self.0.u64(..)
    }
    /// A number below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound)
    }
    /// A number from `low` to `high`, both inclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.u64(low..=high)
    }
    /// An index into `len` things.
    ///
    /// # Panics
    /// If `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.0.usize(..len)
    }
    /// True once in `one_in` times; never for 0.
    pub fn one_in(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.0.u64(..one_in) == 0
    }
    /// A number from 0 to below 1.
    pub fn f64(&mut self) -> f64 {
        self.0.f64()
    }
    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }
    /// Shuffles `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.0.shuffle(items);
    }
    /// A generator whose numbers do not depend on how this one is used afterwards.
    pub fn fork(&mut self) -> Rng {
        Rng(self.0.fork())
    }
}

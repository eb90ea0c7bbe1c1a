//! Terms against a model: histories that fork, with each record's term.

use super::Terms;
use crate::{Epoch, Lsn};
use proptest::prelude::*;

/// A copy: the term of each of its records, and its terms.
#[derive(Clone, Debug, Default)]
struct Copied {
    records: Vec<u32>,
    terms: Terms,
}

impl Copied {
    fn same(&self, other: &Copied) -> u64 {
        self.records.iter().zip(&other.records).take_while(|(a, b)| a == b).count() as u64
    }
}

proptest! {
    /// Each primary begins with what is left of its copy, and brings other copies to the same state: terms tell how
    /// long the common prefix of any two copies is.
    #[test]
    fn the_common_beginning_is_found(
        history in prop::collection::vec((0..4_usize, 0..100_usize, 0..5_usize, prop::collection::vec(any::<bool>(), 4)), 1..60),
    ) {
        let mut copies: [Copied; 4] = Default::default();
        for (number, (primary, lost, written, follows)) in history.into_iter().enumerate() {
            let term = number as u32 + 1;
            let mut serving = copies[primary].clone();
            // Mostly nothing is lost.
            serving.records.truncate(serving.records.len() - lost.saturating_sub(90).min(serving.records.len()));
            serving.terms.begin(Epoch(term), Lsn(serving.records.len() as u64));
            serving.records.extend(std::iter::repeat_n(term, written));
            for (copy, follows) in copies.iter_mut().zip(follows) {
                if follows {
                    *copy = serving.clone();
                }
            }
            copies[primary] = serving;
            for (one, other) in copies.iter().flat_map(|one| copies.iter().map(move |other| (one, other))) {
                let reach = one.records.len().min(other.records.len()) as u64;
                match one.terms.shared(&other.terms) {
                    Some(shared) => prop_assert_eq!(shared.0.min(reach), one.same(other)),
                    None => prop_assert!(one.terms.0.is_empty() || other.terms.0.is_empty() || one.terms.0[0] != other.terms.0[0]),
                }
                prop_assert_eq!(one.terms.shared(&other.terms), other.terms.shared(&one.terms));
                prop_assert!(one.terms.0.len() <= Terms::MOST);
            }
        }
    }
}

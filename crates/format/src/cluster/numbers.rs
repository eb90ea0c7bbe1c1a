//! The numbers that a coordinator's tree has given to regions, each once. If a number was given and its region is no
//! longer configured, no copy of the region is needed any more.
//!
//! A tree that was lost and filled anew does not know which numbers were given before. It does not list them as given,
//! so copies with the old numbers are not taken for data that may be deleted.

use crate::RegionId;
use serde::{Deserialize, Serialize};

/// The numbers that were given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionNumbers {
    /// Half-open intervals, ascending, with gaps in between.
    given: Vec<(u32, u32)>,
}

impl RegionNumbers {
    /// The lowest number above all that were given; `None` if none is left.
    pub fn next(&self) -> Option<RegionId> {
        let next = self.given.last().map_or(1, |(_, up_to)| *up_to);
        (next < u32::MAX).then_some(RegionId(next))
    }

    /// The numbers that were skipped below the highest given one. If the highest possible number was given (named by an
    /// operator, or found on a server), these are the only ones left.
    pub fn gaps(&self) -> impl Iterator<Item = RegionId> + '_ {
        let ends = std::iter::once(1).chain(self.given.iter().map(|(_, up_to)| *up_to));
        ends.zip(self.given.iter().map(|(from, _)| *from)).flat_map(|(from, to)| from..to).map(RegionId)
    }

    /// Whether this number was given.
    pub fn has(&self, region: RegionId) -> bool {
        self.given.iter().any(|(from, up_to)| (*from..*up_to).contains(&region.0))
    }

    /// Notes that all numbers of `other` are given as well.
    pub fn give_all(&mut self, other: &RegionNumbers) {
        self.given.extend(&other.given);
        self.give([]);
    }

    /// Notes that these numbers are given as well. `u32::MAX` is no number of a region, but leaves none above.
    pub fn give(&mut self, regions: impl IntoIterator<Item = RegionId>) {
        self.given.extend(regions.into_iter().map(|region| (region.0, region.0.saturating_add(1))));
        self.given.sort_unstable();
        let mut whole: Vec<(u32, u32)> = Vec::new();
        for (from, up_to) in self.given.drain(..) {
            match whole.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(up_to),
                _ => whole.push((from, up_to)),
            }
        }
        self.given = whole;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::encode_value;

    fn given(numbers: &[u32]) -> RegionNumbers {
        let mut all = RegionNumbers::default();
        all.give(numbers.iter().map(|number| RegionId(*number)));
        all
    }

    #[test]
    fn a_number_is_given_once_and_gaps_stay() {
        assert_eq!(RegionNumbers::default().next(), Some(RegionId(1)));
        let mut numbers = given(&[1, 2, 3]);
        assert_eq!((numbers.next(), &encode_value(&numbers)[..]), (Some(RegionId(4)), &[1, 1, 4][..]));
        numbers.give([9, 8, 3].map(RegionId));
        assert_eq!(numbers.next(), Some(RegionId(10)));
        let has: Vec<u32> = (0..12).filter(|number| numbers.has(RegionId(*number))).collect();
        assert_eq!(has, [1, 2, 3, 8, 9]);
        numbers.give((4..8).map(RegionId));
        assert_eq!(numbers, given(&[5, 4, 3, 2, 1, 9, 8, 7, 6]), "what comes together is one");
        assert_eq!(given(&[u32::MAX - 1]).next(), None);
        assert_eq!(given(&[u32::MAX]).next(), None);
        let gaps: Vec<u32> = given(&[2, 3, 6, u32::MAX - 1]).gaps().map(|number| number.0).take(5).collect();
        assert_eq!(gaps, [1, 4, 5, 7, 8]);
        assert_eq!(given(&[1, 2]).gaps().next(), None, "what is above is no gap");
    }
}

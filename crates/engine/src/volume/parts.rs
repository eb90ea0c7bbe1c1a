//! Free parts of segments: a buddy system. See [`leeward_format::part`].
//!
//! No two free parts overlap, and no free part's other half is free: they are one. So a segment none of whose parts is
//! in use is not here.

use leeward_format::SegmentNo;
use std::collections::BTreeSet;

/// Free parts. Numbers of larger parts come before those of smaller ones.
#[derive(Debug, Default)]
pub(super) struct FreeParts(BTreeSet<SegmentNo>);

impl FreeParts {
    /// Adds the halves of a segment, which is in use from now on.
    pub(super) fn add(&mut self, whole: SegmentNo) {
        if let Some((first, second)) = whole.halves() {
            self.0.extend([first, second]);
        }
    }

    /// Takes the smallest part that was halved `halvings` times at most. Of those that are as small, the first on the
    /// volume: so as few segments as possible are in use in part.
    pub(super) fn pop(&mut self, halvings: u32) -> Option<SegmentNo> {
        let of = |halvings| {
            let bound = |halvings| SegmentNo::part(halvings, 0);
            let (first, end) = (bound(halvings)?, bound(halvings + 1));
            match end {
                Some(end) => self.0.range(first..end).next(),
                None => self.0.range(first..).next(),
            }
        };
        let mut part = *(1..=halvings).rev().find_map(of)?;
        self.0.remove(&part);
        while part.halvings() < halvings
            && let Some((first, second)) = part.halves()
        {
            self.0.insert(second);
            part = first;
        }
        Some(part)
    }

    /// Takes this part; `false` if not all of it is free.
    pub(super) fn take(&mut self, wanted: SegmentNo) -> bool {
        let mut around = wanted;
        while !self.0.contains(&around) {
            match around.parent() {
                Some(parent) => around = parent,
                None => return false,
            }
        }
        self.0.remove(&around);
        let mut rest = wanted;
        while rest != around
            && let (Some(buddy), Some(parent)) = (rest.buddy(), rest.parent())
        {
            self.0.insert(buddy);
            rest = parent;
        }
        true
    }

    /// A part is free. Returns the segment that it was the last part in use of.
    pub(super) fn give_back(&mut self, part: SegmentNo) -> Option<SegmentNo> {
        let mut free = part;
        while let Some(buddy) = free.buddy()
            && self.0.remove(&buddy)
        {
            free = free.parent()?;
        }
        if free.halvings() == 0 {
            return Some(free);
        }
        self.0.insert(free);
        None
    }

    /// Bytes of all, on a volume with segments of this size.
    pub(super) fn bytes(&self, segment_bytes: usize) -> u64 {
        self.0.iter().map(|part| part.bytes(segment_bytes) as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const SEGMENT_BYTES: usize = 256 << 10;
    /// Units of the smallest part in a segment.
    const UNITS: usize = SEGMENT_BYTES / SegmentNo::LEAST_PART_BYTES;

    fn units(no: SegmentNo) -> std::ops::Range<usize> {
        let start = no.start(SEGMENT_BYTES) as usize / SegmentNo::LEAST_PART_BYTES;
        start..start + no.bytes(SEGMENT_BYTES) / SegmentNo::LEAST_PART_BYTES
    }

    #[derive(Clone, Debug)]
    enum Op {
        Pop(u32),
        Take(u32, u64),
        GiveBack(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (1u32..=5).prop_map(Op::Pop),
            1 => (1u32..=5).prop_flat_map(|h| (Just(h), 0..4u64 << h)).prop_map(|(h, i)| Op::Take(h, i)),
            3 => any::<usize>().prop_map(Op::GiveBack),
        ]
    }

    proptest! {
        /// Four segments against a map of their smallest parts.
        #[test]
        fn no_two_parts_in_use_overlap_and_all_that_is_free_can_be_taken(ops in prop::collection::vec(op(), 1..200)) {
            let mut parts = FreeParts::default();
            let mut wholes: Vec<SegmentNo> = (0..4).map(SegmentNo).collect();
            let mut used: BTreeMap<SegmentNo, ()> = BTreeMap::new();
            let mut map = [false; 4 * UNITS];
            for op in ops {
                let got = match op {
                    Op::Pop(halvings) => {
                        if let Some(part) = parts.pop(halvings) {
                            prop_assert_eq!(part.halvings(), halvings);
                            Some(part)
                        } else if let Some(whole) = wholes.pop() {
                            parts.add(whole);
                            parts.pop(halvings)
                        } else {
                            None
                        }
                    }
                    Op::Take(halvings, index) => {
                        let wanted = SegmentNo::part(halvings, index).expect("a small index");
                        let is_split = !wholes.contains(&wanted.whole());
                        let is_free = is_split && units(wanted).all(|unit| !map[unit]);
                        let took = parts.take(wanted);
                        prop_assert_eq!(took, is_free);
                        took.then_some(wanted)
                    }
                    Op::GiveBack(which) => {
                        if !used.is_empty() {
                            let part = *used.keys().nth(which % used.len()).expect("within");
                            used.remove(&part);
                            map[units(part)].fill(false);
                            let whole = parts.give_back(part);
                            let is_all_free = units(part.whole()).all(|unit| !map[unit]);
                            prop_assert_eq!(whole, is_all_free.then_some(part.whole()));
                            wholes.extend(whole);
                        }
                        None
                    }
                };
                if let Some(part) = got {
                    prop_assert!(units(part).all(|unit| !map[unit]), "{part} is in use");
                    map[units(part)].fill(true);
                    used.insert(part, ());
                }
                let free = (0..4).map(SegmentNo).filter(|whole| !wholes.contains(whole)).flat_map(units);
                let free = free.filter(|unit| !map[*unit]).count() * SegmentNo::LEAST_PART_BYTES;
                prop_assert_eq!(parts.bytes(SEGMENT_BYTES), free as u64);
            }
        }
    }
}

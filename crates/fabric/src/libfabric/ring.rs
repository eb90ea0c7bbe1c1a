//! The parts of a link's staging memory that are in use. They are allocated in order and given back in any order.
//!
//! A part never wraps: if it does not fit at the end of the memory, the end is skipped. Room is freed only by the
//! oldest part, which costs little, because operations end about in the order in which they were started. Used under
//! the link's lock.

use crate::words::WORD;
use std::{collections::VecDeque, ops::Range};

/// A part in use, until it is given back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Part {
    number: u64,
    /// Its bytes, from a multiple of 8 on.
    pub(super) range: Range<usize>,
}

/// The parts of a link's staging memory that are in use, oldest first.
pub(super) struct Ring {
    len: u64,
    /// Bytes taken and skipped since the start.
    head: u64,
    tail: u64,
    /// The parts from the oldest in use on: the end of each, counted as in `head`, and whether it was given back.
    parts: VecDeque<(u64, bool)>,
    /// Number of the first of `parts`.
    oldest: u64,
}

impl Ring {
    /// `len` bytes, a multiple of 8, all free.
    pub(super) fn new(len: usize) -> Ring {
        Ring { len: len as u64, head: 0, tail: 0, parts: VecDeque::new(), oldest: 0 }
    }

    /// Takes `len` bytes; `None` if there is no room now.
    pub(super) fn take(&mut self, len: usize) -> Option<Part> {
        let rounded = len.next_multiple_of(WORD) as u64;
        let at = self.head % self.len;
        let skipped = if at + rounded > self.len { self.len - at } else { 0 };
        if self.head + skipped + rounded - self.tail > self.len {
            return None;
        }
        let start = ((self.head + skipped) % self.len) as usize;
        self.head += skipped + rounded;
        self.parts.push_back((self.head, false));
        Some(Part { number: self.oldest + self.parts.len() as u64 - 1, range: start..start + len })
    }

    /// Gives a part back.
    pub(super) fn give_back(&mut self, part: &Part) {
        self.parts[(part.number - self.oldest) as usize].1 = true;
        while let Some((end, true)) = self.parts.front() {
            self.tail = *end;
            self.parts.pop_front();
            self.oldest += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_of_it_can_be_taken_again_and_again() {
        let mut ring = Ring::new(64);
        for _ in 0..5 {
            let (first, second) = (ring.take(40).expect("there is room"), ring.take(24).expect("there is room"));
            assert_eq!((first.range.clone(), ring.take(1)), (0..40, None));
            ring.give_back(&second);
            assert_eq!(ring.take(1), None, "the oldest part is in use");
            ring.give_back(&first);
        }
    }

    proptest! {
        #[test]
        fn parts_in_use_never_overlap(steps in prop::collection::vec((1..200usize, any::<prop::sample::Index>()), 1..300)) {
            let mut ring = Ring::new(512);
            let mut used: Vec<Part> = Vec::new();
            for (len, which) in steps {
                match ring.take(len) {
                    Some(part) => {
                        prop_assert!(part.range.len() == len && part.range.end <= 512 && part.range.start % WORD == 0);
                        let apart = |other: &Part| other.range.end <= part.range.start || part.range.end <= other.range.start;
                        prop_assert!(used.iter().all(apart));
                        used.push(part);
                    }
                    None => prop_assert!(!used.is_empty(), "an empty ring has room"),
                }
                if !used.is_empty() && len % 2 == 0 {
                    ring.give_back(&used.swap_remove(which.index(used.len())));
                }
            }
        }
    }
}

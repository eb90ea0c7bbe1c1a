//! The size classes of records: which space is free, and which record is evicted next.
//!
//! - Space that was freed first is used first, so a reader seldom meets the reuse of what it is reading.
//! - Records are evicted by clock, per class: a hand passes over them, and evicts the first that was not used since it
//!   last passed.
//! - *Pressure* is the number of evictions of a class since the parts were last compared. A class whose pressure has
//!   reached the number of its records is short: it has replaced them all. It gets a part of the class with the least
//!   pressure for its size, if that is at most a quarter of its own.

use super::parts::IndexMemory;
use leeward_format::hash_index::{Line, MAX_CLASS_LINES};
use std::collections::VecDeque;

/// Lines of a record of each class.
const LINES: [u16; 16] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, MAX_CLASS_LINES];
/// Records that the hand passes for one eviction. Then the next one goes, used or not.
const MOST_PASSED: u32 = 1024;
/// A class gives up a part only if its pressure, for its size, is this many times lower.
const LESS_PRESSED: u64 = 4;

/// Lines of a part that have not been used yet: the first, and the one behind the last.
type Fresh = (u32, u32);

/// The first line of a part, and the number of its lines.
pub(super) type PartLines = (Line, u32);

#[derive(Default)]
struct Class {
    parts: Vec<PartLines>,
    fresh: Option<Fresh>,
    /// Poisoned records, the earliest first.
    free: VecDeque<Line>,
    /// Position among the parts, and lines behind the first of that part.
    hand: (usize, u32),
    pressure: u64,
    /// Records that there is space for.
    capacity: u64,
}

/// The size classes of a hash index.
pub(super) struct Classes([Class; LINES.len()]);

impl Classes {
    pub(super) fn new() -> Classes {
        Classes(Default::default())
    }

    /// The class of records of so many lines, at most [`MAX_CLASS_LINES`].
    pub(super) fn of(lines: u16) -> usize {
        LINES.partition_point(|class| *class < lines).min(LINES.len() - 1)
    }

    /// Lines of each record of the class.
    pub(super) fn lines(class: usize) -> u16 {
        LINES[class]
    }

    /// Free space, which is no longer free.
    pub(super) fn take_free(&mut self, class: usize) -> Option<Line> {
        let (class, lines) = (&mut self.0[class], u32::from(LINES[class]));
        if let Some((next, end)) = class.fresh {
            class.fresh = Some((next + lines, end)).filter(|(next, end)| next < end);
            return Some(Line(next));
        }
        class.free.pop_front()
    }

    /// The record at `line` is poisoned, or its space was never used.
    pub(super) fn give(&mut self, class: usize, line: Line) {
        self.0[class].free.push_back(line);
    }

    /// The class has another part. It has no fresh space.
    pub(super) fn add_part(&mut self, class: usize, part: PartLines) {
        let (class, lines) = (&mut self.0[class], u32::from(LINES[class]));
        debug_assert!(class.fresh.is_none(), "it would be lost");
        class.fresh = Some((part.0.0, part.0.0 + part.1));
        class.parts.push(part);
        class.capacity += u64::from(part.1 / lines);
    }

    /// The class has replaced all of its records, or has space for none.
    pub(super) fn is_short(&self, class: usize) -> bool {
        self.0[class].pressure >= self.0[class].capacity
    }

    /// The record to evict next, if there is any.
    pub(super) fn victim(&mut self, class: usize, parts: &mut IndexMemory) -> Option<Line> {
        let (class, lines) = (&mut self.0[class], u32::from(LINES[class]));
        let mut passed = 0;
        // Twice around, as the first time may find used ones only.
        for _ in 0..2 * class.capacity + 1 {
            let (first, count) = *class.parts.get(class.hand.0).or(class.parts.first())?;
            class.hand.0 = if class.hand.0 < class.parts.len() { class.hand.0 } else { 0 };
            let line = Line(first.0 + class.hand.1);
            class.hand.1 += lines;
            if class.hand.1 >= count {
                class.hand = (class.hand.0 + 1, 0);
            }
            match parts.pass(line) {
                Some(uses) if uses == 0 || passed >= MOST_PASSED => {
                    class.pressure += 1;
                    return Some(line);
                }
                Some(_) => passed += 1,
                None => {}
            }
        }
        None
    }

    /// Takes the part away that is missed least, for `class` if there is one. Nothing of it is free afterwards.
    pub(super) fn part_to_spare(&mut self, class: Option<usize>) -> Option<PartLines> {
        let pressed = |class: &Class| class.pressure as f64 / class.capacity.max(1) as f64;
        let others = self.0.iter().enumerate().filter(|(at, other)| Some(*at) != class && !other.parts.is_empty());
        let donor = others.min_by(|(_, one), (_, other)| pressed(one).total_cmp(&pressed(other)));
        let may_give = |donor: &Class| class.is_none() || donor.pressure * LESS_PRESSED <= donor.capacity;
        let donor = donor.filter(|(_, donor)| may_give(donor)).map(|(at, _)| at);
        self.0.iter_mut().for_each(|class| class.pressure /= 2);
        let (donor, lines) = (&mut self.0[donor?], u32::from(LINES[donor?]));
        // The part that the hand came to longest ago: behind the hand, around the clock.
        let at = (donor.hand.0 + 1) % donor.parts.len();
        let part = donor.parts.remove(at);
        donor.hand = (if at < donor.hand.0 { donor.hand.0 - 1 } else { donor.hand.0 }, 0);
        let is_inside = |line: u32| (part.0.0..part.0.0 + part.1).contains(&line);
        donor.free.retain(|line| !is_inside(line.0));
        donor.fresh = donor.fresh.filter(|(next, _)| !is_inside(*next));
        donor.capacity -= u64::from(part.1 / lines);
        Some(part)
    }
}

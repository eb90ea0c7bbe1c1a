//! Numbers of segments. A number says where bytes lie on one volume: in a whole segment, or in a part of one.
//!
//! ```text
//!  number   31       29 28          0
//!           | halvings | index      |     bytes: the volume's segment size, halved so often
//!                                         offset on the device: index times these bytes
//! ```
//! A number with 0 halvings is a whole segment, as all numbers were before there were parts. Two halves of a part are the
//! parts of the next halving with twice its index, and one more. So parts form a buddy system.

use crate::ids::{SegmentName, SegmentNo};
use std::fmt;
use std::str::FromStr;

const INDEX_BITS: u32 = 29;
const MOST_INDEX: u32 = (1 << INDEX_BITS) - 1;

impl SegmentNo {
    /// The highest number of a whole segment.
    pub const LAST_WHOLE: SegmentNo = SegmentNo(MOST_INDEX);
    /// Most times that a segment is halved.
    pub const MOST_HALVINGS: u32 = 7;
    /// Smallest part, in bytes.
    pub const LEAST_PART_BYTES: usize = 8 << 10;

    /// Part `index` of the parts that segments of a volume halved so often have; `None` if no number says that.
    pub fn part(halvings: u32, index: u64) -> Option<SegmentNo> {
        let index = u32::try_from(index).ok().filter(|index| *index <= MOST_INDEX)?;
        (halvings <= SegmentNo::MOST_HALVINGS).then_some(SegmentNo(halvings << INDEX_BITS | index))
    }

    /// How often the segment was halved: 0 for a whole one.
    pub fn halvings(self) -> u32 {
        self.0 >> INDEX_BITS
    }

    fn index(self) -> u32 {
        self.0 & MOST_INDEX
    }

    /// The segment that it is, or is a part of.
    pub fn whole(self) -> SegmentNo {
        SegmentNo(self.index() >> self.halvings())
    }

    /// Its bytes, on a volume with segments of this size.
    pub fn bytes(self, segment_bytes: usize) -> usize {
        segment_bytes >> self.halvings()
    }

    /// Where it starts, in bytes from the start of the volume.
    pub fn start(self, segment_bytes: usize) -> u64 {
        u64::from(self.index()) * self.bytes(segment_bytes) as u64
    }

    /// Its first and its second half; `None` if numbers do not reach so far.
    pub fn halves(self) -> Option<(SegmentNo, SegmentNo)> {
        let first = u64::from(self.index()) * 2;
        Some((SegmentNo::part(self.halvings() + 1, first)?, SegmentNo::part(self.halvings() + 1, first + 1)?))
    }

    /// The other half of what it is a half of; `None` for a whole segment.
    pub fn buddy(self) -> Option<SegmentNo> {
        (self.halvings() > 0).then_some(SegmentNo(self.0 ^ 1))
    }

    /// What it is a half of; `None` for a whole segment.
    pub fn parent(self) -> Option<SegmentNo> {
        let halvings = self.halvings().checked_sub(1)?;
        Some(SegmentNo(halvings << INDEX_BITS | self.index() >> 1))
    }

    /// The smallest part with the same start that has room for `bytes`. It is the number itself if no smaller one has.
    #[must_use]
    pub fn trimmed(self, bytes: usize, segment_bytes: usize) -> SegmentNo {
        let mut part = self;
        while let Some((first, _)) = part.halves()
            && first.bytes(segment_bytes) >= bytes.max(SegmentNo::LEAST_PART_BYTES)
        {
            part = first;
        }
        part
    }

    /// Its name in pointers with physical addressing.
    pub fn name(self) -> SegmentName {
        SegmentName(self.0.into())
    }
}

/// A whole segment as its number, a part as `12.3/64`: part 3 of 64 of segment 12.
impl fmt::Display for SegmentNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = 1 << self.halvings();
        match self.halvings() {
            0 => self.0.fmt(f),
            _ => write!(f, "{}.{}/{parts}", self.whole(), self.index() % parts),
        }
    }
}

/// Reads what [`fmt::Display`] writes.
impl FromStr for SegmentNo {
    type Err = String;

    fn from_str(text: &str) -> Result<SegmentNo, String> {
        let number = || {
            let Some((whole, part)) = text.split_once('.') else {
                return SegmentNo::part(0, text.parse().ok()?);
            };
            let (part, parts) = part.split_once('/')?;
            let (whole, part, parts) =
                (whole.parse::<u32>().ok()?, part.parse::<u32>().ok()?, parts.parse::<u32>().ok()?);
            let is_part = parts.is_power_of_two() && parts > 1 && part < parts;
            let index = u64::from(whole) * u64::from(parts) + u64::from(part);
            if is_part { SegmentNo::part(parts.ilog2(), index) } else { None }
        };
        let wanted = "a number, or a part of one such as 12.3/64, with 2 to 128 parts";
        number().ok_or_else(|| format!("\"{text}\" is no segment: {wanted}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEGMENT_BYTES: usize = 2 << 20;

    proptest! {
        #[test]
        fn halves_fill_their_parent_and_text_is_read_back(raw in any::<u32>()) {
            let no = SegmentNo(raw);
            prop_assert_eq!(no.to_string().parse::<SegmentNo>(), Ok(no));
            if let Some((first, second)) = no.halves() {
                let half = first.bytes(SEGMENT_BYTES);
                prop_assert_eq!((first.parent(), second.parent()), (Some(no), Some(no)));
                prop_assert_eq!((first.buddy(), second.buddy()), (Some(second), Some(first)));
                prop_assert_eq!((first.whole(), second.whole()), (no.whole(), no.whole()));
                prop_assert_eq!(first.start(SEGMENT_BYTES), no.start(SEGMENT_BYTES));
                prop_assert_eq!(second.start(SEGMENT_BYTES), no.start(SEGMENT_BYTES) + half as u64);
                prop_assert_eq!(2 * half, no.bytes(SEGMENT_BYTES));
            }
        }

        #[test]
        fn what_is_trimmed_has_room_and_no_half_has(raw in any::<u32>(), bytes in 0usize..=SEGMENT_BYTES) {
            let no = SegmentNo(raw);
            let trimmed = no.trimmed(bytes, SEGMENT_BYTES);
            prop_assert_eq!(trimmed.start(SEGMENT_BYTES), no.start(SEGMENT_BYTES));
            prop_assert!(trimmed == no || trimmed.bytes(SEGMENT_BYTES) >= bytes);
            let least = bytes.max(SegmentNo::LEAST_PART_BYTES);
            prop_assert!(trimmed.halves().is_none_or(|(half, _)| half.bytes(SEGMENT_BYTES) < least));
        }
    }

    #[test]
    fn text_that_is_no_number_is_refused() {
        for text in
            ["", "x", "1.", "1.1", "1.1/3", "1.2/2", "1.0/256", "1.0/1", "1.0/0", "-1", "536870912", "99999999999"]
        {
            assert!(text.parse::<SegmentNo>().is_err(), "{text}");
        }
        assert_eq!("12.3/64".parse(), Ok(SegmentNo::part(6, 12 * 64 + 3).expect("a part")));
        assert_eq!(SegmentNo::part(8, 0), None);
    }
}

//! Range tombstones, written by `delete_range`, in an L0 and in leaf segments.
//!
//! ```text
//!  section     | crc32c | fragment | fragment | ...
//!  fragment    | flags u8 | LSN u64 | start bytes u16 | start | end bytes u16 | end |
//! ```
//! Fragments are disjoint and ascend. The newest range tombstone of a key counts, so a newer one cuts those that it
//! overlaps. The end of a fragment is exclusive. Flags: 1, it starts where the one before ends (the first: at the
//! segment's first key); 2, it ends at the segment's last key (the last fragment only); 4, it has no end. A bound that
//! a flag gives is left out, with its length. The CRC covers everything after itself, seeded with the [`Address`] of
//! the section.
//!
//! In memory, a range without an end has the end [`NO_END`], which is above every key, so that ends compare as bytes.
//! Pure functions; any thread may call them.

use crate::node::Address;
use crate::{DecodeError, Lsn, MAX_KEY_BYTES};
use bytes::Bytes;

#[cfg(test)]
#[path = "range_tests.rs"]
mod tests;

/// Above every key: the end of a range that has none.
pub const NO_END: &[u8] = &[0xff; MAX_KEY_BYTES + 1];

const WHAT: &str = "range tombstones";
/// Bytes of a section without fragments.
pub(crate) const CRC_BYTES: usize = 4;
const FIXED_BYTES: usize = 1 + 8 + 2 + 2;

const FOLLOWS: u8 = 1;
const ENDS_LAST: u8 = 2;
const ENDLESS: u8 = 4;

/// Whether `start` and `end` of a record are a valid range that is not empty. An empty end means no end.
pub fn is_range(start: &[u8], end: &[u8]) -> bool {
    start.len() <= MAX_KEY_BYTES && end.len() <= MAX_KEY_BYTES && (end.is_empty() || start < end)
}

/// The lowest bound above `key`, with no key between the two; `None` if no key is above it.
pub fn after(key: &[u8]) -> Option<Vec<u8>> {
    if key.len() < MAX_KEY_BYTES {
        return Some([key, &[0]].concat());
    }
    let last = key.iter().rposition(|byte| *byte != 0xff)?;
    let mut next = key[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

/// The deletion of every key in a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeTombstone {
    /// First key.
    pub start: Bytes,
    /// Key after the last; [`NO_END`] for no end.
    pub end: Bytes,
    /// LSN of the record. It hides older versions.
    pub lsn: Lsn,
}

impl RangeTombstone {
    /// The range tombstone of a record. An empty end means no end.
    pub fn new(start: &[u8], end: &[u8], lsn: Lsn) -> RangeTombstone {
        let end = if end.is_empty() { Bytes::from_static(NO_END) } else { Bytes::copy_from_slice(end) };
        RangeTombstone { start: Bytes::copy_from_slice(start), end, lsn }
    }

    /// Whether `key` is in the range.
    #[inline]
    pub fn covers(&self, key: &[u8]) -> bool {
        &self.start[..] <= key && key < &self.end[..]
    }

    fn part(&self, start: &Bytes, end: &Bytes) -> RangeTombstone {
        RangeTombstone { start: start.clone(), end: end.clone(), lsn: self.lsn }
    }
}

/// A part of the key space that one range tombstone covers, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// First key.
    pub start: Bytes,
    /// Key after the last; [`NO_END`] for no end.
    pub end: Bytes,
    /// LSN of the range tombstone that covers it, if any.
    pub lsn: Option<Lsn>,
}

impl Window {
    /// Whether `key` is in it.
    #[inline]
    pub fn has(&self, key: &[u8]) -> bool {
        &self.start[..] <= key && key < &self.end[..]
    }
}

/// Disjoint range tombstones in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeTombstones(Vec<RangeTombstone>);

impl RangeTombstones {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of fragments.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Disjoint fragments, in ascending order.
    pub fn as_slice(&self) -> &[RangeTombstone] {
        &self.0
    }

    /// Appends one that is above all others. If it continues the last one with the same LSN, the two become one
    /// fragment.
    ///
    /// # Panics
    /// In debug builds, if it is not above all others.
    pub fn push(&mut self, next: RangeTombstone) {
        debug_assert!(next.start < next.end && self.0.last().is_none_or(|last| last.end <= next.start));
        match self.0.last_mut() {
            Some(last) if last.end == next.start && last.lsn == next.lsn => last.end = next.end,
            _ => self.0.push(next),
        }
    }

    /// Cuts off the part of the last one from `bound` on, and returns it.
    pub fn cut(&mut self, bound: &[u8]) -> Option<RangeTombstone> {
        let last = self.0.pop_if(|last| &last.end[..] > bound)?;
        if &last.start[..] >= bound {
            return Some(last);
        }
        let bound = Bytes::copy_from_slice(bound);
        self.0.push(last.part(&last.start, &bound));
        Some(last.part(&bound, &last.end))
    }

    /// The one that covers `key`.
    #[inline]
    pub fn covering(&self, key: &[u8]) -> Option<&RangeTombstone> {
        let above = self.0.partition_point(|range| &range.start[..] <= key);
        self.0[..above].last().filter(|range| key < &range.end[..])
    }

    /// The widest window around `key`.
    pub fn window(&self, key: &[u8]) -> Window {
        let above = self.0.partition_point(|range| &range.start[..] <= key);
        let before = above.checked_sub(1).map(|before| &self.0[before]);
        match before {
            Some(range) if key < &range.end[..] => {
                Window { start: range.start.clone(), end: range.end.clone(), lsn: Some(range.lsn) }
            }
            before => Window {
                start: before.map_or_else(Bytes::new, |before| before.end.clone()),
                end: self.0.get(above).map_or(Bytes::from_static(NO_END), |next| next.start.clone()),
                lsn: None,
            },
        }
    }

    /// Whether every key from `first` to `last` is covered; `last` itself is excluded if `is_open`.
    pub fn cover(&self, first: &[u8], last: &[u8], is_open: bool) -> bool {
        let above = self.0.partition_point(|range| &range.start[..] <= first);
        let Some(from) = above.checked_sub(1) else { return false };
        let mut end = first;
        for range in &self.0[from..] {
            if &range.start[..] > end {
                return false;
            }
            end = end.max(&range.end);
            if end > last || (is_open && end == last) {
                return true;
            }
        }
        false
    }

    /// Both sets in one. `newer` replaces these where it covers.
    #[must_use]
    pub fn under(&self, newer: &RangeTombstones) -> RangeTombstones {
        let mut all = RangeTombstones(Vec::with_capacity(self.len() + newer.len()));
        let mut upper = newer.0.iter().peekable();
        for lower in &self.0 {
            let mut start = &lower.start;
            while let Some(before) = upper.next_if(|upper| upper.end <= *start) {
                all.push(before.clone());
            }
            while let Some(above) = upper.peek().copied().filter(|above| above.start < lower.end) {
                debug_assert!(above.lsn >= lower.lsn, "what is above is newer");
                if *start < above.start {
                    all.push(lower.part(start, &above.start));
                }
                start = &above.end;
                if above.end >= lower.end {
                    break;
                }
                all.push(above.clone());
                upper.next();
            }
            if *start < lower.end {
                all.push(lower.part(start, &lower.end));
            }
        }
        upper.for_each(|above| all.push(above.clone()));
        all
    }

    /// These with one newer range tombstone, which replaces them where it covers.
    #[must_use]
    pub fn with(&self, newer: RangeTombstone) -> RangeTombstones {
        self.under(&RangeTombstones(vec![newer]))
    }
}

impl FromIterator<RangeTombstone> for RangeTombstones {
    /// From fragments in ascending order.
    fn from_iter<I: IntoIterator<Item = RangeTombstone>>(fragments: I) -> RangeTombstones {
        let mut all = RangeTombstones::default();
        fragments.into_iter().for_each(|fragment| all.push(fragment));
        all
    }
}

/// Most bytes that one fragment takes.
pub(crate) fn fragment_bytes(range: &RangeTombstone) -> usize {
    let end = if is_endless(range) { 0 } else { range.end.len() };
    FIXED_BYTES + range.start.len() + end
}

fn is_endless(range: &RangeTombstone) -> bool {
    range.end.len() > MAX_KEY_BYTES
}

/// Appends the section of `ranges`, which will be at the address `at`, to `out`. `first` and `last` are the keys of its
/// segment.
pub(crate) fn write_section(ranges: &RangeTombstones, (first, last): (&[u8], &[u8]), at: Address, out: &mut Vec<u8>) {
    let section = out.len();
    out.extend_from_slice(&[0; CRC_BYTES]);
    let mut before = first;
    for (i, range) in ranges.0.iter().enumerate() {
        let follows = before == &range.start[..];
        let ends_last = i + 1 == ranges.len() && last == &range.end[..];
        let flags = match (is_endless(range), ends_last) {
            (true, _) => ENDLESS,
            (false, true) => ENDS_LAST,
            (false, false) => 0,
        };
        out.push(flags | if follows { FOLLOWS } else { 0 });
        out.extend_from_slice(&range.lsn.0.to_le_bytes());
        for bound in [(!follows).then_some(&range.start), (flags == 0).then_some(&range.end)].into_iter().flatten() {
            out.extend_from_slice(&(bound.len() as u16).to_le_bytes());
            out.extend_from_slice(bound);
        }
        before = &range.end;
    }
    at.seal(&mut out[section..]);
}

/// Checks the CRC of the section `bytes` at `address`.
pub(crate) fn check_section(bytes: &[u8], address: Address) -> Result<(), DecodeError> {
    let Some((crc, body)) = bytes.split_first_chunk::<CRC_BYTES>() else {
        return Err(DecodeError::Short { what: WHAT, needed: CRC_BYTES, available: bytes.len() });
    };
    let (found, expected) = (u32::from_le_bytes(*crc), address.crc(body));
    if found != expected {
        return Err(DecodeError::Checksum { what: WHAT, found, expected });
    }
    Ok(())
}

/// Decodes the section `bytes` at `address`, of a segment with these keys.
pub(crate) fn read_section(
    bytes: &Bytes,
    address: Address,
    (first, last): (&Bytes, &Bytes),
) -> Result<RangeTombstones, DecodeError> {
    check_section(bytes, address)?;
    let invalid = |detail| DecodeError::invalid(WHAT, detail);
    let mut rest = Section { bytes, at: CRC_BYTES };
    let (mut all, mut before) = (Vec::new(), first.clone());
    while rest.at < bytes.len() {
        let flags = rest.take(1)?[0];
        let lsn = Lsn(u64::from_le_bytes(rest.take(8)?[..].try_into().expect("eight bytes")));
        let start = if flags & FOLLOWS != 0 { before.clone() } else { rest.bound()? };
        let end = match flags & !FOLLOWS {
            0 => rest.bound()?,
            ENDS_LAST => last.clone(),
            ENDLESS => Bytes::from_static(NO_END),
            _ => return Err(invalid(format!("flags {flags:#04x} are unknown"))),
        };
        if start < before || end <= start || start.is_empty() {
            return Err(invalid("a fragment is empty or out of order".into()));
        }
        before = end.clone();
        all.push(RangeTombstone { start, end, lsn });
    }
    Ok(RangeTombstones(all))
}

/// A reader of a section.
struct Section<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl Section<'_> {
    fn take(&mut self, bytes: usize) -> Result<Bytes, DecodeError> {
        let end = self.at + bytes;
        if end > self.bytes.len() {
            return Err(DecodeError::Short { what: WHAT, needed: end, available: self.bytes.len() });
        }
        let taken = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(taken)
    }

    fn bound(&mut self) -> Result<Bytes, DecodeError> {
        let len = u16::from_le_bytes(self.take(2)?[..].try_into().expect("two bytes"));
        if usize::from(len) > MAX_KEY_BYTES {
            return Err(DecodeError::invalid(WHAT, format!("a bound of {len} bytes")));
        }
        self.take(usize::from(len))
    }
}

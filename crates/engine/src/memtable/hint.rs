//! Hints: 16 bits of a key, in the same order as the keys, or equal.
//!
//! Those of a node are by one scale, made of what its keys had in common and how far they reached when it was made. A key that does
//! not begin as they do has the least hint or the greatest. Decimal digits, of which many keys are made, differ in four bits of eight:
//! where they stand, only those four count, so that hints tell four digits apart and not two.

use super::entry::compare;
use std::cmp::Ordering;

/// Bytes that a scale has of what is common.
const COMMON_BYTES: usize = 16;

/// What a hint is of a key: how far the eight bytes behind the first `skip` are from `base`, without the lowest `shift` bits.
#[derive(Clone, Copy, Default)]
pub(super) struct Scale {
    base: u64,
    /// The first bytes of what is skipped, as a number; the rest is in `low`.
    common: u128,
    skip: u16,
    shift: u8,
    /// Only four bits of each of the eight bytes count.
    is_decimal: bool,
}

/// The bytes of a short key, and then zeroes.
#[cold]
fn padded(key: &[u8]) -> u128 {
    let mut bytes = [0; COMMON_BYTES];
    bytes[..key.len()].copy_from_slice(key);
    u128::from_be_bytes(bytes)
}

/// Eight bytes of a key, as a number in their order.
#[inline]
fn window(key: &[u8], from: usize) -> u64 {
    let rest = key.get(from..).unwrap_or_default();
    if let Some(word) = rest.first_chunk() {
        return u64::from_be_bytes(*word);
    }
    let mut word = [0; 8];
    word[..rest.len()].copy_from_slice(rest);
    u64::from_be_bytes(word)
}

/// What the digits are from which many keys are made.
const ZEROS: u64 = 0x3030_3030_3030_3030;
const NIBBLES: u64 = 0x0f0f_0f0f_0f0f_0f0f;

/// Four bits of each byte, in the same order as long as all are digits; what follows another byte is all low or all high, as it is.
#[inline]
fn digits(window: u64) -> u64 {
    let mut digits = window ^ ZEROS;
    if digits & !NIBBLES != 0 {
        let from = (digits & !NIBBLES).leading_zeros() / 8 * 8;
        let rest = u64::MAX >> from;
        digits = if window & rest < ZEROS & rest { digits & !rest } else { digits | rest } & NIBBLES;
    }
    digits = (digits | digits >> 4) & 0x00ff_00ff_00ff_00ff;
    digits = (digits | digits >> 8) & 0x0000_ffff_0000_ffff;
    (digits | digits >> 16) & 0xffff_ffff
}

impl Scale {
    /// For keys of which nothing is known: their first bytes.
    pub(super) fn unknown() -> Scale {
        Scale { shift: (u64::BITS - u16::BITS) as u8, ..Scale::default() }
    }

    /// For keys from `first` to `last`, or as many that follow `from`.
    pub(super) fn new(first: &[u8], last: &[u8], from: &[u8]) -> Scale {
        let skip = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        let is_decimal = [first, last].iter().all(|key| (window(key, skip) ^ ZEROS) & !NIBBLES == 0);
        let mut scale = Scale { skip: skip as u16, is_decimal, ..Scale::default() };
        scale.common = scale.beginning(from);
        let span = scale.value(last).saturating_sub(scale.value(first));
        scale.shift = (u64::BITS - span.leading_zeros()).saturating_sub(u16::BITS) as u8;
        scale.base = scale.value(from);
        scale
    }

    /// As many of the key's first bytes as `common` has.
    #[inline]
    fn beginning(&self, key: &[u8]) -> u128 {
        let beginning = key.first_chunk().map_or_else(|| padded(key), |bytes| u128::from_be_bytes(*bytes));
        let rest = usize::from(self.skip).min(COMMON_BYTES) * 8;
        beginning & !u128::MAX.checked_shr(rest as u32).unwrap_or(0)
    }

    #[inline]
    fn value(&self, key: &[u8]) -> u64 {
        let window = window(key, usize::from(self.skip));
        if self.is_decimal { digits(window) } else { window }
    }

    /// The hint of a key; `low` is any key from which the scale was made.
    #[inline]
    pub(super) fn hint<'a>(&self, key: &[u8], low: impl FnOnce() -> &'a [u8]) -> u16 {
        let mut order = self.beginning(key).cmp(&self.common);
        let skip = usize::from(self.skip);
        if order == Ordering::Equal && skip > COMMON_BYTES {
            let own = key.get(COMMON_BYTES..skip.min(key.len())).unwrap_or_default();
            order = compare(own, &low()[COMMON_BYTES..skip]);
        }
        match order {
            Ordering::Less => 0,
            Ordering::Equal => {
                (self.value(key).saturating_sub(self.base) >> self.shift).min(u64::from(u16::MAX)) as u16
            }
            Ordering::Greater => u16::MAX,
        }
    }
}

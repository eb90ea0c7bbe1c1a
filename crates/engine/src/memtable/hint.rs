//! Hints: 16 bits of a key. Of two keys the lower one has a lower or an equal hint.
//!
//! All hints of a node use one scale. It is computed when the node is made, from the common prefix of its keys and
//! their range. A key without that prefix has the least hint or the greatest. Many keys consist of digits, decimal or
//! hexadecimal in lower case, which carry four bits in a byte. For those only the four bits count, so that a hint
//! distinguishes four digits and not two.

use super::entry::compare;
use std::cmp::Ordering;

/// Bytes of the common prefix that a scale keeps.
const COMMON_BYTES: usize = 16;

/// How a hint is computed: the distance of the eight bytes behind the first `skip` from `base`, without the lowest
/// `shift` bits.
#[derive(Clone, Copy, Default)]
pub(super) struct Scale {
    base: u64,
    /// The first skipped bytes, as a number; `low` has the rest.
    common: u128,
    skip: u16,
    shift: u8,
    /// Each of the eight bytes counts only with the four bits of a digit.
    has_digits: bool,
}

/// The bytes of a short key, padded with zeroes.
#[cold]
fn padded(key: &[u8]) -> u128 {
    let mut bytes = [0; COMMON_BYTES];
    bytes[..key.len()].copy_from_slice(key);
    u128::from_be_bytes(bytes)
}

/// Eight bytes of a key as a big-endian number, padded with zeroes.
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

/// `byte` in each byte of a window.
const fn each(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// Four bits for each byte of a window: its value if all bytes are digits, otherwise a number in the same order. The
/// second result has bits set in the bytes that are no digits.
#[inline]
fn nibbles(window: u64) -> (u64, u64) {
    let is_letter = (window >> 6) & each(1);
    // At most 24, so no byte carries into another, here and below.
    let value = (window & each(0x0f)) + 9 * is_letter;
    let as_digit = value + each(b'0') + (b'a' - b'9' - 1) as u64 * is_letter;
    // Digits of ten and more must be letters, and all others must not be.
    let others = (window ^ as_digit) | ((value + each(6)) ^ (is_letter << 4)) & each(0x10) | value & each(0x10);
    (value & each(0x0f), others)
}

/// [`nibbles`] of a window that may have letters or other bytes. From the first other byte on all bits are low or all
/// high, as that byte is lower or higher than the digits next to it.
fn mixed_digits(window: u64) -> u64 {
    let (digits, others) = nibbles(window);
    if others == 0 {
        return digits;
    }
    let from = others.leading_zeros() / 8 * 8;
    let rest = u64::MAX >> from;
    let other = window << from >> (u64::BITS - 8);
    let highest = each(0x0f) & rest;
    let instead = match other as u8 {
        ..b'0' => 0,
        // As high as a value that begins with a nine can be.
        b'0'..b'a' => highest & !(6 << (u64::BITS - 8) >> from),
        _ => highest,
    };
    digits & !rest | instead
}

/// Four bits of each byte, packed.
#[inline]
fn digits(window: u64) -> u64 {
    let mut digits = window ^ each(b'0');
    // There are other bytes than decimal digits.
    if (digits | digits.wrapping_add(each(6))) & !each(0x0f) != 0 {
        digits = mixed_digits(window);
    }
    digits = (digits | digits >> 4) & 0x00ff_00ff_00ff_00ff;
    digits = (digits | digits >> 8) & 0x0000_ffff_0000_ffff;
    (digits | digits >> 16) & 0xffff_ffff
}

impl Scale {
    /// A scale for unknown keys: their first bytes.
    pub(super) fn unknown() -> Scale {
        Scale { shift: (u64::BITS - u16::BITS) as u8, ..Scale::default() }
    }

    /// A scale for keys from `first` to `last`, or for as wide a range of keys from `from` on.
    pub(super) fn new(first: &[u8], last: &[u8], from: &[u8]) -> Scale {
        let skip = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        let has_digits = [first, last].iter().all(|key| nibbles(window(key, skip)).1 == 0);
        let mut scale = Scale { skip: skip as u16, has_digits, ..Scale::default() };
        scale.common = scale.beginning(from);
        let span = scale.value(last).saturating_sub(scale.value(first));
        scale.shift = (u64::BITS - span.leading_zeros()).saturating_sub(u16::BITS) as u8;
        scale.base = scale.value(from);
        scale
    }

    /// The first bytes of the key, as many as `common` has.
    #[inline]
    fn beginning(&self, key: &[u8]) -> u128 {
        let beginning = key.first_chunk().map_or_else(|| padded(key), |bytes| u128::from_be_bytes(*bytes));
        let rest = usize::from(self.skip).min(COMMON_BYTES) * 8;
        beginning & !u128::MAX.checked_shr(rest as u32).unwrap_or(0)
    }

    #[inline]
    fn value(&self, key: &[u8]) -> u64 {
        let window = window(key, usize::from(self.skip));
        if self.has_digits { digits(window) } else { window }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_in_the_order_of_windows() {
        let starts = [b"".as_slice(), b"0", b"9", b"a", b"f", b"03af"];
        let ends = [&[0; 8], b"00000000", b"9a0f9a0f", b"ffffffff", &[u8::MAX; 8]];
        for start in starts {
            let with = |byte: u8| ends.map(|end| [start, &[byte], end].concat());
            let windows: Vec<u64> = (0..=u8::MAX).flat_map(with).map(|key| window(&key, 0)).collect();
            assert!(windows.is_sorted());
            assert!(windows.is_sorted_by_key(|window| digits(*window)), "behind {start:?}");
        }
    }

    #[test]
    fn digits_say_what_hexadecimal_numbers_do() {
        for number in [0, 1, 0x9a, 0x0123_4567, 0x89ab_cdef, 0xffff_ffff] {
            assert_eq!(digits(window(format!("{number:08x}").as_bytes(), 0)), number);
        }
        let is_digit = |byte: u8| nibbles(each(byte)).1 == 0;
        let found: Vec<u8> = (0..=u8::MAX).filter(|byte| is_digit(*byte)).collect();
        assert_eq!(found, b"0123456789abcdef");
    }
}

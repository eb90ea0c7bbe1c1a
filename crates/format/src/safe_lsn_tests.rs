//! A line counts only whole, under its own nonce, and while the primary's clock is certainly below its instant.

use super::*;
use crate::hash_index::ClockSample;

const NONCE: u64 = 7;

fn bytes(line: SafeLsnLine, nonce: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = line.words(nonce).iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(SAFE_LSN_LINE_BYTES, 0);
    bytes
}

fn line(readable_until: u64, lsn: u64, wall: u64) -> SafeLsnLine {
    SafeLsnLine { readable_until, lsn: Lsn(lsn), wall: UnixMs(wall) }
}

#[test]
fn a_line_is_read_back_under_its_nonce_alone() {
    let shown = line(1_000, 5, 9);
    assert_eq!(SafeLsnLine::read(NONCE, &bytes(shown, NONCE)), Some(shown));
    assert_eq!(SafeLsnLine::read(NONCE + 1, &bytes(shown, NONCE)), None);
    assert_eq!(SafeLsnLine::read(NONCE, &bytes(shown, NONCE)[..31]), None, "too short");
    assert_eq!(SafeLsnLine::read(NONCE, &[0; SAFE_LSN_LINE_BYTES]), None, "it has ended");
}

#[test]
fn words_of_two_instants_are_no_line() {
    let (before, after) = (line(1_000, 5, 9), line(1_100, 6, 10));
    for mixed in 1..15_u8 {
        let mut torn = bytes(before, NONCE);
        for word in (0..4).filter(|word| mixed & 1 << word != 0) {
            torn[word * 8..][..8].copy_from_slice(&bytes(after, NONCE)[word * 8..][..8]);
        }
        assert_eq!(SafeLsnLine::read(NONCE, &torn), None, "words {mixed:04b} of the later line");
    }
}

#[test]
fn a_line_counts_while_the_primarys_clock_is_certainly_below_its_instant() {
    let sample = ClockSample { asked: 100, answered: 5_000 };
    let shown = line(5_125, 1, 1);
    assert!(sample.is_readable(199, shown.readable_until), "at most 5,124");
    assert!(!sample.is_readable(200, shown.readable_until), "perhaps 5,125");
    assert!(!sample.is_readable(99, shown.readable_until), "a clock that has gone back bounds nothing");
}

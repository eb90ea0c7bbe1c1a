//! Copies against a plain byte vector, and against each other from two threads. Runs under Miri.

use super::*;
use std::sync::atomic::AtomicBool;
use std::thread;

#[test]
fn every_offset_and_length_copies_exactly_its_bytes() {
    let words = zeroed(40);
    let mut model = vec![0u8; 40];
    let mut fill = 1u8;
    for offset in 0..=24 {
        for len in 0..=16 {
            let bytes: Vec<u8> = (0..len).map(|i| fill.wrapping_add(i)).collect();
            fill = fill.wrapping_add(17);
            copy_in(&words, offset, &bytes);
            model[offset..offset + bytes.len()].copy_from_slice(&bytes);
            let mut all = vec![0; 40];
            copy_out(&words, 0, &mut all);
            assert_eq!(all, model, "after {len} bytes at {offset}");
            let mut part = vec![0; bytes.len()];
            copy_out(&words, offset, &mut part);
            assert_eq!(part, bytes);
        }
    }
}

#[test]
fn neighbours_in_one_word_do_not_disturb_each_other() {
    let words = zeroed(8);
    thread::scope(|scope| {
        for half in 0..2u8 {
            let words = &words;
            scope.spawn(move || {
                for round in 0..200u8 {
                    copy_in(words, usize::from(half) * 4, &[round + half; 4]);
                    let mut back = [0; 4];
                    copy_out(words, usize::from(half) * 4, &mut back);
                    assert_eq!(back, [round + half; 4]);
                }
            });
        }
    });
}

#[test]
fn aligned_words_are_never_torn_and_a_flag_publishes_the_data() {
    let words = zeroed(72);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=200u64 {
                copy_in(&words, 0, &[round as u8; 64]);
                store(&words, 64, round);
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let flag = load(&words, 64);
            let mut data = [0; 64];
            copy_out(&words, 0, &mut data);
            for word in data.as_chunks::<8>().0 {
                assert_eq!(*word, [word[0]; 8], "a word is one write's");
                assert!(u64::from(word[0]) >= flag, "data of {} behind flag {flag}", word[0]);
            }
        }
    });
}

#[test]
fn ranges_of_hostile_size_are_outside() {
    assert!(within(0, 0, 0));
    assert!(within(8, 8, 16));
    assert!(!within(9, 8, 16));
    assert!(!within(u64::MAX, 8, 16));
    assert!(!within(1, u64::MAX, usize::MAX));
}

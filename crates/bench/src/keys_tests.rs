//! Keys, sizes and values are what the papers and the ledger count on.

use super::{KEY_BYTES, Mix, even_split_points, key, mix64, sequence_of, value};
use std::collections::HashSet;

#[test]
fn keys_are_ycsb_keys_and_never_collide() {
    let keys: HashSet<_> = (0..100_000).map(key).collect();
    assert_eq!(keys.len(), 100_000);
    for key in &keys {
        assert_eq!(key.len(), KEY_BYTES);
        let digits = key.strip_prefix(b"user").expect("the prefix of YCSB");
        assert!(digits.iter().all(u8::is_ascii_digit));
    }
    assert_eq!(key(0), format!("user{:020}", mix64(0)));
}

#[test]
fn mixes_have_the_sizes_and_shares_of_the_papers() {
    let expected: [(Mix, [u64; 3]); 6] = [
        (Mix::S, [100, 0, 0]),
        (Mix::M, [0, 100, 0]),
        (Mix::L, [0, 0, 100]),
        (Mix::SD, [60, 20, 20]),
        (Mix::MD, [20, 60, 20]),
        (Mix::LD, [20, 20, 60]),
    ];
    for (mix, shares) in expected {
        let records = 100_000;
        let mut counts = [0u64; 3];
        for record in 0..records {
            match mix.value_bytes(record) + KEY_BYTES {
                33 => counts[0] += 1,
                123 => counts[1] += 1,
                1023 => counts[2] += 1,
                other => panic!("a pair of {other} bytes"),
            }
        }
        for (count, share) in counts.into_iter().zip(shares) {
            let found = count as f64 * 100.0 / records as f64;
            assert!((found - share as f64).abs() < 0.6, "{mix}: {counts:?}");
        }
    }
}

#[test]
fn size_and_place_are_independent() {
    let small = |record: &u64| Mix::SD.value_bytes(*record) == 9;
    let low = |record: &u64| key(*record) < even_split_points(2)[0];
    let both = (0..100_000).filter(|record| small(record) && low(record)).count();
    assert!((29_000..31_000).contains(&both), "60 % small, half of them in the lower half: {both}");
}

#[test]
fn names_of_mixes_are_read_back() {
    for mix in Mix::ALL {
        assert_eq!(mix.to_string().parse(), Ok(mix));
        assert_eq!(mix.to_string().to_uppercase().parse(), Ok(mix));
    }
    assert!("xl".parse::<Mix>().expect_err("no such mix").contains("sd"));
}

#[test]
fn a_value_proves_its_write_and_that_it_is_whole() {
    for bytes in [9, 99, 999] {
        let made = value(17, 4711, bytes);
        assert_eq!(made.len(), bytes);
        assert_eq!(sequence_of(17, &made, bytes), Some(4711));
        assert_eq!(sequence_of(18, &made, bytes), None, "of another record");
        assert_eq!(sequence_of(17, &made[..bytes - 1], bytes), None, "cut");
        for at in 0..bytes {
            let mut damaged = made.to_vec();
            damaged[at] ^= 1;
            assert_ne!(sequence_of(17, &damaged, bytes), Some(4711), "byte {at} of {bytes}");
        }
    }
    assert_eq!(sequence_of(1, b"", 9), None);
    assert_eq!(sequence_of(1, b"1234567", 9), None);
}

#[test]
fn split_points_are_even() {
    for regions in [1, 2, 3, 6, 7] {
        let points = even_split_points(regions);
        assert_eq!(points.len(), regions as usize - 1);
        assert!(points.is_sorted());
        let mut counts = vec![0; regions as usize];
        for record in 0..60_000 {
            let key = key(record);
            counts[points.partition_point(|point| *point <= key)] += 1;
        }
        let share = 60_000 / regions as i64;
        assert!(counts.iter().all(|count: &i64| (count - share).abs() < share / 10), "{counts:?}");
    }
    assert!(even_split_points(0).is_empty());
}

//! Where random operations split a region.

use super::*;

fn note(samples: &mut Samples, key: String) {
    samples.note(&Op::Get { key: key.into() });
}

#[test]
fn the_middle_has_about_half_of_the_operations_on_either_side() {
    for seed in 0..50 {
        let (mut rng, mut samples) = (Rng::new(seed), Samples::new(RegionId(seed as u32)));
        for _ in 0..3_000 {
            // Earlier ones are forgotten.
            note(&mut samples, format!("a{:03}", rng.below(1_000)));
        }
        assert!(samples.middle().is_some_and(|key| key.starts_with(b"a")));
        for _ in 0..10_000 {
            // Half of them on a tenth of the keys.
            let number = if rng.one_in(2) { rng.below(1_000) } else { 900 + rng.below(100) };
            note(&mut samples, format!("k{number:03}"));
        }
        let middle = samples.middle().expect("many keys are used");
        assert!((b"k750".as_slice()..b"k965").contains(&&middle[..]), "seed {seed}: {middle:?}");
    }
}

#[test]
fn one_key_cannot_be_split() {
    let (mut rng, mut samples) = (Rng::new(1), Samples::new(RegionId(1)));
    note(&mut samples, "only".into());
    assert_eq!(samples.middle(), None, "nothing is known yet");
    for _ in 0..20_000 {
        let key = if rng.one_in(6) { format!("k{:03}", rng.below(1_000)) } else { "hot".into() };
        note(&mut samples, key);
    }
    assert_eq!(samples.middle(), None, "most are on one");
    // Nor do operations without a key say anything.
    samples.note(&Op::Count { region: RegionId(1) });
    assert_eq!(samples.keys.len(), KEYS);
}

#[test]
fn keys_that_ascend_or_descend_with_time_give_no_split_key() {
    for descends in [false, true] {
        let mut samples = Samples::new(RegionId(1));
        for number in 0..20_000 {
            let number = if descends { 20_000 - number } else { number };
            note(&mut samples, format!("k{number:06}"));
            assert_eq!(samples.middle(), None, "{number}");
        }
    }
}

#[test]
fn long_keys_are_cut() {
    let mut samples = Samples::new(RegionId(1));
    for number in 0..10_000 {
        note(&mut samples, format!("{:03}{}", number * 389 % 997, "x".repeat(200)));
    }
    assert!(samples.keys.iter().all(|key| key.len() == MOST_BYTES));
    assert!(samples.middle().is_some());
}

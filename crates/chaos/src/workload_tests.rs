//! A value tells its number, and no other bytes do.

use super::*;
use std::collections::HashSet;

#[test]
fn a_value_tells_its_number_and_a_damaged_one_tells_none() {
    for number in -2_000..2_000 {
        assert_eq!(number_of(&value(number)), number);
    }
    let long = (1..).find(|number| value(*number).len() > 100).expect("some are long");
    let mut damaged = value(long).to_vec();
    damaged[60] ^= 1;
    assert_eq!([number_of(&damaged), number_of(b""), number_of(b"7")], [i64::MIN; 3]);
}

#[test]
fn keys_differ_and_lie_in_their_regions() {
    let shared = |region| SharedKey { region, slot: 1, generation: 2 }.bytes();
    let keys: Vec<_> = (0..1_000).map(|number| filling_key(1, number)).chain([shared(1)]).collect();
    let splits = TABLES[0].splits();
    assert!(keys.iter().all(|key| *key > splits[0]));
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
    assert!(shared(0) < splits[0]);
    let names: Vec<_> = (0..regions()).map(|region| table_of(region).name().to_string()).collect();
    assert_eq!(names, ["default", "default", "built", "layered", "hybrid"]);
}

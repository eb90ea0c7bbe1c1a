//! The merge of several inputs against a map: each key once, with the version of the newest input that has it.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Keys of one input, ascending, with its number as LSN.
struct Keys(VecDeque<Vec<u8>>, Lsn);

impl Input for Keys {
    fn key(&self) -> Option<&[u8]> {
        self.0.front().map(|key| &key[..])
    }

    fn current(&self) -> Option<(&[u8], Stamp, Entry<'_>)> {
        Some((self.key()?, self.1.into(), Entry::Tombstone))
    }

    fn step(&mut self, _: &mut Counters) -> Result<()> {
        self.0.pop_front();
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn each_key_comes_once_with_its_newest_version(
        inputs in proptest::collection::vec(
            proptest::collection::btree_set(proptest::collection::vec(0u8..3, 1..12), 0..12),
            0..6,
        ),
    ) {
        let mut expected = BTreeMap::new();
        for (number, keys) in (0u64..).zip(&inputs) {
            for key in keys {
                expected.entry(key.clone()).or_insert(Lsn(number));
            }
        }
        let input = |(number, keys): (u64, &BTreeSet<Vec<u8>>)| Keys(keys.iter().cloned().collect(), Lsn(number));
        let mut merged = Newest::new((0..).zip(&inputs).map(input).collect());
        let mut found = Vec::new();
        while let Some((key, stamp, _)) = merged.current() {
            found.push((key.to_vec(), stamp.lsn));
            merged.step(&mut Counters::default()).expect("no device");
        }
        prop_assert!(merged.key().is_none());
        prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
    }
}

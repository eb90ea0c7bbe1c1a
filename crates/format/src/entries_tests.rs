//! Packed entries: what goes in comes out, also by way of a message, and hostile blocks are refused.

use super::*;
use proptest::prelude::*;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn any_pairs() -> impl Strategy<Value = Pairs> {
    let bytes = |most| proptest::collection::vec(any::<u8>(), 0..most);
    proptest::collection::vec((bytes(20), bytes(300)), 0..20)
}

fn unpacked(entries: &Entries) -> Pairs {
    entries.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn entries_come_out_as_they_went_in(pairs in any_pairs()) {
        let entries: Entries = pairs.iter().map(|(key, value)| (key, value)).collect();
        prop_assert_eq!(entries.len(), pairs.len());
        prop_assert_eq!(entries.is_empty(), pairs.is_empty());
        let bytes: usize = pairs.iter().map(|(key, value)| key.len() + value.len()).sum();
        prop_assert_eq!(entries.payload_bytes(), bytes);
        prop_assert_eq!(&unpacked(&entries), &pairs);
        let shared: Pairs = entries.shared().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        prop_assert_eq!(&shared, &pairs);
        let sent = postcard::to_stdvec(&entries).expect("into memory");
        let received: Entries = postcard::from_bytes(&sent).expect("what was sent");
        prop_assert_eq!(received, entries);
    }

    #[test]
    fn values_that_come_later_are_as_good(pairs in any_pairs(), late in proptest::collection::vec(any::<bool>(), 20)) {
        let mut builder = EntriesBuilder::default();
        let mut gaps = Vec::new();
        for ((key, value), late) in pairs.iter().zip(&late) {
            if *late {
                gaps.push((builder.push_gap(key, value.len() as u32), key, value));
            } else {
                builder.push(key, value);
            }
        }
        for (gap, key, value) in gaps.into_iter().rev() {
            let (known, room) = builder.gap(gap);
            prop_assert_eq!(&known[..key.len()], &key[..]);
            room.copy_from_slice(value);
        }
        prop_assert_eq!(unpacked(&builder.finish()), pairs);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(count in 0..4u32, block in proptest::collection::vec(0..8u8, 0..64)) {
        let sent = postcard::to_stdvec(&(count, Bytes::from(block))).expect("into memory");
        if let Ok(entries) = postcard::from_bytes::<Entries>(&sent) {
            prop_assert_eq!(entries.iter().count(), count as usize);
        }
    }
}

#[test]
fn what_is_no_block_of_so_many_entries_is_refused() {
    let decode = |count: u32, block: &'static [u8]| {
        Entries::try_from(Unchecked { count, block: Bytes::from_static(block) }).map(|entries| entries.len())
    };
    assert_eq!(decode(1, &[1, 0, 1, 0, 0, 0, b'k', b'v']).ok(), Some(1));
    for (count, block) in [
        (2, &[1, 0, 1, 0, 0, 0, b'k', b'v'][..]),
        (0, &[1, 0, 1, 0, 0, 0, b'k', b'v']),
        (1, &[1, 0, 1, 0, 0, 0, b'k']),
        (1, &[1, 0, 0xff, 0xff, 0xff, 0xff, b'k', b'v']),
        (1, &[1, 0, 1]),
        (1, &[]),
    ] {
        let error = decode(count, block).expect_err("damaged").to_string();
        assert!(error.starts_with("entries: "), "{error}");
    }
}

//! The L0 against a model of versions, and readers beside a writer. Small enough for Miri.

use super::*;
use leeward_format::Expiry;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

const CASES: u32 = if cfg!(miri) { 4 } else { 200 };
const RACE_ENTRIES: u64 = if cfg!(miri) { 60 } else { 20_000 };

/// Versions by key, oldest first; `None` is a tombstone.
type Model = BTreeMap<Vec<u8>, Vec<(u64, Option<Vec<u8>>)>>;

fn visible(model: &Model, at: u64) -> Vec<(Vec<u8>, u64, Option<Vec<u8>>)> {
    let newest = |versions: &[(u64, Option<Vec<u8>>)]| versions.iter().rev().find(|(lsn, _)| *lsn <= at).cloned();
    model.iter().filter_map(|(key, versions)| newest(versions).map(|(lsn, value)| (key.clone(), lsn, value))).collect()
}

fn as_entry(value: &Option<Vec<u8>>) -> Entry<'_> {
    match value {
        None => Entry::Tombstone,
        Some(value) if value.len() == 3 => Entry::InLog { pointer: leeward_format::Pointer(77), value_bytes: 3 },
        Some(value) => Entry::InPlace(value),
    }
}

/// Some of the puts expire.
fn stamp(lsn: u64, value: &Option<Vec<u8>>) -> Stamp {
    let expires = value.as_ref().filter(|value| value.len() % 3 == 0).and_then(|_| Expiry::from_ms(lsn + 100));
    Stamp { lsn: Lsn(lsn), expires }
}

fn any_writes() -> impl Strategy<Value = Vec<(Vec<u8>, Option<Vec<u8>>)>> {
    let key = prop_oneof![
        proptest::collection::vec(0u8..3, 1..4),
        proptest::collection::vec(any::<u8>(), 1..14),
        proptest::collection::vec(any::<u8>(), 0..3).prop_map(|tail| [b"common prefix".as_slice(), &tail].concat()),
    ];
    let value = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40));
    proptest::collection::vec((key, value), 0..if cfg!(miri) { 12 } else { 150 })
}

/// A table of these writes: the first `loaded` are of a replay, the others are inserted.
fn fill(writes: &[(Vec<u8>, Option<Vec<u8>>)], loaded: usize) -> (MemTable, Model) {
    let (mut loader, mut model) = (Loader::new(MemTable::new()), Model::new());
    for (lsn, (key, value)) in (1..).zip(writes) {
        model.entry(key.clone()).or_default().push((lsn, value.clone()));
        if lsn <= loaded as u64 {
            loader.insert(key, stamp(lsn, value), as_entry(value));
        }
    }
    let table = loader.finish();
    for (lsn, (key, value)) in (1..).zip(writes).skip(loaded) {
        table.insert(key, stamp(lsn, value), as_entry(value));
    }
    (table, model)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn hints_are_in_the_order_of_keys(shape in 0usize..SHAPES, scaled in proptest::array::uniform2(0u64..400), keys in any_writes()) {
        let mut scaled = scaled.map(|n| shaped_key(shape, n));
        scaled.sort_unstable();
        let scale = hint::Scale::new(&scaled[0], &scaled[1], &scaled[0]);
        let beginning = [&scaled[1][..scaled[1].len() / 2], &scaled[1][..]];
        let near = keys.iter().flat_map(|(key, _)| beginning.map(|start| [start, &key[..]].concat()));
        let mut keys: Vec<_> = keys.iter().map(|(key, _)| key.clone()).chain(near).chain((0..400).map(|n| shaped_key(shape, n))).collect();
        keys.sort_unstable();
        let hints: Vec<_> = keys.iter().map(|key| scale.hint(key, || &scaled[0])).collect();
        prop_assert!(hints.is_sorted(), "{:?} {:?} {:?}", scaled, keys, hints);
    }

    #[test]
    fn reads_are_those_of_the_model(
        writes in any_writes(),
        loaded in 0usize..160,
        at in 0u64..160,
        probe in proptest::collection::vec(0u8..3, 1..4),
    ) {
        let (table, model) = fill(&writes, loaded);
        prop_assert_eq!(table.entries(), writes.len() as u64);
        prop_assert_eq!(table.has_deletes(), writes.iter().any(|(_, value)| value.is_none()));
        prop_assert_eq!(table.last_lsn(), Lsn(writes.len() as u64));
        let expected = visible(&model, at);
        for (key, lsn, value) in &expected {
            prop_assert_eq!(table.get(key, Lsn(at)), Some((stamp(*lsn, value), as_entry(value))));
        }
        let expected_probe = expected.iter().find(|(key, ..)| *key == probe);
        prop_assert_eq!(table.get(&probe, Lsn(at)).map(|(stamp, _)| stamp.lsn.0), expected_probe.map(|(_, lsn, _)| *lsn));

        let mut cursor = table.cursor(Lsn(at));
        cursor.seek(&probe);
        for (key, lsn, value) in expected.iter().filter(|(key, ..)| *key >= probe) {
            prop_assert_eq!(cursor.current(), Some((&key[..], stamp(*lsn, value), as_entry(value))));
            cursor.step();
        }
        prop_assert!(cursor.current().is_none());
        cursor.seek_before(Some(&probe));
        for (key, lsn, value) in expected.iter().rev().filter(|(key, ..)| *key < probe) {
            prop_assert_eq!(cursor.current(), Some((&key[..], stamp(*lsn, value), as_entry(value))));
            cursor.step_back();
        }
        prop_assert!(cursor.current().is_none());
        cursor.seek_before(None);
        prop_assert_eq!(cursor.current().map(|(key, ..)| key), expected.last().map(|(key, ..)| &key[..]));
    }
}

#[test]
fn readers_beside_a_writer_see_a_prefix_of_its_writes() {
    let table = Arc::new(MemTable::new());
    let written = Arc::new(AtomicU64::new(0));
    let key_of = |lsn: u64| (lsn * 7919 % (RACE_ENTRIES / 2)).to_be_bytes();
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (table, written) = (Arc::clone(&table), Arc::clone(&written));
            std::thread::spawn(move || {
                loop {
                    let at = written.load(Ordering::Acquire);
                    if at > 0 {
                        let (lsn, entry) = table.get(&key_of(at), Lsn(at)).expect("it was written");
                        assert_eq!((lsn, entry), (Lsn(at).into(), Entry::InPlace(&at.to_le_bytes())));
                    }
                    let mut cursor = table.cursor(Lsn(at));
                    cursor.seek(&[]);
                    let (mut count, mut last) = (0, Vec::new());
                    while let Some((key, stamp, _)) = cursor.current() {
                        assert!(key > &last[..] && stamp.lsn.0 <= at);
                        last = key.to_vec();
                        count += 1;
                        cursor.step();
                    }
                    assert_eq!(count, at.min(RACE_ENTRIES / 2), "each of the first keys was written once");
                    cursor.seek_before(None);
                    for back in 0..count.min(200) {
                        let (key, stamp, _) = cursor.current().unwrap_or_else(|| panic!("{back} of {count} back"));
                        assert!(stamp.lsn.0 <= at && (back == 0 || key < &last[..]));
                        last = key.to_vec();
                        cursor.step_back();
                    }
                    if at == RACE_ENTRIES {
                        return;
                    }
                }
            })
        })
        .collect();
    for lsn in 1..=RACE_ENTRIES {
        table.insert(&key_of(lsn), Lsn(lsn), Entry::InPlace(&lsn.to_le_bytes()));
        written.store(lsn, Ordering::Release);
    }
    for reader in readers {
        reader.join().expect("the reader panicked");
    }
}

/// Keys of several shapes: their common prefixes and distances differ from place to place.
const SHAPES: usize = 7;

fn shaped_key(shape: usize, n: u64) -> Vec<u8> {
    let mixed = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0x2545_f491_4f6c_dd1d);
    match shape {
        0 => format!("user{mixed:020}").into_bytes(),
        1 => format!("{n:08}").into_bytes(),
        2 => (u64::MAX - n).to_be_bytes().to_vec(),
        3 => [&b"a common beginning that is long/"[..], &mixed.to_be_bytes()[..3]].concat(),
        4 => format!("{mixed:016x}").into_bytes(),
        5 => format!("{}/the first part/{:04}/the second part/{n}", n % 3, n % 5).into_bytes(),
        _ => mixed.to_be_bytes()[..(mixed % 8) as usize + 1].to_vec(),
    }
}

#[test]
fn tables_of_several_levels_are_in_order() {
    let entries = if cfg!(miri) { 60 } else { 9000 };
    let loaded = [0, entries / 2, entries];
    for (shape, loaded) in (0..SHAPES).flat_map(|shape| loaded.map(|loaded| (shape, loaded))) {
        // Every ninth key overwrites one that was written long before.
        let number = |lsn| if lsn % 9 == 0 { lsn / 2 } else { lsn };
        let write = |lsn: u64| (shaped_key(shape, number(lsn)), Some(lsn.to_string().into_bytes()));
        let (table, model) = fill(&(1..=entries).map(write).collect::<Vec<_>>(), loaded as usize);
        for at in [entries / 3, entries] {
            let expected = visible(&model, at);
            let mut cursor = table.cursor(Lsn(at));
            cursor.seek(&[]);
            for (key, lsn, value) in &expected {
                assert_eq!(cursor.current(), Some((&key[..], stamp(*lsn, value), as_entry(value))));
                assert_eq!(table.get(key, Lsn(at)), Some((stamp(*lsn, value), as_entry(value))));
                cursor.step();
            }
            assert_eq!(cursor.current(), None);
            cursor.seek_before(None);
            for (key, lsn, _) in expected.iter().rev() {
                assert_eq!(cursor.current().map(|(key, stamp, _)| (key, stamp.lsn.0)), Some((&key[..], *lsn)));
                cursor.step_back();
            }
            assert_eq!(cursor.current(), None);
        }
        let mut overwritten = 0;
        table.overwritten(&mut |_, _, _| overwritten += 1);
        assert_eq!(overwritten, entries as usize - model.len());
        let (estimate, _) = table.estimate(&[], None);
        assert!(estimate.abs_diff(entries) <= entries / 4, "{estimate} of {entries}");
    }
}

#[test]
fn lsns_far_apart_and_out_of_order_are_kept() {
    let table = MemTable::new();
    let lsns = [1 << 40, 7, (1 << 40) + (1 << 24), (1 << 40) + 5];
    for lsn in lsns {
        table.insert(b"key", Lsn(lsn), Entry::InPlace(&lsn.to_le_bytes()));
    }
    for lsn in lsns {
        assert_eq!(table.get(b"key", Lsn(lsn)), Some((Lsn(lsn).into(), Entry::InPlace(&lsn.to_le_bytes()))));
    }
    let mut older = Vec::new();
    table.overwritten(&mut |_, stamp, _| older.push(stamp.lsn.0));
    assert_eq!(older, [(1 << 40) + 5, 1 << 40, 7]);
}

#[test]
fn large_entries_have_memory_of_their_own() {
    let table = MemTable::new();
    let (key, value) = (vec![1; leeward_format::MAX_KEY_BYTES], vec![2; if cfg!(miri) { 9000 } else { 1 << 20 }]);
    table.insert(b"small", Lsn(1), Entry::InPlace(b"x"));
    table.insert(&key, Lsn(2), Entry::InPlace(&value));
    table.insert(b"small", Lsn(3), Entry::Tombstone);
    assert_eq!(table.get(&key, Lsn(9)), Some((Lsn(2).into(), Entry::InPlace(&value))));
    assert_eq!(table.get(b"small", Lsn(2)), Some((Lsn(1).into(), Entry::InPlace(b"x"))));
    assert_eq!(table.get(b"small", Lsn(3)), Some((Lsn(3).into(), Entry::Tombstone)));
    assert!(
        table.bytes() > (key.len() + value.len()) as u64 && table.bytes() < (key.len() + value.len() + 1000) as u64
    );
}

/// How much a full L0 of a replay differs from one that was written to.
#[test]
fn a_loaded_table_takes_about_as_much_memory_as_one_that_was_written_to() {
    let entries = if cfg!(miri) { 60 } else { 9000 };
    let writes: Vec<_> = (0..entries).map(|n| (shaped_key(4, n), Some(b"a value".to_vec()))).collect();
    let mut loader = Loader::new(MemTable::new());
    for (lsn, (key, value)) in (1..).zip(&writes) {
        loader.insert(key, stamp(lsn, value), as_entry(value));
    }
    let [written, loaded] = [fill(&writes, 0).0, fill(&writes, entries as usize).0].map(|table| table.bytes());
    assert!(loaded.abs_diff(written) <= written / if cfg!(miri) { 2 } else { 10 }, "{loaded} and {written}");
    assert!(loader.has_room(loaded + loaded / 50) && !loader.has_room(loaded - loaded / 50), "{loaded}");
}

#[test]
fn keys_are_sorted_by_all_of_their_bytes() {
    let long = |last: &[u8]| [&vec![7; leeward_format::MAX_KEY_BYTES - 9][..], last].concat();
    let short =
        [&b"a"[..], b"a\0", b"a\0\0\0\0\0\0", b"a\0\0\0\0\0\0\0", b"a\0\0\0\0\0\0\x01", b"abcdefg", b"abcdefgh", b"ab"];
    let long = [long(b""), long(b"\0"), long(b"\0\0\0\0\0\0\0\0\0"), long(b"\xff"), long(b"\x01")];
    for keys in [short.map(<[u8]>::to_vec).to_vec(), long.to_vec()] {
        // Each key twice.
        let writes: Vec<_> = keys.iter().chain(keys.iter().rev()).map(|key| (key.clone(), None)).collect();
        let (table, model) = fill(&writes, writes.len());
        let mut cursor = table.cursor(NEWEST);
        cursor.seek(&[]);
        for (key, versions) in &model {
            let newest = versions.last().expect("there are two").0;
            assert_eq!(cursor.current(), Some((&key[..], Lsn(newest).into(), Entry::Tombstone)));
            cursor.step();
        }
        assert!(cursor.current().is_none());
        let mut overwritten = Vec::new();
        table.overwritten(&mut |key, stamp, _| overwritten.push((key.to_vec(), stamp.lsn.0)));
        assert_eq!(overwritten, model.iter().map(|(key, versions)| (key.clone(), versions[0].0)).collect::<Vec<_>>());
    }
}

#[test]
fn a_cursor_outlives_the_table() {
    let table = MemTable::new();
    table.insert(b"a", Lsn(1), Entry::InPlace(b"1"));
    let mut cursor = table.cursor(Lsn(1));
    drop(table);
    cursor.seek(b"");
    assert_eq!(cursor.current(), Some((&b"a"[..], Lsn(1).into(), Entry::InPlace(b"1"))));
    cursor.step();
    assert!(cursor.current().is_none());
}

#[test]
fn a_range_hides_what_is_older_for_those_who_see_it() {
    let table = MemTable::new();
    assert!(!table.has_ranges() && table.is_empty());
    table.insert(b"b", Lsn(1), Entry::InPlace(b"1"));
    table.insert_range(RangeTombstone::new(b"a", b"c", Lsn(2)));
    table.insert(b"b", Lsn(3), Entry::InPlace(b"3"));
    table.insert_range(RangeTombstone::new(b"b", b"", Lsn(4)));
    assert_eq!((table.entries(), table.last_lsn(), table.has_ranges()), (4, Lsn(4), true));
    assert_eq!(table.get(b"b", Lsn(1)), Some((Lsn(1).into(), Entry::InPlace(b"1"))));
    assert_eq!(table.get(b"b", Lsn(2)), Some((Lsn(2).into(), Entry::Tombstone)));
    assert_eq!(table.get(b"b", Lsn(3)), Some((Lsn(3).into(), Entry::InPlace(b"3"))));
    assert_eq!(table.get(b"b", Lsn(9)), Some((Lsn(4).into(), Entry::Tombstone)));
    assert_eq!((table.get(b"a", Lsn(1)), table.get(b"a", Lsn(9))), (None, Some((Lsn(2).into(), Entry::Tombstone))));
    assert_eq!((table.get(b"c", Lsn(3)), table.get(b"c", Lsn(4))), (None, Some((Lsn(4).into(), Entry::Tombstone))));
    assert!(table.ranges(Lsn(1)).is_empty());
    assert_eq!((table.ranges(Lsn(3)).len(), table.ranges(Lsn(4)).len()), (1, 2));
}

/// A counter that is incremented all the time has millions of versions. A cursor searches for the end of them.
#[test]
fn a_cursor_does_not_walk_over_every_version_of_a_hot_key() {
    let table = MemTable::new();
    let mut lsn = 0;
    let mut write = |key: &[u8]| {
        lsn += 1;
        table.insert(key, Lsn(lsn), Entry::InPlace(b"v"));
    };
    for _ in 0..3 {
        [&b"a"[..], b"c"].into_iter().for_each(&mut write);
        (0..1000).for_each(|_| write(b"hot"));
        write(b"z");
    }
    let walked = |at: u64| {
        let before = WALKED.with(std::cell::Cell::get);
        let mut cursor = table.cursor(Lsn(at));
        cursor.seek(&[]);
        let mut found = Vec::new();
        while let Some((key, stamp, _)) = cursor.current() {
            found.push((String::from_utf8(key.to_vec()).unwrap(), stamp.lsn.0));
            cursor.step();
        }
        (WALKED.with(std::cell::Cell::get) - before, found)
    };
    let of = |pairs: [(&str, u64); 4]| pairs.map(|(key, lsn)| (key.to_owned(), lsn)).to_vec();
    // As of the end, of the middle, and of the first version.
    let (steps, found) = walked(u64::MAX);
    assert_eq!(found, of([("a", 2007), ("c", 2008), ("hot", 3008), ("z", 3009)]));
    assert!(steps < 30, "{steps} versions");
    let (steps, found) = walked(1500);
    assert_eq!(found, of([("a", 1004), ("c", 1005), ("hot", 1500), ("z", 1003)]));
    assert!(steps < 50, "{steps} versions");
    let (steps, found) = walked(3);
    assert_eq!(found, of([("a", 1), ("c", 2), ("hot", 3), ("", 0)])[..3]);
    assert!(steps < 50, "{steps} versions");
}

//! Levels: fences, cursors both ways, and a level shipped to another volume.

use super::*;
use crate::compaction::Step;
use crate::memtable::MemTable;
use crate::scan::ScanBounds;
use crate::version::tests::model::{REGION, SEGMENT_BYTES, Store};
use crate::version::{Snapshot, Version};
use crate::volume::{Volume, VolumeOptions};
use leeward_format::cluster::Addressing;
use leeward_format::leaf_segment::translate;
use leeward_format::manifest::L1;
use leeward_format::{Lsn, UnixMs, VolumeId};
use leeward_platform::{Disk, SimDisk};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

proptest! {
    #[test]
    fn fences_find_the_range_of_a_key(
        keys in proptest::collection::btree_set(proptest::collection::vec(0u8..3, 1..14), 0..40),
        probes in proptest::collection::vec(proptest::collection::vec(0u8..3, 0..14), 30),
        prefix in proptest::collection::vec(any::<u8>(), 0..10),
    ) {
        let with_prefix = |key: &Vec<u8>| [&prefix[..], key].concat();
        let keys: BTreeSet<Vec<u8>> = keys.iter().map(with_prefix).collect();
        let keys: Vec<Vec<u8>> = std::iter::once(Vec::new()).chain(keys).collect();
        let fences = Fences::new(keys.clone());
        for probe in probes.iter().map(with_prefix).chain(probes.clone()) {
            prop_assert_eq!(fences.find(&probe), keys.partition_point(|key| *key <= probe) - 1);
        }
    }

    #[test]
    fn a_cursor_walks_a_level_both_ways(
        keys in proptest::collection::btree_set(any::<u16>(), 1..600),
        value_bytes in prop_oneof![Just(0usize), Just(60), Just(900), Just(9000)],
        probes in proptest::collection::vec(any::<u16>(), 10),
    ) {
        let keys: Vec<Vec<u8>> = keys.iter().take(60_000 / (value_bytes + 1)).map(|key| key.to_be_bytes().to_vec()).collect();
        let mut store = Store::new(64 << 10, 1 << 30);
        for key in &keys {
            store.write(key, Some(&vec![1; value_bytes]));
        }
        store.freeze();
        store.settle();
        let level = Arc::clone(&store.version.levels()[L1]);
        let mut cursor = LevelCursor::new(Arc::clone(store.version.reads()), level);
        let here = |cursor: &LevelCursor| cursor.current().map(|(key, ..)| key.to_vec());
        for probe in probes {
            let probe = probe.to_be_bytes();
            let at = keys.partition_point(|key| key[..] < probe[..]);
            cursor.seek(&probe).unwrap();
            for key in &keys[at..] {
                prop_assert_eq!(here(&cursor), Some(key.clone()));
                cursor.step().unwrap();
            }
            prop_assert_eq!(here(&cursor), None);
            cursor.seek_before(Some(&probe)).unwrap();
            for key in keys[..at].iter().rev() {
                prop_assert_eq!(here(&cursor), Some(key.clone()));
                cursor.step_back().unwrap();
            }
            prop_assert_eq!(here(&cursor), None);
        }
        cursor.seek_before(None).unwrap();
        prop_assert_eq!(here(&cursor), keys.last().cloned());
    }
}

/// What a backup does with shipped segments (Tebis 3.3): other numbers, rewritten pointers, the same tree.
#[test]
fn a_shipped_level_reads_the_same_on_another_volume() {
    let mut store = Store::new(4 << 20, 1 << 30);
    for n in 0..3000u32 {
        store.write(&n.wrapping_mul(2_654_435_761).to_be_bytes(), Some(&n.to_le_bytes().repeat(n as usize % 70)));
    }
    store.freeze();
    let mut compaction = store.pick().expect("an L0 is frozen");
    let file = SimDisk::new(2, u64::MAX).open("backup").expect("a simulated disk opens");
    let options = VolumeOptions { segment_bytes: SEGMENT_BYTES, ..VolumeOptions::default() };
    let (backup, _) = Volume::open(file, VolumeId(1), options).expect("a new volume opens");
    let _elsewhere: Vec<_> = (0..5).map(|_| backup.allocate(REGION).expect("there is room")).collect();
    let mut index_map = HashMap::new();
    let mut live = BTreeMap::new();
    let done = loop {
        match compaction.step().expect("a compaction on a sound disk") {
            Step::Finished(done) => break done,
            Step::Segment(built) => {
                let local = backup.allocate(REGION).expect("there is room");
                index_map.insert(built.segment.no().name(), local.no().name());
                let mut bytes = built.bytes.to_vec();
                let address = Address { region: REGION, segment: built.id, offset: 0 };
                let log = |no: SegmentName| (no.0 >= 1000).then_some(no);
                translate(built.kind, address, &mut bytes, &mut |no| index_map.get(&no).copied().or(log(no)))
                    .expect("it is a segment");
                backup.write(local.no(), 0, &bytes).expect("a sound disk");
                live.insert(local.no().name(), (built.id, local));
            }
        }
    };
    let renewed = store.version.renew(&done.change());
    store.version = Arc::new(store.version.install(&done.change(), renewed, Vec::new()));
    assert!(index_map.iter().all(|(primary, local)| primary != local));
    let reads = Reads::new(Arc::clone(&backup), REGION, Addressing::Physical, Arc::clone(&store.log) as _);
    let mut state = done.edit.levels[0].1.clone();
    let root = state.root.expect("the level has entries");
    state.root = Some(Pointer::new(index_map[&root.segment()], root.offset()));
    let level = Level::open(&reads, &state, &|no| live.get(&no).cloned()).expect("the level opens");
    let version = Arc::new(Version::new(reads, Arc::new(MemTable::new()), Vec::new(), vec![Arc::new(level)]));
    let theirs = Snapshot::new(Arc::clone(&version), Lsn(store.lsn), UnixMs(store.now));
    let (mut here, mut there) = (store.snapshot().cursor(ScanBounds::default()), theirs.cursor(ScanBounds::default()));
    let mut entries = 0;
    while let Some(entry) = here.next().expect("a sound disk") {
        assert_eq!(there.next().expect("a sound disk"), Some(entry));
        entries += 1;
    }
    assert!(there.next().expect("a sound disk").is_none());
    assert_eq!(entries, 3000);
    state.root = Some(root);
    let wrong = Level::open(version.reads(), &state, &|no| live.get(&no).cloned());
    assert!(matches!(wrong, Err(Error::Damaged { .. })), "{wrong:?}");
}

#[test]
fn a_jumbo_leaf_is_read_whole() {
    let mut store = Store::with_segments(1 << 20, 4 << 20, 1 << 30);
    for n in 0..6u8 {
        store.write(&[n], Some(&vec![n; 100_000 * usize::from(n)]));
        store.write(&[n, 0], None);
    }
    store.freeze();
    store.settle();
    store.reopen();
    for reverse in [false, true] {
        let mut cursor = store.snapshot().cursor(ScanBounds { reverse, ..ScanBounds::default() });
        for n in 0..6u8 {
            let n = if reverse { 5 - n } else { n };
            let entry = cursor.next().expect("a sound disk").expect("six keys live");
            assert!(entry.key[..] == [n] && entry.value[..] == vec![n; 100_000 * usize::from(n)]);
        }
    }
    assert_eq!(store.version.levels()[L1].segments().len(), 2);
}

//! The cache keeps to its budget, and finds what was filed, never anything older.

use super::*;
use leeward_format::filter;
use leeward_format::node::{Address, Entry, LeafBuilder, NODE_BYTES};
use leeward_format::{Expiry, RegionId, SegmentId};
use leeward_platform::Rng;
use std::collections::HashMap;

fn cache_of(bytes: u64) -> Cache {
    Cache::within(Arc::new(MemoryAccounts::new(bytes)))
}

fn leaf() -> Arc<Leaf> {
    let mut builder = LeafBuilder::new(NODE_BYTES);
    builder.push(b"key", Lsn(1), Entry::InPlace(b"value"));
    let mut bytes = Vec::new();
    let address = Address { region: RegionId(1), segment: SegmentId(1), offset: 0 };
    builder.finish(address, &mut bytes);
    Arc::new(Node::parse(bytes.into(), address).expect("it was just built"))
}

fn offer(cache: &Cache, offset: u32, leaf: &Arc<Leaf>) -> bool {
    let is_wanted = cache.wants_leaf(1, offset, NODE_BYTES as u32);
    if is_wanted {
        cache.insert_leaf(1, offset, leaf);
    }
    is_wanted
}

fn put(cache: &Cache, key: &[u8], lsn: u64, value: &[u8]) {
    cache.insert_record(0, key, filter::hash(key), (Lsn(lsn).into(), Some(value)), 1, || true);
}

fn get(cache: &Cache, key: &[u8]) -> Option<Cached> {
    cache.record(0, key, filter::hash(key), Lsn(u64::MAX))
}

#[test]
fn a_leaf_is_kept_when_it_is_missed_again() {
    let cache = cache_of(1 << 20);
    let leaf = leaf();
    assert!(offer(&cache, 800, &leaf), "there is room to spare");
    for n in 0..10_000u64 {
        put(&cache, &n.to_be_bytes(), 1, &[1; 100]);
    }
    assert!(!offer(&cache, 0, &leaf));
    assert!(cache.leaf(1, 0).is_none());
    assert!(offer(&cache, 0, &leaf));
    assert!(cache.leaf(1, 0).is_some());
    assert!(cache.leaf(1, 8192).is_none() && cache.leaf(2, 0).is_none());
    let used = cache.bytes();
    cache.forget(1, [0].into_iter());
    assert!(cache.leaf(1, 0).is_none());
    assert!(cache.bytes() + NODE_BYTES as u64 <= used);
}

#[test]
fn a_record_is_of_one_owner_and_instant() {
    let cache = cache_of(1 << 20);
    let hash = filter::hash(b"key");
    put(&cache, b"key", 8, b"value");
    assert_eq!(cache.record(0, b"key", hash, Lsn(8)), Some((Lsn(8).into(), Some("value".into()))));
    assert!(cache.record(0, b"key", hash, Lsn(7)).is_none(), "an earlier instant knows nothing of it");
    assert!(cache.record(1, b"key", hash, Lsn(8)).is_none());
    cache.insert_record(0, b"gone", filter::hash(b"gone"), (Lsn(9).into(), None), 1, || true);
    assert_eq!(get(&cache, b"gone"), Some((Lsn(9).into(), None)));
    cache.insert_record(0, b"late", filter::hash(b"late"), (Lsn(9).into(), None), 1, || false);
    assert!(get(&cache, b"late").is_none());
    cache.replace_record(0, b"key", hash, Lsn(10).into(), Some(Some(b"newer")));
    assert_eq!(get(&cache, b"key"), Some((Lsn(10).into(), Some("newer".into()))));
    cache.replace_record(0, b"key", hash, Lsn(11).into(), None);
    assert!(get(&cache, b"key").is_none());
    cache.replace_record(0, b"other", filter::hash(b"other"), Lsn(10).into(), Some(None));
    assert!(get(&cache, b"other").is_none(), "nothing was known of it");
}

#[test]
fn a_written_value_replaces_its_record_and_displaces_none_that_is_used() {
    let cache = cache_of(1 << 20);
    let hash = filter::hash(b"key");
    let write = |key: &[u8], lsn| cache.write_record(0, key, filter::hash(key), (Lsn(lsn).into(), b"written"), || true);
    write(b"key", 8);
    assert_eq!(get(&cache, b"key"), Some((Lsn(8).into(), Some("written".into()))));
    put(&cache, b"key", 7, b"older");
    write(b"key", 6);
    assert_eq!(get(&cache, b"key").map(|(stamp, _)| stamp.lsn), Some(Lsn(8)));
    assert!(cache.record(0, b"key", hash, Lsn(7)).is_none(), "an earlier instant knows nothing of it");
    for n in 0..20_000u64 {
        put(&cache, &n.to_be_bytes(), 1, &[1; 100]);
        assert!(get(&cache, b"key").is_some(), "it is asked for");
    }
    for n in 0..20_000u64 {
        write(&(n << 32).to_be_bytes(), 9);
    }
    assert!(get(&cache, b"key").is_some(), "what was written and never asked for took its place");
    write(b"new", 9);
    assert!(get(&cache, b"new").is_some());
    cache.write_record(0, b"late", filter::hash(b"late"), (Lsn(9).into(), b"written"), || false);
    assert!(get(&cache, b"late").is_none(), "the levels may know a newer one");
    put(&cache, b"known", 9, b"before");
    write(b"known", 10);
    assert_eq!(get(&cache, b"known"), Some((Lsn(10).into(), Some("written".into()))));
}

#[test]
fn a_value_too_long_for_a_record_is_found_by_its_lsn() {
    let cache = cache_of(1 << 20);
    let value = vec![7; cache.0.page_bytes];
    put(&cache, b"key", 8, &value);
    assert!(cache.long_value(0, b"key", Lsn(8)).is_none(), "only the log's are found by an LSN");
    cache.insert_long_value(0, b"key", Lsn(8).into(), &value);
    cache.insert_long_value(0, b"short", Lsn(9).into(), b"value");
    assert!(cache.long_value(0, b"short", Lsn(9)).is_none());
    assert!(get(&cache, b"key").is_none());
    assert_eq!(cache.long_value(0, b"key", Lsn(8)).map(|value| value.len()), Some(cache.0.page_bytes));
    assert!(cache.long_value(1, b"key", Lsn(8)).is_none());
    let other = vec![8; cache.0.page_bytes];
    cache.insert_long_value(0, b"other", Lsn(8).into(), &other);
    for (key, value) in [(b"key".as_slice(), &value), (b"other", &other)] {
        assert_eq!(cache.long_value(0, key, Lsn(8)).as_deref(), Some(&value[..]), "both were ingested");
    }
}

#[test]
fn contents_add_up_to_the_memory_in_use() {
    let cache = cache_of(1 << 20);
    let empty = cache.bytes();
    assert_eq!(cache.contents(), CacheContents::default());
    put(&cache, b"key", 8, b"value");
    let CacheContents { indexes, objects, records } = cache.contents();
    assert!(records > 0 && (indexes, objects) == (0, 0));
    assert!(offer(&cache, 0, &leaf()));
    let reserved = cache.reserve(1000);
    let contents = cache.contents();
    assert!(contents.indexes == 1000 && contents.objects >= NODE_BYTES as u64 && contents.records == records);
    assert_eq!(cache.bytes() - empty, contents.indexes + contents.objects + contents.records);
    drop(reserved);
    assert_eq!(cache.contents().indexes, 0);
}

/// Every third record expires.
fn stamp(lsn: u64) -> Stamp {
    Stamp { lsn: Lsn(lsn), expires: Expiry::from_ms(lsn).filter(|_| lsn.is_multiple_of(3)) }
}

/// Random records, replacements and look-ups against a map of the newest values: each found record is the newest.
#[test]
fn nothing_is_ever_stale_and_the_budget_is_kept() {
    for (seed, budget) in [(1, 64u64 << 10), (2, 300 << 10), (3, 8 << 20)] {
        let mut rng = Rng::new(seed);
        let cache = cache_of(budget);
        let mut newest: HashMap<Vec<u8>, (u64, Option<Vec<u8>>)> = HashMap::new();
        let leaf = leaf();
        let mut found = 0;
        for lsn in 1..60_000u64 {
            let key = (rng.below(100) * rng.below(100)).to_le_bytes()[..2 + rng.index(3)].to_vec();
            let hash = filter::hash(&key);
            let value = (!rng.one_in(5)).then(|| vec![lsn as u8; rng.index(400)]);
            match rng.below(10) {
                0 => {
                    let given = (!rng.one_in(3)).then_some(value.as_deref());
                    cache.replace_record(0, &key, hash, stamp(lsn), given);
                    newest.insert(key, (lsn, value));
                }
                1 => drop(offer(&cache, rng.below(200) as u32 * 8192, &leaf)),
                _ => {
                    let (lsn, value) = newest.entry(key.clone()).or_insert((lsn, value)).clone();
                    match cache.record(0, &key, hash, Lsn(u64::MAX)) {
                        Some(cached) => {
                            found += 1;
                            assert_eq!(cached, (stamp(lsn), value.map(Bytes::from)));
                        }
                        None => cache.insert_record(0, &key, hash, (stamp(lsn), value.as_deref()), 1, || true),
                    }
                }
            }
            assert!(cache.bytes() <= budget, "{cache:?}");
        }
        assert!(found > 2_000, "{found} of {cache:?}");
        assert!(cache.hits() >= found);
    }
}

/// Records in constant use outlast a flood of records that are used once.
#[test]
fn a_flood_does_not_wash_away_what_is_used() {
    let cache = cache_of(1 << 20);
    let hot: Vec<[u8; 8]> = (0..1000u64).map(u64::to_be_bytes).collect();
    for key in &hot {
        put(&cache, key, 1, &[1; 40]);
    }
    for n in 0..200_000u64 {
        put(&cache, &(n + 1_000_000).to_be_bytes(), 1, &[2; 40]);
        if n % 4 == 0 {
            get(&cache, &hot[(n / 4) as usize % hot.len()]);
        }
    }
    let kept = hot.iter().filter(|key| get(&cache, *key).is_some()).count();
    assert!(kept > 990, "{kept} of 1000");
}

/// A miss costs the same for both, and a large record takes the room of ten small ones.
#[test]
fn of_what_is_used_alike_the_small_stays() {
    let cache = cache_of(1 << 20);
    let mut rng = Rng::new(1);
    let mut hits = [0, 0];
    for n in 0..400_000 {
        let (key, is_large) = (rng.below(4000).to_be_bytes(), rng.one_in(2));
        let key = [&key[..], if is_large { b"large" } else { b"small" }].concat();
        if get(&cache, &key).is_some() {
            hits[usize::from(is_large)] += u32::from(n >= 200_000);
        } else {
            put(&cache, &key, 1, if is_large { &[1; 1000] } else { &[1; 40] });
        }
    }
    let [small, large] = hits.map(|hits| hits / 1000);
    assert!(small > 90 && large < 30, "{small} and {large} percent are found");
}

/// Overwritten records leave holes, which are closed although leaves could be evicted.
#[test]
fn holes_are_closed_before_anything_else_gives_way() {
    let cache = cache_of(1 << 20);
    let leaf = leaf();
    (0..60).for_each(|n| assert!(offer(&cache, n * 8192, &leaf), "there is room to spare"));
    let keys: Vec<_> = (0..200u64).map(u64::to_be_bytes).collect();
    keys.iter().for_each(|key| put(&cache, key, 1, &[1; 1000]));
    cache.0.objects_parts.store(0, Relaxed);
    for n in 0..40_000u64 {
        let key = &keys[n as usize % keys.len()];
        cache.replace_record(0, key, filter::hash(key), Lsn(n + 2).into(), Some(Some(&[2; 1000])));
    }
    let records = keys.iter().filter(|key| get(&cache, *key).is_some()).count();
    let leaves = (0..60).filter(|n| cache.leaf(1, n * 8192).is_some()).count();
    assert!(records > 180 && leaves > 40, "{records} records and {leaves} leaves are left");
}

/// Leaves that take most of a cache of 4 MiB are read in random order.
fn read_leaves(cache: &Cache, leaf: &Arc<Leaf>) {
    let mut rng = Rng::new(1);
    for _ in 0..200_000 {
        let offset = rng.below(450) as u32 * 8192;
        if cache.leaf(1, offset).is_none() {
            offer(cache, offset, leaf);
        }
    }
}

/// The kind that saves more reads gets more memory: objects where leaves are reread, records where they are not.
#[test]
fn the_bound_between_records_and_objects_moves() {
    let leaf = leaf();
    let cache = cache_of(4 << 20);
    let filled = |cache: &Cache| (0..40_000u64).for_each(|n| put(cache, &n.to_be_bytes(), 1, &[1; 100]));
    filled(&cache);
    read_leaves(&cache, &leaf);
    let leaned = cache.0.objects_share();
    assert!(leaned > 3 << 20, "{leaned}");
    for _ in 0..40 {
        filled(&cache);
    }
    assert!(cache.0.objects_share() <= leaned, "records that are never missed again take nothing");
    let mut rng = Rng::new(1);
    for _ in 0..400_000 {
        let key = rng.below(30_000).to_be_bytes();
        if get(&cache, &key).is_none() {
            put(&cache, &key, 1, &[1; 100]);
        }
    }
    let leaned = cache.0.objects_share();
    assert!(leaned < 1 << 20, "{leaned}");
}

/// Records that got no memory while leaves were all that was missed get some once they are missed, also where indexes have
/// a part of it.
#[test]
fn records_that_had_nothing_get_memory_once_they_are_missed() {
    let leaf = leaf();
    let cache = cache_of(4 << 20);
    let _indexes = cache.reserve(512 << 10).expect("an eighth of the budget");
    read_leaves(&cache, &leaf);
    let leaned = cache.0.objects_share();
    let first = 1u64.to_be_bytes();
    assert_eq!(cache.0.shard(hash_of(0, filter::hash(&first))).lock().times_as_large(56), 1, "no record, so no mean");
    (0..500u64).for_each(|n| put(&cache, &n.to_be_bytes(), 1, &[1; 40]));
    let kept = (0..500u64).filter(|n| get(&cache, &n.to_be_bytes()).is_some()).count();
    assert!(kept > 400, "leaves and indexes left room for {kept} of 500");
    let (mut rng, mut found) = (Rng::new(1), 0);
    for n in 0..400_000u64 {
        // Every miss of a record is also one of its leaf.
        let number = rng.below(10_000);
        if get(&cache, &number.to_be_bytes()).is_some() {
            found += u64::from(n >= 200_000);
        } else {
            put(&cache, &number.to_be_bytes(), 1, &[1; 40]);
            offer(&cache, (number % 2_000) as u32 * 8192, &leaf);
        }
    }
    assert!(cache.0.objects_share() < leaned / 2 && found > 180_000, "{found} of 200,000 in {cache:?}");
}

#[test]
fn the_budget_is_kept() {
    let cache = cache_of(1 << 20);
    let leaf = leaf();
    let mut reservations = Vec::new();
    for i in 0..4000u32 {
        offer(&cache, i * 8192, &leaf);
        offer(&cache, i * 8192, &leaf);
        put(&cache, &i.to_be_bytes(), u64::from(i), &[0; 500]);
        reservations.extend(cache.reserve(10_000));
        assert!(cache.bytes() <= 1 << 20, "{cache:?}");
    }
    assert_eq!(reservations.len(), (1 << 18) / 10_000, "a quarter of the budget may be resident");
    drop(reservations);
    assert!(cache.reserve(10_000).is_some());
}

#[test]
fn a_cache_without_budget_keeps_nothing() {
    let cache = cache_of(0);
    put(&cache, b"key", 1, b"value");
    assert!(get(&cache, b"key").is_none() && cache.reserve(1).is_none());
    assert!(!offer(&cache, 0, &leaf()) && !offer(&cache, 0, &leaf()));
    assert_eq!(cache.bytes(), 0);
}

/// However often all records of a shard are used, a page is free after a few were emptied: no thread waits for a turn over
/// the whole shard.
#[test]
fn a_page_is_free_after_a_few_were_emptied() {
    let cache = cache_of(8 << 20);
    let key = |n: u64| n.to_be_bytes();
    let mut last = 0;
    while cache.has_room_to_spare() {
        (0..1000).for_each(|_| {
            last += 1;
            put(&cache, &key(last), 1, &[1; 100]);
        });
    }
    for _ in 0..8 {
        (0..=last).for_each(|n| drop(get(&cache, &key(n))));
    }
    let is_known = |n: &u64| get(&cache, &key(*n)).is_some();
    let before: Vec<u64> = (0..=last).filter(is_known).collect();
    let mut shard = cache.0.records[0].lock();
    let (pages, turned) = (shard.pages(), shard.turned());
    cache.0.with_shared(|shared| assert!(shard.shed(shared)));
    let emptied = shard.turned() - turned;
    assert!(emptied <= 8 && pages > 30, "{emptied} of {pages} pages were emptied for one");
    drop(shard);
    let left = before.iter().filter(|n| is_known(n)).count();
    assert!(left < before.len() && left * 100 > before.len() * 98, "{left} of {} records stay", before.len());
}

#[test]
fn the_hand_passes_a_few_objects_for_one_that_goes() {
    let objects = Objects::new(1);
    let item = || Item::Value(Box::default(), Bytes::from_static(b"value"));
    for n in 0..2000 {
        objects.insert(Key::new(VALUE, 0, n), item());
    }
    (0..8).for_each(|_| (0..2000).for_each(|n| drop(objects.get(&Key::new(VALUE, 0, n)))));
    assert!(objects.evict().is_some());
    assert_eq!(objects.passed(), 256);
}

/// A thread that takes little does not evict for another that has taken much.
#[test]
fn each_thread_evicts_in_proportion_to_what_it_takes() {
    let cache = cache_of(8 << 20);
    (0..60_000u64).for_each(|n| put(&cache, &n.to_be_bytes(), 1, &[1; 100]));
    let before = cache.bytes();
    assert!(!cache.has_room_to_spare());
    // Another thread has taken as much, and makes no room yet.
    cache.0.budget.take(2 << 20);
    cache.make_room(100);
    let evicted = before + (2 << 20) - cache.bytes();
    assert!((100..=200 + 2 * cache.0.page_bytes as u64).contains(&evicted), "{evicted} bytes");
    cache.make_room(2 << 20);
    assert!(!cache.0.budget.is_exceeded());
}

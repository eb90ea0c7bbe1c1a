//! Every page of a volume that the embedded engine made, and the messages about a damaged one.

use super::*;
use leeward_engine::VolumeOptions;
use leeward_engine::embedded::{Db, DbOptions};
use std::fs;

const NO_KEYS: Keys = Keys { key_file: None };

fn filled(directory: &Path, keys: &Keys) {
    let volume = VolumeOptions { encryption: encryption(keys).expect("keys"), ..VolumeOptions::default() };
    let options = DbOptions { l0_bytes: 64 << 10, volume, ..DbOptions::default() };
    let db = Db::open(directory, options).expect("a store");
    for number in 0..3000_u32 {
        let value = vec![b'v'; if number % 100 == 0 { 1500 } else { 60 }];
        db.put(format!("key{number:05}").as_bytes(), &value).expect("room");
    }
    db.delete(b"key00007").expect("room");
    while db.stats().data.levels.iter().all(|level| level.entries == 0) {
        std::thread::yield_now();
    }
    db.close().expect("it is sound");
}

fn page(image: &Image, show: impl FnOnce(&mut Vec<u8>, &Image) -> Outcome) -> String {
    let mut out = Vec::new();
    show(&mut out, image).expect("a page");
    String::from_utf8(out).expect("text")
}

#[test]
fn every_structure_of_a_volume_is_shown() {
    let directory = tempfile::tempdir().expect("a directory");
    filled(directory.path(), &NO_KEYS);
    let image = open(&disk(directory.path()).expect("it is there"), directory.path(), &NO_KEYS).expect("it is sound");

    let volume = page(&image, |out, image| show_volume(out, image));
    for part in ["superblock: valid", "its copy: valid", "manifest: ", "region 1 of table default", "L1", "large log"] {
        assert!(volume.contains(part), "{part}: {volume}");
    }
    let manifest = page(&image, |out, image| show_manifest(out, image));
    assert!(manifest.contains("checkpoint of regions") && manifest.contains("Opened"), "{manifest}");

    let region = image.state().regions.values().next().expect("one region");
    let list = page(&image, |out, image| show_region(out, image, region.region));
    for segment in region.segments.values() {
        assert!(list.contains(&format!("\n{} ", segment.no)), "{segment:?} in {list}");
        let text = page(&image, |out, image| show_segment(out, image, segment.no, true));
        let part = match segment.kind {
            SegmentKind::Leaf => "footer: ",
            SegmentKind::Index => "index node: ",
            SegmentKind::Log(_) => "header: first LSN",
        };
        assert!(text.contains(part) || segment.bytes.is_none(), "{part}: {text}");
    }
    let wrong = show_region(&mut Vec::new(), &image, RegionId(9)).expect_err("there is none").to_string();
    assert!(wrong.contains("it has: 1"), "{wrong}");
}

#[test]
fn damage_is_found_and_bad_directories_are_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let missing = verify(directory.path(), &NO_KEYS).expect_err("nothing is there").to_string();
    assert!(missing.contains("leeward-data/node-1"), "{missing}");
    assert_eq!(fs::read_dir(directory.path()).expect("it is there").count(), 0, "looking makes nothing");

    filled(directory.path(), &NO_KEYS);
    assert!(verify(directory.path(), &NO_KEYS).expect("it can be read"));
    let image = open(&disk(directory.path()).expect("it is there"), directory.path(), &NO_KEYS).expect("it is sound");
    let region = image.state().regions.values().next().expect("one region");
    let leaf = region.segments.values().find(|segment| segment.kind == SegmentKind::Leaf).expect("a level has leaves");
    let at = leaf.no.start(image.superblock().segment_bytes as usize) as usize + 100;
    let path = directory.path().join(VOLUME_NAME);
    let mut bytes = fs::read(&path).expect("it is there");
    bytes[at] ^= 1;
    fs::write(&path, bytes).expect("room");
    assert!(!verify(directory.path(), &NO_KEYS).expect("it can be read"));
    let image = open(&disk(directory.path()).expect("it is there"), directory.path(), &NO_KEYS).expect("it is sound");
    let text = {
        let mut out = Vec::new();
        assert!(!show_segment(&mut out, &image, leaf.no, false).expect("a page"));
        String::from_utf8(out).expect("text")
    };
    assert!(text.contains("DAMAGED at byte"), "{text}");
}

#[test]
fn an_encrypted_volume_is_shown_verified_and_rewritten_with_its_keys_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let key_file = directory.path().join("keys");
    fs::write(&key_file, format!("2026 {}\n", "5c".repeat(32))).expect("room");
    let keys = Keys { key_file: Some(key_file.clone()) };
    let data = directory.path().join("data");
    filled(&data, &keys);
    let has = |text: &[u8]| {
        let bytes = fs::read(data.join(VOLUME_NAME)).expect("it is there");
        bytes.windows(text.len()).any(|window| window == text)
    };
    assert!(!has(b"key0") && !has(&[b'v'; 60]), "nothing readable is on the disk");
    let refused = verify(&data, &NO_KEYS).expect_err("it needs a key").to_string();
    assert!(refused.contains("it needs the key 2026, and no keys are given"), "{refused}");
    assert!(verify(&data, &keys).expect("it can be read"));
    let image = |keys: &Keys| open(&disk(&data).expect("it is there"), &data, keys).expect("it is sound");
    assert!(page(&image(&keys), |out, image| show_volume(out, image)).contains("encrypted: the key 2026"));
    // Another key, and a new data key.
    fs::write(&key_file, format!("2026 {}\n2027 {}\n", "5c".repeat(32), "6d".repeat(32))).expect("room");
    assert!(rekey(&RekeyArgs { directory: data.clone(), key_file: key_file.clone() }).expect("there is room"));
    fs::write(&key_file, format!("2027 {}\n", "6d".repeat(32))).expect("room");
    assert!(verify(&data, &keys).expect("it can be read"));
    assert!(page(&image(&keys), |out, image| show_volume(out, image)).contains("encrypted: the key 2027"));
    let options = VolumeOptions { encryption: encryption(&keys).expect("keys"), ..VolumeOptions::default() };
    let db = Db::open(&data, DbOptions { volume: options, ..DbOptions::default() }).expect("a store");
    assert_eq!(db.get(b"key00100").expect("it is sound").map(|value| value.len()), Some(1500));
}

/// Without rights to write that fails which creates, or opens to write. Here nothing may appear, or change.
#[test]
fn what_only_reads_makes_and_changes_no_file() {
    let directory = tempfile::tempdir().expect("a directory");
    filled(directory.path(), &NO_KEYS);
    // A copy of the volume alone.
    let copy = tempfile::tempdir().expect("a directory");
    fs::copy(directory.path().join(VOLUME_NAME), copy.path().join(VOLUME_NAME)).expect("a copy");
    let changed = || fs::metadata(copy.path().join(VOLUME_NAME)).and_then(|file| file.modified()).expect("it is there");
    let before = changed();
    assert!(verify(copy.path(), &NO_KEYS).expect("it is verified"));
    let image = open(&disk(copy.path()).expect("it is there"), copy.path(), &NO_KEYS).expect("it is sound");
    assert!(page(&image, |out, image| show_volume(out, image)).contains("superblock: valid"));
    let names: Vec<_> =
        fs::read_dir(copy.path()).expect("a directory").map(|entry| entry.expect("one").file_name()).collect();
    assert_eq!(names, [VOLUME_NAME]);
    assert_eq!(changed(), before);
    let _writer = disk(directory.path()).expect("it is there").lock().expect("nobody has it");
    let refused = verify(directory.path(), &NO_KEYS).expect_err("a process writes there").to_string();
    assert!(refused.contains("in use by another process"), "{refused}");
}

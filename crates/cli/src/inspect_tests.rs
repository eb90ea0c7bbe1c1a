//! Every page of a volume that the embedded engine made, and the messages about a damaged one.

use super::*;
use leeward_engine::embedded::{Db, DbOptions};
use std::fs;

fn filled(directory: &Path) {
    let db = Db::open(directory, DbOptions { l0_bytes: 64 << 10, ..DbOptions::default() }).expect("a store");
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
    filled(directory.path());
    let image = open(&disk(directory.path()).expect("it is there"), directory.path()).expect("it is sound");

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
    let missing = verify(directory.path()).expect_err("nothing is there").to_string();
    assert!(missing.contains("leeward-data/node-1"), "{missing}");
    assert_eq!(fs::read_dir(directory.path()).expect("it is there").count(), 0, "looking makes nothing");

    filled(directory.path());
    assert!(verify(directory.path()).expect("it can be read"));
    let image = open(&disk(directory.path()).expect("it is there"), directory.path()).expect("it is sound");
    let region = image.state().regions.values().next().expect("one region");
    let leaf = region.segments.values().find(|segment| segment.kind == SegmentKind::Leaf).expect("a level has leaves");
    let at = leaf.no.start(image.superblock().segment_bytes as usize) as usize + 100;
    let path = directory.path().join(VOLUME_NAME);
    let mut bytes = fs::read(&path).expect("it is there");
    bytes[at] ^= 1;
    fs::write(&path, bytes).expect("room");
    assert!(!verify(directory.path()).expect("it can be read"));
    let image = open(&disk(directory.path()).expect("it is there"), directory.path()).expect("it is sound");
    let text = {
        let mut out = Vec::new();
        assert!(!show_segment(&mut out, &image, leaf.no, false).expect("a page"));
        String::from_utf8(out).expect("text")
    };
    assert!(text.contains("DAMAGED at byte"), "{text}");
}

//! Verification finds every flipped bit under a checksum, tells where it is, and changes nothing.

use crate::support::{History, compact, encryption, flush, open_region, volume_options};
use leeward_engine::Write;
use leeward_engine::image::Image;
use leeward_engine::verify::Item;
use leeward_format::LogKind;
use leeward_format::manifest::{EntryBody, SegmentKind, SegmentState};
use leeward_format::node::NodeKind;
use leeward_format::segment::LOG_HEADER_BYTES;
use leeward_platform::{Disk, Rng, SimDisk};

/// A volume with records in both logs, and levels with leaf and index segments.
fn filled(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed, 256 << 20);
    let mut rng = Rng::new(seed);
    let mut history = History::default();
    let region = open_region(&disk).unwrap();
    while region.stats().levels.iter().filter(|level| level.entries > 0).count() < 2 {
        history.append(&region, &mut rng).unwrap();
        history.write(&region).unwrap();
        if rng.one_in(50) {
            flush(&region).unwrap();
            compact(&region).unwrap();
        }
    }
    while !region.tails(LogKind::Recovery).iter().any(|tail| tail.sealed()) {
        history.append(&region, &mut rng).unwrap();
        history.write(&region).unwrap();
    }
    history.sync(&region).unwrap();
    flush(&region).unwrap();
    drop(region);
    disk.kill_process();
    disk
}

fn image(disk: &SimDisk) -> Image {
    Image::read(disk.open("volume").unwrap(), Some(&encryption())).unwrap().expect("there is a volume")
}

/// Whether a checksum covers byte `at` of the segment. None covers the bytes between filter and keys of a leaf segment,
/// and those beyond the durable end.
fn is_covered(image: &Image, segment: &SegmentState, at: u64) -> bool {
    let region = image.state().regions.values().next().expect("one");
    match segment.kind {
        SegmentKind::Log(_) => at < u64::from(segment.durable_bytes.max(segment.bytes.unwrap_or(0))),
        SegmentKind::Index => true,
        SegmentKind::Leaf => {
            let mut gap = 0..0;
            image.walk(region, segment, &mut |item| {
                if let Item::Footer(footer) = item {
                    let keys = (footer.span.first.len() + footer.span.last.len()) as u64;
                    let sections = footer.filter_at + footer.filter_bytes + footer.ranges_bytes;
                    gap = u64::from(sections)..u64::from(footer.end) - 96 - keys;
                }
            });
            !gap.contains(&at)
        }
    }
}

#[test]
fn every_flipped_bit_that_a_checksum_covers_is_found_where_it_is() {
    let disk = filled(1);
    let before = disk.contents("volume");
    let pristine = image(&disk);
    assert!(pristine.verify(&mut |_, _| {}).damaged.is_empty());
    let segments: Vec<SegmentState> =
        pristine.state().regions.values().flat_map(|region| region.segments.values().copied()).collect();
    let mut rng = Rng::new(2);
    let mut found = [0; 4];
    for _ in 0..400 {
        let segment = segments[rng.below(segments.len() as u64) as usize];
        let bytes = u64::from(segment.bytes.unwrap_or(LOG_HEADER_BYTES as u32));
        let at = rng.below(bytes);
        if !is_covered(&pristine, &segment, at) {
            continue;
        }
        let offset = segment.no.start(volume_options().segment_bytes) + at;
        let bit = rng.below(8) as u8;
        disk.flip_bit("volume", offset, bit);
        let verification = image(&disk).verify(&mut |_, _| {});
        let [damaged] = &verification.damaged[..] else { panic!("{segment:?} at {at}: {verification:?}") };
        assert_eq!(damaged.segment, segment);
        let segment_bytes = volume_options().segment_bytes;
        let end = segment.no.start(segment_bytes) + segment.no.bytes(segment_bytes) as u64;
        assert!(damaged.damage.iter().all(|damage| damage.offset <= end), "{damaged:?}");
        found[match segment.kind {
            SegmentKind::Log(log) => log.index(),
            SegmentKind::Leaf => 2,
            SegmentKind::Index => 3,
        }] += 1;
        disk.flip_bit("volume", offset, bit);
    }
    assert!(found[0] > 0 && found[1] > 0 && found[2] > 0 && found[3] > 0, "each kind was hit: {found:?}");
    assert!(before == disk.contents("volume"), "looking changes nothing");
}

#[test]
fn a_walk_shows_what_the_region_holds() {
    let disk = filled(3);
    let image = image(&disk);
    assert!(image.superblock_copies().unwrap().iter().all(Result::is_ok));
    let manifest = image.manifest().unwrap();
    // The continuation of the zone is written together with the checkpoint.
    let (head, entries) = manifest.split_first().expect("a zone begins with what it goes on in");
    assert!(matches!(head.entry.body, EntryBody::Zone(_)) && head.entry.sequence == entries[0].entry.sequence);
    assert!(entries.windows(2).all(|pair| pair[0].entry.sequence + 1 == pair[1].entry.sequence));
    let region = image.state().regions.values().next().expect("one");
    let (mut leaf_entries, mut records) = (0, 0);
    for segment in region.segments.values() {
        assert_eq!(image.segment(segment.no).map(|(_, found)| found), Some(*segment));
        let damage = image.walk(region, segment, &mut |item| match item {
            Item::Record { .. } => records += 1,
            Item::Node { node, .. } if node.kind() == NodeKind::Leaf => leaf_entries += node.len() as u64,
            Item::Node { .. } | Item::LogHeader(_) | Item::Footer(_) | Item::Ranges(_) => {}
        });
        assert_eq!(damage, []);
    }
    assert_eq!(leaf_entries, region.levels.iter().map(|level| level.entries).sum::<u64>());
    assert!(records > 0);
}

#[test]
fn a_volume_in_use_is_verified_beside_its_writes() {
    let disk = filled(4);
    let region = open_region(&disk).unwrap();
    let verification = region.volume().verify();
    assert!(verification.damaged.is_empty() && verification.entries > 0, "{verification:?}");
    // Data that is being written during the verification is no damage.
    region.append(&[Write::put(b"new", b"1")]).unwrap();
    assert!(region.volume().verify().damaged.is_empty());
}

#[test]
fn one_damaged_superblock_is_shown_and_the_other_used() {
    let disk = filled(5);
    disk.flip_bit("volume", 9, 1);
    let image = image(&disk);
    let [first, second] = image.superblock_copies().unwrap();
    assert!(first.is_err() && second.as_ref() == Ok(image.superblock()));
    assert!(Image::read(SimDisk::new(1, 1 << 20).open("none").unwrap(), Some(&encryption())).unwrap().is_none());
}

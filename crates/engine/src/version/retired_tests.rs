//! Which segments readers of old versions keep.

use super::*;
use crate::volume::{Volume, VolumeOptions};
use leeward_format::{RegionId, VolumeId};
use leeward_platform::{Disk, SimDisk};
use std::sync::Weak;

fn volume() -> Arc<Volume> {
    let file = SimDisk::new(1, 1 << 30).open("volume").unwrap();
    let options = VolumeOptions { segment_bytes: 32 << 10, ..VolumeOptions::default() };
    Volume::open(file, VolumeId(1), options).unwrap().0
}

/// A version that adds a segment, and the version after it, which gives the segment up.
fn come_and_go(volume: &Volume, before: &Pin) -> (Arc<Pin>, Arc<Pin>, Weak<Segment>) {
    let segment = volume.allocate(RegionId(1)).unwrap();
    let (from, to) = (before.next(std::iter::once(&segment)), before.next([].iter()));
    let weak = Arc::downgrade(&segment);
    to.retire(vec![segment]);
    (from, to, weak)
}

#[test]
fn a_reader_keeps_what_its_version_sees_and_nothing_newer() {
    let volume = volume();
    let old = Pin::first();
    let first = volume.allocate(RegionId(1)).unwrap();
    let seen = Arc::downgrade(&first);
    let (from, mut current, newer) = come_and_go(&volume, &old);
    current.retire(vec![first]);
    assert!(seen.strong_count() > 0, "the first version sees it");
    assert!(newer.strong_count() > 0, "the second version sees it");
    drop(from);
    assert_eq!(newer.strong_count(), 0, "the first version is still read, and is older than the segment");
    for _ in 0..100 {
        let (from, to, segment) = come_and_go(&volume, &current);
        (_, current) = (from, to);
        assert_eq!(segment.strong_count(), 0);
    }
    assert!(seen.strong_count() > 0);
    drop(old);
    assert_eq!(seen.strong_count(), 0);
}

#[test]
fn the_last_state_of_a_copy_keeps_all_that_it_sees() {
    let volume = volume();
    let (old, segment) = (Pin::first(), volume.allocate(RegionId(1)).unwrap());
    let current = old.next(std::iter::once(&segment));
    let kept = Arc::downgrade(&segment);
    current.keep(vec![segment]);
    drop(old);
    assert!(kept.strong_count() > 0);
    drop(current);
    assert_eq!(kept.strong_count(), 0);
}

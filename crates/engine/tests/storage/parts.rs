//! Small segments take parts of segments: many small regions take little space, before and after a restart, and what is
//! freed is used again.

use crate::backup::Backup;
use crate::support::{REGION, compact, encryption, flush, now, table_options};
use leeward_engine::image::Image;
use leeward_engine::{Region, Replica, Volume, VolumeOptions, Write};
use leeward_format::cluster::Addressing;
use leeward_format::{RegionId, VolumeId};
use leeward_platform::{Disk, Rng, SimDisk};
use std::sync::Arc;

const REGIONS: u32 = 40;

fn open(disk: &SimDisk) -> (Arc<Volume>, Vec<Replica>) {
    // Segments of the default size.
    let options = VolumeOptions { memory_budget: 16 << 20, ..VolumeOptions::default() };
    Volume::open(disk.open("volume").expect("a simulated file opens"), VolumeId(1), options).unwrap()
}

fn serve(copies: Vec<Replica>) -> Vec<Arc<Region>> {
    let serve = |copy: Replica| {
        let term = copy.position().0.next();
        let region = copy.serve(term).unwrap();
        region.set_commit(region.last_lsn());
        region
    };
    copies.into_iter().map(serve).collect()
}

fn write(region: &Region, round: u32) {
    let value = [round as u8; 100];
    for n in 0..100u32 {
        region.append(&[Write::put(format!("key{n:04}").as_bytes(), &value)]).unwrap();
    }
    region.set_commit(region.last_lsn());
    flush(region).unwrap();
    while compact(region).unwrap() {}
}

fn assert_holds(region: &Region, round: u32) {
    let mut cursor = region.snapshot(region.last_lsn(), now()).cursor(Default::default());
    let mut pairs = 0;
    while let Some(pair) = cursor.next().unwrap() {
        assert_eq!(pair.value[..], [round as u8; 100]);
        pairs += 1;
    }
    assert_eq!(pairs, 100);
}

/// Bytes that leaves and indexes take, according to the manifest, and the number of their segments.
fn of_levels(disk: &SimDisk, volume: &Volume) -> (u64, u64) {
    let image = Image::read(disk.open("volume").expect("it is there"), Some(&encryption())).unwrap().expect("a volume");
    let segments = image.state().regions.values().flat_map(|region| region.segments.values());
    let places =
        segments.filter(|segment| segment.kind.is_index()).map(|segment| segment.place(volume.segment_bytes()));
    places.fold((0, 0), |(bytes, count), place| (bytes + place.bytes(volume.segment_bytes()) as u64, count + 1))
}

#[test]
fn small_regions_take_little_space() {
    for addressing in Addressing::ALL {
        let disk = SimDisk::new(1, 1 << 30);
        let (volume, _) = open(&disk);
        let options = || leeward_format::cluster::TableOptions { addressing, ..table_options() };
        let new = (0..REGIONS).map(|id| Replica::create(&volume, RegionId(REGION.0 + id), options()).unwrap());
        let regions = serve(new.collect());
        for round in 0..12 {
            regions.iter().for_each(|region| write(region, round));
        }
        let (bytes, segments) = of_levels(&disk, &volume);
        assert!(segments > 3 * u64::from(REGIONS) && bytes < segments * (32 << 10), "{bytes} bytes of {segments}");
        let used = volume.usage().0;
        drop((regions, volume));
        disk.lose_power(&mut Rng::new(1));

        let (volume, copies) = open(&disk);
        let regions = serve(copies);
        assert!(volume.verify().damaged.is_empty());
        regions.iter().for_each(|region| assert_holds(region, 11));
        assert_eq!(of_levels(&disk, &volume), (bytes, segments));
        assert!(volume.usage().0 <= used, "{used} bytes were in use, and now {} are", volume.usage().0);
        for round in 12..16 {
            regions.iter().for_each(|region| write(region, round));
            regions.iter().for_each(|region| assert_holds(region, round));
        }
        assert!(volume.verify().damaged.is_empty());
    }
}

/// Leaf segments, index segments and sorted runs.
#[test]
fn what_arrives_with_a_base_takes_as_little_space_as_after_a_restart() {
    for addressing in Addressing::ALL {
        let (here, there) = (SimDisk::new(1, 1 << 30), SimDisk::new(2, 1 << 30));
        let options = leeward_format::cluster::TableOptions { addressing, ..table_options() };
        let primary = Replica::create(&open(&here).0, REGION, options.clone()).unwrap();
        let primary = serve(vec![primary]).remove(0);
        for round in 0..30u32 {
            for n in 0..100u32 {
                // In place on the last level, and in runs above it.
                primary.append(&[Write::put(&(n * 30 + round).to_be_bytes(), &[7; 100])]).unwrap();
            }
            primary.set_commit(primary.last_lsn());
            flush(&primary).unwrap();
            while compact(&primary).unwrap() {}
        }
        let (volume, _) = open(&there);
        let mut copy = Backup::of(&volume, Replica::create(&volume, REGION, options).unwrap());
        copy.sync(&primary).unwrap();
        let used = volume.usage().0;
        let image = Image::read(there.open("volume").expect("it is there"), Some(&encryption())).unwrap();
        let image = image.expect("a volume");
        let runs = image.state().regions[&REGION].segments.values().filter(|segment| segment.is_run()).count();
        assert!(runs > 1, "{runs} runs arrived");
        drop((copy, volume));
        there.lose_power(&mut Rng::new(1));
        let (volume, copies) = open(&there);
        assert_eq!(volume.usage().0, used);
        assert!(volume.verify().damaged.is_empty());
        let pairs = serve(copies)[0].snapshot(primary.last_lsn(), now());
        let mut cursor = pairs.cursor(Default::default());
        for n in 0..3000u32 {
            assert_eq!(cursor.next().unwrap().expect("each key is there").key[..], n.to_be_bytes());
        }
    }
}

//! Encrypted volumes from outside: nothing readable is on the disk, damage is found, and checkpoints are encrypted too.

use crate::support::{
    Encrypted, History, assert_holds, choose_encryption, compact, encryption, flush, now, open_region, open_volume,
};
use leeward_engine::image::Image;
use leeward_engine::{Export, Region, Write, rekey};
use leeward_format::superblock::Superblock;
use leeward_format::{Lsn, VolumeId};
use leeward_platform::disk::{Fault, FaultPlan};
use leeward_platform::{Disk, Rng, SimDisk};
use std::sync::Arc;

/// Stands in keys and values, which are too short to be compressed away.
const SECRET: &[u8] = b"thecargo";

fn has_secret(disk: &SimDisk) -> bool {
    disk.contents("volume").windows(SECRET.len()).any(|window| window == SECRET)
}

/// Writes pairs of all sizes, with their L0s and levels, and leaves some in tails.
fn fill(region: &Region, from: u32, to: u32) {
    for n in from..to {
        let key = [SECRET, &n.to_be_bytes()].concat();
        let value = SECRET.repeat(1 + (n % 50) as usize);
        loop {
            match region.append(&[Write::put(&key, &value)]) {
                Ok(_) => break,
                Err(leeward_engine::AppendError::TailBusy(_)) => flush(region).unwrap(),
                Err(leeward_engine::AppendError::L0Full) => {
                    region.write_tails().unwrap();
                    region.set_commit(region.last_lsn());
                    assert!(compact(region).unwrap());
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    region.write_tails().unwrap();
    region.set_commit(region.last_lsn());
}

fn export(region: &Arc<Region>) -> SimDisk {
    region.seal_tails();
    let pinned = Arc::new(region.base());
    let disk = SimDisk::new(9, 1 << 30);
    let mut export = Export::begin(pinned, region.id(), VolumeId(3), &disk, "copy").unwrap();
    while export.step().unwrap() > 0 {}
    disk
}

#[test]
fn keys_and_values_are_on_no_disk_of_an_encrypted_volume() {
    for encrypted in [Encrypted::None, Encrypted::All] {
        for maps in [true, false] {
            choose_encryption(encrypted);
            let disk = SimDisk::new(1, 1 << 30);
            disk.set_maps(maps);
            let region = open_region(&disk).unwrap();
            fill(&region, 0, 3000);
            while compact(&region).unwrap() {}
            fill(&region, 3000, 3020);
            let copy = export(&region);
            drop(region);
            let is_plain = encrypted == Encrypted::None;
            assert_eq!((has_secret(&disk), has_secret(&copy)), (is_plain, is_plain), "{encrypted:?}, mapped: {maps}");
            for disk in [disk, copy] {
                let superblock = Superblock::decode(&disk.contents("volume")).unwrap();
                assert_eq!(superblock.is_encrypted(), !is_plain);
                let image = Image::read(disk.open("volume").unwrap(), Some(&encryption())).unwrap().unwrap();
                assert_eq!(image.key_name(), (!is_plain).then_some("test"));
                assert!(image.verify(&mut |_, _| {}).damaged.is_empty());
                let (volume, mut copies) = open_volume(&disk).unwrap();
                let region = copies.pop().unwrap();
                let term = region.position().0.next();
                let region = region.serve(term).unwrap();
                let key = [SECRET, &2999_u32.to_be_bytes()].concat();
                let found = region.get(&key, leeward_engine::Reach::Device, &now).unwrap();
                assert!(matches!(found, leeward_engine::Lookup::Found { .. }), "{found:?}");
                drop((region, volume));
            }
        }
    }
}

#[test]
fn damage_of_data_or_of_nonces_is_found_and_never_a_panic() {
    choose_encryption(Encrypted::All);
    let disk = SimDisk::new(2, 1 << 30);
    let region = open_region(&disk).unwrap();
    fill(&region, 0, 2000);
    while compact(&region).unwrap() {}
    drop(region);
    let bytes = disk.contents("volume");
    let (mut rng, mut found) = (Rng::new(2), 0);
    for _ in 0..60 {
        let damaged = SimDisk::new(3, 1 << 30);
        let file = damaged.open("volume").unwrap();
        file.write_at(&bytes, 0).unwrap();
        let stride = (32 << 10) + 4096;
        let segment = rng.index((bytes.len() - 9 * (32 << 10)) / stride);
        let at = 9 * (32 << 10) + segment * stride + if rng.one_in(2) { 16 } else { 4096 + rng.index(32 << 10) };
        damaged.flip_bit("volume", at as u64, rng.below(8) as u8);
        match Image::read(damaged.open("volume").unwrap(), Some(&encryption())) {
            Ok(image) => found += usize::from(!image.unwrap().verify(&mut |_, _| {}).damaged.is_empty()),
            Err(error) => assert!(matches!(error, leeward_engine::Error::Damaged { .. }), "{error}"),
        }
    }
    assert!(found > 15, "{found} of 60: the rest was in free space");
}

#[test]
fn a_copy_of_the_disk_that_is_continued_shares_no_nonce_with_the_original() {
    choose_encryption(Encrypted::All);
    let disk = SimDisk::new(4, 1 << 30);
    let (mut history, mut rng) = (History::default(), Rng::new(4));
    let region = open_region(&disk).unwrap();
    for _ in 0..50 {
        history.append(&region, &mut rng).unwrap();
    }
    history.write(&region).unwrap();
    history.sync(&region).unwrap();
    drop(region);
    let bytes = disk.contents("volume");
    let continued = |seed: u64| {
        let disk = SimDisk::new(seed, 1 << 30);
        disk.open("volume").unwrap().write_at(&bytes, 0).unwrap();
        let (mut history, mut rng) = (history.clone(), Rng::new(5));
        let region = open_region(&disk).unwrap();
        history.cut(region.last_lsn());
        for _ in 0..30 {
            history.append(&region, &mut rng).unwrap();
        }
        history.write(&region).unwrap();
        assert_holds(&region, &history.model(Lsn(history.last())), "a copy");
        drop(region);
        disk.contents("volume")
    };
    // The same writes at the same places: the same ciphertext would show that, and other writes more.
    let (one, other) = (continued(1), continued(2));
    let data = 9 * (32 << 10)..one.len().min(other.len());
    // Neither nonces nor padding.
    let is_new = |block: &usize| {
        let (new, old) = (&one[*block..*block + 16], bytes.get(*block..*block + 16).unwrap_or(&[0; 16]));
        (*block - 9 * (32 << 10)) % ((32 << 10) + 4096) >= 4096 && new != old && new != [0; 16]
    };
    let written: Vec<usize> =
        data.step_by(16).filter(|at| at + 16 <= one.len().min(other.len())).filter(is_new).collect();
    let same = written.iter().filter(|at| one[**at..**at + 16] == other[**at..**at + 16]);
    assert_eq!((same.count(), written.len() > 100), (0, true));
}

/// A volume with levels, tails and a manifest that was written to several times; and what it holds.
fn worked_on() -> (Vec<u8>, History) {
    choose_encryption(Encrypted::All);
    let disk = SimDisk::new(6, 1 << 30);
    let (mut history, mut rng) = (History::default(), Rng::new(6));
    for _ in 0..3 {
        let region = open_region(&disk).unwrap();
        for _ in 0..120 {
            history.append(&region, &mut rng).unwrap();
        }
        history.write(&region).unwrap();
        assert!(compact(&region).unwrap());
        history.sync(&region).unwrap();
    }
    (disk.contents("volume"), history)
}

fn with_contents(bytes: &[u8], seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed, 1 << 30);
    let file = disk.open("volume").unwrap();
    file.write_at(bytes, 0).and_then(|()| file.sync()).unwrap();
    disk
}

fn assert_has_all(disk: &SimDisk, history: &History, context: &str) {
    let region = open_region(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(region.last_lsn(), Lsn(history.last()), "{context}");
    assert_holds(&region, &history.model(region.last_lsn()), context);
}

#[test]
fn a_volume_is_rewritten_with_a_new_data_key_or_stays_as_it_was_whatever_crashes() {
    let (bytes, history) = worked_on();
    let mut op = 0;
    let rewritten = loop {
        op += 1;
        let disk = with_contents(&bytes, op);
        disk.set_faults(FaultPlan { at: vec![(op, Fault::Kill)], ..FaultPlan::default() });
        let done = rekey(&disk, &encryption(), &mut |_, _| {});
        disk.set_faults(FaultPlan::default());
        disk.lose_power(&mut Rng::new(op));
        let contents = disk.contents("volume");
        assert_has_all(&disk, &history, &format!("operation {op}, {done:?}"));
        if done.is_ok() {
            break contents;
        }
        // The next attempt begins from the start.
        if op % 10 == 0 {
            rekey(&disk, &encryption(), &mut |_, _| {}).unwrap();
            assert_has_all(&disk, &history, &format!("operation {op}, again"));
        }
    };
    assert!(op > 50, "{op} operations prove little");
    // The old data key is of no use any more.
    let mut mixed = rewritten.clone();
    mixed[8192..16384].copy_from_slice(&bytes[8192..16384]);
    assert_ne!(rewritten[8192..8704], bytes[8192..8704]);
    let error = open_volume(&with_contents(&mixed, 1)).unwrap_err();
    assert!(matches!(&error, leeward_engine::Error::Damaged { .. }), "{error}");
    let is_secret = |at: &usize| (at - 9 * (32 << 10)) % ((32 << 10) + 4096) >= 4096 && bytes[*at..*at + 16] != [0; 16];
    let blocks: Vec<usize> = (9 * (32 << 10)..bytes.len() - 16).step_by(16).filter(is_secret).collect();
    let same = blocks.iter().filter(|at| rewritten.get(**at..**at + 16) == Some(&bytes[**at..**at + 16])).count();
    assert_eq!((same, blocks.len() > 1000), (0, true));
}

#[test]
fn only_an_encrypted_volume_is_rewritten() {
    choose_encryption(Encrypted::None);
    let disk = SimDisk::new(7, 1 << 30);
    drop(open_region(&disk).unwrap());
    let error = rekey(&disk, &encryption(), &mut |_, _| {}).unwrap_err().to_string();
    assert_eq!(error, "volume: the volume is not encrypted");
}

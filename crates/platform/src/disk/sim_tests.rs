//! Tests of the simulated disk: what it keeps and may lose, and that the seed decides it.

use super::*;
use crate::disk::{is_full, is_unreadable};

fn written(seed: u64) -> (SimDisk, Arc<dyn File>) {
    let disk = SimDisk::new(seed, 1 << 20);
    let file = disk.open("f").unwrap();
    file.write_at(&[1; 4096], 0).unwrap();
    file.sync().unwrap();
    file.write_buffered_at(&[2; 4096], 0).unwrap();
    (disk, file)
}

#[test]
fn a_killed_process_loses_nothing_and_its_handles_are_dead() {
    let (disk, file) = written(1);
    disk.kill_process();
    assert!(file.read_at(&mut [0; 1], 0).is_err());
    assert_eq!(disk.contents("f"), vec![2; 4096]);
    let again = disk.open("f").unwrap();
    again.read_at(&mut [0; 4096], 0).unwrap();
}

#[test]
fn power_loss_chooses_a_version_for_each_sector() {
    let (mut lost, mut mixed) = (0, 0);
    for seed in 0..200 {
        let (disk, _file) = written(seed);
        disk.lose_power(&mut Rng::new(seed));
        let bytes = disk.contents("f");
        assert_eq!(bytes.len(), 4096);
        let firsts: Vec<u8> = bytes.chunks(SECTOR_BYTES).map(|sector| sector[0]).collect();
        for (sector, first) in bytes.chunks(SECTOR_BYTES).zip(&firsts) {
            assert!(sector.iter().all(|byte| byte == first) && [1, 2].contains(first));
        }
        lost += usize::from(firsts.iter().all(|first| *first == 1));
        mixed += usize::from(firsts.contains(&1) && firsts.contains(&2));
    }
    assert!(lost > 20 && mixed > 50, "{lost} {mixed}");
}

#[test]
fn synced_writes_survive_power_loss() {
    let (disk, file) = written(3);
    file.sync().unwrap();
    disk.lose_power(&mut Rng::new(3));
    assert_eq!(disk.contents("f"), vec![2; 4096]);
}

#[test]
fn faults_strike_the_planned_operation() {
    let (disk, file) = written(4);
    disk.set_faults(FaultPlan { at: vec![(2, Fault::Fail), (3, Fault::Kill)], ..FaultPlan::default() });
    file.write_at(&[3; 512], 0).unwrap();
    assert!(file.sync().is_err());
    let incarnation = disk.incarnation();
    assert!(file.write_at(&[4; 2048], 0).is_err());
    assert!(disk.died_since(incarnation));
    assert!(file.sync().is_err(), "the handle is dead");
    let bytes = disk.contents("f");
    assert!(bytes.chunks(512).skip(4).all(|sector| sector[0] == 2));
}

/// As on Linux, where each open file is told once.
#[test]
fn a_sync_that_failed_is_told_once_and_makes_nothing_durable() {
    for fault in [Fault::Fail, Fault::Writeback] {
        let (disk, file) = written(5);
        // The write, or the sync that follows it.
        let at = if fault == Fault::Writeback { 1 } else { 2 };
        disk.set_faults(FaultPlan { at: vec![(at, fault)], ..FaultPlan::default() });
        file.write_buffered_at(&[3; 512], 512).unwrap();
        assert!(file.sync().is_err());
        file.sync().unwrap();
        file.write_buffered_at(&[4; 512], 1024).unwrap();
        file.sync().unwrap();
        let firsts = || disk.contents("f").chunks(SECTOR_BYTES).map(|sector| sector[0]).collect::<Vec<_>>();
        assert_eq!(firsts(), [2, 3, 4, 2, 2, 2, 2, 2], "a process reads what it wrote");
        disk.lose_power(&mut Rng::new(5));
        assert_eq!(firsts(), [1, 1, 4, 1, 1, 1, 1, 1], "what was written again is durable");
    }
}

#[test]
fn a_process_dies_in_a_sync() {
    let (disk, file) = written(0);
    disk.set_faults(FaultPlan { at_sync: vec![(2, Fault::Kill)], ..FaultPlan::default() });
    file.sync().unwrap();
    file.write_at(&[3; 512], 0).unwrap();
    assert!(file.sync().is_err() && file.len().is_ok());
    assert!(file.read_at(&mut [0; 8], 0).is_err(), "the process is dead");
}

#[test]
fn random_faults_follow_the_seed() {
    let run = |seed| {
        let (disk, file) = written(seed);
        disk.set_faults(FaultPlan { read_errors_one_in: 3, ..FaultPlan::default() });
        (0..50).map(|_| file.read_at(&mut [0; 8], 0).is_ok()).collect::<Vec<_>>()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn a_full_disk_says_so() {
    let disk = SimDisk::new(0, 8192);
    let file = disk.open("f").unwrap();
    file.allocate(8192, &[4096]).unwrap();
    assert_eq!(file.allocate(8193, &[4096]).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(file.len().unwrap(), 8192);
    disk.set_capacity(16384);
    file.allocate(8193, &[4096]).unwrap();
}

#[test]
fn what_is_released_is_room_for_all_who_use_the_disk() {
    let (disk, refused) = (SimDisk::new(0, 1 << 20), |result: io::Result<()>| result.is_err_and(|e| is_full(&e)));
    let file = disk.open("f").unwrap();
    file.allocate(32_768, &[4096]).unwrap();
    disk.leave_room(Some(4096));
    assert!(refused(file.allocate(40_960, &[4096])) && file.allocate(36_864, &[4096]).is_ok());
    // The blocks 2 to 4: not those of which the range has a part only.
    file.release(5_000, 16_000).unwrap();
    assert!(file.allocate(49_152, &[4096]).is_ok() && refused(file.allocate(49_153, &[4096])));
    assert!(refused(file.reserve(8_192, 4_096)) && refused(file.write_at(&[1; 10], 12_000)));
    assert!(file.reserve(20_480, 28_672).is_ok() && file.write_at(&[1; 8_192], 0).is_ok(), "they are no holes");
    disk.leave_room(Some(8_192));
    assert!(file.write_at(&[1; 10], 12_000).is_ok() && file.reserve(8_192, 8_192).is_ok());
    assert!(refused(file.reserve(16_384, 4_096)));
    disk.leave_room(None);
    assert!(file.reserve(0, 49_152).is_ok() && file.allocate(65_536, &[4096]).is_ok());
}

#[test]
fn the_lock_dies_with_the_process() {
    let disk = SimDisk::new(0, 0);
    let held = disk.lock().unwrap();
    assert!(disk.lock().is_err());
    disk.kill_process();
    let second = disk.lock().unwrap();
    drop(held);
    assert!(disk.lock().is_err(), "a dead process's lock lets go of nothing");
    drop(second);
    disk.lock().unwrap();
}

#[test]
fn decay_flips_one_bit() {
    let (disk, _file) = written(0);
    disk.flip_bit("f", 7, 3);
    assert_eq!(disk.contents("f")[7], 2 ^ 8);
    disk.flip_bit("f", 1 << 40, 0);
}

#[test]
fn a_lost_block_can_be_read_once_it_is_written_as_a_whole() {
    let disk = SimDisk::new(0, 1 << 20);
    let file = disk.open("f").unwrap();
    file.write_at(&[1; 10_000], 0).unwrap();
    disk.spoil("f", 4_200);
    assert!(file.read_at(&mut [0; 4096], 0).is_ok());
    assert!(file.read_at(&mut [0; 1], 8_191).is_err_and(|error| is_unreadable(&error)));
    for (at, bytes) in [(4_097, 4_095), (0, 8_191), (5_000, 1)] {
        let written = file.write_at(&vec![2; bytes], at);
        assert!(written.is_err_and(|error| is_unreadable(&error)), "the page cache reads the rest of the block");
    }
    file.write_at(&[3; 8_192], 4_096).unwrap();
    let mut found = [0; 10_000];
    file.read_at(&mut found, 0).unwrap();
    assert!(found[..4_096] == [1; 4_096] && found[4_096..] == [3; 5_904], "the failed writes changed nothing");
    disk.spoil("f", 9_000);
    file.write_at(&[4; 4_096], 8_192).unwrap();
    assert!(file.read_at(&mut found, 0).is_ok());
}

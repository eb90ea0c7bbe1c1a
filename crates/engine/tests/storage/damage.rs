//! Damage: durable bytes that have changed. Acknowledged data is never lost silently.

use crate::backup::{Backup, connected, serve, work};
use crate::split::{CHILD, copy_of_child, split_quiesced};
use crate::support::{
    History, REGION, assert_holds, choose_backups, choose_options, compact, encryption, flush, open_region,
    open_volume, volume_options,
};
use leeward_engine::image::Image;
use leeward_engine::{Error, Lookup, Reach, Region, ScanBounds, Unopened, Volume, Write};
use leeward_format::cluster::BackupMode;
use leeward_format::manifest::SegmentState;
use leeward_format::superblock::{SUPERBLOCK_COPY_OFFSET, VOLUME_VERSION};
use leeward_format::{Epoch, LogKind, Lsn, UnixMs, VolumeId};
use leeward_platform::{Disk, Rng, SimDisk};

const DISK_BYTES: u64 = 256 << 20;

/// A region whose process died after `writes` writes, all durable; returns the offset of its log's first segment, in
/// bytes.
fn written(disk: &SimDisk, writes: u32) -> u64 {
    let region = open_region(disk).unwrap();
    for number in 0..writes {
        let key = format!("key{number:03}");
        region.append(&[Write::put(key.as_bytes(), &[7; 100])]).unwrap();
    }
    region.sync_tails().unwrap();
    let segment = region.tails(LogKind::Recovery)[0].segment();
    disk.kill_process();
    segment.start(volume_options().segment_bytes)
}

const RECORD_BYTES: u64 = 20 + 6 + 100;

#[test]
fn a_flipped_bit_below_the_recorded_commit_is_an_error_that_says_where_and_what_to_do() {
    let disk = SimDisk::new(1, DISK_BYTES);
    let log = written(&disk, 50);
    // Serving records all recovered writes as committed.
    drop(open_region(&disk).unwrap());
    disk.kill_process();
    disk.flip_bit("volume", log + 64 + 30 * RECORD_BYTES + 50, 3);
    let error = open_region(&disk).unwrap_err();
    let Error::Damaged { file, offset, detail, advice } = &error else { panic!("{error}") };
    assert_eq!((&file[..], *offset), ("volume", log + 64 + 30 * RECORD_BYTES));
    assert!(detail.contains("checksum") && advice.starts_with("restore the volume"), "{error}");
    // Nothing was dropped: if the bytes come back, all data does.
    disk.kill_process();
    disk.flip_bit("volume", log + 64 + 30 * RECORD_BYTES + 50, 3);
    assert_eq!(open_region(&disk).unwrap().last_lsn(), Lsn(50));
}

#[test]
fn a_flipped_bit_beyond_the_recorded_commit_is_a_tear() {
    let disk = SimDisk::new(2, DISK_BYTES);
    let log = written(&disk, 50);
    disk.flip_bit("volume", log + 64 + 30 * RECORD_BYTES + 50, 3);
    let region = open_region(&disk).unwrap();
    assert_eq!(region.last_lsn(), Lsn(30));
    assert!(matches!(region.get(b"key029", Reach::Device, &UnixMs::default), Ok(Lookup::Found { .. })));
    assert_eq!(region.get(b"key030", Reach::Device, &UnixMs::default).unwrap(), Lookup::Absent);
    // The cut is durable: records after it never come back.
    region.append(&[Write::put(b"new", b"1")]).unwrap();
    region.sync_tails().unwrap();
    disk.lose_power(&mut Rng::new(2));
    disk.flip_bit("volume", log + 64 + 30 * RECORD_BYTES + 50, 3);
    let region = open_region(&disk).unwrap();
    assert_eq!(region.last_lsn(), Lsn(31));
    assert_eq!(region.get(b"key031", Reach::Device, &UnixMs::default).unwrap(), Lookup::Absent);
}

#[test]
fn log_bytes_that_levels_refer_to_are_missed() {
    let disk = SimDisk::new(3, DISK_BYTES);
    let region = open_region(&disk).unwrap();
    let value = [1; 300];
    while region.stats().levels.is_empty() {
        match region.append(&[Write::put(&region.last_lsn().0.to_be_bytes(), &value)]) {
            Ok(appended) => region.set_commit(appended.last),
            Err(_) => flush(&region).unwrap(),
        }
        compact(&region).unwrap();
    }
    let segment = region.tails(LogKind::Large).last().unwrap().segment();
    disk.kill_process();
    let start = segment.start(volume_options().segment_bytes);
    disk.flip_bit("volume", start + 20, 0);
    let error = open_region(&disk).unwrap_err().to_string();
    assert!(error.contains("bytes that were durable are gone"), "{error}");
}

/// One region's history, with everything in it: compactions, flushes, syncs, restarts.
fn live(disk: &SimDisk, seed: u64) -> History {
    let mut rng = Rng::new(seed);
    let mut history = History::default();
    for _ in 0..3 {
        let region = open_region(disk).unwrap();
        for _ in 0..150 {
            history.append(&region, &mut rng).unwrap();
            history.write(&region).unwrap();
            match rng.below(10) {
                0 => history.sync(&region).unwrap(),
                1 => flush(&region).unwrap(),
                2 => drop(compact(&region).unwrap()),
                _ => {}
            }
        }
        history.sync(&region).unwrap();
        disk.kill_process();
    }
    history
}

fn scan_all(region: &Region) -> Result<usize, Error> {
    let mut cursor = region.snapshot(region.last_lsn(), crate::support::now()).cursor(ScanBounds::default());
    let mut count = 0;
    while cursor.next()?.is_some() {
        count += 1;
    }
    Ok(count)
}

#[test]
fn no_flipped_bit_ever_makes_up_data() {
    let pristine = SimDisk::new(4, DISK_BYTES);
    let history = live(&pristine, 4);
    let bytes = pristine.contents("volume");
    let mut rng = Rng::new(5);
    let (mut errors, mut cut) = (0, 0);
    for round in 0..400 {
        let disk = SimDisk::new(round, DISK_BYTES);
        disk.open("volume").unwrap().write_at(&bytes, 0).unwrap();
        // Aim at bytes that are in use: most of a fresh file is not.
        let at = loop {
            let at = rng.index(bytes.len());
            if bytes[at] != 0 {
                break at as u64;
            }
        };
        disk.flip_bit("volume", at, rng.below(8) as u8);
        match open_region(&disk).and_then(|region| scan_all(&region).map(|_| region)) {
            Err(error) => {
                assert!(matches!(error, Error::Damaged { .. }), "byte {at}: {error}");
                errors += 1;
            }
            Ok(region) => {
                let mut history = history.clone();
                cut += u32::from(region.last_lsn().0 < history.last());
                history.cut(region.last_lsn());
                assert_holds(&region, &history.model(region.last_lsn()), &format!("byte {at} flipped"));
            }
        }
    }
    assert!(errors > 20, "{errors} errors, {cut} cuts");
}

/// The offset in the file of a byte that the log of the backup had when something became durable, and that a replay reads.
fn replayed_byte(disk: &SimDisk, volume: &Volume, rng: &mut Rng) -> Option<u64> {
    let image = Image::read(disk.open("volume").unwrap(), Some(&encryption())).unwrap().expect("a volume");
    let state = &image.state().regions[&REGION];
    let is_replayed = |segment: &&SegmentState| state.is_replayed(segment) && segment.certain_bytes() > 0;
    let replayed: Vec<&SegmentState> = state.segments.values().filter(is_replayed).collect();
    let segment = *replayed.get(rng.index(replayed.len().max(1)))?;
    Some(volume.file_offset(segment.no, rng.below(segment.certain_bytes().into()) as u32))
}

/// One region has lost a part of its log: the volume opens, the copy says that it is damaged, does not serve, and is
/// brought in sync in place. Of its segments only those of the log are shipped again.
#[test]
fn a_copy_with_a_damaged_log_is_brought_in_sync() {
    let mut mended = [0; 2];
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        choose_options(&mut rng);
        choose_backups([BackupMode::SendIndex, BackupMode::BuildIndex][seed as usize / 2 % 2]);
        let ([_, there], primary, mut backup) = connected(seed, DISK_BYTES, 3);
        let mut history = History::default();
        let batches = 100 + rng.below(500);
        work(&primary, &mut backup, &mut history, &mut rng, batches);
        backup.save(&primary).unwrap();
        let Some(place) = replayed_byte(&there, &backup.volume, &mut rng) else { continue };
        drop(backup);
        there.kill_process();
        match seed % 2 {
            0 => there.spoil("volume", place),
            _ => there.flip_bit("volume", place, 3),
        }
        let (volume, mut copies) = open_volume(&there).unwrap();
        let copy = copies.pop().unwrap();
        if !copy.is_damaged() {
            assert_eq!(seed % 2, 1, "seed {seed}: bits of a header that no checksum covers");
            continue;
        }
        assert_eq!(copy.reach(), None);
        let Unopened { copy, error } = copy.promote(Vec::new(), Epoch(9)).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. } | Error::Io { .. }), "{error}");
        let mut copy = *copy.expect("it is as it was");
        copy.adopt_tails(Vec::new()).unwrap();
        assert_eq!(copy.reach(), None);
        let mut backup = Backup::of(&volume, copy);
        let shipped = backup.sync(&primary).unwrap();
        assert_eq!(backup.replica.reach(), Some((primary.term(), primary.last_lsn())));
        let all = primary.base().base.segments;
        let index = all.iter().filter(|segment| segment.kind.is_index()).count();
        if !primary.options().backups.builds_index() {
            assert!(shipped <= all.len() - index, "seed {seed}: {shipped} of {}, {index} of the index", all.len());
        }
        work(&primary, &mut backup, &mut history, &mut rng, 50);
        backup.save(&primary).unwrap();
        drop((backup, volume));
        there.kill_process();
        let copy = open_volume(&there).unwrap().1.pop().unwrap();
        assert_eq!(copy.reach(), Some((primary.term(), primary.last_lsn())));
        assert_holds(&serve(copy), &history.model(primary.last_lsn()), &format!("seed {seed}"));
        mended[seed as usize % 2] += 1;
    }
    assert!(mended.iter().all(|mended| *mended > 5), "{mended:?}");
}

/// A region is split from one whose copy here has lost a part of its log since it was opened. The new copy has all of its
/// data, and nothing of it depends on the lost bytes.
#[test]
fn a_split_takes_nothing_of_a_log_that_cannot_be_read() {
    let mut tried = 0;
    for (seed, mode) in (0..12).flat_map(|seed| BackupMode::ALL.map(|mode| (seed, mode))) {
        let (mut rng, context) = (Rng::new(800 + seed), format!("seed {seed}, {mode}"));
        choose_options(&mut rng);
        choose_backups(mode);
        let ([_, there], primary, mut backup) = connected(seed, DISK_BYTES, 5);
        let mut history = History::default();
        work(&primary, &mut backup, &mut history, &mut rng, 300);
        let child = split_quiesced(&primary, &mut backup, primary.term().next()).unwrap();
        let Some(place) = replayed_byte(&there, &backup.volume, &mut rng) else { continue };
        match rng.one_in(2) {
            true => there.spoil("volume", place),
            false => there.flip_bit("volume", place, 3),
        }
        let mut childs = copy_of_child(&backup).unwrap();
        let shipped = childs.sync(&child).unwrap();
        assert_eq!(shipped, child.base().base.segments.len(), "{context}: all of it is shipped");
        tried += 1;
        let mut childs_history = history.split();
        work(&child, &mut childs, &mut childs_history, &mut rng, 50);
        childs.save(&child).unwrap();
        drop((childs, backup));
        there.kill_process();
        let (_volume, copies) = open_volume(&there).unwrap();
        let copy = copies.into_iter().find(|copy| copy.region() == CHILD).unwrap();
        assert_eq!(copy.reach(), Some((child.term(), child.last_lsn())), "{context}");
        assert_holds(&serve(copy), &childs_history.model(child.last_lsn()), &context);
    }
    assert!(tried > 10, "{tried}");
}

#[test]
fn the_copy_of_the_superblock_serves_for_a_damaged_one() {
    let disk = SimDisk::new(6, DISK_BYTES);
    written(&disk, 10);
    disk.flip_bit("volume", 13, 1);
    assert_eq!(open_region(&disk).unwrap().last_lsn(), Lsn(10));
    disk.kill_process();
    disk.flip_bit("volume", SUPERBLOCK_COPY_OFFSET + 13, 1);
    let error = open_volume(&disk).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
}

#[test]
fn a_file_of_another_kind_or_version_is_left_alone() {
    let disk = SimDisk::new(7, DISK_BYTES);
    let file = disk.open("volume").unwrap();
    file.write_at(&b"SQLite format 3\0".repeat(4096), 0).unwrap();
    let error = Volume::open(file, VolumeId(1), volume_options()).unwrap_err();
    assert!(matches!(error, Error::NotAVolume { .. }) && error.to_string().contains("another directory"), "{error}");
    assert_eq!(disk.contents("volume"), b"SQLite format 3\0".repeat(4096));

    let disk = SimDisk::new(8, DISK_BYTES);
    written(&disk, 1);
    let file = disk.open("volume").unwrap();
    for at in [0, SUPERBLOCK_COPY_OFFSET] {
        let mut superblock = [0; 512];
        file.read_at(&mut superblock, at).unwrap();
        // Another format version may have its checksum elsewhere: here the checksum does not fit any more.
        superblock[8] = (VOLUME_VERSION + 1) as u8;
        file.write_at(&superblock, at).unwrap();
    }
    let before = disk.contents("volume");
    let error = open_volume(&disk).unwrap_err().to_string();
    let (found, known) = (VOLUME_VERSION + 1, VOLUME_VERSION);
    assert_eq!(
        error,
        format!(
            "volume: made by another version of Leeward (volume format {found}, this program reads format {known}); \
             nothing was changed. Use the version that made it, or give this one another directory"
        )
    );
    assert_eq!(disk.contents("volume"), before);
}

#[test]
fn a_file_that_was_cut_short_says_where_and_what_to_do() {
    let whole = SimDisk::new(9, DISK_BYTES);
    live(&whole, 9);
    let bytes = whole.contents("volume");
    let reserved = 9 * volume_options().segment_bytes;
    for len in [100, 600, 5_000, reserved - 1, reserved + 10] {
        let disk = SimDisk::new(len as u64, DISK_BYTES);
        disk.open("volume").unwrap().write_at(&bytes[..len], 0).unwrap();
        let error = open_volume(&disk).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{len} bytes: {error}");
        let text = error.to_string();
        assert!(text.contains("restore the volume from a backup"), "{text}");
        assert_eq!(disk.contents("volume").len(), len, "nothing was changed");
    }
}

//! Tests of the encrypted file against a model, on a disk that crashes; and of keys.

use super::*;
use crate::volume::{Volume, VolumeOptions};
use leeward_format::nonces::{UseKind, nonce_block_bytes};
use leeward_format::superblock::VOLUME_VERSION;
use leeward_platform::disk::{Content, Fault, FaultPlan, Read, is_unreadable};
use leeward_platform::{Block, Disk, File, Rng, SimDisk};
use std::collections::HashMap;

const SEGMENT: u32 = 32 << 10;
const RESERVED: u64 = 3 * SEGMENT as u64;
const SEGMENTS: u64 = 4;

const SUPERBLOCK: Superblock = Superblock {
    version: VOLUME_VERSION,
    segment_bytes: SEGMENT,
    zone_segments: 1,
    volume: VolumeId(7),
    nonce_bytes: 4096,
};

fn encryption(keys: &str, seed: u64) -> Arc<Encryption> {
    Encryption::with_entropy(Secrets::parse(keys, "keys").unwrap(), Entropy::seeded(seed))
}

fn line(name: &str, digit: char) -> String {
    format!("{name} {}\n", digit.to_string().repeat(64))
}

fn open_file(disk: &SimDisk, key: &Arc<DataKey>, seed: u64) -> EncryptedFile {
    let file = disk.open("volume").unwrap();
    EncryptedFile::new(file, &SUPERBLOCK, Arc::clone(key), encryption(&line("a", '1'), seed))
}

/// Notes every byte of ciphertext, by nonce and position: another one there would be another plaintext.
#[derive(Default)]
struct Keystreams {
    image: Vec<u8>,
    seen: HashMap<([u8; 12], u32), u8>,
}

impl Keystreams {
    /// The disk was written to since the last call.
    fn observe(&mut self, disk: &SimDisk) {
        let before = std::mem::replace(&mut self.image, disk.contents("volume"));
        let stride = (SEGMENT + SUPERBLOCK.nonce_bytes) as usize;
        for (segment, bytes) in self.image[RESERVED as usize..].chunks(stride).enumerate() {
            let (nonces, data) = bytes.split_at(SUPERBLOCK.nonce_bytes as usize);
            let start = RESERVED as usize + segment * stride + nonces.len();
            for extent in uses::Uses::decode(nonces, SEGMENT).extents().iter() {
                assert_eq!(extent.of.kind, UseKind::Stream);
                for at in extent.start..extent.end {
                    let (new, old) = (data[at as usize], before.get(start + at as usize).copied());
                    // Padding is zeroes that are not encrypted.
                    if old != Some(new) && new != 0 {
                        let known = *self.seen.entry((extent.of.nonce, at)).or_insert(new);
                        assert_eq!(known, new, "byte {at} of segment {segment} has two plaintexts under one nonce");
                    }
                }
            }
        }
    }

    /// The disk was not written to, but has other bytes: it lost power.
    fn forget(&mut self, disk: &SimDisk) {
        self.image = disk.contents("volume");
    }
}

/// The bytes of the data segments, as far as they are known; those that were written since the last sync.
struct Model {
    known: Vec<Option<u8>>,
    unsynced: Vec<bool>,
}

impl Model {
    fn renew(&mut self, at: usize, bytes: usize) {
        self.known[at..at + bytes].fill(None);
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let differs = |i: &usize| self.known[at + i] != Some(bytes[*i]);
        let Some(first) = (0..bytes.len()).find(differs) else { return };
        let last = (first..bytes.len()).rfind(differs).unwrap();
        for (i, byte) in bytes.iter().enumerate().take(last + 1).skip(first) {
            (self.known[at + i], self.unsynced[at + i]) = (Some(*byte), true);
        }
    }

    fn power_lost(&mut self) {
        for (known, unsynced) in self.known.iter_mut().zip(&mut self.unsynced) {
            if std::mem::take(unsynced) {
                *known = None;
            }
        }
    }

    fn check(&self, file: &EncryptedFile, context: &str) {
        let mut found = vec![0; self.known.len()];
        file.read_at(&mut found, RESERVED).unwrap();
        let wrong = self.known.iter().zip(&found).position(|(known, found)| known.is_some_and(|known| known != *found));
        assert_eq!(wrong, None, "{context}: a byte is not what was written");
    }
}

fn random_bytes(rng: &mut Rng, bytes: usize) -> Vec<u8> {
    let mut random = vec![0; bytes];
    rng.fill(&mut random);
    random
}

/// One random write, somewhere. Returns where it was, and the bytes.
fn write(file: &EncryptedFile, rng: &mut Rng, model: &Model) -> (usize, Vec<u8>) {
    let segment = rng.index(SEGMENTS as usize) * SEGMENT as usize;
    let aligned = rng.one_in(2);
    let (at, len) = match aligned {
        true => (rng.index(8) * 4096, (1 + rng.index(8)) * 4096),
        false => (rng.index(SEGMENT as usize), 1 + rng.index(3000)),
    };
    let len = len.min(SEGMENT as usize - at);
    let (at, offset) = (segment + at, RESERVED + (segment + at) as u64);
    let mut bytes = random_bytes(rng, len);
    if rng.one_in(3) {
        // The same bytes at the start, as when a tail is completed in place, and at the end.
        let known = |i: usize| model.known[at + i];
        let same = rng.index(len);
        (0..same).for_each(|i| bytes[i] = known(i).unwrap_or(bytes[i]));
        (len - rng.index(len - same)..len).for_each(|i| bytes[i] = known(i).unwrap_or(bytes[i]));
    }
    match rng.below(3) {
        0 => file.write_at(&bytes, offset).unwrap(),
        1 => drop(file.begin_write(bytes.clone().into(), offset).wait().unwrap()),
        _ => file.write_buffered_at(&bytes, offset).unwrap(),
    }
    (at, bytes)
}

/// A tail that is appended to, mapped or not.
fn append(file: &EncryptedFile, rng: &mut Rng) -> (usize, Vec<u8>) {
    let segment = rng.index(SEGMENTS as usize) * SEGMENT as usize;
    let offset = RESERVED + segment as u64;
    file.renew(offset, SEGMENT.into(), Content::Plain).unwrap();
    let mapped = file.map(offset, SEGMENT as usize).unwrap();
    let (mut all, mut end) = (Vec::new(), 0);
    let mut appender = mapped;
    for _ in 0..rng.below(30) {
        let len = 1 + rng.index(400);
        let new = random_bytes(rng, len);
        match &mut appender {
            Some(appender) => {
                appender.reserve(new.len()).unwrap();
                appender.append(new.len(), |out| out.copy_from_slice(&new));
                appender.publish().unwrap();
                assert!(appender.buffer().bytes().ends_with(&new), "readers see what was appended");
            }
            None => {
                let to = (all.len() + new.len()).next_multiple_of(4096).max(end);
                let padding = if to > end { to - all.len() - new.len() } else { 0 };
                end = to;
                file.write_padded_at(&new, padding, offset + all.len() as u64).unwrap();
            }
        }
        all.extend(new);
    }
    (segment, all)
}

#[test]
fn it_is_a_plain_file_that_never_uses_a_keystream_twice_whatever_crashes() {
    for seed in 0..60 {
        let (mut rng, disk) = (Rng::new(seed), SimDisk::new(seed, 1 << 30));
        disk.set_maps(seed % 2 == 0);
        let key = Arc::new(DataKey::draw(&encryption(&line("a", '1'), seed)).unwrap());
        let mut file = open_file(&disk, &key, seed);
        file.allocate(RESERVED + SEGMENTS * u64::from(SEGMENT), &[SEGMENT.into()]).unwrap();
        assert_eq!(file.len().unwrap(), RESERVED + SEGMENTS * u64::from(SEGMENT));
        file.sync().unwrap();
        let bytes = SEGMENTS as usize * SEGMENT as usize;
        let mut model = Model { known: vec![None; bytes], unsynced: vec![false; bytes] };
        let mut keystreams = Keystreams::default();
        for step in 0..80 {
            let context = format!("seed {seed}, step {step}");
            match rng.below(16) {
                0..=6 => {
                    let (at, written) = write(&file, &mut rng, &model);
                    model.write(at, &written);
                }
                7..=9 => {
                    let (at, written) = append(&file, &mut rng);
                    model.renew(at, SEGMENT as usize);
                    model.write(at, &written);
                }
                10..=11 => {
                    let part = (SEGMENT as usize) >> rng.below(3);
                    let at = rng.index(bytes / part) * part;
                    file.renew(RESERVED + at as u64, part as u64, Content::Plain).unwrap();
                    model.renew(at, part);
                }
                12 => {
                    file.sync().unwrap();
                    model.unsynced.fill(false);
                }
                13 => {
                    disk.kill_process();
                    file = open_file(&disk, &key, seed << 32 | step);
                }
                14 => {
                    disk.lose_power(&mut rng);
                    model.power_lost();
                    keystreams.forget(&disk);
                    file = open_file(&disk, &key, seed << 32 | step);
                }
                _ => model.check(&file, &context),
            }
            keystreams.observe(&disk);
        }
        model.check(&file, &format!("seed {seed}, at the end"));
        assert!(!keystreams.seen.is_empty());
    }
}

#[test]
fn what_the_device_has_lost_is_written_over_under_a_new_use() {
    for seed in 0..20 {
        let (mut rng, disk) = (Rng::new(seed), SimDisk::new(seed, 1 << 30));
        let key = Arc::new(DataKey::draw(&encryption(&line("a", '1'), seed)).unwrap());
        let file = open_file(&disk, &key, seed);
        file.allocate(RESERVED + SEGMENTS * u64::from(SEGMENT), &[SEGMENT.into()]).unwrap();
        let mut keystreams = Keystreams::default();
        let half = SEGMENT as usize / 2;
        let whole = random_bytes(&mut rng, half);
        file.write_at(&whole, RESERVED).unwrap();
        keystreams.observe(&disk);
        let blocks: Vec<u64> = (0..2).map(|_| rng.below(half as u64 / 4096)).collect();
        let data = RESERVED + u64::from(SUPERBLOCK.nonce_bytes);
        blocks.iter().for_each(|block| disk.spoil("volume", data + block * 4096 + rng.below(4096)));
        assert!(file.read_at(&mut vec![0; half], RESERVED).is_err_and(|error| is_unreadable(&error)));
        let before = disk.contents("volume");
        // The same bytes, others, and more than there were.
        let is_same = seed % 3 == 0;
        let written = match seed % 3 {
            0 => whole,
            1 => random_bytes(&mut rng, half),
            _ => random_bytes(&mut rng, SEGMENT as usize),
        };
        file.write_at(&written, RESERVED).unwrap();
        keystreams.observe(&disk);
        for file in [file, open_file(&disk, &key, seed << 32)] {
            let mut found = vec![0; written.len()];
            file.read_at(&mut found, RESERVED).unwrap();
            assert!(found == written, "seed {seed}");
        }
        if is_same {
            // Other readers of the rest read it under its old use meanwhile.
            let after = disk.contents("volume");
            for block in (0..half as u64 / 4096).filter(|block| !blocks.contains(block)) {
                let range = (data + block * 4096) as usize..(data + (block + 1) * 4096) as usize;
                assert!(before[range.clone()] == after[range], "seed {seed}: block {block} was written again");
            }
        }
    }
}

#[test]
fn several_reads_at_once_are_decrypted_each() {
    let (disk, mut rng) = (SimDisk::new(1, 1 << 30), Rng::new(1));
    let key = Arc::new(DataKey::draw(&encryption(&line("a", '1'), 1)).unwrap());
    let file = open_file(&disk, &key, 1);
    file.allocate(RESERVED + SEGMENTS * u64::from(SEGMENT), &[SEGMENT.into()]).unwrap();
    let bytes = random_bytes(&mut rng, SEGMENTS as usize * SEGMENT as usize);
    file.write_at(&bytes, RESERVED).unwrap();
    let places = [(0, 100), (SEGMENT as usize - 7, 7), (50_000, 4096), (SEGMENT as usize, 1)];
    let mut found = places.map(|(_, len)| vec![0; len]);
    let mut reads: Vec<Read<'_>> =
        places.iter().zip(&mut found).map(|((at, _), buffer)| Read { offset: RESERVED + *at as u64, buffer }).collect();
    file.read_many(&mut reads).unwrap();
    for ((at, len), found) in places.into_iter().zip(&found) {
        assert_eq!(found[..], bytes[at..at + len]);
        let block = file.begin_read(Block::bare(len), RESERVED + at as u64).wait().unwrap();
        assert_eq!(block[..], bytes[at..at + len]);
    }
    // From one segment into the next.
    let across = file.begin_read(Block::bare(5000), RESERVED + u64::from(SEGMENT) - 2500).wait().unwrap();
    assert_eq!(across[..], bytes[SEGMENT as usize - 2500..][..5000]);
}

fn options(keys: &str, seed: u64) -> VolumeOptions {
    let encryption = Some(encryption(keys, seed));
    VolumeOptions { segment_bytes: SEGMENT as usize, encryption, ..VolumeOptions::default() }
}

fn open_volume(disk: &SimDisk, keys: &str, seed: u64) -> Result<Arc<Volume>> {
    Volume::open(disk.open("volume").unwrap(), VolumeId(9), options(keys, seed)).map(|(volume, _)| volume)
}

fn key_name_of(disk: &SimDisk) -> String {
    key_name(&Device::new(disk.open("volume").unwrap())).unwrap()
}

#[test]
fn a_missing_or_wrong_key_is_named_and_changes_nothing() {
    let disk = SimDisk::new(1, 1 << 30);
    drop(open_volume(&disk, &line("a", '1'), 1).unwrap());
    let before = disk.contents("volume");
    let refused = |keys: &str| open_volume(&disk, keys, 2).unwrap_err().to_string();
    assert_eq!(
        refused(&line("b", '1')),
        "volume: encrypted: it needs the key a, which keys does not have; nothing was changed"
    );
    assert!(refused(&line("a", '2')).contains("the key a of keys is another one than it was encrypted with"));
    let none = VolumeOptions { encryption: None, ..options(&line("a", '1'), 1) };
    let error = Volume::open(disk.open("volume").unwrap(), VolumeId(9), none.clone()).unwrap_err();
    assert!(
        matches!(&error, Error::Key { detail, .. } if detail.contains("the key a, and no keys are given")),
        "{error}"
    );
    assert!(disk.contents("volume") == before, "nothing was changed");
    drop(open_volume(&disk, &line("a", '1'), 3).unwrap());
    // No volume becomes encrypted in place.
    let plain = SimDisk::new(1, 1 << 30);
    drop(Volume::open(plain.open("volume").unwrap(), VolumeId(9), none).unwrap());
    assert!(
        matches!(open_volume(&plain, &line("a", '1'), 4), Err(Error::Invalid(why)) if why.contains("not encrypted"))
    );
}

#[test]
fn another_key_of_the_operator_replaces_the_old_one_at_the_next_start_whatever_crashes() {
    let both = line("a", '1') + &line("b", '2');
    let mut op = 0;
    loop {
        op += 1;
        let (disk, mut rng) = (SimDisk::new(op, 1 << 30), Rng::new(op));
        drop(open_volume(&disk, &line("a", '1'), 1).unwrap());
        assert_eq!(key_name_of(&disk), "a");
        disk.set_faults(FaultPlan { at: vec![(op, Fault::Kill)], ..Default::default() });
        let is_over = open_volume(&disk, &both, 2).is_ok();
        disk.set_faults(FaultPlan::default());
        disk.lose_power(&mut rng);
        drop(open_volume(&disk, &both, 3).unwrap());
        assert_eq!(key_name_of(&disk), "b");
        drop(open_volume(&disk, &line("b", '2'), 4).expect("the old key is not needed any more"));
        let old = open_volume(&disk, &line("a", '1'), 5).unwrap_err().to_string();
        assert!(old.contains("needs the key b"), "{old}");
        if is_over {
            break;
        }
    }
    assert!(op > 10, "{op} operations prove little");
}

#[test]
fn one_copy_of_the_data_key_is_enough_and_is_copied_at_the_next_start() {
    for lost in WRAPPED_KEY_OFFSETS {
        let disk = SimDisk::new(1, 1 << 30);
        drop(open_volume(&disk, &line("a", '1'), 1).unwrap());
        disk.flip_bit("volume", lost + 40, 1);
        drop(open_volume(&disk, &line("a", '1'), 2).unwrap());
        let other = WRAPPED_KEY_OFFSETS[usize::from(lost == WRAPPED_KEY_OFFSETS[0])];
        disk.flip_bit("volume", other + 40, 1);
        drop(open_volume(&disk, &line("a", '1'), 3).unwrap());
    }
    let disk = SimDisk::new(1, 1 << 30);
    drop(open_volume(&disk, &line("a", '1'), 1).unwrap());
    WRAPPED_KEY_OFFSETS.into_iter().for_each(|offset| disk.flip_bit("volume", offset + 40, 1));
    let error = open_volume(&disk, &line("a", '1'), 2).unwrap_err();
    assert!(matches!(&error, Error::Damaged { detail, .. } if detail.contains("both copies")), "{error}");
}

#[test]
fn every_flipped_bit_of_a_sealed_entry_is_found() {
    let encryption = encryption(&line("a", '1'), 1);
    let key = Arc::new(DataKey::draw(&encryption).unwrap());
    let sealer = Sealer { key: Arc::clone(&key), volume: VolumeId(1), encryption: Arc::clone(&encryption) };
    let sealed = sealer.seal(b"an entry").unwrap();
    assert_eq!(sealer.open(&sealed).unwrap(), b"an entry");
    assert_ne!(sealer.seal(b"an entry").unwrap(), sealed, "each has a nonce of its own");
    for bit in 0..sealed.sealed.len() * 8 {
        let mut flipped = sealed.clone();
        flipped.sealed[bit / 8] ^= 1 << (bit % 8);
        assert!(sealer.open(&flipped).is_err(), "bit {bit}");
    }
    let other = Sealer { volume: VolumeId(2), ..sealer };
    assert!(other.open(&sealed).is_err(), "an entry of another volume");
}

#[test]
fn no_message_has_a_key() {
    let encryption = encryption(&line("a", '7'), 1);
    let key = DataKey::draw(&encryption).unwrap();
    let wrapped = key.wrap(VolumeId(1), 1, &encryption).unwrap();
    let error = DataKey::unwrap(&wrapped, VolumeId(2), &encryption, "volume").unwrap_err();
    for text in [format!("{encryption:?}"), format!("{key:?}"), error.to_string(), format!("{error:?}")] {
        assert!(!text.contains("7777") && !text.contains("119, 119"), "{text}");
    }
}

#[test]
fn the_layout_has_room_for_the_nonces_of_each_size() {
    for segment_bytes in [32 << 10, 1 << 20, 2 << 20_u32] {
        let parts = (segment_bytes as usize / leeward_format::SegmentNo::LEAST_PART_BYTES).min(128);
        let slots = nonce_block_bytes(segment_bytes) as usize / 32;
        assert!(slots >= 2 * parts, "{slots} slots for {parts} parts");
    }
}

//! Tails that are saved piece by piece, and buffers whose pages are given back, or used again.

use super::*;
use leeward_engine::{Volume, VolumeOptions};
use leeward_fabric::{PeerId, SimNetwork, SimOptions};
use leeward_format::cluster::TableOptions;
use leeward_format::manifest::{Base, Terms};
use leeward_format::record::{Record, RecordKind};
use leeward_format::{Epoch, SegmentNo, Stamp, VolumeId};
use leeward_platform::{Disk, File, SimDisk};

const REGION: RegionId = RegionId(3);
const SEGMENT_BYTES: usize = 32 << 10;

/// A copy that follows the primary of term 1.
fn replica() -> Replica {
    replica_in(&SimDisk::new(1, 1 << 30).open("volume").expect("a simulated file opens"))
}

/// Such a copy, with its volume in `file`.
fn replica_in(file: &Arc<dyn File>) -> Replica {
    let file = file.clone();
    let options = VolumeOptions { segment_bytes: SEGMENT_BYTES, ..VolumeOptions::default() };
    let (volume, _) = Volume::open(file, VolumeId(1), options).expect("the volume opens");
    let mut replica = Replica::create(&volume, REGION, TableOptions::default()).expect("room for a region");
    let base = Base {
        options: TableOptions::default(),
        term: Epoch(1),
        terms: Terms::default(),
        replay_from: Lsn(1),
        last_lsn: Lsn(0),
        commit: Lsn(0),
        levels: Vec::new(),
        segments: Vec::new(),
        parent: None,
    };
    assert!(replica.begin_base(&base).expect("it is empty").is_empty());
    replica.install_base().expect("a sound disk");
    replica
}

/// The bytes of a tail of `records` records with values of `value_bytes` bytes, and where each record ends.
fn tail(id: SegmentId, records: u64, value_bytes: usize) -> (Vec<u8>, Vec<usize>) {
    let log = LogKind::Recovery;
    let mut bytes = LogHeader { region: REGION, log, id, first_lsn: Lsn(1) }.encode().to_vec();
    let seed = RecordSeed::new(REGION, log, id);
    let mut ends = Vec::new();
    for lsn in 1..=records {
        let (stamp, value) = (Stamp { lsn: Lsn(lsn), expires: None }, vec![lsn as u8; value_bytes]);
        let record =
            Record { stamp, kind: RecordKind::Put, flags: 0, request: None, key: &lsn.to_be_bytes(), value: &value };
        let at = bytes.len();
        bytes.resize(at + record.bytes(), 0);
        record.write_to(seed, &mut bytes[at..]);
        ends.push(bytes.len());
    }
    (bytes, ends)
}

#[test]
fn what_was_saved_takes_no_memory_and_is_part_of_what_is_given_up() {
    let fabric = SimNetwork::new(1, SimOptions::default()).node(PeerId(1), Arc::new(|_, _| {}));
    let mut replica = replica();
    let budget = Budget::new(64 << 20);
    let mounted = Mounted::allocate(&*fabric, SEGMENT_BYTES, &budget).expect("there is memory");
    let overhead = (mounted.memories.len() * PAGE_BYTES) as u64;
    let id = SegmentId::new(Epoch(1), 7);
    mounted.open_tail(LogKind::Recovery, 0, id);
    replica.open_tail(LogKind::Recovery, id, SegmentNo(5)).expect("room for a segment");
    let (bytes, ends) = tail(id, 120, 150);
    let buffer = mounted.memories[buffer_of(LogKind::Recovery, 0)].clone();
    // Half of a record has come as well.
    let (saved, half) = (ends[69], ends[69] + 50);
    buffer.write(0, &bytes[..half]);
    assert!(mounted.wants_save());
    mounted.save(&mut replica, true).expect("a sound disk");
    let looked_at = budget.status().mirrors - overhead;
    assert!((half.next_multiple_of(PAGE_BYTES)..=SEGMENT_BYTES).contains(&(looked_at as usize)), "{looked_at} bytes");
    assert!(mounted.wants_save(), "it is not known yet whether more has come");
    mounted.save(&mut replica, true).expect("a sound disk");
    assert_eq!(budget.status().mirrors, overhead + looked_at - (saved / PAGE_BYTES * PAGE_BYTES) as u64);
    let mut first = [9; 16];
    buffer.read(0, &mut first);
    assert_eq!(first, [0; 16], "its first page was given back");
    buffer.write(half, &bytes[half..]);
    mounted.save(&mut replica, false).expect("a sound disk");
    let contents = mounted.give_up(&replica).expect("a sound disk");
    assert_eq!(contents.len(), 1);
    assert!(contents[0][..bytes.len()] == bytes && contents[0][bytes.len()..].iter().all(|byte| *byte == 0));
    replica.adopt_tails(contents).expect("a sound disk");
    assert_eq!(replica.position(), (Epoch(1), Lsn(120)));
    assert_eq!(mounted.give_up(&replica).expect("a sound disk").len(), 0, "it is part of the copy");
}

/// The kernel drops pages that it could not write back. A node that became primary with what is left would have lost
/// acknowledged writes.
#[test]
fn what_was_saved_and_cannot_be_read_again_is_not_given_up_as_if_it_were_not_there() {
    let fabric = SimNetwork::new(1, SimOptions::default()).node(PeerId(1), Arc::new(|_, _| {}));
    let file = SimDisk::new(1, 1 << 30).open("volume").expect("a simulated file opens");
    let mut replica = replica_in(&file);
    let mounted = Mounted::allocate(&*fabric, SEGMENT_BYTES, &Budget::new(64 << 20)).expect("there is memory");
    let id = SegmentId::new(Epoch(1), 7);
    mounted.open_tail(LogKind::Recovery, 0, id);
    replica.open_tail(LogKind::Recovery, id, SegmentNo(5)).expect("room for a segment");
    let (bytes, _) = tail(id, 60, 150);
    mounted.memories[buffer_of(LogKind::Recovery, 0)].write(0, &bytes);
    mounted.save(&mut replica, true).expect("a sound disk");
    let mut all = vec![0; file.len().expect("it is there") as usize];
    file.read_at(&mut all, 0).expect("a sound disk");
    let at = all.windows(LOG_HEADER_BYTES).position(|window| *window == bytes[..LOG_HEADER_BYTES]);
    file.write_buffered_at(&[0; PAGE_BYTES], at.expect("it was saved") as u64).expect("a sound disk");
    let error = mounted.give_up(&replica).expect_err("its first page is gone").to_string();
    assert!(error.contains(&id.to_string()), "{error}");
}

/// A buffer that is written again without having been given back shows nothing of the tail before.
#[test]
fn a_buffer_is_zeroes_for_the_next_tail_whether_its_pages_stay_or_not() {
    let fabric = SimNetwork::new(1, SimOptions::default()).node(PeerId(1), Arc::new(|_, _| {}));
    let mut replica = replica();
    let budget = Budget::new(64 << 20);
    // Memory of other mirrors: none, or more than their whole share.
    for others in [0, 32 << 20] {
        let _others = budget.take(Purpose::Mirrors, others);
        let mounted = Mounted::allocate(&*fabric, SEGMENT_BYTES, &budget).expect("there is memory");
        let idle = (mounted.memories.len() * PAGE_BYTES) as u64;
        for index in (0..6).step_by(MIRROR_BUFFERS as usize) {
            let id = SegmentId::new(Epoch(1), others as u64 + index);
            mounted.open_tail(LogKind::Recovery, index, id);
            replica.open_tail(LogKind::Recovery, id, SegmentNo(5 + index as u32)).expect("room for a segment");
            let (bytes, ends) = tail(id, 100, 150 + index as usize);
            let buffer = mounted.memories[buffer_of(LogKind::Recovery, index)].clone();
            assert!(!mounted.has_more(buffer_of(LogKind::Recovery, index), 0), "tail {index}");
            buffer.write(0, &bytes[..ends[60]]);
            mounted.save(&mut replica, false).expect("a sound disk");
            assert_eq!(mounted.open.lock()[&id].saved, ends[60]);
            buffer.write(ends[60], &bytes[ends[60]..]);
            let (length, last) = (bytes.len() as u32, Lsn(100));
            mounted.flush(&mut replica, (LogKind::Recovery, index), id, (length, last)).expect("a sound disk");
            let mut content = vec![9; SEGMENT_BYTES];
            buffer.read(0, &mut content);
            assert!(content.iter().all(|byte| *byte == 0), "tail {index}");
            assert_eq!(mounted.reservation.bytes() > idle, others == 0, "pages stay where there is room");
        }
    }
}

/// Records that end after the first read of a save, one of them after the second.
#[test]
fn records_of_any_size_are_saved() {
    let fabric = SimNetwork::new(1, SimOptions::default()).node(PeerId(1), Arc::new(|_, _| {}));
    let mut replica = replica();
    let mounted = Mounted::allocate(&*fabric, SEGMENT_BYTES, &Budget::new(64 << 20)).expect("there is memory");
    for (index, value_bytes, records) in
        [(0, FIRST_READ_BYTES + 500, 1), (1, FIRST_READ_BYTES - 60, 2), (2, 5000, 6), (3, 3, 900)]
    {
        let id = SegmentId::new(Epoch(1), index);
        let buffer = buffer_of(LogKind::Recovery, index);
        mounted.open_tail(LogKind::Recovery, index, id);
        replica.open_tail(LogKind::Recovery, id, SegmentNo(5 + index as u32)).expect("room for a segment");
        let (bytes, ends) = tail(id, records, value_bytes);
        // All but the last byte of the last record.
        mounted.memories[buffer].write(0, &bytes[..bytes.len() - 1]);
        mounted.save(&mut replica, false).expect("a sound disk");
        let before_last = ends.len().checked_sub(2).map_or(LOG_HEADER_BYTES, |last| ends[last]);
        let saved = |id| mounted.open.lock().get(&id).map(|tail| tail.saved);
        assert_eq!(saved(id), Some(before_last), "{records} records of {value_bytes} bytes");
        mounted.memories[buffer].write(bytes.len() - 1, &bytes[bytes.len() - 1..]);
        mounted.save(&mut replica, false).expect("a sound disk");
        assert_eq!(saved(id), Some(bytes.len()), "{records} records of {value_bytes} bytes");
        mounted.flush(&mut replica, (LogKind::Recovery, index), id, (bytes.len() as u32, Lsn(records))).expect("sound");
    }
}

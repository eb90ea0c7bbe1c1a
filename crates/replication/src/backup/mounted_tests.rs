//! A tail that is saved in two pieces, its pages given back in between.

use super::*;
use leeward_engine::{Volume, VolumeOptions};
use leeward_fabric::{PeerId, SimNetwork, SimOptions};
use leeward_format::cluster::TableOptions;
use leeward_format::manifest::Base;
use leeward_format::record::{Record, RecordKind};
use leeward_format::{Epoch, SegmentNo, Stamp, VolumeId};
use leeward_platform::{Disk, SimDisk};

const REGION: RegionId = RegionId(3);
const SEGMENT_BYTES: usize = 32 << 10;

/// A copy that follows the primary of term 1.
fn replica() -> Replica {
    let file = SimDisk::new(1, 1 << 30).open("volume").expect("a simulated file opens");
    let options = VolumeOptions { segment_bytes: SEGMENT_BYTES, ..VolumeOptions::default() };
    let (volume, _) = Volume::open(file, VolumeId(1), options).expect("the volume opens");
    let mut replica = Replica::create(&volume, REGION, TableOptions::default()).expect("room for a region");
    let base = Base {
        options: TableOptions::default(),
        term: Epoch(1),
        replay_from: Lsn(1),
        last_lsn: Lsn(0),
        commit: Lsn(0),
        levels: Vec::new(),
        segments: Vec::new(),
    };
    assert!(replica.begin_base(&base).expect("it is empty").is_empty());
    replica.install_base().expect("a sound disk");
    replica
}

/// The bytes of a tail of so many records, and where each ends.
fn tail(id: SegmentId, records: u64) -> (Vec<u8>, Vec<usize>) {
    let log = LogKind::Recovery;
    let mut bytes = LogHeader { region: REGION, log, id, first_lsn: Lsn(1) }.encode().to_vec();
    let seed = RecordSeed::new(REGION, log, id);
    let mut ends = Vec::new();
    for lsn in 1..=records {
        let (stamp, value) = (Stamp { lsn: Lsn(lsn), expires: None }, [lsn as u8; 150]);
        let record = Record { stamp, kind: RecordKind::Put, flags: 0, key: &lsn.to_be_bytes(), value: &value };
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
    let (bytes, ends) = tail(id, 120);
    let buffer = mounted.memories[buffer_of(LogKind::Recovery, 0)].clone();
    // Half of a record has come as well.
    let (saved, half) = (ends[69], ends[69] + 50);
    buffer.write(0, &bytes[..half]);
    assert!(mounted.wants_save());
    mounted.save(&mut replica, true).expect("a sound disk");
    assert_eq!(budget.stats().mirrors, overhead + half.next_multiple_of(PAGE_BYTES) as u64);
    assert!(mounted.wants_save(), "nobody has looked whether more has come");
    mounted.save(&mut replica, true).expect("a sound disk");
    assert_eq!(
        budget.stats().mirrors,
        overhead + (half.next_multiple_of(PAGE_BYTES) - saved / PAGE_BYTES * PAGE_BYTES) as u64
    );
    let mut first = [9; 16];
    buffer.read(0, &mut first);
    assert_eq!(first, [0; 16], "its first page was given back");
    buffer.write(half, &bytes[half..]);
    mounted.save(&mut replica, false).expect("a sound disk");
    let contents = mounted.give_up(&replica).expect("a sound disk");
    assert_eq!(contents.len(), 1);
    assert!(contents[0][..bytes.len()] == bytes && contents[0][bytes.len()..].iter().all(|byte| *byte == 0));
    replica.adopt_tails(&contents).expect("a sound disk");
    assert_eq!(replica.position(), (Epoch(1), Lsn(120)));
    assert_eq!(mounted.give_up(&replica).expect("a sound disk").len(), 0, "it is part of the copy");
}

#[test]
fn zeroes_at_the_end_are_no_records() {
    for length in [0, 1, 63, 64, 65, 200, 4096] {
        let mut content = vec![0; length];
        assert_eq!(written_bytes(&content), 0);
        for at in (0..length).step_by(7) {
            content[at] = 9;
            assert_eq!(written_bytes(&content), at + 1, "{length}");
            assert_eq!(written_bytes(&content[..=at]), at + 1);
        }
    }
}

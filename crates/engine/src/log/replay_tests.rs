//! Tests of the replay: density over both logs, whole batches, and the end of the prefix.

use super::*;
use crate::volume::{Segment, VolumeOptions};
use leeward_format::VolumeId;
use leeward_format::cluster::TableOptions;
use leeward_format::record::RecordKind;
use leeward_format::segment::LogHeader;
use leeward_platform::{Disk, SimDisk};
use std::sync::Arc;

const REGION: RegionId = RegionId(3);

/// A log segment's bytes with records of these LSNs; `true`: the batch continues.
fn segment(log: LogKind, id: u64, lsns: &[(u64, bool)]) -> Vec<u8> {
    let id = SegmentId(id);
    let mut bytes = LogHeader { region: REGION, log, id, first_lsn: Lsn(lsns[0].0) }.encode().to_vec();
    for (lsn, continues) in lsns {
        let flags = if *continues { FLAG_BATCH_CONTINUES } else { 0 };
        let record = Record {
            stamp: Lsn(*lsn).into(),
            kind: RecordKind::Put,
            flags,
            request: None,
            key: b"key",
            value: &[0; 30],
        };
        record.append_to(RecordSeed::new(REGION, log, id), &mut bytes);
    }
    bytes
}

struct Logs {
    volume: Arc<Volume>,
    state: RegionState,
    overlays: BTreeMap<SegmentId, Vec<u8>>,
}

impl Logs {
    fn new(segments: &[(LogKind, &[(u64, bool)])]) -> Logs {
        let file = SimDisk::new(0, 1 << 30).open("volume").unwrap();
        let options = VolumeOptions { segment_bytes: 32 << 10, ..VolumeOptions::default() };
        let (volume, _) = Volume::open(file, VolumeId(1), options).unwrap();
        let mut state = RegionState::new(REGION, TableOptions::default());
        let mut overlays = BTreeMap::new();
        for (number, (log, lsns)) in (1..).zip(segments) {
            let id = SegmentId(number);
            state.segments.insert(id, SegmentState::new(REGION, id, SegmentNo(number as u32), SegmentKind::Log(*log)));
            overlays.insert(id, segment(*log, number, lsns));
        }
        Logs { volume, state, overlays }
    }

    fn last(&self) -> u64 {
        find_prefix(&self.volume, &self.state, &self.overlays).unwrap().0.last.0
    }

    /// The LSNs of the valid prefix, and the ends of the segments.
    fn replay(&self) -> (Vec<u64>, BTreeMap<SegmentId, End>) {
        let mut replay = Replay::new(&self.volume, &self.state, &self.overlays);
        let mut lsns = Vec::new();
        while let Some(found) = replay.next().unwrap() {
            lsns.push(found.record.stamp.lsn.0);
        }
        let (prefix, ends) = replay.finish();
        lsns.retain(|lsn| *lsn <= prefix.last.0);
        (lsns, ends)
    }
}

use LogKind::{Large, Recovery};

fn single(lsns: &[u64]) -> Vec<(u64, bool)> {
    lsns.iter().map(|lsn| (*lsn, false)).collect()
}

#[test]
fn both_logs_are_merged_in_order() {
    let logs = Logs::new(&[
        (Recovery, &single(&[1, 2, 4])),
        (Large, &single(&[3, 5])),
        (Recovery, &single(&[6, 8])),
        (Large, &single(&[7])),
    ]);
    assert_eq!(logs.replay().0, [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn the_prefix_ends_where_neither_log_goes_on() {
    let logs = Logs::new(&[(Recovery, &single(&[1, 2, 5, 6])), (Large, &single(&[3, 7]))]);
    let (lsns, ends) = logs.replay();
    assert_eq!(lsns, [1, 2, 3]);
    assert_eq!((ends[&SegmentId(1)].last_lsn, ends[&SegmentId(2)].last_lsn), (Lsn(2), Lsn(3)));
    assert_eq!(ends[&SegmentId(1)].bytes as usize, LOG_HEADER_BYTES + 2 * (20 + 3 + 30));
}

#[test]
fn half_a_batch_does_not_count() {
    let logs = Logs::new(&[(Recovery, &[(1, false), (2, true), (4, true)]), (Large, &[(3, true)])]);
    assert_eq!(logs.last(), 1);
    let logs = Logs::new(&[(Recovery, &[(1, false), (2, true), (4, false)]), (Large, &[(3, true)])]);
    assert_eq!(logs.last(), 4);
}

#[test]
fn logs_end_before_half_a_batch_wherever_it_lies() {
    let parts: [(LogKind, &[(u64, bool)]); 4] = [
        (Recovery, &[(1, false), (2, false), (4, true)]),
        (Recovery, &[(6, true)]),
        (Large, &[(3, false), (5, true)]),
        (Large, &[(9, false)]),
    ];
    let (lsns, ends) = Logs::new(&parts).replay();
    assert_eq!(lsns, [1, 2, 3]);
    assert_eq!(ends.len(), 2);
    assert_eq!((ends[&SegmentId(1)].last_lsn, ends[&SegmentId(3)].last_lsn), (Lsn(2), Lsn(3)));
    let mut whole = parts;
    whole[3] = (Large, &[(7, false)]);
    let (lsns, ends) = Logs::new(&whole).replay();
    assert_eq!(lsns, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!([1, 2, 3, 4].map(|id| ends[&SegmentId(id)].last_lsn.0), [4, 6, 5, 7]);
}

#[test]
fn what_the_levels_hold_is_passed_over_and_its_end_is_known() {
    let mut logs = Logs::new(&[(Large, &single(&[1, 3])), (Recovery, &single(&[2, 4, 5]))]);
    logs.state.replay_from = Lsn(4);
    let (lsns, ends) = logs.replay();
    assert_eq!(lsns, [4, 5]);
    assert_eq!(ends[&SegmentId(1)].last_lsn, Lsn(3));
}

#[test]
fn a_tear_in_one_log_ends_both() {
    let mut logs = Logs::new(&[(Recovery, &single(&[1, 3, 5])), (Large, &single(&[2, 4, 6]))]);
    let torn = logs.overlays.get_mut(&SegmentId(2)).unwrap();
    let second = LOG_HEADER_BYTES + 53;
    torn[second + 40] ^= 1;
    assert_eq!(logs.replay().0, [1, 2, 3]);
    let prefix = find_prefix(&logs.volume, &logs.state, &logs.overlays).unwrap().0;
    assert_eq!(prefix.stopped.0, logs.volume.file_offset(SegmentNo(2), second as u32));
    assert_eq!(prefix.damage, None);
    logs.state.segments.get_mut(&SegmentId(2)).unwrap().durable_bytes = second as u32 + 53;
    let prefix = find_prefix(&logs.volume, &logs.state, &logs.overlays).unwrap().0;
    assert_eq!(prefix.damage.unwrap().0, logs.volume.file_offset(SegmentNo(2), second as u32));
}

#[test]
fn records_of_another_segment_are_none() {
    let mut logs = Logs::new(&[(Recovery, &single(&[1, 2])), (Recovery, &single(&[3, 4]))]);
    let stolen = segment(Recovery, 1, &single(&[3, 4]));
    logs.overlays.insert(SegmentId(2), stolen);
    assert_eq!(logs.last(), 2);
}

#[test]
fn lsns_that_go_back_end_a_segment() {
    let logs = Logs::new(&[(Recovery, &single(&[1, 2, 2, 3]))]);
    assert_eq!(logs.last(), 2);
}

#[test]
fn a_sealed_segment_ends_where_it_was_sealed() {
    let mut logs = Logs::new(&[(Recovery, &single(&[1, 2, 3])), (Recovery, &single(&[3, 4]))]);
    let sealed = logs.state.segments.get_mut(&SegmentId(1)).unwrap();
    (sealed.bytes, sealed.last_lsn) = (Some(LOG_HEADER_BYTES as u32 + 2 * 53), Lsn(2));
    assert_eq!(logs.replay().0, [1, 2, 3, 4]);
}

#[test]
fn an_empty_region_is_before_the_first_record() {
    let logs = Logs::new(&[]);
    assert_eq!((logs.last(), logs.replay().0.len()), (0, 0));
    let mut logs = Logs::new(&[(Recovery, &single(&[1]))]);
    logs.overlays.insert(SegmentId(1), vec![0; 4096]);
    assert_eq!(logs.last(), 0);
}

/// A recovery log on a device, with `counts` records in its segments, each a little over 9000 bytes long. Behind the
/// records of each segment comes another with the right LSN. All segments but the last are sealed before it.
fn on_device(counts: &[u64], memory_budget: u64) -> (Logs, Vec<Arc<Segment>>) {
    let file = SimDisk::new(0, 1 << 30).open("volume").unwrap();
    let options = VolumeOptions { segment_bytes: 1 << 20, memory_budget, ..VolumeOptions::default() };
    let (volume, _) = Volume::open(file, VolumeId(1), options).unwrap();
    let (mut state, mut next, value) = (RegionState::new(REGION, TableOptions::default()), Lsn(1), vec![7; 9_000]);
    let mut held = Vec::new();
    for (id, count) in (1..).map(SegmentId).zip(counts) {
        let segment = volume.allocate(REGION).unwrap();
        let mut bytes = LogHeader { region: REGION, log: Recovery, id, first_lsn: next }.encode().to_vec();
        let mut append = |lsn: Lsn| {
            let (stamp, kind, flags) = (lsn.into(), RecordKind::Put, 0);
            let record = Record { stamp, kind, flags, request: None, key: b"key", value: &value };
            record.append_to(RecordSeed::new(REGION, Recovery, id), &mut bytes);
            bytes.len() as u32
        };
        let after = Lsn(next.0 + count);
        let end = (next.0..after.0).map(|lsn| append(Lsn(lsn))).last();
        next = after;
        let mut known = SegmentState::new(REGION, id, segment.no(), SegmentKind::Log(Recovery));
        if held.len() + 1 < counts.len() {
            (known.bytes, known.last_lsn) = (end, Lsn(next.0 - 1));
            append(next);
        }
        volume.write_buffered(segment.no(), 0, &bytes).unwrap();
        state.segments.insert(id, known);
        held.push(segment);
    }
    (Logs { volume, state, overlays: BTreeMap::new() }, held)
}

#[test]
fn a_tail_is_read_as_far_as_it_has_records() {
    for records in [1u64, 6, 7, 8, 20, 25, 110] {
        let (logs, _held) = on_device(&[records], 64 << 20);
        let before = logs.volume.counters().bytes_read;
        assert_eq!(logs.last(), records);
        let read = logs.volume.counters().bytes_read - before;
        let end = logs.replay().1[&SegmentId(1)];
        assert_eq!(end.last_lsn, Lsn(records));
        let (bytes, most) = (u64::from(end.bytes), (4 * end.bytes as usize).max(FIRST_READ_BYTES) as u64);
        assert!((bytes..=most).contains(&read), "{read} bytes for {records} records");
    }
}

/// With the second budget one segment is more than reads may take, so none is read ahead.
#[test]
fn a_complete_segment_is_read_once_and_ends_where_it_was_sealed() {
    for (budget, segments_ahead) in [(64 << 20, 1), (1 << 20, 0)] {
        let (mut logs, _held) = on_device(&[20, 1, 113, 3], budget);
        let before = logs.volume.counters().bytes_read;
        let (lsns, ends) = logs.replay();
        assert_eq!(lsns, (1..=137).collect::<Vec<_>>());
        let sealed = |id: u64| u64::from(ends[&SegmentId(id)].bytes).next_multiple_of(DIRECT_ALIGN as u64);
        let read = logs.volume.counters().bytes_read - before;
        assert_eq!(read, (1..=3).map(sealed).sum::<u64>() + FIRST_READ_BYTES as u64);
        assert_eq!(logs.volume.memory().status().reads, 0);

        let before = logs.volume.counters().bytes_read;
        let mut replay = Replay::new(&logs.volume, &logs.state, &logs.overlays);
        assert!(replay.next().unwrap().is_some());
        let read = logs.volume.counters().bytes_read - before;
        assert_eq!(read, (1..=1 + segments_ahead).map(sealed).sum::<u64>());
        drop(replay);

        // The next segment is read ahead, but not taken.
        let torn = logs.state.segments[&SegmentId(2)].no;
        logs.volume.write_buffered(torn, 4000, &[0; 8]).unwrap();
        assert_eq!(logs.replay().0, (1..=20).collect::<Vec<_>>());
        let prefix = find_prefix(&logs.volume, &logs.state, &logs.overlays).unwrap().0;
        assert_eq!(prefix.damage.unwrap().0, logs.volume.file_offset(torn, LOG_HEADER_BYTES as u32));
        // It comes from a mirror buffer.
        let mut bytes = vec![0; 1 << 20];
        logs.volume.read(torn, 0, &mut bytes).unwrap();
        bytes[4000..4008].fill(7);
        logs.overlays.insert(SegmentId(2), bytes);
        assert_eq!(logs.last(), 137);
    }
}

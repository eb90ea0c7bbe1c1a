//! Tails, completions and flushes of one mirror.

use super::*;
use leeward_format::record::{FLAG_BATCH_CONTINUES, Record, RecordKind, RecordSeed};
use leeward_format::segment::LOG_HEADER_BYTES;
use leeward_format::{RegionId, SegmentNo, Stamp};

const SEGMENT: SegmentNo = SegmentNo(7);

fn view_of(log: LogKind, index: u64, bytes: &[u8], sealed: Option<u64>) -> TailView<'_> {
    TailView { log, index, id: SegmentId(index + 100), segment: SEGMENT, bytes, sealed: sealed.map(Lsn) }
}

fn view(log: LogKind, index: u64, filled: usize, sealed: Option<u64>) -> TailView<'static> {
    view_of(log, index, &[0; 2000][..filled], sealed)
}

/// Adds a record to what is in a tail, and answers where it ends.
pub(crate) fn append(bytes: &mut Vec<u8>, lsn: u64, flags: u8) -> usize {
    bytes.resize(bytes.len().max(LOG_HEADER_BYTES), 0);
    let stamp = Stamp { lsn: Lsn(lsn), expires: None };
    let record = Record { stamp, kind: RecordKind::Put, flags, request: None, key: b"key", value: &[1; 30] };
    record.append_to(RecordSeed::new(RegionId(1), LogKind::Recovery, SegmentId(1)), bytes);
    bytes.len()
}

struct Rig {
    mirror: Mirror,
    posting: Posting,
    next_op: u64,
    writes: Vec<MirrorWrite>,
    messages: Vec<ToBackup>,
}

impl Rig {
    fn new() -> Rig {
        let (mirror, posting) = (Mirror::new(Lsn(10), [0, 0]), Posting::Coalesced);
        Rig { mirror, posting, next_op: 0, writes: Vec::new(), messages: Vec::new() }
    }
    fn per_record() -> Rig {
        Rig { posting: Posting::PerRecord, ..Rig::new() }
    }
    fn post(&mut self, tails: &[TailView<'_>], last: u64) -> Vec<u64> {
        let from = self.writes.len();
        let next = &mut self.next_op;
        let mut next_op = || {
            *next += 1;
            *next
        };
        self.mirror.post((tails, Lsn(last)), self.posting, &mut next_op, &mut self.writes, &mut self.messages);
        self.writes[from..].iter().map(|write| write.op).collect()
    }
    /// The ranges of the writes posted so far.
    fn places(&self) -> Vec<(LogKind, Range<usize>)> {
        self.writes.iter().map(|write| (write.log, write.range.clone())).collect()
    }
    fn complete(&mut self, op: u64) {
        assert!(self.mirror.complete(op, &mut self.messages));
    }
    fn flushes(&self) -> usize {
        self.messages.iter().filter(|message| matches!(message, ToBackup::Flush { .. })).count()
    }
}

#[test]
fn only_what_is_new_is_written_and_both_logs_must_complete() {
    let mut rig = Rig::new();
    let first = rig.post(&[view(LogKind::Recovery, 0, 300, None), view(LogKind::Large, 0, 2000, None)], 12);
    assert_eq!(first.len(), 2);
    let second = rig.post(&[view(LogKind::Recovery, 0, 450, None), view(LogKind::Large, 0, 2000, None)], 14);
    assert_eq!(rig.writes.last().map(|write| write.range.clone()), Some(300..450));
    assert!(rig.post(&[view(LogKind::Recovery, 0, 450, None)], 14).is_empty(), "nothing new, nothing written");

    rig.complete(second[0]);
    rig.complete(first[0]);
    assert_eq!(rig.mirror.completed_lsn(), Lsn(10), "the large log's write of the first batch is outstanding");
    rig.complete(first[1]);
    assert_eq!(rig.mirror.completed_lsn(), Lsn(14));
    assert_eq!(rig.mirror.lag_bytes(), 0);
    assert!(!rig.mirror.complete(first[0], &mut Vec::new()), "a completion counts once");
}

#[test]
fn a_flush_waits_for_its_completions_and_frees_the_buffer() {
    let mut rig = Rig::new();
    let ops = rig.post(&[view(LogKind::Recovery, 0, 900, Some(20)), view(LogKind::Recovery, 1, 100, None)], 21);
    assert_eq!(rig.flushes(), 0);
    assert_eq!(rig.mirror.window(LogKind::Recovery), 1, "tail 2 would overwrite the buffer of tail 0");
    rig.complete(ops[1]);
    assert_eq!(rig.flushes(), 0);
    rig.complete(ops[0]);
    assert_eq!(rig.flushes(), 1);
    assert!(!rig.mirror.flushed(LogKind::Recovery, 1), "tail 1 was not asked to be flushed");
    assert!(rig.mirror.flushed(LogKind::Recovery, 0));
    assert_eq!(rig.mirror.window(LogKind::Recovery), 2);
    assert_eq!(rig.mirror.flushed_below(LogKind::Recovery), 1);
    rig.post(&[view(LogKind::Recovery, 1, 100, None)], 21);
    assert_eq!(rig.flushes(), 1, "a flush is asked for once");
}

#[test]
fn tails_of_a_log_are_flushed_one_after_the_other_whatever_completes_first() {
    let mut rig = Rig::new();
    let ops = rig.post(&[view(LogKind::Large, 0, 900, Some(20)), view(LogKind::Large, 1, 100, Some(21))], 21);
    rig.complete(ops[1]);
    assert_eq!(rig.flushes(), 0, "the answer would come before that of tail 0");
    rig.complete(ops[0]);
    assert_eq!(rig.flushes(), 2);
    assert!(rig.mirror.flushed(LogKind::Large, 0) && rig.mirror.flushed(LogKind::Large, 1));
}

#[test]
fn a_tail_that_is_sealed_after_its_last_write_is_flushed() {
    let mut rig = Rig::new();
    let ops = rig.post(&[view(LogKind::Large, 0, 900, None)], 11);
    rig.complete(ops[0]);
    assert_eq!(rig.flushes(), 0);
    rig.post(&[view(LogKind::Large, 0, 900, Some(11))], 11);
    assert_eq!(rig.flushes(), 1);
}

#[test]
#[should_panic(expected = "reused only after its flush")]
fn a_third_tail_is_a_bug() {
    let mut rig = Rig::new();
    let log = LogKind::Recovery;
    rig.post(&[view(log, 0, 90, Some(11)), view(log, 1, 90, Some(12)), view(log, 2, 90, None)], 13);
}

#[test]
fn tails_before_the_base_are_left_out() {
    let mut rig = Rig::new();
    rig.mirror = Mirror::new(Lsn(30), [2, 0]);
    let tails = [view(LogKind::Recovery, 1, 900, Some(30)), view(LogKind::Recovery, 2, 100, None)];
    rig.post(&tails, 31);
    assert_eq!(rig.writes.len(), 1);
    assert_eq!((rig.writes[0].index, rig.writes[0].range.clone()), (2, 0..100));
}

#[test]
fn each_record_is_a_write_in_the_order_of_lsns_over_both_logs() {
    let mut rig = Rig::per_record();
    let (mut small, mut large) = (Vec::new(), Vec::new());
    let ends = [append(&mut small, 11, 0), append(&mut large, 12, 0), append(&mut small, 13, 0)];
    let ops = rig.post(&[view_of(LogKind::Recovery, 0, &small, None), view_of(LogKind::Large, 0, &large, None)], 13);
    let (recovery, of_large) = (LogKind::Recovery, LogKind::Large);
    let expected = [(recovery, 0..ends[0]), (of_large, 0..ends[1]), (recovery, ends[0]..ends[2])];
    assert_eq!(rig.places(), expected, "the header goes with the first record");

    rig.complete(ops[2]);
    rig.complete(ops[0]);
    assert_eq!(rig.mirror.completed_lsn(), Lsn(11), "12 is outstanding");
    rig.complete(ops[1]);
    assert_eq!(rig.mirror.completed_lsn(), Lsn(13));

    let end = append(&mut large, 14, 0);
    rig.post(&[view_of(recovery, 0, &small, None), view_of(of_large, 0, &large, None)], 14);
    assert_eq!(rig.places().last(), Some(&(of_large, ends[1]..end)), "only what is new");
    assert_eq!((rig.writes.len(), rig.mirror.posted_lsn()), (4, Lsn(14)));
}

#[test]
fn records_that_were_appended_as_one_count_together() {
    let mut rig = Rig::per_record();
    let (mut small, mut large) = (Vec::new(), Vec::new());
    append(&mut small, 11, FLAG_BATCH_CONTINUES);
    append(&mut large, 12, FLAG_BATCH_CONTINUES);
    append(&mut small, 13, 0);
    append(&mut small, 14, 0);
    let ops = rig.post(&[view_of(LogKind::Recovery, 0, &small, None), view_of(LogKind::Large, 0, &large, None)], 14);
    assert_eq!(ops.len(), 4);
    let bytes = rig.writes[3].range.len() as u64;
    rig.complete(ops[0]);
    rig.complete(ops[1]);
    assert_eq!(rig.mirror.completed_lsn(), Lsn(10), "a copy that has two of the three drops both");
    assert_eq!(rig.mirror.posted_within(bytes), Lsn(10));
    rig.complete(ops[2]);
    assert_eq!(rig.mirror.completed_lsn(), Lsn(13));
    assert_eq!(rig.mirror.posted_within(bytes), Lsn(14));
}

#[test]
fn no_more_writes_begin_than_may_be_under_way() {
    let most = MOST_WRITES_PER_RECORD as u64;
    let mut rig = Rig::per_record();
    let mut bytes = Vec::new();
    for lsn in 11..11 + most - 1 {
        append(&mut bytes, lsn, 0);
    }
    // The last batch that may begin has three records, which are not split.
    let mut last = 10 + most - 1;
    for flags in [FLAG_BATCH_CONTINUES, FLAG_BATCH_CONTINUES, 0, 0, 0] {
        last += 1;
        append(&mut bytes, last, flags);
    }
    let tail = [view_of(LogKind::Recovery, 0, &bytes, Some(last))];
    let ops = rig.post(&tail, last);
    assert_eq!((ops.len() as u64, rig.mirror.posted_lsn()), (most + 2, Lsn(last - 2)));
    assert!(rig.post(&tail, last).is_empty(), "nothing has completed");
    ops.iter().for_each(|op| rig.complete(*op));
    assert_eq!((rig.mirror.completed_lsn(), rig.flushes()), (Lsn(last - 2), 0), "the tail is not posted to its end");
    let ops = rig.post(&tail, last);
    assert_eq!(ops.len(), 2);
    ops.iter().for_each(|op| rig.complete(*op));
    assert_eq!((rig.mirror.completed_lsn(), rig.flushes()), (Lsn(last), 1));
}

#[test]
fn how_records_are_posted_changes_between_any_two_posts() {
    let mut rig = Rig::per_record();
    let (mut ends, mut bytes) = (Vec::new(), Vec::new());
    for (lsn, posting) in [(11, Posting::PerRecord), (13, Posting::Coalesced), (15, Posting::PerRecord)] {
        ends.push(append(&mut bytes, lsn, 0));
        ends.push(append(&mut bytes, lsn + 1, 0));
        rig.posting = posting;
        rig.post(&[view_of(LogKind::Recovery, 0, &bytes, None)], lsn + 1);
    }
    let starts = [0, ends[0], ends[1], ends[3], ends[4]];
    let expected = starts.iter().zip([ends[0], ends[1], ends[3], ends[4], ends[5]]);
    assert_eq!(rig.places(), expected.map(|(from, to)| (LogKind::Recovery, *from..to)).collect::<Vec<_>>());
    (1..=5).rev().for_each(|op| rig.complete(op));
    assert_eq!((rig.mirror.completed_lsn(), rig.mirror.lag_bytes()), (Lsn(16), 0));
}

#[test]
fn the_last_of_a_tail_goes_before_the_first_of_the_next() {
    let mut rig = Rig::per_record();
    let (mut full, mut next) = (Vec::new(), Vec::new());
    append(&mut full, 11, 0);
    append(&mut full, 12, 0);
    append(&mut next, 13, 0);
    let log = LogKind::Large;
    let ops = rig.post(&[view_of(log, 0, &full, Some(12)), view_of(log, 1, &next, None)], 13);
    let indexes: Vec<u64> = rig.writes.iter().map(|write| write.index).collect();
    assert_eq!(indexes, [0, 0, 1]);
    rig.complete(ops[1]);
    assert_eq!(rig.flushes(), 0, "a write of the tail is under way");
    rig.complete(ops[0]);
    assert_eq!(rig.flushes(), 1);
}

#[test]
fn a_part_of_what_a_failed_volume_was_to_append_is_not_posted() {
    for (part, flags) in [(12, FLAG_BATCH_CONTINUES), (13, 0)] {
        let mut rig = Rig::per_record();
        let mut bytes = Vec::new();
        let end = append(&mut bytes, 11, 0);
        append(&mut bytes, part, flags);
        rig.post(&[view_of(LogKind::Recovery, 0, &bytes, None)], 11);
        assert_eq!(rig.places(), [(LogKind::Recovery, 0..end)]);
    }
}

#[test]
#[should_panic(expected = "LSNs are dense over both logs")]
fn a_record_that_is_left_out_is_a_bug() {
    let mut rig = Rig::per_record();
    let mut bytes = Vec::new();
    append(&mut bytes, 12, 0);
    rig.post(&[view_of(LogKind::Recovery, 0, &bytes, None)], 12);
}

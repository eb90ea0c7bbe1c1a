//! Tails, completions and flushes of one mirror.

use super::*;

const SEGMENT: SegmentNo = SegmentNo(7);

fn view(log: LogKind, index: u64, filled: usize, sealed: Option<u64>) -> TailView {
    TailView { log, index, id: SegmentId(index + 100), segment: SEGMENT, filled, sealed: sealed.map(Lsn) }
}

struct Rig {
    mirror: Mirror,
    next_op: u64,
    writes: Vec<MirrorWrite>,
    messages: Vec<ToBackup>,
}

impl Rig {
    fn new() -> Rig {
        Rig { mirror: Mirror::new(Lsn(10), [0, 0]), next_op: 0, writes: Vec::new(), messages: Vec::new() }
    }
    fn post(&mut self, tails: &[TailView], last: u64) -> Vec<u64> {
        let from = self.writes.len();
        let next = &mut self.next_op;
        let mut next_op = || {
            *next += 1;
            *next
        };
        self.mirror.post(tails, Lsn(last), &mut next_op, &mut self.writes, &mut self.messages);
        self.writes[from..].iter().map(|write| write.op).collect()
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

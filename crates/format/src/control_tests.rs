//! Decoding checks what a message may say. The subject of a message is known without decoding it.

use super::*;
use crate::frame::{FrameKind, read_frame, write_frame};

/// Nodes keep the state of tails in arrays of the logs that are appended to. A message about another log is refused.
#[test]
fn a_message_about_a_tail_of_the_medium_log_is_refused() {
    let (index, id, bytes, last_lsn) = (0, SegmentId(7), 64, Lsn(1));
    let of_backup = |body| Control::ToPrimary { region: RegionId(1), term: Epoch(1), session: 1, body };
    let of_primary = |body| Control::ToBackup { region: RegionId(1), term: Epoch(1), session: 1, body };
    for log in [LogKind::Recovery, LogKind::Large, LogKind::Medium] {
        let messages = [
            of_backup(ToPrimary::Flushed { log, index }),
            of_primary(ToBackup::OpenTail { log, index, id, segment: SegmentNo(3) }),
            of_primary(ToBackup::Flush { log, index, id, bytes, last_lsn }),
        ];
        for message in messages {
            let mut frame = Vec::new();
            write_frame(FrameKind::Control, &message, &mut frame);
            let decoded = read_frame::<Control>(FrameKind::Control, &frame, MAX_CONTROL_BYTES);
            match LogKind::APPENDED.contains(&log) {
                true => assert_eq!(decoded.expect("a message of a node").expect("all of it").0, message),
                false => assert!(decoded.is_err(), "{message:?}"),
            }
        }
    }
}

fn subject(message: &Control) -> Subject {
    let mut frame = Vec::new();
    write_frame(FrameKind::Control, message, &mut frame);
    Control::subject(&frame)
}

#[test]
fn the_subject_of_a_message_is_told_by_its_frame() {
    let (regions, safe_lsns) = (vec![(RegionId(1), Epoch(2))], Vec::new());
    let request = Control::LeaseRequest { sent: 1, lasts: 600, regions: regions.clone(), heard: None, safe_lsns };
    assert_eq!(subject(&request), Subject::Lease);
    assert_eq!(subject(&Control::LeaseGrant { sent: 1, lasts: 600, regions, now: 2 }), Subject::Lease);
    assert_eq!(subject(&Control::LeaseRefused { reason: "too long".into() }), Subject::Lease);
    let (table, op) = (TableName::default(), Op::Get { key: "k".into() });
    assert_eq!(subject(&Control::Forward { id: 1, table, op, once: None, epoch: Epoch(1) }), Subject::Operation);
    let answer = Control::Forwarded { id: 1, result: OpResult::Done, committed: None };
    assert_eq!(subject(&answer), Subject::Operation);
    let body = ToBackup::Open { options: TableOptions::default() };
    let opening = Control::ToBackup { region: RegionId(1), term: Epoch(1), session: 1, body };
    assert_eq!(subject(&opening), Subject::Other);
    assert_eq!(Control::subject(b"short"), Subject::Other);
}

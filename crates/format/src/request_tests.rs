//! The client's handling of answers to a write, and the answers to repeated attempts.

use super::*;
use crate::op::{Condition, Lifetime};
use proptest::prelude::*;

const REQUEST: RequestId = RequestId { client: 7, sequence: 1 };
const REGION: RegionId = RegionId(3);

/// Everything up to `lsn` is committed.
fn heard(lsn: u64) -> Heard {
    let mut heard = Heard::default();
    heard.note(REGION, Lsn(lsn));
    heard
}

fn add() -> Op {
    Op::Add { key: "k".into(), delta: 1 }
}

fn put(want_old: bool) -> Op {
    let (key, value) = ("k".into(), "v".into());
    Op::Put { key, value, when: Condition::Always, want_old, lifetime: Lifetime::Forever }
}

fn unknown() -> OpResult {
    OpResult::Error(OpError::Unknown("lost".into()))
}

#[test]
fn an_attempt_says_when_the_first_one_that_may_have_been_executed_was_made() {
    let mut attempts = Attempts::named(REQUEST);
    assert_eq!(
        attempts.ask(REGION, &heard(5)),
        Some(Once { request: REQUEST, region: REGION, since: Lsn(5), is_again: false })
    );
    assert_eq!(attempts.answered(&add(), OpResult::Error(OpError::Forgotten(RegionId(1)))), Verdict::AtOnce);
    assert!(!attempts.has_news(REGION, &heard(5)) && attempts.has_news(REGION, &heard(6)));
    assert!(attempts.has_news(RegionId(4), &heard(5)), "another region's LSNs are others");
    assert_eq!(attempts.ask(REGION, &heard(8)).map(|once| once.since), Some(Lsn(8)), "none was made");
    let refused = OpError::Recovering(RegionId(1));
    assert_eq!(attempts.answered(&add(), OpResult::Error(refused.clone())), Verdict::Later(refused));
    assert_eq!(attempts.ask(REGION, &heard(9)).map(|once| once.since), Some(Lsn(9)), "none was executed");
    assert!(matches!(attempts.answered(&add(), unknown()), Verdict::Later(OpError::Unknown(_))));
    let again = attempts.ask(REGION, &heard(20)).expect("it has a name");
    assert_eq!((again.since, again.is_again), (Lsn(9), true), "that one may have been");
    let forgotten = attempts.answered(&add(), OpResult::Error(OpError::Forgotten(RegionId(1))));
    assert!(matches!(forgotten, Verdict::Final(OpResult::Error(OpError::Unknown(_)))), "{forgotten:?}");
}

#[test]
fn a_write_without_a_name_is_asked_for_again_only_if_nothing_was_done() {
    let mut attempts = Attempts::unnamed();
    assert_eq!(attempts.ask(REGION, &heard(5)), None);
    let recovering = OpError::Recovering(RegionId(1));
    assert!(matches!(attempts.answered(&put(false), OpResult::Error(recovering)), Verdict::Later(_)));
    assert_eq!(attempts.answered(&put(false), unknown()), Verdict::Final(unknown()));
    let get = Op::Get { key: "k".into() };
    assert!(matches!(Attempts::unnamed().answered(&get, unknown()), Verdict::Later(_)));
}

#[test]
fn a_doubt_is_not_dispelled_by_a_refusal() {
    let mut attempts = Attempts::named(REQUEST);
    attempts.ask(REGION, &heard(1));
    assert!(matches!(attempts.lost(&add(), "broken".into()), Verdict::Later(_)));
    let full = OpResult::Error(OpError::Unavailable("full".into()));
    assert!(matches!(attempts.answered(&add(), full), Verdict::Final(OpResult::Error(OpError::Unknown(_)))));
    let done = OpResult::Error(OpError::AnswerGone { done: true });
    assert_eq!(attempts.answered(&add(), done.clone()), Verdict::Final(done), "it was executed");
    assert!(matches!(attempts.give_up(OpError::Recovering(RegionId(1))), OpResult::Error(OpError::Unknown(_))));
    assert_eq!(attempts.answered(&add(), OpResult::Integer(3)), Verdict::Final(OpResult::Integer(3)));
}

#[test]
fn what_was_executed_is_answered_from_its_record() {
    let of = |kind, value: &[u8], op: &Op| Effect::of(kind, value).answer(Lsn(9), op);
    let done = |version| OpResult::Put { done: true, old: None, version };
    assert_eq!(of(RecordKind::Put, b"-12", &add()), Ok(OpResult::Integer(-12)));
    let append = Op::Append { key: "k".into(), suffix: "x".into() };
    assert_eq!(of(RecordKind::Put, b"abcx", &append), Ok(OpResult::Integer(4)));
    assert_eq!(of(RecordKind::Put, b"v", &put(false)), Ok(done(Some(Lsn(9)))));
    assert_eq!(of(RecordKind::Put, b"v", &put(true)), Err(OpError::AnswerGone { done: true }));
    let expire = Op::Expire { key: "k".into(), lifetime: Lifetime::For(0), when: Default::default(), want_old: false };
    assert_eq!(of(RecordKind::Delete, b"", &expire), Ok(done(None)));
    let delete = Op::Delete { key: "k".into(), when: Condition::Always };
    let version = Some(Lsn(300));
    let refused = OpResult::Put { done: false, old: None, version };
    assert_eq!(of(RecordKind::Refused, &300u64.to_le_bytes(), &put(false)), Ok(refused));
    assert_eq!(of(RecordKind::Refused, b"", &put(true)), Err(OpError::AnswerGone { done: false }));
    let refused = OpResult::Deleted { done: false, old: None, version: None };
    assert_eq!(of(RecordKind::Refused, b"", &delete), Ok(refused));
    assert_eq!(of(RecordKind::Delete, b"", &delete), Ok(OpResult::Deleted { done: true, old: None, version: None }));
    assert!(matches!(of(RecordKind::Delete, b"", &add()), Err(OpError::Invalid(_))), "an id that was used twice");
    assert!(matches!(of(RecordKind::Put, b"no number", &add()), Err(OpError::Invalid(_))));
}

#[test]
fn a_deleted_range_goes_on_where_its_record_ended() {
    let of = |deleted: &'static str, wanted: Option<&'static str>| {
        let op = Op::DeleteRange { start: "a".into(), end: wanted.map(Into::into) };
        match Effect::of(RecordKind::DeleteRange, deleted.as_bytes()).answer(Lsn(9), &op) {
            Ok(OpResult::RangeDeleted { resume }) => resume,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(of("m", Some("x")), Some("m".into()));
    assert_eq!(of("m", None), Some("m".into()));
    assert_eq!(of("m", Some("m")), None);
    assert_eq!(of("", None), None);
    let (long, op) = (vec![b'm'; LONGEST_END + 1], Op::DeleteRange { start: "a".into(), end: None });
    let gone = Effect::of(RecordKind::DeleteRange, &long).answer(Lsn(9), &op);
    assert_eq!(gone, Err(OpError::AnswerGone { done: true }), "so long an end is not kept");
}

#[test]
fn ids_are_given_once_also_beyond_the_last_sequence() {
    let mut ids = RequestIds(RequestId { client: 3, sequence: u32::MAX - 1 });
    let given: Vec<RequestId> = (0..4).map(|_| ids.next_id()).collect();
    assert_eq!(given[..2], [u32::MAX - 1, u32::MAX].map(|sequence| RequestId { client: 3, sequence }));
    assert_eq!([given[2].sequence, given[3].sequence], [0, 1]);
    assert!(given[2].client != 3 && given[2].client == given[3].client);
}

proptest! {
    #[test]
    fn ids_have_their_bytes(client: u64, sequence: u32) {
        let id = RequestId { client, sequence };
        prop_assert_eq!(RequestId::from_bytes(&id.to_bytes()), id);
    }
}

//! A conversation with a server that is played here, packet by packet.

use super::*;
use crate::Change;
use leeward_format::zookeeper::{Access, LENGTH_BYTES, read_packet};

const NOW: Nanos = Nanos::from_secs(9);

/// The server's part.
struct Script {
    conversation: Conversation,
}

/// What a request asks for: kind, and where.
type Asking = (i32, String);

const SYNC: i32 = 9;
const WATCH: i32 = 106;
const DATA: i32 = 4;
const CHILDREN: i32 = 8;
const MULTI: i32 = 14;

fn int(value: i32) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

fn text(value: &str) -> Vec<u8> {
    [int(value.len() as i32), value.into()].concat()
}

fn data(value: Option<&str>, mzxid: i64, version: i32, children: i32) -> Vec<u8> {
    let value = value.map_or(int(-1), text);
    let numbers = [&mzxid.to_be_bytes()[..], &[0; 16], &int(version), &[0; 20], &int(children), &[0; 8]].concat();
    [value, vec![0; 8], numbers].concat()
}

/// All steps of a multi were done: none is told of but the end.
fn all_done() -> Vec<u8> {
    [int(-1), vec![1], int(-1)].concat()
}

/// The first `good` steps would have been done, the next failed.
fn failed(good: usize, code: i32) -> Vec<u8> {
    let result = |code: i32| [int(-1), vec![0], int(-1), int(code)].concat();
    [result(0).repeat(good), result(code), all_done()].concat()
}

impl Script {
    fn start(digest: Option<&str>) -> Script {
        let access = if digest.is_some() { Access::Creator } else { Access::Anyone };
        let place = Place { root: "/r".into(), access };
        let connect = Connect { timeout_ms: 1000, ..Connect::default() };
        let mut script = Script { conversation: Conversation::new(NOW, place, digest.map(str::to_owned), &connect) };
        assert_eq!(read_packet(&script.conversation.output).unwrap().map(<[u8]>::len), Some(45));
        script.conversation.output.clear();
        script
    }

    /// As far as the first reads, whose answers are the caller's.
    fn greeted(digest: Option<&str>) -> Script {
        let mut script = Script::start(digest);
        let answer = [int(0), int(1000), vec![0, 0, 0, 0, 0, 0, 0, 5], int(16), vec![7; 16]].concat();
        script.conversation.take(NOW, &answer).unwrap();
        assert!(script.events().is_empty());
        if digest.is_some() {
            assert_eq!(
                script.asked(),
                [(100, String::new()), (SYNC, "/r".into()), (WATCH, "/r".into()), (DATA, "/r".into())]
            );
            script.reply(AUTH_XID, 0, 0, &[]).unwrap();
        } else {
            assert_eq!(script.asked(), [(SYNC, "/r".into()), (WATCH, "/r".into()), (DATA, "/r".into())]);
        }
        script.reply(1, 10, 0, &text("/r")).unwrap();
        script.reply(2, 10, 0, &int(0)).unwrap();
        script
    }

    /// Up, with `/a` made at 7.
    fn up() -> Script {
        let mut script = Script::greeted(None);
        script.reply(3, 10, 0, &data(None, 1, 4, 1)).unwrap();
        assert_eq!(script.asked(), [(CHILDREN, "/r".into())]);
        script.reply(4, 10, 0, &[int(1), text("a")].concat()).unwrap();
        assert_eq!(script.asked(), [(DATA, "/r/a".into())]);
        assert!(script.events().is_empty(), "nothing before all is read");
        script.reply(5, 12, 0, &data(Some("v"), 7, 0, 0)).unwrap();
        let up = CoordinatorEvent::Up { session: SessionId(5) };
        assert_eq!(script.events(), [up, changed("/a", 7, Some("v")), CoordinatorEvent::Synced { version: 12 }]);
        script
    }

    fn reply(&mut self, xid: i32, zxid: i64, code: i32, body: &[u8]) -> Result<(), End> {
        let packet = [&int(xid)[..], &zxid.to_be_bytes(), &int(code), body].concat();
        self.conversation.take(NOW, &packet)
    }

    fn word(&mut self, path: &str) {
        self.reply(WATCH_XID, -1, 0, &[int(3), int(3), text(path)].concat()).unwrap();
    }

    fn asked(&mut self) -> Vec<Asking> {
        let output = std::mem::take(&mut self.conversation.output);
        let mut rest = &output[..];
        let mut asked = Vec::new();
        while let Some(body) = read_packet(rest).unwrap() {
            rest = &rest[LENGTH_BYTES + body.len()..];
            let number = |at: usize| i32::from_be_bytes(body[at..at + 4].try_into().unwrap());
            let kind = number(4);
            let path = matches!(kind, SYNC | WATCH | DATA | CHILDREN).then(|| &body[12..12 + number(8) as usize]);
            asked.push((kind, String::from_utf8(path.unwrap_or_default().to_vec()).unwrap()));
        }
        asked
    }

    fn events(&mut self) -> Vec<CoordinatorEvent> {
        std::mem::take(&mut self.conversation.events)
    }

    fn set(&mut self, id: u64, version: u64) {
        let op = CoordinatorOp::Set { path: "/a".into(), value: "w".into(), version };
        self.conversation.submit(NOW, id, op);
    }
}

fn changed(path: &str, version: u64, value: Option<&'static str>) -> CoordinatorEvent {
    CoordinatorEvent::Changed(vec![Change { path: path.into(), version, value: value.map(Into::into) }])
}

fn reply(id: u64, result: Result<u64, CoordinatorError>) -> CoordinatorEvent {
    CoordinatorEvent::Reply { id, result }
}

#[test]
fn an_answer_waits_for_what_was_changed_before_it() {
    let mut script = Script::up();
    script.set(1, 7);
    assert_eq!(script.asked(), [(MULTI, String::new())]);
    script.word("/r/a");
    assert_eq!(script.asked(), [(DATA, "/r/a".into())]);
    script.reply(6, 15, 0, &all_done()).unwrap();
    assert!(script.events().is_empty(), "it was not shown yet");
    script.reply(7, 16, 0, &data(Some("w"), 15, 1, 0)).unwrap();
    assert_eq!(script.events(), [changed("/a", 15, Some("w")), reply(1, Ok(15))]);
}

#[test]
fn another_was_faster_and_is_shown_first() {
    let mut script = Script::up();
    script.set(1, 7);
    script.word("/r/a");
    assert_eq!(script.asked().len(), 2);
    script.reply(6, 15, 0, &failed(1, error::BAD_VERSION)).unwrap();
    script.reply(7, 16, 0, &data(Some("theirs"), 14, 1, 0)).unwrap();
    let stale = Err(CoordinatorError::Stale { version: 14 });
    assert_eq!(script.events(), [changed("/a", 14, Some("theirs")), reply(1, stale.clone())]);
    // What is known to be stale is not even asked.
    script.set(2, 7);
    assert_eq!((script.asked(), script.events()), (Vec::new(), vec![reply(2, stale)]));
}

/// The path was removed and made again, and ZooKeeper's number of its changes is the same as before.
#[test]
fn a_path_that_was_made_again_does_not_pass_for_the_one_before() {
    let mut script = Script::up();
    script.set(1, 7);
    assert_eq!(script.asked().len(), 1);
    for path in ["/r/a", "/r", "/r/a"] {
        script.word(path);
    }
    // The one above differs: that says nothing yet.
    script.reply(6, 15, 0, &failed(0, error::BAD_VERSION)).unwrap();
    assert_eq!(script.asked(), [(DATA, "/r/a".into()), (DATA, "/r".into()), (DATA, "/r/a".into())]);
    script.reply(7, 15, 0, &data(Some("new"), 14, 0, 0)).unwrap();
    script.reply(8, 15, 0, &data(None, 14, 5, 1)).unwrap();
    script.reply(9, 15, 0, &data(Some("new"), 14, 0, 0)).unwrap();
    let stale = Err(CoordinatorError::Stale { version: 14 });
    assert_eq!(script.events(), [changed("/a", 14, Some("new")), reply(1, stale)]);
}

#[test]
fn a_path_that_was_made_beside_it_is_no_reason_to_refuse() {
    let mut script = Script::up();
    script.set(1, 7);
    script.word("/r");
    script.reply(6, 15, 0, &failed(0, error::BAD_VERSION)).unwrap();
    assert_eq!(script.asked().len(), 2);
    script.reply(7, 15, 0, &data(None, 14, 5, 2)).unwrap();
    assert_eq!((script.events(), script.asked()), (Vec::new(), vec![(MULTI, String::new())]), "it is asked again");
    script.reply(8, 17, 0, &all_done()).unwrap();
    assert_eq!(script.events(), [reply(1, Ok(17))]);
}

#[test]
fn whoever_is_always_thwarted_is_told_so() {
    let mut script = Script::up();
    script.set(1, 7);
    for attempt in 0..MOST_ATTEMPTS as i32 {
        assert_eq!(script.asked().len(), 1);
        script.reply(6 + attempt, 15, 0, &failed(0, error::BAD_VERSION)).unwrap();
    }
    let events = script.events();
    assert!(
        matches!(&events[..], [CoordinatorEvent::Reply { id: 1, result: Err(CoordinatorError::Refused(_)) }]),
        "{events:?}"
    );
}

#[test]
fn the_clusters_path_is_made_part_by_part() {
    let mut script = Script::greeted(Some("u:p"));
    script.conversation.place.root = "/r/s".into();
    script.reply(3, 10, error::NO_NODE, &[]).unwrap();
    assert_eq!(script.asked().iter().filter(|(kind, _)| *kind == MULTI).count(), 2);
    script.reply(4, 10, 0, &failed(0, error::NODE_EXISTS)).unwrap();
    assert!(script.asked().is_empty());
    script.reply(5, 11, 0, &all_done()).unwrap();
    assert_eq!(script.asked(), [(DATA, "/r/s".into())]);
    script.reply(6, 11, 0, &data(None, 11, 0, 0)).unwrap();
    assert_eq!(script.events().len(), 2, "up and synced");
    // Who removes it later ends this connection, and does not have it made behind his back.
    script.word("/r/s");
    let end = script.reply(7, 12, error::NO_NODE, &[]).unwrap_err();
    assert!(matches!(&end, End::Broken(Broken::Refused(why)) if why.contains("/r/s was removed")), "{end:?}");
}

#[test]
fn a_connection_that_is_lost_leaves_no_question_unanswered() {
    let mut script = Script::up();
    (1..=3).for_each(|id| script.set(id, 7));
    script.word("/r/a");
    script.reply(6, 15, 0, &all_done()).unwrap();
    assert!(script.events().is_empty());
    let lost = |id| reply(id, Err(CoordinatorError::Disconnected));
    assert_eq!(script.conversation.lose(), [CoordinatorEvent::Down, lost(1), lost(2), lost(3)]);
    // Before it was up, nothing is asked, and there is nothing to go down.
    let mut script = Script::greeted(None);
    script.set(4, 7);
    assert_eq!(script.conversation.lose(), [lost(4)]);
}

#[test]
fn what_the_server_refuses_ends_it_with_a_reason() {
    let mut script = Script::start(None);
    let expired = [int(0), int(0), vec![0; 8], int(16), vec![0; 16]].concat();
    assert!(matches!(script.conversation.take(NOW, &expired), Err(End::Expired)));

    let reason = |outcome: Result<(), End>| match outcome {
        Err(End::Broken(broken)) => broken.to_string(),
        other => panic!("{other:?}"),
    };
    let mut script = Script::greeted(Some("u:p"));
    let why = reason(script.reply(3, 10, error::NO_AUTH, &[]));
    assert!(why.contains("it belongs to another user, or the password is wrong"), "{why}");
    let why = reason(Script::greeted(Some("u:p")).reply(AUTH_XID, 0, error::AUTH_FAILED, &[]));
    assert!(why.contains("digest is switched off"), "{why}");
    let why = reason(Script::up().reply(77, 10, 0, &[]));
    assert!(why.contains("a question that was not asked"), "{why}");
    let why = reason(Script::up().conversation.take(NOW, &[1, 2, 3]));
    assert!(why.contains("not of this protocol"), "{why}");
    let mut script = Script::up();
    script.set(1, 7);
    assert!(reason(script.reply(6, 10, error::SESSION_MOVED, &[])).contains("ended or moved"));
    let lost = reply(1, Err(CoordinatorError::Disconnected));
    assert_eq!(script.conversation.lose(), [CoordinatorEvent::Down, lost]);
}

#[test]
fn it_was_heard_when_the_newest_question_that_was_answered_was_sent() {
    let mut script = Script::up();
    let second = |number: u64| NOW + Nanos::from_secs(number);
    script.conversation.ping(second(1));
    script.conversation.ping(second(2));
    assert_eq!(script.conversation.heard(), NOW);
    script.reply(PING_XID, 12, 0, &[]).unwrap();
    assert_eq!(script.conversation.heard(), second(1));
    script.reply(PING_XID, 12, 0, &[]).unwrap();
    assert_eq!(script.conversation.heard(), second(2));
}

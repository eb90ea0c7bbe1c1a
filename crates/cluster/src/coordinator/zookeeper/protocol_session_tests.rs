//! Protocol sessions with a fake server, packet by packet.

use super::super::fake::{self, CHILDREN, DATA, MULTI, SYNC, WATCH, data, found, int, multi, names, refused, text};
use super::*;
use crate::Change;
use leeward_format::zookeeper::{Access, LENGTH_BYTES, read_packet};

const NOW: Nanos = Nanos::from_secs(9);

/// The server's part.
struct Script {
    protocol_session: ProtocolSession,
}

/// The kind of a request, and its path.
type Asking = (i32, String);

/// All steps of a multi were done: the answer contains only its end.
fn all_done() -> Vec<u8> {
    multi(&[])
}

/// The first `good` steps would have been done, the next failed.
fn failed(good: usize, code: i32) -> Vec<u8> {
    multi(&[vec![refused(0); good], vec![refused(code)]].concat())
}

/// The path is not there.
fn absent() -> Vec<u8> {
    multi(&[refused(error::NO_NODE)])
}

impl Script {
    fn start(digest: Option<&str>) -> Script {
        let access = if digest.is_some() { Access::Creator } else { Access::Anyone };
        let place = ClusterRoot { root: "/r".into(), access };
        let connect = Connect { timeout_ms: 1000, ..Connect::default() };
        let mut script = Script {
            protocol_session: ProtocolSession::new(
                NOW,
                place,
                digest.map(str::to_owned),
                &connect,
                RequestLimit::default(),
            ),
        };
        assert_eq!(read_packet(&script.protocol_session.output).unwrap().map(<[u8]>::len), Some(45));
        script.protocol_session.output.clear();
        script
    }

    /// Up to the first reads. The caller answers them.
    fn greeted(digest: Option<&str>) -> Script {
        let mut script = Script::start(digest);
        script.protocol_session.take(NOW, &fake::greeting(1000)).unwrap();
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
        script.reply(4, 10, 0, &names(&["a"])).unwrap();
        assert_eq!(script.asked(), [(DATA, "/r/a".into())]);
        assert!(script.events().is_empty(), "nothing before all is read");
        script.reply(5, 12, 0, &data(Some("v"), 7, 0, 0)).unwrap();
        let up = CoordinatorEvent::Up { session: SessionId(5) };
        assert_eq!(script.events(), [up, changed("/a", 7, Some("v")), CoordinatorEvent::Synced { version: 12 }]);
        script
    }

    fn reply(&mut self, xid: i32, zxid: i64, code: i32, body: &[u8]) -> Result<(), End> {
        self.protocol_session.take(NOW, &fake::answer(xid, zxid, code, body))
    }

    fn word(&mut self, path: &str) {
        self.reply(WATCH_XID, -1, 0, &[int(3), int(3), text(path)].concat()).unwrap();
    }

    fn asked(&mut self) -> Vec<Asking> {
        let output = std::mem::take(&mut self.protocol_session.output);
        let mut rest = &output[..];
        let mut asked = Vec::new();
        while let Some(body) = read_packet(rest).unwrap() {
            rest = &rest[LENGTH_BYTES + body.len()..];
            let fake::Asked { kind, paths, .. } = fake::asked(body);
            asked.push((kind, paths));
        }
        asked
    }

    fn events(&mut self) -> Vec<CoordinatorEvent> {
        std::mem::take(&mut self.protocol_session.events)
    }

    fn set(&mut self, id: u64, version: u64) {
        let op = CoordinatorOp::Set { path: "/a".into(), value: "w".into(), version };
        self.protocol_session.submit(NOW, id, op);
    }
}

fn changed(path: &str, version: u64, value: Option<&'static str>) -> CoordinatorEvent {
    CoordinatorEvent::Changed(vec![Change { path: path.into(), version, value: value.map(Into::into) }])
}

fn reply(id: u64, result: Result<u64, CoordinatorError>) -> CoordinatorEvent {
    CoordinatorEvent::Reply { id, result }
}

#[test]
fn an_answer_waits_for_the_changes_before_it() {
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
fn an_operation_whose_change_is_not_reported_ends_the_connection() {
    let mut script = Script::up();
    script.set(1, 7);
    let why = outdated(script.reply(6, 15, 0, &all_done()));
    assert!(why.contains("a change of \"/a\" was not told"), "{why}");
    let lost = reply(1, Err(CoordinatorError::Disconnected));
    assert_eq!(script.protocol_session.lose(), [CoordinatorEvent::Down, lost]);
}

#[test]
fn a_faster_change_of_another_is_shown_first() {
    let mut script = Script::up();
    script.set(1, 7);
    script.word("/r/a");
    assert_eq!(script.asked().len(), 2);
    script.reply(6, 15, 0, &failed(1, error::BAD_VERSION)).unwrap();
    script.reply(7, 16, 0, &data(Some("theirs"), 14, 1, 0)).unwrap();
    let stale = Err(CoordinatorError::Stale { version: 14 });
    assert_eq!(script.events(), [changed("/a", 14, Some("theirs")), reply(1, stale.clone())]);
    // An operation that is known to be stale is not even sent.
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
    // The path above differs: that proves nothing yet.
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
    script.word("/r/a");
    script.reply(8, 17, 0, &all_done()).unwrap();
    script.reply(9, 17, 0, &data(Some("w"), 17, 1, 0)).unwrap();
    assert_eq!(script.events(), [changed("/a", 17, Some("w")), reply(1, Ok(17))]);
}

#[test]
fn an_operation_that_always_collides_is_refused() {
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
    script.protocol_session.place.root = "/r/s".into();
    script.reply(3, 10, 0, &absent()).unwrap();
    assert_eq!(script.asked().iter().filter(|(kind, _)| *kind == MULTI).count(), 2);
    script.reply(4, 10, 0, &failed(0, error::NODE_EXISTS)).unwrap();
    assert!(script.asked().is_empty());
    script.reply(5, 11, 0, &all_done()).unwrap();
    assert_eq!(script.asked(), [(DATA, "/r/s".into())]);
    script.reply(6, 11, 0, &data(None, 11, 0, 0)).unwrap();
    assert_eq!(script.events().len(), 2, "up and synced");
    // A later removal of the path ends this connection. The client does not make the path again by itself.
    script.word("/r/s");
    let end = script.reply(7, 12, 0, &absent()).unwrap_err();
    assert!(matches!(&end, End::Broken(Broken::Refused(why)) if why.contains("/r/s was removed")), "{end:?}");
}

#[test]
fn a_refused_part_of_the_clusters_path_is_named_with_the_path_above() {
    for (digest, root, part, above, why) in [
        (Some("u:p"), "/r/s/t", 5, "to make /r/s: /r belongs", "to another user, or the password is wrong. Let this"),
        (None, "/r/s/t", 6, "to make /r/s/t: /r/s belongs", "to a user. Set zookeeper_auth_file"),
        (None, "/r", 4, "to make /r: / belongs", "to a user"),
    ] {
        let mut script = Script::greeted(digest);
        script.protocol_session.place.root = root.into();
        script.reply(3, 10, 0, &absent()).unwrap();
        for xid in 4..part {
            script.reply(xid, 10, 0, &failed(0, error::NODE_EXISTS)).unwrap();
        }
        let end = script.reply(part, 10, 0, &failed(0, error::NO_AUTH)).unwrap_err();
        let End::Broken(Broken::Refused(reason)) = end else { panic!("{end:?}") };
        assert!(reason.contains(above) && reason.contains(why), "{reason}");
    }
}

#[test]
fn a_lost_connection_leaves_no_operation_unanswered() {
    let mut script = Script::up();
    (1..=3).for_each(|id| script.set(id, 7));
    script.word("/r/a");
    script.reply(6, 15, 0, &all_done()).unwrap();
    assert!(script.events().is_empty());
    let lost = |id| reply(id, Err(CoordinatorError::Disconnected));
    assert_eq!(script.protocol_session.lose(), [CoordinatorEvent::Down, lost(1), lost(2), lost(3)]);
    // Before the session was up, no operation was sent, and there is no `Down`.
    let mut script = Script::greeted(None);
    script.set(4, 7);
    assert_eq!(script.protocol_session.lose(), [lost(4)]);
}

#[test]
fn a_refusal_of_the_server_ends_it_with_a_reason() {
    let mut script = Script::start(None);
    assert!(matches!(script.protocol_session.take(NOW, &fake::greeting(0)), Err(End::Expired)));

    let reason = |outcome: Result<(), End>| match outcome {
        Err(End::Broken(broken)) => broken.to_string(),
        other => panic!("{other:?}"),
    };
    let mut script = Script::greeted(Some("u:p"));
    let why = reason(script.reply(3, 10, 0, &multi(&[refused(error::NO_AUTH)])));
    assert!(why.contains("it belongs to another user, or the password is wrong"), "{why}");
    let why = reason(Script::greeted(Some("u:p")).reply(AUTH_XID, 0, error::AUTH_FAILED, &[]));
    assert!(why.contains("digest is switched off"), "{why}");
    let why = reason(Script::up().reply(77, 10, 0, &[]));
    assert!(why.contains("a question that was not asked"), "{why}");
    let why = reason(Script::greeted(None).reply(3, 10, 0, &multi(&[])));
    assert!(why.contains("of another length"), "{why}");
    let why = reason(Script::up().protocol_session.take(NOW, &[1, 2, 3]));
    assert!(why.contains("not of this protocol"), "{why}");
    let mut script = Script::up();
    script.set(1, 7);
    assert!(reason(script.reply(6, 10, error::SESSION_MOVED, &[])).contains("moved to another server"));
    let lost = reply(1, Err(CoordinatorError::Disconnected));
    assert_eq!(script.protocol_session.lose(), [CoordinatorEvent::Down, lost]);
}

/// Errors that only a setting of the ensemble explains, and what each says. The session ends where the server ends it.
#[test]
fn each_refusal_says_what_to_set() {
    let ended = |outcome: Result<(), End>| match outcome {
        Err(End::Broken(Broken::Refused(why))) => why,
        other => panic!("{other:?}"),
    };
    for (digest, said) in [(None, "Set zookeeper_auth_file"), (Some("u:p"), "sessionRequireClientSASLAuth=false")] {
        let mut script = Script::start(digest);
        script.protocol_session.take(NOW, &fake::greeting(1000)).unwrap();
        let why = ended(script.reply(1, 10, error::CLOSED_REQUIRES_AUTHENTICATION, &[]));
        assert!(why.contains(said) && why.contains("enforce.auth.schemes"), "{why}");
    }
    let mut script = Script::start(Some("u:p"));
    script.protocol_session.take(NOW, &fake::greeting(1000)).unwrap();
    let why = ended(script.reply(AUTH_XID, 0, error::CLOSED_REQUIRES_AUTHENTICATION, &[]));
    assert!(why.contains("enforce.auth.schemes"), "{why}");
    let mut script = Script::up();
    script.set(1, 7);
    let why = ended(script.reply(6, 10, error::SESSION_EXPIRED, &[]));
    assert!(why.contains("localSessionsEnabled=false"), "{why}");
    for (code, said) in [
        (error::QUOTA_EXCEEDED, "`setquota`"),
        (error::EPHEMERAL_ON_LOCAL_SESSION, "/r/a, which is ephemeral: the session is known to one server only"),
    ] {
        let mut script = Script::up();
        script.set(1, 7);
        script.reply(6, 10, 0, &failed(1, code)).unwrap();
        let events = script.events();
        let [CoordinatorEvent::Reply { result: Err(CoordinatorError::Refused(why)), .. }] = &events[..] else {
            panic!("{events:?}")
        };
        assert!(why.contains(said), "{why}");
    }
}

#[test]
fn what_the_server_puts_off_is_asked_again_with_the_next_heartbeat() {
    let mut script = Script::up();
    script.set(1, 7);
    assert_eq!(script.asked().len(), 1);
    script.reply(6, 10, error::THROTTLED, &[]).unwrap();
    assert_eq!((script.events(), script.asked()), (Vec::new(), Vec::new()), "not at once");
    script.protocol_session.ping(NOW);
    assert!(script.asked().contains(&(MULTI, String::new())));
    script.word("/r/a");
    script.reply(7, 15, 0, &all_done()).unwrap();
    // The comparison that came with the heartbeat is put off, and so is a read: it is repeated.
    script.reply(8, 15, error::THROTTLED, &[]).unwrap();
    assert_eq!(script.asked(), [(DATA, "/r/a".into())]);
    script.reply(9, 15, error::THROTTLED, &[]).unwrap();
    assert_eq!(script.asked(), [(DATA, "/r/a".into())]);
    script.reply(10, 15, 0, &data(Some("w"), 15, 1, 0)).unwrap();
    assert_eq!(script.events(), [changed("/a", 15, Some("w")), reply(1, Ok(15))]);
    // Those that are put off are answered when the connection is lost.
    script.set(2, 15);
    script.reply(11, 16, error::THROTTLED, &[]).unwrap();
    assert_eq!(script.protocol_session.lose(), [CoordinatorEvent::Down, reply(2, Err(CoordinatorError::Disconnected))]);
}

/// A script whose first comparison was asked for, with the number 6.
fn comparing() -> Script {
    let mut script = Script::up();
    script.protocol_session.ping(NOW);
    let compare = (DATA, "/r /r/a".into());
    assert!(script.asked().contains(&compare));
    script
}

/// What a comparison reads of the cluster's path.
fn root_found() -> Vec<u8> {
    found(None, 1, 4, 1)
}

fn outdated(outcome: Result<(), End>) -> String {
    match outcome {
        Err(End::Broken(Broken::Outdated(why))) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_change_that_was_not_reported_ends_the_connection() {
    let mut script = comparing();
    let why = outdated(script.reply(6, 20, 0, &multi(&[root_found(), found(Some("w"), 18, 1, 0)])));
    assert!(why.contains("a change of \"/a\" was not told"), "{why}");
    assert!(script.events().is_empty(), "the new value is not taken over");
    let mut script = comparing();
    outdated(script.reply(6, 20, 0, &multi(&[root_found(), refused(error::NO_NODE)])));
    // A path that may not be read ends it too, with what to do.
    let mut script = comparing();
    let end = script.reply(6, 20, 0, &multi(&[root_found(), refused(error::NO_AUTH)])).unwrap_err();
    assert!(matches!(&end, End::Broken(Broken::Refused(why)) if why.contains("access to /r/a")), "{end:?}");
}

#[test]
fn a_comparison_that_finds_nothing_disturbs_nothing() {
    let mut script = comparing();
    script.reply(6, 20, 0, &multi(&[root_found(), found(Some("v"), 7, 0, 0)])).unwrap();
    script.protocol_session.ping(NOW);
    assert!(script.asked().contains(&(CHILDREN, "/r".into())));
    script.reply(7, 20, 0, &names(&["a"])).unwrap();
    script.protocol_session.ping(NOW);
    assert_eq!(script.asked(), [(fake::PING, String::new())], "the next round comes later");
    assert!(script.events().is_empty());
    // A path that was made and not reported is found by its name.
    let mut script = comparing();
    script.reply(6, 20, 0, &multi(&[root_found(), found(Some("v"), 7, 0, 0)])).unwrap();
    script.protocol_session.ping(NOW);
    let why = outdated(script.reply(7, 20, 0, &names(&["a", "b"])));
    assert!(why.contains("\"/b\""), "{why}");
}

#[test]
fn a_change_that_is_reported_during_a_comparison_is_no_difference() {
    let mut script = comparing();
    script.word("/r/a");
    assert_eq!(script.asked(), [(DATA, "/r/a".into())]);
    script.reply(6, 20, 0, &multi(&[root_found(), found(Some("w"), 18, 1, 0)])).unwrap();
    assert!(script.events().is_empty());
    script.reply(7, 20, 0, &data(Some("w"), 18, 1, 0)).unwrap();
    assert_eq!(script.events(), [changed("/a", 18, Some("w"))]);
}

#[test]
fn changed_access_rights_end_the_connection() {
    // How often its rights were replaced: the third number after the times.
    let with_rights = |mzxid, version| {
        let mut found = found(Some("w"), mzxid, version, 0);
        let at = found.len() - 8 - 4 - 4 - 8 - 4;
        found[at..at + 4].copy_from_slice(&int(2));
        found
    };
    let mut script = Script::up();
    script.word("/r/a");
    let why = outdated(script.reply(6, 20, 0, &multi(&[with_rights(18, 1)])));
    assert!(why.contains("access rights of \"/a\" were changed"), "{why}");
    let mut script = comparing();
    outdated(script.reply(6, 20, 0, &multi(&[root_found(), with_rights(7, 0)])));
}

/// The known tree says that the operation is possible, and the server refuses it.
#[test]
fn a_refusal_that_the_known_tree_does_not_explain_leads_to_a_comparison() {
    let mut script = comparing();
    script.reply(6, 20, 0, &multi(&[root_found(), found(Some("v"), 7, 0, 0)])).unwrap();
    script.protocol_session.ping(NOW);
    script.reply(7, 20, 0, &names(&["a"])).unwrap();
    script.asked();
    script.set(1, 7);
    script.reply(8, 20, 0, &failed(1, error::BAD_VERSION)).unwrap();
    assert_eq!(script.events(), [reply(1, Err(CoordinatorError::Stale { version: 7 }))]);
    script.protocol_session.ping(NOW);
    assert!(script.asked().contains(&(DATA, "/r/a".into())));
    outdated(script.reply(9, 20, 0, &multi(&[found(Some("w"), 18, 1, 0)])));
}

#[test]
fn it_was_heard_when_the_newest_answered_request_was_sent() {
    let mut script = Script::up();
    let second = |number: u64| NOW + Nanos::from_secs(number);
    script.protocol_session.ping(second(1));
    script.protocol_session.ping(second(2));
    assert_eq!(script.protocol_session.heard(), NOW);
    script.reply(PING_XID, 12, 0, &[]).unwrap();
    assert_eq!(script.protocol_session.heard(), second(1));
    script.reply(PING_XID, 12, 0, &[]).unwrap();
    assert_eq!(script.protocol_session.heard(), second(2));
}

#[test]
fn while_the_tree_is_read_each_answer_is_a_sign_of_life_and_up_comes_with_a_prompt_one() {
    let mut script = Script::greeted(None);
    let millis = |number: u64| NOW + Nanos::from_millis(number);
    let mut take = |at: u64, xid: i32, body: &[u8]| {
        script.protocol_session.receive(millis(at));
        script.protocol_session.take(millis(at), &fake::answer(xid, 12, 0, body)).unwrap();
        (script.protocol_session.alive(), script.protocol_session.is_up())
    };
    assert_eq!(take(300, 3, &data(None, 1, 4, 2)), (millis(300), false));
    assert_eq!(take(600, 4, &names(&["a", "b"])), (millis(600), false));
    // All is read, but the last proof that the session lasts is too old: its timeout is 1000.
    let both = multi(&[found(Some("v"), 7, 0, 0), found(Some("w"), 8, 0, 0)]);
    assert_eq!(take(900, 5, &both), (millis(900), false));
    script.protocol_session.ping(millis(1250));
    let packet = fake::answer(PING_XID, 12, 0, &[]);
    script.protocol_session.take(millis(1450), &packet).unwrap();
    assert_eq!((script.protocol_session.alive(), script.protocol_session.is_up()), (millis(1250), true));
    assert_eq!(script.events().len(), 3, "up, the tree, synced");
}

/// A leader that is cut off continues a session, and syncs it, but commits nothing.
#[test]
fn a_session_that_is_continued_with_whatever_a_server_has_takes_a_quorum_before_the_tree_is_read() {
    for (session, last_zxid, takes_anything) in [(5, 0, true), (5, 9, false), (0, 0, false), (0, 9, false)] {
        let connect = Connect { timeout_ms: 1000, session, last_zxid, ..Connect::default() };
        let place = ClusterRoot { root: "/r".into(), access: Access::Anyone };
        let protocol_session = ProtocolSession::new(NOW, place, None, &connect, RequestLimit::default());
        let mut script = Script { protocol_session };
        script.protocol_session.output.clear();
        script.protocol_session.take(NOW, &fake::greeting(1000)).unwrap();
        let kinds: Vec<i32> = script.asked().into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds.strip_prefix(&[MULTI]), takes_anything.then_some(&[SYNC, WATCH, DATA][..]), "{kinds:?}");
        if takes_anything {
            // An ensemble without the path agrees on that.
            script.reply(1, 10, 0, &failed(0, error::NO_NODE)).unwrap();
            script.reply(2, 10, 0, &text("/r")).unwrap();
            script.reply(3, 10, 0, &int(0)).unwrap();
            script.reply(4, 10, 0, &data(None, 1, 4, 0)).unwrap();
            assert_eq!(script.events().len(), 2, "up, synced");
        }
    }
}

//! Changes of users, by hand-made events: each compares the count of changes, and no trace of users is no permission.

use super::tests::Fixture;
use super::*;
use bytes::Bytes;
use leeward_format::cluster::{decode_value, encode_value};
use leeward_format::user::{Grant, PasswordHash, Presence, Rights, User, UserChange, UserName, UserRule};

const ROOT: &str = "/leeward/user/root";
const COUNT: &str = "/leeward/users";

fn name(text: &str) -> UserName {
    text.parse().expect("a name")
}

fn root() -> User {
    let passwords = vec![PasswordHash::new("$argon2id$x".into())];
    User { is_enabled: true, passwords, grants: vec![Grant::everything()], ..User::new(name("root")) }
}

fn value(user: &User) -> Option<Bytes> {
    Some(encode_value(user))
}

fn change(user: &str, rules: Vec<UserRule>) -> UserChange {
    UserChange { name: name(user), presence: Presence::Any, rules }
}

/// With no other request outstanding than those of the test.
fn settled(tree: &[(&str, Option<Bytes>)]) -> Fixture {
    let mut fixture = Fixture::new(tree);
    settle(&mut fixture);
    fixture
}

/// Grants all that is asked for.
fn settle(fixture: &mut Fixture) {
    fixture.asked.extend(fixture.agent.take_ops());
    while !fixture.asked.is_empty() {
        for (id, op) in std::mem::take(&mut fixture.asked) {
            fixture.apply(op);
            let result = Ok(fixture.version);
            fixture.tell(CoordinatorEvent::Reply { id, result });
        }
    }
}

#[test]
fn a_change_writes_the_user_and_the_count_of_changes_at_once() {
    let mut fixture = settled(&[]);
    assert!(fixture.agent.view().users().is_known && fixture.agent.view().users().is_empty());
    let first = change(
        "root",
        vec![
            UserRule::Enable(true),
            UserRule::AddPassword(PasswordHash::new("$argon2id$x".into())),
            UserRule::AddRights(Rights::ALL),
            UserRule::AddPrefix(Bytes::new()),
        ],
    );
    let id = fixture.agent.change_user(fixture.now, first).expect("it is possible");
    fixture.asked.extend(fixture.agent.take_ops());
    let (asked, op) = fixture.ask();
    let CoordinatorOp::All(ops) = &op else { panic!("one operation: {op:?}") };
    let [CoordinatorOp::Create { path: user, value, .. }, CoordinatorOp::Create { path: count, .. }] = &ops[..] else {
        panic!("a user and the count: {ops:?}")
    };
    assert_eq!((&user[..], &count[..]), (ROOT, COUNT));
    assert_eq!(decode_value::<User>("user", value), Ok(root()));
    // Another process was faster: the change is decided again, by the users as they are then.
    let result = Err(CoordinatorError::Exists { version: fixture.version + 1 });
    fixture.tell(CoordinatorEvent::Reply { id: asked, result });
    fixture.change(COUNT, Some(encode_value(&1_u64)));
    fixture.pass_a_second();
    let (asked, op) = fixture.ask();
    let CoordinatorOp::All(ops) = &op else { panic!("one operation: {op:?}") };
    assert!(matches!(&ops[1], CoordinatorOp::Set { path, .. } if path == COUNT), "{ops:?}");
    let before = fixture.agent.view().users().revision;
    fixture.apply(op);
    let result = Ok(fixture.version);
    fixture.tell(CoordinatorEvent::Reply { id: asked, result });
    assert_eq!(fixture.outcomes(), [(id, Outcome::Accepted)]);
    let users = fixture.agent.view().users();
    assert!(users.revision > before && users.get("root").is_some_and(|user| user.is_keeper()));
}

#[test]
fn changes_that_would_lock_everybody_out_are_refused() {
    let mut fixture = settled(&[(ROOT, value(&root())), (COUNT, Some(encode_value(&1_u64)))]);
    let now = fixture.now;
    fixture.agent.change_user(now, change("root", vec![UserRule::Enable(false)])).expect_err("nobody is left");
    fixture.agent.remove_users(now, Some(vec![name("root")])).expect_err("nobody is left");
    fixture.agent.remove_users(now, None).expect("all is meant");
    fixture.asked.extend(fixture.agent.take_ops());
    fixture.grant();
    assert!(fixture.agent.view().users().is_empty());
    assert_eq!(fixture.outcomes().len(), 1);
}

#[test]
fn users_that_vanish_without_a_trace_or_cannot_be_read_let_nobody_in() {
    let mut fixture = settled(&[(ROOT, value(&root())), (COUNT, Some(encode_value(&1_u64)))]);
    fixture.tell(CoordinatorEvent::Down);
    assert!(fixture.agent.view().users().get("root").is_some(), "what is known stays");
    fixture.tell_tree(&[]);
    assert!(fixture.agent.view().users().get("root").is_some(), "the coordinator lost its data");
    fixture.tell(CoordinatorEvent::Down);
    fixture.asked.clear();
    fixture.connect(&[(COUNT, Some(encode_value(&2_u64)))]);
    assert!(fixture.agent.view().users().is_empty(), "they were removed on purpose");
    fixture.change(ROOT, Some(Bytes::from_static(b"\xff\xff")));
    assert!(fixture.agent.view().users().is_empty(), "the change is not whole yet");
    fixture.change(COUNT, Some(encode_value(&3_u64)));
    let users = fixture.agent.view().users();
    assert!(!users.is_empty() && users.get("root").is_none());
    let other = User { name: name("other"), ..root() };
    fixture.change(ROOT, value(&other));
    fixture.change(COUNT, Some(encode_value(&4_u64)));
    assert!(fixture.agent.view().users().get("other").is_none(), "stored as another");
    fixture.change(ROOT, value(&root()));
    fixture.change(COUNT, Some(encode_value(&5_u64)));
    assert!(fixture.agent.view().users().get("root").is_some());
}

#[test]
fn users_are_restored_after_the_coordinator_lost_its_data() {
    let other = User { name: name("other"), grants: vec![Grant::default()], ..root() };
    let both = [(ROOT, value(&root())), ("/leeward/user/other", value(&other)), (COUNT, Some(encode_value(&1_u64)))];
    let mut fixture = settled(&both);
    fixture.tell(CoordinatorEvent::Down);
    fixture.asked.clear();
    fixture.tell_tree(&[]);
    let now = fixture.now;
    let refused = fixture.agent.change_user(now, change("other", vec![UserRule::AddRights(Rights::READ)]));
    assert!(refused.unwrap_err().contains("knows nothing of cluster"));
    fixture.asked.clear();
    let restored = fixture.agent.restore_tree(now, true).expect("it is possible");
    fixture.asked.extend(fixture.agent.take_ops());
    for _ in 0..2 {
        fixture.grant();
        fixture.asked.retain(|(_, op)| !matches!(op, CoordinatorOp::Create { .. }));
    }
    assert_eq!(fixture.outcomes(), [(restored, Outcome::Accepted)]);
    assert!(fixture.agent.view().is_synced());
    fixture.tell(CoordinatorEvent::Down);
    let users = fixture.agent.view().users();
    assert!(users.get("root").is_some_and(|user| user.is_keeper()) && users.get("other").is_some());
    assert_eq!(fixture.agent.view().user_changes(), 2);
}

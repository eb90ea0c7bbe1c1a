//! Who may do what, by rights, tables and prefixes; and changes that nobody may make.

use super::*;
use crate::cluster::TableOptions;
use crate::op::{Condition, Lifetime, Op, RangeOp, ScanRange};
use crate::table::NewTable;
use crate::{RegionId, ServerId};
use bytes::Bytes;
use proptest::prelude::*;

fn hash(salt: &str) -> PasswordHash {
    PasswordHash::new(format!("$argon2id$v=19$m=19456,t=2,p=1${salt}$hash"))
}

fn user(grants: &[&str]) -> User {
    let mut user = User { is_enabled: true, ..User::new("alice".parse().expect("a name")) };
    user.grants.extend(grants.iter().map(|grant| grant.parse().expect("a grant")));
    user.check().expect("it is within limits");
    user
}

fn keeper(name: &str) -> User {
    let grants = vec![Grant::everything()];
    User { is_enabled: true, passwords: vec![hash(name)], grants, ..User::new(name.parse().expect("a name")) }
}

fn scan(start: &str, end: Option<&str>) -> Op {
    let end = end.map(|end| Bytes::copy_from_slice(end.as_bytes()));
    Op::Scan(ScanRange {
        start: Bytes::copy_from_slice(start.as_bytes()),
        end,
        reverse: false,
        limit: 1,
        keys_only: false,
    })
}

fn get(key: &str) -> Op {
    Op::Get { key: Bytes::copy_from_slice(key.as_bytes()) }
}

fn put(key: &str, when: Condition, want_old: bool) -> Op {
    let key = Bytes::copy_from_slice(key.as_bytes());
    Op::Put { key, value: Bytes::new(), when, want_old, lifetime: Lifetime::Forever }
}

/// Region 7 is of the table `orders`; others are not there.
fn may(user: &User, table: &str, op: &Op) -> Result<(), Denied> {
    CompiledUser::from(user.clone()).may(table, &op.need(), |region| (region == RegionId(7)).then_some("orders"))
}

const NAMES_OF_BITS: [(u8, Rights); 4] =
    [(1, Rights::READ), (2, Rights::WRITE), (4, Rights::ADMIN), (8, Rights::OPERATE)];

const DONE: Result<(), Denied> = Ok(());
const PLACE: Result<(), Denied> = Err(Denied::Place);
const RIGHT: Result<(), Denied> = Err(Denied::Right);

#[test]
fn reads_are_within_the_prefix_of_the_table() {
    let user = user(&["read@orders:eu/"]);
    for (table, op, expected) in [
        ("orders", get("eu/1"), DONE),
        ("orders", get("eu/"), DONE),
        ("orders", get("eu"), PLACE),
        ("orders", get("us/1"), PLACE),
        ("default", get("eu/1"), PLACE),
        ("orders", scan("eu/", Some("eu0")), DONE),
        ("orders", scan("eu/1", Some("eu/2")), DONE),
        ("orders", scan("eu/1", None), PLACE),
        ("orders", scan("", None), PLACE),
        ("orders", scan("eu", Some("eu0")), PLACE),
        ("orders", scan("eu/", Some("eu1")), PLACE),
        ("orders", scan("eu/", Some("")), DONE),
        ("orders", put("eu/1", Condition::Always, false), RIGHT),
        ("orders", RangeOp::DeleteRange { start: "eu/".into(), end: Some("eu0".into()) }.into(), RIGHT),
        ("orders", Op::Count { region: RegionId(7) }, PLACE),
        ("orders", Op::Digests { region: RegionId(7), after: None }, RIGHT),
    ] {
        assert_eq!(may(&user, table, &op), expected, "{table} {op:?}");
    }
    let user = CompiledUser::from(user);
    assert!(user.knows("orders") && !user.knows("default"));
    assert_eq!(user.prefixes_in("orders").collect::<Vec<_>>(), [&Bytes::from("eu/")]);
}

#[test]
fn a_prefix_of_high_bytes_has_no_end() {
    assert_eq!(after_prefix(b"ab").as_deref(), Some(&b"ac"[..]));
    assert_eq!(after_prefix(b"a\xff").as_deref(), Some(&b"b"[..]));
    assert_eq!((after_prefix(b"\xff\xff"), after_prefix(b"")), (None, None));
    let mut user = user(&["read"]);
    user.grants[1].prefixes = vec![Bytes::from_static(b"\xff\xff")];
    let from = |start: &'static [u8]| {
        Op::Scan(ScanRange { start: start.into(), end: None, reverse: false, limit: 1, keys_only: false })
    };
    assert_eq!(may(&user, "t", &from(b"\xff\xff")), DONE);
    assert_eq!(may(&user, "t", &from(b"\xff")), PLACE);
}

#[test]
fn a_write_that_tells_of_values_needs_to_read() {
    let writer = user(&["write"]);
    let value = || Bytes::from_static(b"v");
    let key = || Bytes::from_static(b"k");
    for op in [
        put("k", Condition::Always, false),
        put("k", Condition::Absent, false),
        Op::Append { key: key(), suffix: value() },
        Op::Delete { key: key(), when: Condition::Always },
    ] {
        assert_eq!(may(&writer, "t", &op), DONE, "{op:?}");
        assert_eq!(may(&user(&["read"]), "t", &op), RIGHT, "{op:?}");
    }
    for op in [
        put("k", Condition::Always, true),
        put("k", Condition::Value(value()), false),
        put("k", Condition::NotValue(value()), false),
        Op::Add { key: key(), delta: 1 },
        Op::Delete { key: key(), when: Condition::Value(value()) },
    ] {
        assert_eq!(may(&writer, "t", &op), RIGHT, "{op:?}");
        assert_eq!(may(&user(&["write", "read"]), "t", &op), DONE, "{op:?}");
    }
    let delete = Op::Delete { key: key(), when: Condition::Always };
    assert_eq!(CompiledUser::from(writer).may("t", &delete.need().also(Rights::READ), |_| None), RIGHT);
}

#[test]
fn operators_rights_are_by_table_and_regions_that_are_not_there_tell_nothing() {
    let operator = user(&["operate@orders"]);
    for (op, expected) in [
        (Op::Digests { region: RegionId(7), after: None }, DONE),
        (Op::Count { region: RegionId(7) }, DONE),
        (Op::Digests { region: RegionId(8), after: None }, PLACE),
        (Op::SegmentContent { region: RegionId(7), segment: crate::SegmentId(1) }, RIGHT),
        (Op::RangeBounds { region: RegionId(7), want_bounds: true }, RIGHT),
        (Op::Intend { server: ServerId(1), intent: None }, PLACE),
        (Op::ListUsers, RIGHT),
        (Op::DropTable { table: "orders".parse().expect("a name") }, RIGHT),
    ] {
        assert_eq!(may(&operator, "orders", &op), expected, "{op:?}");
    }
    let admin = user(&["admin@orders"]);
    assert_eq!(may(&admin, "default", &Op::DropTable { table: "orders".parse().expect("a name") }), DONE);
    assert_eq!(may(&admin, "orders", &Op::DropTable { table: "default".parse().expect("a name") }), PLACE);
    let create = |name: &str| {
        let options = TableOptions { name: name.into(), ..TableOptions::default() };
        Op::CreateTable { table: Box::new(NewTable::new(options, Vec::new())) }
    };
    assert_eq!((may(&admin, "t", &create("orders")), may(&admin, "orders", &create("t"))), (DONE, PLACE));
    assert_eq!(may(&admin, "orders", &Op::ListUsers), PLACE);
    assert_eq!(may(&user(&["admin"]), "orders", &Op::ListUsers), DONE);
    assert_eq!(
        may(&user(&["all"]), "orders", &Op::SegmentContent { region: RegionId(9), segment: crate::SegmentId(1) }),
        DONE
    );
}

#[test]
fn rules_change_a_user_as_it_is() {
    let change = |presence, rules| UserChange { name: "bob".parse().expect("a name"), presence, rules };
    let made = change(
        Presence::New,
        vec![
            UserRule::Enable(true),
            UserRule::AddPassword(hash("1")),
            UserRule::AddRights(Rights::READ),
            UserRule::AddPrefix("a".into()),
            UserRule::AddGrant("write@orders:b".parse().expect("a grant")),
        ],
    );
    let bob = made.apply(None).expect("it is possible");
    assert!(bob.admits(Some(hash("1").id())) && !bob.admits(None) && !bob.admits(Some(hash("2").id())));
    assert_eq!(made.apply(Some(&bob)), Ok(bob.clone()), "another attempt has made it");
    assert_eq!(may(&bob, "any", &get("a1")), DONE);
    let more = change(Presence::Known, vec![UserRule::AddRights(Rights::WRITE), UserRule::AddPassword(hash("2"))]);
    let more = more.apply(Some(&bob)).expect("it is possible");
    assert_eq!(may(&more, "any", &put("a1", Condition::Always, false)), DONE);
    assert_eq!(more.passwords.len(), 2);
    let less =
        change(Presence::Any, vec![UserRule::RemovePassword(hash("1").id()), UserRule::RemoveRights(Rights::ALL)]);
    let less = less.apply(Some(&more)).expect("it is possible");
    assert_eq!(less.passwords, [hash("2")]);
    assert_eq!(may(&less, "any", &get("a1")), RIGHT);
    assert_eq!(may(&less, "orders", &put("b1", Condition::Always, false)), DONE, "another grant stays");
    let open = change(Presence::Any, vec![UserRule::NoPassword]).apply(Some(&less)).expect("it is possible");
    assert!(open.admits(None));
    let reset = change(Presence::Any, vec![UserRule::Reset]).apply(Some(&open)).expect("it is possible");
    assert_eq!(reset, User::new("bob".parse().expect("a name")));
    change(Presence::Known, Vec::new()).apply(None).expect_err("there is none");
    change(Presence::New, Vec::new()).apply(Some(&bob)).expect_err("there is one");
    let many = (0..=MAX_PASSWORDS).map(|salt| UserRule::AddPassword(hash(&salt.to_string()))).collect();
    let refused = change(Presence::Any, many).apply(None).expect_err("too many passwords");
    assert!(refused.contains("9 passwords: it may have 8"), "{refused}");
}

#[test]
fn nobody_can_lock_everybody_out() {
    let mut users = Users::default();
    let change = |name: &str, rules| UserChange { name: name.parse().expect("a name"), presence: Presence::Any, rules };
    let refused = users.changed(&change("bob", vec![UserRule::Enable(true)])).expect_err("the first must be admin");
    assert!(refused.starts_with("the first user must be"), "{refused}");
    users.put(keeper("root"));
    users.put(users.changed(&change("bob", vec![UserRule::Enable(true)])).expect("root can repair things"));
    for rules in [
        vec![UserRule::Enable(false)],
        vec![UserRule::ResetPasswords],
        vec![UserRule::NoPassword],
        vec![UserRule::RemoveRights(Rights::ADMIN)],
        vec![UserRule::Reset],
    ] {
        users.changed(&change("root", rules)).expect_err("nobody would be left");
    }
    let [root, bob] = ["root", "bob"].map(|name| name.parse::<UserName>().expect("a name"));
    users.check_removal(std::slice::from_ref(&root)).expect_err("nobody would be left");
    users.check_removal(&[root.clone(), bob.clone()]).expect_err("nobody would be left");
    assert_eq!(users.check_removal(std::slice::from_ref(&bob)), Ok(()));
    users.put(keeper("other"));
    assert_eq!(users.check_removal(std::slice::from_ref(&root)), Ok(()));
    // One that cannot be read is still one: not everybody is let in.
    let mut unreadable = Users::default();
    unreadable.lose(bob.clone());
    assert!(!unreadable.is_empty() && unreadable.get("bob").is_none());
    // It is shown, so that it can be found and removed.
    unreadable.put(keeper("alice"));
    let shown = unreadable.shown();
    let names: Vec<(&str, bool)> = shown.iter().map(|user| (&*user.name, user.is_readable())).collect();
    assert_eq!(names, [("alice", true), ("bob", false)]);
    assert_eq!(unreadable.check_removal(&[bob]), Ok(()));
}

#[test]
fn names_and_grants_are_read_as_they_are_shown() {
    for name in ["default", "a", "A.b-c_d@e+f", "0"] {
        assert_eq!(name.parse::<UserName>().map(|parsed| parsed.to_string()), Ok(name.into()));
    }
    for bad in ["", ".", "..", "a/b", "a b", "é", "-a", &"a".repeat(65)] {
        bad.parse::<UserName>().expect_err(bad);
    }
    for grant in ["read", "all", "read,write@orders:eu/", "admin@orders", "read,write,admin:a:b"] {
        assert_eq!(grant.parse::<Grant>().map(|parsed| parsed.to_string()), Ok(grant.into()));
    }
    for bad in ["", "reed", "read@Orders", "read,"] {
        bad.parse::<Grant>().expect_err(bad);
    }
    let shown = format!("{:?}", keeper("root"));
    assert!(!shown.contains("argon2id"), "{shown}");
}

proptest! {
    /// Keys within a prefix are the keys that a scan of it reads.
    #[test]
    fn a_range_is_allowed_only_if_each_key_in_it_is(
        prefix in proptest::collection::vec(0xfd_u8..=0xff, 0..3),
        start in proptest::collection::vec(0xfc_u8..=0xff, 0..4),
        end in proptest::option::of(proptest::collection::vec(0xfc_u8..=0xff, 0..4)),
        key in proptest::collection::vec(0xfc_u8..=0xff, 1..5),
    ) {
        let mut user = user(&["read"]);
        user.grants[1].prefixes = vec![prefix.into()];
        let end_bytes = end.clone().map(Bytes::from);
        let scan = Op::Scan(ScanRange {
            start: start.clone().into(), end: end_bytes, reverse: false, limit: 1, keys_only: false
        });
        let is_in = key >= start && end.is_none_or(|end| key < end);
        if is_in && may(&user, "t", &scan).is_ok() {
            prop_assert_eq!(may(&user, "t", &Op::Get { key: key.into() }), DONE);
        }
    }

    /// Grants that are sorted for checks give what they give one by one.
    #[test]
    fn a_compiled_user_may_what_one_of_its_grants_gives(
        grants in proptest::collection::vec(
            (0..16_u8, proptest::option::of("[ab]"), proptest::collection::vec("[ab]{0,3}", 0..4)), 0..6,
        ),
        table in proptest::option::of("[abc]"),
        key in "[ab]{0,4}",
        end in proptest::option::of("[ab]{0,4}"),
        is_range in any::<bool>(),
    ) {
        let grant = |(rights, table, prefixes): (u8, Option<String>, Vec<String>)| Grant {
            rights: NAMES_OF_BITS.iter().filter(|(bit, _)| rights & bit != 0).fold(Rights::NONE, |all, (_, one)| all.and(*one)),
            table: table.map(|name| name.parse().expect("a name")),
            prefixes: prefixes.into_iter().map(Bytes::from).collect(),
        };
        let grants: Vec<Grant> = grants.into_iter().map(grant).collect();
        let user = CompiledUser::from(User { grants: grants.clone(), ..User::new(UserName::default()) });
        let keys = if is_range { Keys::Range(key.as_bytes(), end.as_deref().map(str::as_bytes)) } else { Keys::One(key.as_bytes()) };
        let within = |prefix: &Bytes| match keys {
            Keys::Range(start, end) => start.starts_with(prefix) && match (end, after_prefix(prefix)) {
                (_, None) => true,
                (end, Some(after)) => end.is_some_and(|end| *end <= after[..]),
            },
            _ => key.as_bytes().starts_with(prefix),
        };
        for (_, right) in NAMES_OF_BITS {
            let is_keyless = right == Rights::ADMIN || right == Rights::OPERATE;
            let is_given = grants.iter().any(|grant| {
                let is_there = grant.table.is_none() || table.as_deref() == grant.table.as_deref();
                grant.rights.contains(right) && is_there && (is_keyless || grant.prefixes.iter().any(within))
            });
            let scope = table.as_deref().map_or(Scope::All, Scope::Named);
            let need = Need { rights: right, instead: Rights::NONE, scope, keys };
            prop_assert_eq!(user.may("none", &need, |_| None).is_ok(), is_given);
        }
        let prefixes: std::collections::BTreeSet<&Bytes> = user.prefixes_in("a").collect();
        prop_assert_eq!(user.knows("a"), !prefixes.is_empty() || grants.iter().any(|grant| {
            grant.table.as_deref().is_none_or(|table| table == "a") && !grant.rights.keyless().is_empty()
        }));
    }

    #[test]
    fn hostile_bytes_make_no_user_beyond_the_limits(bytes in any::<Vec<u8>>()) {
        if let Ok(user) = crate::cluster::decode_value::<User>("user", &bytes) {
            prop_assert!(user.name.len() <= MAX_USER_NAME_BYTES);
            prop_assert!(user.grants.iter().all(|grant| Rights::ALL.contains(grant.rights)));
        }
    }
}

/// A list is refused by its length, before it is built: an element takes fifty times its encoded bytes.
#[test]
fn long_lists_are_refused_while_they_are_decoded() {
    let rules = |count| UserChange {
        name: "bob".parse().expect("a name"),
        presence: Presence::Any,
        rules: vec![UserRule::ClearGrants; count],
    };
    let decoded = |change: &UserChange| {
        postcard::from_bytes::<UserChange>(&postcard::to_allocvec(change).expect("it is encoded"))
    };
    assert_eq!(decoded(&rules(MAX_RULES)), Ok(rules(MAX_RULES)));
    decoded(&rules(MAX_RULES + 1)).expect_err("too many rules");
    let grant = Grant { prefixes: vec![Bytes::new(); MAX_PREFIXES + 1], ..Grant::default() };
    let change = UserChange { rules: vec![UserRule::AddGrant(grant)], ..rules(0) };
    decoded(&change).expect_err("too many prefixes");
    let names = Some(vec!["bob".parse().expect("a name"); 1025]);
    let op = postcard::to_allocvec(&Op::RemoveUsers { names }).expect("it is encoded");
    postcard::from_bytes::<Op>(&op).expect_err("too many names");
}

//! Hostile tries, generated from the table of commands: each command by users that lack a right, that have it elsewhere, or
//! that have not said who they are. All are refused with the right error, nothing is submitted, and nothing is changed.

use super::fake::Fake;
use crate::commands::table::{Needs, Spec, all};
use crate::metrics::Class;
use crate::protocol_session::ProtocolSession;
use crate::users::{Answer, Work};
use leeward_format::table::TableName;
use leeward_format::user::{Grant, PasswordHash, User, Users};
use std::sync::Arc;

const KEY: &str = "eu/1";

/// The arguments of a command that touches [`KEY`], or keys that begin with `eu/`.
fn sample(spec: &Spec) -> String {
    match spec.name {
        "acl" => "ACL LIST".into(),
        "auth" => "AUTH nobody wrong".into(),
        "client" => "CLIENT LIST".into(),
        "cluster" => "CLUSTER SLOTS".into(),
        "config" => "CONFIG GET *".into(),
        "hello" => "HELLO 2".into(),
        "kdelrange" | "krange" => format!("{} eu/ eu0", spec.name),
        "keys" => "KEYS eu/*".into(),
        "kprefix" => "KPREFIX eu/".into(),
        "scan" => "SCAN 0 MATCH eu/*".into(),
        "select" => "SELECT orders".into(),
        "wait" => "WAIT 0 0".into(),
        "echo" => "ECHO hello".into(),
        "getex" => format!("GETEX {KEY} PERSIST"),
        "expireat" => format!("EXPIREAT {KEY} 99999999999"),
        "pexpireat" => format!("PEXPIREAT {KEY} 99999999999999"),
        name => {
            let keys = if spec.keys.0 > 0 { 1 } else { 0 };
            let others = (spec.arity.unsigned_abs() as usize - 1).saturating_sub(keys);
            let words = std::iter::once(name).chain((0..keys).map(|_| KEY)).chain((0..others).map(|_| "7"));
            words.collect::<Vec<_>>().join(" ")
        }
    }
}

fn user(grants: &[&str]) -> User {
    let alice = User::new("alice".parse().expect("a name"));
    let passwords = vec![PasswordHash::new("$argon2id$alice".into())];
    let mut user = User { is_enabled: true, passwords, ..alice };
    user.grants.extend(grants.iter().map(|grant| grant.parse::<Grant>().expect("a grant")));
    user
}

/// A node that has these users; [`KEY`] is a number, in two tables.
fn node_of(users: impl IntoIterator<Item = User>) -> Fake {
    let mut fake = Fake::new(&["m"]);
    for table in ["default", "orders"] {
        let pairs = fake.node.tables.entry(table.parse().expect("a name")).or_default();
        pairs.insert(KEY.into(), "41".into());
    }
    let mut known = Users::none();
    known.revision = 1;
    users.into_iter().for_each(|user| known.put(user));
    fake.users = Arc::new(known);
    fake
}

/// A connection of this user.
fn connected(user: User) -> Fake {
    let (name, id) = (user.name.clone(), user.passwords[0].id());
    let mut fake = node_of([user]);
    fake.feed(b"AUTH alice pw\r\n");
    fake.decide(Answer::Admitted(name, Some(id)));
    assert_eq!(fake.take_output(), "+OK|");
    fake
}

impl Fake {
    /// The password thread has this answer to the only question.
    pub(super) fn decide(&mut self, answer: Answer) {
        assert_eq!(self.shared.gate.questions.len(), 1, "{:?}", self.shared.gate.questions);
        self.shared.gate.questions.clear();
        self.with(|session, context, _| session.answered(answer, context));
        self.advance();
    }

    /// Users change, as the event loop tells sessions.
    fn change_users(&mut self, change: impl FnOnce(&mut Users)) -> bool {
        let mut users = Users::clone(&self.users);
        change(&mut users);
        users.revision += 1;
        self.users = Arc::new(users);
        self.with(|session, context, _| session.follow_users(context))
    }

    /// Runs a command that must be refused: nothing reaches the node.
    fn refused(&mut self, line: &str) -> String {
        let before = self.node.tables.clone();
        self.feed(format!("{line}\r\n").as_bytes());
        assert!(self.waiting.is_empty(), "{line} reaches the node: {:?}", self.waiting);
        assert_eq!(self.node.tables, before, "{line}");
        self.take_output()
    }
}

const NO_PLACE: &str = "-NOPERM this user has no permissions to access one of the keys used as arguments|";

fn no_right(name: &str) -> String {
    format!("-NOPERM this user has no permissions to run the '{name}' command|")
}

/// The rights that a command needs on its keys, by what Redis 7 says of it.
fn needed(spec: &Spec) -> &'static [&'static str] {
    match (spec.name, spec.class) {
        ("incr" | "incrby" | "decr" | "decrby" | "getdel" | "getex", _) => &["read", "write"],
        (_, Class::Write) => &["write"],
        _ => &["read"],
    }
}

fn of_data() -> impl Iterator<Item = &'static Spec> {
    all().iter().filter(|spec| matches!(spec.needs, Needs::Operations | Needs::OldToo))
}

#[test]
fn each_command_on_data_needs_its_rights_on_its_table_and_keys() {
    assert!(of_data().count() > 30);
    for spec in of_data() {
        let (line, needed) = (sample(spec), needed(spec));
        let rights = needed.join(",");
        // DBSIZE is about the whole table.
        let prefix = if spec.name == "dbsize" { "" } else { "eu/" };
        let mut fake = connected(user(&[&format!("{rights}@default:{prefix}")]));
        let reply = fake.run(&line);
        assert!(!reply.starts_with('-'), "{line} with {rights}: {reply}");
        // Another table, another prefix, a longer prefix, and another right.
        let others = ["read", "write", "admin", "operate"].into_iter().filter(|right| !needed.contains(right));
        let others = others.filter(|right| spec.name != "dbsize" || *right != "operate").collect::<Vec<_>>().join(",");
        for (grant, expected) in [
            (format!("{rights}@orders"), NO_PLACE.to_owned()),
            (format!("{rights}@default:us/"), NO_PLACE.to_owned()),
            (format!("{rights}@default:eu/10"), NO_PLACE.to_owned()),
            (others, no_right(spec.name)),
        ] {
            assert_eq!(connected(user(&[&grant])).refused(&line), expected, "{line} with {grant}");
        }
        // One of two rights is not enough.
        for part in needed.iter().filter(|_| needed.len() > 1) {
            assert_eq!(connected(user(&[part])).refused(&line), no_right(spec.name), "{line} with {part}");
        }
    }
}

#[test]
fn a_table_that_the_user_may_not_know_of_looks_like_one_that_is_not_there() {
    let mut fake = connected(user(&["all@orders"]));
    for table in ["secret", "no-such-table", "default2"] {
        assert_eq!(fake.refused(&format!("SELECT {table}")), NO_PLACE);
    }
    assert_eq!(fake.refused("GET eu/1"), NO_PLACE);
    assert_eq!(fake.run("SELECT orders"), "+OK|");
    assert_eq!(fake.run("GET eu/1"), "$2|41|");
}

#[test]
fn what_operators_see_needs_the_right_to_operate_on_all_tables() {
    let operators = ["INFO", "CONFIG GET *", "CLIENT LIST", "ACL LOG"];
    let admins = [
        "ACL LIST",
        "ACL USERS",
        "ACL GETUSER alice",
        "ACL SETUSER bob on",
        "ACL DELUSER alice",
        "ACL DRYRUN alice get a",
    ];
    for (grant, has) in [("read,write", ""), ("all@default", ""), ("operate", "operate"), ("admin", "admin")] {
        let mut fake = connected(user(&[grant]));
        for (lines, right) in [(&operators[..], "operate"), (&admins[..], "admin")] {
            for line in lines.iter().filter(|_| has != right) {
                let said = fake.refused(line);
                assert!(
                    said.starts_with("-NOPERM this user has no permissions to run the '"),
                    "{grant}: {line}: {said}"
                );
            }
        }
        for line in ["PING", "ACL WHOAMI", "ACL CAT", "CLIENT ID", "COMMAND COUNT", "ACL HELP"] {
            assert!(!fake.run(line).starts_with('-'), "{line}");
        }
    }
    let mut operator = connected(user(&["operate"]));
    for line in operators {
        assert!(!operator.run(line).starts_with('-'), "{line}");
    }
    assert!(operator.run("CLIENT LIST").contains("user=alice"));
}

#[test]
fn who_has_not_said_who_it_is_gets_nothing() {
    for spec in all() {
        let mut fake = node_of([user(&["all"])]);
        let said = fake.refused(&sample(spec));
        match spec.name {
            "auth" => {
                assert_eq!(said, "", "it waits for the password thread");
                fake.decide(Answer::Refused);
                assert_eq!(fake.take_output(), "-WRONGPASS invalid username-password pair or user is disabled.|");
            }
            "hello" => assert!(said.starts_with("-NOAUTH HELLO must be called with"), "{said}"),
            "quit" => assert_eq!(said, "+OK|"),
            "reset" => assert_eq!(said, "+RESET|"),
            _ => assert_eq!(said, "-NOAUTH Authentication required.|", "{}", spec.name),
        }
    }
}

#[test]
fn commands_behind_auth_wait_for_it_and_those_before_do_not() {
    let mut fake = node_of([user(&["read,write"])]);
    fake.feed(b"GET eu/1\r\nAUTH alice pw\r\nGET eu/1\r\nACL WHOAMI\r\n");
    assert_eq!(fake.take_output(), "-NOAUTH Authentication required.|");
    assert!(fake.waiting.is_empty() && !fake.session.wants_input());
    let question = &fake.shared.gate.questions[0];
    assert!(matches!(&question.work, Work::Check { user, .. } if user == "alice"), "{question:?}");
    let id = user(&[]).passwords[0].id();
    fake.decide(Answer::Admitted("alice".parse().expect("a name"), Some(id)));
    fake.answer(0);
    assert_eq!(fake.take_output(), "+OK|$2|41|$5|alice|");
    // Another user's wrong password changes nothing.
    fake.feed(b"AUTH root x\r\nACL WHOAMI\r\n");
    fake.decide(Answer::Refused);
    assert_eq!(fake.take_output(), "-WRONGPASS invalid username-password pair or user is disabled.|$5|alice|");
    fake.feed(b"AUTH root x\r\n");
    fake.decide(Answer::Busy);
    assert!(fake.take_output().starts_with("-ERR too many tries"));
    assert_eq!(fake.run("RESET"), "+RESET|");
    assert_eq!(fake.run("GET eu/1"), "-NOAUTH Authentication required.|");
}

#[test]
fn hello_with_auth_chooses_the_version_only_if_the_user_comes_in() {
    let mut fake = node_of([user(&["read"])]);
    fake.feed(b"HELLO 3 AUTH alice no SETNAME me\r\n");
    fake.decide(Answer::Refused);
    assert_eq!(fake.take_output(), "-WRONGPASS invalid username-password pair or user is disabled.|");
    fake.feed(b"HELLO 3 AUTH alice pw SETNAME me\r\nGET none\r\n");
    fake.decide(Answer::Admitted("alice".parse().expect("a name"), Some(user(&[]).passwords[0].id())));
    fake.waiting.clear();
    let said = fake.take_output();
    assert!(said.starts_with("%7|$6|server|"), "{said}");
}

#[test]
fn a_user_that_is_gone_is_out_and_changed_rights_count_from_the_next_command() {
    let alice = || user(&["read"]);
    type Change = fn(&mut Users);
    let changes: [Change; 3] = [
        |users| users.remove(&"alice".parse().expect("a name")),
        |users| users.put(User { is_enabled: false, ..user(&["read"]) }),
        |users| users.put(User { passwords: vec![PasswordHash::new("$argon2id$new".into())], ..user(&["read"]) }),
    ];
    for change in changes {
        let mut fake = connected(alice());
        let stays = fake.change_users(|users| {
            users.put(User { name: "root".parse().expect("a name"), ..user(&["all"]) });
            change(users);
        });
        assert!(!stays, "the connection ends");
        assert_eq!(fake.refused("GET eu/1"), "-NOAUTH Authentication required.|");
    }
    let mut fake = connected(alice());
    assert_eq!(fake.run("GET eu/1"), "$2|41|");
    assert!(fake.change_users(|users| users.put(user(&["read@orders"]))));
    assert_eq!(fake.refused("GET eu/1"), NO_PLACE);
    assert!(fake.change_users(|users| users.put(user(&["write"]))));
    assert_eq!(fake.refused("GET eu/1"), no_right("get"));
    assert_eq!(fake.run("SET eu/1 x"), "+OK|");
    // All users are removed: everybody is let in.
    assert!(fake.change_users(|users| users.remove(&"alice".parse().expect("a name"))));
    assert_eq!(fake.run("GET eu/1"), "$1|x|");
    // And the first user closes it again.
    assert!(fake.change_users(|users| users.put(user(&["all"]))));
    assert_eq!(fake.refused("GET eu/1"), "-NOAUTH Authentication required.|");
}

#[test]
fn clients_of_other_machines_are_told_what_to_do_while_there_are_no_users() {
    for (address, is_protected, lets_in) in [
        ("10.0.0.9:5000", true, false),
        ("127.0.0.1:5000", true, true),
        ("[::1]:5000", true, true),
        ("10.0.0.9:5000", false, true),
    ] {
        let mut fake = node_of([]);
        fake.shared.gate.is_protected = is_protected;
        fake.session =
            fake.with(|_, context, _| crate::commands::Session::new(9, address.into(), "127.0.0.1:1".into(), context));
        if lets_in {
            assert_eq!(fake.run("GET eu/1"), "$2|41|", "{address}");
            continue;
        }
        let said = fake.refused("GET eu/1");
        assert!(said.starts_with("-DENIED this cluster has no users") && said.contains("leeward user add"), "{said}");
        assert!(fake.session.is_finished(), "the connection ends");
    }
    let mut unknown = node_of([]);
    unknown.users = Arc::default();
    assert!(unknown.refused("GET eu/1").starts_with("-LOADING"), "users are not known yet");
    assert!(unknown.refused("AUTH alice pw").starts_with("-LOADING"));
}

#[test]
fn acl_answers_as_redis_does() {
    let mut fake = node_of([]);
    for (line, expected) in [
        ("ACL WHOAMI", "$7|default|"),
        ("ACL LIST", "*1|$31|user default on nopass ~* +@all|"),
        ("ACL USERS", "*1|$7|default|"),
        (
            "AUTH foo",
            "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?|",
        ),
        ("AUTH default foo", "+OK|"),
        ("AUTH bob foo", "-WRONGPASS invalid username-password pair or user is disabled.|"),
        ("AUTH a b c", "-ERR syntax error|"),
        ("ACL SETUSER bob nosuch", "-ERR Error in ACL SETUSER modifier 'nosuch': Syntax error|"),
        (
            "ACL SETUSER bob +@nosuch",
            "-ERR Error in ACL SETUSER modifier '+@nosuch': Unknown command or category name in ACL|",
        ),
        ("ACL SETUSER bob (~x", "-ERR Unmatched parenthesis in acl selector starting at '(~x'.|"),
        ("ACL SETUSER \"b b\" on", "-ERR Usernames can't contain spaces or null characters|"),
        ("ACL GETUSER none", "$-1|"),
        ("ACL DELUSER bob2", ":0|"),
        ("ACL DELUSER default", "-ERR The 'default' user cannot be removed|"),
        ("ACL DRYRUN none get a", "-ERR User 'none' not found|"),
        ("ACL DRYRUN default nosuch", "-ERR Command 'nosuch' not found|"),
        ("ACL DRYRUN default get", "-ERR wrong number of arguments for 'get' command|"),
        ("ACL DRYRUN default get a", "+OK|"),
        (
            "ACL GENPASS 0",
            "-ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096|",
        ),
        ("ACL GENPASS x", "-ERR value is not an integer or out of range|"),
        ("ACL nosuch", "-ERR unknown subcommand 'nosuch'. Try ACL HELP.|"),
        ("ACL", "-ERR wrong number of arguments for 'acl' command|"),
        ("ACL SETUSER", "-ERR wrong number of arguments for 'acl|setuser' command|"),
        ("ACL CAT nosuch", "-ERR Unknown category 'nosuch'|"),
        ("ACL CAT", "*4|$4|read|$5|write|$5|admin|$7|operate|"),
        ("ACL LOG RESET", "+OK|"),
        ("ACL LOG", "*0|"),
        ("ACL LOG x", "-ERR value is not an integer or out of range|"),
    ] {
        assert_eq!(fake.run(line), expected, "{line}");
    }
    assert_eq!(fake.run("ACL GENPASS").len(), "$64||".len() + 64);
    assert_eq!(fake.run("ACL GENPASS 5").len(), "$2||".len() + 2);
    let refused = fake.run("ACL SETUSER bob on ~a* +@read");
    assert!(refused.starts_with("-ERR the first user must be"), "{refused}");
}

#[test]
fn acl_shows_users_without_their_passwords_and_logs_what_was_refused() {
    let mut root = user(&["write@orders:eu/"]);
    root.grants[0] = Grant::everything();
    let id = root.passwords[0].id();
    let mut fake = connected(root);
    let line = format!("user alice on #{id} ~* +@all (table:orders ~eu/* -@all +@write)");
    assert_eq!(fake.run("ACL LIST"), format!("*1|${}|{line}|", line.len()));
    let shown = fake.run("ACL GETUSER alice");
    assert!(shown.contains(&id.to_string()) && !shown.contains("argon2"), "{shown}");
    assert!(shown.contains("selectors|*1|*8|"), "{shown}");
    fake.feed(b"AUTH bob bad\r\n");
    fake.decide(Answer::Refused);
    fake.take_output();
    fake.feed(b"AUTH bob bad\r\n");
    fake.decide(Answer::Refused);
    fake.take_output();
    let log = fake.run("ACL LOG");
    assert!(log.starts_with("*1|*14|$5|count|:2|$6|reason|$4|auth|"), "{log}");
    assert!(log.contains("$8|username|$3|bob|") && !log.contains("bad"), "{log}");
    // A rule with a password waits for the password thread, and no error shows it.
    fake.feed(b"ACL SETUSER bob on >secret ~b* +@read\r\nPING\r\n");
    assert!(fake.waiting.is_empty() && fake.take_output().is_empty());
    assert!(!format!("{:?}", fake.shared.gate.questions).contains("secret"));
    fake.decide(Answer::NoSuchPassword);
    let said = fake.take_output();
    assert!(
        said.starts_with("-ERR Error in ACL SETUSER modifier '<...': The password you are trying")
            && said.ends_with("+PONG|"),
        "{said}"
    );
    let said = fake.run("ACL SETUSER bob #0123 ");
    assert!(said.contains("SHA-256"), "{said}");
}

#[test]
fn what_a_cursor_of_another_user_stands_for_is_not_told() {
    let mut fake = connected(user(&["read@default:pub/"]));
    let cursor = fake.shared.cursors.open(&TableName::default(), b"secret/2");
    for pattern in ["a*", "secret/1*", "secret/2*", "z*"] {
        assert_eq!(fake.refused(&format!("SCAN {cursor} MATCH {pattern}")), NO_PLACE, "{pattern}");
    }
}

#[test]
fn passwords_that_cannot_be_used_are_refused_and_none_is_shown() {
    let mut fake = connected(user(&["all"]));
    let long = "x".repeat(513);
    for rules in [format!(">{long}"), ">".into(), format!("<{long}"), "(~a* +@read >sesame)".into(), "(>sesame".into()]
    {
        let reply = fake.refused(&format!("ACL SETUSER bob {rules}"));
        assert!(reply.starts_with("-ERR") && !reply.contains("sesame") && !reply.contains("xxx"), "{reply}");
    }
    let many = ">a ".repeat(17);
    assert!(fake.refused(&format!("ACL SETUSER bob {many}")).contains("at most 16"));
}

#[test]
fn strangers_send_little() {
    let mut fake = node_of([user(&["all"])]);
    let value = "x".repeat(100_000);
    let reply = fake.refused(&format!("SET {KEY} {value}"));
    assert!(reply.starts_with('-') && !reply.starts_with("-NOAUTH"), "{reply}");
}

//! Users on real nodes: they come in on every protocol, are in force everywhere within a second, and are out as soon.

use super::*;
use leeward_format::op::{OpError, Secret};
use leeward_format::user::{Presence, UserChange, UserName, UserRule};
use leeward_security::passwords::{Credentials, Password, hash};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

pub(super) fn name(text: &str) -> UserName {
    text.parse().expect("a name")
}

pub(super) fn rules(password: &str, grants: &[&str]) -> Vec<UserRule> {
    let hash = leeward_format::user::PasswordHash::new(hash(&Password::new(password.as_bytes())));
    let grants = grants.iter().map(|grant| UserRule::AddGrant(grant.parse().expect("a grant")));
    [UserRule::Enable(true), UserRule::AddPassword(hash)].into_iter().chain(grants).collect()
}

/// A native connection, perhaps of a user.
pub(super) struct Native {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Native {
    pub(super) fn connect(address: &str) -> Native {
        let stream = TcpStream::connect(address).expect("the node listens");
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        Native { stream, input: Vec::new() }
    }

    pub(super) fn of(address: &str, user: &str, password: &str) -> Native {
        let mut native = Native::connect(address);
        let password = Secret(bytes::Bytes::copy_from_slice(password.as_bytes()));
        native.send(&Request::Auth { user: user.into(), password });
        native
    }

    pub(super) fn send(&mut self, request: &Request) {
        let mut frame = Vec::new();
        write_frame(FrameKind::Request, request, &mut frame);
        self.stream.write_all(&frame).expect("the node reads");
    }

    /// The next reply; `None`: the connection ended.
    pub(super) fn reply(&mut self) -> Option<Reply> {
        loop {
            let read = read_frame::<Reply>(FrameKind::Reply, &self.input, MAX_MESSAGE_BYTES).expect("frames");
            if let Some((reply, len)) = read {
                self.input.drain(..len);
                return Some(reply);
            }
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece) {
                Ok(len) if len > 0 => self.input.extend_from_slice(&piece[..len]),
                _ => return None,
            }
        }
    }

    pub(super) fn run(&mut self, op: Op) -> Option<OpResult> {
        self.send(&Request::Ops { id: 1, direct: false, table: TableName::default(), ops: vec![op] });
        loop {
            match self.reply()? {
                Reply::Results { mut results, .. } => return results.pop(),
                Reply::Auth { refused: Some(error) } => return Some(OpResult::Error(error)),
                _ => {}
            }
        }
    }

    pub(super) fn change(&mut self, user: &str, presence: Presence, rules: Vec<UserRule>) {
        let change = Box::new(UserChange { name: name(user), presence, rules });
        assert_eq!(self.run(Op::ChangeUser { change }), Some(OpResult::Done));
    }
}

fn http_as(address: &str, path: &str, user: Option<(&str, &str)>) -> (u16, String) {
    let header = user.map(|(user, password)| {
        let credentials = Credentials { user: user.into(), password: Password::new(password.as_bytes()) };
        format!("Authorization: {}\r\n", *credentials.header())
    });
    let mut stream = TcpStream::connect(address).expect("the admin port listens");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    let header = header.unwrap_or_default();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{header}Connection: close\r\n\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("text");
    (text[9..12].parse().expect("a status"), text)
}

/// Repeats `act` until it returns something: users are in force at every node within a second, or a little more on a
/// busy machine.
pub(super) fn soon<T>(mut act: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = act() {
            return found;
        }
        assert!(begun.elapsed() < LONG, "not in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A cluster whose user `root` may do everything.
pub(super) fn with_root(nodes: u32) -> Cluster {
    let cluster = Cluster::start(nodes);
    assert_eq!(cluster.client(0).run_until_served("SET a 1"), "+OK");
    let mut first = Native::connect(&cluster.servers[0].info().native_address);
    first.change("root", Presence::New, rules("secret", &["all"]));
    for node in 0..nodes as usize {
        soon(|| (cluster.client(node).run("GET a") == "-NOAUTH Authentication required.").then_some(()));
    }
    cluster
}

#[test]
fn from_the_first_user_on_nobody_comes_in_without_one_on_any_port_of_any_node() {
    let cluster = with_root(2);
    for node in 0..2 {
        let info = cluster.servers[node].info().clone();
        let mut client = cluster.client(node);
        assert_eq!(client.run("AUTH root wrong"), "-WRONGPASS invalid username-password pair or user is disabled.");
        assert_eq!(client.run("AUTH nobody secret"), "-WRONGPASS invalid username-password pair or user is disabled.");
        assert_eq!(client.run("GET a"), "-NOAUTH Authentication required.");
        assert_eq!(client.run("AUTH root secret"), "+OK");
        assert_eq!((client.run("GET a"), client.run("ACL WHOAMI")), ("1".into(), "root".into()));
        let mut native = Native::connect(&info.native_address);
        let said = native.run(Op::Get { key: "a".into() });
        assert!(matches!(said, Some(OpResult::Error(OpError::Unauthenticated(_)))), "{said:?}");
        for request in
            [Request::Map, Request::Identify, Request::Hello { client: "x".into(), known: 0 }, Request::RingOffer]
        {
            let mut native = Native::connect(&info.native_address);
            native.send(&request);
            let said = native.reply();
            assert!(matches!(said, Some(Reply::Auth { refused: Some(OpError::Unauthenticated(_)) })), "{said:?}");
            assert_eq!(native.reply(), None, "the connection ends");
        }
        let mut native = Native::of(&info.native_address, "root", "wrong");
        assert!(matches!(native.reply(), Some(Reply::Auth { refused: Some(OpError::Unauthenticated(_)) })));
        assert_eq!(native.reply(), None);
        let mut native = Native::of(&info.native_address, "root", "secret");
        assert_eq!(native.run(Op::Get { key: "a".into() }), Some(OpResult::Value(Some("1".into()))));
        for path in ["/status", "/metrics", "/"] {
            let (code, text) = http_as(&info.admin_address, path, None);
            assert!(code == 401 && text.to_lowercase().contains("www-authenticate: basic"), "{path}: {text}");
            assert!(!text.contains("region"), "{text}");
            assert_eq!(http_as(&info.admin_address, path, Some(("root", "wrong"))).0, 401);
            assert_eq!(http_as(&info.admin_address, path, Some(("root", "secret"))).0, 200);
        }
        assert_eq!(http_as(&info.admin_address, "/livez", None).0, 200);
        assert_eq!(http_as(&info.admin_address, "/readyz", None).0, 200);
    }
}

#[test]
fn a_user_is_limited_on_each_protocol_and_out_on_open_connections_when_it_is_removed() {
    let cluster = with_root(1);
    let info = cluster.servers[0].info().clone();
    let mut root = Native::of(&info.native_address, "root", "secret");
    root.change("shop", Presence::New, rules("pw", &["read,write@default:eu/"]));
    let mut client = cluster.client(0);
    assert_eq!(client.run("AUTH shop pw"), "+OK");
    assert_eq!(client.run("SET eu/1 x"), "+OK");
    assert!(client.run("GET a").starts_with("-NOPERM"));
    assert!(client.run("INFO").starts_with("-NOPERM"));
    let mut native = Native::of(&info.native_address, "shop", "pw");
    assert_eq!(native.run(Op::Get { key: "eu/1".into() }), Some(OpResult::Value(Some("x".into()))));
    for op in [
        Op::Get { key: "a".into() },
        Op::DeleteRange { start: "".into(), end: None },
        Op::ListUsers,
        Op::Count { region: RegionId(1) },
        Op::Digests { region: RegionId(1), after: None },
        Op::DropTable { table: "none".parse().expect("a name") },
        Op::DropTable { table: TableName::default() },
        Op::ChangeUser {
            change: Box::new(UserChange { name: name("shop"), presence: Presence::Any, rules: rules("x", &["all"]) }),
        },
    ] {
        let said = native.run(op.clone());
        assert!(matches!(said, Some(OpResult::Error(OpError::NotPermitted(_)))), "{op:?}: {said:?}");
    }
    native.send(&Request::Map);
    let Some(Reply::Map(map)) = native.reply() else { panic!("a map") };
    assert_eq!(map.regions.len(), 1);
    assert_eq!((&map.regions[0].start[..], map.regions[0].end.as_deref()), (&b"eu/"[..], Some(&b"eu0"[..])));
    assert!(http_as(&info.admin_address, "/status", Some(("shop", "pw"))).0 == 403);

    // An old value that the user may not read is left out.
    root.change("writer", Presence::New, rules("pw", &["write"]));
    let mut writer = Native::of(&info.native_address, "writer", "pw");
    let deleted = writer.run(Op::Delete { key: "eu/1".into(), when: Condition::Always });
    assert_eq!(deleted, Some(OpResult::Deleted { done: true, old: None, version: None }));

    assert_eq!(root.run(Op::RemoveUsers { names: Some(vec![name("shop")]) }), Some(OpResult::Done));
    let begun = Instant::now();
    // Both connections were idle, and end.
    assert_eq!(client.stream.read_line(&mut String::new()).expect("the end"), 0);
    assert_eq!(native.reply(), None);
    assert!(begun.elapsed() < LONG / 2);
    assert_eq!(http_as(&info.admin_address, "/status", Some(("shop", "pw"))).0, 401);
    let refused = root.run(Op::RemoveUsers { names: Some(vec![name("root"), name("writer")]) });
    assert!(matches!(refused, Some(OpResult::Error(OpError::Invalid(_)))), "{refused:?}");
    assert_eq!(root.run(Op::RemoveUsers { names: None }), Some(OpResult::Done));
    soon(|| (cluster.client(0).run("GET a") == "1").then_some(()));
}

#[test]
fn redis_commands_make_and_change_users() {
    let cluster = Cluster::start(1);
    let mut first = cluster.client(0);
    assert_eq!(first.run_until_served("SET a1 1"), "+OK");
    assert!(first.run("ACL SETUSER bob on >pw ~a* +@read").starts_with("-ERR the first user must be"));
    assert_eq!(first.run("ACL SETUSER default >secret"), "+OK");
    soon(|| (cluster.client(0).run("GET a1") == "-NOAUTH Authentication required.").then_some(()));
    let mut root = cluster.client(0);
    assert_eq!(root.run("AUTH secret"), "+OK");
    assert_eq!(root.run("ACL SETUSER bob on >pw ~a* +@read"), "+OK");
    let mut bob = soon(|| {
        let mut bob = cluster.client(0);
        (bob.run("AUTH bob pw") == "+OK").then_some(bob)
    });
    assert_eq!(bob.run("GET a1"), "1");
    assert_eq!(bob.run("SET a1 2"), "-NOPERM this user has no permissions to run the 'set' command");
    assert_eq!(root.run("ACL DRYRUN bob get b1"), "This user has no permissions to access the 'b1' key");
    assert_eq!(root.run("ACL SETUSER bob +@write >pw2 <pw"), "+OK");
    assert_eq!(
        root.run("ACL SETUSER bob <none"),
        "-ERR Error in ACL SETUSER modifier '<...': The password you are trying to remove from the user does not exist"
    );
    // It came in with the password that is gone.
    assert_eq!(bob.stream.read_line(&mut String::new()).expect("the end"), 0);
    let mut bob = cluster.client(0);
    assert_eq!(bob.run("AUTH bob pw2"), "+OK");
    assert_eq!(bob.run("SET a1 2"), "+OK");
    assert_eq!(root.run("ACL DELUSER bob none"), ":1");
    assert_eq!(bob.stream.read_line(&mut String::new()).expect("the end"), 0);
}

#[test]
fn a_flood_of_tries_delays_neither_other_clients_nor_a_user_that_is_known() {
    let cluster = Cluster::start_with(1, |config| config.clients.max_connections = 1_100);
    assert_eq!(cluster.client(0).run_until_served("SET a 1"), "+OK");
    let mut first = Native::connect(&cluster.servers[0].info().native_address);
    first.change("root", Presence::New, rules("secret", &["all"]));
    let mut root = soon(|| {
        let mut root = cluster.client(0);
        (root.run("AUTH root secret") == "+OK").then_some(root)
    });
    let mut flood: Vec<Client> = (0..1_000).map(|_| cluster.client(0)).collect();
    for (number, client) in flood.iter_mut().enumerate() {
        client.send(format!("AUTH user{number} wrong\r\n").as_bytes());
    }
    let begun = Instant::now();
    for _ in 0..50 {
        let asked = Instant::now();
        assert_eq!(root.run("GET a"), "1");
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    }
    let mut again = cluster.client(0);
    assert_eq!(again.run("AUTH root secret"), "+OK", "a password that is known needs no check");
    assert!(begun.elapsed() < LONG / 2);
    // Most are refused at once, because the address has failed before; none comes in.
    for client in &mut flood {
        let said = client.reply();
        assert!(said.starts_with("-WRONGPASS") || said.starts_with("-ERR too many tries"), "{said}");
    }
    let snapshot = cluster.servers[0].snapshot().expect("the node answers");
    assert!(snapshot.status.coordinator_up, "the session was kept");
}

#[test]
fn thousands_of_clients_of_a_user_come_in_after_a_restart_by_a_few_checks() {
    let cluster = Cluster::start_with(1, |config| config.clients.max_connections = 4_100);
    assert_eq!(cluster.client(0).run_until_served("SET a 1"), "+OK");
    let mut first = Native::connect(&cluster.servers[0].info().native_address);
    first.change("root", Presence::New, rules("secret", &["all"]));
    soon(|| (cluster.client(0).run("GET a") == "-NOAUTH Authentication required.").then_some(()));
    // As after a restart, nothing is known of the password.
    let mut clients: Vec<Client> = (0..4_000).map(|_| cluster.client(0)).collect();
    let begun = Instant::now();
    for client in &mut clients {
        client.send(b"AUTH root secret\r\n");
    }
    for client in &mut clients {
        assert_eq!(client.reply(), "+OK");
    }
    let took = begun.elapsed();
    let (_, metrics) = http_as(&cluster.servers[0].info().admin_address, "/metrics", Some(("root", "secret")));
    let checks = metrics.lines().find_map(|line| line.strip_prefix("leeward_password_checks_total "));
    let checks: u32 = checks.expect("it is counted").parse().expect("a number");
    assert!((1..=8).contains(&checks), "{checks} checks");
    assert!(took < LONG, "{took:?}");
}

#[test]
fn a_wrong_password_is_answered_within_a_second_however_often_it_is_tried() {
    let cluster = with_root(1);
    let mut client = cluster.client(0);
    let mut was_told_when = false;
    for _ in 0..12 {
        let asked = Instant::now();
        let said = client.run("AUTH root wrong");
        // With room for a busy machine: the answer to the seventh was once delayed by 800 ms, the last by 5 s.
        assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
        was_told_when |= said.starts_with("-ERR too many tries to authenticate have failed");
        assert!(said.starts_with("-WRONGPASS") || was_told_when, "{said}");
    }
    assert!(was_told_when);
    assert_eq!(http_as(&cluster.servers[0].info().admin_address, "/status", Some(("root", "wrong"))).0, 429);
}

#[test]
fn what_operators_ask_for_and_failed_tries_are_in_the_audit_log_without_secrets() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("audit");
    let cluster = Cluster::start_with(1, |config| config.users.audit_log = Some(file.clone()));
    assert_eq!(cluster.client(0).run_until_served("SET a 1"), "+OK");
    let mut root = Native::connect(&cluster.servers[0].info().native_address);
    root.change("root", Presence::New, rules("secret", &["all"]));
    assert!(
        soon(|| Some(cluster.client(0).run("AUTH root wrong-password")).filter(|said| said.starts_with("-WRONG")))
            .len()
            > 5
    );
    let text = soon(|| {
        let text = std::fs::read_to_string(&file).expect("it is there");
        (text.contains("failed_try") && text.contains("change user root")).then_some(text)
    });
    // Renamed by the operator: the next line begins another.
    std::fs::rename(&file, directory.path().join("old")).expect("it is renamed");
    cluster.client(0).run("AUTH mallory x");
    let more = soon(|| std::fs::read_to_string(&file).ok().filter(|text| text.contains("mallory")));
    for line in text.lines().chain(more.lines()) {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(line["address"], "127.0.0.1");
    }
    assert!(!text.contains("argon2") && !text.contains("secret") && !text.contains("wrong-password"), "{text}");
}

#[test]
fn a_user_that_takes_its_own_password_away_gets_the_answer() {
    let cluster = with_root(1);
    let mut root = Native::of(&cluster.servers[0].info().native_address, "root", "secret");
    let rules = [vec![UserRule::ResetPasswords], rules("other", &[])].concat();
    root.change("root", Presence::Known, rules);
    assert_eq!(root.run(Op::Get { key: "a".into() }).filter(|found| !matches!(found, OpResult::Error(_))), None);
    let mut again = Native::of(&cluster.servers[0].info().native_address, "root", "other");
    assert_eq!(again.run(Op::Get { key: "a".into() }), Some(OpResult::Value(Some("1".into()))));
}

#[test]
fn a_node_that_never_reached_the_coordinator_lets_nobody_at_data() {
    let gone = TcpListener::bind(LOOPBACK).expect("a free port");
    let nowhere = gone.local_addr().expect("an address");
    drop(gone);
    let cluster = Cluster::start_with(1, |config| {
        config.coordination.coordinator = CoordinatorAt::Embedded(nowhere);
    });
    let mut client = cluster.client(0);
    assert!(client.run("AUTH root secret").starts_with("-LOADING"));
    for command in ["GET a", "SET a 1", "ACL LIST", "KRANGE a z"] {
        let said = client.run(command);
        assert!(said.starts_with("-LOADING") || said.starts_with("-NOAUTH"), "{command}: {said}");
    }
    assert_eq!(http_as(&cluster.servers[0].info().admin_address, "/readyz", None).0, 503);
}

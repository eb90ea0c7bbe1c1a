//! Users of real clusters, as operators and clients meet them: over ZooKeeper, over rings, without any admin that can come
//! in, and while passwords and certificates are replaced under load.

use crate::ensemble::{Ensemble, is_there};
use crate::proxy::Proxy;
use crate::running::{Dev, Resp, leeward, wait_for};
use leeward_bench::rotation;
use leeward_client::{
    Client, ClientError, ClientOptions, Grant, Op, OpError, OpResult, Password, Presence, Session, UserChange, UserRule,
};
use leeward_format::user::PasswordHash;
use leeward_security::passwords::hash;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.";

fn rules(password: &str, grant: &str) -> Vec<UserRule> {
    let hash = PasswordHash::new(hash(&Password::new(password.as_bytes())));
    let grant: Grant = grant.parse().expect("a grant");
    vec![UserRule::Enable(true), UserRule::AddPassword(hash), UserRule::AddGrant(grant)]
}

fn add(client: &Client, user: &str, password: &str, grant: &str) {
    let (name, rules) = (user.parse().expect("a name"), rules(password, grant));
    client.change_user(UserChange { name, presence: Presence::New, rules }).expect("it is made");
}

fn at(dev: &Dev, scheme: &str, user: Option<(&str, &str)>) -> ([String; 1], ClientOptions) {
    let at = user.map(|(user, _)| format!("{user}@")).unwrap_or_default();
    let address = format!("{scheme}://{at}127.0.0.1:{}", dev.base + 100);
    let password = user.map(|(_, password)| Password::new(password.as_bytes()));
    let (deadline, connect_within) = (Duration::from_secs(60), Duration::from_secs(20));
    ([address], ClientOptions { password, deadline, connect_within, ..ClientOptions::default() })
}

fn connect(dev: &Dev, scheme: &str, user: Option<(&str, &str)>) -> Result<Client, ClientError> {
    let (seeds, options) = at(dev, scheme, user);
    Client::connect(&seeds, options)
}

fn run(session: &mut Session, op: Op) -> Result<Option<OpResult>, ClientError> {
    match session.execute(vec![op])?.pop() {
        Some(OpResult::Error(error)) => Err(ClientError::Op(error)),
        other => Ok(other),
    }
}

fn is_denied<T>(result: &Result<T, ClientError>) -> bool {
    matches!(result, Err(ClientError::Op(OpError::NotPermitted(_))))
}

/// The first user, and a client of it.
fn root(dev: &Dev) -> Client {
    add(&connect(dev, "leeward", None).expect("everybody is let in"), "root", "secret", "all");
    wait_for("root comes in", || connect(dev, "leeward", Some(("root", "secret"))).is_ok());
    connect(dev, "leeward", Some(("root", "secret"))).expect("it is root")
}

fn is_refused<T>(result: &Result<T, ClientError>) -> bool {
    matches!(result, Err(ClientError::Op(OpError::Unauthenticated(_))))
}

#[test]
fn users_are_kept_at_zookeeper_and_stay_known_while_it_is_away() {
    if !is_there() {
        return;
    }
    let ensemble = Ensemble::start(1);
    let dev = Dev::start(2, &["--coordinator", &ensemble.address("/users")]);
    let root = root(&dev);
    add(&root, "shop", "pw", "read,write@default:eu/");
    let comes_in = |node: u32, user: &str, password: &str| {
        let mut client = Resp::connect(dev.resp(node));
        let said = client.call(&["AUTH", user, password]);
        (client, said)
    };
    let mut open = Vec::new();
    for node in 1..=2 {
        wait_for("the node knows shop", || comes_in(node, "shop", "pw").1 == "+OK");
        let (mut client, _) = comes_in(node, "shop", "pw");
        assert_eq!(client.call(&["SET", "eu/1", "x"]), "+OK");
        assert!(client.call(&["GET", "a"]).starts_with("-NOPERM"));
        assert_eq!(Resp::connect(dev.resp(node)).call(&["GET", "eu/1"]), "-NOAUTH Authentication required.");
        open.push(client);
    }
    // Without ZooKeeper the nodes go on with the users that they know.
    ensemble.signal(0, "STOP");
    assert_eq!(open[0].call(&["GET", "eu/1"]), "x");
    assert_eq!(comes_in(2, "shop", "pw").1, "+OK");
    assert_eq!(comes_in(2, "shop", "no").1, WRONG);
    ensemble.signal(0, "CONT");

    // Once a session is back, the request is executed, and both connections end. Until then it may be refused.
    let shop = || Some(vec!["shop".parse().expect("a name")]);
    wait_for("it is removed", || match root.remove_users(shop()) {
        Err(ClientError::Op(OpError::Invalid(why))) if why.contains("the coordinator cannot be reached") => false,
        outcome => outcome.map(|()| true).expect("it is removed"),
    });
    for (mut client, node) in open.into_iter().zip(1..) {
        wait_for("the connection ends", || client.is_ended());
        wait_for("shop is unknown", || comes_in(node, "shop", "pw").1 == WRONG);
    }
    root.remove_users(None).expect("all are removed");
    for node in 1..=2 {
        wait_for("everybody is let in", || Resp::connect(dev.resp(node)).call(&["GET", "eu/1"]) == "x");
    }
    dev.stop();
}

#[test]
fn a_removed_user_loses_open_connections_over_rings_and_direct_reads() {
    let dev = Dev::start(1, &[]);
    dev.leeward(&["table", "alter", "default", "--index", "hybrid"]);
    let root = root(&dev);
    root.put("eu/1", "x").expect("a put");
    for (scheme, reads_directly) in [("leeward+ring", false), ("leeward+direct", true)] {
        add(&root, "shop", "pw", "read@default");
        wait_for("shop comes in", || connect(&dev, scheme, Some(("shop", "pw"))).is_ok());
        let (seeds, options) = at(&dev, scheme, Some(("shop", "pw")));
        let options = ClientOptions { direct_reads: reads_directly, ..options };
        let mut shop = Session::connect(&seeds, options).expect("it comes in");
        let get = |key: &str| Op::Get { key: key.to_owned().into() };
        // A key is in the index some time after it was read.
        for _ in 0..200 {
            assert_eq!(run(&mut shop, get("eu/1")).expect("it may read"), Some(OpResult::Value(Some("x".into()))));
            std::thread::sleep(Duration::from_millis(1));
        }
        let refused = run(&mut shop, Op::Add { key: "eu/1".into(), delta: 1 });
        assert!(is_denied(&refused), "{refused:?}");
        // Fewer rights count on the open connection: a direct read needs all of the table.
        let fewer = vec![UserRule::ClearGrants, UserRule::AddGrant("read@default:us/".parse().expect("a grant"))];
        let name = "shop".parse().expect("a name");
        root.change_user(UserChange { name, presence: Presence::Known, rules: fewer }).expect("it is changed");
        wait_for("the rights count", || is_denied(&run(&mut shop, get("eu/1"))));
        root.remove_users(Some(vec!["shop".parse().expect("a name")])).expect("it is removed");
        wait_for("shop is out", || is_refused(&run(&mut shop, get("us/1"))));
        let stats = shop.direct_stats();
        assert_eq!(stats.hits > 0, reads_directly, "{stats:?}");
        assert!(is_refused(&connect(&dev, scheme, Some(("shop", "pw")))));
    }
    dev.stop();
}

#[test]
fn an_admin_gets_another_password_in_the_files_of_the_coordinator() {
    let dev = Dev::start(1, &[]);
    let first = root(&dev);
    first.put("a", "1").expect("a put");
    drop(first);
    let directory = Arc::clone(&dev.directory);
    let coordinator = directory.path().join("coordinator").display().to_string();
    let reset = || {
        let args = ["user", "reset-admin", "root", "--coordinator", &coordinator, "--generate"];
        leeward().args(args).output().expect("it runs")
    };
    let refused = reset();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("in use by another process"), "{said}");
    assert!(refused.stdout.is_empty(), "no password is shown that does not count");
    dev.stop();

    let made = reset();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let password = String::from_utf8(made.stdout).expect("text").trim_end().to_owned();
    assert_eq!(password.len(), 64);
    let dev = Dev::start_in(directory, 1, &[]);
    assert!(is_refused(&connect(&dev, "leeward", Some(("root", "secret")))));
    assert!(is_refused(&connect(&dev, "leeward", None)), "the cluster has users at every moment");
    let root = connect(&dev, "leeward", Some(("root", &password))).expect("it comes in");
    assert_eq!(root.get("a").expect("a get").as_deref(), Some(&b"1"[..]));
    add(&root, "shop", "pw", "read");
    dev.stop();
}

#[test]
fn a_limited_user_is_told_what_it_may_not_see_of_nodes() {
    let dev = Dev::start(2, &[]);
    let root = root(&dev);
    add(&root, "shop", "pw", "read@default:eu/");
    wait_for("shop comes in", || connect(&dev, "leeward", Some(("shop", "pw"))).is_ok());
    let connect = format!("127.0.0.1:{}", dev.base + 100);
    let args = ["status", "--connect", &connect, "--user", "shop"];
    let output = leeward().args(args).env("LEEWARD_PASSWORD", "pw").output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let nodes: Vec<&str> = said.lines().take_while(|line| !line.is_empty()).skip(1).collect();
    let [one, two] = nodes[..] else { panic!("a line for each node: {said}") };
    assert!(one.contains("user shop lacks the right to operate on all tables"), "{said}");
    assert!(
        two.starts_with("2 ") && two.ends_with("hidden: the user lacks the right to operate on all tables"),
        "{said}"
    );
    dev.stop();
}

#[test]
fn passwords_and_certificates_are_replaced_under_load_without_a_failed_request() {
    let load = leeward_bench::Load {
        records: 2_000,
        mix: "s".parse().expect("a mix"),
        threads: 1,
        depth: 4,
        memory_mib: 32,
        json: None,
    };
    let options = rotation::Options { rounds: 2, load };
    let is_lossless = rotation::run(&options, env!("CARGO_BIN_EXE_leeward").into(), None).expect("it ends");
    assert!(is_lossless, "a request failed: see above");
}

#[test]
fn volumes_are_encrypted_on_demand_and_open_again() {
    let dev = Dev::start(1, &["--encrypt", "--tls"]);
    let secret = "a-value-that-no-other-file-has";
    let ca = dev.directory.path().join("certs").join("ca.crt").display().to_string();
    let run = |dev: &Dev, args: &[&str]| {
        let address = format!("leeward+tls://127.0.0.1:{}?ca={ca}", dev.base + 100);
        let output = leeward().args(args).args(["--connect", &address]).output().expect("it runs");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    run(&dev, &["put", "apple", secret]);
    let directory = Arc::clone(&dev.directory);
    dev.stop();
    let node = directory.path().join("node-1");
    let key = directory.path().join("keys").display().to_string();
    let holds = |path: &std::path::Path| {
        let content = std::fs::read(path).expect("it is read");
        content.windows(secret.len()).any(|piece| piece == secret.as_bytes())
    };
    let files = std::fs::read_dir(&node).expect("it is there").map(|entry| entry.expect("an entry").path());
    let plain: Vec<_> = files.filter(|path| path.is_file() && holds(path)).collect();
    assert!(plain.is_empty(), "{plain:?}");
    let verified =
        leeward().args(["verify", &node.display().to_string(), "--key-file", &key]).output().expect("it runs");
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    let dev = Dev::start_in(directory, 1, &["--encrypt", "--tls"]);
    assert_eq!(run(&dev, &["get", "apple"]).trim_end(), secret);
    dev.stop();
}

#[test]
fn a_node_that_is_cut_off_goes_on_with_the_users_that_it_knows_until_it_is_back() {
    let dev = Dev::start(1, &[]);
    let root = root(&dev);
    add(&root, "shop", "pw", "read,write");
    let wire = Proxy::start(([127, 0, 0, 1], dev.base + 400).into());
    let mut second = leeward();
    second.args(["serve", "--stop-with-stdin", "--coordinator", &wire.address.to_string()]).stdin(Stdio::piped());
    for setting in [
        "server_id=2".to_owned(),
        "fabric=shm".to_owned(),
        format!("data_dir={}", dev.directory.path().join("second").display()),
        format!("resp_listen=127.0.0.1:{}", dev.resp(2)),
        format!("native_listen=127.0.0.1:{}", dev.base + 101),
        format!("admin_listen=127.0.0.1:{}", dev.base + 201),
    ] {
        second.args(["--set", &setting]);
    }
    let mut second = second.spawn().expect("it starts");
    let comes_in = |node: u32, user: &str| {
        let mut client = Resp::try_connect(dev.resp(node))?;
        (client.call(&["AUTH", user, "pw"]) == "+OK").then_some(client)
    };
    let mut open = [1, 2].map(|node| {
        wait_for("shop comes in", || comes_in(node, "shop").is_some());
        comes_in(node, "shop").expect("it has come in")
    });
    assert_eq!(open[1].call(&["SET", "a", "1"]), "+OK");

    wire.cut(true);
    add(&root, "late", "pw", "read");
    root.remove_users(Some(vec!["shop".parse().expect("a name")])).expect("it is removed");
    // The node that is connected ends the connection, and lets the new user in.
    wait_for("the connection ends", || open[0].is_ended());
    wait_for("late comes in", || comes_in(1, "late").is_some());
    assert!(comes_in(1, "shop").is_none());
    // The other one does neither, however long that lasts, and others execute what it forwards.
    assert_eq!(open[1].call(&["SET", "a", "2"]), "+OK");
    assert!(comes_in(2, "shop").is_some() && comes_in(2, "late").is_none());

    wire.cut(false);
    wait_for("the connection ends", || open[1].is_ended());
    wait_for("late comes in", || comes_in(2, "late").is_some());
    assert!(comes_in(2, "shop").is_none());
    assert_eq!(root.get("a").expect("a get").as_deref(), Some(&b"2"[..]));
    drop(second.stdin.take());
    assert!(second.wait().expect("it ends").success());
    dev.stop();
}

//! ZooKeeper: the suite with one server and with three, and sessions while servers stop, die and come back.

use crate::ensemble::{Ensemble, Setup, is_there};
use crate::probe::{Actor, Probe, Sink, State, sink};
use crate::proxy::Proxy;
use crate::suite::{CASES, Stage};
use leeward_cluster::zookeeper::{ClientOptions, Credentials, connect};
use leeward_cluster::{CoordinatorError, CoordinatorEvent, CoordinatorOp};
use leeward_format::zookeeper::{Body, Connect, LENGTH_BYTES, write_connect};
use leeward_platform::Nanos;
use leeward_security::certificates::{Authority, CA_CERTIFICATE, server_files, server_name};
use leeward_security::tls::{NodeTls, TlsFiles};
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A part of an ensemble, and the user that uses it.
struct Part {
    /// Its servers, as an address begins.
    hosts: String,
    path: String,
    credentials: Option<Credentials>,
    tls: Option<Arc<NodeTls>>,
}

impl Part {
    fn of(ensemble: &Ensemble, path: &str, credentials: Option<&str>) -> Part {
        let credentials = credentials.map(|text| text.parse().expect("user:password"));
        Part { hosts: ensemble.address(""), path: path.into(), credentials, tls: None }
    }
}

impl Stage for Part {
    fn server(&self) -> SocketAddr {
        let first = self.hosts.trim_start_matches("zk://").split(',').next();
        first.and_then(|server| server.parse().ok()).expect("there is one")
    }

    fn client(&self, through: Option<SocketAddr>, timeout: Duration, sink: Sink) -> Box<dyn Actor> {
        let hosts = through.map_or(self.hosts.clone(), |server| format!("zk://{server}"));
        let options = ClientOptions {
            credentials: self.credentials.clone(),
            tls: self.tls.clone(),
            session_timeout: Nanos::from(timeout),
            ..ClientOptions::new(format!("{hosts}{}", self.path).parse().expect("an address"))
        };
        Box::new(connect(options, sink).expect("a thread"))
    }
}

fn every_case(ensemble: &Ensemble, tls: Option<&Arc<NodeTls>>) {
    for (number, (name, case)) in CASES.into_iter().enumerate() {
        println!("{name}");
        let credentials = (number % 2 == 0).then_some("leeward:secret");
        let part = Part::of(ensemble, &format!("/cluster-{number}"), credentials);
        case(&Part { tls: tls.cloned(), ..part });
    }
}

fn create(path: &str, ephemeral: bool) -> CoordinatorOp {
    CoordinatorOp::Create { path: path.into(), value: "v".into(), ephemeral }
}

#[test]
fn a_server_passes_every_case() {
    if is_there() {
        every_case(&Ensemble::start(1), None);
    }
}

#[test]
fn three_servers_pass_every_case() {
    if is_there() {
        every_case(&Ensemble::start(3), None);
    }
}

/// The server accepts only clients with a certificate of its authority.
#[test]
fn a_secure_port_passes_every_case() {
    if !is_there() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let certificates = certificates(directory.path());
    let [(certificate, key), of_client] = [1, 2].map(|server| server_files(directory.path(), server));
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file");
    let (keys, trusted) = (directory.path().join("keys.pem"), directory.path().join("trusted.pem"));
    std::fs::write(&keys, read(&key) + &read(&certificate)).expect("it is written");
    std::fs::write(&trusted, read(&certificates)).expect("it is written");
    let ensemble = Ensemble::start_with(1, Setup { key_store: Some((&keys, &trusted)), ..Setup::default() });
    let (certificate, key) = of_client;
    let tls = Arc::new(
        NodeTls::load(TlsFiles { ca: certificates, certificate, key }, &server_name(2)).expect("they are whole"),
    );
    every_case(&ensemble, Some(&tls));
    let other = tempfile::tempdir().expect("a directory");
    let (ca, (certificate, key)) = (self::certificates(other.path()), server_files(other.path(), 2));
    let other = NodeTls::load(TlsFiles { ca, certificate, key }, &server_name(2)).expect("they are whole");
    let part = Part { tls: Some(Arc::new(other)), ..Part::of(&ensemble, "/cluster-0", None) };
    let (sink, events) = sink();
    let probe = Probe::new(part.client(None, Duration::from_secs(20), sink), events);
    until_outage(&probe, "certificate");
    // Without a certificate of its own, and at the port that speaks no TLS, a node is told what may be wrong.
    let plain = Part::of(&ensemble, "/cluster-0", None);
    until_outage(&outsider(&plain), "its port is a secure one, for which this node needs tls_ca");
    let part = Part { hosts: format!("zk://{}", ensemble.plain(0)), tls: Some(tls), ..plain };
    until_outage(&outsider(&part), "its port is not a secure one (secureClientPort)");
}

/// A probe of a client that is not let in.
fn outsider(part: &Part) -> Probe {
    let (sink, events) = sink();
    Probe::new(part.client(None, Duration::from_secs(20), sink), events)
}

/// Makes an authority, and certificates for two servers. Answers the file of the authority's certificate.
fn certificates(directory: &Path) -> PathBuf {
    let authority = Authority::create(directory).expect("it is made");
    for server in [1, 2] {
        authority.add_server(server, &["127.0.0.1".into()], Duration::from_secs(24 * 3600)).expect("it is made");
    }
    directory.join(CA_CERTIFICATE)
}

#[test]
fn a_session_outlives_its_server_and_an_outage_is_explained() {
    if !is_there() {
        return;
    }
    let mut ensemble = Ensemble::start(1);
    let probe = Part::of(&ensemble, "/a/b/c", None).probe();
    probe.submit(create("/mine", true)).expect("it is made");
    let (session, tree) = (probe.session(), probe.tree());
    assert_eq!(probe.outage(), None);
    let killed = Instant::now();
    ensemble.kill(0);
    let down = probe.until(|event| *event == CoordinatorEvent::Down);
    println!("    a server that was killed was missed after {:?}", down - killed);
    assert_eq!(probe.submit(create("/late", false)), Err(CoordinatorError::Disconnected));
    let reason = until_outage(&probe, "onnection refused");
    assert!(ensemble.address("").ends_with(reason.split(": ").next().expect("a server")), "{reason}");
    assert_eq!(probe.outage().expect("it goes on").address, ensemble.address("/a/b/c"));
    ensemble.restart(0);
    assert_eq!((probe.synced(), probe.tree()), (session, tree));
    assert_eq!(probe.outage(), None);
    assert!(probe.submit(create("/late", false)).is_ok());
}

#[test]
fn a_stopped_server_is_noticed_in_time_and_decides_about_its_sessions_later() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    if !is_there() {
        return;
    }
    let ensemble = Ensemble::start(1);
    let part = Part::of(&ensemble, "/leeward", None);
    let probe = part.probe_with(TIMEOUT);
    probe.submit(create("/mine", true)).expect("it is made");
    let session = probe.session();
    ensemble.signal(0, "STOP");
    let stopped = Instant::now();
    let down = probe.until(|event| *event == CoordinatorEvent::Down) - stopped;
    println!("    a server that stopped was missed after {down:?}, with a timeout of {TIMEOUT:?}");
    assert!(down >= TIMEOUT / 9 && down < TIMEOUT * 2 / 3, "{down:?}");
    std::thread::sleep(TIMEOUT * 2);
    ensemble.signal(0, "CONT");
    // The server may first end silent sessions, or first accept one that reconnects. The probe fails if it is told of another
    // session without `Expired`.
    let has_expired = probe.synced() != session;
    println!("    when it went on, the session had expired: {has_expired}");
    match has_expired {
        true => drop(probe.until_tree(State::is_empty)),
        false => assert_eq!(probe.tree().len(), 1, "its path stays as long as the session"),
    }
    assert_eq!(probe.submit(create("/mine", true)).is_ok(), has_expired);
}

/// Of five addresses three are silent and one falls silent. A session outlives that in any order of the addresses.
#[test]
fn a_session_finds_the_one_server_that_speaks() {
    const TIMEOUT: Duration = Duration::from_secs(6);
    if !is_there() {
        return;
    }
    let ensemble = Ensemble::start(3);
    let leader = ensemble.leader();
    let (stopped, stays) = ((leader + 1) % 3, (leader + 2) % 3);
    let silent: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    let all = ensemble.address("");
    let servers: Vec<&str> = all.trim_start_matches("zk://").split(',').collect();
    let mut hosts = format!("zk://{},{}", servers[stopped], servers[stays]);
    for listener in &silent {
        write!(hosts, ",{}", listener.local_addr().expect("it is bound")).expect("it is a string");
    }
    let part = Part { hosts, path: "/leeward".into(), credentials: None, tls: None };
    // Enough clients that some are connected to the stopped server, and try the silent ones first.
    let started = Instant::now();
    let begin = |_| {
        let (sink, events) = sink();
        Probe::new(part.client(None, TIMEOUT, sink), events)
    };
    let probes: Vec<Probe> = (0..16).map(begin).collect();
    for probe in &probes {
        probe.synced();
    }
    println!("    {} sessions began within {:?}", probes.len(), started.elapsed());
    ensemble.signal(stopped, "STOP");
    std::thread::sleep(TIMEOUT * 2);
    let mut moved = 0;
    for probe in &probes {
        let session = probe.session();
        moved += probe.catch_up().into_iter().filter(|event| *event == CoordinatorEvent::Down).count();
        if probe.outage().is_some() {
            probe.synced();
        }
        assert_eq!(probe.session(), session);
        assert!(probe.submit(CoordinatorOp::All(Vec::new())).is_ok());
    }
    println!("    {moved} of them went on with another server");
    assert!(moved > 0);
    ensemble.signal(stopped, "CONT");
}

#[test]
fn an_empty_ensemble_in_place_of_the_earlier_one_is_not_mistaken_for_it() {
    if !is_there() {
        return;
    }
    let (ensemble, empty) = (Ensemble::start(1), Ensemble::start(1));
    let part = Part::of(&ensemble, "/leeward", None);
    let proxy = Proxy::start(part.server());
    let probe = part.probe_through(Some(proxy.address), Duration::from_secs(4));
    probe.submit(create("/kept", false)).expect("it is made");
    proxy.lead_to(Part::of(&empty, "/leeward", None).server());
    drop(ensemble);
    probe.until(|event| *event == CoordinatorEvent::Down);
    until_outage(&probe, "has seen less of the tree than this client");
    assert_eq!(probe.tree().len(), 1);
}

#[test]
fn no_session_ends_with_a_dead_leader() {
    if !is_there() {
        return;
    }
    let mut ensemble = Ensemble::start(3);
    let part = Part::of(&ensemble, "/leeward", Some("leeward:secret"));
    let probes: Vec<Probe> = (0..3).map(|_| part.probe_with(Duration::from_secs(8))).collect();
    let sessions: Vec<_> = probes.iter().map(Probe::session).collect();
    for (index, probe) in probes.iter().enumerate() {
        probe.submit(create(&format!("/{index}"), true)).expect("it is made");
    }
    let leader = ensemble.leader();
    let killed = Instant::now();
    ensemble.kill(leader);
    // Followers without a leader close their connections too.
    for (probe, session) in probes.iter().zip(sessions) {
        probe.until(|event| *event == CoordinatorEvent::Down);
        assert_eq!(probe.synced(), session, "the same session");
        assert_eq!(probe.tree().len(), 3);
    }
    println!("    every client was back {:?} after the leader's death", killed.elapsed());
    assert!(probes[0].submit(create("/more", false)).is_ok());
    probes[2].until_tree(|tree| tree.len() == 4);
    ensemble.restart(leader);
}

#[test]
fn paths_of_leeward_belong_to_its_user() {
    if !is_there() {
        return;
    }
    let ensemble = Ensemble::start(1);
    let owner = Part::of(&ensemble, "/private/cluster", Some("leeward:secret"));
    let probe = owner.probe();
    let kept = probe.submit(create("/leeward/kept", false)).expect("it is made");
    for (path, credentials, why) in [
        ("/private/cluster", Some("leeward:wrong"), "the password is wrong"),
        ("/private/cluster", Some("other:secret"), "it belongs to another user"),
        ("/private/cluster", None, "it belongs to a user. Set zookeeper_auth_file"),
        ("/private/other", Some("other:secret"), "refuses to make /private/other: /private belongs to another user"),
        ("/private/a/b", None, "refuses to make /private/a: /private belongs to a user"),
        // The path above may belong to anyone. Each path still belongs to its owner.
        ("/private/cluster/leeward/kept", Some("other:secret"), "refuses access"),
    ] {
        let (sink, events) = sink();
        let stranger =
            Probe::new(Part::of(&ensemble, path, credentials).client(None, Duration::from_secs(4), sink), events);
        let reason = until_outage(&stranger, "refuses");
        assert!(reason.contains(why), "{reason}");
        let late = stranger.submit(create("/x", false));
        assert_eq!(late, Err(CoordinatorError::Disconnected), "nothing was up");
    }
    // Where everyone may make paths, each path belongs to the user that made it.
    let anyone = Part::of(&ensemble, "/shared", None).probe();
    anyone.submit(create("/public", false)).expect("it is made");
    let user = Part::of(&ensemble, "/shared", Some("leeward:secret")).probe();
    let public = user.version("/public");
    assert!(user.submit(CoordinatorOp::Set { path: "/public".into(), value: "2".into(), version: public }).is_ok());
    let again = owner.probe();
    assert_eq!(again.version("/leeward/kept"), kept);
    assert!(again.submit(CoordinatorOp::Delete { path: "/leeward/kept".into(), version: Some(kept) }).is_ok());
}

/// A server of ZooKeeper closes the connection at a request that is longer than its limit, and does not say why.
#[test]
fn a_request_beyond_the_limit_of_the_servers_is_refused_and_a_large_table_is_not() {
    if !is_there() {
        return;
    }
    const LIMIT: usize = 300_000;
    let ensemble = Ensemble::start_with(1, Setup { java: &format!("-Djute.maxbuffer={LIMIT}"), ..Setup::default() });
    let part = Part::of(&ensemble, "/leeward", None);
    let probe = part.probe_with(Duration::from_secs(4));
    let session = probe.session();
    let op = CoordinatorOp::Create { path: "/big".into(), value: vec![b'x'; LIMIT + 1].into(), ephemeral: false };
    let refused = loop {
        match probe.submit(op.clone()) {
            Err(CoordinatorError::Refused(why)) => break why,
            Err(CoordinatorError::Disconnected) => drop(probe.synced()),
            other => panic!("{other:?}"),
        }
    };
    assert!(refused.contains("jute.maxbuffer") && refused.contains("a request of 300"), "{refused}");
    assert!(probe.submit(create("/small", false)).is_ok(), "shorter ones are served");
    assert_eq!(probe.session(), session);
    crate::suite::a_large_table_comes_and_goes(&Part::of(&ensemble, "/tables", None));
}

/// The right to read one path is taken, its value changes, and the right is given back. Some versions of ZooKeeper report the
/// change and refuse the read, others report nothing.
#[test]
fn a_change_that_the_user_could_not_read_is_found() {
    if !is_there() {
        return;
    }
    let ensemble = Ensemble::start(1);
    let part = Part::of(&ensemble, "/leeward", None);
    let (writer, reader) = (part.probe(), part.probe());
    let made = writer.submit(create("/d/x", false)).expect("it is made");
    reader.until_tree(|tree| tree.contains_key("/d/x"));
    let server = ensemble.plain(0);
    set_rights(server, "/leeward/d/x", ALL_RIGHTS & !READ);
    // The writer is not told of its own change, and must not be answered as if it were.
    writer.ask(1, CoordinatorOp::Set { path: "/d/x".into(), value: "w".into(), version: made });
    std::thread::sleep(Duration::from_secs(1));
    set_rights(server, "/leeward/d/x", ALL_RIGHTS);
    let began = Instant::now();
    for probe in [&reader, &writer] {
        probe.until_tree(|tree| tree.get("/d/x").is_some_and(|(_, value)| value == b"w"));
    }
    println!("    a change that could not be read was found {:?} after it could", began.elapsed());
    drop(writer.answer(1));
    // While it cannot be read, the client says so.
    set_rights(server, "/leeward/d/x", ALL_RIGHTS & !READ);
    until_outage(&reader, "refuses access to /leeward/d/x");
}

const ALL_RIGHTS: i32 = 31;
const READ: i32 = 1;
/// The request that replaces the rights on a path.
const SET_ACL: i32 = 7;

/// Gives everyone these rights on a path, as an operator does.
fn set_rights(server: SocketAddr, path: &str, rights: i32) {
    let text = |text: &str| [&(text.len() as i32).to_be_bytes()[..], text.as_bytes()].concat();
    let mut stream = TcpStream::connect(server).expect("it listens");
    let mut ask = |body: &[u8]| {
        stream.write_all(&[&(body.len() as i32).to_be_bytes()[..], body].concat()).expect("it is sent");
        let mut length = [0; 4];
        stream.read_exact(&mut length).expect("an answer");
        let mut body = vec![0; i32::from_be_bytes(length) as usize];
        stream.read_exact(&mut body).expect("all of it");
        body
    };
    let mut connect = Vec::new();
    write_connect(&Connect { timeout_ms: 10_000, ..Connect::default() }, &mut connect);
    ask(&connect[LENGTH_BYTES..]);
    let int = |value: i32| value.to_be_bytes().to_vec();
    let set = [int(1), int(SET_ACL), text(path), int(1), int(rights), text("world"), text("anyone"), int(-1)];
    let answer = ask(&set.concat());
    assert_eq!(Body::new(&answer).header().map(|header| header.error), Ok(0), "{path} has other rights now");
}

/// Settings of an ensemble that keep a node out, and what the node says of each.
#[test]
fn settings_that_keep_a_node_out_are_named() {
    if !is_there() {
        return;
    }
    let part = |ensemble: &Ensemble| Part::of(ensemble, "/leeward", None);
    let config = "enforce.auth.enabled=true\nenforce.auth.schemes=digest\n";
    let ensemble = Ensemble::start_with(1, Setup { config, ..Setup::default() });
    until_outage(&outsider(&part(&ensemble)), "Set zookeeper_auth_file");
    // The session in place is a client's own: the server may still count the connection that asked whether it is ready,
    // and refuse the next one. A client tries again, a bare connection does not.
    let ensemble = Ensemble::start_with(1, Setup { config: "maxClientCnxns=1\n", ..Setup::default() });
    let _in_place = part(&ensemble).probe();
    until_outage(&outsider(&part(&ensemble)), "its maxClientCnxns allows");
    // A longer timeout than the one that was asked for is granted, and is a concern.
    let config = "minSessionTimeout=30000\n";
    let ensemble = Ensemble::start_with(1, Setup { config, ..Setup::default() });
    let probe = part(&ensemble).probe_with(Duration::from_secs(1));
    let concern = probe.concern().expect("it is long");
    assert!(concern.contains("of 30000 ms, not 1000") && concern.contains("minSessionTimeout"), "{concern}");
}

#[test]
fn missing_servers_are_named() {
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    for (host, why) in
        [(closed.to_string(), "onnection refused"), ("no-such-host.invalid:1".into(), "its address is not known")]
    {
        let (sink, events) = sink();
        let options = ClientOptions::new(format!("zk://{host}/x").parse().expect("an address"));
        let client = connect(options, sink).expect("a thread");
        let probe = Probe::new(Box::new(client), events);
        let reason = until_outage(&probe, why);
        assert!(reason.starts_with(&format!("{host}: ")), "{reason}");
        assert_eq!(probe.submit(create("/x", false)), Err(CoordinatorError::Disconnected));
    }
}

/// Waits for an outage whose reason contains `part`. Returns the reason.
fn until_outage(probe: &Probe, part: &str) -> String {
    let deadline = Instant::now() + crate::probe::LONG;
    loop {
        let reason = probe.outage().map(|outage| outage.reason).unwrap_or_default();
        if reason.contains(part) {
            return reason;
        }
        assert!(Instant::now() < deadline, "{reason:?} is not: {part}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

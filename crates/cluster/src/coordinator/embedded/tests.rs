//! Host and clients over loopback: order, restarts, expiry, hostile bytes.

use super::service::Limits;
use super::*;
use crate::{Client, Coordinator, CoordinatorError, CoordinatorEvent, CoordinatorOp, SessionId};
use bytes::Bytes;
use leeward_format::coordinator::{Change, CoordinatorReply, CoordinatorRequest};
use leeward_format::frame::{FrameKind, PROTOCOL_VERSION, read_frame, version_frame, write_frame};
use leeward_platform::{Nanos, unidentified};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const ANY_PORT: &str = "127.0.0.1:0";
/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

fn host(directory: &Path, listen: SocketAddr) -> Host {
    let deadline = Instant::now() + LONG;
    loop {
        match Host::start(HostOptions { directory: directory.into(), listen, tls: None }) {
            Ok(host) => return host,
            // The host that was just stopped may hold port and lock for an instant.
            Err(error) if Instant::now() > deadline => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn fresh_host(directory: &Path) -> Host {
    host(directory, ANY_PORT.parse().unwrap())
}

struct Probe {
    client: Client,
    events: Receiver<CoordinatorEvent>,
}

impl Probe {
    fn new(address: SocketAddr, timeout_ms: u64) -> Probe {
        let (sender, events) = channel();
        let options = ClientOptions { session_timeout: Nanos::from_millis(timeout_ms), ..ClientOptions::new(address) };
        let client = connect(options, move |event| drop(sender.send(event))).unwrap();
        Probe { client, events }
    }

    fn next(&self) -> CoordinatorEvent {
        self.events.recv_timeout(LONG).expect("an event")
    }

    /// Events up to and including the first that satisfies `wanted`.
    fn until(&self, wanted: impl Fn(&CoordinatorEvent) -> bool) -> Vec<CoordinatorEvent> {
        let mut events = vec![self.next()];
        while !wanted(events.last().expect("there is one")) {
            events.push(self.next());
        }
        events
    }

    fn synced(&self) -> SessionId {
        let events = self.until(|event| matches!(event, CoordinatorEvent::Synced { .. }));
        let up = events
            .iter()
            .rev()
            .find_map(|event| if let CoordinatorEvent::Up { session } = event { Some(*session) } else { None });
        up.expect("up before synced")
    }

    fn submit(&self, id: u64, op: CoordinatorOp) -> Vec<CoordinatorEvent> {
        self.client.submit(id, op);
        self.until(|event| matches!(event, CoordinatorEvent::Reply { id: of, .. } if *of == id))
    }
}

fn create(path: &str, value: &'static str, ephemeral: bool) -> CoordinatorOp {
    CoordinatorOp::Create { path: path.into(), value: value.into(), ephemeral }
}

fn changed(path: &str, version: u64, value: Option<&'static str>) -> CoordinatorEvent {
    CoordinatorEvent::Changed(vec![Change { path: path.into(), version, value: value.map(Bytes::from) }])
}

#[test]
fn every_client_is_told_every_change_in_one_order_and_before_the_answer() {
    let directory = tempfile::tempdir().unwrap();
    let host = fresh_host(directory.path());
    assert_eq!(host.apply(create("/first", "1", false)), Ok(1));
    assert_eq!(host.apply(create("/first", "1", false)), Err(CoordinatorError::Exists { version: 1 }));
    let (one, two) = (Probe::new(host.address(), 10_000), Probe::new(host.address(), 10_000));
    let session = one.next();
    assert!(matches!(session, CoordinatorEvent::Up { .. }));
    assert_eq!([one.next(), one.next()], [changed("/first", 1, Some("1")), CoordinatorEvent::Synced { version: 1 }]);
    two.synced();

    let reply = |id, result| CoordinatorEvent::Reply { id, result };
    assert_eq!(one.submit(7, create("/a", "x", true)), [changed("/a", 2, Some("x")), reply(7, Ok(2))]);
    assert_eq!(
        two.submit(1, create("/a", "y", true)),
        [changed("/a", 2, Some("x")), reply(1, Err(CoordinatorError::Exists { version: 2 }))]
    );
    let set = |version| CoordinatorOp::Set { path: "/first".into(), value: "2".into(), version };
    assert_eq!(two.submit(2, set(1)), [changed("/first", 3, Some("2")), reply(2, Ok(3))]);
    let stale = one.submit(8, set(1));
    assert_eq!(stale, [changed("/first", 3, Some("2")), reply(8, Err(CoordinatorError::Stale { version: 3 }))]);
    // The ephemeral paths of a leaving client vanish at once.
    drop(one.client);
    assert_eq!(two.next(), changed("/a", 4, None));
}

#[test]
fn many_writers_get_one_order() {
    let directory = tempfile::tempdir().unwrap();
    let host = fresh_host(directory.path());
    let probes: Vec<Probe> = (0..3).map(|_| Probe::new(host.address(), 10_000)).collect();
    for probe in &probes {
        probe.synced();
    }
    for number in 0..100u64 {
        for (index, probe) in probes.iter().enumerate() {
            probe.client.submit(number, create(&format!("/{index}/{number}"), "", false));
        }
    }
    let orders: Vec<Vec<Change>> = probes
        .iter()
        .map(|probe| {
            let mut order = Vec::new();
            let mut replies = 0;
            while order.len() < 300 || replies < 100 {
                match probe.next() {
                    CoordinatorEvent::Changed(changes) => order.extend(changes),
                    CoordinatorEvent::Reply { id, result } => {
                        assert_eq!(id, replies);
                        let version = result.expect("nothing is refused");
                        assert!(
                            order.iter().any(|change: &Change| change.version == version),
                            "answered before the change was told"
                        );
                        replies += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            order
        })
        .collect();
    assert!(orders.iter().all(|order| *order == orders[0]));
    assert!(orders[0].iter().map(|change| change.version).eq(1..=300));
}

#[test]
fn a_restarted_host_knows_everything_and_sessions_continue() {
    let directory = tempfile::tempdir().unwrap();
    let first = fresh_host(directory.path());
    let address = first.address();
    let probe = Probe::new(address, 3_000);
    let session = probe.synced();
    probe.submit(1, create("/mine", "x", true));
    probe.submit(2, create("/kept", "y", false));
    drop(first);
    probe.until(|event| *event == CoordinatorEvent::Down);
    let refused = probe.submit(3, create("/late", "", false));
    assert_eq!(refused, [CoordinatorEvent::Reply { id: 3, result: Err(CoordinatorError::Disconnected) }]);
    let second = host(directory.path(), address);
    let events = probe.until(|event| matches!(event, CoordinatorEvent::Synced { .. }));
    let kept = [
        CoordinatorEvent::Up { session },
        changed("/kept", 2, Some("y")),
        changed("/mine", 1, Some("x")),
        CoordinatorEvent::Synced { version: 2 },
    ];
    assert_eq!(events, kept);
    assert_eq!(second.apply(create("/more", "", false)), Ok(3));
}

#[test]
fn a_session_that_no_client_continues_expires_after_a_restart_too() {
    let directory = tempfile::tempdir().unwrap();
    let first = fresh_host(directory.path());
    let dead = Probe::new(first.address(), 600);
    dead.synced();
    dead.submit(1, create("/mine", "x", true));
    dead.client.abandon();
    drop(first);
    let started = Instant::now();
    let second = fresh_host(directory.path());
    let watcher = Probe::new(second.address(), 10_000);
    let events = watcher.until(|event| *event == changed("/mine", 2, None));
    assert!(events.contains(&changed("/mine", 1, Some("x"))));
    assert!(
        started.elapsed() >= Duration::from_millis(550),
        "a full timeout after the restart, not {:?}",
        started.elapsed()
    );
}

#[test]
fn silence_expires_a_session_in_time_and_a_lost_connection_alone_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let host = fresh_host(directory.path());
    let watcher = Probe::new(host.address(), 10_000);
    watcher.synced();
    let lively = Probe::new(host.address(), 1_000);
    let silent = Probe::new(host.address(), 1_000);
    lively.synced();
    silent.synced();
    lively.submit(1, create("/lively", "", true));
    silent.submit(1, create("/silent", "", true));
    silent.client.abandon();
    let since = Instant::now();
    let events = watcher.until(|event| *event == changed("/silent", 3, None));
    let took = since.elapsed();
    // Its last heartbeat may have been sent a ninth of the timeout earlier. A busy machine may be late, never early.
    assert!(took >= Duration::from_millis(850) && took < Duration::from_secs(5), "{took:?}");
    assert!(!events.contains(&changed("/lively", 4, None)));
    std::thread::sleep(Duration::from_millis(500));
    assert!(watcher.events.try_iter().next().is_none(), "the other session stays");
}

#[test]
fn hostile_bytes_close_the_connection_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let host = fresh_host(directory.path());
    let probe = Probe::new(host.address(), 10_000);
    probe.synced();
    let mut heartbeat_first = Vec::new();
    write_frame(FrameKind::CoordinatorRequest, &CoordinatorRequest::Heartbeat { nonce: 1 }, &mut heartbeat_first);
    let mut damaged = Vec::new();
    write_frame(
        FrameKind::CoordinatorRequest,
        &CoordinatorRequest::Attach { session: None, timeout_ms: 1000 },
        &mut damaged,
    );
    *damaged.last_mut().unwrap() ^= 1;
    let mut huge = damaged.clone();
    huge[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut wrong_kind = Vec::new();
    write_frame(FrameKind::CoordinatorReply, &CoordinatorReply::Unknown, &mut wrong_kind);
    let mut unknown_session = Vec::new();
    let attach = CoordinatorRequest::Attach { session: Some(SessionId(u64::MAX)), timeout_ms: 1000 };
    write_frame(FrameKind::CoordinatorRequest, &attach, &mut unknown_session);
    let mut random = fastrand::Rng::with_seed(1);
    let noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(100_000).collect();
    let http = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec();
    let mut other_version = damaged.clone();
    other_version[4] += 1;
    for bytes in [heartbeat_first, damaged, huge, wrong_kind, unknown_session, noise, http, other_version] {
        let mut stream = TcpStream::connect(host.address()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        // The host may close the connection before it has read everything.
        drop(stream.write_all(&bytes));
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        }
        if bytes[4] != PROTOCOL_VERSION {
            assert_eq!(answer, version_frame(FrameKind::CoordinatorReply), "it is told the version of this host");
            continue;
        }
        let told = read_frame::<CoordinatorReply>(FrameKind::CoordinatorReply, &answer, 100).unwrap();
        assert!(matches!(told, None | Some((CoordinatorReply::Unknown, _))), "{told:?}");
    }
    assert_eq!(probe.submit(1, create("/a", "", false)).len(), 2, "the others do not notice");
    assert_eq!(host.failure(), None);
}

#[test]
fn an_older_connection_of_a_session_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let host = fresh_host(directory.path());
    let say = |stream: &mut TcpStream, request: CoordinatorRequest| {
        let mut bytes = Vec::new();
        write_frame(FrameKind::CoordinatorRequest, &request, &mut bytes);
        drop(stream.write_all(&bytes));
    };
    let hear = |stream: &mut TcpStream| {
        let mut bytes = Vec::new();
        loop {
            if let Some((reply, _)) =
                read_frame::<CoordinatorReply>(FrameKind::CoordinatorReply, &bytes, 1 << 20).unwrap()
            {
                return reply;
            }
            let mut one = [0];
            stream.read_exact(&mut one).unwrap();
            bytes.push(one[0]);
        }
    };
    let mut old = TcpStream::connect(host.address()).unwrap();
    say(&mut old, CoordinatorRequest::Attach { session: None, timeout_ms: 10_000 });
    let CoordinatorReply::Attached { session, timeout_ms: 10_000 } = hear(&mut old) else { panic!("not attached") };
    let mut new = TcpStream::connect(host.address()).unwrap();
    say(&mut new, CoordinatorRequest::Attach { session: Some(session), timeout_ms: 1 });
    assert_eq!(hear(&mut new), CoordinatorReply::Attached { session, timeout_ms: 10_000 });
    assert_eq!(hear(&mut new), CoordinatorReply::Synced { version: 0 });
    say(&mut old, CoordinatorRequest::Submit { id: 1, op: create("/late", "", false) });
    let mut rest = Vec::new();
    drop(old.read_to_end(&mut rest));
    assert_eq!(host.apply(create("/late", "", false)), Ok(1), "the operation of the old connection was not done");
}

#[test]
fn an_operation_that_is_too_long_is_refused_without_losing_the_connection() {
    let directory = tempfile::tempdir().unwrap();
    let host = fresh_host(directory.path());
    let probe = Probe::new(host.address(), 10_000);
    probe.synced();
    let value = Bytes::from(vec![0; 9 << 20]);
    let events = probe.submit(1, CoordinatorOp::Create { path: "/a".into(), value, ephemeral: false });
    assert!(
        matches!(&events[..], [CoordinatorEvent::Reply { id: 1, result: Err(CoordinatorError::Refused(_)) }]),
        "{events:?}"
    );
    assert_eq!(probe.submit(2, create("/a", "", false)).len(), 2);
}

#[test]
fn a_port_or_directory_in_use_is_reported_clearly() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let host = fresh_host(first.path());
    let error =
        Host::start(HostOptions { directory: second.path().into(), listen: host.address(), tls: None }).unwrap_err();
    assert!(error.to_string().contains(&format!("cannot listen at {}", host.address())), "{error}");
    let error =
        Host::start(HostOptions { directory: first.path().into(), listen: ANY_PORT.parse().unwrap(), tls: None })
            .unwrap_err();
    assert!(matches!(error, HostError::Locked { .. }), "{error}");
}

fn until_failure(host: &Host, is_wanted: impl Fn(Option<&str>) -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_wanted(host.failure().as_deref()) {
        assert!(Instant::now() < deadline, "{:?}", host.failure());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A host whose log fails at its next batch, on a directory where no other log can be written before the returned
/// directory is removed.
fn host_on_a_full_disk(directory: &Path, address: SocketAddr) -> (Host, PathBuf) {
    let (mut log, tree) = log::Log::open(directory).unwrap();
    log.fill_disk();
    let obstacle = directory.join(log::NEW_FILE);
    std::fs::create_dir(&obstacle).unwrap();
    (Host::serve((address, None), log, tree, Limits::default()).unwrap(), obstacle)
}

#[test]
fn a_host_that_cannot_write_its_log_reports_it_and_goes_on_when_it_can() {
    let directory = tempfile::tempdir().unwrap();
    let (host, obstacle) = host_on_a_full_disk(directory.path(), ANY_PORT.parse().unwrap());
    let probe = Probe::new(host.address(), 1_000);
    assert_eq!(host.apply(create("/a", "", false)), Err(CoordinatorError::Disconnected));
    assert!(host.failure().is_some_and(|failure| failure.contains("No space left")), "the caller can ask why");
    until_failure(&host, |failure| failure.is_some_and(|failure| failure.contains("Is a directory")));
    assert!(probe.events.try_iter().all(|event| !matches!(event, CoordinatorEvent::Up { .. })));
    std::fs::remove_dir(obstacle).unwrap();
    until_failure(&host, |failure| failure.is_none());
    assert_eq!(host.apply(create("/a", "", false)), Ok(1), "no change was told that is not durable");
    probe.until(|event| *event == changed("/a", 1, Some("")));
    drop(host);
    assert_eq!(fresh_host(directory.path()).apply(create("/b", "", false)), Ok(2));
}

#[test]
fn sessions_outlive_a_disk_that_is_full_for_longer_than_their_timeout() {
    let directory = tempfile::tempdir().unwrap();
    let first = fresh_host(directory.path());
    let address = first.address();
    let probe = Probe::new(address, 500);
    let session = probe.synced();
    probe.submit(1, create("/mine", "x", true));
    drop(first);
    let (host, obstacle) = host_on_a_full_disk(directory.path(), address);
    probe.synced();
    probe.client.submit(2, create("/refused", "", false));
    probe.until(|event| *event == CoordinatorEvent::Down);
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(host.failure().is_some());
    std::fs::remove_dir(obstacle).unwrap();
    assert_eq!(probe.synced(), session, "its ephemeral paths are there");
    assert_eq!(host.failure(), None);
    let events = probe.submit(3, CoordinatorOp::Delete { path: "/mine".into(), version: Some(1) });
    assert!(events.contains(&changed("/mine", 2, None)), "{events:?}");
}

#[test]
fn strangers_take_no_place_of_a_process_with_a_session() {
    let directory = tempfile::tempdir().unwrap();
    let (log, tree) = log::Log::open(directory.path()).unwrap();
    // Silent connections are not hung up on during the test.
    let limits = Limits { peers: 2, attach_within: Nanos::from_secs(3600) };
    let host = Host::serve((ANY_PORT.parse().unwrap(), None), log, tree, limits).unwrap();
    let before = Probe::new(host.address(), 60_000);
    before.synced();
    // More than there are places for connections without a session. None says a word, and none hangs up.
    let connect = |_| TcpStream::connect(host.address()).unwrap();
    let strangers: Vec<TcpStream> = (0..2 * unidentified::PLACES).map(connect).collect();
    let second = Probe::new(host.address(), 60_000);
    second.synced();
    assert_eq!(before.submit(1, create("/a", "", false)).len(), 2, "the one that was there stays");
    let mut first = &strangers[0];
    first.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(first.read(&mut [0]).unwrap(), 0, "the first one had to go for others");
    // Both places are taken. A process that attaches again needs none, and one that leaves gives its own back.
    let mut third = TcpStream::connect(host.address()).unwrap();
    let mut frame = Vec::new();
    let attach = CoordinatorRequest::Attach { session: None, timeout_ms: 60_000 };
    write_frame(FrameKind::CoordinatorRequest, &attach, &mut frame);
    third.write_all(&frame).unwrap();
    assert_eq!(third.read(&mut [0]).unwrap(), 0, "it is told nothing of the tree");
    drop(second);
    Probe::new(host.address(), 60_000).synced();
}

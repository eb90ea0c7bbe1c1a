//! Who may connect where links are encrypted: nobody but the server that the certificate names.

use crate::{
    common::{TIMEOUT, options, recorder},
    harness::Tls,
};
use leeward_fabric::{Fabric, LinkEvent, LinkOptions, PeerId, TcpFabric};
use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How long a test waits for something that must not happen: several attempts to connect.
const NEVER: Duration = Duration::from_millis(500);

/// A node that calls itself `id`, with these options, and the events that it saw.
fn node(id: u32, options: LinkOptions) -> (Arc<TcpFabric>, crate::common::Log) {
    let (log, sink) = recorder();
    (TcpFabric::bind(PeerId(id), "127.0.0.1:0", options, sink).expect("a port is free"), log)
}

/// Whether `from` gets a link to `to`, which calls itself `id`.
fn connects(
    from: &(Arc<TcpFabric>, crate::common::Log),
    to: &(Arc<TcpFabric>, crate::common::Log),
    id: u32,
    within: Duration,
) -> bool {
    from.0.connect(PeerId(id), &to.0.local_address());
    let until = Instant::now() + within;
    let is_up = || from.1.lock().unwrap().iter().any(|(peer, event)| *peer == PeerId(id) && *event == LinkEvent::Up);
    while !is_up() && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    is_up()
}

#[test]
fn only_the_server_that_the_certificate_names_gets_a_link() {
    let mut certificates = Tls::default();
    let to = node(2, certificates.options(2));
    assert!(connects(&node(1, certificates.options(1)), &to, 2, TIMEOUT), "both have their own");
    assert!(!connects(&node(1, certificates.options(3)), &to, 2, NEVER), "another server's certificate");
    assert!(!connects(&node(1, Tls::default().options(1)), &to, 2, NEVER), "another authority's");
    assert!(!connects(&node(1, options()), &to, 2, NEVER), "none");
    let pretender = node(2, certificates.options(3));
    assert!(!connects(&node(1, certificates.options(1)), &pretender, 2, NEVER), "the other side has another's");
    let plain = node(2, options());
    assert!(!connects(&node(1, certificates.options(1)), &plain, 2, NEVER), "the other side has none");
    assert!(!to.1.lock().unwrap().iter().any(|(_, event)| matches!(event, LinkEvent::Message(_))));
}

#[test]
fn a_recorded_conversation_cannot_be_repeated() {
    let mut certificates = Tls::default();
    let to = node(2, certificates.options(2));
    // A relay that records what the first node sends.
    let relay = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let (address, target) = (relay.local_addr().unwrap().to_string(), to.0.local_address());
    let recorded = thread::spawn(move || {
        let (mut client, _) = relay.accept().expect("it connects");
        let mut server = TcpStream::connect(target).expect("it listens");
        let (mut back, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let answers = thread::spawn(move || std::io::copy(&mut back, &mut to_client));
        let (mut all, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(len @ 1..) = client.read(&mut piece) {
            all.extend_from_slice(&piece[..len]);
            if server.write_all(&piece[..len]).is_err() {
                break;
            }
        }
        drop(server.shutdown(std::net::Shutdown::Both));
        drop(answers.join());
        all
    });
    let from = node(1, certificates.options(1));
    from.0.connect(PeerId(2), &address);
    let heard = |log: &crate::common::Log| {
        log.lock().unwrap().iter().filter(|(_, event)| matches!(event, LinkEvent::Message(_))).count()
    };
    let until = Instant::now() + TIMEOUT;
    while heard(&to.1) == 0 {
        assert!(Instant::now() < until, "the link through the relay is up");
        from.0.send(PeerId(2), b"transfer everything");
        from.0.flush();
        thread::sleep(Duration::from_millis(5));
    }
    drop(from);
    let recorded = recorded.join().expect("the relay ends");
    let before = heard(&to.1);
    let mut again = TcpStream::connect(to.0.local_address()).expect("it listens");
    // It may be refused before all of it is written.
    drop(again.write_all(&recorded));
    let mut rest = Vec::new();
    again.set_read_timeout(Some(TIMEOUT)).unwrap();
    drop(again.read_to_end(&mut rest));
    assert_eq!(heard(&to.1), before, "nothing of it was executed");
}

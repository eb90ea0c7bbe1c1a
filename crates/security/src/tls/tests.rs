//! Two channels over a pair of sockets that do not block: whom they accept, and that bytes arrive.

use super::*;
use crate::certificates::{Authority, CA_CERTIFICATE, server_files};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

/// An authority with the servers 1 and 2, which clients reach as `db.example` and 127.0.0.1.
struct Cluster {
    directory: tempfile::TempDir,
}

impl Cluster {
    fn new() -> Cluster {
        let directory = tempfile::tempdir().expect("a directory");
        let cluster = Cluster { directory };
        let authority = Authority::create(cluster.place()).expect("it is made");
        for server in [1, 2] {
            authority.add_server(server, &["db.example".into(), "127.0.0.1".into()], HOUR).expect("it is made");
        }
        cluster
    }

    fn place(&self) -> &Path {
        self.directory.path()
    }

    fn files(&self, server: u32) -> TlsFiles {
        let (certificate, key) = server_files(self.place(), server);
        TlsFiles { ca: self.place().join(CA_CERTIFICATE), certificate, key }
    }

    fn node(&self, server: u32) -> NodeTls {
        NodeTls::load(self.files(server), &server_name(server)).expect("its files are whole")
    }

    fn client(&self) -> ClientTls {
        ClientTls::load(&self.place().join(CA_CERTIFICATE)).expect("it is whole")
    }
}

fn sockets() -> (UnixStream, UnixStream) {
    let (a, b) = UnixStream::pair().expect("a pair");
    a.set_nonblocking(true).expect("it can");
    b.set_nonblocking(true).expect("it can");
    (a, b)
}

type Side = Channel<UnixStream>;

fn on(stream: UnixStream, session: Session) -> Side {
    Channel::encrypted(stream, session)
}

/// Reads until nothing is left. Returns the bytes, and the error or the end, if there is one.
fn drain(side: &mut Side) -> (Vec<u8>, Option<Result<(), io::Error>>) {
    let (mut all, mut piece) = (Vec::new(), [0; 1000]);
    loop {
        match side.read(&mut piece) {
            Ok(0) => return (all, Some(Ok(()))),
            Ok(len) => all.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return (all, None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (all, Some(Err(error))),
        }
    }
}

/// Lets both sides agree. The errors of the connecting and of the accepting side.
fn establish(connecting: &mut Side, accepting: &mut Side) -> [Option<String>; 2] {
    let mut errors = [None, None];
    connecting.flush().expect("a hello fits");
    for _ in 0..10 {
        for (side, error) in [(&mut *accepting, 1), (&mut *connecting, 0)] {
            if let Some(Err(found)) = drain(side).1 {
                errors[error].get_or_insert(found.to_string());
            }
        }
    }
    errors
}

fn client_and_node(cluster: &Cluster, host: &str) -> (Side, Side) {
    let (a, b) = sockets();
    (on(a, cluster.client().connect(host).expect("a name")), on(b, cluster.node(1).accept_client()))
}

#[test]
fn a_client_knows_a_node_by_its_host() {
    let cluster = Cluster::new();
    for (host, is_right) in [("db.example", true), ("127.0.0.1", true), ("other.example", false), ("10.0.0.1", false)] {
        let (mut client, mut node) = client_and_node(&cluster, host);
        let errors = establish(&mut client, &mut node);
        assert_eq!(errors[0].is_none(), is_right, "{host}: {errors:?}");
        assert_eq!([client.is_established(), node.is_established()], [is_right; 2], "{host}");
        assert!(!node.proves(1), "a client shows no certificate");
    }
    let refused = cluster.client().connect("a b").expect_err("no name").to_string();
    assert!(refused.contains("'a b'"), "{refused}");
}

#[test]
fn nodes_prove_to_each_other_which_servers_they_are() {
    let cluster = Cluster::new();
    let (a, b) = sockets();
    let (mut first, mut second) = (on(a, cluster.node(1).connect_node(2)), on(b, cluster.node(2).accept_node()));
    assert!(!second.proves(1), "not before they have agreed");
    assert_eq!(establish(&mut first, &mut second), [None, None]);
    assert_eq!([second.proves(1), second.proves(2), second.proves(11)], [true, false, false]);
    assert!(first.proves(2) && !first.proves(1));
    // Another node's certificate.
    let (a, b) = sockets();
    let (mut first, mut other) = (on(a, cluster.node(1).connect_node(2)), on(b, cluster.node(1).accept_node()));
    assert!(establish(&mut first, &mut other)[0].as_ref().is_some_and(|error| error.contains("not valid for name")));
    // A client, which has none.
    let (a, b) = sockets();
    let client = cluster.client().connect("db.example");
    let (mut client, mut node) = (on(a, client.expect("a name")), on(b, cluster.node(1).accept_node()));
    assert!(establish(&mut client, &mut node)[1].is_some());
    assert!(!node.is_established());
}

#[test]
fn certificates_of_another_authority_or_of_another_time_are_refused() {
    let (cluster, stranger) = (Cluster::new(), Cluster::new());
    let (a, b) = sockets();
    let (mut first, mut second) = (on(a, stranger.node(1).connect_node(2)), on(b, cluster.node(2).accept_node()));
    let errors = establish(&mut first, &mut second);
    assert!(errors.iter().all(Option::is_some), "{errors:?}");
    let (a, b) = sockets();
    let mut client = on(a, stranger.client().connect("db.example").expect("a name"));
    let errors = establish(&mut client, &mut on(b, cluster.node(1).accept_client()));
    assert!(errors[0].is_some() && !client.is_established(), "{errors:?}");

    let authority = Authority::open(cluster.place()).expect("it is there");
    authority.add_server(3, &["db.example".into()], Duration::from_secs(2)).expect("it is made");
    let brief = cluster.node(3);
    std::thread::sleep(Duration::from_millis(3100));
    let (a, b) = sockets();
    let mut client = on(a, cluster.client().connect("db.example").expect("a name"));
    let errors = establish(&mut client, &mut on(b, brief.accept_client()));
    assert!(errors[0].as_ref().is_some_and(|error| error.contains("expired")), "{errors:?}");
    let (a, b) = sockets();
    let (mut first, mut second) = (on(a, brief.connect_node(2)), on(b, cluster.node(2).accept_node()));
    let errors = establish(&mut first, &mut second);
    assert!(errors[1].as_ref().is_some_and(|error| error.contains("expired")), "{errors:?}");
}

#[test]
fn plain_text_at_a_port_with_tls_is_an_error_and_not_data() {
    let cluster = Cluster::new();
    for text in ["PING\r\n", "GET / HTTP/1.1\r\n\r\n", "LWNP\0\0\0\0\0\0\0\0\0\0\0\0"] {
        let (mut a, b) = sockets();
        let mut node = on(b, cluster.node(1).accept_client());
        a.write_all(text.as_bytes()).expect("it fits");
        let (bytes, end) = drain(&mut node);
        assert!(bytes.is_empty() && matches!(end, Some(Err(_))), "{text}: {end:?}");
        // The reason is sent, as TLS does, and then nothing.
        let mut answer = Vec::new();
        drop(node);
        a.read_to_end(&mut answer).expect("it is closed");
        assert!(answer.len() < 16, "{answer:?}");
    }
}

#[test]
fn more_bytes_than_anything_holds_arrive_in_order() {
    let cluster = Cluster::new();
    let (mut client, mut node) = client_and_node(&cluster, "db.example");
    assert_eq!(establish(&mut client, &mut node), [None, None]);
    let all: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let (mut sent, mut received, mut waited) = (0, Vec::new(), 0);
    while received.len() < all.len() {
        while sent < all.len() {
            match client.write(&all[sent..]) {
                Ok(len) => sent += len,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    waited += 1;
                    break;
                }
            }
        }
        let (bytes, end) = drain(&mut node);
        assert!(end.is_none());
        received.extend(bytes);
        if client.has_unsent() {
            assert!(client.flush().is_ok_and(|()| !client.has_unsent()) || client.has_unsent());
        }
    }
    assert!(waited > 0, "a socket takes less than that");
    assert!(received == all);
    client.send_end().expect("it fits");
    assert!(matches!(drain(&mut node), (rest, Some(Ok(()))) if rest.is_empty()), "the end is an end");
}

#[test]
fn a_stream_that_is_cut_is_no_end() {
    let cluster = Cluster::new();
    let (mut client, mut node) = client_and_node(&cluster, "db.example");
    assert_eq!(establish(&mut client, &mut node), [None, None]);
    client.write_all(b"SET a 1").expect("it fits");
    drop(client);
    let (bytes, end) = drain(&mut node);
    assert_eq!(bytes, b"SET a 1");
    assert!(end.is_some_and(|end| end.is_err_and(|error| error.kind() == ErrorKind::UnexpectedEof)));
    let (client, mut node) = client_and_node(&cluster, "db.example");
    drop(client);
    assert!(drain(&mut node).1.is_some_and(|end| end.is_err()), "nor during the handshake");
}

#[test]
fn new_files_count_for_new_connections_and_damaged_ones_for_none() {
    let cluster = Cluster::new();
    let tls = cluster.node(1);
    assert!(!tls.reload().expect("they are whole"), "nothing has changed");
    let (a, b) = sockets();
    let (mut old, mut node) =
        (on(a, cluster.client().connect("db.example").expect("a name")), on(b, tls.accept_client()));
    assert_eq!(establish(&mut old, &mut node), [None, None]);

    let newer = Cluster::new();
    let TlsFiles { ca, certificate, key } = cluster.files(1);
    std::fs::write(&key, "-----BEGIN PRIVATE KEY-----\n").expect("it is written");
    assert!(tls.reload().expect_err("half a key").to_string().contains("server-1.key"));
    std::fs::copy(newer.files(1).key, &key).expect("copied");
    assert!(tls.reload().expect_err("another certificate's key").to_string().contains("server-1.key"));
    let (a, b) = sockets();
    let (mut client, mut node_of_old) =
        (on(a, cluster.client().connect("db.example").expect("a name")), on(b, tls.accept_client()));
    assert_eq!(establish(&mut client, &mut node_of_old), [None, None], "the former ones stay");

    let former = cluster.client();
    std::fs::copy(newer.files(1).certificate, certificate).expect("copied");
    std::fs::copy(newer.files(1).ca, ca).expect("copied");
    assert!(tls.reload().expect("they are whole"));
    let (a, b) = sockets();
    let mut client = on(a, former.connect("db.example").expect("a name"));
    assert!(establish(&mut client, &mut on(b, tls.accept_client()))[0].is_some());
    let (a, b) = sockets();
    let mut client = on(a, newer.client().connect("db.example").expect("a name"));
    assert_eq!(establish(&mut client, &mut on(b, tls.accept_client())), [None, None]);
    old.write_all(b"PING").expect("it fits");
    assert_eq!(drain(&mut node).0, b"PING", "a connection that was there goes on");
}

#[test]
fn files_without_what_they_should_have_are_named() {
    let cluster = Cluster::new();
    let files = cluster.files(1);
    let (other, stranger) = (cluster.files(2), Cluster::new());
    let wrong = [
        (TlsFiles { certificate: other.certificate, key: other.key, ..files.clone() }, "not valid for name"),
        (TlsFiles { ca: stranger.files(1).ca, ..files.clone() }, "nodes would not accept it"),
        (TlsFiles { ca: files.key.clone(), ..files.clone() }, "no certificate in PEM"),
        (TlsFiles { certificate: files.key.clone(), ..files.clone() }, "no certificate in PEM"),
        (TlsFiles { key: files.certificate.clone(), ..files.clone() }, "no private key in PEM"),
        (TlsFiles { key: cluster.place().join("none"), ..files }, "No such file"),
    ];
    for (files, why) in wrong {
        let error = NodeTls::load(files, &server_name(1)).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_plain_channel_is_its_stream() {
    let (a, b) = sockets();
    let (mut a, mut b) = (Channel::plain(a), Channel::plain(b));
    a.write_all(b"PING").expect("it fits");
    a.flush().expect("nothing to do");
    assert!(!a.is_encrypted() && a.is_established() && !a.has_unsent() && !a.proves(1));
    assert_eq!(drain(&mut b).0, b"PING");
    drop(a);
    assert!(matches!(drain(&mut b).1, Some(Ok(()))));
}

#[test]
fn what_came_before_a_damaged_record_is_read_and_then_the_error_again_and_again() {
    let cluster = Cluster::new();
    let (a, b) = sockets();
    let mut client = on(a, cluster.client().connect("db.example").expect("a name"));
    let mut node = on(b, cluster.node(1).accept_client());
    assert_eq!(establish(&mut client, &mut node), [None, None]);
    client.write_all(b"PING").expect("it fits");
    client
        .stream_mut()
        .write_all(&[23, 3, 3, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20])
        .expect("it fits");
    let (bytes, end) = drain(&mut node);
    assert!(bytes == b"PING" && matches!(end, Some(Err(_))), "{bytes:?} {end:?}");
    let again = node.read(&mut [0]).expect_err("it stays broken");
    assert_eq!(again.kind(), ErrorKind::InvalidData);
}

#[test]
fn a_handshake_without_an_end_is_ended() {
    let cluster = Cluster::new();
    let (mut a, b) = sockets();
    let mut node = on(b, cluster.node(1).accept_client());
    // A hello of 16 MiB, in pieces.
    let mut piece = vec![22, 3, 1, 4, 0];
    piece.extend([1, 255, 255, 255]);
    piece.resize(5 + 1024, 0);
    for _ in 0..80 {
        if a.write_all(&piece).is_err() {
            return;
        }
        if let Some(Err(_)) = drain(&mut node).1 {
            return;
        }
        piece[5..9].fill(0);
    }
    panic!("80 KiB of a handshake are taken");
}

#[test]
fn the_key_is_not_shown() {
    let shown = format!("{:?}", Cluster::new().node(1));
    assert!(shown.contains("server-1.key") && !shown.contains("45, 45"), "{shown}");
}

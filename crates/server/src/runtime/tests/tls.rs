//! Nodes with TLS at every port: what works, and what they say to those who speak without it.

use super::*;
use crate::config::Tls;
use leeward_security::certificates::{Authority, CA_CERTIFICATE, COORDINATOR_NAME, coordinator_files, server_files};
use leeward_security::tls::{Channel, ClientTls, TlsFiles};
use std::path::Path;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A cluster of which every connection is encrypted, and its certificates.
struct Encrypted {
    cluster: Cluster,
    certificates: TempDir,
}

fn issue(directory: &Path, nodes: u32) {
    let authority = Authority::create(directory).expect("it is made");
    authority.add_coordinator(DAY).expect("it is made");
    for node in 1..=nodes {
        authority.add_server(node, &["127.0.0.1".into()], DAY).expect("it is made");
    }
}

impl Encrypted {
    fn start(nodes: u32) -> Encrypted {
        let certificates = tempfile::tempdir().expect("a directory");
        issue(certificates.path(), nodes);
        let ca = certificates.path().join(CA_CERTIFICATE);
        let (certificate, key) = coordinator_files(certificates.path());
        let tls =
            NodeTls::load(TlsFiles { ca: ca.clone(), certificate, key }, COORDINATOR_NAME).expect("they are whole");
        let cluster = Cluster::start_at(nodes, Some(Arc::new(tls)), |config| {
            let (certificate, key) = server_files(certificates.path(), config.identity.server_id);
            config.tls = Tls {
                tls_ca: Some(ca.clone()),
                tls_certificate: Some(certificate),
                tls_key: Some(key),
                insecure_fabric: false,
            };
        });
        Encrypted { cluster, certificates }
    }

    fn connect(&self, address: &str) -> Channel<TcpStream> {
        let tls = ClientTls::load(&self.certificates.path().join(CA_CERTIFICATE)).expect("it is whole");
        let stream = TcpStream::connect(address).expect("the node listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        Channel::encrypted(stream, tls.connect("127.0.0.1").expect("an address"))
    }

    fn client(&self, node: usize) -> Client<Channel<TcpStream>> {
        Client { stream: BufReader::new(self.connect(&self.cluster.servers[node].info().resp_address)) }
    }
}

#[test]
fn every_node_serves_what_the_others_have_over_tls() {
    let encrypted = Encrypted::start(3);
    for node in 0..3 {
        let mut client = encrypted.client(node);
        for key in ["apple", "melon", "zebra"] {
            assert_eq!(client.run_until_served(&format!("SET {key}{node} {node}")), "+OK");
        }
    }
    for node in 0..3 {
        let mut client = encrypted.client(node);
        assert_eq!(client.run("MGET apple0 melon1 zebra2 none"), "0 1 2 $-1");
    }
    let admin = &encrypted.cluster.servers[0].info().admin_address;
    let mut channel = encrypted.connect(admin);
    channel.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut text = String::new();
    channel.read_to_string(&mut text).expect("text, and the end that TLS says");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}

#[test]
fn answers_that_no_buffer_holds_arrive_whole() {
    let encrypted = Encrypted::start(1);
    let mut client = encrypted.client(0);
    let value = "v".repeat(60_000);
    assert_eq!(client.run_until_served("SET b 1"), "+OK");
    assert_eq!(client.run_until_served(&format!("SET a {value}")), "+OK");
    const GETS: usize = 500;
    client.send("GET a\r\n".repeat(GETS).as_bytes());
    for _ in 0..GETS {
        assert!(client.reply() == value);
    }
}

#[test]
fn who_speaks_without_tls_is_told_so_and_reaches_nothing() {
    let encrypted = Encrypted::start(1);
    assert_eq!(encrypted.client(0).run_until_served("SET a 1"), "+OK");
    let info = encrypted.cluster.servers[0].info().clone();
    let mut plain = Client::connect(&info.resp_address);
    plain.send(b"SET a 2\r\n");
    let said = plain.line();
    assert!(said.starts_with("-ERR this port speaks TLS only") && said.contains("--cacert"), "{said}");
    let mut hello = Vec::new();
    write_frame(FrameKind::Request, &Request::Hello { client: "plain".into(), known: 0 }, &mut hello);
    for (address, bytes) in [
        (&info.native_address, hello),
        (&info.admin_address, b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        (&info.fabric_address, b"LWFB\x01\0\0\0\x02\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0".to_vec()),
        (&encrypted.cluster.host().address().to_string(), b"\0\0\0\0".to_vec()),
    ] {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        stream.write_all(&bytes).expect("it fits");
        let mut answer = Vec::new();
        // A reset is an end as well.
        drop(stream.read_to_end(&mut answer));
        // At most an alert of TLS.
        assert!(answer.len() <= 7, "{address}: {answer:?}");
    }
    assert_eq!(encrypted.client(0).run("GET a"), "1");
}

#[test]
fn certificates_that_change_count_for_new_connections_within_seconds() {
    let encrypted = Encrypted::start(1);
    let mut old = encrypted.client(0);
    assert_eq!(old.run_until_served("SET a 1"), "+OK");
    let newer = tempfile::tempdir().expect("a directory");
    issue(newer.path(), 1);
    let files = |directory: &Path| [CA_CERTIFICATE, "server-1.crt", "server-1.key"].map(|name| directory.join(name));
    for (from, to) in files(newer.path()).iter().zip(files(encrypted.certificates.path())) {
        std::fs::copy(from, to).expect("it is copied");
    }
    let address = &encrypted.cluster.servers[0].info().resp_address;
    let begun = Instant::now();
    // The client believes the newer authority only.
    let is_answered = || {
        let mut channel = encrypted.connect(address);
        let asked = channel.establish().and_then(|()| channel.write_all(b"PING\r\n"));
        asked.and_then(|()| channel.read_exact(&mut [0])).is_ok()
    };
    while !is_answered() {
        assert!(begun.elapsed() < Duration::from_secs(30), "the node reads its certificates again");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(old.run("GET a"), "1", "the connection that was there goes on");
}

//! Strangers, broken peers and lost ones, played by plain sockets. The bytes are made by hand, after
//! `docs/formats/fabric.md`, so that they also guard the format.

use crate::{
    common::{Gate, Harness, Log, Node, bytes_of, options, recorder},
    harness::{Shm, Tcp, unique_name},
};
use leeward_fabric::{Admission, Fabric, LinkEvent, LinkOptions, PeerId, ShmFabric, Sink, TcpFabric};
use std::{
    fs::File,
    io::{ErrorKind, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    net::{TcpListener, TcpStream},
    os::{
        fd::OwnedFd,
        unix::{fs::FileExt, net::UnixStream},
    },
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// A hello, or a reply to one.
fn hello(version: u16, verdict: u16, own: u32, wanted: u32) -> Vec<u8> {
    let mut bytes = b"LWFB".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(verdict.to_le_bytes());
    bytes.extend(own.to_le_bytes());
    bytes.extend(wanted.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// A request with its header sealed.
fn request(kind: u8, length: u32, place: &[u64], payload: &[u8]) -> Vec<u8> {
    let mut rest = vec![kind, 0, 0, 0];
    rest.extend(length.to_le_bytes());
    rest.extend(place.iter().flat_map(|field| field.to_le_bytes()));
    let mut bytes = crc32c::crc32c(&rest).to_le_bytes().to_vec();
    bytes.extend(rest);
    bytes.extend(payload);
    bytes
}

/// An answer's kind, length and sequence.
fn answer(from: &mut impl Read) -> (u8, u32, u64) {
    let mut header = [0; 20];
    from.read_exact(&mut header).expect("an answer");
    assert_eq!(header[..4], crc32c::crc32c(&header[4..]).to_le_bytes());
    let length = u32::from_le_bytes(header[8..12].try_into().unwrap());
    (header[4], length, u64::from_le_bytes(header[12..].try_into().unwrap()))
}

/// Says hello to `node` as peer `own`, and reads its welcome.
fn be_welcomed(stream: &mut (impl Read + Write), node: &Node, own: u32) {
    stream.write_all(&hello(2, 0, own, node.id.0)).unwrap();
    let mut reply = [0; 24];
    stream.read_exact(&mut reply).expect("a welcome");
    assert_eq!(reply.to_vec(), hello(2, 0, node.id.0, node.id.0));
}

/// A connection to `node` as peer `own`, welcomed.
fn welcomed(node: &Node, own: u32) -> TcpStream {
    let mut stream = TcpStream::connect(node.fabric.local_address()).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    be_welcomed(&mut stream, node, own);
    stream
}

/// The bytes that `stream` still holds when its other end has hung up.
fn remainder(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut bytes = Vec::new();
    // A reset counts as an end.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

fn place(node: &Node, len: usize) -> (Arc<dyn leeward_fabric::Memory>, [u64; 2]) {
    let memory = node.fabric.allocate(len).expect("there is memory");
    let descriptor = memory.descriptor().0;
    assert_eq!((descriptor.len(), descriptor[0]), (25, 1));
    let field = |at: usize| u64::from_le_bytes(descriptor[at..at + 8].try_into().unwrap());
    assert_eq!(field(17), len as u64);
    (memory, [field(1), field(9)])
}

#[test]
fn requests_are_answered_as_the_format_says() {
    let node = Tcp::default().node(2);
    let (memory, [id, key]) = place(&node, 64);
    let mut peer = welcomed(&node, 9);
    let mut bytes = request(2, 5, &[id, key, 3], b"bytes");
    bytes.extend(request(4, 0, &[], &[]));
    bytes.extend(request(1, 4, &[], b"note"));
    bytes.extend(request(3, 5, &[id, key, 3], &[]));
    bytes.extend(request(2, 1, &[id, key + 1, 0], b"x"));
    bytes.extend(request(5, 0, &[id, key, 0], &[]));
    peer.write_all(&bytes).unwrap();
    assert_eq!(answer(&mut peer), (16, 0, 2), "the write and the ping are acknowledged at once");
    assert_eq!(answer(&mut peer), (18, 5, 3));
    let mut read = [0; 5];
    peer.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"bytes");
    assert_eq!(answer(&mut peer), (19, 0, 3));
    assert_eq!(answer(&mut peer), (17, 0, 4), "a wrong key is refused");
    assert_eq!(answer(&mut peer), (17, 0, 5), "TCP passes no files");
    assert_eq!(bytes_of(&*memory, 3, 5), b"bytes");
    assert_eq!(*node.log.lock().unwrap(), [(PeerId(9), LinkEvent::Message(b"note".to_vec()))]);
}

#[test]
fn a_peer_that_writes_to_readable_memory_is_refused_whatever_it_sends() {
    let node = Tcp::default().node(2);
    let memory = node.fabric.allocate_readable(64).expect("there is memory");
    memory.write(0, &[7; 64]);
    let descriptor = memory.descriptor().0;
    assert_eq!((descriptor.len(), descriptor[0]), (25, 17));
    let field = |at: usize| u64::from_le_bytes(descriptor[at..at + 8].try_into().unwrap());
    let (id, key) = (field(1), field(9));
    let mut peer = welcomed(&node, 9);
    let mut bytes = request(2, 5, &[id, key, 3], b"bytes");
    bytes.extend(request(2, 64, &[id, key, 0], &[1; 64]));
    bytes.extend(request(2, 0, &[id, key, 0], &[]));
    bytes.extend(request(2, 8, &[id, key, u64::MAX], &[1; 8]));
    bytes.extend(request(3, 5, &[id, key, 3], &[]));
    bytes.extend(request(3, 65, &[id, key, 0], &[]));
    bytes.extend(request(3, 1, &[id, key, u64::MAX], &[]));
    bytes.extend(request(5, 0, &[id, key, 1], &[]));
    // In small pieces, so that writes land in pieces.
    for piece in bytes.chunks(11) {
        peer.write_all(piece).unwrap();
    }
    for sequence in 1..=4 {
        assert_eq!(answer(&mut peer), (17, 0, sequence));
    }
    assert_eq!(answer(&mut peer), (18, 5, 5));
    let mut read = [0; 5];
    peer.read_exact(&mut read).unwrap();
    assert_eq!((read, answer(&mut peer)), ([7; 5], (19, 0, 5)));
    for sequence in 6..=8 {
        assert_eq!(answer(&mut peer), (17, 0, sequence));
    }
    memory.revoke();
    peer.write_all(&request(3, 5, &[id, key, 3], &[])).unwrap();
    assert_eq!(answer(&mut peer), (17, 0, 9), "it is revoked");
    let mut found = [0; 64];
    memory.read(0, &mut found);
    assert_eq!(found, [7; 64]);
    peer.write_all(&request(5, 0, &[id, key, 2], &[])).unwrap();
    assert_eq!(remainder(peer), b"", "an import with an unknown permission");
}

#[test]
fn a_file_is_passed_only_to_a_peer_that_expects_what_it_may_do() {
    let node = Shm::default().node(2);
    let (readable, writable) = (node.fabric.allocate_readable(64).unwrap(), node.fabric.allocate(64).unwrap());
    let mut peer = welcomed_over_unix(&node, 9);
    let import = |descriptor: &[u8], permission: u64| {
        let field = |at: usize| u64::from_le_bytes(descriptor[at..at + 8].try_into().unwrap());
        request(5, 0, &[field(1), field(9), permission], &[])
    };
    for bytes in [import(&readable.descriptor().0, 0), import(&writable.descriptor().0, 1)] {
        peer.write_all(&bytes).unwrap();
    }
    assert_eq!((answer(&mut peer), answer(&mut peer)), ((17, 0, 1), (17, 0, 2)));
    peer.write_all(&import(&writable.descriptor().0, 0)).unwrap();
    let passed = File::from(answer_with_file(&mut peer, 3));
    passed.write_at(&[5; 8], 4096).expect("this one may be written");
    assert_eq!(bytes_of(&*writable, 0, 16), [[5; 8], [0; 8]].concat());
    peer.write_all(&import(&readable.descriptor().0, 1)).unwrap();
    let passed = File::from(answer_with_file(&mut peer, 4));
    readable.store_u64(0, 7);
    let mut word = [0; 8];
    passed.read_exact_at(&mut word, 4096).expect("it may be read");
    assert_eq!(word, 7u64.to_le_bytes());
    let error = passed.write_at(&[5; 8], 4096).expect_err("the kernel refuses");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert_eq!(readable.load_u64(0), 7);
    readable.revoke();
    peer.write_all(&import(&readable.descriptor().0, 1)).unwrap();
    assert_eq!(answer(&mut peer), (17, 0, 5), "it is revoked");
}

/// A connection over a Unix-domain socket to `node` as peer `own`, welcomed.
fn welcomed_over_unix(node: &Node, own: u32) -> UnixStream {
    use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};
    let address = node.fabric.local_address();
    let address = SocketAddr::from_abstract_name(address.trim_start_matches('@')).expect("a name");
    let mut stream = UnixStream::connect_addr(&address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    be_welcomed(&mut stream, node, own);
    stream
}

/// The file that comes with the answer to import `sequence`.
fn answer_with_file(from: &mut UnixStream, sequence: u64) -> OwnedFd {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let (mut header, mut control) = ([0; 20], RecvAncillaryBuffer::new(&mut space));
    let received = recvmsg(&*from, &mut [IoSliceMut::new(&mut header)], &mut control, RecvFlags::WAITALL);
    assert_eq!(received.expect("an answer").bytes, 20);
    assert_eq!(answer(&mut &header[..]), (20, 0, sequence));
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    files.flatten().next().expect("a file")
}

#[test]
fn strangers_are_hung_up_on_and_told_what_makes_sense() {
    let node = Tcp::default().node(2);
    let told = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(node.fabric.local_address()).expect("it listens");
        stream.write_all(bytes).unwrap();
        remainder(stream)
    };
    assert_eq!(told(b"GET / HTTP/1.1\r\nHost: leeward\r\n\r\n"), b"");
    assert_eq!(told(&hello(2, 0, 9, 3)), hello(2, 1, 2, 3), "wants peer 3, reaches peer 2");
    assert_eq!(told(&hello(7, 0, 9, 2)), hello(2, 2, 2, 2), "speaks version 7");
    let mut damaged = hello(2, 0, 9, 2);
    damaged[9] ^= 1;
    assert_eq!(told(&damaged), b"");
    assert!(node.log.lock().unwrap().is_empty());
}

#[test]
fn a_silent_stranger_is_hung_up_on_and_holds_up_no_peer() {
    let mut h = Tcp::default();
    let node = h.node(2);
    let silent = TcpStream::connect(node.fabric.local_address()).expect("it listens");
    drop(welcomed(&node, 9));
    assert_eq!(remainder(silent), b"");
}

#[test]
fn strangers_take_no_place_of_a_peer() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("it may be raised so far");
    let (log, sink) = recorder();
    // None of them is hung up on for its silence during the test.
    let options = LinkOptions { hello_timeout: Duration::from_secs(600), ..options() };
    let fabric = TcpFabric::bind(PeerId(2), "127.0.0.1:0", options, sink).expect("a port is free");
    let node = Node { id: PeerId(2), fabric, log };
    let mut before = welcomed(&node, 8);
    // As many as there are places for peers, and more.
    let address = node.fabric.local_address();
    let strangers: Vec<_> = (0..1_100).map(|_| TcpStream::connect(&address).expect("it listens")).collect();
    for stream in [&mut welcomed(&node, 9), &mut before] {
        stream.write_all(&request(4, 0, &[], &[])).unwrap();
        assert_eq!(answer(stream).0, 16, "a ping is answered");
    }
    let first = strangers.into_iter().next().expect("there are some");
    assert_eq!(remainder(first), b"", "the first one had to go for others");
}

#[test]
fn broken_requests_end_their_connection_only() {
    let node = Tcp::default().node(2);
    let (_memory, [id, key]) = place(&node, 64);
    let mut good = welcomed(&node, 8);
    let mut damaged = request(2, 5, &[id, key, 0], b"bytes");
    damaged[30] ^= 1;
    let too_long = request(1, u32::MAX, &[], &[]);
    let unknown = request(77, 0, &[], &[]);
    let mut reserved = vec![4, 0, 1, 0, 0, 0, 0, 0];
    reserved.splice(0..0, crc32c::crc32c(&reserved).to_le_bytes());
    for bytes in [damaged, too_long, unknown, reserved] {
        let mut peer = welcomed(&node, 9);
        peer.write_all(&bytes).unwrap();
        assert_eq!(remainder(peer), b"");
    }
    good.write_all(&request(4, 0, &[], &[])).unwrap();
    assert_eq!(answer(&mut good), (16, 0, 1));
}

#[test]
fn a_peer_that_connects_again_ends_its_older_connection_first() {
    let node = Tcp::default().node(2);
    let (memory, [id, key]) = place(&node, 64);
    let mut older = welcomed(&node, 9);
    older.write_all(&request(2, 64, &[id, key, 0], &[1; 32])).unwrap();
    let _newer = welcomed(&node, 9);
    // Whether or not it gets through the older socket: it is too late.
    let _ = older.write_all(&[2; 32]);
    assert_eq!(remainder(older), b"");
    let landed = bytes_of(&*memory, 0, 64);
    assert!(landed[32..] == [0; 32], "bytes of the older connection landed after the newer one was welcomed");
}

#[test]
fn a_peer_that_connects_again_is_not_welcomed_while_its_older_connection_is_at_work() {
    let gate = Arc::new(Gate::default());
    let blocked = Arc::clone(&gate);
    let sink: Sink = Arc::new(move |_, _| blocked.pass());
    let fabric = TcpFabric::bind(PeerId(2), "127.0.0.1:0", options(), sink).expect("a port is free");
    let node = Node { id: PeerId(2), fabric, log: Log::default() };
    let mut older = welcomed(&node, 9);
    older.write_all(&request(1, 4, &[], b"work")).unwrap();
    thread::sleep(Duration::from_millis(50));
    let mut newer = TcpStream::connect(node.fabric.local_address()).expect("it listens");
    newer.write_all(&hello(2, 0, 9, 2)).unwrap();
    newer.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut reply = [0; 24];
    let early = newer.read_exact(&mut reply);
    gate.open();
    assert!(early.is_err(), "welcomed too early");
    newer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    newer.read_exact(&mut reply).expect("a welcome");
}

#[test]
fn a_link_that_is_redirected_while_it_connects_goes_to_the_new_address() {
    let (gate, reached) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
    let (blocked, told) = (Arc::clone(&gate), Arc::clone(&reached));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the node connects");
        stream.read_exact(&mut [0; 24]).expect("its hello");
        told.open();
        blocked.pass();
        stream.write_all(&hello(2, 0, 2, 2)).unwrap();
        thread::sleep(Duration::from_secs(30));
    });
    let mut h = Tcp::default();
    let (a, b) = (h.node(1), h.node(2));
    a.fabric.connect(b.id, &address);
    reached.pass();
    a.fabric.connect(b.id, &b.fabric.local_address());
    gate.open();
    h.until("the link is up", &mut || a.ups(&b) == 1);
    a.fabric.send(b.id, b"to the new address");
    a.fabric.flush();
    h.until("the message arrives", &mut || !b.messages(&a).is_empty());
    assert_eq!((a.ups(&b), a.downs(&b)), (1, 0));
}

/// Whether a stranger that names itself peer `own` is refused: it is told nothing, and its connection is closed.
fn is_refused(node: &Node, own: u32) -> bool {
    let mut stream = TcpStream::connect(node.fabric.local_address()).expect("it listens");
    stream.write_all(&hello(2, 0, own, node.id.0)).unwrap();
    remainder(stream).is_empty()
}

#[test]
fn only_admitted_peers_connect_and_none_ends_anothers_connection() {
    let (log, sink) = recorder();
    let options = LinkOptions { admission: Admission::Sessions, ..options() };
    let fabric = TcpFabric::bind(PeerId(2), "127.0.0.1:0", options, sink).expect("a port is free");
    let node = Node { id: PeerId(2), fabric, log };
    let (memory, [id, key]) = place(&node, 64);
    assert!(is_refused(&node, 9), "it is not admitted yet");
    node.fabric.admit(PeerId(9));
    let mut peer = welcomed(&node, 9);
    assert!(is_refused(&node, 9), "another in its name");
    assert!(is_refused(&node, 8), "this one is not admitted");
    peer.write_all(&request(2, 5, &[id, key, 0], b"bytes")).unwrap();
    assert_eq!(answer(&mut peer), (16, 0, 1), "the first one is at work");
    assert_eq!(bytes_of(&*memory, 0, 5), b"bytes");
    // Half of a write, which holds on to its memory.
    peer.write_all(&request(2, 64, &[id, key, 0], &[1; 32])).unwrap();
    node.fabric.disconnect(PeerId(9));
    assert_eq!(remainder(peer), b"", "it is admitted no more");
    assert!(is_refused(&node, 9));
    node.fabric.admit(PeerId(9));
    for length in [0, 4] {
        let mut peer = loop {
            // The thread of the connection before may be about to end.
            let mut stream = TcpStream::connect(node.fabric.local_address()).expect("it listens");
            stream.write_all(&hello(2, 0, 9, 2)).unwrap();
            if stream.read_exact(&mut [0; 24]).is_ok() {
                break stream;
            }
        };
        peer.write_all(&request(1, length, &[], &b"note"[..length as usize])).unwrap();
        assert_eq!(remainder(peer), b"", "an admitted peer may send no control message");
    }
    assert!(node.log.lock().unwrap().is_empty(), "and they are not delivered");
}

#[test]
fn a_listener_that_accepts_no_connection_holds_up_no_thread() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket};
    let name = unique_name();
    let address = SocketAddrUnix::new_abstract_name(&name.as_bytes()[1..]).unwrap();
    let socket_of = || socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let listener = socket_of();
    bind(&listener, &address).unwrap();
    listen(&listener, 0).unwrap();
    let waiting = socket_of();
    connect(&waiting, &address).expect("the backlog has room for one");
    let (log, sink) = recorder();
    let fabric = ShmFabric::bind(PeerId(1), &unique_name(), options(), sink).expect("the name is free");
    fabric.connect(PeerId(2), &name);
    // Long enough for the link's thread to have tried.
    thread::sleep(Duration::from_millis(100));
    let (done, is_done) = std::sync::mpsc::channel();
    thread::spawn(move || {
        drop(fabric);
        done.send(()).expect("the test waits");
    });
    is_done.recv_timeout(Duration::from_secs(20)).expect("the fabric ends, whatever the listener does");
    assert!(log.lock().unwrap().is_empty());
}

/// A peer 2 that welcomes every other and then does as `after` says.
fn rogue(after: impl Fn(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut bytes = [0; 24];
            if stream.read_exact(&mut bytes).is_ok() {
                stream.write_all(&hello(2, 0, 2, 2)).unwrap();
                after(stream);
            }
        }
    });
    address
}

/// A node connected to the peer 2 at `address`.
fn connected(address: &str, options: LinkOptions) -> (Node, Node) {
    let (log, sink) = recorder();
    let fabric = TcpFabric::bind(PeerId(1), "127.0.0.1:0", options, sink).expect("a port is free");
    let (a, b) = (
        Node { id: PeerId(1), fabric: Arc::<TcpFabric>::clone(&fabric), log },
        Node { id: PeerId(2), fabric, log: Arc::default() },
    );
    a.fabric.connect(b.id, address);
    Tcp::default().until("the link is up", &mut || a.ups(&b) > 0);
    (a, b)
}

#[test]
fn a_peer_that_does_not_drain_takes_its_link_down_before_memory_runs_out() {
    let address = rogue(std::mem::forget);
    let (a, b) = connected(&address, LinkOptions { out_buffer_bytes: 8 << 20, ..LinkOptions::default() });
    let mut sent = 0;
    Tcp::default().until("the link is down", &mut || {
        a.fabric.send(b.id, &[1; 1 << 20]);
        a.fabric.flush();
        sent += 1;
        a.downs(&b) == 1
    });
    assert!(sent < 200, "{sent} MiB were taken");
}

#[test]
fn a_peer_that_falls_silent_takes_its_link_down() {
    let address = rogue(std::mem::forget);
    let (a, b) = connected(&address, options());
    let begin = Instant::now();
    Tcp::default().until("an idle link is down", &mut || a.downs(&b) == 1);
    assert!(begin.elapsed() >= options().peer_timeout, "it had its time");
}

#[test]
fn an_idle_link_to_a_living_peer_stays_up() {
    let mut h = Tcp::default();
    let (a, b) = h.pair();
    thread::sleep(options().peer_timeout + options().ping_interval * 3);
    assert_eq!((a.ups(&b), a.downs(&b)), (1, 0));
}

#[test]
fn answers_to_nothing_take_the_link_down() {
    let address = rogue(|mut stream| {
        let mut header = vec![16, 0, 0, 0, 0, 0, 0, 0];
        header.extend(u64::MAX.to_le_bytes());
        header.splice(0..0, crc32c::crc32c(&header).to_le_bytes());
        // The link may be down before all is written.
        let _ = stream.write_all(&header);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let (a, b) = connected(&address, options());
    Tcp::default().until("the link is down", &mut || a.downs(&b) > 0);
}

#[test]
fn a_wrong_peer_is_never_up() {
    let mut h = Tcp::default();
    let (a, b) = (h.node(1), h.node(2));
    a.fabric.connect(PeerId(3), &b.fabric.local_address());
    a.fabric.connect(PeerId(4), "127.0.0.1:1");
    a.fabric.connect(PeerId(5), "no address at all");
    thread::sleep(Duration::from_millis(200));
    assert!(a.log.lock().unwrap().is_empty());
    // The right address mends it.
    let c = h.node(3);
    a.fabric.connect(c.id, &c.fabric.local_address());
    h.until("the right peer is up", &mut || a.ups(&c) == 1);
    // Another address takes it down and to another place.
    a.fabric.connect(c.id, &b.fabric.local_address());
    h.until("the link is down", &mut || a.downs(&c) == 1);
    a.fabric.connect(c.id, &c.fabric.local_address());
    h.until("the right peer is up again", &mut || a.ups(&c) == 2);
}

#[test]
fn addresses_that_are_taken_or_malformed_are_errors_that_name_them() {
    let (tcp, shm) = (Tcp::default().node(1), Shm::default().node(1));
    let directory = tempfile::tempdir().expect("a directory");
    let nowhere = directory.path().join("missing/socket").to_string_lossy().into_owned();
    let refused = |fabric: std::io::Result<Arc<dyn Fabric>>, address: &str| match fabric {
        Ok(_) => panic!("{address} is bound"),
        Err(error) => assert!(error.to_string().contains(address), "{error}"),
    };
    for address in [tcp.fabric.local_address(), "127.0.0.1".into(), "127.0.0.1:99999".into()] {
        refused(TcpFabric::bind(PeerId(2), &address, options(), recorder().1).map(|f| f as Arc<dyn Fabric>), &address);
    }
    for address in [shm.fabric.local_address(), nowhere] {
        refused(ShmFabric::bind(PeerId(2), &address, options(), recorder().1).map(|f| f as Arc<dyn Fabric>), &address);
    }
}

#[test]
fn a_socket_in_a_directory_is_removed_and_a_dead_ones_file_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("fabric.sock");
    let address = path.to_string_lossy().into_owned();
    // A listener that goes away without cleaning up, as by kill -9, leaves its file.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("the path is free"));
    assert!(path.exists());
    let (log, sink) = recorder();
    let b =
        Node { id: PeerId(2), fabric: ShmFabric::bind(PeerId(2), &address, options(), sink).expect("replaced"), log };
    assert!(ShmFabric::bind(PeerId(3), &address, options(), recorder().1).is_err(), "a living one's is not");
    let (log, sink) = recorder();
    let a =
        Node { id: PeerId(1), fabric: ShmFabric::bind(PeerId(1), &unique_name(), options(), sink).expect("free"), log };
    a.fabric.connect(b.id, &b.fabric.local_address());
    Shm::default().until("the link is up", &mut || a.ups(&b) == 1);
    drop(b);
    assert!(!path.exists());
}

/// A bulk message occupies the receiver of the link. An urgent one passes it, once its own connection is made.
#[test]
fn an_urgent_message_does_not_wait_for_what_was_sent_before() {
    let gate = Arc::new(Gate::default());
    let (blocked, (heard, urgent)) = (Arc::clone(&gate), std::sync::mpsc::channel());
    let sink: Sink = Arc::new(move |_, event| match event {
        LinkEvent::Message(bytes) if bytes == b"bulk" => blocked.pass(),
        LinkEvent::Message(bytes) => drop(heard.send(bytes)),
        _ => {}
    });
    let to = TcpFabric::bind(PeerId(2), "127.0.0.1:0", options(), sink).expect("a port is free");
    let (up, is_up) = std::sync::mpsc::channel();
    let sink: Sink = Arc::new(move |peer, event| drop(up.send((peer, event))));
    let from = TcpFabric::bind(PeerId(1), "127.0.0.1:0", options(), sink).expect("a port is free");
    from.connect(PeerId(2), &to.local_address());
    assert_eq!(is_up.recv_timeout(Duration::from_secs(20)), Ok((PeerId(2), LinkEvent::Up)));
    // The connection is made now, and the message takes the link.
    from.send_urgent(PeerId(2), b"first");
    from.flush();
    assert_eq!(urgent.recv_timeout(Duration::from_secs(20)).as_deref(), Ok(&b"first"[..]));
    from.send(PeerId(2), b"bulk");
    let passed = (0..1_000).any(|_| {
        from.send_urgent(PeerId(2), b"lease");
        from.flush();
        urgent.recv_timeout(Duration::from_millis(20)).is_ok()
    });
    gate.open();
    assert!(passed, "it waits behind the bulk message");
    assert!(is_up.try_recv().is_err(), "nothing is heard of that connection");
}

#[test]
fn urgent_messages_of_a_process_end_with_the_link_of_the_next() {
    let node = Tcp::default().node(2);
    let urgent_of = |own: u32| {
        let mut stream = TcpStream::connect(node.fabric.local_address()).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&hello(2, 1, own, 2)).unwrap();
        stream.read_exact(&mut [0; 24]).expect("a welcome");
        stream
    };
    let first = welcomed(&node, 9);
    let (urgent, of_another) = (urgent_of(9), urgent_of(8));
    let _second = welcomed(&node, 9);
    assert_eq!((remainder(first), remainder(urgent)), (Vec::new(), Vec::new()));
    // That of another peer, and one that begins anew, stay.
    let (mut again, mut of_another) = (urgent_of(9), of_another);
    for stream in [&mut again, &mut of_another] {
        stream.write_all(&request(4, 0, &[], &[])).unwrap();
        assert_eq!(answer(stream).0, 16, "a ping is answered");
    }
}

//! Clients through rings, against a scripted node: answers in slots, over the connection, and without a bell.

use crate::fake::{FakeNode, map, success};
use leeward_client::{ClientError, ClientOptions, Op, OpResult, RegionMap, Session};
use leeward_fabric::{Descriptor, Fabric, LinkEvent, Memory, PeerId, ShmFabric};
use leeward_format::frame::{FrameKind, read_frame, write_frame};
use leeward_format::op::{MAX_MESSAGE_BYTES, Reply, Request};
use leeward_format::ring::{CONTROL_BYTES, Cursor, Identity, Next, RingKind, Slot, write_message};
use leeward_format::routes::RoutesUpdate;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const NODE: PeerId = PeerId(1);
const CLIENT: PeerId = PeerId(2);
const RING: usize = 64 << 10;
const KEYS: (u64, u64) = (11, 12);
/// Longer than anything takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// A node with the rings of one client.
pub(crate) struct Node {
    stream: TcpStream,
    input: Vec<u8>,
    pub(crate) fabric: Arc<ShmFabric>,
    events: Mutex<Receiver<LinkEvent>>,
    pub(crate) map: RegionMap,
    memory: Arc<dyn Memory>,
    reply: Descriptor,
    cursor: Cursor,
}

impl Node {
    /// The next frame of the connection, if the client says one.
    pub(crate) fn frame(stream: &mut TcpStream, input: &mut Vec<u8>) -> Option<Request> {
        loop {
            let frame = read_frame(FrameKind::Request, input, MAX_MESSAGE_BYTES).expect("a well-formed request");
            if let Some((request, bytes)) = frame {
                input.drain(..bytes);
                return Some(request);
            }
            let mut scratch = [0; 4096];
            match stream.read(&mut scratch) {
                Ok(0) | Err(_) => return None,
                Ok(bytes) => input.extend_from_slice(&scratch[..bytes]),
            }
        }
    }

    pub(crate) fn say(stream: &mut TcpStream, reply: &Reply) {
        let mut out = Vec::new();
        write_frame(FrameKind::Reply, reply, &mut out);
        stream.write_all(&out).expect("the client is there");
    }

    /// Gives rings to the client that connects to `listener`.
    fn accept(listener: &TcpListener, map: RegionMap) -> Node {
        let name = format!("@leeward-test-{}", listener.local_addr().expect("it is bound"));
        let (sender, events) = channel();
        let sender = Mutex::new(sender);
        let sink = Arc::new(move |_, event| drop(sender.lock().expect("no panic").send(event)));
        let fabric = ShmFabric::bind(NODE, &name, Default::default(), sink).expect("the name is free");
        let (mut stream, _) = listener.accept().expect("a client");
        let mut input = Vec::new();
        let (reply, memory) = loop {
            match Node::frame(&mut stream, &mut input).expect("the client goes on") {
                Request::Hello { .. } => Node::say(&mut stream, &Reply::Routes(RoutesUpdate::everything(&map))),
                Request::RingOffer => {
                    let (fabric, address) = ("shm".into(), name.clone());
                    let (node, client) = (NODE.0, CLIENT.0);
                    let offer = Reply::RingOffer { fabric, node, client, address, most_bytes: RING as u32 };
                    Node::say(&mut stream, &offer);
                }
                Request::RingOpen { address, reply, .. } => {
                    fabric.connect(CLIENT, &address);
                    let memory = fabric.allocate(RING + CONTROL_BYTES).expect("memory");
                    break (Descriptor(reply.to_vec()), memory);
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(events.recv_timeout(LONG), Ok(LinkEvent::Up));
        let (request_key, reply_key) = KEYS;
        let request = memory.descriptor().0.into();
        Node::say(&mut stream, &Reply::RingOpen { request, request_key, reply_key });
        let cursor = Cursor::new(RING, KEYS.0);
        Node { stream, input, fabric, events: Mutex::new(events), map, memory, reply, cursor }
    }

    /// The next request in the ring, and the slot of its answer.
    pub(crate) fn request(&mut self) -> (u64, Slot, Request) {
        let mut buffer = Vec::new();
        loop {
            let (memory, cursor) = (&self.memory, &mut self.cursor);
            let next = cursor.take(|at| memory.load_u64(at), |at, bytes| memory.read(at, bytes), &mut buffer);
            if let Next::Message(sequence, message) = next.expect("the client keeps to the protocol") {
                let frame = read_frame(FrameKind::Request, message.payload, MAX_MESSAGE_BYTES).expect("a request");
                return (sequence, message.slot, frame.expect("all of it").0);
            }
            thread::yield_now();
        }
    }

    fn write(&self, sequence: u64, slot: Slot, kind: RingKind, payload: &[u8]) {
        let mut bytes = Vec::new();
        let identity = Identity { key: KEYS.1, sequence, place: slot.at };
        write_message(identity, kind, Slot::default(), payload, &mut bytes);
        self.fabric.write(CLIENT, &self.reply, slot.at.into(), &bytes, 0);
        self.fabric.flush();
        let events = self.events.lock().expect("no panic");
        assert_eq!(events.recv_timeout(LONG), Ok(LinkEvent::Completed { op: 0 }));
    }

    pub(crate) fn answer(&self, sequence: u64, slot: Slot, reply: &Reply) {
        let mut frame = Vec::new();
        write_frame(FrameKind::Reply, reply, &mut frame);
        self.write(sequence, slot, RingKind::Frames, &frame);
    }

    /// Answers requests in the ring until one for `key` comes. Returns that one's number, slot and reply.
    fn serve_until(&mut self, key: &str) -> (u64, Slot, Reply) {
        loop {
            let (sequence, slot, request) = self.request();
            let reply = match request {
                Request::Map => Reply::Map(self.map.clone()),
                Request::Routes { .. } => Reply::Routes(RoutesUpdate::everything(&self.map)),
                Request::Ops { id, ops, .. } | Request::Once { id, ops, .. } => {
                    let results = Reply::Results { id, results: ops.iter().map(success).collect() };
                    if matches!(&ops[0], Op::Get { key: asked } | Op::Add { key: asked, .. } if asked == key) {
                        return (sequence, slot, results);
                    }
                    results
                }
                other => panic!("{other:?} in a ring"),
            };
            self.answer(sequence, slot, &reply);
        }
    }
}

/// A client of a node that runs `script`. Returns the session and the node's thread.
fn with_node<T: Send + 'static>(
    ring_spin: Duration,
    script: impl FnOnce(Node) -> T + Send + 'static,
) -> (Session, thread::JoinHandle<T>) {
    connect("leeward+ring", ClientOptions { ring_spin, ..ClientOptions::default() }, script)
}

/// As [`with_node`], with an address of this scheme.
pub(crate) fn connect<T: Send + 'static>(
    scheme: &str,
    options: ClientOptions,
    script: impl FnOnce(Node) -> T + Send + 'static,
) -> (Session, thread::JoinHandle<T>) {
    let (listener, address) = FakeNode::bind();
    let map = map(3, &[("", 1)], &[&address]);
    let node = thread::spawn(move || script(Node::accept(&listener, map)));
    let options = ClientOptions { deadline: LONG, connect_within: LONG, answer_timeout: LONG, ..options };
    let session = Session::connect(&[format!("{scheme}://{address}")], options).expect("the node gives rings");
    (session, node)
}

#[test]
fn an_answer_that_lies_in_its_slot_counts_although_the_node_is_gone() {
    let (mut session, node) = with_node(Duration::ZERO, |mut node| {
        let (sequence, slot, reply) = node.serve_until("counter");
        // The client sleeps by now, most likely, and is not rung for.
        thread::sleep(Duration::from_millis(50));
        node.answer(sequence, slot, &reply);
    });
    let results = session.execute(vec![Op::Add { key: "counter".into(), delta: 7 }]).expect("an answer");
    assert_eq!(results, [OpResult::Integer(7)], "it was executed, and the client was told");
    node.join().expect("the script is done");
}

#[test]
fn the_connection_is_heard_while_answers_keep_coming_through_the_ring() {
    let (mut session, node) = with_node(LONG, |mut node| {
        let (large, large_slot, reply) = node.serve_until("large");
        // There is always another that is answered through the ring.
        let (first, first_slot, first_reply) = node.serve_until("first");
        node.write(large, large_slot, RingKind::OnStream, &[]);
        Node::say(&mut node.stream, &reply);
        node.answer(first, first_slot, &first_reply);
        let (sequence, slot, reply) = node.serve_until("last");
        node.answer(sequence, slot, &reply);
        // Nothing but bells goes over the connection.
        node.stream.shutdown(std::net::Shutdown::Write).expect("it is open");
        while let Some(request) = Node::frame(&mut node.stream, &mut node.input) {
            assert_eq!(request, Request::RingBell);
        }
    });
    let large = session.submit(vec![Op::Get { key: "large".into() }]).expect("it is alone");
    assert_eq!(session.poll(Duration::ZERO).expect("a poll"), [], "it is sent alone");
    session.submit(vec![Op::Get { key: "first".into() }]).expect("there is room");
    let (mut small, mut is_answered) = (0, false);
    // Without a look at the connection this would go on as long as there are others to be answered.
    while !is_answered {
        for done in session.poll(LONG).expect("a poll") {
            is_answered |= done.ticket == large;
            if done.ticket != large {
                small += 1;
                assert!(small < 100_000, "the client does not read the connection");
                session.submit(vec![Op::Get { key: "small".into() }]).expect("there is room");
            }
        }
    }
    assert_eq!(session.fetch_map().expect("the map, through the ring").version, 3);
    let last = session.execute(vec![Op::Get { key: "last".into() }]).expect("an answer");
    assert_eq!(last, [OpResult::Value(Some("last".into()))]);
    drop(session);
    node.join().expect("the script is done");
}

#[test]
fn rings_that_are_too_small_are_refused() {
    for (ring_bytes, most_bytes) in [(100, RING as u32), (0, RING as u32), (RING, 100), (RING, 0)] {
        let (listener, address) = FakeNode::bind();
        let map = map(3, &[("", 1)], &[&address]);
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut input = Vec::new();
            while let Some(request) = Node::frame(&mut stream, &mut input) {
                let reply = match request {
                    Request::RingOffer => {
                        let (fabric, address) = ("shm".into(), "@nowhere".into());
                        Reply::RingOffer { fabric, node: 1, client: 2, address, most_bytes }
                    }
                    _ => Reply::Routes(RoutesUpdate::everything(&map)),
                };
                Node::say(&mut stream, &reply);
            }
        });
        let options = ClientOptions { ring_bytes, connect_within: LONG, ..ClientOptions::default() };
        let error = Session::connect(&[format!("leeward+ring://{address}")], options).expect_err("no such ring");
        assert!(matches!(error, ClientError::Rings { .. }), "{error}");
        assert!(error.to_string().contains("at least 4096 bytes"), "{error}");
    }
}

//! Rings of a real node over shared memory, against a client that the test plays: what happens to it, and to others,
//! when it breaks the protocol.

use super::*;
use leeward_fabric::{Descriptor, LinkEvent, Memory};
use leeward_format::ring::{CLIENT_ADDRESS, CONTROL_BYTES, Identity, RingKind, Slot, read_message, write_message};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

const RING: usize = 4096;
const TIMEOUT: Duration = Duration::from_secs(30);

/// A client with rings.
struct Ringed {
    stream: TcpStream,
    input: Vec<u8>,
    fabric: Arc<ShmFabric>,
    events: Receiver<LinkEvent>,
    /// The node, and where its fabric is.
    node: (PeerId, String),
    me: PeerId,
    memory: Arc<dyn Memory>,
    request: Descriptor,
    keys: (u64, u64),
    sequence: u64,
    /// Messages up to this one are in the node's memory.
    landed: u64,
    at: u32,
}

fn bind(me: PeerId) -> (Arc<ShmFabric>, Receiver<LinkEvent>) {
    let (sender, events) = channel();
    let sender = Mutex::new(sender);
    let sink: Sink = Arc::new(move |_, event| drop(sender.lock().expect("no panic").send(event)));
    let address = format!("{CLIENT_ADDRESS}{:016x}", Rng::from_entropy().u64());
    (ShmFabric::bind(me, &address, LinkOptions::default(), sink).expect("the name is free"), events)
}

fn say(stream: &mut TcpStream, request: &Request) {
    let mut frame = Vec::new();
    write_frame(FrameKind::Request, request, &mut frame);
    stream.write_all(&frame).expect("the node reads");
}

/// The next frame, or the end.
fn hear(stream: &mut TcpStream, input: &mut Vec<u8>) -> Option<Reply> {
    loop {
        if let Some((reply, bytes)) = read_frame(FrameKind::Reply, input, MAX_MESSAGE_BYTES).expect("a frame") {
            input.drain(..bytes);
            return Some(reply);
        }
        let mut scratch = [0; 4096];
        match stream.read(&mut scratch) {
            Ok(0) => return None,
            Ok(bytes) => input.extend_from_slice(&scratch[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
            Err(error) => panic!("the node neither answers nor hangs up: {error}"),
        }
    }
}

impl Ringed {
    fn connect(cluster: &Cluster) -> Ringed {
        let mut stream = TcpStream::connect(&cluster.servers[0].info().native_address).expect("the node listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let mut input = Vec::new();
        say(&mut stream, &Request::RingOffer);
        let offer = hear(&mut stream, &mut input).expect("an offer");
        let Reply::RingOffer { node, client, address, .. } = offer else { panic!("{offer:?}") };
        let (node, me) = ((PeerId(node), address), PeerId(client));
        let (fabric, events) = bind(me);
        let memory = fabric.allocate(RING + CONTROL_BYTES).expect("memory");
        fabric.connect(node.0, &node.1);
        let open = Request::RingOpen {
            address: fabric.local_address(),
            request_bytes: RING as u32,
            reply_bytes: RING as u32,
            reply: memory.descriptor().0.into(),
        };
        say(&mut stream, &open);
        let opened = hear(&mut stream, &mut input).expect("rings");
        let Reply::RingOpen { request, request_key, reply_key } = opened else { panic!("{opened:?}") };
        assert_eq!(events.recv_timeout(TIMEOUT), Ok(LinkEvent::Up));
        let (request, keys) = (Descriptor(request.to_vec()), (request_key, reply_key));
        Ringed { stream, input, fabric, events, node, me, memory, request, keys, sequence: 0, landed: 0, at: 0 }
    }

    /// Puts a message into the ring; [`Ringed::ring`] follows.
    fn put(&mut self, kind: RingKind, slot: Slot, payload: &[u8]) {
        self.sequence += 1;
        let mut bytes = Vec::new();
        let identity = Identity { key: self.keys.0, sequence: self.sequence, place: self.at };
        write_message(identity, kind, slot, payload, &mut bytes);
        self.fabric.write(self.node.0, &self.request, self.at.into(), &bytes, self.sequence);
        self.at += bytes.len() as u32;
    }

    fn add(&mut self, slot: Slot) {
        let ops = vec![Op::Add { key: "counter".into(), delta: 1 }];
        let request = Request::Ops { id: 7, direct: true, table: TableName::default(), ops };
        let mut frame = Vec::new();
        write_frame(FrameKind::Request, &request, &mut frame);
        self.put(RingKind::Frames, slot, &frame);
    }

    /// Rings the node, once all that was put is there.
    fn ring(&mut self) {
        self.fabric.flush();
        while self.landed < self.sequence {
            assert_eq!(self.events.recv_timeout(TIMEOUT), Ok(LinkEvent::Completed { op: self.landed + 1 }));
            self.landed += 1;
        }
        say(&mut self.stream, &Request::RingBell);
    }

    /// The answer in `slot` to message `sequence`, if it is there.
    fn answer(&self, sequence: u64, slot: Slot) -> Option<Reply> {
        let identity = Identity { key: self.keys.1, sequence, place: slot.at };
        let bytes = identity.begun(self.memory.load_u64(slot.at as usize), slot.room as usize)?;
        let mut message = vec![0; bytes];
        self.memory.read(slot.at as usize, &mut message);
        let message = read_message(identity, &message).expect("a message")?;
        let (reply, _) = read_frame(FrameKind::Reply, message.payload, MAX_MESSAGE_BYTES).expect("a frame")?;
        Some(reply)
    }

    /// Waits until the node closes the connection, whatever it sent before.
    fn is_hung_up_on(&mut self) {
        while hear(&mut self.stream, &mut self.input).is_some() {}
    }
}

fn cluster() -> Cluster {
    let cluster = Cluster::start(1);
    assert_eq!(cluster.client(0).run_until_served("SET counter 0"), "+OK");
    cluster
}

const SLOT: Slot = Slot { at: 0, room: 256 };

#[test]
fn what_was_asked_before_a_breach_of_the_protocol_is_answered_first() {
    let cluster = cluster();
    let mut client = Ringed::connect(&cluster);
    client.add(SLOT);
    client.put(RingKind::Fetch, Slot { at: 256, room: 256 }, &77_u64.to_le_bytes());
    client.ring();
    client.is_hung_up_on();
    let answer = Reply::Results { id: 7, results: vec![OpResult::Integer(1)] };
    assert_eq!(client.answer(1, SLOT), Some(answer), "it was executed, and the client knows");
    assert_eq!(client.answer(2, Slot { at: 256, room: 256 }), None);
}

#[test]
fn nobody_ends_the_rings_of_another() {
    let cluster = cluster();
    let mut client = Ringed::connect(&cluster);
    // In its name, and in one that no client has.
    for name in [client.me, PeerId(client.me.0 ^ 1)] {
        let (fabric, events) = bind(name);
        fabric.connect(client.node.0, &client.node.1);
        events.recv_timeout(Duration::from_millis(300)).expect_err("it is not welcomed");
    }
    client.add(SLOT);
    client.ring();
    let begun = Instant::now();
    while client.answer(1, SLOT).is_none() {
        assert!(begun.elapsed() < TIMEOUT, "its own rings are as they were");
        std::thread::sleep(Duration::from_millis(1));
    }
    let other = Ringed::connect(&cluster);
    other.fabric.send(other.node.0, b"a control message, which is not accepted");
    other.fabric.flush();
    assert_eq!(other.events.recv_timeout(TIMEOUT), Ok(LinkEvent::Down), "it ends its own");
    client.add(Slot { at: 256, room: 256 });
    client.ring();
    while client.answer(2, Slot { at: 256, room: 256 }).is_none() {
        assert!(begun.elapsed() < TIMEOUT, "and no other");
        std::thread::sleep(Duration::from_millis(1));
    }
}

//! Clients that break every rule: the node trusts none of their bytes, disconnects them, and continues.

use super::*;
use leeward_fabric::{Descriptor, Fabric};
use leeward_format::ring::{Identity, RingKind, Slot, write_message};

/// The answer to a client that asks for this; `None`: the ring is opened later.
fn asked(server: &mut Server, connection: u64, ask: Ask) -> Option<String> {
    match server.rings.ask(connection, HERE, &ask, Nanos::ZERO) {
        Some(Reply::RingRefused { reason }) => Some(reason),
        None => None,
        other => panic!("{other:?}"),
    }
}

fn ask(address: &str, request_bytes: u32, reply_bytes: u32) -> Ask {
    Ask::Open { address: address.into(), request_bytes, reply_bytes, reply: Bytes::from_static(b"descriptor") }
}

#[test]
fn rings_that_cannot_be_are_refused_and_take_nothing() {
    let network = SimNetwork::new(1, SimOptions::default());
    let mut server = Server::new(&network, 8192, 8192);
    assert!(asked(&mut server, 1, ask("@leeward-client-a", 4096, 4096)).expect("refused").contains("offered"));
    for connection in [1, 2, 3] {
        let offer = server.rings.ask(connection, HERE, &Ask::Offer, Nanos::ZERO);
        assert!(matches!(offer, Some(Reply::RingOffer { most_bytes: 8192, .. })), "{offer:?}");
    }
    for sizes in
        [(0, 4096), (4096, 0), (4095, 4096), (4096 + 32, 4096), (16384, 4096), (4096, u32::MAX), (u32::MAX, 64)]
    {
        let reason = asked(&mut server, 1, ask("@leeward-client-a", sizes.0, sizes.1)).expect("refused");
        assert!(reason.contains("it must have from"), "{reason}");
    }
    for address in ["@someone", "127.0.0.1:80", "", "/etc/socket", &"@".repeat(1000)] {
        assert!(asked(&mut server, 1, ask(address, 4096, 4096)).is_some(), "{address}");
    }
    let long = Ask::Open { address: "@a".into(), request_bytes: 4096, reply_bytes: 4096, reply: vec![0; 9999].into() };
    assert!(asked(&mut server, 1, long).is_some());
    assert_eq!(server.rings.figures(), (0, 0));
    assert_eq!(asked(&mut server, 1, ask("@leeward-client-a", 4096, 4096)), None);
    let again = server.rings.ask(1, HERE, &Ask::Offer, Nanos::ZERO);
    assert!(matches!(again, Some(Reply::RingRefused { .. })), "one ring a connection");
    assert_eq!(asked(&mut server, 2, ask("@leeward-client-b", 4096, 4096)), None);
    let reason = asked(&mut server, 3, ask("@leeward-client-c", 4096, 4096)).expect("there is no memory left");
    assert!(reason.contains("8192 of 8192 bytes") && reason.contains("leeward://"), "{reason}");
    server.rings.remove(1);
    assert_eq!(asked(&mut server, 3, ask("@leeward-client-c", 4096, 4096)), None, "what one gave back another has");
}

#[test]
fn a_ring_whose_client_cannot_be_reached_is_given_up() {
    let network = SimNetwork::new(1, SimOptions::default());
    let mut server = Server::new(&network, 8192, 8192);
    server.rings.ask(CONNECTION, HERE, &Ask::Offer, Nanos::ZERO);
    assert_eq!(asked(&mut server, CONNECTION, ask("@leeward-client-nobody", 4096, 4096)), None);
    let mut effects = Vec::new();
    server.rings.check_opening(OPENING, &mut effects);
    assert!(effects.is_empty() && server.rings.figures() == (1, 4096), "there is time left");
    server.rings.check_opening(OPENING + Nanos(1), &mut effects);
    assert!(matches!(&effects[..], [Effect::Tell(CONNECTION, Reply::RingRefused { .. })]), "{effects:?}");
    assert_eq!(server.rings.figures(), (0, 0));
}

/// A ring into which the test writes by itself, as its client, which knows the keys.
struct Open {
    network: SimNetwork,
    server: Server,
    client: Client,
}

impl Open {
    fn new() -> Open {
        let network = SimNetwork::new(5, SimOptions::default());
        let mut server = Server::new(&network, 4096, 4096);
        let client = open(&network, &mut server, 4096);
        Open { network, server, client }
    }

    fn message(&self, sequence: u64, place: u32, kind: RingKind, slot: Slot, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let key = self.client.request_key();
        write_message(Identity { key, sequence, place }, kind, slot, payload, &mut bytes);
        bytes
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let (fabric, request): (&dyn Fabric, &Descriptor) = self.client.raw();
        fabric.write(NODE, request, at, bytes, 0);
        fabric.flush();
        while self.network.step() {
            self.server.settle();
        }
    }

    fn receive(&mut self) -> Result<Vec<Vec<u8>>, DecodeError> {
        let mut taken = Vec::new();
        let take = |_: ReplyPath, request: &[u8]| {
            taken.push(request.to_vec());
            true
        };
        self.server.rings.receive(CONNECTION, 64, &mut Vec::new(), take).map(|_| taken)
    }
}

#[test]
fn what_no_client_writes_is_an_error() {
    let slot = Slot { at: 0, room: 64 };
    let outside = Slot { at: 4064, room: 64 };
    let odd = Slot { at: 8, room: 64 };
    for (kind, slot, payload) in [
        (RingKind::Frames, outside, &b"x"[..]),
        (RingKind::Frames, odd, b"x"),
        (RingKind::Frames, Slot::default(), b"x"),
        (RingKind::Noop, slot, b""),
        (RingKind::TooSmall, slot, b""),
        (RingKind::OnStream, slot, b""),
        (RingKind::Fetch, slot, b"short"),
        (RingKind::Fetch, slot, &77_u64.to_le_bytes()),
    ] {
        let mut ring = Open::new();
        let bytes = ring.message(1, 0, kind, slot, payload);
        ring.put(0, &bytes);
        assert!(ring.receive().is_err(), "{kind:?} {slot:?}");
    }
}

#[test]
fn a_word_of_an_earlier_lap_that_looks_like_a_message_is_none() {
    let slot = Slot { at: 0, room: 64 };
    let mut ring = Open::new();
    let message = ring.message(1, 0, RingKind::Frames, slot, b"x");
    // A length beyond the ring, and some within, under a tag that fits.
    for length in [4096 - 31, 1 << 20, u32::MAX, 0, 1, 64, 2000] {
        let mut bytes = message.clone();
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[8] ^= 0xff;
        ring.put(0, &bytes);
        assert_eq!(ring.receive(), Ok(Vec::new()), "{length}");
    }
    ring.put(0, &message);
    assert_eq!(ring.receive(), Ok(vec![b"x".to_vec()]), "the message itself is taken");
}

#[test]
fn bytes_that_are_no_message_are_nothing() {
    let mut ring = Open::new();
    let slot = Slot { at: 0, room: 64 };
    ring.put(0, &[0xff; 4096]);
    assert_eq!(ring.receive(), Ok(Vec::new()));
    let mut torn = ring.message(1, 0, RingKind::Frames, slot, &[7; 200]);
    torn[100] ^= 1;
    ring.put(0, &torn);
    assert_eq!(ring.receive(), Ok(Vec::new()), "a byte has not landed yet");
    torn[100] ^= 1;
    ring.put(0, &torn);
    assert_eq!(ring.receive(), Ok(vec![vec![7; 200]]));
    assert_eq!(ring.receive(), Ok(Vec::new()), "once");
    ring.put(256, &torn);
    assert_eq!(ring.receive(), Ok(Vec::new()), "the same elsewhere is not the next message");
}

#[test]
fn who_fetches_nothing_is_kept_little() {
    let mut ring = Open::new();
    let (mut at, mut kept, mut over_stream) = (0, 0_usize, 0);
    for sequence in 1..=5000_u64 {
        // Never a no-op: every message has 64 bytes.
        let bytes = ring.message(sequence, at, RingKind::Frames, Slot { at: 0, room: 32 }, &[1; 20]);
        ring.put(at.into(), &bytes);
        at = (at + bytes.len() as u32) % 4096;
        let mut reply_path = None;
        let taken =
            ring.server.rings.receive(CONNECTION, 64, &mut Vec::new(), |by, _| reply_path.replace(by).is_none());
        assert_eq!(taken.expect("a message").messages, 1);
        let answered = ring.server.rings.answer(CONNECTION, reply_path.expect("it was taken"), vec![7; 1500]);
        match answered.expect("the client gives slots back") {
            Some(_) => over_stream += 1,
            None => kept += 1500,
        }
        ring.server.settle();
        while ring.network.step() {
            ring.server.settle();
        }
    }
    assert!(kept <= 4 << 20 && over_stream > 2000, "{kept} bytes are kept, {over_stream} answers went over the stream");
}

#[test]
fn clients_are_numbered_by_chance_and_not_too_many() {
    let network = SimNetwork::new(1, SimOptions::default());
    let mut server = Server::new(&network, 8192, 1 << 20);
    let mut numbers = Vec::new();
    for connection in 1..=5 {
        for _ in 0..2 {
            match server.rings.ask(connection, HERE, &Ask::Offer, Nanos::ZERO) {
                Some(Reply::RingOffer { client, .. }) => numbers.push(client),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(numbers.chunks(2).all(|twice| twice[0] == twice[1]), "a client that asks again is told the same");
    numbers.dedup();
    assert!(numbers.windows(2).all(|pair| pair[0].abs_diff(pair[1]) > 1), "{numbers:?} can be guessed");
    let reason = asked(&mut server, 6, Ask::Offer).expect("one too many");
    assert!(reason.contains("5 clients") && reason.contains("leeward://"), "{reason}");
    server.rings.remove(3);
    assert!(matches!(server.rings.ask(6, HERE, &Ask::Offer, Nanos::ZERO), Some(Reply::RingOffer { .. })));
}

#[test]
fn an_answer_in_the_place_of_one_that_waits_is_an_error() {
    let mut ring = Open::new();
    let answer = |ring: &mut Open, sequence, at, room| {
        ring.server.rings.answer(
            CONNECTION,
            ReplyPath { sequence, slot: Slot { at, room } },
            vec![1; room as usize - 32],
        )
    };
    assert_eq!(answer(&mut ring, 1, 0, 256), Ok(None));
    assert_eq!(answer(&mut ring, 2, 192, 128), Ok(None), "it waits for the first");
    assert_eq!(answer(&mut ring, 3, 320, 128), Ok(None), "its place is free");
    for (at, room) in [(192, 128), (288, 64), (0, 256), (128, 512)] {
        assert!(answer(&mut ring, 4, at, room).is_err(), "{room} bytes at {at}");
    }
    assert!(ring.server.rings.is_answering(CONNECTION), "all that was given before is on its way");
    ring.server.settle();
    while !ring.server.is_quiet {
        assert!(ring.network.step(), "it arrives");
        ring.server.settle();
    }
    assert!(!ring.server.rings.is_answering(CONNECTION));
}

#[test]
fn what_a_client_does_not_take_is_counted_and_given_back_with_it() {
    let mut ring = Open::new();
    let rings = |ring: &Open| ring.server.budget.status().rings;
    assert_eq!(rings(&ring), 4096);
    for sequence in 1..=100 {
        let reply_path = ReplyPath { sequence, slot: Slot { at: 0, room: 32 } };
        let answered = ring.server.rings.answer(CONNECTION, reply_path, vec![7; 1900]);
        assert_eq!(answered, Ok(None), "it is kept");
        while ring.network.step() {
            ring.server.settle();
        }
        ring.server.settle();
    }
    assert_eq!(rings(&ring), 4096 + (128 << 10), "190,000 bytes, in steps");
    let timeout = Nanos::from_secs(60);
    assert!(ring.server.rings.stalled(Nanos::from_secs(1), timeout).is_empty());
    assert_eq!(ring.server.rings.stalled(Nanos::from_secs(62), timeout), [CONNECTION]);
    ring.server.rings.remove(CONNECTION);
    assert_eq!(rings(&ring), 0);
}

#[test]
fn control_messages_are_thrown_away_unread() {
    let mut ring = Open::new();
    ring.server.settle();
    ring.server.turn(false, &mut Rng::new(1));
    let (fabric, _) = ring.client.raw();
    for _ in 0..10 {
        fabric.send(NODE, &[1; 1000]);
    }
    fabric.flush();
    while ring.network.step() {}
    assert!(!ring.server.has_work(), "the event loop is not woken for them");
}

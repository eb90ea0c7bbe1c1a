//! The server's rings over a simulated fabric, whose bytes land in any order and at any time, with a client that keeps
//! to the protocol and sleeps whenever it may; and with clients that break the protocol.

mod hostile;
mod model;

use super::*;
use leeward_engine::{Memory as Budget, Purpose};
use leeward_fabric::{SimNetwork, SimOptions};
use leeward_platform::Rng;
use model::Client;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
pub(super) const NODE: PeerId = PeerId(1);
/// The connection of the client.
pub(super) const CONNECTION: u64 = 7;

/// The server's answer to a request: its bytes, as often as the first byte says.
pub(super) fn answer_to(request: &[u8]) -> Vec<u8> {
    request.repeat(usize::from(request[0] % 9))
}

/// A node that has nothing but rings.
pub(super) struct Server {
    pub(super) rings: Rings,
    is_woken: Arc<AtomicBool>,
    look: bool,
    is_awake: bool,
    /// Requests that were taken and not answered.
    work: VecDeque<(ReplyPath, Vec<u8>)>,
    /// Replies that went over the connection.
    pub(super) told: VecDeque<Reply>,
    /// Answers that went over the connection.
    pub(super) over_stream: VecDeque<Vec<u8>>,
    pub(super) is_lost: bool,
    pub(super) is_quiet: bool,
    buffer: Vec<u8>,
    /// The memory that reservations are of.
    pub(super) budget: Budget,
}

impl Server {
    pub(super) fn new(network: &SimNetwork, each_bytes: usize, total_bytes: usize) -> Server {
        let is_woken = Arc::new(AtomicBool::new(false));
        let wake = Arc::clone(&is_woken);
        let mailbox = Mailbox::new(move || wake.store(true, Ordering::Relaxed));
        let fabric = network.node(NODE, mailbox.sink());
        let on = RingFabric { fabric, name: "shm".into(), address: "@node".into(), node: NODE };
        let budget = Budget::new(64 << 20);
        let reservation = budget.reserve(Purpose::Rings);
        let limits = RingLimits { clients: 5, each_bytes, total_bytes };
        Server {
            rings: Rings::new(on, mailbox, limits, reservation, Rng::new(9)),
            is_woken,
            look: false,
            is_awake: false,
            work: VecDeque::new(),
            told: VecDeque::new(),
            over_stream: VecDeque::new(),
            is_lost: false,
            is_quiet: false,
            buffer: Vec::new(),
            budget,
        }
    }

    /// A bell came over the connection.
    fn ring(&mut self) {
        self.look = true;
    }

    fn has_work(&self) -> bool {
        self.look || self.is_awake || !self.work.is_empty() || self.is_woken.load(Ordering::Relaxed)
    }

    /// One turn of an event loop, that answers some of what it took, in any order.
    fn turn(&mut self, spins: bool, rng: &mut Rng) {
        self.is_woken.store(false, Ordering::Relaxed);
        if self.is_awake && rng.one_in(3) {
            self.is_awake = false;
            self.rings.fall_asleep();
        }
        if std::mem::take(&mut self.look) || self.is_awake {
            let work = &mut self.work;
            let received = self.rings.receive(CONNECTION, 3, &mut self.buffer, |reply_path, request| {
                work.push_back((reply_path, request.to_vec()));
                true
            });
            let received = received.expect("the client keeps to the protocol");
            self.look |= received.has_more;
            if spins && received.messages > 0 {
                self.is_awake = true;
                self.rings.stay_awake_for(CONNECTION);
            }
        }
        while !self.work.is_empty() && !rng.one_in(3) {
            let (reply_path, request) = self.work.swap_remove_back(rng.index(self.work.len())).expect("it is there");
            let answer = answer_to(&request);
            let answered = self.rings.answer(CONNECTION, reply_path, answer);
            self.over_stream.extend(answered.expect("the client keeps to the protocol"));
        }
        self.settle();
    }

    pub(super) fn settle(&mut self) {
        let mut effects = Vec::new();
        self.rings.settle(&mut effects);
        for effect in effects {
            match effect {
                Effect::Tell(CONNECTION, reply) => self.told.push_back(reply),
                Effect::Look(CONNECTION) => self.look = true,
                Effect::Quiet(CONNECTION) => self.is_quiet = true,
                Effect::Lost(CONNECTION) => self.is_lost = true,
                other => panic!("{other:?} is of another connection"),
            }
        }
    }
}

/// Opens rings of these sizes between the two.
fn open(network: &SimNetwork, server: &mut Server, bytes: usize) -> Client {
    let offer = server.rings.ask(CONNECTION, HERE, &Ask::Offer, Nanos::ZERO);
    let Some(Reply::RingOffer { client, node, .. }) = offer else { panic!("no offer: {offer:?}") };
    assert_eq!(node, NODE.0);
    let mut client = Client::new(network, PeerId(client), bytes);
    let ask = Ask::Open {
        address: "@leeward-client-1".into(),
        request_bytes: bytes as u32,
        reply_bytes: bytes as u32,
        reply: client.descriptor(),
    };
    assert_eq!(server.rings.ask(CONNECTION, HERE, &ask, Nanos::ZERO), None, "it is answered later");
    while server.told.is_empty() || !client.is_up() {
        assert!(network.step(), "both links come up");
        server.settle();
    }
    client.open(server.told.pop_front().expect("it was told"));
    client
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 60 }))]
    /// Whatever the fabric does with bytes, and whichever side sleeps when: each request is answered once, with its own
    /// answer, and neither side sleeps while the other waits for it.
    #[test]
    fn every_request_is_answered_once_and_neither_side_oversleeps(seed in any::<u64>(), spins in any::<bool>()) {
        let network = SimNetwork::new(seed, SimOptions::default());
        let mut rng = Rng::new(seed);
        let mut server = Server::new(&network, 4096, 1 << 20);
        let mut client = open(&network, &mut server, 4096);
        let mut left = 150;
        while left > 0 || client.waits() {
            match rng.below(3) {
                0 if !client.is_asleep() => {
                    if client.turn(&mut left, &mut rng) {
                        server.ring();
                    }
                }
                1 if server.has_work() => server.turn(spins, &mut rng),
                _ if network.step() => {}
                _ => prop_assert!(
                    !client.is_asleep() || server.has_work() || !server.told.is_empty() || !server.over_stream.is_empty(),
                    "both sleep, and {left} requests are left"
                ),
            }
            for reply in server.told.drain(..) {
                let Reply::RingBell { sleep } = reply else { panic!("{reply:?}") };
                client.rung(sleep);
            }
            for answer in server.over_stream.drain(..) {
                client.answered_over_stream(&answer);
            }
            prop_assert!(!server.is_lost);
        }
        server.rings.remove(CONNECTION);
        prop_assert_eq!(server.rings.figures(), (0, 0));
    }
}

#[test]
fn a_client_that_dies_frees_its_rings_and_no_other() {
    let network = SimNetwork::new(3, SimOptions::default());
    let mut server = Server::new(&network, 4096, 1 << 20);
    let mut client = open(&network, &mut server, 4096);
    let mut rng = Rng::new(3);
    // In the middle of a request: some of its bytes land, some never do.
    let mut left = 5;
    client.turn(&mut left, &mut rng);
    network.kill(client.peer());
    while !server.is_lost {
        assert!(network.step(), "the link notices that the client is gone");
        server.settle();
        let received = server.rings.receive(CONNECTION, 64, &mut Vec::new(), |_, request| {
            assert!(request.iter().all(|byte| *byte == request[0]), "no half request is taken");
            true
        });
        received.expect("a request that is not whole is no error");
    }
    server.rings.remove(CONNECTION);
    assert_eq!(server.rings.figures(), (0, 0));
    server.is_lost = false;
    let client = open(&network, &mut server, 4096);
    assert!(client.is_up(), "another may have rings at once");
}

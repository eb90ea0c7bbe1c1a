//! Properties of the simulated network only: faults on command, and equal runs from equal seeds.

use crate::{
    common::{Harness, Log, Node, bytes_of, pattern},
    harness::Sim,
};
use leeward_fabric::{Fabric, LinkEvent, Memory, PeerId, SimNetwork, SimOptions};
use leeward_platform::{Nanos, Rng};
use std::sync::Arc;

const SECOND: Nanos = Nanos::from_secs(1);

fn sim(seed: u64) -> Sim {
    Sim(SimNetwork::new(seed, SimOptions::default()))
}

/// Lets `span` of simulated time pass.
fn pass(h: &Sim, span: Nanos) {
    h.0.advance(h.0.now() + span);
}

/// A scenario of random calls. Returns the digest and the events of every node.
fn scenario(seed: u64) -> (u64, Vec<Vec<(PeerId, LinkEvent)>>) {
    let network = SimNetwork::new(seed, SimOptions::default());
    let (mut h, mut rng) = (Sim(network), Rng::new(seed));
    let mut nodes: Vec<Node> = (1..=3).map(|id| h.node(id)).collect();
    let mut memory: Vec<Arc<dyn Memory>> = nodes.iter().map(|node| node.fabric.allocate(4096).unwrap()).collect();
    let mut logs: Vec<Log> = nodes.iter().map(|node| Arc::clone(&node.log)).collect();
    for op in 0..400 {
        let (from, to) = (rng.index(3), rng.index(3));
        let (peer, descriptor) = (nodes[to].id, memory[to].descriptor());
        let fabric = &nodes[from].fabric;
        match rng.below(24) {
            0..=3 => fabric.connect(peer, ""),
            4..=12 => fabric.write(peer, &descriptor, rng.below(2048), &pattern(rng.index(2000), op as u8), op),
            13..=15 => fabric.read(peer, &descriptor, rng.below(2048), 1000, op),
            16..=18 => fabric.send(peer, &op.to_le_bytes()),
            19 => h.0.cut(nodes[from].id, peer),
            20 => h.0.heal(),
            21 => fabric.disconnect(peer),
            22 => h.0.slow(nodes[from].id, peer, Nanos::from_micros(rng.below(5000))),
            _ => {
                h.0.kill(peer);
                nodes[to] = h.node(peer.0);
                memory[to] = nodes[to].fabric.allocate(4096).unwrap();
                logs.push(Arc::clone(&nodes[to].log));
            }
        }
        nodes[from].fabric.flush();
        pass(&h, Nanos::from_micros(rng.below(20_000)));
    }
    pass(&h, SECOND);
    (h.0.digest(), logs.iter().map(|log| log.lock().unwrap().clone()).collect())
}

#[test]
fn the_same_seed_gives_the_same_events() {
    for seed in 0..40 {
        let (first, second) = (scenario(seed), scenario(seed));
        assert!(first == second, "seed {seed}");
        assert_ne!(first.0, scenario(seed + 1000).0, "seed {seed}");
    }
}

#[test]
fn no_event_of_a_link_breaks_the_contract_under_any_faults() {
    for seed in 0..300 {
        let (_, logs) = scenario(seed);
        for log in logs {
            for peer in (1..=3).map(PeerId) {
                let mut last_message = None;
                let mut ended = std::collections::HashSet::new();
                for (_, event) in log.iter().filter(|(from, _)| *from == peer) {
                    match event {
                        LinkEvent::Up | LinkEvent::Down => {}
                        LinkEvent::Message(bytes) => {
                            let number = u64::from_le_bytes(bytes[..].try_into().unwrap());
                            assert!(last_message < Some(number), "seed {seed}: a message twice or out of order");
                            last_message = Some(number);
                        }
                        LinkEvent::Completed { op } | LinkEvent::Refused { op } | LinkEvent::ReadDone { op, .. } => {
                            assert!(ended.insert(*op), "seed {seed}: an operation ended twice");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn operations_overtake_each_other_and_messages() {
    let (mut overtaken, mut message_first, mut message_last) = (false, false, false);
    for seed in 0..20 {
        let mut h = sim(seed);
        let (a, b) = h.pair();
        let memory = b.fabric.allocate(64).unwrap();
        a.fabric.write(b.id, &memory.descriptor(), 0, &[1; 8], 1);
        a.fabric.write(b.id, &memory.descriptor(), 8, &[1; 8], 2);
        a.fabric.send(b.id, b"after both");
        a.fabric.flush();
        h.until("something arrived", &mut || memory.load_u64(0) + memory.load_u64(8) > 0 || !b.messages(&a).is_empty());
        message_first |= !b.messages(&a).is_empty();
        message_last |= b.messages(&a).is_empty();
        overtaken |= memory.load_u64(8) > 0 && memory.load_u64(0) == 0;
    }
    assert!(overtaken && message_first && message_last);
}

#[test]
fn a_long_write_is_seen_in_parts_cut_at_words() {
    let mut partial = 0;
    for seed in 0..50 {
        let mut h = sim(seed);
        let (a, b) = h.pair();
        let memory = b.fabric.allocate(200).unwrap();
        let bytes = pattern(150, 0x55);
        a.write(&b, &memory.descriptor(), 13, &bytes, 1);
        while a.outcome(1).is_none() {
            h.0.step();
            let seen = bytes_of(&*memory, 0, 200);
            let landed: Vec<bool> = seen[13..163].iter().zip(&bytes).map(|(seen, byte)| seen == byte).collect();
            let changes = (1..150).filter(|i| landed[*i] != landed[i - 1] && bytes[*i] != 0 && bytes[i - 1] != 0);
            for change in changes {
                assert_eq!((change + 13) % 8, 0, "seed {seed}: cut inside a word");
                partial += 1;
            }
        }
        assert!(bytes_of(&*memory, 13, 150) == bytes);
    }
    assert!(partial > 20, "writes are torn now and then");
}

#[test]
fn a_long_read_brings_words_of_different_times_and_no_half_of_one() {
    let mut mixed = 0;
    for seed in 0..50 {
        let mut h = sim(seed);
        let (a, b) = h.pair();
        let memory = b.fabric.allocate_readable(200).unwrap();
        a.fabric.read(b.id, &memory.descriptor(), 13, 150, 1);
        a.fabric.flush();
        let mut round = 0u8;
        while a.outcome(1).is_none() {
            round += 1;
            memory.write(0, &[round; 200]);
            h.0.step();
        }
        let Some(LinkEvent::ReadDone { bytes, .. }) = a.outcome(1) else { panic!("seed {seed}: refused") };
        for i in (1..150).filter(|i| bytes[*i] != bytes[i - 1]) {
            assert_eq!((i + 13) % 8, 0, "seed {seed}: torn inside a word");
            mixed += 1;
        }
    }
    assert!(mixed > 10, "reads are torn now and then");
}

#[test]
fn a_read_that_is_under_way_at_a_revocation_is_refused() {
    let mut refused = 0;
    for seed in 0..50 {
        let mut h = sim(seed);
        let (a, b) = h.pair();
        let memory = b.fabric.allocate_readable(4096).unwrap();
        a.fabric.read(b.id, &memory.descriptor(), 0, 4096, 1);
        a.fabric.flush();
        h.0.step();
        memory.revoke();
        pass(&h, SECOND);
        // The step may have been the arrival of the whole read.
        match a.outcome(1) {
            Some(LinkEvent::ReadDone { bytes, .. }) => assert_eq!(bytes.len(), 4096),
            outcome => {
                assert_eq!(outcome, Some(LinkEvent::Refused { op: 1 }), "seed {seed}");
                refused += 1;
            }
        }
    }
    assert!(refused > 10, "{refused} of 50");
}

#[test]
fn nothing_leaves_before_the_flush() {
    let mut h = sim(1);
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(8).unwrap();
    a.fabric.write(b.id, &memory.descriptor(), 0, &[1; 8], 1);
    pass(&h, SECOND);
    assert_eq!((memory.load_u64(0), a.outcome(1)), (0, None));
    a.fabric.flush();
    pass(&h, SECOND);
    assert!(a.completed(&b, 1));
}

#[test]
fn writes_land_whatever_the_application_does() {
    // A paused application handles no events: its sink collects them, here as in a simulation.
    let mut h = sim(2);
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(8).unwrap();
    a.write(&b, &memory.descriptor(), 0, &[1; 8], 1);
    pass(&h, SECOND);
    assert!(b.log.lock().unwrap().is_empty());
    assert_eq!((memory.load_u64(0), a.completed(&b, 1)), (u64::from_le_bytes([1; 8]), true));
}

#[test]
fn a_cut_holds_what_arrives_until_it_heals() {
    let mut h = sim(3);
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(64).unwrap();
    h.0.cut(a.id, b.id);
    a.write(&b, &memory.descriptor(), 0, &[1; 8], 1);
    for message in 0..10u8 {
        a.fabric.send(b.id, &[message]);
    }
    a.fabric.flush();
    pass(&h, Nanos::from_millis(100));
    assert!(b.messages(&a).is_empty() && memory.load_u64(0) == 0, "nothing passes");
    h.0.heal();
    pass(&h, Nanos::from_millis(10));
    assert!(a.completed(&b, 1));
    assert_eq!(b.messages(&a), (0..10u8).map(|message| vec![message]).collect::<Vec<_>>());
    pass(&h, SECOND + SECOND + SECOND);
    assert_eq!((a.ups(&b), a.downs(&b)), (1, 0), "healed before it was noticed");
}

#[test]
fn a_cut_of_the_way_back_lets_writes_land_but_not_complete() {
    let mut h = sim(4);
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(64).unwrap();
    h.0.cut(b.id, a.id);
    a.write(&b, &memory.descriptor(), 0, &[1; 8], 1);
    pass(&h, Nanos::from_millis(100));
    assert_eq!((memory.load_u64(0) != 0, a.outcome(1)), (true, None));
    pass(&h, SECOND + SECOND + SECOND);
    assert_eq!((a.downs(&b), a.ups(&b), a.outcome(1)), (1, 1, None), "down, and not up while it is cut");
    h.0.heal();
    pass(&h, SECOND);
    assert_eq!((a.ups(&b), a.outcome(1)), (2, None));
}

#[test]
fn groups_are_cut_from_each_other_only() {
    let mut h = sim(5);
    let nodes: Vec<Node> = (1..=4).map(|id| h.node(id)).collect();
    for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))).filter(|(from, to)| from != to) {
        nodes[from].fabric.connect(nodes[to].id, "");
    }
    pass(&h, SECOND);
    h.0.partition(&[&[nodes[0].id, nodes[1].id], &[nodes[2].id]]);
    pass(&h, SECOND + SECOND + SECOND);
    let down = |from: usize, to: usize| nodes[from].downs(&nodes[to]) == 1;
    assert!(down(0, 2) && down(2, 0) && down(1, 2) && down(2, 1));
    assert!(!down(0, 1) && !down(1, 0) && (0..3).all(|node| !down(node, 3) && !down(3, node)));
    h.0.heal();
    pass(&h, SECOND);
    assert!((0..2).all(|node| nodes[node].ups(&nodes[2]) == 2));
}

#[test]
fn a_slowed_link_is_slow_one_way() {
    let mut h = sim(6);
    let (a, b) = h.pair();
    h.0.slow(a.id, b.id, SECOND);
    a.fabric.send(b.id, b"slow");
    a.fabric.flush();
    pass(&h, Nanos::from_millis(999));
    assert!(b.messages(&a).is_empty());
    pass(&h, Nanos::from_millis(2));
    assert_eq!(b.messages(&a).len(), 1);
}

#[test]
fn what_a_killed_node_had_in_flight_lands_in_part_and_never_after_its_successor_is_up() {
    let (mut partial, mut prefixes) = (0, std::collections::HashSet::new());
    for seed in 0..100 {
        let mut h = sim(seed);
        let (a, b) = h.pair();
        let memory = b.fabric.allocate(8 * 20).unwrap();
        for op in 0..20 {
            a.fabric.write(b.id, &memory.descriptor(), op * 8, &[1; 8], op);
            a.fabric.send(b.id, &[op as u8]);
        }
        a.fabric.flush();
        h.0.kill(a.id);
        let next = h.node(1);
        next.fabric.connect(b.id, "");
        h.until("the successor is up", &mut || next.ups(&b) == 1);
        let landed = bytes_of(&*memory, 0, 160);
        let messages = b.messages(&a);
        partial += usize::from(landed.contains(&1) && landed.contains(&0));
        prefixes.insert(messages.len());
        assert_eq!(messages, (0..messages.len() as u8).map(|message| vec![message]).collect::<Vec<_>>());
        pass(&h, SECOND);
        assert!(bytes_of(&*memory, 0, 160) == landed, "seed {seed}: landed after the successor was up");
        assert_eq!(b.messages(&a), messages, "seed {seed}: a message of a dead node after its successor was up");
        assert!((0..20).all(|op| next.outcome(op).is_none()));
        next.fabric.send(b.id, b"new");
        next.fabric.flush();
        pass(&h, SECOND);
        let mut expected = messages;
        expected.push(b"new".to_vec());
        assert_eq!(b.messages(&next), expected, "seed {seed}");
    }
    assert!(partial > 20 && prefixes.len() > 3, "{partial} partial, {prefixes:?} messages");
}

#[test]
fn of_the_messages_of_a_killed_node_any_first_part_arrives() {
    let arrived: std::collections::HashSet<usize> = (0..60)
        .map(|seed| {
            let mut h = sim(seed);
            let (a, b) = h.pair();
            for message in 0..4 {
                a.fabric.send(b.id, &[message]);
            }
            a.fabric.flush();
            h.0.kill(a.id);
            pass(&h, SECOND);
            b.messages(&a).len()
        })
        .collect();
    assert_eq!(arrived.len(), 5, "none to all: {arrived:?}");
}

#[test]
fn a_message_takes_its_own_time_whatever_an_earlier_connection_left_behind() {
    let mut h = sim(10);
    let (a, b) = h.pair();
    h.0.slow(a.id, b.id, SECOND);
    for _ in 0..10 {
        a.fabric.send(b.id, b"old");
    }
    a.fabric.flush();
    h.0.slow(a.id, b.id, Nanos::ZERO);
    a.fabric.disconnect(b.id);
    a.fabric.connect(b.id, "");
    h.until("it is up again", &mut || a.ups(&b) == 2);
    h.0.slow(a.id, b.id, SECOND + SECOND);
    a.fabric.send(b.id, b"new");
    a.fabric.flush();
    pass(&h, SECOND + Nanos::from_millis(900));
    assert!(b.messages(&a).is_empty());
    pass(&h, SECOND);
    assert_eq!(b.messages(&a), [b"new".to_vec()]);
}

#[test]
fn a_killed_nodes_memory_is_gone_and_its_links_notice_after_a_while() {
    let mut h = sim(8);
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(8).unwrap();
    let killed = h.0.now();
    h.0.kill(b.id);
    a.write(&b, &memory.descriptor(), 0, &[1; 8], 1);
    h.until("the link is down", &mut || a.downs(&b) == 1);
    assert!(h.0.now() >= killed + SimOptions::default().min_detect);
    assert_eq!((memory.load_u64(0), a.outcome(1)), (0, None));
    b.fabric.send(a.id, b"from the grave");
    b.fabric.connect(a.id, "");
    b.fabric.flush();
    pass(&h, SECOND);
    assert!(b.log.lock().unwrap().is_empty() && a.messages(&b).is_empty());
}

#[test]
fn a_peer_that_came_back_resets_the_link_when_it_is_used() {
    let mut h = sim(9);
    let (a, b) = h.pair();
    h.0.kill(b.id);
    let b = h.node(2);
    a.fabric.send(b.id, b"for the dead");
    a.fabric.flush();
    pass(&h, Nanos::from_millis(1));
    assert_eq!(a.downs(&b), 1, "at once, not after the detection delay");
    pass(&h, SECOND);
    assert_eq!((a.ups(&b), b.messages(&a).len()), (2, 0));
}

#[test]
fn readable_memory_of_a_process_that_is_killed_slowly_is_read_for_a_while() {
    let mut h = sim(10);
    let (a, b) = h.pair();
    let (memory, writable) = (b.fabric.allocate_readable(8).unwrap(), b.fabric.allocate(8).unwrap());
    memory.store_u64(0, 7);
    h.0.kill_slowly(b.id, SECOND);
    let again = h.node(2);
    for (op, span) in [(1, Nanos::ZERO), (2, Nanos::from_millis(900))] {
        pass(&h, span);
        a.fabric.read(b.id, &memory.descriptor(), 0, 8, op);
        a.fabric.flush();
        h.until("it is read", &mut || a.outcome(op).is_some());
        assert_eq!(a.outcome(op), Some(LinkEvent::ReadDone { op, bytes: 7_u64.to_le_bytes().to_vec() }));
    }
    a.write(&b, &writable.descriptor(), 0, &[1; 8], 3);
    h.until("the link to the dead is down", &mut || a.downs(&b) == 1);
    assert_eq!((writable.load_u64(0), a.outcome(3)), (0, None));
    h.until("the link to its successor is up", &mut || a.ups(&again) == 2);
    a.fabric.read(b.id, &memory.descriptor(), 0, 8, 4);
    a.fabric.flush();
    h.until("it is refused", &mut || a.outcome(4).is_some());
    assert_eq!(a.outcome(4), Some(LinkEvent::Refused { op: 4 }));
}

/// How many of eight stores a peer has seen at once; what the owner sends after them, and a revocation, wait for all.
fn stores_seen(seed: u64) -> usize {
    let mut h = Sim(SimNetwork::new(seed, SimOptions { store_gap: Nanos::from_micros(30), ..SimOptions::default() }));
    let (a, b) = h.pair();
    b.fabric.connect(a.id, "");
    h.until("both links are up", &mut || b.ups(&a) == 1);
    let memory = b.fabric.allocate_readable(64).unwrap();
    a.fabric.read(b.id, &memory.descriptor(), 0, 64, 1);
    a.fabric.flush();
    pass(&h, Nanos::from_micros(seed));
    (0..8).for_each(|word| memory.store_u64(8 * word, 1));
    assert!(h.0.has_stores(b.id));
    assert!((0..8).all(|word| memory.load_u64(8 * word) == 1), "the owner reads what it has stored");
    b.fabric.send(a.id, b"done");
    b.fabric.flush();
    h.until("it is read", &mut || a.outcome(1).is_some() || !a.messages(&b).is_empty());
    assert!(a.messages(&b).is_empty() || !h.0.has_stores(b.id), "seed {seed}");
    h.until("it is read", &mut || a.outcome(1).is_some());
    let Some(LinkEvent::ReadDone { bytes, .. }) = a.outcome(1) else { panic!("it is not refused") };
    memory.store_u64(0, 2);
    memory.revoke();
    assert!(!h.0.has_stores(b.id));
    bytes.chunks(8).filter(|word| word[0] == 1).count()
}

#[test]
fn a_peer_reads_while_the_owner_is_between_two_stores() {
    let seen: std::collections::BTreeSet<usize> = (0..200).map(stores_seen).collect();
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), (0..=8).collect::<Vec<_>>());
}

#[test]
fn time_is_what_the_driver_makes_it() {
    let network = SimNetwork::new(1, SimOptions::default());
    assert_eq!((network.now(), network.next_event_time(), network.step()), (Nanos::ZERO, None, false));
    network.advance(SECOND);
    assert_eq!(network.now(), SECOND);
    let fabric = network.node(PeerId(1), Arc::new(|_, _| {}));
    fabric.connect(PeerId(2), "");
    let next = network.next_event_time().expect("an attempt is on its way");
    assert!(next > SECOND);
    assert!(network.step());
    assert_eq!(network.now(), next);
    network.advance(SECOND);
    assert_eq!(network.now(), next, "time never goes back");
}

#[test]
fn a_narrow_link_has_a_queue_that_urgent_messages_pass() {
    let options = SimOptions { bytes_per_second: 1_000_000, ..SimOptions::default() };
    let mut h = Sim(SimNetwork::new(1, options));
    let (from, to) = (h.node(1), h.node(2));
    from.fabric.connect(to.id, "");
    pass(&h, SECOND);
    let memory = to.fabric.allocate(500_000).unwrap();
    from.fabric.write(to.id, &memory.descriptor(), 0, &pattern(500_000, 1), 1);
    from.fabric.send(to.id, b"message");
    from.fabric.send_urgent(to.id, b"urgent");
    from.fabric.flush();
    assert!((500_000..501_000).contains(&from.fabric.queued_bytes(to.id)));
    let message = |bytes: &[u8]| LinkEvent::Message(bytes.to_vec());
    pass(&h, Nanos::from_millis(10));
    assert_eq!((to.count(&from, &message(b"urgent")), to.count(&from, &message(b"message"))), (1, 0));
    pass(&h, Nanos::from_millis(480));
    assert_eq!(from.count(&to, &LinkEvent::Completed { op: 1 }), 0);
    pass(&h, Nanos::from_millis(20));
    assert_eq!((from.count(&to, &LinkEvent::Completed { op: 1 }), to.count(&from, &message(b"message"))), (1, 1));
    assert_eq!(from.fabric.queued_bytes(to.id), 0);
}

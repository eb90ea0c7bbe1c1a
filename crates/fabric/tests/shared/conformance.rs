//! The guarantees of every transport, tested on each of them.

use crate::common::{Harness, Node, bytes_of, pattern, recorder};
use leeward_fabric::{Descriptor, Fabric, LinkEvent, PAGE_BYTES, PeerId};
use std::sync::{Arc, OnceLock, Weak};

every_transport!(
    a_write_lands_and_completes,
    memory_begins_zeroed_and_odd_ranges_are_exact,
    what_was_given_back_reads_as_zeroes_and_is_written_again,
    many_writes_in_flight_all_complete_once,
    a_read_brings_the_bytes,
    a_flag_is_seen_after_its_data,
    an_aligned_word_is_never_seen_half,
    an_empty_write_and_read_complete,
    both_directions_at_once,
    messages_arrive_once_and_in_order,
    messages_of_many_mebibytes_arrive,
    writes_of_many_mebibytes_arrive,
    a_revoked_memory_refuses_and_does_not_change,
    a_dropped_memory_refuses,
    ranges_outside_are_refused,
    foreign_and_forged_descriptors_are_refused,
    refusals_do_not_disturb_their_neighbours,
    nothing_is_carried_before_the_link_is_up,
    a_peer_that_dies_takes_the_link_down,
    a_peer_that_comes_back_is_connected_again_and_knows_no_old_descriptor,
    a_disconnected_link_is_silent,
    a_link_waits_for_a_peer_that_starts_later,
    a_sink_may_post,
    what_is_posted_is_counted,
);

fn a_write_lands_and_completes(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(4096).unwrap();
    a.write(&b, &memory.descriptor(), 100, b"hello", 1);
    h.until("the write completes", &mut || a.completed(&b, 1));
    assert_eq!(bytes_of(&*memory, 98, 9), b"\0\0hello\0\0");
}

fn memory_begins_zeroed_and_odd_ranges_are_exact(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(37).unwrap();
    assert_eq!((memory.len(), memory.is_empty()), (37, false));
    assert_eq!(bytes_of(&*memory, 0, 37), [0; 37]);
    let mut model = [0; 37];
    for (op, (offset, len)) in
        [(0, 1), (1, 7), (3, 12), (7, 2), (8, 8), (15, 22), (36, 1), (30, 7)].into_iter().enumerate()
    {
        let bytes = pattern(len, op as u8 + 1);
        a.write(&b, &memory.descriptor(), offset as u64, &bytes, op as u64);
        h.until("the write completes", &mut || a.completed(&b, op as u64));
        model[offset..offset + len].copy_from_slice(&bytes);
        assert_eq!(bytes_of(&*memory, 0, 37), model);
    }
    memory.write(5, b"own");
    assert_eq!(bytes_of(&*memory, 5, 3), b"own");
}

fn what_was_given_back_reads_as_zeroes_and_is_written_again(h: &mut dyn Harness) {
    const BYTES: usize = 5 * PAGE_BYTES + 100;
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(BYTES).unwrap();
    let mut model = pattern(BYTES, 1);
    a.write(&b, &memory.descriptor(), 0, &model, 1);
    h.until("the write completes", &mut || a.completed(&b, 1));
    memory.release(1..3 * PAGE_BYTES + 1);
    model[PAGE_BYTES..3 * PAGE_BYTES].fill(0);
    assert!(bytes_of(&*memory, 0, BYTES) == model);
    memory.release(5 * PAGE_BYTES..BYTES);
    model[5 * PAGE_BYTES..].fill(0);
    assert!(bytes_of(&*memory, 0, BYTES) == model);
    a.write(&b, &memory.descriptor(), 2 * PAGE_BYTES as u64 - 3, b"again", 2);
    h.until("the write completes", &mut || a.completed(&b, 2));
    model[2 * PAGE_BYTES - 3..][..5].copy_from_slice(b"again");
    memory.revoke();
    assert!(bytes_of(&*memory, 0, BYTES) == model);
}

fn many_writes_in_flight_all_complete_once(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(64 * 2000).unwrap();
    for op in 0..2000u64 {
        a.fabric.write(b.id, &memory.descriptor(), op * 64, &[op as u8; 64], op);
    }
    a.fabric.flush();
    h.until("all complete", &mut || a.log.lock().unwrap().len() == 2001);
    for op in 0..2000 {
        assert!(a.completed(&b, op));
        assert_eq!(bytes_of(&*memory, op as usize * 64, 64), [op as u8; 64]);
    }
}

fn a_read_brings_the_bytes(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(700_001).unwrap();
    let bytes = pattern(700_001, 3);
    memory.write(0, &bytes);
    a.fabric.read(b.id, &memory.descriptor(), 1, 700_000, 5);
    a.fabric.read(b.id, &memory.descriptor(), 3, 1, 6);
    a.fabric.flush();
    h.until("both are read", &mut || a.outcome(5).is_some() && a.outcome(6).is_some());
    assert!(a.outcome(5) == Some(LinkEvent::ReadDone { op: 5, bytes: bytes[1..].to_vec() }));
    assert_eq!(a.outcome(6), Some(LinkEvent::ReadDone { op: 6, bytes: vec![bytes[3]] }));
}

fn a_flag_is_seen_after_its_data(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(4096).unwrap();
    for round in 1..=50u64 {
        a.write(&b, &memory.descriptor(), 0, &[round as u8; 4000], round * 2);
        h.until("the data completes", &mut || a.completed(&b, round * 2));
        a.write(&b, &memory.descriptor(), 4088, &round.to_le_bytes(), round * 2 + 1);
        h.until("the flag is seen", &mut || memory.load_u64(4088) == round);
        assert_eq!(bytes_of(&*memory, 0, 4000), [round as u8; 4000]);
    }
    memory.store_u64(4088, 99);
    assert_eq!(bytes_of(&*memory, 4088, 8), 99u64.to_le_bytes());
}

fn an_aligned_word_is_never_seen_half(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(4096).unwrap();
    let to = memory.descriptor();
    for op in 0..1000u64 {
        a.fabric.write(b.id, &to, 8, &[op as u8; 8], op);
        // Of odd lengths, so that words begin anywhere in what goes over a stream.
        a.fabric.write(b.id, &to, 64, &vec![1; 1000 + op as usize % 9], op + 1000);
    }
    a.fabric.flush();
    h.until("all complete", &mut || {
        let word = memory.load_u64(8).to_le_bytes();
        assert!(word == [word[0]; 8], "half of a word: {word:02x?}");
        a.log.lock().unwrap().len() == 2001
    });
}

fn an_empty_write_and_read_complete(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(64).unwrap();
    a.fabric.write(b.id, &memory.descriptor(), 64, &[], 1);
    a.fabric.read(b.id, &memory.descriptor(), 64, 0, 2);
    a.fabric.flush();
    h.until("both end", &mut || a.outcome(1).is_some() && a.outcome(2).is_some());
    assert_eq!(a.outcome(1), Some(LinkEvent::Completed { op: 1 }));
    assert_eq!(a.outcome(2), Some(LinkEvent::ReadDone { op: 2, bytes: vec![] }));
}

fn both_directions_at_once(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    b.fabric.connect(a.id, &a.fabric.local_address());
    h.until("the way back is up", &mut || b.ups(&a) == 1);
    let (at_a, at_b) = (a.fabric.allocate(8 << 20).unwrap(), b.fabric.allocate(8 << 20).unwrap());
    let (to_a, to_b) = (pattern(1 << 20, 1), pattern(1 << 20, 2));
    for op in 0..8 {
        a.write(&b, &at_b.descriptor(), op << 20, &to_b, op);
        b.write(&a, &at_a.descriptor(), op << 20, &to_a, op);
    }
    h.until("all complete", &mut || (0..8).all(|op| a.completed(&b, op) && b.completed(&a, op)));
    for op in 0..8 {
        assert!(bytes_of(&*at_a, op << 20, 1 << 20) == to_a && bytes_of(&*at_b, op << 20, 1 << 20) == to_b);
    }
}

fn messages_arrive_once_and_in_order(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    for i in 0..500u32 {
        a.fabric.send(b.id, &i.to_le_bytes());
        if i % 7 == 0 {
            a.fabric.flush();
        }
    }
    a.fabric.send(b.id, b"");
    a.fabric.flush();
    h.until("all arrive", &mut || b.messages(&a).len() == 501);
    let mut expected: Vec<Vec<u8>> = (0..500u32).map(|i| i.to_le_bytes().to_vec()).collect();
    expected.push(Vec::new());
    assert_eq!(b.messages(&a), expected);
}

fn messages_of_many_mebibytes_arrive(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let messages = [pattern(5 << 20, 1), pattern(17, 2), pattern((12 << 20) + 5, 3)];
    for message in &messages {
        a.fabric.send(b.id, message);
    }
    a.fabric.flush();
    h.until("all arrive", &mut || b.messages(&a).len() == 3);
    assert!(b.messages(&a) == messages);
}

fn writes_of_many_mebibytes_arrive(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(16 << 20).unwrap();
    let bytes = pattern((16 << 20) - 3, 9);
    a.write(&b, &memory.descriptor(), 3, &bytes, 1);
    h.until("it completes", &mut || a.completed(&b, 1));
    assert!(bytes_of(&*memory, 3, bytes.len()) == bytes);
}

fn a_revoked_memory_refuses_and_does_not_change(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(1 << 20).unwrap();
    a.write(&b, &memory.descriptor(), 0, b"kept", 1);
    h.until("the first write completes", &mut || a.completed(&b, 1));
    for op in 2..100 {
        a.write(&b, &memory.descriptor(), 8192, &[op as u8; 4096], op);
    }
    memory.revoke();
    let settled = bytes_of(&*memory, 0, 1 << 20);
    for op in 100..110 {
        a.write(&b, &memory.descriptor(), 0, &[0xee; 8192], op);
    }
    a.fabric.read(b.id, &memory.descriptor(), 0, 8, 110);
    a.fabric.flush();
    h.until("all end", &mut || (2..=110).all(|op| a.outcome(op).is_some()));
    assert!((100..=110).all(|op| a.outcome(op) == Some(LinkEvent::Refused { op })));
    assert!(bytes_of(&*memory, 0, 1 << 20) == settled, "bytes changed after the revocation");
    assert_eq!(&settled[..4], b"kept");
    memory.revoke();
    memory.write(0, b"mine");
    assert_eq!(bytes_of(&*memory, 0, 4), b"mine", "the owner still has its memory");
}

fn a_dropped_memory_refuses(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(64).unwrap();
    let descriptor = memory.descriptor();
    a.write(&b, &descriptor, 0, &[1; 64], 1);
    h.until("it completes", &mut || a.completed(&b, 1));
    drop(memory);
    a.write(&b, &descriptor, 0, &[1; 64], 2);
    h.until("it ends", &mut || a.outcome(2).is_some());
    assert_eq!(a.outcome(2), Some(LinkEvent::Refused { op: 2 }));
}

fn ranges_outside_are_refused(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(100).unwrap();
    let to = memory.descriptor();
    for (op, (offset, len)) in
        [(100, 1), (96, 5), (0, 101), (u64::MAX, 1), (u64::MAX - 7, 8), (1 << 40, 0)].into_iter().enumerate()
    {
        a.fabric.write(b.id, &to, offset, &vec![1; len], op as u64);
        a.fabric.read(b.id, &to, offset, len as u32, op as u64 + 100);
    }
    a.fabric.flush();
    h.until("all end", &mut || (0..6).all(|op| a.outcome(op).is_some() && a.outcome(op + 100).is_some()));
    for op in (0..6).flat_map(|op| [op, op + 100]) {
        assert_eq!(a.outcome(op), Some(LinkEvent::Refused { op }));
    }
    assert_eq!(bytes_of(&*memory, 0, 100), [0; 100]);
}

fn foreign_and_forged_descriptors_are_refused(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(64).unwrap();
    let good = memory.descriptor();
    let forged = |at: usize| {
        let mut bytes = good.0.clone();
        bytes[at] ^= 1;
        Descriptor(bytes)
    };
    let bad = [Descriptor(vec![]), Descriptor(b"nonsense".to_vec()), forged(0), forged(1), forged(9), forged(24)];
    for (op, descriptor) in bad.iter().enumerate() {
        a.fabric.write(b.id, descriptor, 0, &[1; 65], op as u64);
    }
    a.fabric.flush();
    h.until("all end", &mut || (0..6).all(|op| a.outcome(op).is_some()));
    assert!((0..6).all(|op| a.outcome(op) == Some(LinkEvent::Refused { op })));
    a.write(&b, &good, 0, &[1; 64], 50);
    h.until("the right one works", &mut || a.completed(&b, 50));
}

fn refusals_do_not_disturb_their_neighbours(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let (kept, revoked) = (b.fabric.allocate(8192).unwrap(), b.fabric.allocate(8192).unwrap());
    revoked.revoke();
    for op in 0..300u64 {
        let to = if op % 3 == 0 { revoked.descriptor() } else { kept.descriptor() };
        a.fabric.write(b.id, &to, op * 8, &op.to_le_bytes(), op);
        a.fabric.read(b.id, &to, op * 8, 8, op + 1000);
    }
    a.fabric.flush();
    h.until("all end", &mut || a.log.lock().unwrap().len() == 601);
    for op in 0..300u64 {
        let refused = (op % 3 == 0).then_some(LinkEvent::Refused { op });
        assert_eq!(a.outcome(op), Some(refused.unwrap_or(LinkEvent::Completed { op })));
        assert_eq!(matches!(a.outcome(op + 1000), Some(LinkEvent::ReadDone { .. })), op % 3 != 0);
        assert_eq!(kept.load_u64(op as usize * 8), if op % 3 == 0 { 0 } else { op });
    }
}

fn nothing_is_carried_before_the_link_is_up(h: &mut dyn Harness) {
    let (a, b) = (h.node(1), h.node(2));
    let memory = b.fabric.allocate(64).unwrap();
    a.fabric.send(b.id, b"too early");
    a.write(&b, &memory.descriptor(), 0, &[1; 64], 1);
    a.fabric.connect(b.id, &b.fabric.local_address());
    h.until("the link is up", &mut || a.ups(&b) == 1);
    a.fabric.send(b.id, b"in time");
    a.fabric.flush();
    h.until("a message arrives", &mut || !b.messages(&a).is_empty());
    assert_eq!(b.messages(&a), [b"in time".to_vec()]);
    assert_eq!((a.outcome(1), bytes_of(&*memory, 0, 64)), (None, vec![0; 64]));
}

fn a_peer_that_dies_takes_the_link_down(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(64).unwrap();
    let (id, descriptor) = (b.id, memory.descriptor());
    drop(memory);
    h.kill(b);
    let down = (id, LinkEvent::Down);
    h.until("the link is down", &mut || a.log.lock().unwrap().last() == Some(&down));
    a.fabric.write(id, &descriptor, 0, &[1; 8], 9);
    a.fabric.send(id, b"nobody hears");
    a.fabric.flush();
    for _ in 0..50 {
        h.pass();
    }
    assert_eq!(*a.log.lock().unwrap(), [(id, LinkEvent::Up), down]);
}

fn a_peer_that_comes_back_is_connected_again_and_knows_no_old_descriptor(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(64).unwrap();
    let old = memory.descriptor();
    a.write(&b, &old, 0, &[1; 64], 1);
    h.until("a write completes", &mut || a.completed(&b, 1));
    drop(memory);
    h.kill(b);
    let b = h.node(2);
    let memory = b.fabric.allocate(64).unwrap();
    h.until("the link is up again", &mut || a.ups(&b) == 2);
    assert_eq!(a.downs(&b), 1);
    assert_ne!(old, memory.descriptor());
    a.write(&b, &old, 0, &[2; 64], 2);
    a.write(&b, &memory.descriptor(), 8, &[3; 8], 3);
    h.until("both end", &mut || a.outcome(2).is_some() && a.outcome(3).is_some());
    assert_eq!(a.outcome(2), Some(LinkEvent::Refused { op: 2 }));
    assert_eq!(a.outcome(3), Some(LinkEvent::Completed { op: 3 }));
    assert_eq!((memory.load_u64(0), memory.load_u64(8)), (0, u64::from_le_bytes([3; 8])));
}

fn a_disconnected_link_is_silent(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    a.fabric.disconnect(b.id);
    a.fabric.send(b.id, b"no");
    a.fabric.flush();
    for _ in 0..50 {
        h.pass();
    }
    assert_eq!(*a.log.lock().unwrap(), [(b.id, LinkEvent::Up)]);
    assert!(b.messages(&a).is_empty());
    a.fabric.connect(b.id, &b.fabric.local_address());
    h.until("it connects again", &mut || a.ups(&b) == 2);
    a.fabric.send(b.id, b"yes");
    a.fabric.flush();
    h.until("a message arrives", &mut || b.messages(&a) == [b"yes".to_vec()]);
}

fn a_link_waits_for_a_peer_that_starts_later(h: &mut dyn Harness) {
    let b = h.node(2);
    let address = b.fabric.local_address();
    h.kill(b);
    let a = h.node(1);
    a.fabric.connect(PeerId(2), &address);
    for _ in 0..50 {
        h.pass();
    }
    assert!(a.log.lock().unwrap().is_empty());
    let b = h.node(2);
    h.until("it is connected", &mut || a.ups(&b) == 1);
}

fn a_sink_may_post(h: &mut dyn Harness) {
    // Peer 2 echoes messages, and peer 1 answers each completion by the next write, from inside of their sinks.
    let echoing: Arc<OnceLock<Weak<dyn Fabric>>> = Arc::default();
    let posting: Arc<OnceLock<(Weak<dyn Fabric>, Descriptor)>> = Arc::default();
    let echo = Arc::clone(&echoing);
    let b = h.attach(
        2,
        Arc::new(move |peer, event| {
            if let (LinkEvent::Message(message), Some(fabric)) = (event, echo.get().and_then(Weak::upgrade)) {
                fabric.send(peer, &message);
                fabric.flush();
            }
        }),
    );
    let (log, record) = recorder();
    let post = Arc::clone(&posting);
    let a = h.attach(
        1,
        Arc::new(move |peer, event| {
            if let (LinkEvent::Completed { op }, Some((fabric, to))) = (&event, post.get())
                && let Some(fabric) = fabric.upgrade()
                && *op < 200
            {
                fabric.write(peer, to, op + 1, &[1], op + 1);
                fabric.send(peer, &op.to_le_bytes());
                fabric.flush();
            }
            record(peer, event);
        }),
    );
    let memory = b.allocate(201).unwrap();
    let [a, b] = [(1, a), (2, b)].map(|(id, fabric)| Node { id: PeerId(id), fabric, log: Arc::clone(&log) });
    let _ = echoing.set(Arc::downgrade(&b.fabric));
    let _ = posting.set((Arc::downgrade(&a.fabric), memory.descriptor()));
    b.fabric.connect(a.id, &a.fabric.local_address());
    a.fabric.connect(b.id, &b.fabric.local_address());
    h.until("the link is up", &mut || a.ups(&b) == 1);
    // The way back may come up later: until then echoes are lost.
    h.until("echoes come back", &mut || {
        a.fabric.send(b.id, b"anybody there?");
        a.fabric.flush();
        !a.messages(&b).is_empty()
    });
    a.write(&b, &memory.descriptor(), 0, &[1], 0);
    h.until("the chain ends", &mut || a.completed(&b, 200));
    assert_eq!(bytes_of(&*memory, 0, 201), [1; 201]);
    let echoes = || a.messages(&b).into_iter().filter(|message| message.len() == 8).collect::<Vec<_>>();
    h.until("all echoes come back", &mut || echoes().len() == 200);
    assert!(echoes().into_iter().eq((0..200u64).map(|op| op.to_le_bytes().to_vec())));
}

fn what_is_posted_is_counted(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(1 << 20).unwrap();
    // A transport may have something of its own to send when a link comes up.
    let counted = || (a.fabric.counters().bytes_sent, b.fabric.counters().bytes_received);
    let (mut sent, mut received) = counted();
    h.until("what came with the link is there", &mut || {
        (sent, received) = counted();
        sent == received
    });
    for op in 0..10 {
        a.write(&b, &memory.descriptor(), 0, &vec![1; 100_000], op);
    }
    a.fabric.send(b.id, &[1; 10_000]);
    a.fabric.flush();
    h.until("all arrive", &mut || (0..10).all(|op| a.completed(&b, op)) && b.messages(&a).len() == 1);
    let (sent_now, received_now) = (|| counted().0 - sent, || counted().1 - received);
    assert!((1_010_000..1_020_000).contains(&sent_now()), "{} bytes sent", sent_now());
    // A node that takes no part in a write counts it later.
    h.until("what one side sent, the other received", &mut || sent_now() == received_now());
    let before = a.fabric.counters().bytes_received;
    a.fabric.read(b.id, &memory.descriptor(), 0, 500_000, 99);
    a.fabric.flush();
    h.until("it is read", &mut || a.outcome(99).is_some());
    let received = a.fabric.counters().bytes_received - before;
    assert!((500_000..501_000).contains(&received), "{received} bytes received");
}

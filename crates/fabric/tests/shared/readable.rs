//! The guarantees of readable memory, tested on every transport.

use crate::common::{Harness, Node, pattern};
use leeward_fabric::{Descriptor, LinkEvent, ReadNow, ReadableDescriptor, ReadableMemory};

every_transport!(
    readable_memory_is_read,
    a_write_to_readable_memory_is_refused_and_changes_nothing,
    refused_writes_do_not_disturb_reads,
    ranges_outside_of_readable_memory_are_refused,
    forged_descriptors_of_readable_memory_are_refused,
    a_word_of_readable_memory_is_never_read_half,
    a_revocation_ends_reads,
    a_dropped_readable_memory_refuses,
    a_revocation_while_reads_are_under_way_lets_them_end,
    a_read_now_copies_or_says_that_it_cannot,
    a_peer_that_dies_takes_its_readable_memory_with_it,
);

const BYTES: usize = 10_000;

/// Readable memory with a pattern in it.
fn filled(owner: &Node, seed: u8) -> ReadableMemory {
    let memory = owner.fabric.allocate_readable(BYTES).unwrap();
    memory.write(0, &pattern(BYTES, seed));
    memory
}

fn read(from: &Node, owner: &Node, memory: &ReadableDescriptor, (offset, len): (u64, u32), op: u64) {
    from.fabric.read(owner.id, memory, offset, len, op);
    from.fabric.flush();
}

/// What a peer makes of a readable descriptor that wants to write: as it is, and as one of writable memory.
fn forged(memory: &ReadableMemory) -> [Descriptor; 2] {
    let bytes = memory.descriptor().0;
    let mut writable = bytes.clone();
    writable[0] &= 0x0f;
    assert_ne!(bytes, writable);
    [Descriptor(bytes), Descriptor(writable)]
}

fn assert_unchanged(memory: &ReadableMemory, seed: u8) {
    let mut found = vec![0; BYTES];
    memory.read(0, &mut found);
    assert!(found == pattern(BYTES, seed), "readable memory was changed");
}

fn readable_memory_is_read(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate_readable(37).unwrap();
    assert_eq!((memory.len(), memory.is_empty()), (37, false));
    let mut model = [0; 37];
    let mut op = 0;
    let mut check = |model: &[u8; 37]| {
        for (offset, len) in [(0, 37), (0, 1), (1, 7), (3, 12), (7, 2), (8, 8), (36, 1), (37, 0)] {
            op += 1;
            read(&a, &b, &memory.descriptor(), (offset as u64, len as u32), op);
            h.until("it is read", &mut || a.outcome(op).is_some());
            let bytes = model[offset..offset + len].to_vec();
            assert_eq!(a.outcome(op), Some(LinkEvent::ReadDone { op, bytes }));
        }
    };
    check(&model);
    model[3..20].copy_from_slice(&pattern(17, 1));
    memory.write(3, &pattern(17, 1));
    check(&model);
    model[24..32].copy_from_slice(&7u64.to_le_bytes());
    memory.store_u64(24, 7);
    assert_eq!(memory.load_u64(24), 7);
    check(&model);
}

fn a_write_to_readable_memory_is_refused_and_changes_nothing(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = filled(&b, 3);
    let mut op = 0;
    for descriptor in forged(&memory) {
        for (offset, len) in [(0, 0), (8, 8), (9, 3), (0, 64), (1, 4096), (0, BYTES)] {
            op += 1;
            a.write(&b, &descriptor, offset, &vec![0xee; len], op);
            h.until("the write ends", &mut || a.outcome(op).is_some());
            assert_eq!(a.outcome(op), Some(LinkEvent::Refused { op }), "{len} bytes at {offset}");
        }
    }
    assert_unchanged(&memory, 3);
    assert_eq!(a.downs(&b), 0, "and the link stays up");
}

fn refused_writes_do_not_disturb_reads(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let (memory, writable) = (filled(&b, 4), b.fabric.allocate(8 * 300).unwrap());
    let [_, to] = forged(&memory);
    for op in 0..300u64 {
        a.fabric.write(b.id, &to, op * 8, &op.to_le_bytes(), op);
        a.fabric.read(b.id, &memory.descriptor(), op * 8, 8, op + 1000);
        a.fabric.write(b.id, &writable.descriptor(), op * 8, &op.to_le_bytes(), op + 2000);
    }
    a.fabric.flush();
    h.until("all end", &mut || a.log.lock().unwrap().len() == 901);
    let bytes = pattern(BYTES, 4);
    for op in 0..300u64 {
        let at = op as usize * 8;
        assert_eq!(a.outcome(op), Some(LinkEvent::Refused { op }));
        let read = LinkEvent::ReadDone { op: op + 1000, bytes: bytes[at..at + 8].to_vec() };
        assert_eq!(a.outcome(op + 1000), Some(read));
        assert!(a.completed(&b, op + 2000) && writable.load_u64(at) == op);
    }
    assert_unchanged(&memory, 4);
}

fn ranges_outside_of_readable_memory_are_refused(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = filled(&b, 5);
    let end = BYTES as u64;
    read(&a, &b, &memory.descriptor(), (0, 8), 1000);
    h.until("it is read", &mut || a.outcome(1000).is_some());
    // A descriptor that says that the memory is longer than it is.
    let mut longer = memory.descriptor();
    longer.0[17..25].copy_from_slice(&u64::MAX.to_le_bytes());
    let ranges = [(end, 1), (end - 4, 5), (0, BYTES + 1), (u64::MAX, 1), (u64::MAX - 7, 8), (1 << 40, 0)];
    for (op, (offset, len)) in ranges.into_iter().enumerate() {
        for (op, descriptor) in [(op as u64, memory.descriptor()), (op as u64 + 100, longer.clone())] {
            read(&a, &b, &descriptor, (offset, len as u32), op);
            h.until("it ends", &mut || a.outcome(op).is_some());
            assert_eq!(a.outcome(op), Some(LinkEvent::Refused { op }), "{len} bytes at {offset}");
            let mut buffer = vec![1; len];
            assert_ne!(a.fabric.read_now(b.id, &descriptor, offset, &mut buffer), ReadNow::Copied);
            assert!(buffer.iter().all(|byte| *byte == 1), "nothing was copied");
        }
    }
    assert_eq!(a.downs(&b), 0);
}

fn forged_descriptors_of_readable_memory_are_refused(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let (memory, writable) = (filled(&b, 6), b.fabric.allocate(64).unwrap());
    let good = memory.descriptor();
    let forged = |at: usize, bit: u8| {
        let mut bytes = good.0.clone();
        bytes[at] ^= bit;
        ReadableDescriptor(bytes)
    };
    let nonsense = [vec![], b"nonsense".to_vec(), vec![0xff; 25]].map(ReadableDescriptor);
    let bad = [forged(0, 1), forged(0, 0x20), forged(1, 1), forged(9, 1)];
    for (op, descriptor) in nonsense.iter().chain(&bad).enumerate() {
        let op = op as u64;
        read(&a, &b, descriptor, (0, 8), op);
        h.until("it ends", &mut || a.outcome(op).is_some());
        assert_eq!(a.outcome(op), Some(LinkEvent::Refused { op }), "{descriptor:?}");
        assert_ne!(a.fabric.read_now(b.id, descriptor, 0, &mut [0; 8]), ReadNow::Copied, "{descriptor:?}");
    }
    // Both kinds of one memory: what it is registered for goes on.
    let mut readable = writable.descriptor().0;
    readable[0] |= 0x10;
    read(&a, &b, &ReadableDescriptor(readable), (0, 8), 50);
    a.write(&b, &writable.descriptor(), 0, &[1; 64], 51);
    read(&a, &b, &good, (0, 8), 52);
    h.until("all end", &mut || (50..=52).all(|op| a.outcome(op).is_some()));
    assert!(a.completed(&b, 51));
    assert_eq!(a.outcome(52), Some(LinkEvent::ReadDone { op: 52, bytes: pattern(8, 6) }));
}

fn a_word_of_readable_memory_is_never_read_half(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate_readable(64).unwrap();
    for op in 0..500u64 {
        a.fabric.read(b.id, &memory.descriptor(), 8, 8, op);
        // Of odd lengths, so that words begin anywhere in what goes over a stream.
        a.fabric.read(b.id, &memory.descriptor(), 16, op as u32 % 9, op + 1000);
    }
    a.fabric.flush();
    let mut round = 0u8;
    h.until("all end", &mut || {
        for _ in 0..100 {
            round = round.wrapping_add(1);
            memory.write(8, &[round; 8]);
        }
        a.log.lock().unwrap().len() == 1001
    });
    for op in 0..500 {
        let Some(LinkEvent::ReadDone { bytes, .. }) = a.outcome(op) else { panic!("it is not refused") };
        assert_eq!(bytes, [bytes[0]; 8], "half of a word");
    }
}

fn a_revocation_ends_reads(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let (memory, kept) = (filled(&b, 7), filled(&b, 8));
    read(&a, &b, &memory.descriptor(), (0, 8), 1);
    h.until("it is read", &mut || a.outcome(1).is_some());
    assert!(matches!(a.outcome(1), Some(LinkEvent::ReadDone { .. })));
    memory.revoke();
    for op in 2..10 {
        read(&a, &b, &memory.descriptor(), (op * 8, 4096), op);
        read(&a, &b, &kept.descriptor(), (0, 8), op + 100);
    }
    h.until("all end", &mut || (2..10).all(|op| a.outcome(op).is_some() && a.outcome(op + 100).is_some()));
    for op in 2..10 {
        assert_eq!(a.outcome(op), Some(LinkEvent::Refused { op }));
        assert!(matches!(a.outcome(op + 100), Some(LinkEvent::ReadDone { .. })));
    }
    assert_ne!(a.fabric.read_now(b.id, &memory.descriptor(), 0, &mut [0; 8]), ReadNow::Copied);
    assert_unchanged(&memory, 7);
    memory.revoke();
    memory.write(0, b"mine");
    let mut mine = [0; 4];
    memory.read(0, &mut mine);
    assert_eq!(&mine, b"mine", "the owner still has its memory");
}

fn a_dropped_readable_memory_refuses(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = filled(&b, 9);
    let (descriptor, other) = (memory.descriptor(), memory.clone());
    drop(memory);
    read(&a, &b, &descriptor, (0, 8), 1);
    h.until("it is read", &mut || a.outcome(1).is_some());
    assert_eq!(a.outcome(1), Some(LinkEvent::ReadDone { op: 1, bytes: pattern(8, 9) }), "a handle is left");
    drop(other);
    read(&a, &b, &descriptor, (0, 8), 2);
    h.until("it ends", &mut || a.outcome(2).is_some());
    assert_eq!(a.outcome(2), Some(LinkEvent::Refused { op: 2 }));
    assert_ne!(a.fabric.read_now(b.id, &descriptor, 0, &mut [0; 8]), ReadNow::Copied);
}

fn a_revocation_while_reads_are_under_way_lets_them_end(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = b.fabric.allocate_readable(1 << 20).unwrap();
    memory.write(0, &pattern(1 << 20, 1));
    for op in 0..50 {
        read(&a, &b, &memory.descriptor(), (0, 1 << 20), op);
    }
    memory.revoke();
    memory.write(0, &[0; 1 << 20]);
    read(&a, &b, &memory.descriptor(), (0, 8), 50);
    h.until("all end", &mut || (0..=50).all(|op| a.outcome(op).is_some()));
    assert_eq!(a.outcome(50), Some(LinkEvent::Refused { op: 50 }));
    for op in 0..50 {
        match a.outcome(op) {
            Some(LinkEvent::ReadDone { bytes, .. }) => assert_eq!(bytes.len(), 1 << 20),
            other => assert_eq!(other, Some(LinkEvent::Refused { op })),
        }
    }
}

fn a_read_now_copies_or_says_that_it_cannot(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = filled(&b, 10);
    let descriptor = memory.descriptor();
    let mut bytes = [1; 100];
    assert_eq!(a.fabric.read_now(b.id, &descriptor, 5, &mut bytes), ReadNow::NotMapped, "nothing was posted yet");
    assert_eq!(bytes, [1; 100]);
    read(&a, &b, &descriptor, (5, 100), 1);
    h.until("it is read", &mut || a.outcome(1).is_some());
    let before = a.fabric.counters().bytes_received;
    for round in 0..10 {
        memory.write(5, &[round; 100]);
        match a.fabric.read_now(b.id, &descriptor, 5, &mut bytes) {
            ReadNow::Copied => assert_eq!(bytes, [round; 100]),
            other => assert_eq!((other, bytes), (ReadNow::NotMapped, [1; 100])),
        }
    }
    let received = a.fabric.counters().bytes_received - before;
    assert!(received == 1000 || bytes == [1; 100], "{received} bytes counted");
    assert_ne!(b.fabric.read_now(a.id, &descriptor, 5, &mut bytes), ReadNow::Copied, "another peer's");
}

fn a_peer_that_dies_takes_its_readable_memory_with_it(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    let memory = filled(&b, 11);
    let (id, old) = (b.id, memory.descriptor());
    read(&a, &b, &old, (0, 8), 1);
    h.until("it is read", &mut || a.outcome(1).is_some());
    drop(memory);
    h.kill(b);
    let down = (id, LinkEvent::Down);
    h.until("the link is down", &mut || {
        let _ = a.fabric.read_now(id, &old, 0, &mut [0; BYTES]);
        a.log.lock().unwrap().contains(&down)
    });
    assert_eq!(a.fabric.read_now(id, &old, 0, &mut [0; 8]), ReadNow::NotMapped);
    let b = h.node(2);
    let memory = filled(&b, 12);
    h.until("the link is up again", &mut || a.ups(&b) == 2);
    read(&a, &b, &old, (0, 8), 2);
    read(&a, &b, &memory.descriptor(), (0, 8), 3);
    h.until("both end", &mut || a.outcome(2).is_some() && a.outcome(3).is_some());
    assert_eq!(a.outcome(2), Some(LinkEvent::Refused { op: 2 }));
    assert_eq!(a.outcome(3), Some(LinkEvent::ReadDone { op: 3, bytes: pattern(8, 12) }));
}
